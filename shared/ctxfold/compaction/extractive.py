"""Summaries without a model: the sentences that carry most facts, verbatim and in order. Deterministic."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ctxfold.history.terms import neutral, sentences, term_counts
from ctxfold.messages import Message
from ctxfold.ports import TokenCounter

__all__ = ["Passage", "facts_in", "ledger", "passages"]

_FACT = re.compile(
    r"[A-Za-z]*[-_/]?\d[\w.,:/@%€$£-]*"  # numbers, dates, codes, amounts
    r"|\b[\w.+-]+@[\w-]+\.\w+\b"  # addresses
    r"|https?://\S+|(?:/[\w.-]+){2,}"  # links and paths
    r"|\b[A-Z]{2,}[\w-]*\b"  # initials and codes
)
_NAME = re.compile(r"(?<=[a-z,;:] )[A-Z][a-z]{2,}")
_RULE = re.compile(
    r"\b(never|always|must|not|don't|only|prefer\w*|remember|decided|because|allerg\w*)\b|不|必须|总是|只|记住|决定",
    re.I,
)
_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]")
_WEIGHT = {"user": 1.5, "assistant": 1.1, "system": 1.5, "tool": 0.6}
MAX_SENTENCE_CHARS = 300


@dataclass(frozen=True, slots=True)
class Passage:
    """A sentence of a message, with its place and its worth."""

    order: int
    text: str
    worth: float
    facts: frozenset[str]


def facts_in(text: str) -> frozenset[str]:
    """Literals that must not get lost: numbers, identifiers, addresses, links, paths, names in mid-sentence."""
    found = (m.group().strip(".,:;") for m in _FACT.finditer(text))
    names = (m.group() for m in _NAME.finditer(text))
    return frozenset(f for f in (*found, *names) if len(f) > 1)


def passages(messages: Iterable[Message]) -> list[Passage]:
    """Every sentence once (the newest of equal ones), in order, with its worth."""
    found: dict[str, Passage] = {}
    order = 0
    for message in messages:
        for sentence in sentences(neutral(message.text)):
            text = sentence.lstrip("-•* ")[:MAX_SENTENCE_CHARS]
            if text.endswith(("?", "？")) or text.startswith("["):
                continue
            order += 1
            found.pop(text.casefold(), None)
            facts = facts_in(text)
            found[text.casefold()] = Passage(order, text, _worth(text, facts, message), facts)
    return list(found.values())


def ledger(candidates: Sequence[Passage], *, limit_tokens: int, counter: TokenCounter, known: str = "") -> str:
    """Lines `- sentence` with as many yet unknown facts as fit the limit, in order; "" when there are none."""
    have = {f.casefold() for f in facts_in(known)}
    chosen: list[Passage] = []
    used = 0
    ranked = sorted(candidates, key=lambda p: (-p.worth / (12 + len(p.text)), p.order))
    for passage in ranked:
        facts = {f.casefold() for f in passage.facts}
        if passage.worth <= 0 or (facts and facts <= have):
            continue
        cost = counter.count_text(f"- {passage.text}\n") + 1
        if used + cost > limit_tokens:
            continue
        used += cost
        have |= facts
        chosen.append(passage)
    return "\n".join(f"- {p.text}" for p in sorted(chosen, key=lambda p: p.order))


def _worth(text: str, found: frozenset[str], message: Message) -> float:
    facts: float = len(found) + len(_RULE.findall(text))
    if _CJK.search(text):
        facts += len(term_counts(text)) / 8
    weight = 1.3 if message.kind == "summary" else _WEIGHT[message.role]
    return facts * weight
