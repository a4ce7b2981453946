"""Defines ContextMiddleware for agents of `create_agent` whose conversation may outgrow the model's window."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Never, NotRequired, Unpack, cast
from uuid import UUID

from langchain.agents.middleware.types import (
    AgentMiddleware,
    AgentState,
    ExtendedModelResponse,
    ModelRequest,
    ModelResponse,
    PrivateStateAttr,
)
from langchain.tools import ToolRuntime
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import RunnableConfig, ensure_config
from langchain_core.tools import BaseTool
from langgraph.types import Command

from ctxfold.adapters.calls import Invoke, acall, call, original_error
from ctxfold.adapters.history_tools import HISTORY_TOOLS, HistoryTool, history_tools
from ctxfold.compaction.live_prefix import answers_freely
from ctxfold.effects import Flow
from ctxfold.engine.attach import BRANCH, Attachment, follow, is_own, new_branch
from ctxfold.engine.engine import Engine
from ctxfold.engine.request import Options, limit_among
from ctxfold.engine.turn import TurnInput, ask
from ctxfold.errors import ConfigError, CtxError, MessageConflictError, TurnClosedError
from ctxfold.history.diff import Cursor, newest_known, split_settled
from ctxfold.history.records import MessageAdded, SessionKey
from ctxfold.messages import Message, ToolSpec
from ctxfold.protocols import Reply, Request
from ctxfold.session.context import AgentContext
from ctxfold.validation import all_of, check_name, kind_of, name_or_own, unpacked
from langchain_ctx.active_call import (
    Caller,
    CallersModel,
    CallersSummarizer,
    Report,
    annotated,
    calling,
    check_sends_window,
    keeps_sessions,
    reporting,
)
from langchain_ctx.errors import as_backend_error, translated
from langchain_ctx.inner_model import WindowCache
from langchain_ctx.message_lists import (
    LangChainList,
    VersionCache,
    converted_from,
    leading_count,
    name_refusals,
    prompt_text,
    with_given_prompts,
)
from langchain_ctx.messages import digest_of, from_langchain, reply_of, with_own_ids
from langchain_ctx.models import chosen_model, is_configurable, returning
from langchain_ctx.node import KEPT, KeptElsewhere, kept_cursor, outlives
from langchain_ctx.session_routing import (
    MADE_FROM,
    WINDOW,
    Address,
    Names,
    address_in_graph,
    first_id,
    session_key,
    sessions_of,
)
from langchain_ctx.sessions import AttachedSession, HoldsSessions, PoolSettings, Sessions
from langchain_ctx.summarizer import asking_for_summary, limits
from langchain_ctx.tools import counted, is_free, structured_tool


class ContextState(AgentState[Any]):
    """The agent's state, with the cursor that `ContextMiddleware` keeps beside its messages."""

    ctxfold: NotRequired[Annotated[dict[str, Any] | None, PrivateStateAttr]]


def root_of(
    config: RunnableConfig,
    messages: Sequence[BaseMessage],
    state: Mapping[str, Any],
    names: Names,
    cursor: Cursor | None,
) -> Address:
    """Returns the session that a run asks for: by the middleware's settings, its thread, or else its first message.

    `cursor` is that of its `state`. In a sub-graph the first message of the state counts too: what middleware adds to a request has
    another id each time.
    """
    name = config.get("configurable", {}).get("thread_id") if names.session is None else names.session
    anonymous = name is None
    if anonymous:
        name = f"{MADE_FROM}{first_id(messages)}"
    root = address_in_graph(name, config, names, first_id(state.get("messages")))
    if cursor is not None and root.place and cursor.root.startswith(f"{root.key.session}{BRANCH}"):
        root = replace(root, key=SessionKey(root.key.owner, cursor.root))
    return replace(root, anonymous=root.anonymous or anonymous, place=root.place or anonymous)


Runtime = ToolRuntime[Any, Any]


