"""The examples of the page on blocks and chat stores run as they stand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.llms import ChatMessage
from llama_index.core.llms.mock import MockFunctionCallingLLM

PAGE = Path(__file__).parents[2] / "docs" / "llamaindex-blocks.md"


def user(text: str) -> ChatMessage:
    return ChatMessage(role="user", content=text)


async def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {
        "llm": MockFunctionCallingLLM(response_generator=lambda messages, **kwargs: user("Noted."))
    }
    for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.S):
        exec(compile(code, PAGE.name, "exec"), names)
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
