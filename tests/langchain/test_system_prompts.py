"""What a session keeps of system messages with several blocks, and what an agent's model gets of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI

from ctxfold.testing import ModelServer
from langchain_ctx import ChatCtx, ContextMiddleware, ContextNode, with_context
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
        ([*MARKED, {"type": "text", "text": ""}], "Rule one.\n\nRule two."),
        (
            [MARKED[0], {"type": "image_url", "image_url": {"url": "https://x/y.png"}}, MARKED[1]],
            "Rule one.\n\nRule two.",
        ),
        ([{"type": "text", "text": "Rule one."}, {"type": "text", "text": "\n\nRule two."}], "Rule one.\n\nRule two."),
        ([{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}], "Be brief."),
    ],
)
def test_blocks_of_text_do_not_run_together(
    server: ModelServer, first: Callable[[ModelServer, list[BaseMessage]], Any], content: Any, text: str
) -> None:
    assert first(server, [SystemMessage(content), HumanMessage("Hello")]) == {"role": "system", "content": text}


@FACES
def test_a_session_keeps_the_text_alone(
    server: ModelServer, first: Callable[[ModelServer, list[BaseMessage]], Any]
) -> None:
    shown = first(server, [MARKED_PROMPT, HumanMessage("Hello")])
    assert shown == {"role": "system", "content": "Rule one.\n\nRule two."}


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
