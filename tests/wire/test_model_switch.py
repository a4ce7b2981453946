"""A conversation whose model changes: within a tool round, after a reply that broke off, and after one service's refusal."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest

from ctxfold import (
    AgentContext,
    BackendError,
    Message,
    OpenAIResponsesBackend,
    ReasoningPart,
    Request,
    TextPart,
    ToolCallPart,
    ToolSpec,
    open_backend,
    tool_result,
    user,
)
from ctxfold.testing import ModelServer, Scripted
from ctxfold.testing.served import signature
from tests.wire.raw_server import Play, RawServer

LOOK = ToolSpec("look", "Looks into a locker.", {"type": "object", "properties": {}})
BUDGETS = [("anthropic", "claude-haiku-4-5", "messages"), ("bedrock", "anthropic.claude-haiku-4-5", "converse")]
BOUND = "messages.1.content.0: thinking block is bound to a different conversation"
UNVERIFIED = (
    "The encrypted content gAAA... could not be verified. Reason: Encrypted content could not be decrypted or parsed."
)


def called(model: str, *thoughts: ReasoningPart, id: str = "a") -> Message:
    return Message(id, "assistant", (*thoughts, ToolCallPart(f"call_{id}", "look", "{}")), model=model)


def thinking_of(body: dict[str, Any]) -> Any:
    return body.get("additionalModelRequestFields", body).get("thinking")


@pytest.mark.parametrize(("provider", "model", "wire"), BUDGETS)
@pytest.mark.parametrize("asked_in", ["a message of its own", "the message of an earlier result"])
def test_a_round_that_another_model_began_goes_on_without_a_thinking_budget(
    provider: str, model: str, wire: str, asked_in: str
) -> None:
    """Such a service refuses to think on in a round that began without thinking, and would refuse every model's round."""
    before = [user("q", id="q0"), called("gpt-5", id="b"), tool_result("call_b", "r", id="r0")]
    earlier = [] if asked_in == "a message of its own" else before
    question = [*earlier, user("q", id="q"), called("gpt-5"), tool_result("call_a", "r", id="r")]
    signed = ReasoningPart("hm", signature(wire, "hm"))
    own = [user("q", id="q"), called(model, signed), tool_result("call_a", "r", id="r"), called("gpt-5", id="c")]
    own = [*own, tool_result("call_c", "r", id="r2")]
    with (
        ModelServer(script=lambda _: Scripted("done"), strict="anthropic") as server,
        open_backend(provider, model, base_url=server.base_url, api_key="k", thinking=True, max_retries=0) as backend,
    ):
        for messages in (question, [*question, Message("d", "assistant", (TextPart("x"),)), user("q", id="q2")], own):
            backend.send(Request(messages, tools=(LOOK,)))
        modes = [thinking_of(request.body)["type"] for request in server.requests]
        # its own tool rounds, and the next question, are asked with thinking
        assert modes == ["disabled", "enabled", "enabled"]


def test_bedrock_of_the_model_server_refuses_a_budget_in_a_round_that_began_without() -> None:
    """So that the test above tests something."""
    extra = {"additionalModelRequestFields": {"thinking": {"type": "enabled", "budget_tokens": 1024}}}
    messages = [user("q", id="q"), called("gpt-5"), tool_result("call_a", "r", id="r")]
    with (
        ModelServer(script=lambda _: Scripted("done"), strict="anthropic") as server,
        open_backend("bedrock", BUDGETS[1][1], base_url=server.base_url, api_key="k", max_retries=0) as backend,
        pytest.raises(BackendError, match="Expected `thinking`"),
    ):
        backend.send(Request(messages, tools=(LOOK,), extra=extra))


def asked_twice(id: str) -> list[Message]:
    """Two tool rounds of a model that begins to count its calls anew in each."""
    rounds: list[Message] = []
    for n in (1, 2):
        call = Message(f"{id}{n}", "assistant", (ToolCallPart("call_0", "look", f'{{"n": {n}}}'),), model="kimi-k2")
        rounds += [user(f"q{n}", id=f"q{n}"), call, tool_result("call_0", f"result {n}", id=f"r{n}")]
    return rounds


@pytest.mark.parametrize(("provider", "model", "wire"), BUDGETS)
def test_calls_with_the_same_id_have_ids_of_their_own_where_the_service_wants_it(
    provider: str, model: str, wire: str
) -> None:
    taken = Message("t", "assistant", (ToolCallPart("call_0_2", "look", "{}"),), model="kimi-k2")
    messages = [*asked_twice("a"), taken, tool_result("call_0_2", "result 3", id="r3")]
    with (
        ModelServer(script=lambda _: Scripted("done"), strict="anthropic") as server,
        open_backend(provider, model, base_url=server.base_url, api_key="k", max_retries=0) as backend,
    ):
        backend.send(Request(messages, tools=(LOOK,)))
        backend.send(Request([*messages, user("q4", id="q4")], tools=(LOOK,)))
        sent, later = (request.body["messages"] for request in server.requests)
    ids = re.findall(r'"(?:id|toolUseId|tool_use_id)": "(call_[0-9_]+)"', json.dumps(sent))
    assert ids == ["call_0", "call_0", "call_0_3", "call_0_3", "call_0_2", "call_0_2"]
    assert later[: len(sent) - 1] == sent[:-1], "ids stay as they were sent"


