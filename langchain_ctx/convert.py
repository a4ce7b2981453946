"""LangChain messages as ctxfold messages and back, without loss.

What only LangChain knows of a message travels in an Opaque part of the namespace "langchain"; what only ctxfold knows in
`additional_kwargs["ctxfold"]`. Values that JSON cannot hold (a parsed pydantic object, a DataFrame as artifact) stay behind.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast, get_args

from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    HumanMessage,
    InvalidToolCall,
    SystemMessage,
    ToolMessage,
)

from ctxfold.errors import InvalidToolArgumentsError, MessageError, UnknownRoleError
from ctxfold.given import is_a, json_problem, kind_of
from ctxfold.messages import (
    Message,
    MessageKind,
    Opaque,
    Part,
    Role,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    Usage,
)
from langchain_ctx.content import as_json, content_of, parts_of
from langchain_ctx.thoughts import reasoning_kwargs, with_thoughts

__all__ = ["check_messages", "from_langchain", "given_ids", "to_langchain", "usage_metadata"]

NAMESPACE = "langchain"
_WRITTEN_FOR = (
    "ephemeral_5m_input_tokens",
    "ephemeral_1h_input_tokens",
)  # Anthropic's cache writes, in place of the sum
OURS = "ctxfold"
_NO_OBJECT = "the arguments are not a JSON object"
_ROLES: Mapping[str, Role] = {
    "system": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "ai": "assistant",
}


def given_ids(messages: Iterable[BaseMessage]) -> frozenset[str]:
    """The ids that messages came with."""
    return frozenset(m.id for m in messages if m.id)


def check_messages(messages: Iterable[BaseMessage]) -> None:
    """MessageError for anything among them that is no message of LangChain's; of a text, for its first letter."""
    for message in messages:
        if not is_a(message, BaseMessage):
            raise MessageError(
                f"a message is {kind_of(message)}: give HumanMessage, AIMessage and the like, in a list; "
                "langchain_core.messages.convert_to_messages makes them of other forms"
            )


def _uuid() -> str:
    return uuid.uuid4().hex


def from_langchain(message: BaseMessage, *, new_id: Callable[[], str] = _uuid) -> Message:
    """The same message for the engine; one without id gets a new one. UnknownRoleError for a role no model is sent."""
    check_messages((message,))
    role, kept = _role(message)
    identity = message.id or new_id()
    calls = [str(c["id"]) for c in message.tool_calls] if isinstance(message, AIMessage) else ()
    parts, layout = parts_of(message.content, role, calls)
    if layout is not None:
        kept["content"] = layout
    kwargs = dict(message.additional_kwargs)
    ours = _mapping(kwargs.pop(OURS, None))
    meta = dict(message.response_metadata)
    model, finish = _popped(meta, "model_name"), _popped(meta, "finish_reason")
    if finish is not None and "stop_reason" in meta:
        meta["finish_reason"] = finish
    usage: Usage | None = None
    if isinstance(message, AIMessage):
        parts = with_thoughts(parts, kwargs, ours, kept)
        parts += _calls(message, ours, identity)
        if message.invalid_tool_calls:
            kept["invalid"] = [_invalid_rest(c) for c in message.invalid_tool_calls]
        usage = _usage(message, kept)
    elif isinstance(message, ToolMessage):
        parts = _result(message, parts, kept)
    kept |= {"kwargs": _jsonable(kwargs), "meta": _jsonable(meta), "extra": _jsonable(message.model_extra or {})}
    held = {name: value for name, value in kept.items() if value not in ({}, None)}
    if held:
        parts.append(Opaque(NAMESPACE, as_json(held, f"message {identity!r}")))
    known = cast("MessageKind", ours["kind"]) if ours.get("kind") in get_args(MessageKind) else "message"
    name = None if isinstance(message, ToolMessage) else message.name
    return Message(identity, role, tuple(parts), name, known, model, usage, finish)


def _role(message: BaseMessage) -> tuple[Role, dict[str, Any]]:
    match message:
        case SystemMessage():
            return "system", {}
        case HumanMessage():
            return "user", {}
        case AIMessage():
            return "assistant", {}
        case ToolMessage():
            return "tool", {}
        case ChatMessage() if message.role in _ROLES:
            return _ROLES[message.role], {"chat": message.role}
        case _:
            said = message.role if isinstance(message, ChatMessage) else message.type
            raise UnknownRoleError(
                f"message {message.id!r} is a {type(message).__name__} with role {said!r}: "
                "use SystemMessage, HumanMessage, AIMessage or ToolMessage"
            )


