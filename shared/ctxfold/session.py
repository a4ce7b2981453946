"""The object a user holds: one session over one engine. Every method has an async form that begins with `a`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, closing
from dataclasses import dataclass, field
from typing import Any, Unpack, cast

from ctxfold import archive, exchange
from ctxfold.compaction.strategy import Strategy, Summarizer, as_strategy
from ctxfold.connect import ports, session_rules
from ctxfold.engine import Engine
from ctxfold.events import Rewriter, Subscriber
from ctxfold.exchange import OpenReply, Question
from ctxfold.explain import (
    Audience,
    Explanation,
    MessageExplanation,
    conversation,
    explain,
    explain_message,
    original,
)
from ctxfold.files import SessionFiles
from ctxfold.flow import Flow
from ctxfold.given import check_name, check_text, name_or_own
from ctxfold.handle import Input
from ctxfold.history.cost import session_cost
from ctxfold.history.prefix import PrefixStats
from ctxfold.history.records import SessionKey
from ctxfold.history.view import View
from ctxfold.inspection import Inspection, inspect
from ctxfold.messages import Message, Role, Usage, by_role
from ctxfold.options import RequestOptions, options_from
from ctxfold.ports import AsyncChunkStream, ChunkStream, ContextBackend, Reply, Request, Store, TokenCounter
from ctxfold.prices import CostLine, Prices
from ctxfold.room import Window
from ctxfold.service import ContextService
from ctxfold.stream import Completed, StreamEvent, StreamPiece
from ctxfold.tokens import TextCounter
from ctxfold.vectors import Embedder
from ctxfold.zones.section import Section

__all__ = ["AgentContext", "Input", "SessionUsage"]


@dataclass(frozen=True, slots=True)
class SessionUsage:
    """What a session has cost so far: `reported` sums what the provider said of every reply, `summaries` what it said of the
    `summary_calls` to the summariser, which are no part of `reported`.

    `turns_since_summary` counts the turns since the last hard compaction; None before the first.
    """

    reported: Usage
    replies: int
    turns: int
    compactions: int
    window_tokens: int
    budget_tokens: int
    prefix: PrefixStats
    cost: CostLine | None = None
    turns_since_summary: int | None = None
    summaries: Usage = field(default_factory=Usage)
    summary_calls: int = 0


class AgentContext(SessionFiles):
    """A conversation that may outgrow its window.

    Args:
        backend: the model service; None for a context that only keeps messages.
        session: the session's name; made in the store when it is new.
        store: `sqlite:///file.db`, `postgresql+psycopg://...`, a Store, or None for memory.
        context_window: tokens in and out together; None takes the backend row's value for the model.
        system: system prompt, or several.
        owner: whose session it is.
        summarizer: who writes summaries; None is the backend itself, and without one the extractive summary.
        max_tokens: reply reserve in tokens; None keeps a fifth of the window free.
        create: False raises SessionNotFoundError for a session that is not in the store.
        strategy: "tiered", "summarize", "truncate", "sliding_window", "clear_tools", "tool_summaries", or an object of your own:
            see docs/strategies.md. A session that names another one than these opens only with its object.
        prices: what tokens cost; `usage()` and the events of compactions then say what was spent and saved.
        sections: what is to stand beside the conversation, each with its source: see docs/sections.md.
        embedder: makes vectors of texts; recall then goes by meaning as well as by words.
        rules: further fields of `ctxfold.Policy`, such as `hard_ratio=0.8`.

    Safe across threads and tasks; use it as a context manager, or call `close`.
    """

    def __init__(  # noqa: PLR0913 - the settings of a session, all but the first by name
        self,
        backend: ContextBackend | None = None,
        *,
        session: str = "default",
        store: str | Store | None = None,
        context_window: int | None = None,
        system: str | Sequence[str] | None = None,
        owner: str = "default",
        summarizer: ContextBackend | None = None,
        counter: TokenCounter | TextCounter | None = None,
        max_tokens: int | None = None,
        create: bool = True,
        strategy: str | Strategy | Summarizer | None = None,
        prices: Prices | None = None,
        sections: Sequence[Section] = (),
        embedder: Embedder | None = None,
        **rules: object,
    ) -> None:
        check_text("the owner name", owner)  # an empty one may be an older version's, which can still be opened
        check_text("the session name", session)
        own = () if strategy is None or isinstance(strategy, str) else (as_strategy(strategy),)
        reserve: Any = rules.pop("reply_reserve_tokens", max_tokens)  # the rule's own name, as `rules()` tells it
        given: Any = {"strategy": strategy, "counter": counter, "prices": prices, **rules}
        policy = session_rules(context_window, backend, reply_reserve_tokens=reserve, **given)
        bundle = ports(
            store=store,
            backend=backend,
            summarizer=summarizer,
            counter=counter,
            count_reasoning=policy.count_reasoning,
            prices=prices,
            embedder=embedder,
        )
        prompts = _prompts(system)
        self._bind(
            Engine(bundle, policy, strategies=own, sections=sections),
            SessionKey(owner, session),
            prompts,
            create=create,
        )
        self._owns_engine = True
        self._owns_store = store is None or isinstance(store, str)
        try:
            self._run(self._journal())
        except BaseException:
            self.close()
            raise

    def _bind(self, engine: Engine, key: SessionKey, prompts: tuple[str, ...] | None, *, create: bool) -> None:
        self._engine = engine
        self._key = key
        self._prompts = prompts
        self._create = create
        self._turn: str | None = None
        self._asked_turn: str | None = None
        self._owns_engine = False
        self._owns_store = False

    def at(self, session: str, *, owner: str | None = None, create: bool = True) -> AgentContext:
        """Another session over the same engine, store and backend; made at its first use.

        `owner` None is this context's; ConfigError for an empty name, or what is no string.
        """
        key = SessionKey(name_or_own("owner name", owner, self.owner), check_name("session name", session))
        other = object.__new__(AgentContext)
        other._bind(self._engine, key, self._prompts, create=create)
        return other

    def fork(self, session: str, at: str | None = None) -> AgentContext:
        """A new session of this owner that goes on from message `at` (from here without it), archive and pins included."""
        check_name("session name", session)
        key = self._run(self._edit(lambda e, j: archive.fork(e, j, session, at=at)))
        return self.at(key.session)

    async def afork(self, session: str, at: str | None = None) -> AgentContext:
        check_name("session name", session)
        key = await self._arun(self._edit(lambda e, j: archive.fork(e, j, session, at=at)))
        return self.at(key.session)

    @property
    def service(self) -> ContextService:
        """The operations of a context service over this engine's sessions: inject, remove, prepare_context, maybe_compact, ..."""
        return ContextService(self._engine, self._key)

    # asking

    def send(self, content: Input, **options: Unpack[RequestOptions]) -> Reply:
        """The model's reply, stored with what was asked. On any error the session is as it was."""
        return self._run(self._sent(self._question(content, options)))

    async def asend(self, content: Input, **options: Unpack[RequestOptions]) -> Reply:
        return await self._arun(self._sent(self._question(content, options)))

    def _sent(self, question: Question) -> Flow[Reply]:
        reply = yield from exchange.ask(self._engine, question)
        journal = self._engine.known(question.key)
        self._asked_turn = None if journal is None else exchange.turn_of(journal, reply.message.id)
        return reply

    def send_stream(self, content: Input, **options: Unpack[RequestOptions]) -> Iterator[StreamEvent]:
        """The reply as events, `Completed` with the whole of it last, once it is stored.

        `on_abort` says what an abandoned one leaves behind. Until the turn ends, `view`, `messages` and `window` of this
        context show it.
        """
        return self._streamed(self._question(content, options))

    def asend_stream(self, content: Input, **options: Unpack[RequestOptions]) -> AsyncIterator[StreamEvent]:
        return self._astreamed(self._question(content, options))

    def _streamed(self, question: Question) -> Iterator[StreamEvent]:
        whole: list[Reply] = []
        # what a caller leaves is abandoned at once, not when the garbage is collected
        with closing(cast("Generator[StreamPiece, None, None]", self.stream(question, whole.append))) as pieces:
            yield from pieces
        yield Completed(whole[0])

    async def _astreamed(self, question: Question) -> AsyncIterator[StreamEvent]:
        whole: list[Reply] = []
        async with aclosing(cast("AsyncGenerator[StreamPiece, None]", self.astream(question, whole.append))) as pieces:
            async for piece in pieces:
                yield piece
        yield Completed(whole[0])

    def stream(self, question: Question, done: Callable[[Reply], None] | None = None) -> Iterator[StreamPiece]:
        """The pieces of the reply to a question; `done` gets the whole reply once it is stored."""
        reply: OpenReply = self._run(exchange.open_reply(self._engine, question, question.reply_id or self.new_id()))
        self._asked_turn = reply.turn_id
        stream = cast("ChunkStream", reply.stream)
        try:
            for chunk in stream:
                yield from reply.fold.feed(chunk)
            stream.close()
            whole = self._run(exchange.finish_stream(self._engine, reply))
        except BaseException:
            stream.close()
            self._run(exchange.abandon(self._engine, reply))
            raise
        if done is not None:
            done(whole)

    async def astream(
        self, question: Question, done: Callable[[Reply], None] | None = None
    ) -> AsyncIterator[StreamPiece]:
        reply: OpenReply = await self._arun(
            exchange.open_reply(self._engine, question, question.reply_id or self.new_id())
        )
        self._asked_turn = reply.turn_id
        stream = cast("AsyncChunkStream", reply.stream)
        async with aclosing(stream):
            try:
                async for chunk in stream:
                    for event in reply.fold.feed(chunk):
                        yield event
                whole = await self._arun(exchange.finish_stream(self._engine, reply))
            except BaseException:
                await self._arun(exchange.abandon(self._engine, reply))
                raise
        if done is not None:
            done(whole)

    def ask(self, question: Question) -> Reply:
        """`send` with everything spelt out; for faces."""
        return self._run(exchange.ask(self._engine, question))

    async def aask(self, question: Question) -> Reply:
        return await self._arun(exchange.ask(self._engine, question))

    def request_for(self, question: Question) -> Request:
        """The request that a full list makes, for a model that somebody else calls; the reply comes with the next list."""
        return self._run(exchange.request_for(self._engine, question))

    async def arequest_for(self, question: Question) -> Request:
        return await self._arun(exchange.request_for(self._engine, question))

    def _question(self, content: Input, options: Mapping[str, Any]) -> Question:
        return Question(
            self._key, self._messages(content), options_from(options), self._prompts, not isinstance(content, str)
        )

    # looking

    def window(self, *, recall: bool = False, question: str | None = None, overhead_tokens: int = 0) -> Window:
        """What the model would be shown next, made to fit; with `recall`, passages for the newest user message too.

        `question` is a user message that is not stored yet; `overhead_tokens` is what else the request will hold.
        """
        return self._run(self._window(recall, question, overhead_tokens))

    async def awindow(self, *, recall: bool = False, question: str | None = None, overhead_tokens: int = 0) -> Window:
        return await self._arun(self._window(recall, question, overhead_tokens))

    def _window(self, recall: bool, question: str | None, overhead: int) -> Flow[Window]:
        journal = yield from self._journal()
        return (
            yield from self._engine.room.window(
                journal, turn_id=self._own_turn(journal), recall=recall, question=question, overhead_tokens=overhead
            )
        )

    def messages(self, audience: Audience = "all") -> tuple[Message, ...]:
        """The whole conversation as it was stored, what was compacted included; reads the log.

        "user" leaves out what is for the model only; "model" is the window, summaries instead of what they stand for.
        """
        return self._run(self._edit(lambda _, j: conversation(j, self._own_turn(j), audience)))

    async def amessages(self, audience: Audience = "all") -> tuple[Message, ...]:
        return await self._arun(self._edit(lambda _, j: conversation(j, self._own_turn(j), audience)))

    def view(self) -> View:
        """The zones as they stand, not made to fit; with the turn that this context has begun, while it is open."""
        journal = self._run(self._journal())
        return journal.view(self._own_turn(journal))

    async def aview(self) -> View:
        journal = await self._arun(self._journal())
        return journal.view(self._own_turn(journal))

    def __len__(self) -> int:
        """The number of messages in `view()`."""
        return len(self.view().messages)

    def __bool__(self) -> bool:
        return True  # an empty conversation is a context all the same

    def find_by_role(self, role: Role) -> tuple[Message, ...]:
        """Returns the messages of `view()` in that role, in order; UnknownRoleError for what is no role."""
        return by_role(self.view().messages, role)

    async def afind_by_role(self, role: Role) -> tuple[Message, ...]:
        return by_role((await self.aview()).messages, role)

    def is_full(self, max_tokens: int | None = None) -> bool:
        """Returns whether `view()` and a reply of `max_tokens` exceed the window, by the upper bound of the count.

        Without `max_tokens` the reply reserve counts.
        """
        return self._run(self._full(max_tokens))

    async def ais_full(self, max_tokens: int | None = None) -> bool:
        return await self._arun(self._full(max_tokens))

    def _full(self, max_tokens: int | None) -> Flow[bool]:
        journal = yield from self._journal()
        rules, view = journal.rules(), journal.view(self._own_turn(journal))
        reply_tokens = rules.reply_reserve_tokens if max_tokens is None else max_tokens
        return view.tokens + journal.overhead_tokens + reply_tokens > rules.context_window

    def get(self, message_id: str) -> Message:
        """A message as it was stored, compacted or not; MessageNotFoundError when the session never had it."""
        return self._run(self._edit(lambda _, j: original(j, message_id)))

    async def aget(self, message_id: str) -> Message:
        return await self._arun(self._edit(lambda _, j: original(j, message_id)))

    def explain(self) -> Explanation:
        """Why the window is what it is; print it, take `to_dict()`, or show it in a notebook."""
        return self._run(self._edit(lambda e, j: explain(j, e.ports)))

    async def aexplain(self) -> Explanation:
        return await self._arun(self._edit(lambda e, j: explain(j, e.ports)))

    def inspect(self) -> Inspection:
        """The window, what happened to it, and every message with the place where it is now; reads the log."""
        return self._run(self._edit(lambda e, j: inspect(j, e.ports)))

    async def ainspect(self) -> Inspection:
        return await self._arun(self._edit(lambda e, j: inspect(j, e.ports)))

    def explain_message(self, message_id: str) -> MessageExplanation:
        """Where one message is now, and the reference that reads it back."""
        return self._run(self._edit(lambda _, j: explain_message(j, message_id)))

    async def aexplain_message(self, message_id: str) -> MessageExplanation:
        return await self._arun(self._edit(lambda _, j: explain_message(j, message_id)))

    def usage(self) -> SessionUsage:
        """Tokens reported, replies, compactions and prefix reuse so far."""
        journal = self._run(self._journal())
        state = journal.state
        return SessionUsage(
            reported=state.usage,
            replies=state.replies,
            turns=state.turns,
            compactions=state.compactions,
            turns_since_summary=None if state.summary_turn < 0 else state.turns - state.summary_turn,
            window_tokens=journal.view().tokens,
            budget_tokens=journal.rules().budget_tokens,
            prefix=journal.tracker.stats(),
            cost=session_cost(state, self._engine.ports.prices),
            summaries=state.summary_usage + journal.unbooked_usage,
            summary_calls=state.summary_calls + journal.unbooked_calls,
        )

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Get every event of this engine's sessions; the returned function ends it."""
        return self._engine.events.add(subscriber)

    def on_compaction(self, rewriter: Rewriter) -> Callable[[], None]:
        """Let one subscriber give each compaction of this engine another summary and another choice of messages to keep.

        It gets a CompactionProposal and returns None, or (summary, kept): the kept messages in order, out of those covered and
        kept. What breaks the contract (a pin dropped, a round split, no gain) is reported as RewriteRefused and not done. The
        returned function ends it.
        """
        return self._engine.events.rewrite(rewriter)

    def close(self, *, wait: bool = True) -> None:
        """End background work, waiting for it or not, and close the store, if this context opened it.

        What runs as a task of an event loop can only be waited for by `aclose`. The backend belongs to whoever made it.
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


def _prompts(given: object) -> tuple[str, ...] | None:
    """System prompts as a user gives them: None, one, or several."""
    if given is None or isinstance(given, str):
        return None if given is None else (given,)
    several = tuple(cast("Iterable[object]", given)) if isinstance(given, Iterable) else (given,)
    for one in several:
        check_text("system", one)
    return cast("tuple[str, ...]", several)
