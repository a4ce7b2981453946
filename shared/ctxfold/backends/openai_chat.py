"""Writes chat-completion requests by the rules of a profile, and parses replies, whole or streamed. Pure."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, assert_never, cast

from ctxfold.backends.errors import error_body
from ctxfold.backends.media import chat_form, media_block, unread
from ctxfold.backends.profile import (
    DETAILS,
    WIRES,
    Profile,
    RequestRules,
    arguments_text,
    check_extra,
    function_fields,
    json_lines,
    kept_reasoning,
    sampling,
    settings,
    tool_choice,
    without_refused,
)
from ctxfold.backends.response_parser import AnswerParser, first_choice
from ctxfold.history.cuts import alternating
from ctxfold.messages import MediaPart, Message, Part, ReasoningPart, TextPart, ToolCallPart, ToolSpec, joined_texts
from ctxfold.protocols import Chunk, Request, ToolCallDelta, Wire
from ctxfold.validation import as_dict, as_dicts, as_text, strict_json, strict_text

_RESERVED = frozenset({"messages", "model", "stream", "tools"})


def request_body(profile: Profile, request: Request, *, model: str, stream: bool) -> dict[str, Any]:
    """Returns the JSON body of a request; raises ConfigError when the profile does not support it."""
    check_extra(request, _RESERVED)
    rules = profile.request
    messages = project(profile, request.messages, model=model, unbound_before=request.unbound_before)
    body: dict[str, Any] = {"model": model, "messages": messages}
    if request.tools:
        body["tools"] = [tool_body(tool) for tool in request.tools]
    choice = tool_choice(profile, request)
    if choice is not None:
        plain = choice in ("auto", "none", "required")
        body["tool_choice"] = choice if plain else {"type": "function", "function": {"name": choice}}
    body["stream"] = stream
    if stream and rules.include_usage:
        body["stream_options"] = {"include_usage": True}
    body |= sampling(request, rules.max_tokens_field, "stop")
    body |= settings(profile, request, with_tools=bool(request.tools))
    body |= request.extra
    return without_refused(profile, body, request.thinking)


def tool_body(tool: ToolSpec) -> dict[str, Any]:
    return {"type": "function", "function": function_fields(tool, "parameters")}


def canonical_bytes(profile: Profile, request: Request, *, model: str) -> bytes:
    """Returns tools and messages as lines, to compare requests."""
    # not joined: a message that joins the one before it would seem to change it
    return canonical_lines(request.tools, project(profile, request.messages, model=model, joined=False))


def canonical_lines(tools: Iterable[ToolSpec], messages: Iterable[Mapping[str, Any]]) -> bytes:
    """Returns tools, then projected messages, one JSON object a line, keys sorted and tool arguments parsed."""
    rows: list[Any] = [tool_body(tool) for tool in tools]
    rows += [_parsed(message) for message in messages]
    return json_lines(rows)


def _parsed(message: Mapping[str, Any]) -> Mapping[str, Any]:
    if "tool_calls" not in message:
        return message
    calls: list[dict[str, Any]] = []
    for call in message["tool_calls"]:
        function = dict(call["function"])
        with contextlib.suppress(ValueError, RecursionError):  # else compared as the text that is sent
            function["arguments"] = strict_json(function["arguments"])
        calls.append({**call, "function": function})
    return {**message, "tool_calls": calls}


def project(
    profile: Profile, messages: Sequence[Message], *, model: str, unbound_before: int = 0, joined: bool = True
) -> list[dict[str, Any]]:
    """Returns the messages in the form of requests; the messages themselves are unchanged.

    With `joined` false, adjacent messages of one role stay separate even when the profile joins them, to compare requests.
    """
    rules = profile.request
    kept = kept_reasoning(profile.reasoning_out, messages, model=model, unbound_before=unbound_before)
    sent = [
        message if keeps or message.role != "assistant" else message.without_reasoning()
        for message, keeps in zip(messages, kept, strict=True)
    ]
    rows: list[dict[str, Any]] = []
    leading = True
    sent = _with_media_behind(sent)
    for message in alternating(sent) if rules.alternating_roles and joined else sent:
        match message.role:
            case "system":
                if rules.system_leads and leading and rows:
                    rows[0]["content"] += "\n\n" + message.text
                elif rules.system_leads and not leading:
                    # a template with one leading system message refuses later ones
                    rows.append(_row("user", message))
                else:
                    rows.append(_row(rules.system_role, message))
                continue
            case "user":
                rows.append(_row("user", message))
            case "assistant":
                rows.append(_assistant(profile, message, model=model))
            case "tool":
                rows += [
                    {"role": "tool", "tool_call_id": _call_id(result.call_id, rules), "content": result.content}
                    for result in message.tool_results
                ]
            case _:
                assert_never(message.role)
        leading = False
    return rows


def _with_media_behind(messages: Sequence[Message]) -> list[Message]:
    """Returns the messages with the media of tool results in a user message behind their round: a tool message has text alone."""
    moved: list[Message] = []
    media: list[Part] = []
    for index, message in enumerate(messages):
        if message.role == "tool":
            own = [part for part in message.parts if isinstance(part, MediaPart)]
            result = message.tool_results[-1]
            about = TextPart(f"(Attached to the result of {result.name or result.call_id}:)")
            media += [about, *own] if own else []
            moved.append(replace(message, parts=message.tool_results) if own else message)
        else:
            moved.append(message)
        if media and (index + 1 == len(messages) or messages[index + 1].role != "tool"):
            moved.append(Message(f"{message.id}:media", "user", tuple(media)))
            media = []
    return moved


def _row(role: str, message: Message) -> dict[str, Any]:
    row: dict[str, Any] = {"role": role, "content": _content(message)}
    if message.name:
        row["name"] = message.name
    return row


def _content(message: Message) -> str | list[Any]:
    """Returns a string when there is only text, else a list of typed blocks. The texts of a reply are one, of a user several."""
    if not any(isinstance(part, MediaPart) for part in message.parts):
        texts = [part.text for part in message.parts if isinstance(part, TextPart)]
        return joined_texts(texts) if message.role == "user" else "".join(texts)
    blocks: list[Any] = []
    for part in message.parts:
        if isinstance(part, TextPart):
            blocks.append({"type": "text", "text": part.text})
        elif isinstance(part, MediaPart):
            blocks.append(_media(part))
    return blocks


def _media(part: MediaPart) -> dict[str, Any]:
    """Returns a block of another wire in the form of this one, and any other with a type as it came."""
    block = chat_form(media_block(part))
    return block if "type" in block else {"type": "text", "text": unread(part)}


def _assistant(profile: Profile, message: Message, *, model: str) -> dict[str, Any]:
    row = _row("assistant", message)
    calls = message.tool_calls
    if not row["content"] and calls and profile.request.empty_content == "null":
        row["content"] = None
    if profile.reasoning_out.field == "content":
        row["content"] = _with_thinking(message, row["content"])
    else:
        row |= _reasoning(profile, message)
    if profile.request.message_extra and message.model in (None, model):
        row |= _extra_fields(profile.request.message_extra, message)
    if calls:
        row["tool_calls"] = _calls(profile, message, model=model)
    return row


def _with_thinking(message: Message, content: object) -> object:
    """Returns the content with the reasoning as closed thinking chunks, and with the service's own blocks, in their places."""
    blocks: list[Any] = []
    for part in message.parts:
        match part:
            case ReasoningPart():
                sealed: list[dict[str, Any]] = [] if part.details is None else json.loads(part.details)
                own = [
                    block for block in sealed if not _is_foreign(block) and not isinstance(block.get("thinking"), str)
                ]
                signed = {} if part.signature is None else {"signature": part.signature}
                inner = [{"type": "text", "text": part.text}]
                thought = [{"type": "thinking", "thinking": inner, "closed": True, **signed}] if part.text else []
                blocks += own or thought
            case TextPart(text=text):
                blocks += [{"type": "text", "text": text}] if text else []
            case MediaPart():
                blocks.append(_media(part))
            case _:
                continue
    return content if all(block["type"] == "text" for block in blocks) else blocks


