"""Manages the sessions of many users over one engine and one store."""

from __future__ import annotations

import threading
import uuid
from abc import ABC, abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, count
from typing import Any, NamedTuple, TypeVar

from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel

from ctxfold import MemoryStore, Section
from ctxfold._lifecycle import Closing, SharesSessions
from ctxfold.adapters.sessions import EngineSettings, SessionPool
from ctxfold.connect import OF_EVERY_SESSION, check_overhead, message_counter, session_rules
from ctxfold.effects import Effect, Flow, in_thread
from ctxfold.engine.attach import BRANCH, Attachment, StartPoint, attach, cursor_at, is_believed
from ctxfold.engine.engine import Engine
from ctxfold.engine.turn import TurnInput
from ctxfold.errors import ConfigError
from ctxfold.events import Event, IdsRepeated, MessagesErased
from ctxfold.history.diff import Cursor, IncomingList, open_turn
from ctxfold.history.records import SessionKey
from ctxfold.lru import LruCache, lazy_pattern
from ctxfold.messages import Message, ToolSpec
from ctxfold.policy.settings import check_settings, session_limit
from ctxfold.protocols import Clock, ContextBackend, Embedder, Store, SystemClock, TokenCounter
from ctxfold.sections.section import check_sections
from ctxfold.session.context import AgentContext
from ctxfold.tokens.text import TextCounter
from ctxfold.validation import check_name, name_or_own, warn_caller
from langchain_ctx.active_call import called_model, listen
from langchain_ctx.backend import as_embedder
from langchain_ctx.inner_model import WindowCache
from langchain_ctx.message_lists import VersionCache
from langchain_ctx.models import model_window, unknown_window
from langchain_ctx.session_routing import Address, Names, checked_session_id, is_in_graph, key_or_own, sessions_of
from langchain_ctx.summarizer import as_summarizer

_BRANCHES = lazy_pattern(f"({BRANCH}[0-9a-f]{{8}})+$")
ANY_WINDOW = 1_000_000  # in tokens, with which settings are checked as long as the window is not known
CONVERTED_WINDOWS = 64  # at most: of the sessions used last
CURSORS = 1024  # that are remembered, of all places; a place without any is looked up in the store


@dataclass(slots=True)
class _RunEnd:
    """The cursor where a run ended, and a second one that covers only the messages the next call will hand in again."""

    cursor: Cursor
    saved: Cursor
    claimed: bool = False


