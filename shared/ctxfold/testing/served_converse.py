"""Serves Amazon Bedrock's Converse and ConverseStream, and refuses what Bedrock refuses, in its words."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any
from urllib.parse import unquote
from zlib import crc32

from ctxfold.lru import LruCache
from ctxfold.testing.script import ErrorReply, as_list, as_mapping, as_mappings, chat_call, chat_choice, chat_tool
from ctxfold.testing.served import (
    ApiRequest,
    Completion,
    ServedWire,
    Strict,
    encode,
    parsed_arguments,
    pieces,
    signature,
)
from ctxfold.testing.usage import MarkedBlock, MarkedBlocks

_PATH = re.compile(r"/model/(?P<model>[^/]+)/converse(?P<stream>-stream)?$")
_CALL_ID = re.compile(r"[a-zA-Z0-9_.:-]{1,64}")
_FINISH = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens", "content_filter": "content_filtered"}
_NAMES = {
    400: "ValidationException",
    403: "AccessDeniedException",
    404: "ResourceNotFoundException",
    429: "ThrottlingException",
    500: "InternalServerException",
    503: "ServiceUnavailableException",
}
_MODEL_SAID = "The model returned the following errors: "
MAX_CACHE_POINTS = 4
Rows = Sequence[Mapping[str, Any]]
Block = Mapping[str, Any]


def event_frame(headers: Mapping[str, str], payload: bytes) -> bytes:
    """Returns one frame of an AWS event stream, with text as the type of all headers."""
    block = b"".join(
        bytes([len(name)]) + name.encode() + b"\x07" + struct.pack(">H", len(value)) + value.encode()
        for name, value in headers.items()
    )
    lengths = struct.pack(">II", 16 + len(block) + len(payload), len(block))
    frame = lengths + struct.pack(">I", crc32(lengths)) + block + payload
    return frame + struct.pack(">I", crc32(frame))


class Converse(ServedWire):
    """The Converse API of Amazon Bedrock; any `strict` makes it check requests."""

    stream_type = "application/vnd.amazon.eventstream"

    def serves(self, path: str) -> bool:
        return _PATH.search(path) is not None

    def chat_body(self, api_request: ApiRequest) -> dict[str, Any]:
        match = _PATH.search(api_request.path)
        system = "\n\n".join(_text(as_list(api_request.body.get("system"))))
        messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
        for row in _rows(api_request):
            messages += _chat_messages(row)
        config = as_mapping(api_request.body.get("toolConfig"))
        tools = [as_mapping(as_mapping(tool).get("toolSpec")) for tool in as_list(config.get("tools"))]
        body: dict[str, Any] = {
            "model": unquote(match["model"]) if match else "",
            "messages": messages,
            "tools": [chat_tool(tool, as_mapping(tool.get("inputSchema")).get("json")) for tool in tools if tool],
            "stream": match is not None and match["stream"] is not None,
        }
        choice = as_mapping(config.get("toolChoice"))
        if choice:
            name = as_mapping(choice.get("tool")).get("name")
            body["tool_choice"] = chat_choice(name) if name else "required" if "any" in choice else "auto"
        form = as_mapping(as_mapping(api_request.body.get("outputConfig")).get("textFormat"))
        if form:
            schema = as_mapping(as_mapping(form.get("structure")).get("jsonSchema")).get("schema")
            body["response_format"] = {"type": "json_schema", "json_schema": {"schema": json.loads(str(schema))}}
        limit = as_mapping(api_request.body.get("inferenceConfig")).get("maxTokens")
        return body if limit is None else {**body, "max_tokens": limit}

    def cache_blocks(self, api_request: ApiRequest) -> Sequence[MarkedBlocks]:
        tools, system, *rows = _lists(api_request.body)
        counts = [1, int(bool(_text(system))), *(len(list(_chat_messages(row))) for row in _rows(api_request))]
        groups: list[MarkedBlocks] = []
        for count, blocks in zip(counts, (tools, system, *rows), strict=True):
            marked: list[MarkedBlock] = []
            for block in blocks:
                if "cachePoint" in block and marked:
                    marked[-1] = marked[-1][0], True
                else:
                    marked.append((block, False))
            groups.append((count, marked))
        return groups

    def refusal(
        self, api_request: ApiRequest, strict: Strict | None, produced: LruCache[str, str]
    ) -> ErrorReply | None:
        if strict is None:
            return None
        rows = _rows(api_request)
        config = as_mapping(api_request.body.get("toolConfig"))
        checks = (_turns(rows), _blocks(rows), _tools(config, rows), _pairs(rows))
        message = next((problem for problem in checks if problem), None)
        thinking = as_mapping(as_mapping(api_request.body.get("additionalModelRequestFields")).get("thinking"))
        message = message or _cache_points(api_request.body) or _reasoning(rows, produced, str(thinking.get("type")))
        return None if message is None else ErrorReply(400, {"message": message})

    def whole(self, completion: Completion) -> bytes:
        reply = completion.reply
        content: list[dict[str, Any]] = []
        if reply.reasoning:
            reasoning = {"text": reply.reasoning, "signature": signature("converse", reply.reasoning)}
            content.append({"reasoningContent": {"reasoningText": reasoning}})
        if reply.content or not (reply.tool_calls or reply.reasoning):
            content.append({"text": reply.content})
        for call in completion.calls():
            function = call["function"]
            use = {"toolUseId": call["id"], "name": function["name"], "input": parsed_arguments(call)}
            content.append({"toolUse": use})
        return encode(
            {
                "output": {"message": {"role": "assistant", "content": content}},
                "stopReason": _FINISH.get(reply.finish, reply.finish),
                "usage": _usage(completion.usage),
                "metrics": {"latencyMs": 1},
            }
        )

    def frames(self, completion: Completion, api_request: ApiRequest) -> Iterator[bytes]:
        reply, number = completion.reply, 0
        yield _event("messageStart", {"role": "assistant"})
        if reply.reasoning:
            for piece in pieces(reply.reasoning, None):
                yield _delta(number, {"reasoningContent": {"text": piece}})
            yield _delta(number, {"reasoningContent": {"signature": signature("converse", reply.reasoning)}})
            yield _event("contentBlockStop", {"contentBlockIndex": number})
            number += 1
        if reply.content:
            for piece in pieces(reply.content, reply.chunks):
                yield _delta(number, {"text": piece})
            yield _event("contentBlockStop", {"contentBlockIndex": number})
            number += 1
        for number, call in enumerate(completion.calls(), number):  # noqa: B020  # goes on from the blocks before
            start = {"toolUse": {"toolUseId": call["id"], "name": call["function"]["name"]}}
            yield _event("contentBlockStart", {"contentBlockIndex": number, "start": start})
            for piece in pieces(call["function"]["arguments"], 2):
                yield _delta(number, {"toolUse": {"input": piece}})
            yield _event("contentBlockStop", {"contentBlockIndex": number})
        yield _event("messageStop", {"stopReason": _FINISH.get(reply.finish, reply.finish)})
        yield _event("metadata", {"usage": _usage(completion.usage), "metrics": {"latencyMs": 1}})

    def error(self, error: ErrorReply) -> ErrorReply:
        body = as_mapping(error.body)
        inner = as_mapping(body.get("error")) or body
        message = inner.get("message", error.body if isinstance(error.body, str) else "")
        name = _NAMES.get(error.status, "InternalServerException")
        headers = {"x-amzn-ErrorType": f"{name}:http://internal.amazon.com/coral/com.amazon.bedrock/"}
        return ErrorReply(error.status, {"message": message}, {**headers, **error.headers})


def _event(kind: str, payload: dict[str, Any]) -> bytes:
    headers = {":event-type": kind, ":content-type": "application/json", ":message-type": "event"}
    return event_frame(headers, encode({**payload, "p": "abcdefgh"[: 1 + len(payload) % 8]}))


def _delta(number: int, delta: Mapping[str, Any]) -> bytes:
    return _event("contentBlockDelta", {"contentBlockIndex": number, "delta": delta})


def _usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the usage without cache hits in its input, as Bedrock counts."""
    details = as_mapping(usage.get("prompt_tokens_details"))
    cached, written = (int(details.get(name) or 0) for name in ("cached_tokens", "cache_write_tokens"))
    total, output = int(usage.get("prompt_tokens") or 0), int(usage.get("completion_tokens") or 0)
    return {
        "inputTokens": total - cached - written,
        "outputTokens": output,
        "totalTokens": total + output,
        "cacheReadInputTokens": cached,
        "cacheReadInputTokenCount": cached,
        "cacheWriteInputTokens": written,
    }


