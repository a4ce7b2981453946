"""`ContextNode`: the message list of a chain or graph, made to fit. One class for LCEL, `StateGraph` and pre-model hooks."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

from langchain_core.messages import BaseMessage, convert_to_messages
from langchain_core.prompt_values import PromptValue
from langchain_core.runnables import Runnable, RunnableConfig, ensure_config

from ctxfold.closing import Closing
from ctxfold.errors import ConfigError, EmptyMessagesError
from ctxfold.exchange import Options, Question
from ctxfold.follow import Line, Trail
from ctxfold.given import check_name, name_or_own
from ctxfold.history.records import SessionKey
from ctxfold.ports import Request, Store, TokenCounter
from ctxfold.session import AgentContext
from ctxfold.tokens import TextCounter
from langchain_ctx.convert import from_langchain
from langchain_ctx.errors import translated
from langchain_ctx.foreign import asked
from langchain_ctx.keys import MADE_FROM, Address, first_id, key_or_own, placed, session_key
from langchain_ctx.listing import Listing, newest
from langchain_ctx.naming import named
from langchain_ctx.sessions import Sessions
from langchain_ctx.tools import counted
from langchain_ctx.whole_lists import begins, left_of

__all__ = ["ContextNode"]


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
        self._session = None if session is None else check_name("session", session)
        self._owner = check_name("owner", owner)
        self._options = Options(tools=counted(tools), overhead_tokens=overhead_tokens)
        self._messages_key = messages_key
        self._output_key = output_key
        self._sessions = Sessions(
            store=store,
            context_window=context_window,
            summarizer=summarizer,
            counter=counter,
            max_tokens=max_tokens,
            tools=self._options.tools,
            overhead_tokens=overhead_tokens,
            policy=policy,
        )

    def context(self, session: str | None = None, *, owner: str | None = None) -> AgentContext:
        """A session of this node: window, usage, pins, explain, export; the fixed one when none is named."""
        key = key_or_own(session, owner, self._session, self._owner)
        seen = self._sessions.places.seen(key)  # of a list that was rewritten it is a branch
        return self._sessions.at(key.session if seen is None else seen.session, key.owner)

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """A list for a list or a prompt; for a graph's state, the update that carries the list."""
        return self._call_with_config(self._fit, input, config)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return await self._acall_with_config(self._afit, input, config)

    def _fit(self, given: Any, run_manager: object, config: RunnableConfig) -> Any:
        messages = self._messages(given)
        address, messages = self._address(messages, config), named(messages)
        listed = _conversation(messages)
        with translated(), self._alone(address) as mine:
            served, seen = self._served(mine)
            with self._sessions.visit(served, listed, answered=listed.answered()) as visit:
                root, session, line = visit.session.at(mine.key.session), visit.session, visit.line
                if self._is_whole(mine) and not (seen and seen.leads(listed.answered())):
                    view = session.view()
                    base = root.trail(line.key, listed.upto(begins(view, listed)))
                    left = left_of(base, view, line.known, listed, seen)
                    line = line if left is None else root.follow(listed, left)
                    session = root.at(line.key.session)
                request = session.request_for(self._question(line, messages))
                if mine.place:
                    visit.leave(listed)
                elif self._is_whole(mine):
                    self._sessions.places.saw(mine.key, root.trail(line.key, listed))
        return self._told(given, request)

    async def _afit(self, given: Any, run_manager: object, config: RunnableConfig) -> Any:
        messages = self._messages(given)
        address, messages = self._address(messages, config), named(messages)
        listed = _conversation(messages)
        with translated(), self._alone(address) as mine:
            served, seen = self._served(mine)
            async with self._sessions.avisit(served, listed, answered=listed.answered()) as visit:
                root, session, line = visit.session.at(mine.key.session), visit.session, visit.line
                if self._is_whole(mine) and not (seen and seen.leads(listed.answered())):
                    view = await session.aview()
                    base = await root.atrail(line.key, listed.upto(begins(view, listed)))
                    left = left_of(base, view, line.known, listed, seen)
                    line = line if left is None else await root.afollow(listed, left)
                    session = root.at(line.key.session)
                request = await session.arequest_for(self._question(line, messages))
                if mine.place:
                    await visit.aleave(listed)
                elif self._is_whole(mine):
                    self._sessions.places.saw(mine.key, await root.atrail(line.key, listed))
        return self._told(given, request)

    def _is_whole(self, address: Address) -> bool:
        """Whether the list alone says what the session is to show: the fixed one is for all, runs in a place part by themselves."""
        return self._session is None and not address.place

    def _served(self, address: Address) -> tuple[Address, Trail | None]:
        """The session that serves the list: where the list was rewritten, a branch of the one that was asked for."""
        seen = None if address.place else self._sessions.places.seen(address.key)
        return address if seen is None else replace(address, key=SessionKey(address.key.owner, seen.session)), seen

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

    def _address(self, messages: Sequence[BaseMessage], config: RunnableConfig) -> Address:
        told = ensure_config(config).get("configurable", {})
        if self._session is not None:
            return Address(session_key(self._session, told.get("owner", self._owner)))
        first = first_id(messages)
        name = told.get("session_id", told.get("thread_id"))
        if name is None and first is None:
            raise ConfigError(
                "whose conversation is this? give ContextNode session=..., or the call "
                'config={"configurable": {"thread_id": ...}}'
            )
        if name is not None:
            return placed(name, told, self._owner, first)
        # a graph without checkpointer: its messages have ids that nobody else has
        return replace(placed(f"{MADE_FROM}{first}", told, self._owner, first), made_up=True)

    @contextmanager
    def _alone(self, address: Address) -> Generator[Address, None, None]:
        """Another call with another list would take this one's back, unless each has a session of its own."""
        if not self._is_whole(address):
            yield address
            return
        with self._sessions.places.alone(address.key) as key:
            yield replace(address, key=key)

    def _question(self, line: Line, messages: Sequence[BaseMessage]) -> Question:
        """The newest part of the list, from the last message on that the session has; system messages lead it."""
        lead = _lead(messages)
        tail = messages[max(newest([m.id for m in messages], line.known), lead) :]
        return Question(
            line.key,
            tuple(m for m in map(from_langchain, tail) if m.kind == "message"),  # summaries are the session's own
            self._options,
            prompts=tuple(m.text for m in messages[:lead]) or None,
            given_ids=frozenset(m.id for m in tail if m.id),
            whole=self._session is None,
        )

    def _told(self, given: Any, request: Request) -> Any:
        messages = asked(request.messages)
        return messages if isinstance(given, PromptValue | Sequence) else {self._output_key: messages}

    def erase(self, thread: object, *, owner: str | None = None) -> tuple[str, ...]:
        """Erase all that is stored of a thread, its branches and places in graphs included, past recovery; the sessions' names."""
        return self._sessions.erase(thread, name_or_own("owner", owner, self._owner))

    async def aerase(self, thread: object, *, owner: str | None = None) -> tuple[str, ...]:
        return await self._sessions.aerase(thread, name_or_own("owner", owner, self._owner))

    def close(self) -> None:
        """Close the store, if this node opened it."""
        self._sessions.close()

    async def aclose(self) -> None:
        await self._sessions.aclose()


def _lead(messages: Sequence[BaseMessage]) -> int:
    """How many system messages the list begins with."""
    return next((i for i, m in enumerate(messages) if m.type != "system"), len(messages))


def _conversation(messages: Sequence[BaseMessage]) -> Listing:
    """The list without the system messages that lead it."""
    if _lead(messages) == len(messages):
        raise EmptyMessagesError("a session needs more than system messages: add the user's message")
    return Listing(messages[_lead(messages) :])
