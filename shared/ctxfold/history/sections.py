"""Represents sections in a log: messages beside the conversation, their notes, and how long they stay.

A section stays where it was put until the next epoch head. There all leave but those of the newest question, and those
put in by hand and the required ones that nothing has superseded; what a source brought is asked for again with the next
question.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ctxfold.history.view import Entry
from ctxfold.messages import Message, Opaque, TextPart

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
