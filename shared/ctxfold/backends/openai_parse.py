"""Chat-completion replies, whole or streamed, translated into chunks; pure: bytes in, chunks out."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from ctxfold.backends.answer import AnswerParser, as_dict, as_dicts, as_text
from ctxfold.backends.failures import error_body
from ctxfold.backends.profile import Profile, UsagePaths
from ctxfold.backends.think_tags import TagSplitter
from ctxfold.messages import Usage
from ctxfold.ports import Chunk, ToolCallDelta

__all__ = ["ChatParser", "usage_from"]

_NONE: dict[str, Any] = {}
_CALL_KEYS = frozenset({"index", "id", "type", "function"})


class ChatParser(AnswerParser):
    """Decodes one chat-completions answer; reasoning also from tags inside the text, where the row names them."""

    def __init__(self, profile: Profile, *, thinking: bool = True, hide: Callable[[str], str] = str) -> None:
        super().__init__(profile, hide=hide)
        tags = profile.reasoning_in.tags
        starts_open = profile.reasoning_in.starts_open and thinking
        self._tags = TagSplitter(*tags, starts_open=starts_open) if tags is not None else None
        self._calls = False
        self._tool_calls_used = False
        self._empty_content = False
        self._fields_used = False

    def _reply(self, payload: object) -> list[Chunk]:
        chunks = self._payload(payload, "", "message")
        if self.error is None and not as_dict(payload).get("choices"):
            self._fail("protocol", "a reply without choices")
        return chunks

    def _payload(self, payload: object, event_name: str, key: str = "delta") -> list[Chunk]:
        body = as_dict(payload)
        error = None if "choices" in body and "error" not in body else error_body(payload)
        if error is None and event_name == "error":
            error = body or {"message": str(payload)}
        chunk = self._chunk(body, key)
        if error is not None:
            self._failed(error)
        return [] if chunk is None else [chunk]

    def _chunk(self, body: Mapping[str, Any], key: str) -> Chunk | None:
        """One payload translated; None when it carries nothing at all."""
        choice = _first(body.get("choices"))
        delta = as_dict(choice.get(key) or choice.get("message") or choice.get("delta"))
        reasoning, content = self._texts(delta)
        refusal = as_text(delta.get("refusal"))
        reason = choice.get("finish_reason")
        finish = self._finished(reason, refused=bool(refusal)) if reason or refusal else None
        if finish is not None and self._tags is not None:
            late = self._tags.close()
            reasoning, content = reasoning + late[0], content + late[1]
        calls = self._tool_calls(delta) if "tool_calls" in delta or "function_call" in delta else ()
        details = self._details(delta)
        self._empty_content = self._empty_content or delta.get("content") == ""
        usage = self._usage(body.get("usage") or choice.get("usage") or delta.get("usage"))
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
            model=as_text(body.get("model")) or None,
            raw=body,
            empty_content=self._empty_content,
        )

    def _texts(self, delta: Mapping[str, Any]) -> tuple[str, str]:
        said = delta.get("content")
        thought, content = ("", said) if isinstance(said, str) else _content(said)
        rules = self._profile.reasoning_in
        # two fields may repeat one text: the first that has any counts
        field = ""
        for name in rules.fields:
            if name in delta and (field := as_text(delta[name])):
                break
        if field:
            self._fields_used = True
        elif not self._fields_used and rules.details_field is not None:
            field = "".join(
                as_text(d.get("text") or d.get("summary") or d.get("thinking"))
                for d in as_dicts(delta.get(rules.details_field))
            )
        if self._tags is not None and content:
            tagged, content = self._tags.feed(content)
            thought += tagged
        return field + thought, content

    def _tool_calls(self, delta: Mapping[str, Any]) -> tuple[ToolCallDelta, ...]:
        """The call deltas that say anything; the legacy field counts only where no `tool_calls` came, as some servers send both."""
        calls = [_call(call) for call in as_dicts(delta.get("tool_calls"))]
        found = tuple(call for call in calls if call.id or call.name or call.arguments or call.extra)
        if found:
            self._tool_calls_used = True
            return found
        legacy = as_dict(delta.get("function_call"))
        name, arguments = as_text(legacy.get("name")).strip(), _arguments(legacy.get("arguments"))
        if self._tool_calls_used or not (name or (arguments and self._calls)):
            return ()  # a server that fills the legacy field with nothing does not call
        return (ToolCallDelta(0, None, name or None, arguments),)

    def _details(self, delta: Mapping[str, Any]) -> tuple[Any, ...]:
        name = self._profile.reasoning_in.details_field
        return tuple(as_dicts(delta.get(name))) if name is not None else ()

    def _usage(self, found: object) -> Usage | None:
        return (
            usage_from(cast("dict[str, Any]", found), self._profile.usage)
            if found and isinstance(found, dict)
            else None
        )

    def _end(self, *, said_done: bool = False, whole: bool = False) -> list[Chunk]:
        """The regular end: late text, an implied finish reason, and the check that there was an answer."""
        self.done = True
        reasoning, content = self._tags.close() if self._tags is not None else ("", "")
        self.answered = self.answered or bool(reasoning or content)
        implied: str | None = None
        if self._finish is None and said_done and (whole or self._profile.finish_reason_optional):
            implied = self._finish = "tool_calls" if self._calls else "stop"
        chunks = [Chunk(reasoning=reasoning, content=content, finish_reason=implied)]
        self._check_end()
        return chunks if reasoning or content or implied else []


def _first(choices: object) -> Mapping[str, Any]:
    """The choice with index 0; an empty object when there is none."""
    if isinstance(choices, list):
        for choice in cast("list[object]", choices):
            if isinstance(choice, dict) and not (found := cast("dict[str, Any]", choice)).get("index"):
                return found
    return _NONE


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
            value = as_dict(value).get(step)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf:
            return int(value)
    return 0


def _call(call: Mapping[str, Any]) -> ToolCallDelta:
    function = as_dict(call.get("function"))
    index = call.get("index")
    extra = {k: v for k, v in call.items() if k not in _CALL_KEYS and v is not None}
    return ToolCallDelta(
        index=index if isinstance(index, int) else None,
        id=as_text(call.get("id")) or None,
        name=as_text(function.get("name")).strip() or None,
        arguments=_arguments(function.get("arguments")),
        extra=json.dumps(extra, ensure_ascii=False) if extra else None,
    )


def _arguments(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _content(value: object) -> tuple[str, str]:
    """(reasoning, content) of a content field that is text or a list of typed blocks."""
    if not isinstance(value, list):
        return "", as_text(value)
    reasoning, content = "", ""
    for block in as_dicts(cast("object", value)):
        if block.get("type") == "thinking":
            inner = block.get("thinking")
            reasoning += _content(cast("object", inner))[1]
        else:
            content += as_text(block.get("text"))
    return reasoning, content
