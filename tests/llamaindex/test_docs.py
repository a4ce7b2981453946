"""The examples of the LlamaIndex pages run as they stand, and what they make answers."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import llama_index.llms.deepseek
import pytest
import pytest_asyncio
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.chat_engine import SimpleChatEngine
from llama_index.core.embeddings.mock_embed_model import MockEmbedding
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.memory.types import BaseMemory

from ctxfold.testing import ModelServer
from llamaindex_ctx import CtxLLM, CtxMemory
from tests.support.pages import examples, page, section

pytestmark = [
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning"),
    pytest.mark.filterwarnings("ignore:is_running called from within a step:DeprecationWarning"),
    # LlamaIndex's Memory leaves its connection to the collector
    pytest.mark.filterwarnings("ignore:.*aiosqlite.core.Connection.*was deleted before being closed:ResourceWarning"),
]


async def execute(code: str, name: str, names: dict[str, Any]) -> None:
    """As a notebook's cell: `await` is allowed."""
    made: Any = eval(compile(code, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
    if inspect.iscoroutine(made):
        await made


@pytest_asyncio.fixture
async def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[dict[str, Any]]:
    """What a reader brings: an LLM, tools, an embedding, and a DeepSeek account on the loopback server."""
    monkeypatch.chdir(tmp_path)
    async with ModelServer(model="lookup", context_window=64_000, strict="deepseek") as server:
        llm = CtxLLM(model="lookup", provider="deepseek", base_url=server.base_url, api_key="x", context_window=64_000)
        account = partial(llama_index.llms.deepseek.DeepSeek, api_base=server.base_url, max_retries=0)
        monkeypatch.setattr(llama_index.llms.deepseek, "DeepSeek", account)
        yield {"llm": llm, "tools": [], "url": server.base_url, "embed_model": MockEmbedding(embed_dim=4)}
        llm.close()
        await llm.aclose()


async def asked(llm: Any, memory: BaseMemory, question: str) -> str:
    return str(await SimpleChatEngine.from_defaults(llm=llm, memory=memory).achat(question))


async def test_the_page(names: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    handlers = get_dispatcher().event_handlers
    before = list(handlers)
    memory, agent, session, reasoning, wire, sections, *blocks, told = examples(page("llamaindex.md"))
    assert len(blocks) == 3, "test_memory_docs.py runs them"
    await execute(memory, "llamaindex.md", names)
    assert "47-B" in await asked(names["llm"], names["memory"], "What is my locker?")
    await execute(agent, "llamaindex.md", names)
    assert "green" in await asked(names["llm"], names["memory"], "What colour is my bike?")
    await execute(session, "llamaindex.md", names)
    assert "turns=1" in capsys.readouterr().out
    assert [m.role for m in names["chat"].context("ann").messages()] == ["user", "assistant"]
    await execute(reasoning, "llamaindex.md", names)
    agent_of_deepseek: FunctionAgent = names["agent"]
    assert "green" in str(await agent_of_deepseek.run("What colour is my bike?", memory=names["memory"]))
    await execute(wire, "llamaindex.md", names)
    agent_of_gemini: FunctionAgent = names["agent"]
    assert "47-B" in str(await agent_of_gemini.run("What is the number of my locker?", memory=names["memory"]))
    await names["gemini"].aclose()
    await execute(sections, "llamaindex.md", names)
    assert "March" in await asked(names["llm"], names["informed"], "When is the boiler inspected?")
    try:
        await execute(told, "llamaindex.md", names)
        small = CtxMemory.from_defaults("small", token_limit=300)
        for n in range(20):
            small.put(ChatMessage(f"Box {n} stands in hall {n * 7 % 9}, behind the third door on the left."))
            small.put(ChatMessage(role="assistant", content="Noted."))
        assert re.search(r"small \d+ -> \d+ extractive", capsys.readouterr().out)
    finally:
        handlers[:] = before
    names["memory"].close()
    names["chat"].close()
    names["thinking"]._get_client().close()
    await names["thinking"]._get_aclient().close()


async def test_the_migrations(names: dict[str, Any]) -> None:
    pairs = examples(section(page("migration.md"), "## From LlamaIndex"))
    assert len(pairs) == 6
    for before, after in zip(pairs[::2], pairs[1::2], strict=True):
        await execute(before, "migration.md", names)
        stock = names["memory"]
        assert not isinstance(stock, CtxMemory)
        await execute(after, "migration.md", names)
        memory = names["memory"]
        assert isinstance(memory, CtxMemory)
        assert [m.content for m in memory.get_all()] == ["My locker is 47-B."]
        assert "47-B" in await asked(names["llm"], memory, "What is my locker?")
        if hasattr(stock, "sql_store"):
            assert "half past seven" in await asked(names["llm"], memory, "When does the canteen open?")
            await stock.sql_store._async_engine.dispose()
        memory.close()
