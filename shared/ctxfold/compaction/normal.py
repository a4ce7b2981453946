"""Equal literals get equal values, however they are written: 1,250.00 and 1250, May 20, 2024 and 2024-05-20, 三百 and 300."""

from __future__ import annotations

import re
import unicodedata
from decimal import Decimal
from functools import lru_cache

__all__ = ["NUMERAL", "month_day", "normal"]

EXACT_DIGITS = 28
NUMERAL = r"[一二两三四五六七八九十百千万亿零]{1,9}"
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DIGITS = dict(zip("零一二三四五六七八九两", (*range(10), 2), strict=True))
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


@lru_cache(maxsize=16_384)
def normal(kind: str, text: str) -> str:
    """What a literal of that kind is compared by; numbers and amounts share one form, so that units may differ."""
    folded = " ".join((text if text.isascii() else unicodedata.normalize("NFKC", text)).casefold().split())
    match kind:
        case "number" | "amount":
            return _number(folded) or folded
        case "date":
            return _date(folded) or folded
        case _:
            return folded


def month_day(value: str) -> str:
    """Month and day of a normal date, "" for anything else; so a date without its year finds the one with it."""
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
            digit = _DIGITS[sign]
        elif (unit := _UNITS[sign]) < 10_000:
            section += (digit or 1) * unit
            digit = 0
        else:
            total = (total + section + digit) * unit
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
