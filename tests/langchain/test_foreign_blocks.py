"""What only a model's own package understands of a reply: kept as it came, streamed or not, and handed back to it so."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver

from ctxfold import AgentContext, MemoryStore, Prices, Usage
from ctxfold.testing import ModelServer, Scripted, ScriptedCall
from langchain_ctx import ContextMiddleware, CtxChatMessageHistory, history_tools, with_context
from langchain_ctx.backend import LangChainBackend
from langchain_ctx.messages import from_langchain, to_langchain
from tests.langchain.faces import closed
from tests.langchain.running import T
from tests.langchain.test_chat_anthropic import _block, _event, _thought, weather
from tests.wire.raw_server import Play, RawServer

HIT = {"type": "web_search_result", "url": "http://e.x", "title": "T", "encrypted_content": "EC", "page_age": None}
RESULT = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [HIT]}
SEARCH = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "ulm"}}
FOUND = {"cited_text": "22 C", "url": "http://e.x", "title": "T", "encrypted_index": "EI"}
CITED = {"type": "web_search_result_location", **FOUND}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Ulm"}}
BLOCKS: list[dict[str, Any]] = [
    {"type": "thinking", "thinking": "Hm.", "signature": "S1"},
    SEARCH,
    RESULT,
    {"type": "redacted_thinking", "data": "SEALED"},
    {"type": "text", "text": "It is 22 C.", "citations": [CITED]},
    {"type": "text", "text": " Looking again."},
]
WRITTEN = {"ephemeral_5m_input_tokens": 20, "ephemeral_1h_input_tokens": 30}
USAGE = {"input_tokens": 10, "output_tokens": 5, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 50}
HEAD = {"id": "m", "type": "message", "role": "assistant", "model": "claude-test-9", "stop_sequence": None}
VERSION = pytest.mark.parametrize("version", ["v0", "v1"])
HOW = pytest.mark.parametrize("how", ["invoke", "ainvoke", "stream", "astream"])


def reply(how: str, *more: dict[str, Any]) -> Play:
    """Anthropic's answer with all these blocks and `more`, as one body or in events."""
    end = {"stop_reason": "tool_use" if more else "end_turn", "stop_sequence": None}
    usage = {**USAGE, "cache_creation": WRITTEN}
    if "stream" not in how:
        body = json.dumps({**HEAD, **end, "content": [*BLOCKS, *more], "usage": usage}).encode()
        headers = {"content-type": "application/json", "content-length": str(len(body))}
        return Play([body], headers=headers, then="keep")
    spoken = [{"type": "text_delta", "text": "It is "}, {"type": "text_delta", "text": "22 C."}]
    frames = [
        _event("message_start", message={**HEAD, "content": [], "stop_reason": None, "usage": USAGE}),
        *_thought(0, "Hm.", "S1"),
        *_block(1, {**SEARCH, "input": {}}, {"type": "input_json_delta", "partial_json": '{"query": "ulm"}'}),
        *_block(2, RESULT),
        *_block(3, {"type": "redacted_thinking", "data": "SEALED"}),
        *_block(4, {"type": "text", "text": ""}, {"type": "citations_delta", "citation": CITED}, *spoken),
        *_block(5, {"type": "text", "text": ""}, {"type": "text_delta", "text": " Looking again."}),
    ]
    for index, call in enumerate(more, 6):
        told = {"type": "input_json_delta", "partial_json": json.dumps(call["input"], separators=(",", ":"))}
        frames += _block(index, {**call, "input": {}}, told)
    frames += [_event("message_delta", delta=end, usage=usage), _event("message_stop")]
    return Play(frames, headers={"content-type": "text/event-stream"})


def claude(server: RawServer, version: str = "v0", **settings: Any) -> Any:
    from langchain_anthropic import ChatAnthropic  # takes a second: only the worker that runs this is to wait

    told: Any = {"model": "claude-test-9", "api_key": "k", "max_tokens": 2_000, "max_retries": 0, **settings}
    thinking = {"type": "enabled", "budget_tokens": 1_024}
    url = server.base_url.removesuffix("/v1")
    return ChatAnthropic(base_url=url, thinking=thinking, output_version=version, **told)


async def asked(model: Any, given: Any, how: str) -> Any:
    match how:
        case "invoke":
            return model.invoke(given)
        case "ainvoke":
            return await model.ainvoke(given)
        case "stream":
            return merged(list(model.stream(given)))
        case _:
            return merged([c async for c in model.astream(given)])


def merged(chunks: list[Any]) -> Any:
    first, *rest = chunks
    return sum(rest, start=first)


def bare(blocks: Any) -> Any:
    """Without what a stream needs to put its pieces together."""
    return [{k: v for k, v in b.items() if k not in ("index", "partial_json")} for b in blocks]


