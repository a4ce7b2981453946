"""A run is cancelled while it waits for the model, as when its client leaves, and the thread's next run does not wait for that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import SecretStr

from ctxfold.testing import ModelServer, Scripted
from langchain_ctx import ContextMiddleware
from tests.support.taking_back import Moment, TakingBack

TOLD = ["Hello.", "Answer to Hello.", "Wait.", "Next?", "Answer to Next?"]


def answer(body: Any) -> Scripted:
    said = body["messages"][-1]["content"]
    return Scripted(f"Answer to {said}", delay_s=60.0 if said == "Wait." else 0.0)


async def cancelled(run: asyncio.Task[Any], server: ModelServer, requests: int) -> asyncio.Task[Any]:
    """Returns the run, which has been cancelled while the model is asked, and takes its question back."""
    while len(server.requests) < requests:
        await asyncio.sleep(0.001)
    run.cancel()
    return run


@asynccontextmanager
async def model_of(server: ModelServer) -> AsyncGenerator[ChatOpenAI, None]:
    model = ChatOpenAI(model="m", base_url=server.base_url, api_key=SecretStr("x"), max_retries=0)
    yield model
    await model.root_async_client.close()


@pytest.mark.parametrize("moment", ["looked for", "written"])
async def test_an_agent_keeps_the_question_of_a_cancelled_run(moment: Moment) -> None:
    config: RunnableConfig = {"configurable": {"thread_id": "t"}}
    async with (
        ModelServer(model="m", script=answer) as server,
        model_of(server) as model,
        TakingBack(moment) as store,
        ContextMiddleware(context_window=4_000, store=store) as middleware,
    ):
        agent: Any = create_agent(model, middleware=[middleware], checkpointer=InMemorySaver())
        await agent.ainvoke({"messages": [HumanMessage("Hello.")]}, config)
        waiting = agent.ainvoke({"messages": [HumanMessage("Wait.")]}, config)
        run = await cancelled(asyncio.create_task(waiting), server, 2)
        state = await agent.ainvoke({"messages": [HumanMessage("Next?", id="next")]}, config)
        with suppress(asyncio.CancelledError):
            await run
        assert [m.text for m in state["messages"]] == TOLD
        assert [m["content"] for m in server.requests[-1].body["messages"]] == TOLD[:-1]
        assert [m.text for m in middleware.context("t").messages()] == TOLD
