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
        choice = as_mapping(config.get("toolChoice"))
        name = as_mapping(choice.get("tool")).get("name")
        form = as_mapping(as_mapping(api_request.body.get("outputConfig")).get("textFormat"))
        schema = as_mapping(as_mapping(form.get("structure")).get("jsonSchema")).get("schema")
        plain = ("required" if "any" in choice else "auto") if choice else None
        return present(
            model=unquote(match["model"]) if match else "",
            messages=messages,
            tools=[chat_tool(tool, as_mapping(tool.get("inputSchema")).get("json")) for tool in tools if tool],
            stream=match is not None and match["stream"] is not None,
            tool_choice=chat_choice(name) if name else plain,
            response_format=schema_format(json.loads(str(schema))) if form else None,
            max_tokens=as_mapping(api_request.body.get("inferenceConfig")).get("maxTokens"),
        )

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

    def problems(self, api_request: ApiRequest, strict: Strict | None, produced: LruCache[str, str]) -> Problems:
        if strict is not None:
            rows = _rows(api_request)
            yield from _turns(rows)
            yield from _blocks(rows)
            yield from _tools(as_mapping(api_request.body.get("toolConfig")), rows)
            yield from _pairs(rows)
            yield from _cache_points(api_request.body)
            thinking = as_mapping(as_mapping(api_request.body.get("additionalModelRequestFields")).get("thinking"))
            yield from _reasoning(rows, produced, str(thinking.get("type")))

    def whole(self, completion: Completion) -> bytes:
        content = [block for block, _, _ in _streamed(completion)] or [{"text": ""}]
        message = {"role": "assistant", "content": content}
        return encode({"output": {"message": message}, **_stopped(completion), **_metadata(completion)})

    def frames(self, completion: Completion, api_request: ApiRequest) -> Iterator[bytes]:
        yield _event("messageStart", {"role": "assistant"})
        for number, (_, start, deltas) in enumerate(_streamed(completion)):
            at = {"contentBlockIndex": number}
            if start is not None:
                yield _event("contentBlockStart", {**at, "start": start})
            yield from (_event("contentBlockDelta", {**at, "delta": delta}) for delta in deltas)
            yield _event("contentBlockStop", at)
        yield _event("messageStop", _stopped(completion))
        yield _event("metadata", _metadata(completion))

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


def _streamed(completion: Completion) -> Iterator[tuple[Block, Block | None, Sequence[Block]]]:
    """Yields each block whole, and its start, if it has one, and its deltas in a stream."""
    reply = completion.reply
    if reply.reasoning:
        signed = {"signature": signature("converse", reply.reasoning)}
        thoughts: list[Block] = [{"text": piece} for piece in pieces(reply.reasoning, None)]
        block = {"reasoningContent": {"reasoningText": {"text": reply.reasoning, **signed}}}
        yield block, None, [{"reasoningContent": delta} for delta in (*thoughts, signed)]
    if reply.content:
        yield {"text": reply.content}, None, [{"text": piece} for piece in pieces(reply.content, reply.chunks)]
    for call in completion.calls():
        use = {"toolUseId": call["id"], "name": call["function"]["name"]}
        deltas = [{"toolUse": {"input": piece}} for piece in pieces(call["function"]["arguments"], 2)]
        yield {"toolUse": {**use, "input": parsed_arguments(call)}}, {"toolUse": use}, deltas


def _stopped(completion: Completion) -> dict[str, Any]:
    return {"stopReason": _FINISH.get(completion.reply.finish, completion.reply.finish)}


def _metadata(completion: Completion) -> dict[str, Any]:
    """Returns the usage without cache hits in its input, as Bedrock counts."""
    tokens = completion.tokens()
    usage = {
        "inputTokens": tokens.fresh,
        "outputTokens": tokens.completion,
        "totalTokens": tokens.prompt + tokens.completion,
        "cacheReadInputTokens": tokens.cached,
        "cacheReadInputTokenCount": tokens.cached,
        "cacheWriteInputTokens": tokens.written,
    }
    return {"usage": usage, "metrics": {"latencyMs": 1}}


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


def _turns(rows: Rows) -> Problems:
    if not rows or rows[0].get("role") != "user":
        yield "A conversation must start with a user message. Try again with a conversation that starts with a user message."
    for row, following in pairwise(rows):
        if row.get("role") == following.get("role"):
            yield (
                "A conversation must alternate between user and assistant roles. Make sure the conversation alternates "
                "between user and assistant roles and try again."
            )


