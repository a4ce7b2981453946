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
    r"(?<![A-Za-z0-9_*])(\*{1,3})(?=[^\s*])([^*]++)(?<=\S)\1(?![A-Za-z0-9_*])|(?<!\w)__(?=\S)(?=[^_\s]++\s)([^_]++)(?<=\S)__(?!\w)"
)
_BOX = re.compile(r"\[([ xX])\]\s+(?=\S)")
_LINK = re.compile(r"!?\[([^\[\]]{1,200})\]\(([^()\s]{1,500})\)")
_TABLE_RULE = re.compile(r"[ |:-]+")
_CELL_END = re.compile(r"(?<!\\)\|")
_EMPHASISED = re.compile(r"\*\*[^*]{2,100}\*\*\s*:?")
FIELD = re.compile(  # "10:30" and ":D" are none
    rf"^([^\W\d_][\w ()/{CJK}'-]{{0,40}}?)\s*(?::\s+|：\s*|=\s*(?!=))(\S.*)$"
)


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
    """Yields the lines outside of fences. Of a block of code it yields the lines that report a failure, and a fence for its end."""
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
            yield from [*failure_lines(text), _FENCE] if is_code_block(text) else block
            block = None


def blocks(text: str) -> Iterator[str]:
    """Yields the lines of a text; a heading and the short items of the list below it, or a run of fields, as one.

    A heading with nothing below it but sentences is a line of its own, and so are sentences in a list without a heading.
    """
    heading = ""
    items: list[str] = []
    rows = [row for row in _rows_as_fields(text.splitlines()) if row.strip() and not _BARE_MARK.match(row)]
    for raw, following in zip_longest(rows, rows[1:], fillvalue=""):
        mark = _mark(raw)
        marked = _in_words(raw[len(mark) :].strip(), is_item=bool(mark))
        line = _unemphasised(marked)
        whole = is_whole(line)
        is_field = not whole and FIELD.match(line) is not None
        is_heading = len(line) <= 120 and (
            line.endswith((":", "："))
            or "#" in mark
            or (
                FIELD.match(line) is None
                and (_EMPHASISED.fullmatch(marked) or (not whole and _names_record(raw, following)))
            )
        )
        if not is_heading and len(line) <= 100 and (is_field or (mark and (heading or not whole))):
            full = len(heading) + sum(map(len, items)) + len(line) > LIST_CHARS
            if items and (full or _starts_record(line, items)):
                yield _listed(heading, items)
                items = []
            items.append(line)
            continue
        if items or is_heading or whole or line == _FENCE:
            yield _listed(heading, items)
            heading, items = "", []
        if is_heading:
            *before, heading = split_sentences(line.rstrip(":： "))
            yield from before  # "It takes 12 weeks. This is why:" says more than a heading
        else:
            yield f"{heading}: {line}" if heading else line
            heading = ""
    yield _listed(heading, items)


def _in_words(line: str, *, is_item: bool) -> str:
    """Returns a line with the box of a task as a word, and with the address of a link behind its text."""
    if is_item and (box := _BOX.match(line)):
        line = f"{'to do' if box[1] == ' ' else 'done'}: {line[box.end() :]}"
    return _LINK.sub(r"\1 (\2)", line) if "](" in line else line


def _unemphasised(line: str) -> str:
    return _EMPHASIS.sub(lambda m: m[2] or m[3], line).strip() if "*" in line or "__" in line else line.strip()


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
    return ": ".join(filter(None, (heading, "; ".join(i.rstrip(";,. ") for i in items))))


def _mark(line: str) -> str:
    match = LIST_MARK.match(line)
    return match[0] if match else ""


def _names_record(line: str, following: str) -> bool:
    """Tells whether a numbered item with another number in it, such as `1. Flight HAT069`, is the heading of the lines below it.

    It is none where the next line is a numbered item too.
    """
    mark = _mark(line)
    numbered = any(map(str.isdigit, mark)) and any(map(str.isdigit, line[len(mark) :]))
    return numbered and following != "" and not any(map(str.isdigit, _mark(following)))


def _starts_record(line: str, group: Sequence[str]) -> bool:
    field, first = FIELD.match(line), FIELD.match(group[0])
    return field is not None and first is not None and field[1] == first[1]
