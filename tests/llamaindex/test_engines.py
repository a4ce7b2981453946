"""LlamaIndex's own chat engines and agents, run for real over a CtxMemory and the loopback model server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from llama_index.core.agent.workflow import AgentStream, AgentWorkflow, FunctionAgent, ReActAgent
from llama_index.core.base.llms.types import ChatMessage, ThinkingBlock, ToolCallBlock
from llama_index.core.base.response.schema import NodeWithScore
from llama_index.core.chat_engine import CondensePlusContextChatEngine, ContextChatEngine, SimpleChatEngine
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import QueryBundle, TextNode

from ctxfold.testing import ModelServer, Scripted, ScriptedCall
from llamaindex_ctx import CtxMemory
from tests.llamaindex.loopback_llm import LoopbackLLM, Made
from tests.llamaindex.talk import FACT, QUESTION

pytestmark = [
    # agents read all attributes of their own class, deprecated ones of pydantic too
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning"),
    pytest.mark.filterwarnings("ignore:is_running called from within a step:DeprecationWarning"),
]

WINDOW = 2_000


@pytest.fixture
def small() -> Iterator[ModelServer]:
    """A server whose window is that of the memory: what does not fit is refused."""
    with ModelServer(model="lookup", context_window=WINDOW, strict="openai") as running:
        yield running


class Shelf(BaseRetriever):
    """Always the same two nodes."""

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        nodes = ("The canteen opens at half past seven.", "The library closes at nine in the evening.")
        return [NodeWithScore(node=TextNode(text=text), score=1.0) for text in nodes]


def made(kind: str, llm: LoopbackLLM, memory: CtxMemory) -> Any:
    match kind:
        case "simple":
            return SimpleChatEngine.from_defaults(llm=llm, memory=memory, system_prompt="You are helpful.")
        case "context":
            return ContextChatEngine.from_defaults(retriever=Shelf(), llm=llm, memory=memory)
        case _:
            return CondensePlusContextChatEngine.from_defaults(retriever=Shelf(), llm=llm, memory=memory)


def roles(memory: CtxMemory) -> list[str]:
    return [m.role.value for m in memory.get_all()]


@pytest.mark.parametrize("kind", ["simple", "context", "condense"])
def test_chat_and_stream_chat(kind: str, server: ModelServer, llms: Made) -> None:
    memory = CtxMemory.from_defaults(context_window=WINDOW)
    engine = made(kind, llms(server), memory)
    engine.chat(FACT)
    streamed = engine.stream_chat(QUESTION)
    text = "".join(streamed.response_gen)
    if kind == "simple":
        assert "4711" in text
    assert roles(memory) == ["user", "assistant"] * 2
    assert memory.get_all()[2].content == QUESTION
    assert memory.get_all()[3].content == text
    engine.reset()
    assert engine.chat_history == []


@pytest.mark.parametrize("kind", ["simple", "context", "condense"])
async def test_achat_and_astream_chat(kind: str, server: ModelServer, llms: Made) -> None:
    memory = CtxMemory.from_defaults(context_window=WINDOW)
    engine = made(kind, llms(server), memory)
    await engine.achat(FACT)
    streamed = await engine.astream_chat(QUESTION)
    text = "".join([piece async for piece in streamed.async_response_gen()])
    if streamed.awrite_response_to_history_task is not None:
        await streamed.awrite_response_to_history_task
    assert roles(memory) == ["user", "assistant"] * 2
    assert memory.get_all()[3].content == text


def test_the_answer_comes_from_the_retriever_too(server: ModelServer, llms: Made) -> None:
    memory = CtxMemory.from_defaults(context_window=WINDOW)
    engine = made("context", llms(server), memory)
    assert "seven" in engine.chat("When does the canteen open?").response


@pytest.mark.parametrize("kind", ["simple", "context", "condense"])
@pytest.mark.parametrize("max_tokens", [200, 1_800])
def test_a_full_memory_leaves_room_for_documents_and_for_the_reply(kind: str, max_tokens: int, llms: Made) -> None:
    """An engine with a retriever does not say what it adds, and raises where that finds no room; a service counts `max_tokens`."""
    with ModelServer(context_window=4_000, strict="openai") as server:
        llm = llms(server, window=4_000)
        llm.max_tokens = max_tokens
        memory = CtxMemory.from_defaults(llm=llm)
        engine = made(kind, llm, memory)
        for number in range(24):
            engine.chat(f"Locker {number} has the key {number * 117}. {'It stands beside the door of the hall. ' * 16}")
        assert sum(m.role == "user" for m in memory.get_all()) == 24
        assert memory.context.usage().compactions > 0
        assert "1287" in str(engine.chat("Which key has locker 11?"))


@pytest.mark.parametrize("kind", ["context", "condense"])
@pytest.mark.parametrize("window", [1_600, 2_000])
def test_a_full_memory_of_a_small_window_leaves_half_of_it(kind: str, window: int, llms: Made) -> None:
    """A share of the window that is large enough for LlamaIndex would leave nothing to the conversation."""
    with ModelServer(context_window=window, strict="openai") as server:
        llm = llms(server, window=window)
        memory = CtxMemory.from_defaults(llm=llm)
        engine = made(kind, llm, memory)
        for number in range(24):
            engine.chat(f"Locker {number} has the key {number * 117}. {'It stands beside the door of the hall. ' * 8}")
        assert roles(memory) == ["user", "assistant"] * 24
        assert memory.context.usage().compactions > 0


@pytest.mark.parametrize("kind", ["context", "condense"])
@pytest.mark.parametrize("turns", [10, 11, 18, 19])
def test_a_question_that_was_left_without_an_answer_leaves_room_too(kind: str, turns: int, llms: Made) -> None:
    """A stream that broke off leaves its question, and the engine puts the next one behind it, with its documents."""
    with ModelServer(script=lambda _: Scripted("Noted."), context_window=2_600) as server:
        llm = llms(server, window=2_600)
        memory = CtxMemory.from_defaults(llm=llm)
        for number in range(turns):
            memory.put(f"My locker {number} is {number * 37}. " + "Note it. " * 50)
            memory.put(ChatMessage(role="assistant", content="Noted."))
        memory.put("What was that? " * 20)
        assert made(kind, llm, memory).chat("And which locker do I have?").response == "Noted."


@pytest.mark.parametrize("max_tokens", [None, 100, 400, 900, 1_600, 4_000])
def test_the_reply_reserve_is_a_fifth_or_what_the_llm_may_say(
    max_tokens: int | None, server: ModelServer, llms: Made
) -> None:
    llm = llms(server, window=WINDOW)
    llm.max_tokens = max_tokens
    reserve = CtxMemory.from_defaults(llm=llm).context.policy.reply_reserve_tokens
    assert reserve == (900 if max_tokens == 900 else 400)
    given = CtxMemory.from_defaults(llm=llm, reply_reserve_tokens=300)
    assert given.context.policy.reply_reserve_tokens == 300
    assert CtxMemory.from_defaults(llm=llm, token_limit=1_500).token_limit == 1_500


def test_a_chat_history_given_with_a_call_replaces_the_conversation(server: ModelServer, llms: Made) -> None:
    memory = CtxMemory.from_defaults(context_window=WINDOW)
    engine = made("simple", llms(server), memory)
    engine.chat("Hello there.")
    given = [ChatMessage(role="user", content=FACT), ChatMessage(role="assistant", content="Noted.")]
    assert "4711" in engine.chat(QUESTION, chat_history=given).response
    assert memory.get_all()[0].content == FACT


def test_reasoning_is_kept_by_a_streaming_engine(server: ModelServer, llms: Made) -> None:
    memory = CtxMemory.from_defaults(context_window=WINDOW)
    engine = made("simple", llms(server), memory)
    list(engine.stream_chat(FACT).response_gen)
    list(engine.stream_chat(QUESTION).response_gen)
    stored = memory.context.messages()[-1]
    assert stored.reasoning.startswith("Read ")
    assert memory.get_all()[-1].additional_kwargs["reasoning_content"] == stored.reasoning


@pytest.mark.parametrize("summariser", [True, False], ids=["model", "extractive"])
@pytest.mark.parametrize("kind", ["simple", "context", "condense"])
def test_a_conversation_that_outgrows_its_window_is_answered(
    kind: str, summariser: bool, server: ModelServer, small: ModelServer, llms: Made
) -> None:
    # the condensing prompt holds the history once more as text with labels, which no memory can count
    llm = llms(server if kind == "condense" else small, window=WINDOW)
    memory = CtxMemory.from_defaults(context_window=WINDOW, reply_reserve_tokens=1_000, llm=llm if summariser else None)
    engine = made(kind, llm, memory)
    engine.chat(FACT)
    for i in range(24):
        place = f"the parking place {i * 37 % 101} in the street number {i * 13 % 89}"
        engine.chat(f"Employee {i} has {place}. It was painted anew last week, with its number in the middle of it.")
    assert memory.context.usage().compactions > 0
    assert len(memory.get_all()) == 50
    assert "4711" in engine.chat(QUESTION).response


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def code_of(room: str) -> str:
    """The door code of a room."""
    return f"The door code of the {room} room is 9{len(room)}21."


def agent(llm: LoopbackLLM, **more: Any) -> FunctionAgent:
    return FunctionAgent(tools=[add, code_of], llm=llm, system_prompt="You are helpful.", **more)


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_function_agent_keeps_its_tool_rounds(streaming: bool, server: ModelServer, llms: Made) -> None:
    memory = CtxMemory.from_defaults(context_window=WINDOW)
    running = agent(llms(server), streaming=streaming)
    answer = await running.run('Please call add with {"a": 40, "b": 2}', memory=memory)
    assert "42" in str(answer)
    assert roles(memory) == ["user", "assistant", "tool", "assistant"]
    assert any(isinstance(b, ToolCallBlock) for b in memory.get_all()[1].blocks)
    assert any(isinstance(b, ThinkingBlock) for b in memory.get_all()[1].blocks)
    window = await memory.aget()
    assert window[2].additional_kwargs["tool_call_id"] == window[1].blocks[-1].tool_call_id  # type: ignore[union-attr]


async def test_an_agent_workflow_hands_off_and_goes_on(server: ModelServer, llms: Made) -> None:
    llm = llms(server)
    memory = CtxMemory.from_defaults(context_window=4_000)
    first = FunctionAgent(name="clerk", description="d", tools=[], llm=llm, can_handoff_to=["porter"])
    second = FunctionAgent(name="porter", description="knows doors", tools=[code_of], llm=llm)
    flow = AgentWorkflow(agents=[first, second], root_agent="clerk")
    await flow.run(user_msg='Please call handoff with {"to_agent": "porter", "reason": "doors"}', memory=memory)
    answer = await flow.run(user_msg='Please call code_of with {"room": "blue"}', memory=memory)
    assert answer is not None
    assert "tool" in roles(memory)
    calls = {c.id for m in memory.context.messages() for c in m.tool_calls}
    results = {r.call_id for m in memory.context.messages() for r in m.tool_results}
    assert calls == results


async def test_an_agent_over_many_runs_remembers_what_left_the_window(small: ModelServer, llms: Made) -> None:
    llm = llms(small, window=WINDOW)
    memory = CtxMemory.from_defaults(context_window=WINDOW, reply_reserve_tokens=800, llm=llm)
    running = agent(llm)
    await running.run(FACT, memory=memory)
    for i in range(14):
        await running.run(f'Please call code_of with {{"room": "{"x" * i} room number {i}"}}', memory=memory)
        await running.run(
            f"Employee {i} has the parking place {i * 37 % 101} in the street {i * 13 % 89}.", memory=memory
        )
    assert memory.context.usage().compactions > 0
    answer = await running.run(QUESTION, memory=memory)
    assert "4711" in str(answer)


async def test_stream_events_of_an_agent_are_its_own(server: ModelServer, llms: Made) -> None:
    """Summaries are written by the same LLM, yet nothing of them reaches the user's stream."""
    llm = llms(server)
    memory = CtxMemory.from_defaults(context_window=700, llm=llm)
    for i in range(12):
        memory.put(
            ChatMessage(role="user", content=f"Employee {i} has the parking place {i * 37}, and waters plant {i}.")
        )
        memory.put(ChatMessage(role="assistant", content="Noted."))
    handler = agent(llm).run(FACT, memory=memory)
    pieces = [e.response async for e in handler.stream_events() if isinstance(e, AgentStream)]
    await handler
    assert pieces
    assert not any("Summary" in piece for piece in pieces)


