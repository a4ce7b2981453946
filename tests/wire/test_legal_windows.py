"""A list that the plain framework takes is legal for the model that is asked: system messages in the middle, empty messages."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_anthropic import ChatAnthropic
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_google_genai import ChatGoogleGenerativeAI
from langchain_openai import ChatOpenAI
from llama_index.core.base.llms.types import ChatMessage

from ctxfold import AgentContext, Message, TextPart, assistant, open_backend, system, user
from ctxfold.testing import ModelServer, Scripted
from langchain_ctx import with_context
from llamaindex_ctx import CtxMemory
from tests.support.summaries import asks_on_live_prefix
from tests.support.wires import WIRES

TURNS = 12


def fine(_: Any) -> Scripted:
    return Scripted("Noted.")


@pytest.mark.parametrize("wire", WIRES)
def test_l6_a_system_message_in_the_middle_is_legal_on_every_wire(wire: str) -> None:
    """L6: without a setting."""
    served = WIRES[wire]
    with (
        ModelServer(script=fine, strict=served.strict) as server,
        open_backend(**served.settings(server)) as backend,
        AgentContext(backend, store="memory://", context_window=9_000) as context,
    ):
        context.add(system("Be brief.", id="s0"))
        for number in range(TURNS):
            context.add(system(f"Today is day {number}.", id=f"s{number + 1}"))
            assert context.send(f"Question {number}?").message.text == "Noted."
    assert f"Today is day {TURNS - 1}." in str(dict(server.requests[-1].body))


def chat_model(kind: str, server: ModelServer) -> BaseChatModel:
    root = server.base_url.removesuffix("/v1")
    if kind == "anthropic":
        marks = {"cache_control": {"type": "ephemeral"}}
        return ChatAnthropic(model="claude-opus-5", base_url=root, api_key="k", max_retries=0, model_kwargs=marks)
    if kind == "google_genai":
        return ChatGoogleGenerativeAI(model="gemini-2.5-pro", base_url=root, api_key="k", max_retries=0)
    return ChatOpenAI(model="m", base_url=server.base_url, api_key="k", max_retries=0)


@pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning")
@pytest.mark.parametrize("kind", ["anthropic", "google_genai", "openai"])
def test_l6_a_users_own_model_gets_later_system_messages_as_it_takes_them(kind: str) -> None:
    """L6: "Received multiple non-consecutive system messages" in 32 of 33 turns."""
    with ModelServer(script=fine, strict="anthropic" if kind == "anthropic" else None) as server:
        model = with_context(chat_model(kind, server), session_id="s", store="memory://", context_window=9_000)
        for number in range(TURNS):
            turn: list[BaseMessage] = [SystemMessage("Be brief."), HumanMessage(f"Case {number}.")]
            turn += [SystemMessage(f"Today is day {number}."), HumanMessage(f"Question {number}?")]
            assert model.invoke(turn).text == "Noted."
    assert len(server.requests) == TURNS
    if kind == "openai":
        roles = [one["role"] for one in server.requests[-1].body["messages"]]
        assert "system" in roles[1:], "where a service takes them anywhere they stay what they are"


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("text", ["", "  \n"])
def test_l7_empty_messages_are_left_out_of_requests_and_stay_in_the_log(wire: str, text: str) -> None:
    """L7: they were sent as empty text in each later request, which Anthropic refuses."""
    served = WIRES[wire]
    empty = (TextPart(text),)
    with (
        ModelServer(script=fine, strict=served.strict) as server,
        open_backend(**served.settings(server)) as backend,
        AgentContext(backend, store="memory://", context_window=9_000) as context,
    ):
        context.add([user("First.", id="u1"), assistant("One.", id="a1")])
        context.add([Message("u2", "user", empty), Message("a2", "assistant", empty)])
        context.add([user("Third.", id="u3"), Message("a3", "assistant", ())])
        assert context.send("Fourth.").message.text == "Noted."
        assert [m.id for m in context.messages() if m.id in ("u2", "a2", "a3")] == ["u2", "a2", "a3"]
        sent = [m.text for m in server_messages(server)]
    assert sent == ["First.", "One.", "Third.", "Fourth."] or sent == ["First.", "One.", "Third.Fourth."]


def server_messages(server: ModelServer) -> list[Message]:
    """Returns what the newest request has, whatever its wire."""
    body = server.requests[-1].body
    rows: Any = body.get("messages") or body.get("input") or body["contents"]
    found: list[Message] = []
    for number, row in enumerate(rows):
        content = row.get("content", row.get("parts"))
        text = content if isinstance(content, str) else "".join(str(block.get("text", "")) for block in content)
        found.append(user(text, id=f"m{number}"))
    return found


def test_l7_an_empty_answer_of_a_users_own_model_is_left_out_of_later_requests() -> None:
    """L7: the same through LangChain."""
    with ModelServer(script=[Scripted("One."), Scripted("Two.")], strict="anthropic") as server:
        model = with_context(chat_model("anthropic", server), session_id="s", store="memory://", context_window=9_000)
        model.invoke(
            [HumanMessage("First."), AIMessage(""), HumanMessage(""), AIMessage("Yes."), HumanMessage("Second.")]
        )
        model.invoke([HumanMessage("Third.")])
    for request in server.requests:
        assert all(block["text"].strip() for row in request.body["messages"] for block in blocks_of(row))


@pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning")
@pytest.mark.parametrize("kind", ["anthropic", "google_genai"])
def test_l7_empty_messages_are_left_out_of_summaries_on_the_live_prefix(kind: str) -> None:
    """L7: the request for a summary repeated them, the service refused it, and the summary was asked for again."""
    asked: list[bool] = []

    def play(body: Any) -> Scripted:
        asked.append(asks_on_live_prefix(body))
        return Scripted("They counted herons." if asked[-1] else f"Noted. {'It is a long story. ' * 60}")

    with ModelServer(script=play, strict="anthropic" if kind == "anthropic" else "gemini") as server:
        model = with_context(chat_model(kind, server), session_id="s", store="memory://", context_window=4_000)
        for number in range(TURNS):
            question = HumanMessage(f"Question {number}? {'Tell me about it. ' * 30}")
            model.invoke([HumanMessage(f"Well {number}?"), AIMessage(""), question])
    assert any(asked)
    assert len(server.requests) == len(asked), "none was refused"


@pytest.mark.parametrize("text", ["", " \n"])
async def test_l7_empty_messages_are_left_out_of_a_memorys_window_and_stay_in_it(text: str) -> None:
    """L7: an LLM that LlamaIndex itself asks got them, and Anthropic refuses empty text."""
    said = [("user", "First."), ("assistant", text), ("user", "Second."), ("assistant", "Two."), ("user", "Third.")]
    with CtxMemory.from_defaults("s", context_window=8_000) as memory:
        memory.put_messages([ChatMessage(role=role, content=content) for role, content in said])
        for shown in (memory.get(), await memory.aget()):
            assert [m.content for m in shown] == ["First.", "Second.", "Two.", "Third."]
        memory.set([*memory.get(), ChatMessage(role="assistant", content="Three.")])
        assert [m.content for m in memory.get()] == ["First.", "Second.", "Two.", "Third.", "Three."]


def blocks_of(row: Any) -> list[Any]:
    return [{"text": row["content"]}] if isinstance(row["content"], str) else row["content"]
