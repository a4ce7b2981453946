"""Converts LangChain messages to ctxfold messages and back without loss."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast, get_args

from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    InvalidToolCall,
    SystemMessage,
    ToolMessage,
)

from ctxfold.adapters.part_order import arranged, cut_thoughts, order_note
from ctxfold.errors import InvalidToolArgumentsError, MessageError, UnknownRoleError
from ctxfold.history.cuts import made_call_id, with_known_calls
from ctxfold.history.diff import own_ids
from ctxfold.messages import (
    Message,
    MessageKind,
    Opaque,
    Part,
    ReasoningPart,
    Role,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    Usage,
)
from ctxfold.protocols import Reply, UuidIds
from ctxfold.validation import as_list, is_a, json_object, json_problem, kind_of
from langchain_ctx.content import RESULT_SEPARATOR, as_json, content_of, parts_of, without_thought_blocks

_TEXT = "reasoning_content"
_DETAILS = "reasoning_details"
# of messages of Gemini, and of OpenAI's Responses in version v0: signatures and item ids by the id of a call, and a thought
_BOUND_KWARGS = frozenset({"__gemini_function_call_thought_signatures__", "__openai_function_call_ids__", "reasoning"})
# under "ctxfold" in `additional_kwargs`
_ORDER = "parts"
_SIGNATURE = "signature"
_CALLS = "calls"


def reasoning_kwargs(message: Message) -> dict[str, Any]:
    """Returns a message's reasoning for `additional_kwargs`: its text, and the blocks of its provider."""
    thoughts = [p for p in message.parts if isinstance(p, ReasoningPart)]
    kwargs: dict[str, Any] = {}
    if any(p.text for p in thoughts):
        kwargs[_TEXT] = "".join(p.text for p in thoughts)
    details = [block for p in thoughts if p.details is not None for block in json.loads(p.details)]
    if details:
        kwargs[_DETAILS] = details
    return kwargs


def reply_notes(message: Message, content: Sequence[Part]) -> dict[str, Any]:
    """Returns what goes under "ctxfold" in `additional_kwargs` for a reply to come back as it was.

    That is the order of its parts where `content`, the parts that the content shows, does not tell it, and of each call the text
    of its arguments and what its provider sent beside it.
    """
    notes: dict[str, Any] = {}
    thoughts = [p for p in message.parts if isinstance(p, ReasoningPart)]
    shown = [*content, *sorted(message.tool_calls, key=lambda call: call.parsed() is None)]
    signature = thoughts[0].signature if len(thoughts) == 1 else None
    in_content = any(isinstance(p, ReasoningPart) for p in content)
    if thoughts and not in_content:
        details = reasoning_kwargs(message).get(_DETAILS)
        shown.insert(0, ReasoningPart(message.reasoning, signature, None if details is None else _json(details)))
    order = order_note(message.parts)
    if order != order_note(shown):
        notes[_ORDER] = order
    elif signature is not None and not in_content:
        notes[_SIGNATURE] = signature
    calls = {call.id: own for call in message.tool_calls if (own := _call_note(call))}
    if calls:
        notes[_CALLS] = calls
    return notes


def _call_note(call: ToolCallPart) -> dict[str, str]:
    args = call.parsed()
    note = {} if call.extra is None else {"extra": call.extra}
    if args is not None and json.dumps(args, ensure_ascii=False) != call.arguments:
        note["arguments"] = call.arguments
    return note


def _with_thoughts(
    parts: Sequence[Part], kwargs: dict[str, Any], ours: Mapping[str, Any], note: object, extras: dict[str, Any]
) -> list[Part]:
    """Returns the parts of the content and the reasoning in `kwargs`, each once; removes the latter from `kwargs`."""
    text: Any = kwargs.get(_TEXT)
    details: Any = kwargs.get(_DETAILS)
    blocks = [p for p in parts if isinstance(p, ReasoningPart)]
    both = bool(blocks) and isinstance(text, str) and text == "".join(p.text for p in blocks)
    if blocks and not both:
        return list(parts)
    text = text if isinstance(text, str) else ""
    detail_list = as_list(details) if _fits_json(details) else []
    signed: Any = ours.get(_SIGNATURE)
    signature = signed if isinstance(signed, str) and len(blocks) <= 1 else None
    whole = ReasoningPart(text, signature, _json(detail_list) if detail_list else None)
    thoughts: list[ReasoningPart] | None = None
    if note is not None:
        thoughts = cut_thoughts(note, text, detail_list)
    elif signature is not None or (detail_list and len(blocks) == 1):
        thoughts = [whole]
    if both:
        extras["both"] = True
        del kwargs[_TEXT]
        if thoughts is None:
            return list(parts)
    elif thoughts is None:
        thoughts = [whole] if text or detail_list else []
    if text:
        kwargs.pop(_TEXT, None)
    if any(part.details is not None for part in thoughts):
        kwargs.pop(_DETAILS, None)
    return [*thoughts, *(p for p in parts if not isinstance(p, ReasoningPart))]


