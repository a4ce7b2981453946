"""Writes requests of Anthropic's Messages API, with content blocks and prompt-cache marks, and parses its replies. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, cast

from ctxfold.backends.errors import error_body
from ctxfold.backends.media import chat_form, data_url, media_block, unread
from ctxfold.backends.profile import (
    CacheRules,
    Profile,
    arguments_object,
    block_lines,
    check_extra,
    function_fields,
    kept_reasoning,
    provider_summary,
    sampling,
    settings,
    thinking_fields,
    tool_choice,
    without_refused,
)
from ctxfold.backends.response_parser import AnswerParser, usage_from
from ctxfold.errors import ConfigError
from ctxfold.history.cuts import NOBODY_ASKED
from ctxfold.lru import lazy_pattern
from ctxfold.messages import (
    MediaPart,
    Message,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolSpec,
    Usage,
    user,
    with_unique_calls,
)
from ctxfold.protocols import Chunk, Request, ToolCallDelta
from ctxfold.validation import as_dict, as_dicts, as_list, as_text, strict_text

ContentBlock = dict[str, Any]
ToBlocks: TypeAlias = Callable[[Message, bool, bool], list[ContentBlock]]
EXTRAS = frozenset({"caller", "citations", "toolset_name"})
_UNMARKABLE = frozenset({"thinking", "redacted_thinking"})


def mark_stable(
    rules: CacheRules,
    messages: Sequence[Message],
    blocks: Sequence[list[ContentBlock]],
    *,
    tools: list[ContentBlock],
    stable_messages: int | None,
    used_marks: int = 0,
) -> None:
    """Marks the newest stable message, the end of the request before, the head (system prompts, or else tools), and the epoch's.

    A service looks for an earlier write a few blocks back from each mark, and a round of parallel calls has more than these: the
    request before ended in front of the newest reply. `blocks` holds the blocks of each message. Existing marks stay, and they
    and `used_marks` others count against the profile's maximum; when marks are short, the first of these have precedence.
    """
    name = rules.mark_field
    if name is None:
        return
    order = [*tools, *(block for of in blocks for block in of)]
    room = rules.max_marks - used_marks - sum(_marks(block, name) for block in order)
    count = len(messages) if stable_messages is None else stable_messages
    head = _leading(messages, lambda m: m.role == "system")
    epoch = _leading(messages, lambda m: m.role == "system" or m.kind != "message")
    before = next((i for i in reversed(range(epoch, count)) if messages[i].role == "assistant"), epoch)
    candidates = (
        _last(of for of in blocks[:count]),
        _last(blocks[epoch:before]),
        _last(blocks[:head]) or (tools[-1] if tools else None),
        _last(blocks[head:epoch]),
    )
    chosen: list[ContentBlock] = []
    for block in candidates:
        if block is not None and name not in block and all(block is not other for other in chosen):
            chosen.append(block)
    for block in chosen[: max(room, 0)]:
        block[name] = _mark(rules, order, block)


def _leading(messages: Sequence[Message], holds: Callable[[Message], bool]) -> int:
    return next((i for i, message in enumerate(messages) if not holds(message)), len(messages))


def _last(blocks: Iterable[list[ContentBlock]]) -> ContentBlock | None:
    """Returns the last block that may carry a mark."""
    for of in reversed(list(blocks)):
        for block in reversed(of):
            if not _thinks(block):
                return block
    return None


def _marks(block: Mapping[str, Any], name: str) -> int:
    return (name in block) + sum(_marks(inner, name) for inner in as_dicts(block.get("content")))


def _mark(rules: CacheRules, order: Sequence[ContentBlock], block: ContentBlock) -> dict[str, Any]:
    """Returns the mark with the lifetime of a longer-lived later one: the service demands longer lifetimes first."""
    after = next(i for i, other in enumerate(order) if other is block) + 1
    lives_longer = any(as_dict(other.get(rules.mark_field or "")).get("ttl") == "1h" for other in order[after:])
    return {**rules.mark, "ttl": "1h"} if lives_longer else dict(rules.mark)


_FOREIGN_CHARACTER = lazy_pattern(r"[^a-zA-Z0-9_-]")
CALL_ID = r"[a-zA-Z0-9_-]+"


@dataclass(frozen=True, slots=True)
class Projected:
    """A conversation in the form of requests: system blocks, rows of alternating roles, and the blocks of each message."""

    system: list[ContentBlock] = field(default_factory=list[ContentBlock])
    rows: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    blocks: list[list[ContentBlock]] = field(default_factory=list[list[ContentBlock]])


def project(
    profile: Profile,
    messages: Sequence[Message],
    *,
    model: str,
    unbound_before: int = 0,
    refused_before: int = 0,
    to_blocks: ToBlocks | None = None,
) -> Projected:
    """Projects messages: leading system messages separate, later ones as the user's, one row per run of a role.

    Where the service has compacted the conversation, what stands before its newest compaction block is left out. `to_blocks` writes
    the blocks of another wire with rows like these: of a message, with its reasoning or without, and whether the model made it.
    """
    to_blocks = to_blocks or (lambda m, reasoning, own: message_blocks(m, reasoning=reasoning, extras=own))
    messages = with_unique_calls(messages)
    kept = kept_reasoning(profile.reasoning_out, messages, model=model, unbound_before=unbound_before)
    result, toolsets = Projected(), dict[str, str]()
    leading = True
    place, provided = provider_summary(profile, messages, model=model, refused_before=refused_before)
    for index, message in enumerate(messages):
        leading = leading and message.role == "system"
        blocks = to_blocks(message, kept[index] and index >= refused_before, message.model in (None, model))
        if index == place:
            blocks = provided
        _name_toolsets(blocks, toolsets)
        if any(map(compacts, blocks)):
            result.rows.clear()
            result.blocks[:] = [
                kept if m.role == "system" else [] for m, kept in zip(messages, result.blocks, strict=False)
            ]
        result.blocks.append(blocks)
        if leading:
            result.system.extend(blocks)
        elif blocks:
            role = "assistant" if message.role == "assistant" or index == place else "user"
            if not result.rows or result.rows[-1]["role"] != role:
                result.rows.append({"role": role, "content": []})
            result.rows[-1]["content"].extend(blocks)
    return result


def _name_toolsets(blocks: Iterable[ContentBlock], toolsets: dict[str, str]) -> None:
    """Notes the toolset of each call that has one, and names it on the result too."""
    for block in blocks:
        if block.get("type") == "tool_use" and "toolset_name" in block:
            toolsets[block["id"]] = block["toolset_name"]
        elif block.get("type") == "tool_result" and block["tool_use_id"] in toolsets:
            block["toolset_name"] = toolsets[block["tool_use_id"]]


def compacts(block: Mapping[str, Any]) -> bool:
    """Returns True for a compaction block that stands for what was before it; one without a summary does not."""
    return block.get("type") == "compaction" and bool(block.get("content"))


def message_blocks(message: Message, *, reasoning: bool = True, extras: bool = True) -> list[ContentBlock]:
    """Returns the blocks of a message in order; blank text is left out, because the service refuses it.

    `extras` adds citations to texts and callers to calls, which go back only to the model that sent them.
    """
    if message.role == "tool":
        return _results(message)
    blocks: list[ContentBlock] = []
    for part in message.parts:
        match part:
            case TextPart(text=text):
                if text.strip():
                    blocks.append({"type": "text", "text": text, **_extra(part, extras)})
            case ReasoningPart():
                if reasoning:
                    blocks += reasoning_blocks(part)
            case MediaPart():
                blocks.append(_media(part))
            case ToolCallPart():
                call = {"type": "tool_use", "id": call_id(part.id), "name": part.name, "input": arguments_object(part)}
                blocks.append({**call, **_extra(part, extras)})
            case _:  # results are in tool messages, opaque parts are never sent
                continue
    return blocks


def _extra(part: TextPart | ToolCallPart, include: bool) -> ContentBlock:
    """Returns the fields beside a text or a call that the service knows; another wire's are left out."""
    if part.extra is None or not include:
        return {}
    fields = cast("ContentBlock", json.loads(part.extra))
    return {name: value for name, value in fields.items() if name in EXTRAS}


