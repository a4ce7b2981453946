"""Loopback servers of three dialects that ctxfold.testing does not speak: Ollama's own API, Mistral's and Groq's.

Each refuses what its service refuses; the rules on Mistral's messages are those of its public `mistral-common`.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, Self

from ctxfold.lru import LruCache
from ctxfold.testing import Scripted
from ctxfold.testing.served import ApiRequest, ChatCompletions

Dialect = Literal["ollama", "mistral", "groq"]
_NINE = re.compile(r"[a-zA-Z0-9]{9}")
_AFTER = {  # Mistral: the roles that may follow
    "system": {"user", "assistant", "system"},
    "user": {"assistant", "system", "user"},
    "assistant": {"assistant", "user", "tool"},
    "tool": {"assistant", "tool", "user"},
}
_PIECE = 7  # characters in one event of a stream


@dataclass(frozen=True)
class Recorded:
    """A request as it came."""

    path: str
    body: Mapping[str, Any]


class DialectServer:
    """Plays a script in one dialect on 127.0.0.1; the script reads requests as chat completions."""

    def __init__(self, dialect: Dialect, script: Callable[[Mapping[str, Any]], Scripted]) -> None:
        self.requests: list[Recorded] = []
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                owner.requests.append(Recorded(self.path, body))
                chat = _as_chat(body) if dialect == "ollama" else body
                wrong = _refused(dialect, chat, body)
                if wrong is not None:
                    self._send(400, "application/json", [json.dumps({"error": {"message": wrong}, "message": wrong})])
                    return
                reply, number = script(chat), len(owner.requests)
                lines = _ollama(reply, body) if dialect == "ollama" else _completion(dialect, reply, body, number)
                streamed = body.get("stream", dialect == "ollama")
                kind = "application/json" if not streamed else _STREAM[dialect]
                self._send(200, kind, lines)

            def _send(self, status: int, kind: str, lines: Sequence[str] | Iterator[str]) -> None:
                data = "".join(lines).encode()
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                """Keeps the table alone on the screen."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


_STREAM = {"ollama": "application/x-ndjson", "mistral": "text/event-stream", "groq": "text/event-stream"}


def _refused(dialect: Dialect, chat: Mapping[str, Any], body: Mapping[str, Any]) -> str | None:
    found = ChatCompletions().refusal(ApiRequest("", {}, chat), "openai", LruCache(1))
    if found is not None:
        return json.dumps(found.body)
    match dialect:
        case "mistral":
            return _mistral_refuses(chat["messages"])
        case "groq":
            named = [i for i, m in enumerate(chat["messages"]) if "reasoning_content" in m]
            return f"'messages.{named[0]}': property 'reasoning_content' is unsupported" if named else None
        case "ollama":
            wrong = [m for m in body["messages"] if not isinstance(m.get("content", ""), str)]
            return (
                "json: cannot unmarshal array into field ChatRequest.messages.content of type string" if wrong else None
            )


def _mistral_refuses(messages: Sequence[Mapping[str, Any]]) -> str | None:
    before: str | None = None
    for message in messages:
        role = message["role"]
        if before is not None and role not in _AFTER[before]:
            return f"Unexpected role '{role}' after role '{before}'"
        if role == "assistant" and not (message.get("content") or message.get("tool_calls")):
            return "Assistant message must have either content or tool_calls, but not none."
        extra = message.keys() - {"role", "content", "tool_calls", "tool_call_id", "name", "prefix"}
        if extra:
            return f"Extra inputs are not permitted: {', '.join(sorted(extra))}"
        ids = [
            *(c["id"] for c in message.get("tool_calls") or ()),
            *([message["tool_call_id"]] if role == "tool" else []),
        ]
        if wrong := [i for i in ids if not _NINE.fullmatch(i)]:
            return f"Tool call id was {wrong[0]} but must be a-z, A-Z, 0-9, with a length of 9."
        before = role
    if before not in ("user", "tool"):
        return f"Expected last role User or Tool (or Assistant with prefix True) for serving but got {before}"
    return None


