"""Parses replies of generateContent, whole or streamed, into chunks. Pure: bytes in, chunks out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, cast

from ctxfold.backends.errors import error_body
from ctxfold.backends.profile import Profile
from ctxfold.backends.response_parser import AnswerParser, first_choice, tokens_at
from ctxfold.lru import lazy_pattern
from ctxfold.messages import Usage
from ctxfold.protocols import Chunk, ToolCallDelta, Wire
from ctxfold.validation import MAX_JSON_DEPTH, as_dict, as_dicts, as_text, strict_text

WIRE: Wire = "gemini"  # the name under which parts keep what stood beside them

_SIGNATURE = "thoughtSignature"
_STEP = lazy_pattern(r"\.([^.\[]+)|\[(\d{1,9})\]|\[['\"](.*?)['\"]\]")  # of a JSON path
_VALUES = ("stringValue", "numberValue", "boolValue")
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
        self._arguments: Any = None  # of a call that has not ended
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
        parts = as_dicts(as_dict(candidate.get("content")).get("parts"))
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
        """Returns a call, or a piece of one: its arguments may come in pieces, and are complete with its last part."""
        call = as_dict(part["functionCall"])
        continues = self._arguments is not None and "name" not in call
        if not continues:
            self._arguments = call.get("args") or {}
        for piece in as_dicts(call.get("partialArgs")):
            _set_argument({"$": self._arguments}, piece)
        arguments = ""
        if not call.get("willContinue"):
            arguments, self._arguments = json.dumps(_filled(self._arguments), ensure_ascii=False), None
        if continues:
            return {"tool_calls": (ToolCallDelta(self._calls - 1, arguments=arguments),)}
        extra = {name: value for name, value in part.items() if name != "functionCall"}
        name, beside = as_text(call.get("name")) or None, strict_text({WIRE: extra}) if extra else None
        delta = ToolCallDelta(self._calls, as_text(call.get("id")) or None, name, arguments, beside)
        self._calls += 1
        self.answered = True
        return {"tool_calls": (delta,), "own_part": True}

    def _sealed(self, part: Mapping[str, Any]) -> dict[str, Any] | None:
        """Keeps a part of a server's own tool, an image, or one of a kind unknown here, as it came."""
        if part.keys() <= {*_TEXT, _SIGNATURE}:  # nothing, or a text that is none
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


def _set_argument(arguments: dict[Any, Any], piece: Mapping[str, Any]) -> None:
    """Sets the value at the piece's path, or continues the text there; a list is an object with numbers as names for now.

    `arguments` holds those of the call under "$", with which each path begins.
    """
    found = _STEP.findall(as_text(piece.get("jsonPath")))[:MAX_JSON_DEPTH]
    steps = ["$", *(int(number) if number else name or quoted for name, number, quoted in found)]
    for step in steps[:-1]:
        if not isinstance(arguments.get(step), dict):
            arguments[step] = {}
        arguments = arguments[step]
    value = next((piece[name] for name in _VALUES if name in piece), None)
    known = arguments.get(steps[-1])
    arguments[steps[-1]] = known + value if isinstance(known, str) and isinstance(value, str) else value


def _filled(value: Any) -> Any:
    """Returns arguments that came in pieces with their lists."""
    fields: dict[Any, Any] = {name: _filled(inner) for name, inner in as_dict(value).items()}
    if not fields:
        return value
    return list(fields.values()) if all(type(name) is int for name in fields) else fields


def _usage(metadata: object) -> Usage | None:
    """Returns the numbers of a usage object, which leaves thoughts out of the output; None when it has none."""
    if not isinstance(metadata, dict):
        return None
    numbers = cast("dict[str, object]", metadata)
    counts = [tokens_at(numbers, (name,)) for name in _COUNTS]
    if not any(counts) and numbers.keys().isdisjoint(_COUNTS):
        return None
    prompt, answer, thoughts, cached = counts
    return Usage(prompt, answer + thoughts, cached, 0, thoughts)


def _billed(metadata: object, usage: Usage | None) -> Usage | None:
    """Returns the usage with what the service's own tools brought, which is input beside the prompt; None without any."""
    tools = tokens_at(as_dict(metadata), ("toolUsePromptTokenCount",))
    return usage + Usage(tools) if usage is not None and tools else None
