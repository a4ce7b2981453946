"""L13: messages in the forms before tools, and of other roles, are sent as without ctxfold."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, ChatMessage, FunctionMessage, HumanMessage
from langchain_openai import ChatOpenAI

from ctxfold.errors import CtxWarning
from ctxfold.testing import ModelServer, Scripted
from langchain_ctx import ContextNode, with_context
from langchain_ctx.messages import from_langchain, to_langchain
from tests.langchain.faces import closed, model_settings

CALL = {"function_call": {"name": "add", "arguments": '{"a": 1}'}}
SAID: list[Any] = [
    ChatMessage("Be brief.", role="developer", id="d"),
    HumanMessage("Add one.", id="q"),
    AIMessage("", additional_kwargs=CALL, id="a"),
    FunctionMessage(content="2", name="add", id="f"),
]


def test_l13_other_roles_come_back_as_they_were() -> None:
    for message in SAID:
        assert to_langchain(from_langchain(message)) == message


@pytest.mark.parametrize("face", ["with_context", "ContextNode"])
async def test_l13_the_request_is_that_of_the_plain_model(face: str) -> None:
    with ModelServer(model="m", script=lambda _: Scripted("Two."), context_window=8_000) as server:
        model = ChatOpenAI(**model_settings(server.base_url))
        model.invoke(SAID)
        if face == "with_context":
            given: Any = with_context(model, session_id="s", context_window=8_000)
            given.invoke(SAID)
        else:
            given = ContextNode(session_id="s", context_window=8_000)
            (given | model).invoke(SAID)
        assert server.requests[1].body["messages"] == server.requests[0].body["messages"]
        await closed(given)
        await closed(model)


async def test_l13_a_model_without_session_and_store_warns_once() -> None:
    with ModelServer(model="m", script=lambda _: Scripted("Two."), context_window=8_000) as server:
        model = ChatOpenAI(**model_settings(server.base_url))
        given = with_context(model, context_window=8_000)
        with pytest.warns(CtxWarning, match="nothing of this call is stored") as caught:
            given.invoke("Hello")
        assert len(caught) == 1
        given.invoke("Hello again")
        await closed(given)
        await closed(model)