class SubgraphSessions:
    """Remembers where the runs at each place of a graph left their sessions, for the next run that hands in the same messages.

    A session goes to one run only; other runs that continue from the same point get branches of it. So concurrent runs never
    share a session, and a run with an edited, shortened or older list never continues that of another.
    """

    def __init__(self) -> None:
        self._ends: OrderedDict[SessionKey, OrderedDict[tuple[str, str], _RunEnd]] = OrderedDict()
        self._cursors: LruCache[SessionKey, Cursor] = LruCache(CURSORS)
        self._in_use: set[SessionKey] = set()
        self._asking: dict[SessionKey, list[frozenset[str]]] = {}
        self._lock = threading.Lock()

    @contextmanager
    def claim(self, place: SessionKey, incoming: IncomingList) -> Generator[StartPoint, None, None]:
        """Yields where the list may go on. The claim is given back when the block fails: the call may be made again."""
        with self._lock:
            first = place not in self._ends
            here = self._ends.setdefault(place, OrderedDict())
            self._ends.move_to_end(place)
            # the longest list, and of those one that nobody has claimed
            ends = sorted(here.values(), key=lambda end: (-end.saved.end, end.claimed))
            end = next((end for end in ends if end.saved.precedes(incoming)), None)
            own = None if end is None or end.claimed else end
            if own is not None:
                own.claimed = True
        try:
            if end is None:
                yield StartPoint(place if first else _new_branch(place), first=first)
            elif own is None:
                yield StartPoint(_new_branch(place), end.cursor)
            else:
                yield StartPoint(SessionKey(place.owner, end.cursor.root), end.cursor, exclusive=True)
        except BaseException:
            with self._lock:
                if own is not None:
                    own.claimed = False
                elif first and not self._ends.get(place):
                    self._ends.pop(place, None)
            raise

    def put(self, place: SessionKey, cursor: Cursor, saved: Cursor) -> None:
        """Remembers the end of a run, to be recognised by `saved`; `place` may be the branch that the run went by."""
        place = SessionKey(place.owner, _BRANCHES.sub("", place.session))
        with self._lock:
            here = self._ends.setdefault(place, OrderedDict())
            self._ends.move_to_end(place)
            here[cursor.session, cursor.head_id] = _RunEnd(cursor, saved)
            here.move_to_end((cursor.session, cursor.head_id))
            while sum(map(len, self._ends.values())) > CURSORS:
                oldest = next(place for place, ends in self._ends.items() if ends)
                self._ends[oldest].popitem(last=False)
                if not self._ends[oldest]:
                    del self._ends[oldest]

    def put_cursor(self, key: SessionKey, cursor: Cursor) -> None:
        """Remembers the cursor of a list that is handed in whole each time, by the session name that was asked for."""
        self._cursors.put(key, cursor)

    def cursor(self, key: SessionKey) -> Cursor | None:
        return self._cursors.get(key)

    def cursor_of(self, key: SessionKey, incoming: IncomingList) -> Cursor | None:
        """Returns the cursor that was remembered for the session if the list still has the beginning that it had there."""
        cursor = self._cursors.get(key)
        return cursor if cursor is not None and cursor.has_same_start(incoming) else None

    @contextmanager
    def exclusive(self, key: SessionKey) -> Generator[SessionKey, None, None]:
        """Yields a session that no other call uses: this one or, while it is in use, the first free one of its branches."""
        keys = (key if n == 0 else SessionKey(key.owner, f"{key.session}{BRANCH}{n:08x}") for n in count())
        with self._lock:
            own = next(name for name in keys if name not in self._in_use)
            self._in_use.add(own)
        try:
            yield own
        finally:
            with self._lock:
                self._in_use.discard(own)

    @contextmanager
    def as_own_turn(self, turn_input: TurnInput) -> Generator[TurnInput, None, None]:
        """Yields the input of a turn of its own: messages that another call asks at this moment get new ids.

        By its old id a message would belong to the turn of that call, which ends with that call's reply.
        """
        given_ids = turn_input.given_ids or frozenset()
        own = given_ids.intersection(m.id for m in open_turn(turn_input.messages))
        with self._lock:
            asking = self._asking.setdefault(turn_input.key, [])
            new_ids = {i: uuid.uuid4().hex for i in own.intersection(chain.from_iterable(asking))}
            asking.append(own)
        try:
            messages = tuple(replace(m, id=new_ids[m.id]) if m.id in new_ids else m for m in turn_input.messages)
            new = replace(turn_input, messages=messages, given_ids=given_ids.union(new_ids.values()))
            yield new if new_ids else turn_input
        finally:
            with self._lock:
                asking.remove(own)
                if not asking and self._asking.get(turn_input.key) is asking:
                    del self._asking[turn_input.key]


def _new_branch(place: SessionKey) -> SessionKey:
    return SessionKey(place.owner, f"{place.session}{BRANCH}{uuid.uuid4().hex[:8]}")


T = TypeVar("T")


ANONYMOUS_SESSIONS = 256  # kept in memory: the newest that no run is in
WAITING_S = 900.0  # a run that waits for its tools is in its session for so long


class AnonymousSessions:
    """Keeps track of sessions that nobody named and of the runs in them, and drops the oldest that no run is in.

    `drop` forgets one; it is called under a lock, so that no run enters the session meanwhile.
    """

    def __init__(self, drop: Callable[[SessionKey], object], clock: Clock | None = None) -> None:
        self._drop = drop
        self._clock = SystemClock() if clock is None else clock
        self._runs: Counter[SessionKey] = Counter()
        self._kept: OrderedDict[SessionKey, float] = OrderedDict()  # until when a run is in it for sure
        self._lock = threading.RLock()

    @contextmanager
    def entering(self, *keys: SessionKey | None) -> Generator[Callable[[SessionKey], None], None, None]:
        """Keeps these sessions until the block ends, and the one that the yielded function is called with."""
        entered = [key for key in keys if key is not None]

        def enter(key: SessionKey) -> None:
            with self._lock:
                entered.append(key)
                self._runs[key] += 1
                self._kept.setdefault(key, 0.0)

        with self._lock:
            self._runs.update(entered)
        try:
            yield enter
        finally:
            with self._lock:
                self._runs -= Counter(entered)
                for key in self._kept.keys() & entered:
                    self._kept.move_to_end(key)
                self._trim()

    def set_waiting(self, key: SessionKey, waiting: bool) -> None:
        """Notes whether the run that was in the session comes back with the results of tools."""
        with self._lock:
            if key in self._kept:
                self._kept[key] = self._clock.now_s() + WAITING_S if waiting else 0.0

    def _trim(self) -> None:
        if len(self._kept) <= ANONYMOUS_SESSIONS:
            return
        now_s = self._clock.now_s()
        idle = [key for key, until_s in self._kept.items() if not self._runs[key] and until_s <= now_s]
        for key in idle[: max(0, len(idle) - ANONYMOUS_SESSIONS)]:
            del self._kept[key]
            self._drop(key)


