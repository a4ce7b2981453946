"""LlamaIndex messages as ctxfold keeps them, without loss; `revert` is the way back.

What a model can see becomes parts; what only LlamaIndex knows (split points, token counts, roles such as "developer", further
`additional_kwargs`) travels beside them, and is left out where the parts alone give the same message back. Two things
do not travel: `thinking_delta` (of one chunk) and `images` (they are blocks already).
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

from llama_index.core.base.llms.types import (
    ChatMessage,
    ContentBlock,
    MessageRole,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)
from pydantic_core import PydanticSerializationError, to_jsonable_python

from ctxfold.errors import MessageError, UnknownRoleError
from ctxfold.given import json_problem
from ctxfold.messages import (
    MediaPart,
    Message,
    MessageKind,
    Opaque,
    Part,
    ReasoningPart,
    Role,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from llamaindex_ctx.marks import ID_KEY, KIND_KEY, NAMESPACE, REASONING_KEY, Json
from llamaindex_ctx.media import MEDIA_BLOCKS, media_part
from llamaindex_ctx.passing import chat_messages
from llamaindex_ctx.revert import to_chat_message
from llamaindex_ctx.rounds import calls_beside, paired

__all__ = ["from_chat_message", "from_chat_messages"]

_DROPPED: Final = frozenset({ID_KEY, KIND_KEY, "thinking_delta", "images"})

_ROLES: Final[Mapping[MessageRole, Role]] = {
    MessageRole.SYSTEM: "system",
    MessageRole.DEVELOPER: "system",
    MessageRole.USER: "user",
    MessageRole.ASSISTANT: "assistant",
    MessageRole.CHATBOT: "assistant",
    MessageRole.MODEL: "assistant",
    MessageRole.TOOL: "tool",
    MessageRole.FUNCTION: "tool",
}


def _new_id() -> str:
    return uuid.uuid4().hex


def from_chat_messages(
    messages: Iterable[ChatMessage | str],
    new_id: Callable[[], str] = _new_id,
    waiting: Sequence[ToolCallPart] = (),
    *,
    stray: Callable[[Message], Message] | None = None,
) -> list[Message]:
    """The messages for the engine or a backend: ids given, every tool call but those of the last round answered.

    A string is a user message. `waiting` and `stray` are those of `paired`: calls of messages that came before, and what
    becomes of a result that answers no call; with it, a function's message without call id may be one.
    """
    found = [from_chat_message(m, new_id(), strays=stray is not None) for m in chat_messages(messages)]
    return paired(found, new_id, waiting, stray=stray)


def from_chat_message(message: ChatMessage, id: str, *, strays: bool = False) -> Message:
    """Returns one message under the id that it carries, else under `id`.

    UnknownRoleError for a function's message without call id; with `strays`, it is a result that answers whichever call waits,
    or none. MessageError for what JSON cannot hold.
    """
    try:
        return _from_chat_message(message, id, strays)
    except (RecursionError, PydanticSerializationError) as error:
        problem = RecursionError() if "Recursion" in repr(error) else error
        raise MessageError(
            f"a {message.role.value} message holds what JSON cannot ({json_problem(problem)}): give plain values"
        ) from None


def _from_chat_message(message: ChatMessage, id: str, strays: bool) -> Message:
    role, kwargs = _role(message, strays), _kwargs(message)
    carried = message.additional_kwargs.get(ID_KEY)
    text = None if kwargs or KIND_KEY in message.additional_kwargs else _only_text(message)
    if text is not None and role != "tool" and message.role.value == role:
        return Message(str(carried) if carried else id, role, (TextPart(text),))
    reading = _Reading(str(carried) if carried else id, role, kwargs)
    for block in message.blocks:
        reading.take(block)
    marked = message.additional_kwargs.get(KIND_KEY)
    kind: MessageKind = marked if marked in {"summary", "section"} else "message"
    name = kwargs.get("name")
    plain = Message(reading.id, role, reading.finish(), name if isinstance(name, str) else None, kind)
    has_media = any(isinstance(p, MediaPart) for p in plain.parts)
    if not has_media and _seen(to_chat_message(plain)) == _seen(message):
        return plain
    beside = json.dumps({"role": message.role.value, "kwargs": kwargs, "blocks": reading.spec})
    return replace(plain, parts=(*plain.parts, Opaque(NAMESPACE, beside)))


def _only_text(message: ChatMessage) -> str | None:
    """Of a message that is one text block and nothing else."""
    block = message.blocks[0] if len(message.blocks) == 1 else None
    return block.text if isinstance(block, TextBlock) and block == TextBlock(text=block.text) else None


def _role(message: ChatMessage, strays: bool) -> Role:
    role = _ROLES.get(message.role)
    if role is None:
        raise UnknownRoleError(
            f"role {message.role!r} is not known: use one of {', '.join(sorted(r.value for r in _ROLES))}"
        )
    if message.role is MessageRole.FUNCTION and not strays and not message.additional_kwargs.get("tool_call_id"):
        raise UnknownRoleError(
            "a message in the role 'function' does not say which call it answers: use the role 'tool' with "
            'additional_kwargs={"tool_call_id": ...}'
        )
    return role


def _kwargs(message: ChatMessage) -> Json:
    if not message.additional_kwargs:
        return {}
    kept = {k: v for k, v in message.additional_kwargs.items() if k not in _DROPPED}
    # objects of a provider's library and the like: as LlamaIndex itself would write them down
    return cast(
        "Json",
        to_jsonable_python(
            message.model_copy(update={"additional_kwargs": kept}).model_dump()["additional_kwargs"], fallback=str
        ),
    )


def _seen(message: ChatMessage) -> tuple[str, Json, list[Json]]:
    return message.role.value, _kwargs(message), [b.model_dump() for b in message.blocks]


@dataclass(slots=True)
class _Reading:
    """One message's blocks on their way into parts, with a note per block on what its part does not say."""

    id: str
    role: Role
    kwargs: Json
    parts: list[Part] = field(default_factory=list[Part])
    spec: list[Json] = field(default_factory=list[Json])
    texts: list[str] = field(default_factory=list[str])

    def take(self, block: ContentBlock) -> None:
        match block:
            case TextBlock() if self.role == "tool":
                self.texts.append(block.text)
                self.spec.append({"k": "slice", "n": len(block.text)})
            case TextBlock():
                self._put(TextPart(block.text), {"k": "text"})
            case ThinkingBlock():
                self._put(*_from_thinking(block))
            case ToolCallBlock():
                self._put(*self._from_call(block))
            case _ if isinstance(block, MEDIA_BLOCKS):
                part, fields = media_part(block)
                self._put(part, {"k": "media", "fields": fields})
            case _:
                self._other(block)

    def _put(self, part: Part, note: Json) -> None:
        self.parts.append(part)
        self.spec.append(note)

    def _other(self, block: Any) -> None:
        """A block without a part of its own kind; the text inside it, if any, is shown and counted."""
        note: Json = {"k": "raw", "block": block.model_dump(mode="json")}
        inner = getattr(block, "cited_content", None) or getattr(block, "content", None) or ()
        held = cast("list[object]", inner) if isinstance(inner, list) else [inner]
        texts = [b.text for b in held if isinstance(b, TextBlock)]
        joined = "\n".join(texts)
        if not texts:
            self.spec.append(note)
        elif self.role == "tool":
            self.texts.append(joined)
            self.spec.append({**note, "n": len(joined), "told": True})
        else:
            self._put(TextPart(joined), {**note, "shown": True})

    def _from_call(self, block: ToolCallBlock) -> tuple[ToolCallPart, Json]:
        number = sum(isinstance(p, ToolCallPart) for p in self.parts)
        given = block.tool_kwargs
        arguments = given if isinstance(given, str) else json.dumps(to_jsonable_python(given), ensure_ascii=False)
        part = ToolCallPart(
            self._call_id(block.tool_call_id, number), block.tool_name, arguments if arguments.strip() else "{}"
        )
        note: Json = {"k": "call", "id": block.tool_call_id}
        return part, {**note, "text": given} if isinstance(given, str) else note

    def _call_id(self, given: str | None, number: int) -> str:
        """The call's id; some integrations give none, or the tool's name to all calls of it."""
        used = {p.id for p in self.parts if isinstance(p, ToolCallPart)}
        if not given:
            return f"call_{self.id}_{number}"
        return given if given not in used else f"{given}#{number}"

    def finish(self) -> tuple[Part, ...]:
        """All parts, with the reasoning and the tool calls that stand in `additional_kwargs` alone."""
        if self.role == "tool":
            call_id, name = self.kwargs.get("tool_call_id"), self.kwargs.get("name")
            result = ToolResultPart(str(call_id or ""), "\n".join(self.texts), name if isinstance(name, str) else None)
            self.parts.insert(0, result)
        if self.role == "assistant":
            self._from_kwargs()
        return tuple(self.parts)

    def _from_kwargs(self) -> None:
        reasoning = self.kwargs.get(REASONING_KEY)
        if isinstance(reasoning, str) and reasoning and not any(isinstance(p, ReasoningPart) for p in self.parts):
            self.parts.insert(0, ReasoningPart(reasoning))
            self.spec.insert(0, {"k": "hidden"})
        known = {p.id for p in self.parts if isinstance(p, ToolCallPart)}
        for number, call in enumerate(calls_beside(self.kwargs.get("tool_calls"))):
            if call.id not in known:
                named = call if call.id else replace(call, id=self._call_id(None, number))
                self._put(named, {"k": "hidden"})


def _from_thinking(block: ThinkingBlock) -> tuple[ReasoningPart, Json]:
    info = dict(block.additional_information)
    signature, details = info.get("signature"), info.get("details")
    part = ReasoningPart(
        block.content or "",
        signature if isinstance(signature, str) else None,
        details if isinstance(details, str) else None,
    )
    rest = to_jsonable_python(info, fallback=str)
    return part, {"k": "thinking", "none": block.content is None, "num": block.num_tokens, "info": rest}
