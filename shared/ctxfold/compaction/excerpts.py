"""Makes excerpts of long texts: beginning and end, failures with their place, and what a task asks about. Pure.

A text is cut into units: lines, JSON records, rows, or pieces of a line without breaks. Units are chosen by rank until the room is
used, and shown in their order. Searching is left to regular expressions, so that the work per unit is small.
"""

from __future__ import annotations

import html
import json
import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from ctxfold.history.terms import terms

EDGE_SHARE = 6  # of the room, one part of so many for the first unit, and one for the last
FAILURE_SHARE = 0.5  # of the room that the edges leave
MATCH_SHARE = 0.8  # of the room that edges and failures leave
PATH_SHARE = 0.25  # of the room that is left then
MARKER_CHARS = 20  # of a gap
PIECE_CHARS = 200  # of a line without a break
LONG_LINE_CHARS = 400  # a longer one is cut into pieces
RECORD_CHARS = 400  # a longer JSON value is taken apart
TINY_CHARS = 360  # in less room the first line and the last one are cut for the sake of what stands between them
MOST_DEPTH = 12  # levels of JSON that are taken apart
SEARCHED_CHARS = 50_000  # at once: one call of a regular expression holds the interpreter
MOST_HITS = 4_000  # lines that are looked at
MOST_PATHS = 1_000  # lines with a path that are looked at
MOST_TERMS = 48
MOST_MISSES = 12  # units in a row that find no room
OWNER_CHARS = 60  # of the beginning of a record whose middle is shown
MOST_FOCUS_CHARS = 4_000
WORD_CHARS = 24
LOOK_BACK_LINES, LOOK_AHEAD_LINES = 60, 14
HTML_TAGS = 6  # in its beginning, so that a text counts as HTML

_FAILURE_WORDS = (
    "error", "err:", "exception", "traceback", "fail", "fatal", "panic", "critical", "severe", "emerg", "denied", "refused",
    "abort", "unresolved", "not found", "timed out",
)  # fmt: skip
_SURE_PHRASES = (
    "caused by:", "panicked at", "undefined reference", "segmentation fault", "not ok ", "\ne   ", "\n  ● ", "✕", "✗",
    "错误", "失败", "异常", "エラー", "失敗", "例外",
)  # fmt: skip
# behind a word of failure: its ending, then what shows that nothing failed, or that it is part of a name
_ENDING = re.compile(r"(?:s|ed|ure|ures|ing|ions?)?(?![\w])(?!-[a-z])(?!\.[a-z])")
_NONE_AFTER = re.compile(r"""(?:s|ed|ures?)?["']?\s*[:=]\s*["']?(?:none|null|nil|false|0\b|\[\]|""|'')""")
_NONE_BEFORE = re.compile(r"(?:^|\W)(?:0|no|without|zero) (?:\w+ )?$")
_WARNING = re.compile(r"\b(?:warn(?:ing|ings)?\b(?!\.\w)|note:|deprecat)")
# from the word on: what makes it the report of an error
_SURE_AFTER = re.compile(
    r"(?:[Ee]rrors?|[Ee]rr)\b(?:\s*\[[\w-]+\])?(?:\s+[A-Z]{1,4}\d{2,6})?\s*:|(?:ERRORS?|FATAL|CRITICAL|SEVERE|EMERG|PANIC)\b"
    r"|FAIL(?:ED|URE)?\b|(?:Error|Exception|Panic|Failure)\b(?=\s*[:({\"']|\s*$)|panic(?:ked at|:)"
    r"""|error\w*"\s*:\s*["{\d]"""
)
_STATE_BEFORE = re.compile(r'"(?:level|severity|status|state|outcome|result)"\s*:\s*"$')
_DIGITS = str.maketrans("0123456789", "##########")
_EXCEPTION = re.compile(
    r"^\s*(?:[a-z_][\w]*\.)*[A-Z]\w*(?:Error|Exception|Failure|Interrupt|Exit|Warning)\b(?:$|:| \()"
)
_FRAME = re.compile(r'^\s*File ".*", line \d+')
_PLACE_AFTER = re.compile(
    r"^\s*(?:--> |at .*[(@ ].*:\d+|\S+\.go:\d+)|^[\w./\\-]+\.\w{1,5}:\d+: (?:[A-Z]\w*(?:Error|Exception|Failed)|$)"
    r"|^[\w./-]+\.\w{1,5}:\d+:\s*$"
)
_HAS_PLACE = re.compile(r"(?<![\w./\\-])[\w./\\-]{1,200}\.\w{1,5}(?::\d+|\(\d+[,)])|\bline \d+")
_TEST_HEADER = re.compile(r"^(?:_{3,} .+ _{3,}|={3,} .*\b(?:ERROR|FAIL).*|\s*--- FAIL: .+|(?:FAIL|ERROR): .+|\s*● .+)$")
_FILE_ALONE = re.compile(r"^[\w./\\-]{1,200}(?<=[\w-])\.\w{1,5}:?$")
_PATH = re.compile(r"(?<![\w.@/-])(?:[\w.@-]{1,80}/){1,12}[\w.@-]{1,80}\.\w{1,8}\b")
_NOTE = re.compile(
    r"^\[\.\.\. [\d,]+ of ([\d,]+) characters left out; .*?archived as (#\S+?)(?:; line (\d+))?\]$", re.M
)
_MARKER = re.compile(r"^\[\.\.\.(?: line (\d+))?\]$", re.M)


