"""What objects with sessions say of themselves, and what becomes of them when they are copied or pickled."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain.chat_models import init_chat_model
from langchain_core.messages import AIMessage, HumanMessage
from langchain_openai import ChatOpenAI

from ctxfold import AgentContext
from ctxfold.testing import ModelServer
from langchain_ctx import ChatCtx, ContextMiddleware, ContextNode, CtxChatMessageHistory, with_context

SECRET = "sk-very-secret"


def chat(url: str = "http://ann:pa55word@127.0.0.1:9/v1", **settings: Any) -> ChatCtx:
    return ChatCtx(model="lookup", base_url=url, api_key=SECRET, **settings)


def inner() -> ChatOpenAI:
    return ChatOpenAI(model="gpt-4o", api_key=SECRET)  # type: ignore[arg-type]


CONFIGURABLE = {"model": "gpt-4o", "model_provider": "openai", "api_key": SECRET, "configurable_fields": ("model",)}

# how each is made over a store, and the beginning of its repr
OBJECTS: dict[str, tuple[Callable[[str], Any], str]] = {
    "ChatCtx": (
        lambda url: chat(session="s", store=url, context_window=4_000),
        "ChatCtx(model='lookup', provider='generic', base_url='http://127.0.0.1:9/v1', session='s', owner='default', ",
    ),
    "ContextMiddleware": (
        lambda url: ContextMiddleware(session_id="s", store=url, context_window=4_000),
        "ContextMiddleware(session_id='s', owner='default', ",
    ),
    "with_context": (
        lambda url: with_context(inner(), session_id="s", store=url, context_window=4_000),
        "ContextChatModel(ChatOpenAI('gpt-4o'), session_id='s', owner='default', ",
    ),
    "with_context of a configurable model": (
        lambda url: with_context(init_chat_model(**CONFIGURABLE), session_id="s", store=url, context_window=4_000),  # type: ignore[call-overload]
        "ConfigurableContextModel(session_id='s', owner='default', ",
    ),
    "ContextNode": (
        lambda url: ContextNode(session_id="s", store=url, context_window=4_000),
        "ContextNode(session_id='s', owner='default', ",
    ),
    "CtxChatMessageHistory": (
        lambda url: CtxChatMessageHistory("s", store=url, context_window=4_000),
        "CtxChatMessageHistory(session_id='s', owner='default', ",
    ),
    "factory": (
        lambda url: CtxChatMessageHistory.factory(store=url, context_window=4_000),
        "HistoryFactory(",
    ),
    "AgentContext": (
        lambda url: AgentContext(session_id="s", store=url, context_window=4_000),
        "AgentContext(session_id='s', owner='default', ",
    ),
}
EACH = pytest.mark.parametrize("name", OBJECTS)


@EACH
def test_the_representation_names_session_store_and_window(name: str, tmp_path: Path) -> None:
    make, beginning = OBJECTS[name]
    url = f"sqlite:///{tmp_path / 'chat.db'}"
    with make(url) as made:
        assert repr(made) == f"{beginning}store=SqlStore({url!r}), context_window=4000)"
        assert SECRET not in repr(made)


def test_the_window_of_a_model_is_shown_once_it_is_known() -> None:
    with ContextMiddleware() as middleware:
        assert repr(middleware).endswith("store=MemoryStore(), context_window=None)")
    with with_context(inner(), session_id="s") as model:
        assert "context_window=128000" in repr(model)
    with chat() as plain:
        assert repr(plain).endswith("base_url='http://127.0.0.1:9/v1', context_window=None)")


def contexts_of(instance: Any) -> AgentContext:
    match instance:
        case AgentContext():
            return instance
        case CtxChatMessageHistory():
            return instance.context
        case _ if callable(getattr(instance, "context", None)):
            return instance.context("s")  # type: ignore[no-any-return]
        case _:
            return instance("s").context  # type: ignore[no-any-return]


@EACH
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_copy_shares_the_sessions(name: str, copied: Callable[[Any], Any]) -> None:
    """In memory too: what one of them stores, the other one has."""
    with OBJECTS[name][0]("memory://") as made:
        other = copied(made)
        assert type(other) is type(made)
        assert other is not made
        contexts_of(made).add("one")
        contexts_of(other).add("two")
        for each in (made, other):
            assert [m.text for m in contexts_of(each).messages()] == ["one", "two"]
        assert repr(other) == repr(made)


@EACH
def test_what_cannot_be_pickled_says_so(name: str) -> None:
    with OBJECTS[name][0]("memory://") as made:
        kind = type(made).__name__
        with pytest.raises(
            TypeError, match=rf"{kind} cannot be pickled, as its? .*: construct it again .*over the same store"
        ):
            pickle.dumps(made)


def test_a_chat_model_with_a_store_at_a_url_can_be_pickled(server: ModelServer, store_url: str) -> None:
    with chat(server.base_url, session="s", store=store_url, context_window=4_000, temperature=0.5) as model:
        model.invoke("Hello.")
        with pickle.loads(pickle.dumps(model)) as other:
            assert repr(other) == repr(model)
            assert other.temperature == 0.5
            other.invoke("And again.")
            assert len(server.requests[-1].body["messages"]) == 3
            assert len(other.context().messages()) == 4


def test_a_plain_chat_model_can_be_pickled_without_the_key_of_the_environment(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEEPSEEK_API_KEY", SECRET)
    with ChatCtx(model="lookup", provider="deepseek", base_url=server.base_url) as model:
        assert model.api_key is not None
        assert model.api_key.get_secret_value() == SECRET
        text = pickle.dumps(model)
        assert SECRET.encode() not in text
        with pickle.loads(text) as other:
            assert other.api_key.get_secret_value() == SECRET
            assert isinstance(other.invoke([HumanMessage("Hello.")]), AIMessage)


@pytest.mark.parametrize("url", ["memory://", "sqlite://", "sqlite:///:memory:", None])
def test_a_chat_model_with_sessions_in_memory_cannot_be_pickled(url: str | None) -> None:
    with (
        chat(session="s", store=url, context_window=4_000) as model,
        pytest.raises(TypeError, match="ChatCtx cannot be pickled, as its sessions are in the memory of this process"),
    ):
        pickle.dumps(model)


def test_a_deep_copy_outlives_its_model(server: ModelServer) -> None:
    copied = copy.deepcopy(chat(server.base_url))
    gc.collect()
    assert copied.invoke("Hello.").text
    copied.close()
