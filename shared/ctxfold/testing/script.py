"""Replies that a scripted model plays, as values, raw byte frames or errors; and JSON of requests, read without surprises."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, cast

from ctxfold.errors import ConfigError
from ctxfold.validation import is_a, kind_of

Body: TypeAlias = Mapping[str, Any]


def as_mapping(value: Any) -> Mapping[str, Any]:
    """Returns the value if it is an object, else an empty one."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def as_list(value: Any) -> list[Any]:
    """Returns the value if it is an array, else an empty one."""
    return list(cast("Any", value)) if isinstance(value, (list, tuple)) else []


def as_mappings(value: Any) -> list[Mapping[str, Any]]:
    """Returns the objects of an array; an entry that is no object becomes an empty one."""
    return [as_mapping(entry) for entry in as_list(value)]


def part_text(part: Any) -> str | None:
    """Returns the text of one content part, or None when it has none."""
    text = as_mapping(part).get("text") if isinstance(part, Mapping) else part
    return text if isinstance(text, str) else None


def calls_of(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Returns a message's tool calls."""
    return as_mappings(message.get("tool_calls"))


def chat_call(identity: object, name: object, arguments: object) -> dict[str, Any]:
    """Returns a tool call in the form of chat completions, with its arguments as JSON text."""
    function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
    return {"id": identity, "type": "function", "function": function}


def chat_tool(described: Mapping[str, Any], parameters: object) -> dict[str, Any]:
    """Returns a tool in the form of chat completions, with the name and the description of another form."""
    function = {
        "name": described.get("name"),
        "description": described.get("description", ""),
        "parameters": parameters,
    }
    return {"type": "function", "function": function}


def chat_choice(name: object) -> dict[str, Any]:
    """Returns the choice of a tool by its name, in the form of chat completions."""
    return {"type": "function", "function": {"name": name}}


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """A tool call; `arguments` is sent unchanged, also when it is not JSON."""

    name: str
    arguments: str = "{}"
    id: str = ""  # "" lets the server give one, unique to request and position


@dataclass(frozen=True, slots=True)
class Scripted:
    """A model's reply, rendered as JSON or SSE, whichever the request asked for.

    With `held` a test says when the model has done its work, instead of guessing how long a machine takes for something else;
    a client that leaves and a server that closes do not wait for it.
    """

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ScriptedCall, ...] = ()
    usage: Mapping[str, Any] | None = None  # None: counted
    finish_reason: str | None = None  # None: "tool_calls" with calls, else "stop"
    delay_s: float = 0.0  # before the first byte
    chunks: int | None = None  # content deltas when streamed; None: a few words each
    chunk_delay_s: float = 0.0  # between two deltas
    held: threading.Event | None = None  # nothing is sent before it is set

    @property
    def finish(self) -> str:
        """The finish reason that is sent."""
        return self.finish_reason or ("tool_calls" if self.tool_calls else "stop")


@dataclass(frozen=True, slots=True)
class RawReply:
    """Bytes as given, one network write a frame; then a clean end, a reset, or silence."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: {"content-type": "text/event-stream"})
    frames: tuple[bytes, ...] = ()
    then: Literal["eof", "abort", "hang"] = "eof"


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """An HTTP error; a mapping is sent as JSON, text as it stands."""

    status: int
    body: Mapping[str, Any] | str
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    def encoded(self) -> bytes:
        """Returns the bytes of the body."""
        return self.body.encode() if isinstance(self.body, str) else json.dumps(self.body).encode()


Reply: TypeAlias = Scripted | RawReply | ErrorReply
Script: TypeAlias = Iterable[Reply] | Callable[[Body], Reply | None]


def api_error(status: int, message: str, *, param: str | None = None, code: str | None = None) -> ErrorReply:
    """Returns an error body in the shape that OpenAI-compatible servers share."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return ErrorReply(status, {"error": {"message": message, "type": kind, "param": param, "code": code}})


class ScriptPlayer:
    """Plays a list in order, or asks a function (whose None leaves the answer to `lookup`); an exhausted list answers 500.

    ConfigError for an entry of a list that is no reply, or holds what cannot be sent; a function's wrong answer is a 500.
    """

    def __init__(self, script: Script) -> None:
        self._ask = script if callable(script) else None
        if not callable(script) and (is_a(script, (str, bytes, Mapping)) or not is_a(script, Iterable)):
            raise ConfigError(
                f"script is {kind_of(script)}: give a list of {_REPLIES}, or a function of the request's body"
            )
        self._items: tuple[Reply, ...] = () if callable(script) else tuple(script)
        for number, entry in enumerate(self._items):
            wrong = _wrong(entry)
            if wrong is not None:
                raise ConfigError(f"script entry {number} of {len(self._items)} {wrong}")
        self._next = 0

    def reply(self, body: Body) -> Reply | None:
        """Returns the reply to this request."""
        if self._ask is not None:
            reply = self._ask(body)
            wrong = None if reply is None else _wrong(reply)
            return reply if wrong is None else api_error(500, f"What the script function returned {wrong}.")
        if self._next >= len(self._items):
            message = f"The script of {len(self._items)} replies is exhausted: give ModelServer(script=...) more."
            return api_error(500, message, code="script_exhausted")
        self._next += 1
        return self._items[self._next - 1]


_REPLIES = "Scripted, RawReply or ErrorReply from ctxfold.testing"


def _wrong(entry: object) -> str | None:
    """Returns the fault of an entry, worded to follow its number; None when it can be played."""
    match entry:
        case Scripted():
            for call in entry.tool_calls:
                if not is_a(call, ScriptedCall):
                    return f"has {kind_of(call)} among its tool_calls: give ScriptedCall(name, arguments)"
            called = (text for call in entry.tool_calls for text in (call.name, call.arguments))
            for text in (entry.content, entry.reasoning, *called):
                if not is_a(text, str):
                    return f"has {kind_of(text)} where text is needed: give content, reasoning and arguments as text"
            return None
        case RawReply():
            for frame in entry.frames:
                if not is_a(frame, bytes):
                    return f"has {kind_of(frame)} among its frames: give bytes"
            known = entry.then in ("eof", "abort", "hang")
            return None if known else f"ends with {entry.then!r}: use 'eof', 'abort' or 'hang'"
        case ErrorReply():
            sendable = is_a(entry.status, int) and is_a(entry.body, (str, Mapping))
            return None if sendable else "has a status that is no number, or a body that is neither a mapping nor text"
        case _:
            return f"is {kind_of(entry)}: give {_REPLIES}"
