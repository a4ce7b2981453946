"""Defines AgentContext, the object that a user holds: one session with its model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, closing, suppress
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, Unpack, cast, overload

from ctxfold._lifecycle import Closing, SharesSessions
from ctxfold.compaction.commit import Outcome
from ctxfold.compaction.compact import costs, gauge
from ctxfold.compaction.strategy import StrategyLike, as_strategy
from ctxfold.connect import SessionSettings, named_backend, ports, session_rules
from ctxfold.effects import Flow, FlowMethods, async_method, in_thread, sync_method
from ctxfold.engine import archive, turn
from ctxfold.engine import edit as editing
from ctxfold.engine.archive import Hit
from ctxfold.engine.engine import Added, Engine
from ctxfold.engine.fit import Window
from ctxfold.engine.request import RequestOptions, options_from
from ctxfold.engine.turn import TurnInput
from ctxfold.errors import (
    BudgetError,
    ConfigError,
    HeadMovedError,
    MessageError,
    MissingExtraError,
    NotEnoughHistoryError,
    SessionError,
)
from ctxfold.events import Subscriber
from ctxfold.history.prefix import PrefixStats
from ctxfold.history.records import SessionKey
from ctxfold.history.view import View
from ctxfold.messages import Message, Usage, Visibility, validated
from ctxfold.policy.prices import CostLine, Prices
from ctxfold.policy.settings import Policy, PolicyChanges, PolicyFields
from ctxfold.protocols import ContextBackend, Embedder, Ports, Reply, Store, TokenCounter
from ctxfold.retrieval.originals import (
    Audience,
    conversation,
)
from ctxfold.sections.section import Section
from ctxfold.session.files import SessionFiles, load_log, parse_session, stored_policy
from ctxfold.session.parts import Input, SessionArchive, SessionEditing, SessionErasure, SessionHandle, SessionMemory
from ctxfold.session.service import ContextService
from ctxfold.stream import Completed, StreamEvent
from ctxfold.tokens.text import TextCounter
from ctxfold.validation import check_name, check_text, name_or_own, unpacked

if TYPE_CHECKING:
    from ctxfold.inspect.explain import Explanation


Framework: TypeAlias = Literal["langchain", "llamaindex"]
# by name, when asked for: nothing in ctxfold imports the packages over it
_CONVERTERS = {
    "langchain": ("langchain_ctx.messages", "to_langchain_messages"),
    "llamaindex": ("llamaindex_ctx.messages", "to_chat_messages"),
}


@dataclass(frozen=True, slots=True)
class SessionUsage:
    """The token usage of a session so far.

    `reported` is the sum of the usage that the provider reported for the replies. `summaries` is the usage of the
    `summary_calls` to the summariser, which `reported` leaves out.

    `cost` also says what the session would have cost with EconomicTrigger.

    `turns_since_summary` counts the turns since the last hard compaction; None before the first.
    """

    reported: Usage
    replies: int
    turns: int
    compactions: int
    window_tokens: int
    budget_tokens: int
    prefix: PrefixStats
    cost: CostLine = field(default_factory=CostLine)
    turns_since_summary: int | None = None
    summaries: Usage = field(default_factory=Usage)
    summary_calls: int = 0


class AgentContext(FlowMethods, Closing, SharesSessions):
    """A conversation that may outgrow its window.

    Args:
        backend: the model service, or its name, such as "openai:gpt-5-mini", with the key in the provider's variable; None for a
            context that only keeps messages.
        session_id: the name of the session, which is created in the store when it does not exist.
        store: `sqlite:///file.db`, `postgresql+psycopg://...`, a Store, or None for memory.
        context_window: the model's limit in tokens, input and output together; None takes the value in the provider's profile.
        system: the system prompt, or a list of them.
        owner: the user or tenant to whom the session belongs.
        summarizer: the backend that writes summaries, or its name; None uses `backend`, or extractive summaries where there is
            none.
        reply_reserve_tokens: tokens kept free for the reply; None keeps a fifth of the window free.
        create: False raises SessionNotFoundError when the session is not in the store.
        strategy: "tiered", "summarize", "truncate", "sliding_window", "clear_tools", "tool_summaries", a function from the
            messages to those that stay, or an object of your own: see docs/strategies.md. A session stored with a strategy of
            your own opens only when that object is given again.
        prices: the prices of tokens; with them, `usage()` and the events of compactions report what was spent and saved.
        sections: texts that are shown beside the conversation, each with its source: see docs/sections.md.
        embedder: computes embeddings, so that recall finds passages by meaning as well as by words.
        max_sessions: how many sessions (see `at`) stay open in memory, 256 by default: those used last, and those with work in
            progress. Any other is read from the store again when it is next used.
        policy: a complete `ctxfold.Policy`; the other arguments override single fields of it.
        settings: fields of `ctxfold.Policy`, such as `hard_ratio=0.8`.

    Safe across threads and tasks; use it as a context manager, or call `close`.
    """

    @unpacked
    def __init__(  # noqa: PLR0913 - the settings of a session, all but the first by name
        self,
        backend: str | ContextBackend | None = None,
        *,
        session_id: str = "default",
        store: str | Store | None = None,
        context_window: int | None = None,
        system: str | Sequence[str] | None = None,
        owner: str = "default",
        summarizer: str | ContextBackend | None = None,
        counter: TokenCounter | TextCounter | None = None,
        reply_reserve_tokens: int | None = None,
        create: bool = True,
        strategy: StrategyLike | None = None,
        prices: Prices | None = None,
        sections: Sequence[Section] = (),
        embedder: Embedder | None = None,
        policy: Policy | None = None,
        max_sessions: int | None = None,
        **settings: Unpack[PolicyFields],
    ) -> None:
        check_text("the owner name", owner)  # an empty one may be an older version's, which can still be opened
        check_text("the session name", session_id)
        own = () if strategy is None or isinstance(strategy, str) else (as_strategy(strategy),)
        model, writer = named_backend("backend", backend), named_backend("summarizer", summarizer)
        # closed with the context, unlike a backend that belongs to its creator
        self._own_backends: tuple[Any, ...] = tuple(
            opened for opened, given in ((model, backend), (writer, summarizer)) if isinstance(given, str)
        )
        rules = session_rules(
            context_window,
            model,
            policy=policy,
            reply_reserve_tokens=reply_reserve_tokens,
            strategy=strategy,
            counter=counter,
            prices=prices,
            max_sessions=max_sessions,
            **settings,
        )
        bundle = ports(
            store=store,
            backend=model,
            summarizer=writer,
            counter=counter,
            count_reasoning=rules.count_reasoning,
            prices=prices,
            embedder=embedder,
        )
        engine = Engine(bundle, rules, max_sessions=max_sessions, strategies=own, sections=sections)
        self.handle = SessionHandle(engine, SessionKey(owner, session_id), _prompts(system), create=create)
        self._owns_engine = True
        self._owns_store = store is None or isinstance(store, str)
        try:
            self._run(self.handle.open())
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return (
            f"AgentContext(session_id={self.session!r}, owner={self.owner!r}, store={self.handle.store!r}, "
            f"context_window={self.handle.engine.rules.context_window})"
        )

    def __copy__(self) -> Self:
        copied = super().__copy__()
        copied.handle = copy(self.handle)
        return copied

    @property
    def session(self) -> str:
        return self.handle.key.session

    @property
    def owner(self) -> str:
        return self.handle.key.owner

    @property
    def policy(self) -> Policy:
        """The policy in force, including values set at run time or learnt from the provider."""
        return self._run(self.handle.open()).window_rules()

    @sync_method
    def set_policy(self, **fields: Unpack[PolicyChanges]) -> Flow[Policy]:
        """Changes fields of this session's `Policy` from now on; they are stored, and hold when the session is opened again."""
        return self.handle.edit(lambda e, s: editing.set_policy(e, s, fields))

    aset_policy = async_method(set_policy)

    # parts

    @property
    def edit(self) -> SessionEditing:
        """Changes to the live conversation: insert, update, remove, pop, clear, set_messages, revise, goals and more."""
        return SessionEditing(self.handle)

    @property
    def archive(self) -> SessionArchive:
        """What was stored: single messages, a report on the session, a search in all sessions of the owner, forks."""
        return SessionArchive(self.handle)

    @property
    def files(self) -> SessionFiles:
        """Export, import and snapshots."""
        return SessionFiles(self.handle)

    @property
    def erasure(self) -> SessionErasure:
        """Erasure for good: of messages, of the session, of the owner, and by limits."""
        return SessionErasure(self.handle)

    @property
    def memory(self) -> SessionMemory:
        """The memory of the owner beyond this conversation: add, list, search, forget, learn."""
        return SessionMemory(self.handle)

    @property
    def service(self) -> ContextService:
        """Stateless operations on this engine's sessions: inject, remove, prepare_context, maybe_compact and more."""
        return ContextService(self.handle.engine, self.handle.key)

    # sessions

    def at(self, session: str, *, owner: str | None = None, create: bool = True) -> AgentContext:
        """Returns another session over the same engine, store and backend; it is created when it is first used.

        `owner` None means the owner of this context. Raises ConfigError for a name that is empty or not a string.
        """
        key = SessionKey(name_or_own("owner name", owner, self.owner), check_name("session name", session))
        other = object.__new__(AgentContext)
        other.handle = SessionHandle(self.handle.engine, key, self.handle.prompts, create=create)
        other._owns_engine = other._owns_store = False
        other._own_backends = ()
        return other

    @sync_method
    def fork(self, session: str, at: str | None = None) -> Flow[AgentContext]:
        """Returns a new session of this owner that continues after message `at`, or from the present state without it.

        The archive and the pins are part of the new session.
        """
        check_name("session name", session)
        key = yield from self.handle.edit(lambda e, s: archive.fork(e, s, session, at=at))
        return self.at(key.session, create=self.handle.create)

    afork = async_method(fork)

    # asking

    @sync_method
    def send(self, content: Input, **options: Unpack[RequestOptions]) -> Flow[Reply]:
        """Sends messages and returns the model's reply; both are stored. When it raises, the session is unchanged.

        `options` are those of `ctxfold.engine.request.RequestOptions`.
        """
        reply, self.handle.request_turn = yield from turn.ask(self.handle.engine, self._turn_input(content, options))
        return reply

    asend = async_method(send)

    @unpacked
    def send_stream(self, content: Input, **options: Unpack[RequestOptions]) -> Iterator[StreamEvent]:
        """Streams the reply as events. The last one is `Completed`, with the whole reply, once it is stored.

        `on_abort` says what a stream that is closed early leaves behind. Until the turn ends, `view`, `messages` and `window`
        of this context show it.
        """
        return self._streamed(self._turn_input(content, options))

    @unpacked
    def asend_stream(self, content: Input, **options: Unpack[RequestOptions]) -> AsyncIterator[StreamEvent]:
        return self._astreamed(self._turn_input(content, options))

    def _streamed(self, turn_input: TurnInput) -> Iterator[StreamEvent]:
        whole: list[Reply] = []
        # what a caller leaves is abandoned at once, not when the garbage is collected
        with closing(self.handle.stream(turn_input, whole.append)) as pieces:
            yield from pieces
        yield Completed(whole[0])

    async def _astreamed(self, turn_input: TurnInput) -> AsyncIterator[StreamEvent]:
        whole: list[Reply] = []
        async with aclosing(self.handle.astream(turn_input, whole.append)) as pieces:
            async for piece in pieces:
                yield piece
        yield Completed(whole[0])

    def _turn_input(self, content: Input, options: Mapping[str, Any]) -> TurnInput:
        messages = tuple(map(validated, self.handle.messages(content)))
        return TurnInput(
            self.handle.key, messages, options_from(options), self.handle.prompts, not isinstance(content, str)
        )

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
        checked = self.handle.messages(messages)
        add = partial(
            self.handle.engine.add,
            messages=checked if visibility is None else [replace(m, visibility=visibility) for m in checked],
            turn_id=self.handle.turn,
            known_ids=known_ids and not isinstance(messages, str),
            skip_orphans=skip_orphans,
        )
        session = self.handle.engine.known(self.handle.key)
        added: Added | None = None
        if (
            session is not None
            and not session.pending_rollbacks
            and self.handle.prompts in (None, session.view().prompts)
        ):
            # mostly nobody else has written since: then nothing needs to be read first
            with suppress(BudgetError, HeadMovedError, MessageError, SessionError):
                added = yield from add(session, expect=session.state.head)
        if added is None:
            added = yield from add((yield from self.handle.open()))
        self.handle.turn = added.turn_id
        return added

    aadd = async_method(add)

    # compacting

    @sync_method
    def pin(self, *message_ids: str) -> Flow[None]:
        """Pins messages, by id or `#17`: every compaction keeps them verbatim. PinBudgetError beyond a quarter of the budget."""
        return self.handle.edit(lambda e, s: editing.pin(e, s, message_ids))

    apin = async_method(pin)

    @sync_method
    def unpin(self, *message_ids: str) -> Flow[None]:
        """Unpins messages, by id or `#17`; a message that is not pinned is no error."""
        return self.handle.edit(lambda e, s: editing.unpin(e, s, message_ids))

    aunpin = async_method(unpin)

    @sync_method
    def compact(self, *, force: bool = False) -> Flow[Outcome]:
        """Compacts now, including an open turn; raises NotEnoughHistoryError when nothing may be compacted.

        It is raised too while half of the budget is free, as a compaction would only hide messages then; not with `force`.
        """
        session = yield from self.handle.open()
        with session.lock:
            turns = list(session.state.open)
        # with several open turns, the compaction cannot be assigned to one of them
        stage = session.stage(turns[0] if len(turns) == 1 else None)
        used, budget = stage.view.tokens + session.overhead_tokens, stage.rules.budget_tokens
        if not force and used <= budget // 2:
            free = f"{used:,} of {budget:,} tokens are used, so that nothing needs the room"
            raise NotEnoughHistoryError(f"nothing was compacted: {free}; to compact all the same, force it")
        outcome = yield from self.handle.engine.fitter.compact(session, stage)
        if not outcome.compacted:
            raise NotEnoughHistoryError(f"nothing was compacted: {outcome.reason}")
        return outcome

    acompact = async_method(compact)

    @sync_method
    def undo(self) -> Flow[None]:
        """Undoes the last compaction or edit."""
        return self.handle.edit(editing.undo)

    aundo = async_method(undo)

    # looking

    @sync_method
    def search(self, query: str, limit: int = 10) -> Flow[tuple[Hit, ...]]:
        """Returns the messages that match the query, best first, whether the model still sees them or not."""
        return self.handle.edit(lambda _, s: archive.search(s, query, limit=limit))

    asearch = async_method(search)

    @sync_method
    def restore(self, *references: str) -> Flow[tuple[Message, ...]]:
        """Restores originals, by id or `#17`, with their tool rounds, at the tail or in place of an excerpt. Returns them.

        Raises ContextOverflowError, before anything is written, when they do not fit.
        """
        return self.handle.edit(lambda e, s: archive.restore(e, s, references))

    arestore = async_method(restore)

    @sync_method
    def window(
        self, *, recall: bool = False, question: str | None = None, overhead_tokens: int = 0, whole_tail: bool = False
    ) -> Flow[Window]:
        """Returns the window that the model would receive next; with `recall`, with passages for the newest user message.

        `question` is a user message that is not stored yet; `overhead_tokens` is the size of what else the request will hold,
        such as tools. With `whole_tail`, no live message gives way to the passages: for a list that may be handed back.
        """
        if question is not None:
            check_text("the question", question)
        session = yield from self.handle.open()
        fitter, turn_id = self.handle.engine.fitter, self.handle.own_turn(session)
        window = yield from fitter.window(
            session,
            session.stage(turn_id),
            recall=recall,
            question=question,
            overhead_tokens=overhead_tokens,
            whole_tail=whole_tail,
        )
        fitter.note_window(session, window, overhead_tokens, turn_id)
        return window

    awindow = async_method(window)

    @overload
    def messages(self, audience: Audience = "all") -> tuple[Message, ...]: ...
    @overload
    def messages(self, audience: Audience = "all", *, as_: Framework) -> list[Any]: ...
    def messages(self, audience: Audience = "all", *, as_: Framework | None = None) -> Any:
        """Returns the whole conversation as it was stored, compacted messages and open turns included; reads the log.

        "user" leaves out messages that are for the model only. "model" is the window: summaries in place of the messages they
        replaced. `as_` "langchain" or "llamaindex" returns a list of that framework's messages, one for each tool result.
        """
        return _converted(self._run(self._conversation(audience)), as_)

    @overload
    async def amessages(self, audience: Audience = "all") -> tuple[Message, ...]: ...
    @overload
    async def amessages(self, audience: Audience = "all", *, as_: Framework) -> list[Any]: ...
    async def amessages(self, audience: Audience = "all", *, as_: Framework | None = None) -> Any:
        return _converted(await self._arun(self._conversation(audience)), as_)

    def _conversation(self, audience: Audience) -> Flow[tuple[Message, ...]]:
        return self.handle.edit(lambda _, s: conversation(s, self.handle.own_turn(s), audience, whole=True))

    @sync_method
    def view(self) -> Flow[View]:
        """Returns the four zones as they are, without making them fit; open turns are included.

        Of a turn that another context has open, it has the question and the rounds that are complete.
        """
        session = yield from self.handle.open()
        return session.view_of_all(self.handle.own_turn(session))

    aview = async_method(view)

    def __len__(self) -> int:
        """Returns the number of messages in `view()`."""
        return len(self.view().messages)

    def __bool__(self) -> bool:
        return True  # an empty conversation is a context all the same

    @sync_method
    def explain(self) -> Flow[Explanation]:
        """Explains why the window holds what it holds: print the result, call `to_dict()`, or show it in a notebook.

        Its `gauge` says how full the window is, the room that is left, and the tokens until the next compaction.
        """
        from ctxfold.inspect.explain import explain  # only here: a report is asked for by few programs

        s = yield from self.handle.open()
        return (yield from explain(s, gauge(s, s.stage(self.handle.own_turn(s)), self.handle.counter), costs(s)))

    aexplain = async_method(explain)

    def usage(self) -> SessionUsage:
        """Returns the reported tokens, replies, compactions and prefix reuse so far."""
        session = self._run(self.handle.open())
        state = session.state
        return SessionUsage(
            reported=state.usage,
            replies=state.replies,
            turns=state.turns,
            compactions=state.compactions,
            turns_since_summary=None if state.summary_turn < 0 else state.turns - state.summary_turn,
            window_tokens=session.window_tokens().total,
            budget_tokens=session.window_rules().budget_tokens,
            prefix=session.tracker.stats(),
            cost=costs(session),
            summaries=state.summary_usage + session.unbooked_usage,
            summary_calls=state.summary_calls + session.unbooked_calls,
        )

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Calls a function with every event of this engine's sessions; the returned function unsubscribes it."""
        return self.handle.engine.events.add(subscriber)

    def close(self, *, wait: bool = True) -> None:
        """Ends background work, waiting for it or not, and closes the store if this context opened it.

        Only `aclose` can wait for work that runs as a task of an event loop. A backend that was given as an object stays open.
        """
        tasks = self.handle.engine.ports.tasks
        if self._owns_engine and tasks is not None:
            tasks.close(wait=wait)
        if self._owns_store:
            self.handle.engine.ports.store.close()
        for backend in self._own_backends:
            backend.close()

    async def aclose(self, *, wait: bool = True) -> None:
        tasks = self.handle.engine.ports.tasks
        if self._owns_engine and tasks is not None:
            await tasks.aclose(wait=wait)
        if self._owns_store:
            await self.handle.engine.ports.store.aclose()
        for backend in self._own_backends:
            await backend.aclose()

    @property
    def _ports(self) -> Ports:
        return self.handle.engine.ports


