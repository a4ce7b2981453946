"""Chat stores under writers that come in between, and with calls that still wait: nothing is lost, nothing comes back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.memory import Memory

import llamaindex_ctx.chat_store
from ctxfold import Store
from llamaindex_ctx import CtxChatStore, CtxMemory
from llamaindex_ctx.chat_store import CtxAsyncChatStore
from tests.llamaindex.talk import bot, calling, result, user
from tests.llamaindex.twins import Driver

EDITS: dict[str, Callable[[CtxChatStore], object]] = {
    "insert": lambda store: store.add_message("k", user("between"), idx=1),
    "delete one": lambda store: store.delete_message("k", 0),
    "delete half a round": lambda store: store.delete_message("k", 3),
    "move": lambda store: store.move_oldest("k", 2, to="k/archived"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_message_that_comes_in_between_stays(edit: str, shared: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with CtxChatStore(shared) as store, CtxChatStore(shared) as other:
        store.set_messages("k", [user("a"), bot("b"), user("c"), calling("t"), result("t"), bot("d")])
        late = [user("late")]
        plain = llamaindex_ctx.chat_store.without_marks

        def meanwhile(message: ChatMessage, *, keep_id: bool = False) -> ChatMessage:
            if late:
                other.add_message("k", late.pop())
            return plain(message, keep_id=keep_id)

        monkeypatch.setattr(llamaindex_ctx.chat_store, "without_marks", meanwhile)
        EDITS[edit](store)
        assert not late
        assert store.get_messages("k")[-1] == other.get_messages("k")[-1] == user("late")
        assert len(store.get_messages("k")) == {"insert": 8, "move": 5}.get(edit, 6)


def test_threads_that_add_archive_and_delete_lose_nothing(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'chat.db'}"
    with CtxChatStore(url) as store, CtxChatStore(url) as other:
        deleted: list[ChatMessage] = []

        def adds(to: CtxChatStore, name: str) -> None:
            for n in range(15):
                to.add_message("k", user(f"{name} {n}"))

        def archives() -> None:
            for _ in range(10):
                other.move_oldest("k", 2, to="k/archived")

        def deletes() -> None:
            for _ in range(5):
                gone = store.delete_message("k", -1)
                deleted.extend([gone] if gone else [])

        work = [threading.Thread(target=adds, args=(s, n)) for s, n in ((store, "a"), (other, "b"), (store, "c"))]
        work += [threading.Thread(target=archives), threading.Thread(target=deletes)]
        for thread in work:
            thread.start()
        for thread in work:
            thread.join()
        kept = [m.content for key in ("k/archived", "k") for m in store.get_messages(key)]
        assert len(kept) == len(set(kept))
        assert {*kept, *(m.content for m in deleted)} == {f"{name} {n}" for name in "abc" for n in range(15)}


async def test_a_memory_of_llamaindex_that_flushes_meanwhile_loses_nothing(tmp_path: Path) -> None:
    async with CtxAsyncChatStore(f"sqlite:///{tmp_path / 'chat.db'}") as db:
        memory = Memory.from_defaults(
            "ann", chat_store=db, token_limit=120, chat_history_token_ratio=0.5, token_flush_size=20
        )
        for n in range(6):
            await asyncio.gather(*(memory.aput(user(f"message {n} {i} with some words")) for i in range(4)))
        said = [m.content for m in await db.get_messages("ann", None)]
        assert set(said) == {f"message {n} {i} with some words" for n in range(6) for i in range(4)}


async def test_deleting_takes_a_call_that_waits(call: Driver, shared: Store) -> None:
    with CtxChatStore(shared) as store:
        await call(store, "add_message", "k", user("a"))
        await call(store, "add_message", "k", calling("t"))
        assert len(await call(store, "delete_messages", "k")) == 2
        assert await call(store, "get_messages", "k") == []
        assert await call(store, "get_keys") == []
        await call(store, "add_message", "k", user("anew"))
        assert await call(store, "get_messages", "k") == [user("anew")]


def test_archiving_takes_a_call_that_waits(shared: Store) -> None:
    with CtxChatStore(shared) as store:
        store.add_message("k", calling("t"))
        assert store.move_oldest("k", 1, to="k/archived") == [calling("t")]
        assert store.get_messages("k") == []
        assert store.get_messages("k/archived") == [calling("t")]


async def test_resetting_a_memory_takes_a_call_that_waits(call: Driver, shared: Store) -> None:
    memory = CtxMemory.from_defaults("s", store=shared, context_window=4_000)
    await call(memory, "put", user("look"))
    await call(memory, "put", calling("t"))
    await call(memory, "reset")
    assert await call(memory, "get_all") == []
    await call(memory, "put", user("hello"))
    assert [m.content for m in await call(memory, "get")] == ["hello"]
    assert [m.content for m in await call(memory, "get_all")] == ["hello"]


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_leaves_pins_and_what_is_for_the_model_alone(edit: str, shared: Store) -> None:
    with CtxChatStore(shared) as store:
        store.set_messages("k", [user("a"), bot("b"), user("c"), calling("t"), result("t"), bot("d")])
        context = store.context("k")
        context.add("for the model", visibility="model")
        store.add_messages("k", [user("e"), bot("f")])
        context.pin(context.messages()[2].id)
        EDITS[edit](store)
        assert [m.text for m in context.messages() if m.visibility == "model"] == ["for the model"]
        assert [m.text for m in context.messages()][-3:] == ["for the model", "e", "f"]
        assert [b.preview for b in context.explain().blocks if b.why == "pinned"] == ["c"]


def test_an_edit_of_a_history_with_an_unanswered_round(shared: Store) -> None:
    with CtxChatStore(shared) as store:
        store.set_messages("k", [user("a"), calling("t"), user("b"), bot("c")])
        store.add_message("k", user("between"), idx=3)
        assert [m.content for m in store.get_messages("k")] == ["a", None, "b", "between", "c"]
        assert store.delete_message("k", 1) == calling("t")
        assert [m.content for m in store.get_messages("k")] == ["a", "b", "between", "c"]
