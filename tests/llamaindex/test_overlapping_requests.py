"""Random requests of several runs over one session, which overlap, are cancelled and asked again."""

from __future__ import annotations

import asyncio
import json
import random
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
from llama_index.core.base.llms.types import ChatMessage, ChatResponse
from llama_index.core.tools import FunctionTool

from ctxfold import BaseBackend, Reply, Request, ToolCallPart, assistant
from llamaindex_ctx import CtxLLM, with_context
from tests.llamaindex.served_llm import LOOK
from tests.properties.machine import assert_legal

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
