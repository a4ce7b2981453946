"""Defines SessionHandle: what every handle on a session can do without a model. Each method has an async form."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from os import PathLike
from typing import Any, Self, TypeAlias, TypeVar, Unpack, cast

from ctxfold._deprecated import KEYWORDS, renamed_keywords
from ctxfold._lifecycle import Closing
from ctxfold.compaction.commit import Outcome
from ctxfold.compaction.goal import set_goal, set_subgoal
from ctxfold.compaction.tool_summaries import summarise_pairs
from ctxfold.connect import LineCodec, SessionSettings
from ctxfold.effects import ArchiveRead, Call, Flow, FlowMethods, async_method, in_thread, sync_method
from ctxfold.engine import archive, erase
from ctxfold.engine import edit as editing
from ctxfold.engine.archive import Hit
from ctxfold.engine.attach import Attachment, Cursor, IncomingList, cursor_at, follow
from ctxfold.engine.engine import Added, Engine
from ctxfold.engine.erase import Age, Erasure
from ctxfold.engine.owner_search import scope_of, search_owner
from ctxfold.engine.retention import LEASE_S, Pruned, Pruning, Retention
from ctxfold.engine.retention import prune as prune_owner
from ctxfold.errors import (
    BudgetError,
    EmptyMessagesError,
    HeadMovedError,
    MessageError,
    NotEnoughHistoryError,
    SessionError,
)
from ctxfold.history.cuts import open_calls
from ctxfold.history.records import GoalSet, SessionKey
from ctxfold.io.session_files import (
    Zone,
    exported,
    import_jsonl,
    load_log,
    parse_session,
    session_text,
    stored_policy,
    whole_log,
    write_lines,
)
from ctxfold.messages import Message, Role, Visibility, system, tool_result, user
from ctxfold.policy import Policy, PolicyChanges
from ctxfold.protocols import ContextBackend, Ports, Store, TokenCounter
from ctxfold.session.memory import SessionMemory
from ctxfold.session_state import OpenSession
from ctxfold.validation import is_a, name_or_own

__all__ = ["Input", "SessionErasing", "SessionFiles", "SessionHandle"]


T = TypeVar("T")
Input: TypeAlias = "str | Message | Sequence[Message]"


class SessionHandle(FlowMethods):
    """A handle on one session of an engine, by its key."""

    _engine: Engine
    _key: SessionKey
    _prompts: tuple[str, ...] | None
    _create: bool
    _turn: str | None  # that messages were added to
    _asked_turn: str | None  # that the newest request was made in

    # identity

    @property
    def session(self) -> str:
        return self._key.session

    @property
    def owner(self) -> str:
        return self._key.owner

    @property
    def policy(self) -> Policy:
        """The rules that this context was made with."""
        return self._engine.rules

    @property
    def backend(self) -> ContextBackend | None:
        return self._engine.ports.backend

    @property
    def counter(self) -> TokenCounter:
        return self._engine.ports.counter

    @property
    def store(self) -> Store:
        """The store of this context's sessions, also when the context made it from a URL."""
        return self._engine.ports.store

    def new_id(self) -> str:
        """A message id that was never given before."""
        return self._engine.ports.ids.new()

    def user_message(self, text: str) -> Message:
        return user(text, id=self.new_id())

    def system_message(self, text: str) -> Message:
        return system(text, id=self.new_id())

    def tool_message(self, tool_call_id: str, content: str, *, name: str | None = None) -> Message:
        return tool_result(tool_call_id, content, id=self.new_id(), name=name)

    def _messages(self, content: Input) -> tuple[Message, ...]:
        if isinstance(content, str):
            return (self.user_message(content),)
        # a framework's message can be iterated over too, by its fields
        one = isinstance(content, Message | Mapping) or hasattr(content, "content") or not is_a(content, Iterable)
        messages = (cast("Message", content),) if one else tuple(cast("Sequence[Message]", content))
        if not messages:
            raise EmptyMessagesError("no message to send: give at least one")
        return messages

    @property
    def memory(self) -> SessionMemory:
        """The memory of the owner beyond this conversation: add, list, search, forget, learn."""
        return SessionMemory(self._engine, self._open_session)

    # keeping

    @sync_method
    def add(
        self,
        messages: Input,
        *,
        visibility: Visibility | None = None,
        known_ids: bool = True,
        skip_orphans: bool = False,
    ) -> Flow[Added]:
        """Store messages without asking the model; a known id with the same content is kept once.

        `visibility` "user" keeps them from the model: neither counted nor sent; "model" from `messages(audience="user")`.
        `known_ids` False says that all ids were made just now, and saves looking for them in the store.
        `skip_orphans` leaves out tool results without their call and calls that were never answered, in place of
        OrphanToolResultError; the event MessagesLeftOut names them.
        """
        return self._add(messages, visibility, known_ids, skip_orphans)

    aadd = async_method(add)

    def _add(
        self, content: Input, visibility: Visibility | None, known_ids: bool, skip_orphans: bool = False
    ) -> Flow[Added]:
        messages = _seen_by(visibility, self._messages(content))
        known_ids = known_ids and not isinstance(content, str)
        add = partial(
            self._engine.add, messages=messages, turn_id=self._turn, known_ids=known_ids, skip_orphans=skip_orphans
        )
        open_session = self._engine.known(self._key)
        added: Added | None = None
        if (
            open_session is not None
            and not open_session.pending_rollbacks
            and self._prompts in (None, open_session.view().prompts)
        ):
            # mostly nobody else has written since: then nothing needs to be read first
            with suppress(BudgetError, HeadMovedError, MessageError, SessionError):
                added = yield from add(open_session, expect=open_session.state.head)
        if added is None:
            added = yield from add((yield from self._open_session()))
        self._turn = added.turn_id
        return added

    def extend(self, messages: Sequence[Message]) -> Added:
        """Stores several messages in one step, as `add` does."""
        return self.add(messages)

    async def aextend(self, messages: Sequence[Message]) -> Added:
        return await self.aadd(messages)

    @sync_method
    def set_messages(
        self, messages: Sequence[Message], *, prompts: bool = False, recognise: bool = False
    ) -> Flow[None]:
        """Put messages in place of the whole conversation at once, with `prompts` of the system prompts too.

        What was there stays in the archive. With `prompts` and `recognise`, messages at the beginning that the conversation
        or its window has already, by position and content, stay as they are, compacted or not; only what differs is replaced.
        """
        return self._set(messages, prompts, recognise)

    aset_messages = async_method(set_messages)

    def _set(self, messages: Sequence[Message], prompts: bool, recognise: bool) -> Flow[None]:
        return self._anew(lambda e, j: editing.set_all(e, j, messages, prompts=prompts, recognise=recognise))

    @sync_method
    def revise(self, change: editing.Change) -> Flow[None]:
        """Put what `change` makes of the conversation, as the user sees it, in its place at once; None leaves it as it is.

        System prompts are part of it. Where somebody else writes meanwhile, `change` is asked anew: nothing of theirs is lost.
        """
        return self._anew(lambda e, j: editing.revise(e, j, change, turn_id=self._turn), whole=False)

    arevise = async_method(revise)

    @sync_method
    def update(self, index: int, message: Message) -> Flow[Message]:
        """Replace the live message at `index`, under its id; role and tool calls have to stay. The old one is returned."""
        return self._edit(lambda e, j: editing.update(e, j, index, message))

    aupdate = async_method(update)

    @sync_method
    def insert(self, index: int, message: Message) -> Flow[None]:
        """Insert before live message `index`; never inside a tool round."""
        return self._edit(lambda e, j: editing.insert(e, j, index, message))

    ainsert = async_method(insert)

    @sync_method
    def remove(self, index: int | str) -> Flow[tuple[Message, ...]]:
        """Remove a live message, by index, id or `#17`, with its tool round; what went. MessageNotFoundError when it is gone."""
        return self._edit(lambda e, j: editing.remove(e, j, index))

    aremove = async_method(remove)

    @sync_method
    def pop(self) -> Flow[tuple[Message, ...]]:
        """Remove the newest live message, with its tool round; what went."""
        return self._edit(editing.pop)

    apop = async_method(pop)

    @sync_method
    def retain(self, role: Role) -> Flow[tuple[Message, ...]]:
        """Keep only one role's live messages; what went."""
        return self._edit(lambda e, j: editing.retain(e, j, role))

    aretain = async_method(retain)

    @sync_method
    def clear(self, *, prompts: bool = False) -> Flow[tuple[Message, ...]]:
        """Empty the conversation, system prompts only with `prompts`; what went. The archive keeps what was there."""
        return self._cleared(prompts)

    aclear = async_method(clear)

    @sync_method
    def pin(self, *message_ids: str) -> Flow[None]:
        """Keep messages, by id or `#17`, verbatim through every compaction; PinBudgetError beyond a quarter of the budget."""
        return self._edit(lambda e, j: editing.pin(e, j, message_ids))

    apin = async_method(pin)

    @sync_method
    def unpin(self, *message_ids: str) -> Flow[None]:
        """End the pins of messages, by id or `#17`; one that is not pinned stays so."""
        return self._edit(lambda e, j: editing.unpin(e, j, message_ids))

    aunpin = async_method(unpin)

    # rules

    @property
    def auto_compact(self) -> bool:
        """True when this session is compacted as its triggers fire; assign to it to change that."""
        return self.rules().auto_compact

    @auto_compact.setter
    def auto_compact(self, value: bool) -> None:
        self.set_policy(auto_compact=value)

    def rules(self) -> Policy:
        """The rules in force, those set at run time or learnt from the provider included."""
        return self._run(self._open_session()).window_rules()

    @sync_method
    def set_policy(self, **fields: Unpack[PolicyChanges]) -> Flow[Policy]:
        """Other rules for this session from here on, by the names of `Policy`; they hold when it is opened anew too."""
        return self._edit(lambda e, j: editing.set_policy(e, j, fields))

    aset_policy = async_method(set_policy)

    def goal(self) -> GoalSet:
        """Returns the goal of the conversation and its steps, as they were last set or found. Some pruning orders use them."""
        return self._run(self._open_session()).state.goal

    async def agoal(self) -> GoalSet:
        return (await self._arun(self._open_session())).state.goal

    @sync_method
    def set_goal(self, text: str | None) -> Flow[None]:
        """Say what the conversation is for; None leaves it to be found out. It stays until it is set again."""
        return self._edit(lambda e, j: set_goal(j, e.ports, text))

    aset_goal = async_method(set_goal)

    @sync_method
    def set_subgoal(self, text: str | None) -> Flow[None]:
        """Begin a step of the task: what is stored from here on belongs to it, and the step before is completed.

        None ends the step without another, and leaves steps to be found out.
        """
        return self._edit(lambda e, j: set_subgoal(j, e.ports, text))

    aset_subgoal = async_method(set_subgoal)

    # the archive

    @sync_method
    def search(self, query: str, limit: int = 10) -> Flow[tuple[Hit, ...]]:
        """The messages that bear on the query, best first, whether the model still sees them or not."""
        return self._edit(lambda _, j: iter(ArchiveRead(archive.search(j, query, limit=limit), *j.key)))

    asearch = async_method(search)

    @sync_method
    def search_owner(
        self,
        query: str,
        limit: int = 10,
        *,
        sessions: Sequence[str] | None = None,
        roles: Sequence[Role] | None = None,
        since: Age | None = None,
        until: Age | None = None,
    ) -> Flow[tuple[Hit, ...]]:
        """The messages of all sessions of this owner that bear on the query, best first; `Hit.session` names where each stands.

        `sessions` and `roles` leave the others out. `since` and `until` go by the time of storing: a datetime, or a timedelta for
        that long ago. Words are weighed over all sessions in question. Another owner's sessions are never read.
        """
        scope = scope_of(sessions, roles, since, until, now_s=self._engine.ports.clock.now_s())
        return search_owner(self._engine.ports, self._key.owner, query, scope, limit=limit)

    asearch_owner = async_method(search_owner)

    @sync_method
    def restore(self, *references: str) -> Flow[tuple[Message, ...]]:
        """Bring originals back, by id or `#17`, with their tool rounds: at the tail, or in place of an excerpt; what came back.

        ContextOverflowError, before anything is written, when they do not fit.
        """
        return self._edit(lambda e, j: archive.restore(e, j, references))

    arestore = async_method(restore)

    # a list that the caller keeps

    @sync_method
    def follow(self, incoming: IncomingList, cursor: Cursor | None) -> Flow[Attachment]:
        """Returns the session that serves the list, this one or a branch; `cursor` is from `trail`, for the list's last state."""
        return follow(self._engine, self._key, incoming, cursor)

    afollow = async_method(follow)

    @sync_method
    def trail(self, line: SessionKey, incoming: IncomingList) -> Flow[Cursor]:
        """Returns the cursor to keep beside the list as it is now, which the session `line` serves."""
        return cursor_at(self._engine, self._key, line, incoming)

    atrail = async_method(trail)

    def run_flow(self, flow: Callable[[Engine], Flow[T]]) -> T:
        """Runs a flow over the engine of this context, for packages that combine several steps in one."""
        return self._run(flow(self._engine))

    async def arun_flow(self, flow: Callable[[Engine], Flow[T]]) -> T:
        return await self._arun(flow(self._engine))

    # compacting

    def compact(self) -> Outcome:
        """Compact now, a turn under way included; NotEnoughHistoryError when nothing may be compacted."""
        return _needed(self._run(self._edit(lambda e, j: e.fitter.compact(j, j.stage(_only_turn(j))))))

    async def acompact(self) -> Outcome:
        return _needed(await self._arun(self._edit(lambda e, j: e.fitter.compact(j, j.stage(_only_turn(j))))))

    @sync_method
    def summarize_tools(self) -> Flow[int]:
        """Summarise older tool outputs ahead, all but the newest six; how many. The window stays until it has to shrink."""
        return self._edit(lambda e, j: summarise_pairs(j, e.ports))

    asummarize_tools = async_method(summarize_tools)

    @sync_method
    def apply_tool_summaries(self) -> Flow[int]:
        """Show the summaries of tool outputs that were written ahead; how many. Originals stay readable."""
        return self._edit(lambda e, j: e.fitter.apply_tool_summaries(j))

    aapply_tool_summaries = async_method(apply_tool_summaries)

    def compacted_in_turn(self) -> bool:
        """Returns True when a summary was written since the last turn closed."""
        return _fresh_summary(self._run(self._open_session()))

    async def acompacted_in_turn(self) -> bool:
        return _fresh_summary(await self._arun(self._open_session()))

    @sync_method
    def undo(self) -> Flow[None]:
        """Take back the last compaction or edit."""
        return self._edit(editing.undo)

    aundo = async_method(undo)

    # driving

    def _own_turn(self, open_session: OpenSession) -> str | None:
        """The turn that this context has begun, while it is open; nobody else is shown it."""
        with open_session.lock:
            return next((t for t in (self._turn, self._asked_turn) if t in open_session.state.open), None)

    def _open_session(self) -> Flow[OpenSession]:
        return (yield from self._engine.open(self._key, create=self._create, prompts=self._prompts))

    def _edit(self, change: Callable[[Engine, OpenSession], Flow[T]]) -> Flow[T]:
        open_session = yield from self._open_session()
        return (yield from change(self._engine, open_session))

    def _anew(self, change: Callable[[Engine, OpenSession], Flow[str | None]], *, whole: bool = True) -> Flow[None]:
        """A change that leaves another turn under way, or none: the one before is dropped, with the calls that wait in it.

        One of the `whole` conversation drops every turn that waits for results, whoever opened it.
        """
        open_session = yield from self._open_session()
        before, self._turn = self._turn, (yield from change(self._engine, open_session))
        for turn in self._waiting(open_session, before, whole=whole):
            if turn != self._turn:
                yield from self._engine.close(open_session, turn, "discarded")

    def _waiting(self, open_session: OpenSession, own: str | None, *, whole: bool = True) -> list[str]:
        """The turns that go when a conversation is put aside."""
        with open_session.lock:
            return [
                t for t, turn in open_session.state.open.items() if t == own or (whole and open_calls(turn.entries))
            ]

    def _cleared(self, prompts: bool) -> Flow[tuple[Message, ...]]:
        gone: list[Message] = []

        def change(engine: Engine, open_session: OpenSession) -> Flow[None]:
            waiting = [e.message for t in self._waiting(open_session, self._turn) for e in open_session.view(t).turn]
            gone.extend((*(yield from editing.clear(engine, open_session, prompts=prompts)), *waiting))

        yield from self._anew(change)
        return tuple(gone)

    @property
    def _ports(self) -> Ports:
        return self._engine.ports


