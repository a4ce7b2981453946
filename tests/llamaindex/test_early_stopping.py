"""An agent that has to stop early answers from what its run has found (run-llama/llama_index #23113)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from llama_index.core.agent.workflow import FunctionAgent, ReActAgent
from llama_index.core.agent.workflow.prompts import DEFAULT_EARLY_STOPPING_PROMPT
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.workflow.errors import WorkflowRuntimeError

from ctxfold.testing import Scripted, ScriptedCall
from llamaindex_ctx import CtxMemory, with_context
from tests.llamaindex.thinking import look, serving, tool

pytestmark = [
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning"),
    pytest.mark.filterwarnings("ignore:is_running called from within a step:DeprecationWarning"),
]


def looks_on(body: Mapping[str, Any]) -> Scripted:
    """Looks up the next entry for ever; asked without tools, it tells which results it was shown."""
    results = [m["content"] for m in body["messages"] if m["role"] == "tool"]
    if not body.get("tools"):
        return Scripted(f"Found: {' '.join(results)}" if results else "Nothing found.", reasoning="I have to stop.")
    call = ScriptedCall("look", json.dumps({"key": len(results)}))
    return Scripted(reasoning=f"Number {len(results)} is next.", tool_calls=(call,))


async def run(llm: Any, memory: CtxMemory, *, streaming: bool) -> str:
    agent = FunctionAgent(
        llm=llm,
        tools=[tool(look)],
        system_prompt="You look things up.",
        early_stopping_method="generate",
        streaming=streaming,
    )
    return str(await agent.run("Find all.", memory=memory, max_iterations=4))


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("session", [None, "s"])
async def test_it_answers_from_the_rounds_of_its_run(session: str | None, streaming: bool) -> None:
    async with serving("openai_like", looks_on, strict=None) as (server, llm):
        assert (
            await run(llm, CtxMemory.from_defaults("bare", context_window=16_000), streaming=streaming)
            == "Nothing found."
        ), "upstream"
        kept = with_context(llm, session_id=session, context_window=16_000)
        answer = await run(kept, CtxMemory.from_defaults("kept", context_window=16_000), streaming=streaming)
        assert answer == "Found: Entry 0. Entry 1. Entry 2."
        last = server.requests[-1].body["messages"]
        calls = {c["id"] for m in last for c in m.get("tool_calls") or ()}
        assert calls == {m["tool_call_id"] for m in last if m["role"] == "tool"}, "no call without its result"


async def test_the_strict_service_takes_it_too() -> None:
    async with serving("deepseek", looks_on) as (_, llm):
        kept = with_context(llm, context_window=16_000)
        assert (await run(kept, CtxMemory.from_defaults("kept", context_window=16_000), streaming=True)).startswith(
            "Found: Entry 0."
        )


# nobody else's rounds

QUESTION = "What is my balance?"
STOP = ChatMessage(role="system", content=DEFAULT_EARLY_STOPPING_PROMPT.format(max_iterations=4))


def asks_on(body: Mapping[str, Any]) -> Scripted:
    """`looks_on`, also for an agent that calls tools in words."""
    stops = str(body["messages"][-1]["content"]).startswith("You have reached the maximum")
    if stops or body.get("tools"):
        return looks_on(body)
    return Scripted('Thought: I need a tool.\nAction: look\nAction Input: {"key": 1}')


async def stopped(llm: Any, kind: Any = FunctionAgent, *, rounds: int = 4, found: Any = look, **fields: Any) -> str:
    agent = kind(llm=llm, tools=[tool(found)], early_stopping_method="generate", **fields)
    return str(await agent.run(QUESTION, max_iterations=rounds))


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("kind", [FunctionAgent, ReActAgent])
@pytest.mark.parametrize("sessions", [("ann", "bob"), (None, None), ("ann", None), (None, "bob")])
async def test_a_run_that_found_nothing_is_given_nobody_elses_rounds(
    sessions: tuple[str | None, str | None], kind: Any, streaming: bool
) -> None:
    """Another run has asked the same words before, and was never finished."""
    async with serving("openai_like", asks_on, strict=None) as (server, llm):
        chat = with_context(llm, context_window=16_000)
        ann, bob = (chat if s is None else chat.at(s, owner=s) for s in sessions)
        with pytest.raises(WorkflowRuntimeError, match="Max iterations"):
            await FunctionAgent(llm=ann, tools=[tool(look)]).run(QUESTION, max_iterations=3)
        assert await stopped(bob, kind, rounds=1, streaming=streaming) == "Nothing found."
        assert "Entry" not in json.dumps(server.requests[-1].body["messages"])
        if sessions[1] is not None:
            assert not any(m.tool_results for m in bob.context().messages()), "nothing of it is stored"


@pytest.mark.parametrize("session", [None, "s"])
async def test_a_run_after_one_that_was_never_finished(session: str | None) -> None:
    async with serving("openai_like", asks_on, strict=None) as (_, llm):
        chat = with_context(llm, context_window=16_000)
        own = [chat if session is None else chat.at(session, owner=owner) for owner in ("ann", "bob")]
        with pytest.raises(WorkflowRuntimeError, match="Max iterations"):
            await FunctionAgent(llm=own[0], tools=[tool(look)]).run(QUESTION, max_iterations=3)
        assert await stopped(own[1]) == "Found: Entry 0. Entry 1. Entry 2."


@pytest.mark.parametrize("session", [None, "s"])
async def test_runs_under_way_at_once_answer_from_their_own_rounds(session: str | None) -> None:
    """Two users ask the same words, and go on round by round."""
    met = asyncio.Barrier(2)

    def finds(who: str) -> Any:
        async def look(key: int) -> str:
            """Looks something up."""
            await met.wait()
            return f"{who} {key}."

        return look

    async with serving("openai_like", asks_on, strict=None) as (_, llm):
        chat = with_context(llm, context_window=16_000)
        names = ["ann", "bob"]
        own = [chat if session is None else chat.at(session, owner=name) for name in names]
        answers = await asyncio.gather(*(stopped(o, found=finds(n)) for o, n in zip(own, names, strict=True)))
        assert answers == [f"Found: {name} 0. {name} 1. {name} 2." for name in names]


# asked by hand: nothing but the words tells which run a list belongs to


class Hand:
    """An agent's run in its calls of the LLM, one at a time."""

    def __init__(self, llm: Any, how: str, who: str) -> None:
        self.llm, self.how, self.who = llm, how, who
        self.listed = [ChatMessage(QUESTION)]
        self.rounds = 0

    async def step(self) -> None:
        """Ask with the tool, and find something."""
        reply = await self.said(self.listed, tools=[tool().metadata.to_openai_tool()])
        calls = self.llm.get_tool_calls_from_response(reply)
        told = {"content": f"{self.who} {self.rounds}.", "additional_kwargs": {"tool_call_id": calls[0].tool_id}}
        self.listed += [reply.message, ChatMessage(role="tool", **told)]
        self.rounds += 1

    async def stop(self) -> str:
        return (await self.said([ChatMessage(QUESTION), STOP])).message.content or ""

    async def said(self, messages: Sequence[ChatMessage], **options: Any) -> Any:
        match self.how:
            case "chat":
                return self.llm.chat(messages, **options)
            case "achat":
                return await self.llm.achat(messages, **options)
            case "stream_chat":
                return list(self.llm.stream_chat(messages, **options))[-1]
            case _:
                return [r async for r in await self.llm.astream_chat(messages, **options)][-1]