def _popped(meta: dict[str, Any], name: str) -> str | None:
    return cast("str", meta.pop(name)) if isinstance(meta.get(name), str) else None


def _mapping(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _list(value: Any) -> Sequence[object]:
    return cast("Sequence[object]", value) if isinstance(value, list) else ()


def _jsonable(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if _fits_json(value)}


def _fits_json(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _calls(message: AIMessage, ours: Mapping[str, Any], identity: str) -> list[Part]:
    texts = _argument_texts(message, _mapping(ours.get("calls")))
    parts: list[Part] = []
    for number, call in enumerate(message.tool_calls):
        call_id = call["id"] or f"call_{identity}_{number}"
        text = texts.get(call_id)
        if text is None or _decoded(text) != call["args"]:
            try:
                text = json.dumps(call["args"], ensure_ascii=False)
            except (TypeError, ValueError, RecursionError) as error:
                raise InvalidToolArgumentsError(
                    f"tool call {call['name']!r} in message {identity!r} has arguments that JSON cannot hold "
                    f"({json_problem(error)}): give plain values"
                ) from None
        extra = _mapping(_mapping(ours.get("calls")).get(call_id)).get("extra")
        parts.append(ToolCallPart(call_id, call["name"], text, extra if isinstance(extra, str) else None))
    parts += [
        ToolCallPart(str(c["id"]), c["name"] or "unknown", c["args"] or "")
        for c in message.invalid_tool_calls
        if c["id"]
    ]
    order = {str(name): n for n, name in enumerate(_list(ours.get("order")))}
    return sorted(parts, key=lambda p: order.get(p.id, len(order)) if isinstance(p, ToolCallPart) else -1)


def _invalid_rest(call: InvalidToolCall) -> dict[str, Any]:
    """What the engine's call does not hold. One without id is no call: nothing can answer it, and no service takes it."""
    if not call["id"]:
        return dict(call)
    return {name: value for name, value in call.items() if name not in ("args", "name") or not value}


def _argument_texts(message: AIMessage, ours: Mapping[str, Any]) -> dict[str, str]:
    """The very text of arguments, where something still has it."""
    found: dict[str, str] = {}
    if isinstance(message, AIMessageChunk):
        found |= {c["id"]: c["args"] for c in message.tool_call_chunks if c["id"] and c["args"]}
    raw: Any = message.additional_kwargs.get("tool_calls")
    for call in _list(raw):
        text = _mapping(_mapping(call).get("function")).get("arguments")
        if isinstance(text, str):
            found[str(_mapping(call).get("id"))] = text
    for call_id, call in ours.items():
        text = _mapping(call).get("arguments")
        if isinstance(text, str):
            found[call_id] = text
    return found


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _usage(message: AIMessage, kept: dict[str, Any]) -> Usage | None:
    said = message.usage_metadata
    if said is None or "input_tokens" not in said:  # an answer from a cache may have a cost alone
        return None
    into, out = _mapping(said.get("input_token_details")), _mapping(said.get("output_token_details"))
    usage = Usage(
        said["input_tokens"],
        said["output_tokens"],
        _detail(into, "cache_read"),
        max(_detail(into, "cache_creation"), sum(into.get(name) or 0 for name in _WRITTEN_FOR)),
        _detail(out, "reasoning"),
    )
    if usage_metadata(usage) != said:
        kept["usage"] = said
    return usage


def _detail(details: Mapping[str, Any], name: str) -> int:
    """A kind of token; at other tiers of service OpenAI's are told as `priority_cache_read` and the like."""
    return details.get(name) or sum(count or 0 for key, count in details.items() if key.endswith(f"_{name}"))


def usage_metadata(usage: Usage) -> dict[str, Any]:
    """Usage as LangChain writes it; details that are zero are left out."""
    into = {"cache_read": usage.cache_read_tokens, "cache_creation": usage.cache_write_tokens}
    told: dict[str, Any] = {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }
    if any(into.values()):
        told["input_token_details"] = {name: value for name, value in into.items() if value}
    if usage.reasoning_tokens:
        told["output_token_details"] = {"reasoning": usage.reasoning_tokens}
    return told


def _result(message: ToolMessage, parts: Sequence[Part], kept: dict[str, Any]) -> list[Part]:
    text = "".join(p.text for p in parts if isinstance(p, TextPart))
    if message.artifact is not None and _fits_json(message.artifact):
        kept["artifact"] = message.artifact
    result = ToolResultPart(message.tool_call_id, text, message.name, message.status == "error")
    return [result, *(p for p in parts if not isinstance(p, TextPart))]


def to_langchain(message: Message) -> BaseMessage:
    """The same message for LangChain; a summary is known by `additional_kwargs["ctxfold"]["kind"]`."""
    kept = _mapping(message.opaque(NAMESPACE))
    kwargs = dict(_mapping(kept.get("kwargs")))
    ours: dict[str, Any] = {} if message.kind == "message" else {"kind": message.kind}
    fields: dict[str, Any] = {
        **_mapping(kept.get("extra")),
        "content": content_of(message, kept.get("content")),
        "id": message.id,
        "name": message.name,
        "response_metadata": _metadata(message, kept),
    }
    if message.role == "assistant":
        _tell(message, kept, fields, kwargs, ours)
    if ours:
        kwargs[OURS] = ours
    fields["additional_kwargs"] = kwargs
    if "chat" in kept:
        return ChatMessage(role=kept["chat"], **fields)
    match message.role:
        case "system":
            return SystemMessage(**fields)
        case "user":
            return HumanMessage(**fields)
        case "assistant":
            return AIMessage(**fields)
        case "tool":
            result = message.tool_results[0]
            status = "error" if result.is_error else "success"
            fields["name"] = result.name
            return ToolMessage(tool_call_id=result.call_id, status=status, artifact=kept.get("artifact"), **fields)


def _metadata(message: Message, kept: Mapping[str, Any]) -> dict[str, Any]:
    meta = _mapping(kept.get("meta"))
    # a stream's `stop_reason` is the finish reason, too; it is told by one name
    finish = None if meta.get("stop_reason") == message.finish_reason else message.finish_reason
    told = {"model_name": message.model, "finish_reason": finish}
    return {**meta, **{name: value for name, value in told.items() if value is not None}}


def _tell(
    message: Message, kept: Mapping[str, Any], fields: dict[str, Any], kwargs: dict[str, Any], ours: dict[str, Any]
) -> None:
    """What only an AIMessage has: calls, usage, reasoning, refusal."""
    calls: list[dict[str, Any]] = []
    invalid: list[dict[str, Any]] = []
    told: dict[str, dict[str, str]] = {}
    kept_calls = [dict(_mapping(c)) for c in _list(kept.get("invalid"))]
    for call in message.tool_calls:
        args = call.parsed()
        if args is None:
            rest = next((c for c in kept_calls if c.get("id") == call.id), {"error": _NO_OBJECT})
            invalid.append(
                {"name": call.name, "args": call.arguments, "id": call.id, "type": "invalid_tool_call", **rest}
            )
            continue
        calls.append({"name": call.name, "args": args, "id": call.id})
        own = {} if call.extra is None else {"extra": call.extra}
        if json.dumps(args, ensure_ascii=False) != call.arguments:
            own["arguments"] = call.arguments
        if own:
            told[call.id] = own
    if told:
        ours["calls"] = told
    order = [call.id for call in message.tool_calls]
    if order != [c["id"] for c in (*calls, *invalid)]:
        ours["order"] = order
    fields |= {"tool_calls": calls, "invalid_tool_calls": [*invalid, *(c for c in kept_calls if not c.get("id"))]}
    if message.usage is not None:
        fields["usage_metadata"] = kept.get("usage") or usage_metadata(message.usage)
    blocks = any(_is_thought(b) for b in _list(fields["content"]))
    if not blocks or kept.get("both"):
        thoughts, signed = reasoning_kwargs(message, in_content=blocks)
        kwargs |= thoughts
        ours |= signed
    refusal = message.opaque("refusal")
    if refusal is not None:
        kwargs["refusal"] = refusal


def _is_thought(block: Any) -> bool:
    return isinstance(block, dict) and cast("dict[str, Any]", block).get("type") in ("reasoning", "thinking")
