"""`FunctionAgent` and `CtxLLM` on every wire, against servers that refuse lost reasoning."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest
from llama_index.core.agent.workflow import AgentStream, FunctionAgent
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.memory import Memory
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from pydantic import BaseModel

from ctxfold.testing import ModelServer, Scripted, ScriptedCall
from llamaindex_ctx import CtxLLM, CtxMemory
from tests.support.wires import TOUR, WIRES, Lookups

# workflows ask every attribute of an agent, pydantic's deprecated ones too
pytestmark = pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning:inspect")
WIRE = pytest.mark.parametrize("wire", WIRES)
ROUNDS = 8
TURNS, WINDOW = 8, 2_000  # past the window, twice


def look(key: int) -> str:
    """Looks an entry up."""
    return f"Entry {key} says that the heron is at weir {key}. " + "Nothing else to report. " * 12


MAKER: Any = FunctionTool
LOOK: Any = MAKER.from_defaults(fn=look)


class Song(BaseModel):
    """A song."""

    title: str
    seconds: int


def question(number: int, rounds: int = 2) -> str:
    return f"Question {number}: look it up in {rounds} rounds."


def agent_on(llm: CtxLLM, *, streaming: bool = True) -> Any:
    return FunctionAgent(tools=[LOOK], llm=llm, streaming=streaming, allow_parallel_tool_calls=True)


async def answer(agent: Any, asked: str, memory: Any = None) -> str:
    return str(await agent.run(user_msg=asked, memory=memory, max_iterations=100))


@WIRE
@pytest.mark.parametrize("streaming", [True, False])
async def test_stock_memory_sends_every_thought_back(wire: str, streaming: bool) -> None:
    script = Lookups()
    with ModelServer(script=script, strict=WIRES[wire].strict, reasoning=True) as server:
        llm = CtxLLM(**WIRES[wire].settings(server))
        memory: Any = Memory.from_defaults(session_id="s", token_limit=200_000)
        agent = agent_on(llm, streaming=streaming)
        assert await answer(agent, question(1, ROUNDS), memory) == f"Answer after {ROUNDS}."
        assert await answer(agent, question(2), memory) == "Answer after 2."
        assert len(server.requests) == script.answered == ROUNDS + 4
        sent = [WIRES[wire].sent_back(request) for request in server.requests]
        assert sent[: ROUNDS + 1] == list(range(ROUNDS + 1))
        assert sent[-1] >= 2
        await llm.aclose()


@WIRE
@pytest.mark.parametrize("streaming", [True, False])
async def test_turns_go_past_the_window_and_nothing_is_refused(wire: str, streaming: bool) -> None:
    script = Lookups()
    with ModelServer(script=script, strict=WIRES[wire].strict, reasoning=True) as server:
        llm = CtxLLM(**WIRES[wire].settings(server), context_window=WINDOW)
        memory = CtxMemory.from_defaults(llm=llm, token_limit=WINDOW)
        agent = agent_on(llm, streaming=streaming)
        for number in range(TURNS):
            before = len(server.requests)
            assert await answer(agent, question(number), memory) == "Answer after 2."
            asked = [WIRES[wire].sent_back(r) for r in server.requests[before:] if "tools" in str(r.body)][-2:]
            assert asked[0] >= 1
            assert asked[1] >= 2
        assert memory.context.usage().compactions > 1
        assert len(server.requests) == script.answered
        await llm.aclose()


@pytest.mark.parametrize("stock", [True, False])
async def test_a_conversation_goes_from_every_wire_to_every_other(stock: bool) -> None:
    script = Lookups()
    with ExitStack() as stack:
        servers = {w: ModelServer(script=script, strict=WIRES[w].strict, reasoning=True) for w in WIRES}
        llms = {w: CtxLLM(**WIRES[w].settings(stack.enter_context(server))) for w, server in servers.items()}
        memory: Any = Memory.from_defaults(session_id="s", token_limit=200_000) if stock else CtxMemory.from_defaults()
        for number, wire in enumerate(TOUR):
            said = await answer(agent_on(llms[wire]), question(number, 1), memory)
            assert said == "Answer after 1.", TOUR[number - 1 : number + 1]
            assert sum(len(server.requests) for server in servers.values()) == script.answered
        for llm in llms.values():
            await llm.aclose()


@WIRE
async def test_reasoning_and_text_stream_live(wire: str) -> None:
    thoughts = [f"Thought {n} of it, long enough to come in several pieces." for n in (1, 2, 3)]
    with ModelServer(script=Lookups(), strict=WIRES[wire].strict, reasoning=True) as server:
        llm = CtxLLM(**WIRES[wire].settings(server))
        handler = agent_on(llm).run(user_msg=question(1, 1))
        events = [event async for event in handler.stream_events() if isinstance(event, AgentStream)]
        assert str(await handler) == "".join(e.delta for e in events) == "Answer after 1."
        pieces = [e.thinking_delta for e in events if e.thinking_delta]
        assert ("".join(pieces), len(pieces) > 2) == ("".join(thoughts[:2]), True)
        told: list[Any] = list(llm.stream_chat([ChatMessage(question(2, 0))], tools=[LOOK]))
        said = [r.additional_kwargs["thinking_delta"] or "" for r in told]
        assert ("".join(said), sum(map(bool, said)) > 1) == (thoughts[2], True)
        assert told[-1].message.content == "Answer after 0."
        await llm.aclose()


@WIRE
async def test_structured_output_and_calls_in_every_form(wire: str) -> None:
    """A forced call, a choice of tools, calls in parallel and one alone."""
    song = Scripted("", tool_calls=(ScriptedCall("Song", '{"title": "Blue", "seconds": 183}'),))
    two = tuple(ScriptedCall("look", f'{{"key": {n}}}') for n in range(2))
    script = [*[song] * 5, Scripted("Both.", tool_calls=two), Scripted("One.", tool_calls=two), Scripted("None.")]
    with ModelServer(script=script, strict=WIRES[wire].strict) as server:
        llm, prompt = CtxLLM(**WIRES[wire].settings(server)), PromptTemplate("A song about {topic}")
        expected = Song(title="Blue", seconds=183)
        assert llm.structured_predict(Song, prompt, topic="the sea") == expected
        assert await llm.astructured_predict(Song, prompt, topic="the sea") == expected
        assert llm.as_structured_llm(Song).chat([ChatMessage("A song.")]).raw == expected
        assert list(llm.stream_structured_predict(Song, prompt, topic="the sea"))[-1] == expected
        later: Any = await llm.astream_structured_predict(Song, prompt, topic="the sea")
        assert [one async for one in later][-1] == expected
        both = llm.chat_with_tools([LOOK], user_msg="Look twice.", allow_parallel_tool_calls=True)
        assert [c.tool_kwargs for c in llm.get_tool_calls_from_response(both)] == [{"key": 0}, {"key": 1}]
        one = await llm.achat_with_tools([LOOK], user_msg="Look.", tool_choice="auto")
        assert [c.tool_kwargs for c in llm.get_tool_calls_from_response(one)] == [{"key": 0}]
        none = llm.chat_with_tools([LOOK], user_msg="Say nothing.")
        assert llm.get_tool_calls_from_response(none, error_on_no_tool_call=False) == []
        await llm.aclose()


@pytest.mark.parametrize("way", ["sync", "async"])
async def test_thoughts_of_another_model_do_not_go_to_gemini(way: str) -> None:
    """They are unsigned there; a list of messages tells which model has thought them all the same."""
    kimis, own_reply = Scripted("done", "a thought of Kimi"), Scripted("done", "a thought of Gemini")
    with (
        ModelServer(script=[kimis], strict="moonshot") as first,
        ModelServer(script=[own_reply] * 2, strict="gemini") as own,
    ):
        kimi = CtxLLM(model="kimi-k2.6", provider="moonshot", base_url=first.base_url, api_key="k")
        gemini = CtxLLM(model="gemini-3-pro", provider="gemini", wire="gemini", base_url=own.base_url, api_key="k")
        history = [ChatMessage(role="user", content="q")]
        for llm in (kimi, gemini, gemini):
            response = await llm.achat(history) if way == "async" else llm.chat(history)
            history += [response.message, ChatMessage(role="user", content="and now?")]
        for llm in (kimi, gemini):
            await llm.aclose()
        thoughts = [
            part["text"] for r in own.requests for c in r.body["contents"] for part in c["parts"] if part.get("thought")
        ]
    # its own go back
    assert thoughts == ["a thought of Gemini"]
    assert own.requests[0].body["contents"][1]["parts"] == [{"text": "done"}]
