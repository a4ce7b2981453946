"""R1, R7, W9, W10: usage, cached tokens and texts of LlamaIndex LLMs are what the service reported, whole or streamed."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, LLMMetadata, TextBlock
from llama_index.core.llms.mock import MockLLM
from pydantic import PrivateAttr

from ctxfold import Request, Usage
from ctxfold import user as user_message
from ctxfold.testing import ErrorReply, ModelServer, Scripted
from llamaindex_ctx import CtxLLM, CtxMemory, with_context
from llamaindex_ctx.backend import LlamaIndexBackend
from tests.llamaindex.served_llm import WAYS, ask, stock_llm
from tests.support.summaries import asks_on_live_prefix, asks_with_transcript

SUMMARY = "The user told the codes of rooms, and the assistant noted each: Room 0 has the code 4000."


def play(body: Any) -> Scripted:
    return Scripted(SUMMARY if asks_on_live_prefix(body) or asks_with_transcript(body) else "Noted.")


@pytest.mark.parametrize("way", WAYS)
async def test_r1_cached_tokens_are_what_the_service_reported(way: str) -> None:
    """Also R7: the client asks for the usage of its streams, so that what was learnt holds there too."""
    with ModelServer(model="m", script=play) as server:
        async with stock_llm(server, context_window=2_000, max_tokens=200) as plain:
            llm = with_context(plain, session_id="t", recall_ratio=0)
            for number in range(30):
                text = f"Room {number} has the code {4_000 + number * 37}. " + "It stands in the hall. " * 12
                await ask(llm, way, [ChatMessage(role="user", content=text)])  # type: ignore[arg-type]
            usage, stats = llm.context().usage(), server.prefix_stats()
            bodies = [r.body for r in server.requests]
    assert any(map(asks_on_live_prefix, bodies))
    assert not any(map(asks_with_transcript, bodies)), "the service's cache pays for summaries on the live prefix"
    assert usage.reported.cache_read_tokens + usage.summaries.cache_read_tokens == stats.cached_tokens > 0
    assert usage.reported.input_tokens + usage.summaries.input_tokens == stats.prompt_tokens


async def test_r7_a_service_that_does_not_know_the_option_is_asked_without_it() -> None:
    def script(body: Any) -> Scripted | ErrorReply:
        if "stream_options" in body:
            return ErrorReply(
                400, {"error": {"message": "Unknown parameter: stream_options", "type": "invalid_request_error"}}
            )
        return Scripted("One.")

    with ModelServer(model="m", script=script) as server:
        async with stock_llm(server) as plain:
            llm = with_context(plain, session_id="t")
            for _ in range(2):
                answers = await ask(llm, "astream_chat", [ChatMessage(role="user", content="hi")])  # type: ignore[arg-type]
                assert answers[-1].message.content == "One."
        asked = ["stream_options" in r.body for r in server.requests]
    assert asked == [True, False, False], "it is not tried again"


async def test_r7_what_the_user_chose_stays() -> None:
    with ModelServer(model="m", script=[Scripted("One.")]) as server:
        chosen = {"stream_options": {"include_usage": False}}
        async with stock_llm(server, additional_kwargs=chosen) as plain:
            await ask(with_context(plain, session_id="t"), "stream_chat")  # type: ignore[arg-type]
        (body,) = [r.body for r in server.requests]
    assert body["stream_options"] == {"include_usage": False}


class Told(MockLLM):
    """Answers with responses as a package makes them: the raw objects and the fields beside, one for each chunk."""

    _chunks: Sequence[tuple[Any, dict[str, Any]]] = PrivateAttr(default=())

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(context_window=8_000, is_chat_model=True, model_name="m")

    def _responses(self) -> list[ChatResponse]:
        return [
            ChatResponse(
                message=ChatMessage(role="assistant", content="ok" * n),
                delta="ok",
                raw=raw,
                additional_kwargs=dict(beside),
            )
            for n, (raw, beside) in enumerate(self._chunks, 1)
        ]

    def chat(self, messages: Any, **kwargs: Any) -> ChatResponse:
        return self._responses()[-1]

    def stream_chat(self, messages: Any, **kwargs: Any) -> Any:
        return iter(self._responses())

    async def astream_chat(self, messages: Any, **kwargs: Any) -> Any:
        async def each() -> Any:
            for response in self._responses():
                yield response

        return each()


OPENAI = {
    "prompt_tokens": 100,
    "completion_tokens": 5,
    "prompt_tokens_details": {"cached_tokens": 60},
    "completion_tokens_details": {"reasoning_tokens": 3},
}
RESPONSES = {
    "input_tokens": 100,
    "output_tokens": 5,
    "input_tokens_details": {"cached_tokens": 60},
    "output_tokens_details": {"reasoning_tokens": 3},
}
CLAUDE = {"input_tokens": 10, "output_tokens": 5, "cache_read_input_tokens": 60, "cache_creation_input_tokens": 30}
GEMINI = {
    "prompt_token_count": 100,
    "candidates_token_count": 2,
    "thoughts_token_count": 3,
    "cached_content_token_count": 60,
}
CONVERSE = {"inputTokens": 10, "outputTokens": 5, "cacheReadInputTokens": 60, "cacheWriteInputTokens": 30}
PART = {**OPENAI, "completion_tokens": 1}
SHAPES: dict[str, tuple[list[tuple[Any, dict[str, Any]]], Usage | None]] = {
    "none": ([({}, {}), ({}, {})], None),
    "with the last chunk": ([({}, {}), ({"usage": OPENAI}, {})], Usage(100, 5, 60, 0, 3)),
    "before the last chunk": ([({"usage": OPENAI}, {}), ({}, {})], Usage(100, 5, 60, 0, 3)),
    "with every chunk": ([({"usage": PART}, {}), ({"usage": OPENAI}, {})], Usage(100, 5, 60, 0, 3)),
    "null until the end": ([({"usage": None}, {}), ({"usage": OPENAI}, {})], Usage(100, 5, 60, 0, 3)),
    "counts beside": (
        [({}, {}), ({"usage": OPENAI}, {"prompt_tokens": 100, "completion_tokens": 5})],
        Usage(100, 5, 60, 0, 3),
    ),
    "an object": ([({}, {}), (SimpleNamespace(usage=SimpleNamespace(**OPENAI)), {})], Usage(100, 5, 60, 0, 3)),
    "responses": (
        [({}, {}), ({"type": "completed"}, {"usage": SimpleNamespace(**RESPONSES)})],
        Usage(100, 5, 60, 0, 3),
    ),
    "input first": (
        [({"usage": {**CLAUDE, "output_tokens": 1}}, {}), ({"usage": {"output_tokens": 5}}, {})],
        Usage(100, 5, 60, 30),
    ),
    "input zero at the end": (
        [({"usage": {**CLAUDE, "output_tokens": 1}}, {}), ({"usage": {"input_tokens": 0, "output_tokens": 5}}, {})],
        Usage(100, 5, 60, 30),
    ),
    "gemini": ([({}, {}), ({"usage_metadata": GEMINI}, {"prompt_tokens": 100})], Usage(100, 5, 60, 0, 3)),
    "converse": ([({}, {}), ({"metadata": {"usage": CONVERSE}}, {})], Usage(100, 5, 60, 30)),
    "ollama": ([({}, {}), ({"prompt_eval_count": 100, "eval_count": 5}, {})], Usage(100, 5)),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("face", ["wrapper", "wrapper async", "backend"])
async def test_w9_the_usage_of_a_stream_is_read_in_every_shape(shape: str, face: str) -> None:
    llm = Told()
    llm._chunks, expected = SHAPES[shape]
    if face == "backend":
        stream = LlamaIndexBackend(llm).open_stream(Request((user_message("hi", id="u"),)))
        assert [c.usage for c in stream if c.usage is not None] == [expected] * bool(expected)
        return
    wrapped = with_context(llm, session_id="s")
    await ask(wrapped, "astream_chat" if face.endswith("async") else "stream_chat")  # type: ignore[arg-type]
    (message,) = wrapped.context().view().by_role("assistant")
    assert message.usage == expected
    assert wrapped.context().usage().reported == (expected or Usage())


@pytest.mark.parametrize("face", ["backend", "wrapper", "memory"])
def test_w10_a_reply_of_several_items_has_each_text_once(face: str) -> None:
    """LlamaIndex's OpenAIResponses lists the texts of earlier items again with each message item."""
    texts = [TextBlock(text=f"item {n}") for n in range(4)]
    blocks = [block for n in range(4) for block in texts[: n + 1]]

    class Items(Told):
        def chat(self, messages: Any, **kwargs: Any) -> ChatResponse:
            message = ChatMessage(role="assistant", blocks=[])
            message.blocks.extend(blocks)
            return ChatResponse(message=message)

    said = [f"item {n}" for n in range(4)]
    if face == "backend":
        reply = LlamaIndexBackend(Items()).send(Request((user_message("hi", id="u"),)))
        assert [p.text for p in reply.message.parts if p.type == "text"] == said
    elif face == "wrapper":
        response = with_context(Items(), session_id="s").chat([ChatMessage(role="user", content="hi")])
        assert [b.text for b in response.message.blocks if isinstance(b, TextBlock)] == said
    else:
        with CtxMemory.from_defaults("s", context_window=8_000) as memory:
            memory.put(Items().chat([]).message)
            (kept,) = memory.get_all()
        assert [b.text for b in kept.blocks if isinstance(b, TextBlock)] == said


def test_r1_a_ctx_llm_reports_its_own_counts() -> None:
    with ModelServer(model="m", script=[Scripted("One.")] * 2) as server:
        llm = CtxLLM(model="m", base_url=server.base_url, api_key="x", context_window=2_000)
        wrapped = with_context(llm, session_id="t")
        for text in ("hi " * 300, "and?"):
            wrapped.chat([ChatMessage(role="user", content=text)])
        assert wrapped.context().usage().reported.cache_read_tokens == server.prefix_stats().cached_tokens > 0