def own_history_tools(
    chosen: bool | Collection[str], context_of: Callable[[Runtime], AgentContext]
) -> tuple[BaseTool, ...]:
    """Returns all history tools, none, or the named ones; `context_of` returns the session of a tool call."""
    known = {spec.name: spec for spec in HISTORY_TOOLS}
    named = (chosen,) if isinstance(chosen, str) else chosen
    names = (
        (known if named else ())
        if isinstance(named, bool)
        else all_of("history_tools", named, str, f"names among {', '.join(known)}, or True or False")
    )
    unknown = sorted(set(names) - known.keys())
    if unknown:
        raise ConfigError(f"history_tools names {', '.join(unknown)}: there are {', '.join(known)}")
    return tuple(_tool(known[name], context_of) for name in names)


def _tool(spec: ToolSpec, context_of: Callable[[Runtime], AgentContext]) -> BaseTool:
    def bound(runtime: Runtime) -> HistoryTool:
        return next(t for t in history_tools(context_of(runtime)) if t.name == spec.name)

    def use(runtime: ToolRuntime[Any, Any], **arguments: Any) -> str:
        return bound(runtime).call(**arguments)

    async def ause(runtime: ToolRuntime[Any, Any], **arguments: Any) -> str:
        return await bound(runtime).acall(**arguments)

    return structured_tool(spec, use, ause)


@dataclass(frozen=True, slots=True)
class AgentList:
    """The messages of a request without the leading system messages, each with an id.

    `unsaved` are the positions of messages that other middleware added to this request only: they came without an id, and the
    agent's state does not have them. `repeated` are ids that several messages have.
    """

    incoming: LangChainList
    cursor: Cursor | None
    unsaved: frozenset[int] = frozenset()
    repeated: frozenset[str] = frozenset()

    @classmethod
    def of(cls, request: ModelRequest[Any], known: VersionCache) -> AgentList:
        leading = leading_count(request.messages)
        messages = cast("list[BaseMessage]", request.messages[leading:] if leading else request.messages)
        incoming, cursor = LangChainList(messages, known=known), kept_cursor(request.state)
        if len({*incoming.ids} - {""}) == len(messages):
            return cls(incoming, cursor)
        name_refusals(messages)
        kept = Counter(digest_of(m) for m in request.state.get("messages") or () if not m.id)
        unsaved = frozenset(i for i, m in enumerate(messages) if not m.id and not _taken(kept, digest_of(m)))
        messages = [
            m.model_copy(update={"id": uuid.uuid4().hex}) if i in unsaved else m for i, m in enumerate(messages)
        ]
        own, repeated = with_own_ids(messages)
        return cls(LangChainList(own, known=known), cursor, unsaved, repeated)

    def saved(self, answer: ModelResponse[Any]) -> LangChainList | None:
        """Returns the messages that the agent's state will have after this call; None if that is all of them."""
        if not self.unsaved:
            return None
        messages = [m for i, m in enumerate(self.incoming.messages) if i not in self.unsaved]
        return LangChainList([*messages, *answer.result])


def _taken(contents: Counter[str], content: str) -> bool:
    """Takes one of these contents; returns False where none is left."""
    contents[content] -= 1
    return contents[content] >= 0


class AgentCaches:
    """Holds what one model call of an agent leaves for the next: converted windows and tools."""

    def __init__(self, windows: WindowCache) -> None:
        self.windows = windows
        self._tools: tuple[list[tuple[Any, Any]], tuple[ToolSpec, ...]] = [], ()

    def counted_tools(self, tools: Sequence[Any]) -> tuple[ToolSpec, ...]:
        """Returns the tools to count; the same ones as in the last call are not converted again."""
        described = [(tool, getattr(tool, "description", None)) for tool in tools]
        known, specs = self._tools
        if len(known) != len(described) or any(
            a is not b or c != d for (a, c), (b, d) in zip(known, described, strict=True)
        ):
            specs = counted(tools)
            self._tools = described, specs
        return specs


