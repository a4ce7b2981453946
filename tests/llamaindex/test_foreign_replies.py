"""What another LLM streams goes back to it whole; what it counts includes what came from a cache."""

from __future__ import annotations

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    LLMMetadata,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)
from llama_index.core.llms.llm import ToolSelection
from llama_index.core.llms.mock import MockFunctionCallingLLM, MockLLM
from pydantic import PrivateAttr

from ctxfold import Message, Request, ToolCalls, Usage, user
from ctxfold.stream import Fold, StreamEvent
from ctxfold.testing import RawReply, Scripted
from llamaindex_ctx import with_context
from llamaindex_ctx.backend import LlamaIndexBackend
from llamaindex_ctx.replies import whole_reply
from tests.llamaindex.served_llm import served
from tests.llamaindex.thinking import tool

pytestmark = [
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning"),
    pytest.mark.filterwarnings("ignore:is_running called from within a step:DeprecationWarning"),
]

SIGNED = {"google": {"thought_signature": "G"}}
CALL = ToolCallBlock(tool_call_id="c1", tool_name="look", tool_kwargs={"key": 1})
BESIDE: dict[str, Any] = {
    "thought_signatures": ["AA", None],
    "tool_calls": [
        {
            "id": "c1",
            "type": "function",
            "function": {"name": "look", "arguments": '{"key": 1}'},
            "extra_content": SIGNED,
        }
    ],
}
FIRST = ThinkingBlock(content="t1", additional_information={"signature": "S1", "id": "rs_1"})
SECOND = ThinkingBlock(content="t2", additional_information={"signature": "S2"})
LOOKING = ChatMessage(role="assistant", blocks=[FIRST, TextBlock(text="hello"), SECOND, CALL], additional_kwargs=BESIDE)


def responses(*last: ChatMessage, **beside: Any) -> list[ChatResponse]:
    """A thought, then the text, then all that is given."""
    begun = ChatResponse(
        message=ChatMessage(role="assistant", blocks=[FIRST]), delta="", additional_kwargs={"thinking_delta": "t1"}
    )
    said = ChatResponse(message=ChatMessage(role="assistant", blocks=[FIRST, TextBlock(text="hello")]), delta="hello")
    return [begun, said, *(ChatResponse(message=m, delta="", additional_kwargs=beside) for m in last)]


class Streaming(MockFunctionCallingLLM):
    """Streams the given responses first, and is done from then on; `_seen` is what it was asked."""

    _first: list[ChatResponse] = PrivateAttr(default_factory=lambda: responses(LOOKING))
    _seen: list[list[ChatMessage]] = PrivateAttr(default_factory=list)

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(context_window=32_000, is_chat_model=True, is_function_calling_model=True, model_name="m")

    def _next(self, messages: Sequence[ChatMessage]) -> list[ChatResponse]:
        self._seen.append([m.model_copy(deep=True) for m in messages])
        done = ChatResponse(message=ChatMessage(role="assistant", content="done"), delta="done")
        return [r.model_copy(deep=True) for r in self._first] if len(self._seen) == 1 else [done]

    def chat(self, messages: Any, **kwargs: Any) -> ChatResponse:
        return self._next(messages)[-1]

    async def achat(self, messages: Any, **kwargs: Any) -> ChatResponse:
        return self._next(messages)[-1]

    def stream_chat(self, messages: Any, **kwargs: Any) -> Any:
        return iter(self._next(messages))

    async def astream_chat(self, messages: Any, **kwargs: Any) -> Any:
        async def each() -> Any:
            for response in self._next(messages):
                yield response

        return each()

    def get_tool_calls_from_response(self, response: ChatResponse, *args: Any, **kwargs: Any) -> list[ToolSelection]:
        calls = (b for b in response.message.blocks if isinstance(b, ToolCallBlock))
        return [ToolSelection(tool_id=c.tool_call_id, tool_name=c.tool_name, tool_kwargs=c.tool_kwargs) for c in calls]


async def say(llm: Any, how: str, messages: list[ChatMessage]) -> ChatMessage:
    if how == "chat":
        return llm.chat(messages).message
    if how == "stream_chat":
        return list(llm.stream_chat(messages))[-1].message
    return [r async for r in await llm.astream_chat(messages)][-1].message


