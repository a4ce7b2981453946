"""One session whose model changes from call to call: each service gets back what it has sent, and what others sent stays out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_anthropic import ChatAnthropic
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_deepseek import ChatDeepSeek
from langchain_openai import ChatOpenAI

from ctxfold.testing import ModelServer, Scripted, ScriptedCall
from langchain_ctx import ChatCtx, ContextMiddleware, with_context
from tests.langchain.faces import closed

LOOK: dict[str, Any] = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
CALL = Scripted("", "thought of the first", (ScriptedCall("look", "{}"), ScriptedCall("look", "{}")))
DONE = Scripted("done", "thought of the second")


def openai(url: str) -> BaseChatModel:
    return ChatOpenAI(model="gpt-5", base_url=url, api_key="k", max_retries=0)


def deepseek(url: str) -> BaseChatModel:
    return ChatDeepSeek(model="deepseek-reasoner", api_base=url, api_key="k", max_retries=0)


def anthropic(url: str, name: str = "claude-opus-4-8") -> BaseChatModel:
    return ChatAnthropic(
        model=name, base_url=url.removesuffix("/v1"), api_key="k", max_retries=0, thinking={"type": "adaptive"}
    )


def ctx(url: str, provider: str, model: str) -> BaseChatModel:
    return ChatCtx(model=model, provider=provider, base_url=url, api_key="k", max_retries=0, thinking=True)


def answered(call: BaseMessage) -> list[BaseMessage]:
    assert isinstance(call, AIMessage)
    return [ToolMessage("r", tool_call_id=c["id"]) for c in call.tool_calls]


@pytest.mark.parametrize("way", ["sync", "streamed"])
def test_deepseek_takes_over_from_a_model_that_does_not_think(tmp_path: Path, way: str) -> None:
    """It refuses any answer without the field, also where none has anything to put there."""
    plain = Scripted("", "", CALL.tool_calls)
    with ModelServer(script=[plain], strict="openai") as first, ModelServer(script=[DONE], strict="deepseek") as second:
        models = openai(first.base_url), deepseek(second.base_url)
        store = f"sqlite:///{tmp_path}/s.db"
        asks, goes_on = (with_context(m, session_id="s", store=store, context_window=50_000) for m in models)
        question = HumanMessage("q", id="h")
        call = asks.bind_tools([LOOK]).invoke([question])
        rest = [question, call, *answered(call)]
        reply = goes_on.bind_tools([LOOK])
        text = reply.invoke(rest).text if way == "sync" else "".join(chunk.text for chunk in reply.stream(rest))
        assert text == "done"
        assert [m.get("reasoning_content") for m in second.requests[0].body["messages"]] == [None, "", None, None]
        asks.close()
        goes_on.close()


def test_thoughts_of_another_service_do_not_go_to_openai() -> None:
    with ModelServer(script=[CALL], strict="deepseek") as first, ModelServer(script=[DONE], strict="openai") as second:
        asks, goes_on = deepseek(first.base_url), openai(second.base_url)
        question = HumanMessage("q", id="h")
        call = with_context(asks, session_id="s", context_window=50_000).bind_tools([LOOK]).invoke([question])
        with_context(goes_on, session_id="s", context_window=50_000).invoke([question, call, *answered(call)])
        sent = second.requests[0].body["messages"]
        assert not any("reasoning_content" in message for message in sent)
        assert len(sent[1]["tool_calls"]) == 2


@pytest.mark.parametrize(
    ("provider", "model", "kinds"),
    [
        ("bedrock", "anthropic.claude-opus-4-8", ["text"]),
        ("anthropic", "claude-haiku-4-5", ["text"]),
        ("anthropic", "claude-opus-4-8", ["thinking", "text"]),
        ("anthropic", "claude-opus-4-8-20260930", ["thinking", "text"]),
        ("anthropic", "claude-opus-4", ["text"]),
    ],
)
async def test_signed_thinking_goes_to_chat_anthropic_from_the_same_model_only(
    provider: str, model: str, kinds: list[str]
) -> None:
    with ModelServer(script=[DONE], strict="anthropic") as first, ModelServer(script=[DONE], strict="anthropic") as own:
        asks, goes_on = ctx(first.base_url, provider, model), anthropic(own.base_url)
        history: list[BaseMessage] = [HumanMessage("q", id="h")]
        history.append(with_context(asks, session_id="s", context_window=50_000).invoke(history))
        history.append(HumanMessage("q2", id="h2"))
        await with_context(goes_on, session_id="s", context_window=50_000).ainvoke(history)
        await closed(goes_on)
        content = own.requests[0].body["messages"][1]["content"]
        blocks = [{"type": "text"}] if isinstance(content, str) else content
        assert [block["type"] for block in blocks] == kinds


def test_an_agent_changes_its_model_within_a_tool_round_and_back() -> None:
    """Each request is made for the model of its call, whatever an earlier call of the session was given."""
    steps = [CALL, Scripted("", "again", (ScriptedCall("look", "{}"),)), DONE]
    with (
        ModelServer(script=steps, strict="anthropic") as first,
        ModelServer(script=steps, strict="anthropic") as second,
    ):
        models = [ctx(first.base_url, "bedrock", "anthropic.claude-opus-4-8"), anthropic(second.base_url)]
        turns: list[int] = []

        class Alternates(AgentMiddleware[Any, Any, Any]):
            def wrap_model_call(self, request: Any, handler: Any) -> Any:
                turns.append(0)
                return handler(request.override(model=models[len(turns) % 2]))

        @tool
        def look() -> str:
            """Looks."""
            return "r"

        middleware = [Alternates(), ContextMiddleware(context_window=50_000)]
        agent = create_agent(models[0], [look], middleware=middleware)
        result = agent.invoke({"messages": [HumanMessage("q")]}, {"configurable": {"thread_id": "t"}})
        assert result["messages"][-1].text == "done"
        blocks = [[b["type"] for m in r.body["messages"][1::2] for b in m["content"]] for r in second.requests]
        assert blocks[:2] == [[], ["thinking", *["tool_use"] * 4]]  # its own two calls, and two of Bedrock's
        rows = [m for r in first.requests for m in r.body["messages"] if m["role"] == "assistant"]
        assert all("reasoningContent" not in block for block in rows[0]["content"])


@pytest.mark.parametrize("face", ["with_context", "middleware"])
def test_thinking_in_the_blocks_of_another_model_does_not_go_to_claude(face: str) -> None:
    """Gemini's model of LangChain leaves thoughts in the content, and Anthropic refuses what Claude has not signed."""
    calls: Any = [{"type": "tool_call", "name": "look", "args": {}, "id": "c1"}]
    blocks: Any = [{"type": "thinking", "thinking": "of Gemini"}, {"type": "text", "text": "I look."}]
    named = {"model_name": "gemini-3-pro-preview", "model_provider": "google_genai"}
    reply = AIMessage(blocks, tool_calls=calls, response_metadata=named, id="a")
    history = [HumanMessage("q", id="h"), reply, *answered(reply)]
    with ModelServer(script=[DONE, DONE], strict="anthropic") as server:
        model = anthropic(server.base_url)
        if face == "middleware":
            agent = create_agent(model, [], middleware=[ContextMiddleware(context_window=50_000)])
            assert agent.invoke({"messages": history})["messages"][-1].text == "done"
        else:
            chat = with_context(model, session_id="s", context_window=50_000)
            done = chat.invoke(history)
            chat.invoke([*history, done, HumanMessage("q2", id="h2")])
            own = server.requests[1].body["messages"][3]["content"]
            assert [block["type"] for block in own] == ["thinking", "text"]
        sent = server.requests[0].body["messages"][1]["content"]
        assert [block["type"] for block in sent] == ["text", "tool_use"]
