"""A refused reply reads as LangChain's own integrations show one, and is an error where a structured answer was asked for."""

from __future__ import annotations

import json
from typing import Any

import pytest
from langchain.agents import create_agent, middleware
from langchain_core import exceptions as lc
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.block_translators import get_translator
from langgraph.checkpoint.memory import InMemorySaver

from ctxfold.testing import ModelServer, RawReply, Scripted
from langchain_ctx import ChatCtx, ContextMiddleware

REFUSED = getattr(lc, "ModelRefusalError", lc.OutputParserException)
SAID = "I cannot help with that."
SCHEMA = {"title": "Answer", "description": "An answer.", "type": "object", "properties": {"text": {"type": "string"}}}


def openai(*, stream: bool) -> RawReply:
    if stream:
        deltas: list[tuple[Any, Any]] = [({"role": "assistant"}, None), ({"refusal": SAID}, None), ({}, "stop")]
        rows = [{"id": "x", "choices": [{"index": 0, "delta": d, "finish_reason": f}]} for d, f in deltas]
        return RawReply(frames=(*(f"data: {json.dumps(row)}\n\n".encode() for row in rows), b"data: [DONE]\n\n"))
    message = {"role": "assistant", "content": None, "refusal": SAID}
    return _json({"id": "x", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})


def anthropic() -> RawReply:
    usage = {"input_tokens": 5, "output_tokens": 1}
    return _json(
        {"id": "m", "type": "message", "role": "assistant", "content": [], "stop_reason": "refusal", "usage": usage}
    )


def gemini() -> RawReply:
    return _json({"candidates": [{"content": {"role": "model", "parts": []}, "finishReason": "SAFETY"}]})


def deepseek() -> RawReply:
    message = {"role": "assistant", "content": ""}
    return _json({"id": "x", "choices": [{"index": 0, "message": message, "finish_reason": "content_filter"}]})


def _json(body: Any) -> RawReply:
    return RawReply(headers={"content-type": "application/json"}, frames=(json.dumps(body).encode(),))


def chat(server: ModelServer, provider: str = "openai", **fields: Any) -> ChatCtx:
    if provider == "gemini":
        fields["wire"] = "gemini"
    return ChatCtx(provider=provider, base_url=server.base_url, api_key="k", model="m", **fields)


def refusals(message: BaseMessage) -> list[str]:
    return [block["refusal"] for block in message.content_blocks if block["type"] == "refusal"]


@pytest.mark.parametrize(
    ("provider", "reply", "said"),
    [
        ("openai", openai(stream=False), SAID),
        ("azure", deepseek(), ""),
        ("anthropic", anthropic(), ""),
        ("gemini", gemini(), ""),
    ],
)
def test_a_refused_reply_has_langchains_standard_block(provider: str, reply: RawReply, said: str) -> None:
    with ModelServer(script=lambda _: reply) as server:
        assert refusals(chat(server, provider).invoke("hello")) == [said]


@pytest.mark.parametrize("output_version", ["v0", "v1"])
def test_so_has_a_refused_stream_which_a_session_goes_on_from(output_version: str) -> None:
    replies = [openai(stream=True), Scripted("Here it is.")]
    with ModelServer(script=replies) as server:
        model = chat(server, store="sqlite://", session_id="s", context_window=8_000, output_version=output_version)
        merged: Any = None
        for chunk in model.stream("do it"):
            merged = chunk if merged is None else merged + chunk
        assert isinstance(merged, AIMessageChunk)
        assert (refusals(merged), merged.text) == ([SAID], "")
        answer = model.invoke("then that")
        assert (answer.text, refusals(answer)) == ("Here it is.", [])
    assert [m["content"] for m in server.requests[-1].body["messages"] if m["role"] == "user"] == ["do it", "then that"]


def test_a_block_is_added_to_what_was_said_before_the_refusal_and_no_other_message_gets_one() -> None:
    cut = _json(
        {"id": "x", "choices": [{"index": 0, "message": {"content": "First,"}, "finish_reason": "content_filter"}]}
    )
    with ModelServer(script=[cut, Scripted("Well.", reasoning="Hm.")]) as server:
        assert [b["type"] for b in chat(server).invoke("hello").content_blocks] == ["text", "refusal"]
        assert [b["type"] for b in chat(server, "deepseek").invoke("hello").content_blocks] == ["reasoning", "text"]
    foreign = AIMessage("", response_metadata={"finish_reason": "content_filter", "model_provider": "deepseek"})
    assert refusals(foreign) == []


@pytest.mark.parametrize(("provider", "reply"), [("openai", openai(stream=False)), ("deepseek", deepseek())])
@pytest.mark.parametrize("method", ["function_calling", "json_schema", "json_mode"])
def test_a_structured_answer_that_the_model_refuses_is_an_error(provider: str, reply: RawReply, method: Any) -> None:
    with ModelServer(script=lambda _: reply) as server:
        model = chat(server, provider)
        with pytest.raises(REFUSED, match="the model refused to answer") as caught:
            model.with_structured_output(SCHEMA, method=method).invoke("hello")
        assert (SAID in str(caught.value)) == (provider == "openai")
        assert isinstance(caught.value.raw_message, AIMessage)
        raw = model.with_structured_output(SCHEMA, method=method, include_raw=True).invoke("hello")
        assert isinstance(raw, dict)
        assert (type(raw["parsing_error"]), raw["parsed"]) == (REFUSED, None)