class AgentTurn:
    """Runs one model call of an agent in the session that its address `root` names.

    With `follows_state`, the session follows the agent's state: the answer comes with the cursor to keep there.
    """

    def __init__(
        self,
        request: ModelRequest[Any],
        messages: AgentList,
        root: Address,
        model: BaseChatModel,
        caches: AgentCaches,
        *,
        tools: list[Any],
        follows_state: bool,
    ) -> None:
        self.request = request
        self.incoming, self.cursor = messages.incoming, messages.cursor
        self.root = root
        self.model = model
        self._messages = messages
        self._tools = tools
        self._caches = caches
        self._follows_state = follows_state
        self._key = SessionKey("", "")
        self._prompt = None if request.system_message is None else prompt_text(request.system_message) or None

    def run(self, attach: Callable[[Engine], Flow[AttachedSession]], engine: Engine) -> Flow[Any]:
        """Returns the agent's response, in the session that the flow `attach` finds."""
        try:
            return (yield from self._run((yield from attach(engine)), engine))
        except TurnClosedError:  # a cancelled run took back a question of the list meanwhile: the list has it still
            return (yield from self._run((yield from attach(engine)), engine))
        except MessageConflictError:  # an id that was used for another text: LangGraph keeps the newest of them
            attached = yield from attach(engine)
            attachment = yield from follow(engine, new_branch(engine, attached.root), self.incoming, None)
            return (yield from self._run(replace(attached, attachment=attachment, cursor=None), engine))

    def _run(self, attached: AttachedSession, engine: Engine) -> Flow[Any]:
        self._key = attached.key
        attached.sessions.report_repeated(engine, attached.key, self._messages.repeated)
        settled, messages = self._unseen(attached.attachment)
        yield from attached.add(engine, settled, after=messages[0].id if settled else None)
        reply, _ = yield from ask(engine, self._turn_input(attached, messages))
        answer = response_of(reply)
        # the result of a structured answer's call
        yield from attached.add(engine, [*map(from_langchain, answer.result[1:])])
        if not self._follows_state:
            return answer
        incoming, saved = self.incoming.followed_by(answer.result), self._messages.saved(answer)
        goes_on = len(answer.result) == 1 and bool(getattr(answer.result[0], "tool_calls", None))
        cursor = yield from attached.leave(engine, incoming, saved=saved, waiting=goes_on)
        # in a sub-graph the state may end with the run
        return ExtendedModelResponse(answer, Command(update={KEPT: cursor.to_dict()}))

    def _unseen(self, attachment: Attachment) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
        """Returns the messages of finished turns that the session lacks, and those of this call's question."""
        known = newest_known(self.incoming.ids, attachment.known)
        unseen = converted_from(self.incoming.messages, max(known, attachment.repeated))
        return split_settled(unseen, attachment.restored, continues_known=known >= attachment.repeated)

    def _turn_input(self, attached: AttachedSession, messages: tuple[Message, ...]) -> TurnInput:
        settings = self.request.model_settings
        options = Options(
            tools=self._counted_tools(),
            max_tokens=limit_among(settings),
            context_window=settings.get(WINDOW) or attached.sessions.window_of(self.model),
        )
        leading = self.request.messages[: leading_count(self.request.messages)]
        prompts = (*(() if self._prompt is None else (self._prompt,)), *map(prompt_text, leading))
        given_ids = frozenset(m.id for m in messages)
        whole = self._follows_state and attached.cursor is None
        # the list of a shared session need not have its system prompts
        own_prompts = prompts if prompts or self._follows_state else None
        return TurnInput(attached.key, messages, options, own_prompts, given_ids=given_ids, whole=whole, attached=True)

    def metadata(self, window: Request) -> dict[str, Any]:
        """Returns the metadata of the call's trace: the session, and how many of the agent's messages the model is shown."""
        shown = [m for m in window.messages if m.kind == "message" and m.role != "system"]
        return {
            "ctxfold_session": self._key.session,
            "ctxfold_shown": len(shown),
            "ctxfold_listed": len(self.incoming.ids),
        }

    def repeats(self, request: Request) -> bool:
        """Tells whether the agent would send the session's request like this: with the same tools, for an answer in text."""
        own = self.request
        free = own.response_format is None and is_free(own.tool_choice) and answers_freely(own.model_settings.keys())
        return free and request.tools == self._counted_tools()

    def _counted_tools(self) -> tuple[ToolSpec, ...]:
        """Returns the tools to count.

        A tool that runs at the provider counts as its description, a structured answer as its schema.
        """
        schemas = getattr(self.request.response_format, "schema_specs", ())
        return (
            *self._caches.counted_tools(self._tools),
            *(ToolSpec(s.name, s.description, s.json_schema) for s in schemas),
        )

    def request_with(self, window: Request) -> ModelRequest[Any]:
        """Returns the agent's request with the window in place of its messages; its own system message stays as it is."""
        leading = self.request.messages[: leading_count(self.request.messages)]
        messages = with_given_prompts(self._caches.windows.window_for(self._key, self.model, window), leading)
        if self._prompt is not None:
            own = next((i for i, m in enumerate(messages) if m.type == "system" and m.text == self._prompt), None)
            messages = messages if own is None else [*messages[:own], *messages[own + 1 :]]
        settings = {name: value for name, value in self.request.model_settings.items() if name != WINDOW}
        return self.request.override(
            model=self.model, messages=cast("list[Any]", messages), tools=self._tools, model_settings=settings
        )


