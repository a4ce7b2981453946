"""Translates the settings of LlamaIndex's own memories into those of a `CtxMemory`."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llama_index.core.llms.llm import LLM
from llama_index.core.memory.memory import (
    DEFAULT_MEMORY_BLOCKS_TEMPLATE,
    DEFAULT_TOKEN_LIMIT,
    InsertMethod,
)
from llama_index.core.memory.types import DEFAULT_CHAT_STORE_KEY
from llama_index.core.prompts import RichPromptTemplate
from llama_index.core.storage.chat_store.base import BaseChatStore
from llama_index.core.storage.chat_store.base_db import AsyncDBChatStore
from sqlalchemy.ext.asyncio import AsyncEngine

from ctxfold.adapters.sessions import EngineSettings
from ctxfold.errors import ConfigError
from ctxfold.protocols import Store
from ctxfold.validation import kind_of, warn_caller, whole_number
from llamaindex_ctx.store_registry import SessionHistories

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
    _check_insert_method(settings.pop("insert_method", InsertMethod.USER))
    for name, (default, reason) in UNUSED.items():
        value = settings.pop(name, None)
        if value is not None and value is not default and value != default:
            warn_caller(f"{name} has no effect on a CtxMemory: {reason}")


def _check_insert_method(value: object) -> None:
    """Accepts both methods, but blocks are always in a user message, because a changed system message breaks the prompt cache."""
    try:
        InsertMethod(value)
    except ValueError:
        raise ConfigError(f"insert_method is {value!r}: give InsertMethod.SYSTEM or InsertMethod.USER") from None
