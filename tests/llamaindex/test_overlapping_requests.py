"""Random requests of several runs over one session, which overlap, are cancelled and asked again."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from llama_index.core.base.llms.types import ChatMessage, ChatResponse
from llama_index.core.tools import FunctionTool

from ctxfold import Reply, Request, ToolCallPart, assistant
from ctxfold.backends.base import BaseBackend
from ctxfold.errors import TurnClosedError
from llamaindex_ctx import CtxLLM, with_context
from tests.llamaindex.served_llm import LOOK
from tests.properties.machine import assert_legal
from tests.support.taking_back import Moment, TakingBack

TOOLS: list[FunctionTool] = [LOOK]


class Waiting(BaseBackend):
    """A model whose replies come when they are released, in any order."""

    model = "m"
    context_window = 60_000

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.replies: dict[int, asyncio.Future[Reply]] = {}

    def send(self, request: Request) -> Reply:
        raise NotImplementedError

    async def asend(self, request: Request) -> Reply:
        number = len(self.requests)
        self.requests.append(request)
        self.replies[number] = asyncio.get_running_loop().create_future()
        return await self.replies[number]

    def release(self, number: int, *, calls: int) -> None:
        made = [ToolCallPart(f"c{number}-{i}", "look", json.dumps({"place": f"{number}-{i}"})) for i in range(calls)]
        self.replies[number].set_result(Reply(assistant(f"R{number}.", id=f"r{number}", calls=made)))


@dataclass
class Thread:
    """A list of messages that one client keeps, and the request that waits for its reply."""

    listed: list[ChatMessage] = field(default_factory=list[ChatMessage])
    task: asyncio.Task[ChatResponse] | None = None
    number: int = -1
    shared: bool = False  # others have asked the same


class Program:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.backend = Waiting()
        inner = CtxLLM(model="m", backend=self.backend, context_window=60_000, max_tokens=500)
        self.llm = with_context(inner, session_id="s")
        self.threads = [Thread() for _ in range(3)]
        self.questions = 0
        self.answers: list[str] = []
        self.answered = set[str]()  # questions and results that a reply has followed

    async def start(self, thread: Thread) -> None:
        """Asks with the results of the calls before or a new question; where a request was cancelled, also with the same list."""
        last = thread.listed[-1] if thread.listed else None
        calls = [] if last is None else last.additional_kwargs.get("tool_calls") or []
        if calls:
            thread.listed += [_message("tool", f"T{c['id']}", tool_call_id=c["id"]) for c in calls]
        elif (
            last is None or last.role == "assistant" or str(last.content) in self.answered or self.chance.random() < 0.5
        ):
            self.questions += 1
            thread.listed.append(_message("user", f"Q{self.questions}?"))
        before = len(self.backend.requests)
        thread.task = asyncio.create_task(self.llm.achat_with_tools(TOOLS, chat_history=list(thread.listed)))
        while len(self.backend.requests) == before:
            if thread.task.done():
                thread.task.result()
            await asyncio.sleep(0)
        thread.number = before
        messages = self.backend.requests[before].messages
        assert_legal(messages)
        texts = [m.text for m in messages]
        assert messages[-1].role in ("user", "tool")
        asked = next(m.content for m in reversed(thread.listed) if m.role == "user")
        assert asked in texts
        assert len(texts) == len(set(texts))

    async def finish(self, thread: Thread) -> None:
        assert thread.task is not None
        self.backend.release(thread.number, calls=self.chance.choice([0, 0, 1, 2]))
        reply = (await thread.task).message
        thread.task = None
        self.answered.add(str(thread.listed[-1].content))
        thread.listed.append(reply)
        if not reply.additional_kwargs.get("tool_calls"):
            self.answers.append(str(reply.content))

    async def cancel(self, thread: Thread) -> None:
        assert thread.task is not None
        thread.task.cancel()
        with suppress(asyncio.CancelledError):
            await thread.task
        thread.task = None
        if thread.shared:  # asked again, it would give up the answers of others
            thread.listed, thread.shared = [], False

    async def run(self, steps: int) -> None:
        for _ in range(steps):
            thread = self.chance.choice(self.threads)
            if thread.task is None:
                other = self.chance.choice(self.threads)
                if other.task is not None and self.chance.random() < 0.5:
                    thread.listed, thread.shared, other.shared = list(other.listed), True, True
                await self.start(thread)
            elif self.chance.random() < 0.3:
                await self.cancel(thread)
            else:
                await self.finish(thread)
        for thread in self.threads:
            while thread.task is not None or (thread.listed and thread.listed[-1].additional_kwargs.get("tool_calls")):
                if thread.task is None:
                    await self.start(thread)
                await self.finish(thread)


def _message(role: str, text: str, **kwargs: str) -> ChatMessage:
    return ChatMessage(role=role, content=text, additional_kwargs={"ctxfold_id": text, **kwargs})


@pytest.mark.parametrize("seed", range(12))
async def test_requests_of_several_runs_keep_all_that_was_said(seed: int) -> None:
    program = Program(seed)
    await program.run(30)
    told = [m.text for m in program.llm.context().messages()]
    assert len(told) == len(set(told))
    assert set(program.answers) <= set(told)
    await program.start(Thread())  # a later run


class TwoProcesses:
    """Two engines over one store, which know of each other what the store has, as in two processes."""

    def __init__(self, store: str) -> None:
        self.backend = Waiting()
        inner = CtxLLM(model="m", backend=self.backend, context_window=60_000, max_tokens=500)
        self.llms = [with_context(inner, session_id="s", store=store) for _ in range(2)]

    async def ask(self, process: int, *listed: ChatMessage) -> asyncio.Task[ChatResponse]:
        before = len(self.backend.requests)
        task = asyncio.create_task(self.llms[process].achat_with_tools(TOOLS, chat_history=list(listed)))
        while len(self.backend.requests) == before:
            if task.done():
                task.result()
            await asyncio.sleep(0)
        return task

    async def answer(self, number: int, task: asyncio.Task[ChatResponse], *, calls: int = 0) -> ChatMessage:
        self.backend.release(number, calls=calls)
        return (await task).message

    def told(self) -> list[str]:
        """The texts of the conversation, which both processes see alike."""
        first, second = ([m.text for m in llm.context().messages()] for llm in self.llms)
        assert first == second
        return first

    def close(self) -> None:
        for llm in self.llms:
            llm.context().close()


@pytest.fixture
def two(tmp_path: Path) -> Iterator[TwoProcesses]:
    processes = TwoProcesses(f"sqlite:///{tmp_path / 'two.db'}")
    yield processes
    processes.close()


@pytest.mark.parametrize("first", [0, 1])
async def test_two_processes_answer_one_question_and_both_replies_stay(two: TwoProcesses, first: int) -> None:
    question = _message("user", "Q?")
    tasks = [await two.ask(process, question) for process in range(2)]
    for number in (first, 1 - first):
        await two.answer(number, tasks[number])
    assert two.told() == ["Q?", f"R{first}.", f"R{1 - first}."]


@pytest.mark.parametrize("first", [0, 1])
async def test_two_replies_with_calls_of_two_processes_both_go_on(two: TwoProcesses, first: int) -> None:
    question = _message("user", "Q?")
    tasks = [await two.ask(process, question) for process in range(2)]
    replies = [await two.answer(number, task, calls=1) for number, task in enumerate(tasks)]
    for process in (first, 1 - first):
        reply = replies[process]
        call = reply.additional_kwargs["tool_calls"][0]
        number = len(two.backend.requests)
        task = await two.ask(process, question, reply, _message("tool", f"T{call['id']}", tool_call_id=str(call["id"])))
        messages = two.backend.requests[number].messages
        assert_legal(messages)
        assert "Q?" in [m.text for m in messages]
        await two.answer(number, task)
    told = two.told()
    assert {"R0.", "Tc0-0", "R1.", "Tc1-0", "R2.", "R3."} <= set(told)
    assert len(told) == len(set(told))


async def test_a_cancelled_request_leaves_the_question_that_another_process_has_added(two: TwoProcesses) -> None:
    first = _message("user", "Q1?")
    cancelled = await two.ask(0, first)
    other = await two.ask(1, first, _message("user", "Q2?"))
    cancelled.cancel()
    with suppress(asyncio.CancelledError):
        await cancelled
    await two.answer(1, other)
    assert two.told() == ["Q1?", "Q2?", "R1."]


async def test_replies_of_two_processes_that_come_at_once_both_stay(two: TwoProcesses) -> None:
    for turn in range(20):
        question = _message("user", f"Q{turn}?")
        tasks = [await two.ask(process, question) for process in range(2)]
        await asyncio.gather(*(two.answer(2 * turn + n, task) for n, task in enumerate(tasks)))
        assert two.told()[-3] == f"Q{turn}?"
    assert len(two.told()) == 60


async def test_a_question_that_was_taken_back_elsewhere_is_asked_again(two: TwoProcesses) -> None:
    question = _message("user", "Q?")
    cancelled, other = [await two.ask(process, question) for process in range(2)]
    cancelled.cancel()
    with suppress(asyncio.CancelledError):
        await cancelled
    with pytest.raises(TurnClosedError, match="send the question again"):
        await two.answer(1, other)
    await two.answer(2, await two.ask(1, question))
    assert two.told() == ["Q?", "R2."]


@pytest.mark.parametrize("moment", ["looked for", "written"])
async def test_a_list_goes_on_from_a_question_that_is_taken_back_meanwhile(moment: Moment) -> None:
    backend, store = Waiting(), TakingBack(moment)
    inner = CtxLLM(model="m", backend=backend, context_window=60_000, max_tokens=500)
    chat = with_context(inner, session_id="s", store=store)
    listed = [_message("user", "Wait.")]
    cancelled = asyncio.create_task(chat.achat(list(listed)))
    while not backend.requests:
        await asyncio.sleep(0)
    cancelled.cancel()
    listed.append(_message("user", "Next?", ctxfold_id="next"))
    answered = asyncio.create_task(chat.achat(list(listed)))
    while len(backend.requests) < 2 and not answered.done():
        await asyncio.sleep(0)
    backend.release(1, calls=0)
    await answered
    with suppress(asyncio.CancelledError):
        await cancelled
    assert [m.text for m in chat.context().messages()] == ["Wait.", "Next?", "R1."]
