"""Is a summary to be trusted? What it kept, lost and made up, by literals alone; no model is asked.

The order of use: `check` the summary against its sources; `looks_wrong` names the reason to reject it, if there is one;
otherwise `ledger_lines` gives what is missing as verbatim lines, as far as the room goes, and says what only the archive has.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from ctxfold.compaction.literals import SHORT_VALUE, Fact, Source, extract, flat, message_of, negated, scan
from ctxfold.compaction.normal import month_day
from ctxfold.history.data import defused
from ctxfold.history.terms import STOP_WORDS, sentences, terms
from ctxfold.ports import TokenCounter

__all__ = ["Ledger", "Verification", "check", "ledger_lines", "looks_wrong"]

RULE_COVERAGE = 0.6  # share of a rule's terms that one sentence of the summary must have
MAX_INVENTED_SHARE = 0.2
ADDRESSED_SHARE = 0.6  # of a text's sentences that address somebody: it is an answer, no summary
MIN_LOST = 32  # literals in a source: a summary that keeps none of so many is none
MIN_TERMS, KNOWN_SHARE = 4, 0.25  # of a summary's words, at least as many are in a source whose few literals it lacks
SMALL_NUMBER = 12  # counting is not inventing
MOST_CHARS = 8  # of a token, in what literals are made of
_CHECKED = ("email", "url", "path", "identifier", "amount", "date", "number")
_LIST_MARK = re.compile(r"^[^\S\n]*+(?:\d{1,3}[.)、]\s|[-*•#]++\s)", re.M)
_DIGITS = re.compile(r"\d+(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class Verification:
    """The sources' literals that the summary has and lacks, and the summary's literals that no source has.

    `checked` counts the summary's own literals that could have been invented.
    """

    kept: tuple[Fact, ...]
    missing: tuple[Fact, ...]
    invented: tuple[Fact, ...]
    checked: int

    @property
    def invented_share(self) -> float:
        return len(self.invented) / self.checked if self.checked else 0.0


@dataclass(frozen=True, slots=True)
class Ledger:
    """Verbatim lines for what a summary lacks, the most load-bearing first; `archived` found no room.

    `data_lines` are those that tools said: they may state facts, but set no rules.
    """

    lines: tuple[str, ...]
    archived: tuple[Fact, ...]
    data_lines: tuple[str, ...] = ()
    placed: int = 0

    @property
    def text(self) -> str:
        return "\n".join((*self.lines, *self.data_lines))


@dataclass(frozen=True, slots=True)
class _Line:
    folded: str
    keyed: tuple[tuple[str, frozenset[str]], ...]
    values: frozenset[str]
    terms: frozenset[str]
    negated: bool


class _Values:
    """A text that can be asked whether it has a value, wherever that is; `known` ones are in it for certain."""

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
        """Whether the value occurs, wherever it is."""
        if fact.value in self.values:
            return True
        if fact.kind == "date":
            return (month_day(fact.value) or fact.value) in self.days
        return fact.kind not in ("number", "amount") and within(fact.value, self.folded)


class _Seen(_Values):
    """A text that can be asked whether it has a literal where it belongs."""

    def __init__(self, text: str) -> None:
        self.lines = [_line(s) for s in sentences(_LIST_MARK.sub("", text))]
        self._by_value: defaultdict[str, list[_Line]] = defaultdict(list)
        for line in self.lines:
            for value in line.values:
                self._by_value[value].append(line)
        super().__init__(text, self._by_value)

    def has(self, fact: Fact) -> bool:
        """Whether the text has the literal: a rule by its words and polarity, a short value only beside its key."""
        if fact.kind == "rule":
            return self._has_rule(fact)
        if fact.kind == "call":
            return fact.value in self.folded
        if len(fact.value) <= SHORT_VALUE and fact.kind in ("number", "field", "amount"):
            return self._has_beside(fact)
        return self.has_value(fact)

    def _has_beside(self, fact: Fact) -> bool:
        lines = self._by_value.get(fact.value, [])
        if fact.kind == "field" and fact.value in self.folded:
            lines = [*lines, *(line for line in self.lines if within(fact.value, line.folded))]
        words = frozenset(terms(fact.key)) if lines else frozenset[str]()
        return any(_beside(fact, words, line) for line in lines)

    def _has_rule(self, fact: Fact) -> bool:
        wanted = frozenset(terms(fact.text))
        if fact.value in self.folded or not wanted:
            return fact.value in self.folded
        polarity = negated(fact.text)
        return any(
            len(wanted & line.terms) >= RULE_COVERAGE * len(wanted) and (line.negated or not polarity)
            for line in self.lines
        )


def check(summary_text: str, sources: Iterable[Source], *, facts: Sequence[Fact] | None = None) -> Verification:
    """What the summary kept, lost and made up. `facts` are what `extract` finds in the sources, where that is known."""
    given = list(sources)
    seen = _Seen(summary_text)
    kept: list[Fact] = []
    missing: list[Fact] = []
    sought = extract(given) if facts is None else facts
    for fact in sought:
        (kept if seen.has(fact) else missing).append(fact)
    claims = {f.value: f for s in _LIST_MARK.sub("", summary_text).splitlines() for f in scan(s) if _checkable(f)}
    values = {f.value for f in sought}
    doubtful = [f for f in claims.values() if f.value not in values]
    return Verification(tuple(kept), tuple(missing), tuple(_invented(doubtful, given, values)), len(claims))


def _invented(doubtful: Sequence[Fact], given: Sequence[Source], values: Collection[str]) -> list[Fact]:
    """Those that no source has in any form; most are found without going through all sources once more."""
    if not doubtful:
        return []
    text = "\n".join(flat(message_of(s)[0]) for s in given)
    known = _Values(text, values)
    left = [f for f in doubtful if not _known(f, known)]
    if not left:
        return []
    whole = _Values(text, {f.value for s in sentences(_LIST_MARK.sub("", text)) for f in scan(s)})
    return [f for f in left if not _known(f, whole)]


def ledger_lines(
    missing: Sequence[Fact],
    *,
    limit_tokens: int,
    counter: TokenCounter,
    data: Collection[str] = (),
    references: bool = True,
) -> Ledger:
    """One line per message, `- key: literal; key: literal (#number)`, within the limit; the heaviest facts are placed first.

    `data` are the ids of messages that tools wrote. Without `references` the lines do not say where they come from.
    """
    lines: dict[str, list[Fact]] = {}
    archived: list[Fact] = []
    placed: set[str] = set()
    used = 0
    for fact in sorted(missing, key=lambda f: (-f.weight, -f.number)):
        place = fact.message_id
        if fact.value in placed and len(fact.value) > SHORT_VALUE:
            continue
        entry = f"{_entry(fact)}; "
        if used + len(entry) // MOST_CHARS + (0 if place in lines else 3) > limit_tokens:
            archived.append(fact)  # too long whatever a counter says, and there may be thousands
            continue
        cost = counter.count_text(entry) + (
            0 if place in lines else counter.count_text(f"- (#{fact.number})\n" if references else "-\n")
        )
        if used + cost > limit_tokens:
            archived.append(fact)
            continue
        used += cost
        placed.add(fact.value)
        lines.setdefault(place, []).append(fact)
    told = tuple(_rendered(facts, references) for place, facts in lines.items() if place not in data)
    from_tools = tuple(_rendered(facts, references) for place, facts in lines.items() if place in data)
    return Ledger(told, tuple(archived), from_tools, len(placed))


def looks_wrong(
    summary_text: str,
    sources: Iterable[Source],
    verification: Verification,
    *,
    max_invented_share: float = MAX_INVENTED_SHARE,
) -> str | None:
    """Why a model's summary should be rejected, None when nothing speaks against it."""
    text, given = summary_text.strip(), "\n".join(flat(message_of(s)[0]) for s in sources)
    if not any(c.isalnum() for c in text):
        return "the summary is empty"
    if _REFUSAL.match(text) and not verification.kept:
        return f"the model refused: {_short(text)}"
    if _continues(text, given):
        return f"the model went on with the conversation instead of summarising it: {_short(text)}"
    if len(text) > len(given):
        return f"the summary has {len(text):,} characters, its source only {len(given):,}"
    if _repeats(text):
        return f"the summary repeats itself: {_short(text)}"
    if (reason := _keeps_nothing(text, given, verification)) is not None:
        return reason
    if len(verification.invented) > 1 and verification.invented_share > max_invented_share:
        examples = ", ".join(f.text for f in verification.invented[:3])
        return (
            f"{len(verification.invented)} of {verification.checked} literals in the summary are in no source "
            f"({examples}); at most {max_invented_share:.0%} may be"
        )
    return None


