"""A chat store that a memory was given receives what async code stores."""

from __future__ import annotations

from typing import Any

import pytest
from llama_index.core.llms import ChatMessage
from llama_index.core.storage.chat_store import SimpleChatStore
from llama_index.core.storage.chat_store.sql import SQLAlchemyChatStore

from llamaindex_ctx import CtxMemory
from tests.llamaindex.talk import bot, user

pytestmark = [
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning"),
    # LlamaIndex's chat stores leave their connections to the collector
    pytest.mark.filterwarnings("ignore:.*aiosqlite.core.Connection.*was deleted before being closed:ResourceWarning"),
]
TOLD = user("My locker is 47-B.")


@pytest.mark.parametrize("simple", [True, False])
async def test_a_chat_store_is_kept_up_to_date_by_async_code(simple: bool) -> None:
    chat_store: Any = SimpleChatStore() if simple else SQLAlchemyChatStore(table_name="chats")
    if not simple:
        await chat_store.add_message("ann", TOLD)
    memory = CtxMemory(session_id="ann", token_limit=900, chat_store=chat_store)

    async def held() -> list[ChatMessage]:
        return chat_store.get_messages("ann") if simple else await chat_store.get_messages("ann")

    begun = [] if simple else [TOLD]
    assert await memory.aget_all() == begun
    await memory.aput("Hello.")
    await memory.aput_messages([bot("Hi."), user("Bye.")])
    assert await held() == await memory.aget_all() == [*begun, user("Hello."), bot("Hi."), user("Bye.")]
    await memory.aset([TOLD])
    assert await held() == [TOLD]
    await memory.areset()
    assert await held() == []


def test_what_a_chat_store_is_given_bears_no_marks_of_ours() -> None:
    """They would stand in whatever the chat store writes."""
    chat_store = SimpleChatStore()
    memory = CtxMemory(session_id="ann", token_limit=900, chat_store=chat_store)

    def written() -> str:
        return "\n".join(m.model_dump_json() for m in chat_store.get_messages("ann"))

    memory.put_messages([TOLD, bot("Noted.")])
    memory.put(user("And?"))
    assert [m.content for m in chat_store.get_messages("ann")] == [TOLD.content, "Noted.", "And?"]
    assert "ctxfold" not in written()
    memory.set(memory.get())
    assert "ctxfold" not in written()


async def test_archived_messages_of_a_chat_store_are_read_too() -> None:
    chat_store: Any = SQLAlchemyChatStore(table_name="chats")
    await chat_store.add_messages("ann", [TOLD, bot("Noted."), user("And?")])
    await chat_store.archive_oldest_messages("ann", 2)
    memory = CtxMemory(session_id="ann", token_limit=900, chat_store=chat_store)
    assert await memory.aget_all() == [TOLD, bot("Noted."), user("And?")]
