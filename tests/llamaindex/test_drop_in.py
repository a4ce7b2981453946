"""`CtxMemory` in the place of LlamaIndex's own memories: every parameter that they have is accepted."""

from __future__ import annotations

import asyncio
import inspect
import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.llms import MockLLM
from llama_index.core.memory import ChatMemoryBuffer, ChatSummaryMemoryBuffer, InsertMethod, Memory, StaticMemoryBlock
from llama_index.core.memory.memory import DEFAULT_MEMORY_BLOCKS_TEMPLATE
from llama_index.core.prompts import RichPromptTemplate
from llama_index.core.storage.chat_store import SimpleChatStore
from llama_index.core.storage.chat_store.sql import SQLAlchemyChatStore
from llama_index.core.utils import get_tokenizer
from sqlalchemy.ext.asyncio import create_async_engine

from ctxfold.errors import CtxWarning
from llamaindex_ctx import CtxChatStore, CtxMemory
from llamaindex_ctx.chat_store import CtxAsyncChatStore
from tests.llamaindex.talk import bot, contents, parking, user

pytestmark = [
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning"),
    # LlamaIndex's chat stores leave their connections to the collector
    pytest.mark.filterwarnings("ignore:.*aiosqlite.core.Connection.*was deleted before being closed:ResourceWarning"),
]
STOCK: tuple[Any, ...] = (Memory, ChatMemoryBuffer, ChatSummaryMemoryBuffer)
TOLD = user("My locker is 47-B.")

# a value as programs give it, for every parameter
TYPICAL: dict[str, Callable[[Path], Any]] = {
    "session_id": lambda folder: "ann",
    "chat_history": lambda folder: [TOLD],
    "token_limit": lambda folder: 4_000,
    "memory_blocks": lambda folder: [StaticMemoryBlock(name="core", static_content="The user is Ann.")],
    "tokenizer_fn": lambda folder: get_tokenizer(),
    "chat_history_token_ratio": lambda folder: 0.5,
    "token_flush_size": lambda folder: 700,
    "memory_blocks_template": lambda folder: RichPromptTemplate("{{ memory_blocks }}"),
    "insert_method": lambda folder: InsertMethod.USER,
    "image_token_size_estimate": lambda folder: 500,
    "audio_token_size_estimate": lambda folder: 500,
    "video_token_size_estimate": lambda folder: 500,
    "document_token_size_estimate": lambda folder: 500,
    "chat_store": lambda folder: SimpleChatStore(),
    "sql_store": lambda folder: SQLAlchemyChatStore(table_name="chats"),
    "chat_store_key": lambda folder: "ann",
    "table_name": lambda folder: "chats",
    "async_database_uri": lambda folder: f"sqlite+aiosqlite:///{folder / 'uri.db'}",
    "async_engine": lambda folder: create_async_engine(f"sqlite+aiosqlite:///{folder / 'engine.db'}"),
    "db_schema": lambda folder: "chats",
    "llm": lambda folder: MockLLM(),
    "summarize_prompt": lambda folder: "Summarise in {words} words.",
    "count_initial_tokens": lambda folder: True,
}
WARNS = {
    "memory_blocks_template",
    "image_token_size_estimate",
    "audio_token_size_estimate",
    "video_token_size_estimate",
    "document_token_size_estimate",
    "table_name",
    "db_schema",
}


def parameters(called: Callable[..., Any]) -> list[inspect.Parameter]:
    held = inspect.signature(called).parameters.values()
    return [p for p in held if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]


def calls() -> Iterator[tuple[str, Callable[..., CtxMemory], str]]:
    """Every way to make a memory, with each parameter that LlamaIndex's classes have there."""
    for stock in STOCK:
        for p in parameters(stock.from_defaults):
            yield f"{stock.__name__}.from_defaults", CtxMemory.from_defaults, p.name
        for p in parameters(stock):
            yield stock.__name__, CtxMemory, p.name


def default_of(stock_call: str, name: str) -> Any:
    class_name, _, method = stock_call.partition(".")
    stock = next(c for c in STOCK if c.__name__ == class_name)
    found = inspect.signature(getattr(stock, method) if method else stock).parameters[name].default
    return found if isinstance(found, int | float | str | bool | InsertMethod | RichPromptTemplate) else None


