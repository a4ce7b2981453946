"""Defines Conversation, what each reader of transcripts yields, and ConversationBuilder, which readers give its messages."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, TypeAlias

from ctxfold.errors import CtxError, ImportLineError, MessageError
from ctxfold.history.cuts import made_call_id, with_known_calls, with_results_together
from ctxfold.messages import (
    MediaPart,
    Message,
    MessageKind,
    Part,
    ReasoningPart,
    Role,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    Usage,
    assistant,
    content_key,
    says_something,
    tool_result,
    validated,
    with_unique_calls,
)
from ctxfold.validation import as_dict, as_dicts, as_list, as_text, is_a, repaired

Row: TypeAlias = Mapping[str, Any]
Numbered: TypeAlias = Iterable[tuple[int, Row]]  # the objects of a file, each with its line or its place in the array
NO_RESULT = "(no result: the transcript has none for this call)"


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_YEAR_10000 = 253_402_300_800  # in Unix time
_TEXT_KEYS = words("body content input message output parts prompt reasoning text thinking transcript value")


@dataclass(frozen=True, slots=True)
class Conversation:
    """The current branch of a conversation, complete and in order, each text once.

    `times_s` has the Unix time of each message, None where the transcript has none. `branches` other branches (retried answers,
    edited questions) were left out; `left_out` counts what else was, by name. `number` is its line or its place in the file.
    """

    format: str
    number: int
    id: str
    title: str
    messages: tuple[Message, ...]
    times_s: tuple[float | None, ...]
    branches: int = 0
    left_out: Mapping[str, int] = field(default_factory=dict[str, int])


@contextmanager
def numbered(place: int, form: str) -> Generator[None, None, None]:
    """Names the line, and the format that it resembles, in what a reader raises."""
    try:
        yield
    except ImportLineError:
        raise
    except (CtxError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        lacks = (
            f"it has no field {error.args[0]!r}" if isinstance(error, KeyError) else f"it cannot be read ({error!r})"
        )
        problem = str(error) if isinstance(error, CtxError) else lacks
        unit = getattr(place, "unit", "line")
        raise ImportLineError(place, f"it resembles {form}, but {problem}", unit) from error


def need(value: Row, key: str, kind: type[Any], what: str) -> Any:
    """Returns what a field holds; raises MessageError when that is of another type, as under another name it would be lost."""
    held = value.get(key)
    if key not in value or not isinstance(held, kind):
        sort = {"str": "text", "dict": "object", "list": "list"}.get(kind.__name__, "value")
        raise MessageError(f"{what} has no {sort} in its field {key!r} (fields: {', '.join(value) or 'none'})")
    return held


def rows(value: object, what: str) -> list[dict[str, Any]]:
    """Returns a list of objects, an empty one for None; raises MessageError for anything else."""
    found = as_dicts(value)
    if value is not None and (not is_a(value, list) or len(found) < len(as_list(value))):
        raise MessageError(f"{what} is not a list of objects: {str(value)[:80]}")
    return found


def worded(value: object, key: str = "") -> str | None:
    """Returns the first text within a JSON value that says something; None without one.

    That is one of several words, one with letters of other scripts, and any in a field that is usual for texts.
    """
    if isinstance(value, str):
        several = sum(any(map(str.isalpha, word)) for word in value.split()) > 1
        told = several or key in _TEXT_KEYS or (not value.isascii() and any(map(str.isalpha, value)))
        return value if told and value.strip() else None
    items = as_dict(value).items() if is_a(value, dict) else [(key, item) for item in as_list(value)]
    return next((text for name, item in items if (text := worded(item, name)) is not None), None)


def check_fields(value: Row, known: str, what: str) -> None:
    """Raises MessageError when a field that is not known holds text: it would be lost."""
    for key in value.keys() - known.split():
        if (text := worded(value[key], key)) is not None:
            raise MessageError(
                f"{what} has a field {key!r} that is not known, with text ({text[:60]!r}) that would be lost"
            )


def json_text(value: object) -> str:
    return repaired(json.dumps(value, ensure_ascii=False))


def arguments_text(value: object) -> str:
    """Returns the arguments of a call as the text of a JSON object, which a bare text or list is put into."""
    with suppress(ValueError, RecursionError):
        value = json.loads(value) if isinstance(value, str) else value
    return json_text({} if value is None else value if is_a(value, dict) else {"input": value})


def seconds(value: object) -> float | None:
    """Returns the Unix time that a number (seconds, milliseconds, nanoseconds) or an ISO text names; None for anything else."""
    with suppress(ValueError):
        number = float(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else 0.0
        number /= 1e9 if number > 1e16 else 1e3 if number > 1e11 else 1
        return number if 0 < number < _YEAR_10000 else None
    with suppress(ValueError):
        moment = datetime.fromisoformat(as_text(value))
        return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
    return None


def texts(*values: str) -> list[Part]:
    return [TextPart(text) for text in map(repaired, values) if text]


def placeholder(kind: str, name: str, **fields: object) -> dict[str, Any]:
    """Returns a block that names a file whose content the transcript does not have."""
    return {"type": kind, "file": {"filename": name or kind}, **fields}


def path_to(leaf: str | None, parents: Mapping[str, str | None]) -> list[str]:
    """Returns the ids from the root to a leaf. Raises MessageError when the parents form a ring."""
    path: dict[str, None] = {}
    while leaf is not None and leaf in parents:
        if leaf in path:
            raise MessageError(f"message {leaf!r} is its own ancestor")
        path[leaf] = None
        leaf = parents[leaf]
    return [*path][::-1]


def branches_beside(path: Iterable[str], parents: Mapping[str, str | None], spoken: Iterable[str]) -> int:
    """Returns how many branches leave the path; `spoken` are the ids of those messages that somebody said."""
    roots = dict.fromkeys(path, "")
    for start in spoken:
        climbed: dict[str, None] = {}
        up: str | None = start
        while up is not None and up in parents and up not in roots and up not in climbed:
            climbed[up] = None
            up = parents[up]
        root = roots.get(up or "") or next(reversed(climbed), "")
        roots |= dict.fromkeys(climbed, root)
    return len({*roots.values()} - {""})


class ConversationBuilder:
    """Collects the messages of a conversation, and what was left out of it."""

    def __init__(self, form: str, number: int, identity: object = "", title: object = "") -> None:
        self.form, self.number, self.id, self.title = form, number, as_text(identity), as_text(title)
        self.branches = 0
        self.left_out: Counter[str] = Counter()
        self.rows: list[tuple[Message, float | None]] = []
        self._replies: dict[str, int] = {}  # the newest message of each reply

    def unknown(self, value: Row, known: str, what: str) -> None:
        """Leaves a value of an unknown type out; raises MessageError when it holds text."""
        check_fields(value, known, what)
        self.left_out[what] += 1

    def add(
        self,
        role: Role,
        parts: Iterable[Part],
        *,
        id: object = "",
        at: object = None,
        model: object = None,
        usage: Usage | None = None,
        reply: object = "",
        kind: MessageKind = "message",
    ) -> None:
        """Adds a message, or adds to the one before: parts of one `reply`, an answer behind bare reasoning. `at`: see `seconds`."""
        new = Message(as_text(id), role, tuple(self._named(parts)), None, kind, as_text(model) or None, usage)
        at_s = seconds(at)
        self.left_out["times that cannot be read"] += at_s is None and bool(at)
        if role == "tool":
            self._add_results(new, at_s)
            return
        if not new.parts or not says_something(new) or (role == "system" and not new.text.strip()):
            self.left_out["empty messages"] += 1
            return
        last, last_at = self.rows[-1] if self.rows else (new, None)
        before = self._replies.get(as_text(reply))
        if before is not None:  # its usage is repeated
            self.rows[before] = (replace(self.rows[before][0], usage=None), self.rows[before][1])
        bare = bool(self.rows) and all(isinstance(part, ReasoningPart) for part in last.parts)
        if last.role == role == "assistant" and (bare or before == len(self.rows) - 1):
            self.rows[-1] = (replace(new, id=last.id or new.id, parts=(*last.parts, *new.parts)), last_at)
        else:
            self.rows.append((new, at_s))
        if reply:
            self._replies[as_text(reply)] = len(self.rows) - 1

    def _named(self, parts: Iterable[Part]) -> Iterator[Part]:
        for place, part in enumerate(parts):
            unnamed = isinstance(part, ToolCallPart) and not part.id
            yield replace(part, id=made_call_id(str(len(self.rows)), place)) if unnamed else part  # type: ignore[arg-type]

    def _add_results(self, message: Message, at_s: float | None) -> None:
        """Adds each result as a message of its own, with the media behind it."""
        for part in message.parts:
            if isinstance(part, ToolResultPart):
                self.rows.append((replace(message, parts=(part,)), at_s))
            else:
                self.rows[-1] = (replace(self.rows[-1][0], parts=(*self.rows[-1][0].parts, part)), at_s)

    def conversation(self) -> Conversation:
        """Returns the conversation: results behind their calls, and each message with an id that another reading gives it too."""
        marked = [replace(message, id=str(place)) for place, (message, _) in enumerate(self.rows)]
        known = next((at_s for _, at_s in self.rows if at_s is not None), None)
        ordered = with_unique_calls(with_results_together(with_known_calls(marked, ended=True), across=True))
        messages, times_s = dict[str, Message](), list[float | None]()
        chain = self.id
        for message in self._legal(ordered):
            given, at_s = self.rows[int(message.id)] if message.id else (message, None)
            known = known if at_s is None else at_s
            chain = hashlib.sha256(f"{chain}/{content_key(message)}".encode()).hexdigest()[:32]
            own = given.id if given.id and given.id not in messages else chain
            messages[own] = validated(replace(message, id=own))
            times_s.append(known)
        found = tuple(messages.values())
        return Conversation(
            self.form, self.number, self.id, self.title, found, tuple(times_s), self.branches, +self.left_out
        )

    def _legal(self, messages: Sequence[Message]) -> Iterator[Message]:
        """Yields the messages with a result for each call, and a call for each result."""
        waiting: dict[str, ToolCallPart] = {}
        for message in (*messages, None):
            result = message.tool_results[0] if message and message.tool_results else None
            if message and result and waiting.pop(result.call_id, None):
                yield message
                continue
            for call in waiting.values():
                self.left_out["calls without a result, with a note in its place"] += 1
                yield tool_result(call.id, NO_RESULT, name=call.name, is_error=True)
            if message and result:
                self.left_out["results whose call is not there, with a call without arguments"] += 1
                result = replace(result, call_id=result.call_id or made_call_id(message.id, 0))
                yield assistant("", calls=[ToolCallPart(result.call_id, result.name or "unknown", "{}")])
                yield replace(message, parts=(result, *message.parts[1:]))
            elif message:
                yield message
            waiting = {call.id: call for call in message.tool_calls} if message else {}


def media(block: Row, mime: str = "") -> MediaPart:
    kind = as_text(block.get("type")).removeprefix("input_").removesuffix("_url")
    return MediaPart(kind or mime.partition("/")[0] or "file", json_text(block), mime or None)
