"""`token_counter` where LangChain takes a function: `trim_messages`, `SummarizationMiddleware`."""

from __future__ import annotations

from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import SummarizationMiddleware
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    trim_messages,
)
from langchain_core.messages.utils import count_tokens_approximately
from langchain_core.tools import tool

from ctxfold.tokens.text import MessageCounter, RatioCounter, text_counter
from langchain_ctx import token_counter
from langchain_ctx.messages import from_langchain
from tests.timing import cpu_s


class Counting:
    """A text counter that says how often it was asked."""

    id = "counting"

    def __init__(self) -> None:
        self.asked = 0

    def count(self, text: str) -> int:
        self.asked += 1
        return len(text)


@tool
def look(key: int) -> str:
    """Looks something up."""
    return str(key)


CALL = {"name": "write", "args": {"text": "word " * 500}, "id": "c1"}
ROUND: list[BaseMessage] = [
    AIMessage("", tool_calls=[CALL]),
    ToolMessage("word " * 300, tool_call_id="c1"),
]


def test_it_counts_what_the_engine_counts() -> None:
    engine = MessageCounter(text_counter())
    messages = [
        SystemMessage("Be brief."),
        HumanMessage("用中文写一首关于长江的诗。" * 20),
        AIMessage("好", additional_kwargs={"reasoning_content": "think " * 5_000}),
        *ROUND,
        HumanMessage([{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "data:,x"}}]),
    ]
    count = token_counter()
    assert count(messages) == sum(engine.count(from_langchain(m)) for m in messages)
    assert count(messages) == count(messages[::-1]) == sum(count([m]) for m in messages)
    assert count([]) == 0


def test_reasoning_calls_and_chinese_are_not_overlooked() -> None:
    """Where LangChain's approximate counter, the default, is off by factors."""
    count = token_counter()
    thought = [AIMessage("Yes.", additional_kwargs={"reasoning_content": "think again " * 3_000})]
    chinese = [HumanMessage("用中文写一首关于长江的诗。" * 100)]
    assert count(thought) > 5_000
    assert count_tokens_approximately(thought) < 10
    assert count(chinese) > 2 * count_tokens_approximately(chinese)
    assert count(ROUND[:1]) > 500
    assert token_counter(count_reasoning=False)(thought) < 10


def test_tools_are_counted_once_or_in_every_call() -> None:
    bare, with_tools = token_counter(), token_counter(tools=[look])
    assert with_tools(ROUND) > bare(ROUND)
    assert bare(ROUND, tools=[look]) == with_tools(ROUND)


def test_each_message_is_counted_once() -> None:
    """Looked up by content, wherever it stands; one that was changed in place, or trimmed under its old id, is counted anew."""
    counter = Counting()
    count = token_counter(counter=counter)
    messages = [HumanMessage(f"message {n}", id=f"h{n}") for n in range(100)]
    first = count(messages)
    asked = counter.asked
    assert count(list(reversed(messages))) == first
    assert sum(count(messages[n:]) > 0 for n in range(99)) == 99
    assert count([m.model_copy() for m in messages]) == first
    assert counter.asked == asked
    messages[0].content = "message 0, and more"
    assert count(messages) == first + len(", and more")
    assert count([HumanMessage("mess", id="h1")]) == count(messages[1:2]) - len("age 1")


def test_looking_up_is_cheap() -> None:
    """Within a small factor of a counter that looks at nothing but lengths, on the same list in the same run."""
    messages = [HumanMessage(f"message {n} " * 50, id=f"h{n}") for n in range(5_000)]
    count = token_counter()
    count(messages)
    assert cpu_s(lambda: count(messages), runs=7) < 5 * cpu_s(lambda: count_tokens_approximately(messages), runs=7)


def test_any_kind_of_message_and_what_converts_to_one() -> None:
    count = token_counter(counter=RatioCounter())
    assert count([("user", "hello"), {"role": "assistant", "content": "hi"}, "and you?"]) > 8
    assert count([ChatMessage("as a critic I say", role="critic")]) > 2


@pytest.mark.parametrize("strategy", ["first", "last"])
def test_trim_messages(strategy: Any) -> None:
    messages = [HumanMessage(f"Sentence {n}. " * 10, id=f"h{n}") for n in range(50)]
    count = token_counter()
    for allow_partial in (True, False):
        left = trim_messages(
            messages, max_tokens=500, token_counter=count, strategy=strategy, allow_partial=allow_partial
        )
        assert 400 < count(left) <= 500


def test_summarization_middleware_is_triggered_by_what_is_there() -> None:
    """Reasoning of 40,000 characters: LangChain's own counter sees six tokens and lets it grow."""
    thought = AIMessage("Yes.", additional_kwargs={"reasoning_content": "think " * 7_000})
    said: Any = [HumanMessage("one"), thought, HumanMessage("two"), AIMessage("ok"), HumanMessage("three")]
    kept: dict[str, int] = {}
    for name, settings in {"theirs": {}, "ours": {"token_counter": token_counter()}}.items():
        model = FakeListChatModel(responses=["They counted."])
        middleware = SummarizationMiddleware(model, trigger=("tokens", 4_000), keep=("messages", 2), **settings)
        state = create_agent(model, [], middleware=[middleware]).invoke({"messages": said})
        kept[name] = len(state["messages"])
    assert kept == {"theirs": 6, "ours": 4}
