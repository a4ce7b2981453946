"""Runs of `RunnableWithMessageHistory` that overlap, are cut off, or have others write beside them: nothing lost, nothing twice."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, ToolMessage
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import ConfigurableFieldSpec, Runnable, RunnableLambda
from langchain_core.runnables.history import RunnableWithMessageHistory

from ctxfold.errors import CtxWarning
from ctxfold.testing import ModelServer, Scripted, ScriptedCall
from langchain_ctx import ChatCtx, CtxChatMessageHistory
from tests.langchain.test_history import contents, words
from tests.support.postgres_schema import fresh_schema
from tests.timing import await_for

RUNS = 10
PROMPT = ChatPromptTemplate.from_messages([MessagesPlaceholder("history"), ("human", "{question}")])
MESSAGES = ChatPromptTemplate.from_messages([MessagesPlaceholder("history"), MessagesPlaceholder("question")])
NAMED = [ConfigurableFieldSpec(id=name, annotation=str, is_shared=True) for name in ("session_id", "owner")]


class Meeting:
    """A model that answers when all runs have asked: they do overlap."""

    def __init__(self, runs: int = RUNS) -> None:
        self.barrier = threading.Barrier(runs)
        self.arrived = 0
        self.all_here = asyncio.Event()

    def answer(self, given: Any) -> AIMessage:
        self.barrier.wait(timeout=60)
        return self._said(given)

    async def aanswer(self, given: Any) -> AIMessage:
        self.arrived += 1
        if self.arrived == self.barrier.parties:
            self.all_here.set()
        await asyncio.wait_for(self.all_here.wait(), 60)
        return self._said(given)

    def _said(self, given: Any) -> AIMessage:
        return AIMessage(f"to {newest(given)}")

    def as_runnable(self) -> Runnable[Any, Any]:
        return RunnableLambda(self.answer, self.aanswer)


def newest(given: Any) -> str:
    messages = given.to_messages() if hasattr(given, "to_messages") else given
    return str((messages["messages"] if isinstance(messages, dict) else messages)[-1].content)


def as_dict(answer: AIMessage) -> dict[str, Any]:
    return {"said": answer, "more": 1}


# how chains are written: what wraps the model, and what one run is given
FORMS: dict[str, tuple[Callable[[Runnable[Any, Any], Any], Any], Callable[[str], Any]]] = {
    "input and history keys": (
        lambda m, f: RunnableWithMessageHistory(
            PROMPT | m, f, input_messages_key="question", history_messages_key="history"
        ),
        lambda t: {"question": t},
    ),
    "a message as input": (
        lambda m, f: RunnableWithMessageHistory(
            MESSAGES | m, f, input_messages_key="question", history_messages_key="history"
        ),
        lambda t: {"question": [HumanMessage(t)]},
    ),
    "an output key": (
        lambda m, f: RunnableWithMessageHistory(
            PROMPT | m | as_dict,
            f,
            input_messages_key="question",
            history_messages_key="history",
            output_messages_key="said",
        ),
        lambda t: {"question": t},
    ),
    "input key alone": (
        lambda m, f: RunnableWithMessageHistory(m, f, input_messages_key="messages"),
        lambda t: {"messages": [HumanMessage(t)]},
    ),
    "a list": (lambda m, f: RunnableWithMessageHistory(m, f), lambda t: [HumanMessage(t)]),
    "a message": (lambda m, f: RunnableWithMessageHistory(m, f), HumanMessage),
    "a text": (lambda m, f: RunnableWithMessageHistory(m, f), lambda t: t),
    "owners named": (
        lambda m, f: RunnableWithMessageHistory(
            PROMPT | m,
            f,
            input_messages_key="question",
            history_messages_key="history",
            history_factory_config=NAMED,
        ),
        lambda t: {"question": t},
    ),
}


def config(form: str = "") -> Any:
    owner = {"owner": "ann"} if form == "owners named" else {}
    return {"configurable": {"session_id": "s", **owner}}


def assert_all_there(messages: list[BaseMessage]) -> None:
    asked = [str(m.content) for m in messages if m.type == "human"]
    answered = [str(m.content) for m in messages if m.type == "ai"]
    assert sorted(asked) == sorted(f"message {n}" for n in range(RUNS))
    assert sorted(answered) == sorted(f"to message {n}" for n in range(RUNS))
    for text in asked:  # each answer stands right behind its question
        at = contents(messages).index(text)
        assert contents(messages)[at + 1] == f"to {text}"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("how", ["tasks", "threads"])
async def test_ten_overlapping_turns(form: str, how: str, store_url: str) -> None:
    """10 of 10 user messages and 10 of 10 answers."""
    wrap, given = FORMS[form]
    async with CtxChatMessageHistory.factory(store=store_url, context_window=20_000) as factory:
        chain = wrap(Meeting().as_runnable(), factory)
        texts = [f"message {n}" for n in range(RUNS)]
        if how == "tasks":
            await asyncio.gather(*(chain.ainvoke(given(t), config(form)) for t in texts))
        else:
            with ThreadPoolExecutor(RUNS) as pool:
                list(pool.map(lambda t: chain.invoke(given(t), config(form)), texts))
        assert_all_there(factory("s", "ann" if form == "owners named" else "default").messages)


async def test_one_handle_for_overlapping_lists_warns() -> None:
    """The slicing happens upstream: it cannot be right, so it is said. The answers are all kept."""
    second_asks, first_done = asyncio.Event(), asyncio.Event()

    async def answer(given: Any) -> AIMessage:
        if newest(given) == "second":
            second_asks.set()
            await asyncio.wait_for(first_done.wait(), 60)
        return AIMessage(f"to {newest(given)}")

    async with CtxChatMessageHistory("s", context_window=20_000) as history:
        model: Any = RunnableLambda(answer)
        chain = RunnableWithMessageHistory(model, lambda session_id: history)
        second = asyncio.create_task(chain.ainvoke([HumanMessage("second")], config()))
        await asyncio.wait_for(second_asks.wait(), 60)
        await chain.ainvoke([HumanMessage("first")], config())
        first_done.set()
        with pytest.warns(CtxWarning, match=r"without its user message.*factory"):
            await second
        assert contents(history.messages) == ["first", "to first", "to second"]


def test_an_answer_alone_warns_in_threads_too() -> None:
    with CtxChatMessageHistory("s", context_window=20_000) as history:
        assert history.messages == []
        with ThreadPoolExecutor(1) as pool:
            pool.submit(history.add_messages, [HumanMessage("first"), AIMessage("to first")]).result()
        assert len(history.messages) == 2
        with pytest.warns(CtxWarning, match="without its user message"):
            history.add_messages([AIMessage("to second")])


def test_a_greeting_and_a_second_answer_by_hand_do_not_warn() -> None:
    with CtxChatMessageHistory("s", context_window=8_000) as history:
        assert history.messages == []
        history.add_ai_message("Welcome.")
        history.add_ai_message("What can I do for you?")  # nobody has read the handle since
        assert contents(history.messages) == ["Welcome.", "What can I do for you?"]


WRITERS = """
import multiprocessing, sys
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.runnables.history import RunnableWithMessageHistory
import ctxfold.stores.sql, sqlalchemy.dialects.postgresql, sqlalchemy.dialects.sqlite
from ctxfold.tokens.text import text_counter
from langchain_ctx import CtxChatMessageHistory

