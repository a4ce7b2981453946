"""Builds the golden store of format version 2: that of version 1, the kinds of records that came since, and memory items.

It was written when that format was released, and is never changed: later versions of ctxfold have to open it.
"""

from __future__ import annotations

from ctxfold import Draft, MemoryItem, SqlStore, Usage, tool_result, user
from ctxfold.history.records import (
    NOTICE,
    Calibrated,
    Compacted,
    Erased,
    Forked,
    GoalSet,
    MessageAdded,
    MessageInserted,
    OutputsSummarised,
    Subgoal,
    TurnClosed,
)
from ctxfold.history.sections import Placed, SectionNote, section
from tests.golden import build_v1

FOLDER = build_v1.FOLDER
KEY = build_v1.KEY

_NOTE = SectionNote("documents", (Placed("0123456789abcdef", "a file", "item-1", 0.5),), "head")
DRAFTS = (
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


def fill(store: SqlStore) -> None:
    """Write the golden sessions and items."""
    build_v1.fill(store)
    store.append(KEY, DRAFTS)
    for item in ITEMS:
        store.remember(KEY.owner, [item])
    store.forget(KEY.owner, ["i4"])