async def test_a_refusal_in_a_stream_with_the_raw_reply_is_its_parsing_error() -> None:
    with ModelServer(script=lambda _: openai(stream=True)) as server:
        model = chat(server).with_structured_output(SCHEMA, method="json_mode", include_raw=True)
        for pieces in ([*model.stream("hello")], [piece async for piece in model.astream("hello")]):
            parts = {name: value for piece in pieces for name, value in dict(piece).items()}
            assert (type(parts["parsing_error"]), parts["parsed"]) == (REFUSED, None)
            assert refusals(parts["raw"]) == [SAID]


async def test_a_structured_answer_still_arrives_piece_by_piece() -> None:
    with ModelServer(script=lambda _: Scripted('{"text": "one two three"}', chunks=4)) as server:
        model = chat(server).with_structured_output(SCHEMA, method="json_mode")
        assert len(list(model.stream("hello"))) > 1
        pieces = [piece async for piece in model.astream("hello")]
        assert len(pieces) > 1
        assert pieces[-1] == {"text": "one two three"}


@pytest.mark.skipif(not hasattr(middleware, "ModelRefusalMiddleware"), reason="came with LangChain 1.5")
@pytest.mark.parametrize("outside", [True, False])
@pytest.mark.parametrize("fallback", [True, False])
def test_an_agent_may_treat_a_refusal_as_an_error(outside: bool, fallback: bool) -> None:
    """The refused reply is not kept: the question is answered by the fallback, or asked again with the next one."""
    with ModelServer(script=[openai(stream=False), Scripted("Second."), Scripted("Third.")]) as server:
        ours = ContextMiddleware(store="sqlite://", context_window=8_000)
        fallbacks = [middleware.ModelFallbackMiddleware(chat(server))] if fallback else []
        theirs: list[Any] = [*fallbacks, middleware.ModelRefusalMiddleware()]
        stack = [ours, *theirs] if outside else [*theirs, ours]
        agent = create_agent(chat(server), [], middleware=stack, checkpointer=InMemorySaver())
        config: Any = {"configurable": {"thread_id": "t"}}
        first: Any = {"messages": [("user", "one")]}
        if fallback:
            assert agent.invoke(first, config)["messages"][-1].text == "Second."
        else:
            with pytest.raises(REFUSED):
                agent.invoke(first, config)
        agent.invoke({"messages": [("user", "two")]}, config)
        told = [(m.role, m.text) for m in ours.context("t").messages()]
    answers = [("assistant", "Second."), ("assistant", "Third.")] if fallback else [("assistant", "Second.")]
    assert [m for m in told if m[0] == "assistant"] == answers
    assert [m for m in told if m[0] == "user"] == [("user", "one"), ("user", "two")]


@pytest.mark.filterwarnings("ignore:tool_choice='any' leaves it to the model")
def test_a_model_that_cannot_be_forced_and_refuses_has_refused_and_not_forgotten_the_call() -> None:
    with ModelServer(script=lambda _: deepseek()) as server:
        answers = chat(server, "deepseek", thinking=True).with_structured_output(SCHEMA)
        for ask in (answers.invoke, lambda text: list(answers.stream(text))):
            with pytest.raises(REFUSED, match="the model refused to answer"):
                ask("hello")


@pytest.mark.parametrize("provider", ["anthropic", "bedrock", "groq", "openai"])
def test_messages_of_langchains_own_packages_are_read_as_before(provider: str) -> None:
    """A reply of ours has another label where LangChain expects messages of the provider's own package."""
    own = get_translator(provider)
    assert own is not None
    assert own["translate_content"].__module__.startswith("langchain_core.")
    with ModelServer(script=lambda _: anthropic() if provider == "anthropic" else deepseek()) as server:
        if provider in ("anthropic", "openai"):
            assert chat(server, provider).invoke("hello").response_metadata["model_provider"] == f"ctx-{provider}"


@pytest.mark.parametrize(
    ("wire", "field", "own", "format_of"),
    [
        ("gemini", "generationConfig", {"topK": 3}, "responseJsonSchema"),
        ("openai_responses", "text", {"verbosity": "low"}, "format"),
    ],
)
def test_a_schema_leaves_what_stands_beside_it_in_its_field(wire: Any, field: str, own: Any, format_of: str) -> None:
    said = '{"text": "Yes."}'
    part = {"type": "output_text", "text": said, "annotations": []}
    replies = {
        "gemini": {"candidates": [{"content": {"role": "model", "parts": [{"text": said}]}, "finishReason": "STOP"}]},
        "openai_responses": {
            "object": "response",
            "status": "completed",
            "output": [{"type": "message", "id": "msg_1", "role": "assistant", "content": [part]}],
        },
    }
    provider = "gemini" if wire == "gemini" else "openai"
    with ModelServer(script=lambda _: _json(replies[wire])) as server:
        model = ChatCtx(provider=provider, wire=wire, base_url=server.base_url, api_key="k", model="m")  # type: ignore[arg-type]
        answers = model.with_structured_output(SCHEMA, method="json_schema", **{field: own})
        assert answers.invoke("hello") == {"text": "Yes."}
    sent = server.requests[0].body[field]
    assert own.items() <= sent.items()
    assert format_of in sent
