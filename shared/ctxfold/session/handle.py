"""Defines SessionHandle: all that a session can do without asking a model. Each method has an async form."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from os import PathLike
from typing import Any, Self, TypeAlias, TypeVar, Unpack, cast

from ctxfold._lifecycle import Closing
from ctxfold.compaction.commit import Outcome
from ctxfold.compaction.goal import set_goal, set_subgoal
from ctxfold.compaction.tool_summaries import summarise_pairs
from ctxfold.connect import LineCodec, SessionSettings
from ctxfold.effects import Call, Flow, FlowMethods, StoreCall, async_method, in_thread, sync_method
from ctxfold.engine import archive, erase
from ctxfold.engine import edit as editing
from ctxfold.engine.archive import Age, Hit, scope_of, search_owner
from ctxfold.engine.attach import Attachment, cursor_at, follow
from ctxfold.engine.engine import Added, Engine
from ctxfold.engine.erase import Erasure
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
from ctxfold.history.diff import Cursor, IncomingList
from ctxfold.history.records import GoalSet, SessionKey
from ctxfold.messages import Message, Role, Visibility, system, tool_result, user
from ctxfold.policy.settings import Policy, PolicyChanges
from ctxfold.protocols import ContextBackend, Ports, Store, TokenCounter
from ctxfold.session.files import (
    Zone,
    exported,
    import_jsonl,
    load_log,
    parse_session,
    session_text,
    stored_policy,
    write_lines,
)
from ctxfold.session.memory import SessionMemory
from ctxfold.state import Session
from ctxfold.validation import is_a, name_or_own

T = TypeVar("T")
Input: TypeAlias = "str | Message | Sequence[Message]"
Path = str | PathLike[str]


class SessionHandle(FlowMethods, Closing):
    """A handle on one session of an engine, by its key."""

    _engine: Engine
    _key: SessionKey
    _prompts: tuple[str, ...] | None
    _create: bool
    _turn: str | None  # that messages were added to
    _request_turn: str | None  # that the newest request was made in

    # identity

    @property
    def session(self) -> str:
        return self._key.session

    @property
    def owner(self) -> str:
        return self._key.owner

    @property
    def policy(self) -> Policy:
        """The policy that this context was created with."""
        return self._engine.rules

    @property
    def backend(self) -> ContextBackend | None:
        return self._engine.ports.backend

    @property
    def counter(self) -> TokenCounter:
        return self._engine.ports.counter

    @property
    def store(self) -> Store:
        """The store of this context's sessions, including one that the context opened from a URL."""
        return self._engine.ports.store

    def new_id(self) -> str:
        """Returns a message id that was never used before."""
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
        """Stores messages without asking the model. A message whose id and content are stored already is not stored twice.

        `visibility` "user" hides them from the model: they are neither counted nor sent. "model" hides them from
        `messages(audience="user")`. `known_ids` False says that all ids are new, which saves a search for them in the store.
        `skip_orphans` leaves out tool results without their call and calls that were never answered, in place of raising
        OrphanToolResultError; the event MessagesLeftOut names them. Such results at the end become text.
        """
        checked = self._messages(messages)
        add = partial(
            self._engine.add,
            messages=checked if visibility is None else [replace(m, visibility=visibility) for m in checked],
            turn_id=self._turn,
            known_ids=known_ids and not isinstance(messages, str),
            skip_orphans=skip_orphans,
        )
        session = self._engine.known(self._key)
        added: Added | None = None
        if session is not None and not session.pending_rollbacks and self._prompts in (None, session.view().prompts):
            # mostly nobody else has written since: then nothing needs to be read first
            with suppress(BudgetError, HeadMovedError, MessageError, SessionError):
                added = yield from add(session, expect=session.state.head)
        if added is None:
            added = yield from add((yield from self._open_session()))
        self._turn = added.turn_id
        return added

    aadd = async_method(add)

    def extend(self, messages: Sequence[Message]) -> Added:
        """Stores several messages in one step, as `add` does."""
        return self.add(messages)

    async def aextend(self, messages: Sequence[Message]) -> Added:
        return await self.aadd(messages)

    @sync_method
    def set_messages(
        self, messages: Sequence[Message], *, prompts: bool = False, recognise: bool = False
    ) -> Flow[None]:
        """Replaces the whole conversation with these messages in one step; with `prompts`, the system prompts too.

        The replaced messages stay in the archive. With `prompts` and `recognise`, leading messages that the conversation or its
        window already has, compared by position and content, stay as they are, compacted or not; only the rest is replaced.
        """
        return self._anew(lambda e, s: editing.set_all(e, s, messages, prompts=prompts, recognise=recognise))

    aset_messages = async_method(set_messages)

    @sync_method
    def revise(self, change: editing.Change) -> Flow[None]:
        """Replaces the conversation, as the user sees it, with what `change` returns for it, in one step. None changes nothing.

        System prompts are part of it. When another writer appends meanwhile, `change` is called again, so that nothing is lost.
        """
        return self._anew(lambda e, s: editing.revise(e, s, change, turn_id=self._turn), whole=False)

    arevise = async_method(revise)

    @sync_method
    def update(self, index: int | str, message: Message) -> Flow[Message]:
        """Replaces a live message, by index, id or `#17`, under its id, and returns the old one.

        Role and tool calls must not change. Raises MessageNotFoundError when it is not in the live conversation.
        """
        return self._edit(lambda e, s: editing.update(e, s, index, message))

    aupdate = async_method(update)

    @sync_method
    def insert(self, index: int, message: Message) -> Flow[None]:
        """Inserts a message before the live message at `index`, which must not be inside a tool round."""
        return self._edit(lambda e, s: editing.insert(e, s, index, message))

    ainsert = async_method(insert)

    @sync_method
    def remove(self, index: int | str) -> Flow[tuple[Message, ...]]:
        """Removes a live message, by index, id or `#17`, with its tool round, and returns what was removed.

        Raises MessageNotFoundError when it is not in the live conversation.
        """
        return self._edit(lambda e, s: editing.remove(e, s, index))

    aremove = async_method(remove)

    @sync_method
    def pop(self) -> Flow[tuple[Message, ...]]:
        """Removes the newest live message, with its tool round, and returns what was removed."""
        return self._edit(editing.pop)

    apop = async_method(pop)

    @sync_method
    def retain(self, role: Role) -> Flow[tuple[Message, ...]]:
        """Keeps only the live messages of one role, and returns what was removed."""
        return self._edit(lambda e, s: editing.retain(e, s, role))

    aretain = async_method(retain)

    @sync_method
    def clear(self, *, prompts: bool = False) -> Flow[tuple[Message, ...]]:
        """Empties the conversation, with `prompts` the system prompts too, and returns what was removed. The archive keeps it."""
        removed: list[Message] = []

        def change(engine: Engine, session: Session) -> Flow[None]:
            waiting = [e.message for t in self._waiting(session, self._turn) for e in session.view(t).turn]
            removed.extend((*(yield from editing.clear(engine, session, prompts=prompts)), *waiting))

        yield from self._anew(change)
        return tuple(removed)

    aclear = async_method(clear)

    @sync_method
    def pin(self, *message_ids: str) -> Flow[None]:
        """Pins messages, by id or `#17`: every compaction keeps them verbatim. PinBudgetError beyond a quarter of the budget."""
        return self._edit(lambda e, s: editing.pin(e, s, message_ids))

    apin = async_method(pin)

    @sync_method
    def unpin(self, *message_ids: str) -> Flow[None]:
        """Unpins messages, by id or `#17`; a message that is not pinned is no error."""
        return self._edit(lambda e, s: editing.unpin(e, s, message_ids))

    aunpin = async_method(unpin)

    # rules

    @property
    def auto_compact(self) -> bool:
        """True when this session is compacted as its triggers fire; assign to it to turn that on or off."""
        return self.rules().auto_compact

    @auto_compact.setter
    def auto_compact(self, value: bool) -> None:
        self.set_policy(auto_compact=value)

    def rules(self) -> Policy:
        """Returns the policy in force, including values set at run time or learnt from the provider."""
        return self._run(self._open_session()).window_rules()

    @sync_method
    def set_policy(self, **fields: Unpack[PolicyChanges]) -> Flow[Policy]:
        """Changes fields of this session's `Policy` from now on; they are stored, and hold when the session is opened again."""
        return self._edit(lambda e, s: editing.set_policy(e, s, fields))

    aset_policy = async_method(set_policy)

    @sync_method
    def goal(self) -> Flow[GoalSet]:
        """Returns the goal of the conversation and its steps, as last set or derived by a model. Some pruning orders use them."""
        return (yield from self._open_session()).state.goal

    agoal = async_method(goal)

    @sync_method
    def set_goal(self, text: str | None) -> Flow[None]:
        """Sets the goal of the conversation until it is set again; None lets a model derive it."""
        return self._edit(lambda e, s: set_goal(s, text))

    aset_goal = async_method(set_goal)

    @sync_method
    def set_subgoal(self, text: str | None) -> Flow[None]:
        """Begins a step of the task. Messages stored from now on belong to it, and the step before is completed.

        None ends the step without beginning another, and lets a model derive the steps.
        """
        return self._edit(lambda e, s: set_subgoal(s, text))

    aset_subgoal = async_method(set_subgoal)

    # the archive

    @sync_method
    def search(self, query: str, limit: int = 10) -> Flow[tuple[Hit, ...]]:
        """Returns the messages that match the query, best first, whether the model still sees them or not."""
        return self._edit(lambda _, s: archive.search(s, query, limit=limit))

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
        """Returns the messages of all sessions of this owner that match the query, best first; `Hit.session` names the session.

        `sessions` and `roles` restrict the search. `since` and `until` compare the time of storing: a datetime, or a timedelta
        for that long ago. A word's weight is the same in all sessions searched. Another owner's sessions are never read.
        """
        scope = scope_of(sessions, roles, since, until, now_s=self._engine.ports.clock.now_s())
        return search_owner(self._engine.ports, self._key.owner, query, scope, limit=limit)

    asearch_owner = async_method(search_owner)

    @sync_method
    def restore(self, *references: str) -> Flow[tuple[Message, ...]]:
        """Restores originals, by id or `#17`, with their tool rounds, at the tail or in place of an excerpt. Returns them.

        Raises ContextOverflowError, before anything is written, when they do not fit.
        """
        return self._edit(lambda e, s: archive.restore(e, s, references))

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

    @sync_method
    def compact(self, *, force: bool = False) -> Flow[Outcome]:
        """Compacts now, including an open turn; raises NotEnoughHistoryError when nothing may be compacted.

        It is raised too while half of the budget is free, as a compaction would only hide messages then; not with `force`.
        """
        session = yield from self._open_session()
        with session.lock:
            turns = list(session.state.open)
        # with several open turns, the compaction cannot be assigned to one of them
        stage = session.stage(turns[0] if len(turns) == 1 else None)
        used, budget = stage.view.tokens + session.overhead_tokens, stage.rules.budget_tokens
        if not force and used <= budget // 2:
            free = f"{used:,} of {budget:,} tokens are used, so that nothing needs the room"
            raise NotEnoughHistoryError(f"nothing was compacted: {free}; to compact all the same, force it")
        outcome = yield from self._engine.fitter.compact(session, stage)
        if not outcome.compacted:
            raise NotEnoughHistoryError(f"nothing was compacted: {outcome.reason}")
        return outcome

    acompact = async_method(compact)

    @sync_method
    def summarize_tools(self) -> Flow[int]:
        """Summarises older tool outputs, all but the newest six, and returns how many.

        The window shows the summaries only once it has to shrink.
        """
        return self._edit(lambda e, s: summarise_pairs(s))

    asummarize_tools = async_method(summarize_tools)

    @sync_method
    def apply_tool_summaries(self) -> Flow[int]:
        """Shows the prepared summaries of tool outputs in the window, and returns how many. Originals stay readable."""
        return self._edit(lambda e, s: e.fitter.apply_tool_summaries(s))

    aapply_tool_summaries = async_method(apply_tool_summaries)

    @sync_method
    def compacted_in_turn(self) -> Flow[bool]:
        """Returns True when a summary was written since the last turn closed."""
        state = (yield from self._open_session()).state
        return state.summary_turn == state.turns

    acompacted_in_turn = async_method(compacted_in_turn)

    @sync_method
    def undo(self) -> Flow[None]:
        """Undoes the last compaction or edit."""
        return self._edit(editing.undo)

    aundo = async_method(undo)

    # erasing

    @sync_method
    def erase(self, *references: str) -> Flow[Erasure]:
        """Erases messages, by id or `#17`, with their tool rounds, from all that is stored: log, index, summaries and forks.

        This cannot be undone. Raises MessageNotFoundError, and erases nothing, when one of them never existed.
        """
        return self._edit(lambda e, s: erase.erase(e, s, references))

    aerase = async_method(erase)

    @sync_method
    def erase_older_than(self, age: Age) -> Flow[Erasure]:
        """Erases messages stored longer ago than a timedelta, or before a datetime; system prompts stay."""
        return self._edit(lambda e, s: erase.erase_older_than(e, s, age))

    aerase_older_than = async_method(erase_older_than)

    @sync_method
    def erase_session(self) -> Flow[Erasure]:
        """Erases the session, and its messages from its forks. When the name is used again, the session begins empty."""
        self._turn = None
        return erase.erase_session(self._engine, self._key)

    aerase_session = async_method(erase_session)

    @sync_method
    def erase_owner(self) -> Flow[bool]:
        """Erases every session of this context's owner, and all else of theirs. Returns the same as `Erasure.settled`."""
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
        """Erases what exceeds the limits in every session of this context's owner.

        `by_session` gives single sessions other limits; None keeps a session whole. With `retention` None only these are
        pruned. One worker at a time does this for an owner, under a lease of `lease_s` seconds that is renewed before each
        session; an interrupted run is resumed by the next one.
        """
        self._turn = None
        rules = dict(by_session or {})
        return prune_owner(
            self._engine, self._key.owner, retention, by_session=rules, on_progress=on_progress, lease_s=lease_s
        )

    aprune = async_method(prune)

    @sync_method
    def forks(self) -> Flow[tuple[str, ...]]:
        """Returns the names of the sessions that were forked from this one, directly or indirectly."""
        return erase.forks(self._key)

    aforks = async_method(forks)

    # files

    @sync_method
    def export_jsonl(self, path: Path, *, zone: Zone = "all", native: bool = False) -> Flow[int]:
        """Writes messages, one per line, to a file that appears only when complete; returns how many.

        "all" writes every version ever stored, and the log, so that `import_jsonl` restores the same session; the other zones
        are what the model sees. With `native` each line has the form that the backend's provider takes.
        """
        session = yield from self._open_session()
        lines = yield from exported(session, LineCodec(self.backend), zone=zone, native=native)
        return (yield from Call(partial(write_lines, path, lines)))

    aexport_jsonl = async_method(export_jsonl)

    @sync_method
    def import_jsonl(self, path: Path) -> Flow[int]:
        """Stores the messages of a file and returns how many were new. ImportLineError names a bad line; nothing is stored then.

        A file of zone "all" restores the whole session; raises SessionExistsError unless this one is empty.
        """
        codec = LineCodec(self.backend)
        return len((yield from import_jsonl(self._engine, self._key, path, self._open_session(), codec)))

    aimport_jsonl = async_method(import_jsonl)

    @sync_method
    def save_snapshot(self, path: Path) -> Flow[None]:
        """Writes the whole session (messages, pins, summaries, policy) to one versioned file that appears only when complete."""
        records = yield from StoreCall(Store.read, (yield from self._open_session()).key)
        yield from Call(lambda: write_lines(path, [session_text(self._key, records)]))

    asave_snapshot = async_method(save_snapshot)

    @classmethod
    def load_snapshot(
        cls,
        path: Path,
        backend: ContextBackend | None = None,
        *,
        session_id: str | None = None,
        store: str | Store | None = None,
        **settings: Unpack[SessionSettings],
    ) -> Self:
        """Opens the session of a file, under its old name or under `session_id`.

        `settings` override the policy in the file.

        Raises StoreFormatError for another version, StoreCorruptError for a damaged file, SessionExistsError for a name in use.
        """
        key, records = parse_session(path)
        rules: dict[str, Any] = {**stored_policy(records), **settings}
        construct: Any = cls
        name = name_or_own("session name", session_id, key.session)
        context: Self = construct(backend, session_id=name, store=store, **rules)
        try:
            context._run(load_log(context._engine, context._key, [(r.seq, r) for r in records]))
            context._run(context._edit(editing.reopen))
        except BaseException:
            context.close()
            raise
        return context

    @classmethod
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

    # driving

    def _own_turn(self, session: Session) -> str | None:
        """Returns the turn that this context has open; no other context sees it."""
        with session.lock:
            return next((t for t in (self._turn, self._request_turn) if t in session.state.open), None)

    def _open_session(self) -> Flow[Session]:
        return (yield from self._engine.open(self._key, create=self._create, prompts=self._prompts))

    def _edit(self, change: Callable[[Engine, Session], Flow[T]]) -> Flow[T]:
        session = yield from self._open_session()
        return (yield from change(self._engine, session))

    def _anew(self, change: Callable[[Engine, Session], Flow[str | None]], *, whole: bool = True) -> Flow[None]:
        """Makes a change that leaves another turn open, or none. The turn before is discarded, with its pending tool calls.

        A change of the `whole` conversation discards every turn that waits for tool results, whoever opened it.
        """
        session = yield from self._open_session()
        before, self._turn = self._turn, (yield from change(self._engine, session))
        for turn in self._waiting(session, before, whole=whole):
            if turn != self._turn:
                yield from self._engine.close(session, turn, "discarded")

    def _waiting(self, session: Session, own: str | None, *, whole: bool = True) -> list[str]:
        """Returns the turns that are discarded when a conversation is replaced."""
        with session.lock:
            return [t for t, turn in session.state.open.items() if t == own or (whole and open_calls(turn.entries))]

    @property
    def _ports(self) -> Ports:
        return self._engine.ports