def _seen_by(visibility: Visibility | None, messages: Sequence[Message]) -> tuple[Message, ...]:
    return tuple(messages if visibility is None else (replace(m, visibility=visibility) for m in messages))


def _fresh_summary(open_session: OpenSession) -> bool:
    return open_session.state.summary_turn == open_session.state.turns


def _only_turn(open_session: OpenSession) -> str | None:
    """The turn under way; of several, nobody can say whose compaction this is."""
    with open_session.lock:
        turns = list(open_session.state.open)
    return turns[0] if len(turns) == 1 else None


def _needed(outcome: Outcome) -> Outcome:
    if not outcome.compacted:
        raise NotEnoughHistoryError(f"nothing was compacted: {outcome.reason}")
    return outcome


class SessionErasing(SessionHandle):
    """Adds erasure to a session's handle."""

    @sync_method
    def erase(self, *references: str) -> Flow[Erasure]:
        """Take messages, by id or `#17`, out of everything that is stored, with their tool rounds: the log, the index,
        summaries, forks. There is no undo. MessageNotFoundError, and nothing is done, for one that never was."""
        return self._edit(lambda e, j: erase.erase(e, j, references))

    aerase = async_method(erase)

    @sync_method
    def erase_older_than(self, age: Age) -> Flow[Erasure]:
        """Erase what was said longer ago than a timedelta, or before a datetime; system prompts stay."""
        return self._edit(lambda e, j: erase.erase_older_than(e, j, age))

    aerase_older_than = async_method(erase_older_than)

    @sync_method
    def erase_session(self) -> Flow[Erasure]:
        """Remove the session, and from its forks what they took over; used again, it begins empty."""
        self._turn = None
        return erase.erase_session(self._engine, self._key)

    aerase_session = async_method(erase_session)

    @sync_method
    def erase_owner(self) -> Flow[bool]:
        """Remove every session of this context's owner, and all else that is theirs. False as `Erasure.settled` says."""
        self._turn = None
        return erase.erase_owner(self._engine, self._key.owner)

    aerase_owner = async_method(erase_owner)

    @sync_method
    def prune(
        self,
        retention: Retention | None,
        *,
        by_session: Mapping[str, Retention | None] | None = None,
        on_progress: Callable[[Pruning], None] | None = None,
        lease_s: float = LEASE_S,
    ) -> Flow[Pruned]:
        """Erase what the limits let go in every session of this context's owner.

        `by_session` gives sessions limits of their own, None keeps a session whole; with `retention` None only these are looked
        at. One worker at a time does this for an owner, under a lease of `lease_s` seconds that is renewed before each session;
        an interrupted run is resumed by the next one.
        """
        self._turn = None
        rules = dict(by_session or {})
        return prune_owner(
            self._engine, self._key.owner, retention, by_session=rules, on_progress=on_progress, lease_s=lease_s
        )

    aprune = async_method(prune)

    @sync_method
    def forks(self) -> Flow[tuple[str, ...]]:
        """The names of the sessions that were forked from this one, directly or not."""
        return erase.forks(self._key)

    aforks = async_method(forks)


