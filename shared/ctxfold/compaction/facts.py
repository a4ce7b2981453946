"""Extracts facts from messages without a model: values with their owners, rules, and sentences that state something.

Each fact knows the line that states it whole, with who said it, which the ledger of a summary repeats word for word. A statement
that a later one of another value replaces is no fact any more.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from ctxfold.compaction.dates import with_dates
from ctxfold.compaction.excerpts import failure_lines
from ctxfold.compaction.literals import (
    MAX_FIELD_CHARS,
    WORD,
    Fact,
    FactKind,
    Line,
    key_around,
    kind_of_literal,
    new_fact,
    scan,
)
from ctxfold.compaction.markdown import FIELD, LIST_MARK
from ctxfold.compaction.sentences import (
    content_words,
    cut,
    falters,
    is_clear,
    is_correction,
    is_courtesy,
    is_decision,
    is_directive,
    is_preference,
    is_whole,
    lowered,
)
from ctxfold.compaction.statements import Speech, Statement, ending, named_speakers, spoken, spoken_times, statements
from ctxfold.compaction.text_units import is_code, without_markers
from ctxfold.history.terms import STOP_WORDS, terms
from ctxfold.history.view import Entry
from ctxfold.messages import Message, ToolCallPart

FactSource: TypeAlias = Entry | Message

MAX_ITEM_CHARS = 40  # of an item of a list that counts as a value
_JUDGED = frozenset({"statement", "name"})  # kinds whose worth depends on what their sentence says
FRAGMENT = 0.15  # factor of what stands in no whole sentence
MAX_FRAGMENT_CHARS = 120  # of a line around a literal that stands in no whole sentence
CALL_AS_TEXT = 0.3  # factor of `run_tests({"path": "a.py"})` in what an agent says, as in logs of several agents
CONTENT_WORDS = 3  # that a sentence needs to count in full, each on a subject of the conversation
SUBJECT_MESSAGES = 8  # a word that stands in so many is about such a subject
DECIDES, DIRECTS_OTHERS = 2.0, 0.75  # factors of a decision or wish, and of what a named speaker tells others to do
FAILURE = 3.0  # factor of a line of a tool output that reports a failure
FEW_LINES = 3  # of an output, which count in full; the lines of a larger one count as much as these together
MAX_CALL_CHARS = 300  # of the arguments of a call that are one line
SHORT_VALUE = 3  # characters; a value this short means nothing without its key
_ROLE_WEIGHT = {"user": 3.0, "system": 2.0, "assistant": 1.5, "tool": 1.0}
_ARGUMENT_WEIGHT, _SUMMARY_WEIGHT = 2.5, 2.5
_LOOKUP_WEIGHT = 1.0  # of the arguments of a call that only reads: they were in the conversation before
_LOOKUP = re.compile(
    r"(?:get|list|search|find|read|fetch|look|query|view|show|describe|check|count|calculate|think)(?:_|\b|(?=[A-Z]))"
)
_CALL_AS_TEXT = re.compile(r"\w\(\{.*\}\)\W*$")


class _Wording:
    """Words, and patterns of text without word boundaries, that are searched in sentences; ignores case."""

    def __init__(self, words: str, others: str) -> None:
        self._word = re.compile(rf"(?<!\w)(?:{words})(?!\w)")
        self._other = re.compile(others)

    def inside(self, sentence: str) -> bool:
        folded = sentence.lower()
        if self._word.search(folded):
            return True
        return not (folded.isascii() and "'" not in folded) and bool(self._other.search(folded))


_QUOTED = re.compile(rf'["“「]([^"“”「」\n]{{2,{MAX_FIELD_CHARS}}})["”」]')
_NEGATION = _Wording(
    r"not|never|no|without|cannot|neither|nor|avoid|except|unless",
    r"n['’]t(?!\w)|不|没|勿|禁止|别(?!的|人)|切忌|避免|除非|除了|无需",
)
_FIRST_PERSON = re.compile(r"\b(?:i|my|mine|me|our|we|us)\b")
_STATES = (
    r"(?:is|are|was|were|has|have|had|owns?|owes?|keeps?|lives?|works?|costs?|needs?|wants?|prefers?|likes?|plays?|paid"
    r"|pays|bought|sold"
    r"|ordered|earns?|weighs?|drives?|uses?|booked|moved|started|holds?|collects?|studies|teaches|takes|lent|borrowed"
    r"|promised|agreed)"
)
_NAMED_OWNER = re.compile(
    rf"(?:^|[,:;]\s|\b(?:that|for|of|and)\s)(?:[A-Z][a-z]+\s){{0,2}}(?P<owner>[A-Z][a-zà-ÿ]+)(?:['’]s?\s+\w|\s{_STATES}\b)"
)
_OWN = re.compile(
    rf"\b(?:[Mm]y|[Oo]ur)\s+\w|\b(?:I|we|We)\s{_STATES}\b|\bI(?:['’]m| am| was)\s(?:a\b|an\b|the\b|\d|allergic|in\b|at\b"
    rf"|from\b)"
)
_OF_A_THING = re.compile(rf"\b(?:[Tt]he|[Tt]his)\s(?:\w+\s){{1,4}}{_STATES}\b")
_GROUPED = re.compile(r"[:：]\s\S.*[;,:：]\s\S")  # fields, or a heading with its items
_TELLING = frozenset(("email", "url", "path", "identifier", "amount", "date"))
_PASSING = re.compile(
    r"(?:['’]m|\bam|\bis|['’]re|\bare|['’]s)\s(?:just |still |now |not |also )*(?!allergic)\w{2,}ing\b"
)  # at this moment
_UNSURE = re.compile(r"\b(?:if|maybe|perhaps|might|could|would|guess|suppose|probably|wonder|not sure)\b")
_HOLDS = re.compile(  # what is bought, sold or paid twice is true twice; what somebody has or is may change
    r"(?:\b(?:is|are|was|were|be|has|have|had|costs?|lives?|works?|owns?|owes?|keeps?|needs?|wants?|prefers?|weighs?|earns?"
    r"|starts?|ends?"
    r"|opens?|closes?|takes?|expires?|leaves?|arrives?|departs?|(?:changed|moved|set|updated|raised|lowered) to)\b|['’](?:s"
    r"|m|re)\b)"
)
_CHANGED = frozenset(
    """
    now chang new instead longer actual actually correction correct updat moved mov switch replac anymor current rather
    already
    """.split()  # noqa: SIM905 - a list would be ten times as long
)
_NAME_STARTS = STOP_WORDS | frozenset(
    """
    yes no ok okay well also please thanks thank hello hi hey sorry sure maybe perhaps however never always only there here
    then today tomorrow yesterday monday tuesday wednesday thursday friday saturday sunday january february march april may
    june july august september october november december by heard code number
    """.split()  # noqa: SIM905 - a list would be ten times as long
)


def extract(sources: Iterable[FactSource]) -> tuple[Fact, ...]:
    """Returns every fact of the messages once; a literal of several messages weighs more.

    It has the number of its newest mention, and the line of the one that says most about it. Facts of a statement that a later
    one replaces with another value are left out.
    """
    source_list = list(sources)
    stated = list(_stated(source_list))
    replaced = _replaced(stated)
    mentioned: dict[tuple[str, ...], _Mention] = {}
    mentions = Counter(value for stated_line in stated for value in {f.value for f in stated_line.facts})
    judged = any(f.kind in _JUDGED for stated_line in stated if stated_line.text is not None for f in stated_line.facts)
    spread = _spread(stated) if judged else Counter[str]()
    for stated_line in stated:
        if stated_line.line in replaced:
            continue
        for each in stated_line.facts:
            salience = _salience(each.kind, stated_line.text, spread)
            fact = each if salience == 1.0 else each._replace(weight=each.weight * salience)
            short = fact.kind == "field" or (fact.kind in ("number", "amount") and len(fact.value) <= SHORT_VALUE)
            identity = (fact.key.casefold(), fact.owner, fact.value) if short else (fact.value,)
            older = mentioned.pop(identity, None)
            best = fact if older is None or fact.weight >= older.best.weight else older.best
            mentioned[identity] = _Mention(fact, best, fact.key or (older.key if older else ""))
    known = [m.fact(1 + min(1.0, math.log2(mentions[m.newest.value]) / 2)) for m in mentioned.values()]
    return (*known, *_open_calls(source_list))


def _spread(stated: Sequence[_StatedLine]) -> Counter[str]:
    """Returns in how many messages each content word stands: what a conversation is about comes up again and again."""
    words: defaultdict[str, set[str]] = defaultdict(set)
    for stated_line in stated:
        words[stated_line.line.message_id] |= content_words(stated_line.text or "")
    return Counter(word for each in words.values() for word in each)


def _salience(kind: FactKind, text: str | None, spread: Mapping[str, int]) -> float:
    """Returns a factor for a sentence without a value: 1 for four content words on the conversation's subjects, else less.

    A rule always counts in full, since "Be brief" says enough.
    """
    if text is None or kind not in _JUDGED:
        return 1.0
    words = content_words(text)
    on_subject = math.fsum(min(1.0, math.log2(spread[word]) / math.log2(SUBJECT_MESSAGES)) for word in words)
    return min(1.0, (len(words) + on_subject) / 2 / CONTENT_WORDS)


class _StatedLine(NamedTuple):
    """A line with its facts, the text of a statement, and its topic, where a later line about the same can replace it."""

    line: Line
    facts: tuple[Fact, ...]
    text: str | None = None  # None for values of a document
    topic: _Topic | None = None


class _Topic(NamedTuple):
    """The words of a statement without its value: who it is about, what, and of which kind the value is."""

    words: frozenset[str]
    kind: FactKind
    changed: bool


class _Mention(NamedTuple):
    """A literal by its newest and by its best mention; it becomes a fact when all are known."""

    newest: Fact
    best: Fact
    key: str

    def fact(self, factor: float) -> Fact:
        newest, best = self.newest, self.best
        return best._replace(
            key=self.key, number=newest.number, message_id=newest.message_id, weight=best.weight * factor
        )


def _open_calls(sources: Sequence[FactSource]) -> Iterable[Fact]:
    """Returns the tool calls that have no result."""
    pending: dict[str, Fact] = {}
    for source in sources:
        message, number = message_of(source)
        for call in message.tool_calls:
            fact = _call(call)
            line = Line(f"open tool call: {fact.text}", number, message.id)
            pending[call.id] = fact._replace(number=number, message_id=message.id, line=line)
        for result in message.tool_results:
            pending.pop(result.call_id, None)
    return pending.values()


def _replaced(stated: Sequence[_StatedLine]) -> frozenset[Line]:
    """Returns the lines that a later line replaces: it says the same of the same owner, with another value."""
    newest: dict[tuple[frozenset[str], FactKind], _StatedLine] = {}
    by_first_word: defaultdict[str, set[frozenset[str]]] = defaultdict(set)
    replaced: set[Line] = set()
    for stated_line in stated:
        topic = stated_line.topic
        if topic is None:
            continue
        known = {topic.words}
        if topic.changed:
            # "Anna's locker is 52 now, since the move" has more words than what it replaces
            known |= {words for word in topic.words for words in by_first_word[word] if words < topic.words}
        for words in known:
            older = newest.pop((words, topic.kind), None)
            if older is not None and older.line.message_id != stated_line.line.message_id:
                replaced.add(older.line)
        newest[topic.words, topic.kind] = stated_line
        by_first_word[min(topic.words)].add(topic.words)
    return frozenset(replaced)


def flat(message: Message) -> str:
    """Returns everything that a model sees of a message as one text: its words, tool calls and results."""
    return "\n".join([message.text, *(f"{c.name} {c.arguments}" for c in message.tool_calls)])


def message_of(source: FactSource) -> tuple[Message, int]:
    """Returns the message of a source and its number, 0 for a message outside a session."""
    return (source.message, source.number) if isinstance(source, Entry) else (source, 0)


def negated(text: str) -> bool:
    """Tells whether a sentence denies or forbids something."""
    return _NEGATION.inside(text)


def _stated(sources: Sequence[FactSource]) -> Iterator[_StatedLine]:
    """Yields the lines of the messages, in order, each with its facts, weighted by who says them and how."""
    speakers = named_speakers(message_of(s)[0] for s in sources)
    folded_speakers = frozenset(s.casefold() for s in speakers)
    times = spoken_times(sources)
    of_output = Counter(_origin(s) for s in sources if _is_kept_line(s))
    tools: dict[str, str] = {}
    before: Speech | None = None
    for source, at in zip(sources, times, strict=True):
        message, number = message_of(source)
        if _is_kept_line(source):
            yield from _kept_line(message, number, of_output[_origin(source)])
            continue
        tools |= {c.id: c.name for c in message.tool_calls}
        role = _SUMMARY_WEIGHT if message.kind == "summary" else _ROLE_WEIGHT[message.role]
        tool = next((r.name or tools.get(r.call_id, "") for r in message.tool_results), "") or "tool output"
        document = _document(message.text) if message.role == "tool" else None
        if document is not None:
            yield from _records(document, tool, number, message.id, role)
        elif message.role == "tool":
            yield from _failures(message, tool, number, role)
            if not is_code(message.text):
                speeches = [replace(s, speaker=tool) for s in spoken(replace(message, name=None), frozenset(), at)]
                share = _share(sum(1 for text in message.text.splitlines() if text.strip()))
                yield from _lines(speeches, message, number, role * share)
        else:
            speeches = list(spoken(message, speakers, at))
            yield from _lines(speeches, message, number, role, before, folded_speakers)
            if message.kind == "summary":
                before = None
            elif speeches:
                before = speeches[-1]
        for call in message.tool_calls:
            weight = _LOOKUP_WEIGHT if _LOOKUP.match(call.name) else _ARGUMENT_WEIGHT
            yield from _arguments(call, number, message.id, weight)


def _share(lines: int) -> float:
    """Returns a factor for each of so many lines of one output."""
    return FEW_LINES / max(FEW_LINES, lines)


def _is_kept_line(source: FactSource) -> bool:
    """Tells whether a source is a line of an earlier ledger."""
    return isinstance(source, Entry) and source.message.kind == "summary" and not source.seq


def _origin(source: FactSource) -> int | str:
    """Returns the number of the message that a kept line comes from; its tool or speaker where the line has no reference."""
    message, number = message_of(source)
    return number or message.text.partition(": ")[0]


def _kept_line(message: Message, number: int, of_message: int) -> Iterator[_StatedLine]:
    """Yields a line of an earlier ledger as it is: it was chosen already. `of_message` lines there are of the same origin."""
    speeches = list(spoken(message, frozenset()))
    if not speeches:
        return
    speech, line = speeches[0], Line(message.text, number, message.id)
    if message.role == "tool":
        role, text, whole = _share(of_message), message.text, True
    else:
        role = _ROLE_WEIGHT["assistant" if speech.speaker.startswith("assistant") else "user"]
        # what was a fragment is one still: a better line takes its place
        text, whole = speech.text, is_whole(speech.text)
    statement = Statement(text, message.text, speech.speaker, speech.named, whole)
    yield from _line_with_facts(statement, _literals(statement, message), line, message, role)


def _line_with_facts(
    statement: Statement, literals: Sequence[tuple[Fact, float]], line: Line, message: Message, role: float
) -> Iterator[_StatedLine]:
    """Yields the line with its literals and what it states; nothing for a line without facts."""
    # a name, which others have too, does not stand for its sentence
    has_value = any(f.kind != "name" for f, _ in literals)
    sentence = _sentence(statement, message, has_value)
    if own := _placed((*literals, *((f, 1.0) for f in sentence)), line, role):
        topic = _topic(statement, own) if message.role != "tool" else None
        yield _StatedLine(line, own, statement.line.removeprefix(f"{statement.speaker}: "), topic)


def _records(leaves: Sequence[_Leaf], source: str, number: int, message_id: str, role: float) -> Iterator[_StatedLine]:
    """Yields the values of a document, each as part of a line that names its source and its record.

    The identifier of a record, which says nothing by itself, is stated by the line of the value next to it.
    """
    lines = [Line(leaf.entry, number, message_id, place, source, leaf.record) for place, leaf in enumerate(leaves)]
    for place, leaf in enumerate(leaves):
        line = lines[place]
        if not leaf.entry:
            neighbours = (*lines[place + 1 : place + 2], *lines[max(0, place - 1) : place])
            line = next((each for each in neighbours if each.record == leaf.record and each.text), line)
        yield _StatedLine(line, _placed(((f, 1.0) for f in leaf.facts), line, role))


def _arguments(call: ToolCallPart, number: int, message_id: str, role: float) -> Iterator[_StatedLine]:
    """Yields the arguments of a call in one line where they are short, since a line number says nothing without its file."""
    leaves, source = _document(call.arguments) or (), f"assistant called {call.name}"
    text = ", ".join(leaf.entry.rstrip(" ,;") for leaf in leaves if leaf.entry)
    if len(text) > MAX_CALL_CHARS or any(leaf.record for leaf in leaves):
        yield from _records(leaves, source, number, message_id, role)
    else:
        line = Line(text, number, message_id, 0, source)
        yield _StatedLine(line, _placed(((f, 1.0) for leaf in leaves for f in leaf.facts), line, role))


def _failures(message: Message, tool: str, number: int, role: float) -> Iterator[_StatedLine]:
    """Yields the lines of a tool output that report a failure for certain."""
    for place, failure in enumerate(failure_lines(message.text)):
        text = cut(failure)
        line = Line(f"{tool}: {text}", number, message.id, place)
        yield _StatedLine(line, _placed([(new_fact("statement", text, ""), FAILURE / (place + 1))], line, role))


def _lines(
    speeches: Sequence[Speech],
    message: Message,
    number: int,
    role: float,
    before: Speech | None = None,
    speakers: Collection[str] = (),
) -> Iterator[_StatedLine]:
    """Yields the lines of what was said; `before` was said just before it."""
    place = 0
    for speech in speeches:
        seen: set[str] = set()
        question = previous = ""
        # the lines of a summary were said at different times
        if before is not None and message.kind != "summary" and (last := ending(before)):
            if before.speaker == speech.speaker:
                previous = with_dates(last, before.at) if is_whole(last) and not last.endswith(("?", "？")) else ""
            elif len(speakers) <= 2 and last.endswith(("?", "？")):  # of more, anybody may answer
                question = last
        before = speech
        for statement in statements(speech, question=question, previous=previous):
            place += 1
            line = Line(statement.line, number, message.id, place)
            literals = _literals(statement, message, speakers)
            seen |= {f.value for f, _ in literals} | {f.value for f in scan(statement.line)}
            yield from _line_with_facts(statement, literals, line, message, role)
        yield from _fragments(speech, seen | set(speakers), message, number, role)


def _placed(facts: Iterable[tuple[Fact, float]], line: Line, role: float) -> tuple[Fact, ...]:
    """Returns facts of a line with their place, weighted by who says them and by their factors."""
    number, message_id = line.number, line.message_id
    return tuple(  # built anew, as `_replace` takes three times as long
        Fact(f.kind, f.text, f.value, f.key, number, message_id, f.weight * role * factor, f.owner, line)
        for f, factor in facts
    )


def _literals(statement: Statement, message: Message, speakers: Collection[str] = ()) -> list[tuple[Fact, float]]:
    """Returns the literals of a statement, each with a factor: how well the statement says what the literal means."""
    text = statement.text
    factor = _factor(statement)
    facts: list[tuple[Fact, float]] = []
    position = 0
    for fact in scan(text):
        position = max(position, text.find(fact.text, position))
        if fact.value in speakers or (fact.kind == "name" and fact.value in _NAME_STARTS):
            continue  # whom a chat addresses is no fact
        if fact.kind == "name" and statement.question:
            continue  # that somebody asks about it says nothing of it; in German each noun looks like a name
        if statement.whole or factor > FRAGMENT or _tells(fact, text):
            digit = fact.kind == "number" and len(fact.value) == 1
            owned = fact._replace(owner=owner) if (owner := _owner(statement, position)) else fact
            facts.append((owned, factor / 2 if digit else factor))
    if not statement.whole or "; " in text:
        facts += [(f, max(factor, 0.7)) for f in _listed(text, message, speakers)]
    for quoted in _QUOTED.finditer(text):
        if content_words(quoted[1]) or any(c.isdigit() for c in quoted[1]):  # "he" in quotation marks is no value
            facts += [(f, factor) for f in _field(quoted[1], key_around(text, 0, *quoted.span(), "field"))]
    return facts


def _tells(fact: Fact, text: str) -> bool:
    """Tells whether a literal in a fragment says something: an address does, a time or a number only with a word beside it."""
    if fact.kind in ("number", "date", "amount"):
        return WORD.search(text.replace(fact.text, " ")) is not None
    return not (fact.text.isascii() and fact.text.isalpha())


def _listed(text: str, message: Message, speakers: Collection[str]) -> Iterator[Fact]:
    """Yields the fields of a statement that is a list, and the items of a list that the user wrote."""
    for part in text.split("; "):
        field = FIELD.match(part)
        while field is not None and (inner := FIELD.match(field[2])):
            field = inner  # behind a heading
        if field is not None and len(field[2]) <= MAX_FIELD_CHARS:
            if field[1].casefold() not in speakers:
                yield from _field(field[2], field[1])
        elif message.role == "user" and len(part) < len(text) and len(part) <= MAX_ITEM_CHARS:
            yield from _field(part, "")


def _factor(statement: Statement) -> float:
    if _CALL_AS_TEXT.search(statement.text):
        return CALL_AS_TEXT
    if not statement.whole:
        return 0.7 if ', asked "' in statement.line or _GROUPED.search(statement.text) else FRAGMENT
    factor = (0.3 if statement.named else 0.6) if statement.question else 1.0
    lower = lowered(statement.text)
    if _UNSURE.search(lower):
        factor *= 0.7
    factor *= _clearness(statement)
    if "ing" in lower and _PASSING.search(lower):
        return factor
    return factor * _ownership(statement.text)


def _clearness(statement: Statement) -> float:
    """Returns a factor: half for a sentence that falters, or that needs the one before it and does not come with it."""
    text = statement.text
    alone = statement.line.removeprefix(f"{statement.speaker}: ") == text
    return 1.0 if is_clear(text) or not (alone or falters(text)) else 0.5


@lru_cache(maxsize=8_192)
def _ownership(text: str) -> float:
    """Returns how clearly a sentence says whose its values are: a name, the speaker, a thing, or nobody."""
    if _owners(text):
        return 4.0
    return 2.5 if _OWN.search(text) else 1.5 if _OF_A_THING.search(text) else 1.0


def _owner(statement: Statement, position: int) -> str:
    """Returns the name nearest before a value, or its speaker's who speaks of himself; "" where there is neither."""
    names = [name for name, end in _owners(statement.text) if end <= position]
    if names:
        return names[-1]
    return statement.speaker.casefold() if statement.named and _FIRST_PERSON.search(lowered(statement.text)) else ""


