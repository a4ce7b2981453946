"""Writes requests for Bedrock's Converse: blocks, alternating roles, tool results, cache points. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, cast

from ctxfold.backends.anthropic import (
    Projected,
    call_id,
    fitting_thinking,
    mark_stable,
    may_not_think,
)
from ctxfold.backends.anthropic import project as project_rows
from ctxfold.backends.converse_parse import WIRE
from ctxfold.backends.media import DOCUMENT_FORMATS, Block, chat_form, data_url, media_block
from ctxfold.backends.profile import (
    Profile,
    arguments_object,
    block_lines,
    check_extra,
    sampling,
    thinking_fields,
    tool_choice,
    without_refused,
)
from ctxfold.history.cuts import NOBODY_ASKED, alternating
from ctxfold.lru import lazy_pattern
from ctxfold.messages import (
    MediaPart,
    Message,
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    ToolSpec,
    user,
)
from ctxfold.protocols import Request
from ctxfold.validation import as_dict, as_dicts, as_list

ADDITIONAL = "additionalModelRequestFields"
NO_CONTENT = "(no content)"  # the service refuses blank text, and results with nothing in them
BLOCKS = frozenset((
    "audio", "cachePoint", "citationsContent", "document", "guardContent", "image", "reasoningContent", "searchResult", "text",
    "toolAddition", "toolRemoval", "toolResult", "toolUse", "video",
))  # fmt: skip
_MERGED = (ADDITIONAL, "inferenceConfig")
_RESERVED = frozenset({"messages", "modelId", "system", "toolConfig"})
_IMAGES = frozenset({"gif", "jpeg", "png", "webp"})
_NOT_IN_NAMES = lazy_pattern(r"[^a-zA-Z0-9 \-()\[\]]+")


def project(
    profile: Profile, messages: Sequence[Message], *, model: str, unbound_before: int = 0, refused_before: int = 0
) -> Projected:
    """Projects messages into rows as Anthropic's, with the blocks of this wire, and names the documents."""
    result = project_rows(
        profile,
        messages,
        model=model,
        unbound_before=unbound_before,
        refused_before=refused_before,
        to_blocks=lambda message, reasoning, own: message_blocks(message, profile, reasoning=reasoning, own=own),
    )
    if result.rows and result.rows[0]["role"] == "assistant":
        result.rows.insert(0, {"role": "user", "content": [{"text": NOBODY_ASKED}]})
    for row in result.rows:
        _name_documents(row["content"])
    return result


def message_blocks(message: Message, profile: Profile, *, reasoning: bool = True, own: bool = True) -> list[Block]:
    """Returns the blocks of a message in order; blank text is left out, because the service refuses it.

    The citations of a text go back to the model that made them (`own`).
    """
    if message.role == "tool":
        return _results(message, profile)
    blocks: list[Block] = []
    for part in message.parts:
        match part:
            case TextPart(text=text):
                if text.strip():
                    extra = as_dict(json.loads(part.extra or "{}"))
                    cited = as_list(as_dict(extra.get(WIRE)).get("citations")) if own else []
                    content = {"citationsContent": {"content": [{"text": text}], "citations": cited}}
                    blocks.append(content if cited else {"text": text})
            case ReasoningPart():
                if reasoning:
                    blocks += _reasoning_blocks(part)
            case MediaPart():
                blocks.append(_media(part))
            case ToolCallPart():
                identity = call_id(part.id, profile.request.call_ids)
                blocks.append({"toolUse": {"toolUseId": identity, "name": part.name, "input": arguments_object(part)}})
            case _:  # results are in tool messages, opaque parts are never sent
                continue
    return blocks


def _reasoning_blocks(part: ReasoningPart) -> list[Block]:
    """Returns the service's own blocks as they came, or a reasoning block if it was signed.

    Unsigned reasoning is left out: the models that send it refuse to take it back.
    """
    if part.details is not None:
        own = [block for block in as_dicts(json.loads(part.details)) if block.keys() <= BLOCKS]
        if own:
            return own
    if part.signature is None:
        return []
    return [{"reasoningContent": {"reasoningText": {"text": part.text, "signature": part.signature}}}]


