"""`section_from`: what a LlamaIndex retriever or index finds, beside the conversation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.indices.base import BaseIndex
from llama_index.core.schema import MetadataMode, NodeWithScore
from llama_index_instrumentation.dispatcher import instrument_tags

from ctxfold import Item, Query, Section
from ctxfold.errors import ConfigError
from ctxfold.given import all_of, kind_of
from llamaindex_ctx.summarizer import marked

__all__ = ["listed_sections", "section_from"]

_PROVENANCE = ("source", "file_path", "file_name", "url", "title")


def section_from(
    source: BaseRetriever | BaseIndex[Any], *, kind: str = "documents", limit: int = 8, **terms: Any
) -> Section:
    """A section that asks a retriever, or the `limit` nearest of an index, with the newest user message.

    ```python
    memory = CtxMemory.from_defaults("s", context_window=64_000, sections=[section_from(index)])
    ```
    What is found is shown as data, with each node's file and page beside it, once per node. A retriever that fails or is too slow
    costs only its section. `terms` are those of `ctxfold.Section`: place, lifetime, share, min_free_ratio, timeout_s. Its
    instrumentation events carry the tag `ctxfold: section`.
    """
    retriever: object = source
    if isinstance(source, BaseIndex):
        retriever = source.as_retriever(similarity_top_k=limit)
    if not isinstance(retriever, BaseRetriever):
        raise ConfigError(f"{kind_of(retriever)} is no source for a section: give a retriever or an index")
    return Section(kind, _Retrieved(retriever), **terms)


def listed_sections(given: Sequence[Section]) -> tuple[Section, ...]:
    """The sections that a face was given; ConfigError for anything else among them, such as the retriever itself."""
    return all_of("sections", given, Section, "make a section of it, section_from(...), or ctxfold.Section")


@dataclass(frozen=True, slots=True)
class _Retrieved:
    """In async code it is asked in a worker thread, so that it serves both kinds of code."""

    retriever: BaseRetriever

    def __call__(self, query: Query) -> list[Item]:
        with instrument_tags(marked("section")):
            return [_item(found) for found in self.retriever.retrieve(query.text)]


def _item(found: NodeWithScore) -> Item:
    known: dict[str, Any] = found.node.metadata
    source = next((str(known[name]) for name in _PROVENANCE if known.get(name)), "")
    page = known.get("page_label")
    told = f"{source}, page {page}" if source and page is not None else source
    return Item(found.node.get_content(MetadataMode.NONE), found.score, told, found.node.node_id)
