"""Defines messages and their parts: frozen values that every other module uses."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from itertools import count
from json.encoder import encode_basestring_ascii
from operator import add, sub
from typing import Annotated, Any, Literal, TypeAlias, cast, get_args

from ctxfold.errors import InvalidTextError, InvalidToolArgumentsError, MessageError, UnknownRoleError
from ctxfold.validation import (
    as_dict,
    as_dicts,
    as_list,
    as_text,
    is_a,
    json_object,
    json_problem,
    kind_of,
    read_json,
    strict_json,
)

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]
MessageKind: TypeAlias = Literal["message", "summary", "section"]
Visibility: TypeAlias = Literal["model", "user"]
ROLES: frozenset[str] = frozenset(get_args(Role))
KINDS: frozenset[str] = frozenset(get_args(MessageKind))
VISIBLE = frozenset({*get_args(Visibility), None})
REFUSAL = "refusal"  # the namespace of the opaque part that keeps why a model refused
PROVIDER_SUMMARY = "provider_summary"  # the namespace of the opaque part that keeps a provider's own summary


@dataclass(frozen=True, slots=True)
class TextPart:
    """Visible text. `extra` is a JSON object that a provider sent with the text and wants back with it, such as a signature."""

    text: str
    extra: str | None = None
    type: Literal["text"] = "text"


@dataclass(frozen=True, slots=True)
class ReasoningPart:
    """A model's reasoning; `details` keeps the provider's own blocks as JSON text, byte for byte."""

    text: str
    signature: str | None = None
    details: str | None = None
    type: Literal["reasoning"] = "reasoning"


@dataclass(frozen=True, slots=True)
class MediaPart:
    """A reference to an image, a file or a sound; `data` is JSON text in the shape its framework or provider gave it."""

    kind: str
    data: str
    mime: str | None = None
    type: Literal["media"] = "media"


@dataclass(frozen=True, slots=True)
class ToolCallPart:
    """A tool call. `arguments` is the text as received: a JSON object, unless the model wrote a malformed call."""

    id: str
    name: str
    arguments: str
    extra: str | None = None
    type: Literal["tool_call"] = "tool_call"

    def parsed(self) -> dict[str, Any] | None:
        """Returns the arguments as an object, None for a malformed call, which is stored and answered like any other."""
        return json_object(self.arguments)


@dataclass(frozen=True, slots=True)
class ToolResultPart:
    """The result of a tool call, as text."""

    call_id: str
    content: str
    name: str | None = None
    is_error: bool = False
    type: Literal["tool_result"] = "tool_result"


@dataclass(frozen=True, slots=True)
class Opaque:
    """Data that only one framework uses, as JSON text; it is never sent, counted or compared (apart from `ProviderSummary`)."""

    namespace: str
    json: str
    type: Literal["opaque"] = "opaque"


Part: TypeAlias = TextPart | ReasoningPart | MediaPart | ToolCallPart | ToolResultPart | Opaque
PARTS = (TextPart, ReasoningPart, MediaPart, ToolCallPart, ToolResultPart, Opaque)


class _ByType:
    """Makes pydantic choose the class of a part by its `type`: it would try one after the other, which takes five times as long."""

    @staticmethod
    def __get_pydantic_core_schema__(source: Any, handler: Callable[[Any], Any]) -> Any:
        from pydantic import Field

        return handler(Annotated[source, Field(discriminator="type")])


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as a provider reported them; `input_tokens` includes cache hits."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(*map(add, astuple(self), astuple(other)))

    def __sub__(self, other: Usage) -> Usage:
        return Usage(*map(sub, astuple(self), astuple(other)))


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool that the model may call; `parameters` is a JSON schema."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a conversation.

    `id` is unique within its session. `kind` separates summaries and injected sections from ordinary messages; `model`, `usage`
    and `finish_reason` are set on replies. `visibility` None means model and user; a message for the user only is neither counted
    nor sent. `preserve_reasoning` True sends the reasoning back even where the provider's profile strips it; False strips it,
    except beside tool calls, where providers demand it; None follows the profile. Reasoning that the provider would refuse is
    never sent back.
    """

    id: str
    role: Role
    parts: tuple[Annotated[Part, _ByType], ...] = ()
    name: str | None = None
    kind: MessageKind = "message"
    model: str | None = None
    usage: Usage | None = None
    finish_reason: str | None = None
    visibility: Visibility | None = None
    preserve_reasoning: bool | None = None

    @property
    def text(self) -> str:
        """Returns the visible text: all text parts, or the content of the tool result."""
        # read many times in every turn: a list and a tuple of types take half the time of a generator and a union
        return "".join(
            [
                p.text if isinstance(p, TextPart) else p.content
                for p in self.parts
                if isinstance(p, (TextPart, ToolResultPart))
            ]
        )

    @property
    def content(self) -> str | None:
        """Returns the visible text, or None when no part holds text; "" is an empty text."""
        return self.text if any(isinstance(p, TextPart | ToolResultPart) for p in self.parts) else None

    @property
    def reasoning(self) -> str:
        """Returns the reasoning text, "" when there is none."""
        return "".join(p.text for p in self.parts if isinstance(p, ReasoningPart))

    @property
    def tool_calls(self) -> tuple[ToolCallPart, ...]:
        return tuple([p for p in self.parts if isinstance(p, ToolCallPart)])

    @property
    def tool_results(self) -> tuple[ToolResultPart, ...]:
        return tuple([p for p in self.parts if isinstance(p, ToolResultPart)])

    def opaque(self, namespace: str) -> Any:
        """Returns the decoded data that a framework stored with the message; None when there is none."""
        part = next((p for p in self.parts if isinstance(p, Opaque) and p.namespace == namespace), None)
        return None if part is None else json.loads(part.json)

    def without_reasoning(self) -> Message:
        return replace(self, parts=tuple(p for p in self.parts if not isinstance(p, ReasoningPart)))

    def with_role(self, role: Role) -> Message:
        return replace(self, role=role)