def reasoning_blocks(part: ReasoningPart) -> list[ContentBlock]:
    """Returns the service's own blocks as they came, or a thinking block if it was signed; it accepts nothing else."""
    if part.details is not None:
        blocks = as_dicts(json.loads(part.details))
        own = [block for block in blocks if "type" in block and not str(block["type"]).startswith("reasoning")]
        if own:
            return own
    if part.signature is None:
        return []
    return [{"type": "thinking", "thinking": part.text, "signature": part.signature}]


def call_id(original: str, allowed: str = CALL_ID) -> str:
    """Returns the id if it matches `allowed`; another provider's id is rewritten equally in call and result."""
    if re.fullmatch(allowed, original):
        return original
    digest = hashlib.sha256(original.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{_FOREIGN_CHARACTER.sub('_', original)[:40]}_{digest}"


def _results(message: Message) -> list[ContentBlock]:
    media = [_media(part) for part in message.parts if isinstance(part, MediaPart)]
    results = message.tool_results
    blocks: list[ContentBlock] = [
        {"type": "tool_result", "tool_use_id": call_id(part.call_id), "content": part.content}
        | ({"is_error": True} if part.is_error else {})
        for part in results
    ]
    if media and blocks:
        text = [{"type": "text", "text": results[-1].content}] if results[-1].content.strip() else []
        blocks[-1]["content"] = [*text, *media]
    return blocks


def _media(part: MediaPart) -> ContentBlock:
    """Returns the service's own block unchanged; an image or an inline file of another wire is converted."""
    block = media_block(part)
    match block if "source" in block else chat_form(block):
        case {"type": "image_url", "image_url": {"url": str(url)} | str(url)}:
            inline = data_url(url)
            return {"type": "image", "source": {"type": "url", "url": url} if inline is None else _source(inline)}
        case {"type": "file", "file": {"file_data": str(url)}}:
            inline = data_url(url)
            return block if inline is None else {"type": "document", "source": _source(inline)}
        case {"type": _}:
            return block
        case _:
            return {"type": "text", "text": unread(part)}


def _source(inline: re.Match[str]) -> ContentBlock:
    return {"type": "base64", "media_type": inline["mime"], "data": inline["data"]}


DEFAULT_MAX_TOKENS = 8192  # the field is required; used for models whose profile has no max_output
MIN_THINKING_TOKENS = 1024
_RESERVED = frozenset({"max_tokens", "messages", "model", "stream", "system", "tools"})
_CHOICES: Mapping[str, str] = {"auto": "auto", "none": "none", "required": "any"}


def request_body(profile: Profile, request: Request, *, model: str, stream: bool) -> dict[str, Any]:
    """Returns the JSON body of a request; raises ConfigError when the profile does not support it."""
    check_extra(request, _RESERVED)
    rules = profile.compaction if request.compact else None
    ask = [user(rules.ask, id="compact")] if rules is not None and rules.ask else []
    projected = project(
        profile,
        [*request.messages, *ask],
        model=model,
        unbound_before=request.unbound_before,
        refused_before=request.refused_before,
    )
    if may_not_think(projected.rows, thinking_fields(profile, request.thinking).get("thinking")):
        request = replace(request, thinking=False)
    tools = [tool_body(tool) for tool in request.tools]
    if request.stable_messages is not None or request.cache_key is not None:
        mark_stable(
            profile.cache,
            request.messages,
            projected.blocks,
            tools=tools,
            stable_messages=request.stable_messages,
            used_marks=int(profile.cache.mark_field in request.extra),
        )
    max_tokens = request.max_tokens or profile.max_output or DEFAULT_MAX_TOKENS
    body: dict[str, Any] = {"model": model, "max_tokens": max_tokens}
    if projected.system:
        body["system"] = projected.system
    rows = projected.rows
    body["messages"] = rows
    if rows and rows[0]["role"] == "assistant" and not compacts(rows[0]["content"][0]):
        body["messages"] = [{"role": "user", "content": [{"type": "text", "text": NOBODY_ASKED}]}, *rows]
    if tools:
        body["tools"] = tools
    choice = tool_choice(profile, request)
    if choice is not None:
        body["tool_choice"] = {"type": _CHOICES[choice]} if choice in _CHOICES else {"type": "tool", "name": choice}
    body["stream"] = stream
    body |= sampling(request, stop="stop_sequences") | settings(profile, request, with_tools=bool(tools))
    config = {**as_dict(body.get("output_config")), **as_dict(request.extra.get("output_config"))}  # effort and format
    body |= {**request.extra, **({"output_config": config} if config else {})}
    body |= rules.body if rules is not None else {}
    body = without_refused(profile, body, request.thinking)
    thinking: object = body.get("thinking")
    if isinstance(thinking, dict):
        body["thinking"] = fitting_thinking(cast("dict[str, Any]", thinking), body["max_tokens"], model)
    return body


def may_not_think(rows: Sequence[Mapping[str, Any]], thinking: object) -> bool:
    """Returns True in a tool round that began without thinking, as with the call of another model, if `thinking` has a budget.

    The service refuses a budget there. A model that thinks as it sees fit may begin to think within a round.
    """
    if "budget_tokens" not in as_dict(thinking):
        return False
    questions = (
        i for i, row in enumerate(rows) if row["role"] == "user" and not _holds(row, "tool_result", "toolResult")
    )
    began = next(iter(rows[max(questions, default=-1) + 1 :]), None)
    return began is not None and _holds(began, "tool_use", "toolUse") and not _thinks(began["content"][0])


def _holds(row: Mapping[str, Any], *kinds: str) -> bool:
    return any(block.get("type") in kinds or not block.keys().isdisjoint(kinds) for block in row["content"])


def _thinks(block: ContentBlock) -> bool:
    return block.get("type") in _UNMARKABLE or "reasoningContent" in block


def fitting_thinking(thinking: Mapping[str, Any], max_tokens: int, model: str) -> Mapping[str, Any]:
    """Returns the thinking settings with a budget below `max_tokens`; raises ConfigError when no budget fits."""
    budget = thinking.get("budget_tokens")
    if not isinstance(budget, int) or budget < max_tokens:
        return thinking
    if max_tokens <= MIN_THINKING_TOKENS:
        raise ConfigError(
            f"max_tokens is {max_tokens} and thinking alone takes {MIN_THINKING_TOKENS} or more with {model}: "
            "raise max_tokens or use thinking=False"
        )
    return {**thinking, "budget_tokens": max(MIN_THINKING_TOKENS, min(budget, max_tokens // 2))}


def canonical_bytes(profile: Profile, request: Request, *, model: str) -> bytes:
    """Returns tools, system prompts and blocks as lines, to compare requests."""
    projected = project(profile, request.messages, model=model, unbound_before=request.unbound_before)
    rows = ((row["role"], row["content"]) for row in projected.rows)
    return block_lines(map(tool_body, request.tools), projected.system, rows)


def tool_body(tool: ToolSpec) -> ContentBlock:
    return function_fields(tool, "input_schema")


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
