"""`ContextMiddleware`: an agent of `create_agent` whose conversation may outgrow its model's window."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any
from uuid import UUID

from langchain.agents.middleware.types import AgentMiddleware, ExtendedModelResponse, ModelRequest, ModelResponse
from langchain.tools import ToolRuntime
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage
from langchain_core.runnables import ensure_config
from langgraph.types import Command

from ctxfold.closing import Closing
from ctxfold.errors import ConfigError
from ctxfold.follow import Trail
from ctxfold.given import check_name, name_or_own
from ctxfold.ports import Reply, Request, Store, TokenCounter
from ctxfold.session import AgentContext
from ctxfold.tokens import TextCounter
from langchain_ctx.calling import Caller, CallersModel, CallersSummarizer, calling, failing_as_it_did, keeps_sessions
from langchain_ctx.convert import from_langchain
from langchain_ctx.errors import as_backend_error, translated
from langchain_ctx.following import KEPT, ContextState, kept_in, root_of
from langchain_ctx.keys import Address, session_key
from langchain_ctx.listing import Listing
from langchain_ctx.model_call import ModelCall, conversation, lasting, model_call, response_of, told
from langchain_ctx.own_history import own_history_tools, takes_tools
from langchain_ctx.reasoning import returning
from langchain_ctx.reporting import annotated, listen, reporting
from langchain_ctx.sessions import Sessions, Visit

__all__ = ["ContextMiddleware"]


class ContextMiddleware(AgentMiddleware[Any, Any, Any], Closing):
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
        self._session = None if session is None else check_name("session", session)
        self._owner = check_name("owner", owner)
        self._writer = CallersSummarizer()
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
        if not isinstance(name, str | int | UUID):  # as a run's thread_id may be
            raise ConfigError("this state has no session yet: give the thread's id, or a state after a model call")
        key = session_key(name, name_or_own("owner", owner, self._owner))
        return self._sessions.at(key.session, key.owner)

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> Any:
        request, messages = self._offering(request), conversation(request)
        if not messages:
            return handler(request)
        root, model, listed = self._root(request, messages), self._model(request), Listing(messages)

        def send(window: Request) -> Reply:
            report.tell()
            with as_backend_error(type(model).__name__), annotated(**call.metadata(window, len(messages))):
                return told(handler(call.within(window)))

        with (
            translated(),
            failing_as_it_did(),
            calling(Caller(model, send=send)),
            reporting(getattr(request.runtime, "stream_writer", None)) as report,
            self._sessions.visit(root, listed, left=self._left(request.state, root)) as visit,
        ):
            visit.root.subscribe(listen)
            session, call = visit.session, self._call(request, model, messages, visit)
            if call.settled:
                session.add(call.settled)
            answer = response_of(session.ask(call.question()))
            if len(answer.result) > 1:  # the result of a structured answer's call
                session.add([*map(from_langchain, answer.result[1:])])
            report.tell()
            if self._fixed(root):
                return answer
            now, kept = listed.and_then(answer.result), lasting(request, answer)
            return _ended(answer, visit.leave(now, lasting=kept, waiting=_calls(answer)))

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> Any:
        request, messages = self._offering(request), conversation(request)
        if not messages:
            return await handler(request)
        root, model, listed = self._root(request, messages), self._model(request), Listing(messages)

        async def asend(window: Request) -> Reply:
            await report.atell()
            with as_backend_error(type(model).__name__), annotated(**call.metadata(window, len(messages))):
                return told(await handler(call.within(window)))

        with (
            translated(),
            failing_as_it_did(),
            calling(Caller(model, asend=asend)),
            reporting(getattr(request.runtime, "stream_writer", None)) as report,
        ):
            async with self._sessions.avisit(root, listed, left=self._left(request.state, root)) as visit:
                visit.root.subscribe(listen)
                session, call = visit.session, self._call(request, model, messages, visit)
                if call.settled:
                    await session.aadd(call.settled)
                answer = response_of(await session.aask(call.question()))
                if len(answer.result) > 1:  # the result of a structured answer's call
                    await session.aadd([*map(from_langchain, answer.result[1:])])
                await report.atell()
                if self._fixed(root):
                    return answer
                now, kept = listed.and_then(answer.result), lasting(request, answer)
                return _ended(answer, await visit.aleave(now, lasting=kept, waiting=_calls(answer)))

    def _root(self, request: ModelRequest[Any], messages: Sequence[BaseMessage]) -> Address:
        return root_of(ensure_config(), messages, request.state, session=self._session, owner=self._owner)

    def _fixed(self, root: Address) -> bool:
        """Whether others may share the session: it follows no agent's state then."""
        return self._session is not None and not root.place

    def _left(self, state: Mapping[str, Any], root: Address) -> Trail | None:
        """What the agent's state keeps of its session."""
        return None if self._fixed(root) else kept_in(state)

    def _context_of(self, runtime: ToolRuntime[Any, Any]) -> AgentContext:
        """The session of the agent that calls a tool."""
        state = runtime.state
        root = root_of(runtime.config, state["messages"], state, session=self._session, owner=self._owner)
        kept = self._left(state, root)
        return self._sessions.at(root.key.session if kept is None else kept.session, root.key.owner)

    def _offering(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        """The request, without the history tools where the model takes no tools at all."""
        if takes_tools(request.model):
            return request
        own = {tool.name for tool in self.tools}
        return request.override(tools=[t for t in request.tools if getattr(t, "name", None) not in own])

    def _call(
        self, request: ModelRequest[Any], model: BaseChatModel, messages: Sequence[BaseMessage], visit: Visit
    ) -> ModelCall:
        whole = visit.left is None and not self._fixed(visit.address)
        return model_call(request, model, messages, visit.line, whole=whole)

    def _model(self, request: ModelRequest[Any]) -> BaseChatModel:
        model = request.model
        if keeps_sessions(model):
            raise ConfigError(
                f"the agent's {type(model).__name__} keeps sessions of its own: leave out its session and store, "
                "or leave out ContextMiddleware"
            )
        self._writer.seen(model)
        return returning(model)

    def erase(self, thread: object, *, owner: str | None = None) -> tuple[str, ...]:
        """Erase all that is stored of a thread, its branches and sub-agents included, past recovery; the sessions' names.

        It goes with the checkpointer's `delete_thread(thread)`, which knows nothing of sessions.
        """
        return self._sessions.erase(thread, name_or_own("owner", owner, self._owner))

    async def aerase(self, thread: object, *, owner: str | None = None) -> tuple[str, ...]:
        return await self._sessions.aerase(thread, name_or_own("owner", owner, self._owner))

    def close(self) -> None:
        """Close the store, if this middleware opened it."""
        self._sessions.close()

    async def aclose(self) -> None:
        await self._sessions.aclose()


def _ended(answer: ModelResponse[Any], trail: Trail) -> ExtendedModelResponse[Any]:
    """The answer, with what the state is to keep beside it; in a sub-graph that state may end with the run."""
    return ExtendedModelResponse(answer, Command(update={KEPT: trail.to_dict()}))


def _calls(answer: ModelResponse[Any]) -> bool:
    """Whether the agent goes on to its tools."""
    return len(answer.result) == 1 and bool(getattr(answer.result[0], "tool_calls", None))
