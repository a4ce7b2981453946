"""What LlamaIndex's own memories got wrong, each a test named after it (numbers are issues of run-llama/llama_index)."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    CompletionResponse,
    CompletionResponseGen,
    LLMMetadata,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)
from llama_index.core.llms.custom import CustomLLM
from pydantic import PrivateAttr

from ctxfold import BackendError, ContextBackend, HistoryCompacted, Request
from ctxfold import system as system_message
from ctxfold import user as user_message
from ctxfold.adapters.tool_rounds import NO_RESULT
from ctxfold.errors import MessageTooLargeError
from ctxfold.testing import ModelServer, Scripted
from llamaindex_ctx import CtxLLM, CtxMemory, LlmSummarizer, with_context


def user(text: str) -> ChatMessage:
    return ChatMessage(role="user", content=text)


def bot(text: str) -> ChatMessage:
    return ChatMessage(role="assistant", content=text)


def result(call_id: str, text: str = "found") -> ChatMessage:
    return ChatMessage(role="tool", content=text, additional_kwargs={"tool_call_id": call_id})


def call(call_id: str, **kwargs: Any) -> ToolCallBlock:
    return ToolCallBlock(tool_call_id=call_id, tool_name="look", tool_kwargs=kwargs)


def many(rounds: int) -> list[ChatMessage]:
    pairs = ((user(f"Plant {i} stands on the sill number {i * 7}."), bot(f"Plant {i} noted.")) for i in range(rounds))
    return [m for pair in pairs for m in pair]


def tokens(memory: CtxMemory, messages: Sequence[ChatMessage]) -> int:
    return sum(memory.context.handle.counter.count_text(m.content or "") + 4 for m in messages)


class Writer(CustomLLM):
    """Answers every request with one text, or raises; keeps the prompts."""

    text: str = "Plants stand on sills."
    fails: bool = False
    _prompts: list[str] = PrivateAttr(default_factory=list)

    @property
    def prompts(self) -> list[str]:
        return self._prompts

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(context_window=8_000, model_name="writer")

    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        self._prompts.append(prompt)
        if self.fails:
            raise RuntimeError("no quota left")
        return CompletionResponse(text=self.text)

    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:
        def chunks() -> Iterator[CompletionResponse]:
            yield self.complete(prompt)

        return chunks()  # type: ignore[return-value]


def test_21950_thinking_and_tool_calls_are_counted() -> None:
    memory = CtxMemory.from_defaults(context_window=4_000)
    memory.put(user("think"))
    before = memory.context.usage().window_tokens
    memory.put_messages(
        [
            ChatMessage(role="assistant", blocks=[ThinkingBlock(content="well " * 300), call("a", text="word " * 300)]),
            result("a"),
        ]
    )
    assert memory.context.usage().window_tokens - before > 600


def test_23144_a_system_message_is_never_evicted() -> None:
    memory = CtxMemory.from_defaults(token_limit=300)
    memory.put(ChatMessage(role="system", content="Answer in rhymes."))
    memory.put_messages(many(60))
    assert memory.get()[0].content == "Answer in rhymes."


def test_23151_thinking_and_tool_call_blocks_come_back() -> None:
    memory = CtxMemory.from_defaults(context_window=2_000)
    blocks = [ThinkingBlock(content="hm", additional_information={"signature": "s"}), TextBlock(text="so"), call("a")]
    memory.put_messages([user("q"), ChatMessage(role="assistant", blocks=blocks), result("a")])
    assert memory.get()[1].blocks == blocks


async def test_23183_a_failed_set_keeps_the_history() -> None:
    memory = CtxMemory.from_defaults(context_window=2_000)
    memory.put_messages(many(2))
    kept = memory.get_all()
    for bad in ([user("a"), user("\ud800")], [user("a"), user("word " * 3_000)]):
        with pytest.raises(ValueError if "\ud800" in (bad[1].content or "") else Exception):
            memory.set(bad)
        with pytest.raises(Exception):  # noqa: B017 - the same errors, async
            await memory.aset(bad)
        assert memory.get_all() == memory.get() == kept


async def test_23184_first_use_by_many_at_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'new.db'}"

    def open_and_put(number: int) -> None:
        with CtxMemory.from_defaults("s", store=url, context_window=4_000) as memory:
            memory.put(user(f"first {number}"))

    await asyncio.gather(*(asyncio.to_thread(open_and_put, i) for i in range(8)))
    with CtxMemory.from_defaults("s", store=url, context_window=4_000) as memory:
        assert sorted(m.content or "" for m in memory.get_all()) == [f"first {i}" for i in range(8)]


async def test_23185_no_messages_are_no_error() -> None:
    memory = CtxMemory.from_defaults(context_window=2_000)
    await memory.aput_messages([])
    memory.put_messages([])
    assert await memory.aget() == []


async def test_22562_results_lost_before_return_direct_leave_no_orphan_call() -> None:
    memory = CtxMemory.from_defaults(context_window=2_000)
    await memory.aput(user("look both ways"))
    scratchpad = [
        ChatMessage(role="assistant", blocks=[call("a"), call("b")]),
        result("a", "left"),
        ChatMessage(role="assistant", content="left", additional_kwargs={"tool_call_id": "a"}),
    ]
    await memory.aput_messages(scratchpad)
    window = await memory.aget()
    assert [m.role.value for m in window] == ["user", "assistant", "tool", "tool", "assistant"]
    assert (window[3].additional_kwargs["tool_call_id"], window[3].content) == ("b", NO_RESULT)


def test_22562_the_same_one_message_at_a_time() -> None:
    memory = CtxMemory.from_defaults(context_window=2_000)
    for message in [
        user("look both ways"),
        ChatMessage(role="assistant", blocks=[call("a"), call("b")]),
        result("a", "left"),
        bot("left"),
        user("and now?"),
    ]:
        memory.put(message)
    for shown in (memory.get(), memory.get_all()):
        assert [m.role.value for m in shown] == ["user", "assistant", "tool", "tool", "assistant", "user"]
        assert (shown[3].additional_kwargs["tool_call_id"], shown[3].content) == ("b", NO_RESULT)


def test_a_stale_scratchpad_of_a_failed_run_is_taken_in_legally() -> None:
    memory = CtxMemory.from_defaults(context_window=2_000)
    memory.put_messages([user("first"), user("second")])
    stale = ChatMessage(role="assistant", blocks=[call("old")])
    memory.put_messages([stale, ChatMessage(role="assistant", blocks=[call("new")]), result("new"), bot("done")])
    roles = [m.role.value for m in memory.get()]
    assert roles == ["user", "user", "assistant", "tool", "assistant", "tool", "assistant"]


def test_results_of_a_cancelled_run_among_those_of_the_next_one_are_kept_as_text() -> None:
    memory = CtxMemory.from_defaults(context_window=2_000)
    memory.put(user("second"))
    new = ChatMessage(role="assistant", blocks=[call("a"), call("b")])
    memory.put_messages([result("old", "before"), new, result("a"), result("old", "late"), result("b"), bot("done")])
    assert [m.role.value for m in memory.get()] == ["user", "user", "assistant", "tool", "tool", "user", "assistant"]
    assert [m.content for m in memory.get_all() if m.content and "old" not in m.content][1:-1:3] == [
        "Result of a tool call:\nbefore",
        "Result of a tool call:\nlate",
    ]


async def test_a_result_that_is_handed_in_once_more_is_told_once() -> None:
    """A workflow's context that goes on after its run was cancelled holds results twice: a question in their place would hide the
    user's."""
    called = ChatMessage(role="assistant", blocks=[call("a"), call("b")])
    twice = [user("look"), called, result("a"), result("b"), result("a"), result("b", "another")]
    memory = CtxMemory.from_defaults(context_window=2_000)
    memory.put_messages([*twice, bot("done")])
    told = "Result of a tool call:\nanother"
    assert [m.content for m in memory.get_all() if m.role.value == "user"] == ["look", told]
    async with ModelServer(model="m", script=[Scripted("done")], strict="openai") as server:
        llm = CtxLLM(model="m", base_url=server.base_url, api_key="x", context_window=8_000)
        await with_context(llm).achat(twice)
        sent = server.requests[-1].body["messages"]
        await llm.aclose()
    assert [m["content"] for m in sent if m["role"] == "user"] == ["look", told]


