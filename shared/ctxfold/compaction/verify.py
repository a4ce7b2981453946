"""Verifies a summary by its literals: which it kept, lost and invented. No model is asked.

`check` compares the summary with its sources; `looks_wrong` returns a reason to reject it, if there is one.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from ctxfold.compaction.facts import SHORT_VALUE, FactSource, extract, flat, message_of, negated
from ctxfold.compaction.literals import Fact, month_day, scan
from ctxfold.compaction.markdown import LIST_MARK
from ctxfold.history.terms import STOP_WORDS, sentences, terms

RULE_COVERAGE = 0.6  # share of a rule's terms that one sentence of the summary must have
MAX_INVENTED_SHARE = 0.2
ADDRESSED_SHARE = 0.6  # of a text's sentences that address somebody: with as many it is an answer, not a summary
MIN_LOST = 32  # literals of a source: a text that keeps none of so many is not its summary
MIN_TERMS, KNOWN_SHARE = 4, 0.25  # of a summary's words: least share that a source with few literals must have
SMALL_NUMBER = 12  # counting is not inventing
VALUE_KINDS = frozenset(("email", "url", "path", "identifier", "amount", "date", "number"))
_DIGITS = re.compile(r"\d+(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of `check`.

    Args:
        kept: literals of the sources that the summary has.
        missing: literals of the sources that it lacks.
        invented: literals of the summary that no source has.
        checked: how many literals of the summary could have been invented.
    """

    kept: tuple[Fact, ...]
    missing: tuple[Fact, ...]
    invented: tuple[Fact, ...]
    checked: int

    @property
    def invented_share(self) -> float:
        return len(self.invented) / self.checked if self.checked else 0.0


@dataclass(frozen=True, slots=True)
class _Line:
    folded: str
    keyed: tuple[tuple[str, frozenset[str]], ...]
    values: frozenset[str]
    terms: frozenset[str]
    negated: bool


class _Values:
    """Searches values anywhere in a text; `known` ones are in it for certain."""

    def __init__(self, text: str, known: Collection[str] = ()) -> None:
        self.folded = " ".join(text.casefold().split())
        self.values = frozenset(known)
        self._days: frozenset[str] | None = None

    @property
    def days(self) -> frozenset[str]:
        if self._days is None:
            self._days = frozenset(d for v in self.values if (d := month_day(v)))
        return self._days

    def has_value(self, fact: Fact) -> bool:
        """Tells whether the value occurs anywhere."""
        if fact.value in self.values:
            return True
        if fact.kind == "date":
            return (month_day(fact.value) or fact.value) in self.days
        return fact.kind not in ("number", "amount") and within(fact.value, self.folded)


class _Literals(_Values):
    """Searches literals in a text, short ones only beside their key."""

    def __init__(self, text: str) -> None:
        self.lines = [_line(s) for s in sentences(LIST_MARK.sub("", text))]
        self._by_value: defaultdict[str, list[_Line]] = defaultdict(list)
        for line in self.lines:
            for value in line.values:
                self._by_value[value].append(line)
        super().__init__(text, self._by_value)

    def has(self, fact: Fact) -> bool:
        """Tells whether the text has the literal: a rule by its words and polarity, a short value only beside its key."""
        if fact.kind in ("rule", "statement"):
            return self._has_rule(fact)
        if fact.kind == "call":
            return fact.value in self.folded
        if len(fact.value) <= SHORT_VALUE and fact.kind in ("number", "field", "amount"):
            return self._has_with_owner(fact)
        return self.has_value(fact) and self._has_owner(fact)

    def _has_owner(self, fact: Fact) -> bool:
        """Tells whether a line with the value names its owner; a value that only a long text has need not."""
        lines = self._by_value.get(fact.value, ()) if fact.owner else ()
        return not lines or any(fact.owner in line.folded for line in lines)

    def _has_with_owner(self, fact: Fact) -> bool:
        lines = self._by_value.get(fact.value, [])
        if fact.kind == "field" and fact.value in self.folded:
            lines = [*lines, *(line for line in self.lines if within(fact.value, line.folded))]
        words = frozenset(terms(fact.key)) if lines else frozenset[str]()
        return any(fact.owner in line.folded and _states_value(fact, words, line) for line in lines)

    def _has_rule(self, fact: Fact) -> bool:
        rule_terms = frozenset(terms(fact.text))
        if fact.value in self.folded or not rule_terms:
            return fact.value in self.folded
        polarity = negated(fact.text)
        return any(
            len(rule_terms & line.terms) >= RULE_COVERAGE * len(rule_terms) and (line.negated or not polarity)
            for line in self.lines
        )


def check(summary_text: str, sources: Iterable[FactSource], *, facts: Sequence[Fact] | None = None) -> Verification:
    """Compares the summary with its sources. `facts` are those of the sources, where `extract` was called already."""
    source_list = list(sources)
    literals = _Literals(summary_text)
    kept: list[Fact] = []
    missing: list[Fact] = []
    source_facts = extract(source_list) if facts is None else facts
    for fact in source_facts:
        (kept if literals.has(fact) else missing).append(fact)
    claims = {f.value: f for s in LIST_MARK.sub("", summary_text).splitlines() for f in scan(s) if is_checkable(f)}
    values = {f.value for f in source_facts}
    doubtful = [f for f in claims.values() if f.value not in values]
    return Verification(tuple(kept), tuple(missing), tuple(_invented(doubtful, source_list, values)), len(claims))


