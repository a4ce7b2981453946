"""Serves Anthropic's Messages API, and refuses what Anthropic refuses, in its words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, takewhile
from typing import Any, Literal

from ctxfold.lru import LruCache
from ctxfold.testing.script import (
    Body,
    ErrorReply,
    api_error,
    as_list,
    as_mapping,
    as_mappings,
    chat_call,
    chat_choice,
    chat_tool,
)
from ctxfold.testing.served import (
    ApiRequest,
    Completion,
    Problems,
    ServedWire,
    Strict,
    Thoughts,
    encode,
    missing_thoughts,
    parsed_arguments,
    pieces,
    present,
    schema_format,
    signature,
)
from ctxfold.testing.usage import MarkedBlocks

Block = Mapping[str, Any]
Rows = Sequence[Mapping[str, Any]]
MAX_MARKS = 4
COUNT_PATH = "/messages/count_tokens"
_REJECTED = "invalid_request_error"
_TYPES = {
    400: _REJECTED,
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_FINISH = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens", "content_filter": "refusal"}
_CHOICES: Mapping[str, object] = {"auto": "auto", "none": "none", "any": "required"}
_CALL_ID = re.compile(r"[a-zA-Z0-9_-]+")
_COMPACT = "compact_20260112"
_COMPACT_BETA = "compact-2026-01-12"
_LEAST_TRIGGER = 50_000
_DEFAULT_TRIGGER = 150_000
_COMPACTION = frozenset({"type", "content", "encrypted_content", "signature", "tool_changes", "cache_control"})
_THINKING = frozenset({"thinking", "redacted_thinking"})
_KNOWN = {
    "user": frozenset({"document", "image", "search_result", "text", "tool_reference", "tool_result"}),
    # blocks of server tools go back too, and their names are many
    "assistant": frozenset({"compaction", "container_upload", "server_tool_use", "text", "tool_use"}) | _THINKING,
}


class Messages(ServedWire):
    """The Messages API; any `strict` makes it check requests."""

    def serves(self, path: str) -> bool:
        return path.endswith("/messages")

    def chat_body(self, api_request: ApiRequest) -> dict[str, Any]:
        body = api_request.body
        system = "\n\n".join(_texts(body.get("system")))
        messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
        for row in _since_compaction(_rows(body)):
            messages += _chat_messages(row)
        choice = as_mapping(body.get("tool_choice"))
        form = as_mapping(as_mapping(body.get("output_config")).get("format"))
        tools = as_mappings(body.get("tools"))
        return present(
            model=body.get("model"),
            messages=messages,
            tools=[chat_tool(tool, tool["input_schema"]) for tool in tools if "input_schema" in tool],
            stream=body.get("stream") is True,
            tool_choice=_CHOICES.get(str(choice.get("type")), chat_choice(choice.get("name"))) if choice else None,
            response_format=schema_format(form.get("schema")) if form else None,
            max_tokens=body.get("max_tokens"),
            thinking=body.get("thinking"),
        )

    def cache_blocks(self, api_request: ApiRequest) -> Sequence[MarkedBlocks]:
        body = api_request.body
        system, rows = _content(body.get("system")), _since_compaction(_rows(body))
        groups = [(1, as_mappings(body.get("tools"))), (int(bool(_texts(system))), system)]
        groups += ((len(list(_chat_messages(row))), _content(row.get("content"))) for row in rows)
        if _has_mark(body):
            groups[-1][1][-1:] = [{**block, "cache_control": {}} for block in groups[-1][1][-1:]]
        return [(count, [(_unmarked(block), _has_mark(block)) for block in blocks]) for count, blocks in groups]

    def problems(self, api_request: ApiRequest, strict: Strict | None, produced: LruCache[str, str]) -> Problems:
        if strict is not None:
            body, rows = api_request.body, _rows(api_request.body)
            yield from _parameters(body)
            yield from _compactions(api_request, rows)
            for check in (_turns, _blocks, _pairs):
                yield from check(rows)
            yield from _marks(body, rows)
            yield from _thinking(body, rows, produced)

    def compaction(self, api_request: ApiRequest, prompt_tokens: int) -> Literal["alone", "beside"] | None:
        edit = _edit(api_request.body)
        if edit is None or prompt_tokens < int(as_mapping(edit.get("trigger")).get("value") or _DEFAULT_TRIGGER):
            return None
        return "alone" if edit.get("pause_after_compaction") is True else "beside"

    def without_compaction(self, api_request: ApiRequest) -> ErrorReply | None:
        if _edit(api_request.body) is None:
            return None
        known = "'clear_thinking_20251015', 'clear_tool_uses_20250919'"
        return api_error(
            400,
            f"context_management.edits.0: Input tag '{_COMPACT}' found using 'type' does not match any of the expected tags: "
            f"{known}",
        )

    def whole(self, completion: Completion) -> bytes:
        message = _message(completion, _managed_usage(completion))
        content = [block for block, _, _ in _streamed(completion)]
        return encode({**message, "content": content, "stop_reason": _finish(completion)})

    def frames(self, completion: Completion, api_request: ApiRequest) -> Iterator[bytes]:
        usage = _managed_usage(completion)
        late = ("output_tokens", "output_tokens_details", "iterations")
        counted = {name: usage.pop(name) for name in late if name in usage}
        message = _message(completion, {**usage, "output_tokens": 1})
        yield _event("message_start", message=message)
        yield _event("ping")
        for number, (_, start, deltas) in enumerate(_streamed(completion)):
            yield _event("content_block_start", index=number, content_block=start)
            for delta in deltas:
                yield _event("content_block_delta", index=number, delta=delta)
            yield _event("content_block_stop", index=number)
        finish = {"stop_reason": _finish(completion), "stop_sequence": None}
        yield _event("message_delta", delta=finish, usage=counted)
        yield _event("message_stop")

    def overflow(self, window: int, prompt_tokens: int, reply_tokens: int) -> str:
        if prompt_tokens > window:
            return f"prompt is too long: {prompt_tokens} tokens > {window} maximum"
        return (
            f"input length and `max_tokens` exceed context limit: {prompt_tokens} + {reply_tokens} > {window}, "
            "decrease input length or `max_tokens` and try again"
        )

    def error(self, error: ErrorReply) -> ErrorReply:
        body = as_mapping(error.body)
        inner = as_mapping(body.get("error"))
        if not inner or body.get("type") == "error":
            return error
        message, kind = str(inner.get("message") or ""), inner.get("type")
        # a script's own type stays, except for the one that it has when it names none
        if kind not in _TYPES.values() or kind == _REJECTED:
            kind = _TYPES.get(error.status, "api_error" if error.status >= 500 else _REJECTED)
        return ErrorReply(error.status, {"type": "error", "error": {"type": kind, "message": message}}, error.headers)


# replies


def _message(completion: Completion, usage: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a message that has said nothing yet."""
    return {
        "id": f"msg_{completion.id[-24:]}",
        "type": "message",
        "role": "assistant",
        "model": completion.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }


