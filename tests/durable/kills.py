"""What durable turns are tested with: a model with a tool call a turn, processes that are killed, and what is compared."""

from __future__ import annotations

import json
import random
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ctxfold import AgentContext, SqlStore
from ctxfold.history.records import Compacted, MessageAdded, SessionKey, TurnClosed
from ctxfold.testing import Scripted, ScriptedCall
from tests.support.processes import import_once, start
from tests.support.summaries import asks_on_live_prefix

__all__ = [
    "TURNS",
    "Found",
    "Killed",
    "answer_of",
    "found",
    "killed_until_done",
    "play",
    "question",
    "read",
]

import_once(__name__)

TURNS, A_TURN = 5, 7  # messages: a question, two rounds of tools with three calls, the answer


def question(number: int) -> str:
    return f"Q{number:02}: what does file {number} say? " + "Please look. " * 12


def read(name: str) -> str:
    return f"File {name} says K{int(name) * 37:04}. " + f"More of file {name}. " * 60


def answer_of(number: int) -> str:
    return f"File {number:02} says K{number * 37:04}. " + "It is a long story. " * 10


def play(body: Any) -> Any:
    """Answers a question after two rounds of tools, the first of two calls; sums up in one line."""
    if asks_on_live_prefix(body) or not body.get("tools"):
        return Scripted("They asked about files.")
    time.sleep(0.02)
    number = int(re.findall(r"Q(\d\d)", str([m["content"] for m in body["messages"] if m["role"] == "user"]))[-1])
    # passages and notes of the context may stand behind the results
    told = [m for m in body["messages"] if m["role"] != "system" and not str(m["content"]).startswith("[A note")]
    calls = next(m["tool_calls"] for m in reversed(told) if m.get("tool_calls")) if told[-1]["role"] == "tool" else ()
    if len(calls) == 1:
        return Scripted(answer_of(number))
    numbers = (number + TURNS,) if calls else (number, number + 1)
    if any(t["function"]["name"] == "read_log" for t in body["tools"]):
        return Scripted(tool_calls=tuple(ScriptedCall("read_log", json.dumps({"hour": n})) for n in numbers))
    return Scripted(tool_calls=tuple(ScriptedCall("read_file", json.dumps({"name": f"{n:02}"})) for n in numbers))


def killed_until_done(
    work: Callable[..., None],
    *arguments: Any,
    kills: int,
    seconds: float,
) -> int:
    """Starts the work again each time after it was killed; returns how often that was.

    A process is killed within `seconds` of its start, if it still runs then.
    """
    chance, count = random.Random(str(arguments[-1])), 0
    while True:
        process = start(work, *arguments)
        process.join(chance.uniform(0.0, seconds) if count < kills else 120.0)
        if process.exitcode is not None:
            assert process.exitcode == 0
            return count
        process.kill()
        process.join()
        count += 1
        assert count <= kills, "the work does not end"


@dataclass(frozen=True, slots=True)
class Found:
    """What may not differ between sessions: the conversation, the window, and the spans that summaries replaced."""

    messages: list[tuple[str, str]]
    window: list[tuple[str, str]]
    covered: list[list[str]]
    live: list[str]  # the messages of the conversation that the window shows, as they were said
    repeated_ids: int = 0
    repeated_spans: int = 0

    def against(self, reference: Found) -> tuple[int, int, int]:
        """Returns how many messages are lost, there twice, and out of order."""
        mine, its = Counter(self.messages), Counter(reference.messages)
        common = [m for m in self.messages if m in its]
        moved = 0 if (mine != its) else sum(a != b for a, b in zip(common, reference.messages, strict=True))
        return (its - mine).total(), (mine - its).total() + self.repeated_ids, moved


@dataclass(slots=True)
class Killed:
    """What is left of sessions whose processes were killed, beside one whose were not."""

    reference: Found
    kills: int = 0
    sessions: list[Found] = field(default_factory=list)

    def check(self) -> None:
        """Raises AssertionError unless each session is as one that was never killed."""
        for it in (self.reference, *self.sessions):
            _check(it, self.reference)

    def counts(self) -> tuple[int, int, int]:
        """Returns how many messages are lost, there twice, and out of order, in all the sessions."""
        lost, doubled, moved = zip(*(it.against(self.reference) for it in self.sessions), strict=True)
        return sum(lost), sum(doubled), sum(moved)


def found(store_url: str, session: str, window: int = 4_000) -> Found:
    """Returns what is in the store of a session."""
    with (
        SqlStore(store_url) as store,
        AgentContext(store=store, session_id=session, context_window=window, create=False) as ctx,
    ):
        shown = [m for m in ctx.window().messages if m.role != "system"]
        records = store.read(SessionKey("default", session))
        discarded = {r.turn_id for r in records if isinstance(r.body, TurnClosed) and r.body.status == "discarded"}
        # the node that a checkpoint names begins its turn anew
        added = [r.body.message.id for r in records if isinstance(r.body, MessageAdded) and r.turn_id not in discarded]
        covered = [r.body.covered for r in records if isinstance(r.body, Compacted)]
        texts = {r.body.message.id: r.body.message.text for r in records if isinstance(r.body, MessageAdded)}
        every = [i for ids in covered for i in ids if i in texts]
        return Found(
            messages=[(m.role, m.text) for m in ctx.messages() if m.role != "system"],
            window=[(m.role, m.text) for m in shown],
            covered=[[texts[i] for i in ids if i in texts] for ids in covered],
            live=[texts[m.id] for m in shown if m.id in texts],
            repeated_ids=len(added) - len(set(added)),
            repeated_spans=len(every) - len(set(every)),  # summarised twice
        )


def _check(it: Found, reference: Found) -> None:
    """Raises AssertionError unless the session has the messages of one that was never killed, each once.

    Each has to be in the window or covered by one summary. Windows need not be the same: where a process ended while it held a
    summary's lease, older messages become facts without the model's words, and where it ended before it made room, or before it
    noted what a reply teaches about the count of tokens, a compaction comes at another moment.
    """
    assert it.messages == reference.messages
    assert it.repeated_ids == it.repeated_spans == 0
    texts = [text for texts in it.covered for text in texts] + it.live
    assert sorted(text for _, text in it.messages) == sorted(texts)
