"""The kinds of memory items, one row each: who sees them, which are shown unasked, and what a model is told to look for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["MEMORY_KINDS", "MemoryKind"]


@dataclass(frozen=True, slots=True)
class MemoryKind:
    """One kind.

    Args:
        shared: whether the owner's other sessions see its items, where nothing else is said.
        reads: the kind of the items that its section shows, where that is not its own.
        others: whether its section shows what was learnt in other sessions only.
        of_session: whether its items are of the session that they were made in, whoever sees them.
        unasked: whether items are shown that share no word with the question.
        data: the named values that an item has to have.
        neighbours: whether items follow that have one of those values in common with an item found.
        looks_for: what a model is told to look for; "" for kinds that no model makes.
        roles: whose messages it may be learnt from.
        experimental: how well its extraction works has not been measured.
    """

    shared: bool = True
    reads: str = ""
    others: bool = False
    of_session: bool = False
    unasked: bool = False
    data: tuple[str, ...] = ()
    neighbours: bool = False
    looks_for: str = ""
    roles: tuple[str, ...] = ("user",)
    experimental: bool = False


MEMORY_KINDS: Mapping[str, MemoryKind] = {
    "facts": MemoryKind(looks_for="a lasting fact about the user's world that the user stated"),
    "corrections": MemoryKind(
        unasked=True, looks_for="what the user corrected, and how it is to be done or called from now on"
    ),
    "persona": MemoryKind(
        unasked=True, experimental=True, looks_for="who the user is, and what the user likes, wants or avoids"
    ),
    "graph": MemoryKind(
        data=("subject", "predicate", "object"),
        neighbours=True,
        experimental=True,
        looks_for="a relation between two named things that the user stated",
    ),
    "trajectory": MemoryKind(
        data=("intent", "outcome"),
        roles=("user", "assistant"),
        experimental=True,
        looks_for="what was attempted, in which way, and whether it worked",
    ),
    "strategy": MemoryKind(
        roles=("user", "assistant"),
        experimental=True,
        looks_for="a way of going about such a task that has worked here and would work again",
    ),
    "summaries": MemoryKind(shared=False, of_session=True),
    "digest": MemoryKind(of_session=True, unasked=True),
    "cross_session": MemoryKind(reads="digest", others=True, unasked=True),
    "tree": MemoryKind(shared=False, of_session=True),
}
