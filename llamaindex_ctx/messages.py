"""Converts LlamaIndex messages to ctxfold messages and back without loss."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, cast

from llama_index.core.base.llms.types import (
    ChatMessage,
    ContentBlock,
    MessageRole,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)
from llama_index.core.storage.chat_store.base_db import MessageStatus
from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError, SchemaValidator, core_schema, to_jsonable_python

from ctxfold.adapters.part_order import arranged, bound, order_note
from ctxfold.adapters.tool_rounds import paired
from ctxfold.effects import Call, Flow
from ctxfold.errors import ConfigError, MessageConflictError, MessageError, UnknownRoleError
from ctxfold.history.cuts import made_call_id
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
from ctxfold.protocols import UuidIds
from ctxfold.validation import as_dict, is_a, json_object, json_problem, kind_of
from llamaindex_ctx.media import MEDIA_BLOCKS, media_block, media_part, plain_media_block
from llamaindex_ctx.metadata import (
    ID_KEY,
    KIND_KEY,
    NAMESPACE,
    NEWEST_KEY,
    PRESERVE_KEY,
    REASONING_KEY,
    REPLY_KEY,
    Json,
    Noted,
    calls_in_kwargs,
    mark,
    section,
    with_call_ids,
)

_LLAMAINDEX_ROLES: Final[dict[str, MessageRole]] = {role.value: role for role in MessageRole}
_block: TypeAdapter[ContentBlock] = TypeAdapter(ContentBlock)
# `ChatMessage(...)` takes five times as long as this, for fields that are valid already
_valid: Final = core_schema.model_field(core_schema.any_schema())
_blocks: Final = core_schema.model_field(core_schema.list_schema(TextBlock.__pydantic_core_schema__))
_fields: Final = {"role": _valid, "additional_kwargs": _valid, "blocks": _blocks}
_text_message: Final = SchemaValidator(core_schema.model_schema(ChatMessage, core_schema.model_fields_schema(_fields)))


def to_chat_messages(messages: Iterable[Message]) -> list[ChatMessage]:
    """Converts messages to LlamaIndex's type, each a new object; one for each tool result.

    Calls and results have the ids that pair them: a call that came without an id, or with that of another call of its reply,
    has an id of its own.
    """
    converted: list[ChatMessage] = []
    for message in messages:
        if (text := _only_text(message)) is not None:
            converted.append(_of_text(message, text))
        elif len(results := message.tool_results) > 1:
            converted += [to_chat_message(replace(message, parts=(result,))) for result in results]
        else:
            converted.append(_with_paired_ids(to_chat_message(message), message))
    return converted


def _with_paired_ids(converted: ChatMessage, message: Message) -> ChatMessage:
    """Replaces the ids that the message came with by those that pair calls and results: services match them by id."""
    calls, results, kwargs = message.tool_calls, message.tool_results, converted.additional_kwargs
    # calls that only `additional_kwargs` has are the last ones
    for block, call in zip((b for b in converted.blocks if isinstance(b, ToolCallBlock)), calls, strict=False):
        block.tool_call_id = call.id
    kwargs_calls: object = kwargs.get("tool_calls")
    if isinstance(kwargs_calls, list):
        kwargs["tool_calls"] = with_call_ids(cast("list[object]", kwargs_calls), [c.id for c in calls])
    if results and results[0].call_id:
        kwargs["tool_call_id"] = results[0].call_id
    return converted


def with_distinct_call_ids(message: ChatMessage, message_id: str) -> ChatMessage:
    """Returns a reply whose calls have an id each, as the engine will store them under `message_id`.

    Parallel calls of an agent return in any order, and their results have nothing but the id to tell them apart.
    """
    ids: list[str] = []
    blocks: list[ContentBlock] = []
    for block in message.blocks:
        if isinstance(block, ToolCallBlock):
            ids.append(_distinct_call_id(block.tool_call_id, ids, message_id))
            blocks.append(block.model_copy(update={"tool_call_id": ids[-1]}))
        else:
            blocks.append(block)
    return message.model_copy(update={"blocks": blocks}) if ids else message


def _distinct_call_id(raw: str | None, used: Sequence[str], message_id: str) -> str:
    """Returns the id of a call; some integrations set none, or the tool's name for all its calls."""
    number = len(used)
    if not raw:
        return made_call_id(message_id, number)
    return raw if raw not in used else f"{raw}#{number}"


