"""Builds what a memory works on: its window, its store and its engine."""

from __future__ import annotations

import hashlib
import uuid
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.llms.llm import LLM
from llama_index.core.memory.memory import DEFAULT_TOKEN_LIMIT

from ctxfold import Section
from ctxfold.errors import ConfigError
from ctxfold.protocols import Embedder, Store, TokenCounter
from ctxfold.sections.section import check_sections
from ctxfold.session.context import AgentContext
from ctxfold.tokens.text import TextCounter
from ctxfold.validation import kind_of, warn_caller, whole_number
from llamaindex_ctx.instrumentation import tell
from llamaindex_ctx.memory_blocks import Block, Blocks
from llamaindex_ctx.retrieval import as_embedder
from llamaindex_ctx.store_registry import Live, Source, find_source, keep_live
from llamaindex_ctx.summarizer import LlmSummarizer, reply_limit, told_window

Tokenizer: TypeAlias = Callable[[str], Sequence[Any]]

# changing a line makes stored counts be made anew
SAMPLE = (
    "The quick brown fox doesn't jump over twenty-two extraordinarily lazy dogs.",
    "Grüße aus Köln: Straßenbahnhaltestelle, dix-huit élèves, mañana por la mañana.",
    "Съешь ещё этих мягких французских булок, да выпей чаю.",
    "敏捷的棕色狐狸跳过了懒狗。素早い茶色の狐はのろまな犬を飛び越える。",
    "الثعلب البني السريع يقفز فوق الكلب الكسول. तेज़ भूरी लोमड़ी आलसी कुत्ते के ऊपर कूदती है।",
    "def total(rows: list[dict[str, int]]) -> int:\n    return sum(row['amount_eur'] ** 2 for row in rows)  # !=\n",
    '{"id": "7f3a-00b2", "at": "2024-02-29T23:59:59Z", "values": [3.14159, -1e-9, 1234567890]}',
    "  👩‍👩‍👧 🎉\t\t\r\n\n   https://example.org/a?b=c&d=%20#e   aaaaaaaaaaaaaaaa",
)


class FunctionCounter:
    """A `tokenizer_fn` as a text counter. Its id tells tokenizers of one name apart by what they make of a sample."""

    def __init__(self, tokenize: Tokenizer) -> None:
        if not callable(tokenize):
            raise ConfigError(f"tokenizer_fn is {kind_of(tokenize)}: give a function from a text to its tokens")
        self._tokenize = tokenize
        self._check()
        named = tokenize if hasattr(tokenize, "__qualname__") else type(tokenize)
        name = f"{getattr(named, '__module__', '')}.{getattr(named, '__qualname__', '')}"
        counts = ",".join(self._count_of(text) for text in SAMPLE)
        self.id = f"tokenizer_fn:{name}:{hashlib.sha256(counts.encode()).hexdigest()[:12]}"

    def count(self, text: str) -> int:
        return len(self._tokenize(text))

    def _check(self) -> None:
        try:
            result: object = self._tokenize("a")
        except Exception:  # noqa: BLE001 - it may know few characters
            return
        if not hasattr(result, "__len__"):
            raise ConfigError(
                f"tokenizer_fn returned {kind_of(result)}: it must return the tokens, as tiktoken's encode does; to count in "
                "another way pass counter=, an object with an id and count(text)"
            )

    def _count_of(self, text: str) -> str:
        try:
            return str(self.count(text))
        except Exception as error:  # noqa: BLE001 - it may know few characters, which is told of it too
            return type(error).__name__