@dataclass(frozen=True, slots=True)
class ProviderSummary:
    """A summary that a provider wrote on its own side. `blocks` are the unchanged blocks of its wire format that hold it.

    Only the model that wrote them can read them, on that provider and wire. `tokens` is their size as the provider reported it,
    or as ctxfold counts it.
    """

    wire: str
    provider: str
    model: str
    blocks: tuple[Mapping[str, Any], ...]
    tokens: int = 0

    def part(self) -> Opaque:
        """Returns the part that keeps it in a summary message, whose text is for every other model."""
        fields = {"wire": self.wire, "provider": self.provider, "model": self.model, "tokens": self.tokens}
        return Opaque(PROVIDER_SUMMARY, json.dumps({**fields, "blocks": self.blocks}, ensure_ascii=False))

    @staticmethod
    def of(message: Message) -> ProviderSummary | None:
        """Returns the provider's summary in a summary message; None when it has none."""
        kept = as_dict(message.opaque(PROVIDER_SUMMARY) if message.kind == "summary" else None)
        if not kept:
            return None
        tokens: Any = kept.get("tokens")
        wire, provider, model = (as_text(kept.get(name)) for name in ("wire", "provider", "model"))
        return ProviderSummary(
            wire, provider, model, tuple(as_dicts(kept.get("blocks"))), tokens if is_a(tokens, int) else 0
        )


def system(text: str, *, id: str = "") -> Message:
    """Returns a system message with one text part; without an id, the session that takes it gives it one."""
    return Message(id, "system", (TextPart(text),))


def user(text: str, *, id: str = "") -> Message:
    """Returns a user message with one text part; without an id, the session that takes it gives it one."""
    return Message(id, "user", (TextPart(text),))


def assistant(text: str, *, id: str = "", reasoning: str = "", calls: Iterable[ToolCallPart] = ()) -> Message:
    """Returns an assistant message; empty text or reasoning adds no part."""
    parts: list[Part] = []
    if reasoning:
        parts.append(ReasoningPart(reasoning))
    if text:
        parts.append(TextPart(text))
    return Message(id, "assistant", (*parts, *calls))


def tool_result(
    call_id: str,
    content: str,
    *,
    id: str = "",
    name: str | None = None,
    is_error: bool = False,
) -> Message:
    """Returns the result of the tool call with the id `call_id`; `name` is the tool's name."""
    return Message(id, "tool", (ToolResultPart(call_id, content, name, is_error),))


def result_as_text(message: Message) -> Message:
    """Returns the result of a call that the conversation does not have as a user message; no service takes it as a result."""
    media = (p for p in message.parts if isinstance(p, MediaPart))
    return replace(message, role="user", parts=(TextPart(f"Result of a tool call:\n{message.text}"), *media), name=None)


def check_role(role: object) -> Role:
    """Returns the role; raises UnknownRoleError for any other value."""
    if role not in ROLES:
        raise UnknownRoleError(f"role is {role!r}: use one of {', '.join(sorted(ROLES))}")
    return cast("Role", role)


def is_question(message: Message) -> bool:
    """Returns True for what the user said: no summary and no section, which have that role too."""
    return message.role == "user" and message.kind == "message"