def test_a_result_of_no_call_leaves_calls_that_wait_open() -> None:
    memory = CtxMemory.from_defaults(context_window=2_000)
    memory.put_messages([user("q"), ChatMessage(role="assistant", blocks=[call("a")]), result("old", "late")])
    memory.put_messages([result("a"), bot("done")])
    assert [m.role.value for m in memory.get()] == ["user", "user", "assistant", "tool", "assistant"]


def test_parallel_results_in_any_order_and_one_by_one() -> None:
    memory = CtxMemory.from_defaults(context_window=2_000)
    memory.put_messages([user("q"), ChatMessage(role="assistant", blocks=[call("a"), call("b"), call("c")])])
    for call_id in ("c", "a", "b"):
        memory.put(result(call_id))
    memory.put(bot("done"))
    assert [m.additional_kwargs.get("tool_call_id") for m in memory.get()[2:5]] == ["c", "a", "b"]
    memory.put(result("a"))  # answered before: the memory goes on, as a list does
    assert (memory.get()[-1].role.value, memory.get()[-1].content) == (
        "user",
        f"Result of a tool call:\n{result('a').content}",
    )


def test_23055_a_prompt_written_into_a_given_message_does_not_reach_the_store() -> None:
    memory = CtxMemory.from_defaults(context_window=2_000)
    memory.put(user("hello"))
    block = memory.get()[-1].blocks[0]
    assert isinstance(block, TextBlock)
    block.text = f"Current state: {{}}. {block.text}"
    assert memory.get()[-1].content == memory.get_all()[-1].content == "hello"


