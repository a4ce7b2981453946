"""Typed use of `llamaindex_ctx` around memories: read by mypy and pyright, never run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, assert_type

from llama_index.core.base.llms.types import ChatMessage, TextBlock
from llama_index.core.memory import BaseMemoryBlock, StaticMemoryBlock

from ctxfold import AgentContext, Item, Query, Section
from llamaindex_ctx import CtxChatStore, CtxMemory, CtxMemoryBlock
from llamaindex_ctx.chat_store import CtxAsyncChatStore
from llamaindex_ctx.messages import from_chat_messages, to_chat_messages
from llamaindex_ctx.store_registry import register_store


def blocks(session_id: str) -> Sequence[BaseMemoryBlock[Any]]:
    return [StaticMemoryBlock(static_content=[TextBlock(text=f"This is {session_id}.")])]


def shelf(query: Query) -> list[Item]:
    return [Item(query.text)]


def memories() -> None:
    register_store("chats", "sqlite:///chat.db", memory_blocks=blocks)
    settings: dict[str, Any] = {"hard_ratio": 0.8}
    with CtxMemory.from_defaults(
        "s",
        store="chats",
        context_window=8_000,
        memory_blocks=blocks("s"),
        sections=[Section("documents", shelf)],
        **settings,
    ) as memory:
        assert_type(memory.get("hello", initial_token_count=3, mood="good"), list[ChatMessage])
        assert_type(memory.get_all(), list[ChatMessage])
        memory.put("hello")
        memory.put_messages([ChatMessage(content="a"), "b"])
        memory.set([])
        assert_type(memory.at("t", owner="ann"), CtxMemory)
        assert_type(memory.context, AgentContext)
        assert_type(CtxMemory.from_dict(memory.to_dict()), CtxMemory)


async def async_memories(memory: CtxMemory) -> None:
    assert_type(await memory.aget(ChatMessage(content="hello")), list[ChatMessage])
    await memory.aput("hello")
    await memory.aset([])
    await memory.areset()


def beside(memory: CtxMemory) -> None:
    block = CtxMemoryBlock(memory, name="archive", priority=2)
    assert_type(block.session("ann"), CtxMemory)
    _: BaseMemoryBlock[str] = block


def chat_stores() -> None:
    with CtxChatStore("sqlite:///chat.db", owner="ann") as store:
        store.add_message("k", ChatMessage(content="a"), idx=0)
        assert_type(store.get_messages("k"), list[ChatMessage])
        assert_type(store.delete_messages("k"), list[ChatMessage] | None)
        assert_type(store.delete_message("k", -1), ChatMessage | None)
        assert_type(store.get_keys(), list[str])
        assert_type(store.context("k"), AgentContext)


async def async_chat_stores(store: CtxAsyncChatStore) -> None:
    assert_type(await store.get_messages("k", None, limit=3), list[ChatMessage])
    assert_type(await store.archive_oldest_messages("k", 3), list[ChatMessage])
    assert_type(store.histories, CtxChatStore)


def conversions() -> None:
    assert_type(to_chat_messages(from_chat_messages(["hello", ChatMessage(content="a")])), list[ChatMessage])
