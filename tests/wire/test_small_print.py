"""W11: what is rare on the wires, each with the reply that the service would send."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ctxfold import AgentContext, Completed, Message, Reply, Request, Usage, open_backend, tool_result, user
from ctxfold.stream import Fold
from ctxfold.testing import ModelServer, RawReply, Scripted
from ctxfold.testing.served_converse import event_frame
from tests.support.wires import WIRES
from tests.wire.anthropic_wire import make, parsed
from tests.wire.test_chat_blocks import answered, played, sent_back


def whole(body: Any) -> RawReply:
    return RawReply(headers={"content-type": "application/json"}, frames=(json.dumps(body).encode(),))


def test_w11_tokens_of_geminis_own_tools_are_input() -> None:
    """W11: `toolUsePromptTokenCount` was not counted; it is billed, and no part of the prompt that we sent."""
    usage = {"promptTokenCount": 10, "toolUsePromptTokenCount": 30, "candidatesTokenCount": 5, "totalTokenCount": 45}
    reply = {"candidates": [{"content": {"parts": [{"text": "So."}]}, "finishReason": "STOP"}], "usageMetadata": usage}
    served = WIRES["gemini"]
    with ModelServer(script=[whole(reply)]) as server, open_backend(**served.settings(server)) as backend:
        found = AgentContext(backend, store="memory://", context_window=9_000).send("Go.")
    assert found.usage is not None
    assert found.billed is not None
    assert (found.usage.input_tokens, found.billed.input_tokens, found.billed.output_tokens) == (10, 40, 5)


@pytest.mark.parametrize(("raw", "finish"), [("eos", "stop"), ("eos_token", "stop"), ("repetition", "length")])
def test_w11_finish_reasons_of_open_servers_have_their_names(raw: str, finish: str) -> None:
    """W11: they were passed on as they came, and an agent did not know that the reply was whole."""
    reply, _ = answered("vllm", played({"content": "So."}, stream=False, finish=raw), stream=False)
    assert reply.finish_reason == finish


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("row", ["groq", "huggingface"])
def test_w11_thinking_between_tags_is_reasoning(row: str, stream: bool) -> None:
    """W11: `<think>` stood in the text that the user sees."""
    _, message = answered(row, played({"content": "<think>Why so.</think>So."}, stream=stream), stream=stream)
    assert (message.reasoning, message.text) == ("Why so.", "So.")
    assert "Why" not in str(sent_back(row, message)["content"])


def test_w11_a_wrong_checksum_of_converse_is_tried_again() -> None:
    """W11: it failed at once, though the next try would have done."""
    rows: list[tuple[str, Any]] = [
        ("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": "So."}}),
        ("messageStop", {"stopReason": "end_turn"}),
    ]
    frames = [event_frame({":message-type": "event", ":event-type": n}, json.dumps(body).encode()) for n, body in rows]
    broken = (frames[0][:-5] + bytes([frames[0][-5] ^ 1]) + frames[0][-4:], frames[1])
    played_frames = RawReply(headers={"content-type": "application/vnd.amazon.eventstream"}, frames=broken)
    with ModelServer(script=[played_frames, Scripted("So.")]) as server:
        settings = {**WIRES["bedrock_converse"].settings(server), "max_retries": 1}
        with open_backend(**settings) as backend:
            reply = AgentContext(backend, store="memory://", context_window=9_000).send("Go.")
        assert (reply.message.text, len(server.requests)) == ("So.", 2)


def test_w11_the_toolset_of_a_call_goes_back_on_call_and_result() -> None:
    """W11: `toolset_name` was dropped from the call, and missing on its result."""
    call = {"type": "tool_use", "id": "t1", "name": "click", "input": {}, "toolset_name": "browser"}
    chunks, _ = parsed(
        {"type": "content_block_start", "index": 0, "content_block": call},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    )
    backend = make()
    message = backend.merge_chunks(chunks)
    assert message is not None
    own = Message("a", "assistant", message.parts, model=backend.model)
    rows = backend.to_request_messages([user("Go.", id="u"), own, tool_result("t1", "clicked", id="r")])
    assert rows[1]["content"] == [call]
    assert rows[2]["content"][0]["toolset_name"] == "browser"
    other = backend.to_request_messages(
        [user("Go.", id="u"), own, tool_result("t1", "clicked", id="r")], model="claude-opus-5"
    )
    assert "toolset_name" not in str(other)


def streamed(*bodies: Any) -> RawReply:
    frames = tuple(b"data: " + json.dumps(body).encode() + b"\r\n\r\n" for body in bodies)
    return RawReply(headers={"content-type": "text/event-stream"}, frames=frames)


def asked(wire: str, reply: RawReply, *, stream: bool, **options: Any) -> Reply:
    """Returns the reply of the second turn: whatever the first one was, the session goes on."""
    with (
        ModelServer(script=[reply, Scripted("Next.")]) as server,
        open_backend(**WIRES[wire].settings(server)) as backend,
    ):
        context = AgentContext(backend, store="memory://", context_window=9_000)
        if stream:
            *_, last = context.send_stream("Go.", **options)
            assert isinstance(last, Completed)
            found = last.reply
        else:
            found = context.send("Go.", **options)
        for call in found.tool_calls:
            context.add(tool_result(call.id, "found", id=call.id))
        assert context.send("And?").message.text == "Next."
    return found


BLOCKED = ("SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "MODEL_ARMOR", "LANGUAGE", "ESCALATION")


@pytest.mark.parametrize(
    "content", [{}, {"content": {}}, {"content": {"role": "model"}}], ids=["none", "empty", "role"]
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("reason", BLOCKED)
def test_w11_a_blocked_answer_of_gemini_without_content_is_an_answer(
    reason: str, stream: bool, content: dict[str, Any]
) -> None:
    """W11: SAFETY without content; it is not asked again, and the session goes on."""
    body = {"candidates": [{**content, "finishReason": reason}], "usageMetadata": {"promptTokenCount": 7}}
    found = asked("gemini", streamed(body) if stream else whole(body), stream=stream)
    assert (found.finish_reason, found.message.text, found.usage) == ("content_filter", "", Usage(7))


def pieces(*calls: dict[str, Any]) -> RawReply:
    parts = [{"functionCall": call} for call in calls]
    bodies = [{"candidates": [{"content": {"role": "model", "parts": [part]}}]} for part in parts]
    return streamed(*bodies, {"candidates": [{"finishReason": "STOP"}], "usageMetadata": {"promptTokenCount": 7}})


def piece(path: str, more: bool = False, **value: Any) -> dict[str, Any]:
    return {"partialArgs": [{"jsonPath": path, "willContinue": more, **value}], "willContinue": True}


def test_w11_arguments_that_gemini_streams_are_put_together() -> None:
    """W11: a call whose arguments came in pieces had the arguments `{}{}{}{}`."""
    found = asked(
        "gemini",
        pieces(
            {"name": "book", "id": "c1", "willContinue": True},
            piece("$.place", True, stringValue="New "),
            piece("$.place", stringValue="Delhi"),
            piece("$.days[0].date", stringValue="Monday"),
            piece("$.days[1]['all day']", boolValue=True),
            piece("$.days[1].of", nullValue="NULL_VALUE"),
            piece('$["rooms"]', numberValue=2),
            {},
            {"name": "look", "args": {"at": "it"}},
            {"name": "wait", "id": "c3", "willContinue": True},
            {},
        ),
        stream=True,
    )
    arguments = [json.loads(call.arguments) for call in found.tool_calls]
    assert [call.name for call in found.tool_calls] == ["book", "look", "wait"]
    days = [{"date": "Monday"}, {"all day": True, "of": None}]
    assert arguments == [{"place": "New Delhi", "days": days, "rooms": 2}, {"at": "it"}, {}]


@pytest.mark.parametrize(
    "path", [None, "", "$", "$[0]", "$.a.b", "$.a[99999999999999]", "$" + ".a" * 50_000, "$.a" + "[0]" * 50_000, 5]
)
def test_w11_a_path_that_is_none_leaves_a_call(path: Any) -> None:
    """W11: pieces of arguments at any place."""
    found = asked(
        "gemini",
        pieces(
            {"name": "look", "willContinue": True},
            piece("$.a", stringValue="so"),
            piece(path, stringValue="x"),
            {},
        ),
        stream=True,
    )
    (call,) = found.tool_calls
    assert "a" in json.loads(call.arguments)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_w11_the_token_to_continue_an_answer_of_gemini_is_in_its_raw_reply(stream: bool) -> None:
    """W11: the answer reached the service's limit for one request; the same request goes on with the token."""
    content = {"role": "model", "parts": [{"text": "One, "}]}
    body = {"candidates": [{"content": content, "finishReason": "CONTINUATION", "continuationToken": "dG9r"}]}
    found = asked("gemini", streamed(body) if stream else whole(body), stream=stream)
    assert (found.finish_reason, found.message.text) == ("pause", "One, ")
    token = found.raw["candidates"][0]["continuationToken"]
    with open_backend("gemini", "gemini-3-pro", wire="gemini", api_key="k") as backend:
        again = Request((user("Go.", id="u"),), extra={"continuationToken": token})
        assert backend.request_body(again, stream=False)["continuationToken"] == "dG9r"


