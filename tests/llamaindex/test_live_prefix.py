"""Summaries on the live prefix under LlamaIndex: with the arguments of the call that needs them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.tools import FunctionTool

from ctxfold.testing import ModelServer, Scripted
from llamaindex_ctx import CtxLLM, CtxMemory, with_context
from tests.llamaindex.served_llm import WAYS, ask
from tests.support.summaries import asks_on_live_prefix, asks_with_transcript

SUMMARY = "The user told the codes of rooms, and the assistant noted each: Room 0 has the code 4000."


def said(number: int) -> str:
    return f"Room {number} has the code {4_000 + number * 37}. " + "It stands in the hall. " * 12


def look(room: str) -> str:
    """Looks at a room."""
    return f"{room} is empty."


def play(body: Any) -> Scripted:
    return Scripted(SUMMARY if asks_on_live_prefix(body) or asks_with_transcript(body) else "Noted.")


def llm_at(server: ModelServer) -> CtxLLM:
    return CtxLLM(model="m", base_url=server.base_url, api_key="x", context_window=2_000, max_tokens=200)


def said_to(number: int) -> list[ChatMessage]:
    return [ChatMessage(role=MessageRole.USER, content=said(number))]


@pytest.mark.parametrize("way", WAYS)
async def test_the_summary_repeats_the_call_that_needed_it(way: str) -> None:
    tools = [FunctionTool.from_defaults(look)]
    with ModelServer(model="m", script=play) as server:
        plain = llm_at(server)
        llm = with_context(plain, session_id="t", recall_ratio=0)
        for number in range(30):
            prepared = llm._prepare_chat_with_tools(tools, user_msg=said(number))
            messages = prepared.pop("messages")
            await ask(llm, way, messages, **prepared)  # type: ignore[arg-type]
        bodies = [r.body for r in server.requests]
        live = [(a, b) for a, b in pairwise(bodies) if asks_on_live_prefix(b)]
        assert live
        assert not any(map(asks_with_transcript, bodies))
        for before, body in live:
            sent = [m for m in before["messages"] if not m["content"].startswith("Passages")]
            assert body["messages"][: len(sent)] == sent
            assert body["tools"] == before["tools"]
        usage = llm.context().usage()
        assert usage.summary_calls == len(live)
        assert usage.summaries.cache_read_tokens > 0.7 * usage.summaries.input_tokens
        await llm.aclose()
        await plain.aclose()


def test_another_llm_gets_a_transcript_and_the_same_one_does_not() -> None:
    for same in (True, False):
        with ModelServer(model="m", script=play) as server, ModelServer(model="m", script=play) as other:
            plain, writer = llm_at(server), llm_at(other)
            with with_context(plain, session_id="t", summarizer=plain if same else writer) as llm:
                for number in range(30):
                    llm.chat(said_to(number))
                assert any(asks_on_live_prefix(r.body) for r in server.requests) == same
                assert bool(other.requests) != same
            plain.close()
            writer.close()


def test_a_forced_call_is_not_repeated() -> None:
    tools = [FunctionTool.from_defaults(look)]
    with ModelServer(model="m", script=play) as server:
        plain = llm_at(server)
        with with_context(plain, session_id="t") as llm:
            for number in range(30):
                llm.chat_with_tools(tools, user_msg=said(number), tool_required=True)
            assert llm.context().usage().compactions
        assert not any(asks_on_live_prefix(r.body) for r in server.requests)
        plain.close()


def test_a_memory_does_not_know_the_request_and_sends_a_transcript() -> None:
    with ModelServer(model="m", script=play) as server:
        llm = llm_at(server)
        with CtxMemory.from_defaults("t", llm=llm, context_window=2_000) as memory:
            for number in range(30):
                memory.put(said_to(number)[0])
                memory.put(llm.chat(memory.get()).message)
            usage = memory.context.usage()
            assert usage.compactions
            assert usage.summary_calls
            assert usage.summaries.input_tokens, "what the LLM reports of a summary's cost is kept"
        assert not any(asks_on_live_prefix(r.body) for r in server.requests)
        llm.close()
