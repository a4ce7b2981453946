"""`ChatCtx` on Anthropic's wire: thoughts, calls and media go out as that service checks them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from langchain_core.messages import AIMessageChunk, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool

from ctxfold.testing import ModelServer
from langchain_ctx import ChatCtx
from tests.wire.raw_server import Play, RawServer

V3_IS_BETA = pytest.mark.filterwarnings("ignore:.*_stream_v3.*:langchain_core._api.LangChainBetaWarning")


@tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"22 C in {city}"


def merged(chunks: list[AIMessageChunk]) -> AIMessageChunk:
    first, *rest = chunks
    return sum(rest, start=first)


def _event(kind: str, **body: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **body})}\n\n".encode()


def _block(index: int, start: Any, *deltas: Any) -> list[bytes]:
    pieces = [_event("content_block_delta", index=index, delta=d) for d in deltas]
    opened = _event("content_block_start", index=index, content_block=start)
    return [opened, *pieces, _event("content_block_stop", index=index)]


def _thought(index: int, text: str, signature: str) -> list[bytes]:
    told = [{"type": "thinking_delta", "thinking": text}, {"type": "signature_delta", "signature": signature}]
    return _block(index, {"type": "thinking", "thinking": ""}, *told)


CALL = {"type": "tool_use", "id": "t1", "name": "weather", "input": {}}
START = {"id": "m", "model": "claude-sonnet-4-5", "usage": {"input_tokens": 10, "output_tokens": 1}}
INTERLEAVED = [
    _event("message_start", message=START),
    *_thought(0, "First.", "S1"),
    *_block(1, {"type": "text", "text": ""}, {"type": "text_delta", "text": "Looking."}),
    *_block(2, {"type": "redacted_thinking", "data": "SEALED"}),
    *_thought(3, "Second.", "S2"),
    *_block(4, CALL, {"type": "input_json_delta", "partial_json": '{"city": "Ulm"}'}),
    _event("message_delta", delta={"stop_reason": "tool_use"}, usage={"output_tokens": 5}),
    _event("message_stop"),
]


@V3_IS_BETA
@pytest.mark.parametrize("how", ["v0", "v1", "v3"])
def test_anthropics_thoughts_go_back_as_they_came(how: str) -> None:
    """Several signed and sealed thoughts among texts and calls: the service checks every one of them."""
    with RawServer(Play(INTERLEAVED, headers={"content-type": "text/event-stream"})) as server:
        chat = ChatCtx(
            model="claude-sonnet-4-5",
            provider="anthropic",
            api_key="k",
            base_url=server.base_url,
            max_tokens=20_000,
            thinking=True,
            output_version="v1" if how == "v1" else "v0",
        ).bind_tools([weather])
        reply: BaseMessage
        if how == "v3":
            reply = chat.stream_events("warm?", version="v3").output  # type: ignore[attr-defined]
        else:
            reply = merged(list(chat.stream("warm?")))
        assert server.paths == ["/v1/messages"]
        assert reply.text == "Looking."
        list(chat.stream([HumanMessage("warm?"), reply, ToolMessage("22", tool_call_id="t1")]))
        sent = server.bodies[1]["messages"][1]["content"]
    assert sent == [
        {"type": "thinking", "thinking": "First.", "signature": "S1"},
        {"type": "text", "text": "Looking."},
        {"type": "redacted_thinking", "data": "SEALED"},
        {"type": "thinking", "thinking": "Second.", "signature": "S2"},
        {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Ulm"}},
    ]


def test_media_travel_in_each_wires_own_shape(server: ModelServer) -> None:
    """Standard blocks, and blocks of either service's own, to both services."""
    inline = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
    given: list[str | dict[Any, Any]] = [
        {"type": "image", "base64": "iVBORw0KGgo=", "mime_type": "image/png"},
        {"type": "image", "source": inline},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
        {"type": "file", "base64": "JVBERg==", "mime_type": "application/pdf", "filename": "a.pdf"},
    ]
    said = {"type": "message", "content": [{"type": "text", "text": "I see."}], "stop_reason": "end_turn"}
    with RawServer(
        Play([json.dumps(said).encode()], headers={"content-type": "application/json"}, then="keep")
    ) as other:
        chat = ChatCtx(model="claude-sonnet-4-5", provider="anthropic", api_key="k", base_url=other.base_url)
        chat.invoke([HumanMessage(given)])
        sent = other.bodies[0]["messages"][0]["content"]
        chat.close()
    image = {"type": "image", "source": inline}
    pdf = {"type": "base64", "media_type": "application/pdf", "data": "JVBERg=="}
    assert sent == [image, image, image, {"type": "document", "source": pdf}]
    with ChatCtx(model="lookup", base_url=server.base_url, api_key="x") as chat:
        chat.invoke([HumanMessage(given)])
    file = {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERg=="}
    assert server.requests[0].body["messages"][0]["content"] == [given[2]] * 3 + [{"type": "file", "file": file}]