def _results(message: Message, profile: Profile) -> list[Block]:
    results = message.tool_results
    blocks = [_result(part, profile) for part in results]
    media = [_media(part) for part in message.parts if isinstance(part, MediaPart)]
    if media and blocks:
        text = [{"text": results[-1].content}] if results[-1].content.strip() else []
        blocks[-1]["toolResult"]["content"] = [*text, *media]
        _name_documents(blocks[-1]["toolResult"]["content"])
    return blocks


def _result(part: ToolResultPart, profile: Profile) -> Block:
    content = [{"text": part.content if part.content.strip() else NO_CONTENT}]
    result: Block = {"toolUseId": call_id(part.call_id, profile.request.call_ids), "content": content}
    if part.is_error and profile.request.result_status:
        result["status"] = "error"
    return {"toolResult": result}


def _media(part: MediaPart) -> Block:
    """Returns a block of the service unchanged, and an inline image or file of another wire as one; else text that names it."""
    block = media_block(part)
    if block.keys() <= BLOCKS:
        return block
    match chat_form(block):
        case {"type": "image_url", "image_url": {"url": str(url)} | str(url)}:
            data = data_url(url)
            if data is None:
                return _unseen(part, url)
            kind = data["mime"].removeprefix("image/").replace("jpg", "jpeg")
            image = {"image": {"format": kind, "source": {"bytes": data["data"]}}}
            return image if kind in _IMAGES else {"text": f"(image, {data['mime']})"}
        case {"type": "file", "file": {"file_data": str(url), **rest}}:
            data, name = data_url(url), rest.get("filename")
            if data is None:
                return _unseen(part, url)
            form, title = DOCUMENT_FORMATS.get(data["mime"], "txt"), name if isinstance(name, str) else "document"
            return {"document": {"format": form, "name": title, "source": {"bytes": data["data"]}}}
        case _:
            return _unseen(part, "")


def _unseen(part: MediaPart, address: str) -> Block:
    """Returns text in place of media that Bedrock cannot fetch or read, so that the model knows that it does not see them."""
    return {"text": f"({part.kind} that cannot be shown{': ' + address[:200] if address else ''})"}


def _name_documents(content: list[Block]) -> None:
    """Gives documents names in the characters that the service allows, each once, and a text beside them, which it demands."""
    used_names: set[str] = set()
    named = [block["document"] for block in content if "document" in block]
    for document in named:
        base = _NOT_IN_NAMES.sub(" ", str(document.get("name", ""))).strip()[:180] or "document"
        base = re.sub(r" {2,}", " ", base)
        names = (base if number == 1 else f"{base} ({number})" for number in count(1))
        document["name"] = next(name for name in names if name not in used_names)
        used_names.add(document["name"])
    if named and not any("text" in block for block in content):
        content.append({"text": ", ".join(document["name"] for document in named)})


def request_body(profile: Profile, request: Request, *, model: str, stream: bool = False) -> dict[str, Any]:
    """Returns the JSON body of a request; raises ConfigError when the profile does not support it.

    The model and whether to stream are in the address. Without tools, or when none may be called, earlier calls become text,
    because the service refuses calls in a request that has no tools.
    """
    check_extra(request, _RESERVED)
    choice = tool_choice(profile, request)
    tools: list[Block] = []
    if choice != "none":
        own = cast("Sequence[Block]", request.extra.get("tools") or ())
        tools = [*({"toolSpec": tool_body(tool)} for tool in request.tools), *own]
    messages = request.messages if tools else [_as_plain_text(message) for message in request.messages]
    messages = alternating(messages) if profile.request.alternating_roles else messages
    projected = project(
        profile, messages, model=model, unbound_before=request.unbound_before, refused_before=request.refused_before
    )
    additional = as_dict(thinking_fields(profile, request.thinking).get(ADDITIONAL))
    if may_not_think(projected.rows, additional.get("thinking")):
        request = replace(request, thinking=False)
    if request.stable_messages is not None or request.cache_key is not None:
        mark_stable(
            profile.cache,
            messages,
            projected.blocks,
            tools=tools if profile.cache.marks_tools else [],
            stable_messages=request.stable_messages,
        )
    body: dict[str, Any] = {}
    if projected.system:
        body["system"] = _with_cache_points(projected.system)
    body["messages"] = [{**row, "content": _with_cache_points(row["content"])} for row in projected.rows]
    if tools:
        config: Block = {"tools": _with_cache_points(tools)}
        if choice is not None:
            config["toolChoice"] = _choice(choice)
        body["toolConfig"] = config
    limited = replace(request, max_tokens=request.max_tokens or profile.max_output)
    body["inferenceConfig"] = without_refused(
        profile, sampling(limited, "maxTokens", "stopSequences"), request.thinking
    )
    for fields in (
        profile.request.extra_body,
        profile.request.extra_body_with_tools if tools else {},
        thinking_fields(profile, request.thinking),
        {name: value for name, value in request.extra.items() if name != "tools"},
    ):
        _merge(body, fields)
    return _within(body, model)


