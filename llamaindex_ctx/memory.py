"""`CtxMemory`: a LlamaIndex memory over ctxfold's engine. The store holds every message, the window what fits."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.llms.llm import LLM
from llama_index.core.memory.types import BaseMemory
from pydantic import Field, PrivateAttr

from ctxfold import Section
from ctxfold.closing import Closing
from ctxfold.errors import MessageTooLargeError, WindowTooSmallError
from ctxfold.messages import Message, ToolCallPart
from ctxfold.ports import Store, TokenCounter
from ctxfold.session import AgentContext
from ctxfold.tokens import TextCounter
from ctxfold.vectors import Embedder
from llamaindex_ctx.convert import from_chat_messages
from llamaindex_ctx.instrumentation import span
from llamaindex_ctx.marks import ID_KEY, is_section, is_summary, section
from llamaindex_ctx.memory_blocks import Block, asking
from llamaindex_ctx.opening import FunctionCounter, Tokenizer, live_at, open_live, source_of, window_rules
from llamaindex_ctx.registry import Live, drop_live, find_live, forget, name_of, stored_name
from llamaindex_ctx.revert import to_chat_messages
from llamaindex_ctx.rounds import finished, unanswered

__all__ = ["CtxMemory"]

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
        memory_blocks: Sequence[Block] | None = None,
        sections: Sequence[Section] = (),
        embedder: BaseEmbedding | Embedder | None = None,
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
            memory_blocks: LlamaIndex's own or the user's, for this session alone: what each knows of the question stands beside
                the conversation as data, and each is given what is compacted. None takes those of the registered store.
            sections: what else is to stand beside the conversation: `ctxfold.Section`.
            embedder: makes vectors, so that `get` recalls by meaning too.
            policy: further fields of `ctxfold.Policy`, and `max_tokens`, the reply reserve.
        """
        source, session = source_of(store, llm), session_id or uuid.uuid4().hex
        llm = llm or source.llm
        rules = {**policy, **window_rules(context_window, token_limit, llm)}
        if not recall:
            rules = {"recall_ratio": 0.0, **rules}  # sections are looked for all the same
        if memory_blocks is None:
            memory_blocks = source.memory_blocks(session) if source.memory_blocks else ()
        live = open_live(
            session,
            owner,
            source,
            llm=llm,
            counter=counter or (FunctionCounter(tokenizer_fn) if tokenizer_fn else None),
            tokenizer_fn=tokenizer_fn,
            blocks=memory_blocks,
            sections=sections,
            embedder=embedder,
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

    def at(self, session_id: str, *, owner: str | None = None) -> CtxMemory:
        """The memory of another session over the same engine and store, which is made at its first use."""
        return type(self)(live_at(self._live, session_id, owner), recall=self.recall)

    # reading

    @span
    def get(
        self, input: str | ChatMessage | None = None, initial_token_count: int = 0, **kwargs: Any
    ) -> list[ChatMessage]:
        """The window as new objects, made to fit beside `initial_token_count` tokens, never with half a tool round.

        Passages recalled for `input`, or for the newest user message, stand in one more user message: before the newest
        user message if that is last, else at the end. They are never stored.
        """
        self._check_room(initial_token_count)
        with self._asking(kwargs):
            window = self.context.window(recall=self._looks, question=_text(input), overhead_tokens=initial_token_count)
        self._feed()
        return _with_recalled(to_chat_messages(finished(window.messages)), window.recalled)

    @span
    async def aget(
        self, input: str | ChatMessage | None = None, initial_token_count: int = 0, **kwargs: Any
    ) -> list[ChatMessage]:
        self._check_room(initial_token_count)
        with self._asking(kwargs, on_loop=True):
            window = await self.context.awindow(
                recall=self._looks, question=_text(input), overhead_tokens=initial_token_count
            )
        await self._afeed()
        return _with_recalled(await _shown(finished(window.messages)), window.recalled)

    @property
    def _looks(self) -> bool:
        return self.recall or self._live.beside

    def _asking(self, kwargs: Mapping[str, Any], *, on_loop: bool = False) -> AbstractContextManager[None]:
        """What memory blocks are told, beyond the question, of the call that asks them."""
        if self._live.blocks is None:
            return nullcontext()
        return asking(lambda: to_chat_messages(finished(self.context.view().messages)), kwargs, on_loop=on_loop)

    def _feed(self) -> None:
        if self._live.blocks is not None:
            self._live.blocks.feed(self.context)

    async def _afeed(self) -> None:
        if self._live.blocks is not None:
            await self._live.blocks.afeed(self.context)

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

    def put(self, message: ChatMessage | str) -> None:
        """Store a message; one that carries a known id is kept once. MessageTooLargeError if it can never be shown.

        A string is a user message. Where the message goes on without the results of the calls before it, a note answers those.
        """
        self.put_messages([message])

    async def aput(self, message: ChatMessage | str) -> None:
        await self.aput_messages([message])

    @span
    def put_messages(self, messages: Sequence[ChatMessage | str]) -> None:
        """Store messages in one step: all of them, or on an error none."""
        self._put(messages)
        self._feed()

    def _put(self, messages: Sequence[ChatMessage | str]) -> None:
        view = self.context.view().messages if self._needs_view(messages) else ()
        fresh = _without_own(self._taken(messages, unanswered(view)), view)
        if fresh:
            self._live.waiting = self.context.add(fresh, known_ids=_carry_ids(messages)).turn_id is not None

    @span
    async def aput_messages(self, messages: Sequence[ChatMessage | str]) -> None:
        await (asyncio.to_thread(self._put, messages) if _heavy(messages) else self._aput(messages))
        await self._afeed()

    async def _aput(self, messages: Sequence[ChatMessage | str]) -> None:
        view = (await self.context.aview()).messages if self._needs_view(messages) else ()
        fresh = _without_own(self._taken(messages, unanswered(view)), view)
        if fresh:
            added = await self.context.aadd(fresh, known_ids=_carry_ids(messages))
            self._live.waiting = added.turn_id is not None

    @span
    def set(self, messages: Sequence[ChatMessage | str]) -> None:
        """Put messages in place of all others, at once; on an error nothing has changed. The archive keeps the old ones."""
        self._set(messages)
        self._feed()

    def _set(self, messages: Sequence[ChatMessage | str]) -> None:
        fresh = _once(self._taken(messages))
        self.context.set_messages(fresh, prompts=True)
        self._live.waiting = bool(unanswered(fresh))

    @span
    async def aset(self, messages: Sequence[ChatMessage | str]) -> None:
        await (asyncio.to_thread(self._set, messages) if _heavy(messages) else self._aset(messages))
        await self._afeed()

    async def _aset(self, messages: Sequence[ChatMessage | str]) -> None:
        fresh = _once(self._taken(messages))
        await self.context.aset_messages(fresh, prompts=True)
        self._live.waiting = bool(unanswered(fresh))

    def reset(self) -> None:
        """Empty the conversation, system messages too; the archive keeps what was there."""
        self.context.clear(prompts=True)
        self._live.waiting = False

    async def areset(self) -> None:
        await self.context.aclear(prompts=True)
        self._live.waiting = False

    def _needs_view(self, messages: Sequence[ChatMessage | str]) -> bool:
        """Whether calls wait for results, or the messages are such that a memory gave out itself."""
        return self._live.waiting or any(is_summary(m) for m in messages if isinstance(m, ChatMessage))

    def _taken(self, messages: Sequence[ChatMessage | str], waiting: Sequence[ToolCallPart] = ()) -> list[Message]:
        given = [m for m in messages if isinstance(m, str) or not is_section(m)]
        fresh = from_chat_messages(given, self.context.new_id, waiting)
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

        Further keywords are those of `from_defaults`, such as `llm` or another `store`. ConfigError when the store's name is
        not known, or is a URL: a dict may come from anywhere.
        """
        live = find_live(str(data.get("engine", "")))
        if live is not None and not kwargs:
            return cls(live, recall=bool(data.get("recall", True)))
        store = kwargs.pop("store", None) or stored_name(data.get("store"))
        given: dict[str, Any] = {"store": store, "owner": data["owner"], "recall": data.get("recall", True)}
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


def _text(input: str | ChatMessage | None) -> str | None:
    return input.content if isinstance(input, ChatMessage) else input


def _heavy(messages: Sequence[ChatMessage | str]) -> bool:
    return len(messages) > MANY or sum(len(m if isinstance(m, str) else m.content or "") for m in messages) > LONG


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


def _without_own(messages: Sequence[Message], view: Sequence[Message]) -> list[Message]:
    """The messages without summaries of this very session, which an engine hands back."""
    known = {m.id for m in view if m.kind == "summary"}
    return [m for m in messages if m.id not in known]


def _carry_ids(messages: Iterable[ChatMessage | str]) -> bool:
    """Whether any of them was handed out by a memory before."""
    return any(not isinstance(m, str) and ID_KEY in m.additional_kwargs for m in messages)


def _once(messages: Sequence[Message]) -> list[Message]:
    return list({m.id: m for m in messages}.values())
