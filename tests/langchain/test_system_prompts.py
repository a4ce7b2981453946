"""What a session keeps of system messages with several blocks, and what an agent's model gets of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_core.runnables import RunnableLambda
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver

from ctxfold.testing import ModelServer, Scripted
from langchain_ctx import ChatCtx, ContextMiddleware, ContextNode, with_context
from tests.langchain.faces import closed
from tests.langchain.running import T

MARKED: list[Any] = [
    {"type": "text", "text": "Rule one.", "cache_control": {"type": "ephemeral"}},
    {"type": "text", "text": "Rule two."},
]
MARKED_PROMPT = SystemMessage(MARKED, name="boss", additional_kwargs={"__openai_role__": "developer"})


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(context_window=50_000) as server:
        yield server


def plain(server: ModelServer) -> ChatOpenAI:
    return ChatOpenAI(model="lookup", base_url=server.base_url, api_key="x", max_retries=0)


def by_chat(server: ModelServer, messages: list[BaseMessage]) -> Any:
    url = server.base_url
    with ChatCtx(model="lookup", base_url=url, api_key="x", session="s", context_window=8_000) as chat:
        chat.invoke(messages)
    return server.requests[-1].body["messages"][0]


def by_wrapper(server: ModelServer, messages: list[BaseMessage]) -> Any:
    with with_context(plain(server), session_id="s", context_window=8_000) as model:
        model.invoke(messages)
    return server.requests[-1].body["messages"][0]


def by_middleware(server: ModelServer, messages: list[BaseMessage]) -> Any:
    with ContextMiddleware(context_window=8_000) as middleware:
        create_agent(plain(server), [], middleware=[middleware]).invoke({"messages": messages}, T)
    return server.requests[-1].body["messages"][0]


def by_node(_: ModelServer, messages: list[BaseMessage]) -> Any:
    with ContextNode(session_id="s", context_window=8_000) as node:
        shown = node.invoke({"messages": messages})["llm_input_messages"][0]
    return {"role": shown.type, "content": shown.content}


FACES = pytest.mark.parametrize("first", [by_chat, by_wrapper, by_middleware, by_node])


@FACES
@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("Rule one.", "Rule one."),
        (["Rule one.", "Rule two."], "Rule one.\n\nRule two."),
        ([{"type": "text", "text": "Rule one."}, {"type": "text", "text": "\n\nRule two."}], "Rule one.\n\nRule two."),
        ([{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}], "Be brief."),
    ],
)
def test_blocks_of_text_do_not_run_together(
    server: ModelServer, first: Callable[[ModelServer, list[BaseMessage]], Any], content: Any, text: str
) -> None:
    assert first(server, [SystemMessage(content), HumanMessage("Hello")]) == {"role": "system", "content": text}


def test_a_chat_model_of_ours_sends_the_text_alone(server: ModelServer) -> None:
    shown = by_chat(server, [MARKED_PROMPT, HumanMessage("Hello")])
    assert shown == {"role": "system", "content": "Rule one.\n\nRule two."}


@pytest.mark.parametrize("first", [by_wrapper, by_middleware])
def test_l9_what_is_more_than_text_is_sent_as_it_was_given(
    server: ModelServer, first: Callable[[ModelServer, list[BaseMessage]], Any]
) -> None:
    image = {"type": "image_url", "image_url": {"url": "https://x/y.png"}}
    for content in (MARKED, [*MARKED, {"type": "text", "text": ""}], [MARKED[0], image, MARKED[1]]):
        prompt = SystemMessage(content, name="boss", additional_kwargs={"__openai_role__": "developer"})
        plain(server).invoke([prompt, HumanMessage("Hello")])
        given = server.requests[-1].body["messages"][0]
        assert first(server, [prompt, HumanMessage("Hello")]) == given


def test_an_agent_passes_its_own_system_prompt_on_as_it_is(server: ModelServer) -> None:
    sent: list[Any] = []
    with ContextMiddleware(context_window=8_000) as middleware:
        for added in ([], [middleware]):
            agent = create_agent(plain(server), [], system_prompt=MARKED_PROMPT, middleware=added)
            agent.invoke({"messages": [HumanMessage("Hello")]}, T)
            sent.append(server.requests[-1].body["messages"])
        assert sent[1] == sent[0]
        assert sent[0][0] == {"role": "developer", "name": "boss", "content": MARKED}
        assert middleware.context("t").view().messages[0].text == "Rule one.\n\nRule two."


CLERK = SystemMessage(
    [
        {"type": "text", "text": "You are a clerk. " * 40, "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "Be brief."},
    ]
)


@pytest.mark.parametrize("face", ["with_context", "ContextNode", "middleware"])
@pytest.mark.parametrize("how", ["invoke", "ainvoke", "stream", "astream"])
async def test_l9_cache_marks_of_leading_system_messages_reach_the_wire(face: str, how: str) -> None:
    """The blocks on the wire are the same as without ctxfold, in the first request and beyond the first compaction."""
    story = Scripted("Fine. " + "It is a long story. " * 20)
    with ModelServer(model="claude-x", script=lambda _: story, strict="anthropic", context_window=4_000) as server:
        model = ChatAnthropic(
            model="claude-x", base_url=server.base_url.removesuffix("/v1"), api_key="x", max_tokens=200
        )  # type: ignore[call-arg]
        model.invoke([CLERK, HumanMessage("Hello")])
        plain = server.requests[-1].body["system"]
        assert "cache_control" in str(plain)
        given: Any
        if face == "with_context":
            given = app = with_context(model, session_id="t", context_window=4_000)
        elif face == "ContextNode":
            given = ContextNode(session_id="t", context_window=4_000)
            app = given | model
        else:
            given = ContextMiddleware(context_window=4_000, history_tools=False)
            agent: Any = create_agent(model, middleware=[given], checkpointer=InMemorySaver())
            app = RunnableLambda(lambda said: {"messages": said}) | agent
        said: list[Any] = [CLERK]
        config: Any = {"configurable": {"thread_id": "t"}}
        for number in range(24):
            said = [CLERK] if face == "middleware" and not number else [] if face == "middleware" else said
            said.append(HumanMessage(f"Question {number}"))
            asked = len(server.requests)
            match how:
                case "invoke":
                    app.invoke(said, config)
                case "ainvoke":
                    await app.ainvoke(said, config)
                case "stream":
                    [*app.stream(said, config)]
                case _:
                    _ = [piece async for piece in app.astream(said, config)]
            if face != "middleware":
                said.append(AIMessage(str(story.content)))
            assert server.requests[asked].body["system"][: len(plain)] == plain
        assert given.context("t").usage().compactions > 0
        await closed(given)
        await closed(model)