def to_chat_message(message: Message) -> ChatMessage:
    """Converts a message to LlamaIndex's type; one that came from LlamaIndex is returned exactly as it was.

    In its `additional_kwargs`, "ctxfold_id" holds the id, and "ctxfold_preserve_reasoning" the value of `preserve_reasoning`.
    """
    if (text := _only_text(message)) is not None:
        return _of_text(message, text)
    original: Json | None = message.opaque(NAMESPACE)
    parts = [p for p in message.parts if not isinstance(p, Opaque)]
    marks: Json = {ID_KEY: message.id}
    if message.kind != "message":
        marks[KIND_KEY] = message.kind
    if message.preserve_reasoning is not None:
        marks[PRESERVE_KEY] = message.preserve_reasoning
    if note := _reply_note(message):
        marks[REPLY_KEY] = note
    blocks = None if original is None else _restored(parts, cast("list[Json]", original["blocks"]))
    if original is None or blocks is None:
        converted = _plain(message, parts)
    else:
        converted = ChatMessage(
            role=_LLAMAINDEX_ROLES[original["role"]], blocks=blocks, additional_kwargs=original["kwargs"]
        )
    converted.additional_kwargs = Noted(converted.additional_kwargs, marks)
    return converted


def _only_text(message: Message) -> str | None:
    """Returns the text of a message that holds nothing else, as most do; None for others."""
    only = message.parts[0] if len(message.parts) == 1 else None
    marked = message.name or message.kind != "message" or message.preserve_reasoning is not None
    return only.text if type(only) is TextPart and only.extra is None and not marked else None


def _reply_note(message: Message) -> Json:
    """Returns what the blocks of a reply have no place for: which model made it, and what it sent beside texts and calls.

    The model counts where something may go back to it alone, thoughts that are not signed among it.
    """
    if not (bound(message) or message.reasoning):
        return {}
    note: Json = {} if message.model is None else {"model": message.model}
    if any(isinstance(part, TextPart) and part.extra is not None for part in message.parts):
        note["parts"] = order_note(message.parts)
    if extras := {call.id: call.extra for call in message.tool_calls if call.extra is not None}:
        note["calls"] = extras
    return note


def _with_texts_joined(parts: Iterable[Part]) -> list[Part]:
    """Returns the parts with neighbouring texts as one, where a provider sent something beside them: its texts are one answer."""
    joined: list[Part] = []
    for part in parts:
        last = joined[-1] if joined else None
        if isinstance(part, TextPart) and isinstance(last, TextPart) and (part.extra, last.extra) != (None, None):
            joined[-1] = TextPart(last.text + part.text, part.extra or last.extra)
        else:
            joined.append(part)
    return joined


def _of_text(message: Message, text: str) -> ChatMessage:
    fields = {
        "role": _LLAMAINDEX_ROLES[message.role],
        "additional_kwargs": Noted({}, {ID_KEY: message.id}),
        "blocks": [{"text": text}],
    }
    converted: ChatMessage = _text_message.validate_python(fields)
    return converted


def _plain(message: Message, parts: Sequence[Part]) -> ChatMessage:
    kwargs: Json = {}
    results = message.tool_results
    if results:
        kwargs["tool_call_id"] = results[0].call_id
    name = message.name or (results[0].name if results else None)
    if name:
        kwargs["name"] = name
    if message.reasoning:
        # streaming chat engines keep one text block and the kwargs, nothing else
        kwargs[REASONING_KEY] = message.reasoning
    blocks = [b for p in _with_texts_joined(parts) if (b := _plain_block(p)) is not None]
    return ChatMessage(role=_LLAMAINDEX_ROLES[message.role], blocks=blocks, additional_kwargs=kwargs)


def _plain_block(part: Part) -> ContentBlock | None:
    match part:
        case TextPart(text=text) | ToolResultPart(content=text):
            return TextBlock(text=text)
        case ReasoningPart():
            info = {"signature": part.signature, "details": part.details}
            return ThinkingBlock(
                content=part.text, additional_information={k: v for k, v in info.items() if v is not None}
            )
        case ToolCallPart():
            return ToolCallBlock(tool_call_id=part.id, tool_name=part.name, tool_kwargs=_arguments(part.arguments))
        case MediaPart():
            return plain_media_block(part)
        case Opaque():
            return None


def _arguments(text: str) -> Json | str:
    """Returns the decoded arguments; unchanged where decoding fails, so that the engine refuses them."""
    arguments = json_object(text)
    return text if arguments is None else arguments


