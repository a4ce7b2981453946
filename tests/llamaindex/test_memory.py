"""CtxMemory through LlamaIndex's memory interface, each behaviour sync and async."""

from __future__ import annotations

import asyncio
import base64
import copy
import threading
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.base.llms.types import ChatMessage, ImageBlock, MessageRole, TextBlock, ToolCallBlock
from llama_index.core.llms import MockLLM
from llama_index.core.memory import BaseMemory

from ctxfold import AgentContext, ConfigError, ContextOverflowError, MemoryStore
from ctxfold.errors import InvalidTextError, MessageConflictError, MessageTooLargeError, WindowTooSmallError
from llamaindex_ctx import CtxMemory
from tests.engine.test_media import png
from tests.llamaindex.twins import Driver


def user(text: str, **kwargs: Any) -> ChatMessage:
    return ChatMessage(role="user", content=text, additional_kwargs=kwargs)


def bot(text: str, **kwargs: Any) -> ChatMessage:
    return ChatMessage(role="assistant", content=text, additional_kwargs=kwargs)


def calling(*ids: str) -> ChatMessage:
    return ChatMessage(
        role="assistant", blocks=[ToolCallBlock(tool_call_id=i, tool_name="look", tool_kwargs={}) for i in ids]
    )


def result(call_id: str, text: str = "found") -> ChatMessage:
    return ChatMessage(role="tool", content=text, additional_kwargs={"tool_call_id": call_id})


def texts(messages: list[ChatMessage]) -> list[str]:
    return [m.content or "" for m in messages]


