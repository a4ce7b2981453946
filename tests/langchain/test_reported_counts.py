"""A node and a history send no requests, and still learn from replies that the model counts more than we do."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import Runnable, RunnableLambda
from langchain_core.runnables.history import RunnableWithMessageHistory
from langchain_core.tools import tool

from ctxfold import AgentContext
from langchain_ctx import ContextNode, CtxChatMessageHistory, token_counter
from tests.support.open_sessions import opened

WINDOW = 1_000
TURNS = 40
BUDGET = 800  # without the reply reserve
SMALL = 10  # turns that leave much of the window free
count = token_counter()


class StrictModel:
    """Takes each token of ours for `factor` tokens, adds `beside` of its own, and refuses what its window has no room for."""

    def __init__(self, factor: float, beside: int = 0) -> None:
        self.factor, self.beside = factor, beside
        self.asked: list[int] = []

    def __call__(self, prompt: Any) -> AIMessage:
        messages = prompt if isinstance(prompt, list) else prompt.to_messages()
        tokens = int(self.factor * count(messages)) + self.beside
        if tokens > WINDOW:
            raise ValueError(f"{tokens} tokens do not fit")
        self.asked.append(tokens)
        used = {"input_tokens": tokens, "output_tokens": 5, "total_tokens": tokens + 5}
        return AIMessage("Noted.", usage_metadata=used)


def told(number: int) -> str:
    return f"Locker {number} is on floor {number % 7} of the old house by the river, and its door is green."


def talk_through_a_node(model: StrictModel, ids: str = "given", turns: int = TURNS) -> AgentContext:
    fit = ContextNode(context_window=WINDOW, recall_ratio=0.0)
    chain = fit | RunnableLambda(model)
    kept: list[BaseMessage] = []
    for number in range(turns):
        kept.append(HumanMessage(told(number), id=f"h{number}" if ids == "given" else None))
        answer = chain.invoke(kept, {"configurable": {"thread_id": "t"}})
        kept.append(answer.model_copy(update={"id": f"a{number}" if ids == "given" else None}))
    return fit.context("t")


async def talk_through_a_history(model: StrictModel, how: str) -> AgentContext:
    histories = CtxChatMessageHistory.factory(context_window=WINDOW)
    prompt = ChatPromptTemplate.from_messages([MessagesPlaceholder("history"), ("human", "{question}")])
    chain: Runnable[Any, Any] = RunnableWithMessageHistory(
        prompt | RunnableLambda(model), histories, input_messages_key="question", history_messages_key="history"
    )
    config: Any = {"configurable": {"session_id": "t"}}
    for number in range(TURNS):
        if how == "sync":
            chain.invoke({"question": told(number)}, config)
        else:
            await chain.ainvoke({"question": told(number)}, config)
    return histories("t").context


@pytest.mark.parametrize("ids", ["given", "none"])
def test_a_node_never_exceeds_the_window_of_a_model_that_counts_more(ids: str) -> None:
    model = StrictModel(factor=1.9)
    session = talk_through_a_node(model, ids)
    assert len(model.asked) == TURNS
    assert max(model.asked[20:]) > WINDOW / 2  # and it uses the window
    assert session.usage().compactions > 1


@pytest.mark.filterwarnings("ignore::langchain_core._api.LangChainDeprecationWarning")
@pytest.mark.parametrize("how", ["sync", "async"])
async def test_a_history_never_exceeds_the_window_of_a_model_that_counts_more(how: str) -> None:
    model = StrictModel(factor=1.9)
    session = await talk_through_a_history(model, how)
    assert len(model.asked) == TURNS
    assert max(model.asked[20:]) > WINDOW / 2
    assert session.usage().compactions > 1


@pytest.mark.filterwarnings("ignore::langchain_core._api.LangChainDeprecationWarning")
@pytest.mark.parametrize("place", ["node", "history"])
async def test_what_a_chain_adds_unsaid_has_room(place: str) -> None:
    """A prompt or tools of which the node and the history know nothing count as what the model reports."""
    model = StrictModel(factor=1.0, beside=450)
    if place == "node":
        talk_through_a_node(model)
    else:
        await talk_through_a_history(model, "sync")
    assert len(model.asked) == TURNS


def test_what_is_beside_a_small_request_is_no_error_of_our_count() -> None:
    session = talk_through_a_node(StrictModel(factor=1.0, beside=150), turns=SMALL)
    assert opened(session).state.calibrations == {}


def test_the_size_of_a_request_is_stored_with_its_reply(tmp_path: Path) -> None:
    """Every reader says what the provider has counted, in this process and in another one."""
    store, model = f"sqlite:///{tmp_path / 'chat.db'}", StrictModel(factor=1.4)
    with CtxChatMessageHistory("s", store=store, context_window=WINDOW) as history:
        for number in range(4):
            question = HumanMessage(told(number))
            history.add_messages([question, model([*history.messages, question])])
        used = history.context.usage().window_tokens
        assert abs(used - model.asked[-1]) <= 0.02 * model.asked[-1]
        with AgentContext(session_id="s", store=store, context_window=WINDOW) as elsewhere:
            assert elsewhere.usage().window_tokens == used


@pytest.mark.parametrize("factor", [1.0, 0.4])
def test_a_smaller_count_widens_no_window(factor: float) -> None:
    """A server may have cut the prompt without a word."""
    session = talk_through_a_node(StrictModel(factor))
    assert session.usage().budget_tokens == BUDGET


def test_a_tool_round_teaches_too() -> None:
    """The reply that calls a tool comes with the next list of the same turn."""

    @tool
    def look(key: int) -> str:
        """Looks something up."""
        return str(key)

    model = StrictModel(factor=1.9)
    fit = ContextNode(context_window=WINDOW, recall_ratio=0.0, tools=[look])
    ask: Callable[[list[BaseMessage]], Any] = partial(fit.invoke, config={"configurable": {"thread_id": "t"}})
    kept: list[BaseMessage] = []
    for number in range(TURNS):
        kept.append(HumanMessage(told(number), id=f"h{number}"))
        reply = model(ask(kept))
        call = {"name": "look", "args": {"key": number}, "id": f"c{number}"}
        kept.append(reply.model_copy(update={"content": "", "tool_calls": [call], "id": f"a{number}"}))
        kept.append(look.invoke({**call, "type": "tool_call"}).model_copy(update={"id": f"t{number}"}))
        kept.append(AIMessage(str(number), id=f"b{number}"))  # returned directly: no request, no usage
    assert len(model.asked) == TURNS


def test_a_count_is_forgotten_when_another_process_has_ended_the_turn(tmp_path: Path) -> None:
    """Two workers serve one conversation in turns, as behind a load balancer: each reply comes to the one that did not ask."""
    url = f"sqlite:///{tmp_path / 'chat.db'}"
    workers = [ContextNode(context_window=WINDOW, store=url) for _ in range(2)]
    kept: list[BaseMessage] = []
    for number in range(SMALL):
        fit = workers[number % 2]
        kept.append(HumanMessage(told(number), id=f"h{number}"))
        fit.invoke(kept, {"configurable": {"thread_id": "t"}})
        assert len(opened(fit.context("t")).sent_windows) == 1, "that of the request that was made now"
        kept.append(AIMessage("Noted.", id=f"a{number}"))
    for fit in workers:
        fit.close()