def _streamed(completion: Completion) -> Iterator[tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]]]:
    """Yields each block whole, and its start and deltas in a stream."""
    reply, summary = completion.reply, completion.summary
    if summary:
        begun: dict[str, Any] = {"type": "compaction", "content": None}
        yield {**begun, "content": summary}, begun, [{"type": "compaction_delta", "content": summary}]
    if completion.alone:
        return
    if reply.reasoning:
        thoughts = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(reply.reasoning, None)]
        signed = {"signature": signature("messages", reply.reasoning)}
        begun = {"type": "thinking", "thinking": "", "signature": ""}
        yield (
            {**begun, "thinking": reply.reasoning, **signed},
            begun,
            [*thoughts, {"type": "signature_delta", **signed}],
        )
    if reply.content:
        texts = pieces(reply.content, reply.chunks)
        block = {"type": "text", "text": reply.content}
        yield block, {**block, "text": ""}, [{"type": "text_delta", "text": piece} for piece in texts]
    for call in completion.calls():
        texts = ["", *pieces(call["function"]["arguments"], 2)]
        begun = {"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": {}}
        deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in texts]
        yield {**begun, "input": parsed_arguments(call)}, begun, deltas


def _event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: ".encode() + encode({"type": kind, **fields}) + b"\n\n"


