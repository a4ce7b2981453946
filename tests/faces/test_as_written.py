"""The calls that users were promised, as they were written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage, HumanMessage
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.llms import MockLLM

from ctxfold import AgentContext, Completed, Content, ContentFirst, OpenAIChatBackend, SqlStore, Thinking
from ctxfold.testing import ModelServer
from langchain_ctx import ChatCtx, CtxChatMessageHistory
from llamaindex_ctx import CtxMemory


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelServer]:
    monkeypatch.chdir(tmp_path)
    with ModelServer(model="lookup", context_window=8_000, strict="deepseek") as server:
        yield server


def test_history_chat_model_and_memory_on_one_store(server: ModelServer) -> None:
    any_langchain_chat_model = FakeListChatModel(responses=["a summary"])
    history = CtxChatMessageHistory(
        "s1", store="sqlite:///chat.db", context_window=8_000, summarizer=any_langchain_chat_model
    )
    history.add_messages([HumanMessage("My locker is 47-B."), AIMessage("Noted.")])
    chat = ChatCtx(
        model="lookup",
        provider="deepseek",
        base_url=server.base_url,
        api_key="x",  # type: ignore[arg-type]
        session="s1",
        store="sqlite:///chat.db",
        context_window=8_000,
    )
    assert "47-B" in str(chat.invoke("What is my locker?").text)
    memory = CtxMemory.from_defaults(
        session_id="s1", store="sqlite:///chat.db", context_window=8_000, llm=MockLLM(max_tokens=8)
    )
    memory.put(ChatMessage(role="user", content="And thanks."))
    assert len(memory.get()) == len(history.messages) == 5, "two objects on one store see each other's messages"
    for holder in (history, chat, memory):
        holder.close()


async def test_the_engine_alone(server: ModelServer, tmp_path: Path) -> None:
    backend = OpenAIChatBackend(provider="deepseek", model="lookup", base_url=server.base_url, api_key="x")
    ctx = AgentContext(
        backend=backend, session_id="s1", store="sqlite:///chat.db", context_window=8_000, system="You are helpful."
    )
    reply = ctx.send("hello")
    assert reply.message.text
    assert (await ctx.asend("hello")).message.text
    kinds = {type(event) for event in ctx.send_stream("Remember the blue key, please.")}
    kinds |= {type(event) async for event in ctx.asend_stream("What colour has the key?")}
    assert {Thinking, ContentFirst, Content, Completed} >= kinds >= {Thinking, ContentFirst, Completed}
    message_id = ctx.view().live[0].id
    ctx.pin(message_id)
    for room in range(8):
        ctx.send(
            f"Room {room} on the second floor has the number {room + 200} and a window to the garden with two locks."
        )
    ctx.compact(force=True)
    assert message_id in [m.id for m in ctx.window().messages]
    assert ctx.usage().compactions == 1
    assert ctx.files.export_jsonl(tmp_path / "all.jsonl") >= 8
    assert "pinned" in str(ctx.explain())
    ctx.close()
    await backend.aclose()
    backend.close()


def test_a_store_is_given_as_a_url_or_as_an_object(server: ModelServer) -> None:
    with SqlStore("sqlite:///chat.db") as store:
        one = AgentContext(session_id="s", store=store, context_window=8_000)
        two = AgentContext(session_id="s", store="sqlite:///chat.db", context_window=8_000)
        one.add("hello")
        assert [m.text for m in two.window().messages] == ["hello"]
        two.close()
    assert server.requests == []
