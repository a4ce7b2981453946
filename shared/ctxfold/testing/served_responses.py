"""Serves OpenAI's Responses API without its memory, and refuses what OpenAI refuses, in its words."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from ctxfold.lru import LruCache
from ctxfold.testing.script import ErrorReply, api_error, as_list, as_mapping, as_mappings, chat_choice
from ctxfold.testing.served import ApiRequest, Completion, Problems, ServedWire, Strict, encode, pieces, present

Item = Mapping[str, Any]
_DIGEST_CHARS = 24
_REPLIED = re.compile(r"(?:fc|msg)_(?P<reply>[0-9a-f]{24})r\d+")  # with reasoning before it
_REASONED = re.compile(r"rs_(?P<reply>[0-9a-f]{24})f")  # with an item after it
_OUTPUTS: Mapping[str, str] = {  # of each kind of call that the client answers
    **{
        f"{kind}_call": f"{kind}_call_output"
        for kind in ["apply_patch", "computer", "custom_tool", "function", "local_shell", "shell"]
    },
    "mcp_approval_request": "mcp_approval_response",
    "tool_search_call": "tool_search_output",
}
_FIELDS: Mapping[str, frozenset[str]] = {
    kind: frozenset(f"type id {names}".split())
    for kind, names in {
        "message": "role content status phase",
        "function_call": "call_id name arguments status namespace",
        "function_call_output": "call_id output status",
        "apply_patch_call_output": "call_id output status caller",
        "computer_call_output": "call_id output status caller acknowledged_safety_checks",
        "custom_tool_call_output": "call_id output status caller",
        "local_shell_call_output": "call_id output status caller",
        "shell_call_output": "call_id output status caller max_output_length",
        "mcp_approval_response": "approval_request_id approve reason",
        "tool_search_output": "call_id execution status tools",
        "reasoning": "summary content encrypted_content status",
        "compaction": "encrypted_content created_by",
    }.items()
}
_OUTPUT_TYPES: Mapping[str, type] = {
    "apply_patch_call": str,
    "computer_call": Mapping,
    "local_shell_call": str,
    "shell_call": list,
}
_COMPACT = frozenset({"model", "input", "instructions", "previous_response_id", "prompt_cache_key"})
_LEAST_THRESHOLD = 1_000
_COMPACT_PATH = "/responses/compact"
_FOREIGN = ("messages", "max_tokens", "max_completion_tokens", "stop", "stream_options", "reasoning_effort")
_SUMMARY = "compaction:"  # begins what is sealed in a compaction, so that sealed reasoning is none
_NOT_STORED = (
    "Items are not persisted when `store` is set to false. Try again with `store` set to true, or remove this item "
    "from your input."
)
_UNREADABLE = "Encrypted content could not be decrypted or parsed."
_ROLES = frozenset({"system", "developer", "user", "assistant"})
_STATUS = {"length": ("incomplete", "max_output_tokens"), "content_filter": ("incomplete", "content_filter")}


def sealed_reasoning(text: str) -> str:
    """Returns the encrypted form of a reasoning text, which the server verifies when it comes back."""
    data = text.encode("utf-8", "surrogatepass")
    return base64.b64encode(hashlib.sha256(b"responses:" + data).digest() + data).decode()


def _opened(sealed: object) -> str | None:
    """Returns the text of encrypted reasoning; None where it was not made here or was changed."""
    try:
        raw = base64.b64decode(str(sealed), validate=True)
    except (binascii.Error, ValueError):
        return None
    digest, data = raw[:32], raw[32:]
    if digest != hashlib.sha256(b"responses:" + data).digest():
        return None
    return data.decode("utf-8", "surrogatepass")


class Responses(ServedWire):
    """The Responses API; any `strict` makes it check requests."""

    refusal_fields: Mapping[str, str] = {"param": "input"}

    def serves(self, path: str) -> bool:
        return path.endswith(("/responses", _COMPACT_PATH))

    def chat_body(self, api_request: ApiRequest) -> dict[str, Any]:
        body = api_request.body
        messages: list[dict[str, Any]] = []
        if body.get("instructions"):
            messages.append({"role": "system", "content": body["instructions"]})
        items = _items(body)
        # what stands before a compaction is not read any more, the user's own messages behind which it stands aside
        newest = max((i for i, item in enumerate(items) if item.get("type") == "compaction"), default=0)
        for index, item in enumerate(items):
            if index >= newest or (item.get("type") == "message" and item.get("role") != "assistant"):
                _add_message(messages, item)
        choice, shape = body.get("tool_choice"), as_mapping(as_mapping(body.get("text")).get("format"))
        tools = as_mappings(body.get("tools"))
        form = {"type": shape.get("type"), "json_schema": {"schema": shape.get("schema")}}
        return present(
            model=body.get("model"),
            messages=messages,
            tools=[{"type": "function", "function": tool} for tool in tools if tool.get("type") == "function"],
            stream=body.get("stream") is True,
            tool_choice=chat_choice(as_mapping(choice).get("name")) if isinstance(choice, Mapping) else choice,
            max_tokens=body.get("max_output_tokens"),
            response_format=form if shape.get("type") in ("json_schema", "json_object") else None,
        )

    def problems(self, api_request: ApiRequest, strict: Strict | None, produced: LruCache[str, str]) -> Problems:
        if strict is None:
            return
        body, items = api_request.body, _items(api_request.body)
        if not items:
            yield "One of 'input' or 'previous_response_id' must be provided."
        stored = body.get("store") is not False
        yield from _sealed(items, stored=stored)
        yield from _parameters(body, items)
        yield from _reasoning(items, stored=stored)
        yield from _pairs(items)
        if api_request.path.endswith(_COMPACT_PATH):
            yield from (f"Unknown parameter: '{name}'." for name in sorted(body.keys() - _COMPACT))
        else:
            yield from _managed(body)

    def compaction(self, api_request: ApiRequest, prompt_tokens: int) -> Literal["alone", "beside"] | None:
        if api_request.path.endswith(_COMPACT_PATH):
            return "alone"
        thresholds = [one.get("compact_threshold") for one in as_mappings(api_request.body.get("context_management"))]
        return "beside" if any(isinstance(t, int) and prompt_tokens >= t for t in thresholds) else None

    def without_compaction(self, api_request: ApiRequest) -> ErrorReply | None:
        if api_request.path.endswith(_COMPACT_PATH):
            return api_error(404, f"Invalid URL (POST {api_request.path})")
        asks = "context_management" in api_request.body
        return api_error(400, "Unknown parameter: 'context_management'.") if asks else None

    def whole(self, completion: Completion) -> bytes:
        if not completion.alone:
            return encode(_response(completion, _output(completion)))
        read, written = completion.summary_tokens
        usage = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
        texts = ([{"type": "input_text", "text": text}] for text in completion.user_texts)
        output = [
            *({"type": "message", "role": "user", "content": content} for content in texts),
            _compaction(completion),
        ]
        body = {
            "id": f"resp_{_reply_id(completion)}",
            "object": "response.compaction",
            "created_at": completion.created,
        }
        return encode({**body, "output": output, "usage": _usage(replace(completion, usage=usage))})

    def frames(self, completion: Completion, api_request: ApiRequest) -> Iterator[bytes]:
        events = list(_events(completion))
        for number, event in enumerate(events):
            payload = encode({**event, "sequence_number": number})
            yield f"event: {event['type']}\n".encode() + b"data: " + payload + b"\n\n"


# replies


def _reply_id(completion: Completion) -> str:
    return hashlib.sha256(completion.id.encode()).hexdigest()[:_DIGEST_CHARS]


def _output(completion: Completion) -> list[dict[str, Any]]:
    """Returns the items of a reply; their ids tell which of them came with reasoning."""
    reply, identity = completion.reply, _reply_id(completion)
    calls = completion.calls()
    says = bool(reply.content) or not (calls or reply.reasoning)
    mark = "r" if reply.reasoning else "p"
    items: list[dict[str, Any]] = []
    if reply.reasoning:
        summary = [{"type": "summary_text", "text": reply.reasoning}]
        thought = {"type": "reasoning", "summary": summary, "encrypted_content": sealed_reasoning(reply.reasoning)}
        items.append({"id": f"rs_{identity}{'f' if says or calls else 'a'}", **thought})
    if says:
        part: dict[str, Any] = {"type": "output_text", "text": reply.content, "annotations": [], "logprobs": []}
        said = {"role": "assistant", "phase": "commentary" if calls else "final_answer", "content": [part]}
        items.append({"id": f"msg_{identity}{mark}{len(items)}", "type": "message", "status": "completed", **said})
    for call in calls:
        place = {"id": f"fc_{identity}{mark}{len(items)}", "type": "function_call", "status": "completed"}
        items.append({**place, "call_id": call["id"], **call["function"]})
    return [*items, _compaction(completion)] if completion.summary else items


def _compaction(completion: Completion) -> dict[str, Any]:
    sealed = sealed_reasoning(f"{_SUMMARY}{completion.summary}")
    return {"id": f"cmp_{_reply_id(completion)}", "type": "compaction", "encrypted_content": sealed}


def _response(completion: Completion, output: Sequence[Item] | None) -> dict[str, Any]:
    """Returns the object of a reply; without `output`, as it is when the reply begins."""
    status, reason = (
        _STATUS.get(completion.reply.finish, ("completed", None)) if output is not None else ("in_progress", None)
    )
    return {
        "id": f"resp_{_reply_id(completion)}",
        "object": "response",
        "created_at": completion.created,
        "status": status,
        "model": completion.model,
        "error": None,
        "incomplete_details": None if reason is None else {"reason": reason},
        "output": list(output or ()),
        "usage": None if output is None else _usage(completion),
    }


def _usage(completion: Completion) -> dict[str, Any]:
    tokens = completion.tokens()
    return {
        "input_tokens": tokens.prompt,
        "input_tokens_details": {"cached_tokens": tokens.cached},
        "output_tokens": tokens.completion,
        "output_tokens_details": {"reasoning_tokens": tokens.reasoning},
        "total_tokens": completion.usage.get("total_tokens", 0),
    }


def _events(completion: Completion) -> Iterator[dict[str, Any]]:
    output = _output(completion)
    for kind in ("response.created", "response.in_progress"):
        yield {"type": kind, "response": _response(completion, None)}
    for index, item in enumerate(output):
        yield {"type": "response.output_item.added", "output_index": index, "item": _begun(item)}
        place = {"item_id": item["id"], "output_index": index}
        match item["type"]:
            case "reasoning":
                names = "reasoning_summary_part", "reasoning_summary_text"
                for number, part in enumerate(item["summary"]):
                    yield from _part_events({**place, "summary_index": number}, part, names, None, {})
            case "message":
                names, chunks = ("content_part", "output_text"), completion.reply.chunks
                for number, part in enumerate(item["content"]):
                    yield from _part_events({**place, "content_index": number}, part, names, chunks, {"logprobs": []})
            case "function_call":
                kind, text = "response.function_call_arguments", item["arguments"]
                yield from ({"type": f"{kind}.delta", **place, "delta": piece} for piece in pieces(text, 2))
                yield {"type": f"{kind}.done", **place, "arguments": text}
            case _:  # a compaction comes whole
                pass
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    response = _response(completion, output)
    yield {"type": f"response.{response['status']}", "response": response}


def _begun(item: Item) -> dict[str, Any]:
    """Returns the item as its first event shows it; the encrypted content there is no more than a stub."""
    empty: dict[str, Any] = {"content": [], "arguments": "", "summary": [], "status": "in_progress"}
    empty["encrypted_content"] = "c3R1Yg=="
    return {name: empty.get(name, value) for name, value in item.items()}


def _part_events(
    place: Mapping[str, Any], part: Item, names: tuple[str, str], chunks: int | None, extra: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yields the events of a part: those of itself and those of its text, by their names. `extra` goes with each text."""
    around, inside = (f"response.{name}" for name in names)
    yield {"type": f"{around}.added", **place, "part": {**part, "text": ""}}
    hidden = {**extra, "obfuscation": "x7"} if extra else {}
    yield from (
        {"type": f"{inside}.delta", **place, "delta": piece, **hidden} for piece in pieces(part["text"], chunks)
    )
    yield {"type": f"{inside}.done", **place, "text": part["text"], **extra}
    yield {"type": f"{around}.done", **place, "part": part}