def window_rules(context_window: int | None, token_limit: int | None, llm: LLM | None) -> dict[str, Any]:
    """Returns the window and the reply reserve; `token_limit` is a budget, so the window is that and the reserve.

    Without any of the three the limit is that of LlamaIndex's `Memory`.
    """
    if token_limit is not None:
        token_limit = whole_number("token_limit", token_limit, "give the tokens that the history may take, 1 or more")
    window = context_window
    if window is None and token_limit is None and llm is not None:
        window = told_window(llm)
        if window is None:
            warn_caller(
                f"the window of {type(llm).__name__} is not known, so the history may take {DEFAULT_TOKEN_LIMIT} tokens, "
                "LlamaIndex's default: give context_window=... or token_limit=..."
            )
    if window is None and token_limit is None:
        token_limit = DEFAULT_TOKEN_LIMIT
    if token_limit is None:
        return {"context_window": window}
    if window is None:
        return {"context_window": token_limit + 1, "reply_reserve_tokens": 1}
    window = whole_number("context_window", window, "give the model's window in tokens, 1 or more")
    if token_limit >= window:
        raise ConfigError(
            f"token_limit is {token_limit} and context_window {window}: lower token_limit, or leave one out"
        )
    return {"context_window": window, "reply_reserve_tokens": window - token_limit}


def reply_reserve(window: object, llm: LLM | None) -> dict[str, int]:
    """Returns the reserve for a reply of an LLM whose limit for it is more than the share that is kept by default.

    A service counts it as a part of the request. Where it is three quarters of the window or more, nothing is returned.
    """
    most = reply_limit(llm)
    if most is None or not isinstance(window, int):
        return {}
    return {"reply_reserve_tokens": most} if window // 5 < most < 3 * window // 4 else {}


def source_of(store: str | Store | None, llm: LLM | None) -> Source:
    """Returns the source for `store`: a URL, a registered name, a Store, or None for memory."""
    from ctxfold.connect import open_store

    if isinstance(store, str) and "://" not in store:
        return find_source(store)
    if store is None or store == "memory://":
        return Source(open_store(None), llm)
    return Source(store, llm)


def open_live(  # noqa: PLR0913 - one keyword per independent setting
    session: str,
    owner: str,
    source: Source,
    *,
    llm: LLM | None,
    counter: TokenCounter | TextCounter | None,
    tokenizer_fn: Tokenizer | None,
    blocks: Sequence[Block],
    sections: Sequence[Section],
    embedder: BaseEmbedding | Embedder | None,
    rules: dict[str, Any],
) -> Live:
    """Opens the engine of a session, which is kept for as long as a memory uses it."""
    block_section = Blocks(blocks) if blocks else None
    # a memory makes no requests: whatever stands beside the conversation travels with the messages that it gives out
    all_sections = [
        replace(s, lifetime="request")
        for s in (*(block_section.sections() if block_section else ()), *check_sections(sections))
    ]
    opened, ours = source.open()
    try:
        context = AgentContext(
            session_id=session,
            owner=owner,
            store=opened,
            summarizer=LlmSummarizer(llm) if llm is not None else None,
            counter=counter,
            sections=all_sections,
            embedder=as_embedder(embedder),
            **rules,
        )
        if block_section is not None:
            block_section.bind(context)
    except BaseException:
        if ours:
            opened.close()
        raise
    context.subscribe(tell)
    count = context.counter.count_text
    tokenize: Tokenizer = tokenizer_fn or (lambda text: range(count(text)))
    live = Live(
        uuid.uuid4().hex, context, source, opened if ours else None, tokenize, block_section, bool(all_sections)
    )
    if block_section is not None:
        weakref.finalize(live, block_section.side.close).atexit = False
    keep_live(live)
    return live


def live_at(live: Live, session: str, owner: str | None) -> Live:
    """Returns another session over the same engine and store; raises ConfigError when memory blocks would serve both."""
    if live.blocks is not None:
        raise ConfigError(
            "this memory has memory blocks, which belong to its session: open the other session with blocks of its own "
            "(CtxMemory.from_defaults(session_id, store=..., memory_blocks=[...]))"
        )
    chat_copy = None if live.copy is None else replace(live.copy, key=session)
    context = live.context.at(session, owner=owner)
    other = replace(live, key=uuid.uuid4().hex, context=context, waiting=False, copy=chat_copy)
    keep_live(other)
    return other
