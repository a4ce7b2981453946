"""`predict_and_call` of an LLM that keeps a session: LlamaIndex runs the tools, and gives their outputs to the caller alone."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.tools import FunctionTool

from ctxfold.testing import ModelServer, Scripted, ScriptedCall
from llamaindex_ctx import with_context
from llamaindex_ctx.wrapper import ContextLLM
from tests.llamaindex.served_llm import stock_llm
from tests.llamaindex.talk import bot, user
from tests.llamaindex.twins import Driver


def look(place: str) -> str:
    """Looks at a place."""
    if place == "Rome":
        raise RuntimeError("it is dark")
    return "" if place == "Nowhere" else f"{place} is green"


LOOK = FunctionTool.from_defaults(look)
NO_RESULT = "(no result: the run ended before this call returned)"


def looking(*places: str, tool: str = "look") -> Scripted:
    return Scripted(tool_calls=tuple(ScriptedCall(tool, f'{{"place": "{place}"}}') for place in places))


@asynccontextmanager
async def kept(*replies: Scripted) -> AsyncGenerator[tuple[ContextLLM, ModelServer]]:
    script = [*replies, Scripted("Fine.")]
    async with ModelServer(context_window=8_000, script=script) as server, stock_llm(server) as llm:
        yield with_context(llm, session_id="a"), server


async def sent_with(llm: ContextLLM, server: ModelServer, messages: Sequence[ChatMessage]) -> list[tuple[str, Any]]:
    await llm.achat(messages)
    return [(m["role"], m.get("content") or None) for m in server.requests[-1].body["messages"]]


async def test_the_next_question_follows_the_outputs(call: Driver) -> None:
    async with kept(looking("Bonn")) as (llm, server):
        response = await call(llm, "predict_and_call", [LOOK], user_msg="Look at Bonn.")
        assert (response.response, [s.content for s in response.sources]) == ("Bonn is green", ["Bonn is green"])
        sent = await sent_with(llm, server, [user("What did you see?")])
    assert sent == [
        ("user", "Look at Bonn."),
        ("assistant", None),
        ("tool", "Bonn is green"),
        ("assistant", "Bonn is green"),
        ("user", "What did you see?"),
    ]


async def test_parallel_calls_have_a_result_each(call: Driver) -> None:
    async with kept(looking("Bonn", "Rome", "Köln")) as (llm, server):
        await call(llm, "predict_and_call", [LOOK], "Look around.", allow_parallel_tool_calls=True)
        sent = await sent_with(llm, server, [user("And?")])
    seen = ["Bonn is green", "Encountered error: it is dark", "Köln is green"]
    assert sent[2:-1] == [*(("tool", text) for text in seen), ("assistant", "\n\n".join(seen))]


async def test_a_list_of_the_callers_own_is_stored_once(call: Driver) -> None:
    async with kept(looking("Bonn")) as (llm, server):
        history = [user("Look at Bonn.")]
        response = await call(llm, "predict_and_call", [LOOK], chat_history=history)
        sent = await sent_with(llm, server, [*history, bot(str(response)), user("And?")])
    assert [role for role, _ in sent] == ["user", "assistant", "tool", "assistant", "user"]


@pytest.mark.parametrize(
    ("reply", "options", "error"),
    [
        (looking("Rome"), {"error_on_tool_error": True}, ValueError),
        (looking("Bonn", tool="unknown"), {}, KeyError),
    ],
    ids=["tool fails", "unknown tool"],
)
async def test_a_call_that_raises_is_noted(
    reply: Scripted, options: dict[str, Any], error: type[Exception], call: Driver
) -> None:
    async with kept(reply) as (llm, server):
        with pytest.raises(error):
            await call(llm, "predict_and_call", [LOOK], user_msg="Look.", **options)
        sent = await sent_with(llm, server, [user("And?")])
    assert sent == [("user", "Look."), ("assistant", None), ("tool", NO_RESULT), ("user", "And?")]


async def test_answers_without_calls_or_outputs(call: Driver) -> None:
    async with kept(looking("Nowhere"), Scripted("No need.")) as (llm, server):
        assert (await call(llm, "predict_and_call", [LOOK], user_msg="Look.")).response == ""
        options = {"user_msg": "Is it green?", "error_on_no_tool_call": False}
        assert (await call(llm, "predict_and_call", [LOOK], **options)).response == "No need."
        sent = await sent_with(llm, server, [user("And?")])
    assert [role for role, _ in sent] == ["user", "assistant", "tool", "user", "assistant", "user"]


async def test_without_a_session_nothing_is_added(call: Driver) -> None:
    script = [looking("Bonn"), Scripted("Fine.")]
    async with ModelServer(context_window=8_000, script=script) as server, stock_llm(server) as inner:
        llm = with_context(inner)
        response = await call(llm, "predict_and_call", [LOOK], user_msg="Look at Bonn.")
        assert response.response == "Bonn is green"
        assert await sent_with(llm, server, [user("And?")]) == [("user", "And?")]
