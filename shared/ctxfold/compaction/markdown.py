"""Reads Markdown: a list with its heading, each row of a table with its columns, and no blocks of code."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, zip_longest

from ctxfold.compaction.excerpts import failure_lines
from ctxfold.compaction.sentences import is_whole, split_sentences
from ctxfold.compaction.text_units import is_code, is_code_block, is_numbered
from ctxfold.history.terms import CJK, DATE_GOES_ON

LIST_CHARS = 200  # of a heading with the items of its list
_FENCE = "```"  # before and after a block of code in Markdown
_NUMBER = rf"\d{{1,3}}(?:[.)](?!{DATE_GOES_ON.pattern})[^\S\n]++|、)"  # "3. Mai" is a date
_MARK = rf"[-*•–]++[^\S\n]++|#{{1,6}}[^\S\n]++(?:{_NUMBER})?|{_NUMBER}|\(?[a-z]\)[^\S\n]++"
LIST_MARK = re.compile(rf"^[^\S\n]*+(?:(?:>[^\S\n]++)++(?:{_MARK})?|{_MARK})", re.M)  # also of a quotation
_BARE_MARK = re.compile(r"^\s*(?:[-*•–#>]+|\d{1,3}[.)、]?)\s*$")
# not `2**10`, nor `__init__.py`: names in code have no space between the signs
_EMPHASIS = re.compile(
    r"(?<![A-Za-z0-9_*])(\*{2,3})(?=\S)([^*]++)(?<=\S)\1(?![A-Za-z0-9_*])|(?<!\w)__(?=\S)(?=[^_\s]++\s)([^_]++)(?<=\S)__(?!\w)"
)
_TABLE_RULE = re.compile(r"[ |:-]+")
_CELL_END = re.compile(r"(?<!\\)\|")
_EMPHASISED = re.compile(r"\*\*[^*]{2,100}\*\*\s*:?")
FIELD = re.compile(rf"^([^\W\d_][\w ()/{CJK}'-]{{0,40}}?)\s*(?::\s+|：\s*)(\S.*)$")  # "10:30" and ":D" are none


def without_code(text: str) -> str:
    """Returns what somebody says without program code: blocks between fences, and a listing with line numbers.

    Lines in them that report a failure stay, and so does a block that is no code.
    """
    if _FENCE in text:
        text = "\n".join(_outside_of_code(text.splitlines()))
    if not (is_numbered(text) and is_code(text)):
        return text
    words = (line for line in text.splitlines() if not is_numbered(line))
    return "\n".join([*words, *failure_lines(text)])


def _outside_of_code(lines: Iterable[str]) -> Iterator[str]:
    """Yields the lines without fences, and of a block of code only those that report a failure."""
    block: list[str] | None = None
    for line in chain(lines, [_FENCE]):  # a block may lack its end
        if not line.lstrip().startswith(_FENCE) or line.count(_FENCE) > 1:
            if block is None:
                yield line
            else:
                block.append(line)
        elif block is None:
            block = []
        else:
            text = "\n".join(block)
            yield from failure_lines(text) if is_code_block(text) else block
            block = None


def blocks(text: str) -> Iterator[str]:
    """Yields the lines of a text; a heading and the short items of the list below it, or a run of fields, as one."""
    group: list[str] = []
    heading = ""
    for raw in _rows_as_fields(text.splitlines()):
        mark = match[0] if (match := LIST_MARK.match(raw)) else ""
        marked = raw[len(mark) :].strip()
        line = _unemphasised(marked)
        if not line or _BARE_MARK.match(raw):
            continue
        is_heading = len(line) <= 120 and (
            line.endswith((":", "："))
            or ("#" in mark and not is_whole(line))
            or (FIELD.match(line) is None and _names_record(mark, marked, line))
        )
        is_item = (
            not is_heading and len(line) <= 100 and (mark or (FIELD.match(line) is not None and not is_whole(line)))
        )
        full = bool(group) and len(heading) + sum(map(len, group)) + len(line) > LIST_CHARS
        if group and (not is_item or full or _starts_record(line, group)):
            yield _listed(heading, group)
            group = []
            heading = heading if is_item else ""
        if is_heading:
            *before, heading = split_sentences(line.rstrip(":： "))
            yield from before  # "It takes 12 weeks. This is why:" says more than a heading
        elif is_item:
            group.append(line)
        else:
            yield f"{heading}: {line}" if heading and not is_whole(line) else line
            heading = ""
    if group:
        yield _listed(heading, group)


def _unemphasised(line: str) -> str:
    return _EMPHASIS.sub(lambda m: m[2] or m[3], line).strip() if "**" in line or "__" in line else line.strip()


def _rows_as_fields(lines: Sequence[str]) -> Iterator[str]:
    """Yields the lines; each row of a Markdown table as fields with the names of its columns, in place of header and rows."""
    names: list[str] = []
    for at, line in enumerate(lines):
        following = lines[at + 1] if at + 1 < len(lines) else ""
        if "|" not in line:
            names = []
            yield line
        elif "-" in following and "|" in following and _TABLE_RULE.fullmatch(following):
            names = _cells(line)
        elif names and not _TABLE_RULE.fullmatch(line):
            fields = zip_longest(names, _cells(line), fillvalue="")
            yield "; ".join(f"{name}: {cell}" if name else cell for name, cell in fields if any(map(str.isalnum, cell)))
        elif not names:
            yield line


def _cells(row: str) -> list[str]:
    return [
        _unemphasised(cell.replace("\\|", "|"))
        for cell in _CELL_END.split(row.strip().removeprefix("|").removesuffix("|"))
    ]


def _listed(heading: str, items: Sequence[str]) -> str:
    if len(items) == 1 and is_whole(items[0]):
        return items[0]
    joined = "; ".join(i.rstrip(";,. ") for i in items)
    return f"{heading}: {joined}" if heading else joined


def _names_record(mark: str, marked: str, line: str) -> bool:
    """Tells whether a line is the heading of the fields below it, such as `1. **Flight HAT069**`, or emphasised as a whole."""
    if _EMPHASISED.fullmatch(marked):
        return True
    return any(map(str.isdigit, mark)) and any(map(str.isdigit, line)) and not is_whole(line)


def _starts_record(line: str, group: Sequence[str]) -> bool:
    field, first = FIELD.match(line), FIELD.match(group[0])
    return field is not None and first is not None and field[1] == first[1]