def test_20256_the_first_message_of_a_cut_window_is_never_an_assistants() -> None:
    memory = CtxMemory.from_defaults(token_limit=250)
    for message in many(80):
        memory.put(message)
        assert memory.get()[0].role.value == "user"


def test_14014_the_summariser_sees_tool_calls_not_only_results() -> None:
    llm = Writer()
    memory = CtxMemory.from_defaults(token_limit=500, llm=llm)
    for i in range(12):
        memory.put_messages(
            [
                user(f"Look up plant {i}."),
                ChatMessage(role="assistant", blocks=[call(f"c{i}", plant=f"fern {i}")]),
                result(f"c{i}", f"It stands on sill {i * 7}."),
                bot("It stands there."),
            ]
        )
    assert 'calls look with {"plant": "fern 0"}' in llm.prompts[0]
    assert "sill 0" in llm.prompts[0]


def test_a_failing_summariser_loses_nothing() -> None:
    memory = CtxMemory.from_defaults(token_limit=300, llm=Writer(fails=True))
    seen: list[HistoryCompacted] = []
    memory.context.subscribe(lambda e: seen.append(e) if isinstance(e, HistoryCompacted) else None)
    messages = many(40)
    for message in messages:
        memory.put(message)
    assert [m.content for m in memory.get_all()] == [m.content for m in messages]
    assert {m.content for m in messages[-6:]} <= {m.content for m in memory.get()}
    assert seen
    assert {e.fallback_level for e in seen} == {"extractive"}


def test_summaries_are_few_and_originals_stay() -> None:
    llm = Writer()
    memory = CtxMemory.from_defaults(context_window=1_500, llm=llm)
    messages = many(50)
    for message in messages:
        memory.put(message)
        memory.get()
    assert 1 <= len(llm.prompts) <= 8
    assert [m.content for m in memory.get_all()] == [m.content for m in messages]


