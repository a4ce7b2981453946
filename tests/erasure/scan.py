"""Where in a store a text still stands: in the bytes of SQLite's files, in every table of PostgreSQL, in a memory store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg

from ctxfold import MemoryStore, SqlStore


def places_of(text: str, store: Any) -> list[str]:
    """Names of the files, tables or sessions that hold the text, in whatever case."""
    if isinstance(store, MemoryStore):
        everything = {**{str(key): _shown(log) for key, log in store._logs.items()}, "items": repr(store._items)}
        return [place for place, held in everything.items() if text.lower() in held.lower()]
    assert isinstance(store, SqlStore)
    url = str(store._engine.url.render_as_string(hide_password=False))
    return _in_files(text, url) if url.startswith("sqlite") else _in_tables(text, url.replace("+psycopg", ""))


def _shown(log: Any) -> str:
    return repr((log.records, log.seq_by_id, log.fingerprints, log.terms))


def _in_files(text: str, url: str) -> list[str]:
    path = Path(url.removeprefix("sqlite:///"))
    files = sorted(path.parent.glob(f"{path.name}*"))
    assert path in files
    return [f.name for f in files if text.lower().encode() in _bytes_of(f).lower()]


def _bytes_of(file: Path) -> bytes:
    """Returns what the file holds: nothing, where a writer in the background has just ended and removed its journal."""
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return b""


def _in_tables(text: str, url: str) -> list[str]:
    with psycopg.connect(url) as server:
        names = [r[0] for r in server.execute("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()")]
        assert len(names) >= 5
        found: list[str] = []
        for name in names:
            rows = server.execute(f'SELECT 1 FROM "{name}" t WHERE t::text ILIKE %s LIMIT 1'.encode(), (f"%{text}%",))
            if rows.fetchone() is not None:
                found.append(name)
        return found
