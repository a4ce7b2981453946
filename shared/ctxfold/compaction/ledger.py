"""Completes a model's summary with lines of the conversation, word for word.

`repaired` takes out sentences that state a fact worse than the conversation does; `ledger_lines` returns the lines that state
missing facts, within a limit.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ctxfold.compaction.facts import SHORT_VALUE
from ctxfold.compaction.literals import Fact, Line, scan
from ctxfold.compaction.markdown import LIST_MARK
from ctxfold.compaction.verify import VALUE_KINDS, is_checkable
from ctxfold.history.prompt_safety import strip_control_chars
from ctxfold.history.terms import sentences, terms
from ctxfold.protocols import TokenCounter

MAX_TOKEN_CHARS = 32  # only runs of white space and dashes have longer tokens
LINE_OVERHEAD_CHARS = 24  # of a ledger line, as if it had so many more: short lines are no better than they are
NEXT_FACT = 0.7  # of a line's second fact, and its square of the third: many values in one line are rarely all needed
# least share of a sentence's words in a line that replaces it, and where its number is invented
REPLACES, DISTORTS = (0.6, 0.4)
LEAST_SHARED = 3  # words, unless the owner of the value is one of them
CHOSEN = 4.0  # weight of facts that the model wrote of, in its own words
_CLAUSE = re.compile(r";\s+|,\s+(?:and\s+|while\s+)?(?=\S+\s\S+\s\S)|\sand\s+(?=[A-Z]\w+\s\S+\s\S)")
_SUBJECT = re.compile(r"[A-Z0-9]|(?:he|she|it|they|we|you|the|an?|his|her|their|my|our|this|that|all|some)\s")
_HEADING = re.compile(r"^\s*(?:#{1,6}\s|\*\*[^*]+\*\*:?\s*$|[^.!?]{1,60}[:：]\s*$)")
_VAGUE = frozenset(
    term
    for word in """
        about around roughly approximately nearly almost some several few many various dozen dozens hundred hundreds
        thousand thousands couple number ten twenty thirty forty fifty sixty seventy eighty ninety two three four five six
        seven eight nine
    """.split()  # noqa: SIM905 - a list would be ten times as long
    for term in terms(word)
)


@dataclass(frozen=True, slots=True)
class Ledger:
    """Verbatim lines for missing facts, in the order of the conversation.

    Args:
        lines: lines of the conversation.
        archived: facts that did not fit the limit.
        data_lines: lines of tool outputs, which may state facts but set no rules.
    """

    lines: tuple[str, ...]
    archived: tuple[Fact, ...]
    data_lines: tuple[str, ...]

    @property
    def text(self) -> str:
        return "\n".join((*self.lines, *self.data_lines))


@dataclass(slots=True)
class _Candidate:
    """A line of the ledger with the missing facts that it states."""

    line: Line
    order: int
    facts: list[Fact] = field(default_factory=list[Fact])

    @property
    def density(self) -> float:
        """Returns what the line is worth for its length."""
        weights = sorted((f.weight for f in self.facts), reverse=True)
        worth = sum(w * NEXT_FACT**i for i, w in enumerate(weights))
        return worth / (len(self.line.text) + LINE_OVERHEAD_CHARS)


def ledger_lines(
    missing: Sequence[Fact],
    *,
    limit_tokens: int,
    counter: TokenCounter,
    data: Collection[str] = (),
    references: bool = True,
) -> Ledger:
    """Returns the lines that state the missing facts, `- Anna: my locker is 41 (#number)`, within the limit.

    Lines with the weightiest facts for their length come in first; they stand in the order of the conversation. `data` are the ids
    of tool messages. Without `references` the lines lack their message numbers.
    """
    candidates: dict[Line, _Candidate] = {}
    for fact in missing:
        line = fact.line or Line(f"{fact.key}: {fact.text}" if fact.key else fact.text, fact.number, fact.message_id)
        candidates.setdefault(line, _Candidate(line, len(candidates))).facts.append(fact)
    chosen: list[_Candidate] = []
    begun: set[tuple[str, str]] = set()  # records, and the lines that hold them, which have begun
    placed: set[tuple[str, ...]] = set()
    used = 0
    for candidate in sorted(candidates.values(), key=lambda c: (-c.density, -c.line.number, c.order)):
        line = candidate.line
        if all(_identity(f) in placed for f in candidate.facts) or _is_repeated(line, chosen):
            continue
        if used + 2 + len(line.text) // MAX_TOKEN_CHARS > limit_tokens:
            continue  # too long by any counter, and there may be thousands
        record, source = (line.message_id, line.record), (line.message_id, line.source)
        head = "" if line.source and source in begun else f"- {line.source} (#{line.number})\n"
        head += "" if record in begun else f"; {line.record}"
        cost = counter.count_text(f"{head}{line.text},") + 1
        if used + cost > limit_tokens:
            continue
        used += cost
        placed |= {_identity(f) for f in candidate.facts}
        chosen = [c for c in chosen if not _is_repeated(c.line, [candidate])]
        chosen.append(candidate)
        begun |= {record, source}
    rendered = _rendered(sorted(chosen, key=lambda c: (c.line.number, c.line.place, c.order)), references)
    archived = tuple(f for f in missing if _identity(f) not in placed)
    from_messages = tuple(text for line, text in rendered if line.message_id not in data)
    from_tools = tuple(text for line, text in rendered if line.message_id in data)
    return Ledger(from_messages, archived, from_tools)


def repaired(text: str, facts: Sequence[Fact], *, copies: bool) -> tuple[str, frozenset[Line]]:
    """Returns a model's text without the sentences that state a fact less exactly than the conversation, and those facts' lines.

    Such a sentence is about nothing but what a line says, and has another value, none, or no owner. One that says the same with
    the value stays, but for copies of a line where `copies` is False: the line itself tells who said it, and where.
    """
    lines = _lines_by_term(facts)
    values = frozenset(f.value for f in facts)
    replacing: set[Line] = set()
    kept: list[str] = []
    for written in text.splitlines():
        mark = match[0] if (match := LIST_MARK.match(written)) else ""
        parts: list[str] = []
        for sentence in sentences(written[len(mark) :]):
            whole = _worse(sentence, lines, values, copies)
            clauses = [c.strip() for c in _CLAUSE.split(sentence)] if whole is None else []
            if whole is not None:
                replacing.add(whole)
            elif len(clauses) < 2 or not all(map(_SUBJECT.match, clauses)):
                parts.append(sentence)
            else:
                better = [(c, _worse(c, lines, values, copies)) for c in clauses]
                replacing |= {line for _, line in better if line is not None}
                good = [c for c, line in better if line is None]
                parts += (
                    [sentence] if len(good) == len(clauses) else [f"{', '.join(good).rstrip('.,;')}."] if good else []
                )
        if parts or not written.strip():
            kept.append(f"{mark}{' '.join(parts)}".rstrip())
    return _without_empty_sections(kept), frozenset(replacing)


def _identity(fact: Fact) -> tuple[str, ...]:
    """Returns what two mentions of a fact share; a short value means nothing without its key and owner."""
    return (fact.value, fact.key.casefold(), fact.owner) if len(fact.value) <= SHORT_VALUE else (fact.value,)


def _is_repeated(line: Line, chosen: Iterable[_Candidate]) -> bool:
    """Tells whether a chosen line of the same message begins with this one, as the context of its next sentence."""
    return not line.source and any(
        c.line.message_id == line.message_id and not c.line.source and c.line.text.startswith(line.text) for c in chosen
    )


def _rendered(chosen: Sequence[_Candidate], references: bool) -> list[tuple[Line, str]]:
    """Returns each line as text; all values from one source of a message are in one line, by record."""
    rendered: list[tuple[Line, str]] = []
    sources: dict[tuple[str, str], dict[str, list[str]]] = {}
    for line in (c.line for c in chosen):
        if not line.source:
            rendered.append((line, line.text))
            continue
        place = (line.message_id, line.source)
        if place not in sources:
            rendered.append((line, ""))
        sources.setdefault(place, {}).setdefault(line.record, []).append(line.text.rstrip(" ,;"))
    return [
        (line, _shown(line, text or _joined(line.source, sources[line.message_id, line.source]), references))
        for line, text in rendered
    ]


def _joined(source: str, records: Mapping[str, Sequence[str]]) -> str:
    shown = (", ".join(filter(None, (record, *values))) for record, values in records.items())
    return f"{source}: {'; '.join(shown)}"


def _shown(line: Line, text: str, references: bool) -> str:
    plain = strip_control_chars(" ".join(text.split()))
    return f"- {plain} (#{line.number})" if references and line.number else f"- {plain}"


class _Stated(NamedTuple):
    """A line as its words, its values and the owners of those."""

    line: Line
    words: frozenset[str]
    values: frozenset[str]
    owners: frozenset[str]


def _lines_by_term(facts: Sequence[Fact]) -> Mapping[str, list[_Stated]]:
    """Returns the lines that state a value, by each of their words."""
    by_line: defaultdict[Line, list[Fact]] = defaultdict(list)
    for fact in facts:
        if fact.line is not None and fact.kind in VALUE_KINDS and not fact.line.source:
            by_line[fact.line].append(fact)
    by_term: defaultdict[str, list[_Stated]] = defaultdict(list)
    for line, own in by_line.items():
        words = frozenset(_content(line.text))
        stated = _Stated(line, words, frozenset(f.value for f in own), frozenset(f.owner for f in own if f.owner))
        for word in words:
            by_term[word].append(stated)
    return by_term


def _worse(sentence: str, lines: Mapping[str, list[_Stated]], values: Collection[str], copies: bool) -> Line | None:
    """Returns the line that says better what the sentence says, None where there is none."""
    words = frozenset(_content(sentence))
    if len(words) < 2:
        return None
    shared: Counter[Line] = Counter()
    stated: dict[Line, _Stated] = {}
    for word in words:
        for each in lines.get(word, ()):
            shared[each.line] += 1
            stated[each.line] = each
    if not shared:
        return None
    most = max(shared.values())
    own = {f.value: f for f in scan(sentence)}
    distorted = any(is_checkable(f) and value not in values for value, f in own.items())
    if most < 2 or most < (DISTORTS if distorted else REPLACES) * len(words):
        return None
    folded = sentence.casefold()
    best = [stated[line] for line, count in shared.items() if count == most]
    if most < LEAST_SHARED and not any(o in folded for e in best for o in e.owners):
        return None  # two common words may be chance
    exact = [e for e in best if e.values <= own.keys() and all(o in folded for o in e.owners)]
    if exact and not distorted:
        copied = None if copies else next((e for e in exact if words <= e.words and e.line.number), None)
        return copied.line if copied is not None else None
    return max(best, key=lambda e: (len(e.words & words) / len(e.words), e.line.number)).line


def _content(text: str) -> Iterator[str]:
    """Yields the words of a text that are no numbers and no words for one that is not known well."""
    return (t for t in terms(text) if not t[0].isdigit() and t not in _VAGUE)


def _without_empty_sections(lines: Sequence[str]) -> str:
    """Returns the lines without headings that nothing follows."""
    kept: list[str] = []
    for index, line in enumerate(lines):
        if _HEADING.match(line):
            following = next((x for x in lines[index + 1 :] if x.strip()), "")
            if not following or _HEADING.match(following):
                continue
        if line.strip() or (kept and kept[-1].strip()):
            kept.append(line)
    return "\n".join(kept).strip()
