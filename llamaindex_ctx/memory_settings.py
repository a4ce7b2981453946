"""Translates the keywords of a `CtxMemory`, and those of LlamaIndex's own memories, and opens the engine that they describe."""

from __future__ import annotations

import hashlib
import uuid
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.llms.llm import LLM
from llama_index.core.memory.memory import DEFAULT_MEMORY_BLOCKS_TEMPLATE, DEFAULT_TOKEN_LIMIT, InsertMethod
from llama_index.core.memory.types import DEFAULT_CHAT_STORE_KEY
from llama_index.core.prompts import RichPromptTemplate
from llama_index.core.storage.chat_store.base import BaseChatStore
from llama_index.core.storage.chat_store.base_db import AsyncDBChatStore
from sqlalchemy.ext.asyncio import AsyncEngine

from ctxfold.adapters.sessions import EngineSettings
from ctxfold.errors import ConfigError
from ctxfold.policy.settings import check_settings
from ctxfold.protocols import Store
from ctxfold.sections.section import check_sections
from ctxfold.session.context import AgentContext
from ctxfold.validation import kind_of, warn_caller, whole_number
from llamaindex_ctx.instrumentation import tell
from llamaindex_ctx.memory_blocks import Blocks
from llamaindex_ctx.messages import listed
from llamaindex_ctx.retrieval import as_embedder
from llamaindex_ctx.store_registry import ChatStoreCopy, Live, SessionHistories, Source, find_source, keep_live
from llamaindex_ctx.summarizer import LlmSummarizer, check_llm, reply_limit, told_window

# the positional parameters of `Memory.from_defaults`
MEMORY = (
    "session_id", "chat_history", "token_limit", "memory_blocks", "tokenizer_fn", "chat_history_token_ratio", "token_flush_size",
    "memory_blocks_template", "insert_method", "image_token_size_estimate", "audio_token_size_estimate",
    "video_token_size_estimate", "chat_store", "table_name", "async_database_uri", "async_engine", "db_schema",
)  # fmt: skip
# those of both buffers, each with a type that the parameter of `Memory` at the same place never has
BUFFER: Mapping[str, type | tuple[type, ...]] = {
    "chat_history": (list, tuple),
    "llm": LLM,
    "chat_store": BaseChatStore,
    "chat_store_key": str,
    "token_limit": int,
    "tokenizer_fn": object,
    "summarize_prompt": str,
    "count_initial_tokens": bool,
}
RATIO = 0.7  # the default of `chat_history_token_ratio`
FLUSHED = 0.1  # the share of the limit that `Memory` flushes at once by default
LEAST_TAIL = 0.05
SUMMARY_TOKENS = 2_048  # the longest summary by default: it takes room that `Memory` leaves to messages

# settings without a counterpart: the default, and the reason
UNUSED: Mapping[str, tuple[Any, str]] = {
    "memory_blocks_template": (
        DEFAULT_MEMORY_BLOCKS_TEMPLATE,
        "the text of memory blocks stands before the question as quoted data, in a form of its own",
    ),
    "image_token_size_estimate": (256, "an image is counted by its size in pixels"),
    "audio_token_size_estimate": (256, "audio is counted by its length"),
    "video_token_size_estimate": (256, "video is counted by its length"),
    "document_token_size_estimate": (2048, "a document is counted by its pages and text"),
    "table_name": ("llama_index_memory", "the store has tables of its own"),
    "db_schema": (None, "set search_path in the URL of the store"),
}


class StockSettings(EngineSettings, total=False):
    """The keyword arguments of LlamaIndex's own memories that `CtxMemory` has other names for, or none."""

    async_database_uri: str | None
    async_engine: AsyncEngine | None
    audio_token_size_estimate: int
    chat_history_token_ratio: float
    chat_store: BaseChatStore | AsyncDBChatStore | None
    chat_store_key: str | None
    count_initial_tokens: bool
    db_schema: str | None
    document_token_size_estimate: int
    image_token_size_estimate: int
    insert_method: InsertMethod | str
    memory_blocks_template: RichPromptTemplate | None
    sql_store: AsyncDBChatStore | None
    summarize_prompt: str | None
    table_name: str
    token_flush_size: int
    video_token_size_estimate: int


def positional_settings(first: object, others: Sequence[object]) -> dict[str, Any]:
    """Returns positional arguments by name: those of `Memory.from_defaults`, or those of the buffers'.

    The first argument whose type only the buffers have at its place tells which they are.
    """
    values = (first, *others)
    first_set = next((i for i, value in enumerate(values) if value is not None), None)
    names = tuple(BUFFER) if first_set is not None and _of_buffer(first_set, values[first_set]) else MEMORY
    if len(values) > len(names):
        raise ConfigError(f"{len(values)} positional arguments: there are {len(names)}, {', '.join(names)}")
    return {name: value for name, value in zip(names, values, strict=False) if value is not None}


def _of_buffer(place: int, value: object) -> bool:
    name = tuple(BUFFER)[place] if place < len(BUFFER) else ""
    if name == "tokenizer_fn":
        return callable(value)
    return bool(name) and isinstance(value, BUFFER[name])


