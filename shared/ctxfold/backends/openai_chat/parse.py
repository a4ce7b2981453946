"""Parses chat-completion replies, whole or streamed, into chunks. Pure: bytes in, chunks out.

Reasoning between tags in the text is separated from content wherever the stream is split."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, cast

from ctxfold.backends.errors import error_body
from ctxfold.backends.profile import DETAILS, Profile
from ctxfold.backends.response_parser import AnswerParser, first_choice
from ctxfold.protocols import Chunk, ToolCallDelta, Wire
from ctxfold.validation import as_dict, as_dicts, as_text, strict_text


class TagSplitter:
    """Splits text into (reasoning, content). A suffix that may begin a tag is held back until more text arrives."""

    def __init__(self, opening: str, closing: str, *, starts_open: bool = False) -> None:
        self._opening = opening
        self._closing = closing
        self._open = starts_open
        # a template that already opened the block may see the model repeat the tag
        self._may_repeat = starts_open
        self._pending = ""

    def feed(self, text: str) -> tuple[str, str]:
        """Returns what this text adds to reasoning and to content."""
        text = self._pending + text
        if self._may_repeat and self._repeated(text):
            text = text.lstrip().removeprefix(self._opening)
            self._may_repeat = False
        pieces: tuple[list[str], list[str]] = ([], [])
        at = 0
        while at < len(text):
            tag = self._closing if self._open else self._opening
            end = text.find(tag, at)
            before = text[at : end if end >= 0 else len(text)]
            if end < 0:
                keep = _overlap(before, self._opening if self._may_repeat else tag)
                keep = max(keep, _overlap(before, tag))
                pieces[not self._open].append(before[: len(before) - keep])
                self._pending = before[len(before) - keep :]
                self._may_repeat = self._may_repeat and not before[: len(before) - keep].strip()
                return "".join(pieces[0]), "".join(pieces[1])
            pieces[not self._open].append(before)
            at = end + len(tag)
            self._open = not self._open
            self._may_repeat = False
        self._pending = ""
        return "".join(pieces[0]), "".join(pieces[1])

    def close(self) -> tuple[str, str]:
        """Returns the suffix that was held back, which is not a tag after all."""
        pending, self._pending = self._pending, ""
        return (pending, "") if self._open else ("", pending)

    def _repeated(self, text: str) -> bool:
        return text.lstrip().startswith(self._opening)


def _overlap(text: str, tag: str) -> int:
    """Returns the number of characters at the end of the text that begin the tag without completing it."""
    for size in range(min(len(tag) - 1, len(text)), 0, -1):
        if tag.startswith(text[-size:]):
            return size
    return 0


WIRE: Wire = "openai_chat"  # the name under which a message keeps what stood beside its content
_CALL_KEYS = frozenset({"index", "id", "type", "function"})
_KEPT = ("annotations", "audio", "images")  # of a message: kept beside its content, whoever sent them


class ChatParser(AnswerParser):
    """Decodes one chat-completions reply; reasoning also from tags inside the text, when the profile names them."""

    def __init__(self, profile: Profile, *, thinking: bool = True, hide: Callable[[str], str] = str) -> None:
        super().__init__(profile, hide=hide)
        tags = profile.reasoning_in.tags
        starts_open = profile.reasoning_in.starts_open and thinking
        self._tags = TagSplitter(*tags, starts_open=starts_open) if tags is not None else None
        self._reasoning_fields = profile.reasoning_in.fields
        self._calls = False
        self._tool_calls_used = False
        self._empty_content = False
        self._fields_used = False
        self._extra_names = {*_KEPT, *profile.request.message_extra, *profile.request.message_kept}
        self._extra_fields: dict[str, Any] = {}

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
        choice = first_choice(body.get("choices"))
        delta = as_dict(choice.get(key) or choice.get("message") or choice.get("delta"))
        blocks = as_dicts(delta["content"]) if isinstance(delta.get("content"), list) else []
        chunks = [chunk for block in blocks for chunk in self._block_chunks(block, body)]
        chunk = self._chunk(body, choice, delta)
        if error is not None:
            self._failed(error)
        return chunks if chunk is None else [*chunks, chunk]

    def _block_chunks(self, block: Mapping[str, Any], body: Mapping[str, Any]) -> list[Chunk]:
        """Returns the chunks of a block of the content: text, thinking, or one of another kind as it came."""
        self.answered = True
        inner = block.get("thinking")
        if block.get("type") == "thinking" and isinstance(inner, list):
            chunks = [self._thought(part, body) for part in as_dicts(cast("object", inner))]
            signature = as_text(block.get("signature"))
            return [*chunks, Chunk(signature=signature, raw=body)] if signature else chunks
        if not isinstance(block.get("text"), str):
            return [Chunk(sealed=block, raw=body)]
        reasoning, content = self._tags.feed(block["text"]) if self._tags is not None else ("", block["text"])
        return [Chunk(reasoning=reasoning, content=content, raw=body)]

    def _thought(self, part: Mapping[str, Any], body: Mapping[str, Any]) -> Chunk:
        if isinstance(part.get("text"), str):
            return Chunk(reasoning=part["text"], raw=body)
        return Chunk(sealed={"type": "thinking", "thinking": [part]}, raw=body)

    def _chunk(self, body: Mapping[str, Any], choice: Mapping[str, Any], delta: Mapping[str, Any]) -> Chunk | None:
        """Translates one payload, without the blocks of its content; None when it carries nothing."""
        reasoning, content = self._texts(delta)
        refusal = as_text(delta["refusal"]) if "refusal" in delta else ""
        reason = choice.get("finish_reason")
        finish = self._finished(reason, refused=bool(refusal)) if reason or refusal else None
        if finish is not None and self._tags is not None:
            late = self._tags.close()
            reasoning, content = reasoning + late[0], content + late[1]
        calls = self._tool_calls(delta) if "tool_calls" in delta or "function_call" in delta else ()
        details = _details(delta)
        for name in self._extra_names & delta.keys():
            self._keep(name, delta[name])
        if delta.get("content") == "":
            self._empty_content = True
        raw_usage = body.get("usage") or choice.get("usage") or delta.get("usage")
        usage = self._usage_in(raw_usage) if raw_usage else None
        if not (reasoning or content or refusal or calls or details or usage or finish):
            return None
        if reasoning or content or refusal or calls:
            self.answered = True
        if calls:
            self._calls = True
        return Chunk(
            reasoning=reasoning,
            content=content,
            tool_calls=calls,
            reasoning_details=details,
            refusal=refusal,
            usage=usage,
            finish_reason=finish,
            text_extra={WIRE: self._extra_fields} if finish is not None and self._extra_fields else None,
            model=as_text(body.get("model")) or None,
            raw=body,
            empty_content=self._empty_content,
        )

    def _keep(self, name: str, value: object) -> None:
        """Keeps a field of the message beside its content; lists come in pieces."""
        present = self._extra_fields.get(name)
        if name in ("audio", "images") and value:
            self.answered = True
        if isinstance(present, list) and isinstance(value, list):
            self._extra_fields[name] = [*cast("list[object]", present), *cast("list[object]", value)]
        elif name == "audio" and isinstance(present, dict):
            pieces = {part: as_text(as_dict(value).get(part)) for part in ("data", "transcript")}
            joined = {
                part: as_text(as_dict(self._extra_fields[name]).get(part)) + text for part, text in pieces.items()
            }
            self._extra_fields[name] = {**as_dict(self._extra_fields[name]), **as_dict(value), **joined}
        elif value:
            self._extra_fields[name] = value

    def _texts(self, delta: Mapping[str, Any]) -> tuple[str, str]:
        reasoning, content = "", as_text(delta.get("content"))
        # two fields may repeat one text: the first that has any counts
        field = ""
        for name in self._reasoning_fields:
            if name in delta and (field := as_text(delta[name])):
                break
        if field:
            self._fields_used = True
        elif not self._fields_used:
            field = "".join(as_text(d.get("text") or d.get("summary") or d.get("thinking")) for d in _details(delta))
        if self._tags is not None and content:
            tagged, content = self._tags.feed(content)
            reasoning += tagged
        return field + reasoning, content

    def _tool_calls(self, delta: Mapping[str, Any]) -> tuple[ToolCallDelta, ...]:
        """Returns the call deltas with content; the legacy field counts only without `tool_calls`, as some servers send both."""
        calls = [_call(call) for call in as_dicts(delta.get("tool_calls"))]
        deltas = tuple(call for call in calls if call.id or call.name or call.arguments or call.extra)
        if deltas:
            self._tool_calls_used = True
            return deltas
        legacy = as_dict(delta.get("function_call"))
        name, arguments = as_text(legacy.get("name")).strip(), _arguments(legacy.get("arguments"))
        if self._tool_calls_used or not (name or (arguments and self._calls)):
            return ()  # a server that fills the legacy field with nothing does not call
        return (ToolCallDelta(0, None, name or None, arguments),)

    def _end(self, *, said_done: bool = False, whole: bool = False) -> list[Chunk]:
        """Ends a stream regularly: emits late text, sets an implied finish reason, and checks that there was an answer."""
        self.done = True
        reasoning, content = self._tags.close() if self._tags is not None else ("", "")
        self.answered = self.answered or bool(reasoning or content)
        implied: str | None = None
        if self._finish is None and said_done and (whole or self._profile.finish_reason_optional):
            implied = self._finish = "tool_calls" if self._calls else "stop"
        extra: dict[str, Any] | None = {WIRE: self._extra_fields} if implied and self._extra_fields else None
        chunks = [Chunk(reasoning=reasoning, content=content, finish_reason=implied, text_extra=extra)]
        self._check_end()
        return chunks if reasoning or content or implied else []


def _call(call: Mapping[str, Any]) -> ToolCallDelta:
    function = as_dict(call.get("function"))
    index = call.get("index")
    extra = {k: v for k, v in call.items() if k not in _CALL_KEYS and v is not None}
    return ToolCallDelta(
        index=index if isinstance(index, int) else None,
        id=as_text(call.get("id")) or None,
        name=as_text(function.get("name")).strip() or None,
        arguments=_arguments(function.get("arguments")),
        extra=strict_text(extra) if extra else None,
    )


def _arguments(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _details(delta: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """Returns the provider's own blocks of reasoning, from whichever field has them."""
    return tuple([block for name in DETAILS if name in delta for block in as_dicts(delta[name])])