def _blocks(rows: Rows) -> Problems:
    for index, row in enumerate(rows):
        if not _content(row):
            yield f"The content field in the Message object at messages.{index} is empty. Add a ContentBlock object to it."
        for place, block in enumerate(_content(row)):
            where = f"messages.{index}.content.{place}"
            if "text" in block and not str(block["text"]).strip():
                yield f"The text field in the ContentBlock object at {where} is blank. Add text to the text field, and try again."
            if "toolUse" in block and not isinstance(as_mapping(block["toolUse"]).get("input"), dict):
                yield (
                    f"The format of the value at {where}.toolUse.input is invalid. Provide a json object for the field."
                )
            if len(block) != 1:
                yield f"Invalid ContentBlock at {where}: exactly one member of the union must be set."
            if "reasoningContent" in block and row.get("role") == "user":
                yield (
                    "User messages cannot contain reasoning content. Please remove the reasoning content and try again."
                )


def _tools(config: Mapping[str, Any], rows: Rows) -> Problems:
    tools = as_list(config.get("tools"))
    uses = [block for row in rows for kind in ("toolUse", "toolResult") for block in _of(row, kind)]
    if uses and not tools:
        yield "The toolConfig field must be defined when using toolUse and toolResult content blocks."
    choice = as_mapping(config.get("toolChoice"))
    if choice and choice.keys() - {"auto", "any", "tool"}:
        yield f"1 validation error detected: unknown toolChoice {', '.join(choice)}."
    for tool in tools:
        if as_mapping(as_mapping(tool).get("toolSpec")).get("description") == "":
            yield "Value at 'toolConfig.tools' failed to satisfy constraint: description must have length at least 1."
    for use in uses:
        if not _CALL_ID.fullmatch(str(use.get("toolUseId"))):
            yield f"Value {str(use.get('toolUseId'))!r} at toolUseId failed to satisfy constraint: [a-zA-Z0-9_.:-]+, 64 at most."


def _pairs(rows: Rows) -> Problems:
    """Checks that each call of a turn is answered in the next message, and each answer has its call in the message before."""
    for index, row in enumerate(rows):
        results = [result.get("toolUseId") for result in _of(row, "toolResult")] if row.get("role") == "user" else []
        calls = [use.get("toolUseId") for use in _of(rows[index - 1], "toolUse")] if index else []
        missing = [str(call) for call in calls if call not in results]
        if missing:
            yield f"Expected toolResult blocks at messages.{index}.content for the following Ids: {', '.join(missing)}"
        if len(results) > len(calls):
            where = f"messages.{index}.content"
            yield f"The number of toolResult blocks at {where} exceeds the number of toolUse blocks of previous turn."
    if rows and _of(rows[-1], "toolUse"):
        yield f"Expected toolResult blocks at messages.{len(rows)}.content for the calls of messages.{len(rows) - 1}."


def _lists(body: Mapping[str, Any]) -> list[list[Block]]:
    """Returns the lists of blocks in the order of the prompt: tools, system prompt, messages."""
    first = as_mapping(body.get("toolConfig")).get("tools"), body.get("system")
    return [*map(as_mappings, first), *map(_content, as_mappings(body.get("messages")))]


def _cache_points(body: Mapping[str, Any]) -> Problems:
    points = 0
    for blocks in _lists(body):
        marks = ["cachePoint" in block for block in blocks]
        points += sum(marks)
        if marks and (marks[0] or any(one and two for one, two in pairwise(marks))):
            yield "A cachePoint block must follow a block that can be cached."
    if points > MAX_CACHE_POINTS:
        yield (
            f"{_MODEL_SAID}A maximum of {MAX_CACHE_POINTS} blocks with cache_control may be provided. Found {points}."
        )


def _reasoning(rows: Rows, produced: LruCache[str, str], mode: str) -> Problems:
    """Checks that signed reasoning comes back as it was and, where it is needed, with the calls of the open turn."""
    turns: list[Thoughts] = []
    for row in rows:
        sent = [
            as_mapping(b["reasoningContent"]).get("reasoningText") for b in _content(row) if "reasoningContent" in b
        ]
        texts = [as_mapping(one) for one in sent if one is not None]
        signed = [(place, str(text.get("text")), text.get("signature")) for place, text in enumerate(texts)]
        calls = [str(use.get("toolUseId")) for use in _of(row, "toolUse")]
        asks = row["role"] == "user" and not _of(row, "toolResult")
        turns.append(Thoughts(asks, signed, calls, "reasoningContent" in _content(row)[0]))
    for index, place in missing_thoughts(turns, mode, produced, "converse"):
        if place is not None:
            yield f"{_MODEL_SAID}messages.{index}.content.{place}: Invalid `signature` in `thinking` block"
        yield (
            f"{_MODEL_SAID}messages.{index}.content.0.type: Expected `thinking` or `redacted_thinking`, but found `tool_use`. "
            "When `thinking` is enabled, a final `assistant` message must start with a thinking block."
        )
