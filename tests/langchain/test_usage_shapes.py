"""W9: the usage of a stream is what the service reported, in whatever shape the pieces of a LangChain model have it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult

from ctxfold import Usage
from langchain_ctx import with_context
from langchain_ctx.backend import LangChainBackend


def piece(text: str = "", **usage: Any) -> AIMessageChunk:
    """A piece of a stream; `read`, `written` and `reasoning` are the details of its counts."""
    if not usage:
        return AIMessageChunk(text)
    into, out = usage.get("into", 0), usage.get("out", 0)
    details = {"cache_read": usage.get("read", 0), "cache_creation": usage.get("written", 0)}
    metadata: Any = {"input_tokens": into, "output_tokens": out, "total_tokens": into + out}
    metadata |= {"input_token_details": details, "output_token_details": {"reasoning": usage.get("reasoning", 0)}}
    return AIMessageChunk(text, usage_metadata=metadata)


WHOLE = Usage(100, 5, 60, 0, 3)
ALL: dict[str, Any] = {"into": 100, "out": 5, "read": 60, "reasoning": 3}
SHAPES: dict[str, tuple[list[AIMessageChunk], Usage | None]] = {
    "none": ([piece("a"), piece("b")], None),
    "with the last piece": ([piece("a"), piece("b", **ALL)], WHOLE),
    "behind the text": ([piece("a"), piece("b"), piece(**ALL)], WHOLE),
    "before the text": ([piece(**ALL), piece("a"), piece("b")], WHOLE),
    "input first, output at the end": ([piece(into=100, read=60), piece("a"), piece(out=5, reasoning=3)], WHOLE),
    "input and some output first": ([piece("a", into=100, read=60, out=1), piece("b", out=4, reasoning=3)], WHOLE),
    "growing with each piece": (
        [piece("a", into=100, read=60, out=1), piece("b", into=100, read=60, out=3, reasoning=3), piece(**ALL)],
        WHOLE,
    ),
    "the same with each piece": ([piece("a", **ALL)] + [piece("b", **ALL)] * 60, WHOLE),
    "twice at the end": ([piece("a"), piece("b", **ALL), piece(**ALL)], WHOLE),
    "zeros until the end": ([piece("a", into=0, out=0), piece("b", into=0, out=0), piece(**ALL)], WHOLE),
    "input zero beside output": ([piece("a", into=0, out=2), piece("b", into=0, out=3)], Usage(0, 5)),
    "written to the cache": ([piece("a", into=100, written=30), piece("b", out=5)], Usage(100, 5, 0, 30)),
}


class Told(BaseChatModel):
    """Streams the pieces that it was made with."""

    pieces: list[Any]

    @property
    def _llm_type(self) -> str:
        return "told"

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage("whole"))])

    def _stream(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Iterator[Any]:
        for each in self.pieces:
            yield ChatGenerationChunk(message=each.model_copy())


async def by_wrapper(model: Told) -> Usage | None:
    with with_context(model, session_id="s", context_window=4_000) as chat:
        [*chat.stream([HumanMessage("hi")])]
        return chat.context().messages()[-1].usage


async def by_wrapper_async(model: Told) -> Usage | None:
    async with with_context(model, session_id="s", context_window=4_000) as chat:
        async for _ in chat.astream([HumanMessage("hi")]):
            pass
        return chat.context().messages()[-1].usage


async def by_backend(model: Told) -> Usage | None:
    from tests.support.driven import context

    with context(LangChainBackend(model, context_window=4_000)) as ctx:
        [*ctx.send_stream("hi")]
        return ctx.messages()[-1].usage


@pytest.mark.parametrize("face", [by_wrapper, by_wrapper_async, by_backend], ids=lambda f: f.__name__)
@pytest.mark.parametrize("shape", SHAPES)
async def test_w9_usage_in_every_shape(shape: str, face: Callable[[Told], Any]) -> None:
    pieces, expected = SHAPES[shape]
    assert await face(Told(pieces=pieces)) == expected


def test_w9_a_list_that_is_handed_in_again_has_the_same_usage() -> None:
    """What the caller has of the reply is LangChain's own sum; the session keeps what was reported."""
    pieces, expected = SHAPES["the same with each piece"]
    with with_context(Told(pieces=pieces), session_id="s", context_window=4_000) as chat:
        first, *rest = chat.stream([HumanMessage("hi", id="u")])
        for each in rest:
            first += each
        chat.invoke([HumanMessage("hi", id="u"), first, HumanMessage("and?", id="v")])
        assert next(m.usage for m in chat.context().messages() if m.role == "assistant") == expected