# a request as a chat completion


def _items(body: Mapping[str, Any]) -> list[Item]:
    model_input = body.get("input")
    if isinstance(model_input, str):
        return [{"role": "user", "content": model_input}]
    return [
        {"type": "message", **as_mapping(item)} if "role" in as_mapping(item) else as_mapping(item)
        for item in as_list(model_input)
    ]


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = as_mappings(content)
    return "".join(str(part.get("text") or part.get("refusal") or "") for part in parts)


def _add_message(messages: list[dict[str, Any]], item: Item) -> None:
    """Adds an item; the items of one reply are one message."""
    kind = item.get("type")
    if kind == "function_call_output":
        messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": _text(item.get("output"))})
    elif kind == "message" and item.get("role") != "assistant":
        role = "system" if item.get("role") == "developer" else item.get("role")
        messages.append({"role": role, "content": _text(item.get("content"))})
    elif kind == "compaction":
        summary = (_opened(item.get("encrypted_content")) or "").removeprefix(_SUMMARY)
        messages.append({"role": "assistant", "content": summary})
    else:
        if not messages or messages[-1]["role"] != "assistant" or kind == "reasoning":
            messages.append({"role": "assistant", "content": ""})
        _add_to(messages[-1], item)


def _add_to(last: dict[str, Any], item: Item) -> None:
    match item.get("type"):
        case "reasoning":
            last["reasoning_content"] = _opened(item.get("encrypted_content")) or ""
        case "message":
            last["content"] += _text(item.get("content"))
        case "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            calls = last.setdefault("tool_calls", [])
            calls.append({"id": item.get("call_id"), "type": "function", "function": function})
        case _:
            pass


