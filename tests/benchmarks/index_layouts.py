"""Five layouts of the search index on the same messages: their size, what writing them costs, and what a question costs."""

from __future__ import annotations

import json
import random
import sqlite3
import struct
import tempfile
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from ctxfold import Document, MessageCounter, SessionKey, SqlStore
from ctxfold.effects import run as run_flow
from ctxfold.history.terms import term_counts
from ctxfold.protocols import Ports
from ctxfold.retrieval.bm25 import ranked
from tests.benchmarks.data import folder
from tests.benchmarks.sheets import Cell, Sheet
from tests.support.driven import COUNTER

__all__ = ["run", "texts"]

BATCH = 20  # messages of one compaction
JOINED = 8  # lines of a chat that make one message of some 560 characters
QUESTIONS = 100


class Layout(Protocol):
    """An index of documents by session."""

    def add(self, session: str, documents: Sequence[Document]) -> None: ...

    def ask(self, session: str, terms: Sequence[str]) -> object: ...

    def size(self) -> int: ...


class Rows:
    """The store itself: leaves, or with `old` a row a hit, as format 2 has it."""

    def __init__(self, path: Path, *, old: bool) -> None:
        self.path = path
        SqlStore(f"sqlite:///{path}").close()
        if old:
            with closing(sqlite3.connect(path, isolation_level=None)) as file:
                file.execute("UPDATE ctxfold_meta SET value = '2'")
        self.store = SqlStore(f"sqlite:///{path}", upgrade=not old)

    def add(self, session: str, documents: Sequence[Document]) -> None:
        self.store.append(SessionKey("owner", session), (), documents=documents)

    def ask(self, session: str, terms: Sequence[str]) -> object:
        return run_flow(ranked(SessionKey("owner", session), terms), Ports(self.store, MessageCounter(COUNTER)))

    def size(self) -> int:
        with closing(sqlite3.connect(self.path)) as file:
            return _size(file, "ctxfold_terms", "ctxfold_postings")


class Plain:
    """A table of a layout that is compared, in a file of its own."""

    def __init__(self, path: Path, table: str) -> None:
        self.file = sqlite3.connect(path, isolation_level=None)
        self.file.execute("PRAGMA journal_mode=WAL")
        self.file.execute("PRAGMA cache_size=-32000")
        self.file.execute(table)

    def size(self) -> int:
        return _size(self.file, "t", "t_data", "t_idx", "t_docsize")


class Lists(Plain):
    """A row for each term of a session, with all its hits: (seq, count, length)."""

    def __init__(self, path: Path) -> None:
        key = "PRIMARY KEY (owner, session, term)"
        super().__init__(path, f"CREATE TABLE t (owner, session, term, data BLOB, {key}) WITHOUT ROWID")

    def add(self, session: str, documents: Sequence[Document]) -> None:
        self.file.execute("BEGIN IMMEDIATE")
        new: dict[str, bytes] = {}
        for d in documents:
            for term, count in d.terms.items():
                new[term] = new.get(term, b"") + struct.pack("<IBH", d.seq, min(count, 255), d.length)
        rows = [("owner", session, term, data) for term, data in new.items()]
        change = "DO UPDATE SET data = CAST(data || excluded.data AS BLOB)"
        self.file.executemany(f"INSERT INTO t VALUES (?, ?, ?, ?) ON CONFLICT {change}", rows)
        self.file.execute("COMMIT")

    def ask(self, session: str, terms: Sequence[str]) -> object:
        read = "SELECT data FROM t WHERE owner = 'owner' AND session = ? AND term = ?"
        rows = [self.file.execute(read, (session, term)).fetchone() for term in terms]
        return [list(struct.iter_unpack("<IBH", row[0])) for row in rows if row]


class Messages(Plain):
    """A row for each message, with its terms and their counts, compressed: a question reads all rows of the session."""

    def __init__(self, path: Path) -> None:
        key = "PRIMARY KEY (owner, session, seq)"
        super().__init__(path, f"CREATE TABLE t (owner, session, seq, length, data BLOB, {key}) WITHOUT ROWID")

    def add(self, session: str, documents: Sequence[Document]) -> None:
        self.file.execute("BEGIN IMMEDIATE")
        for d in documents:
            packed = zlib.compress(json.dumps(d.terms, ensure_ascii=False).encode())
            self.file.execute("INSERT INTO t VALUES ('owner', ?, ?, ?, ?)", (session, d.seq, d.length, packed))
        self.file.execute("COMMIT")

    def ask(self, session: str, terms: Sequence[str]) -> object:
        hits: list[tuple[int, int]] = []
        for seq, data in self.file.execute("SELECT seq, data FROM t WHERE owner = 'owner' AND session = ?", (session,)):
            counts = json.loads(zlib.decompress(data))
            hits += [(seq, counts[term]) for term in terms if term in counts]
        return hits


