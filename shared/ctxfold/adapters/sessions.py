"""The sessions of many users over one engine and one store; checks of embedders, and items out of what retrievers find."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

from ctxfold._lifecycle import Closing
from ctxfold.compaction.strategy import StrategyLike
from ctxfold.connect import open_store
from ctxfold.effects import in_thread
from ctxfold.events import Subscriber
from ctxfold.policy.prices import Prices
from ctxfold.policy.settings import Policy, PolicyFields
from ctxfold.protocols import Embedder, Store
from ctxfold.sections.section import Item
from ctxfold.session.context import AgentContext
from ctxfold.validation import check_has


class EngineSettings(PolicyFields, total=False):
    """The keyword arguments that a framework's constructors pass on to `AgentContext`."""

    policy: Policy | None
    reply_reserve_tokens: int | None
    strategy: StrategyLike | None
    prices: Prices | None
    max_sessions: int | None


class SessionPool(Closing):
    """Hands out sessions over one engine, which is made with the first of them. Safe across threads and tasks.

    Args:
        store: as `AgentContext` takes it. A store given as a URL, or as None, is opened here and closed by `close`.
        settings: the other keyword arguments of `AgentContext`; they should have been checked before.
        subscriber: receives the events of every session.
    """

    def __init__(self, store: str | Store | None, settings: Mapping[str, Any], *, subscriber: Subscriber) -> None:
        self._settings = dict(settings)
        self._subscriber = subscriber
        self.store = open_store(store)
        self._owns_store = store is None or isinstance(store, str)
        self._first: AgentContext | None = None
        self._lock = threading.Lock()

    def at(self, session_id: str, owner: str, *, create: bool = True) -> AgentContext:
        """Returns the session. The first one asked for is opened at once, any other at its first use."""
        return self.first(session_id, owner, create=create).at(session_id, owner=owner, create=create)

    async def aat(self, session_id: str, owner: str) -> AgentContext:
        return (await self.afirst(session_id, owner)).at(session_id, owner=owner)

    def first(self, session_id: str, owner: str, *, create: bool = True) -> AgentContext:
        """Returns the session that was opened first, which is this one when there is none yet. All share its engine."""
        with self._lock:
            if self._first is None:
                self._first = self.open(session_id=session_id, owner=owner, store=self.store, create=create)
            return self._first

    async def afirst(self, session_id: str, owner: str) -> AgentContext:
        if self._first is not None:
            return self._first
        return await in_thread(partial(self.first, session_id, owner))

    def open(self, **session: Any) -> AgentContext:
        """Returns a session in an engine of its own; without `store`, in a memory of its own. `session` precedes the settings."""
        context = AgentContext(**{**self._settings, **session})
        context.subscribe(self._subscriber)
        return context

    def close(self) -> None:
        """Ends background work, and closes the store if it was opened here."""
        if self._first is not None:
            self._first.close()
        if self._owns_store:
            self.store.close()

    async def aclose(self) -> None:
        if self._first is not None:
            await self._first.aclose()
        if self._owns_store:
            await self.store.aclose()


def found_item(
    text: str,
    metadata: Mapping[str, object],
    *,
    sources: Sequence[str],
    page: str,
    id: str | None,
    score: float | None = None,
) -> Item:
    """Returns a retrieved passage with its provenance.

    Args:
        sources: names of the metadata that may tell where the passage comes from; the first that is there is taken.
        page: name of the metadata that holds the page.
    """
    source = next((str(metadata[name]) for name in sources if metadata.get(name)), "")
    number = metadata.get(page)
    return Item(text, score, f"{source}, page {number}" if source and number is not None else source, id)


def checked_embedder(embedder: Any, framework_kind: str) -> Embedder | None:
    """Returns the embedder. ConfigError for what is none; `framework_kind` says what else may be given."""
    if embedder is not None:
        advice = f"give {framework_kind}, or an object with embed and aembed"
        check_has("embedder", embedder, ("embed", "aembed"), advice)
    return cast("Embedder | None", embedder)