@lru_cache(maxsize=8_192)
def _owners(text: str) -> tuple[tuple[str, int], ...]:
    """Returns the names that a sentence says something of, in lower case, each with the end of what tells so."""
    owners = ((m["owner"].casefold(), m.end()) for m in _NAMED_OWNER.finditer(text))
    return tuple((name, end) for name, end in owners if name not in _NAME_STARTS)


def _sentence(statement: Statement, message: Message, has_literal: bool) -> Iterator[Fact]:
    """Yields the statement itself: as a rule, as a decision or a wish, or as what it states where no literal stands for it."""
    text = statement.text
    if message.role == "tool" or not statement.whole or statement.question:
        return  # tool outputs are data and set no rules
    if is_courtesy(text):
        return
    said_by_model = message.role == "assistant" or statement.speaker.startswith("assistant")
    directs = is_directive(text) and not said_by_model
    kind: FactKind = "rule" if directs and not statement.named else "statement"
    if directs:
        factor = DIRECTS_OTHERS if statement.named else 1.0
    elif is_decision(text) or is_correction(text) or (is_preference(text) and not said_by_model):
        factor = DECIDES
    elif not has_literal and not falters(text) and content_words(text):
        is_fact = _ownership(text) > 2 and _UNSURE.search(lowered(text)) is None and message.kind != "summary"
        factor = 1.0 if is_fact else 0.3
    else:
        return
    fact = new_fact(kind, text, "")
    yield fact._replace(weight=fact.weight * factor * _clearness(statement))