def reply_from(response: ModelResponse[Any]) -> Reply:
    """Returns the reply in an agent's response, after giving ids to all messages of the response."""
    first = response.result[0] if response.result else None
    if not isinstance(first, AIMessage):
        raise CtxError(
            "the agent's model call returned no AIMessage: check the middleware that stands inside ContextMiddleware"
        )
    for message in response.result:
        message.id = message.id or uuid.uuid4().hex
    return reply_of(first, response)


def response_of(reply: Reply) -> ModelResponse[Any]:
    """Returns the agent's own response, its message with the id under which the session stores it."""
    response = cast("ModelResponse[Any]", reply.raw)
    response.result[0].id = reply.message.id
    return response


class ContextMiddleware(AgentMiddleware[Any, Any, Any], HoldsSessions):
    """Gives the model a window that fits. The agent's own message list stays complete and unchanged.

    ```python
    agent = create_agent(model, tools, middleware=[ContextMiddleware(context_window=64_000)], checkpointer=saver)
    ```
    Each model call receives the system prompt, summaries, recalled passages and the newest messages, always with whole tool
    rounds. Tool outputs too large for the window are shown as excerpts with a reference. Between compactions, each request
    begins with the previous one. Reasoning is sent back, also for models that lose it (`with_reasoning`).

    Args:
        context_window: the limit in tokens, input and output together; None takes `max_input_tokens` from the profile of each
            request's model.
        store: `sqlite:///file.db`, `postgresql+psycopg://...`, a Store, or None for memory.
        session_id: the name of the session; None takes the run's `thread_id` (for a sub-agent, with its place in the graph), or
            else the id of the conversation's first message.
        owner: the user or tenant to whom the sessions belong.
        summarizer: the writer of summaries: a chat model, its name for `init_chat_model` ("openai:gpt-5-mini"), or a backend;
            None is the model of the call.
        counter: a token counter; None is tiktoken's for the model.
        history_tools: tools with which the model reads its own history: True for all (read_message, search_history,
            pin_message, unpin_message, compact_history), False for none, or their names.
        settings: fields of `ctxfold.Policy`, such as `hard_ratio=0.8`; `policy`, `reply_reserve_tokens` (tokens kept free for
            the reply, by default a fifth of the window), `sections`, `strategy`, `prices` and `embedder` as `AgentContext`
            takes them. `owner_key` is the key of `configurable` that names the owner of each run, in place of `owner`: one
            that no client can set, such as "langgraph_auth_user_id" of LangGraph's server.

    With a checkpointer, the session follows the checkpoints: see docs/langchain-agents.md. The middleware's name is
    "SummarizationMiddleware", so that it replaces the one of deepagents. One middleware serves many threads and tasks. `close`
    closes a store that was given as a URL.
    """

    state_schema = ContextState

    @unpacked
    def __init__(
        self,
        *args: Never,
        session_id: str | None = None,
        owner: str = "default",
        history_tools: bool | Collection[str] = True,
        **settings: Unpack[PoolSettings],
    ) -> None:
        if args:  # the model, which LangChain's SummarizationMiddleware takes first
            raise ConfigError(
                f"ContextMiddleware was given {kind_of(args[0])} without a keyword: the model goes to create_agent, and one that "
                "writes the summaries is summarizer=..."
            )
        super().__init__()
        self.tools = own_history_tools(history_tools, self._context_of)
        self._session = None if session_id is None else check_name("session", session_id)
        self._owner = check_name("owner", owner)
        self._writer = CallersSummarizer(settings.get("summarizer"))
        given = {**settings, "summarizer": self._writer}
        self._sessions = Sessions(given, backend=CallersModel(), tools=counted(self.tools), of_model=True)
        self._caches = AgentCaches(self._sessions.windows)

    @property
    def name(self) -> str:
        """The name of its slot. `create_deep_agent` replaces its own middleware by this one; `create_agent` refuses both."""
        return "SummarizationMiddleware"

    def context(self, session: object, *, owner: str | None = None) -> AgentContext:
        """Returns a session of this middleware: window, usage, pins, explain, export.

        `session` is the thread's id, or a state of the agent (`agent.get_state(config)`, a tool's `runtime.state`): a thread
        that continued from an earlier checkpoint has one session per branch.
        """
        cursor = kept_cursor(session)
        name = session if cursor is None else cursor.session
        if not isinstance(name, str | int | UUID):  # as a run's thread_id may be
            raise ConfigError("this state has no session yet: give the thread's id, or a state after a model call")
        key = session_key(name, name_or_own("owner", owner, self._owner))
        if cursor is not None and not self._is_of(session, cursor, key):
            raise ConfigError(f"this state names the session {name!r}, which is not its own: give the thread's id")
        return self._sessions.at(key.session, key.owner)

    def _is_of(self, state: object, cursor: Cursor, key: SessionKey) -> bool:
        """Returns True where the cursor is of the state's thread; of a state without one, where it knows the session's end."""
        config = getattr(state, "config", None) or ensure_config()
        thread = config.get("configurable", {}).get("thread_id")
        if thread is not None:
            root = str(thread) if self._session is None else self._session
            return bool(sessions_of(root, (cursor.session,)))
        newest = self._sessions.store.find(key, (cursor.head_id,))
        known = [r.seq for r in newest if not isinstance(r.body, MessageAdded) or r.body.message.role == "assistant"]
        return known == [cursor.head]

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> Any:
        return call(self._wrapped(request, handler, None))

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> Any:
        return await acall(self._wrapped(request, None, handler))

    def _wrapped(
        self, request: ModelRequest[Any], handler: Callable[..., Any] | None, ahandler: Callable[..., Any] | None
    ) -> Flow[Any]:
        if is_configurable(request.model):  # the run's config chooses the agent's model
            chosen = chosen_model(request.model, ensure_config())
            request = request.override(model=chosen) if isinstance(chosen, BaseChatModel) else request
        turn = self._turn(request)
        if turn is None:
            return (yield from Invoke(handler, ahandler, request.override(tools=self._usable_tools(request))))

        def answer(window: Request) -> Flow[Reply]:
            yield from report.send()
            with as_backend_error(type(turn.model).__name__), annotated(turn.metadata(window)):
                return reply_from((yield from Invoke(handler, ahandler, turn.request_with(window))))

        def repeat(window: Request) -> Flow[Reply]:
            with as_backend_error(type(turn.model).__name__), asking_for_summary():
                asked = turn.request_with(window)
                asked = asked.override(model_settings={**asked.model_settings, **limits(turn.model, window)})
                return reply_from((yield from Invoke(handler, ahandler, asked)))

        caller = Caller(turn.model, answer=answer, repeat=repeat, repeats=turn.repeats, own=request.model)
        with self._call(turn, caller) as (report, flow):
            response = yield from Invoke(self._sessions.run, self._sessions.arun, turn.root.key, flow)
            yield from report.send()
            return response

    @contextmanager
    def _call(
        self, turn: AgentTurn, caller: Caller
    ) -> Generator[tuple[Report, Callable[[Engine], Flow[Any]]], None, None]:
        """Yields what reports the events of the call, and the flow that makes it."""
        root, shared = turn.root, self._is_shared(turn.root)
        cursor = None if shared else turn.cursor
        elsewhere = None if shared else KeptElsewhere.of(ensure_config(), root.key.session)
        lasting = elsewhere is not None and outlives(ensure_config())
        if cursor is None and elsewhere is None and not shared and not root.place:
            cursor = self._sessions.subgraphs.cursor_of(root.key, turn.incoming)
        with (
            translated(),
            original_error(),
            calling(caller),
            reporting(getattr(turn.request.runtime, "stream_writer", None)) as report,
            self._sessions.attaching(
                root, turn.incoming, cursor=cursor, kept_elsewhere=elsewhere, list_decides=lasting
            ) as attach,
        ):
            yield report, partial(turn.run, attach)

    def _turn(self, request: ModelRequest[Any]) -> AgentTurn | None:
        """Returns the model call for the request; None where it has no messages, system messages aside."""
        messages = AgentList.of(request, self._sessions.versions)
        if not messages.incoming.ids:
            return None
        root = root_of(ensure_config(), messages.incoming.messages, request.state, self._names, messages.cursor)
        model, tools, follows_state = self._model(request), self._usable_tools(request), not self._is_shared(root)
        return AgentTurn(request, messages, root, model, self._caches, tools=tools, follows_state=follows_state)

    @property
    def _names(self) -> Names:
        return self._sessions.names(self._session, self._owner)

    def _is_shared(self, root: Address) -> bool:
        """Returns True for a session that others may use too: it does not follow the agent's state."""
        return self._session is not None and not root.place

    def _context_of(self, runtime: ToolRuntime[Any, Any]) -> AgentContext:
        """Returns the session of the agent that calls a tool."""
        state = runtime.state
        cursor = kept_cursor(state)
        root = root_of(runtime.config, state["messages"], state, self._names, cursor)
        own = cursor is not None and not self._is_shared(root) and is_own(cursor.session, root.key.session)
        return self._sessions.at(cursor.session if cursor is not None and own else root.key.session, root.key.owner)

    def _usable_tools(self, request: ModelRequest[Any]) -> list[Any]:
        """Returns the tools of the request, without the history tools where the model takes no tools at all."""
        if type(request.model).bind_tools is not BaseChatModel.bind_tools:
            return request.tools
        own = {tool.name for tool in self.tools}
        return [t for t in request.tools if getattr(t, "name", None) not in own]

    def _model(self, request: ModelRequest[Any]) -> BaseChatModel:
        model = request.model
        if keeps_sessions(model):
            raise ConfigError(
                f"the agent's {type(model).__name__} keeps sessions of its own: leave out its session and store, "
                "or leave out ContextMiddleware"
            )
        check_sends_window(model)
        self._writer.seen(model)
        return returning(model)