def _invented(doubtful: Sequence[Fact], sources: Sequence[FactSource], values: Collection[str]) -> list[Fact]:
    """Returns the literals that no source has in any form; scans all sources again only for those that remain."""
    if not doubtful:
        return []
    text = "\n".join(flat(message_of(s)[0]) for s in sources)
    known = _Values(text, values)
    remaining = [f for f in doubtful if not _known(f, known)]
    if not remaining:
        return []
    whole = _Values(text, {f.value for s in sentences(LIST_MARK.sub("", text)) for f in scan(s)})
    return [f for f in remaining if not _known(f, whole)]


def looks_wrong(
    summary_text: str,
    sources: Iterable[FactSource],
    verification: Verification,
    *,
    max_invented_share: float = MAX_INVENTED_SHARE,
) -> str | None:
    """Returns the reason to reject a model's summary, None when there is none."""
    text, source_text = summary_text.strip(), "\n".join(flat(message_of(s)[0]) for s in sources)
    if not any(c.isalnum() for c in text):
        return "the summary is empty"
    if _REFUSAL.match(text) and not verification.kept:
        return f"the model refused: {_short(text)}"
    if _continues(text, source_text):
        return f"the model went on with the conversation instead of summarising it: {_short(text)}"
    if len(text) > len(source_text):
        return f"the summary has {len(text):,} characters, its source only {len(source_text):,}"
    if _repeats(text):
        return f"the summary repeats itself: {_short(text)}"
    if (reason := _keeps_nothing(text, source_text, verification)) is not None:
        return reason
    return invented_too_much(verification, max_invented_share)


def invented_too_much(verification: Verification, max_share: float = MAX_INVENTED_SHARE) -> str | None:
    """Returns the reason to reject a summary with more literals of its own than the share allows, None when it has fewer."""
    if len(verification.invented) < 2 or verification.invented_share <= max_share:
        return None
    examples = ", ".join(f.text for f in verification.invented[:3])
    return (
        f"{len(verification.invented)} of {verification.checked} literals in the summary are in no source "
        f"({examples}); at most {max_share:.0%} may be"
    )


def within(needle: str, hay: str) -> bool:
    """Tells whether `needle` occurs in `hay` as a whole, not as part of a longer word or number."""
    at = hay.find(needle)
    while at >= 0:
        before, after = hay[at - 1 : at], hay[at + len(needle) : at + len(needle) + 1]
        if not (_joins(before) and _joins(needle[:1])) and not (_joins(after) and _joins(needle[-1:])):
            return True
        at = hay.find(needle, at + 1)
    return False


_REFUSAL = re.compile(
    r"\W*(?:I['’]?m\s+(?:very\s+)?sorry|I\s+apologi[sz]e|sorry,|I\s+(?:can(?:no|['’])t|am\s+(?:not\s+able|unable)|won['’]t)\b"
    r"|I['’]m\s+(?:not\s+able|unable)|as\s+an?\s+(?:AI|language\s+model)|unfortunately,?\s+I\b"
    r"|(?:很?抱歉|对不起|不好意思)|我(?:无法|不能|没办法)|作为(?:一个|一名)?(?:AI|人工智能|语言模型))",
    re.I,
)
_SPEAKERS = r"(?:users?|customers?|assistants?|agents?|clients?)"
_ABOUT = re.compile(
    rf"\b(?:the|an?|this|both)\s+{_SPEAKERS}\b(?!\s+(?:id|name|account|number)\b)|\b{_SPEAKERS}['’]s?\b"
    rf"|\b{_SPEAKERS}\s+(?:\w+ed|is|was|has|had|wants?|needs?|asks?|says?|said|chose|gave)\b"
    r"|用户|客户|顾客|助手|客服|双方",
    re.I,
)
_ANNOUNCED = re.compile(r"\b(?:conversation|summar(?:y|ies|i[sz]e[ds]?)|overview|recap)\b|对话|摘要|总结|概要", re.I)
_CHAT_OPENING = re.compile(
    r"\W*(?:(?:sure|certainly|of course|absolutely|great|thanks|hello|hi|hey|yes|no|okay|ok)\s?[,.!]"
    r"|(?:thank you|you['’]re welcome|let me|please|I['’](?:ll|d|ve|m)|I (?:will|would|want|need|have|can|am)|my)\b)"
    r"|\W*(?:好的|当然|没问题|谢谢|您好|你好|是的|不是|请问|请|我(?:来|会|想|要|这就|需要|马上)|不客气)",
    re.I,
)
_TO_YOU = re.compile(r"\b(?:you|your|I|we)\b|您|你|需要我|吗[？?]$", re.I)
_ROLE_LINE = re.compile(r"\W*(?:user|human|assistant|ai|customer|agent|用户|助手|客服|客户)\W{0,3}[:：]", re.I)


