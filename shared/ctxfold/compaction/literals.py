"""Finds literals in text, such as amounts, dates and paths, and brings equal ones into one form.

`normal` returns that form: literals compare equal however they are written (1,250.00 and 1250, dates, numerals).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from decimal import Decimal
from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias

from ctxfold.history.terms import CJK, STOP_WORDS, stretches

FactKind: TypeAlias = Literal[
    "call", "rule", "statement", "email", "url", "path", "identifier", "amount", "date", "number", "name", "field"
]
MAX_FIELD_CHARS = 80
SCANNED_CHARS = 8_000  # at once; a longer line is scanned in stretches
MAX_LITERAL_CHARS = 300  # longer ones are data, which nobody repeats
_KIND_WEIGHT: dict[FactKind, float] = {
    "call": 12,
    "rule": 10,
    "statement": 2,
    "email": 4,
    "url": 4,
    "path": 4,
    "identifier": 4,
    "amount": 3.5,
    "date": 3,
    "number": 2,
    "name": 1,
    "field": 1.5,
}
EXACT_DIGITS = 28
NUMERAL = r"[一二两三四五六七八九十百千万亿零〇]{1,9}"
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DIGITS = dict(zip("零一二三四五六七八九两〇", (*range(10), 2, 0), strict=True))
_UNITS = {"十": 10, "百": 100, "千": 1_000, "万": 10_000, "亿": 100_000_000}
_NUMBER = re.compile(r"[+-]?\d[\d,]*(?:\.\d+)*")
_TIMES = {"k": 1_000, "m": 1_000_000, "million": 1_000_000, "bn": 10**9, "billion": 10**9, "万": 10_000, "亿": 10**8}
_TIMES_AFTER = re.compile(r"\s?(k|m|million|bn|billion|万|亿)(?![a-z])")
_ISO = re.compile(r"(\d{4})[-/年](\d{1,2})(?:[-/月](\d{1,2}))?")
_MONTH_DAY = re.compile(r"(\d{1,2})月(\d{1,2})")
_WORDS = re.compile(r"([a-z]{3,9})\.?\s(\d{1,2})(?!\d)(?:st|nd|rd|th)?(?:,?\s(\d{4}))?")
_WORDS_DAY_FIRST = re.compile(r"(\d{1,2})(?:st|nd|rd|th)?\s(?:of\s)?([a-z]{3,9})\.?(?:,?\s(\d{4}))?")
_SLASHES = re.compile(r"(\d{1,2})/(\d{1,2})/(\d{4})")
_CLOCK = re.compile(r"(\d{1,2})(?::(\d{2}))?(?::\d{2})?\s?([ap])?\.?(?:m\b)?")
_CJK_CLOCK = re.compile(r"(上午|下午|晚上|早上|中午|凌晨)?(\d{1,2})[点时](?:(\d{1,2})分|(半))?")
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\.?"
_AMOUNT = r"\d[\d,]{0,24}(?:\.\d{1,12})?"
# runs of plain words are skipped at once, as no literal begins in them; a match without a group is such a run
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
  | (?P<name>(?<=[a-z,;:\-–]\s)(?:[A-Z][a-z]++)++(?:\s(?:[A-Z][a-z]++)++)*+(?![\w:：]))
  | (?:我叫|名叫|叫做|名字[是叫])(?P<called>[\u4e00-\u9fff·]{{2,4}})
    )""",
    re.VERBOSE,
)
_KINDS: dict[str, FactKind] = {"code": "identifier", "phone": "identifier", "called": "name"}
WORD = re.compile(rf"[A-Za-z_][\w-]*|[{CJK}]+")
_PARTICLES = "是为的约在到从共有我你您他她要把了"


class Line(NamedTuple):
    """The words that state a fact whole, and the message that has them.

    `place` orders the lines of a message. A value of a document has a `source`, such as the name of a tool, and a `record`, such as
    `flight_number HAT069`, which stand in front of the values of the same ones; a line of its own has neither.
    """

    text: str
    number: int = 0
    message_id: str = ""
    place: int = 0
    source: str = ""
    record: str = ""


class Fact(NamedTuple):
    """A literal of a message, or a sentence that states something without one.

    Args:
        kind: what kind of literal it is.
        text: the literal, verbatim.
        value: its normal form, which equal literals share.
        key: the words that it belongs to.
        number: number of the newest message that has it, 0 for messages outside a session.
        message_id: id of that message.
        weight: its importance.
        owner: the name of the person or thing that a value belongs to, in lower case; "" where the sentence names none.
        line: the words that state it.
    """

    kind: FactKind
    text: str
    value: str
    key: str = ""
    number: int = 0
    message_id: str = ""
    weight: float = 1.0
    owner: str = ""
    line: Line | None = None


def scan(text: str) -> tuple[Fact, ...]:
    """Returns the literals of a line in order, each with the words that it belongs to; no rules and no labelled fields."""
    if len(text) <= SCANNED_CHARS:
        return _scanned(text)
    return tuple(fact for part in stretches(text, SCANNED_CHARS) for fact in _scan(part))


