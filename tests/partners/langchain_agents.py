"""A LangChain agent on a partner's chat model: with the middleware, with the wrapper, with both; whole and streamed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from langchain_ctx import ContextMiddleware, with_context
from tests.partners.matrix import ENTRY, QUESTIONS, WINDOW, Row, Script, counted, question

WAYS = ("middleware", "wrapper")
CONFIG: Any = {"configurable": {"thread_id": "t"}, "recursion_limit": 200}


@tool
def look(n: int) -> str:
    """Looks an entry up."""
    return ENTRY.format(n=n, what="the book")


@tool
def find(n: int) -> str:
    """Finds an entry."""
    return ENTRY.format(n=n, what="the list")


@contextmanager
def agent(model: Any, way: str) -> Iterator[Any]:
    """Yields an agent whose context is managed in this way."""
    if way == "plain":
        yield create_agent(model, [look, find], checkpointer=InMemorySaver())
        return
    middleware = [ContextMiddleware(context_window=WINDOW)] if way == "middleware" else []
    wrapped = [with_context(model, context_window=WINDOW)] if way == "wrapper" else []
    chosen = wrapped[0] if wrapped else model
    try:
        yield create_agent(
            chosen, [look, find], system_prompt="Be brief.", middleware=middleware, checkpointer=InMemorySaver()
        )
    finally:
        for one in (*middleware, *wrapped):
            one.close()


async def talk(app: Any, script: Script, *, stream: bool, extras: bool) -> None:
    """Asks all questions; before the second come an empty answer and a system message, as some applications add them."""
    for number in range(QUESTIONS):
        script.number = number
        given: list[Any] = [HumanMessage(question(number))]
        if number and extras:
            given = [SystemMessage("Speak of herons alone."), HumanMessage("Well?"), AIMessage(""), *given]
        if stream:
            parts = app.astream({"messages": given}, CONFIG, stream_mode=["values", "messages"])
            found = [state async for mode, state in parts if mode == "values"][-1]
        else:
            found = app.invoke({"messages": given}, CONFIG)
        answer = found["messages"][-1].text
        assert f"Answer {number}." in answer, f"the run ended with {answer!r}"


Serving = Callable[[Script], AbstractContextManager[Any]]


def run(
    package: str,
    serve: Serving,
    model: Callable[[Any], Any],
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
                    with agent(model(server), way) as app:
                        asyncio.run(talk(app, script, stream=stream, extras=way != "plain"))
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
