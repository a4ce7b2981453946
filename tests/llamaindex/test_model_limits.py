"""What an LLM says of its window and how it counts: two LLMs of one session, runs without one, and an LLM beside a memory."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.chat_engine import SimpleChatEngine
from llama_index.core.memory import ChatMemoryBuffer

from ctxfold.errors import BudgetError
from ctxfold.testing import ModelServer, Scripted
from ctxfold.tokens.text import RatioCounter
from llamaindex_ctx import CtxMemory, with_context
from llamaindex_ctx.wrapper import ContextLLM
from tests.llamaindex.served_llm import stock_llm
from tests.llamaindex.thinking import foreign

pytestmark = [
    # workflows ask every attribute of an agent, pydantic's deprecated ones too
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning:inspect"),
    pytest.mark.filterwarnings("ignore:is_running called from within a step:DeprecationWarning"),
]
SHORT = "Which of the rooms is free? " * 30
LONG = "The room on the left is free from nine to ten, the one on the right after that. " * 180  # about 3,600 tokens


def answering(body: Any) -> Scripted:
    return Scripted("It has been read. " + "It is a long story. " * 20)


def answering_in_japanese(body: Any) -> Scripted:
    return Scripted("はい、承知しました。番号を控えました。" * 3)


@pytest.mark.parametrize("big_first", [False, True])
@pytest.mark.parametrize("configured", [2_000, 16_000])
def test_wrapped_llms_that_share_a_session(tmp_path: Path, big_first: bool, configured: int) -> None:
    url = f"sqlite:///{tmp_path / 'chat.db'}"
    with (
        ModelServer(model="small", script=answering, context_window=2_000) as tight,
        ModelServer(model="big", script=answering, context_window=16_000) as wide,
    ):
        inner = [foreign("openai_like", server, model=server.model) for server in (tight, wide)]
        small: ContextLLM = with_context(inner[0], session_id="s", store=url, context_window=configured)
        big: ContextLLM = with_context(inner[1], session_id="s", store=url, context_window=16_000)
        first, second = (big, small) if big_first else (small, big)
        for llm in (first, second) * 6:
            assert llm.chat([ChatMessage(SHORT)]).message.content
        with pytest.raises(BudgetError):
            small.chat([ChatMessage(LONG)])
        assert big.chat([ChatMessage(LONG)]).message.content
        assert (small.context().policy.context_window, big.context().policy.context_window) == (2_000, 16_000)
        for llm in inner:
            llm._get_client().close()
        small.close()
        big.close()


@pytest.mark.parametrize("way", ["sync", "async"])
async def test_a_run_begins_with_what_earlier_runs_have_learnt(way: str) -> None:
    """Without a session each run has one of its own; the service refuses the first run's request, and no other's."""
    said = [ChatMessage("The room on the left is free. " * 60), ChatMessage("Noted.", role="assistant")] * 10
    client = httpx.Client()
    async with (
        ModelServer(model="small", script=answering, context_window=2_000) as server,
        stock_llm(server, model="small", context_window=16_000, max_retries=0, http_client=client) as inner,
    ):
        llm = with_context(inner)
        for number in range(4):
            asked = [*said, ChatMessage(f"Which room is free on day {number}?")]
            answer = llm.chat(asked) if way == "sync" else await llm.achat(asked)
            assert answer.message.content
        answered = [r for r in server.requests if r.body["messages"][-1]["content"].startswith("Which room")]
        assert len(answered) == 4 + 1
        await llm.aclose()
        running = [task for task in asyncio.all_tasks() if task.get_name() == "ctxfold-background"]
        assert not running, "what runs have begun ends with the LLM that they belong to"
        client.close()


class Dense:
    """Counts of a model whose tokens are shorter than ours, as those of small models are in Japanese."""

    def count(self, text: str) -> int:
        return int(2.2 * RatioCounter().count(text)) + 1


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_wrapped_llm_beside_a_memory_learns_how_the_model_counts(streaming: bool) -> None:
    question = "東京の倉庫にある荷物の番号は{}です。明日の朝までに確認してください。ありがとうございます。"
    async with (
        ModelServer(script=answering_in_japanese, context_window=2_000, counter=Dense()) as server,
        stock_llm(server, context_window=2_000, max_tokens=200, max_retries=0) as inner,
        with_context(inner) as llm,
        CtxMemory.from_defaults(context_window=2_000, counter=RatioCounter()) as memory,
    ):
        agent = FunctionAgent(llm=llm, tools=[], streaming=streaming)
        for number in range(30):
            await agent.run(question.format(number), memory=memory)
        assert len(memory.get_all()) == 60, "every question has its answer"


async def test_llamaindex_gives_a_memory_no_usage() -> None:
    """Where this fails, LlamaIndex does: `CtxMemory` can learn from the replies of any LLM then, as docs/llamaindex.md denies."""
    async with ModelServer(script=answering, context_window=8_000) as server, stock_llm(server) as llm:
        by_engine, by_agent = ChatMemoryBuffer.from_defaults(), ChatMemoryBuffer.from_defaults()
        await SimpleChatEngine.from_defaults(llm=llm, memory=by_engine).achat("Hello?")
        await FunctionAgent(llm=llm, tools=[], streaming=False).run("Hello?", memory=by_agent)
        for memory in (by_engine, by_agent):
            assert [(m.role.value, m.additional_kwargs) for m in memory.get_all()] == [("user", {}), ("assistant", {})]
