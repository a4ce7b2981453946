"""The same turn as LangChain, langmem and LlamaIndex make it: add two messages, get what the model is shown."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack, suppress
from typing import Any, TypeVar

from ctxfold.tokens.text import text_counter
from tests.benchmarks.conversation import WINDOW, texts
from tests.benchmarks.lanes import Lane

__all__ = [
    "LLAMA_LIMIT",
    "NO_LIMIT",
    "Peer",
    "llama_buffer",
    "llama_exchanges",
    "llama_history",
    "llama_memory",
    "peer_lanes",
]

BUDGET = WINDOW * 4 // 5  # what ctxfold, too, leaves for the prompt
LLAMA_LIMIT = 30_000  # LlamaIndex' own default for Memory
LLAMA_ACTIVE = 1_000  # messages of ours that fill its share for history, 0.7
BUFFER_LIMIT = 3_000  # and for ChatMemoryBuffer
NO_LIMIT = 10**9

T = TypeVar("T")
Peer = Callable[[int], Callable[[int], object]]


def peer_lanes(sizes: Sequence[int], loop: asyncio.AbstractEventLoop, stack: ExitStack) -> list[Lane]:
    """Lanes of every peer at every size; async ones run in `loop`, and `stack` closes what they open."""
    peers: dict[str, Peer] = {
        "LangChain trim_messages, approximate counter": _trim_approximate,
        "LangChain trim_messages, tiktoken": _trim_tiktoken,
        "LangChain SummarizationMiddleware, no trigger": _middleware,
        "langmem, steady turn": _langmem,
        "LlamaIndex Memory, limit 30,000, rest archived": lambda size: llama_memory(size, LLAMA_LIMIT, loop, stack),
        "LlamaIndex Memory, untrimmed": lambda size: llama_memory(size, NO_LIMIT, loop, stack),
        "LlamaIndex ChatMemoryBuffer, untrimmed": lambda size: llama_buffer(size, NO_LIMIT),
        "LlamaIndex ChatMemoryBuffer, limit 3,000": lambda size: llama_buffer(size, BUFFER_LIMIT),
    }
    return [Lane(name, size, make(size)) for name, make in peers.items() for size in sizes]


def _history(size: int) -> list[Any]:
    from langchain_core.messages import AIMessage, HumanMessage

    pairs = (texts(n) for n in range(size // 2))
    return [
        message
        for n, (asked, answered) in enumerate(pairs)
        for message in (HumanMessage(asked, id=f"u{n}"), AIMessage(answered, id=f"a{n}"))
    ]


def _with_turn(history: list[Any], look: Callable[[list[Any]], object]) -> Callable[[int], object]:
    """A turn on a list that stays as long as it was: these peers keep nothing, the caller does."""
    from langchain_core.messages import AIMessage, HumanMessage

    def turn(n: int) -> object:
        asked, answered = texts(n)
        history.extend((HumanMessage(asked, id=f"xu{n}"), AIMessage(answered, id=f"xa{n}")))
        try:
            return look(history)
        finally:
            del history[-2:]

    return turn


def _trim_approximate(size: int) -> Callable[[int], object]:
    from langchain_core.messages import trim_messages
    from langchain_core.messages.utils import count_tokens_approximately

    def look(messages: list[Any]) -> object:
        return trim_messages(
            messages,
            max_tokens=BUDGET,
            token_counter=count_tokens_approximately,
            start_on="human",
            include_system=True,
        )

    return _with_turn(_history(size), look)


def _trim_tiktoken(size: int) -> Callable[[int], object]:
    from langchain_core.messages import trim_messages

    count = text_counter().count

    def look(messages: list[Any]) -> object:
        return trim_messages(
            messages,
            max_tokens=BUDGET,
            # a lambda, as trim_messages asks for the annotation of the first parameter
            token_counter=lambda listed: sum(4 + count(m.text) for m in listed),
            start_on="human",
            include_system=True,
        )

    return _with_turn(_history(size), look)


def _middleware(size: int) -> Callable[[int], object]:
    from langchain.agents.middleware import SummarizationMiddleware
    from langchain_core.language_models.fake_chat_models import FakeListChatModel
    from langgraph.runtime import Runtime

    middleware = SummarizationMiddleware(FakeListChatModel(responses=["-"]), trigger=("tokens", NO_LIMIT))
    runtime = Runtime()
    return _with_turn(_history(size), lambda messages: middleware.before_model({"messages": messages}, runtime))


def _langmem(size: int) -> Callable[[int], object]:
    """All but the newest 100 messages are in the running summary, and the rest is below the threshold."""
    from langchain_core.language_models.fake_chat_models import FakeListChatModel

    with warnings.catch_warnings():
        # trustcall, which langmem needs, imports a name from its old place
        warnings.filterwarnings("ignore", message="Importing Send", category=DeprecationWarning)
        from langmem.short_term import RunningSummary, summarize_messages

    history = _history(size)
    done = [message.id for message in history[: -min(100, size // 2)]]
    before = RunningSummary("Boxes KX-0 and following stand in halls 0 to 8.", set(done), done[-1])
    model = FakeListChatModel(responses=[])  # asked, it would raise

    def look(messages: list[Any]) -> object:
        return summarize_messages(messages, running_summary=before, model=model, max_tokens=BUDGET)

    return _with_turn(history, look)


def llama_history(size: int) -> list[Any]:
    from llama_index.core.base.llms.types import ChatMessage

    pairs = (texts(n) for n in range(size // 2))
    return [
        ChatMessage(role=role, content=text)
        for pair in pairs
        for role, text in zip(("user", "assistant"), pair, strict=True)
    ]


def driven(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
    """Its result; work that is cut off half-way is ended first, so that it gives its connections back."""
    task = loop.create_task(work)
    try:
        return loop.run_until_complete(task)
    except BaseException:
        task.cancel()
        with suppress(BaseException):
            loop.run_until_complete(task)
        raise


def llama_memory(size: int, limit: int, loop: asyncio.AbstractEventLoop, stack: ExitStack) -> Callable[[int], object]:
    """One event loop and one SQLite database in memory for all turns; what is over the limit was archived before."""
    from llama_index.core.memory import Memory
    from sqlalchemy.ext.asyncio import create_async_engine

    engine = create_async_engine("sqlite+aiosqlite:///:memory:")
    stack.callback(lambda: loop.run_until_complete(engine.dispose()))
    memory = Memory.from_defaults(session_id="bench", token_limit=limit, async_engine=engine)
    driven(loop, memory.aset(llama_history(size)))
    if limit < NO_LIMIT and size > LLAMA_ACTIVE:
        driven(loop, memory.sql_store.archive_oldest_messages("bench", n=size - LLAMA_ACTIVE))

    said = llama_exchanges(size)

    async def together(n: int) -> object:
        question, answer = said[n]
        await memory.aput(question)
        seen = await memory.aget()
        await memory.aput(answer)
        return seen

    return lambda n: driven(loop, together(n))


def llama_buffer(size: int, limit: int) -> Callable[[int], object]:
    from llama_index.core.memory import ChatMemoryBuffer

    buffer = ChatMemoryBuffer.from_defaults(chat_history=llama_history(size), token_limit=limit)

    said = llama_exchanges(size)

    def turn(n: int) -> object:
        question, answer = said[n]
        buffer.put(question)
        seen = buffer.get()
        buffer.put(answer)
        return seen

    return turn


def llama_exchanges(size: int, turns: int = 400) -> list[tuple[Any, Any]]:
    """Questions and answers of the turns that follow, made beforehand: what they cost is not the memory's."""
    from llama_index.core.base.llms.types import ChatMessage

    pairs = (texts(size + n) for n in range(turns))
    return [
        (ChatMessage(role="user", content=asked), ChatMessage(role="assistant", content=said)) for asked, said in pairs
    ]