# what OpenAI refuses


def _parameters(body: Mapping[str, Any], items: Sequence[Item]) -> Problems:
    for name in _FOREIGN:
        if name in body:
            yield f"Unknown parameter: '{name}'."
    for index, tool in enumerate(as_mappings(body.get("tools"))):
        if tool.get("type") == "function" and not tool.get("name"):
            yield f"Missing required parameter: 'tools[{index}].name'."
    for index, item in enumerate(items):
        known = _FIELDS.get(str(item.get("type")))
        unknown = sorted(item.keys() - known) if known is not None else []
        if unknown:
            yield f"Unknown parameter: 'input[{index}].{unknown[0]}'."
        if item.get("type") == "message" and item.get("role") not in _ROLES:
            yield f"Invalid value: '{item.get('role')}'. Supported values are: {', '.join(sorted(_ROLES))}."
        if item.get("type") == "reasoning" and not isinstance(item.get("summary"), list):
            yield f"Missing required parameter: 'input[{index}].summary'."
        if item.get("type") == "function_call" and not isinstance(item.get("arguments"), str):
            yield f"Invalid type for 'input[{index}].arguments': expected a string."
        if len(str(item.get("call_id", ""))) > 64:
            yield f"Invalid 'input[{index}].call_id': string too long. Expected a string with maximum length 64."