def _restored(parts: Sequence[Part], spec: Sequence[Json]) -> list[ContentBlock] | None:
    """Restores the blocks; returns None when the parts no longer match the notes."""
    results = [p for p in parts if isinstance(p, ToolResultPart)]
    lengths = [n["n"] for n in spec if n["k"] == "slice" or n.get("told")]
    slices = _slices(results[0].content, lengths) if results else deque[str]()
    queue = deque(_with_texts_joined(p for p in parts if not isinstance(p, ToolResultPart)))
    blocks: list[ContentBlock] = [TextBlock(text=results[0].content)] if slices is None else []
    for note in spec:
        if note["k"] == "slice" or note.get("told"):
            if slices:
                text = slices.popleft()
                blocks.append(_block.validate_python(note["block"]) if note.get("told") else TextBlock(text=text))
        elif note["k"] == "raw" and not note.get("shown"):
            blocks.append(_block.validate_python(note["block"]))
        elif not queue:
            return None
        elif (block := _noted_block(queue.popleft(), note)) is not None:
            blocks.append(block)
    return None if queue else blocks


def _slices(content: str, lengths: Sequence[int]) -> deque[str] | None:
    """Returns the texts that were joined into a tool's result; None when it is now shown as an excerpt."""
    if sum(lengths) + max(0, len(lengths) - 1) != len(content):
        return None
    slices: deque[str] = deque()
    at = 0
    for length in lengths:
        slices.append(content[at : at + length])
        at += length + 1
    return slices


def _noted_block(part: Part, note: Json) -> ContentBlock | None:
    match note["k"], part:
        case "raw", _:
            return _block.validate_python(note["block"])
        case "thinking", ReasoningPart():
            content = None if note["none"] and not part.text else part.text
            return ThinkingBlock(content=content, num_tokens=note["num"], additional_information=note["info"])
        case "call", ToolCallPart():
            kwargs = note["text"] if "text" in note else _arguments(part.arguments)
            return ToolCallBlock(tool_call_id=note["id"], tool_name=part.name, tool_kwargs=kwargs)
        case "media", MediaPart():
            return media_block(part, note["fields"])
        case "text", TextPart():
            return TextBlock(text=part.text)
        case _:
            return None


# from here on, converting and counting would hold up an event loop
MANY = 200  # messages
LONG = 200_000  # characters


def listed(messages: Iterable[ChatMessage | str]) -> Sequence[ChatMessage | str]:
    """Returns a list of messages and strings; raises MessageError for anything else, such as a text."""
    if is_a(messages, (str, ChatMessage, Mapping)) or not is_a(messages, Iterable):
        raise MessageError(f"the messages are {kind_of(messages)}: give a list of them")
    items = messages if isinstance(messages, list | tuple) else [*messages]
    wrong = [m for m in items if not is_a(m, (str, ChatMessage))]
    if wrong:
        raise MessageError(f"a message is {kind_of(wrong[0])}: give ChatMessage(role='user', content='...'), or a text")
    return items


def chat_messages(messages: Iterable[ChatMessage | str]) -> list[ChatMessage]:
    """Returns the list that `listed` checks, with each text as a user message."""
    return [ChatMessage(content=m) if isinstance(m, str) else m for m in listed(messages)]


def question(input: Any) -> str | None:
    """Returns the words of a question: a text, a message, or another input of chat engines, such as a QueryBundle."""
    if isinstance(input, ChatMessage):
        return input.content
    return None if input is None else str(input)


def heavy(messages: Sequence[ChatMessage | str]) -> bool:
    return len(messages) > MANY or sum(len(m if isinstance(m, str) else m.content or "") for m in messages) > LONG


def shown(messages: Sequence[Message]) -> Flow[list[ChatMessage]]:
    """Converts the messages, on an event loop in a thread when there are many."""
    if len(messages) > MANY:
        return (yield from Call(partial(to_chat_messages, messages)))
    return to_chat_messages(messages)


def as_window(messages: list[ChatMessage], recalled: str) -> list[ChatMessage]:
    """Returns the messages with recalled passages among them, and a mark on the question if they end with one.

    By the mark an LLM over the same session tells a list that others were faster than from one that its caller has cut.
    """
    last_is_user = bool(messages) and messages[-1].role == "user"
    if last_is_user:
        mark(messages[-1], **{NEWEST_KEY: "yes"})
    if recalled:
        messages.insert(len(messages) - 1 if last_is_user else len(messages), section(recalled))
    return messages


