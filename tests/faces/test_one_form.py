"""A caller's own object may have only the sync or only the async form of a method, and keywords of any name pass through."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.outputs import ChatResult
from llama_index.core.llms import ChatMessage, ChatResponse, MockLLM

import llamaindex_ctx
from ctxfold import ConfigError, Reply, Request, assistant
from ctxfold.protocols import AsyncChunkStream, ChunkStream
from langchain_ctx import ChatCtx, with_context
from llamaindex_ctx import CtxLLM
from tests.faces.test_backend_methods import Echo


class SyncOnly:
    """A test double without async methods."""

    model = "echo"
    context_window = 4_000

    def __init__(self) -> None:
        self.asked: list[Request] = []

    def send(self, request: Request) -> Reply:
        self.asked.append(request)
        return Reply(assistant("So.", id="a"), finish_reason="stop")

    def open_stream(self, request: Request) -> ChunkStream:
        self.asked.append(request)
        return Echo().open_stream(request)


class AsyncOnly:
    """A test double without sync methods."""

    model = "echo"
    context_window = 4_000

    def __init__(self) -> None:
        self.asked: list[Request] = []

    async def asend(self, request: Request) -> Reply:
        self.asked.append(request)
        return Reply(assistant("So.", id="a"), finish_reason="stop")

    async def aopen_stream(self, request: Request) -> AsyncChunkStream:
        self.asked.append(request)
        return await Echo().aopen_stream(request)


def chats() -> list[Callable[[Any], Any]]:
    return [
        lambda backend: ChatCtx(backend=backend),
        lambda backend: CtxLLM(model="m", backend=backend, context_window=4_000),
    ]


@pytest.mark.parametrize("number", range(2), ids=["langchain", "llamaindex"])
async def test_a_backend_of_one_form_answers_calls_of_that_form(number: int) -> None:
    """`PlainCalls` looked up both methods, whichever was asked for: AttributeError."""
    sync, asynchronous = chats()[number](SyncOnly()), chats()[number](AsyncOnly())
    if number == 0:
        assert sync.invoke("So.").content == "So."
        assert "".join(c.content for c in sync.stream("So.")) == "So."
        assert (await asynchronous.ainvoke("So.")).content == "So."
        assert "".join([c.content async for c in asynchronous.astream("So.")]) == "So."
        with pytest.raises(ConfigError, match="asked in another way"):
            asynchronous.invoke("So.")
        return
    asked = [ChatMessage(content="So.")]
    assert sync.chat(asked).message.content == "So."
    assert [r.message.content for r in sync.stream_chat(asked)][-1] == "So."
    assert (await asynchronous.achat(asked)).message.content == "So."
    assert [r.message.content async for r in await asynchronous.astream_chat(asked)][-1] == "So."
    with pytest.raises(ConfigError, match="asked in another way"):
        asynchronous.chat(asked)


async def test_a_summariser_of_one_form_writes_the_summaries() -> None:
    """`CallersSummarizer` looked up both methods too, and every summary was extractive."""
    sync, asynchronous = SyncOnly(), AsyncOnly()
    model = with_context(FakeListChatModel(responses=["Fine."]), context_window=900, summarizer=asynchronous)
    for number in range(12):
        await model.ainvoke(f"message {number} " + "word " * 60, {"configurable": {"session_id": "s"}})
    assert asynchronous.asked
    with pytest.raises(ConfigError, match="summarizer"):  # as ever: it is known by its async method
        with_context(FakeListChatModel(responses=["Fine."]), context_window=900, summarizer=sync)


class Taking(FakeListChatModel):
    """Notes the keywords of its calls."""

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        TAKEN.append(kwargs)
        return super()._generate(messages, *args, **kwargs)


class TakingLLM(MockLLM):
    def chat(self, messages: Any, **kwargs: Any) -> ChatResponse:
        TAKEN.append(kwargs)
        return ChatResponse(message=ChatMessage(role="assistant", content="Fine."))


TAKEN: list[dict[str, Any]] = []
NAMES: dict[str, Any] = {"function": 1, "afunction": 2, "flow": 3, "source": 4}


def test_a_model_s_own_keyword_may_have_any_name() -> None:
    """`function` was a parameter of what makes the call: TypeError."""
    TAKEN.clear()
    model = with_context(Taking(responses=["Fine."]), session_id="s", context_window=4_000)
    model.invoke([HumanMessage("So.")], **NAMES)
    llm = llamaindex_ctx.with_context(TakingLLM(), session_id="s", context_window=4_000)
    llm.chat([ChatMessage(content="So.")], **NAMES)
    assert [NAMES.items() <= taken.items() for taken in TAKEN] == [True, True]
