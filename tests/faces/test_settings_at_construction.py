"""A wrong setting is refused where it is given, in every constructor of the three packages, not at the first call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from llama_index.core.llms import MockLLM

import llamaindex_ctx
from ctxfold import AgentContext
from ctxfold.errors import ConfigError, CtxError, WindowTooSmallError
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
    with pytest.raises(ConfigError, match="there is no strategy 'zzz': there are tiered, summarize"):
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
    with pytest.raises(ConfigError, match="there is no setting 'table_name': there are context_window"):
        make(context_window=4_000, table_name="messages")
    with pytest.raises(ConfigError, match="there is no setting 'hard_rato': did you mean hard_ratio"):
        make(context_window=4_000, hard_rato=0.5)


@FACES
def test_what_is_no_counter_and_no_prices(make: Callable[..., object]) -> None:
    """Step 7, C: siblings of the misspelt strategy; most faces said so at the first call."""
    with pytest.raises(ConfigError, match="counter is a builtin"):
        make(context_window=4_000, counter=len)
    with pytest.raises(ConfigError, match="prices is a dict"):
        make(context_window=4_000, prices={"input": 1})
