"""Says which dates the words of a statement mean, such as "tomorrow" and "on Friday", seen from the time when it was said."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timedelta

_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_COUNTS = {"a": 1, "an": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "ten": 10}
_WHEN = re.compile(  # in ASCII, as `re.I` takes the "ı" of Turkish for an "i"
    rf"\b(?a:(?P<near>today|tonight|tomorrow|yesterday|the day after tomorrow|the day before yesterday|this (?:morning"
    rf"|afternoon|evening))"
    rf"|(?P<which>next|last|this|on|by|until|till|before|coming)\s(?P<day>{'|'.join(_WEEKDAYS)})"
    rf"|in (?P<ahead>\d{{1,3}}|{'|'.join(_COUNTS)}) (?P<ahead_unit>days?|weeks?)"
    rf"|(?P<back>\d{{1,3}}|{'|'.join(_COUNTS)}) (?P<back_unit>days?|weeks?) ago)\b(?!\s*\(\d{{4}}-|['’]s\b)",
    re.I,
)
_NEAR_DAYS = {"tomorrow": 1, "yesterday": -1, "the day after tomorrow": 2, "the day before yesterday": -2}

_DAY_OF_MONTH = re.compile(r"(?:, | )(?:the )?(\d{1,2})(?:st|nd|rd|th)\b", re.I)

MAX_TENSE_CHARS = 240  # on either side of a day, in which its verb is looked for
_SENTENCE_ENDS = re.compile(r"[.!?;:]\s|[\n()\[\]]")
_CLAUSE_ENDS = re.compile(r",\s|\s[–—]\s|\b(?:and|but|so|because|while)\b")
_WORD = re.compile(r"[a-z]+(?:['’][a-z]+)?")
# simple pasts that are no present as well, such as "put" and "read", and no usual nouns
_PAST = frozenset(
    """
    was were did had ate beat became began bit blew bought broke brought built came caught chose did drank drew drove fell
    felt flew forgot fought found gave got grew had heard held hid hung kept knew laid led left lent lost made meant met paid
    ran rang rode rose said sang sat saw sent shook shot slept sold spent spoke stole stood stuck swam swore taught thought
    threw told took understood was went were woke won wore wrote
    """.split()  # noqa: SIM905 - a list would be ten times as long
)
_AHEAD = frozenset(
    """
    will wo shall should would can could may might must is are am going gonna needs need has have do does ai scheduled
    planned due expected supposed
    """.split()  # noqa: SIM905
)
_EITHER = frozenset("bet burst cost cut hit hurt let put quit read set shut split spread".split())  # noqa: SIM905 - past or present
_SUBJECTS = frozenset("i you he she it we they".split())  # noqa: SIM905
_ALWAYS_SUBJECTS = _SUBJECTS - {"you", "it"}
_IS_SHORT = _SUBJECTS | frozenset("that there what who where here this".split())  # noqa: SIM905 - "'s" behind others is a possessive
_BEFORE_PARTICIPLES = frozenset("is are am be being get gets".split())  # noqa: SIM905
_BEFORE_GOT = frozenset("has have".split())  # noqa: SIM905
_ENDINGS = {"ll": "will", "s": "is", "re": "are", "m": "am", "ve": "have"}  # "'d" is "had" or "would"
# "to" after one of these leads to a place or a purpose ("went to bed"), after the last two to what happened
_BEFORE_PLACES = frozenset(
    "went came drove flew ran rode walked travelled moved got back up down over out had used".split()  # noqa: SIM905
)
_BEFORE_NOUNS = frozenset("a an the this that these those my your his her our their its me us him them".split())  # noqa: SIM905


def with_dates(text: str, at: datetime | None) -> str:
    """Returns the text with the dates that its words mean, seen from `at`; unchanged where that is None.

    A day of the week is the last one where its verb is in the past tense, and the coming one elsewhere; with a day of the month, as
    in "Monday the 13th", it is the nearest such day.
    """
    if at is None:
        return text
    return _WHEN.sub(lambda match: f"{match[0]} ({date})" if (date := _date(match, at)) else match[0], text)


def _date(match: re.Match[str], at: datetime) -> str:
    """Returns the date that the words mean, both where people mean either of two, and "" where they mean none."""
    if match["near"]:
        return _shown(at, _NEAR_DAYS.get(match["near"].casefold(), 0))
    if match["back"]:
        return _shown(at, -_days(match["back"], match["back_unit"]))
    if match["ahead"]:  # "we drove there in two days" and "two days of work in one" name none
        return _shown(at, _days(match["ahead"], match["ahead_unit"])) if _is_past(match) is False else ""
    days = (_WEEKDAYS.index(match["day"].casefold()) - at.weekday()) % 7 or 7
    last = days - 7 or -7
    if number := _DAY_OF_MONTH.match(match.string, match.end()):
        near = [n for n in sorted({*range(days - 28, days + 29, 7)}, key=abs) if n]
        return next((_shown(at, n) for n in near if (at + timedelta(n)).day == int(number[1])), "")
    which = match["which"].casefold()
    if which == "next" and days + at.weekday() < 7:  # of this week or of the next
        return f"{_shown(at, days)} or {_shown(at, days + 7)}"
    if which == "last" or (which in ("on", "this") and _is_past(match)):
        return _shown(at, last)
    if which in ("by", "until", "till", "before") and _is_past(match):
        return f"{_shown(at, last)} or {_shown(at, days)}"
    return _shown(at, days)


def _shown(at: datetime, days: int) -> str:
    return f"{at + timedelta(days):%Y-%m-%d}"


def _days(count: str, unit: str) -> int:
    number = int(count) if count.isdigit() else _COUNTS[count.casefold()]
    return number * (7 if unit.casefold().startswith("week") else 1)


def _is_past(match: re.Match[str]) -> bool | None:
    """Tells whether the verb of the day is in the past tense: the nearest one before it in its clause, else the first one behind
    it, else, where its clause has no verb or one that tells nothing, the nearest one in the clauses before. None without a verb.
    """
    text, start, end = match.string, match.start(), match.end()
    before = _SENTENCE_ENDS.split(text[max(0, start - MAX_TENSE_CHARS) : start].casefold())[-1]
    behind = _SENTENCE_ENDS.split(text[end : end + MAX_TENSE_CHARS].casefold(), maxsplit=1)[0]
    *others, clause = _CLAUSE_ENDS.split(before)
    after = behind if clause.strip() else _CLAUSE_ENDS.split(behind.removeprefix(", "))[0]
    near = [*reversed(_tenses(clause)), *_tenses(after)]
    words = {*_words(clause), *_words(after)}
    if not near and not words.isdisjoint(_SUBJECTS) and words.isdisjoint(_EITHER):  # "I get the key" has another verb
        return False
    if _has_unknown_verb(clause):
        return False
    near += reversed(_tenses(" ".join(others)))
    return near[0] if near else None


def _has_unknown_verb(clause: str) -> bool:
    """Tells whether the last subject of a clause has a verb that is no past one, as in "I told Ben that we meet"."""
    words = list(_words(clause))
    last = max((at for at, word in enumerate(words) if word in _ALWAYS_SUBJECTS), default=len(words))
    behind = words[last + 1 :]
    return bool(behind) and not _tenses(" ".join(behind)) and _EITHER.isdisjoint(behind)


def _tenses(clause: str) -> list[bool]:
    """Returns of each verb of the clause whose tense can be told whether it is past, in order."""
    words = list(_words(clause))
    tenses: list[bool] = []
    for at, word in enumerate(words):
        before, following = words[max(0, at - 2) : at], words[at + 1 : at + 2]
        if word == "to":
            if following and _BEFORE_NOUNS.isdisjoint(following) and _BEFORE_PLACES.isdisjoint(before[-1:]):
                tenses.append(False)
        elif word in _AHEAD:
            tenses.append(False)
        elif word in _PAST or (len(word) > 4 and word.endswith("ed") and not word.endswith("eed")):
            tenses.append((_BEFORE_GOT if word == "got" else _BEFORE_PARTICIPLES).isdisjoint(before))
    return tenses


def _words(clause: str) -> Iterator[str]:
    """Yields the words; of a short form such as "didn't" the verb, and of one such as "we'll" both words."""
    for word in _WORD.findall(clause):
        head, _, tail = word.replace("’", "'").partition("'")
        yield head.removesuffix("n") if tail == "t" and head != "can" else head
        if tail in _ENDINGS and (tail != "s" or head in _IS_SHORT):
            yield _ENDINGS[tail]
