"""Splits messages into statements: whole sentences with who said them and what they are about; marks fragments as such.

A list below a heading is one statement with the heading as its subject. A sentence that begins with a pronoun comes with the
sentence before it, a bare answer with its question. Words such as "next Friday" get the date that they mean, where the time of
the message is known.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from ctxfold.compaction.dates import with_dates
from ctxfold.compaction.excerpts import without_calls
from ctxfold.compaction.markdown import LIST_MARK, blocks, without_code
from ctxfold.compaction.sentences import (
    GENERIC,
    MAX_CHARS,
    clauses,
    is_correction,
    is_whole,
    needs_previous,
    plain,
    split_sentences,
    without_opener,
)
from ctxfold.compaction.text_units import without_markers
from ctxfold.history.prompt_safety import strip_control_chars
from ctxfold.history.terms import STOP_WORDS, terms
from ctxfold.history.view import Entry
from ctxfold.messages import Message

MAX_YEAR = 9_000  # of a time stamp
LIVE_S = 0.5  # messages that follow each other faster were handed over together
_STAMP = re.compile(
    r"^\s{0,8}[\[(]?(?P<day>\d{4}-\d{2}-\d{2}|\d{1,2}[./]\d{1,2}[./]\d{2,4})?[T,]?\s{0,4}"
    r"(?P<clock>\d{1,2}:\d{2}(?::\d{2})?(?:\.\d{1,9})?(?:\s?[AaPp][Mm])?Z?)?(?:\s{0,4}UTC)?[\])]?(?:\s{1,4}-)?\s{1,8}(?=\S)"
)
_LABEL = re.compile(
    r"^(?:<([^<>\s]{1,32})>\s+|([^\W_][^:\n<>{}\[\]\"“”?!;]{0,31}?)(?:, asked \"[^\"\n]{1,220}\")?:\s+)(?=\S)"
)
_ROLE = re.compile(  # "User Interface" is somebody's title
    r"\W*(?:(?:user|human)\b(?!\s(?-i:[A-Z][a-z]))|(?:assistant|system|tool|ai|developer|open tool call)\b)", re.I
)
_NO_SPEAKERS = frozenset(
    """
    note notes summary question answer re ps p.s error warning update fyi edit subject from to date time total price address
    name phone email e-mail example important reminder tip step steps rule output input result results http https file path
    """.split()  # noqa: SIM905 - a list would be ten times as long
)
# what a summary without facts says; nobody said it, so the next summary does not repeat it
ARCHIVED_NOTE = re.compile(r"^(\d{1,18}) earlier messages are archived\.$", re.M)


@dataclass(frozen=True, slots=True)
class Speech:
    """The words of one speaker: a message, or a part of it, without time stamp and name.

    Args:
        speaker: the name in front of the text, or the role; "" where the text names its speaker itself, as a ledger line does.
        text: the words.
        named: `speaker` is a name.
        at: when it was said, None where that is not known.
    """

    speaker: str
    text: str
    named: bool = False
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Statement:
    """A sentence that can stand alone.

    Args:
        text: the sentence, verbatim except for white space, marks of lists and doubled punctuation; dates may be added.
        line: the sentence with its speaker, and with the sentence or the question before it where it needs that.
        speaker: who said it, "" where the line says it in its own words.
        named: `speaker` is a name, not a role.
        whole: it has a subject and a verb; otherwise it is a fragment.
        question: it asks.
    """

    text: str
    line: str
    speaker: str = ""
    named: bool = False
    whole: bool = True
    question: bool = False


def named_speakers(messages: Iterable[Message]) -> frozenset[str]:
    """Returns the names that stand before what is said: `Message.name`, names after a time stamp, and labels that repeat."""
    certain: set[str] = set()
    labels: Counter[str] = Counter()
    first: set[str] = set()
    behind_stamps: list[str] = []
    labelled = texts = stamped = 0
    for message in messages:
        if message.role == "tool" or message.kind == "summary" or not (text := message.text):
            continue
        if message.name:
            certain.add(message.name)
        texts += 1
        for index, line in enumerate(without_code(text).splitlines()[:400]):
            stamp = _stamp(line)
            rest = line[stamp.end() :] if stamp else line
            stamped += stamp is not None
            if (label := _label(rest)) is not None:
                if rest.startswith("<"):
                    certain.add(label)
                elif stamp:
                    behind_stamps.append(label)
                else:
                    labels[label] += 1
                if not index:
                    first.add(label)
                    labelled += 1
    if len(behind_stamps) > stamped / 2:
        certain |= {*behind_stamps}  # otherwise "Try:" may begin a message
    else:
        labels.update(behind_stamps)
    if labelled > 2 and labelled > texts / 2:
        certain |= first  # a chat of several people: most messages begin with a name
    repeated = {name for name, count in labels.items() if count > 1 and not _is_field_name(name)}
    return frozenset(name for name in certain | repeated if not _ROLE.match(name))  # nobody speaks for the assistant


def spoken(message: Message, speakers: frozenset[str], at: datetime | None = None) -> Iterator[Speech]:
    """Yields what each speaker of a message says, in order; lines without a speaker of their own belong to the one before."""
    name = message.name if message.name and not _ROLE.match(message.name) else ""
    speaker: str = name or ("" if message.kind == "summary" else message.role)
    named, when = bool(name), at
    lines: list[str] = []
    words = message.text if message.kind != "summary" else ARCHIVED_NOTE.sub("", message.text)
    words = without_markers(words)
    if message.role == "tool":
        words = without_calls(words)
    elif message.kind != "summary":
        words = without_code(words)
    for raw in strip_control_chars(words).splitlines():
        line, own_at = raw, None
        if (stamp := _stamp(raw)) is not None:
            line, own_at = raw[stamp.end() :], _moment(stamp)
        label = _label(line)
        is_speaker = label is not None and (label in speakers or (message.kind == "summary" and bool(label)))
        if (is_speaker or own_at is not None) and any(x.strip() for x in lines):
            yield Speech(speaker, "\n".join(lines), named, when)
            lines = []
        if is_speaker and label is not None:
            matched = _LABEL.match(line)
            line = line[matched.end() :] if matched else line
            speaker, named = label, label not in ("user", "assistant", "system")
        if own_at is not None:
            when = own_at
        lines.append(line)
    if any(x.strip() for x in lines):
        yield Speech(speaker, "\n".join(lines), named, when)


def statements(speech: Speech, *, question: str = "", previous: str = "") -> list[Statement]:
    """Returns the statements and fragments of what somebody said, in order.

    `question` is what it answers, and `previous` what the same speaker said just before, with its dates, if anything.
    """
    result: list[Statement] = []
    quoted = question.replace('"', "'")  # nobody speaks for the one who answers
    # what was said before: as far back as it belongs together, and the last sentence alone
    known: tuple[str, ...] = (previous,)
    begun = 0  # of the statements, those of the sentence before
    for block in blocks(speech.text):
        for sentence in split_sentences(block):
            text = plain(sentence)
            if not any(map(str.isalnum, text)) or text.startswith("["):
                continue
            asks = text.endswith(("?", "？"))
            whole = is_whole(text)
            corrects = not asks and is_correction(text)
            needs = corrects or (whole and needs_previous(text))
            context = next((c for c in known if needs and len(c) + len(text) < MAX_CHARS), "")
            if context and context[-1].isalnum():
                context += "."
            if corrects and context:
                del result[begun:]  # what is corrected does not stand alone
                whole = True
            begun = len(result)
            answers = quoted and not result and not context and (needs or not whole)
            for clause in clauses(text) if len(text) > MAX_CHARS else (text,):
                shown = with_dates(without_opener(clause) if whole and not asks else clause, speech.at)
                words = f"{context} {shown}" if context else shown
                if answers and len(quoted) + len(words) < MAX_CHARS:
                    words = f'{speech.speaker or "user"}, asked "{quoted}": {words}'
                elif speech.speaker:
                    words = f"{speech.speaker}: {words}"
                result.append(Statement(shown, words, speech.speaker, speech.named, whole and is_whole(clause), asks))
            dated = with_dates(text, speech.at)
            known = (f"{context} {dated}".lstrip(), dated) if whole and not asks else ("",)
    return result


def ending(speech: Speech) -> str:
    """Returns the last sentence of what somebody said, "" for a note in brackets."""
    *_, last = speech.text.rstrip().splitlines()
    *_, sentence = split_sentences(last)
    text = plain(LIST_MARK.sub("", sentence))
    return "" if text.startswith("[") else text


def _stamp(line: str) -> re.Match[str] | None:
    match = _STAMP.match(line)
    if match is None or not (match["day"] or match["clock"]):
        return None
    bracketed = line.lstrip().startswith(("[", "("))
    # without brackets, "10:30 works for me" is no stamp: a name has to follow
    return match if bracketed or _LABEL.match(line[match.end() :]) else None


def _label(line: str) -> str | None:
    match = _LABEL.match(line)
    if match is None:
        return None
    label = (match[1] or match[2]).strip()
    words = label.split()
    return None if len(words) > 4 or label.casefold() in _NO_SPEAKERS else label


def _is_field_name(label: str) -> bool:
    """Tells whether a label that repeats is rather the name of a value, or a word such as "Try", than the name of a person."""
    words = label.split()
    if len(words) > 3 or any(w in STOP_WORDS or w.casefold() in _NO_SPEAKERS for w in words):
        return True
    return all(term in GENERIC for term in terms(label))


def _moment(stamp: re.Match[str]) -> datetime | None:
    day = stamp["day"]
    if day is None or "-" not in day:
        return None  # a day and a month in an order that is not known
    try:
        moment = datetime.fromisoformat(day).replace(tzinfo=UTC)
    except ValueError:
        return None
    # near its ends the calendar has no "yesterday" and no "in 999 weeks"
    return moment if 1000 <= moment.year < MAX_YEAR else None


def spoken_times(sources: Sequence[Entry | Message]) -> list[datetime | None]:
    """Returns when each message was said, as far as its session knows; None for the messages of a list that came at once.

    A history that is handed over as a list is stored within moments: the time of its records is not when it was said.
    """
    stored_s = [s.at_s if isinstance(s, Entry) else 0.0 for s in sources]
    times: list[datetime | None] = []
    for index, at_s in enumerate(stored_s):
        neighbours_s = [s for s in (*stored_s[max(0, index - 1) : index], *stored_s[index + 1 : index + 2]) if s]
        is_live = at_s > 0 and all(abs(at_s - s) >= LIVE_S for s in neighbours_s)
        times.append(datetime.fromtimestamp(at_s, UTC) if is_live else None)
    return times