def _json(details: Sequence[object]) -> str:
    return json.dumps(details, ensure_ascii=False)


def with_own_ids(messages: Sequence[BaseMessage]) -> tuple[Sequence[BaseMessage], frozenset[str]]:
    """Returns the messages with the ids of `own_ids`, as copies where theirs were others, and the ids that several had."""
    ids, repeated = own_ids([m.id for m in messages], lambda i: digest_of(messages[i]))
    named = [m if m.id == i else m.model_copy(update={"id": i}) for m, i in zip(messages, ids, strict=True)]
    return named, repeated


def digest_of(message: BaseMessage) -> str:
    """Returns a digest of what a message says."""
    calls = [(c["id"], c["name"], c["args"]) for c in message.tool_calls] if isinstance(message, AIMessage) else None
    result = message.tool_call_id if isinstance(message, ToolMessage) else None
    text = repr((message.type, message.content, calls, result))
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:32]


NAMESPACE = "langchain"
# Anthropic's cache writes, in place of the sum
_WRITTEN_FOR = ("ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens")
OURS = "ctxfold"
PRESERVE = "preserve_reasoning"
_NO_OBJECT = "the arguments are not a JSON object"
_ROLES: Mapping[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "ai": "assistant",
}


def given_ids(messages: Iterable[BaseMessage]) -> frozenset[str]:
    """Returns the ids that the messages already have."""
    return frozenset(m.id for m in messages if m.id)


def check_messages(messages: Iterable[BaseMessage]) -> None:
    """Raises MessageError for anything that is not a LangChain message; for a text, because of its first letter."""
    for message in messages:
        if not is_a(message, BaseMessage):
            raise MessageError(
                f"a message is {kind_of(message)}: give HumanMessage, AIMessage and the like, in a list; "
                "langchain_core.messages.convert_to_messages makes them of other forms"
            )


_new_id = UuidIds().new


def all_from_langchain(messages: Iterable[BaseMessage], *, new_id: Callable[[], str] = _new_id) -> list[Message]:
    """Converts the messages of a list, with each tool result under the id of the call that it answers."""
    return with_known_calls([from_langchain(m, new_id=new_id) for m in messages], ended=True)


def reply_of(answer: BaseMessage, raw: object) -> Reply:
    """Returns a model's whole answer as a reply; `raw` is what the model itself returned."""
    message = from_langchain(answer)
    return Reply(message, message.usage, message.finish_reason, raw)


def from_langchain(message: BaseMessage, *, new_id: Callable[[], str] = _new_id) -> Message:
    """Converts a LangChain message for the engine; one without id gets a new id. Raises UnknownRoleError for unsupported roles."""
    check_messages((message,))
    role, extras = _role(message)
    identity = message.id or new_id()
    calls = [str(c["id"]) for c in message.tool_calls] if isinstance(message, AIMessage) else ()
    parts, layout = parts_of(message.content, role, calls)
    if layout is not None:
        extras["content"] = layout
    kwargs = dict(message.additional_kwargs)
    ours = _mapping(kwargs.pop(OURS, None))
    meta = dict(message.response_metadata)
    model, finish = _popped(meta, "model_name"), _popped(meta, "finish_reason")
    if finish is not None and "stop_reason" in meta:
        meta["finish_reason"] = finish
    usage: Usage | None = None
    if isinstance(message, AIMessage):
        note = ours.get(_ORDER)
        parts = arranged(note, [*_with_thoughts(parts, kwargs, ours, note, extras), *_calls(message, ours, identity)])
        if message.invalid_tool_calls:
            extras["invalid"] = [_invalid_rest(c) for c in message.invalid_tool_calls]
        usage = _usage(message, extras)
    elif isinstance(message, ToolMessage):
        parts = _result(message, parts, extras)
    extras |= {"kwargs": _jsonable(kwargs), "meta": _jsonable(meta), "extra": _jsonable(message.model_extra or {})}
    kept = {name: value for name, value in extras.items() if value not in ({}, None)}
    if kept:
        parts.append(Opaque(NAMESPACE, as_json(kept, f"message {identity!r}")))
    known = cast("MessageKind", ours["kind"]) if ours.get("kind") in get_args(MessageKind) else "message"
    name = None if isinstance(message, ToolMessage) else message.name
    preserve = cast("bool | None", ours.get(PRESERVE))  # what is no bool is refused where the message is stored or sent
    return Message(identity, role, tuple(parts), name, known, model, usage, finish, preserve_reasoning=preserve)


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
        case FunctionMessage():  # the result of a call in the form before tools, which has no id
            return "user", {"chat": "function"}
        case ChatMessage() if message.role in _ROLES:
            return _ROLES[message.role], {"chat": message.role}
        case _:
            role = message.role if isinstance(message, ChatMessage) else message.type
            raise UnknownRoleError(
                f"message {message.id!r} is a {type(message).__name__} with role {role!r}: "
                "use SystemMessage, HumanMessage, AIMessage or ToolMessage"
            )


