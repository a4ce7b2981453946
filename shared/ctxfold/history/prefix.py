"""Tracks which requests begin with all of the request before, and what broke the others. Work grows with the turn only."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import takewhile

from ctxfold.history.view import Entry, View
from ctxfold.messages import Message, Opaque


@dataclass(frozen=True, slots=True)
class PrefixStats:
    """Counts requests, their tokens, the tokens in an unbroken prefix of the request before, and prefix breaks by cause."""

    requests: int = 0
    sent_tokens: int = 0
    reused_tokens: int = 0
    breaks: tuple[tuple[str, int], ...] = ()

    @property
    def reuse(self) -> float:
        """Returns the share of the sent tokens that a prefix cache could serve."""
        return self.reused_tokens / self.sent_tokens if self.sent_tokens else 0.0


@dataclass(slots=True)
class _Sent:
    view: View
    surroundings: tuple[tuple[str, str], ...]
    compactions: int
    edits: int
    turn_id: str
    expiring: tuple[Entry, ...] = ()
    dropped: bool = False


@dataclass(slots=True)
class PrefixTracker:
    """Compares each request with the one before it of the same turn, or else of the session."""

    requests: int = 0
    sent_tokens: int = 0
    reused_tokens: int = 0
    repeated_tokens: int = 0  # of the newest request: what the one before it began with too
    breaks: Counter[str] = field(default_factory=Counter[str])
    _last: _Sent | None = None
    _by_turn: dict[str, _Sent] = field(default_factory=dict[str, _Sent])

    def sent(
        self,
        view: View,
        *,
        turn_id: str,
        tools_tokens: int,
        compactions: int,
        edits: int,
        surroundings: tuple[tuple[str, str], ...],
        reasoning_expires: bool,
    ) -> str | None:
        """Counts a request and returns the cause by which it breaks the prefix of the one before, None when it does not.

        `reasoning_expires` says that reasoning travels only within its round: the first request after a round with tools
        leaves it out. `surroundings` are named values that also stand in the prefix, such as ("model", ...) and ("tools", ...).
        """
        expiring = _round_reasoning(view) if reasoning_expires else ()
        now = _Sent(view, surroundings, compactions, edits, turn_id, expiring)
        before = self._by_turn.get(turn_id) or self._last
        total = view.tokens + tools_tokens
        self.requests += 1
        self.sent_tokens += total
        cause, reused = (None, 0) if before is None else _compare(before, now)
        if before is not None and cause is None:
            reused += tools_tokens
        self.reused_tokens += reused
        self.repeated_tokens = reused
        if cause is not None:
            self.breaks[cause] += 1
        self._last = self._by_turn[turn_id] = now
        return cause

    def ended(self, turn_id: str, *, dropped: bool) -> None:
        """Forgets an ended turn; its last request stays the one that the next turn is compared with.

        `dropped` says that not all of its messages went into the conversation.
        """
        self._by_turn.pop(turn_id, None)
        if dropped and self._last is not None and self._last.turn_id == turn_id:
            self._last.dropped = True

    def erased(self) -> None:
        """Forgets what was sent, because some of its text was erased: the next request begins anew."""
        if self._last is not None:
            self.breaks["erasure"] += 1
        self._last = None
        self._by_turn.clear()

    @property
    def epoch(self) -> int | None:
        """Returns the epoch of the newest request; None before the first."""
        return None if self._last is None else self._last.view.epoch

    def stats(self) -> PrefixStats:
        return PrefixStats(self.requests, self.sent_tokens, self.reused_tokens, tuple(sorted(self.breaks.items())))


def begins_with(view: View, earlier: View) -> bool:
    """Returns True when the view's messages begin with all of the earlier view's, each sent as the same bytes."""
    return _shared(earlier, view) == len(earlier)


def _compare(before: _Sent, now: _Sent) -> tuple[str | None, int]:
    for (name, old), (_, new) in zip(before.surroundings, now.surroundings, strict=False):
        if old != new:
            return name, 0
    if _grew(before.view, now.view):
        expired = next((e for e in before.expiring if not any(e.version == k.version for k in now.expiring)), None)
        if expired is None:
            return None, before.view.tokens
        later = takewhile(lambda e: e.version != expired.version, before.view.newest_first())
        return "reasoning_expired", before.view.tokens - expired.tokens - sum(e.tokens for e in later)
    shared = _shared(before.view, now.view)
    if shared == len(before.view):
        return None, before.view.tokens
    tokens = sum(e.tokens for e, _ in zip(now.view, range(shared), strict=False))
    return _cause(before, now), tokens


def _round_reasoning(view: View) -> tuple[Entry, ...]:
    """Returns the entries since the newest user message whose reasoning is sent."""
    since = takewhile(lambda e: e.message.role != "user", view.newest_first())
    return tuple(reversed([e for e in since if e.message.reasoning]))


def _cause(before: _Sent, now: _Sent) -> str:
    if now.compactions > before.compactions:
        return "compaction"
    if now.edits != before.edits:
        return "edit"
    if before.dropped:
        return "aborted_turn"
    return "concurrent_turn" if _continues(before.view, now.view) else "recall"


def _continues(old: View, new: View) -> bool:
    """Returns True when the new live messages begin with all the old ones.

    Without a compaction or an edit they always do, unless some gave way to recalled passages in one of the two requests.
    """
    if len(new.live) < len(old.live):
        return False
    return all(a.version == b.version for a, b in zip(old.live, new.live, strict=False))


def _grew(old: View, new: View) -> bool:
    """Returns True when, within one epoch, the old turn's entries directly follow the old live ones in the new view."""
    heads = (old.epoch, len(old.system), len(old.compressed))
    if heads != (new.epoch, len(new.system), len(new.compressed)) or len(new.live) < len(old.live):
        return False
    if not all(map(_same, old.system, new.system)):  # each call may go out under prompts of its own
        return False
    start = len(old.live)
    place = [*(new.live[i] for i in range(start, len(new.live))), *new.turn]
    return len(place) >= len(old.turn) and all(_same(a, b) for a, b in zip(old.turn, place, strict=False))


def _shared(old: View, new: View) -> int:
    count = 0
    for a, b in zip(old, new, strict=False):
        if not _same(a, b):
            break
        count += 1
    return count


def _same(a: Entry, b: Entry) -> bool:
    """Returns True when both are sent as the same bytes; mostly their versions tell."""
    return (a.version == b.version and a.seq > 0) or _sent_parts(a.message) == _sent_parts(b.message)


def _sent_parts(message: Message) -> tuple[object, ...]:
    return (message.role, message.name, *(p for p in message.parts if not isinstance(p, Opaque)))
