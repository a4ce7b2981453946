"""Sessions of agents that are nodes of a graph: each of their runs begins with an empty state of its own."""

from __future__ import annotations

import re
import threading
import uuid
from collections import OrderedDict
from collections.abc import Generator
from contextlib import contextmanager

from ctxfold.follow import BRANCH, Trail
from ctxfold.history.records import SessionKey
from ctxfold.history.view import View
from langchain_ctx.following import Listing

__all__ = ["Places"]

_BESIDE = re.compile(f"({BRANCH}[0-9a-f]{{8}})+$")
MOST = 1024  # places that are remembered; one that was forgotten is looked up in the store


class Places:
    """Where the newest run in each place left its session, for the next run that is handed the same messages, and more.

    A trail is given to one run only: runs side by side never meet in a session, nor does a run that was handed an edited,
    shortened or older list take up another's.
    """

    def __init__(self) -> None:
        self._left: OrderedDict[SessionKey, Trail | None] = OrderedDict()
        self._lock = threading.Lock()

    @contextmanager
    def holding(self, place: SessionKey) -> Generator[list[Trail | None], None, None]:
        """What is taken in here is given back if it fails: the call may be made again."""
        held: list[Trail | None] = []
        try:
            yield held
        except BaseException:
            with self._lock:
                for left in held:
                    self._keep(place, left)
                    if left is None:
                        del self._left[place]
            raise

    def take(
        self, place: SessionKey, listed: Listing, held: list[Trail | None]
    ) -> tuple[SessionKey, Trail | None, bool]:
        """The root for a run that begins, its trail, and whether nobody here has been in that place before."""
        with self._lock:
            new = place not in self._left
            left = self._left.get(place)
            if left is not None and not left.leads(listed):
                return _beside(place), None, False
            if new or left is not None:
                held.append(left)
            self._keep(place, None)
        if left is not None:
            return SessionKey(place.owner, left.root), left, False
        return (place if new else _beside(place)), None, new

    def free(self, place: SessionKey, view: View, listed: Listing) -> SessionKey:
        """The place's session as the store has it, if it is new or the list goes on from it; else one beside it."""
        live = [e for e in view.live if e.message.kind == "message" and e.message.role != "system"]
        if not live:
            return _beside(place) if view.compressed else place
        ids = listed.ids
        at = ids.index(live[0].id) if live[0].id in ids else len(ids)
        same = ids[at : at + len(live)] == [e.id for e in live] and at + len(live) < len(ids)
        # a tool's output may stand there as an excerpt
        told = (
            (e.message, listed.message(at + i))
            for i, e in enumerate(live)
            if e.message.role != "tool" and not e.shown_seq
        )
        return (
            place if same and all((a.text, a.tool_calls) == (b.text, b.tool_calls) for a, b in told) else _beside(place)
        )

    def put(self, place: SessionKey, left: Trail) -> None:
        """What a run leaves; `place` may be the name beside it that the run went by."""
        with self._lock:
            self._keep(SessionKey(place.owner, _BESIDE.sub("", place.session)), left)

    def _keep(self, place: SessionKey, left: Trail | None) -> None:
        self._left[place] = left
        self._left.move_to_end(place)
        while len(self._left) > MOST:
            self._left.popitem(last=False)


def _beside(place: SessionKey) -> SessionKey:
    return SessionKey(place.owner, f"{place.session}{BRANCH}{uuid.uuid4().hex[:8]}")
