"""Defines the records of a session's log, as frozen values, and their stored form."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, TypeAlias

from ctxfold.errors import CtxWarning, MessageError, StoreCorruptError
from ctxfold.history.view import WindowTokens
from ctxfold.lru import lazy_pattern
from ctxfold.messages import Message, ToolResultPart, Usage, content_key

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

TurnStatus: TypeAlias = Literal["completed", "aborted", "discarded"]


AMONG_PROMPTS = ""


NOTICE = "erased:"  # begins the id of an Erased that tells, others stand in for a record


class SessionKey(NamedTuple):
    """Names a session: its owner and its id."""

    owner: str
    session: str


STORE_KEY = SessionKey("ctxfold:store", "ctxfold:key")  # the log with the key of an encrypted store
OWN_NAME = lazy_pattern(r"(?:~[0-9a-f]{8})*$")


# in an excerpt, stands for the message's own reference, which it gets when it is stored; no text has a noncharacter of Unicode
OWN_REFERENCE = "#\ufdd0"


@dataclass(frozen=True, slots=True)
class MessageAdded:
    """Adds a message at the end of the log; `shown` is what the model sees instead when the original is too large.

    `request` is the size of the request that a reply answers.

    Where tool results of `shown` say `OWN_REFERENCE`, the model sees the message's number.
    """

    message: Message
    shown: Message | None = None
    request: WindowTokens | None = None
    kind: Literal["message_added"] = "message_added"


@dataclass(frozen=True, slots=True)
class MessageInserted:
    """Inserts a message before the one with id `before`: at the end for None, after the system prompts for ""."""

    message: Message
    before: str | None = None
    kind: Literal["message_inserted"] = "message_inserted"


@dataclass(frozen=True, slots=True)
class MessageReplaced:
    """Replaces the content of a message."""

    message: Message
    kind: Literal["message_replaced"] = "message_replaced"


@dataclass(frozen=True, slots=True)
class MessageRemoved:
    """Removes messages from the view; their records stay. `superseded` ones gave way to another reply, and stay known.

    `replaced_by` are the records that put other messages in their place: an undo takes them back with it.
    """

    ids: tuple[str, ...]
    superseded: bool | None = None
    replaced_by: tuple[str, ...] | None = None
    kind: Literal["message_removed"] = "message_removed"


@dataclass(frozen=True, slots=True)
class Cleared:
    """Removes everything but the system prompts from the view; with `prompts`, them too.

    `replaced_by` are the records that put other messages in its place: an undo takes them back with it.
    """

    prompts: bool | None = None
    replaced_by: tuple[str, ...] | None = None
    kind: Literal["cleared"] = "cleared"


@dataclass(frozen=True, slots=True)
class TurnClosed:
    """Closes the turn that its record names; only completed and aborted turns join the view."""

    status: TurnStatus = "completed"
    kind: Literal["turn_closed"] = "turn_closed"


@dataclass(frozen=True, slots=True)
class Pinned:
    ids: tuple[str, ...]
    kind: Literal["pinned"] = "pinned"


@dataclass(frozen=True, slots=True)
class Unpinned:
    ids: tuple[str, ...]
    kind: Literal["unpinned"] = "unpinned"


@dataclass(frozen=True, slots=True)
class Compacted:
    """Begins an epoch: `summary` replaces the `covered` ids in the view, and `shown` messages replace their originals.

    In a record with a turn id the covered messages are that open turn's own, and the summary takes their place there; with
    `within` it takes the place of live messages that way.
    `calls` is how often the summariser was asked for it, failed attempts before it included, `usage` what
    that took.
    """

    covered: tuple[str, ...] = ()
    summary: Message | None = None
    shown: tuple[Message, ...] = ()
    strategy: str = ""
    reason: str = ""
    fallback_level: str = ""
    tokens_before: int = 0
    tokens_after: int = 0
    calls: int | None = None
    usage: Usage | None = None
    within: bool | None = None
    kind: Literal["compacted"] = "compacted"


@dataclass(frozen=True, slots=True)
class Undone:
    """Undoes the record with that id."""

    record_id: str
    kind: Literal["undone"] = "undone"


@dataclass(frozen=True, slots=True)
class Restored:
    """Restores an original to the view: at its tail, or in place where its excerpt stands there.

    `seq` is the record that holds the original. The last of several that came back at once names the others in `together`:
    an undo takes them back with it.
    """

    message: Message
    seq: int | None = None
    together: tuple[str, ...] | None = None
    kind: Literal["restored"] = "restored"


@dataclass(frozen=True, slots=True)
class Unknown:
    """A record of a kind that only a newer release knows, as its stored JSON text. It changes nothing that a reader sees."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Sealed:
    """The body of a record in an encrypted store: its kind, which stores look at, and the rest as text that they cannot read.

    `digest` stands for the fingerprint. Neither has a space, and none of the three a quotation mark.
    """

    kind: str
    digest: str
    text: str


