"""Random conversations, each made from its seed alone: what is asked, what the model says, what the tools return."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

SYSTEM = "You are Golden, an assistant that keeps records."
TOOL_NAMES = ("lookup", "measure")
PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
_THINGS = ("boiler", "ferry", "locker", "orchard", "printer", "cellar", "bicycle", "archive", "kiln", "turbine")
_TRAITS = ("code", "keeper", "colour", "weight", "supplier", "deadline", "room", "serial number")
_WORDS = [
    *("amber", "basin", "cedar", "delta", "ember", "fjord", "grove", "harbor", "island", "jasper", "kettle", "lantern"),
    *("meadow", "nickel", "oyster", "pepper", "quartz", "river", "saddle", "timber", "umbrella", "velvet", "walnut"),
    *("yarrow", "zephyr", "仓库", "钥匙", "naïve", "Straße"),
]


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call with the result that the tool gives for it."""

    id: str
    name: str
    arguments: dict[str, Any]
    result: str


@dataclass(frozen=True, slots=True)
class Said:
    """One reply of the model."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()


@dataclass(frozen=True, slots=True)
class Turn:
    """A question and the model's replies to it: tool rounds, then the answer."""

    question: str
    replies: tuple[Said, ...]
    picture: bool = False
    scratch: str | None = None

    @property
    def rounds(self) -> tuple[Said, ...]:
        return self.replies[:-1]

    @property
    def answer(self) -> Said:
        return self.replies[-1]


@dataclass(frozen=True, slots=True)
class Act:
    """Something that happens to a session between two turns; `pick` chooses among what is there."""

    name: str
    pick: float
    text: str = ""

    def choose(self, among: Sequence[Any]) -> Any:
        return among[int(self.pick * len(among))]


Step: TypeAlias = "Turn | Act"


@dataclass(slots=True)
class Author:
    """Writes the steps of one conversation."""

    rng: random.Random
    acts: tuple[str, ...]
    reasoning: bool
    pictures: bool = True
    scratch: bool = False
    calls: int = 0
    facts: list[tuple[str, str]] = field(default_factory=list)

    def steps(self, count: int) -> list[Step]:
        made: list[Step] = []
        for _ in range(count):
            if self.acts and len(made) > 2 and self.rng.random() < 0.3:
                made.append(Act(self.rng.choice(self.acts), self.rng.random(), self._sentence()))
            else:
                made.append(self._turn(len(made)))
        return made

    def _turn(self, number: int) -> Turn:
        kind = self.rng.choices(("tell", "ask", "tools"), (5, 3 if self.facts else 0, 3))[0]
        if kind == "ask":
            thing, trait = self.rng.choice(self.facts)
            question = f"[{number}] What is the {trait} of the {thing}?"
        else:
            question = f"[{number}] {self._fact()} {self._prose(self.rng.choice((1, 3, 8)))}"
        rounds = [self._round() for _ in range(self.rng.randint(1, 3))] if kind == "tools" else []
        picture = self.pictures and self.rng.random() < 0.1
        scratch = self._sentence() if self.scratch and self.rng.random() < 0.15 else None
        return Turn(question, (*rounds, self._reply(self._prose(self.rng.choice((1, 2, 6))))), picture, scratch)

    def _round(self) -> Said:
        calls = tuple(self._call() for _ in range(self.rng.choice((1, 1, 1, 2, 3))))
        return self._reply(self._sentence() if self.rng.random() < 0.3 else "", calls)

    def _call(self) -> Call:
        self.calls += 1
        lines = self.rng.choice((1, 1, 5, 60))
        result = "\n".join(f"{n}: {self._fact()} {self._sentence()}" for n in range(lines))
        return Call(
            f"call_{self.calls:03d}", self.rng.choice(TOOL_NAMES), {"about": self._words(2), "page": self.calls}, result
        )

    def _reply(self, text: str, calls: tuple[Call, ...] = ()) -> Said:
        thinks = self.reasoning and self.rng.random() < 0.7
        return Said(text, self._prose(2) if thinks else "", calls)

    def _fact(self) -> str:
        thing, trait = self.rng.choice(_THINGS), self.rng.choice(_TRAITS)
        self.facts.append((thing, trait))
        return f"The {trait} of the {thing} is {self._words(1)}-{self.rng.randint(10, 9999)}."

    def _prose(self, sentences: int) -> str:
        return " ".join(self._sentence() for _ in range(sentences))

    def _sentence(self) -> str:
        return f"{self._words(self.rng.randint(4, 14)).capitalize()}."

    def _words(self, count: int) -> str:
        return " ".join(self.rng.choice(_WORDS) for _ in range(count))