def _sealed(items: Sequence[Item], *, stored: bool) -> Problems:
    """Returns the error of reasoning that came without its encrypted content, or with another's."""
    for index, item in enumerate(items):
        if item.get("type") == "compaction" and not isinstance(item.get("encrypted_content"), str):
            yield api_error(400, f"Missing required parameter: 'input[{index}].encrypted_content'.")
        if item.get("type") == "compaction" and not (_opened(item["encrypted_content"]) or "").startswith(_SUMMARY):
            yield _unverified(item)
        if item.get("type") != "reasoning" or item.get("content"):
            continue
        if not item.get("encrypted_content"):
            missing = f"Item with id '{item.get('id')}' not found."
            if not stored:
                missing += f" {_NOT_STORED}"
            yield api_error(404, missing, param="input")
        if _opened(item["encrypted_content"]) is None:
            yield _unverified(item)


def _unverified(item: Item) -> ErrorReply:
    shown = str(item["encrypted_content"])[:12]
    message = f"The encrypted content {shown}... could not be verified. Reason: {_UNREADABLE}"
    return api_error(400, message, code="invalid_encrypted_content")


def _managed(body: Mapping[str, Any]) -> Problems:
    """Returns the error of a compaction that a request asks for beside its reply."""
    for index, one in enumerate(as_mappings(body.get("context_management"))):
        if one.get("type") != "compaction":
            yield f"Invalid value: '{one.get('type')}'. Supported values are: 'compaction'."
        threshold = one.get("compact_threshold")
        if not isinstance(threshold, int) or threshold < _LEAST_THRESHOLD:
            yield f"Invalid 'context_management[{index}].compact_threshold': integer below minimum value."


