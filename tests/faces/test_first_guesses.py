"""What a user of LangChain or LlamaIndex types first, written down before the code was read: it works as meant, or the error names
the one setting that is meant."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from llama_index.core.llms import ChatMessage, MockLLM
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.storage.chat_store import SimpleChatStore

import langchain_ctx
import llamaindex_ctx
from ctxfold import (
    AgentContext,
    ConfigError,
    Message,
    MessagesTrigger,
    RatioTrigger,
    TokensTrigger,
    assistant,
    tool_result,
    user,
)
from ctxfold.errors import MissingExtraError, StrategyError
from ctxfold.events import CompactionHeld
from ctxfold.policy.triggers import AllOf, AnyOf
from langchain_ctx import ChatCtx, ContextMiddleware, ContextNode, CtxChatMessageHistory
from llamaindex_ctx import CtxLLM, CtxMemory
from tests.support.driven import call, context, scripted, tool_round, turns

MODEL = FakeListChatModel(responses=["a"])
BUFFER = ChatMemoryBuffer.from_defaults(token_limit=3_000)
FULL = ("tokens", 4_000)


def made(*args: Any, **settings: Any) -> AgentContext:
    return AgentContext(*args, **{"context_window": 8_000, **settings})


def memory_of(**settings: Any) -> AgentContext:
    return CtxMemory.from_defaults(**settings).context


# what is refused, and the setting that the error names
REFUSED: list[tuple[str, str, Callable[[], object]]] = [
    ("model by its keyword", "calls it backend", lambda: made(model="openai:gpt-5-mini", max_tokens=4_000)),
    ("max_tokens", "context_window limits the whole", lambda: made(max_tokens=4_000)),
    ("trim_messages' strategy", "did you mean 'truncate'", lambda: made(strategy="last")),
    ("token_limit", "calls it context_window", lambda: made(token_limit=4_000)),
    ("token_counter", "calls it counter", lambda: made(token_counter=len)),
    ("tokenizer_fn", "calls it counter", lambda: made(tokenizer_fn=str.split)),
    ("messages_to_keep", "calls it keep_last", lambda: made(messages_to_keep=20)),
    ("max_tokens_before_summary", r"trigger=\('tokens', 4_000\)", lambda: made(max_tokens_before_summary=4_000)),
    ("trim_tokens_to_summarize", "summary_tokens", lambda: made(trim_tokens_to_summarize=4_000)),
    ("chat_history_token_ratio", "calls it hard_ratio", lambda: made(chat_history_token_ratio=0.7)),
    ("token_flush_size", "calls it min_free_ratio", lambda: made(token_flush_size=700)),
    ("memory_blocks", "calls it sections", lambda: made(memory_blocks=[])),
    ("include_system", "system prompt, .*always stay", lambda: made(include_system=True)),
    ("start_on", "whole tool rounds .*always stay", lambda: made(start_on="human", end_on=("human", "tool"))),
    ("thread_id", "calls it session_id", lambda: made(thread_id="t1")),
    ("max_token_limit", "calls it context_window", lambda: made(max_token_limit=2_000)),
    ("k", "calls it keep_last", lambda: made(k=5)),
    ("insert_method", r"Section\(place=", lambda: made(insert_method="system")),
    ("chat_store", "calls it store", lambda: made(chat_store=SimpleChatStore())),
    ("llm", "calls it backend", lambda: made(llm=MockLLM())),
    ("async_database_uri", "calls it store", lambda: made(async_database_uri="sqlite+aiosqlite:///x.db", table_name="c")),
    ("system_prompt", "calls it system", lambda: made(system_prompt="You are terse.")),
    ("checkpointer", "calls it store", lambda: made(checkpointer=InMemorySaver())),
    ("max_input_tokens", "calls it context_window", lambda: made(max_input_tokens=8_000)),
    ("return_messages", "leave it out: that is always so", lambda: made(return_messages=True)),
    ("a path for a store", "'sqlite:///chat.db' for a file", lambda: made(store="chat.db")),
    ("db", "calls it store", lambda: made(db="chat.db")),
    ("user_id", "calls it owner", lambda: made(user_id="u")),
    ("window_size", "calls it keep_last", lambda: made(window_size=10)),
    ("tools", "an argument of a call, such as send", lambda: made(tools=[])),
    ("a model of LangChain", "LangChainBackend", lambda: made(MODEL)),
    ("an LLM of LlamaIndex", "LlamaIndexBackend", lambda: made(MockLLM())),
    ("the middleware's model", "calls it summarizer", lambda: ContextMiddleware(model=MODEL, trigger=FULL)),  # type: ignore[call-arg]
    ("by position", r"summarizer=\.\.\.", lambda: ContextMiddleware("openai:gpt-5-mini", trigger=FULL)),  # type: ignore[arg-type]
    ("the older names", "trigger=", lambda: ContextMiddleware(max_tokens_before_summary=4_000, messages_to_keep=20)),  # type: ignore[call-arg]
    ("connection_string", "calls it store", lambda: CtxChatMessageHistory("s", connection_string="sqlite:///x.db")),  # type: ignore[call-arg]
    ("connection", "calls it store", lambda: CtxChatMessageHistory("s", connection="sqlite:///x.db")),  # type: ignore[call-arg]
    ("trim_messages' names", r"context_window=\.\.\.", lambda: langchain_ctx.with_context(MODEL, max_tokens=4_000)),  # type: ignore[call-overload]
    ("the same on a node", "context_window limits the whole", lambda: ContextNode(max_tokens=4_000, strategy="last")),  # type: ignore[call-arg]
    ("its system prompt", "the first message of the list", lambda: ContextNode(context_window=900, system="x")),  # type: ignore[call-arg]
    ("a chat model by position", r"model='openai:gpt-5-mini'", lambda: ChatCtx("openai:gpt-5-mini")),  # type: ignore[misc]
    ("a chat model's limit", "calls it context_window", lambda: ChatCtx(model="m", token_limit=9)),  # type: ignore[call-arg]
    ("an LLM around an LLM", "calls it context_window", lambda: CtxLLM(MockLLM(), token_limit=4_000)),  # type: ignore[arg-type]
    ("the same by keyword", "calls it model", lambda: CtxLLM(llm=MockLLM(), memory=BUFFER)),
    ("an LLM's limit", "calls it context_window", lambda: llamaindex_ctx.with_context(MockLLM(), token_limit=9)),  # type: ignore[call-arg]
]  # fmt: skip


@pytest.mark.parametrize(("words", "guess"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
def test_refused_with_the_setting_that_is_meant(words: str, guess: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=words) as refused:  # ChatCtx's own error is pydantic's
        guess()
    assert isinstance(refused.value, ConfigError) or "ChatCtx" in str(refused.value)


# what is taken, and the policy that it stands for
TAKEN: list[tuple[str, dict[str, Any], Callable[[], AgentContext]]] = [
    ("tokens", {"trigger": TokensTrigger(at=4_000)}, lambda: made(trigger=FULL)),
    ("fraction", {"trigger": RatioTrigger(at=0.8)}, lambda: made(trigger=("fraction", 0.8))),
    ("a share", {"trigger": RatioTrigger(at=0.8)}, lambda: made(trigger=0.8)),
    ("messages", {"trigger": MessagesTrigger(at=50)}, lambda: made(trigger=("messages", 50))),
    (
        "any of them",
        {"trigger": AnyOf(triggers=(TokensTrigger(at=4_000), MessagesTrigger(at=50)))},
        lambda: made(trigger=[FULL, ("messages", 50)]),
    ),
    (
        "all of them",
        {"trigger": AllOf(triggers=(TokensTrigger(at=4_000), MessagesTrigger(at=10)))},
        lambda: made(trigger={"tokens": 4_000, "messages": 10}),
    ),
    ("keep messages", {"keep_last": 4, "tail_ratio": 0.2}, lambda: made(keep=("messages", 4))),
    ("keep", {"keep_last": 4}, lambda: made(keep=4)),
    ("keep tokens", {"keep_last": 1, "tail_ratio": 0.3125}, lambda: made(keep=("tokens", 2_000))),
    ("keep a fraction", {"keep_last": 1, "tail_ratio": 0.3}, lambda: made(keep=("fraction", 0.3))),
    ("strategy", {"strategy": "summarize"}, lambda: made(strategy="summarize")),
    ("a prompt", {"summary_prompt": "Sum up: {messages}"}, lambda: made(summary_prompt="Sum up: {messages}")),
    ("memory", {"memory": ("facts",)}, lambda: made(memory="facts")),
    (
        "middleware",
        {"trigger": TokensTrigger(at=4_000), "keep_last": 20},
        lambda: ContextMiddleware(context_window=8_000, trigger=FULL, keep=("messages", 20)).context("t"),
    ),
    ("history", {"keep_last": 4}, lambda: CtxChatMessageHistory("s", context_window=8_000, keep=4).context),
    ("a memory's limit", {"context_window": 40_001}, lambda: memory_of(session_id="s", token_limit=40_000)),
    (
        "a memory over messages",
        {"context_window": 3_001},
        lambda: memory_of(chat_history=[ChatMessage("hi")], llm=MockLLM(), token_limit=3_000),
    ),
    (
        "a memory's ratio",
        {"hard_ratio": 0.6},
        lambda: CtxMemory(token_limit=40_000, chat_history_token_ratio=0.6, token_flush_size=3_000).context,
    ),
    ("a memory's keep", {"keep_last": 4}, lambda: memory_of(context_window=8_000, keep=4)),
]


@pytest.mark.parametrize(("policy", "guess"), [t[1:] for t in TAKEN], ids=[t[0] for t in TAKEN])
def test_taken_as_meant(policy: dict[str, Any], guess: Callable[[], AgentContext]) -> None:
    with guess() as ctx:
        assert {name: getattr(ctx.policy, name) for name in policy} == policy


def test_settings_at_run_time_are_taken_alike(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'chat.db'}"
    with made(store=store) as ctx:
        assert ctx.set_policy(trigger=("messages", 9), keep=3).trigger == MessagesTrigger(at=9)
        assert ctx.policy.keep_last == 3
    with made(store=store, keep=("tokens", 640)) as again:
        assert (again.policy.keep_last, again.policy.tail_ratio) == (3, 0.1), "what was set at run time holds"
        again.set_policy(keep=("fraction", 0.3))
    with made(store=store) as last:
        assert (last.policy.keep_last, last.policy.tail_ratio) == (1, 0.3)


def test_a_model_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    with AgentContext("openai:gpt-5-mini", summarizer="openai:gpt-5-nano") as ctx:
        assert ctx.policy.context_window == 400_000
        assert ctx.handle.backend is not None
        assert ctx.handle.backend.model == "gpt-5-mini"


# a function for a strategy


def test_a_function_says_what_stays() -> None:
    with context(scripted(*"abc"), context_window=4_000, system="Be brief.", strategy=lambda m: m[-2:]) as ctx:
        for text in ("one", "two", "three"):
            ctx.send(text)
        assert [m.text for m in ctx.view().messages] == ["Be brief.", "three", "c"]
        assert [m.text for m in ctx.messages()] == ["Be brief.", "one", "a", "two", "b", "three", "c"]
        ctx.undo()
        assert [m.text for m in ctx.view().messages] == ["Be brief.", "two", "b", "three", "c"]


def test_a_function_waits_for_the_trigger() -> None:
    with context(context_window=4_000, strategy=lambda m: m[-2:], trigger=("messages", 6)) as ctx:
        sizes = []
        for n in range(4):
            ctx.add([user(f"q{n}"), assistant(f"a{n}")])
            sizes.append(len(ctx.view()))
    assert sizes == [2, 4, 2, 4]


def newest_round_cut(messages: list[Message]) -> list[Message]:
    return [m for m in messages if m.role != "tool"]


ILLEGAL: list[tuple[str, str, Any]] = [
    ("all gone", "which must stay", lambda m: []),
    ("the question gone", "which must stay", lambda m: m[-1:]),
    ("a result gone", "separates a tool call from its results", newest_round_cut),
    ("an invented one", "none of the messages it was given", lambda m: [*m, user("x", id="new")]),
    ("a text", "a str that is none of the messages", lambda m: ["x"]),
    ("a changed one", "changed the message", lambda m: [user("y", id=m[0].id), *m[1:]]),
    ("another order", "changed the order", lambda m: m[::-1]),
    ("nothing", "NoneType", lambda m: None),
    ("a mistake", "ZeroDivisionError", lambda m: 1 / 0),
]


@pytest.mark.parametrize(("words", "function"), [i[1:] for i in ILLEGAL], ids=[i[0] for i in ILLEGAL])
def test_what_a_function_may_not_leave(words: str, function: Any) -> None:
    held: list[str] = []
    with context(context_window=4_000, strategy=function) as ctx:
        ctx.subscribe(lambda e: held.append(e.reason) if isinstance(e, CompactionHeld) else None)
        ctx.add([user("old"), assistant("a"), user("look"), *tool_round("t"), assistant("done")])
        assert len(ctx.view()) == 6, "nothing was changed"
    assert re.search(words, held[0])


def test_what_is_no_function_of_messages() -> None:
    async def slow(messages: list[Message]) -> list[Message]:
        return messages

    with pytest.raises(StrategyError, match="'slow' is async"):
        made(strategy=slow)
    with pytest.raises(StrategyError, match=r"type is not a strategy: .*function from the messages"):
        made(strategy=dict)


# messages of a framework


def test_messages_as_a_framework_has_them() -> None:
    results = Message("r", "tool", (*tool_result("c1", "1").parts, *tool_result("c2", "2").parts))
    with context() as ctx:
        ctx.add([user("look"), assistant("", calls=[call("c1"), call("c2")]), results, assistant("done")])
        shown = ctx.messages(as_="langchain")
        assert [m.type for m in shown] == ["human", "ai", "tool", "tool", "ai"]
        assert isinstance(shown[0], HumanMessage)
        assert isinstance(shown[1], AIMessage)
        assert [c["id"] for c in shown[1].tool_calls] == ["c1", "c2"]
        listed = ctx.messages("model", as_="llamaindex")
        assert all(isinstance(m, ChatMessage) for m in listed)
        assert [m.role.value for m in listed] == ["user", "assistant", "tool", "tool", "assistant"]
        with pytest.raises(ConfigError, match="as_ is 'openai': give 'langchain' or 'llamaindex'"):
            ctx.messages(as_="openai")  # type: ignore[call-overload]


async def test_messages_of_a_framework_without_blocking() -> None:
    with context() as ctx:
        await ctx.aadd(turns(1))
        assert [m.type for m in await ctx.amessages(as_="langchain")] == ["human", "ai"]
        assert len(await ctx.amessages()) == 2


def test_a_framework_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n.startswith("langchain_ctx.messages")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "langchain_core", None)
    monkeypatch.setitem(sys.modules, "langchain_core.messages", None)
    with context() as ctx, pytest.raises(MissingExtraError, match=r'pip install "ctxfold\[langchain\]"'):
        ctx.messages(as_="langchain")


# memory


def test_memory_is_shown_where_it_is_stored() -> None:
    backend = scripted("first", "second", "third")
    with context(backend, context_window=4_000, memory="facts") as ctx:
        ctx.memory.add("facts", "The locker is 47-B.", key="locker")
        ctx.send("Which locker is mine?")
        assert "47-B" in str(backend.requests[-1].messages)
        assert "47-B" not in str(ctx.messages()), "shown, not said"
        other = ctx.at("other")
        other.send("Where is the locker?")
        assert "47-B" in str(backend.requests[-1].messages)
        ctx.set_policy(memory=())
        ctx.send("Which locker was it?")
        assert "47-B" not in str(backend.requests[-1].messages[-1])
    with CtxMemory(context_window=8_000, memory="facts", recall=False) as memory:
        memory.context.memory.add("facts", "The locker is 47-B.", key="locker")
        memory.put(ChatMessage("Which locker is mine?"))
        assert "47-B" in str(memory.get())


def test_a_session_without_a_word_says_that_it_is_new() -> None:
    with context(session_id="mistyped", system="Be brief.") as ctx:
        assert str(ctx.explain()).startswith("session mistyped (new session): ")
        ctx.add(turns(1))
        assert "new session" not in str(ctx.explain())
        ctx.edit.clear()
        assert "new session" not in str(ctx.explain())


@pytest.mark.parametrize(
    "keep",
    [0, -1, True, 1.0, "4", ("messages", 0), ("messages", True), ("tokens", 0), ("tokens", 6_400), ("fraction", 2)],
)
def test_an_amount_that_cannot_stay_is_refused_as_keep(keep: Any) -> None:
    with pytest.raises(ConfigError, match=r"keep is .*: give the newest messages that stay as 4"):
        made(keep=keep)


@pytest.mark.parametrize("trigger", [("tokens", True), ("tokens", "5"), ("fraction", None), True, 7])
def test_an_amount_that_is_no_number_is_refused_as_trigger(trigger: Any) -> None:
    with pytest.raises(ConfigError, match="trigger"):
        made(trigger=trigger)