@VERSION
@HOW
async def test_a_reply_comes_back_as_it_came(how: str, version: str) -> None:
    with RawServer(reply(how)) as server:
        store = MemoryStore()
        model = with_context(claude(server, version), store=store, session_id="s", context_window=100_000)
        said = await asked(model, "warm?", how)
        for kept in (
            to_langchain(model.context().messages()[-1]),
            CtxChatMessageHistory("s", store, 100_000).messages[-1],
        ):
            assert isinstance(kept, AIMessage)
            assert bare(kept.content) == bare(said.content)
            assert bare(kept.content_blocks) == bare(said.content_blocks)
            assert kept.usage_metadata == said.usage_metadata
            assert kept.response_metadata == said.response_metadata
        await asked(model, "and now?", how)
        assert bare(server.bodies[1]["messages"][1]["content"]) == BLOCKS
        await closed(model)


@VERSION
@HOW
async def test_a_tool_round_goes_back_as_it_came(how: str, version: str) -> None:
    with RawServer(reply(how, CALL), reply(how)) as server:
        model = with_context(claude(server, version), store=MemoryStore(), session_id="s", context_window=100_000)
        bound = model.bind_tools([weather])
        said = await asked(bound, "warm?", how)
        assert [c["args"] for c in said.tool_calls] == [{"city": "Ulm"}]
        await asked(bound, [HumanMessage("warm?"), said, ToolMessage("22", tool_call_id="toolu_1")], how)
        assert bare(server.bodies[1]["messages"][1]["content"]) == [*BLOCKS, CALL]
        await closed(model)


@VERSION
@HOW
async def test_an_agent_hands_them_back(how: str, version: str) -> None:
    """Through `ContextMiddleware`, in a session that outlives the list."""
    with RawServer(reply(how, CALL), reply(how)) as server, ContextMiddleware(context_window=100_000) as middleware:
        streaming = {"streaming": True} if "stream" in how else {}
        model = claude(server, version, **streaming)
        agent: Any = create_agent(model, [weather], middleware=[middleware], checkpointer=InMemorySaver())
        for _ in range(2):
            given = {"messages": [HumanMessage("warm?")]}
            await agent.ainvoke(given, T) if how.startswith("a") else agent.invoke(given, T)
        said = server.bodies[-1]["messages"]
        assert [bare(m["content"]) for m in said if m["role"] == "assistant"] == [[*BLOCKS, CALL], BLOCKS]
        kept = [to_langchain(m) for m in middleware.context("t").messages() if m.role == "assistant"]
        listed = [m for m in agent.get_state(T).values["messages"] if isinstance(m, AIMessage)]
        assert [m.content for m in kept] == [m.content for m in listed]
        await closed(model)


async def test_a_session_over_a_langchain_model_keeps_them() -> None:
    with RawServer(reply("stream")) as server:
        with AgentContext(LangChainBackend(claude(server)), context_window=100_000) as context:
            list(context.send_stream("warm?"))
            async for _ in context.asend_stream("and now?"):
                pass
            kept = [to_langchain(m) for m in context.messages() if m.role == "assistant"]
        assert [bare(m.content)[1:] for m in kept] == [[{**SEARCH, "input": {}}, *BLOCKS[2:]]] * 2
        assert bare(server.bodies[1]["messages"][1]["content"]) == BLOCKS


V1: list[Any] = [
    {"type": "reasoning", "reasoning": "Hm.", "extras": {"signature": "S"}, "index": 0},
    {"type": "reasoning", "id": "rs_1", "extras": {"encrypted_content": "E"}},
    {"type": "text", "text": "See.", "annotations": [{"type": "citation", "url": "http://e.x", "cited_text": "x"}]},
    {"type": "server_tool_call", "id": "s1", "name": "web_search", "args": {"query": "ulm"}},
    {"type": "server_tool_result", "tool_call_id": "s1", "status": "success", "output": [{"url": "http://e.x"}]},
    {"type": "image", "base64": "aGk=", "mime_type": "image/png", "id": "i1"},
    {"type": "image", "url": "http://e.x/i.png", "mime_type": "image/png"},
    {"type": "audio", "base64": "aGk=", "mime_type": "audio/wav"},
    {"type": "video", "file_id": "f1"},
    {"type": "file", "base64": "aGk=", "mime_type": "application/pdf", "filename": "a.pdf"},
    {"type": "text-plain", "text": "plain", "mime_type": "text/plain"},
    {"type": "invalid_tool_call", "id": "c2", "name": "f", "args": "{", "error": None},
    {"type": "tool_call", "id": "c1", "name": "f", "args": {"a": 1}, "extras": {"k": "v"}},
    {"type": "non_standard", "value": {"type": "compaction", "content": "x"}},
    "and a string",
]