def with_status(
    messages: Sequence[Message], view: Sequence[Message], status: MessageStatus | None
) -> Sequence[Message]:
    """Returns all messages, or those in the view (ACTIVE), or those that only the archive has (ARCHIVED)."""
    if status is None:
        return messages
    ids: Collection[str] = {m.id for m in view}
    return [m for m in messages if (m.id in ids) == (status is MessageStatus.ACTIVE)]


def archive_stays(status: MessageStatus | None) -> None:
    """Raises ConfigError for a call that would empty the archive."""
    if status is MessageStatus.ARCHIVED:
        raise ConfigError(
            "a memory keeps its archive: memory.context.erasure.erase_session() takes a session out of the store"
        )


def without_own(messages: Sequence[Message], view: Sequence[Message]) -> list[Message]:
    """Returns the messages without summaries of this session, which an engine may pass back."""
    known = {m.id for m in view if m.kind == "summary"}
    return [m for m in messages if m.id not in known]


def carry_ids(messages: Iterable[ChatMessage | str]) -> bool:
    """Returns True if a memory has handed out one of the messages before."""
    return any(not isinstance(m, str) and ID_KEY in m.additional_kwargs for m in messages)


def with_distinct_ids(messages: Sequence[Message], new_id: Callable[[], str]) -> list[Message]:
    """Returns the messages of a history; the first under an id keeps it, copies of it behind that are new messages."""
    distinct: dict[str, Message] = {}
    for message in messages:
        own = message if message.id not in distinct else replace(message, id=new_id())
        distinct[own.id] = own
    return list(distinct.values())


@contextmanager
def explained_conflict() -> Generator[None, None, None]:
    """Adds to a MessageConflictError where the id comes from: who copies a message has not given one."""
    try:
        yield
    except MessageConflictError as error:
        raise MessageConflictError(
            f'{error}. A copy of a message has its id in additional_kwargs["{ID_KEY}"]: to store it as a new one, create '
            "ChatMessage(role=..., blocks=...) from it"
        ) from None


_DROPPED: Final = frozenset({ID_KEY, KIND_KEY, NEWEST_KEY, PRESERVE_KEY, REPLY_KEY, "thinking_delta", "images"})

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


_new_id = UuidIds().new


def from_chat_messages(
    messages: Iterable[ChatMessage | str],
    new_id: Callable[[], str] = _new_id,
    waiting: Sequence[ToolCallPart] = (),
    *,
    stray: Callable[[Message], Message] | None = None,
) -> list[Message]:
    """Converts messages for the engine or a backend: adds missing ids, and results for open calls before the last round.

    A string is a user message. `waiting` are open calls of earlier messages. `stray` converts a result that answers no call.
    """
    converted = [from_chat_message(m, new_id()) for m in chat_messages(messages)]
    return paired(converted, new_id, waiting, stray=stray)


def from_chat_message(message: ChatMessage, id: str) -> Message:
    """Converts a LlamaIndex message, under the id that it has or else under `id`.

    A function message without call id is a result of whichever call waits. Raises MessageError for content that JSON cannot
    represent.
    """
    try:
        return _from_chat_message(message, id)
    except (RecursionError, PydanticSerializationError) as error:
        problem = RecursionError() if "Recursion" in repr(error) else error
        raise MessageError(
            f"a {message.role.value} message holds what JSON cannot ({json_problem(problem)}): give plain values"
        ) from None


def _from_chat_message(message: ChatMessage, id: str) -> Message:
    role, kwargs = _role(message), _kwargs(message)
    carried = message.additional_kwargs.get(ID_KEY)
    marked = message.additional_kwargs.get(KIND_KEY)
    preserve: bool | None = message.additional_kwargs.get(PRESERVE_KEY)
    note = as_dict(message.additional_kwargs.get(REPLY_KEY))
    text = None if kwargs or note or marked is not None or preserve is not None else _single_text_block(message)
    if text is not None and role != "tool" and message.role.value == role:
        return Message(str(carried) if carried else id, role, (TextPart(text),))
    reading = _Reading(str(carried) if carried else id, role, kwargs)
    for block in distinct_blocks(message):
        reading.take(block)
    parts, model = reading.finish(), note.get("model")
    if role == "assistant":
        parts = _as_noted(parts, note)
    kind: MessageKind = marked if marked in {"summary", "section"} else "message"
    name = kwargs.get("name")
    plain = Message(
        reading.id,
        role,
        parts,
        name if isinstance(name, str) else None,
        kind,
        model if isinstance(model, str) else None,
        preserve_reasoning=preserve,
    )
    has_media = any(isinstance(p, MediaPart) for p in plain.parts)
    if not has_media and _is_whole(to_chat_message(plain), message, kwargs):
        return plain
    original = json.dumps({"role": message.role.value, "kwargs": kwargs, "blocks": reading.spec})
    return replace(plain, parts=(*plain.parts, Opaque(NAMESPACE, original)))


