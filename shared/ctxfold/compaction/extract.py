"""Extracts sentences with their speaker and their values, and ranks them by rarity; no list of words of any language.

A value is what has the shape of one: a token with a digit, an address, a path, an identifier, a text between backticks. Stamps and
speakers are recognised by shape, too (`index.terms`).
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from itertools import count as numbers
from typing import NamedTuple, TypeAlias

from ctxfold.compaction.excerpts import failure_lines, without_calls
from ctxfold.compaction.text_units import TextUnits, is_code, is_code_block, without_markers
from ctxfold.history.prompt_safety import strip_control_chars
from ctxfold.history.view import Entry
from ctxfold.index.terms import CJK, Speech, sentences, speaker_of, speakers_of, stretches, terms
from ctxfold.lru import lazy_pattern
from ctxfold.messages import Message

Source: TypeAlias = Entry | Message

MAX_CHARS = 300  # of a sentence; a longer one is cut
MAX_VALUE_CHARS = 300  # longer ones are data, which nobody repeats
MOST_LINES = 400  # of a message, in which names are looked for
LEAST_TERMS = 3  # of a sentence without a value
SHORT_VALUE = 3  # characters; a value this short means nothing without the words beside it
SHORT_ANSWER = 3  # terms; what is as short comes with the question that it answers
MAX_RARITY = 3.0  # of a word: the rarest ones are mistyped
NUMBER_WORTH, NAME_WORTH, RARITY_WORTH = 12.0, 4.0, 0.5
MOST_NAMES = 2  # of a sentence that count
OVERHEAD_CHARS = 24  # of a sentence, as if it had so many more: a short one is no better than it is
FEW_LINES = 3  # of an output, which count in full; the lines of a larger one count as much as these together
REPEATED = 0.3  # factor of a sentence that a later one says again with other numbers
KEPT = 0.9  # factor of a line of the last summary: of two that tell as much, the newer one stays
ASKED, FAILED = 0.4, 3.0  # factors of a question, and of a line that reports a failure
_ROLE_WORTH = {"user": 1.0, "system": 1.0, "assistant": 0.7, "tool": 0.4}
FENCE = "```"
CALLED = "assistant called"  # in front of a tool's name and the arguments of its call

LIST_MARK = lazy_pattern(
    r"^[^\S\n]{0,16}(?:>[^\S\n]{1,4}){0,8}(?:[-*•–]{1,3}[^\S\n]+|#{1,6}[^\S\n]+|\(?(?:\d{1,3}|[a-z])[.)][^\S\n]+|\d{1,3}、)?",
    re.M,
)
_LETTER = rf"[^\W_{CJK}]"  # or a digit
# a run of plain words has no value in it, and is most of a text: it is passed over in one step
_VALUE = lazy_pattern(
    rf"""
    (?<!\S)(?:[A-Z]?[a-z]++[,.;:!?]*+(?:\s++|\Z))++
  | (?P<url>\bhttps?://[^\s"'<>()\[\]{{}}，。；、]+)
  | (?P<email>(?<![\w.%+-])[\w.%+-]{{1,64}}+@[\w-]++(?:\.[\w-]+)+)
  | (?P<path>(?<![\w/<])(?:~|\.{{1,2}})?(?:/[\w.@+-]+){{2,}}/?|\b[A-Za-z]:\\[\w\\.-]+
      |(?<![\w./-])[\w-]{{2,64}}+(?:/[\w-]{{1,64}}+){{0,12}}+\.[a-z]{{1,5}}+(?![\w.]\w))
  | (?P<code>(?<=`)[^`\n]{{2,80}}(?=`))
  | (?P<number>(?<!{_LETTER})(?:[+-](?=\d))?\d++(?:[.,:/-]\d++)*+(?:%|(?:(?!\d){_LETTER}){{1,3}}(?!\w))?(?!{_LETTER}|[-_]\w))
  | (?P<identifier>(?<!{_LETTER})(?:(?=(?:{_LETTER}|[-_.\#:/]){{0,64}}\d){_LETTER}++(?:[-_.\#:/]{{1,3}}+{_LETTER}++)*+
      |[A-Za-z]++(?:_[A-Za-z0-9]++)++|[a-z]++(?:[A-Z][a-z0-9]++)++)(?!{_LETTER}))
    """,
    re.VERBOSE,
)
_CAPITAL = r"\b[A-ZÀ-ÖØ-ÞΑ-ΩА-Я]\w+"
_CAPITALISED = lazy_pattern(_CAPITAL)
_NAME = lazy_pattern(rf"(?<=[\w,;]\s){_CAPITAL}")  # not at the beginning of a sentence
_EMPHASIS = lazy_pattern(r"(?<!\w)(\*{1,3}|__)(?=\S)([^*_\n]+)(?<=\S)\1(?!\w)")
_MARKER_IN_JSON = lazy_pattern(r"\\n\[\.\.\. [\d,]{1,12} of [^\]\n]{0,200}\]")  # of a shortened argument
# nobody speaks for these, as their text is not theirs to write
_ROLES = frozenset(("user", "human", "assistant", "system", "tool", "ai", "developer", "tool output", "open tool call"))
ROLE_LINE = lazy_pattern(rf"\W*(?:{'|'.join(sorted(_ROLES))})\W{{0,3}}[:：]", re.I)
# what a summary without facts says; nobody said it, so the next summary does not repeat it
ARCHIVED_NOTE = lazy_pattern(r"^(\d{1,18}) earlier messages are archived\.$", re.M)


class Value(NamedTuple):
    """A value as it is written, and its normal form, which equal values share."""

    text: str
    normal: str
    kind: str


class Sentence(NamedTuple):
    """A sentence, a line of a tool output, or an open tool call.

    Args:
        text: the words, verbatim except for white space and marks of lists, with the speaker in front.
        values: the normal forms of the values in it.
        words: its terms without the values.
        number: number of its message, 0 for one outside a session.
        message_id: id of that message.
        place: its place among all sentences.
        worth: how much it tells.
        open_call: it is a tool call without a result.
    """

    text: str
    values: frozenset[str]
    words: frozenset[str]
    number: int = 0
    message_id: str = ""
    place: int = 0
    worth: float = 0.0
    open_call: bool = False


def extract(sources: Iterable[Source]) -> tuple[Sentence, ...]:
    """Returns the sentences that tell something, in order, and the open tool calls; of equal ones the newest."""
    source_list = list(sources)
    speakers = _speakers(message_of(s)[0] for s in source_list)
    found: dict[str, tuple[Sentence, float]] = {}
    times: Counter[str] = Counter()
    tools: dict[str, str] = {}
    folded_speakers = frozenset(map(str.casefold, speakers))
    kept_lines = Counter(message_of(s)[1] for s in source_list if _is_kept_line(s))
    nobody = asked = Speech("", "")
    places = numbers()
    for source in source_list:
        message, number = message_of(source)
        tools |= {c.id: c.name for c in message.tool_calls}
        speeches = [] if message.role == "tool" or message.kind == "summary" else spoken(message, speakers)
        told = _told(source, speeches, tools, asked if len(speakers) <= 2 else nobody)
        share = _share(kept_lines[number]) if _is_kept_line(source) and message.role == "tool" else 1.0
        for place, (speaker, said, factor) in zip(places, told, strict=False):
            text = f"{speaker}: {said}" if speaker else said
            values = frozenset(v.normal for v in scan(said)) - folded_speakers
            words = words_of(said)
            if len(words) >= LEAST_TERMS or (values and _tells(said)):
                found.pop(text, None)
                times[text] += 1
                found[text] = Sentence(text, values, words, number, message.id, place), factor * share
        if speeches:
            speaker, text, _ = speeches[-1]
            asked = Speech(speaker, sentences(text)[-1] if _asks(text.rstrip()) else "")
    by_message = _messages_of(s for s, _ in found.values())
    spread = Counter(chain.from_iterable(by_message.values()))
    rarity = {word: min(MAX_RARITY, math.log((1 + len(by_message)) / n)) for word, n in spread.items()}
    names = frozenset(name for s, _ in found.values() for name in _NAME.findall(s.text))
    wordings = [_wording(s) for s, _ in found.values()]
    newest = {wording: s for wording, (s, _) in zip(wordings, found.values(), strict=True) if not _asks(s.text)}
    ranked = (
        # what is said word for word again and again is a form, not news
        s._replace(
            worth=factor / times[s.text] * _worth(s, rarity, names) * (1.0 if newest.get(wording, s) is s else REPEATED)
        )
        for wording, (s, factor) in zip(wordings, found.values(), strict=True)
    )
    return (*ranked, *_open_calls(source_list))


def _tells(said: str) -> bool:
    """Tells whether something with a value says more than a bare number: a word stands beside it, or the value is none."""
    for value in scan(said):
        if value.kind != "number":
            return True
        said = said.replace(value.text, " ")
    return any(map(str.isalpha, said))


def _wording(sentence: Sentence) -> tuple[str, frozenset[str]]:
    """Returns what a sentence has in common with those that differ from it in nothing but numbers, and its speaker."""
    speaker = sentence.text.partition(": ")[0]
    return speaker, sentence.words.union(v for v in sentence.values if not v[:1].isdigit())


def _messages_of(found: Iterable[Sentence]) -> dict[str, set[str]]:
    words: dict[str, set[str]] = {}
    for sentence in found:
        words.setdefault(sentence.message_id, set()).update(sentence.words)
    return words


def _worth(sentence: Sentence, rarity: Mapping[str, float], names: frozenset[str]) -> float:
    """Returns what a sentence tells, by its numbers, its names and the rarity of its words, for its length."""
    named = min(MOST_NAMES, len(names.intersection(_CAPITALISED.findall(sentence.text.partition(": ")[2]))))
    rare = math.fsum(map(rarity.__getitem__, sentence.words))
    told = RARITY_WORTH * rare + NUMBER_WORTH * math.sqrt(len(sentence.values)) + NAME_WORTH * named
    return told / (len(sentence.text) + OVERHEAD_CHARS)


def message_of(source: Source) -> tuple[Message, int]:
    """Returns the message of a source and its number, 0 for a message outside a session."""
    return (source.message, source.number) if isinstance(source, Entry) else (source, 0)


def flat(message: Message) -> str:
    """Returns everything that a model sees of a message as one text: its words, tool calls and results."""
    return "\n".join([message.text, *(f"{c.name} {c.arguments}" for c in message.tool_calls)])


# what is said


def _told(
    source: Source, speeches: Sequence[Speech], tools: Mapping[str, str], asked: Speech
) -> Iterator[tuple[str, str, float]]:
    """Yields who says the sentences of a message, the sentences, and a factor for each."""
    message, _ = message_of(source)
    worth = _ROLE_WORTH[message.role]
    if message.kind == "summary":
        if _is_kept_line(source):
            speaker, _, said = message.text.partition(": ")
            yield (speaker, said, KEPT * worth) if said else ("", speaker, KEPT * worth)
        else:
            yield from (("", s, worth) for s in sentences(ARCHIVED_NOTE.sub("", message.text)))
    elif message.role == "tool":
        tool = next((r.name or tools.get(r.call_id, "") for r in message.tool_results), "") or "tool output"
        failures = failure_lines(message.text)
        yield from ((tool, _short(line), FAILED * worth) for line in failures)
        units = [] if is_code(message.text) else list(_units(without_calls(message.text)))
        yield from ((tool, s, worth * _share(len(units))) for s in units if s not in failures)
    else:
        for speech in speeches:
            for at, text in enumerate(_sentences(speech.words)):
                answers = asked.words and not at and len(speeches) == 1 and asked.speaker != speech.speaker
                if answers and len(words_of(text)) <= SHORT_ANSWER:
                    question = asked.words.replace('"', "'")[-MAX_CHARS:]
                    yield f'{speech.speaker}, asked "{question}"', text, worth
                else:
                    yield speech.speaker, text, worth * (ASKED if _asks(text) else 1.0)
    for call in message.tool_calls:
        read = call.parsed() if "\\u" in call.arguments else None
        units = list(_units(call.arguments if read is None else json.dumps(read, ensure_ascii=False)))
        yield from ((f"{CALLED} {call.name}", s, worth * _share(len(units))) for s in units)


def _share(lines: int) -> float:
    """Returns a factor for each of so many lines of one output."""
    return FEW_LINES / max(FEW_LINES, lines)


def _is_kept_line(source: Source) -> bool:
    """Tells whether a source is a verbatim line of an earlier summary."""
    return isinstance(source, Entry) and source.message.kind == "summary" and not source.seq


def words_of(text: str) -> frozenset[str]:
    """Returns the terms of a text that have no digit."""
    return frozenset([t for t in terms(text) if t.isalpha() or not any(map(str.isdigit, t))])


def _asks(text: str) -> bool:
    return text.endswith(("?", "？"))


def _units(text: str) -> Iterator[str]:
    """Yields the lines of a tool output, or the records of a document."""
    units = TextUnits.of(_MARKER_IN_JSON.sub("", without_markers(strip_control_chars(text))))
    in_prose = units.kind == "lines" and not units.text.startswith(("{", "["))
    lines = sentences(units.text) if in_prose else map(units.unit, range(len(units)))
    yield from (_short(line) for raw in lines if (line := " ".join(raw.split())))


def _short(text: str) -> str:
    return text if len(text) <= MAX_CHARS else f"{text[:MAX_CHARS].rpartition(' ')[0] or text[:MAX_CHARS]} …"


def _sentences(text: str) -> Iterator[str]:
    """Yields the sentences of what somebody says, each item of a list with the heading of the list."""
    heading, has_items = "", False
    for raw in text.splitlines():
        mark = LIST_MARK.match(raw)
        line = raw[mark.end() if mark else 0 :]
        line = (_EMPHASIS.sub(r"\2", line) if "*" in line or "__" in line else line).strip()
        parts = [p for p in sentences(line) if any(map(str.isalnum, p))]
        if heading and len(parts) == 1 and mark and mark[0].strip():
            has_items = True
            parts = [f"{heading} {line}"]
        elif heading and (parts or raw == "-"):
            if not has_items:
                yield heading
            heading, has_items = "", False
        if parts and parts[-1].endswith((":", "：")) and not has_items:
            heading = parts.pop()
        yield from (_short(" ".join(part.split())) for part in parts)
    if heading and not has_items:
        yield heading


# who says it


def spoken(message: Message, speakers: Collection[str]) -> list[Speech]:
    """Returns what each speaker of a message says, in order; lines without a speaker belong to the one before."""
    name = message.name or ""
    speeches = [(name if name and not _is_role(name) else message.role, list[str]())]
    raw_lines = [*_without_code(strip_control_chars(without_markers(message.text)))]
    for raw, (speaker, line, stamped) in zip(raw_lines, speakers_of(raw_lines), strict=True):
        if not speaker:
            speeches[-1][1].append(line)
        elif (speaker in speakers or stamped) and not _is_role(speaker):
            speeches.append((speaker, [line]))
        else:
            speeches[-1][1].append(raw)
    return [Speech(speaker, text) for speaker, lines in speeches if (text := "\n".join(lines)).strip()]


def _is_role(name: str) -> bool:
    """Tells whether a name is, or begins with, a role: nobody speaks for the assistant or the system."""
    folded = name.casefold()
    return folded in _ROLES or folded.split(maxsplit=1)[0] in _ROLES


def _speakers(messages: Iterable[Message]) -> frozenset[str]:
    """Returns the names that begin several lines, or that several lines address."""
    names: Counter[str] = Counter()
    for message in messages:
        if message.role != "tool" and message.kind != "summary":
            for speaker, said, _ in speakers_of(message.text.splitlines()[:MOST_LINES]):
                names.update({speaker, speaker_of(said).speaker} if speaker else ())
    return frozenset(name for name, count in names.items() if name and count > 1)


def _without_code(text: str) -> Iterator[str]:
    """Yields the lines of a text without blocks of program code, of which those stay that report a failure."""
    if FENCE not in text:
        yield from text.splitlines()
        return
    block: list[str] | None = None
    for line in chain(text.splitlines(), [FENCE] if text.count(FENCE) % 2 else []):
        if not line.lstrip().startswith(FENCE) or line.count(FENCE) > 1:
            if block is None:
                yield line
            else:
                block.append(line)
        elif block is None:
            block = []
        else:
            yield from failure_lines("\n".join(block)) if is_code_block("\n".join(block)) else block
            block = None


def _open_calls(sources: Sequence[Source]) -> Iterable[Sentence]:
    """Returns the tool calls that have no result."""
    pending: dict[str, Sentence] = {}
    for source in sources:
        message, number = message_of(source)
        for call in message.tool_calls:
            text = f"open tool call: {call.name} {call.arguments}"
            values = frozenset(v.normal for v in scan(text))
            pending[call.id] = Sentence(
                text, values, frozenset(terms(text)), number, message.id, 0, math.inf, open_call=True
            )
        for result in message.tool_results:
            pending.pop(result.call_id, None)
    return pending.values()


# values


def scan(text: str) -> tuple[Value, ...]:
    """Returns the values in a text, in order."""
    return tuple(chain.from_iterable(map(_scanned, [text] if len(text) <= 2_000 else stretches(text))))


@lru_cache(maxsize=8_192)  # a compaction scans its sentences several times, and the next one scans the summary again
def _scanned(text: str) -> tuple[Value, ...]:
    values: list[Value] = []
    for match in _VALUE.finditer(unicodedata.normalize("NFKC", text) if not text.isascii() else text):
        if (kind := match.lastgroup) is None:
            continue
        literal = match[0].rstrip(".,:;/-")
        if len(literal) <= MAX_VALUE_CHARS or kind == "number":
            values.append(Value(literal, normal(literal), kind))
    return (*values, *(Value(run, number, "number") for run, number in _numerals(text)))


_NUMBER = lazy_pattern(r"\+?(-?\d[\d.,]*?)(?:%|[^\W\d]{1,3})?")


def normal(literal: str) -> str:
    """Returns the form in which values are compared: numbers without separators of thousands and without unit."""
    folded = " ".join(literal.casefold().split())
    number = _NUMBER.fullmatch(folded)
    if number is None:
        return folded
    digits = number[1]
    if digits.isdecimal():
        return digits
    if re.fullmatch(r"-?\d{1,3}(?:,\d{3})+(?:\.\d+)?", digits):
        digits = digits.replace(",", "")
    elif re.fullmatch(r"-?\d{1,3}(?:\.\d{3})+,\d+", digits):
        digits = digits.replace(".", "").replace(",", ".")
    return digits.rstrip("0").rstrip(".") if re.fullmatch(r"-?\d+\.\d+", digits) else digits


_NUMERALS = lazy_pattern(r"(?<!\d)(\d{0,24})([零〇一二两三四五六七八九十百千万亿]++)")


def _numerals(text: str) -> Iterator[tuple[str, str]]:
    """Yields the numbers that are written in signs, such as 三百, or in digits and signs, such as 3万, each also in digits."""
    if text.isascii():
        return
    for match in _NUMERALS.finditer(unicodedata.normalize("NFKC", text)):
        total = section = 0
        digit = int(match[1] or 0)
        for sign in match[2]:
            value = 2 if sign == "两" else int(unicodedata.numeric(sign))
            if value < 10:
                digit = 10 * digit + value  # 二〇二四 has no units
            elif value < 10_000:
                section, digit = section + (digit or 1) * value, 0
            else:
                part = section + digit
                # 万 behind 亿 counts what is between them (一亿二千万), 亿 behind 万 all before it (三万亿)
                total = total + part * value if total >= value else (total + part) * value
                section = digit = 0
        yield match[0], str(total + section + digit)
