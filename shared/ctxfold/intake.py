"""Messages of a file into a session: every line checked first, all of them written at once or none."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence

from ctxfold.compaction.clear_tools import sized
from ctxfold.connect import LineCodec
from ctxfold.engine import Engine
from ctxfold.errors import (
    CtxError,
    HeadMovedError,
    ImportLineError,
    MessageConflictError,
    PinBudgetError,
    StoreUnavailableError,
)
from ctxfold.events import SessionLoaded
from ctxfold.flow import Flow
from ctxfold.history.cuts import check_sequence, open_calls
from ctxfold.history.records import Draft, MessageAdded, Pinned, SessionKey
from ctxfold.journal import Journal, append, closing, draft, refresh, resumed, unknown
from ctxfold.messages import Message, content_key
from ctxfold.ports import Document
from ctxfold.transfer import Line, has_log, load_log, log_of, parse_lines
from ctxfold.zones.recall import document

__all__ = ["import_jsonl"]

TRIES = 8


def import_jsonl(
    engine: Engine, key: SessionKey, path: str | os.PathLike[str], opened: Flow[Journal], codec: LineCodec
) -> Flow[tuple[Message, ...]]:
    """The messages of a file that were new to the session. A file that carries a log (zone "all") fills an empty session."""
    lines = parse_lines(path, codec, engine.ports.ids.new)
    if has_log(lines):
        return (yield from load_log(engine, key, log_of(lines)))
    journal = yield from opened
    messages = yield from _append(engine, journal, lines)
    if messages:
        engine.events.emit(SessionLoaded(key.session, messages))
        yield from engine.room.maintain(journal)
    return messages


def _append(engine: Engine, journal: Journal, lines: Sequence[Line]) -> Flow[tuple[Message, ...]]:
    for _ in range(TRIES):
        names = yield from _new_names(journal, lines)
        fresh = list({line.message.id: line for line in lines if line.message.id in names}.values())
        # a failed attempt to add some of the lines has left them in open turns: they are completed here
        turns = list(dict.fromkeys(turn for _, turn in resumed(journal, [line.message for line in lines], names)))
        place = turns[-1] if turns else None
        _check_rounds(fresh, waiting=open_calls(journal.view(place).turn) if place else ())
        pins = [line.message.id for line in lines if line.pinned]
        _check_pins(engine, journal, lines)
        drafts: list[Draft] = [closing(engine.ports, turn, "completed") for turn in turns[:-1]]
        documents: list[Document] = []
        head = journal.state.head
        for message, shown in sized([x.message for x in fresh], rules=journal.rules(), counter=engine.ports.counter):
            turn = None if message.visibility == "user" else place
            drafts.append(draft(engine.ports, MessageAdded(message, shown), turn_id=turn, record_id=names[message.id]))
            if shown is not None:
                documents.append(document(head + len(drafts), message))
        if place is not None:
            drafts.append(closing(engine.ports, place, "completed"))
        if pins:
            drafts.append(draft(engine.ports, Pinned(tuple(pins))))
        if not drafts:
            return ()
        try:
            yield from append(journal, drafts, engine.ports, expect=head, documents=documents)
        except HeadMovedError:
            yield from refresh(journal, engine.ports)
        else:
            return tuple(line.message for line in fresh)
    raise StoreUnavailableError(
        f"other writers of session {journal.key.session!r} were first {TRIES} times; nothing was imported: try again"
    )


def _new_names(journal: Journal, lines: Sequence[Line]) -> Flow[dict[str, str]]:
    seen: dict[str, Message] = {}
    for line in lines:
        twin = seen.setdefault(line.message.id, line.message)
        if content_key(twin) != content_key(line.message):
            raise ImportLineError(line.number, f"message id {twin.id!r} stands in an earlier line with other content")
    try:
        return (yield from unknown(journal, [line.message for line in lines]))
    except MessageConflictError:
        for line in lines:  # which of them it was
            try:
                yield from unknown(journal, [line.message])
            except MessageConflictError as error:
                raise ImportLineError(line.number, str(error)) from error
        raise


def _check_rounds(lines: Sequence[Line], *, waiting: Collection[str]) -> None:
    waiting = set(waiting)
    for line in lines:
        if line.message.visibility == "user":
            continue
        try:
            waiting = check_sequence((line.message,), waiting=waiting)
        except CtxError as error:
            raise ImportLineError(line.number, str(error)) from error
    if waiting:
        raise ImportLineError(lines[-1].number, f"tool calls without results: {', '.join(sorted(waiting))}")


def _check_pins(engine: Engine, journal: Journal, lines: Sequence[Line]) -> None:
    rules = journal.rules()
    limit = int(rules.pin_ratio * rules.budget_tokens)
    held = {e.id: e.tokens for e in journal.view().live if e.id in journal.state.pins}
    held |= {line.message.id: engine.ports.counter.count(line.message) for line in lines if line.pinned}
    if sum(held.values()) > limit and any(line.pinned for line in lines):
        raise PinBudgetError(
            f"pinned messages would take {sum(held.values())} tokens, their share is {limit}: raise context_window, or take "
            '"pinned" out of some lines (nothing was imported)'
        )