def within(needle: str, hay: str) -> bool:
    """Whether `needle` occurs in `hay` as a whole: not as part of a longer word or number."""
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


def _continues(text: str, given: str) -> bool:
    """Whether a text reads as the next message of a chat: a turn-by-turn script, an answer or a question to the reader."""
    lines = [line for line in text.splitlines() if line.strip()]
    spoken = [line for line in lines if _ROLE_LINE.match(line)]
    if len(spoken) > 1 and len(spoken) >= 0.6 * len(lines):
        return True
    opens = bool(_CHAT_OPENING.match(text))
    asks = lines[-1].rstrip().endswith(("?", "？")) and bool(_TO_YOU.search(lines[-1]))
    if _ANNOUNCED.search(text[:120]):
        return False  # "Sure, here is the summary:" is one
    if opens and asks:
        return True
    # told in the third person, as a list, or in the source's own sentences: a summary after all
    listed = sum(bool(_LIST_MARK.match(line)) for line in lines) >= 0.5 * len(lines)
    told = opens or asks or _addressed(text)
    return told and not listed and _ABOUT.search(text) is None and not _quotes(text, given)


def _addressed(text: str) -> bool:
    """Whether most sentences are said by somebody to somebody."""
    found = sentences(text)
    return sum(bool(_TO_YOU.search(s)) for s in found) >= ADDRESSED_SHARE * len(found)