@pytest.mark.parametrize("fallback", [False, True], ids=["at_first", "of_the_fallback"])
def test_w11_thinking_that_anthropic_left_out_is_reported(fallback: bool) -> None:
    """W11: `input_transformations` of a stream were lost; those of a model that took over come last, and hold."""
    dropped = {"type": "thinking_dropped", "message_index": 1, "content_block_index": 0, "reason": "model_mismatch"}
    last = {"input_transformations": [{**dropped, "message_index": 3}]} if fallback else {}
    chunks, _ = parsed(
        {"type": "message_start", "message": {"model": "m", "input_transformations": [dropped]}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "So."}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}, **last},
        {"type": "message_stop"},
    )
    fold = Fold("a", "m")
    for chunk in chunks:
        fold.feed(chunk)
    assert [edit["message_index"] for edit in fold.close().applied_edits] == [3 if fallback else 1]


def test_w11_a_conversation_that_anthropic_compacts_at_once_goes_on_from_its_block() -> None:
    """W11: `compaction: {type: summarize}` went without the header of its beta, and so did the block that it made."""
    block = {"type": "compaction", "content": "They said go.", "signature": "S", "tool_changes": []}
    body = {"type": "message", "content": [block], "stop_reason": "compaction", "usage": {"output_tokens": 9}}
    with ModelServer(script=[Scripted("One."), whole(body), Scripted("Next.")]) as server:
        with open_backend(**WIRES["anthropic_messages"].settings(server)) as backend:
            context = AgentContext(backend, store="memory://", context_window=9_000)
            context.send("Go.")
            found = context.send("Sum up.", extra={"compaction": {"type": "summarize"}})
            assert (found.finish_reason, found.message.text) == ("pause", "")
            assert context.send("And?").message.text == "Next."
        first, second, third = server.requests
    assert ["compact-2026-09-04" in r.headers.get("anthropic-beta", "") for r in (first, second, third)] == [
        False,
        True,
        True,
    ]
    assert second.body["compaction"] == {"type": "summarize"}
    assert third.body["messages"][0]["content"] == [block]
    assert "Sum up." not in json.dumps(dict(third.body))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("limit", "finish"), [(5, "length"), (6, "stop"), (None, "stop")])
def test_w11_an_answer_that_llamacpp_cuts_at_the_limit_says_so(stream: bool, limit: int | None, finish: str) -> None:
    """W11: its Responses say `completed` of an answer that has all the tokens it might have."""
    item = {
        "type": "message",
        "id": "m1",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "One, two,", "annotations": []}],
    }
    response = {
        "object": "response",
        "status": "completed",
        "output": [item],
        "usage": {"input_tokens": 3, "output_tokens": 5},
    }
    reply = streamed({"type": "response.completed", "response": response}) if stream else whole(response)
    found = asked("openai_responses", reply, stream=stream, max_tokens=limit)
    assert (found.finish_reason, found.message.text) == (finish, "One, two,")