async def test_set_and_chat_history_respect_the_budget() -> None:
    for memory in (
        CtxMemory.from_defaults(token_limit=300, chat_history=many(60)),
        CtxMemory.from_defaults(token_limit=300),
        CtxMemory.from_defaults(token_limit=300),
    ):
        if not memory.get_all():
            await memory.aset(many(60))
        assert tokens(memory, await memory.aget()) <= 300
        assert len(memory.get_all()) == 120


async def test_32_concurrent_aputs_keep_every_message(tmp_path: Path) -> None:
    for store in (None, f"sqlite:///{tmp_path / 'a.db'}"):
        with CtxMemory.from_defaults(store=store, context_window=8_000) as memory:
            await memory.aput(user("first"))
            await asyncio.gather(*(memory.aput(user(f"message {i}")) for i in range(32)))
            assert len({m.content for m in await memory.aget_all()}) == 33


def test_4_threads_of_20_puts_keep_every_message(tmp_path: Path) -> None:
    with CtxMemory.from_defaults(store=f"sqlite:///{tmp_path / 'a.db'}", context_window=8_000) as memory:
        memory.put(user("first"))
        work = [
            threading.Thread(target=memory.put_messages, args=([user(f"{t} {n}")],))
            for t in range(4)
            for n in range(20)
        ]
        for thread in work:
            thread.start()
        for thread in work:
            thread.join()
        assert len({m.content for m in memory.get_all()}) == 81


async def test_5000_messages_leave_the_event_loop_free() -> None:
    """Other tasks take their turns while thousands of messages are stored, shown and read back."""
    memory = CtxMemory.from_defaults(context_window=400_000)
    turns = 0
    done = asyncio.Event()

    async def ticking() -> None:
        nonlocal turns
        while not done.is_set():
            turns += 1
            await asyncio.sleep(0)

    ticker = asyncio.create_task(ticking())
    await asyncio.sleep(0)
    for step in (memory.aset(many(2_500)), memory.aput_messages(many(200)), memory.aget(), memory.aget_all()):
        before = turns
        await step
        assert turns > before
    done.set()
    await ticker
    assert len(await memory.aget_all()) == 5_400


async def test_a_message_of_10_mb_is_refused_beside_a_free_event_loop() -> None:
    memory = CtxMemory.from_defaults(context_window=8_000)
    await memory.aput(user("first"))
    task = asyncio.create_task(memory.aput(user("some words " * 950_000)))
    turns = 0
    while not task.done():
        turns += 1
        await asyncio.sleep(0.002)
    with pytest.raises(MessageTooLargeError, match="raise context_window"):
        await task
    assert turns > 2
    assert [m.content for m in await memory.aget_all()] == ["first"]


def test_a_serialised_memory_is_json_after_many_turns() -> None:
    memory = CtxMemory.from_defaults(token_limit=300, chat_history=many(60))
    assert len(json.dumps(memory.to_dict())) < 2_000


@pytest.mark.parametrize(
    ("error", "kind"),
    [(TimeoutError("slow"), "timeout"), (ConnectionError("gone"), "connect"), (ValueError("bad"), "server")],
)
async def test_a_summariser_raises_nothing_but_backend_errors(error: Exception, kind: str) -> None:
    class Failing(Writer):
        def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
            raise error

    backend: ContextBackend = LlmSummarizer(Failing())
    request = Request([user_message("x", id="1")])
    for ask in (lambda: asyncio.to_thread(backend.send, request), lambda: backend.asend(request)):
        with pytest.raises(BackendError, match="the summariser writer") as caught:
            await ask()
        assert caught.value.kind == kind
    with pytest.raises(BackendError, match="the summariser writer"):
        backend.open_stream(request)
    with pytest.raises(BackendError, match="the summariser writer"):
        await backend.aopen_stream(request)


async def test_a_summariser_answers_with_the_text_alone() -> None:
    backend = LlmSummarizer(Writer(text="so far"))
    request = Request([system_message("sum up", id="1"), user_message("x", id="2")])
    assert (await backend.asend(request)).message.text == backend.send(request).message.text == "so far"
    assert (backend.model, backend.context_window) == ("writer", 8_000)