@pytest.mark.parametrize("how", ["chat", "achat", "stream_chat", "astream_chat"])
@pytest.mark.parametrize("session", [None, "s"])
async def test_by_hand_one_run_after_another(session: str | None, how: str) -> None:
    async with serving("openai_like", looks_on, strict=None) as (_, llm):
        chat = with_context(llm, context_window=16_000)
        for who in ("ann", "bob"):
            run = Hand(chat if session is None else chat.at(session, owner=who), how, who)
            for _ in range(4):
                await run.step()
            assert await run.stop() == f"Found: {who} 0. {who} 1. {who} 2."
            again = Hand(run.llm if session is None else run.llm.at("another"), how, who)
            assert await again.stop() == "Nothing found.", "the run is over"


@pytest.mark.parametrize("turns", ["aabbA", "aabbB", "aabA", "abaaB", "abbA", "ababA", "ababB", "aaabaB"])
async def test_by_hand_two_runs_at_once_are_given_nothing(turns: str) -> None:
    """A small letter is a round, a capital an early stop: whose rounds are meant nobody can tell."""
    async with serving("openai_like", looks_on, strict=None) as (_, llm):
        chat = with_context(llm, context_window=16_000)
        runs = {"a": Hand(chat, "achat", "ann"), "b": Hand(chat, "achat", "bob")}
        for turn in turns[:-1]:
            await runs[turn].step()
        assert await runs[turns[-1].lower()].stop() == "Nothing found."


async def test_by_hand_an_answer_that_calls_nothing_ends_the_run() -> None:
    def ends(body: Mapping[str, Any]) -> Scripted:
        return Scripted("All found.") if len(body["messages"]) == 5 else looks_on(body)

    async with serving("openai_like", ends, strict=None) as (_, llm):
        chat = with_context(llm, context_window=16_000)
        ann, bob = Hand(chat, "achat", "ann"), Hand(chat, "achat", "bob")
        await ann.step()
        await ann.step()
        assert (await ann.said(ann.listed)).message.content == "All found."
        assert await bob.stop() == "Nothing found."


async def test_by_hand_in_a_session_the_newest_run_counts() -> None:
    """It is one user's: a question asked anew begins without the rounds of the run before."""
    async with serving("openai_like", looks_on, strict=None) as (server, llm):
        chat = with_context(llm, session_id="s", context_window=16_000)
        first, second = Hand(chat, "achat", "first"), Hand(chat, "achat", "second")
        for _ in range(3):
            await first.step()
        for _ in range(2):
            await second.step()
        await second.stop()
        assert "second 0." in json.dumps(server.requests[-1].body["messages"])
