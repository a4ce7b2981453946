"""A LlamaIndex agent on a partner's LLM: with the memory, with the wrapper, with both; whole and streamed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.memory import Memory
from llama_index.core.tools import FunctionTool

from llamaindex_ctx import CtxMemory, with_context
from tests.partners.matrix import ENTRY, QUESTIONS, WINDOW, Row, Script, counted, question

WAYS = ("memory", "wrapper", "both")


def look(n: int) -> str:
    """Looks an entry up."""
    return ENTRY.format(n=n, what="the book")


def find(n: int) -> str:
    """Finds an entry."""
    return ENTRY.format(n=n, what="the list")


TOOLS: Any = [FunctionTool.from_defaults(look), FunctionTool.from_defaults(find)]


async def talk(llm: Any, way: str, script: Script, *, stream: bool) -> None:
    """Asks all questions; before the second come an empty answer and a system message, as some applications add them."""
    chosen = llm if way in ("memory", "plain") else with_context(llm, context_window=WINDOW)
    stock = way in ("wrapper", "plain")
    memory: Any = (
        Memory.from_defaults(session_id="s", token_limit=200_000)
        if stock
        else CtxMemory.from_defaults("s", llm=llm, context_window=WINDOW)
    )
    agent: Any = FunctionAgent(
        tools=TOOLS, llm=chosen, streaming=stream, allow_parallel_tool_calls=True, system_prompt="Be brief."
    )
    for number in range(QUESTIONS):
        script.number = number
        if number and way != "plain":
            # with the memory alone LlamaIndex itself asks the model, and sends system messages as they stand
            late = [] if way == "memory" else [("system", "Speak of herons alone.")]
            said = [*late, ("user", "Well?"), ("assistant", "")]
            await memory.aput_messages([ChatMessage(role=role, content=text) for role, text in said])
        answer = str(await agent.run(user_msg=question(number), memory=memory, max_iterations=100))
        assert f"Answer {number}." in answer, f"the run ended with {answer!r}"
    for one in (chosen, memory):
        if hasattr(one, "aclose"):
            await one.aclose()


Serving = Callable[[Script], AbstractContextManager[Any]]


def run(
    package: str,
    serve: Serving,
    llm: Callable[[Any], Any],
    *,
    thoughts_back: Sequence[str] = WAYS,
    ways: Sequence[str] = WAYS,
) -> list[Row]:
    """Runs each way on a server of its own and returns the rows of the table; "plain" is the framework without ctxfold."""
    rows: list[Row] = []
    for way in ways:
        for stream in (False, True):
            script, failed = Script(), ""
            with serve(script) as server:
                try:
                    asyncio.run(talk(llm(server), way, script, stream=stream))
                except Exception as error:  # a row of the table, which fails the run
                    failed = f"{type(error).__name__}: {error}"[:300]
                rows.append(
                    counted(
                        package,
                        f"{way}{', streamed' if stream else ''}",
                        server,
                        script,
                        failed,
                        sends=way in thoughts_back,
                    )
                )
    return rows
