"""A wrong setting is refused where it is given, in every constructor of the three packages, not at the first call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.tools import tool
from llama_index.core.llms import ChatMessage, MockLLM

import llamaindex_ctx
from ctxfold import AgentContext, ConfigError, CtxError, MemoryStore
from ctxfold.errors import WindowTooSmallError
from langchain_ctx import (
    ChatCtx,
    ContextMiddleware,
    ContextNode,
    ContextSummarizer,
    CtxChatMessageHistory,
    with_context,
)
from llamaindex_ctx import CtxMemory

NOWHERE: dict[str, Any] = {"model": "m", "api_key": "x", "base_url": "http://127.0.0.1:9/v1"}


def chat_model(context_window: int = 4_000, counter: Any = None, **policy: Any) -> ChatCtx:
    return ChatCtx(**NOWHERE, store="memory://", context_window=context_window, counter=counter, policy=policy)


@tool
def look_up(name: str) -> str:
    """Look a person up in the directory of all employees, and return the parking place."""
    return name


MADE: dict[str, Callable[..., object]] = {
    "AgentContext": AgentContext,
    "ChatCtx": chat_model,
    "ContextMiddleware": ContextMiddleware,
    "ContextNode": ContextNode,
    "CtxChatMessageHistory": lambda **given: CtxChatMessageHistory("s", **given),
    "CtxChatMessageHistory.factory": CtxChatMessageHistory.factory,
    "CtxMemory": CtxMemory.from_defaults,
    "langchain_ctx.with_context": lambda **given: with_context(ChatCtx(**NOWHERE), **given),
    "llamaindex_ctx.with_context": lambda **given: llamaindex_ctx.with_context(MockLLM(), **given),
}
FACES = pytest.mark.parametrize("make", MADE.values(), ids=MADE)


@FACES
def test_a_misspelt_strategy(make: Callable[..., object]) -> None:
    """Step 7, C: misspelt strategy."""
    with pytest.raises(ConfigError, match="there is no strategy 'teired': did you mean 'tiered'"):
        make(context_window=4_000, strategy="teired")
    with pytest.raises(ConfigError, match="there is no strategy 'zzz': use tiered, summarize"):
        make(context_window=4_000, strategy="zzz")


@FACES
def test_a_window_without_room_for_a_question(make: Callable[..., object]) -> None:
    """Step 7, C: tiny window."""
    for window in (1, 2, 10, 18):
        with pytest.raises(CtxError, match=rf"context_window is {window} tokens") as caught:
            make(context_window=window)
        assert isinstance(caught.value, WindowTooSmallError)


def test_a_summariser_without_room_for_a_question() -> None:
    with pytest.raises(WindowTooSmallError, match="context_window is 10 tokens"):
        ContextSummarizer(chat_model(), context_window=10)


@FACES
def test_the_hint_for_a_foreign_setting(make: Callable[..., object]) -> None:
    """Step 7, C: `table_name` got the hint "tail_ratio"."""
    with pytest.raises(ConfigError, match="there is no setting 'table': there are context_window"):
        make(context_window=4_000, table="messages")
    with pytest.raises(ConfigError, match="there is no setting 'hard_rato': did you mean hard_ratio"):
        make(context_window=4_000, hard_rato=0.5)


@FACES
def test_what_is_no_counter_and_no_prices(make: Callable[..., object]) -> None:
    """Step 7, C: siblings of the misspelt strategy; most faces said so at the first call."""
    with pytest.raises(ConfigError, match="counter is a builtin"):
        make(context_window=4_000, counter=len)
    with pytest.raises(ConfigError, match="prices is a dict"):
        make(context_window=4_000, prices={"input": 1})


@FACES
def test_what_is_no_number_of_open_sessions(make: Callable[..., object]) -> None:
    for wrong in (0, -5, "many", 1.5):
        with pytest.raises(ConfigError, match=r"max_sessions is .*: give how many sessions may stay open in memory"):
            make(context_window=4_000, max_sessions=wrong)


WITH_OVERHEAD: dict[str, Callable[..., Any]] = {
    name: MADE[name] for name in ("ContextNode", "CtxChatMessageHistory", "CtxChatMessageHistory.factory")
}
OVERHEAD = pytest.mark.parametrize("make", WITH_OVERHEAD.values(), ids=WITH_OVERHEAD)


@OVERHEAD
def test_an_overhead_without_room_for_a_question(make: Callable[..., Any]) -> None:
    """Step 7, C: an overhead of the whole budget failed at the first call."""
    for overhead in (785, 800, 1_000, 10**9):  # of a budget of 800
        left = max(0, 800 - overhead)
        told = rf"overhead_tokens is {overhead} and .* has 800 for the prompt: {left} are left, .* needs 16; lower overhead"
        with pytest.raises(WindowTooSmallError, match=told):
            make(context_window=1_000, overhead_tokens=overhead)
    make(context_window=1_000, overhead_tokens=784).close()
    make(context_window=1_000, overhead_tokens=0).close()


@OVERHEAD
def test_an_overhead_that_is_no_number_of_tokens(make: Callable[..., Any]) -> None:
    """Step 7, C: sibling of an overhead that is too large."""
    for overhead in (-1, "many", None, True, 1.5):
        with pytest.raises(
            ConfigError, match=rf"overhead_tokens is {overhead!r}: give the tokens that each request holds"
        ):
            make(context_window=1_000, overhead_tokens=overhead)


def test_tools_without_room_for_a_question() -> None:
    """Step 7, C: tools that fill the budget are an overhead too."""
    with pytest.raises(
        WindowTooSmallError, match=r"overhead_tokens is 0 and the tools have \d+ tokens; .* give fewer tools"
    ):
        ContextNode(context_window=1_000, tools=[look_up] * 40)
    with pytest.raises(WindowTooSmallError, match="overhead_tokens is 780 and the tools have"):
        ContextNode(context_window=1_000, tools=[look_up], overhead_tokens=780)
    ContextNode(context_window=1_000, tools=[look_up], overhead_tokens=600).close()


class Words:
    """One token for each word."""

    id = "words"

    def count(self, text: str) -> int:
        return len(text.split())


def test_a_system_prompt_without_room_for_a_question() -> None:
    """Step 7, C: a prompt that left less than a short question needs failed at the first call."""
    for words, left in ((781, 15), (796, 0), (5_000, 0)):  # of a budget of 800, and 4 for the message itself
        told = rf"the system prompt has {words + 4} tokens .*: {left} are left, and a short question needs 16; shorten the prompt"
        with pytest.raises(WindowTooSmallError, match=told):
            AgentContext(context_window=1_000, system="word " * words, counter=Words())
    with pytest.raises(WindowTooSmallError, match="the system prompt has 786 tokens"):
        AgentContext(context_window=1_000, system=["word " * 389] * 2, counter=Words())
    with AgentContext(context_window=1_000, system="word " * 780, counter=Words()) as context:
        context.add("What is it?")
        assert len(context.window().messages) == 2


def test_a_prompt_that_is_refused_leaves_the_session_as_it_was() -> None:
    store = MemoryStore()
    with pytest.raises(WindowTooSmallError):
        AgentContext(session_id="s", store=store, context_window=1_000, system="word " * 790, counter=Words())
    assert store.sessions("default") == ()
    with AgentContext(session_id="s", store=store, context_window=1_000, system="Be brief.", counter=Words()):
        pass
    with pytest.raises(WindowTooSmallError):
        AgentContext(session_id="s", store=store, context_window=1_000, system="word " * 790, counter=Words())
    with AgentContext(session_id="s", store=store, context_window=1_000, counter=Words()) as context:
        assert context.view().prompts == ("Be brief.",)


@pytest.mark.parametrize("policy", ["tiered", 3, {"policy": {"hard_ratio": 0.5}}])
def test_a_policy_that_is_no_set_of_settings(policy: Any) -> None:
    with pytest.raises(ConfigError, match="policy is no set of settings: give policy="):
        ChatCtx(**NOWHERE, session_id="s", store="memory://", context_window=4_000, policy=policy)


def test_a_chat_model_takes_no_policy_and_a_whole_one() -> None:
    with ChatCtx(**NOWHERE, session_id="s", store="memory://", context_window=4_000, policy=None) as chat:
        rules = chat.context().policy
    policy: Any = rules.model_copy(update={"hard_ratio": 0.7})
    with ChatCtx(**NOWHERE, session_id="s", store="memory://", policy=policy) as chat:
        assert chat.context().policy.hard_ratio == 0.7
        assert chat.context().policy.context_window == 4_000


@pytest.mark.parametrize("name", ["policy", "keep_last"])
def test_a_setting_of_sessions_is_none_of_a_call(name: str) -> None:
    """It went to the service as a parameter of the request."""
    chat, llm, value = ChatCtx(**NOWHERE), llamaindex_ctx.CtxLLM(**NOWHERE), {name: 3}
    wrapped = with_context(ChatCtx(**NOWHERE), session_id="s", store="memory://", context_window=4_000)
    kept = llamaindex_ctx.with_context(MockLLM(), session_id="s", store="memory://", context_window=4_000)
    asked = [ChatMessage("x")]
    for ask in (
        lambda: chat.bind(**value).invoke("x"),
        lambda: wrapped.bind(**value).invoke("x"),
        lambda: llm.chat(asked, **value),
        lambda: kept.chat(asked, **value),
        lambda: list(kept.stream_chat(asked, **value)),
    ):
        with pytest.raises(ConfigError, match=f"{name} is a setting of sessions, not of one call"):
            ask()
