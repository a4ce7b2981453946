"""Store URLs and provider names become Ports: the only module that knows stores and backends by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ctxfold.budget import MessageCounter, Policy, policy
from ctxfold.errors import ConfigError
from ctxfold.ports import ContextBackend, Ports, Store, TokenCounter
from ctxfold.tokens import TextCounter, text_counter

if TYPE_CHECKING:
    from ctxfold.stores.memory import MemoryStore

__all__ = ["message_counter", "open_store", "ports", "session_rules"]


def open_store(store: str | Store | None) -> Store:
    """A store from `sqlite:///file.db`, `postgresql+psycopg://...`, `memory://`, a Store object, or None for memory."""
    if store is None or store == "memory://":
        return _memory()
    if not isinstance(store, str):
        return store
    scheme = store.partition(":")[0]
    if scheme.partition("+")[0] not in {"sqlite", "postgresql", "postgres"}:
        raise ConfigError(
            f"store {scheme[:40]!r}: use sqlite:///file.db, postgresql+psycopg://..., memory://, or a Store object"
        )
    from ctxfold.stores.sql import SqlStore

    return SqlStore(store)


def _memory() -> MemoryStore:
    from ctxfold.stores.memory import MemoryStore

    return MemoryStore()


def message_counter(
    counter: TokenCounter | TextCounter | None, *, model: str | None = None, count_reasoning: bool = True
) -> TokenCounter:
    """A counter of messages: the one given, one over the text counter given, or the encoding that suits the model."""
    if counter is None:
        return MessageCounter(text_counter(model), count_reasoning=count_reasoning)
    if hasattr(counter, "count_tools"):
        return counter  # type: ignore[return-value]
    return MessageCounter(counter, count_reasoning=count_reasoning)  # type: ignore[arg-type]


def session_rules(context_window: int | None, backend: ContextBackend | None, **rules: object) -> Policy:
    """The rules for a window: the one given, else the backend's row; ConfigError when neither knows it."""
    window = context_window if context_window is not None else backend.context_window if backend else None
    if window is None:
        name = f" of {backend.model!r}" if backend else ""
        raise ConfigError(f"the context window{name} is not known: give context_window=... in tokens")
    return policy(window, **rules)  # type: ignore[arg-type]


def ports(
    *,
    store: str | Store | None,
    backend: ContextBackend | None = None,
    summarizer: ContextBackend | None = None,
    counter: TokenCounter | TextCounter | None = None,
    count_reasoning: bool = True,
) -> Ports:
    """Ports from what a user gives; without a summariser the backend itself writes summaries."""
    model = backend.model if backend else None
    return Ports(
        store=open_store(store),
        counter=message_counter(counter, model=model, count_reasoning=count_reasoning),
        backend=backend,
        summarizer=summarizer or backend,
    )
