"""Cuts a text into the units that an excerpt shows: lines, JSON records, blocks of a page, or pieces of a long line. Pure."""

from __future__ import annotations

import html
import json
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from ctxfold.lru import lazy_pattern
from ctxfold.validation import json_object

PIECE_CHARS = 200  # of a line without a break
LONG_LINE_CHARS = 400  # a longer one is cut into pieces
RECORD_CHARS = 400  # a longer JSON value is taken apart
MOST_DEPTH = 12  # levels of JSON that are taken apart
SEARCHED_CHARS = 50_000  # at once: one call of a regular expression holds the interpreter
WORD_CHARS = 24
HTML_TAGS = 6  # in its beginning, so that a text counts as HTML
CODE_CHARS = 8_000  # of the beginning of a text, in which code is looked for
CODE_SHARE, LISTED_CODE_SHARE = 0.3, 0.15  # of the lines, so that a text, or one with numbered lines, counts as code
LEAST_CODE_LINES = 4
_NOTE = lazy_pattern(
    r"^\[\.\.\. [\d,]+ of ([\d,]+) characters left out"
    r"(?:; .*?archived (?:whole )?as (#\S+?)|(?:; the text of a page)?)(?:; line (\d+))?\]$",
    re.M,
)
# a stripped line of code, by its end or by its beginning behind the number of a listing; words that begin sentences do not count
_CODE = lazy_pattern(
    r"[{}(\[\\]$|\w\([^()]*\)[:;,]?$|\)\)[:;,]?$|\],$"
    r"|^(?:\d{1,6}\s?[:|\t→-]?\s*)?(?:(?:async |export |public |private |protected |static |final )*"
    r"(?:def|class|func|fn|function|const|let|var|struct|enum|impl|interface|namespace|package) \w"
    r"|from [\w.]+ import |import [\w.{*]+(?: |$)|#include|@\w+(?:[.(]|$)|return\b(?! to )|raise \w+(?:[.(]|$)"
    r"""|[A-Z_][A-Z\d_]{2,} += |["'][\w.-]+["'],|(?:else|try|finally):|except\b.*:$|self\.\w+|(?:if|elif|for|while|with) .*:$)"""
)
# a whole line of a configuration: a name with one value, a comment, or the heading of a section
_VALUE = r"""(?:"[^"\n]{0,200}"|'[^'\n]{0,200}'|[^\s()\[\]{}"'#,;]{1,200})[,;]?(?:\s{1,8}(?:#|//).*)?"""
_SETTING = lazy_pattern(rf"(?:export |const |let )?[A-Za-z_][\w.-]{{0,60}} ?[:=] ?{_VALUE}|#.*|\[[\w.-]{{1,60}}\]")
_NUMBERED = lazy_pattern(r"\d{1,6}[:|\t →]")
_MARKER = lazy_pattern(r"^\[\.\.\.(?: line (\d+))?\]$", re.M)
# people write lines that begin so, too
_ANY_MARKER = lazy_pattern(r"^\[\.\.\.(?: line \d+| [\d,]+ of [\d,]+ (?:characters|items) left out\b.*)?\]$", re.M)