class ContextSettings(EngineSettings, total=False):
    """Settings that every constructor of this package with a session takes as keyword arguments.

    They are fields of `ctxfold.Policy`, a whole `policy` that these fields change, and settings that `AgentContext` takes.
    """

    sections: Sequence[Section]
    embedder: Embedder | Embeddings | None
    # the key of `configurable` that names the owner, such as LangGraph's "langgraph_auth_user_id"
    owner_key: str | None


class PoolSettings(ContextSettings, total=False):
    """Settings of an object that keeps the sessions of a model or an agent."""

    store: str | Store | None
    context_window: int | None
    summarizer: Any
    counter: TokenCounter | TextCounter | None


# settings of AgentContext in addition to the policy's fields
_NO_RULES = ("embedder", "max_sessions", "policy", "prices", "sections", "strategy")


@dataclass(frozen=True, slots=True)
class AttachedSession:
    """A list in its session.

    `root` is the session that was asked for; `attachment` names the one that serves the list; `cursor` is where the run before
    ended.
    """

    root: SessionKey
    attachment: Attachment
    cursor: Cursor | None
    sessions: Sessions
    address: Address

    @property
    def key(self) -> SessionKey:
        return self.attachment.key

    def add(self, engine: Engine, messages: Sequence[Message], *, after: str | None = None) -> Flow[None]:
        """Stores messages in the session that serves the list; those after the last message of an open turn continue it."""
        if messages:
            session = yield from engine.open(self.key)
            turn_id = None if after is None else session.turn_ending_with(after)
            yield from engine.add(session, messages, turn_id=turn_id, skip_orphans=True)

    def leave(
        self, engine: Engine, incoming: IncomingList, *, saved: IncomingList | None = None, waiting: bool = False
    ) -> Flow[Cursor]:
        """Returns the cursor to keep beside the list as it is now.

        `saved` is the part of it that the next list will have, if that is not all; `waiting`: the next list will bring the results
        of tools.
        """
        cursor_of = partial(cursor_at, engine, self.root, self.key, reread=False)
        cursor = yield from cursor_of(incoming)
        if self.address.place:
            known_by = cursor if saved is None else (yield from cursor_of(saved))
            self.sessions.subgraphs.put(self.address.key, cursor, known_by)
        else:
            self.sessions.subgraphs.put_cursor(self.address.key, cursor)
        self.sessions.anonymous.set_waiting(self.key, waiting)
        return cursor


