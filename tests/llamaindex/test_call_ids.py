"""Calls of one reply that share an id, or have none: what a model is sent pairs each call with its result."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage, ToolCallBlock
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.tools import FunctionTool

from ctxfold import MemoryStore
from ctxfold.testing import ModelServer, Scripted, ScriptedCall
from llamaindex_ctx import CtxChatStore, CtxMemory, with_context
from tests.llamaindex.scripted_agents import selecting
from tests.llamaindex.served_llm import served, stock_llm
from tests.llamaindex.talk import bot, contents, result, user
from tests.llamaindex.twins import Driver

# workflows ask every attribute of an agent, pydantic's deprecated ones too
pytestmark = pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning:inspect")

TWICE = tuple(ScriptedCall("weather", f'{{"city": "{city}"}}', "weather") for city in ("Bonn", "Rome"))


async def weather(city: str) -> str:
    """Tells the weather of a city; it takes longer for Bonn, the first."""
    await asyncio.sleep(0.05 if city == "Bonn" else 0)
    return f"sunny in {city}"


def quick_weather(city: str) -> str:
    """Tells the weather of a city."""
    return f"sunny in {city}"


def rounds(body: Any) -> list[tuple[str, str]]:
    """The arguments of each call of a request, and the text of the result under its id; all ids of a round differ."""
    pairs: list[tuple[str, str]] = []
    messages = body["messages"]
    for place, message in enumerate(messages):
        calls = message.get("tool_calls") or []
        answers = {m["tool_call_id"]: m["content"] for m in messages[place + 1 : place + 1 + len(calls)]}
        assert len(answers) == len(calls)
        pairs += [(c["function"]["arguments"], answers[c["id"]]) for c in calls]
    return pairs


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize(
    ("wrapped", "own_memory", "function"),
    [(True, False, weather), (True, True, weather), (False, True, quick_weather)],
    ids=["wrapped", "both", "memory"],
)
async def test_an_agent_whose_service_names_calls_by_their_tool(
    streaming: bool, wrapped: bool, own_memory: bool, function: Any
) -> None:
    script = [Scripted(tool_calls=TWICE), Scripted(tool_calls=TWICE), Scripted("Sunny."), Scripted("Yes.")]
    async with ModelServer(context_window=8_000, script=script) as server, stock_llm(server) as llm:
        memory = (
            CtxMemory.from_defaults("a", context_window=8_000)
            if own_memory
            else ChatMemoryBuffer.from_defaults(token_limit=8_000)
        )
        tool = FunctionTool.from_defaults(function, name="weather")
        agent = FunctionAgent(llm=with_context(llm) if wrapped else llm, tools=[tool], streaming=streaming)
        await agent.run("Bonn and Rome?", memory=memory)
        await agent.run("Sure?", memory=memory)
        bodies = [r.body for r in server.requests]
    one_round = [('{"city": "Bonn"}', "sunny in Bonn"), ('{"city": "Rome"}', "sunny in Rome")]
    told = [
        [(a.replace('":"', '": "'), text) for a, text in rounds(body)] for body in (bodies if wrapped else bodies[3:])
    ]
    assert told == ([[], one_round, one_round * 2, one_round * 2] if wrapped else [one_round * 2])


@pytest.mark.parametrize("streaming", [True, False])
async def test_an_llm_of_ours_tells_the_calls_of_such_a_service_apart(streaming: bool) -> None:
    """Results arrive in whichever order the tools take: only ids bind them, with any memory."""
    async with served(Scripted(tool_calls=TWICE), Scripted("Sunny."), Scripted("Yes.")) as (llm, server):
        agent = FunctionAgent(llm=llm, tools=[FunctionTool.from_defaults(weather)], streaming=streaming)
        memory = CtxMemory.from_defaults("a", context_window=8_000)
        await agent.run("Bonn and Rome?", memory=memory)
        await agent.run("Sure?", memory=memory)
        told = [rounds(r.body) for r in server.requests]
    one_round = [('{"city": "Bonn"}', "sunny in Bonn"), ('{"city": "Rome"}', "sunny in Rome")]
    assert told == [[], one_round, one_round]


def in_blocks(*ids: str | None) -> ChatMessage:
    return ChatMessage(
        role="assistant",
        blocks=[ToolCallBlock(tool_call_id=i, tool_name="look", tool_kwargs={"q": n}) for n, i in enumerate(ids)],
    )


def beside(*ids: str) -> ChatMessage:
    return selecting(*((i, "look", {"q": n}) for n, i in enumerate(ids)))


def both(*ids: str) -> ChatMessage:
    message = in_blocks(*ids)
    message.additional_kwargs["tool_calls"] = beside(*ids).additional_kwargs["tool_calls"]
    return message


def ids_of(message: ChatMessage) -> set[tuple[str | None, ...]]:
    """The ids of the calls, once for each place that has them."""
    blocks = tuple(b.tool_call_id for b in message.blocks if isinstance(b, ToolCallBlock))
    return {
        ids for ids in (blocks, tuple(c["tool_id"] for c in message.additional_kwargs.get("tool_calls", ()))) if ids
    }


@pytest.mark.parametrize("reader", ["memory", "chat store"])
@pytest.mark.parametrize("named", [True, False], ids=["named", "bare"])
@pytest.mark.parametrize(
    ("calls", "result_ids"),
    [
        (in_blocks("look", "look"), ("look", "look")),
        (beside("look", "look"), ("look", "look")),
        (both("look", "look"), ("look", "look")),
        (in_blocks(None, None), ("", "")),
        (both("", ""), ("", "")),
        (in_blocks("look", "c2"), ("look", "c2")),
    ],
    ids=["blocks", "beside", "both", "none", "both without", "distinct"],
)
async def test_calls_and_results_come_back_under_the_same_ids(
    reader: str, named: bool, calls: ChatMessage, result_ids: tuple[str, ...], call: Driver
) -> None:
    results = [result(i, text) for i, text in zip(result_ids, ("one", "two"), strict=True)]
    if named:
        for message in results:
            message.additional_kwargs |= {"name": "look", "more": 1}
    told = [user("q"), calls, *results, bot("done"), user("next")]
    if reader == "memory":
        memory = CtxMemory.from_defaults("m", context_window=8_000)
        await call(memory, "put_messages", told)
        given = await call(memory, "get")
        assert await call(memory, "get_all") == given
        await call(memory, "set", given)
        assert await call(memory, "get_all") == given
    else:
        with CtxChatStore() as store:
            await call(store, "set_messages", "k", told)
            given = await call(store, "get_messages", "k")
            await call(store, "set_messages", "k", given)
            assert await call(store, "get_messages", "k") == given
    assert len(given) == len(told)
    answered = tuple(m.additional_kwargs["tool_call_id"] for m in given[2:4])
    assert len(set(answered)) == 2
    assert ids_of(given[1]) == {answered}
    assert [m.content for m in given[2:4]] == ["one", "two"]
    if len(set(result_ids)) == 2:
        assert given == told


@pytest.mark.parametrize("ids", [(None,), ("a",), ("weather", "weather")], ids=["no id", "an id", "the tool's name"])
async def test_a_result_without_an_id_that_another_memory_puts_answers_the_call_that_waits(
    ids: tuple[str | None, ...], call: Driver
) -> None:
    """A server makes a memory for each of its requests: one of them stores the call, and the next the result."""
    store = MemoryStore()
    with CtxMemory.from_defaults("s", store=store, context_window=8_000) as first:
        await call(first, "put_messages", [user("q"), in_blocks(*ids)])
    with CtxMemory.from_defaults("s", store=store, context_window=8_000) as second:
        for number, _ in enumerate(ids):
            tool_id = {"tool_call_id": ids[0]} if len(ids) > 1 else {}
            message = ChatMessage(role="tool", content=f"result {number}", additional_kwargs=tool_id)
            await call(second, "put", message)
        await call(second, "put", bot("done"))
        shown = await call(second, "get")
    assert [m.role.value for m in shown] == ["user", "assistant", *["tool"] * len(ids), "assistant"]
    answered = [m.additional_kwargs["tool_call_id"] for m in shown if m.role.value == "tool"]
    assert answered == [block.tool_call_id for block in shown[1].blocks if isinstance(block, ToolCallBlock)]


def test_a_result_without_an_id_is_text_where_two_runs_wait() -> None:
    store = MemoryStore()
    memories = [CtxMemory.from_defaults("s", store=store, context_window=8_000) for _ in range(3)]
    for number, memory in enumerate(memories[:2]):
        memory.put_messages([user(f"question {number}"), in_blocks("a")])
    memories[2].put(ChatMessage(role="tool", content="whose?"))
    assert memories[2].get()[-1].content == "Result of a tool call:\nwhose?"
    memories[0].put(result("a", "first's"))
    assert "first's" in contents(memories[0].get_all())
    for memory in memories:
        memory.close()
