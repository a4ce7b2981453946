"""Measures what a request still shows of an agent's work at the end: plan, files, failures, delegated work, decisions.

Four runs of the set `agent_state`, told once as a transcript tells them, with calls and results as text of the assistant and the
user, and once with real calls and results. Each question is asked after all of a run, through the public API with the defaults; a
token is four characters. It counts as answered when the request has the key sentence of each evidence message: the one with most
words of the answer and the question. "all" questions ask for the whole of a category in words that name nothing of the run.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import mean
from typing import Any

from ctxfold import AgentContext, Message, ToolCallPart, assistant, tool_result, user
from ctxfold.compaction.work_state import STATE_HEADING
from tests.benchmarks.data import folder
from tests.benchmarks.recall_quality import COUNTER
from tests.benchmarks.sheets import Cell, Sheet

__all__ = ["answered", "block_of", "runs", "told_with_calls", "told_with_text"]

WINDOW = 4_000
HALVES = {"tuned on": ("coding", "research"), "not looked at": ("support", "data")}
_CALL = re.compile(r"(?m)\[tool call\] (\S+) (\{.*\})\s*$")
_WORD = re.compile(r"[^\W_]+")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")
Run = Mapping[str, Any]


def runs(half: str) -> list[Run]:
    """Returns the runs of one half."""
    data: list[Run] = json.loads((folder("agent_state") / "conversations.json").read_text(encoding="utf-8"))
    return [run for run in data if run["kind"] in HALVES[half]]


def told_with_text(run: Run) -> Iterator[Message]:
    """Yields a run with calls and results as text; a result is a user message that begins with the tool's name."""
    for each in run["messages"]:
        text = f"{each['name']}: {each['text']}" if each.get("name") else each["text"]
        yield (assistant if each["role"] == "assistant" else user)(text, id=each["id"])


def told_with_calls(run: Run) -> Iterator[Message]:
    """Yields a run with real calls and results; none is marked as an error."""
    waiting: list[ToolCallPart] = []
    for each in run["messages"]:
        calls = [*_CALL.finditer(each["text"])] if each["role"] == "assistant" else []
        if calls:
            waiting = [ToolCallPart(f"call-{each['id']}-{n}", c[1], c[2]) for n, c in enumerate(calls)]
            yield assistant(each["text"][: calls[0].start()].strip(), id=each["id"], calls=waiting)
        elif each["role"] == "tool" and waiting:
            yield tool_result(waiting.pop(0).id, each["text"], id=each["id"], name=each["name"])
        else:  # a second result of a call comes as an event would
            yield (assistant if each["role"] == "assistant" else user)(each["text"], id=each["id"])


def block_of(context: AgentContext) -> str:
    """Returns the state of the work in the window, "" without any."""
    found = [m.text.partition(STATE_HEADING) for m in context.view().messages if m.kind == "summary"]
    return "\n".join(heading + block for _, heading, block in found if heading)


def answered(run: Run, messages: Sequence[Message], window: int = WINDOW) -> list[tuple[str, int, bool, int]]:
    """Returns for each question its category, its place, whether the request answers it, and the tokens of the block."""
    by_id = {each["id"]: each["text"] for each in run["messages"]}
    rows: list[tuple[str, int, bool, int]] = []
    with AgentContext(None, context_window=window, counter=COUNTER) as context:
        for message in messages:
            context.add(message)
        block = COUNTER.count(block_of(context))
        for place, asked in enumerate(run["questions"]):
            request = context.window(recall=True, question=asked["q"])
            shown = _words("\n".join([*(m.text for m in request.messages), request.recalled]))
            keys = [_key(by_id[i], asked) for i in asked["evidence"]]
            rows.append((asked["category"], place, all(_words(k) in shown for k in keys), block))
    return rows


def _key(text: str, asked: Mapping[str, Any]) -> str:
    answer, question = (frozenset(_terms(str(asked[name]))) for name in ("answer", "q"))
    parts = [s for s in _SENTENCE_END.split(text) if _WORD.search(s)] or [text]
    return max(
        parts, key=lambda s: (len(answer.intersection(_terms(s))), len(question.intersection(_terms(s))), len(s))
    )


def _words(text: str) -> str:
    return f" {' '.join(_WORD.findall(text.lower()))} "


def _terms(text: str) -> Iterator[str]:
    for word in _WORD.findall(text.lower()):
        end = next((e for e in ("ing", "ed", "es", "s", "ly") if word.endswith(e) and len(word) - len(e) >= 3), "")
        yield word.removesuffix(end)


def run(*, quick: bool) -> list[Sheet]:
    """Returns a table: the share of the questions that are answered, by category, for each half and each way of telling."""
    columns: dict[str, dict[str, list[bool]]] = {}
    blocks: list[int] = []
    for half in HALVES:
        for name, told in (("text", told_with_text), ("calls", told_with_calls)):
            column = columns[f"{half}, {name}"] = defaultdict(list)
            for each in runs(half)[: 1 if quick else None]:
                for category, _, right, block in answered(each, [*told(each)]):
                    for group in (category, "generic" if category.startswith("all ") else "plain"):
                        column[group].append(right)
                    blocks.append(block)
    groups = sorted({group for column in columns.values() for group in column if group[:3] in ("all", "gen", "pla")})
    rows: list[tuple[Cell, ...]] = [
        (group, *(mean(c[group]) if c[group] else "-" for c in columns.values())) for group in groups
    ]
    note = f"blocks of {min(blocks)} to {max(blocks)} tokens"
    return [Sheet(f"State of an agent's work at {WINDOW:,} tokens", ("questions", *columns), tuple(rows), note)]