def distinct_blocks(message: ChatMessage) -> list[ContentBlock]:
    """Returns the blocks, each object once: OpenAIResponses lists those of earlier items again with each item of a reply."""
    return [*{id(block): block for block in message.blocks}.values()]


def _as_noted(parts: Iterable[Part], note: Mapping[str, Any]) -> tuple[Part, ...]:
    """Returns the parts as the reply had them, with what its provider sent beside them."""
    known = as_dict(note.get("calls"))
    with_extras = [
        replace(p, extra=known[p.id]) if isinstance(p, ToolCallPart) and isinstance(known.get(p.id), str) else p
        for p in parts
    ]
    return tuple(arranged(note.get("parts"), with_extras))


def _single_text_block(message: ChatMessage) -> str | None:
    """Returns the text of a message that consists of one plain text block; None for others."""
    block = message.blocks[0] if len(message.blocks) == 1 else None
    return block.text if isinstance(block, TextBlock) and block == TextBlock(text=block.text) else None


def _role(message: ChatMessage) -> Role:
    role = _ROLES.get(message.role)
    if role is None:
        raise UnknownRoleError(
            f"role {message.role!r} is not known: use one of {', '.join(sorted(r.value for r in _ROLES))}"
        )
    return role


def _kwargs(message: ChatMessage) -> Json:
    if not message.additional_kwargs:
        return {}
    own_kwargs = {k: v for k, v in message.additional_kwargs.items() if k not in _DROPPED}
    # objects of a provider's library and the like: as LlamaIndex itself would write them down
    dumped = message.model_copy(update={"additional_kwargs": own_kwargs}).model_dump(include={"additional_kwargs"})
    return cast("Json", to_jsonable_python(dumped["additional_kwargs"], fallback=str))


def _is_whole(converted: ChatMessage, message: ChatMessage, kwargs: Json) -> bool:
    """Returns True if the message came back from its parts as it was; `kwargs` are its own, in plain values."""
    if converted.role != message.role or dict(converted.additional_kwargs) != kwargs:
        return False
    return [b.model_dump() for b in converted.blocks] == [b.model_dump() for b in message.blocks]


@dataclass(slots=True)
class _Reading:
    """Converts one message's blocks into parts, with a note for each block on what its part does not hold."""

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
        """Reads a block that has no kind of part; any text inside it is shown and counted."""
        note: Json = {"k": "raw", "block": block.model_dump(mode="json")}
        inner = getattr(block, "cited_content", None) or getattr(block, "content", None) or ()
        contents = cast("list[object]", inner) if isinstance(inner, list) else [inner]
        texts = [b.text for b in contents if isinstance(b, TextBlock)]
        joined = "\n".join(texts)
        if not texts:
            self.spec.append(note)
        elif self.role == "tool":
            self.texts.append(joined)
            self.spec.append({**note, "n": len(joined), "told": True})
        else:
            self._put(TextPart(joined), {**note, "shown": True})

    def _from_call(self, block: ToolCallBlock) -> tuple[ToolCallPart, Json]:
        raw = block.tool_kwargs
        arguments = raw if isinstance(raw, str) else json.dumps(to_jsonable_python(raw), ensure_ascii=False)
        part = ToolCallPart(
            self._call_id(block.tool_call_id), block.tool_name, arguments if arguments.strip() else "{}"
        )
        note: Json = {"k": "call", "id": block.tool_call_id}
        return part, {**note, "text": raw} if isinstance(raw, str) else note

    def _call_id(self, raw: str | None) -> str:
        return _distinct_call_id(raw, [p.id for p in self.parts if isinstance(p, ToolCallPart)], self.id)

    def finish(self) -> tuple[Part, ...]:
        """Returns all parts, with the reasoning and the tool calls that only `additional_kwargs` has."""
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
        for call in calls_in_kwargs(self.kwargs.get("tool_calls")):
            # one without an id stands for one of the blocks too
            if call.id not in known and (call.id or not known):
                self._put(replace(call, id=self._call_id(call.id)), {"k": "hidden"})


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
