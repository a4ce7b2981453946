"""Compares a caller's message list with a session's view: which messages are new, changed or removed. Pure functions.

The flows that act on the answers, with the store and the engine, are in `engine.attach`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import chain, count, dropwhile, islice, pairwise, takewhile
from typing import Any, Protocol, cast

from ctxfold.errors import MessageConflictError, MessageError, MessageIndexError, OrphanToolResultError
from ctxfold.history.cuts import asked_results, legal_cuts, round_of, whole_rounds
from ctxfold.history.log import SessionState
from ctxfold.history.records import AMONG_PROMPTS, Body, MessageAdded, MessageInserted, MessageRemoved, MessageReplaced
from ctxfold.history.view import Entry, View, roles_of
from ctxfold.messages import Message, Role, TextPart, content_key, is_final, is_prompt, is_question, system, validated
from ctxfold.validation import is_a

CHANGED = ""  # no message has this version: forces a message to be treated as changed
SAMPLED = 64  # of the older ids of a list
_MAX = 1 << 62  # of numbers that databases take
_LOOK_BACK = 512  # newest live messages whose ids are looked at; older ones are recognised by the store


class IncomingList(Protocol):
    """A list of messages that the caller keeps."""

    @property
    def ids(self) -> Sequence[str]: ...

    def digest(self, end: int) -> str:
        """Returns `ids_digest` of the list; an implementation may cache it."""
        ...

    def versions(self, indices: Sequence[int]) -> Sequence[str]:
        """Returns for each of these messages a short text that changes with its content."""
        ...

    def message(self, index: int) -> Message: ...


def ids_digest(ids: Sequence[str], end: int) -> str:
    """Returns a digest of about `SAMPLED` of the first `end` ids, spread evenly, so that a long list is not read whole.

    A message that is added or removed before `end` moves those after it, and with them the sampled ones.
    """
    sampled = ids[: end : max(1, end // SAMPLED)]
    return hashlib.blake2b("\0".join([*sampled, *ids[max(0, end - 1) : end]]).encode(), digest_size=8).hexdigest()


def own_ids(ids: Sequence[str | None], content_of: Callable[[int], str]) -> tuple[Sequence[str], frozenset[str]]:
    """Returns an id for each message that no other of them has, and the ids that several of them came with.

    A message whose id an earlier one has, or that has none, gets an id made from its content and the id before it: so it keeps that
    as the list grows.
    """
    if all(ids) and len({*ids}) == len(ids):
        return cast("Sequence[str]", ids), frozenset()  # nearly always
    own, known, repeated = list[str](), {""}, set[str]()
    for index, given in enumerate(ids):
        own_id = given or ""
        if own_id in known:
            repeated |= {own_id} if own_id else set()
            text = repr((own[-1] if own else "", own_id, content_of(index)))
            own_id = hashlib.blake2b(text.encode(errors="replace"), digest_size=16).hexdigest()
        known.add(own_id)
        own.append(own_id)
    return own, frozenset(repeated)


class MessageList:
    """An incoming list of ctxfold messages. Two messages are the same version where a model sees no difference."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = [*messages]
        self._versions: dict[int, str] = {}

    @property
    def ids(self) -> list[str]:
        return [m.id for m in self._messages]

    def digest(self, end: int) -> str:
        return ids_digest(self.ids, end)

    def versions(self, indices: Sequence[int]) -> list[str]:
        for index in indices:
            if index not in self._versions:
                self._versions[index] = content_key(self._messages[index])
        return [self._versions[index] for index in indices]

    def message(self, index: int) -> Message:
        return self._messages[index]

    def followed_by(self, message: Message) -> MessageList:
        """Returns the list with this message added at its end."""
        longer = MessageList([*self._messages, message])
        longer._versions = self._versions
        return longer