@dataclass(frozen=True, slots=True)
class Place:
    """The session that a memory opens: its name, its owner, its store, and the messages that it begins with."""

    session_id: str
    owner: str
    store: str | Store | None
    chat_store: BaseChatStore | AsyncDBChatStore | None = None


def place_of(session_id: str | None, owner: str, store: str | Store | None, settings: dict[str, Any]) -> Place:
    """Takes the settings that say where messages are out of `settings`. ConfigError where two of them disagree.

    A chat store takes precedence over an engine, and an engine over a URL, as in `Memory`.
    """
    chat_store = _chat_store(settings)
    key = settings.pop("chat_store_key", None)
    uri, engine = settings.pop("async_database_uri", None), settings.pop("async_engine", None)
    if session_id is not None and key not in (None, DEFAULT_CHAT_STORE_KEY, session_id):
        raise ConfigError(
            f"session_id is {session_id!r} and chat_store_key {key!r}: they are the same setting, give one"
        )
    if session_id is None:
        session_id = str(key) if key else (DEFAULT_CHAT_STORE_KEY if chat_store is not None else uuid.uuid4().hex)
    theirs = {"chat_store": chat_store, "async_engine": engine, "async_database_uri": uri}
    also = next((name for name, value in theirs.items() if value is not None), None)
    if store is not None and also is not None:
        raise ConfigError(f"store and {also} both say where the messages are: give one")
    if chat_store is not None:
        return _place_of_chat_store(session_id, owner, chat_store)
    if engine is not None:
        store = _url_of(engine)
    return Place(session_id, owner, store if store is not None else uri)


def chat_store_source(store: str | Store | None, stock: dict[str, Any]) -> str | Store | None:
    """Returns the store of a chat store, given the keywords of LlamaIndex's own; warns of those without a counterpart."""
    known = ("async_database_uri", "async_engine", "db_schema", "table_name")
    if unknown := next((name for name in stock if name not in known), None):
        raise ConfigError(
            f"a chat store has no setting {unknown!r}: use store, owner, max_sessions, {', '.join(known)}"
        )
    place = place_of("chat", "default", store, stock)
    warn_unused(stock)
    return place.store


def _chat_store(settings: dict[str, Any]) -> Any:
    """Takes the chat store out of the settings, under either of its names."""
    first, second = settings.pop("chat_store", None), settings.pop("sql_store", None)
    if first is not None and second is not None and first is not second:
        raise ConfigError("chat_store and sql_store are the same setting: give one")
    return first if first is not None else second


def _place_of_chat_store(session_id: str, owner: str, chat_store: object) -> Place:
    histories = getattr(chat_store, "histories", chat_store)
    if isinstance(histories, SessionHistories):
        if owner not in ("default", histories.owner):
            raise ConfigError(f"owner is {owner!r} and the chat store's {histories.owner!r}: give one")
        return Place(session_id, histories.owner, histories.store)
    if not isinstance(chat_store, BaseChatStore | AsyncDBChatStore):
        raise ConfigError(
            f"chat_store is {kind_of(chat_store)}: give a chat store of LlamaIndex, or store='sqlite:///chat.db'"
        )
    return Place(session_id, owner, None, chat_store)


def _url_of(engine: object) -> str:
    """Returns the URL of an engine, with its password: the store opens connections of its own."""
    if not isinstance(engine, AsyncEngine):
        raise ConfigError(
            f"async_engine is {kind_of(engine)}: give SQLAlchemy's AsyncEngine, or store='sqlite:///chat.db'"
        )
    return engine.url.render_as_string(hide_password=False)


def stock_rules(settings: dict[str, Any], token_limit: int | None) -> dict[str, Any]:
    """Takes the settings that have a counterpart in the policy out of `settings`, and returns them under its names.

    `Memory` flushes `token_flush_size` tokens when the history takes more than `chat_history_token_ratio` of the limit. Here,
    a compaction at that size leaves as many tokens, its summary among them.
    """
    prompt = settings.pop("summarize_prompt", None)
    rules: dict[str, Any] = {} if prompt is None else {"summary_prompt": _prompt(prompt, settings)}
    settings.pop("count_initial_tokens", None)  # `get` counts them in any case
    limit = token_limit or DEFAULT_TOKEN_LIMIT
    ratio, flushed = settings.pop("chat_history_token_ratio", None), settings.pop("token_flush_size", None) or None
    if flushed is not None:
        flushed = whole_number(
            "token_flush_size", flushed, "give the tokens that leave the window at once, as a number"
        )
        if flushed == int(DEFAULT_TOKEN_LIMIT * FLUSHED) or not 0 < flushed <= limit:
            flushed = None  # the default, or what LlamaIndex replaces by its default
    if ratio is not None and (isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 < ratio <= 1):
        raise ConfigError(
            f"chat_history_token_ratio is {ratio!r}: give a share of the limit, more than 0 and at most 1"
        )
    if ratio in (None, RATIO) and flushed is None:
        return rules
    due = RATIO if ratio is None else float(ratio)
    freed = FLUSHED if flushed is None else flushed / limit
    return rules | {
        "hard_ratio": due,
        "soft_ratio": min(0.6, due),
        "tail_ratio": max(min(LEAST_TAIL, due / 2), due - freed - min(0.2, SUMMARY_TOKENS / limit)),
        "min_free_ratio": min(0.2, freed, due / 2),
    }


