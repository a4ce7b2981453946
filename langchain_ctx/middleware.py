"""`ContextMiddleware`: an agent of `create_agent` whose conversation may outgrow its model's window."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

from langchain.agents.middleware.types import AgentMiddleware, ExtendedModelResponse, ModelRequest, ModelResponse
from langchain.tools import ToolRuntime
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage
from langchain_core.runnables import ensure_config
from langgraph.types import Command

from ctxfold.errors import ConfigError
from ctxfold.follow import Line, Trail
from ctxfold.history.records import SessionKey
from ctxfold.ports import Reply, Request, Store, TokenCounter
from ctxfold.session import AgentContext
from ctxfold.tokens import TextCounter
from langchain_ctx.calling import Caller, CallersModel, CallersSummarizer, calling, failing_as_it_did, keeps_sessions
from langchain_ctx.convert import from_langchain
from langchain_ctx.errors import as_backend_error, translated
from langchain_ctx.following import KEPT, ContextState, Listing, is_place, kept_in, root_of, sessions_of
from langchain_ctx.history import session_key
from langchain_ctx.model_call import ModelCall, conversation, model_call, response_of, told
from langchain_ctx.own_history import own_history_tools, takes_tools
from langchain_ctx.places import Places
from langchain_ctx.reasoning import returning
from langchain_ctx.reporting import annotated, listen, reporting
from langchain_ctx.sessions import Sessions

__all__ = ["ContextMiddleware"]


class ContextMiddleware(AgentMiddleware[Any, Any, Any]):
    """Gives the model a window that fits; the agent's own messages stay as they are, and whole.

    ```python
    agent = create_agent(model, tools, middleware=[ContextMiddleware(context_window=64_000)], checkpointer=saver)
    ```
    Each model call is shown system prompt, summaries, recalled passages and the newest messages, always with whole tool
    rounds; tool outputs too large for the window are shown as excerpts with a reference. What was asked last is what the next
    request begins with, until a compaction. Reasoning is sent back, also for models that lose it (`with_reasoning`).

    Args:
        context_window: tokens in and out together.
        store: `sqlite:///file.db`, `postgresql+psycopg://...`, a Store, or None for memory.
        session: the session's name; None takes the run's `thread_id` (a sub-agent's with its place in the graph), and without one
            the conversation's first message.
        owner: whose session it is; `configurable["owner"]` beats it.
        summarizer: a chat model or a backend that writes summaries; None is the model of the call.
        counter: a token counter; None is tiktoken's for the model.
        max_tokens: reply reserve in tokens; None keeps a fifth of the window free.
        history_tools: the tools that the model gets for its own history: True for all (read_message, search_history,
            pin_message, unpin_message, compact_history), False for none, or their names.
        policy: further fields of `ctxfold.Policy`, such as `hard_ratio=0.8`; `sections`, `strategy` and `prices` as `AgentContext`
            takes them.

    Beside a checkpointer the session goes wherever the checkpoints go: see docs/langchain-agents.md. Its name among middleware
    is "SummarizationMiddleware": it takes the place of deepagents' own. One middleware serves many threads and tasks. `close`
    closes a store that was given as a URL.
    """

    state_schema = ContextState

    def __init__(
        self,
        *,
        context_window: int,
        store: str | Store | None = None,
        session: str | None = None,
        owner: str = "default",
        summarizer: Any = None,
        counter: TokenCounter | TextCounter | None = None,
        max_tokens: int | None = None,
        history_tools: bool | Collection[str] = True,
        **policy: object,
    ) -> None:
        super().__init__()
        self.tools = own_history_tools(history_tools, self._context_of)
        self._session = session
        self._owner = owner
        self._writer = CallersSummarizer()
        self._places = Places()
        self._sessions = Sessions(
            store=store,
            context_window=context_window,
            backend=CallersModel(),
            summarizer=self._writer if summarizer is None else summarizer,
            counter=counter,
            max_tokens=max_tokens,
            policy=policy,
        )

    @property
    def name(self) -> str:
        """The slot that it takes: `create_deep_agent` puts it in place of its own, `create_agent` refuses the two together."""
        return "SummarizationMiddleware"

    def context(self, session: object, *, owner: str | None = None) -> AgentContext:
        """A session of this middleware: window, usage, pins, explain, export.

        `session` is the thread's id, or a state of the agent (`agent.get_state(config)`, a tool's `runtime.state`): a thread
        that went on from an earlier checkpoint has a session for each of its branches.
        """
        kept = kept_in(session)
        name = session if kept is None else kept.session
        if not isinstance(name, str):
            raise ConfigError("this state has no session yet: give the thread's id, or a state after a model call")
        key = session_key(name, owner or self._owner)
        return self._sessions.at(key.session, key.owner)

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> Any:
        request, messages = self._offering(request), conversation(request)
        if not messages:
            return handler(request)
        place, model, listed = self._root(request, messages), self._model(request), Listing(messages)

        def send(window: Request) -> Reply:
            report.tell()
            with as_backend_error(type(model).__name__), annotated(**call.metadata(window, len(messages))):
                return told(handler(call.within(window)))

        with (
            translated(),
            failing_as_it_did(),
            calling(Caller(model, send=send)),
            reporting(getattr(request.runtime, "stream_writer", None)) as report,
            self._places.holding(place) as held,
        ):
            root, left, new = self._begun(request, place, listed, held)
            context = self._sessions.at(root.session, root.owner)
            if new:
                context = context.at(self._places.free(place, context.view(), listed).session)
            context.subscribe(listen)
            line = context.follow(listed, left)
            session = context.at(line.key.session)
            call = self._call(request, model, messages, line, left)
            if call.settled:
                session.add(call.settled)
            answer = response_of(session.ask(call.question()))
            if len(answer.result) > 1:  # the result of a structured answer's call
                session.add([*map(from_langchain, answer.result[1:])])
            report.tell()
            if self._session:
                return answer
            return self._ended(answer, place, context.trail(line.key, listed.and_then(answer.result)))

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> Any:
        request, messages = self._offering(request), conversation(request)
        if not messages:
            return await handler(request)
        place, model, listed = self._root(request, messages), self._model(request), Listing(messages)

        async def asend(window: Request) -> Reply:
            await report.atell()
            with as_backend_error(type(model).__name__), annotated(**call.metadata(window, len(messages))):
                return told(await handler(call.within(window)))

        with (
            translated(),
            failing_as_it_did(),
            calling(Caller(model, asend=asend)),
            reporting(getattr(request.runtime, "stream_writer", None)) as report,
            self._places.holding(place) as held,
        ):
            root, left, new = self._begun(request, place, listed, held)
            context = await self._sessions.aat(root.session, root.owner)
            if new:
                context = context.at(self._places.free(place, await context.aview(), listed).session)
            context.subscribe(listen)
            line = await context.afollow(listed, left)
            session = context.at(line.key.session)
            call = self._call(request, model, messages, line, left)
            if call.settled:
                await session.aadd(call.settled)
            answer = response_of(await session.aask(call.question()))
            if len(answer.result) > 1:  # the result of a structured answer's call
                await session.aadd([*map(from_langchain, answer.result[1:])])
            await report.atell()
            if self._session:
                return answer
            return self._ended(answer, place, await context.atrail(line.key, listed.and_then(answer.result)))

    def _root(self, request: ModelRequest[Any], messages: Sequence[BaseMessage]) -> SessionKey:
        return root_of(ensure_config(), messages, request.state, session=self._session, owner=self._owner)

    def _begun(
        self, request: ModelRequest[Any], place: SessionKey, listed: Listing, held: list[Trail | None]
    ) -> tuple[SessionKey, Trail | None, bool]:
        """The session's root, what was left of it, and whether the store is to say if a place's session can go on."""
        left = self._left(request)
        if left is not None or self._session or not is_place():
            return place, left, False
        return self._places.take(place, listed, held)

    def _ended(self, answer: ModelResponse[Any], place: SessionKey, trail: Trail) -> ExtendedModelResponse[Any]:
        """The answer, with what the state is to keep beside it; in a sub-graph that state may end with the run."""
        if is_place():
            self._places.put(place, trail)
        return ExtendedModelResponse(answer, Command(update={KEPT: trail.to_dict()}))

    def _context_of(self, runtime: ToolRuntime[Any, Any]) -> AgentContext:
        """The session of the agent that calls a tool."""
        state = runtime.state
        root = root_of(runtime.config, state["messages"], state, session=self._session, owner=self._owner)
        kept = None if self._session else kept_in(state)
        return self._sessions.at(root.session if kept is None else kept.session, root.owner)

    def _offering(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        """The request, without the history tools where the model takes no tools at all."""
        if takes_tools(request.model):
            return request
        own = {tool.name for tool in self.tools}
        return request.override(tools=[t for t in request.tools if getattr(t, "name", None) not in own])

    def _left(self, request: ModelRequest[Any]) -> Trail | None:
        """What the agent's state keeps of its session; a session that others may share follows no agent's state."""
        return None if self._session else kept_in(request.state)

    def _call(
        self,
        request: ModelRequest[Any],
        model: BaseChatModel,
        messages: Sequence[BaseMessage],
        line: Line,
        left: Trail | None,
    ) -> ModelCall:
        return model_call(request, model, messages, line, whole=left is None and not self._session)

    def _model(self, request: ModelRequest[Any]) -> BaseChatModel:
        model = request.model
        if keeps_sessions(model):
            raise ConfigError(
                f"the agent's {type(model).__name__} keeps sessions of its own: leave out its session and store, "
                "or leave out ContextMiddleware"
            )
        self._writer.seen(model)
        return returning(model)

    def erase(self, thread: str, *, owner: str | None = None) -> tuple[str, ...]:
        """Erase all that is stored of a thread, its branches and sub-agents included, past recovery; the sessions' names.

        It goes with the checkpointer's `delete_thread(thread)`, which knows nothing of sessions.
        """
        owner = owner or self._owner
        names = sessions_of(thread, self._sessions.store.sessions(owner))
        for name in names:
            self._sessions.at(name, owner).erase_session()
        return tuple(names)

    async def aerase(self, thread: str, *, owner: str | None = None) -> tuple[str, ...]:
        owner = owner or self._owner
        names = sessions_of(thread, await self._sessions.store.asessions(owner))
        for name in names:
            await (await self._sessions.aat(name, owner)).aerase_session()
        return tuple(names)

    def close(self) -> None:
        """Close the store, if this middleware opened it."""
        self._sessions.close()

    async def aclose(self) -> None:
        await self._sessions.aclose()
