"""Builds the golden store: every kind of record, memory items, and text that databases trip over.

`python -m tests.golden.stored` writes `stored_rows.sql` and `stored_schema_*.sql`. They are written for a release and never changed
afterwards: later versions of ctxfold have to open them.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Sequence
from pathlib import Path

from sqlalchemy import Dialect
from sqlalchemy.dialects import postgresql, sqlite

from ctxfold import (
    MediaPart,
    Message,
    ReasoningPart,
    SqlStore,
    TextPart,
    ToolCallPart,
    Usage,
    assistant,
    system,
    tool_result,
    user,
)
from ctxfold.history.memory_items import MemoryItem
from ctxfold.history.records import (
    NOTICE,
    Calibrated,
    Cleared,
    Compacted,
    Draft,
    Erased,
    Forked,
    GoalSet,
    MessageAdded,
    MessageInserted,
    MessageRemoved,
    MessageReplaced,
    OutputsSummarised,
    Pinned,
    PolicyChanged,
    Restored,
    SessionKey,
    SnapshotTaken,
    Subgoal,
    TurnClosed,
    Undone,
    Unpinned,
)
from ctxfold.history.view import Placed, SectionNote, section
from ctxfold.messages import Opaque
from ctxfold.protocols import Document
from ctxfold.stores.sql_schema import create_tables

FOLDER = Path(__file__).parent
TABLES = (
    "ctxfold_meta",
    "ctxfold_sessions",
    "ctxfold_records",
    "ctxfold_memory",
    "ctxfold_postings",
    "ctxfold_vectors",
)
DIALECTS: dict[str, type[Dialect]] = {"sqlite": sqlite.dialect, "postgresql": postgresql.dialect}
KEY = SessionKey("default", "golden 'één' 会話")
OTHER = SessionKey("owner-2", "golden 'één' 会話")

_CALL = ToolCallPart("call-1", "search", '{"q": "50 % \\"off\\""}', extra='{"index":0}')
_REPLY = Message(
    "m4",
    "assistant",
    (
        ReasoningPart("think", "sig==", '[{"type":"thinking"}]'),
        TextPart("looking"),
        _CALL,
        Opaque("langchain", '{"a":1}'),
    ),
    name="agent",
    model="model-1",
    usage=Usage(100, 20, 50, 10, 5),
    finish_reason="tool_calls",
)
_PICTURE = Message(
    "m3", "user", (TextPart("see"), MediaPart("image", '{"url":"https://example.org/a.png"}', "image/png"))
)

_NOTE = SectionNote("documents", (Placed("0123456789abcdef", "a file", "item-1", 0.5),), "head")
DRAFTS = (
    Draft("r01", PolicyChanged('{"keep_last":8}', "tiktoken:o200k_base"), None, 1700000000.25),
    Draft("r02", MessageAdded(system("Be brief.", id="m1")), None, 1700000001.0),
    Draft("r03", MessageAdded(user("NUL \0, emoji 🧵, 中文, \u2028, quote ' and \\ end", id="m2")), "t1", 1700000002.0),
    Draft("r04", MessageAdded(_PICTURE), "t1", 1700000003.0),
    Draft("r05", MessageAdded(_REPLY), "t1", 1700000004.0),
    Draft(
        "r06",
        MessageAdded(
            tool_result("call-1", "long " * 40, id="m5", name="search", is_error=True),
            shown=tool_result("call-1", "long ... (m5)", id="m5", name="search", is_error=True),
        ),
        "t1",
        1700000005.0,
    ),
    Draft("r07", MessageAdded(assistant("done", id="m6")), "t1", 1700000006.0),
    Draft("r08", TurnClosed("completed"), "t1", 1700000007.0),
    Draft("r09", MessageInserted(user("earlier", id="m7"), before="m2"), None, 1700000008.0),
    Draft("r10", MessageReplaced(user("earlier, corrected", id="m7")), None, 1700000009.0),
    Draft("r11", Pinned(("m2", "m7")), None, 1700000010.0),
    Draft("r12", Unpinned(("m7",)), None, 1700000011.0),
    Draft("r13", MessageRemoved(("m7",)), None, 1700000012.0),
    Draft(
        "r14",
        Compacted(
            ("m2", "m3"),
            Message("s1", "user", (TextPart("summary"),), kind="summary"),
            (tool_result("call-1", "[cleared]", id="m5"),),
            "summarize",
            "trigger",
            "rung-1",
            900,
            300,
        ),
        None,
        1700000013.0,
    ),
    Draft("r15", SnapshotTaken('{"ids":["m1","s1","m4","m5","m6"]}'), None, 1700000014.0),
    Draft("r16", Undone("r14"), None, 1700000015.0),
    Draft("r17", Restored(user("back again", id="m2")), None, 1700000016.0),
    Draft("r18", Cleared(), None, 1700000017.0),
    Draft("r19", SnapshotTaken("{}"), None, 1700000018.0),
    Draft("r20", TurnClosed("discarded"), "t2", 1700000019.0),
    Draft("r21", GoalSet("find it", (Subgoal("look", 21, True), Subgoal("", 22)), ("goal",)), None, 1700000020.0),
    Draft("r22", OutputsSummarised((tool_result("call-1", "in short", id="m5"),), 1, Usage(9, 2)), None, 1700000021.0),
    Draft("r23", Calibrated("model-1", 1.25, 0.03, 4), None, 1700000022.0),
    Draft("r24", MessageInserted(section("x1", "page one", _NOTE), before=None), None, 1700000023.0),
    Draft("m:m8", Erased(("m8",), Usage(7, 1)), "t3", 1700000024.0),
    Draft("c:t3", TurnClosed("aborted"), "t3", 1700000025.0),
    Draft("r25", Compacted(("m9",), None, within=True), None, 1700000026.0),
    Draft(f"{NOTICE}r26", Erased(("m8", "x1")), None, 1700000027.0),
    Draft(f"forked:{KEY.session}", Forked(("before that", "and before")), None, 1700000028.0),
    Draft("m:m10", MessageAdded(user("go on", id="m10")), None, 1700000029.0),
)
ITEMS = (
    MemoryItem("i1", "facts", "the locker is on the left", key="locker", created_s=1700000000.0),
    MemoryItem(
        "i2", "facts", "the locker is on the right", "locker", KEY.session, False, 0.5, ("m2",), created_s=1700000001.0
    ),
    MemoryItem("i3", "facts", "the locker is 47-B", key="locker", created_s=1700000002.0),
    MemoryItem("i4", "graph", "Ann likes tea", data=(("object", "tea"), ("subject", "Ann")), created_s=1700000003.0),
)
DOCUMENTS = (Document(3, {"emoji": 1, "中文": 2}, 7), Document(6, {"long": 40}, 40))


def fill(store: SqlStore) -> None:
    """Write the golden sessions and items."""
    store.append(KEY, DRAFTS[:8])
    store.append(KEY, DRAFTS[8:20], known=8, expect=8, documents=DOCUMENTS)
    store.append(OTHER, DRAFTS[1:3])
    store.append(KEY, DRAFTS[20:])
    for item in ITEMS:
        store.remember(KEY.owner, [item])
    store.forget(KEY.owner, ["i4"])


def rows(path: Path, tables: Sequence[str] = TABLES) -> str:
    """All rows of a SQLite store as INSERT statements that both databases take."""
    lines: list[str] = []
    connection = sqlite3.connect(path)
    try:
        for table in tables:
            for row in connection.execute(f"SELECT * FROM {table}"):
                lines.append(f"INSERT INTO {table} VALUES ({', '.join(map(_literal, row))});\n")
    finally:
        connection.close()
    return "".join(lines)


def _literal(value: object) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value)


def build() -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "golden.db"
        with SqlStore(f"sqlite:///{path}") as store:
            fill(store)
        return rows(path)


class _Written:
    """Takes statements down instead of a database."""

    def __init__(self) -> None:
        self.statements: list[str] = []

    def execute(self, sql: str, _parameters: object = (), /) -> None:
        self.statements.append(sql.strip())


def schema(name: str) -> str:
    """The tables and indexes of a new store, as statements."""
    written = _Written()
    create_tables(written, DIALECTS[name]())  # type: ignore[arg-type]
    kept = (s for s in written.statements if s.startswith("CREATE"))
    return "".join(f"{statement};\n" for statement in kept)


if __name__ == "__main__":
    (FOLDER / "stored_rows.sql").write_text(build(), encoding="utf-8")
    for dialect in DIALECTS:
        (FOLDER / f"stored_schema_{dialect}.sql").write_text(schema(dialect), encoding="utf-8")