@unpacked
def load_snapshot(
    path: str | PathLike[str],
    backend: str | ContextBackend | None = None,
    *,
    session_id: str | None = None,
    store: str | Store | None = None,
    **settings: Unpack[SessionSettings],
) -> AgentContext:
    """Opens the session of a file, under its old name or under `session_id`.

    `settings` override the policy in the file.

    Raises StoreFormatError for another version, StoreCorruptError for a damaged file, SessionExistsError for a name in use.
    """
    key, records = parse_session(path)
    rules: dict[str, Any] = {**stored_policy(records), **settings}
    name = name_or_own("session name", session_id, key.session)
    context = AgentContext(backend, session_id=name, store=store, **rules)
    try:
        context.handle.run_flow(lambda e: load_log(e, context.handle.key, [(r.seq, r) for r in records]))
        context.handle.run_flow(lambda _: context.handle.edit(editing.reopen))
    except BaseException:
        context.close()
        raise
    return context


@unpacked
async def aload_snapshot(
    path: str | PathLike[str],
    backend: str | ContextBackend | None = None,
    *,
    session_id: str | None = None,
    store: str | Store | None = None,
    **settings: Unpack[SessionSettings],
) -> AgentContext:
    """Does the same as `load_snapshot` without blocking the event loop."""
    return await in_thread(partial(load_snapshot, path, backend, session_id=session_id, store=store, **settings))


def _converted(messages: tuple[Message, ...], framework: Framework | None) -> Any:
    if framework is None:
        return messages
    if framework not in _CONVERTERS:
        raise ConfigError(f"as_ is {framework!r}: give {' or '.join(map(repr, _CONVERTERS))}")
    module, function = _CONVERTERS[framework]
    try:
        package = import_module(module)
    except ModuleNotFoundError as error:
        extra = f'pip install "ctxfold[{framework}]"'
        raise MissingExtraError(f"as_={framework!r} needs {error.name}, which is not installed: {extra}") from error
    return getattr(package, function)(messages)


def _prompts(system: object) -> tuple[str, ...] | None:
    """Returns the system prompts of a `system` argument, which is None, one text or several."""
    if system is None or isinstance(system, str):
        return None if system is None else (system,)
    several = tuple(cast("Iterable[object]", system)) if isinstance(system, Iterable) else (system,)
    for one in several:
        check_text("system", one)
    return cast("tuple[str, ...]", several)