# a request as a chat completion


def _rows(api_request: ApiRequest) -> list[Mapping[str, Any]]:
    return as_mappings(api_request.body.get("messages"))


def _content(row: Mapping[str, Any]) -> list[Block]:
    return as_mappings(row.get("content"))


def _text(blocks: Sequence[Any]) -> list[str]:
    return [block["text"] for block in map(as_mapping, blocks) if isinstance(block.get("text"), str)]


def _of(row: Mapping[str, Any], kind: str) -> list[Block]:
    """Returns the blocks of a kind, without those of tools that the service runs itself."""
    blocks = [as_mapping(block[kind]) for block in _content(row) if kind in block]
    return [block for block in blocks if block.get("type") != "server_tool_use"]


def _chat_messages(row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    content = _content(row)
    text = "".join(_text(content))
    if row.get("role") == "assistant":
        message: dict[str, Any] = {"role": "assistant", "content": text}
        reasoning = [as_mapping(as_mapping(b.get("reasoningContent")).get("reasoningText")) for b in content]
        if any(reasoning):
            message["reasoning_content"] = "".join(str(one.get("text", "")) for one in reasoning)
        calls = [chat_call(use.get("toolUseId"), use.get("name"), use.get("input")) for use in _of(row, "toolUse")]
        yield {**message, "tool_calls": calls} if calls else message
        return
    for result in _of(row, "toolResult"):
        result_text = "".join(_text(as_list(result.get("content"))))
        yield {"role": "tool", "tool_call_id": result.get("toolUseId"), "content": result_text}
    if text or not _of(row, "toolResult"):
        yield {"role": "user", "content": text}


# what Bedrock refuses


def _turns(rows: Rows) -> str | None:
    if not rows or rows[0].get("role") != "user":
        return "A conversation must start with a user message. Try again with a conversation that starts with a user message."
    for row, following in pairwise(rows):
        if row.get("role") == following.get("role"):
            return (
                "A conversation must alternate between user and assistant roles. Make sure the conversation alternates "
                "between user and assistant roles and try again."
            )
    return None


def _blocks(rows: Rows) -> str | None:
    for index, row in enumerate(rows):
        if not _content(row):
            return f"The content field in the Message object at messages.{index} is empty. Add a ContentBlock object to it."
        for place, block in enumerate(_content(row)):
            where = f"messages.{index}.content.{place}"
            if "text" in block and not str(block["text"]).strip():
                return f"The text field in the ContentBlock object at {where} is blank. Add text to the text field, and try again."
            if "toolUse" in block and not isinstance(as_mapping(block["toolUse"]).get("input"), dict):
                return (
                    f"The format of the value at {where}.toolUse.input is invalid. Provide a json object for the field."
                )
            if len(block) != 1:
                return f"Invalid ContentBlock at {where}: exactly one member of the union must be set."
            if "reasoningContent" in block and row.get("role") == "user":
                return (
                    "User messages cannot contain reasoning content. Please remove the reasoning content and try again."
                )
    return None


def _tools(config: Mapping[str, Any], rows: Rows) -> str | None:
    tools = as_list(config.get("tools"))
    uses = [block for row in rows for kind in ("toolUse", "toolResult") for block in _of(row, kind)]
    if uses and not tools:
        return "The toolConfig field must be defined when using toolUse and toolResult content blocks."
    choice = as_mapping(config.get("toolChoice"))
    if choice and choice.keys() - {"auto", "any", "tool"}:
        return f"1 validation error detected: unknown toolChoice {', '.join(choice)}."
    for tool in tools:
        if as_mapping(as_mapping(tool).get("toolSpec")).get("description") == "":
            return "Value at 'toolConfig.tools' failed to satisfy constraint: description must have length at least 1."
    for use in uses:
        if not _CALL_ID.fullmatch(str(use.get("toolUseId"))):
            return f"Value {str(use.get('toolUseId'))!r} at toolUseId failed to satisfy constraint: [a-zA-Z0-9_.:-]+, 64 at most."
    return None


def _pairs(rows: Rows) -> str | None:
    """Checks that each call of a turn is answered in the next message, and each answer has its call in the message before."""
    for index, row in enumerate(rows):
        results = [result.get("toolUseId") for result in _of(row, "toolResult")] if row.get("role") == "user" else []
        calls = [use.get("toolUseId") for use in _of(rows[index - 1], "toolUse")] if index else []
        missing = [str(call) for call in calls if call not in results]
        if missing:
            return f"Expected toolResult blocks at messages.{index}.content for the following Ids: {', '.join(missing)}"
        if len(results) > len(calls):
            where = f"messages.{index}.content"
            return f"The number of toolResult blocks at {where} exceeds the number of toolUse blocks of previous turn."
    if rows and _of(rows[-1], "toolUse"):
        return f"Expected toolResult blocks at messages.{len(rows)}.content for the calls of messages.{len(rows) - 1}."
    return None


def _lists(body: Mapping[str, Any]) -> list[list[Block]]:
    """Returns the lists of blocks in the order of the prompt: tools, system prompt, messages."""
    first = as_mapping(body.get("toolConfig")).get("tools"), body.get("system")
    return [*map(as_mappings, first), *map(_content, as_mappings(body.get("messages")))]


def _cache_points(body: Mapping[str, Any]) -> str | None:
    points = 0
    for blocks in _lists(body):
        marks = ["cachePoint" in block for block in blocks]
        points += sum(marks)
        if marks and (marks[0] or any(one and two for one, two in pairwise(marks))):
            return "A cachePoint block must follow a block that can be cached."
    if points > MAX_CACHE_POINTS:
        return (
            f"{_MODEL_SAID}A maximum of {MAX_CACHE_POINTS} blocks with cache_control may be provided. Found {points}."
        )
    return None


def _reasoning(rows: Rows, produced: LruCache[str, str], mode: str) -> str | None:
    """Checks that signed reasoning comes back as it was and, where it is needed, with the calls of the open turn.

    Models that think as they see fit accept turns that begin without, those that always think none that this server has sent
    with it. One that thinks by a budget does not for the first turn after a question.
    """
    question_index = max(
        (i for i, row in enumerate(rows) if row["role"] == "user" and not _of(row, "toolResult")), default=0
    )
    for index, row in enumerate(rows):
        sent = [
            as_mapping(b["reasoningContent"]).get("reasoningText") for b in _content(row) if "reasoningContent" in b
        ]
        for place, text in enumerate(as_mapping(one) for one in sent if one is not None):
            if text.get("signature") != signature("converse", str(text.get("text"))):
                return f"{_MODEL_SAID}messages.{index}.content.{place}: Invalid `signature` in `thinking` block"
        calls = _of(row, "toolUse")
        is_required = mode == "enabled" and calls and index == question_index + 1
        is_required = is_required or any(produced.get(str(use.get("toolUseId"))) for use in calls)
        if (
            mode not in ("adaptive", "disabled")
            and index > question_index
            and is_required
            and "reasoningContent" not in _content(row)[0]
        ):
            return (
                f"{_MODEL_SAID}messages.{index}.content.0.type: Expected `thinking` or `redacted_thinking`, but found `tool_use`. "
                "When `thinking` is enabled, a final `assistant` message must start with a thinking block."
            )
    return None
