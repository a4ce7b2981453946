"""Excerpts of large tool outputs, and arguments of calls that give way: what a model still sees, and how much is sent."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ctxfold import AgentContext, Message, ScriptedBackend, assistant, tool_result
from ctxfold.compaction.excerpts import Focus, excerpt_of
from ctxfold.messages import ToolCallPart
from tests.benchmarks.sheets import Cell, Sheet
from tests.benchmarks.tool_texts import REPORTED_SEEDS, ToolText, tool_texts

__all__ = ["Seen", "Writes", "excerpt_in", "run", "seen", "writes"]

WINDOW = 16_000
WRITES_WINDOW = 32_000
RUNS = ((12, 20_000), (40, 6_000))


@dataclass(frozen=True, slots=True)
class Seen:
    """What an excerpt holds of an output: the error line, its place, and the answer to what the user asked."""

    text: ToolText
    excerpt: str
    error: bool
    place: bool
    answer: bool
    ms: float


def _round(text: ToolText, name: str) -> tuple[Message, Message]:
    call = ToolCallPart(f"{name}-call", text.tool, text.arguments)
    return assistant("", id=f"{name}-a", calls=[call]), tool_result(call.id, text.text, id=f"{name}-r")


def excerpt_in(context: AgentContext, backend: ScriptedBackend, text: ToolText, name: str) -> str:
    """Returns what the model sees of the output when its tool has just been run for the question."""
    _, result = _round(text, name)
    context.send(text.question)
    context.send(result)
    request = backend.requests[-1]
    return next(m.text for m in request.messages if m.id == f"{name}-r")


def seen(texts: Sequence[ToolText], *, together: bool = False, window: int = WINDOW) -> list[Seen]:
    """Every output in a session of its own, or all of them one after the other in one session."""
    found: list[Seen] = []
    replies: list[Any] = [x for n, t in enumerate(texts) for x in (_round(t, f"t{n}")[0], "Done.")]
    backend = ScriptedBackend(replies)
    # a summary would be asked of the agent's model
    context = AgentContext(backend, context_window=window, summarizer=_summarizer())
    for number, text in enumerate(texts):
        if not together:
            backend = ScriptedBackend(replies[2 * number : 2 * number + 2])
            context = AgentContext(backend, context_window=window, summarizer=_summarizer())
        shown = excerpt_in(context, backend, text, f"t{number}")
        start = time.process_time()
        excerpt_of(text.text, reference="#1", max_chars=len(shown), focus=Focus(text.question, text.arguments))
        ms = 1_000 * (time.process_time() - start)
        found.append(Seen(text, shown, text.error in shown, text.place in shown, text.answer in shown, ms))
    return found


def _summarizer() -> ScriptedBackend:
    return ScriptedBackend(["The agent has run its tools, and every one of them has answered."] * 50)


@dataclass(frozen=True, slots=True)
class Writes:
    """A run of calls with large arguments: characters of all requests, summaries, calls whose arguments were lost, epochs."""

    calls: int
    size: int
    chars: int
    summaries: int
    lost: int
    compactions: int


def _file(number: int, size: int) -> str:
    lines = (
        f"def function_{number}_{i}(value: int) -> int:\n    return value * {number * 31 + i}\n"
        for i in range(size // 50)
    )
    return "\n".join(lines)[:size]


def writes(calls: int, size: int, *, in_one_turn: bool = True) -> Writes:
    """An agent that writes one file after the other; the requests as the text of their messages and arguments."""
    arguments = [json.dumps({"path": f"src/module_{n}.py", "content": _file(n, size)}) for n in range(calls)]
    rounds = [
        assistant("", id=f"a{n}", calls=[ToolCallPart(f"c{n}", "write_file", arguments[n])]) for n in range(calls)
    ]
    replies: list[Any] = [x for r in rounds for x in ((r,) if in_one_turn else (r, "Written."))]
    backend = ScriptedBackend([*replies, "All done."])
    summarizer = _summarizer()
    context = AgentContext(backend, context_window=WRITES_WINDOW, summarizer=summarizer)
    for number in range(calls):
        if number == 0 or not in_one_turn:
            context.send(f"Write module {number}." if not in_one_turn else "Write all modules.")
        context.send(
            tool_result(f"c{number}", f"ok, {size} characters written to src/module_{number}.py", id=f"r{number}")
        )
    sent = sum(len(m.text) + sum(len(c.arguments) for c in m.tool_calls) for r in backend.requests for m in r.messages)
    summaries = len(summarizer.requests)
    lost = sum(context.archive.get(f"a{n}").tool_calls[0].arguments != arguments[n] for n in range(calls))
    return Writes(calls, size, sent, summaries, lost, context.usage().compactions)


def run(*, quick: bool = False) -> list[Sheet]:
    """Two tables: excerpts by kind of output, and calls with large arguments."""
    texts = tool_texts(REPORTED_SEEDS[:1] if quick else REPORTED_SEEDS)
    rows: list[tuple[Cell, ...]] = []
    for title, together in (("in a session of its own", False), ("one after the other in one session", True)):
        found = seen(texts, together=together)
        tokens = sum(len(s.excerpt) for s in found) // len(found)
        rows.append((
            title, len(found), sum(s.error for s in found), sum(s.error and s.place for s in found),
            sum(s.answer for s in found), tokens, max(s.ms for s in found),
        ))  # fmt: skip
    argument_rows: list[tuple[Cell, ...]] = []
    for calls, size in RUNS[:1] if quick else RUNS:
        for in_one_turn in (True, False):
            w = writes(calls, size, in_one_turn=in_one_turn)
            how = "one turn" if in_one_turn else "a turn each"
            argument_rows.append((f"{calls} writes of {size:,}, {how}", w.chars, w.compactions, w.summaries, w.lost))
    return [
        Sheet(
            f"Outputs of 20,000 to 200,000 characters in a window of {WINDOW:,} tokens",
            (
                "each",
                "outputs",
                "error line",
                "with its place",
                "what was asked",
                "characters shown",
                "slowest, ms of CPU",
            ),
            tuple(rows),
            "Compiler, test run, traceback, JSON list, page, CSV, log and diff; seeds other than those that were tuned on.",
        ),
        Sheet(
            f"Calls with large arguments in a window of {WRITES_WINDOW:,} tokens",
            ("run", "characters sent", "compactions", "summary calls", "arguments lost"),
            tuple(argument_rows),
        ),
    ]