def _as_plain_text(message: Message) -> Message:
    """Returns the message with its calls or results as text, and without the reasoning that belongs to the calls.

    Calls of tools that the service ran itself are left out: the text beside them tells what came of them.
    """
    if message.role == "tool":
        text = "\n\n".join(f"[Result of {r.name or r.call_id}]\n{r.content}" for r in message.tool_results)
        media = tuple(part for part in message.parts if isinstance(part, MediaPart))
        as_text = user(text, id=message.id)
        return replace(as_text, parts=(*as_text.parts, *media))
    if not message.tool_calls:
        kept = tuple(part for part in message.parts if not _ran_tool(part))
        return message if kept == message.parts else replace(message, parts=kept)
    parts: list[Part] = []
    for part in message.parts:
        if isinstance(part, ToolCallPart):
            parts.append(TextPart(f"[Called {part.name} with {part.arguments}]"))
        elif not isinstance(part, ReasoningPart):
            parts.append(part)
    return replace(message, parts=tuple(parts))


def _ran_tool(part: Part) -> bool:
    """Returns True for a block of a tool that the service ran itself."""
    if not isinstance(part, ReasoningPart) or part.details is None:
        return False
    return any("toolUse" in block or "toolResult" in block for block in as_dicts(json.loads(part.details)))


def canonical_bytes(profile: Profile, request: Request, *, model: str) -> bytes:
    """Returns tools, system prompts and blocks as lines, to compare requests."""
    projected = project(profile, request.messages, model=model, unbound_before=request.unbound_before)
    rows = ((row["role"], row["content"]) for row in projected.rows)
    return block_lines(map(tool_body, request.tools), projected.system, rows)


def tool_body(tool: ToolSpec) -> Block:
    row: Block = {"name": tool.name}
    if tool.description.strip():
        row["description"] = tool.description
    row["inputSchema"] = {"json": dict(tool.parameters) or {"type": "object", "properties": {}}}
    return row


def _choice(choice: str) -> Block:
    match choice:
        case "auto":
            return {"auto": {}}
        case "required":
            return {"any": {}}
        case name:
            return {"tool": {"name": name}}


def _with_cache_points(blocks: Iterable[Block]) -> list[Block]:
    """Returns the blocks with the cache mark of each as a block of its own behind it, and never two in a row."""
    result: list[Block] = []
    for block in blocks:
        point = block.get("cachePoint")
        content = {name: value for name, value in block.items() if name != "cachePoint"}
        if content:
            result.append(content)
        if point is not None and result and "cachePoint" not in result[-1]:
            result.append({"cachePoint": point})
    return result


def _merge(body: dict[str, Any], fields: Mapping[str, Any]) -> None:
    """Adds the fields to the body; those of the model and of inference are added one by one."""
    for name, value in fields.items():
        known: object = body.get(name)
        if name in _MERGED and isinstance(known, dict) and isinstance(value, Mapping):
            body[name] = {**cast("dict[str, Any]", known), **cast("Mapping[str, Any]", value)}
        else:
            body[name] = value


def _within(body: dict[str, Any], model: str) -> dict[str, Any]:
    """Returns the body without empty settings and with its thinking budget, if any, below the tokens of the reply."""
    thinking: object = body.get(ADDITIONAL, {}).get("thinking")
    max_tokens: object = body["inferenceConfig"].get("maxTokens")
    if isinstance(thinking, dict) and isinstance(max_tokens, int):
        fitting = fitting_thinking(cast("dict[str, Any]", thinking), max_tokens, model)
        body[ADDITIONAL] = {**body[ADDITIONAL], "thinking": fitting}
    if not body["inferenceConfig"]:
        del body["inferenceConfig"]
    return body