def _fragments(speech: Speech, seen: set[str], message: Message, number: int, role: float) -> Iterator[_StatedLine]:
    """Yields the literals that no statement has, with the words around them."""
    for raw in speech.text.splitlines():
        position = 0
        for fact in scan(LIST_MARK.sub("", raw)):
            position = max(position, raw.find(fact.text, position))
            if fact.value in seen or fact.kind not in _TELLING:
                continue
            around = _around(raw, position, position + len(fact.text))
            if not _tells(fact, around):
                continue
            seen.add(fact.value)
            around = " ".join(around.split())
            line = Line(f"{speech.speaker}: {around}" if speech.speaker else around, number, message.id, 10_000)
            yield _StatedLine(line, _placed(((fact, FRAGMENT / 2),), line, role))


def _around(raw: str, at: int, until: int) -> str:
    """Returns the words around a place of a line, all of it where that is short."""
    if len(raw) <= MAX_FRAGMENT_CHARS:
        return raw
    start = raw.find(" ", at - MAX_FRAGMENT_CHARS // 2, at) if at > MAX_FRAGMENT_CHARS // 2 else 0
    if start < 0:  # the place is in a long word
        start = at
    return raw[start : max(until, raw.rfind(" ", at, start + MAX_FRAGMENT_CHARS))]


def _topic(statement: Statement, facts: Sequence[Fact]) -> _Topic | None:
    """Returns what a statement with a value is about; None for one without, or with too few words to tell."""
    if not statement.whole or statement.question:
        return None
    values = [f for f in facts if f.kind in ("number", "amount", "date")]
    if not values:
        return None
    text = statement.text
    value = max(values, key=lambda f: text.rfind(f.text))
    position = text.rfind(value.text)
    if position < 0 or not _HOLDS.search(lowered(text[:position])):
        return None
    rest = f"{text[:position]} {text[position + len(value.text) :]}"
    words = frozenset(terms(rest))
    subject = words - _CHANGED
    if len(subject) < 2:
        return None
    if statement.named and _FIRST_PERSON.search(lowered(rest)):
        subject |= {f"@{statement.speaker.casefold()}"}
    return _Topic(subject, value.kind, len(subject) < len(words))


def _field(text: str, key: str) -> Iterator[Fact]:
    """Yields a labelled or listed value, unless it is a literal of another kind, which `scan` finds."""
    value = text.strip("*#_ .")
    if any(c.isalnum() for c in value) and kind_of_literal(value) is None:
        yield new_fact("field", value, key)


class _Leaf(NamedTuple):
    """A value of a JSON document: the facts in it, its record as `name identifier`, and itself as `name value`."""

    facts: tuple[Fact, ...]
    record: str
    entry: str


class _Subject(NamedTuple):
    """The identifier of a record, and the name under which the record has it."""

    value: str = ""
    name: str = ""

    @property
    def label(self) -> str:
        return f"{self.name} {self.value}".strip()


def _leaves(data: Any, key: str, subject: _Subject) -> Iterator[_Leaf]:
    """Yields every value of a JSON document with its key and the identifier of its record."""
    match data:
        case dict():
            record: dict[str, Any] = data  # pyright: ignore[reportUnknownVariableType]
            subject = next((_Subject(v, name) for name, v in record.items() if _is_id(v)), subject)
            for name, value in record.items():
                keyed = isinstance(value, dict | list) and _is_id(name)  # a record by its identifier
                if keyed:
                    yield _Leaf((new_fact("identifier", name, key),), name, "")
                parent = key.rsplit(" ", maxsplit=1)[-1]
                yield from _leaves(
                    value, parent if keyed else f"{parent} {name}".strip(), _Subject(name) if keyed else subject
                )
        case list():
            items: list[Any] = data  # pyright: ignore[reportUnknownVariableType]
            for value, own in zip(items, _subjects(items, key, subject), strict=True):
                yield from _leaves(value, key, own)
        case bool() | None:
            return
        case int() | float():
            fact = new_fact("number", json.dumps(data), _with_subject(key, subject.value, str(data)))
            yield _Leaf((fact,), subject.label, f"{key} {fact.text}".strip())
        case str() if text := without_markers(data).strip():
            facts = tuple(_leaf_text(text, _with_subject(key, subject.value, text)))
            first = facts[0].text if facts else text.split(maxsplit=1)[0]
            at = max(0, text.find(first))
            shown = text if len(text) <= MAX_FIELD_CHARS else f"{_around(text, at, at + len(first))} …"
            entry = "" if text == subject.value else f"{key} {' '.join(shown.split())}".strip()
            yield _Leaf(facts, subject.label, entry)
        case _:
            return


def _subjects(items: Sequence[Any], key: str, subject: _Subject) -> Sequence[_Subject]:
    """Returns the subject of each item of a list: for records of no named thing, a text that tells them apart, or a number."""
    records: list[dict[str, Any]] = [item for item in items if isinstance(item, dict)]
    if subject.value or len(records) < max(2, len(items)):
        return [subject] * len(items)
    for name in records[0]:
        values = {v for record in records if isinstance(v := record.get(name), str) and 0 < len(v) <= MAX_ITEM_CHARS}
        if len(values) == len(records):
            return [_Subject(record[name], name) for record in records]
    return [_Subject(str(number), key or "item") for number in range(1, len(items) + 1)]


def _leaf_text(text: str, key: str) -> Iterator[Fact]:
    whole = kind_of_literal(text) is not None
    if not whole and 0 < len(text) <= MAX_FIELD_CHARS:
        yield new_fact("field", text, key)
    for fact in scan(text):
        yield fact._replace(key=key) if whole or not fact.key else fact


def _with_subject(key: str, subject: str, value: str) -> str:
    return key if not subject or subject == value else f"{subject} {key}".strip()


def _is_id(value: object) -> bool:
    if not isinstance(value, str) or not 3 <= len(value) <= 64:
        return False
    return kind_of_literal(value) == "identifier" and any(c.isdigit() for c in value)


def _call(call: ToolCallPart) -> Fact:
    fact = new_fact("call", f"{call.name} {call.arguments}", "open tool call")
    return fact._replace(weight=fact.weight * _ROLE_WEIGHT["user"])


def _document(text: str) -> list[_Leaf] | None:
    """Returns the values of a JSON document; None for other texts, and for one nested too deeply to be parsed."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        return list(_leaves(json.loads(text), "", _Subject()))
    except (ValueError, RecursionError):
        return None
