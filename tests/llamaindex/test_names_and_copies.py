"""H6, H9, L13, R10: copies of every public object, registered names everywhere, and settings that are checked at once."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.llms.mock import MockLLM
from llama_index.core.memory import Memory
from llama_index.core.storage.chat_store import SimpleChatStore

from ctxfold import MemoryStore
from ctxfold.errors import ConfigError
from ctxfold.tokens.text import CtxWarning
from llamaindex_ctx import CtxChatStore, CtxLLM, CtxMemory, CtxMemoryBlock, LlmSummarizer, with_context
from llamaindex_ctx.backend import LlamaIndexBackend
from llamaindex_ctx.chat_store import CtxAsyncChatStore
from llamaindex_ctx.store_registry import register_store
from tests.llamaindex.talk import bot, user


def memory() -> CtxMemory:
    register_store("copies", MemoryStore())
    made = CtxMemory.from_defaults("s", store="copies", context_window=8_000)
    made.put_messages([user("hi"), bot("yes")])
    return made


WAYS: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda made: pickle.loads(pickle.dumps(made)),
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
}
MADE: dict[str, Callable[[], Any]] = {
    "CtxMemory": memory,
    "CtxMemoryBlock": lambda: CtxMemoryBlock(memory()),
    "CtxChatStore": CtxChatStore,
    "CtxAsyncChatStore": CtxAsyncChatStore,
    "CtxLLM": lambda: CtxLLM(model="m", base_url="http://127.0.0.1:9", api_key="x", context_window=8_000),
    "LlmSummarizer": lambda: LlmSummarizer(MockLLM()),
    "LlamaIndexBackend": lambda: LlamaIndexBackend(MockLLM(), context_window=8_000),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MADE)
def test_h6_every_public_object_is_copied(name: str, way: str) -> None:
    made = MADE[name]()
    assert type(WAYS[way](made)) is type(made)


@pytest.mark.parametrize("way", ["pickle", "json"])
def test_h6_a_stock_memory_keeps_its_block(way: str, caplog: pytest.LogCaptureFixture) -> None:
    block = CtxMemoryBlock(memory(), priority=2)
    block.session("ann").put(user("of ann"))
    if way == "json":
        again = CtxMemoryBlock.model_validate(json.loads(block.model_dump_json()))
    else:
        stock = Memory.from_defaults("ann", memory_blocks=[block])
        (again,) = pickle.loads(pickle.dumps(stock)).memory_blocks
        assert stock.memory_blocks == [block], "the live memory is whole"
    assert "unpickleable" not in caplog.text
    assert again.priority == 2
    assert [m.content for m in again.session().get_all()] == ["hi", "yes"]
    assert [m.content for m in again.session("ann").get_all()] == ["of ann"]


def test_h9_a_registered_name_works_in_every_face() -> None:
    register_store("chats", MemoryStore())
    wrapped = with_context(MockLLM(), session_id="s", store="chats", context_window=8_000)
    wrapped.chat([user("hello")])
    with CtxMemory.from_defaults("s", store="chats", context_window=8_000) as reader:
        assert reader.get_all()[0].content == "hello"
    with CtxChatStore("chats") as store:
        assert store.get_messages("s")[0].content == "hello"
    with pytest.raises(ConfigError, match="register_store"):
        with_context(MockLLM(), session_id="s", store="nowhere", context_window=8_000)


def test_h9_a_memory_over_a_package_store_says_what_to_give_again() -> None:
    package_store = SimpleChatStore()
    with CtxMemory.from_defaults("s", chat_store=package_store, context_window=8_000) as first:
        first.put(user("hello"))
        data = json.loads(json.dumps(first.to_dict()))
    data["engine"] = "of another process"
    with pytest.raises(ConfigError, match=r"SimpleChatStore.*chat_store=") as raised:
        CtxMemory.from_dict(data)
    assert "register_store" not in str(raised.value)
    with CtxMemory.from_dict(data, chat_store=package_store) as again:
        assert [m.content for m in again.get_all()] == ["hello"]


async def test_l13_a_chat_store_takes_the_keywords_of_the_stock_one(tmp_path: Path) -> None:
    uri = f"sqlite+aiosqlite:///{tmp_path / 'chat.db'}"
    store = CtxAsyncChatStore(table_name="llama_index_memory", async_database_uri=uri)
    await store.add_message("k", user("hello"))
    await store.aclose()
    async with CtxAsyncChatStore(f"sqlite:///{tmp_path / 'chat.db'}") as again:
        assert [m.content for m in await again.get_messages("k")] == ["hello"]
    with pytest.warns(CtxWarning, match="table_name"):
        CtxAsyncChatStore(table_name="mine")
    with pytest.raises(ConfigError, match="tabel_name"):
        CtxAsyncChatStore(tabel_name="mine")


@pytest.mark.parametrize("role", ["developer", "chatbot", "model"])
def test_l13_a_role_of_llamaindex_comes_back_as_it_was(role: str) -> None:
    with CtxMemory.from_defaults("s", context_window=8_000) as made:
        for message in (user("q"), bot("a"), ChatMessage(role=role, content="x"), user("r")):
            made.put(message)
        assert (
            [m.role.value for m in made.get()]
            == [m.role.value for m in made.get_all()]
            == ["user", "assistant", role, "user"]
        )


@pytest.mark.parametrize("settings", [{"tokne_limit": 900}, {"hard_ration": 0.5}, {"hard_ratio": 5}])
def test_r10_a_misspelt_setting_is_refused_at_construction(settings: dict[str, Any]) -> None:
    for make in (CtxMemory, CtxMemory.from_defaults):
        with pytest.raises(ConfigError):
            make(context_window=8_000, **settings)
    with pytest.raises(ConfigError):
        with_context(MockLLM(), context_window=8_000, **settings)