def test_the_model_server_refuses_calls_with_the_same_id() -> None:
    """So that the test above tests something."""
    calls = [
        {"role": "assistant", "content": [{"type": "tool_use", "id": "call_0", "name": "look", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_0", "content": "r"}]},
    ]
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "q"}, *calls, *calls]}
    with ModelServer(script=lambda _: Scripted("done"), strict="anthropic") as server:
        answer = httpx.post(f"{server.base_url}/messages", json=body, headers={"x-api-key": "k"})
    assert answer.status_code == 400
    assert "ids must be unique" in answer.text


def responded(model: str, name: str) -> Play:
    items = [
        {"type": "reasoning", "id": f"rs_{name}", "summary": [], "encrypted_content": f"sealed {name}"},
        {
            "type": "message",
            "id": f"msg_{name}",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": name, "annotations": []}],
        },
    ]
    body = {"object": "response", "status": "completed", "model": model, "output": items}
    return Play([json.dumps(body).encode()])


def refused(message: str) -> Play:
    return Play([json.dumps({"error": {"type": "invalid_request_error", "message": message}}).encode()], status=400)


def sealed(body: dict[str, Any]) -> list[str]:
    return [item["encrypted_content"] for item in body["input"] if item.get("type") == "reasoning"]


@pytest.mark.parametrize("way", ["sync", "async"])
async def test_what_one_service_refuses_still_goes_back_to_the_others(way: str) -> None:
    plays = (responded("one", "a"), responded("two", "b"), refused(UNVERIFIED), responded("two", "c"))
    with RawServer(*plays, responded("one", "d"), responded("two", "e")) as server:
        backend = OpenAIResponsesBackend(model="one", base_url=server.base_url, api_key="k", max_retries=0)
        with AgentContext(backend, context_window=50_000) as context, backend:
            for model in ("one", "two", "two", "one", "two"):
                await context.asend("q", model=model) if way == "async" else context.send("q", model=model)
        asked = [sealed(body) for body in server.bodies]
        assert asked[:4] == [[], [], ["sealed b"], []]
        assert asked[4:] == [["sealed a"], ["sealed c"]]


@pytest.mark.parametrize("own", ["claude-haiku-4-5", "claude-opus-5-5"])
def test_a_model_that_a_request_names_counts_by_its_own_row(own: str) -> None:
    """Reasoning that is bound to its prefix is sent once more without, whichever model the backend was made for."""
    content = [{"type": "thinking", "thinking": "hm", "signature": "S"}, {"type": "text", "text": "one"}]
    said = {"type": "message", "model": "claude-opus-5-5", "content": content, "stop_reason": "end_turn"}
    reply = Play([json.dumps(said).encode()])
    with (
        RawServer(reply, refused(BOUND), reply) as server,
        open_backend("anthropic", own, base_url=server.base_url, api_key="k", max_retries=0) as backend,
        AgentContext(backend, context_window=20_000) as context,
    ):
        context.send("first", model="claude-opus-5-5", scratch="a note")
        context.send("second", model="claude-opus-5-5")
        first, second, again = (
            [block.get("text", block["type"]) for row in body["messages"] for block in row["content"]]
            for body in server.bodies
        )
    assert first == ["a note", "first"]  # a prefix that stays as it was sent
    assert second == ["a note", "first", "thinking", "one", "second"]
    assert again == ["a note", "first", "one", "second"]


def streamed(*events: dict[str, Any]) -> Play:
    frames = [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events]
    return Play(frames, headers={"content-type": "text/event-stream"})


def test_reasoning_without_its_item_stays_out_after_a_reply_broke_off() -> None:
    """The service refuses a reasoning item alone, and everything that it has sent before would then go without its reasoning."""
    search = {
        "type": "web_search_call",
        "id": "ws_x",
        "status": "completed",
        "action": {"type": "search", "query": "q"},
    }
    thought = {"type": "reasoning", "id": "rs_x", "summary": [{"type": "summary_text", "text": "hm"}]}
    thought = {**thought, "encrypted_content": "sealed x"}
    items = [search, thought]
    done = [{"type": "response.output_item.done", "output_index": n, "item": item} for n, item in enumerate(items)]
    begun = [{"type": "response.output_item.added", "output_index": n, "item": item} for n, item in enumerate(items)]
    delta = {"type": "response.reasoning_summary_text.delta", "output_index": 1, "summary_index": 0, "delta": "hm"}
    events = [begun[0], done[0], begun[1], delta, done[1]]
    with RawServer(responded("one", "a"), streamed(*events), responded("one", "b")) as server:
        backend = OpenAIResponsesBackend(model="one", base_url=server.base_url, api_key="k", max_retries=0)
        with AgentContext(backend, context_window=50_000) as context, backend:
            context.send("first")
            with pytest.raises(BackendError, match="ended without"):
                list(context.send_stream("second", on_abort="keep_partial"))
            broken = context.messages()[-1]
            context.send("third")
    assert sealed(server.bodies[-1]) == ["sealed a"]
    assert [item.get("type", item.get("role")) for item in server.bodies[-1]["input"][3:]] == ["user", "user"]
    # it is kept, and so it is in a file
    assert broken.finish_reason == "aborted"
    line = backend.message_to_jsonl(broken)
    assert "sealed x" in line
    assert backend.message_from_jsonl(line) == broken
