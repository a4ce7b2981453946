"""Defines the kinds of memory items: who sees them, which are shown for every question, and what a model looks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MemoryKind:
    """The properties of one kind of memory items.

    Args:
        shared: the owner's other sessions see its items by default.
        reads: the kind of items that its section shows, where that is not its own.
        others: its section shows only items of other sessions.
        of_session: its items belong to the session that made them, whoever sees them.
        unasked: its section also shows items that share no word with the question.
        data: named values that every item needs.
        neighbours: its section adds items that share one of those values with a matching item.
        looks_for: instruction for the extracting model; "" for kinds that no model extracts.
        roles: roles of the messages that items are extracted from.
        experimental: the quality of its extraction has not been measured.
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
