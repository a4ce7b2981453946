"""A model with a session recognises what it has in the lists that callers keep themselves: copies, stripped texts, examples."""

from __future__ import annotations

import uuid
from collections.abc import Generator
from typing import Any

import httpx
import pytest
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.prompts import ChatPromptTemplate
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from llama_index.core.base.llms.types import ChatMessage
from llama_index.llms.openai_like import OpenAILike

import llamaindex_ctx
from ctxfold.testing import ModelServer, Scripted
from langchain_ctx import with_context

THREE = [f"question {n}" for n in range(3)]
TURNS = ["question 0", "answer 0", "question 1", "answer 1", "question 2"]


class Asked(GenericFakeChatModel):
    """Answers "answer 0", "answer 1" and so on, in white space, and keeps the lists that it was sent."""

    lists: list[list[str]]

    def _generate(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        self.lists.append([m.text.strip() for m in messages])
        return super()._generate(messages, *args, **kwargs)


@pytest.fixture
def asked() -> Asked:
    return Asked(messages=(AIMessage(f" answer {n}\n") for n in range(99)), lists=[])


@pytest.mark.parametrize("has_id", [False, True])
def test_the_copy_of_a_reply_that_a_node_returns_is_no_second_answer(asked: Asked, has_id: bool) -> None:
    """The reducer of a graph gives a message without an id one of its own."""
    model = with_context(asked, context_window=8_000)

    def answered(state: MessagesState) -> Any:
        text = model.invoke(state["messages"]).text
        return {"messages": [AIMessage(text.strip(), id=uuid.uuid4().hex) if has_id else ("assistant", text)]}

    graph: Any = StateGraph(MessagesState)
    graph.add_node("model", answered)
    graph.add_edge(START, "model")
    app = graph.compile(checkpointer=InMemorySaver())
    for question in THREE:
        app.invoke({"messages": [("user", question)]}, {"configurable": {"thread_id": "t"}})
    assert asked.lists[-1] == TURNS


def test_the_copy_of_a_reply_goes_to_the_next_node_once(asked: Asked) -> None:
    """Several nodes ask one after the other, as a writer and its critic do: the list of the second ends with the copy."""
    model = with_context(asked, context_window=8_000)

    def answered(state: MessagesState) -> Any:
        return {"messages": [AIMessage(model.invoke(state["messages"]).text)]}

    graph: Any = StateGraph(MessagesState)
    for before, name in ((START, "writer"), ("writer", "critic"), ("critic", "editor")):
        graph.add_node(name, answered)
        graph.add_edge(before, name)
    app = graph.compile(checkpointer=InMemorySaver())
    for question in THREE[:2]:
        app.invoke({"messages": [("user", question)]}, {"configurable": {"thread_id": "t"}})
    first = ["question 0", "answer 0", "answer 1", "answer 2"]
    assert asked.lists[:3] == [first[:1], first[:2], first[:3]]
    assert asked.lists[-1] == [*first, "question 1", "answer 3", "answer 4"]


def test_a_list_is_known_though_its_answers_were_stripped(asked: Asked) -> None:
    model = with_context(asked, session_id="s", context_window=8_000)
    said: list[Any] = []
    for question in THREE:
        said.append(("user", question))
        said.append(("assistant", model.invoke(said).text.strip()))
    assert asked.lists[-1] == TURNS


def test_a_list_with_new_ids_in_each_call_is_known_by_its_content(asked: Asked) -> None:
    model = with_context(asked, session_id="s", context_window=8_000)
    said: list[tuple[type[HumanMessage] | type[AIMessage], str]] = []
    for question in THREE:
        said.append((HumanMessage, question))
        reply = model.invoke([kind(text, id=uuid.uuid4().hex) for kind, text in said])
        said.append((AIMessage, reply.text))
    assert asked.lists[-1] == TURNS


def test_the_examples_of_a_prompt_are_stored_once(asked: Asked) -> None:
    examples = [("human", "good film"), ("ai", "positive"), ("human", "bad film"), ("ai", "negative")]
    prompt = ChatPromptTemplate.from_messages([("system", "Classify."), *examples, ("human", "{film}")])
    chain = prompt | with_context(asked, session_id="s", context_window=8_000)
    for question in THREE:
        chain.invoke({"film": question})
    assert asked.lists[-1] == ["Classify.", *(text for _, text in examples), *TURNS]


@pytest.mark.parametrize("has_ids", [False, True])
def test_examples_are_stored_once_where_one_has_the_newest_answer(has_ids: bool) -> None:
    asked = Asked(messages=(AIMessage("positive") for _ in THREE), lists=[])
    model = with_context(asked, session_id="s", context_window=8_000)
    examples = ["good film", "positive", "bad film", "negative"]
    for question in THREE:
        kinds = (HumanMessage, AIMessage, HumanMessage, AIMessage, HumanMessage)
        ids = [uuid.uuid4().hex if has_ids else None for _ in kinds]
        model.invoke([kind(text, id=i) for kind, text, i in zip(kinds, [*examples, question], ids, strict=True)])
    assert asked.lists[-1] == [*examples, "question 0", "positive", "question 1", "positive", "question 2"]


def test_an_answer_that_was_changed_is_new_and_what_stood_before_it_is_not(asked: Asked) -> None:
    """Some callers show a text of their own where a call has failed."""
    model = with_context(asked, session_id="s", context_window=8_000)
    said: list[Any] = []
    for question in THREE[:2]:
        said.append(("user", question))
        said.append(("assistant", model.invoke(said).text))
    model.invoke([*said[:-1], ("assistant", "Sorry."), ("user", "question 2")])
    assert asked.lists[-1] == [*TURNS[:-1], "Sorry.", "question 2"]


def test_what_people_say_again_is_said_again(asked: Asked) -> None:
    model = with_context(asked, session_id="s", context_window=8_000)
    for _ in range(2):
        model.invoke([HumanMessage("Go on.", id=uuid.uuid4().hex)])
    model.invoke([("user", "Go on."), ("user", "Go on.")])
    assert asked.lists[-1] == ["Go on.", "answer 0", "Go on.", "answer 1", "Go on.", "Go on."]


def test_the_same_question_with_another_answer_is_asked_again(asked: Asked) -> None:
    model = with_context(asked, session_id="s", context_window=8_000)
    model.invoke("Go on.")
    model.invoke([("user", "Go on."), ("assistant", "No."), ("user", "Why?")])
    assert asked.lists[-1] == ["Go on.", "answer 0", "Go on.", "No.", "Why?"]


def test_a_message_after_a_known_one_is_new_though_its_words_were_said_there_before(asked: Asked) -> None:
    model = with_context(asked, session_id="s", context_window=8_000)
    first = HumanMessage("question 0", id="q0")
    model.invoke([first, HumanMessage("Go on.", id="q1")])
    model.invoke([first, HumanMessage("Go on.", id="q2"), HumanMessage("Why?", id="q3")])
    assert asked.lists[-1] == ["question 0", "Go on.", "answer 0", "Go on.", "Why?"]


@pytest.fixture
def server() -> Generator[ModelServer]:
    with ModelServer(model="m", script=[Scripted(f"answer {n}\n") for n in range(3)], context_window=8_000) as server:
        yield server


def test_a_llamaindex_list_is_known_though_its_answers_were_stripped(server: ModelServer) -> None:
    client = httpx.Client()
    where = {"api_base": server.base_url, "api_key": "x", "http_client": client}
    inner = OpenAILike(model="m", is_chat_model=True, context_window=8_000, **where)
    said: list[ChatMessage] = []
    with client, llamaindex_ctx.with_context(inner, session_id="s") as llm:
        for question in THREE:
            said.append(ChatMessage(question))
            answer = llm.chat(said).message.content or ""
            said.append(ChatMessage(role="assistant", content=answer.strip()))
    assert [m["content"].strip() for m in server.requests[-1].body["messages"]] == TURNS
