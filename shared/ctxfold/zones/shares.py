"""How much of the budget each kind of section may take, by the way a window is put together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

__all__ = ["shares"]

PLAIN: Mapping[str, float] = {"summaries": 0.08, "recall": 0.08, "cross_session": 0.04, "code": 0.30}
WITH_GRAPH: Mapping[str, float] = {
    "summaries": 0.07,
    "recall": 0.07,
    "cross_session": 0.03,
    "code": 0.29,
    "graph": 0.04,
}
MEMORY_FIRST: Mapping[str, float] = {"summaries": 0.25, "recall": 0.25, "cross_session": 0.15, "code": 0.35}
MEMORY_FIRST_WITH_GRAPH: Mapping[str, float] = {
    "summaries": 0.22,
    "recall": 0.22,
    "cross_session": 0.12,
    "code": 0.38,
    "graph": 0.06,
}


def shares(kinds: Iterable[str], *, memory_first: bool) -> Mapping[str, float]:
    """Shares of the prompt's budget; what a section leaves unused is the conversation's."""
    graph = "graph" in set(kinds)
    if memory_first:
        return MEMORY_FIRST_WITH_GRAPH if graph else MEMORY_FIRST
    return WITH_GRAPH if graph else PLAIN
