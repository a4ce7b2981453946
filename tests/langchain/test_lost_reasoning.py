"""W11: a model whose package drops reasoning is named once, whichever way it is asked."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver

from ctxfold.errors import CtxWarning
from langchain_ctx import ContextMiddleware, with_context
from tests.langchain.running import T

TURNS = 4


def thinking(name: str) -> Any:
    """A model of a class of its own, as each package has."""
    answers = (AIMessage("Yes.", additional_kwargs={"reasoning_content": f"Thought {n}."}) for n in range(TURNS))
    return type(name, (GenericFakeChatModel,), {})(messages=answers)


@pytest.mark.parametrize("way", ["middleware", "with_context"])
@pytest.mark.parametrize("how", ["invoke", "ainvoke", "stream"])
async def test_w11_reasoning_that_a_package_drops_is_said_once(way: str, how: str) -> None:
    """W11: nothing was said."""
    name = f"Dropping{way.title()}{how.title()}"
    model = thinking(name)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if way == "middleware":
            app: Any = create_agent(
                model, middleware=[ContextMiddleware(context_window=8_000)], checkpointer=InMemorySaver()
            )
        else:
            app = create_agent(with_context(model, context_window=8_000), checkpointer=InMemorySaver())
        for number in range(TURNS):
            given = {"messages": [HumanMessage(f"Question {number}?")]}
            match how:
                case "invoke":
                    app.invoke(given, T)
                case "ainvoke":
                    await app.ainvoke(given, T)
                case _:
                    list(app.stream(given, T, stream_mode="messages"))
    told = [str(one.message) for one in caught if one.category is CtxWarning and name in str(one.message)]
    assert len(told) == 1
    assert "use ChatCtx" in told[0]
