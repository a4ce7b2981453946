"""Defines the view: what a model may see of a session, as frozen values that are cheap to pass on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any, Literal, TypeAlias, overload

from ctxfold.messages import Message, Opaque, Role, TextPart, check_role, is_final, is_question, says_something

ZONES = ("system", "summary", "section", "live", "recalled", "tools")  # of a window


@dataclass(frozen=True, slots=True)
class Entry:
    """Holds a message of the view: `message` as the model sees it, `seq` of the record with its original.

    `shown_seq` is the record that holds the stand-in when the model sees one, else 0. `number` is the message's among all that
    the session was ever given, 0 for a summary. `at_s` is when the record was stored, in Unix time.
    """

    id: str
    seq: int
    message: Message
    tokens: int
    shown_seq: int = 0
    number: int = 0
    at_s: float = field(default=0.0, compare=False)

    @property
    def reference(self) -> str:
        """Returns the reference that reads the original back, such as `#17`."""
        return f"#{self.number}" if self.number else self.id

    @property
    def version(self) -> tuple[int, int]:
        """Returns the pair of records that the message comes from; equal versions mean equal bytes."""
        return (self.seq, self.shown_seq)


class Prefix(Sequence[Entry]):
    """Shows the first entries of a list that is only ever appended to: a snapshot in constant time."""

    __slots__ = ("_entries", "_length")

    def __init__(self, entries: list[Entry], length: int | None = None) -> None:
        self._entries = entries
        self._length = len(entries) if length is None else length

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Entry: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Entry]: ...
    def __getitem__(self, index: int | slice) -> Entry | Sequence[Entry]:
        if isinstance(index, slice):
            start, stop, step = index.indices(self._length)
            return self._entries[start:stop:step] if step > 0 else [self._entries[i] for i in range(start, stop, step)]
        if not -self._length <= index < self._length:
            raise IndexError(index)
        return self._entries[index if index >= 0 else self._length + index]

    def __iter__(self) -> Iterator[Entry]:
        return islice(self._entries, self._length)

    def __reversed__(self) -> Iterator[Entry]:
        return map(self._entries.__getitem__, range(self._length - 1, -1, -1))


def roles_of(entries: Iterable[Entry]) -> frozenset[str]:
    """Returns the roles among the entries, of summaries and sections their kind, and "" where one says nothing."""
    messages = [e.message for e in entries]
    return frozenset([(m.role if m.kind == "message" else m.kind) if says_something(m) else "" for m in messages])


@dataclass(frozen=True, slots=True)
class WindowTokens:
    """The size of a window by zone, in ctxfold's own count; `tools` has what else was sent, such as the scratch message.

    `ratio` is by how much the model's count is larger. `recalled_numbers` are the messages whose passages a request held, and
    `hidden_numbers` those of the view that gave way to them; None where there are none.
    """

    system: int = 0
    summary: int = 0
    section: int = 0
    live: int = 0
    recalled: int = 0
    tools: int = 0
    ratio: float = 1.0
    recalled_numbers: tuple[int, ...] | None = None
    hidden_numbers: tuple[int, ...] | None = None

    @property
    def own_count(self) -> int:
        return self.system + self.summary + self.section + self.live + self.recalled + self.tools

    @property
    def zones(self) -> dict[str, int]:
        """Returns the tokens of each zone as the model counts them."""
        return {zone: round(getattr(self, zone) * self.ratio) for zone in ZONES}

    @property
    def total(self) -> int:
        """Returns the tokens of all zones as the model counts them."""
        return sum(self.zones.values())


@dataclass(frozen=True, slots=True)
class View:
    """Holds the zones of one session at one moment; `turn` holds the asking turn's own messages, if it is open."""

    epoch: int
    system: tuple[Entry, ...]
    compressed: tuple[Entry, ...]
    live: Prefix
    turn: tuple[Entry, ...]
    tokens: int
    live_roles: frozenset[str]  # see `roles_of`; of `live`, or of more

    def __len__(self) -> int:
        return len(self.system) + len(self.compressed) + len(self.live) + len(self.turn)

    def __iter__(self) -> Iterator[Entry]:
        return chain(self.system, self.compressed, self.live, self.turn)

    @property
    def prompts(self) -> tuple[str, ...]:
        return tuple(e.message.text for e in self.system)

    @property
    def messages(self) -> tuple[Message, ...]:
        return tuple([entry.message for entry in chain(self.system, self.compressed, self.live, self.turn)])

    def by_role(self, role: Role) -> tuple[Message, ...]:
        """Returns the messages in that role, in order; raises UnknownRoleError for any other word."""
        check_role(role)
        return tuple(m for m in self.messages if m.role == role)

    def by_zone(self, *, live: bool = True) -> Iterator[tuple[str, Entry]]:
        """Yields each entry with the zone in which reports name it; without `live`, those of the live conversation are left out."""
        for zone, entries in (
            ("system", self.system),
            ("summary", self.compressed),
            ("live", self.live if live else ()),
            ("live", self.turn),
        ):
            for entry in entries:
                yield entry.message.kind if entry.message.kind != "message" else zone, entry

    def measured(self, *, recalled: int = 0, tools: int = 0, ratio: float = 1.0) -> WindowTokens:
        """Returns the size of a window that shows this view, with these tokens for what else is in it."""
        zones: dict[str, Any] = {}
        # without these all are in one zone, and need not be gone through
        plain = self.live_roles.isdisjoint(("summary", "section"))
        for zone, entry in self.by_zone(live=not plain):
            zones[zone] = zones.get(zone, 0) + entry.tokens
        if plain:
            zones["live"] = zones.get("live", 0) + self.tokens - sum(zones.values())
        return WindowTokens(**zones, recalled=recalled, tools=tools, ratio=ratio)

    def with_live(self, entries: Iterable[Entry]) -> View:
        """Returns the view with these entries as its live ones."""
        live = Prefix([*entries])
        tokens = self.tokens + sum(e.tokens for e in live) - sum(e.tokens for e in self.live)
        return replace(self, live=live, tokens=tokens, live_roles=roles_of(live))

    def parted(self) -> tuple[Sequence[Entry], tuple[Entry, ...]]:
        """Splits the live conversation before the newest user message and the rounds after it, which are being answered.

        It does not matter whether those stand in an open turn or, stored by who makes no requests, among the live messages. What
        an open turn holds before its newest user message, such as one that was refused earlier, belongs to the second part too.
        That part is empty when the conversation ends with a reply. Reads no more than the two newest turns.
        """
        places = range(len(self.live) + len(self.turn) - 1, -1, -1)
        at = next((i for i in places if is_question(self._at(i).message)), None)
        last = self.last()
        if at is None or (not self.turn and last is not None and is_final(last.message)):
            return self.live, ()
        while at > 0 and self._at(at - 1).message.kind == "section":
            at -= 1
        if at >= len(self.live):
            return self.live, self.turn
        return self.live[:at], (*self.live[at:], *self.turn)

    def _at(self, index: int) -> Entry:
        return self.live[index] if index < len(self.live) else self.turn[index - len(self.live)]

    def newest_first(self) -> Iterator[Entry]:
        """Returns the entries of the conversation from the newest on, without system prompts and summaries."""
        return chain(reversed(self.turn), reversed(self.live))

    def newest_user(self) -> Entry | None:
        """Returns the newest entry of the conversation that the user said."""
        return next((e for e in self.newest_first() if is_question(e.message)), None)

    def last(self) -> Entry | None:
        """Returns the newest entry of the conversation, without system prompts, summaries and sections."""
        return next((e for e in self.newest_first() if e.message.kind != "section"), None)


