"""Mistakes of a LlamaIndex user end in a typed error which says what was given and what to give, and store nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from llama_index.core.llms import ChatMessage
from llama_index.core.llms.mock import MockLLM
from llama_index.core.memory import StaticMemoryBlock

from ctxfold import ConfigError, CtxError, MessageError
from ctxfold.testing import ModelServer
from llamaindex_ctx import CtxChatStore, CtxLLM, CtxMemory, CtxMemoryBlock, history_tools, with_context, with_reasoning
from llamaindex_ctx.backend import LlamaIndexBackend
from llamaindex_ctx.store_registry import register_store
from llamaindex_ctx.wrapper import ContextLLM

pytestmark = pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning")


STATIC = StaticMemoryBlock(static_content="x")


def opened(session: Any = "s", **settings: Any) -> CtxMemory:
    return CtxMemory.from_defaults(session, **{"context_window": 8_000, **settings})


MADE: list[tuple[str, str, Callable[[], object]]] = [
    ("a name in the first place", r"keyword arguments: CtxMemory\(session_id=", lambda: CtxMemory("s")),  # type: ignore[arg-type]
    ("limit as text", "token_limit is '3000'", lambda: CtxMemory.from_defaults("s", token_limit="3000")),  # type: ignore[arg-type]
    ("window as text", "context_window is '8000'", lambda: opened(context_window="8000")),
    ("both", "token_limit is 9000 and context_window 8000", lambda: opened(token_limit=9_000)),
    ("window as text, and a limit", "context_window is '8000'", lambda: opened(context_window="8000", token_limit=9)),
    ("a model's name", "llm is a str: give a LlamaIndex LLM", lambda: opened(llm="gpt-4o")),
    ("the class of an LLM", "llm is the class MockLLM", lambda: opened(llm=MockLLM)),
    ("a file's name", "no store is registered as 'chat.db'.*sqlite:///chat.db", lambda: opened(store="chat.db")),
    ("a path", "store is a PosixPath: use 'sqlite:///chat.db'", lambda: opened(store=Path("chat.db"))),
    ("two slashes", "names a server, 'chat.db'.*three slashes", lambda: opened(store="sqlite://chat.db")),
    ("another driver", "sqlite.pysqlcipher.*the same URL", lambda: opened(store="sqlite+pysqlcipher:///chat.db")),
    ("nobody's session", "session name is empty", lambda: opened("")),
    ("a number's session", "session_id is an int: give the session's name", lambda: opened(5)),
    ("a chat store", "chat_store is a str: give a chat store", lambda: opened(chat_store="chat.db")),
    ("two places", "store and async_database_uri", lambda: opened(store="sqlite://", async_database_uri="sqlite://")),
    ("a store and a chat store", "store and chat_store", lambda: opened(store="sqlite://", chat_store=CtxChatStore())),
    ("two names", "session_id is 's' and chat_store_key 'ann'", lambda: opened(chat_store_key="ann")),
    ("two prompts", "the same setting", lambda: opened(summarize_prompt="Shorter!", summary_prompt="Longer!")),
    ("an engine's URL", "async_engine is a str", lambda: opened(async_engine="sqlite+aiosqlite:///a.db")),
    ("a share in per cent", "chat_history_token_ratio is 70", lambda: opened(chat_history_token_ratio=70)),
    ("a place of blocks", "insert_method is 'tail'", lambda: opened(insert_method="tail")),
    ("in its place and by name", "token_limit is given twice", lambda: CtxMemory.from_defaults("s", None, 900, token_limit=900)),
    ("too many", "19 positional arguments: there are 17", lambda: CtxMemory.from_defaults("s", *range(18))),
    ("text as history", "the messages are a str: give a list", lambda: opened(chat_history="Hello.")),
    ("dicts as history", "a message is a dict", lambda: opened(chat_history=[{"role": "user"}])),
    ("a tokenizer's name", "tokenizer_fn is a str", lambda: opened(tokenizer_fn="cl100k_base")),
    ("what counts", "tokenizer_fn returned an int: .*counter=", lambda: opened(tokenizer_fn=len)),
    ("blocks", "memory_blocks hold a str", lambda: opened(memory_blocks=["facts"])),
    ("one block", "memory_blocks is a StaticMemoryBlock: give a list", lambda: opened(memory_blocks=STATIC)),
    ("a misspelt limit", "setting 'token_limt': did you mean token_limit", lambda: opened(token_limt=900)),
    ("summariser", "setting 'summarizer': ctxfold calls it llm", lambda: opened(summarizer=MockLLM())),
    ("model", "setting 'model': ctxfold calls it llm", lambda: opened(model=MockLLM())),
    ("a misspelt session", "setting 'sesion_id': did you mean session_id", lambda: CtxMemory(sesion_id="s")),
    ("misspelt blocks", "setting 'memory_block': did you mean memory_blocks", lambda: opened(memory_block=[])),
    ("an LLM's misspelt session", "setting 'sesion_id': did you mean session_id", lambda: with_context(MockLLM(), sesion_id="s")),
    ("another's dict", "the dict has no 'owner': give what to_dict", lambda: CtxMemory.from_dict({"session_id": "s"})),
    ("another's text", "the dict has no 'session_id'", lambda: CtxMemory.from_string("{}")),
    ("sections", r"sections hold a MockLLM: make a section of it, section_from", lambda: opened(sections=[MockLLM()])),
    ("one section", "sections is a MockLLM: give a list", lambda: opened(sections=MockLLM())),
    ("embedder", "embedder is a str: give a LlamaIndex embedding", lambda: opened(embedder="bge")),
    ("wrapped name", "LLM of with_context is a str", lambda: with_context("gpt-4o")),  # type: ignore[arg-type]
    ("wrapped summariser", "summarizer is a str", lambda: with_context(MockLLM(), context_window=8_000, summarizer="x")),  # type: ignore[arg-type]
    ("wrapped sections", "sections hold a str", lambda: with_context(MockLLM(), context_window=8_000, sections=["x"])),  # type: ignore[list-item]
    ("wrapped limit", "ctxfold calls it context_window", lambda: with_context(MockLLM(), context_window=900, token_limit=3)),
    ("reasoning", "LLM of with_reasoning is a str", lambda: with_reasoning("gpt-4o")),  # type: ignore[type-var]
    ("backend", "LLM of a LlamaIndexBackend is a str", lambda: LlamaIndexBackend("gpt-4o")),  # type: ignore[arg-type]
    ("block", "CtxMemoryBlock is a str", lambda: CtxMemoryBlock("archive")),  # type: ignore[arg-type]
    ("another's address", "no setting 'api_base': ctxfold calls it base_url", lambda: CtxLLM(model="m", api_base="http://x/v1")),
    ("another's field", "no setting 'is_chat_model': there are model, provider", lambda: CtxLLM(model="m", is_chat_model=True)),
    ("another LLM", r"model is a MockLLM: give its name.*with_context\(llm\)", lambda: CtxLLM(MockLLM())),  # type: ignore[arg-type]
    ("no model", "model is missing: give its name", lambda: CtxLLM(provider="openai")),
    ("registered", "store is an int: use sqlite", lambda: register_store("chats", 5)),  # type: ignore[arg-type]
    ("tools of a memory", "a CtxMemory is no session: .*`.context`", lambda: history_tools(opened())),  # type: ignore[arg-type]
]  # fmt: skip


@pytest.mark.parametrize(("words", "make"), [m[1:] for m in MADE], ids=[m[0] for m in MADE])
def test_settings(words: str, make: Callable[[], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError if "message" not in words else MessageError, match=words):
        make()
    assert not list(tmp_path.iterdir())


PUT: list[tuple[str, Callable[[CtxMemory], Any], Callable[[CtxMemory], Any], str]] = [
    ("nothing", lambda m: m.put(None), lambda m: m.aput(None), "a message is None"),  # type: ignore[arg-type]
    ("a dict", lambda m: m.put({"role": "user"}), lambda m: m.aput({"role": "user"}), "a message is a dict"),  # type: ignore[arg-type]
    (
        "LangChain's",
        lambda m: m.put(HumanMessage("Hi")),  # type: ignore[arg-type]
        lambda m: m.aput(HumanMessage("Hi")),  # type: ignore[arg-type]
        "a message is a HumanMessage: give ChatMessage",
    ),
    ("a text", lambda m: m.put_messages("Hi"), lambda m: m.aput_messages("Hi"), "the messages are a str: give a list"),
    (
        "one message",
        lambda m: m.put_messages(ChatMessage("Hi")),  # type: ignore[arg-type]
        lambda m: m.aput_messages(ChatMessage("Hi")),  # type: ignore[arg-type]
        "the messages are a ChatMessage",
    ),
    ("a text in place", lambda m: m.set("Hi"), lambda m: m.aset("Hi"), "the messages are a str"),
    ("nothing in place", lambda m: m.set(None), lambda m: m.aset(None), "the messages are None"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("put", "aput", "words"), [p[1:] for p in PUT], ids=[p[0] for p in PUT])
async def test_what_is_put(put: Callable[[Any], Any], aput: Callable[[Any], Any], words: str) -> None:
    async with opened() as memory:
        memory.put("My locker is 47-B.")
        with pytest.raises(MessageError, match=words):
            put(memory)
        with pytest.raises(MessageError, match=words):
            await aput(memory)
        assert [m.content for m in memory.get_all()] == ["My locker is 47-B."]


def test_chat_store() -> None:
    store = CtxChatStore()
    store.add_message("ann", ChatMessage("Hi"))
    for wrong in ({"role": "user"}, None, HumanMessage("Hi")):
        with pytest.raises(MessageError, match="give ChatMessage"):
            store.add_message("ann", wrong)  # type: ignore[arg-type]
        with pytest.raises(MessageError, match="give ChatMessage"):
            store.set_messages("ann", [wrong])  # type: ignore[list-item]
    for key in ("", None, 5):
        with pytest.raises(ConfigError, match="the session name is"):
            store.add_message(key, ChatMessage("Hi"))  # type: ignore[arg-type]
    assert [m.content for m in store.get_messages("ann")] == ["Hi"]
    store.close()


async def test_what_is_asked() -> None:
    async with ModelServer(model="lookup", context_window=8_000) as server:
        llm = CtxLLM(model="lookup", base_url=server.base_url, api_key="x", context_window=8_000)
        wrapped = with_context(llm)
        for asked in (llm, wrapped):
            with pytest.raises(MessageError, match="a message is a dict: give ChatMessage"):
                await asked.achat([{"role": "user", "content": "Hi"}])  # type: ignore[list-item]
        with pytest.raises(MessageError, match="the messages are a str"):
            wrapped.chat("Hi")  # type: ignore[arg-type]
        assert server.requests == []
        wrapped.close()
        llm.close()
        await llm.aclose()


def test_a_closed_memory_says_so(tmp_path: Path) -> None:
    memory = opened(store=f"sqlite:///{tmp_path / 'chat.db'}")
    memory.close()
    for use in (memory.get, memory.get_all, lambda: memory.put("Hi")):
        with pytest.raises(CtxError, match="is closed: open a new one"):
            use()


def test_a_copy_of_an_llm_keeps_its_fields() -> None:
    """What serialises an LLM gives its own fields back, and nothing else."""
    llm = CtxLLM(model="m", base_url="http://127.0.0.1:9/v1", system_prompt="Be brief.")
    again = CtxLLM.from_dict(llm.to_dict())
    assert (again.model, again.base_url, again.system_prompt) == ("m", "http://127.0.0.1:9/v1", "Be brief.")


def test_an_llm_with_a_context_is_made_from_no_dict() -> None:
    """Its sessions and their store are in none, nor are the keys of the LLM inside."""
    llm = with_context(MockLLM(), context_window=8_000)
    for read in (lambda: ContextLLM.from_dict(llm.to_dict()), lambda: ContextLLM.from_json(llm.to_json())):
        with pytest.raises(ConfigError, match=r"not made from a dict.*with_context"):
            read()
