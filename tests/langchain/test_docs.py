"""The examples of docs/langchain-agents.md run as they stand, and what they make answers."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import langchain_deepseek
import pytest
from langchain.agents import create_agent
from langchain_core.documents import Document
from langchain_core.messages import HumanMessage
from langchain_core.retrievers import BaseRetriever
from langchain_deepseek import ChatDeepSeek
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver

from ctxfold.testing import ModelServer
from langchain_ctx import ChatCtx

PAGE = (Path(__file__).parents[2] / "docs" / "langchain-agents.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, flags=re.S)


class Locker(BaseRetriever):
    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        return [Document("My locker is 47-B.", metadata={"source": "lockers.md"})]


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """What a reader brings: a model, tools, a checkpointer, and a DeepSeek account on the loopback server."""
    monkeypatch.chdir(tmp_path)
    with ModelServer(model="lookup", context_window=64_000, strict="deepseek") as server:
        model = ChatCtx(model="lookup", provider="deepseek", base_url=server.base_url, api_key="x")  # type: ignore[arg-type]
        account = partial(ChatDeepSeek, api_key="x", api_base=server.base_url)
        monkeypatch.setattr(langchain_deepseek, "ChatDeepSeek", account)
        yield {
            "model": model,
            "tools": [],
            "saver": InMemorySaver(),
            "create_agent": create_agent,
        }
        model.close()


def test_the_examples(names: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(EXAMPLES) == 7
    agent, sections, deletion, delta, deep, context, reasoning = EXAMPLES
    told, asked = HumanMessage("My locker is 47-B."), HumanMessage("What is my locker?")
    config = {"configurable": {"thread_id": "t"}}

    def run(example: str) -> None:
        exec(compile(example, "langchain-agents.md", "exec"), names)

    run(agent)
    names["agent"].invoke({"messages": [told]}, config=config)
    answer = names["agent"].invoke({"messages": [asked]}, config=config)
    assert "47-B" in answer["messages"][-1].text
    names["retriever"] = Locker()
    plain = names["agent"]
    run(sections)
    assert "47-B" in names["agent"].invoke({"messages": [asked]})["messages"][-1].text
    names["agent"] = plain
    names["middleware"] = names["ContextMiddleware"](context_window=8_000)
    run(deletion)
    assert names["agent"].get_state(config).values == {}
    monkeypatch.chdir(tmp_path)
    program = ModuleType("delta_program")  # the annotations of its state are looked up in the module
    program.__dict__.update(names, __name__="delta_program")
    monkeypatch.setitem(sys.modules, "delta_program", program)
    exec(compile(delta, "langchain-agents.md", "exec"), program.__dict__)
    with SqliteSaver.from_conn_string("checkpoints.db") as saver:
        assert saver.get({"configurable": {"thread_id": "t"}}) is not None
    if find_spec("deepagents"):  # it needs langchain-core 1.7
        run(deep)
        names["agent"].invoke({"messages": [told]}, config=config)
        answer = names["agent"].invoke({"messages": [asked]}, config=config)
        assert "47-B" in answer["messages"][-1].text
    run(context)
    names["model"].invoke([told])
    assert "47-B" in names["model"].invoke([asked]).text
    run(reasoning)
    assert "47-B" in names["agent"].invoke({"messages": [told, asked]})["messages"][-1].text
