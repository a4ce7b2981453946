"""Lists that are handed over whole each time, at the top of a graph or in a chain: what their sessions show of them."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace

from ctxfold.follow import Trail
from ctxfold.history.view import Entry, View
from ctxfold.messages import content_key
from langchain_ctx.listing import Listing

__all__ = ["begins", "left_of"]

CHANGED = ""  # the version of a message that is no version of it


def begins(view: View, listed: Listing) -> int:
    """Where in the list the session's window begins; at its end when they have nothing in common."""
    live = {e.id for e in view.live}
    return next((i for i, name in enumerate(listed.ids) if name in live), len(listed.ids))


def left_of(base: Trail, view: View, visible: AbstractSet[str], listed: Listing, seen: Trail | None) -> Trail | None:
    """The session's window as a trail, so that the list, as it is now, is followed from there; None when it shows nothing.

    `base` says where the session stands, and what of the list is older than its window; `visible` are the messages of open turns,
    too. Where it was `seen` what was handed over last, the rest, such as a note, is the session's own. An open
    turn goes on only if the list has it, in one piece and unchanged; it is told anew otherwise, and after a restart.
    """
    known = None if seen is None else seen.handed
    places = {name: i for i, name in enumerate(listed.ids)}
    standing = [places[e.id] for e in view.live if e.id in places]
    if not view.compressed and standing and standing[-1] - standing[0] >= len(standing):
        return replace(
            base, handed={CHANGED: CHANGED}
        )  # what is new or has come back stands among the rest: begun anew
    live = [e for e in view.live if _spoken(e, places) and (known is None or e.id in known)]
    handed = {e.id: _version(e, places.get(e.id), listed, known or {}) for e in live}
    under_way = sorted(visible - {e.id for e in view.live}, key=lambda name: places.get(name, -1))
    if under_way and not _stands(under_way, places, listed, known or {}):
        handed[under_way[0]] = CHANGED  # with one message its whole turn goes
    if not handed:
        return None
    return replace(base, handed=dict(sorted(handed.items(), key=lambda one: places.get(one[0], -1))))


def _stands(names: list[str], places: Mapping[str, int], listed: Listing, known: Mapping[str, str]) -> bool:
    start = places.get(names[0], -1)
    return start >= 0 and all(
        places.get(name) == start + n and known.get(name) == listed.version(start + n) for n, name in enumerate(names)
    )


def _spoken(entry: Entry, places: Mapping[str, int]) -> bool:
    """Whether it may be the list's: what is for the model only was put into the session beside it."""
    message = entry.message
    own = message.kind != "message" or message.visibility == "model"
    return not own and (message.role != "system" or entry.id in places)


def _version(entry: Entry, place: int | None, listed: Listing, known: Mapping[str, str]) -> str:
    if place is None:
        return CHANGED
    if entry.id in known:
        return known[entry.id]
    # a tool's output may stand there as an excerpt
    same = entry.shown_seq or entry.message.role == "tool"
    same = same or content_key(entry.message) == content_key(listed.message(place))
    return listed.version(place) if same else CHANGED