async def test_parallel_calls_and_return_direct(server: ModelServer, llms: Made) -> None:
    calls = (ScriptedCall("add", '{"a": 1, "b": 2}'), ScriptedCall("code_of", '{"room": "red"}'))
    script = [Scripted(tool_calls=calls), Scripted(content="Both done.")]
    with ModelServer(model="scripted", script=script) as scripted:
        memory = CtxMemory.from_defaults(context_window=WINDOW)
        answer = await agent(llms(scripted), allow_parallel_tool_calls=True).run("Do both.", memory=memory)
        assert "Both done." in str(answer)
        assert roles(memory) == ["user", "assistant", "tool", "tool", "assistant"]


async def test_a_react_agent_without_a_system_prompt_sees_the_summary(llms: Made) -> None:
    script = [Scripted(content="Thought: I can answer.\nAnswer: noted")] * 40
    with ModelServer(model="scripted", script=script) as scripted:
        llm = llms(scripted)
        memory = CtxMemory.from_defaults(context_window=1_000)
        running = ReActAgent(tools=[add], llm=llm, streaming=False)
        for i in range(25):
            await running.run(f"Employee {i} has the parking place {i * 37} in the long street {i}.", memory=memory)
        assert memory.context.usage().compactions > 0
        assert any("[Summary of prior conversation]" in (m.content or "") for m in llm.sent[-1])