text_counter()  # its encoding is loaded once, too

def write(store, writer):
    answer = RunnableLambda(lambda given: AIMessage("to " + given[-1].content))
    with CtxChatMessageHistory.factory(store=store, context_window=20_000) as factory:
        by_list = RunnableWithMessageHistory(answer, factory)
        by_key = RunnableWithMessageHistory(
            RunnableLambda(lambda given: given["messages"]) | answer, factory, input_messages_key="messages"
        )
        for n in range(6):
            said = [HumanMessage(f"{writer}-{n}")]
            by_list.invoke(said, {"configurable": {"session_id": "list"}})
            by_key.invoke({"messages": said}, {"configurable": {"session_id": "keys"}})

fork = multiprocessing.get_context("fork")  # LangChain is imported once
writers = [fork.Process(target=write, args=(sys.argv[1], writer)) for writer in range(4)]
for writer in writers:
    writer.start()
for writer in writers:
    writer.join()
sys.exit(max(abs(writer.exitcode) for writer in writers))
"""


@pytest.fixture(params=["sqlite", "postgresql"])
def shared_store(request: pytest.FixtureRequest, store_url: str) -> Iterator[str]:
    if request.param == "sqlite":
        yield store_url
        return
    with fresh_schema(request.getfixturevalue("postgres_url")) as url:
        yield url


def test_four_processes_on_one_session(shared_store: str) -> None:
    """In both modes, a session each."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", WRITERS, shared_store]
    ended = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=900)
    assert ended.returncode == 0, ended.stderr
    assert "Error" not in ended.stderr  # RunnableWithMessageHistory only logs what a history raises
    for mode in ("keys", "list"):
        with CtxChatMessageHistory(mode, shared_store, 20_000) as history:
            said = contents(history.messages)
        for number in range(4):
            mine = [s for s in said if s.startswith(f"{number}-")]
            assert mine == [f"{number}-{n}" for n in range(6)]
            assert all(said[said.index(text) + 1] == f"to {text}" for text in mine)
        assert len(said) == 48