@dataclass(frozen=True, slots=True)
class Focus:
    """The words that an excerpt looks for: those of the question, and those of the call that the text answers."""

    question: str = ""
    call: str = ""


NOTHING = Focus()


def excerpt_of(text: str, *, reference: str, max_chars: int, focus: Focus = NOTHING, again: bool = False) -> str:
    """Returns about `max_chars` characters of the text, plus a note on what is left out and where it is.

    Kept are beginning and end; lines that report a failure, with their place; and units that `focus` asks about. JSON is cut by
    record, HTML is shown as text. With `again`, the text is an excerpt with this reference, and a shorter one is made of it.
    """
    source = _Source.of_excerpt(text, reference) if again else None
    source = source or _Source.of(text)
    return _Selection(source, max_chars).filled(focus).rendered(reference)


# units


@dataclass(slots=True)
class _Source:
    """A text cut into units: unit i is `text[starts[i]:ends[i]]`, and `breaks` are units before which something is left out."""

    text: str
    starts: list[int]
    ends: list[int]
    whole_chars: int
    kind: str = "lines"  # or "records", "markup", "diff"
    numbers: list[int] | None = None  # of lines, where units are not counted from the first
    breaks: frozenset[int] = frozenset()

    @classmethod
    def of(cls, text: str) -> _Source:
        kind, shown = "lines", text
        beginning = text[:4_096].lstrip()
        if beginning[:1] in ("{", "["):
            records = _records(text)
            if records is not None:
                kind, shown = "records", records
        elif _is_html(beginning):
            kind, shown = "markup", _html_text(text)
        elif beginning.startswith(("diff --git ", "--- ", "Index: ")) or "\n@@ -" in beginning:
            kind = "diff"
        starts, ends, numbers = _units(shown)
        return cls(shown, starts, ends, len(text), kind, numbers)

    @classmethod
    def of_excerpt(cls, text: str, reference: str) -> _Source | None:
        """Returns the units of an excerpt without its markers; None where the text has no note with this reference."""
        notes = [m for m in _NOTE.finditer(text) if m[2] == reference]
        if not notes:
            return None
        note = notes[0]
        markers = {m.start(): m for m in (*_MARKER.finditer(text), note)}
        starts: list[int] = []
        ends: list[int] = []
        numbers: list[int] = []
        breaks: set[int] = set()
        at, number, numbered = 0, 1, True
        for place in (*sorted(markers), len(text)):
            some_starts, some_ends, some_numbers = _units(text[at:place])
            starts += [at + s for s in some_starts]
            ends += [at + e for e in some_ends]
            numbers += [number + n - 1 for n in some_numbers or range(1, len(some_starts) + 1)]
            if place in markers:
                marker = markers[place]
                line = marker[3] if marker is note else marker[1]
                numbered = numbered and (line is not None or place == max(markers))
                number = int(line) if line is not None else (numbers[-1] if numbers else 0) + 2
                at = marker.end() + 1
                breaks.add(len(starts))
        kind = "lines" if numbered and "; line" in note[0] else "pieces"
        whole = int(note[1].replace(",", ""))
        return cls(text, starts, ends, whole, kind, numbers, frozenset(breaks))

    def __len__(self) -> int:
        return len(self.starts)

    def unit(self, index: int) -> str:
        return self.text[self.starts[index] : self.ends[index]]

    def length(self, index: int) -> int:
        return self.ends[index] - self.starts[index]

    def index_at(self, offset: int) -> int:
        return max(0, bisect_right(self.starts, offset) - 1)

    def number(self, index: int) -> int:
        return index + 1 if self.numbers is None else self.numbers[index]

    @property
    def folded(self) -> str:
        """Returns the text in lower case, with its length unchanged."""
        if self._folded is None:
            lower = self.text.lower()
            if len(lower) != len(self.text):
                lower = "".join(c.lower() if len(c.lower()) == 1 else c for c in self.text)
            self._folded = lower
        return self._folded

    _folded: str | None = None

    def units_with(self, word: str, *, begins: bool = False, ends: bool = False) -> Iterator[tuple[int, int]]:
        """Yields each unit that holds the word, in lower case, with the place of the first one.

        With `begins` no letter or digit may stand before it, with `ends` none behind. Plain searches, as one call of a regular
        expression would hold the interpreter for all of a long text.
        """
        text, at = self.folded, 0
        while (at := text.find(word, at)) >= 0:
            end = at + len(word)
            if (begins and at and text[at - 1].isalnum()) or (ends and end < len(text) and text[end].isalnum()):
                at = end
                continue
            index = self.index_at(at)
            yield index, at
            at = max(end, self.ends[index])


