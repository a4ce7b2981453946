"""An agent that has to stop early answers from what its run has found (run-llama/llama_index #23113)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from llama_index.core.agent.workflow import FunctionAgent

from ctxfold.testing import Scripted, ScriptedCall
from llamaindex_ctx import CtxMemory, with_context
from tests.llamaindex.thinking import look, serving, tool

pytestmark = [
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning"),
    pytest.mark.filterwarnings("ignore:is_running called from within a step:DeprecationWarning"),
]


def looks_on(body: Mapping[str, Any]) -> Scripted:
    """Looks up the next entry for ever; asked without tools, it tells which results it was shown."""
    results = [m["content"] for m in body["messages"] if m["role"] == "tool"]
    if not body.get("tools"):
        return Scripted(f"Found: {' '.join(results)}" if results else "Nothing found.", reasoning="I have to stop.")
    call = ScriptedCall("look", json.dumps({"key": len(results)}))
    return Scripted(reasoning=f"Number {len(results)} is next.", tool_calls=(call,))


async def run(llm: Any, memory: CtxMemory, *, streaming: bool) -> str:
    agent = FunctionAgent(
        llm=llm,
        tools=[tool(look)],
        system_prompt="You look things up.",
        early_stopping_method="generate",
        streaming=streaming,
    )
    return str(await agent.run("Find all.", memory=memory, max_iterations=4))


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("session", [None, "s"])
async def test_it_answers_from_the_rounds_of_its_run(session: str | None, streaming: bool) -> None:
    async with serving("openai_like", looks_on, strict=None) as (server, llm):
        assert (
            await run(llm, CtxMemory.from_defaults("bare", context_window=16_000), streaming=streaming)
            == "Nothing found."
        ), "upstream"
        kept = with_context(llm, session=session, context_window=16_000)
        answer = await run(kept, CtxMemory.from_defaults("kept", context_window=16_000), streaming=streaming)
        assert answer == "Found: Entry 0. Entry 1. Entry 2."
        last = server.requests[-1].body["messages"]
        calls = {c["id"] for m in last for c in m.get("tool_calls") or ()}
        assert calls == {m["tool_call_id"] for m in last if m["role"] == "tool"}, "no call without its result"


async def test_the_strict_service_takes_it_too() -> None:
    async with serving("deepseek", looks_on) as (_, llm):
        kept = with_context(llm, context_window=16_000)
        assert (await run(kept, CtxMemory.from_defaults("kept", context_window=16_000), streaming=True)).startswith(
            "Found: Entry 0."
        )
