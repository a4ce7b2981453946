"""What is put in beside the conversation: sections, the sources that fill them, and the things that sources find."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ctxfold.errors import ConfigError
from ctxfold.flow import Flow
from ctxfold.given import all_of
from ctxfold.history.sections import Place
from ctxfold.journal import Journal
from ctxfold.ports import Ports

__all__ = ["KINDS", "Answer", "Item", "Kept", "Kind", "Lifetime", "Query", "Section", "Source", "check_sections"]

Lifetime: TypeAlias = Literal["epoch", "request"]


@dataclass(frozen=True, slots=True)
class Item:
    """One thing that a source found. It is shown as data: truncated, with credentials hidden and nothing in it that could pose
    as a message; `source` (a file, a URL, message ids) stands beside it.

    Of the items of one answer with the same id only the first is taken, and none whose text stands in the window already.
    """

    text: str
    score: float | None = None
    source: str = ""
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Query:
    """What a source is asked: `text` is the newest user message. What it finds beyond `budget_tokens` is left out."""

    text: str
    budget_tokens: int
    session: str
    owner: str
    turn_id: str | None = None


Answer: TypeAlias = Sequence["Item | str"]


@dataclass(frozen=True, slots=True)
class Kept:
    """A source over what the engine itself keeps of the session, as a flow."""

    ask: Callable[[Journal, Query, Ports], Flow[Answer]]


Source: TypeAlias = "Callable[[Query], Answer | Awaitable[Answer]] | Kept"


@dataclass(frozen=True, slots=True)
class Kind:
    """What goes without saying for sections of one kind."""

    share: float
    min_free_ratio: float
    heading: str


_EPISODIC, _PROCEDURAL, _DECLARATIVE = 0.0, 0.20, 0.50  # the fuller the window, the fewer kinds of memory are asked
OTHER = Kind(0.08, _EPISODIC, "{kind}")
KINDS: Mapping[str, Kind] = {
    "recall": Kind(0.08, _EPISODIC, "Passages recalled from earlier in this conversation"),
    "summaries": Kind(0.08, _EPISODIC, "Summaries of earlier conversations"),
    "cross_session": Kind(0.04, _EPISODIC, "From other conversations with this user"),
    "digest": Kind(0.04, _EPISODIC, "What this conversation has come to so far"),
    "documents": Kind(0.08, _EPISODIC, "Passages of documents"),
    "corrections": Kind(0.04, 0.0, "Corrections that the user has made before"),
    "code": Kind(0.30, 0.0, "Code"),
    "lsp": Kind(0.04, 0.0, "Notes of the language server"),
    "skills": Kind(0.08, 0.0, "Skills that may apply"),
    "trajectory": Kind(0.04, _PROCEDURAL, "What was tried before, and how it ended"),
    "strategy": Kind(0.04, _PROCEDURAL, "Ways of going about it that have worked"),
    "persona": Kind(0.04, _DECLARATIVE, "Known of the user"),
    "facts": Kind(0.04, _DECLARATIVE, "Known facts"),
    "graph": Kind(0.04, _DECLARATIVE, "Known relations"),
    "tree": Kind(0.04, _DECLARATIVE, "Summaries of earlier conversation, from the general to the detailed"),
}


@dataclass(frozen=True, slots=True)
class Section:
    """What may stand beside the conversation, and on what terms. One copy of each kind is in force.

    Args:
        kind: its name; `ctxfold.zones.section.KINDS` has the usual ones, whose share and ratio go without saying.
        source: asked once a turn, with the newest user message: a function or a coroutine function, or the engine's own. What
            it brings is best first, or in order of score where every item has one.
        place: "tail" is right before the newest user message. "head" is in front of the conversation, where that breaks no
            prefix: at the first request after a compaction; until then, the tail.
        lifetime: "epoch" is stored and stays, so that the prefix holds; the next question adds only what is not there yet.
            "request" travels with the requests of one turn only; stored too where the provider binds reasoning to the prefix.
        share: most that it may take of the prompt's budget, per epoch.
        min_free_ratio: it is not asked when less of the budget is free.
        timeout_s: it is given up after that long; None waits.
        required: it is asked first, and the conversation is made to fit beside it, whatever `min_free_ratio` says. Without a
            `share` it stands whole in every request, and WindowTooSmallError says when it cannot; with one it is cut to that.
            It needs lifetime "request".
    """

    kind: str
    source: Source
    place: Place = "tail"
    lifetime: Lifetime = "epoch"
    share: float | None = None
    min_free_ratio: float | None = None
    timeout_s: float | None = 5.0
    required: bool = False

    def __post_init__(self) -> None:
        if not self.kind or not self.kind.replace("_", "").replace("-", "").isalnum():
            raise ConfigError(f"section kind {self.kind!r}: use letters, digits, '-' and '_'")
        if not isinstance(self.source, Kept) and not callable(self.source):
            raise ConfigError(f"section {self.kind!r}: its source {self.source!r} cannot be called; give a function")
        if self.place not in ("tail", "head") or self.lifetime not in ("epoch", "request"):
            raise ConfigError(f"section {self.kind!r}: place is 'tail' or 'head', lifetime 'epoch' or 'request'")
        if self.required and self.lifetime != "request":
            raise ConfigError(
                f"section {self.kind!r} is required and its lifetime is {self.lifetime!r}: a required section travels with every "
                "request, so give lifetime='request'"
            )
        if self.timeout_s is not None and self.timeout_s <= 0:
            raise ConfigError(f"section {self.kind!r}: timeout_s is {self.timeout_s}: give seconds, or None to wait")
        if not 0 < self.share_ratio <= 1 or not 0 <= self.least_free_ratio <= 1:
            raise ConfigError(
                f"section {self.kind!r}: share and min_free_ratio are parts of the budget, between 0 and 1"
            )

    @property
    def whole(self) -> bool:
        """Whether it may never be cut."""
        return self.required and self.share is None

    @property
    def share_ratio(self) -> float:
        return KINDS.get(self.kind, OTHER).share if self.share is None else self.share

    @property
    def least_free_ratio(self) -> float:
        return KINDS.get(self.kind, OTHER).min_free_ratio if self.min_free_ratio is None else self.min_free_ratio


def check_sections(sections: Iterable[Section]) -> tuple[Section, ...]:
    """The sections, once each is one and no two are of one kind."""
    advice = "give ctxfold.Section, which section_from(...) of a face makes of a retriever"
    found = all_of("sections", sections, Section, advice)
    kinds = [s.kind for s in found]
    twice = next((k for k in kinds if kinds.count(k) > 1), None)
    if twice is not None:
        raise ConfigError(
            f"two sections are of kind {twice!r}: one copy of each kind is in force; name one differently"
        )
    return found