@dataclass(frozen=True, slots=True)
class PolicyChanged:
    """Sets the rules from here on, as JSON text, and names the counter in use.

    `fixed` are the fields that were set at run time: they hold until they are set again, whatever a session is opened with.
    """

    policy: str
    counter: str
    fixed: tuple[str, ...] | None = None
    kind: Literal["policy_changed"] = "policy_changed"


@dataclass(frozen=True, slots=True)
class Calibrated:
    """Says how a model's reported input compares with our own counts: the ratio, and the largest recent error, as a share.

    `limit` is the window that the model named when it refused a request, in its own tokens; None leaves the one known so far.
    """

    model: str
    ratio: float
    error: float
    samples: int
    limit: int | None = None
    kind: Literal["calibrated"] = "calibrated"


@dataclass(frozen=True, slots=True)
class Subgoal:
    """Holds a step of the task. Records from `since` up to the next step's belong to it, or to no step if it has no text."""

    text: str
    since: int = 0
    completed: bool = False


@dataclass(frozen=True, slots=True)
class GoalSet:
    """Sets the goal of the conversation and its steps, oldest first. Fields named in `given` were set by the user and stay."""

    goal: str = ""
    subgoals: tuple[Subgoal, ...] = ()
    given: tuple[Literal["goal", "subgoal"], ...] = ()
    kind: Literal["goal_set"] = "goal_set"


@dataclass(frozen=True, slots=True)
class OutputsSummarised:
    """Stores summaries of tool outputs before they are needed: the view does not change until a compaction shows them."""

    shown: tuple[Message, ...]
    calls: int | None = None
    usage: Usage | None = None
    kind: Literal["outputs_summarised"] = "outputs_summarised"


@dataclass(frozen=True, slots=True)
class Forked:
    """Says that the records before this one were copied from another session of the same owner.

    `origins` names that session and those that it was forked from itself, nearest first.
    """

    origins: tuple[str, ...]
    kind: Literal["forked"] = "forked"


@dataclass(frozen=True, slots=True)
class Erased:
    """Replaces a record whose text was erased; at the end of the log, it tells other readers of the erasure.

    `ids` are the messages that are gone; `usage` is what an erased reply took, so that the session's sums stay.
    """

    ids: tuple[str, ...] = ()
    usage: Usage | None = None
    kind: Literal["erased"] = "erased"


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    """Holds the folded state right before this record, as JSON text: ids and counts, never a message's text."""

    state: str
    kind: Literal["snapshot_taken"] = "snapshot_taken"


KnownBody: TypeAlias = (
    MessageAdded
    | MessageInserted
    | MessageReplaced
    | MessageRemoved
    | Cleared
    | TurnClosed
    | Pinned
    | Unpinned
    | Compacted
    | Undone
    | Restored
    | PolicyChanged
    | Calibrated
    | GoalSet
    | OutputsSummarised
    | Forked
    | Erased
    | SnapshotTaken
)
Body: TypeAlias = KnownBody | Unknown | Sealed
_SEALED = '{"sealed":"'


@dataclass(frozen=True, slots=True)
class Draft:
    """Holds a record not yet in a log; appending the same `id` twice is a no-op. `at_s` is Unix time.

    `provisional`: the call that writes it is not over, and a later write of the same call makes it last. A store may leave to that
    write what guards against a power loss; the end of the process must not lose it.
    """

    id: str
    body: Body
    turn_id: str | None = None
    at_s: float = 0.0
    provisional: bool = False


# records that bring a message: these are numbered, so that one transcript has the same numbers whoever writes it
NUMBERED = frozenset({"message_added", "message_inserted", "message_replaced", "restored", "erased"})


@dataclass(frozen=True, slots=True)
class Record:
    """Holds a record in its log; `seq` counts from 1 without gaps within a session.

    `number` counts the records that bring a message (kinds in `NUMBERED`), and is 0 in others: `#17` names the one with number 17.
    """

    seq: int
    id: str
    body: Body
    turn_id: str | None = None
    at_s: float = field(default=0.0, compare=False)
    number: int = field(default=0, compare=False)


def shown_in(record: Record, body: MessageAdded) -> Message:
    """Returns what the model sees of an added message."""
    return body.message if body.shown is None else with_own_reference(body.shown, record.number)


