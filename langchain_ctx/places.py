"""Sessions of agents, nodes and models inside a sub-graph: each of its runs begins with an empty state of its own."""

from __future__ import annotations

import re
import threading
import uuid
from collections import OrderedDict
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count

from ctxfold.exchange import Question
from ctxfold.follow import BRANCH, Listed, Trail
from ctxfold.history.records import SessionKey
from ctxfold.history.view import Entry, View
from ctxfold.messages import content_key
from langchain_ctx.listing import open_turn

__all__ = ["Places", "Taken", "beside", "goes_on", "may_go_on"]

_BESIDE = re.compile(f"({BRANCH}[0-9a-f]{{8}})+$")
MOST = 1024  # trails that are remembered, of all places; a place of which none is left is looked up in the store


@dataclass(slots=True)
class _Left:
    """A trail, and that of those messages which the next list will have."""

    trail: Trail
    lasting: Trail
    taken: bool = False

    def size(self) -> int:
        return self.lasting.before + len(self.lasting.handed)


@dataclass(frozen=True, slots=True)
class Taken:
    """The root for a run that begins, and the trail that it goes on from, `alone` or in a branch. `new`: nobody here has been
    in its place before."""

    root: SessionKey
    left: Trail | None = None
    alone: bool = False
    new: bool = False


class Places:
    """Where runs in each place left their sessions, for the next run that is handed the same messages, and more.

    A session is given to one run only: others that go on from the same point get branches of it. So runs side by side never
    meet, nor does a run that was handed an edited, shortened or older list take up another's.
    """

    def __init__(self) -> None:
        self._left: OrderedDict[SessionKey, OrderedDict[tuple[str, str], _Left]] = OrderedDict()
        self._seen: OrderedDict[SessionKey, Trail] = OrderedDict()
        self._alone: set[SessionKey] = set()
        self._asking: dict[SessionKey, list[frozenset[str]]] = {}
        self._lock = threading.Lock()

    @contextmanager
    def taking(self, place: SessionKey, listed: Listed) -> Generator[Taken, None, None]:
        """What the list goes on from. It is given back when the block fails: the call may be made again."""
        with self._lock:
            new = place not in self._left
            here = self._left.setdefault(place, OrderedDict())
            self._left.move_to_end(place)
            # of the longest, one that nobody has taken
            known = sorted(here.values(), key=lambda left: (-left.size(), left.taken))
            found = next((left for left in known if left.lasting.leads(listed)), None)
            mine = None if found is None or found.taken else found
            if mine is not None:
                mine.taken = True
        try:
            if found is None:
                yield Taken(place if new else beside(place), new=new)
            elif mine is None:
                yield Taken(beside(place), found.trail)
            else:
                yield Taken(SessionKey(place.owner, found.trail.root), found.trail, alone=True)
        except BaseException:
            with self._lock:
                if mine is not None:
                    mine.taken = False
                elif new and not self._left.get(place):
                    self._left.pop(place, None)
            raise

    def put(self, place: SessionKey, left: Trail, lasting: Trail) -> None:
        """What a run leaves, and what of it is to be known by; `place` may be the name beside it that the run went by."""
        place = SessionKey(place.owner, _BESIDE.sub("", place.session))
        with self._lock:
            here = self._left.setdefault(place, OrderedDict())
            self._left.move_to_end(place)
            here[left.session, left.head_id] = _Left(left, lasting)
            here.move_to_end((left.session, left.head_id))
            while sum(map(len, self._left.values())) > MOST:
                oldest = next(place for place, found in self._left.items() if found)
                self._left[oldest].popitem(last=False)
                if not self._left[oldest]:
                    del self._left[oldest]

    def saw(self, key: SessionKey, left: Trail) -> None:
        """Where the session that was asked for by this name stands with its list, which is handed over whole each time."""
        with self._lock:
            self._seen[key] = left
            self._seen.move_to_end(key)
            while len(self._seen) > MOST:
                self._seen.popitem(last=False)

    def seen(self, key: SessionKey) -> Trail | None:
        with self._lock:
            return self._seen.get(key)

    @contextmanager
    def alone(self, key: SessionKey) -> Generator[SessionKey, None, None]:
        """The session for a call that no other may disturb: this one or, while others are in it, the first free one beside it."""
        names = (key if n == 0 else SessionKey(key.owner, f"{key.session}{BRANCH}{n:08x}") for n in count())
        with self._lock:
            mine = next(name for name in names if name not in self._alone)
            self._alone.add(mine)
        try:
            yield mine
        finally:
            with self._lock:
                self._alone.discard(mine)

    @contextmanager
    def beside_others(self, question: Question) -> Generator[Question, None, None]:
        """The question as a turn of its own. What another call is asking at this moment is told under an id of its own here:
        by its old id it would be that call's turn, which ends with that call's answer.
        """
        given = question.given_ids or frozenset()
        # what the session knows a message by: its id or, where it came without, what it says
        names = {m.id: m.id if m.id in given else content_key(m) for m in open_turn(question.messages)}
        mine = frozenset(names.values())
        with self._lock:
            asking = self._asking.setdefault(question.key, [])
            new = {i: uuid.uuid4().hex for i, name in names.items() if any(name in other for other in asking)}
            asking.append(mine)
        try:
            told = tuple(replace(m, id=new[m.id]) if m.id in new else m for m in question.messages)
            yield replace(question, messages=told, given_ids=given.union(new.values())) if new else question
        finally:
            with self._lock:
                asking.remove(mine)
                if not asking and self._asking.get(question.key) is asking:
                    del self._asking[question.key]


def may_go_on(place: SessionKey, view: View, listed: Listed) -> SessionKey:
    """The place's session as the store has it, if it is new or the list goes on from it; else one beside it."""
    if not _spoken(view, listed.ids):
        return beside(place) if view.compressed else place
    return place if goes_on(view, listed) else beside(place)


def goes_on(view: View, listed: Listed) -> bool:
    """Whether the list has all that the session shows of a conversation, as it stands there, and more."""
    ids = listed.ids
    live = _spoken(view, ids)
    if not live or live[0].id not in ids:
        return False
    at = ids.index(live[0].id)
    if ids[at : at + len(live)] != [e.id for e in live] or at + len(live) >= len(ids):
        return False
    # a tool's output may stand there as an excerpt
    told = (
        (e.message, listed.message(at + i)) for i, e in enumerate(live) if e.message.role != "tool" and not e.shown_seq
    )
    return all((a.text, a.tool_calls) == (b.text, b.tool_calls) for a, b in told)


def _spoken(view: View, ids: Sequence[str]) -> list[Entry]:
    """What is visible of a conversation; a system message only if it came with the list."""
    named = frozenset(ids)
    return [e for e in view.live if e.message.kind == "message" and (e.message.role != "system" or e.id in named)]


def beside(place: SessionKey) -> SessionKey:
    """A new name beside the place's own."""
    return SessionKey(place.owner, f"{place.session}{BRANCH}{uuid.uuid4().hex[:8]}")
