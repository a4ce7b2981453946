"""Twelve tasks with ctxfold and the best other way: both run, ours is never longer, and the table of the docs says so."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_openai import ChatOpenAI
from llama_index.llms.openai_like import OpenAILike

from ctxfold.testing import ModelServer
from tests.docs.tasks import TASKS, Task, concepts, lines
from tests.support.pages import page

BY_NAME = {task.name: task for task in TASKS}
# LlamaIndex's own Memory, called without await, leaves its event loops open
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
KNOWN = {
    "an agent that goes on when its window is full",
    "a chat model that remembers, in a file",
    "a LlamaIndex chat engine that remembers",
}


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with ModelServer(context_window=8_000) as running:
        yield running


def run(task: Task, program: str, server: ModelServer, folder: Path) -> Any:
    names: dict[str, Any] = {
        "model": ChatOpenAI(
            model="lookup",
            base_url=server.base_url,
            api_key="none",  # type: ignore[arg-type]
            max_retries=0,
            profile={"max_input_tokens": 8_000},
        ),
        "llm": OpenAILike(
            model="lookup", api_base=server.base_url, api_key="none", is_chat_model=True, context_window=8_000
        ),
        "tools": [],
        "folder": folder,
    }
    for text in (task.shared, program):
        exec(compile(text, "tasks.py", "exec"), names)
    for name in ("ctx", "branch", "context", "chat"):
        if hasattr(names.get(name), "close"):
            names[name].close()
    if task.with_what == "`Memory`" and "CtxMemory" not in names:
        import asyncio

        asyncio.run(names["memory"].sql_store._async_engine.dispose())
    result = names["result"]
    names.clear()
    gc.collect()
    return result


@pytest.mark.parametrize("name", BY_NAME)
def test_both_ways_do_the_task(name: str, server: ModelServer, tmp_path: Path) -> None:
    task = BY_NAME[name]
    ours = run(task, task.ours, server, tmp_path)
    other = run(task, task.other, server, tmp_path)
    if name in KNOWN:
        assert "47-B" in ours
        assert "47-B" in other
    elif name.startswith("find"):
        assert "47-B" in ours[0]
        assert "47-B" in other[0]
    elif name.startswith("keep"):
        assert "47-B" in ours
        assert "47-B" in other
    elif name.startswith("how full"):
        assert "of 1,600 tokens used" in ours
        assert other.endswith("of 8000 tokens")
    elif name.startswith("go back"):
        assert (ours, other) == (121, 124)
    elif name.startswith(("delete", "a fact")):
        assert ours == other
    elif name.startswith("a shorter"):
        assert 2 < len(ours) < 121
        assert 2 < len(other) < 121
    elif name.startswith("take"):
        assert ours == other == 121
    else:
        assert 0 < ours < other == 121


@pytest.mark.parametrize("name", BY_NAME)
def test_ours_is_no_longer(name: str) -> None:
    task = BY_NAME[name]
    assert lines(task.ours) <= lines(task.other)
    assert concepts(task.ours) <= concepts(task.other)


def test_the_table_of_comparison_md_has_these_figures() -> None:
    rows = re.findall(r"^\| (.+?) \| (.+?) \| (\d+), (\d+) \| (\d+), (\d+) \|$", page("comparison.md"), flags=re.M)
    assert rows == [
        (t.name, t.with_what, *map(str, (lines(t.other), concepts(t.other), lines(t.ours), concepts(t.ours))))
        for t in TASKS
    ]
