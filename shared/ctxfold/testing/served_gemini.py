"""Serves Google's generateContent, and refuses what Gemini 3 refuses in its words."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from ctxfold.lru import LruCache
from ctxfold.testing.script import (
    Body,
    ErrorReply,
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
    encode,
    pieces,
    present,
    schema_format,
    signature,
)
from ctxfold.validation import read_json

_PATH = re.compile(r"/models/([^/]+):(generateContent|streamGenerateContent)$")
_PLACEHOLDER = base64.b64encode(b"skip_thought_signature_validator").decode()
_STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_FINISH = {"stop": "STOP", "tool_calls": "STOP", "length": "MAX_TOKENS", "content_filter": "SAFETY"}
_AFTER_USER = (
    "Please ensure that function call turn comes immediately after a user turn or after a function response turn."
)
_AFTER_CALL = "Please ensure that function response turn comes immediately after a function call turn."
_AS_MANY = (
    "Please ensure that the number of function response parts is equal to the number of function call parts of the "
    "function call turn."
)
_CHOICES = {"AUTO": "auto", "NONE": "none", "ANY": "required"}


class GenerateContent(ServedWire):
    """generateContent and streamGenerateContent with server-sent events."""

    def serves(self, path: str) -> bool:
        return _PATH.search(path) is not None

    def chat_body(self, api_request: ApiRequest) -> dict[str, Any]:
        model, method = _named(api_request)
        generation = as_mapping(api_request.body.get("generationConfig"))
        tools = as_mappings(api_request.body.get("tools"))
        declared = [one for tool in tools for one in as_mappings(tool.get("functionDeclarations"))]
        calling = as_mapping(as_mapping(api_request.body.get("toolConfig")).get("functionCallingConfig"))
        named = as_list(calling.get("allowedFunctionNames")) if calling.get("mode") in _CHOICES else []
        schema = generation.get("responseJsonSchema")
        is_json = generation.get("responseMimeType") == "application/json"
        form = {"type": "json_object"} if schema is None else schema_format(schema)
        return present(
            model=model,
            messages=_messages(api_request.body),
            stream=method == "streamGenerateContent",
            tools=[chat_tool(one, one.get("parametersJsonSchema", one.get("parameters", {}))) for one in declared]
            or None,
            max_tokens=generation.get("maxOutputTokens"),
            tool_choice=chat_choice(named[0]) if named else _CHOICES.get(str(calling.get("mode"))),
            response_format=form if is_json else None,
        )

    def problems(self, api_request: ApiRequest, strict: Strict | None, produced: LruCache[str, str]) -> Problems:
        contents = as_list(api_request.body.get("contents"))
        if not contents or not all(isinstance(one, Mapping) for one in contents):
            yield "* GenerateContentRequest.contents: contents is not specified"
        if strict is not None:
            yield from _empty(contents)
            yield from _pairs(contents)
            yield from _signatures(contents, produced)

    def whole(self, completion: Completion) -> bytes:
        parts, finish = _parts(completion)
        return encode(_reply(completion, parts, finish))

    def frames(self, completion: Completion, api_request: ApiRequest) -> Iterator[bytes]:
        parts, finish = _parts(completion)
        reply, calls = completion.reply, [part for part in parts if "functionCall" in part]
        streamed = [{"text": piece, "thought": True} for piece in pieces(reply.reasoning, None)]
        streamed += [{"text": piece} for piece in pieces(reply.content, reply.chunks)]
        for group in [*([part] for part in streamed), *([calls] if calls else [])]:
            yield _event(_reply(completion, group))
        # the signature of an answer without calls comes last, on an empty text
        signed = {"thoughtSignature": signature("gemini", reply.reasoning)} if reply.reasoning and not calls else {}
        yield _event(_reply(completion, [{"text": "", **signed}], finish))

    def overflow(self, window: int, prompt_tokens: int, reply_tokens: int) -> str:
        requested = prompt_tokens + reply_tokens
        return f"The input token count ({requested}) exceeds the maximum number of tokens allowed ({window})."

    def error(self, error: ErrorReply) -> ErrorReply:
        body = as_mapping(error.body)
        inner = as_mapping(body.get("error"))
        if not inner or "status" in inner:
            return error
        message = str(inner.get("message") or "")
        fields = {"code": error.status, "message": message, "status": _STATUS.get(error.status, "INTERNAL")}
        return ErrorReply(error.status, {"error": fields}, error.headers)


def _named(api_request: ApiRequest) -> tuple[str, str]:
    match = _PATH.search(api_request.path)
    return (unquote(match[1]), match[2]) if match is not None else ("", "")


def _messages(body: Body) -> list[dict[str, Any]]:
    """Returns the contents as messages of a chat completion, each function response as a tool message."""
    messages: list[dict[str, Any]] = []
    system = _text(as_mapping(body.get("systemInstruction")).get("parts"))
    if system:
        messages.append({"role": "system", "content": system})
    for number, content in enumerate(as_mappings(body.get("contents"))):
        parts = as_mappings(content.get("parts"))
        if content.get("role") == "model":
            messages.append(_assistant(parts, number))
            continue
        for part in parts:
            answer = as_mapping(part.get("functionResponse"))
            if answer:
                response = as_mapping(answer.get("response"))
                text = response.get("output", response.get("error", json.dumps(dict(response))))
                messages.append({"role": "tool", "tool_call_id": str(answer.get("id") or ""), "content": str(text)})
        text = _text(content.get("parts"))
        if text or not any("functionResponse" in part for part in parts):
            messages.append({"role": "user", "content": text})
    return messages


def _assistant(parts: Sequence[Mapping[str, Any]], number: int) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": _text(parts)}
    thoughts = "".join(str(part.get("text") or "") for part in parts if part.get("thought"))
    if thoughts:
        message["reasoning_content"] = thoughts
    calls: list[dict[str, Any]] = []
    for part in parts:
        call = as_mapping(part.get("functionCall"))
        if call:
            identity = call.get("id") or f"call_{number}_{len(calls)}"
            calls.append(chat_call(identity, call.get("name"), call.get("args") or {}))
    if calls:
        message["tool_calls"] = calls
    return message


def _text(parts: Any) -> str:
    return "".join(str(part.get("text") or "") for part in as_mappings(parts) if not part.get("thought"))


def _parts(completion: Completion) -> tuple[list[dict[str, Any]], str]:
    """Returns the parts of a whole reply and its finish reason: the first call is signed, or else the text."""
    reply = completion.reply
    signed = {"thoughtSignature": signature("gemini", reply.reasoning)}
    parts: list[dict[str, Any]] = [{"text": reply.reasoning, "thought": True}] if reply.reasoning else []
    if reply.content:
        parts.append({"text": reply.content, **(signed if reply.reasoning and not reply.tool_calls else {})})
    for number, call in enumerate(completion.calls()):
        function = call["function"]
        try:
            arguments: object = read_json(function["arguments"] or "{}")
        except (ValueError, RecursionError):
            arguments = None
        if not isinstance(arguments, dict):
            return parts, "MALFORMED_FUNCTION_CALL"
        called: dict[str, Any] = {"id": call["id"], "name": function["name"], "args": arguments}
        parts.append({"functionCall": called, **(signed if number == 0 else {})})
    return parts, _FINISH.get(reply.finish, reply.finish.upper())


def _reply(completion: Completion, parts: list[dict[str, Any]], finish: str | None = None) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
    tokens = completion.tokens()
    counts = {"promptTokenCount": tokens.prompt}
    if finish is not None:
        candidate["finishReason"] = finish
        counts["candidatesTokenCount"] = tokens.completion - tokens.reasoning
        counts["thoughtsTokenCount"] = tokens.reasoning
        counts["cachedContentTokenCount"] = tokens.cached
    counts["totalTokenCount"] = sum(number for name, number in counts.items() if name != "cachedContentTokenCount")
    return {
        "candidates": [candidate],
        "usageMetadata": counts,
        "modelVersion": completion.model,
        "responseId": completion.id,
    }


def _event(reply: Mapping[str, Any]) -> bytes:
    return b"data: " + encode(reply) + b"\r\n\r\n"


def _of(content: Mapping[str, Any], kind: str) -> list[Mapping[str, Any]]:
    return [part for part in as_mappings(content.get("parts")) if kind in part]


def _empty(contents: Sequence[Mapping[str, Any]]) -> Problems:
    for index, content in enumerate(contents):
        if content.get("role") not in ("user", "model"):
            yield "Please use a valid role: user, model."
        parts = as_mappings(content.get("parts"))
        where = f"* GenerateContentRequest.contents[{index}].parts"
        if not parts:
            yield f"{where}: contents.parts must not be empty."
        for number, part in enumerate(parts):
            if not (part.keys() - {"text", "thought"} or part.get("text")):
                yield f"{where}[{number}].data: required oneof field 'data' must have one initialized field"


def _pairs(contents: Sequence[Mapping[str, Any]]) -> Problems:
    """Checks that a turn of calls follows the user, and that the next content answers all of its calls and holds nothing else."""
    none: Mapping[str, Any] = {}
    for index, content in enumerate(contents):
        before = contents[index - 1] if index else none
        after = contents[index + 1] if index + 1 < len(contents) else none
        calls, responses = _of(content, "functionCall"), _of(content, "functionResponse")
        if calls and before.get("role") != "user":
            yield _AFTER_USER
        if calls and len(_of(after, "functionResponse")) != len(calls):
            yield _AS_MANY
        if responses and not _of(before, "functionCall"):
            yield _AFTER_CALL
        if responses and len(responses) != len(as_mappings(content.get("parts"))):
            yield _AS_MANY


def _signatures(contents: Sequence[Mapping[str, Any]], produced: LruCache[str, str]) -> Problems:
    """Checks that the first call of every step of the current turn is signed, and that no signature has changed."""
    question_indexes = [i for i, one in enumerate(contents) if one.get("role") == "user" and _text(one.get("parts"))]
    for index, content in enumerate(contents):
        for number, part in enumerate(_of(content, "functionCall")):
            call, sent = as_mapping(part["functionCall"]), part.get("thoughtSignature")
            if sent is None and number == 0 and index > max(question_indexes, default=-1):
                yield (
                    "Function call is missing a thought_signature in functionCall parts. This is required for tools to work "
                    "correctly, and missing thought_signature may lead to degraded model performance. Additional data, "
                    f"function call `default_api:{call.get('name')}` , position {index + 1}."
                )
            reasoning = produced.get(str(call.get("id")))
            if sent in (None, _PLACEHOLDER) or reasoning is None:
                continue
            if sent != signature("gemini", reasoning):
                yield "Corrupted thought signature."
