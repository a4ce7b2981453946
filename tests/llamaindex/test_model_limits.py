"""Step 7, item A6: two LLMs of one session have each its own window, whichever was asked first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from llama_index.core.base.llms.types import ChatMessage

from ctxfold import BudgetError
from ctxfold.testing import ModelServer, Scripted
from llamaindex_ctx import ContextLLM, with_context
from tests.llamaindex.served_llm import stock_llm
from tests.llamaindex.thinking import foreign

SHORT = "Which of the rooms is free? " * 30
LONG = "The room on the left is free from nine to ten, the one on the right after that. " * 180  # about 3,600 tokens


def answering(body: Any) -> Scripted:
    return Scripted("It has been read. " + "It is a long story. " * 20)


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
        assert (small.context().rules().context_window, big.context().rules().context_window) == (2_000, 16_000)
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
        llm.close()
        client.close()
