"""`ContextNode`: the message list of a chain or graph, made to fit. One class for LCEL, `StateGraph` and pre-model hooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from langchain_core.messages import BaseMessage, convert_to_messages
from langchain_core.prompt_values import PromptValue
from langchain_core.runnables import Runnable, RunnableConfig, ensure_config

from ctxfold.closing import Closing
from ctxfold.errors import ConfigError, EmptyMessagesError
from ctxfold.exchange import Options, Question
from ctxfold.history.records import SessionKey
from ctxfold.history.view import View
from ctxfold.ports import Request, Store, TokenCounter
from ctxfold.session import AgentContext
from ctxfold.tokens import TextCounter
from langchain_ctx.convert import from_langchain
from langchain_ctx.errors import translated
from langchain_ctx.foreign import asked
from langchain_ctx.history import first_id, placed_key, session_key
from langchain_ctx.naming import named
from langchain_ctx.sessions import Sessions
from langchain_ctx.tools import counted

__all__ = ["ContextNode"]

LOOK_BACK = 64  # newest messages of the session among which the list's newest known one is looked for


class ContextNode(Runnable[Any, Any], Closing):
    """Takes a whole conversation, gives what of it the model should be shown; the list itself stays as it is, and whole.

    ```python
    fit = ContextNode(context_window=64_000, summarizer=model)

    fit | model                                                         # where `trim_messages` stood: a list in, a list out
    graph.add_node("fit", fit)                                          # reads "messages", writes "llm_input_messages"
    create_react_agent(model, tools, pre_model_hook=fit, checkpointer=saver)
    ```
    Hand it the whole list each time: answers are learnt from the next one. Shown are system prompt, summaries, recalled
    passages and the newest messages, always with whole tool rounds. Messages are known by id, those without one by their
    content and place.
    The session is `session`, or the run's `session_id` or `thread_id` (a sub-graph's with its place in the graph), or named after
    the first message's id; `configurable["owner"]` beats `owner`.
    A leading system message becomes the session's; ContextOverflowError says what does not fit, and nothing is changed then.

    Args:
        context_window: tokens in and out together.
        store: `sqlite:///file.db`, `postgresql+psycopg://...`, a Store, or None for memory.
        session: one session for every call; a conversation that goes back behind an answer is then not followed.
        summarizer: a chat model or a backend that writes summaries; None writes extractive ones.
        counter: a token counter; None takes tiktoken.
        tools: what the model is given as tools: they are counted.
        overhead_tokens: what else the request will hold, such as a prompt that is put before the list later.
        max_tokens: reply reserve in tokens; None keeps a fifth of the window free.
        messages_key: where a graph's state has its messages.
        output_key: where the state gets those for the model.
        policy: further fields of `ctxfold.Policy`, such as `hard_ratio=0.8`; `sections`, `strategy`, `prices` and `embedder` as
            `AgentContext` takes them.
    """

    def __init__(  # noqa: PLR0913 - settings, all by name
        self,
        *,
        context_window: int,
        store: str | Store | None = None,
        session: str | None = None,
        owner: str = "default",
        summarizer: Any = None,
        counter: TokenCounter | TextCounter | None = None,
        tools: Sequence[Any] = (),
        overhead_tokens: int = 0,
        max_tokens: int | None = None,
        messages_key: str = "messages",
        output_key: str = "llm_input_messages",
        **policy: object,
    ) -> None:
        self._session = session
        self._owner = owner
        self._options = Options(tools=counted(tools), overhead_tokens=overhead_tokens)
        self._messages_key = messages_key
        self._output_key = output_key
        self._sessions = Sessions(
            store=store,
            context_window=context_window,
            summarizer=summarizer,
            counter=counter,
            max_tokens=max_tokens,
            policy=policy,
        )

    def context(self, session: str | None = None, *, owner: str | None = None) -> AgentContext:
        """A session of this node: window, usage, pins, explain, export; the fixed one when none is named."""
        key = session_key(session or self._session or "", owner or self._owner)
        return self._sessions.at(key.session, key.owner)

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """A list for a list or a prompt; for a graph's state, the update that carries the list."""
        return self._call_with_config(self._fit, input, config)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return await self._acall_with_config(self._afit, input, config)

    def _fit(self, given: Any, run_manager: object, config: RunnableConfig) -> Any:
        messages = self._messages(given)
        key, messages = self._key(messages, config), named(messages)
        with translated():
            context = self._sessions.at(key.session, key.owner)
            request = context.request_for(self._question(key, messages, context.view()))
        return self._told(given, request)

    async def _afit(self, given: Any, run_manager: object, config: RunnableConfig) -> Any:
        messages = self._messages(given)
        key, messages = self._key(messages, config), named(messages)
        with translated():
            context = await self._sessions.aat(key.session, key.owner)
            request = await context.arequest_for(self._question(key, messages, await context.aview()))
        return self._told(given, request)

    def _messages(self, given: Any) -> list[BaseMessage]:
        match given:
            case PromptValue():
                found: Any = given.to_messages()
            case str():
                found = [("human", given)]
            case Mapping():
                found = cast("Mapping[str, Any]", given).get(self._messages_key)
            case Sequence():
                found = cast("object", given)
            case _:
                found = getattr(given, self._messages_key, None)
        if found is None:
            raise ConfigError(
                f"the state has no {self._messages_key!r}: name the field that holds its messages with messages_key=..."
            )
        return convert_to_messages(found)

    def _key(self, messages: Sequence[BaseMessage], config: RunnableConfig) -> SessionKey:
        told = ensure_config(config).get("configurable", {})
        session = self._session or told.get("session_id", told.get("thread_id"))
        first = first_id(messages)
        if session is None and first:  # a graph without checkpointer: its messages have ids that nobody else has
            session = f"run-{first}"
        if session is None:
            raise ConfigError(
                "whose conversation is this? give ContextNode session=..., or the call "
                'config={"configurable": {"thread_id": ...}}'
            )
        return placed_key(session, told, self._owner)

    def _question(self, key: SessionKey, messages: Sequence[BaseMessage], view: View) -> Question:
        """The newest part of the list, from the last message on that the session has; system messages lead it."""
        lead = next((i for i, m in enumerate(messages) if m.type != "system"), len(messages))
        newest = {view.live[i].id for i in range(max(0, len(view.live) - LOOK_BACK), len(view.live))}
        at = next((i for i in range(len(messages) - 1, lead - 1, -1) if messages[i].id in newest), lead)
        tail = messages[at:]
        if not tail:
            raise EmptyMessagesError("a session needs more than system messages: add the user's message")
        return Question(
            key,
            tuple(m for m in map(from_langchain, tail) if m.kind == "message"),  # summaries are the session's own
            self._options,
            prompts=tuple(m.text for m in messages[:lead]) or None,
            given_ids=frozenset(m.id for m in tail if m.id),
            whole=self._session is None,
        )

    def _told(self, given: Any, request: Request) -> Any:
        messages = asked(request.messages)
        return messages if isinstance(given, PromptValue | Sequence) else {self._output_key: messages}

    def close(self) -> None:
        """Close the store, if this node opened it."""
        self._sessions.close()

    async def aclose(self) -> None:
        await self._sessions.aclose()
