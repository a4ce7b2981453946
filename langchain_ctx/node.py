"""`ContextNode`: the message list of a chain or graph, made to fit. One class for LCEL, `StateGraph` and pre-model hooks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Unpack, cast

from langchain_core.messages import BaseMessage, convert_to_messages
from langchain_core.prompt_values import PromptValue
from langchain_core.runnables import Runnable, RunnableConfig, ensure_config
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.memory import InMemorySaver

from ctxfold.effects import Effect, Flow
from ctxfold.engine.attach import Attachment, cursor_at, follow
from ctxfold.engine.engine import Engine
from ctxfold.engine.request import Options
from ctxfold.engine.turn import TurnInput, request_for
from ctxfold.errors import ConfigError, EmptyMessagesError
from ctxfold.history.diff import Cursor, cursor_of_view, first_in_view, newest_known
from ctxfold.history.records import SessionKey
from ctxfold.messages import is_question
from ctxfold.protocols import Ports, Request
from ctxfold.session.context import AgentContext
from ctxfold.validation import check_name, check_text, is_a, kind_of, unpacked, warn_caller
from langchain_ctx.errors import translated
from langchain_ctx.inner_model import converted
from langchain_ctx.message_lists import LangChainList, converted_from, leading_count, prompt_text, with_given_prompts
from langchain_ctx.messages import with_own_ids
from langchain_ctx.models import binds_thoughts
from langchain_ctx.session_routing import (
    MADE_FROM,
    WINDOW,
    Address,
    address_in_graph,
    first_id,
    key_or_own,
    place_of_graph,
    session_key,
)
from langchain_ctx.sessions import HoldsSessions, PoolSettings, Sessions
from langchain_ctx.tools import counted

KEPT = "ctxfold"  # the key of the state
LOOKED_AT = 64  # the newest checkpoints of a thread


def kept_cursor(state: object) -> Cursor | None:
    """Returns the cursor in the state of an agent, in a snapshot of it, or in its values; warns of anything else there."""
    values = cast("object", state if isinstance(state, Mapping) else getattr(state, "values", None))
    saved: Any = cast("Mapping[str, Any]", values).get(KEPT) if isinstance(values, Mapping) else None
    cursor = Cursor.from_dict(cast("Mapping[str, Any]", saved)) if isinstance(saved, Mapping) else None
    if saved is not None and cursor is None:
        warn_caller(
            f"the private key {KEPT!r} of this state was changed and is ignored: the messages tell the session apart"
        )
    return cursor


def outlives(config: RunnableConfig) -> bool:
    """Returns True where a checkpointer keeps the state of the running graph beyond the process: an empty state is a new thread."""
    saver: Any = config.get("configurable", {}).get("__pregel_checkpointer")
    return isinstance(saver, BaseCheckpointSaver) and type(cast("object", saver)) is not InMemorySaver


@dataclass(frozen=True, slots=True)
class KeptElsewhere(Effect[bool]):
    """Tells whether a checkpoint of the run's thread has a cursor of the session."""

    saver: BaseCheckpointSaver[Any]
    thread: RunnableConfig
    session: str

    @classmethod
    def of(cls, config: RunnableConfig, session: str) -> KeptElsewhere | None:
        """Returns the look-up in the running graph's checkpointer, which LangGraph puts into the config of its nodes."""
        configurable = config.get("configurable", {})
        saver: Any = configurable.get("__pregel_checkpointer")
        names = {"thread_id": configurable.get("thread_id"), "checkpoint_ns": place_of_graph(config)}
        return cls(saver, {"configurable": names}, session) if is_a(saver, BaseCheckpointSaver) else None

    def perform(self, ports: Ports) -> bool:
        return any(map(self._has_cursor, self.saver.list(self.thread, limit=LOOKED_AT)))

    async def aperform(self, ports: Ports) -> bool:
        checkpoints = cast("AsyncGenerator[CheckpointTuple, None]", self.saver.alist(self.thread, limit=LOOKED_AT))
        async with aclosing(checkpoints):
            async for checkpoint in checkpoints:
                if self._has_cursor(checkpoint):
                    return True
        return False

    def _has_cursor(self, checkpoint: CheckpointTuple) -> bool:
        cursor = kept_cursor(checkpoint.checkpoint["channel_values"])
        return cursor is not None and cursor.root == self.session


