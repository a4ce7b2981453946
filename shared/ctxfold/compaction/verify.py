"""Holds a model's summary against its source by the values in it, without a model.

`check` tells what the summary has and lacks, and which values it made up; `repaired` replaces or strikes out what is wrong;
`verbatim_lines` puts back what is missing, within a limit; `looks_wrong` returns a reason to reject a text that is no summary.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ctxfold.compaction.extract import (
    LIST_MARK,
    ROLE_LINE,
    SHORT_VALUE,
    Sentence,
    Source,
    Value,
    extract,
    flat,
    message_of,
    scan,
    words_of,
)
from ctxfold.history.prompt_safety import strip_control_chars
from ctxfold.index.terms import sentences, terms
from ctxfold.lru import lazy_pattern
from ctxfold.protocols import TokenCounter

WORDS_KEPT = 0.6  # share of a sentence's words that one sentence of the summary must have
NEW_WORDS = 0.5  # share of a line's words that no chosen line has, where it has no new value
# least share of a sentence's words in one that replaces it, and where its value is in no source
REPLACES, DISTORTS = 0.6, 0.4
LEAST_SHARED = 3  # words; two common ones may be chance
CHOSEN = 4.0  # factor of a sentence that the model wrote of, in its own words
MAX_INVENTED_SHARE = 0.2
MIN_LOST = 32  # values of a source: a text that keeps none of so many is not its summary
MAX_TURN = 4  # sentences of the next message of a chat
MIN_TERMS, KNOWN_SHARE = 4, 0.25  # of a summary's words: least share that a source must have, where it keeps no value
SMALL_NUMBER = 12  # counting is not inventing
MAX_TOKEN_CHARS = 32  # only runs of white space and dashes have longer tokens
_GROUP = lazy_pattern(r"\d+")
_DATE = lazy_pattern(r"\d+(?:[-/:]\d+)+")
_HEADING = lazy_pattern(r"^\s*(?:#{1,6}\s|\*\*[^*]+\*\*:?\s*$|[^.!?]{1,60}[:：]\s*$)")


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of `check`.

    Args:
        kept: sentences of the sources whose values, or most of whose words, the summary has.
        missing: the other sentences of the sources.
        invented: values of the summary that no source has.
        checked: how many values of the summary could have been invented.
    """

    kept: tuple[Sentence, ...]
    missing: tuple[Sentence, ...]
    invented: tuple[Value, ...]
    checked: int


class _Stated(NamedTuple):
    """A sentence of a summary by its values, the numbers of its dates and times, and its other words."""

    values: frozenset[str]
    words: frozenset[str]

    @classmethod
    def of(cls, text: str) -> _Stated:
        values = {v.normal for v in scan(text)}
        parts = {group.lstrip("0") for v in values if _DATE.fullmatch(v) for group in _GROUP.findall(v)}
        return cls(frozenset(values | parts), words_of(text))


def check(summary_text: str, sources: Iterable[Source], *, found: Sequence[Sentence] | None = None) -> Verification:
    """Compares the summary with its sources. `found` are their sentences, where `extract` was called already."""
    source_list = list(sources)
    source_sentences = extract(source_list) if found is None else found
    folded = _folded(summary_text)
    stated = [_Stated.of(s) for s in sentences(LIST_MARK.sub("", summary_text))]
    by_value: defaultdict[str, list[_Stated]] = defaultdict(list)
    for each in stated:
        for value in each.values:
            by_value[value].append(each)
    kept: list[Sentence] = []
    missing: list[Sentence] = []
    for sentence in source_sentences:
        (kept if _has(sentence, folded, stated, by_value) else missing).append(sentence)
    claims = {v.normal: v for s in LIST_MARK.sub("", summary_text).splitlines() for v in scan(s) if _is_checkable(v)}
    known = frozenset(value for s in source_sentences for value in s.values)
    doubtful = [v for normal, v in claims.items() if normal not in known]
    return Verification(tuple(kept), tuple(missing), tuple(_invented(doubtful, source_list)), len(claims))


def _has(sentence: Sentence, folded: str, stated: Sequence[_Stated], by_value: Mapping[str, Sequence[_Stated]]) -> bool:
    """Tells whether a summary has a sentence: word for word, by its values, short ones beside a word of it, or by its words."""
    if _folded(sentence.text.partition(": ")[2] or sentence.text) in folded:
        return True
    if sentence.open_call:
        return False
    if not sentence.values:
        least = WORDS_KEPT * len(sentence.words)
        return any(len(sentence.words & s.words) >= least for s in stated)
    return all(
        any(len(value) > SHORT_VALUE or not sentence.words or sentence.words & s.words for s in by_value.get(value, ()))
        for value in sentence.values
    )


