"""CtxChatStore: what LlamaIndex asks of a chat store, and what our store adds to it."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage, ImageBlock, TextBlock, ThinkingBlock, ToolCallBlock
from llama_index.core.chat_engine import SimpleChatEngine
from llama_index.core.memory import ChatMemoryBuffer, ChatSummaryMemoryBuffer
from llama_index.core.storage.chat_store import BaseChatStore
from llama_index.core.workflow import Context

from ctxfold import ConfigError, SqlStore, Store
from ctxfold.testing import ModelServer
from llamaindex_ctx import CtxChatStore, CtxMemory
from llamaindex_ctx.store_registry import register_store
from tests.llamaindex.loopback_llm import Made
from tests.llamaindex.talk import bot, calling, result, user
from tests.llamaindex.twins import Driver
from tests.support.postgres_schema import fresh_schema

pytestmark = [
    # agents read all attributes of their own class, deprecated ones of pydantic too
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning"),
    pytest.mark.filterwarnings("ignore:is_running called from within a step:DeprecationWarning"),
]


@pytest.fixture
def store(shared: Store) -> Iterator[CtxChatStore]:
    with CtxChatStore(shared) as made:
        yield made


async def test_histories_are_kept_by_key(call: Driver, store: CtxChatStore) -> None:
    assert isinstance(store, BaseChatStore)
    for key in ("user2", "user1"):
        await call(store, "add_message", key, user("hello"))
        await call(store, "add_message", key, user("world"))
    assert await call(store, "get_messages", "user1") == [user("hello"), user("world")]
    assert await call(store, "get_messages", "user2") == [user("hello"), user("world")]
    assert await call(store, "get_messages", "nobody") == []
    assert await call(store, "get_keys") == ["user1", "user2"]
    await call(store, "add_message", "user1", bot("first of all"), idx=0)
    assert await call(store, "get_messages", "user1") == [bot("first of all"), user("hello"), user("world")]


async def test_set_replaces_a_history(call: Driver, store: CtxChatStore) -> None:
    await call(store, "add_message", "k", user("old"))
    await call(store, "set_messages", "k", [ChatMessage(role="system", content="be brief"), user("a"), bot("b")])
    assert [m.content for m in await call(store, "get_messages", "k")] == ["be brief", "a", "b"]
    twice = [ChatMessage(role="user", content=text, additional_kwargs={"ctxfold_id": "one"}) for text in ("a", "b")]
    await call(store, "set_messages", "k", [*twice, bot("c")])
    assert await call(store, "get_messages", "k") == [user("a"), user("b"), bot("c")]
    assert [m.id for m in store.context("k").messages()].index("one") == 0
    await call(store, "add_message", "k", twice[0], idx=1)
    assert await call(store, "get_messages", "k") == [user("a"), user("a"), user("b"), bot("c")]
    await call(store, "set_messages", "k", [])
    assert await call(store, "get_messages", "k") == []
    assert await call(store, "get_keys") == []


async def test_deleting_all_one_and_the_last(call: Driver, store: CtxChatStore) -> None:
    messages = [user("a"), bot("b"), user("c"), bot("d")]
    await call(store, "set_messages", "k", messages)
    await call(store, "set_messages", "other", [user("x")])
    assert await call(store, "delete_message", "k", 1) == bot("b")
    assert await call(store, "delete_message", "k", -3) == user("a")
    assert await call(store, "delete_last_message", "k") == bot("d")
    assert await call(store, "get_messages", "k") == [user("c")]
    for index in (1, -2, 99):
        assert await call(store, "delete_message", "k", index) is None
    assert await call(store, "delete_messages", "k") == [user("c")]
    assert await call(store, "get_messages", "k") == []
    assert await call(store, "delete_messages", "k") is None
    assert await call(store, "delete_last_message", "k") is None
    assert await call(store, "delete_message", "nobody", 0) is None
    assert await call(store, "get_keys") == ["other"]


async def test_nothing_is_made_by_looking(call: Driver, store: CtxChatStore, shared: Store) -> None:
    await call(store, "get_messages", "k")
    await call(store, "delete_last_message", "k")
    await call(store, "delete_messages", "k")
    assert shared.sessions("default") == ()


ODD = [
    ChatMessage(role="system", content="be brief"),
    result("never called"),
    user("look twice"),
    ChatMessage(role="assistant", blocks=[ThinkingBlock(content="hm", additional_information={"signature": "s"})]),
    calling("a", "b"),
    result("a"),
    bot("left"),
    result("a"),
    ChatMessage(role="user", blocks=[TextBlock(text="see"), ImageBlock(url="https://example.org/a.png")]),
    ChatMessage(role="assistant", content="x", additional_kwargs={"refusal": None, "n": [1]}),
    calling("c"),
]


async def test_any_messages_come_back_as_they_were_put(call: Driver, store: CtxChatStore) -> None:
    """Orphans, lost results and rounds that still wait too: it is for the memory above to know what is legal."""
    for message in ODD:
        await call(store, "add_message", "one by one", message)
    await call(store, "set_messages", "at once", ODD)
    assert await call(store, "get_messages", "one by one") == ODD
    assert await call(store, "get_messages", "at once") == ODD
    await call(store, "add_message", "at once", result("c"))
    assert (await call(store, "get_messages", "at once"))[-2:] == [calling("c"), result("c")]


async def test_a_function_of_old_comes_back_as_it_was_put(call: Driver, store: CtxChatStore) -> None:
    """From before calls had ids."""
    asking = ChatMessage(role="assistant", content="", additional_kwargs={"function_call": {"name": "look"}})
    telling = ChatMessage(role="function", content="found", additional_kwargs={"name": "look"})
    messages = [user("look"), asking, telling, bot("There.")]
    for message in messages:
        await call(store, "add_message", "k", message)
    assert await call(store, "get_messages", "k") == messages
    assert await call(store, "delete_message", "k", 2) == telling


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("unknown", ["zz", "a"])
async def test_a_result_of_no_call_within_a_round_parts_nothing(
    whole: bool, unknown: str, call: Driver, store: CtxChatStore
) -> None:
    """As a workflow leaves it that goes on after it was cancelled: a result of the run before, or one twice."""
    messages = [user("look"), calling("a", "b"), result("a"), result(unknown), result("b"), bot("There.")]
    if whole:
        await call(store, "set_messages", "k", messages)
    else:
        for message in messages:
            await call(store, "add_message", "k", message)
    assert await call(store, "get_messages", "k") == messages


@pytest.mark.parametrize("index", [1, 4, 5, 7])
def test_a_message_of_a_tool_round_is_deleted_alone(index: int, store: CtxChatStore) -> None:
    store.set_messages("k", ODD)
    assert store.delete_message("k", index) == ODD[index]
    assert store.get_messages("k") == [*ODD[:index], *ODD[index + 1 :]]


def test_a_memory_on_the_same_session_sees_a_legal_conversation(store: CtxChatStore, shared: Store) -> None:
    store.set_messages("k", ODD[:-1])
    memory = CtxMemory.from_defaults("k", store=shared, context_window=4_000)
    waiting: set[str] = set()
    for message in memory.get():
        calls = {str(b.tool_call_id) for b in message.blocks if isinstance(b, ToolCallBlock)}
        if message.role.value == "tool":
            waiting.remove(message.additional_kwargs["tool_call_id"])
        else:
            assert not waiting
            waiting = calls
    memory.put(user("and now?"))
    assert store.get_messages("k")[-1] == user("and now?")


def test_what_was_deleted_is_still_in_the_archive(store: CtxChatStore) -> None:
    store.set_messages("k", [user("my locker is 47-B"), bot("noted")])
    store.delete_messages("k")
    store.context("k").undo()
    assert store.get_messages("k") == [user("my locker is 47-B"), bot("noted")]


def test_what_a_memory_adds_to_a_window_is_not_stored(store: CtxChatStore) -> None:
    recalled = ChatMessage(role="user", content="recalled", additional_kwargs={"ctxfold_kind": "section"})
    store.set_messages("k", [user("hello"), recalled])
    store.add_messages("k", [recalled, bot("hi")])
    assert [m.text for m in store.context("k").messages()] == ["hello", "hi"]


def test_a_compacted_session_is_a_whole_history(store: CtxChatStore, shared: Store) -> None:
    memory = CtxMemory.from_defaults("k", store=shared, token_limit=300)
    messages = [user(f"Plant {i} stands on the sill number {i * 7}.") for i in range(60)]
    memory.put_messages(messages)
    memory.get()
    assert memory.context.usage().compactions
    assert store.get_messages("k") == messages
    assert store.delete_message("k", 0) == messages[0]
    assert store.get_messages("k") == messages[1:]


def test_looking_at_a_memorys_session_leaves_its_rules_alone(shared: Store) -> None:
    memory = CtxMemory.from_defaults("k", store=shared, token_limit=300)
    memory.put_messages([user("a"), bot("b")])
    with CtxChatStore(shared) as store:
        assert store.get_messages("k") == [user("a"), bot("b")]
        store.add_message("k", user("c"))
        store.add_message("new", user("d"))
        assert store.get_keys() == ["k", "new"]
    assert memory.context.policy == memory.context.policy
    assert memory.context.policy.auto_compact
    again = CtxMemory.from_defaults("new", store=shared, token_limit=300)
    assert again.context.policy == again.context.policy


def test_owners_do_not_see_each_other(tmp_path: Path) -> None:
    with SqlStore(f"sqlite:///{tmp_path / 'chat.db'}") as shared:
        ann, bob = CtxChatStore(shared, owner="ann"), CtxChatStore(shared, owner="bob")
        ann.add_message("k", user("hello"))
        assert bob.get_messages("k") == bob.get_keys() == []


def test_it_lasts(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'chat.db'}"
    with CtxChatStore(url) as store:
        store.add_message("k", user("ハロー héllo"))
    with CtxChatStore(url) as store:
        assert store.get_messages("k") == [user("ハロー héllo")]


async def test_on_postgresql(postgres_url: str) -> None:
    with fresh_schema(postgres_url) as url:
        with CtxChatStore(url) as store:
            store.set_messages("k", ODD)
            await asyncio.gather(*(store.async_add_message("l", user(f"message {i}")) for i in range(16)))
        with CtxChatStore(url) as store:
            assert store.get_messages("k") == ODD, "also the call that has not come back when its process ended"
            assert len(store.get_messages("l")) == 16
            assert store.get_keys() == ["k", "l"]
            with CtxMemory.from_defaults("l", store=url, token_limit=100) as memory:
                memory.get()
                assert memory.context.usage().compactions
                assert len(memory.get_all()) == len(store.get_messages("l")) == 16


def test_threads_lose_nothing(store: CtxChatStore) -> None:
    work = [
        threading.Thread(target=store.add_message, args=(f"k{n % 2}", user(f"{t} {n}")))
        for t in range(4)
        for n in range(20)
    ]
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()
    assert len({m.content for k in ("k0", "k1") for m in store.get_messages(k)}) == 80


async def test_concurrent_first_use_loses_nothing(tmp_path: Path) -> None:
    with CtxChatStore(f"sqlite:///{tmp_path / 'chat.db'}") as store:
        await asyncio.gather(*(store.async_add_message("k", user(f"message {i}")) for i in range(32)))
        assert len(await store.aget_messages("k")) == 32


# under LlamaIndex's own memories


@pytest.mark.parametrize("kind", [ChatMemoryBuffer, ChatSummaryMemoryBuffer])
def test_a_buffer_keeps_its_history_here(kind: Any, store: CtxChatStore) -> None:
    memory = kind.from_defaults(chat_store=store, chat_store_key="ann", chat_history=[user("a"), bot("b")])
    memory.put(user("c"))
    assert [m.content for m in memory.get()] == [m.content for m in store.get_messages("ann")] == ["a", "b", "c"]
    memory.reset()
    assert store.get_messages("ann") == []


async def test_an_engine_and_an_agent_run_on_it(store: CtxChatStore, llms: Made) -> None:
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    memory = ChatMemoryBuffer.from_defaults(chat_store=store, chat_store_key="ann", token_limit=3_000)
    with ModelServer(model="lookup") as server:
        llm = llms(server)
        agent = FunctionAgent(tools=[add], llm=llm)
        assert "42" in str(await agent.run('Please call add with {"a": 40, "b": 2}', memory=memory))
        assert [m.role.value for m in store.get_messages("ann")] == ["user", "assistant", "tool", "assistant"]
        engine = SimpleChatEngine.from_defaults(llm=llm, memory=memory)
        engine.chat("My locker number is 4711.")
        assert "4711" in (await engine.achat("What is my locker number?")).response
    assert len(store.get_messages("ann")) == 8


# copies and serialisation


def test_a_buffer_over_it_survives_as_json(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'secret.db'}"
    with CtxChatStore(url, owner="ann") as store:
        memory = ChatMemoryBuffer.from_defaults(chat_store=store, chat_store_key="k", token_limit=100)
        memory.put(user("hello"))
        text = memory.to_string()
        assert "secret" not in text
        again = ChatMemoryBuffer.from_string(text)
        again.put(bot("hi"))
        assert memory.get() == [user("hello"), bot("hi")]
    with pytest.raises(ConfigError, match="register_store"):
        ChatMemoryBuffer.from_string(text)


def test_another_process_finds_it_by_its_name(tmp_path: Path) -> None:
    register_store("histories", f"sqlite:///{tmp_path / 'a.db'}")
    with CtxChatStore("histories", owner="ann") as store:
        store.add_message("k", user("hello"))
        data = json.loads(json.dumps(store.to_dict()))
    assert data["store"] == "histories"
    with CtxChatStore.from_dict(data) as again:
        assert (again.owner, again.get_messages("k")) == ("ann", [user("hello")])


@pytest.mark.parametrize("name", ["sqlite:///{}/planted.db", "memory://", None, 7])
def test_a_dict_cannot_choose_what_is_opened(name: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not trusted"):
        CtxChatStore.from_dict({"store": name.format(tmp_path) if isinstance(name, str) else name, "owner": "ann"})
    assert list(tmp_path.iterdir()) == []


def test_copies_share_the_store(store: CtxChatStore) -> None:
    store.add_message("k", calling("a"))
    for twin in (copy.copy(store), copy.deepcopy(store), pickle.loads(pickle.dumps(store)), store.model_copy()):
        assert twin.get_messages("k") == [calling("a")]


async def test_it_travels_in_the_context_of_a_workflow(store: CtxChatStore, llms: Made) -> None:
    with ModelServer(model="lookup") as server:
        agent = FunctionAgent(tools=[], llm=llms(server))
        context = Context(agent)
        memory = ChatMemoryBuffer.from_defaults(chat_store=store, chat_store_key="k", token_limit=3_000)
        await agent.run("My locker number is 4711.", ctx=context, memory=memory)
        restored = Context.from_dict(agent, json.loads(json.dumps(context.to_dict())))
        assert "4711" in str(await agent.run("What is my locker number?", ctx=restored))
    assert len(store.get_messages("k")) == 4


def test_a_history_set_anew_keeps_what_a_memory_has_compacted(store_url: str) -> None:
    """Step 7, item B13: the messages at its beginning that the session has already stay as they are."""
    with CtxChatStore(store_url) as histories, CtxMemory.from_defaults("s", store=store_url, token_limit=600) as memory:
        told = [ChatMessage(role="user" if n % 2 == 0 else "assistant", content=f"line {n} " * 12) for n in range(40)]
        memory.put_messages(told)
        memory.get()
        held, summaries = histories.get_messages("s"), [m for m in memory.context.view() if m.message.kind == "summary"]
        assert summaries
        histories.set_messages("s", [*held, ChatMessage(role="user", content="and more")])
        assert [m.content for m in histories.get_messages("s")] == [*(m.content for m in held), "and more"]
        assert [m for m in memory.context.view() if m.message.kind == "summary"] == summaries