@dataclass(frozen=True, slots=True)
class Cursor:
    """The position in a session up to which it agrees with an incoming list; `to_dict` gives plain values to keep beside it.

    `root` is the session name that was asked for, `session` the one that serves the list, `head` and `head_id` its newest record
    at that time. `handed` maps the newest messages of the list to their versions: those that the session still shows.
    `before` counts the older messages of the list, and `digest` is their `ids_digest`.
    """

    root: str
    session: str
    head: int
    head_id: str
    before: int
    digest: str
    handed: Mapping[str, str]

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__} | {"handed": dict(self.handed)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Cursor | None:
        """Returns None for values that are no cursor; the list is then matched by its ids alone."""
        if values.keys() != cls.__dataclass_fields__.keys():
            return None
        cursor = cls(**values)
        numbers, handed = (cursor.head, cursor.before), cursor.handed
        if not is_a(handed, Mapping) or not all(is_a(n, int) and 0 <= n < _MAX for n in numbers):
            return None
        try:  # each model call of an agent reads one, which may have thousands of texts
            joined = "".join([cursor.root, cursor.session, cursor.head_id, cursor.digest, *handed, *handed.values()])
        except TypeError:  # one of them is no text
            return None
        return cursor if "\0" not in joined and joined == joined.encode(errors="replace").decode() else None

    @property
    def end(self) -> int:
        """Returns the length of the list."""
        return self.before + len(self.handed)

    def has_same_ids(self, incoming: IncomingList) -> bool:
        """Returns True where the list begins with the very messages that it had at the cursor, by id; older ones are sampled."""
        return [*incoming.ids[self.before : self.end]] == [*self.handed] and incoming.digest(self.before) == self.digest

    def has_same_start(self, incoming: IncomingList) -> bool:
        """Returns True where the list has the older messages, and the first of those that the session shows."""
        same = [*incoming.ids[self.before : self.before + 1]] == [*islice(self.handed, 1)]
        return same and bool(self.handed) and incoming.digest(self.before) == self.digest

    def precedes(self, incoming: IncomingList) -> bool:
        """Returns True where the list only adds messages: none before the cursor was changed, removed or inserted."""
        if len(incoming.ids) <= self.end or not self.has_same_ids(incoming):
            return False
        return [*incoming.versions(range(self.before, self.end))] == [*self.handed.values()]


def kept_positions(incoming: IncomingList, cursor: Cursor) -> list[int] | None:
    """Returns where the cursor's messages stand in the list now; None when none is left or their order has changed."""
    positions = [i for i, message_id in enumerate(incoming.ids) if message_id in cursor.handed]
    kept_ids = [incoming.ids[i] for i in positions]
    in_both = {*kept_ids}
    return positions if positions and kept_ids == [i for i in cursor.handed if i in in_both] else None


def changed_messages(incoming: IncomingList, cursor: Cursor, positions: Sequence[int]) -> dict[str, Message | None]:
    """Returns the new content of the cursor's messages that have changed, None for those that were removed.

    `positions` are those that `kept_positions` found.
    """
    versions = [*incoming.versions(positions)]
    if versions == [*cursor.handed.values()]:
        return {}  # nearly always
    kept = {incoming.ids[i]: (i, version) for i, version in zip(positions, versions, strict=True)}
    changed: dict[str, Message | None] = {i: None for i in cursor.handed if i not in kept}
    return changed | {
        message_id: incoming.message(i)
        for message_id, (i, version) in kept.items()
        if version != cursor.handed[message_id]
    }


@dataclass(frozen=True, slots=True)
class Reconciled:
    """The outcome of comparing a list with a session.

    `messages` are new and continue the open turn `turn_id`. `superseded` are known messages after a user message that is asked
    again; `left_behind` are those after the point from which another branch of the conversation goes on: they may come back.
    `overtaken` is a known question that others were put behind, and `shown` the words in which this request shows it.
    """

    messages: tuple[Message, ...]
    turn_id: str | None = None
    superseded: tuple[str, ...] = ()
    left_behind: tuple[str, ...] = ()
    overtaken: Entry | None = None
    shown: Message | None = None


def compare(
    live: Sequence[Entry],
    open_turns: Mapping[str, Sequence[Entry]],
    messages: Sequence[Message],
    *,
    given_ids: Collection[str],
    whole: bool,
    session: str,
    in_flight: Collection[str] = (),
    from_window: bool = False,
) -> Reconciled:
    """Returns the messages after the newest one that the session knows, all of them when it knows none, and what they replace.

    `open_turns` are the entries of each open turn; a turn that is `in_flight` is asked by another call at this moment.
    `given_ids` are the ids that the caller chose. A `whole` list has all that its caller keeps of the conversation: what the
    session has after the message from which it goes on is left behind. A list that ends with a known user message asks for its
    reply again. Raises MessageConflictError when that message has other content than in the session, except in a list
    `from_window`: it ended with the newest message when it was read, so that later questions came since and stay, and other
    content is meant for this request only.
    """
    known = _newest_known(live, open_turns, messages, given_ids, in_flight)
    if known is None:
        return Reconciled(tuple(messages if whole else messages[repeated_by_content(live, messages) :]))
    index, turn_id = known
    message, new_messages = messages[index], tuple(messages[index + 1 :])
    if turn_id is not None:
        return Reconciled(new_messages, turn_id)
    if not new_messages:
        return _asked_again(live, message, session, from_window=from_window)
    if message.id not in given_ids and any(m.role == "assistant" for m in new_messages):
        # a short answer may also stand among the examples of a prompt
        new_messages = tuple(messages[max(index + 1, _repeated_in_view(live, messages)) :])
    copied, last_id = copied_replies(live, message, new_messages)
    return Reconciled(new_messages[copied:], left_behind=_superseded_after(live, last_id) if whole else ())


def _newest_known(
    live: Sequence[Entry],
    open_turns: Mapping[str, Sequence[Entry]],
    messages: Sequence[Message],
    given_ids: Collection[str],
    in_flight: Collection[str],
) -> tuple[int, str | None] | None:
    """Returns the position of the newest message that the session knows and its open turn, if it is in one; None for no such one.

    A message with an id of `given_ids` is known by it, any other by its content as the last one of a turn. The content proves
    nothing where the turn is in flight, because another call may ask the same.
    """
    turn_of: dict[str, str | None] = {e.id: None for e in live[-_LOOK_BACK:]} if given_ids else {}
    turn_of |= {e.id: turn_id for turn_id, entries in open_turns.items() for e in entries}
    waiting = {t: entries[-1] for t, entries in open_turns.items() if entries and t not in in_flight}
    last_of_turn: dict[str, str | None] = {_stripped_key(e.message): None for e in live[-1:]}
    last_of_turn |= {_stripped_key(last.message): turn_id for turn_id, last in waiting.items()}
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        known, key = (turn_of, message.id) if message.id in given_ids else (last_of_turn, _stripped_key(message))
        if key in known:
            return index, known[key]
    return None


def _stripped_key(message: Message) -> str:
    """Returns the content key of a message without the white space around its text, which many callers strip."""
    text = message.text
    if text == text.strip():
        return content_key(message)
    others = (part for part in message.parts if not isinstance(part, TextPart))
    return content_key(replace(message, parts=(TextPart(text.strip()), *others)))


def copied_replies(live: Sequence[Entry], known: Message, new_messages: Sequence[Message]) -> tuple[int, str]:
    """Returns how many of the messages after the known one copy what follows it in the view, and the id of the last one known.

    Only where the first is a copy of a reply, because people say the same again.
    """
    if new_messages[0].role != "assistant" or live[-1].id == known.id or (at := _position(live, known.id)) is None:
        return 0, known.id
    entries = [e for e in islice(live, at + 1, None) if e.message.kind == "message"]
    count = _in_common(entries, new_messages)
    return (count, entries[count - 1].id) if count else (0, known.id)


def repeated_by_content(live: Sequence[Entry], messages: Sequence[Message]) -> int:
    """Returns how many messages at the beginning of a list the view has under other ids: up to a copy of its newest answer,
    and as many as stand there one after the other."""
    if not live or len(messages) < 3:
        return 0
    newest = _stripped_key(live[-1].message) if is_final(live[-1].message) else None
    answers = (i for i in range(len(messages) - 2, 0, -1) if messages[i].role == "assistant")
    copied = next((i + 1 for i in answers if _stripped_key(messages[i]) == newest), 0)
    return max(copied, _repeated_in_view(live, messages))


def _repeated_in_view(live: Sequence[Entry], messages: Sequence[Message]) -> int:
    """Returns how many messages at the beginning of a list stand in the view one after the other, by content.

    It is a question and its answer at least, and something new follows: an earlier part of the conversation, or the examples of a
    prompt, which are in the list of every call. A caller that keeps questions and answers only has no tool rounds in its list.
    """
    if not any(m.role == "assistant" for m in messages[:-1]):
        return 0
    entries = [e for e in live if e.message.kind == "message"]
    if not any(m.role == "tool" for m in messages):
        entries = [e for e in entries if e.message.role != "tool" and not e.message.tool_calls]
    first = messages[0].text.strip()
    starts = (at for at, e in enumerate(entries) if e.message.text.strip() == first)
    count = max((_in_common(islice(entries, at, None), messages) for at in starts), default=0)
    known = messages[:count]
    return count if count < len(messages) and {"user", "assistant"} <= {m.role for m in known} else 0


def _in_common(entries: Iterable[Entry], messages: Sequence[Message]) -> int:
    """Returns how many messages have the content of the entries, from the first on."""
    pairs = zip(entries, messages, strict=False)
    return sum(1 for _ in takewhile(lambda pair: _stripped_key(pair[0].message) == _stripped_key(pair[1]), pairs))


def _position(live: Sequence[Entry], message_id: str) -> int | None:
    return next((i for i in range(len(live) - 1, -1, -1) if live[i].id == message_id), None)


def _superseded_after(live: Sequence[Entry], message_id: str) -> tuple[str, ...]:
    """Returns the messages after this one if a reply is among them; a message that was only added, such as a note, stays."""
    position = _position(live, message_id)
    later = () if position is None else live[position + 1 :]
    return tuple(e.id for e in later) if any(e.message.role == "assistant" for e in later) else ()


def _asked_again(live: Sequence[Entry], message: Message, session: str, *, from_window: bool) -> Reconciled:
    """Returns the messages that a user message supersedes when it is asked again: all after it, or `from_window` its answer.

    Tool results supersede only the answer to them, which the caller never received, and only where it ends the conversation.
    """
    position = _position(live, message.id) if message.role in ("user", "tool") else None
    if position is None:
        return Reconciled(())
    known, later = live[position], live[position + 1 :]
    if message.role == "tool":
        later = [*dropwhile(lambda e: e.message.role == "tool", later)]
        return Reconciled(
            (), superseded=() if any(is_question(e.message) for e in later) else tuple(e.id for e in later)
        )
    changed = not known.shown_seq and content_key(known.message) != content_key(message)
    if changed and not from_window:
        raise MessageConflictError(
            f"message id {message.id!r} is in session {session!r} with other content: "
            "give the new message an id of its own, or change the old one with update()"
        )
    answer = [*takewhile(lambda e: not (from_window and is_question(e.message)), later)]
    return Reconciled(
        (),
        superseded=tuple(e.id for e in answer),
        overtaken=known if len(answer) < len(later) else None,
        shown=message if changed else None,
    )


def rewound_turn(
    entries: Sequence[Entry], messages: Sequence[Message], new_messages: Sequence[Message]
) -> tuple[Message, ...] | None:
    """Returns the messages of the open turn as the list has them, with the new ones, if the turn cannot continue as it is.

    Returns None where it can. It cannot where a failed run has left a newest round that the list lacks, where the list ends with
    calls that nobody will answer any more, where it has results in place of the notes that another request got, and where a
    question came in before a round of a cancelled run.
    """
    in_common = messages[: len(messages) - len(new_messages)]
    newest = in_common[-1]
    # a message without an id of its own is known as a turn's last one
    last = next((i for i, e in enumerate(entries) if e.id == newest.id), len(entries) - 1)
    inserted = _from_inserted_question(entries[: last + 1], in_common)
    if inserted:
        last = next(i for i, e in enumerate(entries) if e.message.role == "assistant") - 1
    elif not new_messages and newest.tool_calls:
        last -= 1
    later = [e.message.role for e in entries[last + 1 :]]
    has_other_results = "tool" in later and any(m.role == "tool" for m in new_messages[:1])
    if last < 0 or not ("assistant" in later or has_other_results):
        return None
    in_full = {m.id: m for m in messages}  # an entry may hold an excerpt
    kept = (*(in_full.get(e.id, e.message) for e in entries[: last + 1]), *inserted)
    return (*(replace(m, usage=None) for m in kept), *new_messages)


def _from_inserted_question(entries: Sequence[Entry], in_common: Sequence[Message]) -> Sequence[Message]:
    """Returns the list from a user message on that came in between the turn's question and its first reply; () without one.

    A message that replaces one of the turn's does not count: some callers write the time or a state into each request.
    """
    replies = [e.message for e in entries]
    replies = replies[next((i for i, m in enumerate(replies) if m.role == "assistant"), len(replies)) :]
    keys = [content_key(e.message) for e in entries[: len(entries) - len(replies)]]
    first_reply = start = len(in_common) - len(replies)
    while start > 0 and in_common[start - 1].role == "user" and content_key(in_common[start - 1]) not in keys:
        start -= 1
    if not keys or start in (0, first_reply):
        return ()  # nearly always
    begins = [content_key(m) for m in in_common[max(0, start - len(keys)) : start]]
    same = begins == keys and [*map(content_key, in_common[first_reply:])] == [*map(content_key, replies)]
    return in_common[start:] if same else ()


def newest_known(ids: Sequence[str | None], known: Collection[str]) -> int:
    """Returns the position of the newest id that is known, -1 when none is."""
    return next((i for i in range(len(ids) - 1, -1, -1) if ids[i] in known), -1)


def open_turn(messages: Sequence[Message]) -> Sequence[Message]:
    """Returns the messages after the newest final answer."""
    return messages[finished_count(messages) :]


def finished_count(messages: Sequence[Message]) -> int:
    """Returns how many messages a list has up to its newest final answer."""
    return next((count for count in range(len(messages), 0, -1) if is_final(messages[count - 1])), 0)


def asked_after_results(messages: Sequence[Message]) -> int:
    """Returns the position of the newest question that directly follows a tool's result; 0 when none does."""
    pairs = enumerate(pairwise(messages), start=1)
    return max((at for at, (a, b) in pairs if a.role == "tool" and is_question(b)), default=0)


def split_settled(
    messages: Sequence[Message], restored: Collection[str], *, continues_known: bool
) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    """Returns the messages of finished turns, to be stored before the request, and all messages that make the request.

    With `continues_known` the first message is the newest one that the session knows. The ids `restored` are stored again: their
    usage was counted before.
    """
    incoming = [replace(m, usage=None) if m.id in restored else m for m in messages]
    incoming = [m for m in incoming if m.kind == "message"]  # summaries are the session's own
    if continues_known:
        first = incoming[0]  # where it is a result itself, others of its round may follow
        waiting = None if first.role == "tool" else [c.id for c in first.tool_calls]
        legal = [first, *whole_rounds(incoming[1:], waiting=waiting)]
    else:
        legal = [*whole_rounds(incoming, waiting=())]
    incoming = legal + asked_results(incoming, legal)
    finished = finished_count(incoming)
    settled = incoming[1 if continues_known else 0 : finished]
    return tuple(settled) if finished < len(incoming) else (), tuple(incoming)


def repeated_count(messages: Sequence[Message], given_ids: Collection[str], shown: Sequence[Message] | None) -> int:
    """Returns how many leading messages repeat what the caller was shown or has just handed over.

    `shown` is the history as it was last read, None when it was not read.
    """
    known = {m.id: content_key(m) for m in shown or ()}
    repeated = _repeated_input(messages, given_ids, known, unread=shown is None)
    return repeated + _repeated_history(messages[repeated:], given_ids, shown or ())


def _repeated_input(
    messages: Sequence[Message], given_ids: Collection[str], known: Mapping[str, str], *, unread: bool
) -> int:
    """Returns how many leading messages are the input of an agent, which its output repeats.

    The output repeats it after the messages that were shown. In a first turn it comes twice in a row: with ids the second time,
    or after the history was read as empty.
    """
    keys = [content_key(m) for m in messages]
    known_at = [i for i, m in enumerate(messages) if m.id in given_ids and m.id in known]
    if known_at:
        count, after = known_at[0], known_at[-1] + 1
        return count if count and keys[:count] == keys[after : after + count] else 0
    if known:
        return 0
    for count in range(1, (len(messages) + 1) // 2):
        has_ids = messages[0].id not in given_ids and messages[count].id in given_ids
        if keys[:count] == keys[count : 2 * count] and (has_ids or not unread):
            return count
    return 0


def _repeated_history(messages: Sequence[Message], given_ids: Collection[str], shown: Sequence[Message]) -> int:
    """Returns how many leading messages copy all that was shown, without ids; a single message may have been said again."""
    count = len(shown)
    if count < 2 or len(messages) <= count or any(m.id in given_ids for m in messages[:count]):
        return 0
    same = all(content_key(a) == content_key(b) for a, b in zip(messages, shown, strict=False))
    return count if same else 0


def first_in_view(view: View, incoming: IncomingList) -> int:
    """Returns the position in the list of its first message that the view shows; the list's length when it shows none."""
    live_ids = {e.id for e in view.live}
    return next((i for i, message_id in enumerate(incoming.ids) if message_id in live_ids), len(incoming.ids))


def continues(view: View, incoming: IncomingList) -> bool:
    """Returns True where the list has the whole conversation that the view shows, unchanged and in one piece, and more."""
    ids = incoming.ids
    live = conversation(view, ids)
    if not live or live[0].id not in ids:
        return False
    start = ids.index(live[0].id)
    if [*ids[start : start + len(live)]] != [e.id for e in live] or start + len(live) >= len(ids):
        return False
    return all(is_same(e, incoming.message(start + i)) for i, e in enumerate(live))


def is_same(entry: Entry, message: Message) -> bool:
    """Returns True where the entry has the text and the calls of the message; a tool's output may stand there as an excerpt."""
    if entry.message.role == message.role == "tool" or entry.shown_seq:
        return True
    return (entry.message.text, entry.message.tool_calls) == (message.text, message.tool_calls)


def conversation(view: View, ids: Collection[str]) -> list[Entry]:
    """Returns the visible messages of a conversation; a system message only if its id is among those of the list."""
    in_list = frozenset(ids)
    return [e for e in view.live if e.message.kind == "message" and (e.message.role != "system" or e.id in in_list)]


def cursor_of_view(
    base: Cursor, view: View, visible: AbstractSet[str], incoming: IncomingList, last: Cursor | None
) -> Cursor | None:
    """Returns the cursor from which the list, as it is now, continues the session's window; None when that shows nothing.

    `base` gives the session's head and the part of the list that is older than the window; `visible` are the messages of open
    turns too. With `last`, the cursor of the call before, messages that it did not have, such as a note, are the session's own.
    An open turn continues only if the list has it unchanged and in one piece; otherwise, and after a restart, it begins again.
    """
    known = None if last is None else last.handed
    positions = {message_id: i for i, message_id in enumerate(incoming.ids)}
    in_list = [positions[e.id] for e in view.live if e.id in positions]
    if not view.compressed and in_list and in_list[-1] - in_list[0] >= len(in_list):
        # messages that are new or have come back stand among known ones: the session begins again
        return replace(base, handed={CHANGED: CHANGED})
    live = [e for e in view.live if _is_callers(e, positions) and (known is None or e.id in known)]
    handed = {e.id: _entry_version(e, positions.get(e.id), incoming, known or {}) for e in live}
    in_open_turns = sorted(visible - {e.id for e in view.live}, key=lambda i: positions.get(i, -1))
    if in_open_turns and not _is_unchanged(in_open_turns, positions, incoming, known or {}):
        handed[in_open_turns[0]] = CHANGED  # with one message its whole turn goes
    if not handed:
        return None
    return replace(base, handed=dict(sorted(handed.items(), key=lambda item: positions.get(item[0], -1))))


def _is_unchanged(
    ids: Sequence[str], positions: Mapping[str, int], incoming: IncomingList, known: Mapping[str, str]
) -> bool:
    start = positions.get(ids[0], -1)
    indices = range(start, start + len(ids))
    if start < 0 or [*map(positions.get, ids)] != [*indices]:
        return False
    return [*map(known.get, ids)] == [*incoming.versions(indices)]


def _is_callers(entry: Entry, positions: Mapping[str, int]) -> bool:
    """Returns False for messages that the session itself holds beside the list: summaries, and those for the model only."""
    message = entry.message
    if message.kind != "message" or message.visibility == "model":
        return False
    return message.role != "system" or entry.id in positions


def _entry_version(entry: Entry, position: int | None, incoming: IncomingList, known: Mapping[str, str]) -> str:
    if position is None:
        return CHANGED
    if entry.id in known:
        return known[entry.id]
    # a tool's output may stand there as an excerpt
    same = entry.shown_seq or entry.message.role == "tool"
    same = same or content_key(entry.message) == content_key(incoming.message(position))
    return incoming.versions((position,))[0] if same else CHANGED


PROMPT_ID = "system-prompt-"


def replaced(entries: Sequence[Entry], index: int, message: Message) -> MessageReplaced:
    """Returns the record that puts new content in place; role, tool calls and the answered call must stay the same."""
    old = entries[index].message
    if old.role != message.role:
        raise MessageError(
            f"message {index} is {old.role}, the new one {message.role}: remove it and insert the new one"
        )
    if {c.id for c in old.tool_calls} != {c.id for c in message.tool_calls}:
        raise OrphanToolResultError(
            f"message {index} makes tool calls; an update must keep their ids: remove the round instead"
        )
    if {r.call_id for r in old.tool_results} != {r.call_id for r in message.tool_results}:
        raise OrphanToolResultError(f"message {index} answers a tool call; an update must answer the same one")
    return MessageReplaced(message)


def inserted(entries: Sequence[Entry], index: int, message: Message) -> MessageInserted:
    """Returns the record that puts a message before position `index`: the end is allowed, the inside of a tool round is not."""
    if not 0 <= index <= len(entries):
        raise MessageIndexError(f"index {index} is outside 0..{len(entries)}")
    if message.tool_calls or message.role == "tool":
        raise OrphanToolResultError("a tool call or result cannot be inserted alone: append the whole round at the end")
    if index not in legal_cuts(entries):
        raise OrphanToolResultError(f"position {index} lies inside a tool round: insert before or after the round")
    return MessageInserted(message, entries[index].id if index < len(entries) else None)


def removed(entries: Sequence[Entry], index: int) -> tuple[Entry, ...]:
    """Returns the entries to remove with the one at `index`: its whole tool round, if it is in one."""
    return tuple(entries[slice(*round_of(entries, index))])


def popped(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """Returns the newest entry, with its whole tool round."""
    if not entries:
        raise MessageIndexError("pop from an empty conversation")
    return removed(entries, len(entries) - 1)


def retained(entries: Sequence[Entry], role: Role) -> tuple[Entry, ...]:
    """Returns the entries to remove when only `role` stays; a tool round stays only as a whole."""
    removed_entries: list[Entry] = []
    index = 0
    while index < len(entries):
        start, end = round_of(entries, index)
        block = entries[start:end]
        if any(e.message.role != role for e in block):
            removed_entries.extend(block)
        index = end
    return tuple(removed_entries)


def prompt_changes(state: SessionState, prompts: Sequence[str]) -> list[Body]:
    """Returns the records that set the session's own system prompts; system messages of the conversation stay."""
    if [e.message.text for e in state.system] == list(prompts):
        return []
    own = [e for e in state.system if e.id.startswith(PROMPT_ID)]
    others = {e.message.text for e in state.system if not e.id.startswith(PROMPT_ID)}
    prompts = [text for text in prompts if text not in others]
    fresh = not state.live and not state.compressed and not state.open
    bodies: list[Body] = []
    own_ids = {e.id for e in own}  # of two prompts the first may have gone
    free = (name for number in count(1) if (name := f"{PROMPT_ID}{number}") not in own_ids)
    for index, text in enumerate(prompts):
        name = own[index].id if index < len(own) else next(free)
        message = validated(system(text, id=name))
        if index >= len(own):
            bodies.append(MessageAdded(message) if fresh else MessageInserted(message, AMONG_PROMPTS))
        elif own[index].message.text != text:
            bodies.append(MessageReplaced(message))
    if len(own) > len(prompts):
        bodies.append(MessageRemoved(tuple(e.id for e in own[len(prompts) :])))
    return bodies


def prompted(view: View, prompts: tuple[str, ...] | None, count: Callable[[Message], int]) -> View:
    """Returns the view with these system prompts, whichever another call has set meanwhile; as it is without prompts."""
    if prompts is None or view.prompts == prompts:
        return view
    others = [e for e in view.system if not e.id.startswith(PROMPT_ID)]
    fresh = [text for text in prompts if text not in {e.message.text for e in others}]
    messages = [system(text, id=f"{PROMPT_ID}{index}") for index, text in enumerate(fresh, 1)]
    leading = (*(Entry(m.id, 0, m, count(m)) for m in messages), *others)
    tokens = view.tokens + sum(e.tokens for e in leading) - sum(e.tokens for e in view.system)
    return replace(view, system=leading, tokens=tokens)


def without_repeated_prompts(view: View) -> View:
    """Returns the view without system messages behind its head that say what the system message before them says."""
    if "system" not in view.live_roles | roles_of(view.turn):
        return view
    newest = view.system[-1].message.text if view.system else None
    repeated: set[int] = set()
    for entry in [e for e in chain(view.live, view.turn) if e.message.role == "system" and is_prompt(e.message)]:
        if entry.message.text == newest:
            repeated.add(entry.seq)
        newest = entry.message.text
    if not repeated:
        return view
    turn = tuple(e for e in view.turn if e.seq not in repeated)
    tokens = view.tokens + sum(e.tokens for e in turn) - sum(e.tokens for e in view.turn)
    return replace(view, turn=turn, tokens=tokens).with_live(e for e in view.live if e.seq not in repeated)


def reworded(view: View, message: Message | None, count: Callable[[Message], int]) -> View:
    """Returns the view with this message in place of the live one with its id; as it is without a message."""
    if message is None:
        return view
    return view.with_live(
        replace(e, message=message, tokens=count(message)) if e.id == message.id else e for e in view.live
    )


def ended_with(view: View, message_id: str | None) -> View:
    """Returns the view without the live messages behind this one; as it is without an id, or where a summary has replaced it."""
    end = next((i + 1 for i, e in enumerate(view.live) if e.id == message_id), None) if message_id is not None else None
    return view if end is None else view.with_live(view.live[:end])