def _continues(text: str, source_text: str) -> bool:
    """Tells whether a text reads as the next message of a chat: a script of turns, an answer or a question to the reader."""
    lines = [line for line in text.splitlines() if line.strip()]
    role_lines = [line for line in lines if _ROLE_LINE.match(line)]
    if len(role_lines) > 1 and len(role_lines) >= 0.6 * len(lines):
        return True
    opens = bool(_CHAT_OPENING.match(text))
    asks = lines[-1].rstrip().endswith(("?", "？")) and bool(_TO_YOU.search(lines[-1]))
    if _ANNOUNCED.search(text[:120]):
        return False  # "Sure, here is the summary:" is one
    if opens and asks:
        return True
    # in the third person, as a list, or in the source's own sentences it is a summary after all
    is_list = sum(bool(LIST_MARK.match(line)) for line in lines) >= 0.5 * len(lines)
    is_chat = opens or asks or _addressed(text)
    return is_chat and not is_list and _ABOUT.search(text) is None and not _quotes(text, source_text)


def _addressed(text: str) -> bool:
    """Tells whether most sentences address somebody."""
    all_sentences = sentences(text)
    return sum(bool(_TO_YOU.search(s)) for s in all_sentences) >= ADDRESSED_SHARE * len(all_sentences)


def _keeps_nothing(text: str, source_text: str, verification: Verification) -> str | None:
    """Returns a reason when the text shares next to nothing with its source; None when it may be its summary."""
    lost = sum(f.kind != "statement" for f in verification.missing)
    if any(map(_telling, verification.kept)) or not lost:
        return None
    if lost >= MIN_LOST:
        return f"the summary keeps none of the {lost} literals in its source: {_short(text)}"
    words, known = frozenset(terms(text)), frozenset(terms(source_text))
    if len(words) >= MIN_TERMS and len(words & known) < KNOWN_SHARE * len(words):
        return f"{len(words & known)} of the summary's {len(words)} words are in its source: {_short(text)}"
    return None


def _telling(fact: Fact) -> bool:
    """Tells whether a text can hardly have the literal by chance, as it may have a word of a list."""
    if fact.kind == "statement":
        return True
    return any(c.isdigit() for c in fact.text) or (fact.kind != "field" and fact.value not in STOP_WORDS)


def _quotes(text: str, source_text: str) -> bool:
    """Tells whether most sentences stand in the source."""
    folded_source = " ".join(source_text.casefold().split())
    folded = [" ".join(s.casefold().split()) for s in sentences(text)]
    return sum(s in folded_source for s in folded) >= 0.5 * len(folded)


def _repeats(text: str) -> bool:
    long_sentences = [s.casefold() for s in sentences(text) if len(s) > 20]
    return len(long_sentences) >= 5 and len(set(long_sentences)) <= len(long_sentences) / 2


def _line(text: str) -> _Line:
    keyed = tuple((f.value, frozenset(terms(f.key))) for f in scan(text))
    values = frozenset(value for value, _ in keyed)
    return _Line(" ".join(text.casefold().split()), keyed, values, frozenset(terms(text)), negated(text))


def _states_value(fact: Fact, words: frozenset[str], line: _Line) -> bool:
    """Tells whether the line has the value for this key: where the key has values of its own, the value is one of them."""
    values_of_key = {value for value, key in line.keyed if key & words}
    return (
        fact.value in values_of_key if values_of_key and fact.kind != "field" else not words or bool(words & line.terms)
    )


def is_checkable(fact: Fact) -> bool:
    if fact.kind == "identifier":
        return any(c.isdigit() or c == "_" for c in fact.text)
    if fact.kind == "number":
        return not (fact.value.isdigit() and len(fact.value) <= 2 and int(fact.value) <= SMALL_NUMBER)
    return fact.kind in VALUE_KINDS


def _known(fact: Fact, sources: _Values) -> bool:
    """Tells whether a source has the value in any form, also as a number in an identifier or a day in a time stamp."""
    if sources.has_value(fact):
        return True
    if fact.kind in ("number", "amount"):
        digits = _DIGITS.search(fact.text.replace(",", ""))
        return digits is not None and _whole_number(digits[0], sources.folded)
    return fact.kind == "date" and within(" ".join(fact.text.casefold().split()), sources.folded)


def _whole_number(digits: str, hay: str) -> bool:
    at = hay.find(digits)  # far faster than a regular expression, of which one would be needed for each number
    while at >= 0:
        before, after = hay[at - 1 : at], hay[at + len(digits) : at + len(digits) + 2]
        inside = before.isdecimal() or before in {".", ","}
        if not inside and not after[:1].isdecimal() and not (after[:1] in {".", ","} and after[1:].isdecimal()):
            return True
        at = hay.find(digits, at + 1)
    return False


def _joins(sign: str) -> bool:
    return sign == "_" or (sign.isascii() and sign.isalnum())


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:77]}...")


# the probe
