"""Defines SessionFiles, the object behind `context.files`: messages as JSONL in a provider's shape, or a whole session as one file.

An import checks every line first and writes all messages at once or none. Each method of SessionFiles has an async form.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

from ctxfold.compaction.tool_outputs import sized
from ctxfold.connect import LineCodec
from ctxfold.effects import Call, Flow, StoreCall, async_method, sync_method
from ctxfold.engine.archive import documents_of, live_documents
from ctxfold.engine.engine import Engine, check_plain
from ctxfold.engine.known_messages import new_record_ids, open_turn_starts
from ctxfold.errors import (
    ConfigError,
    CtxError,
    HeadMovedError,
    ImportLineError,
    MessageConflictError,
    PinBudgetError,
    SessionExistsError,
    StoreCorruptError,
    StoreFormatError,
    StoreUnavailableError,
)
from ctxfold.events import SessionLoaded
from ctxfold.history.cuts import check_sequence, open_calls
from ctxfold.history.log import SessionState
from ctxfold.history.records import (
    Draft,
    MessageAdded,
    Pinned,
    PolicyChanged,
    Record,
    SessionKey,
    SnapshotTaken,
    Undone,
    decode_body,
    encode_body,
)
from ctxfold.history.snapshot import dump_state, stored_message
from ctxfold.messages import Message, content_key, validated
from ctxfold.protocols import Ports, Store
from ctxfold.session.handle import SessionPart
from ctxfold.state import Session
from ctxfold.transcripts.conversation import Conversation
from ctxfold.validation import as_dict, json_problem

_NO_ROOM = (errno.ENOSPC, errno.EFBIG, errno.EIO, getattr(errno, "EDQUOT", errno.ENOSPC))


KEY = "ctxfold"
SESSION_VERSION = 1
Zone: TypeAlias = Literal["all", "window", "immutable", "compressed", "incremental"]
Json: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a file: its number, its message, and the records that it carries, its own among them; `at_s` in Unix time."""

    number: int
    message: Message
    records: tuple[Json, ...] = ()
    pinned: bool = False
    at_s: float | None = None


class SessionFiles(SessionPart):
    """Writes a session to files, and reads messages from them."""

    @sync_method
    def export_jsonl(self, path: str | os.PathLike[str], *, zone: Zone = "all", native: bool = False) -> Flow[int]:
        """Writes messages, one per line, to a file that appears only when complete; returns how many.

        "all" writes every version ever stored, and the log, so that `import_jsonl` restores the same session; the other zones
        are what the model sees. With `native` each line has the form that the backend's provider takes.
        """
        session = yield from self._session.open()
        lines = yield from exported(session, LineCodec(self._ports.backend), zone=zone, native=native)
        return (yield from Call(partial(write_lines, path, lines)))

    aexport_jsonl = async_method(export_jsonl)

    @sync_method
    def import_jsonl(self, path: str | os.PathLike[str]) -> Flow[int]:
        """Stores the messages of a file and returns how many were new. ImportLineError names a bad line; nothing is stored then.

        A file of zone "all" restores the whole session; raises SessionExistsError unless this one is empty.
        """
        engine, key = self._session.engine, self._session.key
        lines = parse_lines(path, LineCodec(self._ports.backend), engine.ports.ids.new)
        if has_log(lines):
            return len((yield from load_log(engine, key, log_of(lines))))
        return (yield from self._add_lines((yield from self._session.open()), lines))

    aimport_jsonl = async_method(import_jsonl)

    @sync_method
    def import_conversation(self, conversation: Conversation) -> Flow[int]:
        """Stores a conversation that `read_transcripts` gave, at the times of its messages; returns how many were new.

        One that has grown since it was imported adds what is new. Raises MessageConflictError when it went on from an earlier
        message meanwhile; nothing is stored then.
        """
        session = yield from self._session.open()
        pairs = zip(conversation.messages, conversation.times_s, strict=True)
        lines = [Line(number, message, at_s=at_s) for number, (message, at_s) in enumerate(pairs, 1)]
        names = yield from _new_names(session, lines)
        known = [line.number for line in lines if line.message.id not in names]
        newest = [entry.id for entry in session.view()][-1:]
        if known and names and (len(known) != max(known) or newest != [lines[len(known) - 1].message.id]):
            raise MessageConflictError(
                f"session {session.key.session!r} has {len(known)} messages of this conversation, which went another way since: "
                "import it into a new session (nothing was imported)"
            )
        added = yield from self._add_lines(session, lines)
        # a search over all sessions need not read those that are in the index as a whole
        archive = yield from StoreCall(Store.postings, session.key, ())
        missing = yield from live_documents(session.key, session.view_of_all(), archive)
        yield from session.append((), documents=missing)
        return added

    aimport_conversation = async_method(import_conversation)

    def _add_lines(self, session: Session, lines: Sequence[Line]) -> Flow[int]:
        engine = self._session.engine
        messages = yield from _append(engine, session, lines)
        if messages:
            engine.events.emit(SessionLoaded(session.key.session, messages))
            yield from engine.fitter.maintain(session, session.stage())
        return len(messages)

    @sync_method
    def save_snapshot(self, path: str | os.PathLike[str]) -> Flow[None]:
        """Writes the whole session (messages, pins, summaries, policy) to one versioned file that appears only when complete.

        `ctxfold.session.context.load_snapshot` opens it.
        """
        records = yield from StoreCall(Store.read, (yield from self._session.open()).key)
        yield from Call(lambda: write_lines(path, [session_text(self._session.key, records)]))

    asave_snapshot = async_method(save_snapshot)