@pytest.mark.parametrize("form", FORMS)
def test_others_compact_the_session_in_the_middle_of_a_run(form: str) -> None:
    """What a run has been shown stays as it was until it has stored its own: no old message twice, no user turn lost."""
    wrap, given = FORMS[form]
    owner = "ann" if form == "owners named" else "default"
    with CtxChatMessageHistory.factory(context_window=1_000) as factory:
        for number in range(4):
            factory("s", owner).add_messages([HumanMessage(words(number)), AIMessage("ok")])

        def answer(asked: Any) -> AIMessage:
            for number in range(4, 12):
                factory("s", owner).add_messages([HumanMessage(words(number)), AIMessage("ok")])
            return AIMessage(f"to {newest(asked)}")

        wrap(RunnableLambda(answer), factory).invoke(given("mine"), config(form))
        context = factory("s", owner).context
        assert context.usage().compactions > 0
        said = [m.text for m in context.messages() if m.role == "user"]
        assert said == [*(words(n) for n in range(12)), "mine"]
        assert context.messages()[-1].text == "to mine"


# streams


@pytest.mark.parametrize("form", ["input and history keys", "a list"])
@pytest.mark.parametrize("how", ["sync", "async"])
async def test_an_abandoned_stream_leaves_nothing(form: str, how: str) -> None:
    wrap, given = FORMS[form]
    script = [Scripted("one two three four five six seven", chunks=6), Scripted("fine", chunks=2)]
    with (
        ModelServer(model="m", script=script) as server,
        ChatCtx(model="m", base_url=server.base_url, api_key="x") as model,
        CtxChatMessageHistory.factory(context_window=8_000) as factory,
    ):
        chain = wrap(model, factory)
        if how == "sync":
            stream = chain.stream(given("stop early"), config())
            next(stream)
            stream.close()
            list(chain.stream(given("works"), config()))
        else:
            source = chain.astream(given("stop early"), config())
            await anext(source)
            await source.aclose()
            async for _ in chain.astream(given("works"), config()):
                pass
        assert contents(factory("s").messages) == ["works", "fine"]


async def test_a_cancelled_run_leaves_nothing() -> None:
    async with CtxChatMessageHistory.factory(context_window=8_000) as factory:
        meeting = Meeting()
        chain = RunnableWithMessageHistory(meeting.as_runnable(), factory)
        run = asyncio.create_task(chain.ainvoke([HumanMessage("never answered")], config()))
        await await_for(lambda: meeting.arrived)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert await factory("s").aget_messages() == []


@pytest.mark.parametrize("form", ["input and history keys", "a list"])
async def test_streamed_tool_rounds_and_thoughts_are_whole_messages(form: str) -> None:
    """Streams are handed over as merged `AIMessageChunk`s: stored and read as what they say."""
    wrap, given = FORMS[form]
    calls = (ScriptedCall("look", '{"key": 1, "why": "because"}'), ScriptedCall("look", '{"key": 2}'))
    script = [Scripted(reasoning="Let me look.", tool_calls=calls, chunks=5), Scripted("Both found.", chunks=3)]
    with (
        ModelServer(model="m", script=script) as server,
        ChatCtx(model="m", base_url=server.base_url, api_key="x") as model,
        CtxChatMessageHistory.factory(context_window=8_000) as factory,
    ):
        chain = wrap(model, factory)
        pieces: list[AIMessageChunk] = [c async for c in chain.astream(given("Find both."), config())]
        whole = sum(pieces[1:], pieces[0])
        read = factory("s")
        read.add_messages([ToolMessage(f"found {c['args']['key']}", tool_call_id=c["id"]) for c in whole.tool_calls])
        [_ async for _ in chain.astream(given("And?"), config())]
        stored = factory("s").messages
        assert [m.type for m in stored] == ["human", "ai", "tool", "tool", "human", "ai"]
        answer: Any = stored[1]
        assert type(answer) is AIMessage
        assert answer.id == pieces[0].id
        assert [c["args"] for c in answer.tool_calls] == [{"key": 1, "why": "because"}, {"key": 2}]
        assert answer.additional_kwargs["reasoning_content"] == "Let me look."
        assert answer.usage_metadata == whole.usage_metadata
        assert answer.response_metadata["finish_reason"] == "tool_calls"


def test_chunks_of_any_model_and_their_merger() -> None:
    with CtxChatMessageHistory.factory(context_window=8_000) as factory:
        chain = RunnableWithMessageHistory(GenericFakeChatModel(messages=iter([AIMessage("one two three")])), factory)
        pieces = list(chain.stream([HumanMessage("count")], config()))
        assert len(pieces) > 3
        assert contents(factory("s").messages) == ["count", "one two three"]
        factory("t").add_messages([HumanMessage("count"), *pieces[:1]])  # a piece is a message of its own
        assert contents(factory("t").messages) == ["count", "one"]


def test_what_is_kept_in_a_file_is_there_for_the_next_process(store_url: str, tmp_path: Path) -> None:
    chain_of = FORMS["a list"][0]
    for number in range(3):
        with CtxChatMessageHistory.factory(store=store_url, context_window=8_000) as factory:
            chain_of(RunnableLambda(lambda g: AIMessage(f"after {len(g)}")), factory).invoke(f"m{number}", config())
    with CtxChatMessageHistory("s", store_url, 8_000) as history:
        assert contents(history.messages) == ["m0", "after 1", "m1", "after 3", "m2", "after 5"]
