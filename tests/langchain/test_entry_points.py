"""Arguments that all entry points share: the window of the model's profile, summarisers by name, models chosen per call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import ModelFallbackMiddleware
from langchain.chat_models import init_chat_model
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import BaseModel

from ctxfold import ConfigError, Policy, Section
from ctxfold.errors import MissingExtraError
from ctxfold.policy.settings import policy_for
from ctxfold.testing import ErrorReply, ModelServer, Scripted, ScriptedCall
from ctxfold.tokens.text import text_counter
from langchain_ctx import (
    ChatCtx,
    ContextMiddleware,
    ContextNode,
    ContextSummarizer,
    CtxChatMessageHistory,
    with_context,
)
from tests.langchain.faces import closed
from tests.support.summaries import asks_on_live_prefix

LONG = "Which of the rooms is free? " * 20
SMALL, LARGE = 2_000, 16_000


@tool
def look(key: int) -> str:
    """Looks something up."""
    return f"Entry {key}."


def answer(body: Any) -> Any:
    if body["model"] == "down":
        return ErrorReply(400, {"error": {"message": "down", "type": "invalid_request_error"}})
    if any("Found" in t["function"]["name"] for t in body.get("tools", ())):
        return Scripted(tool_calls=(ScriptedCall("Found", '{"key": 7}'),))
    return Scripted(f"{body['model']} has read it. " + "It is a long story. " * 20)


@pytest.fixture
def service() -> Iterator[ModelServer]:
    """Answers for any model; says which one it was."""
    with ModelServer(model="m", script=answer, context_window=100_000) as running:
        yield running


def chat(service: ModelServer, name: str, window: int | None) -> ChatOpenAI:
    profile: Any = None if window is None else {"max_input_tokens": window}
    return ChatOpenAI(model=name, base_url=service.base_url, api_key="x", max_retries=0, profile=profile)  # type: ignore[arg-type]


def thread(name: str = "t", **more: Any) -> RunnableConfig:
    return {"configurable": {"thread_id": name, **more}}


def sizes(service: ModelServer, model: str) -> list[int]:
    """Returns the tokens of each request for an answer of this model."""
    count = text_counter().count
    asked = [r.body for r in service.requests if r.body["model"] == model and not asks_on_live_prefix(r.body)]
    return [sum(count(str(m.get("content"))) for m in body["messages"]) for body in asked]


# the window


@pytest.mark.parametrize("how", ["sync", "async"])
async def test_the_middleware_takes_the_window_of_the_profile(service: ModelServer, how: str) -> None:
    with ContextMiddleware(history_tools=False) as middleware:
        model = chat(service, "m", SMALL)
        agent = create_agent(model, [], middleware=[middleware], checkpointer=InMemorySaver())
        for _ in range(8):
            given: Any = {"messages": [HumanMessage(LONG)]}
            _ = agent.invoke(given, thread()) if how == "sync" else await agent.ainvoke(given, thread())
        await closed(model)
        assert middleware.context("t").policy.context_window == SMALL
        assert middleware.context("t").usage().compactions > 0
        assert max(sizes(service, "m")) < SMALL


def test_each_model_of_an_agent_has_the_window_of_its_own_profile(service: ModelServer) -> None:
    """The large model comes first, and the small one never receives what only fits the large one."""
    saver = InMemorySaver()
    with ContextMiddleware(history_tools=False) as middleware:
        large = create_agent(chat(service, "large", LARGE), [], middleware=[middleware], checkpointer=saver)
        fallback = ModelFallbackMiddleware(chat(service, "small", SMALL))
        small = create_agent(chat(service, "down", LARGE), [], middleware=[fallback, middleware], checkpointer=saver)
        for _ in range(12):
            large.invoke({"messages": [HumanMessage(LONG)]}, thread())
        assert max(sizes(service, "large")) > SMALL
        text = small.invoke({"messages": [HumanMessage("And now?")]}, thread())["messages"][-1].text
        assert text.startswith("small has read it")
        assert max(sizes(service, "small")) < SMALL


def test_a_window_that_nobody_knows_is_an_error_that_names_the_argument(service: ModelServer) -> None:
    known = chat(service, "m", SMALL)
    nobody = FakeListChatModel(responses=["yes"])
    with ContextMiddleware(history_tools=False) as middleware:
        agent: Any = create_agent(nobody, [], middleware=[middleware])
        with pytest.raises(
            ConfigError, match=r"FakeListChatModel is not known.*max_input_tokens: give context_window="
        ):
            agent.invoke({"messages": [HumanMessage("hi")]}, thread())
        with pytest.raises(ConfigError, match=r"before the first call of a model.*give context_window="):
            middleware.context("t")
        create_agent(known, [], middleware=[middleware]).invoke({"messages": [HumanMessage("hi")]}, thread("u"))
        with pytest.raises(ConfigError, match="FakeListChatModel is not known"):  # not the window of another model
            agent.invoke({"messages": [HumanMessage("hi")]}, thread())
    with pytest.raises(ConfigError, match=r"FakeListChatModel is not known.*give context_window="):
        with_context(nobody)
    for make in (ContextNode, lambda: CtxChatMessageHistory("s")):
        with pytest.raises(ConfigError, match=r"context window.*not known: give context_window="):
            make()


def test_settings_are_checked_before_the_window_is_known() -> None:
    with pytest.raises(ConfigError, match="hard_ratio"):
        ContextMiddleware(hard_ratio=3.0)


def test_a_policy_says_more_than_the_profile(service: ModelServer) -> None:
    policy: Policy = policy_for(4_000)
    model = chat(service, "m", LARGE)
    with with_context(model, session_id="s", policy=policy) as wrapped:
        assert wrapped.context().policy.context_window == 4_000
    with ContextMiddleware(policy=policy) as middleware:
        assert middleware.context("t").policy.context_window == 4_000
    with ContextNode(policy=policy, session_id="s") as node:
        assert node.context().policy.context_window == 4_000


async def test_an_erasure_needs_no_window(service: ModelServer, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'chat.db'}"
    for name in ("t", "u"):
        with ContextMiddleware(store=url) as middleware:
            agent = create_agent(chat(service, "m", SMALL), [], middleware=[middleware])
            agent.invoke({"messages": [HumanMessage("hi")]}, thread(name))
    with ContextMiddleware(store=url) as middleware:
        assert middleware.erase("t") == ("t",)
        assert await middleware.aerase("u") == ("u",)
    with ContextMiddleware(store=url, context_window=SMALL) as middleware:
        assert [len(middleware.context(name).messages()) for name in ("t", "u")] == [0, 0]


# summarisers by name

ENTRIES: dict[str, Callable[..., Any]] = {
    "ContextMiddleware": lambda **s: ContextMiddleware(context_window=SMALL, **s),
    "ContextNode": lambda **s: ContextNode(context_window=SMALL, **s),
    "CtxChatMessageHistory": lambda **s: CtxChatMessageHistory("s", context_window=SMALL, **s),
    "CtxChatMessageHistory.factory": lambda **s: CtxChatMessageHistory.factory(context_window=SMALL, **s),
    "ChatCtx": lambda **s: ChatCtx(
        model="m", base_url="http://127.0.0.1:9/v1", api_key="x", session="s", context_window=SMALL, **s
    ),
    "with_context": lambda **s: with_context(FakeListChatModel(responses=["yes"]), context_window=SMALL, **s),
    "ContextSummarizer": lambda **s: ContextSummarizer(s["summarizer"]),
}


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_summariser_that_cannot_be_made(entry: str) -> None:
    with pytest.raises(
        MissingExtraError, match=r"'mistralai:large' needs the package.*pip install langchain-mistralai"
    ):
        ENTRIES[entry](summarizer="mistralai:large")
    with pytest.raises(ConfigError, match="='nobody:large' is not the name of a usable model"):
        ENTRIES[entry](summarizer="nobody:large")


@pytest.mark.parametrize("entry", ["ContextMiddleware", "ContextNode", "with_context"])
def test_a_summariser_by_name(entry: str, service: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", service.base_url)
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    model, settings = chat(service, "m", SMALL), {"summarizer": "openai:writer"}
    app: Any
    match entry:
        case "ContextMiddleware":
            owned: Any = ContextMiddleware(history_tools=False, **settings)  # type: ignore[arg-type]
            app = create_agent(model, [], middleware=[owned], checkpointer=InMemorySaver())
        case "ContextNode":
            owned = ContextNode(context_window=SMALL, **settings)  # type: ignore[arg-type]
            app = None
        case _:
            owned = with_context(model, **settings)  # type: ignore[call-overload]
            app = None
    said: list[Any] = []
    for number in range(8):
        question = HumanMessage(f"{number}. {LONG}", id=f"q{number}")
        if app is not None:
            app.invoke({"messages": [question]}, thread())
        elif entry == "ContextNode":
            said += [question]
            said += [(owned | model).invoke(said, thread())]
        else:
            owned.invoke([question], thread())
    assert "writer" in {r.body["model"] for r in service.requests}
    owned.close()


# models that a call chooses


def configurable(service: ModelServer, **default: Any) -> Any:
    return init_chat_model(
        **{"model": "gpt-4o", "model_provider": "openai", **default},
        configurable_fields=("model", "profile"),
        base_url=service.base_url,
        api_key="x",
        max_retries=0,
    )


def test_the_model_is_chosen_per_call_and_its_window_followed(service: ModelServer) -> None:
    with with_context(configurable(service), store="memory://") as model:
        for _ in range(12):
            assert model.invoke(LONG, thread()).text.startswith("gpt-4o has read it")
        assert model.context("t").policy.context_window == 128_000
        assert max(sizes(service, "gpt-4o")) > SMALL
        small = thread(model="small", profile={"max_input_tokens": SMALL})
        assert model.invoke("And now?", small).text.startswith("small has read it")
        assert max(sizes(service, "small")) < SMALL
        assert len(model.context("t").messages()) == 26, "one session for both"


async def test_every_way_of_asking_a_configurable_model(service: ModelServer) -> None:
    model = with_context(configurable(service), session_id="s", store="memory://")
    other: RunnableConfig = {"configurable": {"model": "gpt-4.1"}}
    chain = ChatPromptTemplate.from_messages([("human", "{question}")]) | model | StrOutputParser()
    assert (await chain.ainvoke({"question": "one"}, other)).startswith("gpt-4.1 has read")
    assert "".join(chain.stream({"question": "two"}, other)).startswith("gpt-4.1 has read")
    assert "".join([p.text async for p in model.astream("three", other)]).startswith("gpt-4.1 has read")
    assert model.with_config(other).batch(["four"])[0].text.startswith("gpt-4.1 has read")
    assert model.bind_tools([look]).invoke("five", other).text.startswith("gpt-4.1 has read")
    assert [t["function"]["name"] for t in service.requests[-1].body["tools"]] == ["look"]
    assert service.requests[-1].body["messages"][-1]["content"] == "five"
    assert len(service.requests[-1].body["messages"]) == 9, "each question and each answer, once"
    found = model.with_structured_output(Found, method="function_calling").invoke("six", other)
    assert found == Found(key=7)
    await model.aclose()
    await closed(configurable(service)._model(other))  # LangChain shares one client between the models that it makes


class Found(BaseModel):
    """What was found."""

    key: int


def test_any_field_may_be_configurable(service: ModelServer) -> None:
    """LangChain takes every key of the config as a setting then; the names of sessions are none."""
    free: Any = init_chat_model(
        "gpt-4o",
        model_provider="openai",
        configurable_fields="any",
        base_url=service.base_url,
        api_key="x",
    )
    with with_context(free, store="memory://") as model:
        config: RunnableConfig = {"configurable": {"session_id": "s", "owner": "ann", "temperature": 0.5}}
        assert model.invoke("hi", config).text
        assert service.requests[-1].body["temperature"] == 0.5
        assert "session_id" not in service.requests[-1].body
        assert len(model.context("s", owner="ann").messages()) == 2


def test_a_configurable_model_without_a_known_window(service: ModelServer) -> None:
    unknown = with_context(configurable(service), session_id="s")
    with unknown, pytest.raises(ConfigError, match=r"ChatOpenAI is not known.*give context_window="):
        unknown.invoke("hi", {"configurable": {"model": "made-up"}})
    with with_context(configurable(service), session_id="s", context_window=SMALL) as model:
        assert model.invoke("hi", {"configurable": {"model": "made-up"}}).text.startswith("made-up")
        assert model.context().policy.context_window == SMALL


def test_an_agent_with_a_configurable_model(service: ModelServer) -> None:
    with ContextMiddleware() as middleware:
        agent: Any = create_agent(configurable(service), [look], middleware=[middleware], checkpointer=InMemorySaver())
        for name in ("gpt-4o", "gpt-4.1"):
            state = agent.invoke({"messages": [HumanMessage("hi")]}, thread(model=name))
            assert state["messages"][-1].text.startswith(f"{name} has read it")
        assert len(middleware.context("t").messages()) == 4


def test_a_model_with_settings_bound_is_refused(service: ModelServer) -> None:
    with pytest.raises(ConfigError, match="bind tools and settings to what comes back"):
        with_context(chat(service, "m", SMALL).bind(stop=["x"]))


# names


@pytest.mark.parametrize("entry", ["ChatCtx", "ContextMiddleware", "ContextNode", "with_context"])
def test_the_same_names_in_every_entry(entry: str, service: ModelServer, tmp_path: Path) -> None:
    class Vectors(Embeddings):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            return [[1.0, float(len(text))] for text in texts]

        def embed_query(self, text: str) -> list[float]:
            return [1.0, float(len(text))]

    settings: dict[str, Any] = {
        "session_id": "s",
        "owner": "ann",
        "store": f"sqlite:///{tmp_path / 'chat.db'}",
        "context_window": SMALL,
        "summarizer": FakeListChatModel(responses=["They asked."]),
        "sections": [Section("notes", lambda query: "The ferry leaves at nine.")],
        "embedder": Vectors(),
    }
    model = chat(service, "m", None)
    question = [HumanMessage("When does the ferry leave?", id="q")]
    match entry:
        case "ChatCtx":
            made: Any = ChatCtx(model="m", base_url=service.base_url, api_key="x", **settings)  # type: ignore[arg-type]
            made.invoke(question)
            assert made.session_id == made.session == "s"
        case "ContextMiddleware":
            made = ContextMiddleware(history_tools=False, **settings)
            create_agent(model, [], middleware=[made]).invoke({"messages": question})  # type: ignore[arg-type]
        case "ContextNode":
            made = ContextNode(**settings)
            (made | model).invoke(question)
        case _:
            made = with_context(model, **settings)
            made.invoke(question)
    assert "The ferry leaves at nine." in str(service.requests[-1].body["messages"])
    assert repr(made.context("s").handle.store) == f"SqlStore({settings['store']!r})"
    assert made.context("s").owner == "ann"
    made.close()


def test_one_name_for_a_session() -> None:
    with pytest.raises(ConfigError, match="session and session_id are the same setting"):
        ChatCtx(
            model="m", base_url="http://127.0.0.1:9/v1", api_key="x", session="a", session_id="b", context_window=SMALL
        )  # type: ignore[arg-type]