# writing


def exported(session: Session, codec: LineCodec, *, zone: str, native: bool) -> Flow[list[str]]:
    """Lines of one zone as it stands, of the whole window, or of every message ever stored, with the log beside ("all")."""
    if zone == "all":
        return (yield from _whole(session, codec, native))
    view, pins = session.view(), session.state.pins
    zones = {"immutable": view.system, "compressed": view.compressed, "incremental": view.live}
    if zone != "window" and zone not in zones:
        raise ConfigError(f'zone is {zone!r}: use "all", "window", "immutable", "compressed" or "incremental"')
    chosen = [(name, e.message) for name, entries in zones.items() if zone in (name, "window") for e in entries]
    wires = codec.wires([m for _, m in chosen], native=native)
    return [
        _line(codec, m, wire, native=native, zone=name, fields={"pinned": True} if m.id in pins else {})
        for (name, m), wire in zip(chosen, wires, strict=True)
    ]


def _whole(session: Session, codec: LineCodec, native: bool) -> Flow[list[str]]:
    records = yield from StoreCall(Store.read, session.key)
    visible, pins = {e.id for e in session.view()}, session.state.pins
    messages = [m for r in records if (m := stored_message(r)) is not None]
    wires = iter(codec.wires(messages, native=native))
    rows: list[tuple[Message, Json]] = []
    before: list[Json] = []
    for record in records:
        message = stored_message(record)
        if message is None:
            following = cast("list[Json]", rows[-1][1].setdefault("then", [])) if rows else before
            following.append(_record(record))
            continue
        fields: Json = {"log": _record(record, without_message=True)}
        if before and not rows:
            fields["before"] = before
        if message.id in pins:
            fields["pinned"] = True
        rows.append((message, fields))
    return [
        _line(codec, m, next(wires), native=native, zone="window" if m.id in visible else "archive", fields=fields)
        for m, fields in rows
    ]


def _line(codec: LineCodec, message: Message, wire: str, *, native: bool, zone: str, fields: Json) -> str:
    row: Json = json.loads(codec.write(message, wire))
    row[KEY] |= {"zone": zone, **fields}
    if not native:
        row = {"id": message.id, "zone": zone, **row}
    return json.dumps(row, ensure_ascii=False)


def _record(record: Record, *, without_message: bool = False) -> Json:
    body: Json = json.loads(encode_body(record.body))
    if without_message:
        del body["message"]
    return {"seq": record.seq, "id": record.id, "turn": record.turn_id, "at": record.at_s, "body": body}


def session_text(key: SessionKey, records: Sequence[Record]) -> str:
    """Returns a whole session as one JSON text with a version and a digest."""
    rows = [_record(record) for record in records]
    content = {"session": key.session, "owner": key.owner, "digest": _digest(rows), "records": rows}
    return json.dumps({"format": "ctxfold-session", "version": SESSION_VERSION, **content}, ensure_ascii=True)