class ContextNode(Runnable[Any, Any], HoldsSessions):
    """Takes a whole conversation and returns the messages to send to the model. The list itself stays complete and unchanged.

    ```python
    fit = ContextNode(context_window=64_000, summarizer=model)

    fit | model                                                         # in place of `trim_messages`: a list in, a list out
    graph.add_node("fit", fit)                                          # reads "messages", writes "llm_input_messages"
    create_react_agent(model, tools, pre_model_hook=fit, checkpointer=saver)
    ```
    Pass the whole list each time: the node sees an answer only in the next list. It returns the system prompt, summaries,
    recalled passages and the newest messages, always with whole tool rounds. It recognises messages by id, and messages without
    an id by content and position.

    The session is `session_id`, or the run's `thread_id` (for a sub-graph, with its place in the graph; in a plain chain also
    `configurable["session_id"]`), or else that of the list's first message. `owner_key` names the key of `configurable` with
    the owner; in a plain chain "owner" is one. A leading system message becomes
    the session's. Raises ContextOverflowError, and changes nothing, when the newest messages do not fit.

    Args:
        context_window: the limit in tokens, input and output together; None takes that of `policy`, as a node sees no model.
        store: `sqlite:///file.db`, `postgresql+psycopg://...`, a Store, or None for memory.
        session_id: one session for all calls; the session then does not follow a conversation that goes back to an earlier
            point.
        summarizer: the writer of summaries: a chat model, its name for `init_chat_model` ("openai:gpt-5-mini"), or a backend;
            None writes extractive ones.
        counter: a token counter; None takes tiktoken.
        tools: the model's tools, whose schemas are counted.
        overhead_tokens: the size of what else the request will hold, such as a prompt that is added later.
        messages_key: the key of the messages in a graph's state.
        output_key: the key in the state for the messages to send.
        settings: fields of `ctxfold.Policy`, such as `hard_ratio=0.8`; `policy`, `reply_reserve_tokens` (tokens kept free for
            the reply, by default a fifth of the window), `sections`, `strategy`, `prices` and `embedder` as `AgentContext`
            takes them.
    """

    @unpacked
    def __init__(
        self,
        *,
        session_id: str | None = None,
        owner: str = "default",
        tools: Sequence[Any] = (),
        overhead_tokens: int = 0,
        messages_key: str = "messages",
        output_key: str = "llm_input_messages",
        **settings: Unpack[PoolSettings],
    ) -> None:
        self._session = None if session_id is None else check_name("session", session_id)
        self._owner = check_name("owner", owner)
        # one tool alone is iterable: it yields its fields
        if is_a(tools or (), (str, Mapping)) or not is_a(tools or (), (Collection, Iterator)):
            raise ConfigError(f"tools is {kind_of(tools)}: give a list of tools")
        self._options = Options(tools=counted(tools), overhead_tokens=overhead_tokens)
        check_text("messages_key", messages_key)
        check_text("output_key", output_key)
        self._messages_key = messages_key
        self._output_key = output_key
        self._sessions = Sessions(settings, tools=self._options.tools, overhead_tokens=overhead_tokens)

    def context(self, session: str | None = None, *, owner: str | None = None) -> AgentContext:
        """Returns a session of this node: window, usage, pins, explain, export; the fixed one when none is named."""
        key = key_or_own(session, owner, self._session, self._owner)
        last = self._sessions.subgraphs.cursor(key)  # a branch if the list was rewritten
        return self._sessions.at(key.session if last is None else last.session, key.owner)

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """Returns a list for a list or a prompt, and for a graph's state the update with the list."""
        return self._call_with_config(self._fit, input, config)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return await self._acall_with_config(self._afit, input, config)

    def _fit(self, value: Any, run_manager: object, config: RunnableConfig) -> Any:
        with translated(), self._call(value, config) as (key, flow):
            return self._output(value, self._sessions.run(key, flow), self._messages(value))

    async def _afit(self, value: Any, run_manager: object, config: RunnableConfig) -> Any:
        with translated(), self._call(value, config) as (key, flow):
            return self._output(value, await self._sessions.arun(key, flow), self._messages(value))

    @contextmanager
    def _call(
        self, value: Any, config: RunnableConfig
    ) -> Generator[tuple[SessionKey, Callable[[Engine], Flow[Request]]], None, None]:
        """Yields the session that is opened first, and the flow that makes the request in the session that serves the list."""
        messages = self._messages(value)
        address = self._address(messages, config)
        messages, repeated = [*(named := with_own_ids(messages))[0]], named[1]
        incoming = _conversation(messages)
        with self._exclusive(address) as own:
            served, last = self._served(own)
            with self._sessions.attaching(
                served,
                incoming,
                replied=incoming.with_any_reply(),
                list_decides=self._is_whole(own) and outlives(config),
            ) as attach:

                def flow(engine: Engine) -> Flow[Request]:
                    attached = yield from attach(engine)
                    self._sessions.report_repeated(engine, attached.key, repeated)
                    attachment = attached.attachment
                    if self._is_whole(own):
                        attachment = yield from _agreeing(engine, own.key, attachment, incoming, last)
                    request = yield from request_for(engine, self._turn_input(attachment, messages, config))
                    if own.place:
                        yield from attached.leave(engine, incoming)
                    elif self._is_whole(own):
                        cursor = yield from cursor_at(engine, own.key, attachment.key, incoming, reread=False)
                        self._sessions.subgraphs.put_cursor(own.key, cursor)
                    return request

                yield served.key, flow

    def _is_whole(self, address: Address) -> bool:
        """Returns True where the list alone decides what the session shows.

        A fixed session is shared by all calls, and runs at a place have separate sessions anyway.
        """
        return self._session is None and not address.place

    def _served(self, address: Address) -> tuple[Address, Cursor | None]:
        """Returns the session that serves the list, a branch if the list was rewritten, and the cursor of the last call."""
        last = None if address.place else self._sessions.subgraphs.cursor(address.key)
        return address if last is None else replace(address, key=SessionKey(address.key.owner, last.session)), last

    def _messages(self, value: Any) -> list[BaseMessage]:
        match value:
            case PromptValue():
                messages: Any = value.to_messages()
            case str() | BaseMessage():
                messages = value
            case Mapping():
                messages = cast("Mapping[str, Any]", value).get(self._messages_key)
            case Sequence():
                messages = cast("object", value)
            case _:
                messages = getattr(value, self._messages_key, None)
        if messages is None:
            raise ConfigError(
                f"the state has no {self._messages_key!r}: name the field that holds its messages with messages_key=..."
            )
        return convert_to_messages([messages] if _is_one(messages) else messages)

    def _address(self, messages: Sequence[BaseMessage], config: RunnableConfig) -> Address:
        config, names = ensure_config(config), self._sessions.names(self._session, self._owner)
        if self._session is not None:
            return Address(session_key(self._session, names.owner_in(config)))
        first = first_id(messages)
        name = names.session_in(config)
        if name is None and first is None:
            raise ConfigError(
                "the conversation has no name: give ContextNode session_id=..., or the call "
                'config={"configurable": {"thread_id": ...}}'
            )
        if name is not None:
            return address_in_graph(name, config, names, first)
        # a graph without checkpointer: its messages have ids that nobody else has
        return replace(address_in_graph(f"{MADE_FROM}{first}", config, names, first), anonymous=True, place=True)

    @contextmanager
    def _exclusive(self, address: Address) -> Generator[Address, None, None]:
        """Gives concurrent calls separate sessions: a call with another list would undo what this one stores."""
        if not self._is_whole(address):
            yield address
            return
        with self._sessions.subgraphs.exclusive(address.key) as key:
            yield replace(address, key=key)

    def _turn_input(self, attachment: Attachment, messages: Sequence[BaseMessage], config: RunnableConfig) -> TurnInput:
        """Returns the end of the list as a question, from the newest message that the session has, with the system messages."""
        leading = leading_count(messages)
        unseen = converted_from(messages, max(newest_known([m.id for m in messages], attachment.known), leading))
        window = config.get("configurable", {}).get(WINDOW)
        return TurnInput(
            attachment.key,
            tuple(m for m in unseen if m.kind == "message"),  # summaries are the session's own
            replace(self._options, context_window=window),
            prompts=tuple(map(prompt_text, messages[:leading])) or None,
            given_ids=frozenset(m.id for m in unseen),
            whole=self._session is None,
            attached=True,
        )

    def _output(self, value: Any, request: Request, listed: Sequence[BaseMessage]) -> Any:
        messages = with_given_prompts(_shown(request), listed[: leading_count(listed)])
        return messages if isinstance(value, PromptValue | Sequence | BaseMessage) else {self._output_key: messages}


