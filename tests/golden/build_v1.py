"""Builds the golden store of format version 1: every kind of record, and text that databases trip over.

`python -m tests.golden.build_v1` writes `v1_rows.sql`. It is written once per format and never changed afterwards:
later versions of ctxfold have to open it.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ctxfold import (
    Document,
    Draft,
    MediaPart,
    Message,
    Opaque,
    ReasoningPart,
    SessionKey,
    SqlStore,
    TextPart,
    ToolCallPart,
    Usage,
    assistant,
    system,
    tool_result,
    user,
)
from ctxfold.history.records import (
    Cleared,
    Compacted,
    MessageAdded,
    MessageInserted,
    MessageRemoved,
    MessageReplaced,
    Pinned,
    PolicyChanged,
    Restored,
    SnapshotTaken,
    TurnClosed,
    Undone,
    Unpinned,
)

FOLDER = Path(__file__).parent
TABLES = ("ctxfold_meta", "ctxfold_sessions", "ctxfold_records", "ctxfold_terms")
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
)
DOCUMENTS = (Document(3, {"emoji": 1, "中文": 2}, 7), Document(6, {"long": 40}, 40))


def fill(store: SqlStore) -> None:
    """Write the golden sessions."""
    store.append(KEY, DRAFTS[:8])
    store.append(KEY, DRAFTS[8:], known=8, expect=8, documents=DOCUMENTS)
    store.append(OTHER, DRAFTS[1:3])


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


if __name__ == "__main__":
    (FOLDER / "v1_rows.sql").write_text(build(), encoding="utf-8")
