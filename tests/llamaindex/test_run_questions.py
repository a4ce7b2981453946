"""H10: the question of an agent's run is in each of its requests, word for word, whatever its rounds look like."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from llama_index.core.agent.workflow import CodeActAgent, FunctionAgent, ReActAgent
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.tools import FunctionTool

from ctxfold.testing import ModelServer, Scripted, ScriptedCall
from llamaindex_ctx import CtxMemory, with_context
from tests.llamaindex.served_llm import stock_llm
from tests.support.summaries import asks_on_live_prefix, asks_with_transcript

pytestmark = [
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning:inspect"),
    pytest.mark.filterwarnings("ignore:is_running called from within a step"),
]
ROUNDS = 40
QUESTIONS = ["Which of the rooms holds the zebra with seven stripes?", "And which one holds the key numbered 4711-B?"]


def look(room: int) -> str:
    """Looks at a room."""
    return f"Room {room} holds " + f"nothing but dust, chairs and lamp number {room * 37} of the old house. " * 12


def agent_of(kind: str, llm: Any) -> Any:
    tools: Any = [FunctionTool.from_defaults(look)]
    if kind == "react":
        return ReActAgent(llm=llm, tools=tools, streaming=False)
    if kind == "function":
        return FunctionAgent(llm=llm, tools=tools, streaming=False)
    return CodeActAgent(llm=llm, code_execute_fn=lambda code: look(len(code)), streaming=False)


def script_for(kind: str) -> Any:
    """Forty rounds, then an answer, for each question; the summariser forgets every question."""
    numbers = count()

    def play(body: Any) -> Scripted:
        if asks_on_live_prefix(body) or asks_with_transcript(body):
            return Scripted("Rooms were looked at, and they held chairs.")
        number = next(numbers)
        if number % (ROUNDS + 1) == ROUNDS:
            return Scripted({"react": "Thought: I can answer.\nAnswer: None.", "code": "None."}.get(kind, "None."))
        if kind == "react":
            return Scripted(f'Thought: I need a tool.\nAction: look\nAction Input: {{"room": {number}}}')
        if kind == "code":
            return Scripted(f"<execute>\nprint({number})\n</execute>")
        return Scripted(tool_calls=(ScriptedCall("look", f'{{"room": {number}}}', f"c{number}"),))

    return play


@pytest.mark.parametrize("session", [None, "s"])
@pytest.mark.parametrize("own_memory", [True, False])
@pytest.mark.parametrize("kind", ["react", "code", "function"])
async def test_h10_the_question_is_in_every_request_of_its_run(
    kind: str, own_memory: bool, session: str | None
) -> None:
    with ModelServer(script=script_for(kind)) as server:
        async with stock_llm(server) as llm:
            wrapped = with_context(llm, session_id=session, context_window=5_000)
            memory: Any = (
                CtxMemory.from_defaults("m", context_window=5_000)
                if own_memory
                else ChatMemoryBuffer.from_defaults(token_limit=100_000)
            )
            for question in QUESTIONS:
                await agent_of(kind, wrapped).run(question, memory=memory, max_iterations=2 * ROUNDS)
        bodies = [
            b for b in (r.body for r in server.requests) if not (asks_on_live_prefix(b) or asks_with_transcript(b))
        ]
    assert len(bodies) == 2 * (ROUNDS + 1)
    missing = [
        n
        for n, body in enumerate(bodies)
        if not any(m["role"] == "user" and QUESTIONS[n // (ROUNDS + 1)] in str(m["content"]) for m in body["messages"])
    ]
    assert missing == []
