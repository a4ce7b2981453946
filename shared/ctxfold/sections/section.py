"""Defines sections, the sources that fill them, and the items that sources return."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from ctxfold.effects import Flow
from ctxfold.errors import ConfigError
from ctxfold.history.view import Place
from ctxfold.state import Session
from ctxfold.validation import all_of

Lifetime: TypeAlias = Literal["epoch", "request"]


@dataclass(frozen=True, slots=True)
class Item:
    """A text from a source. It is shown to the model as data: truncated, with credentials hidden, and unable to pose as a message.

    `source` (a file, a URL, message ids) is shown beside it. Of several items with the same `id` only the first is used. An
    item whose text is already in the window is left out.
    """

    text: str
    score: float | None = None
    source: str = ""
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Query:
    """The query that a source receives: `text` is the newest user message. Items beyond `budget_tokens` are dropped."""

    text: str
    budget_tokens: int
    session: str
    owner: str
    turn_id: str | None = None


Items: TypeAlias = Sequence["Item | str"]


@dataclass(frozen=True, slots=True)
class EngineSource:
    """A source that reads the session's own data, as a flow."""

    items: Callable[[Session, Query], Flow[Items]]


SectionSource: TypeAlias = "Callable[[Query], Items | Awaitable[Items]] | EngineSource"


@dataclass(frozen=True, slots=True)
class KindDefaults:
    """The defaults of sections of one kind."""

    share: float
    min_free_ratio: float
    heading: str


_EPISODIC, _PROCEDURAL, _DECLARATIVE = 0.0, 0.20, 0.50  # the fuller the window, the fewer kinds of memory are queried
OTHER = KindDefaults(0.08, _EPISODIC, "{kind}")
KINDS: Mapping[str, KindDefaults] = {
    "recall": KindDefaults(0.08, _EPISODIC, "Passages recalled from earlier in this conversation"),
    "summaries": KindDefaults(0.08, _EPISODIC, "Summaries of earlier conversations"),
    "cross_session": KindDefaults(0.04, _EPISODIC, "From other conversations with this user"),
    "digest": KindDefaults(0.04, _EPISODIC, "What this conversation has come to so far"),
    "documents": KindDefaults(0.08, _EPISODIC, "Passages of documents"),
    "corrections": KindDefaults(0.04, 0.0, "Corrections that the user has made before"),
    "code": KindDefaults(0.30, 0.0, "Code"),
    "lsp": KindDefaults(0.04, 0.0, "Notes of the language server"),
    "skills": KindDefaults(0.08, 0.0, "Skills that may apply"),
    "trajectory": KindDefaults(0.04, _PROCEDURAL, "What was tried before, and how it ended"),
    "strategy": KindDefaults(0.04, _PROCEDURAL, "Ways of going about it that have worked"),
    "persona": KindDefaults(0.04, _DECLARATIVE, "Known of the user"),
    "facts": KindDefaults(0.04, _DECLARATIVE, "Known facts"),
    "graph": KindDefaults(0.04, _DECLARATIVE, "Known relations"),
    "tree": KindDefaults(0.04, _DECLARATIVE, "Summaries of earlier conversation, from the general to the detailed"),
}


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


def shares_by_kind(kinds: Iterable[str], *, memory_first: bool) -> Mapping[str, float]:
    """Returns the shares of the prompt's budget by kind; the conversation gets what a section leaves unused."""
    graph = "graph" in set(kinds)
    if memory_first:
        return MEMORY_FIRST_WITH_GRAPH if graph else MEMORY_FIRST
    return WITH_GRAPH if graph else PLAIN


@dataclass(frozen=True, slots=True)
class Section:
    """A text beside the conversation: its source, place, lifetime and share of the budget. Each kind has at most one section.

    Args:
        kind: its name; `ctxfold.sections.section.KINDS` has the usual ones with their default share and ratio.
        source: called once a turn with the newest user message: a function, a coroutine function or a source of the engine. It
            returns items best first, or with a score each.
        place: "tail" is right before the newest user message. "head" is in front of the conversation, where that breaks no
            prefix: at the first request after a compaction; until then, the tail.
        lifetime: "epoch" is stored and stays, so that the prefix holds; the next question adds only new items. "request" is
            sent with the requests of one turn only; it is stored too where the provider binds reasoning to the prefix.
        share: largest share of the prompt's budget, per epoch.
        min_free_ratio: the source is called only when at least this share of the budget is free.
        timeout_s: seconds after which a call is given up; None waits without limit.
        required: the section is filled first, whatever `min_free_ratio` says, and the conversation is made to fit beside it.
            Without a `share` it is never cut, and WindowTooSmallError is raised when it does not fit; with one it is cut to
            that share. It needs lifetime "request".
    """

    kind: str
    source: SectionSource
    place: Place = "tail"
    lifetime: Lifetime = "epoch"
    share: float | None = None
    min_free_ratio: float | None = None
    timeout_s: float | None = 5.0
    required: bool = False

    def __post_init__(self) -> None:
        if not self.kind or not self.kind.replace("_", "").replace("-", "").isalnum():
            raise ConfigError(f"section kind {self.kind!r}: use letters, digits, '-' and '_'")
        if not isinstance(self.source, EngineSource) and not callable(self.source):
            raise ConfigError(f"section {self.kind!r}: its source {self.source!r} cannot be called; give a function")
        places, lifetimes = get_args(Place), get_args(Lifetime)
        if self.place not in places or self.lifetime not in lifetimes:
            expected = f"place is {_either(places)}, lifetime {_either(lifetimes)}"
            raise ConfigError(f"section {self.kind!r}: {expected}")
        if self.required and self.lifetime != "request":
            raise ConfigError(
                f"section {self.kind!r} is required and its lifetime is {self.lifetime!r}: a required section is sent with every "
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
        """Returns True when the section must not be cut."""
        return self.required and self.share is None

    @property
    def share_ratio(self) -> float:
        return KINDS.get(self.kind, OTHER).share if self.share is None else self.share

    @property
    def least_free_ratio(self) -> float:
        return KINDS.get(self.kind, OTHER).min_free_ratio if self.min_free_ratio is None else self.min_free_ratio


def _either(values: Iterable[str]) -> str:
    return " or ".join(map(repr, values))


def check_sections(sections: Iterable[Section]) -> tuple[Section, ...]:
    """Returns the sections; ConfigError for anything else among them, such as the retriever itself, and for two of one kind."""
    checked = all_of("sections", sections, Section, "make a section of it, section_from(...), or ctxfold.Section")
    kinds = [s.kind for s in checked]
    twice = next((k for k in kinds if kinds.count(k) > 1), None)
    if twice is not None:
        raise ConfigError(
            f"two sections are of kind {twice!r}: a session has one section of each kind; give one another kind"
        )
    return checked