class FullText(Plain):
    """SQLite's FTS5 without the texts; the session is a term of each message. It ranks by all sessions together."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "CREATE VIRTUAL TABLE t USING fts5(words, content='')")

    def add(self, session: str, documents: Sequence[Document]) -> None:
        self.file.execute("BEGIN IMMEDIATE")
        for d in documents:
            words = " ".join(f"{term} " * count for term, count in d.terms.items())
            self.file.execute("INSERT INTO t (words) VALUES (?)", (f"zz{session} {words}",))
        self.file.execute("COMMIT")

    def ask(self, session: str, terms: Sequence[str]) -> object:
        any_term = " OR ".join('"' + term.replace('"', "") + '"' for term in terms)
        match = f'"zz{session}" AND ({any_term})'
        return self.file.execute("SELECT rowid FROM t WHERE t MATCH ? ORDER BY rank LIMIT 20", (match,)).fetchall()


LAYOUTS: dict[str, Callable[[Path], Layout]] = {
    "a row a hit (format 2)": lambda path: Rows(path, old=True),
    "a row a term and session": Lists,
    "a row a message": Messages,
    "FTS5 without texts": FullText,
    "leaves (format 3)": lambda path: Rows(path, old=False),
}


def run(*, quick: bool = False) -> list[Sheet]:
    """One table for each shape of the same number of messages: many short sessions, and one long one."""
    size = 1_000 if quick else 20_000
    return [_sheet(sessions, size // sessions) for sessions in (size // 100, 1)]


def _sheet(sessions: int, each: int) -> Sheet:
    counts = [term_counts(text) for text in texts()]
    rng = random.Random(1)
    questions = [rng.sample(sorted(found), min(8, len(found))) for found in rng.choices(counts, k=QUESTIONS)]
    rows: list[tuple[Cell, ...]] = []
    for name, make in LAYOUTS.items():
        with tempfile.TemporaryDirectory() as place:
            layout: Any = make(Path(place) / "a.db")
            start_s = time.process_time()
            for session in range(sessions):
                for first in range(0, each, BATCH):
                    found = [
                        (n, counts[(session * each + n) % len(counts)]) for n in range(first, min(each, first + BATCH))
                    ]
                    documents = [Document(2 * n + 1, terms, sum(terms.values())) for n, terms in found]
                    layout.add(f"session-{session:032d}", documents)
            write_ms = (time.process_time() - start_s) / (sessions * each) * 1e3
            asked_s = [_asked(layout, f"session-{n % sessions:032d}", terms) for n, terms in enumerate(questions)]
            rows.append((name, layout.size() // (sessions * each), write_ms, median(asked_s) * 1e3))
            (layout.store if isinstance(layout, Rows) else layout.file).close()
    return Sheet(
        f"Layouts of the search index on SQLite: {sessions:,} sessions of {each:,} messages with 44 terms each",
        ("layout", "bytes/message", "CPU ms/message written", "ms/question of 8 terms"),
        tuple(rows),
        "The last two columns depend on the machine; compare rows. Only the rows of the store itself include ranking.",
    )


def _asked(layout: Layout, session: str, terms: Sequence[str]) -> float:
    start_s = time.perf_counter()
    layout.ask(session, terms)
    return time.perf_counter() - start_s


def texts() -> list[str]:
    """Lines of public chats and meetings, some of them in one message; DataMissingError where they are not there."""
    lines: list[str] = []
    for name in ("ubuntu_irc", "qmsum", "molweni"):
        for conversation in json.loads((folder(name) / "conversations.json").read_text(encoding="utf-8")):
            lines += [message["text"] for message in conversation["messages"] if message["text"]]
    return [" ".join(lines[at : at + JOINED]) for at in range(0, len(lines), JOINED)]


def _size(file: sqlite3.Connection, *tables: str) -> int:
    marks = ", ".join("?" * len(tables))
    (size,) = file.execute(f"SELECT SUM(pgsize) FROM dbstat WHERE name IN ({marks})", tables).fetchone()
    return int(size)