@lru_cache(maxsize=8_192)  # a compaction scans its sentences several times, and the next one scans the summary again
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
            yield new_fact(kind, literal, key_around(text, after, start, end, kind) or previous)
            previous, after = literal, end


def kind_of_literal(text: str) -> str | None:
    """Returns which kind of literal the whole text is, None when it is not exactly one."""
    return _whole_kind(text) if len(text) <= MAX_LITERAL_CHARS else None


@lru_cache(maxsize=16_384)
def _whole_kind(text: str) -> str | None:
    match = _LITERAL.fullmatch(text)
    return match and match.lastgroup


def new_fact(kind: FactKind, text: str, key: str) -> Fact:
    plain = kind == "identifier" and text.isalpha()  # initials: often just a word in capitals
    return Fact(kind, text, normal(kind, text), key, weight=_KIND_WEIGHT["name" if plain else kind])


def key_around(text: str, after: int, start: int, end: int, kind: FactKind) -> str:
    """Returns the words just before a literal, back to `after`; for a number, the noun that follows it, if there is one."""
    words = [w for w in WORD.findall(text[max(after, start - 40) : start]) if w.casefold() not in STOP_WORDS]
    before = " ".join(words[-2:])
    if before and not words[-1].isascii():
        before = words[-1][-6:].strip(_PARTICLES)[-4:]
    following = WORD.match(text, end + (text[end : end + 1] == " ")) if kind == "number" else None
    if following is None or following[0].casefold() in STOP_WORDS:
        return before
    noun: str = following[0]
    return noun if noun.isascii() else before or noun[:2]


@lru_cache(maxsize=16_384)
def normal(kind: str, text: str) -> str:
    """Returns the form in which literals of a kind are compared; numbers and amounts share one, so that units may differ."""
    folded = " ".join((text if text.isascii() else unicodedata.normalize("NFKC", text)).casefold().split())
    match kind:
        case "number" | "amount":
            return _number(folded) or folded
        case "date":
            return _date(folded) or folded
        case _:
            return folded


def month_day(value: str) -> str:
    """Returns month and day of a normal date, "" for anything else, so that a date without its year matches one with it."""
    if re.fullmatch(r"[\d-]{4}-\d\d-\d\d", value):
        return value[-5:]
    return value[2:] if re.fullmatch(r"--\d\d-\d\d", value) else ""


def _number(folded: str) -> str:
    match = _NUMBER.search(folded)
    if match is None:
        return _numeral(folded)
    digits = match[0].replace(",", "").lstrip("+")
    if digits.count(".") > 1 or len(digits) > EXACT_DIGITS:
        return digits  # a version, or a number that decimals would round
    value = Decimal(digits)
    if times := _TIMES_AFTER.match(folded, match.end()):
        value *= _TIMES[times[1]]
    return f"{value.normalize():f}" if value else "0"


def _numeral(folded: str) -> str:
    total = section = digit = 0
    match = re.search(NUMERAL, folded)
    if match is None:
        return ""
    for sign in match[0]:
        if sign in _DIGITS:
            digit = 10 * digit + _DIGITS[sign]  # 二〇二四 has no units
        elif (unit := _UNITS[sign]) < 10_000:
            section += (digit or 1) * unit
            digit = 0
        else:
            part = section + digit
            # 万 behind 亿 counts what is between them (一亿二千万), 亿 behind 万 all before it (三万亿)
            total = total + part * unit if total >= unit else (total + part) * unit
            section = digit = 0
    return str(total + section + digit)


def _date(folded: str) -> str:
    if iso := _ISO.search(folded):
        return _day(iso[1], iso[2], iso[3])
    if zh := _MONTH_DAY.search(folded):
        return _day("", zh[1], zh[2])
    if slashes := _SLASHES.search(folded):
        month, day = sorted((slashes[1], slashes[2]), key=lambda n: int(n) > 12)
        return _day(slashes[3], month, day)
    for pattern, month_group, day_group in ((_WORDS, 1, 2), (_WORDS_DAY_FIRST, 2, 1)):
        match = pattern.search(folded)
        if match and match[month_group][:3] in _MONTHS:
            return _day(match[3] or "", str(_MONTHS.index(match[month_group][:3]) + 1), match[day_group])
    return _clock(folded)


def _day(year: str, month: str, day: str | None) -> str:
    if day is None:
        return f"{year}-{int(month):02}"
    return f"{year}-{int(month):02}-{int(day):02}" if year else f"--{int(month):02}-{int(day):02}"


def _clock(folded: str) -> str:
    if zh := _CJK_CLOCK.search(folded):
        hour = int(zh[2]) + (12 if zh[1] in ("下午", "晚上") and int(zh[2]) < 12 else 0)
        return f"{hour:02}:{30 if zh[4] else int(zh[3] or 0):02}"
    match = _CLOCK.search(folded)
    if match is None:
        return ""
    hour = int(match[1])
    if match[3]:
        hour = hour % 12 + (12 if match[3] == "p" else 0)
    return f"{hour:02}:{match[2] or '00'}"
