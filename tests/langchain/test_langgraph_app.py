"""The application of examples/langgraph_app, loaded as `langgraph.json` names it and run with a checkpointer, as a server does."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from ctxfold import user
from ctxfold.testing import ModelServer, Scripted, ScriptedCall
from tests.langchain.faces import closed

FOLDER = Path(__file__).parents[2] / "examples" / "langgraph_app"
THREAD: Any = {"configurable": {"thread_id": "t"}}


def play(body: Any) -> Scripted:
    """A model that reads the log once for each question."""
    messages = body["messages"]
    asked = max((i for i, m in enumerate(messages) if str(m["content"]).startswith("What about hour")), default=-1)
    if not body.get("tools") or any(m["role"] == "tool" for m in messages[asked + 1 :]):
        return Scripted("The pumps were looked at.")
    return Scripted(tool_calls=(ScriptedCall("read_log", json.dumps({"hour": 7})),))


def loaded(name: str) -> Any:
    path, _, attribute = json.loads((FOLDER / "langgraph.json").read_text(encoding="utf-8"))["graphs"][name].partition(
        ":"
    )
    spec = importlib.util.spec_from_file_location("langgraph_app_agent", FOLDER / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module, getattr(module, attribute)


async def test_the_graph_of_langgraph_json_stays_in_its_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ModelServer(model="m", script=play, strict="openai", context_window=8_000) as server:
        given = {
            "MODEL": "openai:m",
            "OPENAI_BASE_URL": server.base_url,
            "OPENAI_API_KEY": "x",
            "CONTEXT_WINDOW": "6000",
        }
        for name, value in {**given, "CTXFOLD_STORE": f"sqlite:///{tmp_path / 'agent.db'}"}.items():
            monkeypatch.setenv(name, value)
        module, graph = loaded("agent")
        graph.checkpointer = InMemorySaver()  # as the server sets it
        state: Any = {}
        for hour in range(8):
            question = {"messages": [("user", f"What about hour {hour}?")]}
            state = await graph.ainvoke(question, THREAD)
        assert state["messages"][-1].text == "The pumps were looked at."
        assert len(state["messages"]) == 32, "the thread keeps every message"
        usage = module.fitting.context("t").usage()
        assert usage.turns == 8
        assert usage.compactions > 0
        assert usage.window_tokens <= usage.budget_tokens
        await module.fitting.aclose()
        await closed(module.model)


async def test_h4_the_route_of_langgraph_json_erases_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(
        "starlette", reason="starlette, which LangGraph's server brings, comes with the extra mcp alone"
    )
    from httpx import ASGITransport, AsyncClient

    with ModelServer(model="m", script=play, strict="openai", context_window=8_000) as server:
        given = {"MODEL": "openai:m", "OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "x"}
        for name, value in {**given, "CTXFOLD_STORE": f"sqlite:///{tmp_path / 'agent.db'}"}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.syspath_prepend(FOLDER)
        for module in ("agent", "routes"):
            monkeypatch.delitem(sys.modules, module, raising=False)
        path, _, attribute = json.loads((FOLDER / "langgraph.json").read_text("utf-8"))["http"]["app"].partition(":")
        routes = importlib.import_module(Path(path).stem)
        agent = importlib.import_module("agent")
        for thread in ("t", "u"):
            agent.fitting.context(thread).add(user("What about hour 7?", id="q"))
        async with AsyncClient(transport=ASGITransport(getattr(routes, attribute)), base_url="http://test") as client:
            answer = await client.delete("/memory/t")
        assert answer.json() == {"removed": ["t"]}
        assert agent.fitting.context("u").handle.store.sessions("default") == ("u",)
        await agent.fitting.aclose()
        await closed(agent.model)
        for module in ("agent", "routes"):
            monkeypatch.delitem(sys.modules, module, raising=False)