def _as_chat(body: Mapping[str, Any]) -> dict[str, Any]:
    """Returns Ollama's request as a chat completion: its calls have no ids, and its results name their tool or nothing."""
    waiting: list[dict[str, Any]] = []
    messages: list[dict[str, Any]] = []
    for at, message in enumerate(body["messages"]):
        own = {"role": message["role"], "content": message.get("content") or ""}
        if calls := message.get("tool_calls"):
            waiting = [
                {"id": f"{at}.{i}", "type": "function", "function": {**f, "arguments": json.dumps(f["arguments"])}}
                for i, f in enumerate(dict(call["function"]) for call in calls)
            ]
            own["tool_calls"] = [*waiting]
        elif message["role"] == "tool":
            name = message.get("tool_name")
            call = next((c for c in waiting if name in (None, "", c["function"]["name"])), None)
            own["tool_call_id"] = call["id"] if call else f"unknown {name}"
            waiting = [c for c in waiting if c is not call]
        messages.append(own)
    return {**body, "messages": messages}


def _ollama(reply: Scripted, body: Mapping[str, Any]) -> Iterator[str]:
    calls = [{"function": {"name": c.name, "arguments": json.loads(c.arguments)}} for c in reply.tool_calls]
    base = {"model": body["model"], "created_at": "2026-11-01T10:00:00.000000Z"}
    counts = {
        "prompt_eval_count": _tokens(body),
        "eval_count": 20,
        "total_duration": 9,
        "load_duration": 1,
        "eval_duration": 3,
    }
    end = {"done_reason": "stop", "done": True, **counts}
    thought = {"thinking": reply.reasoning} if reply.reasoning else {}
    if not body.get("stream", True):
        message = {"role": "assistant", "content": reply.content, **thought, **({"tool_calls": calls} if calls else {})}
        yield json.dumps({**base, "message": message, **end})
        return

    def line(more: Mapping[str, Any], **rest: Any) -> str:
        return (
            json.dumps({**base, "message": {"role": "assistant", "content": "", **more}, "done": False, **rest}) + "\n"
        )

    yield from (line({"thinking": piece}) for piece in _pieces(reply.reasoning))
    yield from (line({"content": piece}) for piece in _pieces(reply.content))
    yield from (line({"tool_calls": [call]}) for call in calls)
    yield line({}, **end)


def _completion(dialect: Dialect, reply: Scripted, body: Mapping[str, Any], number: int) -> Iterator[str]:
    calls = [
        {
            "id": f"c{number:06}{i:02}",
            "type": "function",
            "index": i,
            "function": {"name": c.name, "arguments": c.arguments},
        }
        for i, c in enumerate(reply.tool_calls)
    ]
    finish = "tool_calls" if calls else "stop"
    usage = {"prompt_tokens": _tokens(body), "completion_tokens": 20, "total_tokens": _tokens(body) + 20}
    base = {"id": f"cmpl-{number}", "created": 1_790_000_000, "model": body["model"]}
    said = _said(dialect, reply.reasoning, reply.content)
    if not body.get("stream"):
        message = {"role": "assistant", "content": "", **said, **({"tool_calls": calls} if calls else {})}
        choice = {"index": 0, "message": message, "finish_reason": finish}
        yield json.dumps({**base, "object": "chat.completion", "choices": [choice], "usage": usage})
        return

    def event(delta: Mapping[str, Any], finish_reason: str | None = None, **rest: Any) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        return f"data: {json.dumps({**base, 'object': 'chat.completion.chunk', 'choices': [choice], **rest})}\n\n"

    yield event({"role": "assistant", "content": ""})
    yield from (event(_said(dialect, piece, "")) for piece in _pieces(reply.reasoning))
    yield from (event(_said(dialect, "", piece)) for piece in _pieces(reply.content))
    if calls:
        yield event({"tool_calls": calls})
    yield event({"content": ""}, finish, usage=usage)
    yield "data: [DONE]\n\n"


def _said(dialect: Dialect, thought: str, text: str) -> dict[str, Any]:
    """Returns the fields of a message, or of a piece of one, that hold thought and text."""
    if dialect == "groq" or not thought:
        return {**({"reasoning": thought} if thought else {}), **({"content": text} if text else {})}
    chunks: list[Any] = [{"type": "thinking", "thinking": [{"type": "text", "text": thought}]}]
    return {"content": [*chunks, *([{"type": "text", "text": text}] if text else [])]}


def _tokens(body: Mapping[str, Any]) -> int:
    return len(json.dumps(body)) // 4


def _pieces(text: str) -> list[str]:
    return [text[i : i + _PIECE] for i in range(0, len(text), _PIECE)]