def _reasoning(items: Sequence[Item], *, stored: bool) -> Problems:
    """Checks that reasoning comes back with the item that followed it, and such an item with its reasoning.

    Where nothing is stored, the item that followed may be without its id.
    """
    seen: set[str] = set()
    for index, item in enumerate(items):
        identity = str(item.get("id", ""))
        if identity and identity in seen:
            yield f"Duplicate item found with id {identity}. Remove duplicate items from your input and try again."
        seen.add(identity)
        reasoned, replied = _REASONED.fullmatch(identity), _REPLIED.fullmatch(identity)
        if reasoned is not None:
            follower: Mapping[str, Any] = items[index + 1] if index + 1 < len(items) else {}
            following = _REPLIED.fullmatch(str(follower.get("id", "")))
            if not stored and "id" not in follower and follower.get("role", "assistant") == "assistant" and follower:
                continue
            if following is None or following["reply"] != reasoned["reply"]:
                yield f"Item '{identity}' of type 'reasoning' was provided without its required following item."
        if replied is not None and f"rs_{replied['reply']}f" not in seen:
            needed = f"without its required 'reasoning' item: 'rs_{replied['reply']}f'."
            yield f"Item '{identity}' of type '{item.get('type')}' was provided {needed}"


def _pairs(items: Sequence[Item]) -> Problems:
    """Checks that each call has an output of its own kind, and each output its call."""
    kinds = {output: kind for kind, output in _OUTPUTS.items()}
    calls: dict[tuple[str, Any], None] = {}
    answered: set[tuple[str, Any]] = set()
    for item in items:
        kind, call_id = str(item.get("type")), item.get("call_id") or item.get("approval_request_id") or item.get("id")
        if kind in _OUTPUTS and item.get("execution") != "server":
            calls[kind, call_id] = None
        elif kind in kinds:
            answers = kinds[kind], call_id
            if answers not in calls:
                yield f"No tool call found for {answers[0].replace('_', ' ')} output with call_id {call_id}."
            if not isinstance(item.get("output", ""), _OUTPUT_TYPES.get(answers[0], object)):
                yield f"Invalid type for the output of {kind} {call_id}."
            answered.add(answers)
    missing = (call for call in calls if call not in answered)
    yield from (f"No tool output found for {kind.replace('_', ' ')} {call_id}." for kind, call_id in missing)
