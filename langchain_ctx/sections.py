"""`section_from`: what a retriever or a vector store finds, beside the conversation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableConfig
from langchain_core.vectorstores import VectorStore

from ctxfold import Item, Query, Section
from ctxfold.errors import ConfigError
from ctxfold.given import kind_of

__all__ = ["section_from"]

# a retriever may ask a model: nothing of that reaches the callbacks or the stream of the run around it
_APART: RunnableConfig = {"callbacks": [], "tags": ["nostream", "ctxfold:section"], "run_name": "ctxfold section"}
_PROVENANCE = ("source", "file_path", "url", "title")


def section_from(
    source: BaseRetriever | VectorStore, *, kind: str = "documents", limit: int = 8, **terms: Any
) -> Section:
    """A section that asks a retriever, or the `limit` nearest of a vector store, with the newest user message.

    ```python
    model = with_context(chat, session="s", context_window=64_000, sections=[section_from(vector_store)])
    ```
    What is found is shown as data, with each document's source and page beside it, once per document. A retriever that fails or
    is too slow costs only its section. `terms` are those of `ctxfold.Section`: place, lifetime, share, min_free_ratio, timeout_s.
    """
    given: Any = source  # or whatever else a caller hands over
    retriever: Any = given.as_retriever(search_kwargs={"k": limit}) if isinstance(given, VectorStore) else given
    if not isinstance(retriever, BaseRetriever):
        raise ConfigError(f"{kind_of(given)} is no source for a section: give a retriever or a vector store")
    return Section(kind, _Retrieved(retriever), **terms)


@dataclass(frozen=True, slots=True)
class _Retrieved:
    """In async code it is asked in a worker thread, so that it serves both kinds of code."""

    retriever: BaseRetriever

    def __call__(self, query: Query) -> list[Item]:
        return [_item(d) for d in self.retriever.invoke(query.text, _APART.copy())]


def _item(document: Document) -> Item:
    known = cast("Mapping[str, object]", document.metadata)
    source = next((str(known[name]) for name in _PROVENANCE if known.get(name)), "")
    page = known.get("page")
    told = f"{source}, page {page}" if source and page is not None else source
    return Item(document.page_content, source=told, id=document.id)