def _shown(request: Request) -> list[BaseMessage]:
    """Returns the window, without thoughts that their service would refuse.

    Some bind a thought to all that stood before it, and passages for an earlier question do not stand there any more.
    """
    asks = max((i for i, m in enumerate(request.messages) if is_question(m)), default=0)
    accepted = max(asks, request.unbound_before)
    return [
        own
        for index, message in enumerate(request.messages)
        for own in converted(message, None, thinks=index >= accepted or not binds_thoughts(message.model))
    ]


def _is_one(messages: object) -> bool:
    """Returns True for a single message in place of a list, as LangGraph's `add_messages` takes it too: its letters are none."""
    if isinstance(messages, tuple):
        return [*map(type, cast("tuple[object, ...]", messages))] == [str, str]  # ("user", "Hello")
    return isinstance(messages, str | BaseMessage | Mapping)


def _conversation(messages: Sequence[BaseMessage]) -> LangChainList:
    """Returns the list without its leading system messages."""
    if not messages:
        raise EmptyMessagesError("no message to send: give at least one")
    return LangChainList(messages[leading_count(messages) :])


def _agreeing(
    engine: Engine, root: SessionKey, attachment: Attachment, incoming: LangChainList, last: Cursor | None
) -> Flow[Attachment]:
    """Returns the session after applying to it what has changed in the list since the call before, if anything has."""
    if last is not None and last.precedes(incoming.with_any_reply()):
        return attachment
    view = (yield from engine.open(attachment.key, reread=False)).view()
    older = first_in_view(view, incoming)
    before = LangChainList(incoming.messages[:older], incoming.ids[:older])
    base = yield from cursor_at(engine, root, attachment.key, before, reread=False)
    cursor = cursor_of_view(base, view, attachment.known, incoming, last)
    return attachment if cursor is None else (yield from follow(engine, root, incoming, cursor))
