"""L10: the work for one of many parallel calls does not grow with their number."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from llama_index.core.base.llms.types import ChatMessage, ToolCallBlock

from ctxfold import ToolCallPart, assistant, tool_result, user
from llamaindex_ctx import CtxMemory
from tests.support.driven import context, scripted

pytestmark = pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning:inspect")


def steps(work: Callable[[], object]) -> int:
    """How many lines of Python the work runs: the same on every machine."""
    count = 0

    def line(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        count += event == "line"
        return line

    before = sys.gettrace()
    sys.settrace(line)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def by_engine(count: int) -> None:
    with context(scripted("noted", "noted"), context_window=2_000) as ctx:
        calls = [ToolCallPart(f"c{n}", "look", f'{{"page": {n}}}') for n in range(count)]
        ctx.add([user("go", id="u"), assistant("", id="a", calls=calls)])
        ctx.add([tool_result(call.id, f"page {n} is here", id=f"r{n}") for n, call in enumerate(calls)])
        ctx.send("and now?")
        assert len(ctx.messages()) == count + 4


def by_memory(count: int) -> None:
    """Calls that come without ids, as some services send them."""
    with CtxMemory.from_defaults("s", token_limit=2_000) as memory:
        calls = [ToolCallBlock(tool_call_id=None, tool_name="look", tool_kwargs={"page": n}) for n in range(count)]
        results = [
            ChatMessage(role="tool", content=f"page {n} is here", additional_kwargs={"name": "look"})
            for n in range(count)
        ]
        memory.put(ChatMessage(role="user", content="go"))
        memory.put_messages([ChatMessage(role="assistant", blocks=calls), *results])
        assert memory.get()
        memory.put(ChatMessage(role="assistant", content="noted"))
        assert len(memory.get_all()) == count + 3


@pytest.mark.parametrize("work", [by_engine, by_memory])
def test_l10_parallel_calls_are_linear(work: Callable[[int], None]) -> None:
    work(50)  # what is imported and compiled once
    few, many = steps(lambda: work(200)), steps(lambda: work(1_200))
    assert many < 6 * few * 1.2
