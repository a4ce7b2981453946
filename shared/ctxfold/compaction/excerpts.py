"""Makes excerpts of long texts: beginning and end, failures with their place, and what a task asks about. Pure.

Units of the text (`text_units.py`) are chosen by rank until the room is used, and shown in their order. Searching is left to
regular expressions, so that the work per unit is small.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from ctxfold.compaction.text_units import (
    LONG_LINE_CHARS,
    PIECE_CHARS,
    WORD_CHARS,
    TextUnits,
    is_code,
    is_code_line,
    splits_word,
    word_boundary,
)
from ctxfold.index.terms import surface_terms
from ctxfold.lru import lazy_pattern

EDGE_SHARE = 6  # of the room, one part of so many for the first unit, and one for the last
FAILURE_SHARE = 0.5  # of the room that the edges leave
MATCH_SHARE = 0.8  # of the room that edges and failures leave
PATH_SHARE = 0.25  # of the room that is left then
MARKER_CHARS = 20  # of a gap
TINY_CHARS = 360  # in less room the first line and the last one are cut for the sake of what stands between them
MOST_HITS = 4_000  # lines that are looked at
MAX_FAILURES = 2  # lines of one output or block of code that are facts
MOST_PATHS = 1_000  # lines with a path that are looked at
MOST_TERMS = 48
MOST_MISSES = 12  # units in a row that find no room
OWNER_CHARS = 60  # of the beginning of a record whose middle is shown
MOST_FOCUS_CHARS = 4_000
LOOK_BACK_LINES, LOOK_AHEAD_LINES = 60, 14
SURE, WEAK, WARNED = 3.0, 2.0, 1.0  # how surely a line reports a failure

_FAILURE_WORDS = (
    "error", "err:", "exception", "traceback", "fail", "fatal", "panic", "critical", "severe", "emerg", "denied", "refused",
    "abort", "unresolved", "not found", "timed out",
)  # fmt: skip
_SURE_PHRASES = (
    "caused by:", "panicked at", "undefined reference", "segmentation fault", "not ok ", "\ne   ", "\n  ● ", "✕", "✗",
    "错误", "失败", "异常", "エラー", "失敗", "例外",
)  # fmt: skip
# behind a word of failure: its ending, then what shows that nothing failed, or that it is part of a name
_ENDING = lazy_pattern(r"(?:s|ed|ure|ures|ing|ions?)?(?![\w])(?!-[a-z])(?!\.[a-z])")
_NONE_AFTER = lazy_pattern(r"""(?:s|ed|ures?)?["']?\s*[:=]\s*["']?(?:none|null|nil|false|0\b|\[\]|""|'')""")
_NONE_BEFORE = lazy_pattern(r"(?:^|\W)(?:0|no|without|zero) (?:\w+ )?$")
_WARNING = lazy_pattern(r"\b(?:warn(?:ing|ings)?\b(?!\.\w)|note:|deprecat)")
# from the word on: what makes it the report of an error
_SURE_AFTER = lazy_pattern(
    r"(?:[Ee]rrors?|[Ee]rr)\b(?:\s*\[[\w-]+\])?(?:\s+[A-Z]{1,4}\d{2,6})?\s*:|(?:ERRORS?|FATAL|CRITICAL|SEVERE|EMERG|PANIC)\b"
    r"|FAIL(?:ED|URE)?\b|(?:Error|Exception|Panic|Failure)\b(?=\s*[:({\"']|\s*$)|panic(?:ked at|:)"
    r"""|error\w*"\s*:\s*["{\d]"""
)
_STATE_BEFORE = lazy_pattern(r'"(?:level|severity|status|state|outcome|result)"\s*:\s*"$')
_DIGITS = str.maketrans("0123456789", "##########")
_EXCEPTION = lazy_pattern(
    r"^\s*(?:[a-z_][\w]*\.)*[A-Z]\w*(?:Error|Exception|Failure|Interrupt|Exit|Warning)\b(?:$|:| \()"
)
# behind the number of a listing or the sign of a diff: code that raises an error, which a traceback shows above its report
_RAISES = lazy_pattern(r"^[ \t]*+(?:\d{1,6}[ \t]?[:|→-]?)?[ \t+-]*+(?:raise [\w.]+(?:\(|$)|throw new )")
_FRAME = lazy_pattern(r'^\s*File ".*", line \d+')
# the calls that led to an exception, above or below the line that reports it
_CALLS = lazy_pattern(
    r"^[ \t]*+Traceback \(most recent call last\):\n(?:[ \t]++\S.*\n)++|^[ \t]++at [^\s(]++\(.*\)\n", re.M
)
_PLACE_AFTER = lazy_pattern(
    r"^\s*(?:--> |at .*[(@ ].*:\d+|\S+\.go:\d+)|^[\w./\\-]+\.\w{1,5}:\d+: (?:[A-Z]\w*(?:Error|Exception|Failed)|$)"
    r"|^[\w./-]+\.\w{1,5}:\d+:\s*$"
)
_HAS_PLACE = lazy_pattern(r"(?<![\w./\\-])[\w./\\-]{1,200}\.\w{1,5}(?::\d+|\(\d+[,)])|\bline \d+")
_TEST_HEADER = lazy_pattern(
    r"^(?:_{3,} .+ _{3,}|={3,} .*\b(?:ERROR|FAIL).*|\s*--- FAIL: .+|(?:FAIL|ERROR): .+|\s*● .+)$"
)
_FILE_ALONE = lazy_pattern(r"^[\w./\\-]{1,200}(?<=[\w-])\.\w{1,5}:?$")
_PATH = lazy_pattern(r"(?<![\w.@/-])(?:[\w.@-]{1,80}/){1,12}[\w.@-]{1,80}\.\w{1,8}\b")


@dataclass(frozen=True, slots=True)
class Focus:
    """The words that an excerpt looks for: those of the question, and those of the call that the text answers."""

    question: str = ""
    call: str = ""


NOTHING = Focus()


def excerpt_of(text: str, *, reference: str, max_chars: int, focus: Focus, again: bool = False) -> str:
    """Returns about `max_chars` characters of the text, plus a note on what is left out and where it is.

    Kept are beginning and end; lines that report a failure, with their place; and units that `focus` asks about. JSON is cut by
    record, HTML is shown as text. With `again`, the text is an excerpt with this reference, and a shorter one is made of it. Where
    `reference` is "", the note says only how much is left out.
    """
    source = TextUnits.of_excerpt(text, reference) if again else None
    source = source or TextUnits.of(text)
    return _Selection(source, max_chars).filled(focus).rendered(reference)


def referring(words: str, reference: str) -> str:
    """Returns the part of a note that refers to the whole text; "" without a reference."""
    return f"{words} {reference}" if reference else ""


def failure_lines(text: str, *, least: float = SURE) -> list[str]:
    """Returns the lines that report a failure for certain, at most two: those that name a file first, then the surest.

    Lines of code that handle one, or raise an exception, report none. `least` is how sure a report must be.
    """
    source, code = TextUnits.of(text), is_code(text)
    units = (source.unit(hit.index) for hit in _failures(source) if hit.score >= least)
    units = (u for u in units if not _RAISES.match(u))
    reports = (u for u in units if not code or _EXCEPTION.match(u) or u.startswith("E  ") or not is_code_line(u))
    lines = sorted((" ".join(unit.split()) for unit in reports), key=lambda line: _PATH.search(line) is None)
    return lines[:MAX_FAILURES]


def without_calls(text: str) -> str:
    """Returns a tool's output without the calls that a traceback lists."""
    return _CALLS.sub("", text)


@dataclass(frozen=True, slots=True)
class _Hit:
    """A unit that is worth showing, and where in the text the match begins."""

    index: int
    score: float
    start: int


@dataclass(slots=True)
class _Selection:
    """The units that are chosen, and the characters that are left."""

    source: TextUnits
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
                start = word_boundary(text, end - most)
                start += len(text[start:end]) - len(text[start:end].lstrip())
            else:
                if around - start > most // 4 and around > 0:
                    most -= min(most // 3, OWNER_CHARS) if self._is_record(index) else 0
                start = word_boundary(text, max(start, min(around - most // 4, end - most)))
                stop = min(end, start + most)
                while stop > max(start + 1, start + most - WORD_CHARS) and splits_word(text, stop):
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
        next_lines = range(index + 1, min(len(self.source), index + 1 + lines))
        return next(([i] for i in next_lines if _PLACE_AFTER.match(self.source.unit(i))), list[int]())

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
                while owner > source.starts[index] and splits_word(source.text, owner):
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
        note = f"{left_out} of {source.whole_chars} characters left out"
        if source.kind == "markup":
            note += f"; the text of a page{referring(', archived whole as', reference)}"
        else:
            note += referring("; the whole output is archived as", reference)
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


def _is_header(line: str, source: TextUnits, index: int) -> bool:
    """Tells whether a line and the next ones have as many separators of a table."""
    for sign in ",\t;|":
        count = line.count(sign)
        later = [source.unit(i) for i in range(index + 1, min(len(source), index + 4))]
        if count >= 1 and later and all(abs(row.count(sign) - count) <= count // 4 for row in later):
            return True
    return False


def _failures(source: TextUnits) -> list[_Hit]:
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


def _matches(source: TextUnits, focus: Focus) -> list[_Hit]:
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


def _weights(source: TextUnits, focus: Focus) -> dict[str, float]:
    """Returns the words to look for that the text has, with their weights; names and numbers weigh more than other words."""
    weights: dict[str, float] = {}
    for text, weight in ((focus.question, 1.0), (focus.call, 0.7)):
        shortened = (
            text if len(text) <= MOST_FOCUS_CHARS else text[: MOST_FOCUS_CHARS // 2] + text[-MOST_FOCUS_CHARS // 2 :]
        )
        for term in surface_terms(shortened):
            if len(term) > 1 or term.isdigit() or not term.isascii():
                named = any(c.isdigit() or c in "_./@:-" for c in term)
                weights[term] = max(weights.get(term, 0.0), weight * (2.0 if named else 1.0))
    counts = {term: source.folded.count(term) for term in list(weights)[: 4 * MOST_TERMS]}
    present = sorted((t for t, n in counts.items() if n), key=lambda t: counts[t])[:MOST_TERMS]
    return {term: weights[term] for term in present}