def _digest(rows: Sequence[Json]) -> str:
    return hashlib.sha256(json.dumps(rows, ensure_ascii=True, sort_keys=True).encode()).hexdigest()


# reading


def parse_lines(path: str | os.PathLike[str], codec: LineCodec, new_id: Callable[[], str]) -> list[Line]:
    """Returns every line of the file, checked; raises ImportLineError for the first bad one."""
    lines: list[Line] = []
    for number, raw in read_lines(path):
        try:
            text = raw.decode()
            message = codec.read(text, new_id)
            fields: Json = json.loads(text).get(KEY, {})
            lines.append(Line(number, message, _carried(message, fields), fields.get("pinned") is True))
        except (CtxError, ValueError, KeyError, TypeError) as error:
            raise ImportLineError(number, str(error)) from error
    return lines


def _carried(message: Message, fields: Json) -> tuple[Json, ...]:
    if "log" not in fields:
        return ()
    stored: Json = json.loads(encode_body(MessageAdded(message)))["message"]
    own = {**fields["log"], "body": {**fields["log"]["body"], "message": stored}}
    return (*fields.get("before", ()), own, *fields.get("then", ()))


def has_log(lines: Sequence[Line]) -> bool:
    """Returns True when the file carries a session's log. Raises ImportLineError when only some of its lines do."""
    if not any(line.records for line in lines):
        return False
    bare = next((line for line in lines if not line.records), None)
    if bare is not None:
        raise ImportLineError(bare.number, "it has no place in the session's log, as the other lines have")
    return True


def log_of(lines: Sequence[Line]) -> list[tuple[int, Record]]:
    """Returns the records in the lines, each with the number of its line."""
    records: list[tuple[int, Record]] = []
    for line in lines:
        for row in line.records:
            if row.get("seq") != len(records) + 1:
                raise ImportLineError(
                    line.number,
                    f"record {len(records) + 1} is due, it holds {row.get('seq')}: a line is missing or was moved",
                )
            try:
                records.append((line.number, _parsed(row)))
            except (CtxError, KeyError, TypeError, ValueError) as error:
                raise ImportLineError(line.number, f"its record {len(records) + 1} cannot be read: {error}") from error
    return records


def _parsed(row: Mapping[str, Any]) -> Record:
    body = decode_body(json.dumps(row["body"]))
    message = getattr(body, "message", None)
    if isinstance(message, Message):
        validated(message)
    turn = row["turn"]
    return Record(int(row["seq"]), str(row["id"]), body, None if turn is None else str(turn), float(row["at"]))


def parse_session(path: str | os.PathLike[str]) -> tuple[SessionKey, tuple[Record, ...]]:
    """Returns the owner and name of the session in a file, and its records.

    StoreFormatError for another version or another kind of file, StoreCorruptError for a damaged one.
    """
    try:
        content = as_dict(json.loads(Path(path).read_bytes()))
    except (ValueError, RecursionError) as error:
        raise StoreCorruptError(f"{path} is not JSON ({json_problem(error)}): take another copy") from None
    if content.get("format") != "ctxfold-session":
        raise StoreFormatError(f"{path} is no session that save_snapshot wrote: JSONL files go to import_jsonl")
    if content.get("version") != SESSION_VERSION:
        raise StoreFormatError(
            f"{path} has version {content.get('version')!r}, this ctxfold reads {SESSION_VERSION}: use the ctxfold that wrote it"
        )
    try:
        rows: list[Json] = content["records"]
        if _digest(rows) != content["digest"]:
            raise StoreCorruptError(f"{path} was changed after it was written (its digest differs): take another copy")
        records = tuple(map(_parsed, rows))
        key = SessionKey(str(content["owner"]), str(content["session"]))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise StoreCorruptError(f"{path} is damaged ({error!r}): take another copy") from None
    if [r.seq for r in records] != list(range(1, len(records) + 1)):
        raise StoreCorruptError(f"{path} lacks records: take another copy")
    return key, records


