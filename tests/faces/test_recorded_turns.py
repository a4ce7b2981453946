"""A turn that a provider sent goes back through either framework exactly as it goes back without one, on every wire."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    message_chunk_to_message,
)
from langchain_core.messages.ai import add_ai_message_chunks
from llama_index.core.base.llms.types import ChatMessage

from ctxfold import ContextBackend, Message, Request, ToolSpec, system, tool_result, user
from ctxfold.stream import Fold
from langchain_ctx import ChatCtx
from llamaindex_ctx import CtxLLM
from tests.wire.raw_server import Play, RawServer

WIRES = {
    "vectors_anthropic.jsonl": ("anthropic", "anthropic_messages"),
    "vectors_converse.jsonl": ("bedrock", "bedrock_converse"),
    "vectors_gemini.jsonl": ("gemini", "gemini"),
    "vectors_responses.jsonl": ("openai", "openai_responses"),
}
MODEL = "m-test"
TOOLS = [{"type": "function", "function": {"name": "now", "description": "the time", "parameters": {"type": "object"}}}]
FOLDER = Path(__file__).parent.parent / "wire"


def _turns() -> Iterable[Any]:
    for name, (provider, wire) in WIRES.items():
        for line in (FOLDER / name).read_text(encoding="utf-8").splitlines():
            vector = json.loads(line)
            whole = vector["expected"]["error"] is None and vector["then"] == "eof"
            if whole and (vector["expected"]["content"] or vector["expected"]["tool_calls"]):
                yield pytest.param(vector, provider, wire, id=vector["name"])


TURNS = pytest.mark.parametrize(("vector", "provider", "wire"), list(_turns()))


def _play(vector: dict[str, Any]) -> Play:
    frames = vector["frames"]
    encoded = vector["frame_encoding"] == "base64"
    sent = [base64.b64decode(f) if encoded else f.encode(vector["frame_encoding"]) for f in frames]
    return Play(sent, vector["status"], vector["headers"], vector["then"])


def _settings(server: RawServer, provider: str, wire: str) -> dict[str, Any]:
    base_url = server.base_url if provider == "openai" else server.base_url.removesuffix("/v1")
    return {"model": MODEL, "provider": provider, "wire": wire, "base_url": base_url, "api_key": "k", "max_retries": 0}


def _conversation(body: dict[str, Any]) -> Any:
    """What the request says was said; ids that were made up for calls without one are told by their number alone."""
    said = body.get("messages") or body.get("contents") or body.get("input")
    assert said
    return json.loads(re.sub(r'"call_[^"]*_(\d+)"', r'"call_\1"', json.dumps(said)))


def _direct(backend: ContextBackend) -> Any:
    """The next request without a framework, after the reply to a first one."""
    first = (system("Be brief.", id="s"), user("Hello", id="u"))
    fold = Fold("a1", MODEL)
    tool = ToolSpec("now", "the time", {"type": "object"})
    for chunk in backend.open_stream(Request(first, tools=(tool,))):
        fold.feed(chunk)
    message: Message = fold.close().message
    results = [tool_result(call.id, "done", id=f"t{n}", name=call.name) for n, call in enumerate(message.tool_calls)]
    next_request = Request((*first, message, *results, user("And now?", id="u2")), tools=(tool,))
    service: Any = backend
    return _conversation(service.request_body(next_request, stream=True)), message


def _through_json(chunk: AIMessageChunk) -> AIMessage:
    return AIMessage.model_validate_json(message_chunk_to_message(chunk).model_dump_json())


@TURNS
@pytest.mark.parametrize("version", ["v0", "v1"])
def test_langchain(vector: dict[str, Any], provider: str, wire: Any, version: str) -> None:
    with RawServer(_play(vector)) as server:
        chat = ChatCtx(**_settings(server, provider, wire), output_version=version)
        expected, message = _direct(chat.context_backend)
        asked: list[Any] = [SystemMessage("Be brief."), HumanMessage("Hello")]
        bound = chat.bind_tools(TOOLS)
        chunks: list[Any] = list(bound.stream(asked))
        streamed = add_ai_message_chunks(*chunks)
        for reply in (streamed, _through_json(streamed), bound.invoke(asked)):
            results = [ToolMessage("done", tool_call_id=c["id"], name=c["name"]) for c in reply.tool_calls]
            list(bound.stream([*asked, reply, *results, HumanMessage("And now?")]))
            assert _conversation(server.bodies[-1]) == expected
        assert streamed.text == message.text
        chat.close()


@TURNS
def test_llamaindex(vector: dict[str, Any], provider: str, wire: Any) -> None:
    with RawServer(_play(vector)) as server:
        llm = CtxLLM(**_settings(server, provider, wire))
        expected, message = _direct(llm.backend)
        asked = [ChatMessage("Be brief.", role="system"), ChatMessage("Hello")]
        *_, last = llm.stream_chat(asked, tools=TOOLS)
        streamed = last.message
        whole = llm.chat(asked, tools=TOOLS).message
        for reply in (streamed, ChatMessage.model_validate_json(streamed.model_dump_json()), whole):
            results = [
                ChatMessage(
                    "done", role="tool", additional_kwargs={"tool_call_id": b.tool_call_id, "name": b.tool_name}
                )  # type: ignore[union-attr]
                for b in reply.blocks
                if b.block_type == "tool_call"
            ]
            list(llm.stream_chat([*asked, reply, *results, ChatMessage("And now?")], tools=TOOLS))
            assert _conversation(server.bodies[-1]) == expected
        assert (streamed.content or "").replace("\n", "") == message.text.replace("\n", "")
        llm.close()
