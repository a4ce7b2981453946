"""A session as files: messages one a line, and the whole of it as one versioned file. Each method has an async form."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from os import PathLike
from typing import Any, Self

from ctxfold import editing
from ctxfold.closing import Closing
from ctxfold.connect import LineCodec
from ctxfold.erasing import SessionErasing
from ctxfold.flow import Call, Flow, in_thread
from ctxfold.given import name_or_own
from ctxfold.intake import import_jsonl
from ctxfold.jsonl import write_lines
from ctxfold.messages import Message
from ctxfold.ports import ContextBackend, Store
from ctxfold.transfer import Zone, exported, load_log, parse_session, session_text, stored_policy, whole_log

__all__ = ["SessionFiles"]

Path = str | PathLike[str]


class SessionFiles(SessionErasing, Closing):
    """What a session's handle can do with files."""

    def export_jsonl(self, path: Path, *, zone: Zone = "all", native: bool = False) -> int:
        """Write messages, one a line, to a file that appears only when whole; how many.

        "all" is every version ever stored, with the log beside, so that `import_jsonl` gives the same session back; other
        zones are what the model sees. With `native` each line is as the provider of its model takes it.
        """
        return self._run(self._exported(path, zone, native))

    async def aexport_jsonl(self, path: Path, *, zone: Zone = "all", native: bool = False) -> int:
        return await self._arun(self._exported(path, zone, native))

    def _exported(self, path: Path, zone: Zone, native: bool) -> Flow[int]:
        journal = yield from self._journal()
        lines = yield from exported(journal, LineCodec(self.backend), zone=zone, native=native)
        return (yield from Call(partial(write_lines, path, lines)))

    def import_jsonl(self, path: Path) -> int:
        """Take in the messages of a file; how many were new. ImportLineError names a bad line, and nothing is changed.

        A file of zone "all" makes the whole session anew: SessionExistsError unless this one is empty.
        """
        return len(self._run(self._imported(path)))

    async def aimport_jsonl(self, path: Path) -> int:
        return len(await self._arun(self._imported(path)))

    def _imported(self, path: Path) -> Flow[Sequence[Message]]:
        return (yield from import_jsonl(self._engine, self._key, path, self._journal(), LineCodec(self.backend)))

    def save_snapshot(self, path: Path) -> None:
        """Write the whole session, messages, pins, summaries and rules, to one versioned file that appears only when whole."""
        self._run(self._saved(path))

    async def asave_snapshot(self, path: Path) -> None:
        await self._arun(self._saved(path))

    def _saved(self, path: Path) -> Flow[None]:
        journal = yield from self._journal()
        records = yield from whole_log(journal)
        yield from Call(lambda: write_lines(path, [session_text(self._key, records)]))

    @classmethod
    def load_snapshot(
        cls,
        path: Path,
        backend: ContextBackend | None = None,
        *,
        session: str | None = None,
        store: str | Store | None = None,
        **settings: Any,
    ) -> Self:
        """The session of a file, under its old name if none is given, with its rules where `settings` say nothing else.

        StoreFormatError for another version, StoreCorruptError for a damaged file, SessionExistsError for a name in use.
        """
        key, records = parse_session(path)
        rules: dict[str, Any] = {**stored_policy(records), **settings}
        made: Any = cls
        name = name_or_own("session name", session, key.session)
        context: Self = made(backend, session=name, store=store, **rules)
        try:
            context._run(load_log(context._engine, context._key, [(r.seq, r) for r in records]))
            context._run(context._edit(editing.reopen))
        except BaseException:
            context.close()
            raise
        return context

    @classmethod
    async def aload_snapshot(
        cls,
        path: Path,
        backend: ContextBackend | None = None,
        *,
        session: str | None = None,
        store: str | Store | None = None,
        **settings: Any,
    ) -> Self:
        return await in_thread(partial(cls.load_snapshot, path, backend, session=session, store=store, **settings))
