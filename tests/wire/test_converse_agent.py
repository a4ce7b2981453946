"""Agents on Bedrock's Converse against a strict server: past the window, over other wires, and what the server refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from ctxfold import (
    AgentContext,
    BackendError,
    Message,
    ReasoningPart,
    Request,
    TextPart,
    ToolCallPart,
    open_backend,
    user,
)
from ctxfold import tool_result as result_of
from ctxfold.backends.http_backend import HttpBackend
from ctxfold.protocols import Wire
from ctxfold.stores.memory import MemoryStore
from ctxfold.testing import ModelServer, Scripted, ScriptedCall
from ctxfold.testing.served import signature
from tests.wire.agent_session import TOOLS, Model, past_the_window, turn

BOUND, FREE = "us.anthropic.claude-opus-5-5-v1", "us.anthropic.claude-sonnet-4-5-20250929-v1:0"


def bedrock(server: ModelServer, model: str) -> HttpBackend:
    return open_backend("bedrock", model, base_url=server.base_url, api_key="k", max_retries=0, thinking=True)


def blocks(row: dict[str, Any]) -> list[str]:
    return [next(iter(block)) for block in row["content"] if "cachePoint" not in block]


@pytest.mark.parametrize(
    ("model_id", "way"),
    [
        *((FREE, way) for way in ("sync", "async", "streamed", "streamed async")),
        (BOUND, "sync"),
        (BOUND, "streamed async"),
    ],
)
async def test_turns_with_tools_past_the_window_are_never_refused(model_id: str, way: str) -> None:
    model = Model()
    with ModelServer(script=model, strict="openai") as server:
        bodies = await past_the_window(bedrock(server, model_id), server, model, way)
    for body in bodies if model_id == FREE else ():  # a model that binds reasoning loses it with what stood before
        rows = body["messages"]
        asked = max(i for i, row in enumerate(rows) if row["role"] == "user" and "toolResult" not in blocks(row))
        for row in rows[asked + 1 :]:
            assert row["role"] == "user" or blocks(row)[0] == "reasoningContent", "of the open turn"


@pytest.mark.parametrize("way", ["sync", "streamed async"])
async def test_a_session_goes_over_to_other_wires_and_comes_back(way: str) -> None:
    store, model = MemoryStore(), Model()
    first: tuple[str, str, Wire | None] = ("bedrock", FREE, None)
    others: tuple[tuple[str, str, Wire | None], ...] = (
        ("generic", "llama", None),
        ("bedrock", "us.meta.llama3-3-70b-instruct-v1:0", None),
        ("openai", "gpt-5.5", "openai_responses"),
        ("anthropic", "claude-sonnet-4-5", None),
        ("gemini", "gemini-3-flash-preview", "gemini"),
        ("bedrock", BOUND, None),
    )
    with ModelServer(script=model, strict="openai") as server:
        for provider, name, wire in (first, *others, first):
            backend = open_backend(provider, name, wire=wire, base_url=server.base_url, api_key="k", max_retries=0)
            async with backend, AgentContext(backend, session_id="s", store=store, context_window=60_000) as context:
                for number in range(2):
                    await turn(context, f"{provider} {name} {number}?", way)
        bodies = [request.body for request in server.requests]
    assert len(bodies) == model.asked, "none was refused and sent again"
    signed = [b for row in bodies[-1]["messages"] for b in row["content"] if "reasoningContent" in b]
    assert len(signed) == 2 * 3 + 3 + 2, "of its own model alone"


def refusal(server: ModelServer, *messages: Message, change: Callable[[dict[str, Any]], None] | None = None) -> str:
    """What a strict server says to a request of these messages, changed by hand; "" when it answers."""
    with bedrock(server, FREE) as backend:
        body = backend.request_body(Request(messages, tools=TOOLS), stream=False)
    if change is not None:
        change(body)
    answer = httpx.post(f"{server.base_url}/model/m/converse", json=body)
    if answer.status_code == 200:
        return ""
    assert answer.headers["x-amzn-errortype"].startswith("ValidationException:")
    return str(answer.json()["message"])


def foreign_ids(body: dict[str, Any]) -> None:
    body["messages"][1]["content"][1]["toolUse"]["toolUseId"] = "a|b"
    body["messages"][2]["content"][0]["toolResult"]["toolUseId"] = "a|b"


def test_the_server_refuses_what_bedrock_refuses() -> None:
    call = Scripted(reasoning="Think.", tool_calls=(ScriptedCall("look", '{"n": 1}', "c1"),))
    with ModelServer(
        script=lambda body: call if len(body["messages"]) == 1 else Scripted("ok"), strict="openai"
    ) as server:
        with bedrock(server, FREE) as backend:
            said = backend.send(Request((user("q", id="u"),), tools=TOOLS)).message
        assert said.parts == (
            ReasoningPart("Think.", signature("converse", "Think.")),
            ToolCallPart("c1", "look", '{"n": 1}'),
        )
        good = (user("q", id="u"), said, result_of("c1", "five", id="r"))
        assert refusal(server, *good) == ""
        rows: dict[str, Callable[[dict[str, Any]], None]] = {
            "Invalid `signature` in `thinking` block": lambda b: b["messages"][1]["content"][0]["reasoningContent"][
                "reasoningText"
            ].update(text="Other."),
            "Expected `thinking` or `redacted_thinking`": lambda b: b["messages"][1]["content"].pop(0),
            "must alternate": lambda b: b["messages"].append({"role": "user", "content": [{"text": "x"}]}),
            "must start with a user message": lambda b: b["messages"].pop(0),
            "is blank": lambda b: b["messages"][0]["content"].append({"text": " "}),
            "is empty": lambda b: b["messages"][0]["content"].clear(),
            "toolConfig field must be defined": lambda b: b.pop("toolConfig"),
            "unknown toolChoice": lambda b: b["toolConfig"].update(toolChoice={"none": {}}),
            "at least 1": lambda b: b["toolConfig"]["tools"][0]["toolSpec"].update(description=""),
            "Expected toolResult blocks": lambda b: b["messages"][2].update(content=[{"text": "x"}]),
            "exceeds the number of toolUse": lambda b: b["messages"][2]["content"].extend(
                b["messages"][2]["content"] * 1
            ),
            "must follow a block": lambda b: b["messages"][0]["content"].insert(0, {"cachePoint": {"type": "default"}}),
            "Provide a json object": lambda b: b["messages"][1]["content"][1]["toolUse"].update(input="{}"),
            "cannot contain reasoning content": lambda b: b["messages"][0]["content"].append(
                b["messages"][1]["content"][0]
            ),
            "failed to satisfy constraint": foreign_ids,
        }
        for told, change in rows.items():
            assert told in refusal(server, *good, change=change)


@pytest.mark.parametrize("model", [BOUND, FREE])
def test_a_message_of_any_wire_can_be_sent(model: str) -> None:
    """Text, calls and results remain; what only another provider reads is left out."""
    parts = (
        ReasoningPart("r", "sig", '[{"type": "reasoning", "id": "rs_1", "encrypted_content": "E"}]'),
        ReasoningPart("", None, '[{"type": "redacted_thinking", "data": "D"}, {"executableCode": {"code": "1"}}]'),
        TextPart("Yes.", '{"thoughtSignature": "T", "id": "msg_1"}'),
        ToolCallPart("call|1", "look", "not json", '{"thought_signature": "T"}'),
    )
    with ModelServer(script=[Scripted("ok")], strict="openai") as server, bedrock(server, model) as backend:
        said = Message("a", "assistant", parts, model="gpt-5.5")
        asked = (user("q", id="u"), said, result_of("call|1", "", id="r"))
        assert backend.send(Request(asked, tools=TOOLS)).message.text == "ok"
        sent = server.requests[0].body["messages"][1]["content"]
    assert [next(iter(block)) for block in sent] == ["text", "toolUse"]
    assert sent[1]["toolUse"]["input"] == {"INVALID_JSON": "not json"}


def test_an_error_of_the_window_has_its_numbers() -> None:
    with (
        ModelServer(script=[Scripted("ok")], context_window=50) as server,
        bedrock(server, FREE) as backend,
        pytest.raises(BackendError) as caught,
    ):
        backend.send(Request((user("word " * 400, id="u"),), max_tokens=2000))
    assert (caught.value.kind, caught.value.code) == ("context_overflow", "ValidationException")
    assert caught.value.limit_tokens == 50
    assert json.dumps(caught.value.args)