def _units(text: str) -> tuple[list[int], list[int], list[int] | None]:
    """Returns where the units of a text begin and end, and their line numbers where lines were cut into pieces."""
    starts = [0, *(m.end() for m in re.finditer("\n", text))]
    if starts[-1] == len(text):
        starts.pop()
    ends = [*starts[1:], len(text)] if starts else []
    if all(e - s <= LONG_LINE_CHARS for s, e in zip(starts, ends, strict=True)):
        return starts, ends, None
    pieces: list[int] = []
    numbers: list[int] = []
    for number, (start, end) in enumerate(zip(starts, ends, strict=True), 1):
        at = start
        while end - at > LONG_LINE_CHARS:
            pieces.append(at)
            numbers.append(number)
            at = _piece_end(text, at)
        pieces.append(at)
        numbers.append(number)
    return pieces, [*pieces[1:], len(text)], numbers


def _piece_end(text: str, start: int) -> int:
    """Returns where a piece of a long line ends: after a sentence, a comma or a space, if there is one."""
    limit = start + PIECE_CHARS
    for signs in ("。！？；", "\t,;|&", " "):
        at = max(text.rfind(sign, start + PIECE_CHARS // 2, limit) for sign in signs)
        while at > 0 and signs != "。！？；" and _joined(text, at + 1):
            at = max(text.rfind(sign, start + PIECE_CHARS // 2, at) for sign in signs)
        if at > 0:
            return at + 1
    return _word_boundary(text, limit)


def _word_boundary(text: str, start: int) -> int:
    """Returns the next index where no word or number is cut in two; `start` when there is none in 24 characters."""
    return next((i for i in range(start, min(len(text), start + WORD_CHARS)) if not _joined(text, i)), start)


def _joined(text: str, at: int) -> bool:
    """Tells whether a cut here would split a word, a path or a number, such as 1,234.5."""
    return 0 < at < len(text) and all(c.isalnum() or c in ".,_-/\\" for c in text[at - 1 : at + 1])


# JSON and HTML as lines


_KEY = re.compile(r'\s*("(?:[^"\\]|\\.)*")\s*:\s*')
_DECODER = json.JSONDecoder(strict=False)


def _lines_joined(text: str) -> str:
    return " ".join(stripped for line in text.split("\n") if (stripped := line.strip()))


def _records(text: str) -> str | None:
    """Returns JSON with a record or a few fields on each line, each behind its path; None for a text that is no JSON.

    Values stand there as they were written. What follows a break in the syntax, as in a cut output, follows as it is.
    """
    lines: list[str] = []
    start = len(text) - len(text.lstrip())
    try:
        end = _take_apart(text, start, "", lines, MOST_DEPTH)
    except RecursionError:
        return None
    rest = text[end:].strip()
    if len(lines) < 2 or (rest and end - start < len(text) // 2):
        return None
    return "\n".join([*lines, rest] if rest else lines)


def _take_apart(text: str, start: int, path: str, lines: list[str], depth: int) -> int:
    """Adds the lines of the array or object that begins at `start`, and returns where it ends or its syntax breaks.

    Values more than `depth` levels down are not taken apart.
    """
    is_array, at, count = text[start] == "[", start + 1, 0
    fields: list[str] = []
    size = 0

    def flush() -> None:
        nonlocal size
        if fields:
            lines.append(f"{path or '$'}: {{{', '.join(fields)}}}")
        fields.clear()
        size = 0

    while True:
        at = _skip(text, at, ",")
        if at >= len(text) or text[at] in "]}":
            flush()
            return min(len(text), at + 1)
        key = ""
        if not is_array:
            named = _KEY.match(text, at)
            if named is None:
                flush()
                return at
            key, at = named[1], named.end()
        inner = f"{path}[{count}]" if is_array else f"{path}.{key[1:-1]}".removeprefix(".")
        count += 1
        try:
            value, end = _DECODER.raw_decode(text, at)
        except ValueError:
            flush()
            broken = depth > 0 and text[at : at + 1] in ("[", "{")
            return _take_apart(text, at, inner, lines, depth - 1) if broken else at
        if end - at > RECORD_CHARS and depth > 0 and isinstance(value, list | dict | str):
            flush()
            if isinstance(value, str):
                lines.append(f"{inner}:")
                lines.extend(value.splitlines())
            else:
                _take_apart(text, at, inner, lines, depth - 1)
        elif is_array:
            lines.append(f"{inner}: {_lines_joined(text[at:end])}")
        else:
            fields.append(f"{key}: {_lines_joined(text[at:end])}")
            size += len(fields[-1])
            if size > RECORD_CHARS:
                flush()
        at = end


def _skip(text: str, at: int, sign: str) -> int:
    while at < len(text) and (text[at].isspace() or text[at] == sign):
        at += 1
    return at


_TAG = re.compile(r"<(/?)([a-zA-Z][\w-]{0,30})([^<>]{0,2000})>")
_BLOCKS = frozenset((
    "p", "div", "section", "article", "header", "footer", "main", "nav", "aside", "ul", "ol", "li", "table", "thead", "tbody",
    "tr", "br", "hr", "h1", "h2", "h3", "h4", "h5", "h6", "dl", "dt", "dd", "pre", "blockquote", "form", "fieldset", "title",
    "figure", "figcaption", "option", "select", "details", "summary", "body", "html", "head",
))  # fmt: skip
_HIDDEN = frozenset(["script", "style", "svg", "noscript", "template"])
_DOCTYPE = re.compile(r"\s*<!doctype[^<>]{0,400}>", re.I)
_HREF = re.compile(r"""\bhref\s*=\s*["']?([^"'\s>#][^"'\s>]{0,160})""", re.I)
_ALT = re.compile(r"""\balt\s*=\s*"([^"]{3,160})\"""", re.I)


def _is_html(beginning: str) -> bool:
    folded = beginning[:400].lower()
    if folded.startswith("<!doctype html") or "<html" in folded:
        return True
    return beginning.startswith("<") and len({m[2].lower() for m in _TAG.finditer(beginning)} & _BLOCKS) >= HTML_TAGS


def _html_text(text: str) -> str:
    """Returns the visible text of a page, a line for each block: headings behind #, cells behind |, links with their address."""
    parts: list[str] = []
    doctype = _DOCTYPE.match(text)
    at, hidden, comment = doctype.end() if doctype else 0, "", 0
    link = ""
    while at < len(text):
        if hidden:
            closing = text.find(f"</{hidden}", at)
            at = len(text) if closing < 0 else closing
            hidden = ""
        tag = _TAG.search(text, at, min(len(text), at + SEARCHED_CHARS))
        comment = text.find("<!--", at, tag.start() if tag else min(len(text), at + SEARCHED_CHARS))
        if comment >= 0:
            parts.append(text[at:comment])
            closing = text.find("-->", comment)
            at = len(text) if closing < 0 else closing + 3
            continue
        if tag is None:
            stop = min(len(text), at + SEARCHED_CHARS)
            parts.append(text[at:stop])
            at = stop
            continue
        parts.append(_one_line(text[at : tag.start()]))
        at, name, closes = tag.end(), tag[2].lower(), bool(tag[1])
        if name in _HIDDEN and not closes:
            hidden = "" if tag[3].endswith("/") else tag[2]
        elif name in _BLOCKS:
            heading = len(name) == 2 and name[0] == "h" and name[1].isdigit()
            parts.append("\n" + ("# " if heading and not closes else ""))
        elif name in ("td", "th") and not closes:
            parts.append(" | ")
        elif name == "a":
            if closes and link:
                parts.append(f" ({link})")
            attribute = None if closes else _HREF.search(tag[3])
            link = attribute[1] if attribute and not attribute[1].startswith("javascript:") else ""
        elif name == "img" and (attribute := _ALT.search(tag[3])):
            parts.append(f"[{attribute[1]}]")
    lines = (" ".join(line.split()).removeprefix("| ") for line in html.unescape("".join(parts)).split("\n"))
    return "\n".join(line for line in lines if line and line != "#")


def _one_line(text: str) -> str:
    return text.replace("\n", " ") if "\n" in text else text


# choice


@dataclass(frozen=True, slots=True)
class _Hit:
    """A unit that is worth showing, and where in the text the match begins."""

    index: int
    score: float
    start: int


@dataclass(slots=True)
class _Selection:
    """The units that are chosen, and the characters that are left."""

    source: _Source
    max_chars: int
    chosen: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])
    used: int = 0
    _edge_chars: int = 0
    _has_failure: bool = False
    _is_table: bool = False

    def filled(self, focus: Focus) -> _Selection:
        if not len(self.source):
            return self
        failures = _failures(self.source)
        matches = _matches(self.source, focus)
        self._edges(alone=not failures and not matches)
        left_chars = self.max_chars - self.used
        # what nobody asks about leaves its share to the other
        self._add_failures(failures, self.used + (FAILURE_SHARE if matches else MATCH_SHARE) * left_chars)
        self._add_matches(matches)
        self._add_failures([hit for hit in failures if hit.score >= SURE], self._edge_chars + MATCH_SHARE * left_chars)
        self._add_paths()
        self._grow()
        return self

    def _add_failures(self, failures: Sequence[_Hit], limit: float) -> None:
        """Takes lines that report a failure, each with its place, until several in a row found no room."""
        misses = 0
        for hit in failures:
            if hit.index not in self.chosen:
                self._add(hit, limit, [hit.index, *self._places(hit)])
                misses = 0 if hit.index in self.chosen else misses + 1
            if misses >= MOST_MISSES:
                break

    def _edges(self, *, alone: bool) -> None:
        """Takes the first unit, the whole header of a table, and the last unit with text; all of the room where they are alone."""
        source = self.source
        head_room, tail_room = (
            (self.max_chars * 3 // 5, self.max_chars * 2 // 5) if alone else [self.max_chars // EDGE_SHARE] * 2
        )
        head = next((i for i in range(min(20, len(source))) if source.unit(i).strip()), 0)
        self._is_table = source.kind == "lines" and _is_header(source.unit(head), source, head)
        if self._is_table:
            head_room = max(head_room, self.max_chars // 2)
        self._take(head, self._whole_line(head, head_room), 0)
        last = next((i for i in range(len(source) - 1, max(-1, len(source) - 20), -1) if source.unit(i).strip()), 0)
        if last not in self.chosen:
            self._take(last, self._whole_line(last, tail_room), None)
        self._edge_chars = self.used

    def _whole_line(self, index: int, room: int) -> int:
        """Returns the room, or as much more as the unit needs, up to a third of a room that is not tiny."""
        return max(room, min(self.source.length(index), self.max_chars // 3)) if self.max_chars >= TINY_CHARS else room

    def _add_matches(self, matches: Sequence[_Hit]) -> None:
        left_chars = MATCH_SHARE * (self.max_chars - self.used)
        limit = self.used + left_chars
        best, misses = matches[0].score if matches else 0.0, 0
        for rank, hit in enumerate(matches):
            if hit.score < 0.25 * best or misses >= MOST_MISSES:
                break
            context_lines = self._parents(hit.index)
            if rank < 3:
                context_lines += [i for i in (hit.index + 1, hit.index - 1) if 0 <= i < len(self.source)]
            self._add(hit, limit, [hit.index])
            misses = 0 if hit.index in self.chosen else misses + 1
            if hit.index in self.chosen:
                for index in context_lines:
                    self._add(_Hit(index, 0.0, self.source.starts[index]), limit, [index])

    def _add_paths(self) -> None:
        """Takes units that name a file which none of the chosen ones names."""
        limit = self.used + PATH_SHARE * (self.max_chars - self.used)
        if limit - self.used < PIECE_CHARS:
            return
        seen = {p for i in self.chosen for p in _PATH.findall(self.source.unit(i))}
        for index, _ in islice(self.source.units_with("/"), MOST_PATHS):
            new = [m for m in _PATH.finditer(self.source.unit(index)[:LONG_LINE_CHARS]) if m[0] not in seen]
            if new:
                seen.update(m[0] for m in new)
                self._add(_Hit(index, 0.0, self.source.starts[index] + new[0].start()), limit, [index])
            if self.used + MARKER_CHARS >= limit:
                break

    def _grow(self) -> None:
        """Uses the room that is left for what follows the beginning and precedes the end."""
        source = self.source
        head, tail = 0, len(source) - 1
        taken_head = taken_tail = 0
        open_head = open_tail = True
        while (open_head or open_tail) and head <= tail:
            if open_head and (taken_head <= taken_tail * 3 // 2 or not open_tail):
                if head not in self.chosen:
                    open_head = self._extend(head)
                    taken_head += source.length(head)
                head += open_head
            else:
                if tail not in self.chosen:
                    open_tail = self._extend(tail)
                    taken_tail += source.length(tail)
                tail -= open_tail

    def _extend(self, index: int) -> bool:
        length = self.source.length(index)
        if self.used + length > self.max_chars:
            return False
        self.chosen[index] = (self.source.starts[index], self.source.ends[index])
        self.used += length
        return True

    def _add(self, hit: _Hit, limit: float, indices: Iterable[int]) -> None:
        """Takes all of the units if they fit below the limit, a long one around the match; else none."""
        new = [i for i in dict.fromkeys(indices) if i not in self.chosen]
        if not new:
            return
        most = max(PIECE_CHARS, self.max_chars // 4)
        cost = sum(min(self.source.length(i), most) + self._gap(i, new) for i in new)
        if self.used + cost > min(limit, self.max_chars):
            if len(new) > 1:
                self._add(hit, limit, [hit.index])
            elif hit.score >= SURE and not self._has_failure and self.max_chars - self.used >= 40:
                # the first failure is shown in any room
                self._take(hit.index, self.max_chars - self.used, hit.start)
                self._has_failure = True
            return
        for index in new:
            self._take(index, most, hit.start if index == hit.index else None)
        self._has_failure = self._has_failure or hit.score >= SURE

    def _gap(self, index: int, new: Sequence[int]) -> int:
        next_to_chosen = index - 1 in self.chosen or index + 1 in self.chosen or index - 1 in new
        return 0 if next_to_chosen else MARKER_CHARS

    def _take(self, index: int, most: int, around: int | None) -> None:
        """Takes a unit, or of a long one the part around a place: its beginning for 0, its end for None."""
        start, end = self.source.starts[index], self.source.ends[index]
        text = self.source.text
        if end - start > most:
            if around is None:
                start = _word_boundary(text, end - most)
                start += len(text[start:end]) - len(text[start:end].lstrip())
            else:
                if around - start > most // 4 and around > 0:
                    most -= min(most // 3, OWNER_CHARS) if self._is_record(index) else 0
                start = _word_boundary(text, max(start, min(around - most // 4, end - most)))
                stop = min(end, start + most)
                while stop > max(start + 1, start + most - WORD_CHARS) and _joined(text, stop):
                    stop -= 1
                end = stop
        self.chosen[index] = (start, end)
        self.used += end - start + self._gap(index, ())

    def _places(self, hit: _Hit) -> list[int]:
        """Returns the units that say where a failure happened, where its own line does not."""
        source, index = self.source, hit.index
        line = source.unit(index)
        places = self._parents(index)
        if source.kind in ("records", "markup"):
            return places
        if _EXCEPTION.match(line):
            for i in range(index - 1, max(-1, index - LOOK_BACK_LINES), -1):
                if _FRAME.match(source.unit(i)):
                    places += [j for j in (i, i + 1) if j != index]
                    break
        elif line.startswith("E  ") or _TEST_HEADER.match(line):
            places += self._next_place(index)
            places += self._line_before(index, _TEST_HEADER) if line.startswith("E  ") else []
        if "panicked at" in line or line.lstrip().startswith("panic:"):
            places += [i for i in (index + 1,) if i < len(source)]
        if not places and not _HAS_PLACE.search(line):
            places += self._next_place(index, 4)
            if not places and line[:1].isspace():
                places += self._line_before(index, _FILE_ALONE)
        elif not places and re.match(r"\s+\d+:\d+\s", line):
            places += self._line_before(index, _FILE_ALONE)
        return places

    def _next_place(self, index: int, lines: int = LOOK_AHEAD_LINES) -> list[int]:
        ahead = range(index + 1, min(len(self.source), index + 1 + lines))
        return next(([i] for i in ahead if _PLACE_AFTER.match(self.source.unit(i))), list[int]())

    def _line_before(self, index: int, form: re.Pattern[str]) -> list[int]:
        back = range(index - 1, max(-1, index - LOOK_BACK_LINES), -1)
        return next(([i] for i in back if form.match(self.source.unit(i).rstrip())), list[int]())

    def _parents(self, index: int) -> list[int]:
        """Returns the units under which this one stands: the hunk and the file of a diff, a heading, the header of a table."""
        source, start = self.source, self.source.starts[index]
        heads = {"diff": ("\ndiff --git ", "\n+++ ", "\n@@ "), "markup": ("\n# ",)}.get(source.kind, ())
        parents = [source.index_at(at + 1) for head in heads if (at := source.text.rfind(head, 0, start)) >= 0]
        line = source.unit(index)
        if source.numbers is not None and source.kind == "lines":
            # the first piece of a long line names what the others are about
            top = index
            while top > 0 and source.numbers[top - 1] == source.numbers[index]:
                top -= 1
            parents += [top] if line[:1] != "{" and source.text[source.starts[top]] == "{" else []
        if source.kind == "lines" and ("|" in line or "\t" in line) and not line.startswith(("\t", " ")):
            sign = "|" if "|" in line else "\t"
            top = index
            while top > 0 and index - top < 500 and sign in source.unit(top - 1):
                top -= 1
            parents += [top] if 1 < index - top < 500 else []
        return [i for i in parents if i != index]

    def _is_record(self, index: int) -> bool:
        """Tells whether a unit begins with what names it: a JSON record, or a row of a table."""
        source = self.source
        return self._is_table or source.kind == "records" or source.unit(index)[:1] == "{"

    # show

    def rendered(self, reference: str) -> str:
        """Returns the chosen units in order; a marker stands where something is left out, and the first one is the note."""
        source = self.source
        groups: list[tuple[int, str]] = []  # number of the first line, text
        last, last_end = -1, -1
        for index in sorted(self.chosen):
            start, end = self.chosen[index]
            piece = source.text[start:end]
            if start > source.starts[index] and self._is_record(index):
                owner = source.starts[index] + OWNER_CHARS
                while owner > source.starts[index] and _joined(source.text, owner):
                    owner -= 1
                piece = f"{source.text[source.starts[index] : min(owner, start)]} ... {piece}"
            joins = index == last + 1 and index not in source.breaks and last_end == start
            if joins and groups:
                groups[-1] = (groups[-1][0], groups[-1][1] + piece)
            elif piece.strip():
                groups.append((source.number(index), piece))
            else:
                continue
            last, last_end = index, end
        texts = [text.strip("\n") for _, text in groups]
        shown = sum(map(len, texts))
        left_out = max(0, source.whole_chars - shown)
        note = f"{left_out} of {source.whole_chars} characters left out; the whole output is archived as {reference}"
        if source.kind == "markup":
            note = f"{left_out} of {source.whole_chars} characters left out; the text of a page, archived whole as {reference}"
        if not groups:
            return f"[... {note}]"
        by_line = source.kind in ("lines", "diff")
        parts = [texts[0]]
        for position, ((number, _), text) in enumerate(zip(groups[1:], texts[1:], strict=True)):
            line = f" line {number}" if by_line else ""
            marker = f"[...{line}]"
            if position == 0:
                marker = f"[... {note};{line}]" if line else f"[... {note}]"
            parts += [marker, text]
        return "\n".join(parts if len(groups) > 1 else [*parts, f"[... {note}]"])


SURE, WEAK, WARNED = 3.0, 2.0, 1.0


def _is_header(line: str, source: _Source, index: int) -> bool:
    """Tells whether a line and the next ones have as many separators of a table."""
    for sign in ",\t;|":
        count = line.count(sign)
        later = [source.unit(i) for i in range(index + 1, min(len(source), index + 4))]
        if count >= 1 and later and all(abs(row.count(sign) - count) <= count // 4 for row in later):
            return True
    return False


def _failures(source: _Source) -> list[_Hit]:
    """Returns the units that report a failure: the surest first, and of each kind of line one before any second."""
    hits: dict[int, _Hit] = {}
    known: dict[tuple[str, str], float] = {}  # by the form of a line and the word: a log has the same lines often
    forms: dict[int, str] = {}
    for word in (*_FAILURE_WORDS, *_SURE_PHRASES):
        for _, start in islice(source.units_with(word), MOST_HITS):
            place = start + (word[0] == "\n")
            index = source.index_at(place)
            line = source.unit(index)
            form = forms.get(index) or _form(line)
            forms[index] = form
            if (form, word) not in known:
                known[form, word] = _severity(line, place - source.starts[index], word)
            score = known[form, word]
            earlier = hits.get(index)
            if score > 0 and (earlier is None or (-score, place) < (-earlier.score, earlier.start)):
                hits[index] = _Hit(index, score, place)
    frequency = Counter(forms[i] for i in hits)
    kinds: Counter[str] = Counter()
    ranked: list[tuple[float, int, int]] = []
    for index in sorted(hits):
        form = forms[index]
        # a line that stands there hundreds of times says less than one that stands there once
        ranked.append((-hits[index].score, kinds[form] + int(math.log2(frequency[form])), index))
        kinds[form] += 1
    return [hits[index] for *_, index in sorted(ranked)]


def _form(line: str) -> str:
    """Returns the beginning of a line with each number as one sign."""
    form = line[:PIECE_CHARS].strip().translate(_DIGITS)
    while "##" in form:
        form = form.replace("##", "#")
    return form


def _severity(line: str, at: int, word: str) -> float:
    """Returns how surely the word at this place of a line reports a failure: 0 not at all, 1 as a warning, 3 as an error."""
    folded = line.lower()
    while word in _FAILURE_WORDS:
        end = at + len(word)
        named = _part_of_name(line, at, end)
        if not (named or _NONE_BEFORE.search(folded[max(0, at - 24) : at]) or _NONE_AFTER.match(folded, end)):
            break
        # the line may say it a second time
        if (at := folded.find(word, end)) < 0:
            return 0.0
    before = folded[:at]
    if ("warn" in before or "note:" in before or "deprecat" in before) and _WARNING.search(before):
        return WARNED
    state = '"' in before and _STATE_BEFORE.search(before[-24:])
    return SURE if word in _SURE_PHRASES or state or _SURE_AFTER.match(line, at) else WEAK


def _part_of_name(line: str, at: int, end: int) -> bool:
    """Tells whether a word is part of an identifier, other than the type of an exception."""
    if line[end - 1] != ":" and not _ENDING.match(line.lower(), end):
        return True
    if at == 0 or not (line[at - 1].isalnum() or line[at - 1] in "_-."):
        return False
    return line[at - 1] in "_-" or not (line[at].isupper() and line[at + 1 : at + 2].islower())


def _matches(source: _Source, focus: Focus) -> list[_Hit]:
    """Returns the units that hold words of the focus, the best first. A word counts more the fewer units hold it."""
    weights = _weights(source, focus)
    if not weights:
        return []
    units: dict[str, dict[int, int]] = {}
    for term in weights:
        plain = term.isascii()
        short = plain and (len(term) <= 3 or term[-1].isdigit())
        units[term] = dict(islice(source.units_with(term, begins=plain, ends=short), MOST_HITS))
    scores: dict[int, float] = {}
    places: dict[int, int] = {}
    rarest: dict[int, float] = {}
    for term, unit_lines in units.items():
        value = weights[term] * math.log(1 + len(source) / len(unit_lines)) if unit_lines else 0.0
        for index, start in unit_lines.items():
            scores[index] = scores.get(index, 0.0) + value
            if value > rarest.get(index, 0.0):
                rarest[index], places[index] = value, start
    hits = [_Hit(index, score, places[index]) for index, score in scores.items()]
    return sorted(hits, key=lambda h: (-h.score, h.index))


def _weights(source: _Source, focus: Focus) -> dict[str, float]:
    """Returns the words to look for that the text has, with their weights; names and numbers weigh more than other words."""
    weights: dict[str, float] = {}
    for text, weight in ((focus.question, 1.0), (focus.call, 0.7)):
        shortened = (
            text if len(text) <= MOST_FOCUS_CHARS else text[: MOST_FOCUS_CHARS // 2] + text[-MOST_FOCUS_CHARS // 2 :]
        )
        for term in terms(shortened):
            if len(term) > 1 or term.isdigit() or not term.isascii():
                named = any(c.isdigit() or c in "_./@:-" for c in term)
                weights[term] = max(weights.get(term, 0.0), weight * (2.0 if named else 1.0))
    counts = {term: source.folded.count(term) for term in list(weights)[: 4 * MOST_TERMS]}
    present = sorted((t for t, n in counts.items() if n), key=lambda t: counts[t])[:MOST_TERMS]
    return {term: weights[term] for term in present}
