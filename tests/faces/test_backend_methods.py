"""R8: every backend offers what those of the wires offer beside sending, whichever model is behind it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from langchain_core.language_models import FakeListChatModel
from llama_index.core.llms import MockLLM

from ctxfold import (
    AgentContext,
    Completed,
    ConfigError,
    MemoryStore,
    Message,
    OpenAIChatBackend,
    ReasoningPart,
    Reply,
    Request,
    ScriptedBackend,
    TextPart,
    Thinking,
    ToolCallPart,
    ToolSpec,
    Usage,
    assistant,
    system,
    tool_result,
    user,
)
from ctxfold.backends.base import BaseBackend
from ctxfold.protocols import Chunk
from ctxfold.testing import ModelServer, Scripted
from langchain_ctx.backend import LangChainBackend
from llamaindex_ctx.backend import LlamaIndexBackend


class Echo(BaseBackend):
    model = "echo"

    def send(self, request: Request) -> Reply:
        return Reply(assistant(request.messages[-1].text, id="a"), finish_reason="stop")


def backends() -> list[BaseBackend | LangChainBackend | LlamaIndexBackend]:
    return [
        Echo(),
        ScriptedBackend(["So."]),
        LangChainBackend(FakeListChatModel(responses=["So."])),
        LlamaIndexBackend(MockLLM()),
    ]


@pytest.mark.parametrize("number", range(4), ids=["own", "scripted", "langchain", "llamaindex"])
async def test_r8_a_backend_that_is_no_wire_offers_what_a_wire_offers(number: int) -> None:
    """R8: only the backends of the wires had these methods."""
    backend = backends()[number]
    asked = Request((system("Be brief.", id="s"), user("So.", id="u")))
    chunks = list(backend.open_stream(asked))
    merged = backend.merge_chunks(chunks)
    assert merged is not None
    assert "So." in merged.text
    whole = Reply(assistant("Whole.", id="w"))
    assert [m.text for m in backend.extract_messages([whole, *chunks])] == ["Whole.", merged.text]
    assert (backend.merge_chunks([]), backend.extract_messages([])) == (None, [])
    assert backend.to_system_message(merged) == system(merged.text, id=merged.id)
    few = backend.estimate_tokens(asked.messages)
    assert 0 < few < backend.estimate_tokens(asked.messages, tools=(ToolSpec("ls", "list a folder"),))
    assert await backend.aestimate_tokens(asked.messages) == few


@pytest.mark.parametrize("number", range(4), ids=["own", "scripted", "langchain", "llamaindex"])
def test_r8_messages_are_written_and_read_in_the_shape_of_chat_completions(number: int) -> None:
    """R8: and a request's messages leave reasoning out, unless a message preserves its own."""
    backend = backends()[number]
    thought = Message("a", "assistant", (ReasoningPart("Why."), TextPart("So.")), model=backend.model)
    for message in (user("Go.", id="u"), thought, tool_result("c1", "found", id="r")):
        assert backend.message_from_jsonl(backend.message_to_jsonl(message)) == message
    rows = backend.to_request_messages([system("Be brief.", id="s"), user("Go.", id="u"), thought])
    assert [row["role"] for row in rows] == ["system", "user", "assistant"]
    assert "Why." not in str(rows)


class Marked(OpenAIChatBackend):
    """A service that marks its thinking by a text before it."""

    def classify_chunk(self, chunk: Chunk) -> Chunk:
        hidden = chunk.content.startswith("(thinks)")
        return replace(chunk, reasoning=chunk.content, content="") if hidden else chunk


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_r8_a_backend_of_a_wire_may_classify_its_chunks(stream: bool) -> None:
    """R8: no backend had a `classify_chunk` to override."""
    with (
        ModelServer(script=[Scripted("(thinks) Why.")]) as server,
        Marked(model="m", base_url=server.base_url) as backend,
    ):
        context = AgentContext(backend, store="memory://", context_window=9_000)
        if stream:
            *pieces, last = context.send_stream("Go.")
            assert isinstance(last, Completed)
            assert "".join(p.text for p in pieces if isinstance(p, Thinking)).startswith("(thinks)")
            message = last.reply.message
        else:
            message = context.send("Go.").message
    assert message.reasoning.startswith("(thinks)")
    assert "(thinks)" not in message.text


@pytest.mark.parametrize("framework", [LangChainBackend, LlamaIndexBackend])
async def test_r8_a_backend_over_a_framework_s_model_may_classify_its_chunks(
    framework: type[LangChainBackend] | type[LlamaIndexBackend],
) -> None:
    """R8: the chunks of a borrowed model pass through the same method, in sync and async streams."""

    class Quiet(framework):  # type: ignore[misc, valid-type]  # pyright: ignore[reportGeneralTypeIssues, reportUntypedBaseClass]
        def classify_chunk(self, chunk: Chunk) -> Chunk:
            return replace(chunk, reasoning=chunk.content, content="", whole=None)

    backend = Quiet(FakeListChatModel(responses=["So."]) if framework is LangChainBackend else MockLLM())
    asked = Request((user("So.", id="u"),))
    for chunks in (list(backend.open_stream(asked)), [chunk async for chunk in await backend.aopen_stream(asked)]):
        merged = backend.merge_chunks(chunks)
        assert merged is not None
        assert (merged.text, "So." in merged.reasoning) == ("", True)


def test_r8_a_derived_stream_brings_the_reply_as_it_was() -> None:
    """R8: texts with what stood beside them, calls between them, signed thinking and usage, through `classify_chunk`."""
    parts = (
        ReasoningPart("Why.", "S"),
        TextPart("So. ", '{"gemini": {"n": 1}}'),
        TextPart("And "),
        ToolCallPart("c1", "ls", '{"d": "/"}'),
        TextPart("so."),
    )
    message = Message("a", "assistant", parts, model="scripted", usage=Usage(3, 2), finish_reason="tool_calls")
    backend = ScriptedBackend([message])
    merged = backend.merge_chunks(backend.open_stream(Request((user("Go.", id="u"),))))
    assert merged is not None
    assert (merged.parts, merged.usage, merged.finish_reason) == (message.parts, message.usage, message.finish_reason)

    class Shouting(Echo):
        def classify_chunk(self, chunk: Chunk) -> Chunk:
            return replace(chunk, content=chunk.content.upper())

    loud = Shouting()
    heard = loud.merge_chunks(loud.open_stream(Request((user("so", id="u"),))))
    assert heard is not None
    assert heard.text == "SO"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("made", [None, "text", KeyError("kind")], ids=["nothing", "a text", "an error"])
def test_r8_a_classify_chunk_that_makes_no_chunk_is_named(made: Any, stream: bool) -> None:
    """The turn is taken back, and the session goes on with a backend that works."""

    class Wrong(OpenAIChatBackend):
        def classify_chunk(self, chunk: Chunk) -> Chunk:
            if isinstance(made, Exception):
                raise made
            return made  # type: ignore[no-any-return]

    store = MemoryStore()
    with ModelServer(script=[Scripted("So."), Scripted("So.")]) as server:
        with Wrong(model="m", base_url=server.base_url) as backend:
            context = AgentContext(backend, session_id="s", store=store, context_window=9_000)
            with pytest.raises(ConfigError, match=r"Wrong\.classify_chunk (returned|raised)"):
                list(context.send_stream("Go.")) if stream else context.send("Go.")
        with OpenAIChatBackend(model="m", base_url=server.base_url) as backend:
            context = AgentContext(backend, session_id="s", store=store, context_window=9_000)
            assert context.send("Go.").message.text == "So."
            assert [m.role for m in context.messages()] == ["user", "assistant"]
