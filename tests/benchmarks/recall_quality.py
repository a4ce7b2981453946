"""Measures how much of a question's evidence a request shows, beside plain BM25 and the newest messages, and what that costs.

Reads `conversations.json` of the sets in `CTXFOLD_DATA_DIR`. Requests are made through the public API with the defaults, without
a model, and but for one table without an embedder; a token is four characters.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ctxfold import AgentContext, assistant, user
from tests.benchmarks.data import folder
from tests.benchmarks.sheets import Cell, Sheet
from tests.support.minilm import MiniLM

__all__ = ["SETS", "Asked", "Conversation", "by_meaning", "curve", "filled", "loaded", "ranked", "table"]

SETS = {"bfcl_memory": 1, "molweni": 1, "ubuntu_irc": 3, "qmsum": 4}  # every so many questions are asked
WINDOWS = (2_000, 4_000, 8_000)
CURVE = (2_000, 4_000, 8_000, 16_000, 64_000, 128_000)
CURVE_QUESTIONS = 40
EMBEDDED = {"bfcl_memory": 3, "molweni": 1, "ubuntu_irc": 4, "qmsum": 6}  # conversations, as embedding takes its time
K1, B = 1.2, 0.75
NEXT_TO = (0.5, 0.25)
NEWEST = (
    0.9  # a question is about the newest messages when all of its evidence stands behind this share of the conversation
)
_WORD = re.compile(r"[^\W_]+")
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")


class CharactersBy4:
    """Counts a token for every four characters."""

    id = "chars4"

    def count(self, text: str) -> int:
        return math.ceil(len(text) / 4)


COUNTER = CharactersBy4()


@dataclass(frozen=True)
class Asked:
    """A question on the messages before `end`, its answer, and the positions of the messages that hold the evidence."""

    question: str
    answer: str
    evidence: tuple[int, ...]
    end: int


@dataclass(frozen=True)
class Conversation:
    """The messages of a conversation as (role, text), with speaker and time in the text, and its questions."""

    messages: tuple[tuple[str, str], ...]
    texts: tuple[str, ...]
    questions: tuple[Asked, ...]

    @cached_property
    def counts(self) -> list[Counter[str]]:
        return [Counter(_stems(text)) for _, text in self.messages]


def loaded(name: str, every: int = 1) -> list[Conversation]:
    """Returns the conversations of a set, with every so many of their questions."""
    return [_conversation(each, every) for each in json.loads((folder(name) / "conversations.json").read_text())]


def _conversation(stored: dict[str, Any], every: int) -> Conversation:
    positions = {str(m["id"]): at for at, m in enumerate(stored["messages"])}
    questions: list[Asked] = []
    for each in stored["questions"][::every]:
        end = positions[str(each["before"])] if each.get("before") else len(positions)
        evidence = sorted(at for i in each["evidence"] if (at := positions.get(str(i), end)) < end)
        if evidence:
            questions.append(Asked(each["q"], str(each.get("answer", "")), tuple(evidence), end))
    return Conversation(
        tuple((m["role"], _told(m)) for m in stored["messages"]),
        tuple(m["text"] for m in stored["messages"]),
        tuple(questions),
    )


def _told(message: dict[str, Any]) -> str:
    stamp = f"[{message['time']}] " if message.get("time") else ""
    speaker = f"{message['name']}: " if message.get("name") else ""
    return f"{stamp}{speaker}{message['text']}"


def _stems(text: str) -> Iterator[str]:
    for word in _WORD.findall(text.lower()):
        ending = next((e for e in ("ing", "ed", "es", "s", "ly") if word.endswith(e) and len(word) - len(e) >= 3), "")
        yield word.removesuffix(ending)


def _words(text: str) -> str:
    return f" {' '.join(_WORD.findall(text.lower()))} "


@dataclass(frozen=True)
class Shown:
    """Of one question: whether all evidence is shown whole, whether its key sentences are, and the share that is whole."""

    full: bool
    key: bool
    share: float

    @classmethod
    def of(cls, conversation: Conversation, asked: Asked, text: str) -> Shown:
        words = _words(text)
        whole = [_is_shown(conversation.texts[at], words) for at in asked.evidence]
        key = all(_words(_key_sentence(conversation.texts[at], asked)) in words for at in asked.evidence)
        return cls(all(whole), key, sum(whole) / len(whole))


def _is_shown(text: str, words: str) -> bool:
    return _words(text) in words or all(_words(s) in words for s in _SENTENCE.split(text) if _WORD.search(s))


def _key_sentence(text: str, asked: Asked) -> str:
    """Returns the sentence with most words of the answer, of equals with most of the question."""
    answer, question = {*_stems(asked.answer)}, {*_stems(asked.question)}
    sentences = [s for s in _SENTENCE.split(text) if _WORD.search(s)] or [text]
    return max(sentences, key=lambda s: (len(answer & {*_stems(s)}), len(question & {*_stems(s)}), len(s)))


def ranked(conversation: Conversation, asked: Asked, *, neighbours: bool) -> list[int]:
    """Returns the positions of messages by BM25, the best first."""
    counts = conversation.counts[: asked.end]
    sizes = [c.total() for c in counts]
    mean = sum(sizes) / max(1, len(sizes))
    own = [0.0] * asked.end
    for term in {*_stems(asked.question)}:
        holding = [at for at, c in enumerate(counts) if term in c]
        weight = math.log(1 + (asked.end - len(holding) + 0.5) / (len(holding) + 0.5)) * (K1 + 1)
        for at in holding:
            count = counts[at][term]
            own[at] += weight * count / (count + K1 * (1 - B + B * sizes[at] / mean))
    scores = list(own)
    for steps, weight in enumerate(NEXT_TO if neighbours else (), 1):
        padded = [*[0.0] * steps, *own, *[0.0] * steps]
        for at in range(asked.end):
            scores[at] += weight * max(padded[at], padded[at + 2 * steps])
    return sorted((at for at in range(asked.end) if scores[at] > 0), key=lambda at: -scores[at])


def filled(conversation: Conversation, order: Sequence[int], budget: int) -> list[str]:
    """Returns the texts of the first messages in the order that fit."""
    chosen: list[str] = []
    for at in order:
        text = conversation.messages[at][1]
        cost = COUNTER.count(text) + 4
        if cost <= budget:
            budget -= cost
            chosen.append(text)
    return chosen


def _session(conversation: Conversation, end: int, window: int, embedder: MiniLM | None = None) -> AgentContext:
    context = AgentContext(None, context_window=window, counter=COUNTER, embedder=embedder)
    for at, (role, text) in enumerate(conversation.messages[:end]):
        context.add((assistant if role == "assistant" else user)(text, id=f"m{at}"))
    return context


@dataclass
class _Totals:
    rows: list[tuple[Shown, bool]]

    def cells(self) -> tuple[Cell, ...]:
        shown = [s for s, _ in self.rows]
        newest = [s for s, is_newest in self.rows if is_newest]
        mean = [
            f"{sum(values) / max(1, len(shown)):.3f}"
            for values in zip(*((s.full, s.key, s.share) for s in shown), strict=True)
        ]
        return (*mean, f"{sum(s.share for s in newest) / len(newest):.3f}" if newest else "-")


def _rows(name: str, conversations: Sequence[Conversation], window: int) -> Iterator[tuple[Cell, ...]]:
    totals: dict[str, _Totals] = {}
    for conversation in conversations:
        with ExitStack() as stack:
            sessions: dict[int, AgentContext] = {}
            for asked in conversation.questions:
                if asked.end not in sessions:
                    sessions[asked.end] = stack.enter_context(_session(conversation, asked.end, window))
                request = sessions[asked.end].window(recall=True, question=asked.question)
                budget = window - window // 5 - COUNTER.count(asked.question)
                texts = {
                    "ctxfold": [*(m.text for m in request.messages), request.recalled],
                    "BM25": filled(conversation, ranked(conversation, asked, neighbours=False), budget),
                    "BM25 with neighbours": filled(conversation, ranked(conversation, asked, neighbours=True), budget),
                    "newest messages": filled(conversation, range(asked.end - 1, -1, -1), budget),
                }
                for peer, lines in texts.items():
                    shown = Shown.of(conversation, asked, "\n".join(lines)), asked.evidence[0] >= NEWEST * asked.end
                    totals.setdefault(peer, _Totals([])).rows.append(shown)
    for peer, total in totals.items():
        yield (name, f"{window:,}", len(total.rows), peer, *total.cells())


def table(*, quick: bool = False) -> Sheet:
    """Returns the evidence shown on each set at each window, of ctxfold and of three peers with the same prompt budget."""
    sets = {"molweni": 20} if quick else SETS
    rows = [
        row
        for name, every in sets.items()
        for conversations in [loaded(name, every)]
        for window in (WINDOWS[:1] if quick else WINDOWS)
        for row in _rows(name, conversations, window)
    ]
    return Sheet(
        "Evidence in the request, by set and window",
        ("set", "window", "questions", "what is shown", "full", "key", "share", "share, newest tenth"),
        tuple(rows),
        "full: all evidence messages whole; key: the sentence of each that carries the answer; share: mean share of the evidence "
        "messages that are whole; newest tenth: the same of questions whose evidence stands in the last tenth of the conversation.",
    )


def by_meaning(*, quick: bool = False) -> Sheet:
    """Returns the evidence shown with and without an embedder, on some conversations of each set."""
    rows: list[tuple[Cell, ...]] = []
    for name, count in {"molweni": 1}.items() if quick else EMBEDDED.items():
        conversations = loaded(name, 20 if quick else SETS[name])[:count]
        for window in WINDOWS[:1] if quick else WINDOWS[:2]:
            totals = _with_embedder(conversations, window)
            rows += [(name, f"{window:,}", len(t.rows), peer, *t.cells()) for peer, t in totals.items()]
    return Sheet(
        "Evidence in the request, by words alone and with all-MiniLM-L6-v2 as embedder",
        ("set", "window", "questions", "what is shown", "full", "key", "share", "share, newest tenth"),
        tuple(rows),
        "Columns as above. Of ubuntu_irc and qmsum, the first conversations.",
    )


def _with_embedder(conversations: Sequence[Conversation], window: int) -> dict[str, _Totals]:
    totals: dict[str, _Totals] = {}
    embedder = MiniLM()
    for conversation in conversations:
        with ExitStack() as stack:
            sessions: dict[tuple[int, str], AgentContext] = {}
            for asked in conversation.questions:
                budget = window - window // 5 - COUNTER.count(asked.question)

                order = ranked(conversation, asked, neighbours=True)
                texts = {"BM25 with neighbours": "\n".join(filled(conversation, order, budget))}
                for peer, chosen in (("ctxfold", None), ("ctxfold with embedder", embedder)):
                    place = asked.end, peer
                    if place not in sessions:
                        sessions[place] = stack.enter_context(_session(conversation, asked.end, window, chosen))
                    request = sessions[place].window(recall=True, question=asked.question)
                    texts[peer] = "\n".join([*(m.text for m in request.messages), request.recalled])
                for peer, text in texts.items():
                    shown = Shown.of(conversation, asked, text), asked.evidence[0] >= NEWEST * asked.end
                    totals.setdefault(peer, _Totals([])).rows.append(shown)
    return totals


def curve(*, quick: bool = False) -> Sheet:
    """Returns evidence against cost by window: all conversations of a set told to one session, one after the other."""
    rows: list[tuple[Cell, ...]] = []
    for name in ("molweni",) if quick else ("bfcl_memory", "molweni", "qmsum"):
        joined = _joined(loaded(name, SETS[name]))
        for window in CURVE[:1] if quick else CURVE:
            with _session(joined, len(joined.messages), window) as context:
                shown: list[Shown] = []
                recalled = epochs = 0
                for asked in joined.questions:
                    before = context.view().epoch
                    request = context.window(recall=True, question=asked.question)
                    epochs += request.view.epoch != before
                    recalled += COUNTER.count(request.recalled)
                    text = "\n".join([*(m.text for m in request.messages), request.recalled])
                    shown.append(Shown.of(joined, asked, text))
            count = len(shown)
            key = sum(s.key for s in shown) / count
            share = sum(s.share for s in shown) / count
            rows.append((name, f"{window:,}", count, f"{key:.3f}", f"{share:.3f}", recalled // count, epochs))
    return Sheet(
        "Evidence against uncached tokens, the conversations of a set joined into one",
        ("set", "window", "questions", "key", "share", "recalled tokens a question", "epochs begun for recall"),
        tuple(rows),
        "Recalled text is new to the prompt cache in each request; the rest of the request is a prefix that can be cached.",
    )


def _joined(conversations: Sequence[Conversation]) -> Conversation:
    messages: list[tuple[str, str]] = []
    texts: list[str] = []
    questions: list[Asked] = []
    for each in conversations:
        first = len(messages)
        questions += [Asked(q.question, q.answer, tuple(first + at for at in q.evidence), 0) for q in each.questions]
        messages += each.messages
        texts += each.texts
    step = max(1, len(questions) // CURVE_QUESTIONS)
    return Conversation(tuple(messages), tuple(texts), tuple(questions[::step]))
