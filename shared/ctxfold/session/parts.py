"""Defines the parts of a context: its handle, editing, archive, erasure and memory. Each method that waits has an async form."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, TypeAlias, cast

from ctxfold.compaction.compact import costs, gauge
from ctxfold.compaction.goal import set_goal, set_subgoal
from ctxfold.effects import Flow, StoreCall, async_method, sync_method
from ctxfold.engine import edit as editing
from ctxfold.engine import erase, turn
from ctxfold.engine.archive import Age, Hit, scope_of, search_owner
from ctxfold.engine.attach import Attachment, cursor_at, follow
from ctxfold.engine.engine import Engine
from ctxfold.engine.erase import Erasure
from ctxfold.engine.retention import LEASE_S, Pruned, Pruning, Retention, prune
from ctxfold.engine.turn import OpenReply, TurnInput
from ctxfold.errors import ConfigError, EmptyMessagesError
from ctxfold.events import Rewriter
from ctxfold.history.diff import Cursor, IncomingList
from ctxfold.history.memory_items import MemoryItem, Remembered
from ctxfold.history.records import GoalSet, SessionKey
from ctxfold.history.snapshot import stored_message
from ctxfold.history.view import Entry
from ctxfold.memory.extraction import EXTRACTED, check_kinds, learn
from ctxfold.memory.store import MEMORY_KINDS, Recollection, new_item, search, visible
from ctxfold.messages import Message, Role, user
from ctxfold.protocols import AsyncChunkStream, ChunkStream, ContextBackend, Reply, Request, Store, TokenCounter
from ctxfold.retrieval.originals import (
    newest_version,
    original,
    original_record,
)
from ctxfold.session.handle import KeyedSession, SessionPart, T
from ctxfold.state import Session
from ctxfold.stream import StreamPiece
from ctxfold.validation import is_a, kind_of

if TYPE_CHECKING:
    from ctxfold.inspect.explain import Explanation, MessageExplanation
    from ctxfold.inspect.report import Inspection

Input: TypeAlias = "str | Message | Sequence[Message]"


class SessionHandle(KeyedSession):
    """One session of an engine, by its key: what packages over ctxfold need beyond an AgentContext, as `context.handle`."""

    @property
    def backend(self) -> ContextBackend | None:
        return self.engine.ports.backend

    @property
    def counter(self) -> TokenCounter:
        return self.engine.ports.counter

    @property
    def store(self) -> Store:
        """The store of this session, including one that a context opened from a URL."""
        return self.engine.ports.store

    def messages(self, content: Input) -> tuple[Message, ...]:
        """Returns what a caller gave to be sent or added as messages that have ids."""
        if isinstance(content, str):
            return (user(content, id=self.new_id()),)
        # a framework's message can be iterated over too, by its fields
        one = isinstance(content, Message | Mapping) or hasattr(content, "content") or not is_a(content, Iterable)
        messages = (cast("Message", content),) if one else tuple(cast("Sequence[Message]", content))
        if not messages:
            raise EmptyMessagesError("no message to send: give at least one")
        return tuple(map(self.with_id, messages))

    # asking

    @sync_method
    def complete(self, turn_input: TurnInput) -> Flow[Reply]:
        """Does the same as `AgentContext.send`, with all arguments spelt out."""
        reply, _ = yield from turn.ask(self.engine, _checked(turn_input))
        return reply

    acomplete = async_method(complete)

    def stream(
        self, turn_input: TurnInput, done: Callable[[Reply], None] | None = None
    ) -> Generator[StreamPiece, None, None]:
        """Streams the chunks of the reply; `done` is called with the whole reply once it is stored."""
        reply: OpenReply = self._run(turn.open_reply(self.engine, _checked(turn_input)))
        self.request_turn = reply.turn_id
        stream = cast("ChunkStream", reply.stream)
        try:
            for chunk in stream:
                yield from reply.fold.feed(chunk)
            stream.close()
            whole = self._run(turn.finish_stream(self.engine, reply))
        except BaseException:
            stream.close()
            self._run(turn.abandon(self.engine, reply))
            raise
        if done is not None:
            done(whole)

    async def astream(
        self, turn_input: TurnInput, done: Callable[[Reply], None] | None = None
    ) -> AsyncGenerator[StreamPiece, None]:
        reply: OpenReply = await self._arun(turn.open_reply(self.engine, _checked(turn_input)))
        self.request_turn = reply.turn_id
        stream = cast("AsyncChunkStream", reply.stream)
        async with aclosing(stream):
            try:
                async for chunk in stream:
                    for event in reply.fold.feed(chunk):
                        yield event
                whole = await self._arun(turn.finish_stream(self.engine, reply))
            except BaseException:
                await self._arun(turn.abandon(self.engine, reply))
                raise
        if done is not None:
            done(whole)

    @sync_method
    def request_for(self, turn_input: TurnInput) -> Flow[Request]:
        """Returns the request for a complete message list, for a model that the caller calls. The next list brings the reply."""
        return turn.request_for(self.engine, _checked(turn_input))

    arequest_for = async_method(request_for)

    # a list that the caller keeps

    @sync_method
    def follow(self, incoming: IncomingList, cursor: Cursor | None) -> Flow[Attachment]:
        """Returns the session that serves the list, this one or a branch; `cursor` is from `cursor_at`, for its last state."""
        return follow(self.engine, self.key, incoming, cursor)

    afollow = async_method(follow)

    @sync_method
    def cursor_at(self, line: SessionKey, incoming: IncomingList) -> Flow[Cursor]:
        """Returns the cursor to keep beside the list as it is now, which the session `line` serves."""
        return cursor_at(self.engine, self.key, line, incoming)

    acursor_at = async_method(cursor_at)

    @sync_method
    def compacted_in_turn(self) -> Flow[bool]:
        """Returns True when a summary was written since the last turn closed."""
        state = (yield from self.open()).state
        return state.summary_turn == state.turns

    # flows

    def run_flow(self, flow: Callable[[Engine], Flow[T]]) -> T:
        """Runs a flow over the engine of this session, for packages that combine several steps in one."""
        return self._run(flow(self.engine))

    async def arun_flow(self, flow: Callable[[Engine], Flow[T]]) -> T:
        return await self._arun(flow(self.engine))


class SessionEditing(SessionPart):
    """Changes the live conversation, its goal and its compactions. The archive keeps what an edit replaces; `undo` takes it back.

    A message without an id gets one.
    """

    @sync_method
    def insert(self, index: int, message: Message) -> Flow[None]:
        """Inserts a message before the live message at `index`, which must not be inside a tool round."""
        return self._session.edit(lambda e, s: editing.insert(e, s, index, self._session.with_id(message)))

    ainsert = async_method(insert)

    @sync_method
    def update(self, index: int | str, message: Message) -> Flow[Message]:
        """Replaces a live message, by index, id or `#17`, under its id, and returns the old one.

        Role and tool calls must not change. Raises MessageNotFoundError when it is not in the live conversation.
        """
        return self._session.edit(lambda e, s: editing.update(e, s, index, self._session.with_id(message)))

    aupdate = async_method(update)

    @sync_method
    def remove(self, index: int | str) -> Flow[tuple[Message, ...]]:
        """Removes a live message, by index, id or `#17`, with its tool round, and returns what was removed.

        Raises MessageNotFoundError when it is not in the live conversation.
        """
        return self._session.edit(lambda e, s: editing.remove(e, s, index))

    aremove = async_method(remove)

    @sync_method
    def pop(self) -> Flow[tuple[Message, ...]]:
        """Removes the newest live message, with its tool round, and returns what was removed."""
        return self._session.edit(editing.pop)

    apop = async_method(pop)

    @sync_method
    def retain(self, role: Role) -> Flow[tuple[Message, ...]]:
        """Keeps only the live messages of one role, and returns what was removed."""
        return self._session.edit(lambda e, s: editing.retain(e, s, role))

    aretain = async_method(retain)

    @sync_method
    def clear(self, *, prompts: bool = False) -> Flow[tuple[Message, ...]]:
        """Empties the conversation, with `prompts` the system prompts too, and returns what was removed. The archive keeps it."""
        removed: list[Message] = []

        def change(engine: Engine, session: Session) -> Flow[None]:
            turns = self._session.waiting_turns(session, self._session.turn)
            waiting = [e.message for turn_id in turns for e in session.view(turn_id).turn]
            removed.extend((*(yield from editing.clear(engine, session, prompts=prompts)), *waiting))

        yield from self._session.edit_anew(change)
        return tuple(removed)

    aclear = async_method(clear)

    @sync_method
    def set_messages(
        self, messages: Sequence[Message], *, prompts: bool = False, recognise: bool = False
    ) -> Flow[None]:
        """Replaces the whole conversation with these messages in one step; with `prompts`, the system prompts too.

        The replaced messages stay in the archive. With `prompts` and `recognise`, leading messages that the conversation or its
        window already has, compared by position and content, stay as they are, compacted or not; only the rest is replaced.
        """
        whole = [self._session.with_id(m) for m in messages]
        return self._session.edit_anew(lambda e, s: editing.set_all(e, s, whole, prompts=prompts, recognise=recognise))

    aset_messages = async_method(set_messages)

    @sync_method
    def revise(self, change: editing.Change) -> Flow[None]:
        """Replaces the conversation, as the user sees it, with what `change` returns for it, in one step. None changes nothing.

        System prompts are part of it. When another writer appends meanwhile, `change` is called again, so that nothing is lost.
        """
        turn_id = self._session.turn
        return self._session.edit_anew(lambda e, s: editing.revise(e, s, change, turn_id=turn_id), whole=False)

    arevise = async_method(revise)

    @sync_method
    def is_full(self, max_tokens: int | None = None) -> Flow[bool]:
        """Returns whether `view()` and a reply of `max_tokens` exceed the window, by the upper bound of the count.

        Without `max_tokens` the reply reserve counts.
        """
        session = yield from self._session.open()
        rules, view = session.rules(), session.view(self._session.own_turn(session))
        reply_tokens = rules.reply_reserve_tokens if max_tokens is None else max_tokens
        return view.tokens + session.overhead_tokens + reply_tokens > rules.context_window

    ais_full = async_method(is_full)

    @sync_method
    def goal(self) -> Flow[GoalSet]:
        """Returns the goal of the conversation and its steps, as last set or derived by a model. Some pruning orders use them."""
        return (yield from self._session.open()).state.goal

    agoal = async_method(goal)

    @sync_method
    def set_goal(self, text: str | None) -> Flow[None]:
        """Sets the goal of the conversation until it is set again; None lets a model derive it."""
        return self._session.edit(lambda e, s: set_goal(s, text))

    aset_goal = async_method(set_goal)

    @sync_method
    def set_subgoal(self, text: str | None) -> Flow[None]:
        """Begins a step of the task. Messages stored from now on belong to it, and the step before is completed.

        None ends the step without beginning another, and lets a model derive the steps.
        """
        return self._session.edit(lambda e, s: set_subgoal(s, text))

    aset_subgoal = async_method(set_subgoal)

    def on_compaction(self, rewriter: Rewriter) -> Callable[[], None]:
        """Lets one subscriber change the summary, and the choice of messages to keep, of each compaction of this engine.

        It receives a CompactionProposal and returns None for no change, or (summary, kept): `kept` lists, in order, messages
        from the proposal's covered and kept ones. A rewrite that drops a pin, splits a tool round or saves nothing is reported
        as RewriteRefused, and the original is written. The returned function unsubscribes it.
        """
        return self._session.engine.events.rewrite(rewriter)


class SessionArchive(SessionPart):
    """Reads what was stored: single messages, the whole session, and all sessions of its owner."""

    @sync_method
    def get(self, message_id: str, *, newest: bool = False) -> Flow[Message]:
        """Returns a message as it was stored, compacted or not, by its id or a reference such as `#17`.

        A reference names one version of a message. With `newest`, a message that was replaced since, by an edit or a redaction,
        is returned as it is now. Raises MessageNotFoundError when the session never had it, MessageErasedError when it was
        erased.
        """
        return self._session.edit(lambda _, s: (newest_version if newest else original)(s, message_id))

    aget = async_method(get)

    @sync_method
    def explain(self, message_id: str) -> Flow[MessageExplanation]:
        """Returns where one message is now, by its id or `#17`, and the reference that reads it back."""
        from ctxfold.inspect.explain import explain_message

        return self._session.edit(lambda _, s: explain_message(s, message_id))

    aexplain = async_method(explain)

    @sync_method
    def inspect(self) -> Flow[Inspection]:
        """Reports on the window, its history, and where every message is now; reads the log."""
        from ctxfold.inspect.report import inspect

        own_turn = self._session.own_turn
        return self._session.edit(lambda e, s: inspect(s, gauge(s, s.stage(own_turn(s)), e.ports.counter), costs(s)))

    ainspect = async_method(inspect)

    @sync_method
    def window_at(self, seq: int) -> Flow[Explanation]:
        """Explains the window of an earlier request, by the record of its reply: see `inspect().turns[n].requests`.

        Of another record, it is the window right after it.
        """
        from ctxfold.inspect.explain import explain_at

        return self._session.edit(lambda _, s: explain_at(s, seq))

    awindow_at = async_method(window_at)

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
        scope = scope_of(sessions, roles, since, until, now_s=self._ports.clock.now_s())
        return search_owner(self._ports, self._session.key.owner, query, scope, limit=limit)

    asearch_owner = async_method(search_owner)

    @sync_method
    def forks(self) -> Flow[tuple[str, ...]]:
        """Returns the names of the sessions that were forked from this one, directly or indirectly."""
        return erase.forks(self._session.key)

    aforks = async_method(forks)


class SessionErasure(SessionPart):
    """Erases from all that is stored: log, index, summaries and forks. This cannot be undone."""

    @sync_method
    def erase(self, *references: str) -> Flow[Erasure]:
        """Erases messages, by id or `#17`, with their tool rounds.

        Raises MessageNotFoundError, and erases nothing, when one of them never existed.
        """
        return self._session.edit(lambda e, s: erase.erase(e, s, references))

    aerase = async_method(erase)

    @sync_method
    def erase_older_than(self, age: Age) -> Flow[Erasure]:
        """Erases messages stored longer ago than a timedelta, or before a datetime; system prompts stay."""
        return self._session.edit(lambda e, s: erase.erase_older_than(e, s, age))

    aerase_older_than = async_method(erase_older_than)

    @sync_method
    def erase_session(self) -> Flow[Erasure]:
        """Erases the session, and its messages from its forks. When the name is used again, the session begins empty."""
        self._session.turn = None
        return erase.erase_session(self._session.engine, self._session.key)

    aerase_session = async_method(erase_session)

    @sync_method
    def erase_owner(self) -> Flow[bool]:
        """Erases every session of this context's owner, and all else of theirs. Returns the same as `Erasure.settled`."""
        self._session.turn = None
        return erase.erase_owner(self._session.engine, self._session.key.owner)

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
        self._session.turn = None
        engine, owner, limits = self._session.engine, self._session.key.owner, dict(by_session or {})
        return prune(engine, owner, retention, by_session=limits, on_progress=on_progress, lease_s=lease_s)

    aprune = async_method(prune)