def with_own_reference(shown: Message, number: int) -> Message:
    """Returns the excerpt of a message with the message's number in place of `OWN_REFERENCE`."""
    parts = tuple(
        replace(part, content=part.content.replace(OWN_REFERENCE, f"#{number}"))
        if isinstance(part, ToolResultPart)
        else part
        for part in shown.parts
    )
    return replace(shown, parts=parts)


@cache
def _adapter() -> TypeAdapter[KnownBody]:
    from pydantic import Field, TypeAdapter

    return TypeAdapter(Annotated[KnownBody, Field(discriminator="kind")])


def encode_body(body: Body) -> str:
    """Returns ASCII-only JSON, which every database accepts, NUL included. Raises MessageError for what could not be read again."""
    from pydantic_core import PydanticSerializationError

    if isinstance(body, Unknown):
        return body.text
    if isinstance(body, Sealed):
        return f'{_SEALED}{body.kind} {body.digest} {body.text}"}}'
    try:
        return _dumped(_adapter().dump_python(body, mode="python", exclude_none=True, warnings="error"))
    except (PydanticSerializationError, TypeError):
        return _readable(body)


_dumped = json.JSONEncoder(separators=(",", ":")).encode


def _readable(body: KnownBody) -> str:
    """Returns the text of a record that holds values of unexpected types, once it is certain that it can be read."""
    try:
        text = _dumped(_adapter().dump_python(body, mode="python", exclude_none=True, warnings=False))
        _adapter().validate_json(text)
    except (TypeError, ValueError) as error:
        raise MessageError(
            f"{type(body).__name__} cannot be stored, and nothing was stored: it holds a value of the wrong type "
            f"({_first_of(error)})"
        ) from None
    return text


def _first_of(error: Exception) -> str:
    """Returns what is wrong, and where, without the values."""
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return str(error)[:200]
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc'][1:]))}: {first['msg']}"


def decode_body(text: str) -> Body:
    """Returns the body that `encode_body` wrote, of a newer release as far as this one can read it: see `Unknown`.

    Raises StoreCorruptError when the text is not a record.
    """
    from pydantic import ValidationError

    if text.startswith(_SEALED):
        if len(parts := text[len(_SEALED) : -2].split(" ", 2)) != 3 or not text.endswith('"}'):
            raise StoreCorruptError("a sealed record cannot be read: restore the store from a copy")
        return Sealed(*parts)
    try:
        return _adapter().validate_json(text)
    except ValidationError as error:
        newer = _of_newer_release(text, error)
        if newer is not None:
            return newer
        raise StoreCorruptError(
            f"a stored record cannot be read ({str(error)[:200]}): restore the store from a copy"
        ) from None


def _of_newer_release(text: str, error: ValidationError) -> Body | None:
    """Returns the body without what this release does not know: a kind of record or part, a role, or another choice of a field."""
    if any(e["type"] not in ("union_tag_invalid", "literal_error") for e in error.errors()):
        return None
    value = json.loads(text)
    for problem in error.errors(include_url=False):
        at, keys = value, [*_path(value, problem["loc"])]
        for key in keys[:-1]:
            at = at[key]
        if not keys:
            _warn_of(f"records of the kind {value['kind']!r}")
            return Unknown(str(value["kind"]), text)
        unknown = at[keys[-1]]
        if problem["type"] == "union_tag_invalid":
            _warn_of(f"parts of the type {unknown.get('type')!r}")
            at[keys[-1]] = {"type": "opaque", "namespace": "newer", "json": _dumped(unknown)}
            continue
        _warn_of(f"{keys[-1]} {unknown!r}")
        del at[keys[-1]]
        if keys[-1] in ("role", "visibility", "kind"):  # of a message: no wire could send it
            at |= {"visibility": "user"} | ({"role": "user"} if keys[-1] == "role" else {})
    return _adapter().validate_python(value, strict=False)


def _path(value: object, location: Iterable[str | int]) -> Iterator[str | int]:
    """Yields the keys of a place in decoded JSON; pydantic names the chosen classes of a union in between."""
    for key in location:
        if (isinstance(value, dict) and key in value) or (isinstance(value, list) and isinstance(key, int)):
            yield key
            value = value[key]  # type: ignore[index]


@cache
def _warn_of(what: str) -> None:
    warnings.warn(
        f"the store holds {what}, which this ctxfold does not know: left out; a newer release wrote them, so upgrade ctxfold",
        CtxWarning,
        stacklevel=2,
    )


def fingerprint(body: Body) -> str:
    """Returns a value that is equal for two bodies that may share one record id: a message's content, else the whole body."""
    match body:
        case MessageAdded(message=message):
            return content_key(message)
        case Sealed(digest=digest):
            return digest
        case _:
            return hashlib.sha256(encode_body(body).encode()).hexdigest()[:32]