def _prompt(prompt: object, settings: Mapping[str, Any]) -> object:
    if settings.get("summary_prompt") is not None:
        raise ConfigError("summarize_prompt and summary_prompt are the same setting: give one")
    return prompt


def warn_unused(settings: dict[str, Any]) -> None:
    """Takes the settings without a counterpart out of `settings`, and warns of each that is not LlamaIndex's default."""
    method = settings.pop("insert_method", InsertMethod.USER)
    try:  # both are accepted; blocks are always in a user message, because a changed system message breaks the prompt cache
        InsertMethod(method)
    except ValueError:
        raise ConfigError(f"insert_method is {method!r}: give InsertMethod.SYSTEM or InsertMethod.USER") from None
    for name, (default, reason) in UNUSED.items():
        value = settings.pop(name, None)
        if value is not None and value is not default and value != default:
            warn_caller(f"{name} has no effect on a CtxMemory: {reason}")


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


def _rules_of(settings: dict[str, Any], window: Any, limit: Any, llm: LLM | None) -> dict[str, Any]:
    """Returns the settings of a session for what is left of a memory's keywords; warns of those without a counterpart."""
    warn_unused(settings)
    rules = {**stock_rules(settings, limit), **settings}
    if rules.get("policy") is None or window is not None or limit is not None:
        rules |= window_rules(window, limit, llm)
        if rules.get("policy") is None and rules.get("reply_reserve_tokens") is None:
            rules |= reply_reserve(rules["context_window"], llm)
    return rules


def open_live(
    settings: Mapping[str, Any], *, recall: bool, known: Collection[str]
) -> tuple[Live, Sequence[ChatMessage | str] | None]:
    """Opens the engine that the keywords of a memory describe, and keeps it for as long as a memory uses it.

    Returns it with the messages that replace the session's. Raises ConfigError for a keyword that is not among the `known` ones.
    """
    check_settings(settings, known, [name for name in known if name not in StockSettings.__annotations__])
    rules = dict(settings)
    session_id, history = rules.pop("session_id", None), rules.pop("chat_history", None)
    if session_id is not None and not isinstance(session_id, str):
        raise ConfigError(
            f"session_id is {kind_of(session_id)}: give the session's name, or the messages once, as chat_history=[...]"
        )
    messages = None if history is None else listed(history)
    place = place_of(session_id, rules.pop("owner", "default"), rules.pop("store", None), rules)
    llm, blocks = rules.pop("llm", None), rules.pop("memory_blocks", None)
    if llm is not None:
        check_llm("llm", llm)
    source = source_of(place.store, llm)
    llm = llm or source.llm
    window, limit = rules.pop("context_window", None), rules.pop("token_limit", None)
    tokenizer_fn, counter = rules.pop("tokenizer_fn", None), rules.pop("counter", None)
    sections, embedder = rules.pop("sections", ()), rules.pop("embedder", None)
    rules = _rules_of(rules, window, limit, llm)
    if not recall:
        rules.setdefault("recall_ratio", 0.0)  # sections are looked for all the same
    if blocks is None:
        blocks = source.memory_blocks(place.session_id) if source.memory_blocks else ()
    own_blocks = Blocks(blocks) if blocks else None
    # a memory makes no requests: whatever stands beside the conversation travels with the messages that it gives out
    beside = [
        replace(s, lifetime="request")
        for s in (*(own_blocks.sections() if own_blocks else ()), *check_sections(sections))
    ]
    opened, ours = source.open()
    try:
        context = AgentContext(
            session_id=place.session_id,
            owner=place.owner,
            store=opened,
            summarizer=LlmSummarizer(llm) if llm is not None else None,
            counter=counter or (FunctionCounter(tokenizer_fn) if tokenizer_fn else None),
            sections=beside,
            embedder=as_embedder(embedder),
            **rules,
        )
        if own_blocks is not None:
            own_blocks.bind(context)
    except BaseException:
        if ours:
            opened.close()
        raise
    context.subscribe(tell)
    count = context.handle.counter.count_text
    tokenize: Tokenizer = tokenizer_fn or (lambda text: range(count(text)))
    copied = None if place.chat_store is None else ChatStoreCopy(place.chat_store, place.session_id)
    shows = bool(beside) or bool(context.handle.engine.rules.memory)
    live = Live(uuid.uuid4().hex, context, source, opened if ours else None, tokenize, own_blocks, shows, copy=copied)
    for side in [each.side for each in (own_blocks, copied) if each is not None]:
        weakref.finalize(live, side.close).atexit = False
    keep_live(live)
    return live, messages


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
