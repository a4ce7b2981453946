"""Parses replies of generateContent, whole or streamed, into chunks. Pure: bytes in, chunks out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, cast

from ctxfold.backends.errors import error_body
from ctxfold.backends.profile import Profile
from ctxfold.backends.response_parser import AnswerParser, first_choice
from ctxfold.messages import Usage
from ctxfold.protocols import Chunk, ToolCallDelta, Wire
from ctxfold.validation import as_dict, as_dicts, as_text, strict_text

WIRE: Wire = "gemini"  # the name under which parts keep what stood beside them

_SIGNATURE = "thoughtSignature"
_TEXT = frozenset({"text", "thought"})
_COUNTS = ("promptTokenCount", "candidatesTokenCount", "thoughtsTokenCount", "cachedContentTokenCount")


class GeminiParser(AnswerParser):
    """Decodes one reply of generateContent. Each part other than text and a function call becomes one sealed chunk.

    The wire has no end mark: the last event has a finish reason, and some servers give one with every event.
    """

    def __init__(self, profile: Profile, *, hide: Callable[[str], str] = str) -> None:
        super().__init__(profile, hide=hide)
        self._model: str | None = None
        self._calls = 0
        self._call_ids: set[str] = set()
        self._candidates = False
        self._empty_content = False

    def _payload(self, payload: object, event_name: str) -> list[Chunk]:
        if isinstance(payload, list):
            bodies: list[object] = cast("list[object]", payload)
            return [chunk for body in bodies if self.error is None for chunk in self._payload(body, event_name)]
        body = as_dict(payload)
        if body.get("candidates") and "error" not in body:
            return self._event_chunks(body)
        error = error_body(body)
        if error is None and event_name == "error":
            error = body or {"message": str(payload)}
        if error is not None:
            self._failed(error)
            return []
        feedback = as_dict(body.get("promptFeedback"))
        reason = as_text(feedback.get("blockReason"))
        if reason:
            message = as_text(feedback.get("blockReasonMessage"))
            self._fail(
                "content_filter", f"the prompt was blocked ({reason}){': ' * bool(message)}{message}", code=reason
            )
        return self._event_chunks(body)

    def _reply(self, payload: object) -> list[Chunk]:
        chunks = self._payload(payload, "")
        if self.error is None and not self._candidates:
            known = "usageMetadata" in as_dict(payload)
            self._fail("empty_response" if known else "protocol", "a reply without candidates")
        return chunks

    def _event_chunks(self, body: Mapping[str, Any]) -> list[Chunk]:
        """Returns one chunk for each part; the last one carries usage and finish reason."""
        candidate = first_choice(body.get("candidates"))
        if candidate:
            self._candidates = True
        if isinstance(model := body.get("modelVersion"), str):
            self._model = model
        parts = _parts(candidate)
        reason = candidate.get("finishReason")
        if len(parts) == 1 and len(parts[0]) == 1 and not reason and (text := as_text(parts[0].get("text"))):
            self.answered = True  # most of a stream
            usage = _usage(body.get("usageMetadata"))
            return [Chunk(content=text, usage=usage, model=self._model, raw=body)]
        part_fields = [fields for part in parts if (fields := self._part(part))]
        finish = self._ended(reason, as_text(candidate.get("finishMessage"))) if reason else None
        usage = _usage(body.get("usageMetadata"))
        if not part_fields:
            return [] if usage is None and finish is None else [self._last(body, usage, finish, {})]
        before = [Chunk(model=self._model, raw=body, **fields) for fields in part_fields[:-1]]
        return [*before, self._last(body, usage, finish, part_fields[-1])]

    def _last(
        self, body: Mapping[str, Any], usage: Usage | None, finish: str | None, fields: Mapping[str, Any]
    ) -> Chunk:
        shared: dict[str, Any] = {"model": self._model, "raw": body, "empty_content": self._empty_content}
        billed = _billed(body.get("usageMetadata"), usage)
        return Chunk(usage=usage, billed=billed, finish_reason=finish, **shared, **fields)

    def _part(self, part: Mapping[str, Any]) -> dict[str, Any] | None:
        """Returns the fields of the chunk of a part; None for an empty text that is not signed."""
        text = part.get("text")
        if part.get(_SIGNATURE) == "":
            part = {name: value for name, value in part.items() if name != _SIGNATURE}
        if type(text) is not str:
            return self._call(part) if "functionCall" in part else self._sealed(part)
        if text:
            self.answered = True
        thought = part.get("thought")
        if len(part) == 1 + ("thought" in part):
            self._empty_content = self._empty_content or not (text or thought)
            return {"reasoning" if thought else "content": text} if text else None
        if thought:
            signature = as_text(part.get(_SIGNATURE))
            return {"reasoning": text, "signature": signature, "own_part": True} if text or signature else None
        extra = {name: value for name, value in part.items() if name not in _TEXT}
        return {"content": text, "text_extra": {WIRE: extra}, "own_part": True}

    def _call(self, part: Mapping[str, Any]) -> dict[str, Any]:
        call = as_dict(part["functionCall"])
        extra = {name: value for name, value in part.items() if name != "functionCall"}
        identity = as_text(call.get("id"))
        if identity in self._call_ids:
            identity = ""  # two calls with one id could not be told apart
        self._call_ids.add(identity)
        delta = ToolCallDelta(
            self._calls,
            identity or None,
            as_text(call.get("name")) or None,
            json.dumps(call.get("args") or {}, ensure_ascii=False),
            strict_text({WIRE: extra}) if extra else None,
        )
        self._calls += 1
        self.answered = True
        return {"tool_calls": (delta,), "own_part": True}

    def _sealed(self, part: Mapping[str, Any]) -> dict[str, Any] | None:
        """Keeps a part of a server's own tool, an image, or one of a kind unknown here, as it came."""
        if not part:
            return None
        self.answered = True
        return {"sealed": part}

    def _ended(self, raw: object, message: str) -> str | None:
        """Returns the normalised finish reason; calls also end with STOP, and a call that was not declared is a call."""
        finish = self._finished(raw)
        if finish in ("stop", "tool_calls"):
            finish = self._finish = "tool_calls" if self._calls else "stop"
        if finish != "error":
            return finish
        if self.error is not None and message:
            self._fail(self.error.kind, f"the answer ended with finish reason {raw!r}: {message}", code=as_text(raw))
        return None


def _parts(candidate: Mapping[str, Any]) -> list[dict[str, Any]]:
    return as_dicts(as_dict(candidate.get("content")).get("parts"))


def _usage(metadata: object) -> Usage | None:
    """Returns the numbers of a usage object, which leaves thoughts out of the output; None when it has none."""
    if not isinstance(metadata, dict):
        return None
    numbers = cast("dict[str, object]", metadata)
    counts = [value if type(value) is int and value > 0 else 0 for value in map(numbers.get, _COUNTS)]
    if not any(counts) and numbers.keys().isdisjoint(_COUNTS):
        return None
    prompt, answer, thoughts, cached = counts
    return Usage(prompt, answer + thoughts, cached, 0, thoughts)


def _billed(metadata: object, usage: Usage | None) -> Usage | None:
    """Returns the usage with what the service's own tools brought, which is input beside the prompt; None without any."""
    tools = as_dict(metadata).get("toolUsePromptTokenCount")
    return usage + Usage(tools) if usage is not None and type(tools) is int and tools > 0 else None