def _extra_fields(names: Sequence[str], message: Message) -> dict[str, Any]:
    """Returns the fields that the provider sent with the content of this message."""
    extra: dict[str, Any] = {}
    for part in message.parts:
        if isinstance(part, TextPart) and part.extra is not None:
            extra |= as_dict(as_dict(json.loads(part.extra)).get(WIRE))
    return {name: value for name, value in extra.items() if name in names}


def _reasoning(profile: Profile, message: Message) -> dict[str, Any]:
    """Returns the reasoning of this turn in the fields that the profile has for it."""
    rules = profile.reasoning_out
    field = rules.field
    if field is None:
        return {}
    parts = [part for part in message.parts if isinstance(part, ReasoningPart)]
    if field in DETAILS:
        fields: dict[str, list[Any]] = {}
        for part in parts:
            for block in json.loads(part.details) if part.details is not None else ():
                if not _is_foreign(block):
                    fields.setdefault(DETAILS["thinking" in as_text(block["type"])], []).append(block)
        if fields:
            return fields
        field = rules.text_field
    if field is not None and any(part.text for part in parts):
        return {field: "".join(part.text for part in parts)}
    wants = rules.placeholder_on == "all" or (rules.placeholder_on == "tool_calls" and bool(message.tool_calls))
    return {rules.field: rules.placeholder} if wants and rules.field is not None else {}