def _finish(completion: Completion) -> str:
    finish = "compaction" if completion.alone else completion.reply.finish
    return _FINISH.get(finish, finish)


def _managed_usage(completion: Completion) -> dict[str, Any]:
    """Returns the usage of a reply; with a summary, that of its last iteration, and all iterations beside it."""
    tokens = completion.tokens()
    usage: dict[str, Any] = {  # what was read from and written to the cache stands beside the input
        "input_tokens": tokens.fresh,
        "cache_creation_input_tokens": tokens.written,
        "cache_read_input_tokens": tokens.cached,
        "output_tokens": tokens.completion,
        "output_tokens_details": {"thinking_tokens": tokens.reasoning},
    }
    if not completion.summary:
        return usage
    read, written = completion.summary_tokens
    iterations = [{"type": "compaction", "input_tokens": read, "output_tokens": written}]
    if completion.alone:
        return {**dict.fromkeys(usage, 0), "output_tokens_details": {"thinking_tokens": 0}, "iterations": iterations}
    last = {name: value for name, value in usage.items() if name != "output_tokens_details"} | {"input_tokens": written}
    return {**usage, "input_tokens": written, "iterations": [*iterations, {"type": "message", **last}]}


# a request as a chat completion


def _rows(body: Body) -> list[Mapping[str, Any]]:
    return as_mappings(body.get("messages"))


