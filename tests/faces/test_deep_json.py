"""Step 7, C: RecursionError on deep JSON. Text stays text; where JSON is asked for, a typed error says what is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from llama_index.core.llms import ChatMessage

from ctxfold import (
    AgentContext,
    ConfigError,
    CtxError,
    MediaPart,
    Message,
    MessageError,
    OpenAIChatBackend,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolSpec,
    assistant,
    tool_result,
    user,
)
from ctxfold.errors import ImportLineError, StoreCorruptError
from ctxfold.messages import Opaque
from ctxfold.session.context import load_snapshot
from ctxfold.testing import ModelServer, Scripted, ScriptedCall
from langchain_ctx import CtxChatMessageHistory
from llamaindex_ctx import CtxMemory
from tests.support.driven import context, scripted, turns

LEVELS = 100_000
ARRAY = "[" * LEVELS + "]" * LEVELS
OBJECT = '{"a":' * LEVELS + "1" + "}" * LEVELS
DEEP = pytest.mark.parametrize("deep", [ARRAY, OBJECT], ids=["array", "object"])


def nested(levels: int = 50_000) -> dict[str, Any]:  # Python 3.13 encodes 9,000
    whole: dict[str, Any] = {}
    inner = whole
    for _ in range(levels):
        inner["a"] = {}
        inner = inner["a"]
    return whole


def called(arguments: str, output: str) -> list[Message]:
    call = ToolCallPart("c", "look", arguments)
    return [
        user("go", id="u"),
        assistant("", id="a", calls=[call]),
        tool_result("c", output, id="r"),
        assistant("ok", id="z"),
    ]


@DEEP
def test_arguments_and_outputs_are_text(deep: str, tmp_path: Path) -> None:
    with context(scripted(*["fine"] * 400), context_window=4_000) as ctx:
        ctx.add([*called(deep, deep), *turns(4)])
        ctx.compact(force=True)
        ctx.send("and now?")
        ctx.explain()
        ctx.archive.inspect()
        assert ctx.archive.get("r").tool_results[0].content == deep
        assert ctx.archive.get("a").tool_calls[0].arguments == deep
        for native in (False, True):
            path = tmp_path / f"{native}.jsonl"
            ctx.files.export_jsonl(path, zone="all" if not native else "window", native=native)
            with context(context_window=4_000) as again:
                assert again.files.import_jsonl(path) > 0


LINES: list[Callable[[str], str]] = [
    lambda deep: deep,
    lambda deep: f'{{"role": "user", "content": "x", "ctxfold": {deep}}}',
    lambda deep: f'{{"role": "user", "content": {deep}}}',
    lambda deep: (
        f'{{"role": "assistant", "content": [{{"type": "tool_use", "id": "c", "name": "f", "input": {deep}}}]}}'
    ),
]


@DEEP
@pytest.mark.parametrize("line", LINES, ids=["line", "ours", "content", "input"])
def test_a_deep_line_is_named(deep: str, line: Callable[[str], str], tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text('{"role": "user", "content": "first"}\n' + line(deep) + "\n", encoding="utf-8")
    with context() as ctx:
        with pytest.raises(ImportLineError, match=r"line 2: .*nested too deeply"):
            ctx.files.import_jsonl(path)
        assert ctx.messages() == ()
        with pytest.raises(StoreCorruptError, match="not JSON"):
            load_snapshot(path)


PARTS: list[Callable[[str], Message]] = [
    lambda text: Message("m", "user", (MediaPart("image", text),)),
    lambda text: Message("m", "user", (TextPart("x"), Opaque("mine", text))),
    lambda text: Message("m", "assistant", (ReasoningPart("x", details=text), TextPart("y"))),
    lambda text: Message("m", "assistant", (ToolCallPart("c", "f", "{}", extra=text),)),
]


@pytest.mark.parametrize("make", PARTS, ids=["media", "opaque", "details", "extra"])
def test_parts_that_are_json_are_checked_when_they_are_added(make: Callable[[str], Message]) -> None:
    """Otherwise every later request of the session would fail on the stored message."""
    with context() as ctx:
        for text in (ARRAY, OBJECT, "no JSON", '{"cut": '):
            with pytest.raises(MessageError, match="is not valid JSON"):
                ctx.add([user("q", id="q"), make(text)])
        assert ctx.messages() == ()


@DEEP
def test_a_model_that_calls_with_deep_arguments(deep: str) -> None:
    def script(body: Any) -> Scripted:
        if len(body["messages"]) > 1:
            return Scripted("fine")
        return Scripted(tool_calls=(ScriptedCall("look", deep),))

    look = ToolSpec("look", "Looks.", {"type": "object", "properties": {}})
    with (
        ModelServer(model="m", script=script) as server,
        OpenAIChatBackend(model="m", base_url=server.base_url, api_key="x") as backend,
        AgentContext(backend, context_window=2_000_000) as ctx,
    ):
        call = ctx.send("go", tools=(look,)).message.tool_calls[0]
        assert ctx.send(tool_result(call.id, deep), tools=(look,)).message.text == "fine"


def test_a_tool_whose_schema_is_too_deep() -> None:
    with context(scripted("x"), context_window=90_000) as ctx:
        with pytest.raises(ConfigError, match=r"parameters of tool 'f' .*nested too deeply"):
            ctx.send("hi", tools=(ToolSpec("f", "", nested()),))
        assert ctx.send("hi").message.text == "x"


def test_langchain_messages() -> None:
    call = {"id": "c", "name": "f", "args": {}}
    refused: list[BaseMessage] = [
        AIMessage("", tool_calls=[{**call, "args": nested()}]),
        HumanMessage([{"type": "of their own", "value": nested()}]),
    ]
    for message in refused:
        with CtxChatMessageHistory("s", context_window=90_000) as history:
            with pytest.raises(CtxError, match="nested too deeply"):
                history.add_messages([HumanMessage("q"), message])
            assert history.messages == []
    taken = [
        HumanMessage("q", additional_kwargs={"beside": nested()}),
        AIMessage("", invalid_tool_calls=[{"id": "c", "name": "f", "args": OBJECT, "error": None}]),
        ToolMessage(OBJECT, tool_call_id="c", artifact=nested()),
    ]
    with CtxChatMessageHistory("s", context_window=900_000) as history:
        history.add_messages(taken)
        assert [m.type for m in history.messages] == ["human", "ai", "tool"]


def test_llamaindex_messages() -> None:
    with CtxMemory.from_defaults(token_limit=900_000) as memory:
        with pytest.raises(MessageError, match="nested too deeply"):
            memory.put(ChatMessage(role="user", content="x", additional_kwargs={"beside": nested()}))
        function = {"name": "f", "arguments": OBJECT}
        beside = {"tool_calls": [{"id": "c", "type": "function", "function": function}]}
        memory.put(ChatMessage(role="user", content="q"))
        memory.put(ChatMessage(role="assistant", content="x", additional_kwargs=beside))
        memory.put(ChatMessage(role="tool", content=ARRAY, additional_kwargs={"tool_call_id": "c"}))
        assert len(memory.get_all()) == 3
    for text in (OBJECT, ARRAY, "no JSON", json.dumps([1])):
        with pytest.raises(ConfigError, match="give what to_string"):
            CtxMemory.from_string(text)