@pytest.fixture(params=["memory", "sqlite"])
def memory(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    store = None if request.param == "memory" else f"sqlite:///{tmp_path / 'chat.db'}"
    with CtxMemory.from_defaults("s1", store=store, context_window=2_000) as made:
        yield made


async def talk(call: Driver, memory: CtxMemory, rounds: int, start: int = 0) -> None:
    for i in range(start, start + rounds):
        await call(
            memory, "put", user(f"The locker of employee number {i} is in corridor {i * 37 % 101} on floor {i % 9}.")
        )
        await call(memory, "get")
        await call(memory, "put", bot(f"Noted for employee {i}."))


async def test_put_get_and_get_all(call: Driver, memory: CtxMemory) -> None:
    assert isinstance(memory, BaseMemory)
    await call(memory, "put", user("hello"))
    await call(memory, "put_messages", [bot("hi"), user("how are you?")])
    assert texts(await call(memory, "get")) == ["hello", "hi", "how are you?"]
    assert texts(await call(memory, "get_all")) == ["hello", "hi", "how are you?"]
    await call(memory, "reset")
    assert await call(memory, "get") == await call(memory, "get_all") == []


async def test_set_replaces_everything_system_messages_too(call: Driver, memory: CtxMemory) -> None:
    await call(memory, "put_messages", [ChatMessage(role="system", content="Be brief."), user("a"), bot("b")])
    await call(memory, "set", [ChatMessage(role="system", content="Be kind."), user("c")])
    assert texts(await call(memory, "get")) == ["Be kind.", "c"]
    again = await call(memory, "get_all")
    await call(memory, "set", again)
    assert texts(await call(memory, "get_all")) == ["Be kind.", "c"]
    await call(memory, "set", [])
    assert await call(memory, "get_all") == []


async def test_the_window_fits_and_the_archive_holds_everything(call: Driver, memory: CtxMemory) -> None:
    await talk(call, memory, 80)
    window = await call(memory, "get", "Where is the locker of employee number 3?")
    tokens = sum(memory.context.handle.counter.count_text(m.content or "") + 4 for m in window)
    assert tokens <= memory.context.policy.budget_tokens
    everything = await call(memory, "get_all")
    assert len(everything) == 160
    assert everything[6].content == "The locker of employee number 3 is in corridor 10 on floor 3."
    assert len({m.additional_kwargs["ctxfold_id"] for m in everything}) == 160
    assert any(m.additional_kwargs.get("ctxfold_kind") == "summary" and m.role is MessageRole.USER for m in window)


async def test_recalled_passages_stand_before_the_question_and_are_never_stored(
    call: Driver, memory: CtxMemory
) -> None:
    await talk(call, memory, 80)
    question = "Where is the locker of employee number 3?"
    coming = await call(memory, "get", input=question)
    assert coming[-1].additional_kwargs["ctxfold_kind"] == "section"
    assert "corridor 10" in (coming[-1].content or "")
    await call(memory, "put", user(question))
    asked = await call(memory, "get")
    assert asked[-1].content == question
    assert "corridor 10" in (asked[-2].content or "")
    assert texts(await call(memory, "get", input=question))[-2:] == texts(asked)[-2:]
    await call(memory, "put_messages", asked)
    await call(memory, "put", asked[-2])
    assert len(await call(memory, "get_all")) == 161


async def test_a_window_put_back_whole_stores_nothing(call: Driver, memory: CtxMemory) -> None:
    await talk(call, memory, 80)
    window = await call(memory, "get")
    await call(memory, "put_messages", window)
    assert len(await call(memory, "get_all")) == 160


async def test_recall_can_be_off(call: Driver) -> None:
    memory = CtxMemory.from_defaults(context_window=2_000, recall=False)
    await talk(call, memory, 80)
    window = await call(memory, "get", "Where is the locker of employee number 3?")
    assert not any(m.additional_kwargs.get("ctxfold_kind") == "section" for m in window)


async def test_the_initial_token_count_is_left_free(call: Driver, memory: CtxMemory) -> None:
    await talk(call, memory, 40)
    window = await call(memory, "get", initial_token_count=900)
    tokens = sum(memory.context.handle.counter.count_text(m.content or "") for m in window)
    assert tokens <= memory.context.policy.budget_tokens - 900
    with pytest.raises(WindowTooSmallError, match="initial token count is 5000"):
        await call(memory, "get", initial_token_count=5_000)
    assert len(await call(memory, "get_all")) == 80


async def test_the_newest_message_is_always_there(call: Driver, memory: CtxMemory) -> None:
    await talk(call, memory, 40)
    await call(memory, "put", user("word " * 900))
    assert (await call(memory, "get"))[-1].content == "word " * 900


async def test_a_message_that_can_never_fit_is_refused(call: Driver, memory: CtxMemory) -> None:
    await call(memory, "put", user("hello"))
    with pytest.raises(MessageTooLargeError, match="raise context_window"):
        await call(memory, "put", user("word " * 3_000))
    with pytest.raises(MessageTooLargeError):
        await call(memory, "set", [user("word " * 3_000)])
    assert texts(await call(memory, "get")) == ["hello"]


async def test_a_picture_that_can_never_fit_is_refused(call: Driver) -> None:
    """Its text is short, and the picture has a size of its own."""
    memory = CtxMemory.from_defaults(token_limit=150)
    picture = ImageBlock(image=base64.b64encode(png(2_000, 2_000)), image_mimetype="image/png", detail="high")
    with pytest.raises(MessageTooLargeError, match="the window leaves 150"):
        await call(memory, "put", ChatMessage(role="user", blocks=[TextBlock(text="See."), picture]))
    assert await call(memory, "get_all") == []


async def test_a_window_put_back_without_our_marks_stores_no_passages(call: Driver, memory: CtxMemory) -> None:
    """A program may make messages of its own of what it was given."""
    await talk(call, memory, 80)
    window = await call(memory, "get", "Where is the locker of employee number 3?")
    (recalled,) = [m for m in window if m.additional_kwargs.get("ctxfold_kind") == "section"]
    await call(memory, "put_messages", [user(str(recalled.content)), user("Where is it?")])
    stored = await call(memory, "get_all")
    assert len(stored) == 161
    assert stored[-1].content == "Where is it?"


async def test_text_that_is_no_text_is_refused(call: Driver, memory: CtxMemory) -> None:
    with pytest.raises(InvalidTextError, match="lone surrogate"):
        await call(memory, "put_messages", [user("fine"), user("bad \ud800")])
    assert await call(memory, "get_all") == []


async def test_the_same_id_is_kept_once_and_never_with_other_content(call: Driver, memory: CtxMemory) -> None:
    await call(memory, "put", user("hello", ctxfold_id="u1"))
    await call(memory, "put", user("hello", ctxfold_id="u1"))
    with pytest.raises(MessageConflictError, match=r'u1.*copy.*additional_kwargs\["ctxfold_id"\].*ChatMessage'):
        await call(memory, "put", user("other", ctxfold_id="u1"))
    assert texts(await call(memory, "get_all")) == ["hello"]


async def test_a_copy_in_a_list_that_is_set_is_a_new_message(call: Driver, memory: CtxMemory) -> None:
    await call(memory, "put_messages", [user("a"), bot("b")])
    old = await call(memory, "get_all")
    changed = old[0].model_copy(deep=True)
    changed.blocks = [TextBlock(text="a, in French")]
    await call(memory, "set", [*old, changed])
    assert texts(await call(memory, "get_all")) == ["a", "b", "a, in French"]
    await call(memory, "set", [old[0], old[0], old[1]])
    stored = await call(memory, "get_all")
    assert texts(stored) == ["a", "a", "b"]
    assert stored[0].additional_kwargs["ctxfold_id"] == old[0].additional_kwargs["ctxfold_id"]
    assert len({m.additional_kwargs["ctxfold_id"] for m in stored}) == 3
    await call(memory, "put", ChatMessage(role="user", blocks=changed.blocks))
    assert texts(await call(memory, "get")) == ["a", "a", "b", "a, in French"]


async def test_half_a_tool_round_waits_outside_the_window(call: Driver, memory: CtxMemory) -> None:
    await call(memory, "put", user("look twice"))
    await call(memory, "put", calling("a", "b"))
    assert texts(await call(memory, "get")) == ["look twice"]
    await call(memory, "put", result("a"))
    assert len(await call(memory, "get_all")) == 3
    assert texts(await call(memory, "get")) == ["look twice"]
    await call(memory, "put", result("b"))
    assert len(await call(memory, "get")) == 4


async def test_get_gives_new_objects(call: Driver, memory: CtxMemory) -> None:
    await call(memory, "put", user("hello"))
    given = (await call(memory, "get"))[0]
    given.blocks = [TextBlock(text="changed")]
    given.additional_kwargs["more"] = 1
    assert texts(await call(memory, "get")) == ["hello"]
    assert texts(await call(memory, "get_all")) == ["hello"]


async def test_two_memories_on_one_session_see_each_other(call: Driver, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'chat.db'}"
    with (
        CtxMemory.from_defaults("s", store=url, context_window=2_000) as one,
        CtxMemory.from_defaults("s", store=url, context_window=2_000) as two,
        CtxMemory.from_defaults("s", store=url, context_window=2_000, owner="else") as foreign,
    ):
        await call(one, "put", user("hello"))
        await call(two, "put", bot("hi"))
        assert texts(await call(one, "get")) == texts(await call(two, "get")) == ["hello", "hi"]
        assert await call(foreign, "get") == []


async def test_a_session_written_by_the_engine_reads_as_chat_messages(call: Driver) -> None:
    store = MemoryStore()
    context = AgentContext(session_id="s", store=store, context_window=2_000, system="Be brief.")
    context.add("hello")
    memory = CtxMemory.from_defaults("s", store=store, context_window=2_000)
    assert [(m.role.value, m.content) for m in await call(memory, "get")] == [
        ("system", "Be brief."),
        ("user", "hello"),
    ]
    await call(memory, "put", bot("hi"))
    assert [m.text for m in context.window().messages] == ["Be brief.", "hello", "hi"]


def test_from_defaults_takes_the_names_of_the_stock_memories() -> None:
    memory = CtxMemory.from_defaults(chat_history=[user("a"), bot("b")], llm=MockLLM(), token_limit=100)
    assert texts(memory.get_all()) == ["a", "b"]
    assert memory.context.policy.budget_tokens == 100
    assert CtxMemory.from_defaults(llm=MockLLM()).context.policy.context_window == MockLLM().metadata.context_window
    both = CtxMemory.from_defaults(token_limit=100, context_window=400).context.policy
    assert (both.context_window, both.budget_tokens) == (400, 100)
    assert (
        CtxMemory.from_defaults(context_window=400, reply_reserve_tokens=50, hard_ratio=0.7).context.policy.hard_ratio
        == 0.7
    )


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"token_limit": 0}, "token_limit is 0"),
        ({"token_limit": 10, "context_window": 10}, "lower token_limit"),
        ({"context_window": -1}, "context_window is -1"),
        ({"context_window": 100, "reply_reserve_tokens": 100}, "reply reserve 100"),
        ({"context_window": 100, "no_such_rule": 1}, "no_such_rule"),
        ({"context_window": 100, "store": "nowhere"}, "register_store"),
    ],
)
def test_wrong_settings_say_what_to_do(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        CtxMemory.from_defaults(**settings)


def test_a_tokenizer_function_counts() -> None:
    memory = CtxMemory.from_defaults(token_limit=60, tokenizer_fn=str.split)
    assert len(memory.tokenizer_fn("a b c")) == 3
    assert memory.context.handle.counter.count_text("a b c") == 3
    assert len(CtxMemory.from_defaults(token_limit=60).tokenizer_fn("hello world")) == 2


def test_copies_share_the_engine() -> None:
    memory = CtxMemory.from_defaults(context_window=2_000)
    for twin in (copy.copy(memory), copy.deepcopy(memory), memory.model_copy(), memory.model_copy(deep=True)):
        assert twin.context is memory.context
    copy.deepcopy(memory).put(user("hello"))
    assert texts(memory.get()) == ["hello"]


def test_it_is_never_falsy() -> None:
    assert CtxMemory.from_defaults(context_window=2_000)


def test_another_thread_may_put_while_this_one_reads() -> None:
    memory = CtxMemory.from_defaults(context_window=4_000)
    writers = [threading.Thread(target=lambda i=i: [memory.put(user(f"{i}.{n}")) for n in range(20)]) for i in range(4)]
    for writer in writers:
        writer.start()
    for _ in range(20):
        memory.get()
    for writer in writers:
        writer.join()
    found = texts(memory.get_all())
    assert len(found) == 80
    for i in range(4):
        assert [t for t in found if t.startswith(f"{i}.")] == [f"{i}.{n}" for n in range(20)]


def test_what_cannot_be_made_to_fit_says_so() -> None:
    memory = CtxMemory.from_defaults(context_window=400, auto_compact=False)
    with pytest.raises(ContextOverflowError, match="automatic compaction is off"):
        for i in range(60):
            memory.put(user(f"message number {i} with some words"))
            memory.get()
            memory.put(bot("ok"))


async def test_context_managers(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'chat.db'}"
    async with CtxMemory.from_defaults("s", store=url, context_window=2_000) as memory:
        await memory.aput(user("hello"))
    async with CtxMemory.from_defaults("s", store=url, context_window=2_000) as memory:
        assert texts(await memory.aget()) == ["hello"]


async def test_cancelled_put_leaves_a_readable_session(tmp_path: Path) -> None:
    async with CtxMemory.from_defaults("s", store=f"sqlite:///{tmp_path / 'a.db'}", context_window=2_000) as memory:
        task = asyncio.create_task(memory.aput(user("maybe")))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await memory.aput(user("surely"))
        assert texts(await memory.aget_all())[-1] == "surely"


def test_config_errors_never_show_a_password() -> None:
    with pytest.raises(ConfigError) as caught:
        CtxMemory.from_defaults(context_window=100, store="mysql://me:secret@host/db")
    assert "secret" not in str(caught.value)


def test_what_langchain_wrote_reads_as_normal_messages_and_the_same_window() -> None:
    from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

    from langchain_ctx import CtxChatMessageHistory

    store = MemoryStore()
    history = CtxChatMessageHistory("s", store=store, context_window=2_000)
    asked = AIMessage(
        "",
        tool_calls=[{"id": "c1", "name": "look", "args": {"q": 1}}],
        additional_kwargs={"reasoning_content": "Better look."},
    )
    history.add_messages([HumanMessage("hello"), asked, ToolMessage("found", tool_call_id="c1"), AIMessage("done")])
    memory = CtxMemory.from_defaults("s", store=store, context_window=2_000)
    window = memory.get()
    assert [m.role.value for m in window] == ["user", "assistant", "tool", "assistant"]
    assert window[1].blocks[-1] == ToolCallBlock(tool_call_id="c1", tool_name="look", tool_kwargs={"q": 1})
    assert window[1].additional_kwargs["reasoning_content"] == "Better look."
    assert window[2].additional_kwargs["tool_call_id"] == "c1"
    memory.put(user("and now?"))
    assert [m.content for m in history.messages][-1] == "and now?"


def test_half_a_round_that_was_set_can_be_finished() -> None:
    memory = CtxMemory.from_defaults(context_window=2_000)
    memory.set([user("look"), calling("a")])
    memory.put(result("a"))
    memory.put(bot("done"))
    assert [m.role.value for m in memory.get()] == ["user", "assistant", "tool", "assistant"]


def test_names_load_on_first_use() -> None:
    import llamaindex_ctx

    assert set(llamaindex_ctx.__all__) <= set(dir(llamaindex_ctx))
    for name in llamaindex_ctx.__all__:
        assert getattr(llamaindex_ctx, name).__module__.startswith("llamaindex_ctx.")
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = llamaindex_ctx.no_such_name


def test_the_representation_names_session_store_and_window(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'chat.db'}"
    with CtxMemory.from_defaults("s", store=url, context_window=4_000) as memory:
        assert (
            repr(memory) == f"CtxMemory(session_id='s', owner='default', store=SqlStore({url!r}), context_window=4000)"
        )