def _content(content: Any) -> list[Block]:
    """Returns the blocks of a content, which may be one text."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return as_mappings(content)


def _of(row: Mapping[str, Any], kind: str) -> list[Block]:
    return [block for block in _content(row.get("content")) if block.get("type") == kind]


def _texts(content: Any) -> list[str]:
    return [str(block.get("text") or "") for block in _content(content) if block.get("type") == "text"]


def _chat_messages(row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if row.get("role") == "assistant":
        summary = "".join(str(block["content"]) for block in _of(row, "compaction") if block.get("content"))
        if summary:
            yield {"role": "assistant", "content": summary}
        message: dict[str, Any] = {"role": "assistant", "content": "".join(_texts(row.get("content")))}
        thoughts = "".join(str(block.get("thinking") or "") for block in _of(row, "thinking"))
        if thoughts:
            message["reasoning_content"] = thoughts
        calls = [chat_call(use.get("id"), use.get("name"), use.get("input")) for use in _of(row, "tool_use")]
        yield {**message, "tool_calls": calls} if calls else message
        return
    results = _of(row, "tool_result")
    for result in results:
        yield {"role": "tool", "tool_call_id": result.get("tool_use_id"), "content": _shown(result.get("content"))}
    text = _shown(row.get("content"))
    if text or not results:
        yield {"role": "user", "content": text}


def _shown(content: Any) -> str | list[dict[str, Any]]:
    """Returns texts as one, or as parts where images or documents are among them."""
    parts: list[dict[str, Any]] = []
    for block in _content(content):
        source = as_mapping(block.get("source"))
        url = source.get("url", f"data:{source.get('media_type')};base64,{source.get('data')}")
        match block.get("type"):
            case "text":
                parts.append({"type": "text", "text": str(block.get("text") or "")})
            case "image":
                parts.append({"type": "image_url", "image_url": {"url": url}})
            case "document":
                file = {"filename": str(block.get("title") or "document"), "file_data": url}
                parts.append({"type": "file", "file": file})
            case _:
                pass
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


# what Anthropic refuses


def _parameters(body: Body) -> Problems:
    limit, thinking = body.get("max_tokens"), as_mapping(body.get("thinking"))
    if limit is None:
        yield "max_tokens: Field required"
    if thinking.get("type") == "enabled" and int(thinking.get("budget_tokens") or 0) >= int(limit or 0):
        yield "`max_tokens` must be greater than `thinking.budget_tokens`."
    forced = as_mapping(body.get("tool_choice")).get("type") in ("any", "tool")
    if forced and thinking.get("type") in ("enabled", "adaptive"):
        yield "Thinking may not be enabled when tool_choice forces tool use."
    system = body.get("system")
    # a system prompt that is "" counts as none, an empty block of one does not
    if system != "" and any(not text.strip() for text in _texts(system)):
        yield "system: text content blocks must be non-empty"
    form = as_mapping(as_mapping(body.get("output_config")).get("format"))
    if form and _has_open_object(form.get("schema")):
        yield "output_config.format.schema: For 'object' type, 'additionalProperties' must be explicitly set to false"


def _has_open_object(schema: object) -> bool:
    own = as_mapping(schema)
    if own.get("type") == "object" and own.get("additionalProperties") is not False:
        return True
    return any(map(_has_open_object, [*own.values(), *as_list(schema)]))


def _edit(body: Body) -> Mapping[str, Any] | None:
    """Returns the compaction that a request asks for."""
    edits = as_mappings(as_mapping(body.get("context_management")).get("edits"))
    return next((edit for edit in edits if edit.get("type") == _COMPACT), None)


def _since_compaction(rows: Rows) -> Rows:
    """Returns the rows from the newest compaction on: what stands before it is not read any more."""
    compacted = (i for i, row in enumerate(rows) if any(block.get("content") for block in _of(row, "compaction")))
    return rows[max(compacted, default=0) :]


def _compactions(api_request: ApiRequest, rows: Rows) -> Problems:
    """Checks that the header of the compaction beta is there, and that compaction blocks go back as they came."""
    blocks = [(i, place, b) for i, row in enumerate(rows) for place, b in enumerate(_content(row.get("content")))]
    blocks = [(i, place, b) for i, place, b in blocks if b.get("type") == "compaction"]
    edit, named = _edit(api_request.body), api_request.headers.get("anthropic-beta", "").split(",")
    if (blocks or edit is not None) and _COMPACT_BETA not in named:
        where = "context_management" if edit is not None else f"messages.{blocks[0][0]}.content.{blocks[0][1]}"
        yield f"{where}: Extra inputs are not permitted"
    for index, place, block in blocks:
        where = f"messages.{index}.content.{place}.compaction"
        if block.get("content") is not None and not isinstance(block["content"], str):
            yield f"{where}.content: Input should be a valid string"
        if unknown := sorted(block.keys() - _COMPACTION):
            yield f"{where}.{unknown[0]}: Extra inputs are not permitted"
    trigger = as_mapping(None if edit is None else edit.get("trigger"))
    if trigger and (trigger.get("type") != "input_tokens" or int(trigger.get("value") or 0) < _LEAST_TRIGGER):
        yield f"context_management.edits.0.trigger.value: Input should be greater than or equal to {_LEAST_TRIGGER}"


def _turns(rows: Rows) -> Problems:
    if not rows:
        yield "messages: at least one message is required"
    for row in rows:
        if row.get("role") not in _KNOWN:
            yield (
                f'messages: Unexpected role "{row.get("role")}". The Messages API accepts a top-level `system` parameter, '
                'not "system" as an input message role.'
            )
    begins = _content(rows[0].get("content"))[:1]
    if rows[0].get("role") != "user" and not (begins and begins[0].get("type") == "compaction"):
        yield 'messages: first message must use the "user" role'
    for row, following in pairwise(rows):
        if row.get("role") == following.get("role"):
            role = row.get("role")
            yield (
                'messages: roles must alternate between "user" and "assistant", '
                f'but found multiple "{role}" roles in a row'
            )


def _blocks(rows: Rows) -> Problems:
    for index, row in enumerate(rows):
        blocks = _content(row.get("content"))
        if not blocks:
            yield f"messages.{index}: all messages must have non-empty content except for the optional final assistant message"
        for place, block in enumerate(blocks):
            where, kind = f"messages.{index}.content.{place}", str(block.get("type"))
            known = _KNOWN[row["role"]]
            if kind not in known and not (row["role"] == "assistant" and kind.endswith("_tool_result")):
                yield (
                    f"{where}: Input tag '{kind}' found using 'type' does not match any of the expected tags: "
                    f"{', '.join(repr(name) for name in sorted(known))}"
                )
            if kind == "text" and not str(block.get("text") or "").strip():
                yield "messages: text content blocks must contain non-whitespace text"
            if kind == "tool_use" and not isinstance(block.get("input"), Mapping):
                yield f"{where}.tool_use.input: Input should be a valid dictionary"
            if kind == "tool_use" and not _CALL_ID.fullmatch(str(block.get("id"))):
                yield f"{where}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'"


def _pairs(rows: Rows) -> Problems:
    """Checks that ids of calls are unique, that each is answered first in the next message, and each answer has its call before."""
    nothing: Mapping[str, Any] = {}
    before: set[str] = set()
    for index, row in enumerate(rows):
        calls = [str(use.get("id")) for use in _of(row, "tool_use")]
        if not before.isdisjoint(calls) or len(set(calls)) < len(calls):
            yield f"messages.{index}: `tool_use` ids must be unique"
        before.update(calls)
        following = rows[index + 1] if index + 1 < len(rows) else nothing
        first = takewhile(lambda block: block.get("type") == "tool_result", _content(following.get("content")))
        answered = [str(block.get("tool_use_id")) for block in first]
        missing = [call for call in calls if call not in answered]
        if missing:
            yield (
                f"messages.{index}: `tool_use` ids were found without `tool_result` blocks immediately after: "
                f"{', '.join(missing)}. Each `tool_use` block must have a corresponding `tool_result` block in the next message."
            )
        call_ids = [use.get("id") for use in _of(rows[index - 1], "tool_use")] if index else []
        for place, block in enumerate(_content(row.get("content"))):
            if block.get("type") == "tool_result" and block.get("tool_use_id") not in call_ids:
                yield (
                    f"messages.{index}.content.{place}: unexpected `tool_use_id` found in `tool_result` blocks: "
                    f"{block.get('tool_use_id')}. Each `tool_result` block must have a corresponding `tool_use` block in the "
                    "previous message."
                )


def _has_mark(block: Block) -> bool:
    return block.get("cache_control") is not None or any(map(_has_mark, as_mappings(block.get("content"))))


def _unmarked(block: Block) -> dict[str, Any]:
    content = block.get("content")
    inner = {"content": [_unmarked(one) for one in as_mappings(content)]} if isinstance(content, list) else {}
    return {name: value for name, value in block.items() if name != "cache_control"} | inner


def _marks(body: Body, rows: Rows) -> Problems:
    blocks = [*_content(body.get("system")), *as_mappings(body.get("tools"))]
    for row in rows:
        for block in _content(row.get("content")):
            blocks += [block, *_content(block.get("content"))]
    marks = [block.get("type") for block in (body, *blocks) if block.get("cache_control") is not None]
    if len(marks) > MAX_MARKS:
        yield f"A maximum of {MAX_MARKS} blocks with cache_control may be provided. Found {len(marks)}."
    if any(kind in _THINKING for kind in marks):
        yield "thinking blocks cannot have cache_control: Extra inputs are not permitted"


def _thinking(body: Body, rows: Rows, produced: LruCache[str, str]) -> Problems:
    """Checks that thinking comes back as it was signed, and before the calls of the open turn."""
    turns: list[Thoughts] = []
    for row in rows:
        blocks = _content(row.get("content"))
        signed = [
            (place, str(block.get("thinking")), block.get("signature"))
            for place, block in enumerate(blocks)
            if block.get("type") == "thinking"
        ]
        calls = [str(use.get("id")) for use in _of(row, "tool_use")]
        asks = row["role"] == "user" and not _of(row, "tool_result")
        turns.append(Thoughts(asks, signed, calls, blocks[0].get("type") in _THINKING))
    mode = as_mapping(body.get("thinking")).get("type")
    for index, place in missing_thoughts(turns, mode, produced, "messages"):
        if place is not None:
            yield f"messages.{index}.content.{place}: Invalid `signature` in `thinking` block"
        found = _content(rows[index].get("content"))[0].get("type")
        yield (
            f"messages.{index}.content.0.type: Expected `thinking` or `redacted_thinking`, but found `{found}`. When `thinking` is "
            "enabled, a final `assistant` message must start with a thinking block (preceding the lastmost set of `tool_use` and "
            "`tool_result` blocks)."
        )
