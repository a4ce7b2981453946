"""One engine and one store for many sessions and owners."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

from ctxfold.connect import open_store, session_rules
from ctxfold.ports import ContextBackend, Store, TokenCounter
from ctxfold.session import AgentContext
from ctxfold.tokens import TextCounter
from langchain_ctx.embedding import as_embedder
from langchain_ctx.summarizer import as_summarizer

__all__ = ["Sessions"]

_NO_RULES = ("embedder", "prices", "sections", "strategy")  # what an AgentContext takes beside the fields of a policy


class Sessions:
    """Hands out sessions over one engine, which is made with the first of them; safe across threads and tasks.

    `policy` holds fields of `Policy`, and `embedder`, `prices`, `sections` and `strategy` as `AgentContext` takes them; an
    embedder may be LangChain's `Embeddings`.
    Settings are checked at once: ConfigError, WindowTooSmallError. A store given as a URL is opened here and closed by `close`.
    """

    def __init__(
        self,
        *,
        store: str | Store | None,
        context_window: int | None,
        backend: ContextBackend | None = None,
        summarizer: Any = None,
        counter: TokenCounter | TextCounter | None = None,
        max_tokens: int | None = None,
        policy: Mapping[str, Any],
    ) -> None:
        rules = dict(policy)
        more = {name: rules.pop(name) for name in _NO_RULES if name in rules}
        if more.get("embedder") is not None:
            more["embedder"] = as_embedder(more["embedder"])
        reserve = rules.pop("reply_reserve_tokens", max_tokens)
        if isinstance(more.get("strategy"), str):  # a name is a rule, an object is not
            rules["strategy"] = more.pop("strategy")
        session_rules(context_window, backend, reply_reserve_tokens=reserve, **rules)
        self._settings: dict[str, Any] = {
            "backend": backend,
            "context_window": context_window,
            "summarizer": as_summarizer(summarizer),
            "counter": counter,
            "max_tokens": reserve,
            **rules,
            **more,
        }
        self.store = open_store(store)
        self._owns_store = store is None or isinstance(store, str)
        self._first: AgentContext | None = None
        self._lock = threading.Lock()

    def at(self, session: str, owner: str, *, create: bool = True) -> AgentContext:
        """The session; the first one asked for is opened at once, any other at its first use."""
        with self._lock:
            if self._first is None:
                self._first = AgentContext(
                    session=session, owner=owner, store=self.store, create=create, **self._settings
                )
            first = self._first
        return first.at(session, owner=owner, create=create)

    async def aat(self, session: str, owner: str) -> AgentContext:
        """`at`, without holding up the loop."""
        if self._first is None:
            return await asyncio.to_thread(self.at, session, owner)
        return self.at(session, owner)

    def close(self) -> None:
        if self._first is not None:
            self._first.close()  # ends what runs in the background
        if self._owns_store:
            self.store.close()

    async def aclose(self) -> None:
        if self._first is not None:
            await self._first.aclose()
        if self._owns_store:
            await self.store.aclose()