Path = str | PathLike[str]


class SessionFiles(SessionErasing, Closing):
    """Adds export, import and snapshots to a session's handle."""

    @sync_method
    def export_jsonl(self, path: Path, *, zone: Zone = "all", native: bool = False) -> Flow[int]:
        """Write messages, one a line, to a file that appears only when whole; how many.

        "all" is every version ever stored, with the log beside, so that `import_jsonl` gives the same session back; other
        zones are what the model sees. With `native` each line is as the provider of its model takes it.
        """
        return self._exported(path, zone, native)

    aexport_jsonl = async_method(export_jsonl)

    def _exported(self, path: Path, zone: Zone, native: bool) -> Flow[int]:
        open_session = yield from self._open_session()
        lines = yield from exported(open_session, LineCodec(self.backend), zone=zone, native=native)
        return (yield from Call(partial(write_lines, path, lines)))

    def import_jsonl(self, path: Path) -> int:
        """Take in the messages of a file; how many were new. ImportLineError names a bad line, and nothing is changed.

        A file of zone "all" makes the whole session anew: SessionExistsError unless this one is empty.
        """
        return len(self._run(self._imported(path)))

    async def aimport_jsonl(self, path: Path) -> int:
        return len(await self._arun(self._imported(path)))

    def _imported(self, path: Path) -> Flow[Sequence[Message]]:
        return (yield from import_jsonl(self._engine, self._key, path, self._open_session(), LineCodec(self.backend)))

    @sync_method
    def save_snapshot(self, path: Path) -> Flow[None]:
        """Write the whole session, messages, pins, summaries and rules, to one versioned file that appears only when whole."""
        return self._saved(path)

    asave_snapshot = async_method(save_snapshot)

    def _saved(self, path: Path) -> Flow[None]:
        open_session = yield from self._open_session()
        records = yield from whole_log(open_session)
        yield from Call(lambda: write_lines(path, [session_text(self._key, records)]))

    @classmethod
    @renamed_keywords(KEYWORDS)
    def load_snapshot(
        cls,
        path: Path,
        backend: ContextBackend | None = None,
        *,
        session_id: str | None = None,
        store: str | Store | None = None,
        **settings: Unpack[SessionSettings],
    ) -> Self:
        """Opens the session of a file, under the name it had or under `session_id`, with the file's rules where `settings` have
        no others.

        Raises StoreFormatError for another version, StoreCorruptError for a damaged file, SessionExistsError for a name in use.
        """
        key, records = parse_session(path)
        rules: dict[str, Any] = {**stored_policy(records), **settings}
        made: Any = cls
        name = name_or_own("session name", session_id, key.session)
        context: Self = made(backend, session_id=name, store=store, **rules)
        try:
            context._run(load_log(context._engine, context._key, [(r.seq, r) for r in records]))
            context._run(context._edit(editing.reopen))
        except BaseException:
            context.close()
            raise
        return context

    @classmethod
    @renamed_keywords(KEYWORDS)
    async def aload_snapshot(
        cls,
        path: Path,
        backend: ContextBackend | None = None,
        *,
        session_id: str | None = None,
        store: str | Store | None = None,
        **settings: Unpack[SessionSettings],
    ) -> Self:
        return await in_thread(
            partial(cls.load_snapshot, path, backend, session_id=session_id, store=store, **settings)
        )