@pytest.mark.parametrize(
    ("stock_call", "make", "name"), list(calls()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_each_parameter_with_its_default_and_a_typical_value(
    stock_call: str, make: Callable[..., CtxMemory], name: str, tmp_path: Path
) -> None:
    with make(**{name: default_of(stock_call, name)}) as memory:  # a warning would be an error
        memory.put(TOLD)
        assert memory.get() == memory.get_all() == [TOLD]
    value = TYPICAL[name](tmp_path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CtxWarning)
        made = make(**{name: value})
    with made as memory:
        said = [w for w in caught if issubclass(w.category, CtxWarning)]
        assert [str(w.message).split()[0] for w in said] == ([name] if name in WARNS else [])
        assert all(Path(w.filename) == Path(__file__) for w in said)
        memory.put(bot("Noted."))
        assert memory.get_all()[-1] == bot("Noted.")
    if isinstance(value, SQLAlchemyChatStore):
        # a connection that aiosqlite's finalizer has to end leaves an event loop open
        asyncio.run(value._async_engine.dispose())


@pytest.mark.parametrize("stock", STOCK)
def test_positions_are_those_of_the_stock_memory(stock: Any, tmp_path: Path) -> None:
    """Each prefix of the positional parameters means the same as the keywords."""
    names = [p.name for p in parameters(stock.from_defaults)]
    apart = {"chat_store": {"async_database_uri", "async_engine"}, "async_database_uri": {"async_engine"}}
    values = [TYPICAL[name](tmp_path) for name in names]
    for count in range(1, len(values) + 1):
        given = dict(zip(names[:count], values, strict=False))
        positional = [None if any(n in apart.get(m, ()) for m in given) else v for n, v in given.items()]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CtxWarning)
            with CtxMemory.from_defaults(*positional) as memory:
                rules = memory.context.policy
                assert memory.token_limit == given.get("token_limit", 3120 if "llm" in given else 30_000)
                if "session_id" in given or "chat_store_key" in given:
                    assert memory.session_id == "ann"
                if "chat_history" in given:
                    assert memory.get_all() == [TOLD]
                if "memory_blocks" in given:
                    assert [b.name for b in memory.memory_blocks] == ["core"]
                if "chat_history_token_ratio" in given:
                    assert rules.hard_ratio == 0.5
                if "summarize_prompt" in given:
                    assert rules.summary_prompt == "Summarise in {words} words."
                if "chat_store" in given:
                    assert memory.chat_store is given["chat_store"]


def test_the_limit_is_theirs_where_nothing_says_more() -> None:
    for memory in (CtxMemory(), CtxMemory.from_defaults(), CtxMemory.from_defaults("ann"), CtxMemory(session_id="ann")):
        assert memory.token_limit == Memory.from_defaults().token_limit == 30_000
        memory.close()
    with CtxMemory.from_defaults(llm=MockLLM()) as memory:
        assert memory.context.policy.context_window == 3_900
    with CtxMemory(context_window=8_000) as memory:
        assert memory.context.policy.context_window == 8_000


def test_flush_size_and_ratio_say_when_and_how_much_gives_way() -> None:
    settings: dict[str, Any] = {"token_limit": 2_000, "chat_history_token_ratio": 0.5, "token_flush_size": 300}
    rules = CtxMemory.from_defaults(**settings).context.policy
    assert (rules.hard_ratio, rules.tail_ratio, rules.min_free_ratio) == (0.5, pytest.approx(0.15), 0.15)
    memory, plain = CtxMemory.from_defaults(**settings), CtxMemory.from_defaults(token_limit=2_000)
    counts: list[int] = []
    for i in range(60):
        for each in (memory, plain):
            each.put_messages(parking(i))
            each.get()
        counts.append(memory.context.usage().window_tokens)
    assert max(counts) <= 1_100 < plain.context.usage().window_tokens
    assert len(memory.get_all()) == 120
    own = CtxMemory.from_defaults(**settings, hard_ratio=0.8).context.policy
    assert (own.hard_ratio, own.tail_ratio) == (0.8, pytest.approx(0.15))
    for extreme in ({"chat_history_token_ratio": 0.02}, {"token_flush_size": 0}, {"token_flush_size": 9_000}):
        with CtxMemory.from_defaults(token_limit=2_000, **extreme) as small:
            small.put_messages([m for i in range(40) for m in parking(i)])
            assert small.get()[-1] == parking(39)[-1]


def test_an_llm_of_unknown_window_gets_the_limit_and_a_warning() -> None:
    from llama_index.llms.openai_like import OpenAILike

    with pytest.warns(CtxWarning, match=r"window of OpenAILike is not known.* 30000 tokens.*context_window=") as caught:
        memory = CtxMemory.from_defaults(llm=OpenAILike(model="m", api_base="http://127.0.0.1:9/v1", api_key="x"))
    assert memory.token_limit == 30_000
    assert caught[0].filename == __file__


def test_a_chat_store_is_read_and_kept_up_to_date() -> None:
    chat_store = SimpleChatStore()
    memory = CtxMemory.from_defaults(token_limit=600, chat_store=chat_store, chat_store_key="user1")
    said = [m for i in range(60) for m in parking(i)]
    for message in said:
        memory.put(message)
    assert len(memory.get()) < len(said)
    memory.put(memory.get_all()[0])  # it is known already
    loaded = SimpleChatStore(store={key: chat_store.get_messages(key) for key in chat_store.get_keys()})
    assert loaded.get_messages("user1") == said
    again = CtxMemory.from_defaults(token_limit=600, chat_store=loaded, chat_store_key="user1")
    assert again.get_all() == said
    again.set(again.get())
    again.put("One more.")
    assert loaded.get_messages("user1") == again.get_all()
    assert again.get_all()[-1] == user("One more.")
    other = again.at("user2")
    other.put("Hello.")
    assert loaded.get_messages("user2") == [user("Hello.")]
    again.reset()
    assert loaded.get_messages("user1") == []
    key_of_the_buffers = CtxMemory.from_defaults(chat_store=SimpleChatStore())
    assert key_of_the_buffers.chat_store_key == ChatMemoryBuffer.from_defaults().chat_store_key


def test_our_own_chat_stores_are_the_store(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'chat.db'}"
    for histories in (CtxChatStore(url, owner="ann"), CtxAsyncChatStore(url, owner="ann")):
        with CtxMemory.from_defaults(chat_store=histories, chat_store_key="k") as memory:
            assert (memory.owner, memory.session_id) == ("ann", "k")
            memory.set([TOLD])
            with CtxChatStore(url, owner="ann") as read:
                assert read.get_messages("k") == [TOLD]
        histories.close()
    with CtxMemory.from_defaults("k", store=url, owner="ann") as memory:
        own = memory.chat_store
        assert isinstance(own, CtxChatStore)
        assert own.get_messages(memory.chat_store_key) == [TOLD]


def test_a_serialised_buffer_becomes_a_memory() -> None:
    messages = [TOLD, bot("Noted.")]
    held = {"store": {"ann": [m.model_dump() for m in messages]}, "class_name": "SimpleChatStore"}
    summary = {"summarize_prompt": "Summarise in {words} words.", "count_initial_tokens": False, "llm": None}
    for class_name, more in (("ChatMemoryBuffer", {}), ("ChatSummaryMemoryBuffer", summary)):
        buffer = {"class_name": class_name, "chat_store": held, "chat_store_key": "ann", "token_limit": 1_500, **more}
        again = CtxMemory.from_string(json.dumps(buffer))
        assert (again.session_id, again.token_limit, again.get_all()) == ("ann", 1_500, messages)
        assert again.context.policy.summary_prompt == more.get("summarize_prompt")
    old = {"token_limit": 900, "chat_history": [TOLD.model_dump()]}
    assert CtxMemory.from_dict(old).get_all() == [TOLD]


def test_no_default_of_theirs_has_changed() -> None:
    """A default that LlamaIndex changes would warn, or be taken for the user's wish."""
    defaults = {p.name: p.default for p in parameters(Memory.from_defaults)}
    assert defaults["memory_blocks_template"] is DEFAULT_MEMORY_BLOCKS_TEMPLATE
    assert (defaults["chat_history_token_ratio"], defaults["token_flush_size"]) == (0.7, 3_000)


def test_contents_of_a_history_in_the_first_place() -> None:
    assert contents(CtxMemory.from_defaults([TOLD], MockLLM()).get()) == [TOLD.content]