def _is_foreign(block: object) -> bool:
    """Returns True for an item of the Responses API or a part of Gemini, which the same model may have sent on that wire."""
    kind = as_text(as_dict(block).get("type"))
    return kind in ("", "compaction", "reasoning") or (kind.endswith("_call") and not kind.startswith("reasoning."))


def _calls(profile: Profile, message: Message, *, model: str) -> list[dict[str, Any]]:
    """Returns the calls with the fields that their provider added; they are sent to that provider only."""
    rules = profile.request
    own = message.model in (None, model)
    # what another wire keeps beside a call stands under its name
    kept: list[dict[str, Any]] = [json.loads(call.extra or "{}") for call in message.tool_calls]
    extras = [{name: value for name, value in fields.items() if name not in WIRES} for fields in kept]
    if not own:
        extras = [{name: value for name, value in e.items() if name in rules.call_extra} for e in extras]
    if rules.call_placeholder is not None and not any(extras):
        extras[0] = rules.call_placeholder
    return [_call(call, extra, rules) for call, extra in zip(message.tool_calls, extras, strict=True)]


def _call(call: ToolCallPart, extra: Mapping[str, Any], rules: RequestRules) -> dict[str, Any]:
    function = {"name": call.name, "arguments": arguments_text(call, rules.malformed_arguments)}
    return {**extra, "id": _call_id(call.id, rules), "type": "function", "function": function}


def _call_id(original: str, rules: RequestRules) -> str:
    if not rules.short_call_ids or re.fullmatch("[a-zA-Z0-9]{9}", original):
        return original
    return hashlib.sha256(original.encode("utf-8", "surrogatepass")).hexdigest()[:9]


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
        if self._may_repeat and text.lstrip().startswith(self._opening):
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
            chunks = [
                Chunk(reasoning=part["text"], raw=body)
                if isinstance(part.get("text"), str)
                else Chunk(sealed={"type": "thinking", "thinking": [part]}, raw=body)
                for part in as_dicts(cast("object", inner))
            ]
            signature = as_text(block.get("signature"))
            return [*chunks, Chunk(signature=signature, raw=body)] if signature else chunks
        if not isinstance(block.get("text"), str):
            return [Chunk(sealed=block, raw=body)]
        reasoning, content = self._tags.feed(block["text"]) if self._tags is not None else ("", block["text"])
        return [Chunk(reasoning=reasoning, content=content, raw=body)]

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
        calls = [_call_delta(call) for call in as_dicts(delta.get("tool_calls"))]
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


def _call_delta(call: Mapping[str, Any]) -> ToolCallDelta:
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
