"""The examples of the page on blocks and chat stores run as they stand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from llama_index.core.llms import ChatMessage
from llama_index.core.llms.mock import MockFunctionCallingLLM

from tests.support.pages import examples, page, section

EXAMPLES = examples(section(page("llamaindex.md"), "## Memory blocks and chat stores"))


def user(text: str) -> ChatMessage:
    return ChatMessage(role="user", content=text)


async def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {
        "llm": MockFunctionCallingLLM(response_generator=lambda messages, **kwargs: user("Noted."))
    }
    assert len(EXAMPLES) == 3
    for code in EXAMPLES:
        exec(compile(code, "llamaindex.md", "exec"), names)
    async with names["memory"] as memory:
        await memory.aput(user("When shall we meet?"))
        assert any("Ann lives in Bonn" in str(m.content) for m in await memory.aget())
    stock = names["stock"]
    await stock.aput(user("Hello."))
    assert [m.content for m in await stock.aget()] == ["Hello."]
    assert await stock.sql_store.get_keys() == ["ann"]
    buffer = names["buffer"]
    buffer.put(user("Hello."))
    assert names["store"].get_messages("ann") == [user("Hello.")]
    assert {p.name for p in tmp_path.glob("*.db")} == {"chat.db", "archive.db", "stock.db", "histories.db"}
    stock.sql_store.close()
    names["archive"].close()
    names["store"].close()
