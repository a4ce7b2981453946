"""Do facts with an owner outlive a summariser that drops some of them and rounds their numbers?

Sentences such as "Tomas keeps 4182 blue crates." are planted in public conversations. The summariser repeats what it is shown of
them, but leaves out 30 % each time, and puts three numbers in four as "about forty" or "several". A fact is visible where one
line of the window has its number and its thing; it keeps its owner where that line has the owner's name, too.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ctxfold import AgentContext, HistoryCompacted, Message, Reply, Request, assistant, user
from ctxfold.backends.base import BaseBackend
from ctxfold.protocols import UuidIds
from tests.benchmarks.data import folder
from tests.benchmarks.replay import COUNTER
from tests.benchmarks.sheets import Cell, Sheet

__all__ = ["CONVERSATIONS", "TUNED_ON", "Forgetful", "Kept", "Planted", "kept", "planted", "run", "told"]

FACTS = 72
DROPPED = 0.3
WINDOWS = (4_000, 8_000, 16_000)
LENGTH_TOKENS = 36_000  # of a conversation; shorter ones are followed by the next of their source
CONVERSATIONS = (("molweni", 0), ("ubuntu_irc", 3), ("bfcl_memory", 1), ("qmsum", 5))
TUNED_ON = (("ubuntu_irc", 0), ("qmsum", 0), ("bfcl_memory", 0), ("bfcl_memory", 2))
NAMES = (
    *("Tomas", "Priya", "Omar", "Lena", "Marta", "Kenji", "Aisha", "Bruno", "Carla", "Dmitri", "Elif", "Farid"),
    *("Greta", "Hugo", "Ines", "Jonas", "Kofi", "Lucia", "Mateo", "Nadia", "Oskar", "Paula", "Ravi", "Sofia"),
)
COLOURS = ("blue", "red", "green", "white", "black", "yellow")
THINGS = ("crates", "stamps", "tiles", "bricks", "lamps", "ropes", "masks", "bowls", "tents", "drums", "flags", "coins")
PLACES = ("locker", "badge", "desk", "garage", "mailbox", "cabin", "shelf", "parking spot", "folder", "ticket")
SHAPES = (
    "{name} keeps {value} {colour} {thing} in the shed.",
    "{name}'s {colour} {place} is number {value}.",
    "By the way, {name} owes the club {value} euros for the {colour} {thing}.",
    "{name} ordered {value} {colour} {thing} for the fair.",
    "The code for {name}'s {colour} {place} is {value}.",
    "I heard that {name} sold {value} {colour} {thing}.",
)


DIGITS = ("", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
TENS = ("", "ten", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
SCALES = ("", "", "", " hundred", " thousand")


@dataclass(frozen=True, slots=True)
class Planted:
    """A fact: the sentence that states it, whose it is, the number, and the two words that say of what."""

    sentence: str
    owner: str
    value: str
    thing: tuple[str, str]

    def line(self, text: str) -> str | None:
        """The first line that has the number and what it counts; None without one."""
        return next((x for x in text.splitlines() if _has(x, self.value) and all(_has(x, t) for t in self.thing)), None)


@dataclass(frozen=True, slots=True)
class Kept:
    """Of `facts`, how many are visible in the last window, and how many of those beside their owner."""

    facts: int
    visible: int
    owned: int
    generations: int
    refused: int

    def __add__(self, other: Kept) -> Kept:
        return Kept(
            self.facts + other.facts,
            self.visible + other.visible,
            self.owned + other.owned,
            self.generations + other.generations,
            self.refused + other.refused,
        )


class Forgetful(BaseBackend):
    """Repeats the planted sentences that it is shown, less three in ten, with numbers rounded; newest last to go."""

    scratch_role = "system"
    context_window = 16_000
    model = "forgetful"

    def __init__(self, seed: int, *, dropped: float = DROPPED, rounds: bool = True) -> None:
        self._random = random.Random(seed)
        self._ids = UuidIds()
        self._dropped, self._rounds = dropped, rounds

    def send(self, request: Request) -> Reply:
        shown = "\n".join(m.text for m in request.messages[1:])
        found = dict.fromkeys(s.strip() for s in _SENTENCE.split(shown) if _COLOUR.search(s) and _NAME.search(s))
        sentences = [self._reworded(_bare(s)) for s in found if self._random.random() >= self._dropped]
        head = "The participants talk about several things, among them what each of them owns."
        while sentences and COUNTER.count_text(" ".join([head, *sentences])) > (request.max_tokens or 10**6):
            sentences = sentences[1:]
        return Reply(assistant(" ".join([head, *sentences]), id=self._ids.new()), None, "stop")

    def _reworded(self, sentence: str) -> str:
        return _NUMBER.sub(lambda m: self._about(int(m[0])), sentence) if self._rounds else sentence

    def _about(self, number: int) -> str:
        """The number as somebody says it who does not remember it well; one in four is right."""
        digits = len(str(number))
        rounded = f"{TENS[int(str(number)[0])] if digits == 2 else DIGITS[int(str(number)[0])]}{SCALES[digits]}"
        return self._random.choice((f"about {rounded}", "several", f"around {round(number, 1 - digits)}", str(number)))


_NUMBER = re.compile(r"(?<![\w.,#:])\d{2,4}(?![\w:]|[.,]\d)")
_COLOUR = re.compile(rf"\b(?:{'|'.join(COLOURS)})\b")
_NAME = re.compile(rf"\b(?:{'|'.join(NAMES)})\b")
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")


def _bare(sentence: str) -> str:
    """The sentence without the mark of a list, a speaker or a reference."""
    bare = re.sub(r"^[-\s]*(?:\[[^\]]*\]\s*)?(?:[\w .-]{1,30}: )?|\s*\(#\d+\)$", "", sentence)
    return bare if bare.endswith((".", "!", "?")) else f"{bare}."


def _has(line: str, word: str) -> bool:
    return re.search(rf"(?<![\w.,]){re.escape(word)}(?![\w]|[.,]\d)", line) is not None


def planted(seed: int, count: int = FACTS) -> list[Planted]:
    """Facts of two dozen people, each with a number of its own."""
    chance = random.Random(seed)
    values = [*chance.sample(range(13, 99), count // 3), *chance.sample(range(101, 9_900), count - count // 3)]
    chance.shuffle(values)
    made: dict[tuple[str, str, str], Planted] = {}
    for value in values:
        while True:
            name, colour = chance.choice(NAMES), chance.choice(COLOURS)
            shape = chance.choice(SHAPES)
            noun = chance.choice(THINGS if "{thing}" in shape else PLACES)
            if (name, colour, noun) not in made:
                break
        text = shape.format(name=name, colour=colour, value=value, thing=noun, place=noun)
        made[name, colour, noun] = Planted(text, name, str(value), (colour, noun))
    return list(made.values())


def told(source: str, number: int, facts: Sequence[Planted]) -> list[Message]:
    """A conversation as messages, with the facts spread evenly over it, each at the end of a message."""
    conversations = json.loads((folder(source) / "conversations.json").read_text(encoding="utf-8"))
    texts: list[tuple[str, str]] = []
    size = 0
    for conversation in [*conversations[number:], *conversations[:number]]:
        for row in conversation["messages"]:
            text = _said(row)
            size += COUNTER.count_text(text)
            if size <= LENGTH_TOKENS:
                texts.append((row["role"], text))
    for n, fact in enumerate(facts):
        at = n * len(texts) // len(facts)
        role, text = texts[at]
        texts[at] = role, f"{text}{'' if text.endswith(('.', '!', '?')) else '.'} {fact.sentence}"
    return [(assistant if role == "assistant" else user)(text, id=f"m{n}") for n, (role, text) in enumerate(texts)]


def _said(row: dict[str, str]) -> str:
    stamp = f"[{row['time']}] " if row.get("time") else ""
    return f"{stamp}{row['name']}: {row['text']}" if row.get("name") else f"{stamp}{row['text']}"


def kept(messages: Sequence[Message], facts: Sequence[Planted], window: int, summarizer: BaseBackend | None) -> Kept:
    """What is left of the facts when the conversation has been told, message by message, to a session of that window."""
    events: list[HistoryCompacted] = []
    # nothing is recalled
    with AgentContext(
        session_id="planted", context_window=window, summarizer=summarizer, counter=COUNTER, recall_ratio=0
    ) as context:
        context.subscribe(lambda e: events.append(e) if isinstance(e, HistoryCompacted) else None)
        for message in messages:
            context.add(message)
        shown = "\n".join(m.text for m in context.window().messages)
    lines = [(fact, fact.line(shown)) for fact in facts]
    visible = [(fact, line) for fact, line in lines if line is not None]
    refused = sum(e.fallback_level in ("extractive", "truncate") for e in events)
    return Kept(len(facts), len(visible), sum(_has(x, f.owner) for f, x in visible), len(events), refused)


def measured(cases: Sequence[tuple[str, int]], window: int, how: str) -> Kept:
    """All conversations at one window. `how` names the summariser: "forgetful", "faithful" or "none"."""
    total = Kept(0, 0, 0, 0, 0)
    for seed, (source, number) in enumerate(cases):
        facts = planted(seed)
        summarizer = {
            "forgetful": Forgetful(seed),
            "faithful": Forgetful(seed, dropped=0.0, rounds=False),
            "none": None,
        }
        total += kept(told(source, number, facts), facts, window, summarizer[how])
    return total


def run(*, quick: bool = False) -> list[Sheet]:
    """One row per window and summariser."""
    cases = CONVERSATIONS[:1] if quick else CONVERSATIONS
    rows: list[tuple[Cell, ...]] = []
    for window in WINDOWS[:1] if quick else WINDOWS:
        for how in ("forgetful", "faithful", "none"):
            k = measured(cases, window, how)
            owned = f"{k.owned / k.visible:.3f}" if k.visible else "none visible"
            rows.append((f"{window:,}", how, k.facts, f"{k.visible / k.facts:.3f}", owned, k.generations, k.refused))
    return [
        Sheet(
            f"Planted facts, {FACTS} in each of {len(cases)} conversations, visible after all generations",
            ("window", "summariser", "facts", "visible", "beside their owner", "generations", "refused"),
            tuple(rows),
            "forgetful: drops 30 % of the facts that it is shown and rounds numbers, each time; faithful: repeats all that fit "
            "its limit; none: extractive summaries. Targets, forgetful: 0.40 at 4,000, 0.70 at 8,000, beside their owner 0.95.",
        )
    ]
