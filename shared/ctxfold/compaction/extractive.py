"""Summaries without a model: the sentences that carry most facts, verbatim and in order. Deterministic."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ctxfold.compaction.literals import TOOL_LABEL, is_rule, scan
from ctxfold.history.data import defused
from ctxfold.history.terms import sentences, term_counts
from ctxfold.messages import Message
from ctxfold.ports import TokenCounter

__all__ = ["Passage", "ledger", "passages"]

_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]")
_WEIGHT = {"user": 1.5, "assistant": 1.1, "system": 1.5, "tool": 0.6}
MAX_SENTENCE_CHARS = 300
MOST_CHARS = 32  # of a token; only runs of white space and dashes have longer ones


@dataclass(frozen=True, slots=True)
class Passage:
    """A sentence of a message, with its place and its worth."""

    order: int
    text: str
    worth: float
    facts: frozenset[str]


def passages(messages: Iterable[Message]) -> list[Passage]:
    """Every sentence once (the newest of equal ones), in order, with its worth. What a tool said is marked as its words."""
    found: dict[str, Passage] = {}
    order = 0
    for message in messages:
        for sentence in sentences(defused(message.text)):
            text = sentence.lstrip("-•* ")[:MAX_SENTENCE_CHARS]
            if text.endswith(("?", "？")) or text.startswith("["):
                continue
            order += 1
            found.pop(text.casefold(), None)
            facts = frozenset(f.value for f in scan(text))
            line = f"{TOOL_LABEL}{text}" if message.role == "tool" else text
            found[text.casefold()] = Passage(order, line, _worth(text, facts, message), facts)
    return list(found.values())


def ledger(candidates: Sequence[Passage], *, limit_tokens: int, counter: TokenCounter) -> str:
    """Lines `- sentence` with as many yet unknown facts as fit the limit, in order; "" when there are none."""
    have = set[str]()
    chosen: list[Passage] = []
    used = 0
    ranked = sorted(candidates, key=lambda p: (-p.worth / (12 + len(p.text)), p.order))
    for passage in ranked:
        if passage.worth <= 0 or (passage.facts and passage.facts <= have):
            continue
        if used + 2 + len(passage.text) // MOST_CHARS > limit_tokens:
            continue  # too long whatever a counter says, and there may be thousands
        cost = counter.count_text(f"- {passage.text}\n") + 1
        if used + cost > limit_tokens:
            continue
        used += cost
        have |= passage.facts
        chosen.append(passage)
    return "\n".join(f"- {p.text}" for p in sorted(chosen, key=lambda p: p.order))


def _worth(text: str, found: frozenset[str], message: Message) -> float:
    facts = float(len(found)) + (message.role != "tool" and is_rule(text, message))
    if _CJK.search(text):
        facts += len(term_counts(text)) / 8
    return facts * (1.3 if message.kind == "summary" else _WEIGHT[message.role])
