"""Reads and writes files of lines, whole or not at all."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ctxfold.errors import StoreUnavailableError

__all__ = ["read_lines", "write_lines"]

_NO_ROOM = (errno.ENOSPC, errno.EFBIG, errno.EIO, getattr(errno, "EDQUOT", errno.ENOSPC))


def write_lines(path: str | os.PathLike[str], lines: Sequence[str]) -> int:
    """Write the file beside its place and move it there, so that it is never half there.

    StoreUnavailableError, which is an OSError, when the disk has no room.
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(
            errno.ENOENT, os.strerror(errno.ENOENT), str(target)
        )  # not the name that it has meanwhile
    name = ""
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}-")
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.writelines(f"{line}\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(target)
    except BaseException as error:
        with suppress(OSError):
            Path(name).unlink()
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            raise StoreUnavailableError(f"cannot write {target} ({error.strerror}): check the free space") from None
        raise
    return len(lines)


def read_lines(path: str | os.PathLike[str]) -> list[tuple[int, bytes]]:
    """The lines that are not empty, each with its number; only newlines end a line, so U+2028 in a text does not."""
    lines = Path(path).read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    return [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
