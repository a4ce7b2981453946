"""Checks embedders, and makes items out of what a framework's retrievers find."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from ctxfold.protocols import Embedder
from ctxfold.sections.section import Item
from ctxfold.validation import check_has


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