def stored_policy(records: Sequence[Record]) -> Json:
    """Returns the newest policy among the records, as keyword arguments of AgentContext."""
    texts = [r.body.policy for r in records if isinstance(r.body, PolicyChanged)]
    rules: Json = json.loads(texts[-1]) if texts else {}
    return rules


def file_rules(path: str | os.PathLike[str]) -> Json:
    """Returns the newest policy in an exported file, as `stored_policy` does; empty for any file without a log."""
    changes: list[Record] = []
    for _, raw in read_lines(path):
        try:
            fields: Any = json.loads(raw)[KEY]
            rows = (*fields.get("before", ()), *fields.get("then", ()))
            changes += [_parsed(row) for row in rows if row["body"]["kind"] == "policy_changed"]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue
    return stored_policy(changes) if changes else {}


# loading


def load_log(engine: Engine, key: SessionKey, numbered: Sequence[tuple[int, Record]]) -> Flow[tuple[Message, ...]]:
    """Writes a whole log to a session that has none yet, and returns its messages.

    Snapshots are taken anew, by this engine's counter. SessionExistsError when the session holds anything else; nothing is
    written when anything is wrong.
    """
    records = _checked(key, numbered, engine.ports)
    head = yield from StoreCall(Store.head, key)
    stored = (yield from StoreCall(Store.read, key)) if head is not None else ()
    yield from check_plain(key)
    if len(stored) > len(records) or not all(map(_alike, stored, records)):
        raise SessionExistsError(
            f"session {key.session!r} holds {len(stored)} records of its own: load into a new name, "
            "ctx.at('another').files.import_jsonl(...), or give session_id='another'"
        )
    drafts = [Draft(r.id, r.body, r.turn_id, r.at_s) for r in records[len(stored) :]]
    yield from StoreCall(Store.append, key, drafts, expect=len(stored), documents=documents_of(key, records))
    messages = tuple(m for r in records if (m := stored_message(r)) is not None)
    engine.events.emit(SessionLoaded(key.session, messages))
    return messages


def _alike(stored: Record, loaded: Record) -> bool:
    """Returns True when a record of the new session (its rules, its system prompts) may replace the loaded one."""
    if isinstance(stored.body, PolicyChanged):
        return isinstance(loaded.body, PolicyChanged)
    same = isinstance(stored.body, MessageAdded) and stored.body == loaded.body
    return same and stored.turn_id == loaded.turn_id


def _checked(key: SessionKey, numbered: Sequence[tuple[int, Record]], ports: Ports) -> tuple[Record, ...]:
    """Returns the records with snapshots made with this counter, after checking that they fold into a legal conversation."""
    count = ports.counter.count
    state = SessionState(key, count)
    done: list[Record] = []
    ids: set[str] = set()
    for number, loaded in numbered:
        record = loaded
        if record.id in ids:
            raise ImportLineError(number, f"record id {record.id!r} appears twice")
        ids.add(record.id)
        if isinstance(record.body, SnapshotTaken):
            record = replace(record, body=SnapshotTaken(dump_state(state, ports.counter.id)))
        done.append(record)
        state.apply((record,))
        if isinstance(record.body, Undone):
            again = SessionState(key, count)
            again.undone = {r.body.record_id for r in done if isinstance(r.body, Undone)}
            again.apply(done)
            state = again
    lines = {r.seq: number for number, r in numbered}
    _check_rounds([(lines[entry.seq], entry.message) for entry in state.view()])
    return tuple(done)


def _check_rounds(numbered: Sequence[tuple[int, Message]], *, waiting: Collection[str] = ()) -> None:
    """Checks that calls and results pair up, after `waiting` calls; each message comes with the number of its line."""
    waiting, last = Counter(waiting), 0
    for last, message in numbered:
        if message.visibility == "user":
            continue
        try:
            waiting = check_sequence((message,), waiting=waiting)
        except CtxError as error:
            raise ImportLineError(last, str(error)) from error
    if waiting:
        raise ImportLineError(last, f"tool calls without results: {', '.join(sorted(waiting))}")


TRIES = 8


