"""`CtxMemory`: a LlamaIndex memory over ctxfold's engine. The store holds every message, the window what fits."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.llms.llm import LLM
from llama_index.core.memory.types import BaseMemory
from pydantic import Field, PrivateAttr

from ctxfold.closing import Closing
from ctxfold.errors import ConfigError, MessageTooLargeError, WindowTooSmallError
from ctxfold.messages import Message
from ctxfold.ports import Store, TokenCounter
from ctxfold.session import AgentContext
from ctxfold.tokens import TextCounter
from llamaindex_ctx.convert import from_chat_messages, is_section, section, to_chat_messages
from llamaindex_ctx.registry import Live, Source, find_live, find_source, forget, keep_live, name_of
from llamaindex_ctx.rounds import finished
from llamaindex_ctx.summarizer import LlmSummarizer

__all__ = ["CtxMemory"]

Tokenizer: TypeAlias = Callable[[str], Sequence[Any]]
# from here on, converting and counting would hold up an event loop
MANY = 200  # messages
LONG = 200_000  # characters


class CtxMemory(BaseMemory, Closing):
    """A session as LlamaIndex memory: `put` stores, `get` is the window made to fit, `get_all` every message.

    Make one with `from_defaults`. Safe across threads and tasks; copies share the engine. A context manager; `close` closes
    a store that was given by URL.
    """

    session_id: str = Field(description="the session's name in its store")
    owner: str = Field(default="default", description="whose session it is")
    recall: bool = Field(default=True, description="whether `get` adds passages of compacted messages")
    rules: dict[str, Any] = Field(default_factory=dict, description="the session's policy")
    tokenizer_fn: Tokenizer = Field(exclude=True, description="what chat engines count their prefix with")

    _live: Live = PrivateAttr()

    def __init__(self, live: Live, *, recall: bool = True) -> None:
        context = live.context
        fields: dict[str, Any] = {
            "session_id": context.session,
            "owner": context.owner,
            "recall": recall,
            "rules": context.policy.model_dump(mode="json"),
            "tokenizer_fn": live.tokenizer_fn,
        }
        super().__init__(**fields)
        self._live = live

    @classmethod
    def class_name(cls) -> str:
        return "CtxMemory"

    @classmethod
    def from_defaults(  # noqa: PLR0913 - LlamaIndex's own names beside ours
        cls,
        session_id: str | None = None,
        *,
        store: str | Store | None = None,
        context_window: int | None = None,
        llm: LLM | None = None,
        owner: str = "default",
        chat_history: Sequence[ChatMessage] | None = None,
        token_limit: int | None = None,
        tokenizer_fn: Tokenizer | None = None,
        counter: TokenCounter | TextCounter | None = None,
        recall: bool = True,
        **policy: Any,
    ) -> CtxMemory:
        """A memory over a session, which is made in the store when it is new.

        Args:
            session_id: the session's name; a new one is made up without it.
            store: `sqlite:///file.db`, `postgresql+psycopg://...`, a registered name, a Store, or None for memory.
            context_window: tokens in and out together; without it and `token_limit`, the LLM's own.
            llm: who writes summaries; None for extractive ones.
            chat_history: replaces what the session holds, as `set` does.
            token_limit: tokens that the history alone may take, without a reply reserve.
            tokenizer_fn: text to tokens, for counting; `counter` goes first.
            policy: further fields of `ctxfold.Policy`, and `max_tokens`, the reply reserve.
        """
        rules = {**policy, **_window(context_window, token_limit, llm)}
        source = find_source(store) if isinstance(store, str) and "://" not in store else _source(store, llm)
        live = _open(
            session_id or uuid.uuid4().hex,
            owner,
            source,
            llm=llm or source.llm,
            counter=counter or (_FunctionCounter(tokenizer_fn) if tokenizer_fn else None),
            tokenizer_fn=tokenizer_fn,
            rules=rules,
        )
        memory = cls(live, recall=recall)
        if chat_history is not None:
            memory.set(list(chat_history))
        return memory

    @property
    def context(self) -> AgentContext:
        """The session itself, for what LlamaIndex has no words for: pins, explain, usage, export, undo."""
        return self._live.context

    # reading

    def get(self, input: str | None = None, initial_token_count: int = 0, **kwargs: Any) -> list[ChatMessage]:
        """The window as new objects, made to fit beside `initial_token_count` tokens, never with half a tool round.

        Passages recalled for `input`, or for the newest user message, stand in one more user message: before the newest
        user message if that is last, else at the end. They are never stored.
        """
        self._check_room(initial_token_count)
        window = self.context.window(recall=self.recall, question=input, overhead_tokens=initial_token_count)
        return _with_recalled(to_chat_messages(finished(window.messages)), window.recalled)

    async def aget(self, input: str | None = None, initial_token_count: int = 0, **kwargs: Any) -> list[ChatMessage]:
        self._check_room(initial_token_count)
        window = await self.context.awindow(recall=self.recall, question=input, overhead_tokens=initial_token_count)
        return _with_recalled(await _shown(finished(window.messages)), window.recalled)

    def _check_room(self, tokens: int) -> None:
        budget = self.context.policy.budget_tokens
        if tokens > budget:
            raise WindowTooSmallError(
                f"the initial token count is {tokens}, the history's whole budget {budget}: shorten the prefix or raise "
                "context_window (token_limit)"
            )

    def get_all(self) -> list[ChatMessage]:
        """Every message of the conversation as it was put, those that were compacted too, in order; reads the log."""
        return to_chat_messages(self.context.messages())

    async def aget_all(self) -> list[ChatMessage]:
        return await _shown(await self.context.amessages())

    # writing

    def put(self, message: ChatMessage) -> None:
        """Store a message; one that carries a known id is kept once. MessageTooLargeError if it can never be shown."""
        self.put_messages([message])

    async def aput(self, message: ChatMessage) -> None:
        await self.aput_messages([message])

    def put_messages(self, messages: Sequence[ChatMessage]) -> None:
        """Store messages in one step: all of them, or on an error none."""
        fresh = self._taken(messages)
        if any(m.kind == "summary" for m in fresh):
            fresh = _without_own(fresh, {e.id for e in self.context.view()})
        if fresh:
            self.context.add(fresh)

    async def aput_messages(self, messages: Sequence[ChatMessage]) -> None:
        if _heavy(messages):
            await asyncio.to_thread(self.put_messages, messages)
            return
        fresh = self._taken(messages)
        if any(m.kind == "summary" for m in fresh):
            fresh = _without_own(fresh, {e.id for e in await self.context.aview()})
        if fresh:
            await self.context.aadd(fresh)

    def set(self, messages: Sequence[ChatMessage]) -> None:
        """Put messages in place of all others, at once; on an error nothing has changed. The archive keeps the old ones."""
        self.context.set_messages(_once(self._taken(messages)), prompts=True)

    async def aset(self, messages: Sequence[ChatMessage]) -> None:
        if _heavy(messages):
            await asyncio.to_thread(self.set, messages)
            return
        await self.context.aset_messages(_once(self._taken(messages)), prompts=True)

    def reset(self) -> None:
        """Empty the conversation, system messages too; the archive keeps what was there."""
        self.context.clear(prompts=True)

    async def areset(self) -> None:
        await self.context.aclear(prompts=True)

    def _taken(self, messages: Sequence[ChatMessage]) -> list[Message]:
        fresh = from_chat_messages([m for m in messages if not is_section(m)], self.context.new_id)
        budget = self.context.policy.budget_tokens
        newest = next((m for m in reversed(fresh) if m.role == "user"), None)
        # no text has more tokens than bytes, and counting costs
        if newest is not None and 4 * len(newest.text) > budget:
            tokens = self.context.counter.count(newest)
            if tokens > budget:
                raise MessageTooLargeError(
                    f"the message has {tokens} tokens, the window leaves {budget} for all messages: shorten it or raise "
                    "context_window (token_limit)"
                )
        return fresh

    # serialising

    def to_dict(self, **kwargs: Any) -> dict[str, Any]:
        """Pure JSON that names session and store; the store by a registered name, never by its URL."""
        fields = self.model_dump(mode="json")
        return {
            **fields,
            "store": name_of(self._live.source),
            "engine": self._live.key,
            "class_name": self.class_name(),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any], **kwargs: Any) -> CtxMemory:
        """The memory again: on its live engine in the same process, else on the store registered under its name.

        Further keywords are those of `from_defaults`, such as `llm`. ConfigError when the store's name is not known.
        """
        live = find_live(str(data.get("engine", "")))
        if live is not None and not kwargs:
            return cls(live, recall=bool(data.get("recall", True)))
        given = {"store": data["store"], "owner": data["owner"], "recall": data.get("recall", True)}
        rules = dict(data["rules"])
        rules["max_tokens"] = rules.pop("reply_reserve_tokens")
        return cls.from_defaults(data["session_id"], **{**given, **rules, **kwargs})

    def to_string(self) -> str:
        return json.dumps(self.to_dict())

    @classmethod
    def from_string(cls, text: str, **kwargs: Any) -> CtxMemory:
        return cls.from_dict(json.loads(text), **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self).from_dict, (self.to_dict(),))

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> CtxMemory:
        return type(self)(self._live, recall=self.recall)

    # closing

    def close(self) -> None:
        """Close the store if it was opened here; every copy of this memory ends with it."""
        forget(self._live.source)
        if self._live.opened is not None:
            self._live.opened.close()

    async def aclose(self) -> None:
        forget(self._live.source)
        if self._live.opened is not None:
            await self._live.opened.aclose()


class _FunctionCounter:
    """A `tokenizer_fn` as a text counter."""

    def __init__(self, tokenize: Tokenizer) -> None:
        self._tokenize = tokenize
        named = tokenize if hasattr(tokenize, "__qualname__") else type(tokenize)
        self.id = f"tokenizer_fn:{getattr(named, '__module__', '')}.{getattr(named, '__qualname__', '')}"

    def count(self, text: str) -> int:
        return len(self._tokenize(text))


def _window(context_window: int | None, token_limit: int | None, llm: LLM | None) -> dict[str, Any]:
    """Window and reply reserve; `token_limit` is a budget, so the window is that and the reserve."""
    if token_limit is not None and token_limit <= 0:
        raise ConfigError(f"token_limit is {token_limit}: give the tokens that the history may take, 1 or more")
    window = context_window
    if window is None and token_limit is None and llm is not None:
        window = llm.metadata.context_window
    if window is None and token_limit is None:
        raise ConfigError("the context window is not known: give context_window=..., token_limit=... or llm=...")
    if token_limit is None:
        return {"context_window": window}
    if window is None:
        return {"context_window": token_limit + 1, "max_tokens": 1}
    if token_limit >= window:
        raise ConfigError(
            f"token_limit is {token_limit} and context_window {window}: lower token_limit, or leave one out"
        )
    return {"context_window": window, "max_tokens": window - token_limit}


def _source(store: str | Store | None, llm: LLM | None) -> Source:
    from ctxfold.connect import open_store

    if store is None or store == "memory://":
        return Source(open_store(None), llm)
    return Source(store, llm)


def _open(
    session: str,
    owner: str,
    source: Source,
    *,
    llm: LLM | None,
    counter: TokenCounter | TextCounter | None,
    tokenizer_fn: Tokenizer | None,
    rules: dict[str, Any],
) -> Live:
    opened, ours = source.open()
    try:
        context = AgentContext(
            session=session,
            owner=owner,
            store=opened,
            summarizer=LlmSummarizer(llm) if llm is not None else None,
            counter=counter,
            **rules,
        )
    except BaseException:
        if ours:
            opened.close()
        raise
    count = context.counter.count_text
    tokenize: Tokenizer = tokenizer_fn or (lambda text: range(count(text)))
    live = Live(uuid.uuid4().hex, context, source, opened if ours else None, tokenize)
    keep_live(live)
    return live


def _heavy(messages: Sequence[ChatMessage]) -> bool:
    return len(messages) > MANY or sum(len(m.content or "") for m in messages) > LONG


async def _shown(messages: Sequence[Message]) -> list[ChatMessage]:
    """The messages converted, in a thread where they are many."""
    if len(messages) > MANY:
        return await asyncio.to_thread(to_chat_messages, messages)
    return to_chat_messages(messages)


def _with_recalled(messages: list[ChatMessage], recalled: str) -> list[ChatMessage]:
    if not recalled:
        return messages
    last_is_user = bool(messages) and messages[-1].role == "user"
    messages.insert(len(messages) - 1 if last_is_user else len(messages), section(recalled))
    return messages


def _without_own(messages: Sequence[Message], known: set[str]) -> list[Message]:
    """The messages without summaries of this very session, which an engine hands back."""
    return [m for m in messages if m.kind != "summary" or m.id not in known]


def _once(messages: Sequence[Message]) -> list[Message]:
    return list({m.id: m for m in messages}.values())