class Sessions(SessionPool):
    """Hands out sessions over one engine, which is made with the first of them; safe across threads and tasks.

    `max_tokens` is the reply reserve where the settings have none. With `of_model`, a window that is not given is the one in the
    profile of the model that is asked: the sessions have that of the first one, and requests to other models have their own.
    `tools` and `overhead_tokens`, what each request will hold beside the messages, are checked against the window alone.
    Settings are checked at once: ConfigError, WindowTooSmallError. A store given as a URL is opened here and closed by `close`.
    """

    def __init__(
        self,
        settings: PoolSettings | Mapping[str, Any],
        *,
        backend: ContextBackend | None = None,
        max_tokens: int | None = None,
        tools: Sequence[ToolSpec] = (),
        overhead_tokens: int = 0,
        of_model: bool = False,
    ) -> None:
        rules: dict[str, Any] = dict(settings)
        check_settings(rules, PoolSettings.__annotations__, OF_EVERY_SESSION)
        owner_key = rules.pop("owner_key", None)
        self.owner_key = None if owner_key is None else check_name("owner_key", owner_key)
        store, context_window = rules.pop("store", None), rules.pop("context_window", None)
        summarizer, counter = rules.pop("summarizer", None), rules.pop("counter", None)
        more = {name: rules.pop(name) for name in _NO_RULES if name in rules}
        more["embedder"] = as_embedder(more.get("embedder"))
        more["sections"] = check_sections(more.get("sections", ()))
        reserve = rules.pop("reply_reserve_tokens", max_tokens)
        checked: dict[str, Any] = {name: more.get(name) for name in ("strategy", "policy", "prices", "max_sessions")}
        self._of_model = of_model and context_window is None and more.get("policy") is None
        window = ANY_WINDOW if self._of_model else context_window
        policy = session_rules(window, backend, reply_reserve_tokens=reserve, counter=counter, **checked, **rules)
        model = backend.model if backend else None
        counts = message_counter(counter, model=model, backend=backend)
        check_overhead(policy, counts, tools=tools, overhead_tokens=overhead_tokens)
        context_settings: dict[str, Any] = {
            "backend": backend,
            "context_window": context_window,
            "summarizer": as_summarizer(summarizer),
            "counter": counter,
            "reply_reserve_tokens": reserve,
            **rules,
            **more,
        }
        super().__init__(store, context_settings, subscriber=self._heard)
        self.windows = WindowCache(min(session_limit(more.get("max_sessions")), CONVERTED_WINDOWS))
        self.versions = VersionCache()  # of messages, with their texts
        self._forgets = store is None or store == "memory://"
        # a call that names no session is still to be warned of
        self._expects_names = store is None or not isinstance(self.store, MemoryStore)
        self.subgraphs = SubgraphSessions()
        self.repeated_ids: LruCache[SessionKey, frozenset[str]] = LruCache(CURSORS)  # that were reported
        self.anonymous = AnonymousSessions(lambda key: self.store.erase((), gone=(key,)))
        self._window: int | None = None if self._of_model else policy.context_window

    def _heard(self, event: Event) -> None:
        if isinstance(event, MessagesErased):
            self._forget_texts()
        listen(event)

    def _forget_texts(self) -> None:
        self.windows.clear()
        self.versions.clear()

    @property
    def context_window(self) -> int | None:
        """Returns the sessions' window; None before the first call where the model's profile names it."""
        return self._window

    def names(self, session: str | None, owner: str) -> Names:
        """Returns what the program has named."""
        return Names(session, owner, self.owner_key)

    def expect_name(self, configurable: Mapping[str, Any]) -> None:
        """Warns once where a call names no session, and none did before: nothing would ever be stored.

        A session id of None in the config of a call says that this is meant.
        """
        if not self._expects_names:
            return
        self._expects_names = False
        if self._first is None and ("thread_id" if is_in_graph(configurable) else "session_id") not in configurable:
            store = "" if self._forgets else ", although the model has a store"
            warn_caller(
                f"nothing of this call is stored{store}: it names no session. Give session_id=... to the "
                'model, or config={"configurable": {"session_id": ...}} to the call'
            )

    def report_repeated(self, engine: Engine, key: SessionKey, ids: frozenset[str]) -> None:
        """Publishes, once for a session, that several messages of its list have one id."""
        if ids and self.repeated_ids.get(key) != ids:
            self.repeated_ids.put(key, ids)
            engine.events.emit(IdsRepeated(key.session, tuple(sorted(ids))))

    def open(self, **session: Any) -> AgentContext:
        if self._window is not None:
            return super().open(**session)
        window = self._settings["context_window"] = self._called_window()
        context = super().open(**session)
        self._window = window
        return context

    def _called_window(self) -> int:
        """Returns the window of the model that is being called."""
        model = called_model()
        if model is None:
            raise ConfigError(
                "the context window is not known before the first call of a model whose profile has it: "
                "give context_window=... in tokens"
            )
        window = model_window(model)
        if window is None:
            raise unknown_window(model)
        return window

    def window_of(self, model: BaseChatModel) -> int | None:
        """Returns the window of a request to this model, None where it is the sessions' own.

        ConfigError for a model without a window in its profile where nothing else names one.
        """
        if not self._of_model:
            return None
        window = model_window(model)
        if window is None:
            raise unknown_window(model)
        return None if window == self._window else window

    def _for_erasure(self, session_id: str, owner: str) -> AgentContext:
        """Returns the session; before any model was asked it is opened aside, as an erasure depends on no window."""
        if self._window is not None:
            return self.at(session_id, owner)
        settings: dict[str, Any] = {**self._settings, "context_window": ANY_WINDOW}
        return AgentContext(session_id=session_id, owner=owner, store=self.store, **settings)

    def run(self, key: SessionKey, flow: Callable[[Engine], Flow[T]]) -> T:
        """Runs a flow over the engine of the sessions; `key` is the session that is opened first."""
        return self.first(key.session, key.owner).handle.run_flow(flow)

    async def arun(self, key: SessionKey, flow: Callable[[Engine], Flow[T]]) -> T:
        return await (await self.afirst(key.session, key.owner)).handle.arun_flow(flow)

    @contextmanager
    def attaching(
        self,
        address: Address,
        incoming: IncomingList,
        *,
        cursor: Cursor | None = None,
        replied: IncomingList | None = None,
        kept_elsewhere: Effect[bool] | None = None,
        list_decides: bool = False,
    ) -> Generator[Callable[[Engine], Flow[AttachedSession]], None, None]:
        """Yields a flow that attaches the list to its session, which then lacks only new messages at the end of the list.

        `cursor` was kept beside the list; `kept_elsewhere` tells whether one was kept beside another state of it. At a place of a
        graph without one, it is where the newest run ended that the list goes on from. A caller that hands in replies with the next
        list only gives the list with its reply as `replied`: the list may be handed in again, and a session that only this list
        continues is not compared with the cursor. With `list_decides`, a list that has nothing of the session is another
        conversation. An exception in the block gives the claim on the session back.
        """
        with ExitStack() as stack:
            if address.place and cursor is None:
                start = stack.enter_context(self.subgraphs.claim(address.key, incoming if replied is None else replied))
            else:
                start = StartPoint(address.key, cursor, kept_elsewhere=kept_elsewhere, list_decides=list_decides)
            enter: Callable[[SessionKey], None] | None = None
            if address.anonymous and self._forgets:
                before = None if start.cursor is None else SessionKey(address.key.owner, start.cursor.session)
                enter = stack.enter_context(self.anonymous.entering(start.root, before))

            def attach_list(engine: Engine) -> Flow[AttachedSession]:
                begin = start
                if cursor is not None and not (yield from is_believed(engine, start.root, cursor, incoming)):
                    begin = replace(start, cursor=None)
                root, attachment = yield from attach(
                    engine, address.key, begin, incoming, separate_runs=address.place, unanswered=replied is not None
                )
                if enter is not None:
                    enter(attachment.key)
                return AttachedSession(root, attachment, begin.cursor, self, address)

            yield attach_list

    def erase(self, thread: object, owner: str) -> tuple[str, ...]:
        """Erases a thread permanently: its session, branches and sub-graphs; returns the names of the sessions."""
        names = sessions_of(checked_session_id(thread), self.store.sessions(owner))
        self._forget_texts()
        for name in names:
            self._for_erasure(name, owner).erasure.erase_session()
        return tuple(names)

    async def aerase(self, thread: object, owner: str) -> tuple[str, ...]:
        names = sessions_of(checked_session_id(thread), await self.store.asessions(owner))
        self._forget_texts()
        for name in names:
            await (await in_thread(partial(self._for_erasure, name, owner))).erasure.aerase_session()
        return tuple(names)