def is_prompt(message: Message) -> bool:
    """Returns True for a system message: no summary and no section, which may have that role too."""
    return message.role == "system" and message.kind == "message"


def says_something(message: Message) -> bool:
    """Returns False for a question or an answer without any content, which services refuse or waste a turn on."""
    return message.role not in ("user", "assistant") or any(
        part.text.strip() or part.extra
        if isinstance(part, TextPart)
        else not isinstance(part, Opaque)
        or part.namespace == REFUSAL
        or '"function_call":' in part.json  # before tools
        for part in message.parts
    )


def is_final(message: Message) -> bool:
    """Returns True for a message that ends a turn: an assistant message without tool calls."""
    return message.role == "assistant" and not message.tool_calls


def joined_texts(texts: Iterable[str]) -> str:
    """Joins the texts of several blocks: a blank line separates two of them, unless they bring white space of their own."""
    joined = ""
    for text in filter(None, texts):
        separated = not joined or joined[-1].isspace() or text[0].isspace()
        joined += text if separated else f"\n\n{text}"
    return joined


def content_key(message: Message) -> str:
    """Returns a digest of what a model sees of a message: equal keys mean equal content, whichever framework it came from.

    Names, reasoning and the boundaries of text parts are left out, because frameworks add, drop and move them.
    """
    visible = [encode_basestring_ascii(message.role), encode_basestring_ascii(message.text)]
    for part in message.parts:
        match part:
            case ToolCallPart():
                visible.append(json.dumps(["c", part.id, part.name, _canonical_json(part.arguments)]))
            case ToolResultPart():
                visible.append(json.dumps(["r", part.call_id]))
            case MediaPart():
                visible.append(json.dumps(["m", part.kind, part.data]))
            case TextPart() | ReasoningPart() | Opaque():
                continue
    return hashlib.sha256(f"[{', '.join(visible)}]".encode()).hexdigest()[:32]


def _canonical_json(text: str) -> str:
    try:
        return json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))
    except (ValueError, RecursionError):
        return text


def without_compactions(message: Message) -> Message:
    """Returns the message without the summaries that a service put into its reply on its own side: they quote what was before."""
    parts: list[Part] = []
    for part in message.parts:
        if not isinstance(part, ReasoningPart) or part.details is None:
            parts.append(part)
            continue
        blocks = as_list(json.loads(part.details))
        kept = [block for block in blocks if as_dict(block).get("type") != "compaction"]
        if len(kept) == len(blocks):
            parts.append(part)
        elif kept or part.text:
            parts.append(replace(part, details=json.dumps(kept, ensure_ascii=False) if kept else None))
    return message if tuple(parts) == message.parts else replace(message, parts=tuple(parts))


def without_calls(message: Message, call_ids: Collection[str]) -> Message:
    """Returns the message without these tool calls."""
    parts = tuple(p for p in message.parts if not (isinstance(p, ToolCallPart) and p.id in call_ids))
    return replace(message, parts=parts)


def with_unique_calls(messages: Sequence[Message]) -> Sequence[Message]:
    """Returns the messages with another id for each call whose id an earlier one has, and for its result.

    Claude refuses a request in which an id comes again; other models begin to count anew in each round. A message without such
    a call stays the same object, and a conversation that goes on keeps the ids that it had.
    """
    ids = [part.id for message in messages if message.role == "assistant" for part in message.tool_calls]
    if len(set(ids)) == len(ids):
        return messages
    taken, renamed = set(ids), dict[str, str]()
    seen: set[str] = set()
    unique: list[Message] = []
    for message in messages:
        parts: list[Part] = []
        for part in message.parts:
            if isinstance(part, ToolCallPart):
                own = renamed[part.id] = _unused(part.id, taken) if part.id in seen else part.id
                seen.add(part.id)
                parts.append(replace(part, id=own))
            elif isinstance(part, ToolResultPart):
                parts.append(replace(part, call_id=renamed.get(part.call_id, part.call_id)))
            else:
                parts.append(part)
        unique.append(message if (*parts,) == message.parts else replace(message, parts=tuple(parts)))
    return unique


def _unused(call: str, taken: set[str]) -> str:
    """Returns an id that is not taken yet, and takes it."""
    new = next(name for number in count(2) if (name := f"{call}_{number}") not in taken)
    taken.add(new)
    return new