def _invented(doubtful: Sequence[Value], sources: Sequence[Source]) -> list[Value]:
    """Returns the values that no source has in any form; goes through the sources only where there are some in doubt."""
    if not doubtful:
        return []
    text = "\n".join(flat(message_of(s)[0]) for s in sources)
    known, folded = {v.normal for line in text.splitlines() for v in scan(line)}, _folded(text)
    groups = {group.lstrip("0") for value in (*known, folded) for group in _GROUP.findall(value)}
    return [v for v in doubtful if v.normal not in known and not _is_written(v, folded, groups)]


def _is_written(value: Value, folded: str, groups: Collection[str]) -> bool:
    """Tells whether a source has the value in another form: a date, a time or a number by its groups of digits."""
    if value.kind == "number":
        numbers = [value.normal] if value.normal.isdigit() else _GROUP.findall(value.normal)
        return all(_has_number(n, groups, clock=":" in value.text) for n in numbers)
    return within(_folded(value.text), folded)


def _has_number(digits: str, groups: Collection[str], *, clock: bool) -> bool:
    number = int(digits[:20])
    return number <= SMALL_NUMBER or digits.lstrip("0") in groups or (clock and str(number - 12) in groups)


def _is_checkable(value: Value) -> bool:
    if value.kind == "number":
        return not (value.normal.isdigit() and int(value.normal[:20]) <= SMALL_NUMBER)
    return value.kind != "code" or any(c.isdigit() or c == "_" for c in value.text)


def within(needle: str, hay: str) -> bool:
    """Tells whether `needle` occurs in `hay` as a whole, not as part of a longer word or number."""
    at = hay.find(needle)
    while at >= 0:
        before, after = hay[at - 1 : at], hay[at + len(needle) : at + len(needle) + 1]
        if not (_joins(before) and _joins(needle[:1])) and not (_joins(after) and _joins(needle[-1:])):
            return True
        at = hay.find(needle, at + 1)
    return False


def _joins(sign: str) -> bool:
    return sign == "_" or (sign.isascii() and sign.isalnum())


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())


# what is wrong with it


def looks_wrong(summary_text: str, sources: Iterable[Source], verification: Verification) -> str | None:
    """Returns the reason for which a text is no summary of the sources, None when there is none."""
    text, source_text = summary_text.strip(), "\n".join(flat(message_of(s)[0]) for s in sources)
    if not any(map(str.isalnum, text)):
        return "the summary is empty"
    if len(text) > len(source_text):
        return f"the summary has {len(text):,} characters, its source only {len(source_text):,}"
    lines = [line for line in text.splitlines() if line.strip()]
    turns = sum(ROLE_LINE.match(line) is not None for line in lines)
    is_list = any(match[0].strip() for line in lines if (match := LIST_MARK.match(line)))
    asks = text.endswith(("?", "？")) and not is_list and len(sentences(text)) <= MAX_TURN
    if asks or (turns > 1 and turns >= WORDS_KEPT * len(lines)):
        return f"the model went on with the conversation instead of summarising it: {_short(text)}"
    long_sentences = [s.casefold() for s in sentences(text) if len(s) > 20]
    if len(long_sentences) >= 5 and len(set(long_sentences)) <= len(long_sentences) / 2:
        return f"the summary repeats itself: {_short(text)}"
    values = frozenset(value for s in (*verification.kept, *verification.missing) for value in s.values)
    if not values or any(v.normal in values for v in scan(text)):
        return None
    if len(values) >= MIN_LOST:
        return f"the summary keeps none of the {len(values)} values in its source: {_short(text)}"
    words, known = frozenset(terms(text)), frozenset(terms(source_text))
    if len(words) >= MIN_TERMS and len(words & known) < KNOWN_SHARE * len(words):
        return f"{len(words & known)} of the summary's {len(words)} words are in its source: {_short(text)}"
    return None


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:77]}...")


# what is put right


@dataclass(frozen=True, slots=True)
class Repair:
    """A model's text without the sentences that were wrong.

    Args:
        text: the text.
        better: the sentences of the source that replace some.
        struck: values that no source has, whose sentences nothing replaces.
    """

    text: str
    better: frozenset[Sentence]
    struck: tuple[Value, ...]


