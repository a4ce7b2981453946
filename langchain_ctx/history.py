"""A session as a LangChain chat history that fits its window."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Self, TypeAlias, Unpack

from langchain_core.chat_history import BaseChatMessageHistory
from langchain_core.messages import BaseMessage, message_to_dict

from ctxfold._lifecycle import Closing, SharesSessions
from ctxfold.adapters.tool_rounds import paired
from ctxfold.effects import Flow, StoreCall, flow_of
from ctxfold.engine.engine import Engine
from ctxfold.engine.fit import Window
from ctxfold.errors import (
    ConfigError,
    CtxWarning,
    EmptyMessagesError,
    MessageConflictError,
    OrphanToolResultError,
    StoreError,
)
from ctxfold.history.records import MessageAdded, SessionKey
from ctxfold.messages import Message, ToolCallPart, content_key, is_final, result_as_text
from ctxfold.protocols import Store, TokenCounter
from ctxfold.session.context import AgentContext
from ctxfold.tokens.text import TextCounter
from ctxfold.validation import kind_of, unpacked
from langchain_ctx.errors import translated
from langchain_ctx.message_lists import new_messages, with_refusals
from langchain_ctx.messages import all_from_langchain, check_messages, to_langchain, with_own_ids, without_thoughts
from langchain_ctx.models import binds_thoughts
from langchain_ctx.session_routing import check_not_from_run, session_key
from langchain_ctx.sessions import ClosesSessions, ContextSettings, PoolOf, Sessions

MirrorOf: TypeAlias = Callable[[str, str], BaseChatMessageHistory]


class _Failures:
    """Storage failures that were not raised at a read yet, by session."""

    def __init__(self) -> None:
        self._unraised: dict[SessionKey, StoreError] = {}

    def keep(self, key: SessionKey, error: StoreError, count: int) -> None:
        error.add_note(f"{count} message(s) of session {key.session!r} were not stored: add them again")
        self._unraised[key] = error

    def tell(self, key: SessionKey) -> None:
        """Raises the failure of a session, once."""
        error = self._unraised.pop(key, None)
        if error is not None:
            raise error


class CtxChatMessageHistory(BaseChatMessageHistory, SharesSessions, Closing):
    """A chat history whose `messages` always fit the window. Older messages are summarised, and the originals are kept.

    Works in `RunnableWithMessageHistory` in both of its modes. `messages` is a snapshot that stays the same from the first read
    to the next `add_messages` on the same handle, so use one handle per run: `factory` returns a new one per call over a shared
    engine. Messages are recognised by id and stored once. A storage failure in `add_messages` is raised there and again at the
    next read, because `RunnableWithMessageHistory` only logs it.

    Args:
        session_id: the name of the session, which is created in the store when it does not exist.
        store: `sqlite:///file.db`, `postgresql+psycopg://...`, a Store, or None for memory.
        context_window: the limit in tokens, input and output together; None takes that of `policy`, as a history sees no model.
        summarizer: a LangChain chat model, its name for `init_chat_model` ("openai:gpt-5-mini"), or a backend; None writes
            extractive summaries.
        owner: the user or tenant to whom the session belongs.
        counter: counts tokens; None takes tiktoken.
        overhead_tokens: the size of what the chain adds to the messages: its prompt, tools and the new question.
        mirror: another history that also receives every new message. Its errors become warnings; `export_history` catches up.
        create: False raises SessionNotFoundError when the session is not in the store.
        settings: fields of `ctxfold.Policy`, such as `hard_ratio=0.8`; `policy`, `strategy` and `prices` as in `AgentContext`.
    """

    _owned = False
    _context: AgentContext | None = None
    _snapshot: tuple[Message, ...] | None = None

    @unpacked
    def __init__(
        self,
        session_id: str,
        store: str | Store | None = None,
        context_window: int | None = None,
        summarizer: Any = None,
        *,
        owner: str = "default",
        counter: TokenCounter | TextCounter | None = None,
        overhead_tokens: int = 0,
        mirror: BaseChatMessageHistory | None = None,
        create: bool = True,
        **settings: Unpack[ContextSettings],
    ) -> None:
        super().__init__()
        given = {"store": store, "context_window": context_window, "summarizer": summarizer, "counter": counter}
        sessions = Sessions({**given, **settings}, overhead_tokens=overhead_tokens)
        try:
            key = session_key(session_id, owner)
            self._bind(sessions, _Failures(), key, overhead_tokens, mirror)
            self._context, self._owned = sessions.at(key.session, key.owner, create=create), True
        except BaseException:
            sessions.close()
            raise

    def __repr__(self) -> str:
        return f"CtxChatMessageHistory({PoolOf(self._sessions, self._key.session, self._key.owner).shown})"

    @classmethod
    def over(
        cls,
        sessions: Sessions,
        failures: _Failures,
        key: SessionKey,
        overhead_tokens: int,
        mirror: BaseChatMessageHistory | None = None,
    ) -> Self:
        """Returns a history over a session, which is opened when it is first used."""
        handle = cls.__new__(cls)
        handle._bind(sessions, failures, key, overhead_tokens, mirror)
        return handle

    def _bind(
        self,
        sessions: Sessions,
        failures: _Failures,
        key: SessionKey,
        overhead_tokens: int,
        mirror: BaseChatMessageHistory | None,
    ) -> None:
        if mirror is not None:
            _check_history("mirror", mirror)
        self._key = key
        self._overhead_tokens = overhead_tokens
        self._sessions = sessions
        self._failures = failures
        self._mirror = mirror

    @staticmethod
    @unpacked
    def factory(
        *,
        store: str | Store | None = None,
        context_window: int | None = None,
        summarizer: Any = None,
        counter: TokenCounter | TextCounter | None = None,
        overhead_tokens: int = 0,
        mirror: MirrorOf | None = None,
        **settings: Unpack[ContextSettings],
    ) -> HistoryFactory:
        """Returns a `get_session_history` for RunnableWithMessageHistory: a new history per call over one engine and one store.

        `mirror` is a function that returns the history that mirrors a session, given its id and its owner.
        """
        if mirror is not None and not callable(mirror):
            raise ConfigError(
                f"the mirror is {kind_of(mirror)}: give a function that returns the mirror of a session, by its id and its owner"
            )
        given = {"store": store, "context_window": context_window, "summarizer": summarizer, "counter": counter}
        sessions = Sessions({**given, **settings}, overhead_tokens=overhead_tokens)
        return HistoryFactory(sessions, overhead_tokens, mirror)

    @property
    def context(self) -> AgentContext:
        """Returns the session itself: window, usage, compact, explain, export."""
        if self._context is None:
            self._context = self._sessions.at(self._key.session, self._key.owner)
        return self._context

    async def acontext(self) -> AgentContext:
        if self._context is None:
            self._context = await self._sessions.aat(self._key.session, self._key.owner)
        return self._context

    @property
    def messages(self) -> list[BaseMessage]:  # type: ignore[override]
        """Returns the window as LangChain messages, the same list until the next `add_messages` on this object."""
        self._failures.tell(self._key)
        if self._snapshot is None:
            with translated():
                self._snapshot = _shown(self.context.window(overhead_tokens=self._overhead_tokens))
        return [to_langchain(m) for m in self._snapshot]

    async def aget_messages(self) -> list[BaseMessage]:
        self._failures.tell(self._key)
        if self._snapshot is None:
            context = await self.acontext()
            with translated():
                self._snapshot = _shown(await context.awindow(overhead_tokens=self._overhead_tokens))
        return [to_langchain(m) for m in self._snapshot]

    def add_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Stores messages; a message whose id is known is not stored twice. Budget errors are raised at the next read."""
        new = self._incoming(messages, self.context)
        if not new:
            return
        if self.context.handle.run_flow(partial(self._store, self.context, new)):
            self._warn_of_overlap()
        if self._mirror is not None:
            with self._mirrored(len(new)):
                self._mirror.add_messages([to_langchain(m) for m in new])

    async def aadd_messages(self, messages: Sequence[BaseMessage]) -> None:
        context = await self.acontext()
        new = self._incoming(messages, context)
        if not new:
            return
        if await context.handle.arun_flow(partial(self._store, context, new)):
            self._warn_of_overlap()
        if self._mirror is not None:
            with self._mirrored(len(new)):
                await self._mirror.aadd_messages([to_langchain(m) for m in new])

    def _incoming(self, messages: Sequence[BaseMessage], context: AgentContext) -> list[Message]:
        if not messages:
            raise EmptyMessagesError("no message to add: give at least one")
        check_messages(messages)
        return with_refusals(new_messages(messages, self._snapshot, new_id=context.handle.new_id))

    def _store(self, context: AgentContext, new: Sequence[Message], engine: Engine) -> Flow[bool]:
        """Stores messages; returns True for an answer without its question on a history that a chain has read.

        Overlapping runs lose user turns.
        """
        unasked = self._snapshot is not None and new[0].role == "assistant"
        if unasked:
            last = (yield from flow_of(AgentContext.view)(context)).last()
            unasked = last is not None and is_final(last.message)
        try:
            add = partial(flow_of(AgentContext.add), context)
            try:
                try:
                    yield from add(new)
                except MessageConflictError:  # ids that say nothing, such as "0" for each message
                    new = yield from self._with_own_ids(context, new)
                    if new:
                        yield from add(new)
            except OrphanToolResultError:
                waiting = (yield from engine.open(self._key)).waiting_calls()
                new = yield from self._with_own_ids(context, (yield from self._in_rounds(context, new, waiting)))
                if new:
                    yield from add(new)
        except StoreError as error:
            self._failures.keep(self._key, error, len(new))
            raise
        self._snapshot = None
        return unasked

    def _in_rounds(
        self, context: AgentContext, new: Sequence[Message], waiting: Sequence[ToolCallPart]
    ) -> Flow[list[Message]]:
        """Returns what the session lacks: results of no call as text, and a note for each call that stays unanswered."""
        stored = yield from self._stored(new)
        new = [m for m in new if stored.get(m.id) != content_key(m)]
        only_results = all(m.role == "tool" for m in new)
        return paired(new, context.handle.new_id, waiting, stray=result_as_text if only_results else None)

    def _with_own_ids(self, context: AgentContext, new: Sequence[Message]) -> Flow[list[Message]]:
        """Returns the messages with another id for each whose id has another content here or in the session."""
        taken = yield from self._stored(new)
        return [
            m if taken.setdefault(m.id, content_key(m)) == content_key(m) else replace(m, id=context.handle.new_id())
            for m in new
            if m.role != "tool" or taken.get(m.id) != content_key(result_as_text(m))  # it was stored as text
        ]

    def _stored(self, messages: Sequence[Message]) -> Flow[dict[str, str]]:
        """Returns the contents that the session has under the ids of these messages."""
        found = yield from StoreCall(Store.find, self._key, [f"m:{m.id}" for m in messages])
        return {r.body.message.id: content_key(r.body.message) for r in found if isinstance(r.body, MessageAdded)}

    def _warn_of_overlap(self) -> None:
        warnings.warn(
            f"session {self._key.session!r} got an answer without its user message: runs that overlap share this handle; give "
            "RunnableWithMessageHistory CtxChatMessageHistory.factory(...), which makes one for each run",
            CtxWarning,
            stacklevel=3,
        )

    @contextmanager
    def _mirrored(self, count: int) -> Generator[None, None, None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - a copy never takes the conversation down
            warnings.warn(
                f"the mirror of session {self._key.session!r} did not take {count} message(s): {error!r}; "
                "export_history(context, mirror) gives it what it lacks",
                CtxWarning,
                stacklevel=4,
            )

    def clear(self) -> None:
        """Empties the conversation. The archive keeps the messages, and `context.undo()` restores them."""
        self.context.edit.clear()
        self._snapshot = None

    async def aclear(self) -> None:
        await (await self.acontext()).edit.aclear()
        self._snapshot = None

    def pin(self, *message_ids: str) -> None:
        """Pins messages: every compaction keeps them verbatim. PinBudgetError beyond a quarter of the budget."""
        self.context.pin(*message_ids)

    async def apin(self, *message_ids: str) -> None:
        await (await self.acontext()).apin(*message_ids)

    def close(self) -> None:
        """Closes the store if this history opened it; a history from a factory leaves that to the factory."""
        if self._owned:
            self._sessions.close()

    async def aclose(self) -> None:
        if self._owned:
            await self._sessions.aclose()


class HistoryFactory(ClosesSessions):
    """Returns a new history per call, all over one engine; close it when the chain is done.

    The parameters are those of `history_factory_config`: `session_id`, and `owner` to separate users. In a graph's run a client
    may have written the config, so that names which come from there under these keys raise ConfigError.
    """

    def __init__(self, sessions: Sessions, overhead_tokens: int, mirror: MirrorOf | None) -> None:
        self._sessions = sessions
        self._overhead_tokens = overhead_tokens
        self._mirror = mirror
        self._failures = _Failures()

    def __repr__(self) -> str:
        sessions = self._sessions
        return f"HistoryFactory(store={sessions.store!r}, context_window={sessions.context_window})"

    def __call__(self, session_id: str, owner: str = "default") -> CtxChatMessageHistory:
        check_not_from_run(session_id=session_id, owner=None if owner == "default" else owner)
        key = session_key(session_id, owner)
        mirror = None if self._mirror is None else self._mirror(key.session, key.owner)
        return CtxChatMessageHistory.over(self._sessions, self._failures, key, self._overhead_tokens, mirror)


def import_history(history: BaseChatMessageHistory, context: AgentContext) -> int:
    """Stores the messages of another history in a session, in their order; returns how many were new.

    Messages without ids are compared by content and position, so that importing a history again after it has grown adds only
    the new messages. What does not fit the window is summarised at once.
    """
    _check(history, context)
    messages = with_refusals(all_from_langchain(with_own_ids(history.messages)[0]))
    with translated():
        return len(context.add(messages, skip_orphans=True).messages) if messages else 0


async def aimport_history(history: BaseChatMessageHistory, context: AgentContext) -> int:
    """The async form of `import_history`."""
    _check(history, context)
    messages = with_refusals(all_from_langchain(with_own_ids(await history.aget_messages())[0]))
    with translated():
        return len((await context.aadd(messages, skip_orphans=True)).messages) if messages else 0


def export_history(context: AgentContext, history: BaseChatMessageHistory) -> int:
    """Adds the original messages of a session that another history lacks, without summaries; returns how many.

    Messages are compared by id or, where the history keeps none, by content.
    """
    _check(history, context)
    missing = _missing(context.messages(), history.messages)
    if missing:
        history.add_messages(missing)
    return len(missing)


async def aexport_history(context: AgentContext, history: BaseChatMessageHistory) -> int:
    """The async form of `export_history`."""
    _check(history, context)
    missing = _missing(await context.amessages(), await history.aget_messages())
    if missing:
        await history.aadd_messages(missing)
    return len(missing)


def _check(history: object, context: object) -> None:
    _check_history("history", history)
    if not isinstance(context, AgentContext):
        raise ConfigError(f"the context is {kind_of(context)}: give an AgentContext, as `.context` of a history is one")


def _check_history(what: str, history: object) -> None:
    if not isinstance(history, BaseChatMessageHistory):
        raise ConfigError(
            f"the {what} is {kind_of(history)}: give a BaseChatMessageHistory; a list goes into "
            "InMemoryChatMessageHistory(messages=...)"
        )


def _missing(own: Sequence[Message], theirs: Sequence[BaseMessage]) -> list[BaseMessage]:
    ids = {m.id for m in theirs if m.id}
    nameless = Counter(_content(m) for m in theirs if not m.id)
    missing: list[BaseMessage] = []
    for message in map(to_langchain, own):
        if message.id in ids:
            continue
        if nameless[_content(message)] > 0:
            nameless[_content(message)] -= 1
        else:
            missing.append(message)
    return missing


def _shown(window: Window) -> tuple[Message, ...]:
    """Returns the window's messages; after a change of its beginning without thoughts that their service binds to that."""
    if not window.view.epoch:
        return window.messages
    return tuple(without_thoughts(m) if binds_thoughts(m.model) else m for m in window.messages)


def _content(message: BaseMessage) -> str:
    body = message_to_dict(message)["data"]
    return json.dumps([message.type, body["content"], body.get("tool_calls"), body.get("tool_call_id")], default=str)
