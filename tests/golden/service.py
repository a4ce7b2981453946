"""A model service behind an httpx transport: it plays a turn's replies on either wire and keeps the bytes that it is sent."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from typing import Any

import httpx

from tests.golden.story import SYSTEM, Said
from tests.golden.trace import Trace
from tests.support.summaries import asks_on_live_prefix

SUMMARY = "They keep records of a boiler, a ferry and an orchard, and go on with them."
BASE_URL = "http://golden.invalid/v1"


class Service:
    """Answers with the replies that were queued; any request that is not the conversation's own gets a summary.

    With a `limit_chars` longer bodies are refused as too long, as a model with a smaller window than it was said to have.
    """

    def __init__(self, trace: Trace, *, limit_chars: int | None = None, think_tags: bool = False) -> None:
        self.replies: deque[Said] = deque()
        self._trace = trace
        self._limit = limit_chars
        self._tags = think_tags
        self._asked = 0
        transport = httpx.MockTransport(self._answer)
        self.client = httpx.Client(transport=transport)
        self.async_client = httpx.AsyncClient(transport=transport)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        text = request.content.decode()
        body = json.loads(text)
        self._trace.see("sent", text)
        if self._limit is not None and len(text) > self._limit:
            return httpx.Response(400, json={"error": _too_long(self._limit // 4, len(text) // 4)})
        self._asked += 1
        said = self._next(body)
        anthropic = request.url.path.endswith("/messages")
        usage = {"in": len(text) // 4, "out": len(said.text) // 4 + 8 * len(said.calls)}
        if body.get("stream"):
            events = _anthropic_events(said, self._asked, usage) if anthropic else self._chat_events(said, usage)
            return httpx.Response(200, headers={"content-type": "text/event-stream"}, content="".join(events).encode())
        whole = _anthropic_message(said, self._asked, usage) if anthropic else self._chat_completion(said, usage)
        return httpx.Response(200, json=whole)

    def _next(self, body: dict[str, Any]) -> Said:
        head = body["system"] if "system" in body else body["messages"][0].get("content")
        if SYSTEM not in json.dumps(head, ensure_ascii=False) or asks_on_live_prefix(body):
            return Said(SUMMARY)
        return self.replies.popleft() if self.replies else Said(f"Answer {self._asked}.")

    def _text(self, said: Said) -> str:
        return f"<think>{said.reasoning}</think>{said.text}" if self._tags and said.reasoning else said.text

    def _chat_completion(self, said: Said, usage: dict[str, int]) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": self._text(said)}
        if said.reasoning and not self._tags:
            message["reasoning_content"] = said.reasoning
        if said.calls:
            message["tool_calls"] = _chat_calls(said)
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if said.calls else "stop"}
        return {**self._chat_head("chat.completion"), "choices": [choice], "usage": _chat_usage(usage)}

    def _chat_events(self, said: Said, usage: dict[str, int]) -> Iterator[str]:
        head = self._chat_head("chat.completion.chunk")
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
        if said.reasoning and not self._tags:
            deltas += [{"reasoning_content": piece} for piece in _pieces(said.reasoning)]
        deltas += [{"content": piece} for piece in _pieces(self._text(said))]
        deltas += [{"tool_calls": [{"index": n, **call}]} for n, call in enumerate(_chat_calls(said))]
        for delta in deltas:
            yield _data({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
        finish = "tool_calls" if said.calls else "stop"
        yield _data({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
        yield _data({**head, "choices": [], "usage": _chat_usage(usage)})
        yield "data: [DONE]\n\n"

    def _chat_head(self, kind: str) -> dict[str, Any]:
        return {"id": f"chatcmpl-{self._asked}", "object": kind, "created": 1_700_000_000, "model": "golden"}

    def close(self) -> None:
        self.client.close()


def _too_long(limit: int, told: int) -> dict[str, Any]:
    message = (
        f"This model's maximum context length is {limit} tokens. However, your messages resulted in {told} tokens."
    )
    return {"message": message, "type": "invalid_request_error", "param": "messages", "code": "context_length_exceeded"}


def _chat_calls(said: Said) -> list[dict[str, Any]]:
    return [
        {
            "id": c.id,
            "type": "function",
            "function": {"name": c.name, "arguments": json.dumps(c.arguments, ensure_ascii=False)},
        }
        for c in said.calls
    ]


def _chat_usage(usage: dict[str, int]) -> dict[str, int]:
    return {
        "prompt_tokens": usage["in"],
        "completion_tokens": usage["out"],
        "total_tokens": usage["in"] + usage["out"],
    }


def _pieces(text: str, size: int = 40) -> Iterator[str]:
    for start in range(0, len(text), size):
        yield text[start : start + size]


def _data(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"


def _anthropic_blocks(said: Said) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if said.reasoning:
        blocks.append({"type": "thinking", "thinking": said.reasoning, "signature": f"sig-{len(said.reasoning)}"})
    if said.text:
        blocks.append({"type": "text", "text": said.text})
    return blocks + [{"type": "tool_use", "id": c.id, "name": c.name, "input": c.arguments} for c in said.calls]


def _anthropic_message(said: Said, number: int, usage: dict[str, int]) -> dict[str, Any]:
    return {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": "golden",
        "content": _anthropic_blocks(said),
        "stop_reason": "tool_use" if said.calls else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": usage["in"], "output_tokens": usage["out"]},
    }


def _anthropic_events(said: Said, number: int, usage: dict[str, int]) -> Iterator[str]:
    whole = _anthropic_message(said, number, usage)
    yield _event({"type": "message_start", "message": {**whole, "content": [], "stop_reason": None}})
    for index, block in enumerate(whole["content"]):
        yield _event({"type": "content_block_start", "index": index, "content_block": _begun(block)})
        for delta in _anthropic_deltas(block):
            yield _event({"type": "content_block_delta", "index": index, "delta": delta})
        yield _event({"type": "content_block_stop", "index": index})
    stop = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    yield _event({"type": "message_delta", "delta": stop, "usage": {"output_tokens": usage["out"]}})
    yield _event({"type": "message_stop"})


def _begun(block: dict[str, Any]) -> dict[str, Any]:
    empty = {"thinking": {"thinking": "", "signature": ""}, "text": {"text": ""}, "tool_use": {"input": {}}}
    return {**block, **empty[block["type"]]}


def _anthropic_deltas(block: dict[str, Any]) -> Iterator[dict[str, Any]]:
    match block["type"]:
        case "thinking":
            for piece in _pieces(block["thinking"]):
                yield {"type": "thinking_delta", "thinking": piece}
            yield {"type": "signature_delta", "signature": block["signature"]}
        case "text":
            for piece in _pieces(block["text"]):
                yield {"type": "text_delta", "text": piece}
        case _:
            yield {"type": "input_json_delta", "partial_json": json.dumps(block["input"], ensure_ascii=False)}


def _event(value: dict[str, Any]) -> str:
    return f"event: {value['type']}\n{_data(value)}"