def repaired(text: str, found: Sequence[Sentence], invented: Collection[Value]) -> Repair:
    """Takes the sentences out of a model's text that state a value less exactly than the source, or one that it does not have.

    Such a sentence shares most of its words with one of the source and has none of its values: that one takes its place among the
    verbatim lines. Without such a one, a sentence is struck out where it has an invented value.
    """
    by_word: defaultdict[str, list[Sentence]] = defaultdict(list)
    for sentence in found:
        if sentence.values and not sentence.open_call:
            for word in sentence.words:
                by_word[word].append(sentence)
    wrong = {v.normal: v for v in invented}
    better: set[Sentence] = set()
    struck: dict[str, Value] = {}
    kept: list[str] = []
    for written in text.splitlines():
        mark = match[0] if (match := LIST_MARK.match(written)) else ""
        parts: list[str] = []
        for part in sentences(written[len(mark) :]):
            stated = _Stated.of(part)
            false = stated.values & wrong.keys()
            exact = _more_exact(stated, by_word, DISTORTS if false else REPLACES)
            if exact is not None:
                better.add(exact)
            elif false:
                struck |= {value: wrong[value] for value in false}
            else:
                parts.append(part)
        if parts or not written.strip():
            kept.append(f"{mark}{' '.join(parts)}".rstrip())
    return Repair(_without_empty_sections(kept), frozenset(better), tuple(struck.values()))


def _more_exact(stated: _Stated, by_word: Mapping[str, Sequence[Sentence]], least_share: float) -> Sentence | None:
    """Returns the sentence that says with its values what a sentence of the summary says without them, None for none."""
    shared: Counter[Sentence] = Counter()
    for word in stated.words:
        shared.update(by_word.get(word, ()))
    most = max(shared.values(), default=0)
    if most < max(LEAST_SHARED, least_share * len(stated.words)):
        return None
    best = [s for s, count in shared.items() if count == most]
    if any(s.values & stated.values for s in best):
        return None
    return max(best, key=lambda s: (most / len(s.words), s.number))


def too_much_invented(struck: Sequence[Value], checked: int) -> str | None:
    """Returns the reason to reject a summary of whose values so many had to be struck out, None for fewer."""
    if len(struck) < 2 or len(struck) <= MAX_INVENTED_SHARE * checked:
        return None
    examples = ", ".join(v.text for v in struck[:3])
    return (
        f"{len(struck)} of {checked} values in the summary are in no source ({examples}); "
        f"at most {MAX_INVENTED_SHARE:.0%} may be"
    )


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


# what is put back


@dataclass(frozen=True, slots=True)
class VerbatimLines:
    """Sentences that a summary repeats word for word, in the order of the conversation.

    Args:
        lines: those of the conversation, `- Anna: my locker is 41 (#number)`.
        data_lines: those of tool outputs, which may state facts but set no rules.
        archived: how many sentences did not fit the limit.
    """

    lines: tuple[str, ...]
    data_lines: tuple[str, ...]
    archived: int


def verbatim_lines(
    missing: Sequence[Sentence],
    *,
    limit_tokens: int,
    counter: TokenCounter,
    data: Collection[str] = (),
    references: bool = True,
) -> VerbatimLines:
    """Returns the sentences that tell the most for their length, within the limit.

    A sentence that has no value of its own and few words that no chosen one has is left out. `data` are the ids of tool messages.
    Without `references` the lines lack their message numbers.
    """
    chosen: list[Sentence] = []
    placed: set[str] = set()
    used = 0
    for sentence in sorted(missing, key=lambda s: (-s.worth, -s.number, s.place)):
        new_words = len(sentence.words - placed)
        if not sentence.values - placed and new_words < NEW_WORDS * len(sentence.words) and not sentence.open_call:
            continue
        # no token has two words, and few have many characters
        least = max(len(sentence.text) // MAX_TOKEN_CHARS, min(sentence.text.count(" "), len(sentence.text) // 6))
        if used + 2 + least > limit_tokens:
            continue  # too long by any counter, and there may be thousands
        cost = counter.count_text(_shown(sentence, references)) + 1
        if used + cost > limit_tokens:
            continue
        used += cost
        placed |= sentence.values | sentence.words
        chosen.append(sentence)
    chosen.sort(key=lambda s: (s.number, s.place))
    return VerbatimLines(
        tuple(_shown(s, references) for s in chosen if s.message_id not in data),
        tuple(_shown(s, references) for s in chosen if s.message_id in data),
        len(missing) - len(chosen),
    )


def _shown(sentence: Sentence, references: bool) -> str:
    plain = strip_control_chars(" ".join(sentence.text.split()))
    return f"- {plain} (#{sentence.number})" if references and sentence.number else f"- {plain}"
