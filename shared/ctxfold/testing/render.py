"""Writes a reply as OpenAI-compatible JSON, or as the server-sent events that say the same."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ctxfold.testing.script import Scripted
from ctxfold.validation import read_json

_WORDS_PER_DELTA = 4
_DONE = b"data: [DONE]\n\n"
EVENT_STREAM = "text/event-stream; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Completion:
    """A reply with what the server adds to it.

    `summary` is the text of the server's own compaction, "" without one; with `alone` it is the whole reply.
    """

    reply: Scripted
    id: str
    created: int
    model: str
    usage: Mapping[str, Any]
    summary: str = ""
    alone: bool = False
    summary_tokens: tuple[int, int] = (0, 0)  # read and written for it
    user_texts: tuple[str, ...] = ()  # the user's own messages before it

    def calls(self) -> list[dict[str, Any]]:
        """Returns the tool calls, each with an id."""
        return [
            {
                "id": call.id or f"call_{self.id[-20:]}_{index}",
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for index, call in enumerate(self.reply.tool_calls)
        ]


def parsed_arguments(call: Mapping[str, Any]) -> Any:
    """Returns the arguments of a call as the wires have them that send no text; an empty object for text that is no JSON."""
    try:
        return read_json(call["function"]["arguments"])
    except (ValueError, RecursionError):
        return {}


def signature(wire: str, reasoning: str) -> str:
    """Returns the signature of a reasoning text, so that the server can tell what comes back unchanged."""
    return base64.b64encode(hashlib.sha256(f"{wire}:{reasoning}".encode("utf-8", "replace")).digest()).decode()


def encode(value: Mapping[str, Any]) -> bytes:
    """Returns compact JSON."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:  # a lone surrogate that the request brought along
        return json.dumps(value, separators=(",", ":")).encode()


def as_json(completion: Completion) -> bytes:
    """Returns the body of a plain response."""
    reply, calls = completion.reply, completion.calls()
    content = None if calls and not reply.content else reply.content
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if calls:
        message["tool_calls"] = calls
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reply.finish}
    return encode(
        {
            "id": completion.id,
            "object": "chat.completion",
            "created": completion.created,
            "model": completion.model,
            "choices": [choice],
            "usage": completion.usage,
        }
    )


def as_events(completion: Completion, *, include_usage: bool) -> Iterator[bytes]:
    """Returns the events of a stream, each whole; the finish, the usage if asked for, and [DONE] are the last three."""

    def event(choices: list[dict[str, Any]], usage: Mapping[str, Any] | None = None) -> bytes:
        chunk: dict[str, Any] = {
            "id": completion.id,
            "object": "chat.completion.chunk",
            "created": completion.created,
            "model": completion.model,
            "choices": choices,
        }
        if include_usage:
            chunk["usage"] = usage
        return b"data: " + encode(chunk) + b"\n\n"

    for delta in _deltas(completion):
        yield event([{"index": 0, "delta": delta, "finish_reason": None}])
    yield event([{"index": 0, "delta": {}, "finish_reason": completion.reply.finish}])
    if include_usage:
        yield event([], completion.usage)
    yield _DONE


def _deltas(completion: Completion) -> Iterator[dict[str, Any]]:
    reply = completion.reply
    yield {"role": "assistant", "content": ""}
    for piece in pieces(reply.reasoning, None):
        yield {"reasoning_content": piece}
    for piece in pieces(reply.content, reply.chunks):
        yield {"content": piece}
    for index, call in enumerate(completion.calls()):
        function = call["function"]
        opened = {**call, "index": index, "function": {"name": function["name"], "arguments": ""}}
        yield {"tool_calls": [opened]}
        for piece in pieces(function["arguments"], 2):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def pieces(text: str, number: int | None) -> list[str]:
    """Returns the text in the given number of pieces, or a few words each; Chinese by eight characters."""
    if number is not None:
        size = max(1, -(-len(text) // max(1, number)))
        return [text[start : start + size] for start in range(0, len(text), size)]
    units = re.findall(r"\s*[^\s\u3040-\u9fff]+\s*|[\s\u3040-\u9fff]{1,2}", text)
    return ["".join(units[at : at + _WORDS_PER_DELTA]) for at in range(0, len(units), _WORDS_PER_DELTA)]
