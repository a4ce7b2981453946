"""Defines AgentContext, the object that a user holds: one session with its model."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, closing
from dataclasses import dataclass, field
from typing import Any, Unpack, cast

from ctxfold._lifecycle import SharesSessions
from ctxfold.compaction.compact import costs, gauge
from ctxfold.compaction.strategy import Strategy, Summarizer, as_strategy
from ctxfold.connect import ports, session_rules
from ctxfold.effects import Flow, async_method, sync_method
from ctxfold.engine import archive, turn
from ctxfold.engine.engine import Engine
from ctxfold.engine.fit import Window
from ctxfold.engine.request import RequestOptions, options_from
from ctxfold.engine.turn import OpenReply, TurnInput
from ctxfold.errors import ConfigError
from ctxfold.events import Rewriter, Subscriber, WindowGauge
from ctxfold.history.prefix import PrefixStats
from ctxfold.history.records import SessionKey
from ctxfold.history.view import View
from ctxfold.inspect.explain import (
    Audience,
    Explanation,
    MessageExplanation,
    conversation,
    explain,
    explain_message,
    newest_version,
    original,
)
from ctxfold.inspect.report import Inspection, inspect
from ctxfold.messages import Message, Role, Usage, by_role, validated
from ctxfold.policy.prices import CostLine, Prices
from ctxfold.policy.settings import Policy, PolicyFields
from ctxfold.protocols import (
    AsyncChunkStream,
    ChunkStream,
    ContextBackend,
    Embedder,
    Reply,
    Request,
    Store,
    TokenCounter,
)
from ctxfold.sections.section import Section
from ctxfold.session.handle import Input, SessionHandle
from ctxfold.session.service import ContextService
from ctxfold.stream import Completed, StreamEvent, StreamPiece
from ctxfold.tokens.text import TextCounter
from ctxfold.validation import check_name, check_text, is_a, kind_of, name_or_own


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


class AgentContext(SessionHandle, SharesSessions):
    """A conversation that may outgrow its window.

    Args:
        backend: the model service; None for a context that only keeps messages.
        session_id: the name of the session, which is created in the store when it does not exist.
        store: `sqlite:///file.db`, `postgresql+psycopg://...`, a Store, or None for memory.
        context_window: the model's limit in tokens, input and output together; None takes the value in the provider's profile.
        system: the system prompt, or a list of them.
        owner: the user or tenant to whom the session belongs.
        summarizer: the backend that writes summaries; None uses `backend`, or extractive summaries where there is none.
        reply_reserve_tokens: tokens kept free for the reply; None keeps a fifth of the window free.
        create: False raises SessionNotFoundError when the session is not in the store.
        strategy: "tiered", "summarize", "truncate", "sliding_window", "clear_tools", "tool_summaries", or an object of your
            own: see docs/strategies.md. A session stored with a strategy of your own opens only when that object is given again.
        prices: the prices of tokens; with them, `usage()` and the events of compactions report what was spent and saved.
        sections: texts that are shown beside the conversation, each with its source: see docs/sections.md.
        embedder: computes embeddings, so that recall finds passages by meaning as well as by words.
        max_sessions: how many sessions (see `at`) stay open in memory, 256 by default: those used last, and those with work in
            progress. Any other is read from the store again when it is next used.
        policy: a complete `ctxfold.Policy`; the other arguments override single fields of it.
        settings: fields of `ctxfold.Policy`, such as `hard_ratio=0.8`.

    Safe across threads and tasks; use it as a context manager, or call `close`.
    """

    def __init__(  # noqa: PLR0913 - the settings of a session, all but the first by name
        self,
        backend: ContextBackend | None = None,
        *,
        session_id: str = "default",
        store: str | Store | None = None,
        context_window: int | None = None,
        system: str | Sequence[str] | None = None,
        owner: str = "default",
        summarizer: ContextBackend | None = None,
        counter: TokenCounter | TextCounter | None = None,
        reply_reserve_tokens: int | None = None,
        create: bool = True,
        strategy: str | Strategy | Summarizer | None = None,
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
        rules = session_rules(
            context_window,
            backend,
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
            backend=backend,
            summarizer=summarizer,
            counter=counter,
            count_reasoning=rules.count_reasoning,
            prices=prices,
            embedder=embedder,
        )
        prompts = _prompts(system)
        self._bind(
            Engine(bundle, rules, max_sessions=max_sessions, strategies=own, sections=sections),
            SessionKey(owner, session_id),
            prompts,
            create=create,
        )
        self._owns_engine = True
        self._owns_store = store is None or isinstance(store, str)
        try:
            self._run(self._open_session())
        except BaseException:
            self.close()
            raise

    def _bind(self, engine: Engine, key: SessionKey, prompts: tuple[str, ...] | None, *, create: bool) -> None:
        self._engine = engine
        self._key = key
        self._prompts = prompts
        self._create = create
        self._turn: str | None = None
        self._request_turn: str | None = None
        self._owns_engine = False
        self._owns_store = False

    def __repr__(self) -> str:
        return (
            f"AgentContext(session_id={self.session!r}, owner={self.owner!r}, store={self.store!r}, "
            f"context_window={self.policy.context_window})"
        )

    def at(self, session: str, *, owner: str | None = None, create: bool = True) -> AgentContext:
        """Returns another session over the same engine, store and backend; it is created when it is first used.

        `owner` None means the owner of this context. Raises ConfigError for a name that is empty or not a string.
        """
        key = SessionKey(name_or_own("owner name", owner, self.owner), check_name("session name", session))
        other = object.__new__(AgentContext)
        other._bind(self._engine, key, self._prompts, create=create)
        return other

    @sync_method
    def fork(self, session: str, at: str | None = None) -> Flow[AgentContext]:
        """Returns a new session of this owner that continues after message `at`, or from the present state without it.

        The archive and the pins are part of the new session.
        """
        check_name("session name", session)
        key = yield from self._edit(lambda e, s: archive.fork(e, s, session, at=at))
        return self.at(key.session, create=self._create)

    afork = async_method(fork)

    @property
    def max_sessions(self) -> int:
        """Returns how many sessions of this engine stay open in memory."""
        return self._engine.max_sessions

    @property
    def service(self) -> ContextService:
        """Returns the stateless operations on this engine's sessions: inject, remove, prepare_context, maybe_compact and more."""
        return ContextService(self._engine, self._key)

    # asking

    @sync_method
    def send(self, content: Input, **options: Unpack[RequestOptions]) -> Flow[Reply]:
        """Sends messages and returns the model's reply; both are stored. When it raises, the session is unchanged.

        `options` are those of `ctxfold.engine.request.RequestOptions`.
        """
        reply, self._request_turn = yield from turn.ask(self._engine, self._turn_input(content, options))
        return reply

    asend = async_method(send)

    def send_stream(self, content: Input, **options: Unpack[RequestOptions]) -> Iterator[StreamEvent]:
        """Streams the reply as events. The last one is `Completed`, with the whole reply, once it is stored.

        `on_abort` says what a stream that is closed early leaves behind. Until the turn ends, `view`, `messages` and `window`
        of this context show it.
        """
        return self._streamed(self._turn_input(content, options))

    def asend_stream(self, content: Input, **options: Unpack[RequestOptions]) -> AsyncIterator[StreamEvent]:
        return self._astreamed(self._turn_input(content, options))

    def _streamed(self, turn_input: TurnInput) -> Iterator[StreamEvent]:
        whole: list[Reply] = []
        # what a caller leaves is abandoned at once, not when the garbage is collected
        with closing(self.stream(turn_input, whole.append)) as pieces:
            yield from pieces
        yield Completed(whole[0])

    async def _astreamed(self, turn_input: TurnInput) -> AsyncIterator[StreamEvent]:
        whole: list[Reply] = []
        async with aclosing(self.astream(turn_input, whole.append)) as pieces:
            async for piece in pieces:
                yield piece
        yield Completed(whole[0])

    def stream(
        self, turn_input: TurnInput, done: Callable[[Reply], None] | None = None
    ) -> Generator[StreamPiece, None, None]:
        """Streams the chunks of the reply; `done` is called with the whole reply once it is stored."""
        reply: OpenReply = self._run(turn.open_reply(self._engine, _checked(turn_input)))
        self._request_turn = reply.turn_id
        stream = cast("ChunkStream", reply.stream)
        try:
            for chunk in stream:
                yield from reply.fold.feed(chunk)
            stream.close()
            whole = self._run(turn.finish_stream(self._engine, reply))
        except BaseException:
            stream.close()
            self._run(turn.abandon(self._engine, reply))
            raise
        if done is not None:
            done(whole)

    async def astream(
        self, turn_input: TurnInput, done: Callable[[Reply], None] | None = None
    ) -> AsyncGenerator[StreamPiece, None]:
        reply: OpenReply = await self._arun(turn.open_reply(self._engine, _checked(turn_input)))
        self._request_turn = reply.turn_id
        stream = cast("AsyncChunkStream", reply.stream)
        async with aclosing(stream):
            try:
                async for chunk in stream:
                    for event in reply.fold.feed(chunk):
                        yield event
                whole = await self._arun(turn.finish_stream(self._engine, reply))
            except BaseException:
                await self._arun(turn.abandon(self._engine, reply))
                raise
        if done is not None:
            done(whole)

    @sync_method
    def ask(self, turn_input: TurnInput) -> Flow[Reply]:
        """Does the same as `send`, with all arguments spelt out; for the framework packages."""
        reply, _ = yield from turn.ask(self._engine, _checked(turn_input))
        return reply

    aask = async_method(ask)

    @sync_method
    def request_for(self, turn_input: TurnInput) -> Flow[Request]:
        """Returns the request for a complete message list, for a model that the caller calls. The next list brings the reply."""
        return turn.request_for(self._engine, _checked(turn_input))

    arequest_for = async_method(request_for)

    def _turn_input(self, content: Input, options: Mapping[str, Any]) -> TurnInput:
        messages = tuple(map(validated, self._messages(content)))
        return TurnInput(self._key, messages, options_from(options), self._prompts, not isinstance(content, str))

    # looking

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
        session = yield from self._open_session()
        fitter, turn_id = self._engine.fitter, self._own_turn(session)
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

    @sync_method
    def messages(self, audience: Audience = "all") -> Flow[tuple[Message, ...]]:
        """Returns the whole conversation as it was stored, compacted messages and open turns included; reads the log.

        "user" leaves out messages that are for the model only. "model" is the window: summaries in place of the messages they
        replaced.
        """
        return self._edit(lambda _, s: conversation(s, self._own_turn(s), audience, whole=True))

    amessages = async_method(messages)

    @sync_method
    def view(self) -> Flow[View]:
        """Returns the four zones as they are, without making them fit; open turns are included.

        Of a turn that another context has open, it has the question and the rounds that are complete.
        """
        session = yield from self._open_session()
        return session.view_of_all(self._own_turn(session))

    aview = async_method(view)

    def __len__(self) -> int:
        """Returns the number of messages in `view()`."""
        return len(self.view().messages)

    def __bool__(self) -> bool:
        return True  # an empty conversation is a context all the same

    def find_by_role(self, role: Role) -> tuple[Message, ...]:
        """Returns the messages of `view()` in that role, in order; raises UnknownRoleError for any other word."""
        return by_role(self.view().messages, role)

    async def afind_by_role(self, role: Role) -> tuple[Message, ...]:
        return by_role((await self.aview()).messages, role)

    @sync_method
    def is_full(self, max_tokens: int | None = None) -> Flow[bool]:
        """Returns whether `view()` and a reply of `max_tokens` exceed the window, by the upper bound of the count.

        Without `max_tokens` the reply reserve counts.
        """
        session = yield from self._open_session()
        rules, view = session.rules(), session.view(self._own_turn(session))
        reply_tokens = rules.reply_reserve_tokens if max_tokens is None else max_tokens
        return view.tokens + session.overhead_tokens + reply_tokens > rules.context_window

    ais_full = async_method(is_full)

    @sync_method
    def get(self, message_id: str, *, newest: bool = False) -> Flow[Message]:
        """Returns a message as it was stored, compacted or not, by its id or a reference such as `#17`.

        A reference names one version of a message. With `newest`, a message that was replaced since, by an edit or a redaction,
        is returned as it is now. Raises MessageNotFoundError when the session never had it, MessageErasedError when it was
        erased.
        """
        return self._edit(lambda _, s: (newest_version if newest else original)(s, message_id))

    aget = async_method(get)

    @sync_method
    def explain(self) -> Flow[Explanation]:
        """Explains why the window holds what it holds: print the result, call `to_dict()`, or show it in a notebook."""
        return self._edit(lambda e, s: explain(s, gauge(s, s.stage(), e.ports.counter), costs(s)))

    aexplain = async_method(explain)

    @sync_method
    def inspect(self) -> Flow[Inspection]:
        """Reports on the window, its history, and where every message is now; reads the log."""
        return self._edit(lambda e, s: inspect(s, gauge(s, s.stage(), e.ports.counter), costs(s)))

    ainspect = async_method(inspect)

    @sync_method
    def explain_message(self, message_id: str) -> Flow[MessageExplanation]:
        """Returns where one message is now, and the reference that reads it back."""
        return self._edit(lambda _, s: explain_message(s, message_id))

    aexplain_message = async_method(explain_message)

    @sync_method
    def gauge(self) -> Flow[WindowGauge]:
        """Returns how full the window is, the room that is left, and the tokens until the next compaction."""
        session = yield from self._open_session()
        return gauge(session, session.stage(self._own_turn(session)), self._engine.ports.counter)

    agauge = async_method(gauge)

    def usage(self) -> SessionUsage:
        """Returns the reported tokens, replies, compactions and prefix reuse so far."""
        session = self._run(self._open_session())
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
        return self._engine.events.add(subscriber)

    def on_compaction(self, rewriter: Rewriter) -> Callable[[], None]:
        """Lets one subscriber change the summary, and the choice of messages to keep, of each compaction of this engine.

        It receives a CompactionProposal and returns None for no change, or (summary, kept): `kept` lists, in order, messages
        from the proposal's covered and kept ones. A rewrite that drops a pin, splits a tool round or saves nothing is reported
        as RewriteRefused, and the original is written. The returned function unsubscribes it.
        """
        return self._engine.events.rewrite(rewriter)

    def close(self, *, wait: bool = True) -> None:
        """Ends background work, waiting for it or not, and closes the store if this context opened it.

        Only `aclose` can wait for work that runs as a task of an event loop. The backend stays open: it belongs to its creator.
        """
        tasks = self._engine.ports.tasks
        if self._owns_engine and tasks is not None:
            tasks.close(wait=wait)
        if self._owns_store:
            self._engine.ports.store.close()

    async def aclose(self, *, wait: bool = True) -> None:
        tasks = self._engine.ports.tasks
        if self._owns_engine and tasks is not None:
            await tasks.aclose(wait=wait)
        if self._owns_store:
            await self._engine.ports.store.aclose()


def _prompts(system: object) -> tuple[str, ...] | None:
    """Returns the system prompts of a `system` argument, which is None, one text or several."""
    if system is None or isinstance(system, str):
        return None if system is None else (system,)
    several = tuple(cast("Iterable[object]", system)) if isinstance(system, Iterable) else (system,)
    for one in several:
        check_text("system", one)
    return cast("tuple[str, ...]", several)


def _checked(turn_input: TurnInput) -> TurnInput:
    if not is_a(turn_input, TurnInput):
        raise ConfigError(
            f"the question is {kind_of(turn_input)}: a framework gives a TurnInput here; send, send_stream and asend_stream take a "
            "text or messages"
        )
    return turn_input
