"""Step 7, D A3: a message's own `preserve_reasoning` survives both frameworks, their stores and their requests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, messages_from_dict, messages_to_dict
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.memory import ChatMemoryBuffer

from ctxfold import AgentContext, Message, MessageError, ReasoningPart, TextPart, ToolCallPart, assistant, tool_result
from ctxfold.testing import ModelServer
from langchain_ctx import ChatCtx, CtxChatMessageHistory
from langchain_ctx.messages import from_langchain, to_langchain
from llamaindex_ctx import CtxChatStore, CtxLLM, CtxMemory
from llamaindex_ctx.messages import from_chat_messages, to_chat_messages
from tests.support.driven import scripted

CHOICES = [None, True, False]


def answer(preserve: bool | None) -> Message:
    return replace(assistant(f"text {preserve}", id=f"a{preserve}", reasoning="why"), preserve_reasoning=preserve)


def lines(*preserved: bool | None) -> list[BaseMessage]:
    """Questions and answers; DashScope's row alone would send back the reasoning of none."""
    found: list[BaseMessage] = []
    for preserve in preserved:
        ours = {} if preserve is None else {"ctxfold": {"preserve_reasoning": preserve}}
        kwargs = {"reasoning_content": "why", **ours}
        found += [HumanMessage("Why?"), AIMessage(f"text {preserve}", additional_kwargs=kwargs)]
    return [*found, HumanMessage("And now?")]


def chat_lines(*preserved: bool | None) -> list[ChatMessage]:
    found: list[ChatMessage] = []
    for preserve in preserved:
        ours = {} if preserve is None else {"ctxfold_preserve_reasoning": preserve}
        said: dict[str, Any] = {"reasoning_content": "why", **ours}
        found += [
            ChatMessage(role="user", content="Why?"),
            ChatMessage(role="assistant", content=f"text {preserve}", additional_kwargs=said),
        ]
    return [*found, ChatMessage(role="user", content="And now?")]


def carried(server: ModelServer) -> list[str | None]:
    rows: list[dict[str, Any]] = server.requests[-1].body["messages"]
    return [row.get("reasoning_content") for row in rows if row["role"] == "assistant"]


@pytest.mark.parametrize("preserve", CHOICES)
def test_langchain_messages_carry_it_both_ways(preserve: bool | None) -> None:
    message = answer(preserve)
    told = to_langchain(message)
    assert from_langchain(told) == message
    assert from_langchain(messages_from_dict(messages_to_dict([told]))[0]) == message
    assert ("ctxfold" in told.additional_kwargs) is (preserve is not None)


@pytest.mark.parametrize("preserve", CHOICES)
def test_llamaindex_messages_carry_it_both_ways(preserve: bool | None) -> None:
    message = answer(preserve)
    text = Message("t", "assistant", (TextPart("only text"),), preserve_reasoning=preserve)
    result = replace(tool_result("c", "found", id="r"), preserve_reasoning=preserve)
    call = assistant("", id="c", calls=[ToolCallPart("c", "look", "{}")])
    for one in (message, text, result):
        (told,) = to_chat_messages([one])
        for kept in (told, ChatMessage.model_validate_json(told.model_dump_json())):
            (back,) = (
                from_chat_messages([*to_chat_messages([call]), kept])[1:]
                if one is result
                else from_chat_messages([kept])
            )
            assert (back.id, back.preserve_reasoning, back.text) == (one.id, preserve, one.text)
            assert back.reasoning == one.reasoning
        assert "ctxfold_preserve_reasoning" not in str(told.additional_kwargs), "no LLM's package sends it along"


def test_a_request_of_langchain_goes_by_it() -> None:
    with ModelServer(model="lookup") as server:
        chat = ChatCtx(provider="dashscope", model="lookup", base_url=server.base_url, api_key="x")  # type: ignore[arg-type]
        with chat:
            chat.invoke(lines(None, True, False))
        assert carried(server) == [None, "why", None]


def test_a_request_of_llamaindex_goes_by_it() -> None:
    with ModelServer(model="lookup") as server:
        llm = CtxLLM(provider="dashscope", model="lookup", base_url=server.base_url, api_key="x")
        llm.chat(chat_lines(None, True, False))
        llm.close()
        assert carried(server) == [None, "why", None]


def test_a_session_of_langchain_keeps_it_over_a_restart(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'chat.db'}"
    with CtxChatMessageHistory("s", store=url, context_window=8_000, summarizer=scripted()) as history:
        history.add_messages(lines(None, True, False))
    with CtxChatMessageHistory("s", store=url, context_window=8_000, summarizer=scripted()) as history:
        shown = [from_langchain(m) for m in history.messages if m.type == "ai"]
    with AgentContext(session_id="s", store=url, context_window=8_000) as ctx:
        stored = [m for m in ctx.messages() if m.role == "assistant"]
    assert [m.preserve_reasoning for m in shown] == [m.preserve_reasoning for m in stored] == CHOICES


def test_memories_and_stores_of_llamaindex_keep_it_over_a_restart(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'chat.db'}"
    memory = CtxMemory.from_defaults("s", store=url, token_limit=8_000, llm=None)
    memory.put_messages(chat_lines(*CHOICES))
    memory.close()
    with AgentContext(session_id="s", store=url, context_window=8_000) as ctx:
        stored = [m for m in ctx.messages() if m.role == "assistant"]
    assert [m.preserve_reasoning for m in stored] == CHOICES
    memory = CtxMemory.from_defaults("s", store=url, token_limit=8_000, llm=None)
    for found in (memory.get(), memory.get_all()):
        assert [m.preserve_reasoning for m in from_chat_messages(found) if m.role == "assistant"] == CHOICES
    memory.close()
    with CtxChatStore(store=url) as store:
        again = ChatMemoryBuffer.from_defaults(chat_store=store, chat_store_key="s", token_limit=8_000).get()
        assert [m.preserve_reasoning for m in from_chat_messages(again) if m.role == "assistant"] == CHOICES


def test_what_is_no_choice_is_refused() -> None:
    with CtxChatMessageHistory("s", context_window=8_000, summarizer=scripted()) as history:
        wrong: Any = {"ctxfold": {"preserve_reasoning": "yes"}}
        with pytest.raises(MessageError, match="preserve_reasoning 'yes'"):
            history.add_messages([AIMessage("a", additional_kwargs=wrong)])
    memory = CtxMemory.from_defaults("s", token_limit=8_000, llm=None)
    with pytest.raises(MessageError, match="preserve_reasoning 'yes'"):
        memory.put(ChatMessage(role="user", content="a", additional_kwargs={"ctxfold_preserve_reasoning": "yes"}))
    memory.close()


def test_reasoning_with_a_signature_keeps_both() -> None:
    message = Message("a", "assistant", (ReasoningPart("hm", "SIG"), TextPart("done")), preserve_reasoning=False)
    assert from_langchain(to_langchain(message)) == message
    (back,) = from_chat_messages(to_chat_messages([message]))
    assert (back.preserve_reasoning, back.parts[:2]) == (False, message.parts)