def _append(engine: Engine, session: Session, lines: Sequence[Line]) -> Flow[tuple[Message, ...]]:
    for _ in range(TRIES):
        # before the names: another request of this process may store some of the messages
        head = session.state.head
        names = yield from _new_names(session, lines)
        fresh = list({line.message.id: line for line in lines if line.message.id in names}.values())
        # a failed attempt to add some of the lines has left them in open turns: they are completed here
        starts = yield from open_turn_starts(session, [line.message for line in lines], names)
        turns = list(dict.fromkeys(turn for _, turn in starts))
        place = turns[-1] if turns else None
        waiting = open_calls(session.view(place).turn) if place else ()
        _check_rounds([(line.number, line.message) for line in fresh], waiting=waiting)
        pins = [line.message.id for line in lines if line.pinned]
        _check_pins(engine, session, lines)
        drafts: list[Draft] = [session.closing(turn, "completed") for turn in turns[:-1]]
        pairs = sized([x.message for x in fresh], rules=session.rules(), counter=engine.ports.counter)
        for (message, shown), line in zip(pairs, fresh, strict=True):
            turn = None if message.visibility == "user" else place
            draft = session.draft(MessageAdded(message, shown), turn_id=turn, record_id=names[message.id])
            drafts.append(draft if line.at_s is None else replace(draft, at_s=line.at_s))
        if place is not None:
            drafts.append(session.closing(place, "completed"))
        if pins:
            drafts.append(session.draft(Pinned(tuple(pins))))
        if not drafts:
            return ()
        try:
            yield from session.append_messages(drafts, expect=head)
        except HeadMovedError:
            yield from session.refresh()
        else:
            return tuple(line.message for line in fresh)
    raise StoreUnavailableError(
        f"other writers of session {session.key.session!r} were first {TRIES} times; nothing was imported: try again"
    )


def _new_names(session: Session, lines: Sequence[Line]) -> Flow[dict[str, str]]:
    seen: dict[str, Message] = {}
    for line in lines:
        twin = seen.setdefault(line.message.id, line.message)
        if content_key(twin) != content_key(line.message):
            raise ImportLineError(line.number, f"message id {twin.id!r} stands in an earlier line with other content")
    try:
        return (yield from new_record_ids(session, [line.message for line in lines]))
    except MessageConflictError:
        for line in lines:  # which of them it was
            try:
                yield from new_record_ids(session, [line.message])
            except MessageConflictError as error:
                raise ImportLineError(line.number, str(error)) from error
        raise


def _check_pins(engine: Engine, session: Session, lines: Sequence[Line]) -> None:
    rules = session.rules()
    limit = int(rules.pin_ratio * rules.budget_tokens)
    pinned_tokens = {e.id: e.tokens for e in session.view().live if e.id in session.state.pins}
    pinned_tokens |= {line.message.id: engine.ports.counter.count(line.message) for line in lines if line.pinned}
    if sum(pinned_tokens.values()) > limit and any(line.pinned for line in lines):
        raise PinBudgetError(
            f"pinned messages would take {sum(pinned_tokens.values())} tokens, their share is {limit} of a window of "
            f"{session.described_window()}: raise context_window, "
            'or take "pinned" out of some lines (nothing was imported)'
        )


def write_lines(path: str | os.PathLike[str], lines: Sequence[str]) -> int:
    """Writes the lines to a temporary file and moves it to `path`, so that the file is complete or absent; returns how many.

    A symbolic link keeps leading to its file, which is written. Raises ConfigError for a pipe, a device or a folder, and
    StoreUnavailableError, which is an OSError, when the disk is full.
    """
    target = Path(path).resolve() if Path(path).is_symlink() else Path(path)
    if target.exists() and not target.is_file():
        raise ConfigError(f"{path} is no regular file, and nothing was written: give the name of a file, or a new name")
    if not target.parent.is_dir():
        # not the name that it has meanwhile
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(target))
    name = ""
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}-")
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.writelines(f"{line}\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(target)
    except BaseException as error:
        with suppress(OSError):
            Path(name).unlink()
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            raise StoreUnavailableError(f"cannot write {target} ({error.strerror}): check the free space") from None
        raise
    return len(lines)


def read_lines(path: str | os.PathLike[str]) -> list[tuple[int, bytes]]:
    """Returns the lines that are not empty, each with its number. Only newlines end a line; U+2028 in a text does not."""
    lines = Path(path).read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    return [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