@pytest.mark.parametrize("made", ["answered", "asked", "returned"])
def test_every_standard_block_comes_back(made: str) -> None:
    calls = [{"name": "f", "args": {"a": 1}, "id": "c1"}]
    meta = {"output_version": "v1", "model_provider": "anthropic"}
    whole: Any = {
        "answered": AIMessage(V1, id="m", tool_calls=calls, response_metadata=meta),
        "asked": HumanMessage(V1, id="m"),
        "returned": ToolMessage(V1, id="m", tool_call_id="c"),
    }[made]
    history = CtxChatMessageHistory("s", context_window=100_000)
    assert to_langchain(from_langchain(whole)) == whole
    if made == "asked":
        history.add_messages([whole])
        assert history.messages == [whole]
        assert history.messages[0].content_blocks == whole.content_blocks


def test_a_block_of_a_call_that_the_message_does_not_have_takes_nothing_with_it() -> None:
    message = AIMessage(
        [{"type": "tool_call", "id": "c9", "name": "f", "args": {}}, {"type": "text", "text": "a"}], id="m"
    )
    assert to_langchain(from_langchain(message)) == message


# plain text beside which something stands


class Told(BaseChatModel):
    """Streams what it was made with."""

    pieces: list[Any]

    @property
    def _llm_type(self) -> str:
        return "told"

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage("whole"))])

    def _stream(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Iterator[Any]:
        for piece, info in self.pieces:
            yield ChatGenerationChunk(message=piece.model_copy(), generation_info=info)


def test_what_a_package_tells_beside_a_streamed_text_is_kept() -> None:
    """Thoughts keep their places in the text; the rest is as LangChain adds it up."""

    def thought(text: str, **more: Any) -> AIMessageChunk:
        return AIMessageChunk("", additional_kwargs={"reasoning_content": text, **more})

    pieces = [
        (thought("First", own={"a": 1}), None),
        (thought("."), {"logprobs": {"content": [1]}}),
        (AIMessageChunk("One. "), {"logprobs": {"content": [2]}}),
        (thought("Second."), None),
        (AIMessageChunk("Two.", response_metadata={"system_fingerprint": "fp"}), {"finish_reason": "stop"}),
    ]
    model = with_context(Told(pieces=pieces), session_id="s", context_window=8_000)
    said = merged(list(model.stream("well?")))
    stored = model.context().messages()[-1]
    assert stored.finish_reason == "stop"
    kinds = [(p.type, p.text) for p in stored.parts if p.type in ("text", "reasoning")]
    assert kinds == [("reasoning", "First."), ("text", "One. "), ("reasoning", "Second."), ("text", "Two.")]
    kept = to_langchain(stored)
    assert kept.content == said.content == "One. Two."
    assert {k: v for k, v in kept.additional_kwargs.items() if k != "ctxfold"} == said.additional_kwargs
    assert {k: v for k, v in kept.response_metadata.items() if k != "model_name"} == said.response_metadata


def test_pieces_that_langchain_cannot_add_up_are_kept_as_they_were_read() -> None:
    first, second = ({"own": "text"}, {"own": ["list"]})
    pieces = [
        (AIMessageChunk("a", additional_kwargs=first), None),
        (AIMessageChunk("b", additional_kwargs=second), None),
    ]
    model = LangChainBackend(Told(pieces=pieces))
    with AgentContext(model, context_window=8_000) as context:
        said: list[str] = []
        with pytest.raises(TypeError, match="own"):
            merged([piece for piece, _ in pieces])
        stream = with_context(Told(pieces=pieces), session_id="s", context_window=8_000)
        said += [
            m.text for m in stream._stream([HumanMessage("x")])
        ]  # what LangChain's own `stream` fails at in the end
        assert "".join(said) == "ab"
        assert stream.context().messages()[-1].text == "ab"
        assert context.messages() == ()


# tokens


@HOW
async def test_tokens_read_from_a_cache_and_written_to_it(how: str) -> None:
    """Anthropic tells writes by their lifetime; they cost more than plain input, and reads less."""
    prices = Prices(input_per_mtok=1, cache_read_per_mtok=10, cache_write_per_mtok=100, output_per_mtok=1_000)
    with RawServer(reply(how)) as server:
        model = with_context(claude(server), session_id="s", context_window=100_000, prices=prices)
        await asked(model, "warm?", how)
        usage = model.context().usage()
        assert usage.reported == Usage(160, 5, cache_read_tokens=100, cache_write_tokens=50)
        assert usage.cost is not None
        assert usage.cost.spent * 1e6 == pytest.approx(10 + 100 * 10 + 50 * 100 + 5 * 1_000)
        await closed(model)


@pytest.mark.parametrize(
    ("into", "out", "read", "written", "thought"),
    [
        ({"cache_read": 7, "cache_creation": 3}, {"reasoning": 2}, 7, 3, 2),
        ({"priority": 90, "priority_cache_read": 7, "priority_cache_creation": 3}, {"flex_reasoning": 2}, 7, 3, 2),
        (
            {"cache_read": 7, "cache_creation": 0, "ephemeral_5m_input_tokens": 1, "ephemeral_1h_input_tokens": 2},
            {},
            7,
            3,
            0,
        ),
        ({"cache_creation": 3, "ephemeral_5m_input_tokens": 3}, {"audio": 1}, 0, 3, 0),
        ({"audio": 5}, {}, 0, 0, 0),
    ],
)
def test_details_of_usage(into: Any, out: Any, read: int, written: int, thought: int) -> None:
    said: Any = {"input_tokens": 100, "output_tokens": 9, "total_tokens": 109}
    said |= {"input_token_details": into, "output_token_details": out}
    message = AIMessage("hi", id="m", usage_metadata=said)
    told = from_langchain(message)
    assert told.usage == Usage(100, 9, read, written, thought)
    assert to_langchain(told) == message


@HOW
async def test_our_counts_are_measured_by_all_of_the_input(how: str) -> None:
    """Cached tokens are part of what was sent: a prompt that came from the cache is no shorter."""

    def answer(body: Any) -> Scripted:
        return Scripted("Noted. " * 5)

    with ModelServer(model="m", script=answer, strict="openai") as server:
        inner: Any = ChatOpenAI(model="m", base_url=server.base_url, api_key="x", stream_usage=True)  # type: ignore[arg-type]
        model = with_context(inner, session_id="s", context_window=8_000)
        for number in range(6):
            await asked(model, f"Question {number}. " + "It is long. " * 40, how)
        context = model.context()
        known = context.handle.engine.known(context.handle.key)
        assert known is not None
        assert 0.8 < known.state.calibrations["m"].ratio < 1.25
        if how.startswith("a"):
            await inner.root_async_client.close()
        inner.root_client.close()


LINES = "\n".join(f"Line {n}: value {7 * n}." for n in range(4_000))
DOCUMENTS: list[dict[str, Any]] = [
    {"type": "search_result", "source": "http://e.x", "title": "T", "content": [{"type": "text", "text": LINES}]},
    {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": LINES}},
]


@pytest.mark.parametrize("block", DOCUMENTS, ids=[str(b["type"]) for b in DOCUMENTS])
def test_a_document_of_a_tool_that_is_too_large_is_an_excerpt(block: dict[str, Any]) -> None:
    """The model sees the beginning and how to read on; what fits goes to the service as the tool gave it."""

    @tool
    def fetch(whole: bool) -> list[dict[str, Any]]:
        """Fetches."""
        if whole:
            return [block]
        text = json.dumps(block).replace(json.dumps(LINES)[1:-1], "Line 0.")
        return [dict(json.loads(text))]

    def play(body: Any) -> Scripted:
        newest = body["messages"][-1]
        if newest["role"] == "user":
            return Scripted(tool_calls=(ScriptedCall("fetch", json.dumps({"whole": newest["content"] == "whole"})),))
        return Scripted("Done.")

    with ModelServer(model="m", script=play, strict="anthropic") as server:
        url = server.base_url.removesuffix("/v1")
        from langchain_anthropic import ChatAnthropic

        model = ChatAnthropic(model="m", base_url=url, api_key="x", max_retries=0, max_tokens=500)  # type: ignore[call-arg, arg-type]
        middleware = ContextMiddleware(context_window=8_000)
        agent: Any = create_agent(model, [fetch], middleware=[middleware], checkpointer=InMemorySaver())
        agent.invoke({"messages": [HumanMessage("part")]}, T)
        (small,) = server.requests[-1].body["messages"][-1]["content"]
        assert small["content"] == [json.loads(json.dumps(block).replace(json.dumps(LINES)[1:-1], "Line 0."))]
        agent.invoke({"messages": [HumanMessage("whole")]}, T)
        (large,) = server.requests[-1].body["messages"][-1]["content"]
        assert "Line 1: value 7." in large["content"]
        assert "#7" in large["content"]
        assert len(large["content"]) < 8_000
        read = next(each for each in history_tools(middleware.context("t")) if each.name == "read_message")
        assert "Line 2000: value 14000." in read.invoke({"reference": "#7", "offset": LINES.index("Line 2000")})
        middleware.close()