class SessionMemory(SessionPart):
    """The memory of a session's owner: facts, corrections, persona, relations and more, in one table for all kinds.

    Another owner's items are never seen, and of another session's only those that are shared. A new item with the same kind and
    key replaces the old one; `forget` empties items, and erasing a message or a session takes what was learnt from it along.
    """

    @sync_method
    def add(
        self,
        /,
        kind: str,
        text: str = "",
        *,
        key: str = "",
        shared: bool | None = None,
        confidence: float = 1.0,
        sources: Sequence[str] = (),
        **data: str,
    ) -> Flow[Remembered]:
        """Stores an item; `Remembered` says what it replaced, or that it was known already.

        `key` is what it is about; `sources` are ids of messages of this session (MessageNotFoundError for others). A relation
        has `subject`, `predicate` and `object`, and needs no text; a trajectory `intent` and `outcome`.
        """
        session = yield from self._session.open()
        for message_id in sources:
            yield from original_record(session, message_id)  # it is erased with them: they have to be there
        item = new_item(
            session.key,
            self._ports,
            kind,
            text,
            about=key,
            shared=shared,
            confidence=confidence,
            sources=sources,
            data=data,
        )
        return (yield from StoreCall(Store.remember, session.key.owner, [item]))[0]

    aadd = async_method(add)

    @sync_method
    def list(self, kind: str | None = None, *, everything: bool = False) -> Flow[tuple[MemoryItem, ...]]:
        """Returns the items that this session sees, newest first; with `everything`, superseded and forgotten ones too."""
        session = yield from self._session.open()
        kinds = None if kind is None else (kind,)
        items = yield from StoreCall(
            Store.memories, session.key.owner, kinds=kinds, newest=1_000_000, everything=everything
        )
        return tuple(visible(items, session.key))

    alist = async_method(list)  # noqa: A003 - the method above

    @sync_method
    def search(self, query: str, kind: str | None = None, *, limit: int = 10) -> Flow[tuple[Recollection, ...]]:
        """Returns the current items that match the query, best first."""
        session = yield from self._session.open()
        return (yield from search(session.key, query, kinds=None if kind is None else (kind,), limit=limit))

    asearch = async_method(search)

    @sync_method
    def forget(self, *ids: str) -> Flow[tuple[MemoryItem, ...]]:
        """Forgets items and returns them as they were. Their text is erased, and their source messages do not bring them back."""
        session = yield from self._session.open()
        mine = visible(
            (yield from StoreCall(Store.memories, session.key.owner, newest=1_000_000, everything=True)),
            session.key,
        )
        known = {i.id for i in mine}
        return (yield from StoreCall(Store.forget, session.key.owner, [i for i in ids if i in known]))

    aforget = async_method(forget)

    @sync_method
    def learn(self, *kinds: str) -> Flow[tuple[MemoryItem, ...]]:
        """Asks the summariser what in this session is worth remembering, and returns the new items; for the end of a session.

        Kinds are "facts" and "corrections"; experimental: "persona", "graph", "trajectory", "strategy". None means the first
        two. What goes wrong is told by the event MemoryLearnt.
        """
        checked_kinds = check_kinds(kinds or [k for k in EXTRACTED if not MEMORY_KINDS[k].experimental])
        session = yield from self._session.open()
        # what the whole session says, compacted or not
        records = yield from StoreCall(Store.read, session.key)
        stored_messages = [(r, m) for r in records if (m := stored_message(r)) is not None]
        newest = {m.id: Entry(m.id, r.seq, m, 0) for r, m in stored_messages if m.visibility != "user"}
        items, event = yield from learn(session, tuple(newest.values()), kinds=checked_kinds)
        self._session.engine.events.emit(event)
        return items

    alearn = async_method(learn)


def _checked(turn_input: TurnInput) -> TurnInput:
    if not is_a(turn_input, TurnInput):
        raise ConfigError(
            f"the question is {kind_of(turn_input)}: a framework gives a TurnInput here; send, send_stream and asend_stream take a "
            "text or messages"
        )
    return turn_input