def validated(message: Message) -> Message:
    """Returns the message unchanged; raises MessageError when it cannot be stored or sent."""
    _check_message(message)
    if message.role not in ROLES:
        raise UnknownRoleError(
            f"message {message.id!r} has role {message.role!r}: use one of {', '.join(sorted(ROLES))}"
        )
    if not message.id:
        raise MessageError("a message has an empty id: give each message a unique id")
    if message.role == "tool" and not message.tool_results:
        raise MessageError(f"tool message {message.id!r} has no tool result: say which call it answers (tool_call_id)")
    if message.visibility == "user" and (message.tool_calls or message.tool_results or message.role == "system"):
        raise MessageError(
            f"{message.role} message {message.id!r} is for the user only: system prompts and tool rounds are for the model"
        )
    for part in message.parts:
        _check_part(part, message)
    for text in (message.id, message.name, message.model, message.finish_reason):
        if text and not text.isascii():
            _check_text(text, message.id)
    return message


def _check_message(value: object) -> None:
    if not isinstance(value, Message):
        raise MessageError(
            f"a message is {kind_of(value)}: give text, or ctxfold.Message, such as ctxfold.user('...') returns; "
            "langchain_ctx.messages.from_langchain and llamaindex_ctx.messages.from_chat_messages convert those of the frameworks"
        )
    if value.visibility not in VISIBLE:
        raise MessageError(
            f"message {value.id!r} has visibility {value.visibility!r}: use 'user', 'model' or None for both"
        )
    if value.preserve_reasoning is not None and not is_a(value.preserve_reasoning, bool):
        raise MessageError(
            f"message {value.id!r} has preserve_reasoning {value.preserve_reasoning!r}: "
            "use True or False, or None to follow the provider's profile"
        )
    if value.kind not in KINDS:
        raise MessageError(f"message {value.id!r} is of kind {value.kind!r}: use one of {', '.join(sorted(KINDS))}")
    wrong = [part for part in value.parts if not is_a(part, PARTS)] if is_a(value.id, str) else [value.id]
    if wrong:
        raise MessageError(
            f"message {value.id!r} holds {kind_of(wrong[0])} where its id or a part should be: make it with "
            "ctxfold.user('...') or ctxfold.assistant('...')"
        )


def _check_part(part: Part, message: Message) -> None:
    """Checks every text of the part: a single lone surrogate in the log would make the whole session unreadable."""
    for name in part.__slots__:
        value: object = getattr(part, name)
        if isinstance(value, str) and not value.isascii():
            _check_text(value, message.id)
    match part:
        case TextPart():
            _check_json("the extra fields of a text", part.extra, message.id, dict)
        case ToolCallPart():
            _check_arguments(part, message.id)
            _check_json("the extra fields of a tool call", part.extra, message.id, dict)
        case MediaPart():
            _check_json("a media part", part.data, message.id, dict)
        case ReasoningPart():
            _check_json("the details of a reasoning part", part.details, message.id, list)
        case Opaque():
            sent = dict if part.namespace == PROVIDER_SUMMARY else None
            _check_json(f"the opaque part of {part.namespace!r}", part.json, message.id, sent)
        case _:
            pass
    for kind, role in ((ToolCallPart, "assistant"), (ToolResultPart, "tool")):
        if isinstance(part, kind) and message.role != role:
            raise MessageError(
                f"{message.role} message {message.id!r} holds a {part.type}: put it into a message with role {role!r}"
            )


def _check_json(what: str, text: str | None, message_id: str, sent: type[dict[Any, Any] | list[Any]] | None) -> None:
    """Raises MessageError for text that is not JSON: every later request with the message would fail.

    What is `sent` to services must be JSON that all of them read, and of that type.
    """
    if text is None:
        return
    try:
        value: object = strict_json(text) if sent is not None else read_json(text)
    except (ValueError, RecursionError) as error:
        raise MessageError(
            f"message {message_id!r}: {what} is not valid JSON ({json_problem(error)}): give it as JSON text"
        ) from None
    if sent is not None and not isinstance(value, sent):
        needed = "a JSON object" if sent is dict else "a JSON list"
        raise MessageError(f"message {message_id!r}: {what} is {kind_of(value)}: give {needed} as text")


def _check_text(text: str, message_id: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidTextError(
            f"message {message_id!r} holds a lone surrogate (U+{ord(text[error.start]):04X}) at character {error.start}: "
            "decode the text properly or replace it before adding it"
        ) from None


def _check_arguments(part: ToolCallPart, message_id: str) -> None:
    if not is_a(part.arguments, str):
        raise InvalidToolArgumentsError(
            f"tool call {part.name!r} in message {message_id!r} has {kind_of(part.arguments)} as arguments: give them as JSON text"
        )