async def sent_back(inner: Streaming, how: str = "stream_chat", session: str | None = None) -> ChatMessage:
    """What the LLM gets of its own answer in the next round."""
    llm = with_context(inner, session_id=session)
    asked = [ChatMessage("q")]
    asked.append(await say(llm, how, asked))
    asked.append(ChatMessage(role="tool", content="found", additional_kwargs={"tool_call_id": "c1"}))
    await say(llm, how, asked)
    (answer,) = [m for m in inner._seen[1] if m.role.value == "assistant"]
    return answer


def streamed(inner: Streaming) -> tuple[list[StreamEvent], Message]:
    """The events of its first answer, and the message that is kept."""
    fold = Fold("a1")
    chunks = LlamaIndexBackend(inner).open_stream(Request([user("q", id="u")]))
    return [event for chunk in chunks for event in fold.feed(chunk)], fold.close().message


@pytest.mark.parametrize("how", ["chat", "stream_chat", "astream_chat"])
@pytest.mark.parametrize("session", [None, "s"])
async def test_all_of_an_answer_goes_back(how: str, session: str | None) -> None:
    answer = await sent_back(Streaming(), how, session)
    assert answer.blocks == LOOKING.blocks
    assert answer.additional_kwargs == BESIDE


async def test_an_agent_that_streams_gives_it_all_back() -> None:
    inner = Streaming()
    assert str(await FunctionAgent(llm=with_context(inner), tools=[tool()]).run("q")) == "done"
    (answer,) = [m for m in inner._seen[1] if m.role.value == "assistant"]
    assert (answer.blocks, answer.additional_kwargs) == (LOOKING.blocks, BESIDE)


@pytest.mark.parametrize("wrapped", [False, True])
async def test_what_a_provider_put_into_a_call_goes_back_to_it(wrapped: bool) -> None:
    def event(delta: dict[str, Any], finish: str | None = None) -> bytes:
        row = {"id": "x", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
        return f"data: {json.dumps(row)}\n\n".encode()

    function = {"name": "look", "arguments": '{"key": 1}'}
    call = {"index": 0, "id": "c1", "type": "function", "function": function, "extra_content": SIGNED}
    frames = (event({"role": "assistant", "tool_calls": [call]}), event({}, "tool_calls"), b"data: [DONE]\n\n")
    async with served(RawReply(frames=frames), Scripted("done"), settings={"context_window": 32_000}) as (llm, server):
        agent = FunctionAgent(llm=with_context(llm) if wrapped else llm, tools=[tool()])
        assert str(await agent.run("q")) == "done"
        (answer,) = [m for m in server.requests[1].body["messages"] if m["role"] == "assistant"]
    assert answer["tool_calls"][0]["extra_content"] == SIGNED


def test_a_last_response_without_the_text_takes_nothing_away() -> None:
    inner = Streaming()
    inner._first = responses(ChatMessage(role="assistant", blocks=[CALL]))
    _, kept = streamed(inner)
    assert (kept.reasoning, kept.text, [c.id for c in kept.tool_calls]) == ("t1", "hello", ["c1"])


@pytest.mark.parametrize("left", [[], [ThinkingBlock(content="t")]])
async def test_a_last_response_without_the_thinking_takes_nothing_away(left: list[ThinkingBlock]) -> None:
    inner = Streaming()
    blocks = [*left, TextBlock(text="hello"), CALL]
    inner._first = responses(ChatMessage(role="assistant", blocks=blocks, additional_kwargs=BESIDE))
    answer = await sent_back(inner)
    thinking = ThinkingBlock(content="t1", additional_information={"signature": "S1"})
    assert answer.blocks == [thinking, TextBlock(text="hello"), CALL]
    assert answer.additional_kwargs == BESIDE


async def test_texts_in_several_blocks_go_back_as_they_came() -> None:
    inner = Streaming()
    blocks = [TextBlock(text="hel"), SECOND, TextBlock(text="lo"), CALL]
    inner._first = [ChatResponse(message=ChatMessage(role="assistant", blocks=blocks[:n])) for n in range(1, 5)]
    assert (await sent_back(inner)).blocks == blocks


def test_a_call_that_was_cut_short_is_left_out() -> None:
    inner = Streaming()
    half = ToolCallBlock(tool_call_id="c2", tool_name="look", tool_kwargs='{"key"')
    whole = ChatMessage(role="assistant", blocks=[*LOOKING.blocks, half])
    inner._first = responses(whole, finish_reason="length")
    _, kept = streamed(inner)
    assert [c.id for c in kept.tool_calls] == ["c1"]


@pytest.mark.parametrize("given", [None, "", "same"])
def test_calls_are_kept_under_the_ids_that_were_streamed(given: str | None) -> None:
    inner = Streaming()
    calls = [ToolCallBlock(tool_call_id=given, tool_name="look", tool_kwargs={"key": n}) for n in range(2)]
    inner._first = responses(ChatMessage(role="assistant", blocks=[FIRST, TextBlock(text="hello"), *calls]))
    events, kept = streamed(inner)
    (told,) = [e for e in events if isinstance(e, ToolCalls)]
    assert [c.id for c in told.calls] == [c.id for c in kept.tool_calls]
    assert len({c.id for c in kept.tool_calls}) == 2
    assert (kept.id, kept.model) == ("a1", "m")


ANTHROPIC = {"input_tokens": 10, "output_tokens": 5, "cache_read_input_tokens": 60, "cache_creation_input_tokens": 30}
BEDROCK = {
    "prompt_tokens": 10,
    "completion_tokens": 5,
    "cache_read_input_tokens": 60,
    "cache_creation_input_tokens": 30,
}
OPENAI = {"prompt_tokens": 100, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 60}}
COPIED = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}