def _keeps_nothing(text: str, given: str, verification: Verification) -> str | None:
    """Why a text is no summary of its source, which it shares next to nothing with; None when it may be one."""
    lost = len(verification.missing)
    if any(map(_telling, verification.kept)) or not lost:
        return None
    if lost >= MIN_LOST:
        return f"the summary keeps none of the {lost} literals in its source: {_short(text)}"
    words, known = frozenset(terms(text)), frozenset(terms(given))
    if len(words) >= MIN_TERMS and len(words & known) < KNOWN_SHARE * len(words):
        return f"{len(words & known)} of the summary's {len(words)} words are in its source: {_short(text)}"
    return None


def _telling(fact: Fact) -> bool:
    """Whether a summary hardly has it by chance, as it may have a word that stood in a list or began a sentence."""
    return any(c.isdigit() for c in fact.text) or (fact.kind != "field" and fact.value not in STOP_WORDS)


def _quotes(text: str, given: str) -> bool:
    folded = " ".join(given.casefold().split())
    found = [" ".join(s.casefold().split()) for s in sentences(text)]
    return sum(s in folded for s in found) >= 0.5 * len(found)


def _repeats(text: str) -> bool:
    found = [s.casefold() for s in sentences(text) if len(s) > 20]
    return len(found) >= 5 and len(set(found)) <= len(found) / 2


def _line(text: str) -> _Line:
    keyed = tuple((f.value, frozenset(terms(f.key))) for f in scan(text))
    values = frozenset(value for value, _ in keyed)
    return _Line(" ".join(text.casefold().split()), keyed, values, frozenset(terms(text)), negated(text))


def _beside(fact: Fact, words: frozenset[str], line: _Line) -> bool:
    """Whether the line has its value for this key: where the key goes with values of its own, the value is one of them."""
    owned = {value for value, key in line.keyed if key & words}
    return fact.value in owned if owned and fact.kind != "field" else not words or bool(words & line.terms)


def _checkable(fact: Fact) -> bool:
    if fact.kind == "identifier":
        return any(c.isdigit() or c == "_" for c in fact.text)
    if fact.kind == "number":
        return not (fact.value.isdigit() and len(fact.value) <= 2 and int(fact.value) <= SMALL_NUMBER)
    return fact.kind in _CHECKED


def _known(fact: Fact, sources: _Values) -> bool:
    """A source has the value in any form: also a number inside an identifier, or a day inside a time stamp."""
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


def _entry(fact: Fact) -> str:
    text = defused(" ".join(fact.text.split()))
    key = defused(" ".join(fact.key.split()))
    return f"{key}: {text}" if key else text


def _rendered(facts: Sequence[Fact], references: bool) -> str:
    reference = f" (#{facts[0].number})" if references and facts[0].number else ""
    return f"- {'; '.join(_entry(f) for f in facts)}{reference}"


def _joins(sign: str) -> bool:
    return sign == "_" or (sign.isascii() and sign.isalnum())


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:77]}...")