Place: TypeAlias = Literal["tail", "head"]
NAMESPACE = "ctxfold.section"


@dataclass(frozen=True, slots=True)
class Placed:
    """Holds one item of a section: a digest of its text, and its source."""

    key: str
    source: str = ""
    id: str | None = None
    score: float | None = None


@dataclass(frozen=True, slots=True)
class SectionNote:
    """Describes a section. `by_hand` says that no source will bring it again, `required` that it may not be missing."""

    kind: str
    items: tuple[Placed, ...] = ()
    place: Place = "tail"
    by_hand: bool = False
    required: bool = False


def section(message_id: str, text: str, note: SectionNote) -> Message:
    """Returns a section as a message, in the user role; it is recognised by its kind, never by its text."""
    items = [[i.key, i.source, i.id, i.score] for i in note.items]
    data = {"kind": note.kind, "items": items, "place": note.place, "by_hand": note.by_hand}
    data |= {"required": True} if note.required else {}
    return Message(message_id, "user", (TextPart(text), Opaque(NAMESPACE, json.dumps(data))), kind="section")


def section_note(message: Message) -> SectionNote | None:
    """Returns the note of a section; None for any other message."""
    data = message.opaque(NAMESPACE) if message.kind == "section" else None
    if data is None:
        return None
    items = tuple(Placed(key, source, item_id, score) for key, source, item_id, score in data["items"])
    return SectionNote(data["kind"], items, data["place"], data["by_hand"], data.get("required", False))


def lasting_sections(entries: Sequence[Entry], question: str | None) -> frozenset[str]:
    """Returns the ids of the sections that stay at an epoch head; `question` is the id of the newest user message."""
    return frozenset((*_with_question(entries, question), *_in_force(entries)))


def _with_question(entries: Sequence[Entry], question: str | None) -> Iterable[str]:
    at = 0
    if question is not None:
        at = next((i for i in range(len(entries) - 1, -1, -1) if entries[i].id == question), 0)
    while at > 0 and entries[at - 1].message.kind == "section":
        at -= 1
        yield entries[at].id


def _in_force(entries: Sequence[Entry]) -> Iterable[str]:
    """Returns the newest copy of each kind that was put in by hand or is required."""
    newest: dict[str, str] = {}
    for entry in entries:
        note = section_note(entry.message) if entry.message.kind == "section" else None
        if note is not None:
            newest.pop(note.kind, None)
            if note.by_hand or note.required:
                newest[note.kind] = entry.id
    return newest.values()
