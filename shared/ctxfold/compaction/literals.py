"""Literals on which later work rests, found without a model: values with their key, and the sentences that rule or deny."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeAlias

from ctxfold.compaction.normal import NUMERAL, normal
from ctxfold.history.terms import STOP_WORDS, sentences, stretches
from ctxfold.history.view import Entry
from ctxfold.messages import Message, ToolCallPart

__all__ = [
    "SHORT_VALUE",
    "TOOL_LABEL",
    "Fact",
    "FactKind",
    "Source",
    "extract",
    "flat",
    "is_rule",
    "message_of",
    "negated",
    "scan",
]

FactKind: TypeAlias = Literal[
    "call", "rule", "email", "url", "path", "identifier", "amount", "date", "number", "name", "field"
]
Source: TypeAlias = Entry | Message

MAX_FIELD_CHARS = 80
TOOL_LABEL = "tool output: "  # before the words of a tool in a summary
SHORT_VALUE = 3  # characters; a value as short means nothing without its key
SCANNED_CHARS = 8_000  # at once; a longer line is gone through in stretches
MAX_LITERAL_CHARS = 300  # longer ones are data, not something that anybody would repeat
_KIND_WEIGHT: dict[FactKind, float] = {
    "call": 12,
    "rule": 12,
    "email": 4,
    "url": 4,
    "path": 4,
    "identifier": 4,
    "amount": 3.5,
    "date": 3,
    "number": 2,
    "name": 2,
    "field": 1.5,
}
_ROLE_WEIGHT = {"user": 3.0, "system": 2.0, "assistant": 1.5, "tool": 1.0}
_ARGUMENT_WEIGHT, _SUMMARY_WEIGHT = 2.5, 2.5


class _Wording:
    """Words, and what is written without spaces around it, that a sentence may hold; in any case of letters."""

    def __init__(self, words: str, others: str) -> None:
        self._words, self._others = words, others
        self._word = re.compile(rf"(?<!\w)(?:{words})(?!\w)")
        self._other = re.compile(others)

    def __or__(self, more: _Wording) -> _Wording:
        return _Wording(f"{self._words}|{more._words}", f"{self._others}|{more._others}")

    def inside(self, sentence: str) -> bool:
        folded = sentence.lower()
        if self._word.search(folded):
            return True
        return not (folded.isascii() and "'" not in folded) and bool(self._other.search(folded))


_CJK = r"\u3040-\u30ff\u3400-\u9fff"
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\.?"
_AMOUNT = r"\d[\d,]{0,24}(?:\.\d{1,12})?"
# runs of plain words are passed at once, as no literal begins in them; a match without a group is such a run
_LITERAL = re.compile(
    rf"""
    (?:(?<![A-Za-z0-9_])|(?![A-Za-z_]))(?:
    (?<!`)(?:\s|[a-z]++[\s,;!?)])++
  | (?P<url>\bhttps?://[^\s"'<>()\[\]{{}}，。；、]+)
  | (?P<email>(?<![A-Za-z0-9._%+-])[A-Za-z0-9._%+-]{{1,64}}@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+)
  | (?P<path>(?<![\w/<])(?:~|\.{{1,2}})?(?:/[\w.@+-]+){{2,}}/?|\b[A-Za-z]:\\[\w\\.-]+
      |(?<![\w./-])[\w-]{{1,64}}(?:/[\w.-]{{1,64}}){{0,12}}\.(?:py|js|ts|go|rs|java|c|h|cpp|md|txt|csv|json|ya?ml|toml|sql|sh|pdf|html|ipynb|log|xlsx?|docx?)\b)
  | (?P<date>(?<!\d)\d{{4}}-\d{{1,2}}-\d{{1,2}}(?:[T ]\d{{2}}:\d{{2}}(?::\d{{2}})?)?(?!\d)
      |(?:\d{{4}}年)?\d{{1,2}}月\d{{1,2}}[日号]|\d{{4}}年\d{{1,2}}月
      |\b{_MONTH}\s\d{{1,2}}(?:st|nd|rd|th)?(?:,?\s\d{{4}})?\b
      |\b\d{{1,2}}(?:st|nd|rd|th)?\s(?:of\s)?{_MONTH}(?:,?\s\d{{4}})?\b
      |(?<![\d/])\d{{1,4}}/\d{{1,2}}/\d{{1,4}}(?![\d/])
      |(?<![\d:])\d{{1,2}}:\d{{2}}(?::\d{{2}})?(?:\s?[AaPp]\.?[Mm]\b\.?)?(?!\d)|\b\d{{1,2}}\s?[AaPp]\.?[Mm]\b\.?
      |(?:上午|下午|晚上|早上|中午|凌晨)?\d{{1,2}}[点时](?:\d{{1,2}}分|半)?)
  | (?P<amount>[$€£¥￥]\s?{_AMOUNT}(?:\s?(?:[kKM]\b|bn\b|million\b|billion\b|万|亿))?
      |(?<![A-Za-z0-9_.]){_AMOUNT}\s?(?:(?:USD|EUR|GBP|CNY|RMB|JPY|CHF|dollars?|euros?|pounds?|yuan)\b|[万亿]?(?:美元|欧元|日元|港元|人民币|元|块)))
  | (?P<code>(?<=`)[^`\n]{{2,{MAX_FIELD_CHARS}}}(?=`))
  | (?P<phone>\+\d[\d -]{{6,18}}\d)
  | (?P<number>(?<![A-Za-z0-9_.])[+-]?(?:\d{{1,3}}(?:,\d{{3}})+|\d+)(?:\.\d+)*
      (?:\s?%|(?:st|nd|rd|th|[kKMGT]?i?B|ms|s|h|min|km|kg|cm|mm|x|px)\b|\s?[万亿]|(?=-[a-z]+\b))?(?![A-Za-z0-9_#]|-\d|[.:]\d)
      |(?!一[个次点])(?<![周星期第]){NUMERAL}[元块个人天岁次年月点号张位件本间名])
  | (?P<identifier>(?<![A-Za-z0-9_])(?:(?=[A-Za-z0-9][A-Za-z_.\#-]{{0,64}}\d|\d)[A-Za-z0-9]+(?:[-_.\#]+[A-Za-z0-9]+)*
      |[A-Za-z]+(?:_[A-Za-z0-9]+)+|[A-Z]{{2,}}(?:-[A-Z0-9]+)*|[a-z]+(?:[A-Z][a-z0-9]+)+)(?![A-Za-z0-9_]))
  | (?P<name>(?<=[a-z,;:\-–]\s)[A-Z][a-z]+(?:\s[A-Z][a-z]+)*)
  | (?:我叫|名叫|叫做|名字[是叫])(?P<called>[\u4e00-\u9fff·]{{2,4}})
    )""",
    re.VERBOSE,
)
_KINDS: dict[str, FactKind] = {"code": "identifier", "phone": "identifier", "called": "name"}
_LABELLED = re.compile(
    rf"^[\s\-*•\d.)]*([A-Za-z{_CJK}][\w ()/{_CJK}-]{{0,30}}?)\**\s*[:：]\**\s*(\S.{{0,{MAX_FIELD_CHARS - 1}}})$"
)
_ITEM = re.compile(r"^\s*(?:[-*•]|\d{1,2}[.)、])\s*(\S.{0,39})$")
_ORDINAL = re.compile(r"^\s*\d{1,2}[.)、]\s*(?=\D)")
_QUOTED = re.compile(rf'["“「]([^"“”「」\n]{{2,{MAX_FIELD_CHARS}}})["”」]')
_NEGATION = _Wording(
    r"not|never|no|without|cannot|neither|nor|avoid|except|unless",
    r"n['’]t(?!\w)|不|没|勿|禁止|别(?!的|人)|切忌|避免|除非|除了|无需",
)
_STANDING = _Wording(
    r"must|always|only|prefer\w*|should|from now on|remember|require[sd]?|allerg\w*|make sure|need(?:s|ed)? to|at (?:least|most)",
    r"必须|务必|总是|一律|只能|只要|只用|以后|记住|记得|应该|要求|偏好|过敏|确保|至少|最多",
)
_DECISION = _Wording(r"decided|agreed|must|never|always|because", r"决定|约定|必须|因为")
_RULING = _NEGATION | _STANDING | _DECISION
_WORD = re.compile(rf"[A-Za-z_][\w-]*|[{_CJK}]+")
_PARTICLES = "是为的约在到从共有我你您他她要把了"


@dataclass(frozen=True, slots=True)
class Fact:
    """A literal as it was written: `text` verbatim, `value` what equal literals share, `key` the words it belongs to.

    `number` is that of the newest message that has it (0 when only messages were given); `weight` says how much rests on it.
    """

    kind: FactKind
    text: str
    value: str
    key: str = ""
    number: int = 0
    message_id: str = ""
    weight: float = 1.0


def extract(sources: Iterable[Source]) -> tuple[Fact, ...]:
    """Every literal of the messages once, in order of its newest mention; what several messages mention weighs more."""
    found: dict[tuple[str, ...], _Found] = {}
    mentions: Counter[str] = Counter()
    open_calls: dict[str, Fact] = {}
    for source in sources:
        message, number = message_of(source)
        own = list(_facts(message))
        mentions.update({f.value for f, _ in own})
        for fact, factor in own:
            by_key = fact.kind == "field" or (fact.kind == "number" and len(fact.value) <= SHORT_VALUE)
            identity = (fact.key.casefold(), fact.value) if by_key else (fact.value,)
            older = found.pop(identity, None)
            key = fact.key or (older.key if older else "")
            weight = max(fact.weight * factor, older.weight if older else 0.0)
            found[identity] = _Found(fact, key, number, message.id, weight)
        for call in message.tool_calls:
            open_calls[call.id] = replace(_call(call), number=number, message_id=message.id)
        for result in message.tool_results:
            open_calls.pop(result.call_id, None)
    known = [f.fact(1 + math.log2(max(1, mentions[f.literal.value]))) for f in found.values()]
    return (*known, *open_calls.values())


class _Found(NamedTuple):
    """A literal with what its mentions say of it; made into a fact once, when all of them are known."""

    literal: Fact
    key: str
    number: int
    message_id: str
    weight: float

    def fact(self, factor: float) -> Fact:
        kind, text, value = self.literal.kind, self.literal.text, self.literal.value
        return Fact(kind, text, value, self.key, self.number, self.message_id, self.weight * factor)


def scan(text: str) -> tuple[Fact, ...]:
    """The literals of a line in order, each with the words that it belongs to; no rules and no labelled fields."""
    if len(text) <= SCANNED_CHARS:
        return _scanned(text)
    return tuple(fact for part in stretches(text, SCANNED_CHARS) for fact in _scan(part))


@lru_cache(maxsize=8_192)  # a compaction goes over its sentences several times, the next one over the summary again
def _scanned(text: str) -> tuple[Fact, ...]:
    return tuple(_scan(text))


def _scan(text: str) -> Iterator[Fact]:
    previous, after = "", 0
    for match in _LITERAL.finditer(text):
        group = match.lastgroup
        if group is None:
            continue
        literal = match[group].strip().rstrip(",:;.!?。，；")
        kind: FactKind = _KINDS.get(group, group)  # type: ignore[arg-type]
        if 1 < len(literal) <= MAX_LITERAL_CHARS or kind == "number":
            start, end = match.span(group)
            yield _fact(kind, literal, _key_around(text, after, start, end, kind) or previous)
            previous, after = literal, end


def flat(message: Message) -> str:
    """All that a model sees of a message as one text: its words, its tool calls and their results."""
    return "\n".join([message.text, *(f"{c.name} {c.arguments}" for c in message.tool_calls)])


def message_of(source: Source) -> tuple[Message, int]:
    """The message of a source and its number, 0 when it is a bare message."""
    return (source.message, source.number) if isinstance(source, Entry) else (source, 0)


def negated(text: str) -> bool:
    """Whether a sentence denies or forbids something."""
    return _NEGATION.inside(text)


def _facts(message: Message) -> Iterator[tuple[Fact, float]]:
    """The literals of a message, each with the weight of who says it."""
    role = _SUMMARY_WEIGHT if message.kind == "summary" else _ROLE_WEIGHT[message.role]
    found = _document(message.text) if message.role == "tool" else None
    for fact in _prose(message) if found is None else found:
        yield fact, role
    for call in message.tool_calls:
        for fact in _document(call.arguments) or ():
            yield fact, _ARGUMENT_WEIGHT


def _prose(message: Message) -> Iterator[Fact]:
    text = message.text
    for line in text.splitlines():
        yield from scan(_ORDINAL.sub("", line))
        if labelled := _LABELLED.match(line):
            yield from _field(labelled[2], labelled[1].strip())
        elif message.role == "user" and (item := _ITEM.match(line)):
            yield from _field(item[1], "")
        for quoted in _QUOTED.finditer(line):
            yield from _field(quoted[1], _key_around(line, 0, *quoted.span(), "field"))
    if message.role == "tool":
        return  # what a tool says is data: it sets no rules
    for sentence in sentences(text):
        if not sentence.endswith(("?", "？")) and is_rule(sentence, message):
            yield _fact("rule", sentence.lstrip("-•* "), "")


def _field(text: str, key: str) -> Iterator[Fact]:
    """A labelled or listed value as it stands, unless it is a literal of another kind, which `scan` finds."""
    value = text.strip("*#_ .")
    if value and _kind_of(value) is None:
        yield _fact("field", value, key)


def is_rule(sentence: str, message: Message) -> bool:
    """Whether a sentence of that message rules, denies or decides something; one that quotes a tool does not."""
    if sentence.lstrip("-•* ").startswith(TOOL_LABEL):
        return False
    if message.role == "assistant" and message.kind == "message":
        return _DECISION.inside(sentence)
    return _rules(sentence)


@lru_cache(maxsize=8_192)
def _rules(sentence: str) -> bool:
    return _RULING.inside(sentence)


def _leaves(data: Any, key: str, subject: str) -> Iterator[Fact]:
    """Every value of a JSON document with its key, and with the identifier of the record that it stands in."""
    match data:
        case dict():
            record: dict[str, Any] = data  # pyright: ignore[reportUnknownVariableType]
            subject = next((v for v in record.values() if _is_id(v)), subject)
            for name, value in record.items():
                if _is_id(name):
                    yield _fact("identifier", name, key)
                parent = key.rsplit(" ", maxsplit=1)[-1]
                yield from _leaves(value, f"{parent} {name}".strip(), subject)
        case list():
            for value in data:  # pyright: ignore[reportUnknownVariableType]
                yield from _leaves(value, key, subject)
        case bool() | None:
            return
        case int() | float():
            yield _fact("number", json.dumps(data), _with_subject(key, subject, str(data)))
        case str():
            yield from _leaf_text(data.strip(), _with_subject(key, subject, data.strip()))
        case _:
            return


def _leaf_text(text: str, key: str) -> Iterator[Fact]:
    whole = _kind_of(text) is not None
    if not whole and 0 < len(text) <= MAX_FIELD_CHARS:
        yield _fact("field", text, key)
    for fact in scan(text):
        yield replace(fact, key=key) if whole or not fact.key else fact


def _with_subject(key: str, subject: str, value: str) -> str:
    return key if not subject or subject == value else f"{subject} {key}".strip()


def _is_id(value: object) -> bool:
    if not isinstance(value, str) or not 3 <= len(value) <= 64:
        return False
    return _kind_of(value) == "identifier" and any(c.isdigit() for c in value)


def _kind_of(text: str) -> str | None:
    """What kind of literal the whole text is, None when it is more or less than one."""
    return _whole_kind(text) if len(text) <= MAX_LITERAL_CHARS else None


@lru_cache(maxsize=16_384)
def _whole_kind(text: str) -> str | None:
    match = _LITERAL.fullmatch(text)
    return match and match.lastgroup


def _call(call: ToolCallPart) -> Fact:
    fact = _fact("call", f"{call.name} {call.arguments}", "open tool call")
    return replace(fact, weight=fact.weight * _ROLE_WEIGHT["user"])


def _fact(kind: FactKind, text: str, key: str) -> Fact:
    plain = kind == "identifier" and text.isalpha()  # initials: often no more than a word in capitals
    return Fact(kind, text, normal(kind, text), key, weight=_KIND_WEIGHT["name" if plain else kind])


def _key_around(text: str, after: int, start: int, end: int, kind: FactKind) -> str:
    """The words just before a literal, back to `after`; for a number the noun that follows it, where one does."""
    words = [w for w in _WORD.findall(text[max(after, start - 40) : start]) if w.casefold() not in STOP_WORDS]
    before = " ".join(words[-2:])
    if before and not words[-1].isascii():
        before = words[-1][-6:].strip(_PARTICLES)[-4:]
    following = _WORD.match(text, end + (text[end : end + 1] == " ")) if kind == "number" else None
    if following is None or following[0].casefold() in STOP_WORDS:
        return before
    noun: str = following[0]
    return noun if noun.isascii() else before or noun[:2]


def _document(text: str) -> list[Fact] | None:
    """The values of the document that a text holds; None when it holds none, or one nested deeper than can be gone through."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        return list(_leaves(json.loads(text), "", ""))
    except (ValueError, RecursionError):
        return None