@pytest.mark.parametrize(
    ("raw", "beside", "expected"),
    [
        ({"usage": ANTHROPIC}, {}, Usage(100, 5, 60, 30)),
        ({"usage": SimpleNamespace(**ANTHROPIC)}, {}, Usage(100, 5, 60, 30)),
        ({"usage": {**ANTHROPIC, "cache_creation_input_tokens": None}}, {}, Usage(70, 5, 60)),
        ({}, ANTHROPIC, Usage(100, 5, 60, 30)),
        ({}, BEDROCK, Usage(100, 5, 60, 30)),
        ({"usage": ANTHROPIC}, COPIED, Usage(100, 5, 60, 30)),
        ({"usage": ANTHROPIC}, {**COPIED, "prompt_tokens": 100}, Usage(100, 5, 60, 30)),
        ({"usage": OPENAI}, {"prompt_tokens": 100, "completion_tokens": 5, "total_tokens": 105}, Usage(100, 5, 60)),
        # these include the cache
        ({"usage": OPENAI}, {}, Usage(100, 5, 60)),
        ({"usage": {**OPENAI, "cache_read_input_tokens": 60}}, {}, Usage(100, 5, 60)),
        ({"usage": {"input_tokens": 100, "output_tokens": 5}}, {}, Usage(100, 5)),
        ({"usage_metadata": {"prompt_token_count": 100, "candidates_token_count": 5}}, {}, Usage(100, 5)),
        ({}, {"prompt_tokens": 100, "completion_tokens": 5, "cache_read_tokens": 60}, Usage(100, 5, 60)),
    ],
)
def test_input_includes_what_came_from_a_cache(raw: Any, beside: dict[str, Any], expected: Usage) -> None:
    response = ChatResponse(message=ChatMessage(role="assistant", content="a"), raw=raw, additional_kwargs=beside)
    assert whole_reply(response, "m").usage == expected


class Caching(MockLLM):
    """Counts as Anthropic does, most of it as read from a cache."""

    _sent: list[int] = PrivateAttr(default_factory=list)

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(context_window=8_000, is_chat_model=True, model_name="claude")

    def chat(self, messages: Any, **kwargs: Any) -> ChatResponse:
        took = sum(len(m.content or "") for m in messages) // 4
        self._sent.append(took)
        cached = int(took * 0.65)
        usage = {"input_tokens": took - cached, "cache_read_input_tokens": cached, "output_tokens": 20}
        return ChatResponse(message=ChatMessage(role="assistant", content="ok " * 20), raw={"usage": usage})


def test_cache_hits_do_not_make_the_window_larger() -> None:
    inner = Caching()
    llm = with_context(inner, session_id="s", reply_reserve_tokens=256)
    told: list[ChatMessage] = []
    for number in range(50):
        told.append(ChatMessage(f"question {number}: " + "river mountain table order invoice customer " * 25))
        told.append(llm.chat(told).message)
    assert max(inner._sent) <= 8_000
