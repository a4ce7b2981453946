"""Reads the JSON values of a file (lines, an array, or values in a row) one after the other, in the memory of the largest."""

from __future__ import annotations

import io
import json
import os
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, TextIO

from ctxfold.errors import ConfigError, ImportLineError
from ctxfold.validation import is_a, json_problem

_CHUNK = 1 << 20
_NEAR_END = 16  # characters: an escape or a literal that is cut
_GAP = re.compile(r"[\s,]*")
_MEMBER = re.compile(r"conversations(?:-\d{1,9})?\.(?:json|zip)")
_decode = json.JSONDecoder().raw_decode
_UNREADABLE = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError)  # the last: encrypted, or compressed otherwise
_ZSTD = b"\x28\xb5\x2f\xfd"


class Place(int):
    """The number of a line; with the unit "item" a place in the file's array."""

    unit = "line"


def file_values(
    path: str | os.PathLike[str], on_progress: Callable[[int, int], None] | None = None
) -> Iterator[tuple[Place, Any]]:
    """Yields the values of a file, or of the conversations in a zip archive, each with its place.

    `on_progress` is called with the bytes that were read, and with all. Raises ImportLineError for what is no JSON, and where
    the file is cut off, and ConfigError for an archive that cannot be read.
    """
    items = 0
    with Path(path).open("rb") as raw:
        try:
            for member, before, total in _members(raw, Path(path)):
                place = Place(0)
                with io.TextIOWrapper(member, encoding="utf-8-sig", newline="") as file:
                    for place, value in text_values(file, items):
                        if on_progress is not None:
                            on_progress(before + member.tell(), total)
                        yield place, value
                items = place if place.unit == "item" else 0
        except _UNREADABLE as error:
            raise ConfigError(f"{path} is no readable zip archive ({error}): export or unpack it again") from None


def _members(raw: IO[bytes], path: Path) -> Iterator[tuple[IO[bytes], int, int]]:
    """Yields the file, or the files of its archive that hold conversations, each with the bytes before it and those of all."""
    head = raw.read(4)
    size = raw.seek(0, io.SEEK_END)
    raw.seek(0)
    if head == _ZSTD:
        raise ConfigError(f"{path} is compressed with zstd: run `zstd -d {path.name}`, and import what it writes")
    if not head.startswith(b"PK"):
        yield raw, 0, size
        return
    with zipfile.ZipFile(raw) as archive:
        members = sorted(
            (m for m in archive.infolist() if _MEMBER.fullmatch(m.filename.rpartition("/")[2])),
            key=lambda m: m.filename,
        )
        if not members:
            raise ConfigError(
                f"{path} has no conversations.json and no conversations-000.json (it has "
                f"{', '.join(archive.namelist()[:5]) or 'no file'}): unpack it, and import the file with the conversations"
            )
        before, total = 0, sum(m.file_size for m in members)
        for member in members:
            with archive.open(member) as inner:
                for file, done, _ in _members(inner, path / member.filename):
                    yield file, before + done, total
            before += member.file_size


def text_values(file: TextIO, before: int = 0) -> Iterator[tuple[Place, Any]]:
    """Does the same as `file_values` for an open file; items are counted from `before` on."""
    text, at, line, count, unit, ended = "", 0, 1, 0, "line", False
    while True:
        start = _GAP.match(text, at).end()  # type: ignore[union-attr]
        line, at = line + text.count("\n", at, start), start
        place = Place(before + count + 1 if unit == "item" else line)
        place.unit = "item" if unit == "item" else "line"
        problem, cut = "the file ends before its array does: it is cut off", True
        if at < len(text):
            if unit == "line" and not count and text[at] == "[":
                unit, at = "item", at + 1
                continue
            if unit == "item" and text[at] == "]":
                unit, at = "end", at + 1
                continue
            if unit == "end":
                raise ImportLineError(line, "there is more behind the file's array: give one array, or a line for each")
            value, end, problem, cut = _decoded(text, at, ended=ended)
            if not problem:
                yield place, value
                line, at, count = line + text.count("\n", at, end), end, count + 1
                continue
        elif ended and unit != "item":
            return
        if ended or not cut:
            raise ImportLineError(place, problem, place.unit)
        try:
            chunk = file.read(max(_CHUNK, len(text) - at))
        except UnicodeDecodeError as error:
            raise ImportLineError(place, f"the file is not UTF-8 text ({error.reason})", place.unit) from None
        text, at, ended = text[at:] + chunk, 0, not chunk


def _decoded(text: str, at: int, *, ended: bool) -> tuple[Any, int, str, bool]:
    """Returns the value at a place, its end, and what is wrong, "" for nothing; True when more text may complete it."""
    try:
        value, end = _decode(text, at)
    except json.JSONDecodeError as error:
        cut = error.msg.startswith("Unterminated string") or error.pos >= len(text) - _NEAR_END
        problem = f"it is not JSON ({error.msg} at character {error.pos - at})"
        if cut and ended:
            problem = "the file is cut off within it"
        return None, at, f"{problem}: {text[at : at + 60]!r}", cut
    except (RecursionError, ValueError) as error:  # a number with too many digits
        return None, at, json_problem(error), False
    unsure = end == len(text) and not ended and not is_a(value, (dict, list, str))  # a number may go on
    return value, end, "it is cut off" if unsure else "", unsure
