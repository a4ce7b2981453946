"""Chat-completion replies, whole or streamed, translated into chunks; pure: bytes in, chunks out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from ctxfold.backends.failures import error_body, failure, plain_failure
from ctxfold.backends.profile import Profile, UsagePaths, common_rules
from ctxfold.backends.sse import SseDecoder, SseEvent
from ctxfold.backends.think_tags import TagSplitter
from ctxfold.errors import BackendError
from ctxfold.messages import Usage
from ctxfold.ports import Chunk, ToolCallDelta

__all__ = ["ChatParser", "usage_from"]

MAX_REPLY_BYTES = 64 * 1024 * 1024
_NONE: dict[str, Any] = {}
_CALL_KEYS = frozenset({"index", "id", "type", "function"})


class ChatParser:
    """Decodes one answer. `error` holds what ends it badly, to be raised once the chunks before it are taken.

    `done` says that nothing more counts, `complete` that there was a finish reason and no error, `answered` that
    there was text, reasoning, a refusal or a call. A body that starts like JSON is one whole reply, whatever its
    content type says.
    """

    def __init__(self, profile: Profile, *, thinking: bool = True, hide: Callable[[str], str] = str) -> None:
        self.error: BackendError | None = None
        self.done = False
        self.answered = False
        self._profile = profile
        self._hide = hide
        self._sse = SseDecoder()
        self._json: bytearray | None = None
        self._sniffed = False
        tags = profile.reasoning_in.tags
        starts_open = profile.reasoning_in.starts_open and thinking
        self._tags = TagSplitter(*tags, starts_open=starts_open) if tags is not None else None
        self._finish: str | None = None
        self._calls = False
        self._refused = False
        self._fields_used = False

    @property
    def complete(self) -> bool:
        return self._finish is not None and self.error is None

    def feed(self, data: bytes) -> list[Chunk]:
        """The chunks that these bytes complete."""
        if not self._sniffed:
            data = data.removeprefix(b"\xef\xbb\xbf").lstrip()
            if not data:
                return []
            self._sniffed = True
            if data[:1] in b"{[<":
                self._json = bytearray()
        if self._json is None:
            return self._events(lambda: self._sse.feed(data))
        self._json += data
        if len(self._json) > MAX_REPLY_BYTES:
            self._fail("protocol", f"a reply of over {MAX_REPLY_BYTES} bytes")
        return []

    def close(self) -> list[Chunk]:
        """The chunks left when the body has ended; a missing end becomes `error`."""
        chunks: list[Chunk] = []
        if self._json is not None and self.error is None:
            chunks = self._whole(bytes(self._json))
        elif not self.done and self.error is None:
            chunks = self._events(self._sse.close, tolerant=True)
        if self.error is None and not self.done:
            if self._finish is None:
                self._fail("stream_truncated", "the answer ended without a finish reason")
            else:
                chunks += self._end()
        return chunks

    def _events(self, read: Callable[[], list[SseEvent]], *, tolerant: bool = False) -> list[Chunk]:
        chunks: list[Chunk] = []
        try:
            for event in read():
                if self.done or self.error is not None:
                    break
                chunks += self._event(event, tolerant=tolerant)
        except BackendError as error:
            self._fail(error.kind, str(error))
        return chunks

    def _event(self, event: SseEvent, *, tolerant: bool) -> list[Chunk]:
        data = event.data.strip()
        if data == "[DONE]":
            return self._end(said_done=True)
        if not data:
            return []
        try:
            payload: object = json.loads(data)
        except ValueError:
            if not tolerant:  # at the very end it is a cut event, and the missing finish reason tells
                self._fail("protocol", f"an event that is not JSON: {data[:80]!r}")
            return []
        return self._payload(payload, "delta", event.name)

    def _whole(self, body: bytes) -> list[Chunk]:
        try:
            payload: object = json.loads(body)
        except ValueError:
            if body[:1] != b"<" and body.rstrip()[-1:] not in b"}]":
                self._fail("stream_truncated", f"the reply broke off after {len(body)} bytes")
            else:
                self._fail("protocol", f"a reply of {len(body)} bytes that is not JSON")
            return []
        chunks = self._payload(payload, "message", "")
        if self.error is not None:
            return chunks
        if not isinstance(payload, dict) or not cast("dict[str, Any]", payload).get("choices"):
            self._fail("protocol", "a reply without choices")
            return chunks
        return chunks + self._end(said_done=True, whole=True)

    def _payload(self, payload: object, key: str, event_name: str) -> list[Chunk]:
        error = error_body(payload)
        if error is None and event_name == "error":
            error = cast("dict[str, Any]", payload) if isinstance(payload, dict) else {"message": str(payload)}
        body = cast("dict[str, Any]", payload) if isinstance(payload, dict) else {}
        chunk = self._chunk(body, key)
        if error is not None:
            self.error = failure(self._profile, error, hide=self._hide)
        return [] if chunk is None else [chunk]

    def _chunk(self, body: dict[str, Any], key: str) -> Chunk | None:
        """One payload translated; None when it carries nothing at all."""
        choice = next((c for c in _dicts(body.get("choices")) if not c.get("index")), _NONE)
        delta = _dict(choice.get(key) or choice.get("message") or choice.get("delta"))
        reasoning, content = self._texts(delta)
        refusal = _str(delta.get("refusal"))
        finish = self._finished(choice.get("finish_reason"), refused=bool(refusal))
        if finish is not None and self._tags is not None:
            late = self._tags.close()
            reasoning, content = reasoning + late[0], content + late[1]
        calls = tuple(_calls(delta))
        details = self._details(delta)
        usage = next((u for u in map(self._usage, (body, choice, delta)) if u is not None), None)
        if not (reasoning or content or refusal or calls or details or usage or finish):
            return None
        self.answered = self.answered or bool(reasoning or content or refusal or calls)
        self._calls = self._calls or bool(calls)
        return Chunk(
            reasoning=reasoning,
            content=content,
            tool_calls=calls,
            reasoning_details=details,
            refusal=refusal,
            usage=usage,
            finish_reason=finish,
            model=_str(body.get("model")) or None,
            raw=body,
        )

    def _texts(self, delta: Mapping[str, Any]) -> tuple[str, str]:
        thought, content = _content(delta.get("content"))
        rules = self._profile.reasoning_in
        # two fields may repeat one text: the first that has any counts
        field = next((text for name in rules.fields if (text := _str(delta.get(name)))), "")
        if field:
            self._fields_used = True
        elif not self._fields_used and rules.details_field is not None:
            field = "".join(
                _str(d.get("text") or d.get("summary") or d.get("thinking"))
                for d in _dicts(delta.get(rules.details_field))
            )
        if self._tags is not None and content:
            tagged, content = self._tags.feed(content)
            thought += tagged
        return field + thought, content

    def _details(self, delta: Mapping[str, Any]) -> tuple[Any, ...]:
        name = self._profile.reasoning_in.details_field
        return tuple(_dicts(delta.get(name))) if name is not None else ()

    def _usage(self, holder: Mapping[str, Any]) -> Usage | None:
        usage = holder.get("usage")
        return (
            usage_from(cast("dict[str, Any]", usage), self._profile.usage)
            if isinstance(usage, dict) and usage
            else None
        )

    def _finished(self, raw: object, *, refused: bool) -> str | None:
        """The finish reason normalised, None when there is none; a failed generation sets `error`."""
        self._refused = self._refused or refused
        if not isinstance(raw, str) or not raw:
            return None
        rules = common_rules()
        finish = self._profile.finish.get(raw) or rules.finish.get(raw.lower()) or raw
        if finish == "stop" and self._refused:
            finish = "content_filter"
        if finish == "error":
            self._fail(rules.finish_error_kind.get(raw, "server"), f"the answer ended with finish reason {raw!r}")
        self._finish = finish
        return finish

    def _end(self, *, said_done: bool = False, whole: bool = False) -> list[Chunk]:
        """The regular end: late text, an implied finish reason, and the check that there was an answer."""
        self.done = True
        reasoning, content = self._tags.close() if self._tags is not None else ("", "")
        self.answered = self.answered or bool(reasoning or content)
        implied: str | None = None
        if self._finish is None and said_done and (whole or self._profile.finish_reason_optional):
            implied = self._finish = "tool_calls" if self._calls else "stop"
        chunks = [Chunk(reasoning=reasoning, content=content, finish_reason=implied)]
        if self._finish is None:
            self._fail("stream_truncated", "the answer ended without a finish reason")
        elif self._finish in ("stop", "tool_calls") and not self.answered:
            self._fail("empty_response", "the answer has no text, no reasoning and no tool call")
        return chunks if reasoning or content or implied else []

    def _fail(self, kind: str, what: str) -> None:
        self.error = plain_failure(self._profile, kind, what, hide=self._hide)


def usage_from(usage: Mapping[str, Any], paths: UsagePaths) -> Usage:
    """The numbers of one usage object; input includes cache hits."""
    cache_read, cache_write = _at(usage, paths.cache_read), _at(usage, paths.cache_write)
    beside = 0 if paths.input_includes_cache else cache_read + cache_write
    return Usage(
        _at(usage, paths.input) + beside,
        _at(usage, paths.output),
        cache_read,
        cache_write,
        _at(usage, paths.reasoning),
    )


def _at(usage: Mapping[str, Any], paths: Iterable[str]) -> int:
    for path in paths:
        value: object = usage
        for step in path.split("."):
            value = _dict(value).get(step)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return int(value)
    return 0


def _calls(delta: Mapping[str, Any]) -> Iterable[ToolCallDelta]:
    for call in _dicts(delta.get("tool_calls")):
        function = _dict(call.get("function"))
        index = call.get("index")
        extra = {k: v for k, v in call.items() if k not in _CALL_KEYS and v is not None}
        yield ToolCallDelta(
            index=index if isinstance(index, int) else None,
            id=_str(call.get("id")) or None,
            name=_str(function.get("name")).strip() or None,
            arguments=_arguments(function.get("arguments")),
            extra=json.dumps(extra, ensure_ascii=False) if extra else None,
        )
    legacy = _dict(delta.get("function_call"))
    if legacy:
        yield ToolCallDelta(0, None, _str(legacy.get("name")) or None, _arguments(legacy.get("arguments")))


def _arguments(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _content(value: object) -> tuple[str, str]:
    """(reasoning, content) of a content field that is text or a list of typed blocks."""
    if not isinstance(value, list):
        return "", _str(value)
    reasoning, content = "", ""
    for block in _dicts(cast("object", value)):
        if block.get("type") == "thinking":
            inner = block.get("thinking")
            reasoning += _content(cast("object", inner))[1]
        else:
            content += _str(block.get("text"))
    return reasoning, content


def _str(value: object) -> str:
    return value if isinstance(value, str) else ""


def _dict(value: object) -> Mapping[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _dicts(value: object) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        return []
    return [cast("dict[str, Any]", item) for item in cast("list[object]", value) if isinstance(item, dict)]
