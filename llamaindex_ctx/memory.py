"""`CtxMemory`: a LlamaIndex memory over ctxfold's engine. The store holds every message, the window what fits."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, TypeVar, Unpack, cast

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.llms.llm import LLM
from llama_index.core.memory.types import BaseMemory
from llama_index.core.storage.chat_store.base import BaseChatStore
from llama_index.core.storage.chat_store.base_db import AsyncDBChatStore, MessageStatus
from llama_index.core.storage.chat_store.loading import load_chat_store  # pyright: ignore[reportUnknownVariableType]
from pydantic import (
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from ctxfold import Section
from ctxfold._lifecycle import Closing
from ctxfold.adapters.calls import Invoke, acall, call
from ctxfold.adapters.tool_rounds import finished, paired, unanswered
from ctxfold.effects import Call, Flow, flow_of
from ctxfold.engine.engine import Engine
from ctxfold.engine.fit import Window
from ctxfold.errors import (
    ConfigError,
    ContextOverflowError,
    MessageTooLargeError,
    OrphanToolResultError,
    WindowTooSmallError,
)
from ctxfold.history.records import SessionKey
from ctxfold.history.view import View
from ctxfold.messages import MediaPart, Message, ToolCallPart, result_as_text
from ctxfold.protocols import Embedder, Store, TokenCounter
from ctxfold.session.context import AgentContext
from ctxfold.session.parts import SessionEditing
from ctxfold.tokens.text import TextCounter
from ctxfold.validation import is_a, json_problem, kind_of, unpacked
from llamaindex_ctx.chat_store import CtxChatStore
from llamaindex_ctx.instrumentation import span
from llamaindex_ctx.memory_blocks import Block, asking
from llamaindex_ctx.memory_settings import StockSettings, Tokenizer, live_at, open_live, positional_settings
from llamaindex_ctx.messages import (
    archive_stays,
    as_window,
    carry_ids,
    explained_conflict,
    from_chat_messages,
    heavy,
    listed,
    question,
    shown,
    to_chat_messages,
    with_distinct_ids,
    with_status,
    without_own,
)
from llamaindex_ctx.metadata import is_section, is_summary
from llamaindex_ctx.store_registry import Live, drop_live, find_live, forget, name_of, stored_name

T = TypeVar("T")
# for what a retriever adds: the share that LlamaIndex's `Memory` leaves free too, no more than recall may take, and enough for a
# few lines beside LlamaIndex's 500 tokens of padding and its instructions
DOCUMENTS_SHARE, ENOUGH_DOCUMENTS_TOKENS, MOST_DOCUMENTS_TOKENS = 0.3, 900, 4_096
LEAST_DOCUMENTS_TOKENS = 500  # of padding alone: with less, the engines raise in any case


class MemoryKeywords(StockSettings, total=False):
    """The keyword arguments of `CtxMemory.from_defaults`."""

    store: str | Store | None
    context_window: int | None
    llm: LLM | None
    owner: str
    chat_history: Sequence[ChatMessage | str] | None
    token_limit: int | None
    tokenizer_fn: Tokenizer | None
    counter: TokenCounter | TextCounter | None
    memory_blocks: Sequence[Block] | None
    sections: Sequence[Section]
    embedder: BaseEmbedding | Embedder | None


class MemorySettings(MemoryKeywords, total=False):
    """The keyword arguments of `CtxMemory`."""

    session_id: str | None


class CtxMemory(BaseMemory, Closing):
    """A session as LlamaIndex memory: `put` stores, `get` returns a window that fits, `get_all` returns every message.

    Create it with `from_defaults`. Safe across threads and tasks; copies share the engine. It is a context manager; `close`
    closes a store that was given as a URL.
    """

    session_id: str = Field(description="the session's name in its store")
    owner: str = Field(default="default", description="whose session it is")
    recall: bool = Field(default=True, description="whether `get` adds passages of compacted messages")
    rules: dict[str, Any] = Field(default_factory=dict, description="the session's policy")
    tokenizer_fn: Tokenizer = Field(exclude=True, description="what chat engines count their prefix with")

    _live: Live = PrivateAttr()

    @unpacked
    def __init__(self, live: Live | None = None, *, recall: bool = True, **settings: Unpack[MemorySettings]) -> None:
        history: Sequence[ChatMessage | str] | None = None
        fresh = live is None
        if live is None:
            live, history = open_live(settings, recall=recall, known=MemorySettings.__annotations__)
        elif not is_a(live, Live) or settings:
            raise ConfigError(
                "a memory takes keyword arguments: CtxMemory(session_id=..., token_limit=...), or "
                "CtxMemory.from_defaults(session_id, store=..., context_window=...)"
            )
        context = live.context
        fields: dict[str, Any] = {
            "session_id": context.session,
            "owner": context.owner,
            "recall": recall,
            "rules": context.handle.engine.rules.model_dump(mode="json"),
            "tokenizer_fn": live.tokenizer_fn,
        }
        super().__init__(**fields)
        self._live = live
        if history is not None:
            self.set(history)
        elif fresh and live.copy is not None:
            history_there = live.copy.read()
            live.context.handle.run_flow(lambda _: self._set(history_there))

    @classmethod
    def class_name(cls) -> str:
        return "CtxMemory"

    @classmethod
    @unpacked
    def from_defaults(  # type: ignore[override]  # LlamaIndex's own names, and ours
        cls,
        session_id: str | Sequence[ChatMessage] | None = None,
        *positional: Any,
        recall: bool = True,
        **settings: Unpack[MemoryKeywords],
    ) -> CtxMemory:
        """Returns a memory over a session, which is made in the store when it is new.

        Args:
            session_id: the name of the session; without it a new name is generated. A list of messages here is taken as
                `chat_history`, because that is the first argument of LlamaIndex's buffers.
            positional: further arguments in the order of `Memory.from_defaults`, or of the buffers' where their types show
                that.
            store: `sqlite:///file.db`, `postgresql+psycopg://...`, a registered name, a Store, or None for memory.
            context_window: the limit in tokens, input and output together; None takes that of `policy`, or the LLM's, or else
                LlamaIndex's default of 30,000 tokens for the history alone.
            llm: the LLM that writes summaries; None writes extractive ones.
            chat_history: replaces the messages of the session, as `set` does.
            token_limit: upper limit of the history in tokens, without a reply reserve.
            tokenizer_fn: turns a text into tokens, for counting; `counter` takes precedence.
            memory_blocks: LlamaIndex's memory blocks, for this session only. Before each window they provide text, which is
                shown beside the conversation as data, and they receive the messages that are compacted. None takes those of the
                registered store.
            sections: `ctxfold.Section`s, which are shown beside the conversation too.
            embedder: computes embeddings, so that `get` recalls passages by meaning too.
            settings: fields of `ctxfold.Policy`, or a complete `policy`; `reply_reserve_tokens`, `strategy` and `prices`; all
                other keywords of LlamaIndex's own memories, with a CtxWarning for those that have no counterpart.
        """
        arguments: dict[str, Any] = dict(settings)
        for name, value in positional_settings(session_id, positional).items():
            if arguments.get(name) is not None:
                raise ConfigError(f"{name} is given twice, as a positional and as a keyword argument: give it once")
            arguments[name] = value
        return cls(recall=recall, **arguments)

    @property
    def context(self) -> AgentContext:
        """Returns the session itself, for what LlamaIndex's memories do not offer: pins, explain, usage, export, undo."""
        return self._live.context

    @property
    def token_limit(self) -> int:
        """Returns the upper limit of the history in tokens."""
        return self.context.handle.engine.rules.budget_tokens

    @property
    def memory_blocks(self) -> list[Block]:
        """Returns the memory blocks of the session."""
        return [] if self._live.blocks is None else list(self._live.blocks.blocks)

    @property
    def chat_store(self) -> BaseChatStore | AsyncDBChatStore:
        """Returns the chat store that was passed to the memory, or one over its own store."""
        return (
            CtxChatStore(self.context.handle.store, owner=self.owner)
            if self._live.copy is None
            else self._live.copy.store
        )

    @property
    def chat_store_key(self) -> str:
        """Returns the name of the session, which is the key of the history in the chat store."""
        return self.session_id

    def at(self, session_id: str, *, owner: str | None = None) -> CtxMemory:
        """Returns the memory of another session over the same engine and store; it is created when it is first used."""
        return type(self)(live_at(self._live, session_id, owner), recall=self.recall)

    # reading

    @span
    def get(
        self, input: str | ChatMessage | None = None, initial_token_count: int = 0, **kwargs: Any
    ) -> list[ChatMessage]:
        """Returns the window as new objects. It fits beside `initial_token_count` tokens and never splits a tool round.

        Passages recalled for `input`, or for the newest user message, are in an additional user message: before the newest user
        message if that is last, else at the end. They are never stored. With an `input` that is not put yet, the window leaves
        room for the documents that come with it.
        """
        return call(self._read(input, initial_token_count, kwargs))

    @span
    async def aget(
        self, input: str | ChatMessage | None = None, initial_token_count: int = 0, **kwargs: Any
    ) -> list[ChatMessage]:
        return await acall(self._read(input, initial_token_count, kwargs, on_loop=True))

    def _read(
        self,
        input: str | ChatMessage | None,
        initial_token_count: int,
        kwargs: dict[str, Any],
        *,
        on_loop: bool = False,
    ) -> Flow[list[ChatMessage]]:
        self._check_room(initial_token_count)
        # the history and the keywords of this call are there for the memory blocks that it asks
        with nullcontext() if self._live.blocks is None else asking(self._shown_history, kwargs, on_loop=on_loop):
            window: Window = yield from self._in_session(lambda _: self._window(question(input), initial_token_count))
        yield from self._feed_blocks()
        self._live.beside_text = window.recalled
        return as_window((yield from shown(finished(window.messages))), window.recalled)

    def _shown_history(self) -> list[ChatMessage]:
        return to_chat_messages(finished(self.context.view().messages))

    def _in_session(self, flow: Callable[[Engine], Flow[T]]) -> Flow[T]:
        return cast("T", (yield from Invoke(self.context.handle.run_flow, self.context.handle.arun_flow, flow)))

    def _feed_blocks(self) -> Flow[None]:
        if (blocks := self._live.blocks) is not None:
            yield from Invoke(blocks.feed, blocks.afeed, self.context)

    def _window(self, asked: str | None, initial_token_count: int) -> Flow[Window]:
        """Returns the window, with room for the documents that a chat engine with a retriever sends with its question.

        Such an engine puts the question later, and does not say how much it adds. Without room for it, it raises for this
        question and for every later one.
        """
        newest = (yield from flow_of(AgentContext.view)(self.context)).last() if asked else None
        documents = 0
        if asked is not None and newest is not None and _is_new_question(asked, newest.message):
            room = (
                self.context.handle.engine.rules.budget_tokens
                - initial_token_count
                - self.context.handle.counter.count_text(asked)
            )
            documents = min(MOST_DOCUMENTS_TOKENS, max(ENOUGH_DOCUMENTS_TOKENS, int(DOCUMENTS_SHARE * room)))
            documents = min(documents, room // 2)
            documents = documents if documents >= LEAST_DOCUMENTS_TOKENS else 0
        window = partial(
            flow_of(AgentContext.window),
            self.context,
            recall=self.recall or self._live.beside,
            question=asked,
            whole_tail=True,  # the list may come back through `set`
        )
        try:
            return (yield from window(overhead_tokens=initial_token_count + documents))
        except (ContextOverflowError, MessageTooLargeError):
            if not documents:
                raise
        return (yield from window(overhead_tokens=initial_token_count))

    def _check_room(self, tokens: int) -> None:
        budget = self.context.handle.engine.rules.budget_tokens
        if tokens > budget:
            raise WindowTooSmallError(
                f"Initial token count exceeds token limit: the initial token count is {tokens}, the history's whole budget "
                f"{budget}: shorten the prefix or raise context_window (token_limit)"
            )

    def get_all(self, status: MessageStatus | None = None) -> list[ChatMessage]:
        """Returns every message of the conversation as it was stored, compacted ones included, in order; reads the log.

        Of LlamaIndex's statuses, compacted messages are ARCHIVED, all others ACTIVE.
        """
        return call(self._all(status))

    async def aget_all(self, status: MessageStatus | None = None) -> list[ChatMessage]:
        return await acall(self._all(status))

    def _all(self, status: MessageStatus | None = None) -> Flow[list[ChatMessage]]:
        context = self.context
        view = (yield from Invoke(context.view, context.aview)).messages if status else ()
        return (yield from shown(with_status((yield from Invoke(context.messages, context.amessages)), view, status)))

    # writing

    def put(self, message: ChatMessage | str) -> None:
        """Stores a message; one with a known id is not stored twice. Raises MessageTooLargeError if it can never fit the window.

        A changed copy of a stored message has its id and raises MessageConflictError: put a new ChatMessage. A string is a user
        message. Tool calls before it that have no results are answered by a note.
        """
        self.put_messages([message])

    async def aput(self, message: ChatMessage | str) -> None:
        await self.aput_messages([message])

    @span
    def put_messages(self, messages: Sequence[ChatMessage | str]) -> None:
        """Stores messages in one step: all of them, or none when it raises."""
        call(self._stored(messages))

    @span
    async def aput_messages(self, messages: Sequence[ChatMessage | str]) -> None:
        await acall(self._stored(messages))

    def _stored(self, messages: Sequence[ChatMessage | str]) -> Flow[None]:
        messages = listed(messages)
        added = yield from self._storing(messages, partial(self._put, messages))
        if self._live.copy is not None:
            yield from self._live.copy.add(added)
        yield from self._feed_blocks()

    def _storing(self, messages: Sequence[ChatMessage | str], flow: Callable[[Engine], Flow[T]]) -> Flow[T]:
        """Runs a flow that stores the messages, in a thread where it would hold up the event loop."""
        if heavy(messages):
            return (yield from Call(lambda: self.context.handle.run_flow(flow)))
        return (yield from self._in_session(flow))

    def _put(self, messages: Sequence[ChatMessage | str], engine: Engine) -> Flow[tuple[Message, ...]]:
        view: View | None = None
        waiting: Sequence[ToolCallPart] = ()
        given = [m for m in messages if isinstance(m, ChatMessage)]
        begins_with_result = bool(given[1:]) and given[0].role.value in ("tool", "function")
        # a call may wait for its result, and a summary of the memory may come back
        if self._live.waiting or begins_with_result or any(map(is_summary, given)):
            view = yield from flow_of(AgentContext.view)(self.context)
            waiting = (yield from engine.open(self._session_key, reread=False)).waiting_calls()
        fresh = without_own(self._converted(messages, waiting), () if view is None else view.messages)
        if not fresh:
            return ()
        # of a run, whose calls an LLM over the session may have other results for, and at whose end calls may wait: a run that
        # goes on after a cancellation asks twice at once, and ends with the first answer
        of_run = any(m.role == "assistant" for m in fresh)
        add = partial(flow_of(AgentContext.add), self.context, known_ids=carry_ids(messages), skip_orphans=of_run)
        with explained_conflict():
            try:
                added = yield from add(fresh)
            except OrphanToolResultError:  # results of calls that are not there, or were answered by a note
                waiting = (yield from engine.open(self._session_key)).waiting_calls()
                added = yield from add(paired(fresh, self.context.handle.new_id, waiting, stray=result_as_text))
        self._live.waiting = added.turn_id is not None
        return added.messages

    @property
    def _session_key(self) -> SessionKey:
        return SessionKey(self.context.owner, self.context.session)

    @span
    def set(self, messages: Sequence[ChatMessage | str]) -> None:
        """Replaces all messages in one step; changes nothing when it raises. The archive keeps the old ones.

        A copy of a message in the same list, changed or not, is a new message.

        Leading messages that the memory already has, compared by position and content, stay as they are, compacted or not: a
        list that continues `get_all` or `get` costs no more than putting the new messages.
        """
        call(self._replaced(messages))

    @span
    async def aset(self, messages: Sequence[ChatMessage | str]) -> None:
        await acall(self._replaced(messages))

    def _replaced(self, messages: Sequence[ChatMessage | str]) -> Flow[None]:
        messages = listed(messages)
        yield from self._storing(messages, lambda _: self._set(messages))
        if self._live.copy is not None:
            yield from self._live.copy.set((yield from self._all()))
        yield from self._feed_blocks()

    def _set(self, messages: Sequence[ChatMessage | str]) -> Flow[None]:
        fresh = self._converted(messages)
        if all(m.role == "tool" for m in fresh):  # results of no call
            fresh = paired(fresh, self.context.handle.new_id, stray=result_as_text)
        fresh = with_distinct_ids(fresh, self.context.handle.new_id)
        yield from flow_of(SessionEditing.set_messages)(self.context.edit, fresh, prompts=True, recognise=True)
        self._live.waiting = bool(unanswered(fresh))

    def reset(self, status: MessageStatus | None = None) -> None:
        """Empties the conversation, system messages included. The archive keeps the messages, so ARCHIVED raises ConfigError."""
        call(self._emptied(status))

    async def areset(self, status: MessageStatus | None = None) -> None:
        await acall(self._emptied(status))

    def _emptied(self, status: MessageStatus | None) -> Flow[None]:
        archive_stays(status)
        yield from Invoke(self.context.edit.clear, self.context.edit.aclear, prompts=True)
        self._live.waiting = False
        if self._live.copy is not None:
            yield from self._live.copy.clear()

    def _converted(self, messages: Sequence[ChatMessage | str], waiting: Sequence[ToolCallPart] = ()) -> list[Message]:
        settings = [m for m in messages if isinstance(m, str) or not self._added_by_memory(m)]
        fresh = from_chat_messages(settings, self.context.handle.new_id, waiting)
        budget = self.context.handle.engine.rules.budget_tokens
        newest = next((m for m in reversed(fresh) if m.role == "user"), None)
        # no text has more tokens than bytes, and counting costs; media have a size of their own
        media = newest is not None and any(isinstance(part, MediaPart) for part in newest.parts)
        if newest is not None and (4 * len(newest.text) > budget or media):
            tokens = self.context.handle.counter.count(newest)
            if tokens > budget:
                raise MessageTooLargeError(
                    f"the message has {tokens} tokens, the window leaves {budget} for all messages: shorten it or raise "
                    "context_window (token_limit)"
                )
        return fresh

    def _added_by_memory(self, message: ChatMessage) -> bool:
        """Returns True if this memory added the message to a window; the mark may have been lost since."""
        text = self._live.beside_text
        return is_section(message) or bool(text and message.role == "user" and message.content == text)

    # serialising

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        yield from (("session_id", self.session_id), ("owner", self.owner), ("store", self.context.handle.store))
        yield "context_window", self.context.handle.engine.rules.context_window

    def to_dict(self, **kwargs: Any) -> dict[str, Any]:
        """Returns a JSON-compatible dict that names the session and the store, by its registered name and never by its URL."""
        return self.model_dump(mode="json")

    @model_serializer(mode="wrap")
    def custom_model_dump(self, handler: SerializerFunctionWrapHandler, info: SerializationInfo) -> dict[str, Any]:
        copied = {} if self._live.copy is None else {"copied_from": type(self._live.copy.store).__name__}
        return {
            **handler(self),
            **copied,
            "store": name_of(self._live.source),
            "engine": self._live.key,
            "class_name": self.class_name(),
        }

    @model_validator(mode="wrap")
    @classmethod
    def _restored(cls, data: Any, handler: ModelWrapValidatorHandler[CtxMemory]) -> CtxMemory:
        """Lets a memory be a field of another model, such as the typed state of a workflow."""
        serialised = isinstance(data, dict) and "engine" in data
        return cls.from_dict(cast("dict[str, Any]", data)) if serialised else handler(data)

    @classmethod
    def from_dict(cls, data: dict[str, Any], **kwargs: Any) -> CtxMemory:
        """Restores a memory: on its live engine in the same process, else on the store registered under its name.

        Further keywords are those of `from_defaults`, such as `llm` or another `store`. Raises ConfigError when the store's
        name is unknown or a URL, because a dict may come from an untrusted source. A dict from one of LlamaIndex's buffers is
        accepted too, with its messages.
        """
        if "chat_store" in data or "chat_history" in data:
            return cls.from_defaults(**{**_of_buffer(data), **kwargs})
        missing = [name for name in ("session_id", "owner", "rules") if name not in data]
        if missing:
            raise ConfigError(f"the dict has no {missing[0]!r}: give what to_dict() of a CtxMemory returned")
        live = find_live(str(data.get("engine", "")))
        if live is not None and not kwargs:
            return cls(live, recall=bool(data.get("recall", True)))
        elsewhere = kwargs.keys() & {"chat_store", "sql_store", "async_engine", "async_database_uri"}
        if (kept_in := data.get("copied_from")) and not elsewhere and "store" not in kwargs:
            raise ConfigError(
                f"the messages of this memory are in a {kept_in}, which its dict does not hold: give that again, "
                "CtxMemory.from_dict(data, chat_store=...)"
            )
        store = kwargs.pop("store", None) or (None if elsewhere else stored_name(data.get("store")))
        settings: dict[str, Any] = {"store": store, "owner": data["owner"], "recall": data.get("recall", True)}
        return cls.from_defaults(data["session_id"], **{**settings, **data["rules"], **kwargs})

    def to_string(self) -> str:
        return json.dumps(self.to_dict())

    @classmethod
    def from_string(cls, text: str, **kwargs: Any) -> CtxMemory:
        """Returns the memory that `to_string` described; raises ConfigError for any other text."""
        try:
            data: object = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(
                f"the text is not JSON ({json_problem(error)}): give what to_string() of a CtxMemory returned"
            ) from None
        if not isinstance(data, dict):
            raise ConfigError(f"the text holds {kind_of(data)}: give what to_string() of a CtxMemory returned")
        return cls.from_dict(cast("dict[str, Any]", data), **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self).from_dict, (self.to_dict(),))

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> CtxMemory:
        return type(self)(self._live, recall=self.recall)

    # closing

    def close(self) -> None:
        """Closes the store if this memory opened it; copies of this memory cannot be used afterwards."""
        self._ended()
        if self._live.opened is not None:
            self._live.opened.close()

    async def aclose(self) -> None:
        self._ended()
        if self._live.opened is not None:
            await self._live.opened.aclose()

    def _ended(self) -> None:
        forget(self._live.source)
        if self._live.opened is not None:
            drop_live(self._live)
        if self._live.blocks is not None:
            self._live.blocks.side.close()
        if self._live.copy is not None:
            self._live.copy.side.close()


def _is_new_question(asked: str, newest: Message) -> bool:
    """Returns True for a question that the newest message is not: an answer, or a question that was left without one."""
    if newest.role == "user":
        return asked.split() != newest.text.split()
    return newest.role == "assistant"


def _of_buffer(data: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the keywords that describe a serialised ChatMemoryBuffer or ChatSummaryMemoryBuffer; its LLM is given beside."""
    load = cast("Callable[[dict[str, Any]], BaseChatStore]", load_chat_store)
    names = ("chat_store_key", "token_limit", "summarize_prompt", "count_initial_tokens")
    settings = {name: data[name] for name in names if name in data}
    if "chat_history" in data:  # the form of older releases
        return {**settings, "chat_history": [ChatMessage.model_validate(m) for m in data["chat_history"]]}
    return {**settings, "chat_store": load(dict(data["chat_store"]))}