@dataclass(slots=True)
class TextUnits:
    """A text cut into units: unit i is `text[starts[i]:ends[i]]`, and `breaks` are units before which something is left out."""

    text: str
    starts: list[int]
    ends: list[int]
    whole_chars: int
    kind: str = "lines"  # or "records", "markup", "diff"
    numbers: list[int] | None = None  # of lines, where units are not counted from the first
    breaks: frozenset[int] = frozenset()

    @classmethod
    def of(cls, text: str) -> TextUnits:
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
    def of_excerpt(cls, text: str, reference: str) -> TextUnits | None:
        """Returns the units of an excerpt without its markers; None where the text has no note with this reference (any for "")."""
        notes = [m for m in _NOTE.finditer(text) if not reference or m[2] == reference]
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
        if "; the text of a page" in note[0]:
            kind = "markup"
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
        while at > 0 and signs != "。！？；" and splits_word(text, at + 1):
            at = max(text.rfind(sign, start + PIECE_CHARS // 2, at) for sign in signs)
        if at > 0:
            return at + 1
    return word_boundary(text, limit)


def word_boundary(text: str, start: int) -> int:
    """Returns the next index where no word or number is cut in two; `start` when there is none in 24 characters."""
    return next((i for i in range(start, min(len(text), start + WORD_CHARS)) if not splits_word(text, i)), start)


def splits_word(text: str, at: int) -> bool:
    """Tells whether a cut here would split a word, a path or a number, such as 1,234.5."""
    return 0 < at < len(text) and all(c.isalnum() or c in ".,_-/\\" for c in text[at - 1 : at + 1])


_KEY = lazy_pattern(r'\s*("(?:[^"\\]|\\.)*")\s*:\s*')
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
        at = _skip(text, at)
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


def _skip(text: str, at: int) -> int:
    while at < len(text) and (text[at].isspace() or text[at] == ","):
        at += 1
    return at


_TAG = lazy_pattern(r"<(/?)([a-zA-Z][\w-]{0,30})([^<>]{0,2000})>")
_BLOCKS = frozenset((
    "p", "div", "section", "article", "header", "footer", "main", "nav", "aside", "ul", "ol", "li", "table", "thead", "tbody",
    "tr", "br", "hr", "h1", "h2", "h3", "h4", "h5", "h6", "dl", "dt", "dd", "pre", "blockquote", "form", "fieldset", "title",
    "figure", "figcaption", "option", "select", "details", "summary", "body", "html", "head",
))  # fmt: skip
_HIDDEN = frozenset(["script", "style", "svg", "noscript", "template"])
_DOCTYPE = lazy_pattern(r"\s*<!doctype[^<>]{0,400}>", re.I)
_HREF = lazy_pattern(r"""\bhref\s*=\s*["']?([^"'\s>#][^"'\s>]{0,160})""", re.I)
_ALT = lazy_pattern(r"""\balt\s*=\s*"([^"]{3,160})\"""", re.I)


def without_markers(text: str) -> str:
    """Returns an excerpt or a shortened argument without the lines that say what was left out: nobody said these."""
    return _ANY_MARKER.sub("", text) if "[..." in text else text


def is_code(text: str) -> bool:
    """Tells whether a text is program code, or a listing of it: many of its lines can be nothing else.

    Comments and docstrings take much of a file. Only the beginning is looked at.
    """
    lines = _beginning(text)
    share = LISTED_CODE_SHARE if is_numbered(text) else CODE_SHARE
    return len(lines) >= LEAST_CODE_LINES and sum(map(is_code_line, lines)) >= share * len(lines)


def _beginning(text: str) -> list[str]:
    """Returns the lines at the beginning of a text, stripped, without empty ones and those that say what an excerpt leaves out."""
    return [line for raw in without_markers(text[:CODE_CHARS]).splitlines() if (line := raw.strip())]


def is_numbered(text: str) -> bool:
    """Tells whether most lines of a text begin with their number, as those of a listing do."""
    lines = _beginning(text)
    return sum(1 for line in lines if _NUMBERED.match(line)) > len(lines) / 2


def is_code_block(text: str) -> bool:
    """Tells whether what stands between two fences is program code or a patch of it, also a short one.

    JSON and names with their values are none: they are a configuration or an example of data, whose values may be all that a
    message tells.
    """
    if json_object(text) is not None:
        return False
    lines = [line for raw in text[:CODE_CHARS].splitlines() if (line := raw.lstrip("+- \t").rstrip())]
    if lines and all(map(_SETTING.fullmatch, lines)):
        return False
    return sum(map(is_code_line, lines)) >= CODE_SHARE * len(lines)


def is_code_line(line: str) -> bool:
    """Tells whether a line looks like program code rather than like words or a report."""
    return _CODE.search(line.strip()) is not None


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
        parts.append(text[at : tag.start()].replace("\n", " "))
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