class PoolOf(NamedTuple):
    """Holds an object's pool of sessions, and the names that stand for those that a call leaves out."""

    sessions: Sessions
    session_id: str | None
    owner: str

    @property
    def shown(self) -> str:
        """Returns the names, the store and the window as they stand in a repr; stores show their address without secrets."""
        return (
            f"session_id={self.session_id!r}, owner={self.owner!r}, store={self.sessions.store!r}, "
            f"context_window={self.sessions.context_window}"
        )


class ErasesThreads(ABC):
    """Gives an object with a pool of sessions the methods that erase what is stored of a thread."""

    @abstractmethod
    def _pool(self) -> PoolOf:
        """Returns the pool; raises ConfigError for an object without sessions."""

    def erase(self, thread: object, *, owner: str | None = None) -> tuple[str, ...]:
        """Erases all that is stored of a thread, with branches and sub-graphs, permanently; returns the names of the sessions.

        Call the checkpointer's `delete_thread(thread)` too: neither does the other's work.
        """
        pool = self._pool()
        return pool.sessions.erase(thread, name_or_own("owner", owner, pool.owner))

    async def aerase(self, thread: object, *, owner: str | None = None) -> tuple[str, ...]:
        pool = self._pool()
        return await pool.sessions.aerase(thread, name_or_own("owner", owner, pool.owner))


class ClosesSessions(SharesSessions, Closing):
    """Closes an object's pool of sessions, which closes the store if it was opened for them; copies share the pool."""

    _sessions: Sessions

    def close(self) -> None:
        """Closes the store if this object opened it."""
        self._sessions.close()

    async def aclose(self) -> None:
        await self._sessions.aclose()


class HoldsSessions(ErasesThreads, ClosesSessions):
    """An object that was made for one pool of sessions, and perhaps for one of its sessions."""

    _session: str | None
    _owner: str

    def _pool(self) -> PoolOf:
        return PoolOf(self._sessions, self._session, self._owner)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._pool().shown})"


class KeepsSessions(ErasesThreads):
    """Gives a chat model with sessions the methods that reach them."""

    def context(self, session: str | None = None, *, owner: str | None = None) -> AgentContext:
        """Returns a session of this model, by default that of its field: window, usage, pins, explain, export."""
        pool = self._pool()
        key = key_or_own(session, owner, pool.session_id, pool.owner)
        return pool.sessions.at(key.session, key.owner)