def _popped(meta: dict[str, Any], name: str) -> str | None:
    return cast("str", meta.pop(name)) if isinstance(meta.get(name), str) else None


def _mapping(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _jsonable(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if _fits_json(value)}


def _fits_json(value: Any) -> bool:
    """Returns False for what JSON text cannot hold, such as an object, or a lone surrogate in the name of a file."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _calls(message: AIMessage, ours: Mapping[str, Any], identity: str) -> list[Part]:
    texts = _argument_texts(message, _mapping(ours.get(_CALLS)))
    parts: list[Part] = []
    for number, call in enumerate(message.tool_calls):
        call_id = call["id"] or made_call_id(identity, number)
        text = texts.get(call_id)
        if text is None or json_object(text) != call["args"]:
            try:
                text = json.dumps(call["args"], ensure_ascii=False)
            except (TypeError, ValueError, RecursionError) as error:
                raise InvalidToolArgumentsError(
                    f"tool call {call['name']!r} in message {identity!r} has arguments that JSON cannot hold "
                    f"({json_problem(error)}): give plain values"
                ) from None
        parts.append(ToolCallPart(call_id, call["name"], text, _extra(ours, call_id)))
    parts += [
        ToolCallPart(str(c["id"]), c["name"] or "unknown", c["args"] or "", _extra(ours, str(c["id"])))
        for c in message.invalid_tool_calls
        if c["id"]
    ]
    return parts


def _extra(ours: Mapping[str, Any], call_id: str) -> str | None:
    """Returns what the provider sent beside a call."""
    extra = _mapping(_mapping(ours.get(_CALLS)).get(call_id)).get("extra")
    return extra if isinstance(extra, str) else None


def _invalid_rest(call: InvalidToolCall) -> dict[str, Any]:
    """Returns the fields of an invalid call that the engine's call does not hold.

    Without an id those are all fields: nothing can answer such a call, so it is no call for the engine.
    """
    if not call["id"]:
        return dict(call)
    return {name: value for name, value in call.items() if name not in ("args", "name") or not value}


def _argument_texts(message: AIMessage, ours: Mapping[str, Any]) -> dict[str, str]:
    """Returns the original text of the arguments, where it is still available."""
    texts: dict[str, str] = {}
    if isinstance(message, AIMessageChunk):
        texts |= {c["id"]: c["args"] for c in message.tool_call_chunks if c["id"] and c["args"]}
    raw: Any = message.additional_kwargs.get("tool_calls")
    for call in as_list(raw):
        text = _mapping(_mapping(call).get("function")).get("arguments")
        if isinstance(text, str):
            texts[str(_mapping(call).get("id"))] = text
    for call_id, call in ours.items():
        text = _mapping(call).get("arguments")
        if isinstance(text, str):
            texts[call_id] = text
    return texts


def _usage(message: AIMessage, extras: dict[str, Any]) -> Usage | None:
    reported = message.usage_metadata
    if reported is None or "input_tokens" not in reported:  # an answer from a cache may have a cost alone
        return None
    into, out = _mapping(reported.get("input_token_details")), _mapping(reported.get("output_token_details"))
    usage = Usage(
        reported["input_tokens"],
        reported["output_tokens"],
        _detail(into, "cache_read"),
        max(_detail(into, "cache_creation"), sum(into.get(name) or 0 for name in _WRITTEN_FOR)),
        _detail(out, "reasoning"),
    )
    if usage_metadata(usage) != reported:
        extras["usage"] = reported
    return usage


def _detail(details: Mapping[str, Any], name: str) -> int:
    """Returns the count of one kind of token. For other service tiers OpenAI uses names such as `priority_cache_read`."""
    return details.get(name) or sum(count or 0 for key, count in details.items() if key.endswith(f"_{name}"))


def usage_metadata(usage: Usage) -> dict[str, Any]:
    """Returns usage in LangChain's form; details that are zero are left out."""
    into = {"cache_read": usage.cache_read_tokens, "cache_creation": usage.cache_write_tokens}
    metadata: dict[str, Any] = {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }
    if any(into.values()):
        metadata["input_token_details"] = {name: value for name, value in into.items() if value}
    if usage.reasoning_tokens:
        metadata["output_token_details"] = {"reasoning": usage.reasoning_tokens}
    return metadata


def _result(message: ToolMessage, parts: Sequence[Part], extras: dict[str, Any]) -> list[Part]:
    text = RESULT_SEPARATOR.join(p.text for p in parts if isinstance(p, TextPart))
    if message.artifact is not None and _fits_json(message.artifact):
        extras["artifact"] = message.artifact
    result = ToolResultPart(message.tool_call_id or "", text, message.name, message.status == "error")
    return [result, *(p for p in parts if not isinstance(p, TextPart))]


def without_thoughts(message: Message) -> Message:
    """Returns the message without its reasoning, and without what only its model could verify of it."""
    bare = message.without_reasoning()
    extras = dict(_mapping(bare.opaque(NAMESPACE)))
    if not extras:
        return bare
    if "content" in extras:
        extras["content"] = without_thought_blocks(as_list(extras["content"]))
    extras["kwargs"] = {k: v for k, v in _mapping(extras.get("kwargs")).items() if k not in _BOUND_KWARGS}
    others = [p for p in bare.parts if not (isinstance(p, Opaque) and p.namespace == NAMESPACE)]
    return replace(bare, parts=(*others, Opaque(NAMESPACE, as_json(extras, f"message {message.id!r}"))))


def to_langchain(message: Message) -> BaseMessage:
    """Converts a message to LangChain's type.

    `additional_kwargs["ctxfold"]` holds the `kind` of a summary, and `preserve_reasoning` where the message has it.
    """
    extras = _mapping(message.opaque(NAMESPACE))
    kwargs = dict(_mapping(extras.get("kwargs")))
    ours: dict[str, Any] = {} if message.kind == "message" else {"kind": message.kind}
    if message.preserve_reasoning is not None:
        ours[PRESERVE] = message.preserve_reasoning
    fields: dict[str, Any] = {
        **_mapping(extras.get("extra")),
        "content": content_of(message, extras.get("content")),
        "id": message.id,
        "name": message.name,
        "response_metadata": _metadata(message, extras),
    }
    if message.role == "assistant":
        _tell(message, extras, fields, kwargs, ours)
    if ours:
        kwargs[OURS] = ours
    fields["additional_kwargs"] = kwargs
    if extras.get("chat") == "function":
        fields["name"] = message.name or ""
        return FunctionMessage(**fields)
    if "chat" in extras:
        return ChatMessage(role=extras["chat"], **fields)
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
            return ToolMessage(tool_call_id=result.call_id, status=status, artifact=extras.get("artifact"), **fields)


def to_langchain_messages(messages: Iterable[Message]) -> list[BaseMessage]:
    """Converts messages to LangChain's types, one for each tool result."""
    return [
        to_langchain(message if one is None else replace(message, parts=(one,)))
        for message in messages
        for one in (message.tool_results if len(message.tool_results) > 1 else (None,))
    ]


def _metadata(message: Message, extras: Mapping[str, Any]) -> dict[str, Any]:
    meta = _mapping(extras.get("meta"))
    # a stream's `stop_reason` is the finish reason, too; it is told by one name
    finish = None if meta.get("stop_reason") == message.finish_reason else message.finish_reason
    fields = {"model_name": message.model, "finish_reason": finish}
    return {**meta, **{name: value for name, value in fields.items() if value is not None}}


def _tell(
    message: Message, extras: Mapping[str, Any], fields: dict[str, Any], kwargs: dict[str, Any], ours: dict[str, Any]
) -> None:
    """Returns the fields that only an AIMessage has: calls, usage, reasoning, refusal."""
    calls: list[dict[str, Any]] = []
    invalid: list[dict[str, Any]] = []
    kept_calls = [dict(_mapping(c)) for c in as_list(extras.get("invalid"))]
    for call in message.tool_calls:
        args = call.parsed()
        if args is not None:
            calls.append({"name": call.name, "args": args, "id": call.id})
            continue
        rest = next((c for c in kept_calls if c.get("id") == call.id), {"error": _NO_OBJECT})
        invalid.append({"name": call.name, "args": call.arguments, "id": call.id, "type": "invalid_tool_call", **rest})
    fields |= {"tool_calls": calls, "invalid_tool_calls": [*invalid, *(c for c in kept_calls if not c.get("id"))]}
    if message.usage is not None:
        fields["usage_metadata"] = extras.get("usage") or usage_metadata(message.usage)
    content, _ = parts_of(fields["content"], "assistant", [call.id for call in message.tool_calls])
    if extras.get("both") or not any(isinstance(p, ReasoningPart) for p in content):
        kwargs |= reasoning_kwargs(message)
    ours |= reply_notes(message, content)
    refusal = message.opaque("refusal")
    if refusal is not None:
        kwargs["refusal"] = refusal
