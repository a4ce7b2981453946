"""Mistakes of a LangChain user end in a typed error which says what was given and what to give, and store nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from langchain.agents import create_agent
from langchain_core.chat_history import InMemoryChatMessageHistory
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import ConfigurableField

from ctxfold import ConfigError, CtxError, MessageError
from ctxfold.testing import ModelServer
from langchain_ctx import (
    ChatCtx,
    ContextMiddleware,
    ContextNode,
    ContextSummarizer,
    CtxChatMessageHistory,
    section_from,
    token_counter,
    with_context,
    with_reasoning,
)
from langchain_ctx.backend import LangChainBackend
from langchain_ctx.history import export_history, import_history


@pytest.fixture
def model() -> Iterator[ChatCtx]:
    with (
        ModelServer(model="lookup", context_window=8_000) as server,
        ChatCtx(model="lookup", base_url=server.base_url, api_key="x") as model,
    ):
        yield model


def opened(session: Any = "s", **settings: Any) -> CtxChatMessageHistory:
    return CtxChatMessageHistory(session, **{"context_window": 8_000, **settings})


MADE: list[tuple[str, str, Callable[[Any], object]]] = [
    ("a model's name", "model of with_context is a str: give a LangChain chat model", lambda m: with_context("gpt-4o")),
    ("its class", "model of with_context is the class ChatCtx", lambda m: with_context(ChatCtx)),
    (
        "with tools",
        "is a .*Binding: give the chat model itself, and bind tools",
        lambda m: with_context(m.bind_tools([]), context_window=8_000),
    ),
    (
        "with fields of each call",
        r"is a RunnableConfigurableFields: .* init_chat_model\(\.\.\., configurable_fields=\.\.\.\)",
        lambda m: with_context(m.configurable_fields(temperature=ConfigurableField("t")), context_window=8_000),
    ),
    ("thinks", "model of with_reasoning is a str", lambda m: with_reasoning("gpt-4o")),
    ("thinks, with tools", "give the chat model itself", lambda m: with_reasoning(m.bind_tools([]))),
    ("summariser", "summarizer is a list: give a LangChain chat model, its name", lambda m: opened(summarizer=[])),
    ("summariser's name", "summarizer='nobody' is not the name of a usable model", lambda m: opened(summarizer="nobody")),
    ("summariser's class", "summarizer is the class ChatCtx", lambda m: opened(summarizer=ChatCtx)),
    ("of the middleware", "model='nobody' is not the name of", lambda m: ContextSummarizer("nobody", context_window=4_000)),
    ("counter", "model of token_counter is a list", lambda m: token_counter([])),
    ("section", "a ChatCtx cannot be the source of a section: give a retriever", lambda m: section_from(m)),
    ("embedder", "embedder is a str: give LangChain Embeddings", lambda m: opened(embedder="bge")),
    ("window as text", "context_window is '8000'", lambda m: opened(context_window="8000")),
    ("window of an agent", "context_window is '64k'", lambda m: ContextMiddleware(context_window="64k")),  # type: ignore[arg-type]
    ("trigger", r"trigger is 'full': give 0\.8", lambda m: ContextMiddleware(context_window=900, trigger="full")),  # type: ignore[arg-type]
    ("keep", "keep is 'four': give the newest", lambda m: ContextMiddleware(context_window=900, keep="four")),  # type: ignore[arg-type]
    ("by position", "ChatCtx was given a str without a keyword: give model=", lambda m: ChatCtx("openai:gpt-5-mini")),  # type: ignore[misc]
    ("tools of the agent", "names look: there are", lambda m: ContextMiddleware(context_window=900, history_tools="look")),
    ("how many tools", "history_tools is an int: give a list; names among read_message", lambda m: with_tools(5)),
    ("tools in numbers", "history_tools hold an int: names among", lambda m: with_tools([5])),
    ("mirror", "mirror is a list: give a BaseChatMessageHistory", lambda m: opened(mirror=[])),
    ("mirror of all", "mirror is an InMemory.*: give a function", lambda m: factory(old())),
    ("what mirrors", "mirror is a str: give a BaseChat", lambda m: factory(lambda session, owner: "copy")("s")),
    ("state's key", "messages_key is an int", lambda m: ContextNode(context_window=900, messages_key=5)),  # type: ignore[arg-type]
    ("output's key", "output_key is None", lambda m: ContextNode(context_window=900, output_key=None)),  # type: ignore[arg-type]
    ("reply's limit", "max_tokens is -5: give the largest number", lambda m: ChatCtx(model="m", base_url=URL, max_tokens=-5)),
    ("model's window", "context_window is 0: give the model's", lambda m: ChatCtx(model="m", base_url=URL, context_window=0)),
    ("limit of a call", "max_tokens is '100': give the largest", lambda m: m.invoke("Hi", max_tokens="100")),
    ("search", "query is an int: give it as text", lambda m: opened().context.search(5)),  # type: ignore[arg-type]
    ("the model first", "create_agent, and one that writes the summaries is summarizer=", lambda m: ContextMiddleware(m)),
    ("one tool", "tools is a ChatCtx: give a list of tools", lambda m: ContextNode(context_window=900, tools=m)),
    ("sections", "sections hold a str: make a section of it", lambda m: ContextMiddleware(context_window=900, sections=["x"])),
    ("one retriever", "sections is a ChatCtx: give a list", lambda m: with_context(m, context_window=900, sections=m)),
    ("nobody", "session id is missing: give each conversation a name", lambda m: opened(None)),
    ("nameless", "session id is empty", lambda m: opened("")),
    ("nobody of a chain", "session id is missing", lambda m: CtxChatMessageHistory.factory(context_window=900)(None)),  # type: ignore[arg-type]
    ("no owner", "owner is missing", lambda m: CtxChatMessageHistory.factory(context_window=900)("s", None)),  # type: ignore[arg-type]
    ("no session", "session id is missing", lambda m: with_context(m, context_window=8_000).context()),
    ("backend", "model of LangChainBackend is a str", lambda m: LangChainBackend("gpt-4o")),  # type: ignore[arg-type]
    ("a config", "give the thread's id", lambda m: ContextMiddleware(context_window=900).context({"configurable": {}})),
    ("path", "store is a PosixPath: use 'sqlite:///chat.db'", lambda m: opened(store=Path("chat.db"))),
    ("two slashes", "names a server, 'chat.db'", lambda m: opened(store="sqlite://chat.db")),
    ("two windows", r"context_window is 900, and policy=\{'context_window': 800\}", lambda m: chat(context_window=800, window=900)),
    ("policy's counter", r"counter is a field of ChatCtx .* give counter=\.\.\. beside", lambda m: chat(counter=len)),
    ("policy's store", r"store is a field of ChatCtx", lambda m: chat(store="sqlite:///chat.db")),
    ("policy's backend", r"backend is a field of ChatCtx", lambda m: chat(backend=m.context_backend)),
    ("a misspelt session", "'sesion_id': did you mean session_id", lambda m: with_context(m, context_window=900, sesion_id="s")),
    ("in British", "'summariser': did you mean summarizer", lambda m: ContextMiddleware(context_window=900, summariser=m)),
    ("a misspelt store", "'sotre': did you mean store", lambda m: opened(sotre="sqlite:///chat.db")),
    ("database", "'connection_string': ctxfold calls it store", lambda m: opened(connection_string="sqlite:///chat.db")),
    ("limit", "'max_token_limit': ctxfold calls it context_window", lambda m: opened(max_token_limit=2_000)),
    ("from a list", r"is a list: .*InMemoryChatMessageHistory\(messages", lambda m: import_history([], opened().context)),  # type: ignore[arg-type]
    ("into a history", "is a CtxChatMessageHistory: .*`.context`", lambda m: import_history(old(), opened())),  # type: ignore[arg-type]
    ("out of a history", "is a CtxChatMessageHistory: .*`.context`", lambda m: export_history(opened(), old())),  # type: ignore[arg-type]
]  # fmt: skip


URL = "http://127.0.0.1:9/v1"


def with_tools(chosen: Any) -> ContextMiddleware:
    return ContextMiddleware(context_window=8_000, history_tools=chosen)


def factory(mirror: Any) -> Any:
    return CtxChatMessageHistory.factory(context_window=8_000, mirror=mirror)


def chat(window: int = 8_000, **policy: Any) -> ChatCtx:
    return ChatCtx(model="m", base_url=URL, api_key="x", session="s", context_window=window, policy=policy)


def old() -> InMemoryChatMessageHistory:
    return InMemoryChatMessageHistory(messages=[HumanMessage("Hi"), AIMessage("Hello.")])


@pytest.mark.parametrize(("words", "make"), [m[1:] for m in MADE], ids=[m[0] for m in MADE])
def test_settings(
    words: str, make: Callable[[Any], object], model: ChatCtx, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=words):
        make(model)
    assert not list(tmp_path.iterdir())


def test_one_history_tool_may_be_named_alone() -> None:
    middleware = ContextMiddleware(context_window=8_000, history_tools="read_message")
    assert [tool.name for tool in middleware.tools] == ["read_message"]


ADDED: list[tuple[str, Any]] = [
    ("is a str", "Hello."),
    ("is a str", ["Hello."]),
    ("is a dict: give HumanMessage", [{"role": "user", "content": "Hello."}]),
    ("is a tuple", [("human", "Hello.")]),
]


@pytest.mark.parametrize(("words", "messages"), ADDED)
async def test_what_is_added(words: str, messages: Any) -> None:
    with opened() as history:
        history.add_user_message("Hi")
        with pytest.raises(MessageError, match=words):
            history.add_messages(messages)
        with pytest.raises(MessageError, match=words):
            await history.aadd_messages(messages)
        assert [m.text for m in history.messages] == ["Hi"]


def test_names_that_are_no_text(model: ChatCtx) -> None:
    """A thread's id may be a number or a UUID; each finds its session again."""
    thread = uuid4()
    with opened(7) as history:
        assert history.context.session == "7"
    with ContextMiddleware(context_window=8_000) as middleware:
        agent = create_agent(model, [], middleware=[middleware])
        for name in (7, thread):
            agent.invoke({"messages": [HumanMessage("Hi")]}, {"configurable": {"thread_id": name}})
            assert middleware.context(name).messages()[0].text == "Hi"


def test_a_closed_history_says_so(tmp_path: Path) -> None:
    history = opened(store=f"sqlite:///{tmp_path / 'chat.db'}")
    history.close()
    for use in (lambda: history.messages, lambda: history.add_user_message("Hi"), history.clear):
        with pytest.raises(CtxError, match="is closed: open a new one"):
            use()
