"""Replies of the Responses API beyond the recorded ones: order, missing events, parts of a message, other servers' ways."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from ctxfold import (
    BackendError,
    Message,
    ReasoningPart,
    Reply,
    Request,
    TextPart,
    ToolCallPart,
    ToolSpec,
    open_backend,
    tool_result,
    user,
)
from ctxfold.backends.http_backend import HttpBackend
from tests.wire.raw_server import Play, RawServer
from tests.wire.test_responses_vectors import covers, following
from tests.wire.test_vectors import MODEL

Event = dict[str, Any]
REASONING: Event = {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "ENC"}
PART: Event = {"type": "output_text", "text": "Hello.", "annotations": []}
SAID: Event = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [PART]}


def call(number: int) -> Event:
    names = {"id": f"fc_{number}", "call_id": f"call_{number}", "name": "look", "arguments": f'{{"n":{number}}}'}
    return {"type": "function_call", "status": "completed", **names}


def added(index: int, item: Event) -> Event:
    begun: Event = {
        **item,
        **({"arguments": ""} if "arguments" in item else {}),
        **({"content": []} if "content" in item else {}),
    }
    return {"type": "response.output_item.added", "output_index": index, "item": begun}


def done(index: int, item: Event) -> Event:
    return {"type": "response.output_item.done", "output_index": index, "item": item}


def text(index: int, delta: str, place: int = 0) -> Event:
    return {"type": "response.output_text.delta", "output_index": index, "content_index": place, "delta": delta}


def arguments(index: int, delta: str) -> Event:
    return {"type": "response.function_call_arguments.delta", "output_index": index, "delta": delta}


def completed(*output: Event, status: str = "completed", **fields: Any) -> Event:
    response = {"object": "response", "status": status, "output": list(output), **fields}
    return {"type": f"response.{status}", "response": response}


def frames(events: Iterable[Event]) -> list[bytes]:
    return [f"data: {json.dumps(event)}\n\n".encode() for event in events]


def backend(server: RawServer) -> HttpBackend:
    url = server.base_url
    return open_backend("openai", MODEL, wire="openai_responses", base_url=url, api_key="k", max_retries=0)


def reply(*events: Event, then: bytes = b"") -> Reply:
    with RawServer(Play([*frames(events), then])) as server, backend(server) as service:
        return service.send(Request((user("hi", id="u"),)))


def kinds(message: Message) -> list[str]:
    return [part.type for part in message.parts]


def test_calls_begun_in_another_order_come_in_that_of_the_output() -> None:
    first, second = call(0), call(1)
    message = reply(
        added(1, second),
        arguments(1, '{"n":1}'),
        added(0, first),
        arguments(0, '{"n":0}'),
        done(1, second),
        completed(),
    ).message
    assert [(c.id, c.arguments) for c in message.tool_calls] == [("call_0", '{"n":0}'), ("call_1", '{"n":1}')]


def test_text_waits_for_the_item_before_it() -> None:
    events = (added(0, REASONING), added(1, SAID), text(1, "Hel"), done(0, REASONING), text(1, "lo."), done(1, SAID))
    message = reply(*events, completed()).message
    assert (kinds(message), message.text) == (["reasoning", "text"], "Hello.")
    assert covers(following(message)[1:3], [REASONING, SAID])


def test_items_without_an_end_take_it_from_the_complete_output() -> None:
    stub: Event = {**REASONING, "encrypted_content": "stub"}
    events = (added(0, stub), added(1, SAID), text(1, "Hel"), added(2, call(2)))
    message = reply(*events, completed(REASONING, SAID, call(2))).message
    assert message.text == "Hello."
    assert covers(following(message)[1:4], [REASONING, SAID, call(2)])


def test_without_an_end_and_an_output_a_stub_does_not_go_back() -> None:
    stub: Event = {**REASONING, "encrypted_content": "stub"}
    message = reply(added(0, stub), added(1, SAID), text(1, "Hello."), completed()).message
    assert following(message)[1] == {"role": "assistant", "content": "Hello."}


def test_an_item_that_no_event_announced_is_in_the_output() -> None:
    events = (
        text(0, "Hello."),
        completed(SAID, {"type": "web_search_call", "id": "ws_1", "status": "completed"}, call(2)),
    )
    message = reply(*events).message
    assert covers(following(message)[1:4], [SAID, {"id": "ws_1"}, call(2)])
    assert kinds(message) == ["text", "reasoning", "tool_call"]


@pytest.mark.parametrize("whole", [True, False], ids=["complete output", "no output"])
def test_two_items_with_one_id_are_two(whole: bool) -> None:
    first, second = call(0), {**call(1), "id": "fc_0"}
    events = (added(0, first), added(1, second), arguments(0, '{"n":0}'), arguments(1, '{"n":1}'))
    output = (first, second) if whole else ()
    message = reply(*events, done(0, first), done(1, second), completed(*output)).message
    assert [(c.id, c.arguments) for c in message.tool_calls] == [("call_0", '{"n":0}'), ("call_1", '{"n":1}')]
    assert covers(following(message)[1:3], [first, second])


def test_two_calls_with_one_call_id_are_told_apart() -> None:
    first, second = call(0), {**call(1), "call_id": "call_0"}
    for events in ([done(0, first), done(1, second), completed()], [completed(first, second)]):
        calls = reply(*events).message.tool_calls
        assert [c.arguments for c in calls] == ['{"n":0}', '{"n":1}']
        assert calls[0].id == "call_0" != calls[1].id


@pytest.mark.parametrize("ends", [True, False])
def test_events_without_place_and_id_are_about_the_open_item(ends: bool) -> None:
    pieces = [{"type": "response.output_text.delta", "delta": delta} for delta in ("Hel", "lo.")]
    end = [
        {"type": "response.output_text.done", "text": "Hello."},
        {"type": "response.output_item.done", "item": SAID},
    ]
    message = reply(*pieces, *(end if ends else ()), completed()).message
    assert (kinds(message), message.text) == (["text"], "Hello.")
    sent = following(message)[1]
    assert (sent["role"], sent["content"]) == ("assistant", [PART])


WHOLE_TEXTS: list[tuple[Event, Event]] = [
    (SAID, {"type": "response.output_text.done", "content_index": 0, "text": "Hello."}),
    (SAID, {"type": "response.content_part.done", "content_index": 0, "part": PART}),
    (call(3), {"type": "response.function_call_arguments.done", "arguments": '{"n":3}'}),
    (
        {**SAID, "content": [{"type": "refusal", "refusal": "No."}]},
        {"type": "response.refusal.done", "content_index": 0, "refusal": "No."},
    ),
    (
        {**REASONING, "summary": [{"type": "summary_text", "text": "Hm."}]},
        {"type": "response.reasoning_summary_text.done", "summary_index": 0, "text": "Hm."},
    ),
    (
        {"id": "rs_1", "type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "response.reasoning_text.done", "content_index": 0, "text": "Hm."},
    ),
]


@pytest.mark.parametrize(("item", "event"), WHOLE_TEXTS, ids=lambda one: str(one["type"]))
def test_a_text_may_come_whole_at_its_end_and_counts_once(item: Event, event: Event) -> None:
    start = added(0, {**item, **({"summary": []} if "summary" in item else {})})
    start["item"].pop("encrypted_content", None)
    alone = reply(start, {**event, "output_index": 0}, completed(status="incomplete")).message
    repeated = reply(start, {**event, "output_index": 0}, done(0, item), completed(item, status="incomplete")).message
    for message in (alone, repeated):
        assert message.text == ("Hello." if item is SAID else "")
        assert message.reasoning == ("Hm." if item["type"] == "reasoning" else "")
        assert [c.arguments for c in message.tool_calls] == (['{"n":3}'] if "call_id" in item else [])
        assert message.opaque("refusal") == ("No." if "refusal" in json.dumps(item) else None)
    assert covers(following(repeated)[1:2], [item])


def test_the_parts_of_a_message_stay_apart_with_what_stands_beside_them() -> None:
    cited: Event = {**PART, "text": "One.", "annotations": [{"type": "url_citation", "url": "https://a.example"}]}
    refused = {"type": "refusal", "refusal": "Not that."}
    item: Event = {**SAID, "phase": "commentary", "content": [cited, {**PART, "text": "Two."}, refused]}
    part = {"type": "response.content_part.done", "output_index": 0, "content_index": 0, "part": cited}
    for events in (
        [added(0, item), text(0, "One."), part, text(0, "Two.", 1), done(0, item), completed(item)],
        [completed(item)],
    ):
        answer = reply(*events)
        message = answer.message
        assert [p.text for p in message.parts if isinstance(p, TextPart)] == ["One.", "Two.", ""]
        assert (message.opaque("refusal"), answer.finish_reason) == ("Not that.", "content_filter")
        assert covers(following(message)[1], item)


def test_a_commentary_between_reasoning_and_call_keeps_its_place() -> None:
    again: Event = {**REASONING, "id": "rs_2"}
    output: list[Event] = [REASONING, {**SAID, "phase": "commentary"}, call(2), again, call(4)]
    message = reply(completed(*output)).message
    assert kinds(message) == ["reasoning", "text", "tool_call", "reasoning", "tool_call"]
    assert covers(following(message)[1:6], output)


def test_raw_reasoning_goes_back_where_nothing_is_encrypted() -> None:
    item: Event = {
        "id": "rs_1",
        "type": "reasoning",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "Hm."}],
    }
    delta = {"type": "response.reasoning_text.delta", "output_index": 0, "content_index": 0, "delta": "Hm."}
    for events in ([added(0, item), delta, done(0, item), completed(item, SAID)], [completed(item, SAID)]):
        message = reply(*events).message
        assert message.reasoning == "Hm."
        assert covers(following(message)[1:3], [item, SAID])


def test_of_a_summary_and_raw_reasoning_only_one_is_shown() -> None:
    item: Event = {**REASONING, "summary": [{"type": "summary_text", "text": "Short."}]}
    item["content"] = [{"type": "reasoning_text", "text": "Very long."}]
    raw = {"type": "response.reasoning_text.delta", "output_index": 0, "content_index": 0, "delta": "Very long."}
    short = {"type": "response.reasoning_summary_text.delta", "output_index": 0, "summary_index": 0, "delta": "Short."}
    assert reply(added(0, REASONING), short, raw, done(0, item), completed(item, SAID)).message.reasoning == "Short."
    assert (
        reply(added(0, REASONING), raw, short, done(0, item), completed(item, SAID)).message.reasoning == "Very long."
    )
    assert reply(completed(item, SAID)).message.reasoning == "Short."


def test_tools_stay_as_loose_as_they_were_and_long_ids_are_shortened_alike() -> None:
    long = "x" * 80
    asked = Message("a", "assistant", (ToolCallPart(long, "look", "{}"),), model="other")
    hosted = {"type": "web_search"}
    request = Request(
        (user("hi", id="u"), asked, tool_result(long, "plums", id="t")),
        tools=(ToolSpec("look"),),
        tool_choice="look",
        extra={"tools": [hosted], "include": ["web_search_call.action.sources"]},
    )
    with open_backend("openai", MODEL, wire="openai_responses", api_key="k") as service:
        body = service.request_body(request, stream=False)
    function: Event = {
        "type": "function",
        "name": "look",
        "parameters": {"type": "object", "properties": {}},
        "strict": False,
    }
    assert body["tools"] == [function, hosted]
    assert body["tool_choice"] == {"type": "function", "name": "look"}
    assert body["include"] == ["reasoning.encrypted_content", "web_search_call.action.sources"]
    made, told = body["input"][1:]
    assert made["call_id"] == told["call_id"] != long
    assert len(made["call_id"]) <= 64
    answer = reply(completed(call(1), id="resp_1"))
    assert (answer.finish_reason, answer.raw["id"]) == ("tool_calls", "resp_1")


@pytest.mark.parametrize("changed", [1, 2])
def test_a_rewritten_turn_sends_neither_its_reasoning_nor_an_id(changed: int) -> None:
    message = reply(completed(REASONING, SAID, call(2))).message
    parts = list(message.parts)
    parts[changed] = TextPart("Rewritten.") if changed == 1 else ToolCallPart("call_2", "look", "{}")
    items = following(Message(message.id, "assistant", tuple(parts), model=MODEL))
    if changed == 1:
        assert items[1] == {"role": "assistant", "content": "Rewritten."}
        assert "id" not in items[2]
    else:
        assert covers(items[1:3], [REASONING, SAID])
        assert "id" not in items[3]


def test_without_its_reasoning_an_item_has_no_id() -> None:
    message = reply(completed(REASONING, SAID, call(2))).message
    items = following(message.without_reasoning())
    assert items[1:3] == [
        {"role": "assistant", "content": "Hello."},
        {"type": "function_call", "call_id": "call_2", "name": "look", "arguments": '{"n":2}'},
    ]


def test_without_its_reasoning_an_item_keeps_its_phase_and_its_namespace() -> None:
    placed = {**call(2), "namespace": "crm"}
    message = reply(completed(REASONING, {**SAID, "phase": "commentary"}, placed)).message
    assert following(message.without_reasoning())[1:3] == [
        {"role": "assistant", "content": "Hello.", "phase": "commentary"},
        {"type": "function_call", "call_id": "call_2", "name": "look", "arguments": '{"n":2}', "namespace": "crm"},
    ]


def test_a_refusal_goes_back_as_it_came() -> None:
    refused = {**SAID, "content": [PART, {"type": "refusal", "refusal": "No."}]}
    (item,) = following(reply(completed(refused)).message)[1:-1]
    assert item["content"] == [{"type": "output_text", "text": "Hello.", "annotations": []}, refused["content"][1]]


def test_reasoning_known_by_its_id_alone_goes_back_only_to_a_service_that_stores() -> None:
    bare: Event = {"id": "rs_1", "type": "reasoning", "summary": []}
    message = reply(completed(bare, SAID)).message
    assert following(message)[1] == {"role": "assistant", "content": "Hello."}
    assert covers(following(message, extra={"store": True})[1:3], [bare, SAID])


def test_a_compaction_that_was_asked_for_stands_for_what_was_before() -> None:
    told = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "old"}]}
    compacted = {"type": "compaction", "id": "cmp_1", "encrypted_content": "CMP"}
    body = json.dumps({"object": "response.compaction", "output": [told, compacted]}).encode()
    with RawServer(Play([body])) as server, backend(server) as service:
        message = service.send(Request((user("hi", id="u"),))).message
    assert message.text == ""
    assert following(message) == [told, compacted, {"role": "user", "content": "And?"}]


def test_a_call_before_a_compaction_stays_with_its_result() -> None:
    compacted = {"type": "compaction", "id": "cmp_1", "encrypted_content": "CMP"}
    message = reply(completed(REASONING, call(1), compacted)).message
    assert covers(following(message)[:3], [REASONING, call(1), compacted])


def test_done_without_a_terminal_event_is_truncated() -> None:
    with pytest.raises(BackendError) as caught:
        reply(added(0, SAID), text(0, "Hello."), done(0, SAID), then=b"data: [DONE]\n\n")
    assert caught.value.kind == "stream_truncated"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("server_error", "server"),
        ("rate_limit_exceeded", "rate_limit"),
        ("invalid_prompt", "rejected"),
        ("bio_policy", "content_filter"),
        ("image_too_large", "rejected"),
        ("vector_store_timeout", "server"),
    ],
)
def test_a_failed_reply_says_what_failed(code: str, kind: str) -> None:
    with pytest.raises(BackendError, match="It broke") as caught:
        reply(completed(status="failed", error={"code": code, "message": "It broke."}))
    assert (caught.value.kind, caught.value.code) == (kind, code)


def test_a_queued_reply_is_to_be_asked_for_again() -> None:
    body = json.dumps({"object": "response", "status": "queued", "output": []}).encode()
    with RawServer(Play([body])) as server, backend(server) as service:
        assert service.send(Request((user("hi", id="u"),))).finish_reason == "pause"


def test_reasoning_parts_of_other_wires_are_left_out() -> None:
    blocks = [{"type": "reasoning.text", "text": "x"}, {"type": "thinking", "thinking": "x", "signature": "s"}]
    parts = (ReasoningPart("x", None, json.dumps(blocks)), ReasoningPart("y", "sig"), TextPart("Hi.", '{"other": 1}'))
    items = following(Message("a", "assistant", parts, model=MODEL))
    assert items[1] == {"role": "assistant", "content": "Hi."}
