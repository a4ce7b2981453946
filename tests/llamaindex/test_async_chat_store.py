"""CtxAsyncChatStore: our store under LlamaIndex's own Memory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from llama_index.core.memory import Memory
from llama_index.core.storage.chat_store.base_db import MessageStatus

from ctxfold import ConfigError, Store
from llamaindex_ctx.chat_store import CtxAsyncChatStore
from tests.llamaindex.talk import bot, calling, result, user


@pytest.fixture
def db(shared: Store) -> Iterator[CtxAsyncChatStore]:
    with CtxAsyncChatStore(shared) as made:
        yield made


async def test_batches_counts_and_pages(db: CtxAsyncChatStore) -> None:
    messages = [user(f"message {i}") if i % 2 else bot(f"message {i}") for i in range(1, 6)]
    await db.add_messages("k", messages)
    await db.add_message("other", user("hello"))
    assert await db.get_messages("k") == messages
    assert await db.count_messages("k") == 5
    assert await db.count_messages("nobody") == 0
    assert await db.get_messages("k", limit=2) == messages[:2]
    assert await db.get_messages("k", offset=2) == messages[2:]
    assert await db.get_messages("k", limit=2, offset=1) == messages[1:3]
    assert await db.get_keys() == ["k", "other"]
    assert await db.delete_message("k", 1) == messages[1]
    await db.set_messages("k", [user("only")])
    assert await db.get_messages("k") == [user("only")]
    await db.delete_messages("k")
    assert await db.get_messages("k", status=None) == []
    assert await db.get_keys() == ["other"]


async def test_the_oldest_are_archived_or_deleted(db: CtxAsyncChatStore) -> None:
    messages = [user("oldest"), calling("a"), result("a"), bot("middle"), user("newest")]
    await db.add_messages("k", messages)
    assert await db.archive_oldest_messages("k", 0) == []
    assert await db.archive_oldest_messages("k", 4) == messages[:4]
    assert await db.get_messages("k") == messages[4:]
    assert await db.get_messages("k", MessageStatus.ARCHIVED) == messages[:4]
    assert await db.get_messages("k", status=None) == messages
    assert await db.get_keys() == ["k"]
    assert await db.delete_oldest_messages("k", 9) == messages[4:]
    assert await db.get_messages("k", status=None) == messages[:4]
    await db.delete_messages("k", MessageStatus.ARCHIVED)
    assert await db.get_keys() == []


async def test_a_flush_in_the_middle_of_a_round_parts_nothing_for_good(db: CtxAsyncChatStore) -> None:
    await db.add_messages("k", [user("q"), calling("a", "b"), result("a"), result("b"), bot("done")])
    for n in (1, 1, 1, 1):
        await db.archive_oldest_messages("k", n)
    assert await db.get_messages("k") == [bot("done")]
    assert await db.get_messages("k", status=None) == [
        user("q"),
        calling("a", "b"),
        result("a"),
        result("b"),
        bot("done"),
    ]


async def test_a_stock_memory_over_it(db: CtxAsyncChatStore) -> None:
    memory = Memory.from_defaults(
        "ann", token_limit=300, token_flush_size=50, chat_history_token_ratio=1.0, chat_store=db
    )
    messages = [m for i in range(30) for m in (user(f"Plant {i} stands on sill {i * 7}."), bot("Noted."))]
    await memory.aput(messages[0])
    await memory.aput_messages([])
    for message in messages[1:]:
        await memory.aput(message)
    assert await memory.aget_all() == messages
    shown = await memory.aget()
    assert 2 <= len(shown) < 60
    assert shown == messages[-len(shown) :]
    assert [m.text for m in db.histories.context("ann/archived").messages()][:2] == [m.content for m in messages[:2]]
    await memory.areset()
    assert await memory.aget_all() == []


async def test_a_stock_memory_over_it_keeps_concurrent_puts(db: CtxAsyncChatStore) -> None:
    memory = Memory.from_defaults("ann", token_limit=30_000, chat_store=db)
    await asyncio.gather(*(memory.aput(user(f"message {i}")) for i in range(32)))
    assert len(await memory.aget_all()) == 32


async def test_a_key_cannot_name_the_archived_messages_of_another(db: CtxAsyncChatStore) -> None:
    """Step 7, item A2: the key "k/archived" read, and changed, what was archived of "k"."""
    await db.add_messages("k", [user("secret"), bot("noted")], MessageStatus.ARCHIVED)
    calls = [
        lambda: db.get_messages("k/archived"),
        lambda: db.get_messages("k/archived", None),
        lambda: db.count_messages("k/archived"),
        lambda: db.add_message("k/archived", user("x")),
        lambda: db.add_messages("k/archived", [user("x")]),
        lambda: db.set_messages("k/archived", []),
        lambda: db.delete_message("k/archived", 0),
        lambda: db.delete_messages("k/archived"),
        lambda: db.delete_oldest_messages("k/archived", 1),
        lambda: db.archive_oldest_messages("k/archived", 1),
    ]
    for call in calls:
        with pytest.raises(
            ConfigError, match=r"'k/archived' ends with '/archived', which names .* of 'k': give another"
        ):
            await call()
    assert [m.content for m in await db.get_messages("k", MessageStatus.ARCHIVED)] == ["secret", "noted"]
