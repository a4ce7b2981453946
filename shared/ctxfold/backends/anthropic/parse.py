"""Parses replies of Anthropic's Messages API, whole or streamed, into chunks. Pure: bytes in, chunks out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ctxfold.backends.errors import error_body
from ctxfold.backends.profile import Profile
from ctxfold.backends.response_parser import AnswerParser, usage_from
from ctxfold.messages import Usage
from ctxfold.protocols import Chunk, ToolCallDelta
from ctxfold.validation import as_dict, as_dicts, as_list, as_text, strict_text

_INPUT = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
_PLAIN = frozenset({"text", "thinking", "tool_use"})
_CALL_FIELDS = frozenset({"id", "input", "name", "type"})


@dataclass(slots=True)
class _OpenBlock:
    """An unfinished content block; `start` is its first event."""

    start: Mapping[str, Any]
    signature: str = ""
    json: list[str] = field(default_factory=list[str])
    text: list[str] = field(default_factory=list[str])
    citations: list[Any] = field(default_factory=list[Any])
    summary: dict[str, Any] = field(default_factory=dict[str, Any])
    begun: bool = False

    @property
    def kind(self) -> str:
        return as_text(self.start.get("type"))

    def sealed(self) -> dict[str, Any]:
        """Returns a block without a part of its own, assembled so that it can be sent back."""
        block = dict(self.start)
        if self.json:
            try:
                block["input"] = json.loads("".join(self.json))
            except ValueError:
                block["input"] = {}
        if self.text:
            block["text"] = as_text(block.get("text")) + "".join(self.text)
        if self.signature:
            block["signature"] = self.signature
        return block | self.summary

    def first(self) -> bool:
        """Returns True once, for the chunk that begins a part."""
        begun, self.begun = self.begun, True
        return not begun


class MessagesParser(AnswerParser):
    """Decodes one reply of the Messages API. Each block other than text, thinking and calls becomes one sealed chunk."""

    may_say_nothing = True

    def __init__(self, profile: Profile, *, hide: Callable[[str], str] = str) -> None:
        super().__init__(profile, hide=hide)
        self._open: dict[int, _OpenBlock] = {}
        self._usage: dict[str, Any] = {}
        self._model: str | None = None
        self._text_begun = False
        self._transformed: list[dict[str, Any]] = []

    def _payload(self, payload: object, event_name: str) -> list[Chunk]:
        body = as_dict(payload)
        index = body.get("index")
        number = index if isinstance(index, int) else 0
        match as_text(body.get("type")) or event_name:
            case "message_start":
                message = as_dict(body.get("message"))
                self._model = as_text(message.get("model")) or None
                self._transformed = as_dicts(message.get("input_transformations"))
                self._note_usage(message.get("usage"))
                return []
            case "content_block_start":
                return self._started(number, as_dict(body.get("content_block")), body)
            case "content_block_delta":
                return self._delta(number, as_dict(body.get("delta")), body)
            case "content_block_stop":
                return self._stopped(number, body)
            case "message_delta":
                self._note_usage(body.get("usage"))
                finish = self._finished(as_dict(body.get("delta")).get("stop_reason"))
                return [self._last(body, finish)] if self._usage or finish else []
            case "message_stop":
                return self._end()
            case kind:
                self._other(body, kind)
                return []

    def _other(self, body: Mapping[str, Any], kind: str) -> None:
        error = error_body(body) if kind == "error" or "error" in body else None
        if error is None and kind == "error":
            error = body
        if error is not None:
            self._failed(error)

    def _started(self, number: int, block: Mapping[str, Any], body: Mapping[str, Any]) -> list[Chunk]:
        opened = self._open[number] = _OpenBlock(block)
        match opened.kind:
            case "tool_use":
                self.answered = True
                return [self._chunk(body, tool_calls=(_call(number, block),), own_part=True)]
            case "text":
                self._text_begun = True
                opened.citations += as_list(block.get("citations"))
                return self._content(opened, as_text(block.get("text")), body)
            case "thinking":
                opened.signature = as_text(block.get("signature"))
                return self._thinking(opened, as_text(block.get("thinking")), body)
            case _:
                return []

    def _delta(self, number: int, delta: Mapping[str, Any], body: Mapping[str, Any]) -> list[Chunk]:
        block = self._open.get(number)
        if block is None:
            block = self._open[number] = _OpenBlock({})
        match as_text(delta.get("type")):
            case "text_delta":
                text = as_text(delta.get("text"))
                if not block.start or block.kind in _PLAIN:
                    return self._content(block, text, body)
                block.text.append(text)
            case "thinking_delta":
                return self._thinking(block, as_text(delta.get("thinking")), body)
            case "input_json_delta":
                piece = as_text(delta.get("partial_json"))
                block.json.append(piece)
                if not block.start or block.kind == "tool_use":
                    return [self._chunk(body, tool_calls=(ToolCallDelta(number, arguments=piece),))]
            case "signature_delta":
                block.signature += as_text(delta.get("signature"))
            case "citations_delta":
                block.citations.append(delta.get("citation"))
            case "compaction_delta":
                block.summary |= {name: value for name, value in delta.items() if name != "type" and value is not None}
            case _:
                pass
        return []

    def _stopped(self, number: int, body: Mapping[str, Any]) -> list[Chunk]:
        block = self._open.pop(number, None)
        if block is None or not block.kind:  # nobody could take it back
            return []
        match block.kind:
            case "thinking":
                return [self._chunk(body, signature=block.signature)] if block.signature else []
            case "tool_use":
                whole: object = block.start.get("input")
                if not whole or any(block.json):
                    return []
                arguments = json.dumps(whole, ensure_ascii=False)
                return [self._chunk(body, tool_calls=(ToolCallDelta(number, arguments=arguments),))]
            case "text":
                return [self._chunk(body, text_extra={"citations": block.citations})] if block.citations else []
            case kind:
                self.answered = self.answered or kind != "redacted_thinking"
                writer = as_text(as_dict(block.start.get("to")).get("model")) if kind == "fallback" else ""
                self._model = writer or self._model
                return [self._chunk(body, sealed=block.sealed(), hands_over=bool(writer))]

    def _reply(self, payload: object) -> list[Chunk]:
        body = as_dict(payload)
        if body.get("type") != "message":
            return self._no_reply(error_body(payload), "a reply that is not a message")
        self._model = as_text(body.get("model")) or None
        self._note_usage(body.get("usage"))
        chunks: list[Chunk] = []
        for number, block in enumerate(as_dicts(body.get("content"))):
            chunks += self._started(number, block, {})
            chunks += self._stopped(number, {})
        finish = self._finished(body.get("stop_reason"))
        return [*chunks, self._last(body, finish)]

    def _last(self, body: Mapping[str, Any], finish: str | None) -> Chunk:
        """Returns the chunk with the usage, and with what the service did to the context on its own side."""
        iterations = as_dicts(self._usage.get("iterations"))
        billed = sum((usage_from(one, self._profile.usage) for one in iterations), Usage())
        usage = self._usage_in(self._usage)
        transformed = as_dicts(body.get("input_transformations")) or self._transformed
        cleared = as_dicts(as_dict(body.get("context_management")).get("applied_edits"))
        return self._chunk(
            body,
            usage=usage,
            finish_reason=finish,
            billed=billed if iterations and billed != usage else None,
            applied_edits=(*transformed, *cleared),
        )

    def _content(self, block: _OpenBlock, text: str, body: Mapping[str, Any]) -> list[Chunk]:
        self.answered = self.answered or bool(text)
        return [self._chunk(body, content=text, own_part=block.first())] if text else []

    def _thinking(self, block: _OpenBlock, text: str, body: Mapping[str, Any]) -> list[Chunk]:
        self.answered = self.answered or bool(text)
        return [self._chunk(body, reasoning=text, own_part=block.first())] if text else []

    def _chunk(self, raw: Mapping[str, Any], **fields: Any) -> Chunk:
        return Chunk(model=self._model, raw=raw, empty_content=self._text_begun, **fields)

    def _note_usage(self, usage: object) -> None:
        """Merges usage numbers: later ones replace earlier ones, and the last event repeats only some.

        An event without any input did not count it, as the last one of llama.cpp.
        """
        fields = {name: value for name, value in as_dict(usage).items() if value is not None}
        if not any(fields.get(name) for name in _INPUT):
            fields = {name: value for name, value in fields.items() if name not in _INPUT}
        self._usage |= fields


def _call(number: int, block: Mapping[str, Any]) -> ToolCallDelta:
    """Returns the opening of a call, with what the service wants back beside it, such as its caller."""
    extra = {name: value for name, value in block.items() if name not in _CALL_FIELDS and value is not None}
    return ToolCallDelta(
        number,
        as_text(block.get("id")) or None,
        as_text(block.get("name")) or None,
        extra=strict_text(extra) if extra else None,
    )
