"""`ChatCtx` with a session: the sessions of docs/langchain.md, point by point."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from langchain_core import exceptions as lc
from langchain_core.caches import InMemoryCache
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import ConfigurableField, RunnableLambda

from ctxfold import ConfigError, ContextOverflowError, MemoryStore
from ctxfold.errors import CtxWarning, EmptyMessagesError, MessageTooLargeError, SessionNotFoundError
from ctxfold.events import IdsRepeated
from ctxfold.testing import ErrorReply, ModelServer, Scripted, ScriptedCall
from langchain_ctx import ChatCtx, CtxChatMessageHistory, with_context
from tests.langchain.test_history import WORDS, contents, words


def at(session: str, **more: Any) -> Any:
    return {"configurable": {"session_id": session, **more}}


def texts(chat: ChatCtx, session: str | None = None, **who: Any) -> list[str]:
    """What the session holds, as the next request would show it."""
    return [m.text for m in chat.context(session, **who).view().messages]


def merged_first(chat: ChatCtx) -> AIMessage:
    first, *_ = chat.stream("c")
    return first


def echo(body: Any) -> Scripted:
    return Scripted(f"re: {body['messages'][-1]['content'][:60]}", reasoning="hm")


@pytest.fixture
def echoing() -> Iterator[ModelServer]:
    with ModelServer(model="echo", script=echo) as server:
        yield server


@pytest.fixture
def chat(echoing: ModelServer) -> Iterator[ChatCtx]:
    with made(echoing, session="s") as model:
        yield model


def made(server: ModelServer, **settings: Any) -> ChatCtx:
    settings = {"context_window": 4_000, "max_retries": 0, **settings}
    return ChatCtx(model="echo", base_url=server.base_url, api_key="x", **settings)


def test_a_delta_list_goes_on_with_the_session(chat: ChatCtx, echoing: ModelServer) -> None:
    chat.invoke("one")
    chat.invoke([HumanMessage("two")])
    assert [m["content"] for m in echoing.requests[1].body["messages"]] == ["one", "re: one", "two"]
    assert texts(chat) == ["one", "re: one", "two", "re: two"]


@pytest.mark.parametrize("ids", ["ours", "none"])
def test_a_full_list_adds_only_what_is_new(chat: ChatCtx, ids: str) -> None:
    conversation: list[BaseMessage] = []
    for text in ("one", "two", "one", "three"):
        conversation.append(HumanMessage(text))
        reply = chat.invoke(conversation)
        conversation.append(reply if ids == "ours" else AIMessage(reply.content))
    assert texts(chat) == ["one", "re: one", "two", "re: two", "one", "re: one", "three", "re: three"]


async def test_replies_carry_the_stored_id(chat: ChatCtx) -> None:
    for reply in (
        chat.invoke("a"),
        await chat.ainvoke("b"),
        merged_first(chat),
        [c async for c in chat.astream("d")][-1],
    ):
        assert chat.context().archive.get(reply.id or "").text.startswith("re: ")
    assert chat.context().usage().turns == 4


def test_leading_system_messages_are_the_sessions_prompts(chat: ChatCtx, echoing: ModelServer) -> None:
    chat.invoke([SystemMessage("be brief"), HumanMessage("one")])
    chat.invoke("two")
    chat.invoke([SystemMessage("be long"), HumanMessage("three")])
    systems = [[m["content"] for m in r.body["messages"] if m["role"] == "system"] for r in echoing.requests]
    assert systems == [["be brief"], ["be brief"], ["be long"]]
    assert texts(chat)[0] == "be long"


async def test_each_input_of_a_batch_is_a_turn_of_its_own(chat: ChatCtx, echoing: ModelServer) -> None:
    chat.batch([f"b{n}" for n in range(5)])
    await chat.abatch([f"c{n}" for n in range(5)])
    for request in echoing.requests:
        said = [m["content"] for m in request.body["messages"]]
        assert len(said) % 2 == 1  # whole turns, and its own question
    kept = texts(chat)
    assert sorted(t for t in kept if not t.startswith("re")) == sorted(f"{x}{n}" for x in "bc" for n in range(5))
    for question, answer in zip(kept[::2], kept[1::2], strict=True):
        assert answer == f"re: {question}"


def test_a_failed_call_leaves_the_session_and_a_retry_does_not_double(echoing: ModelServer) -> None:
    script = [Scripted("re: one"), ErrorReply(500, "down"), ErrorReply(500, "down"), Scripted("re: two")]
    with ModelServer(model="m", script=script) as server, made(server, session="s") as chat:
        chat.invoke("one")
        with pytest.raises(lc.ModelAPIError):
            chat.invoke("two")
        assert texts(chat) == ["one", "re: one"]
        again = chat.with_retry(stop_after_attempt=3, wait_exponential_jitter=False)
        assert again.invoke([HumanMessage("two", id="h2")]).content == "re: two"
        assert texts(chat) == ["one", "re: one", "two", "re: two"]


def test_a_fallback_on_the_same_session_goes_on_with_it(echoing: ModelServer) -> None:
    store = MemoryStore()
    with (
        ModelServer(model="m", script=[ErrorReply(500, "down")] * 2) as broken,
        made(broken, session="s", store=store) as first,
        made(echoing, session="s", store=store) as second,
    ):
        assert first.with_fallbacks([second]).invoke("one").content == "re: one"
        assert texts(first) == ["one", "re: one"]
        with_other = first.with_fallbacks([FakeListChatModel(responses=["from elsewhere"])])
        conversation: list[BaseMessage] = [HumanMessage("one"), second.invoke([HumanMessage("x")]), HumanMessage("two")]
        foreign = with_other.invoke(conversation)
        assert foreign.content == "from elsewhere"
        assert texts(second) == ["one", "re: one", "x", "re: x"]
        # what another model answered joins the session with the next full list
        second.invoke([*conversation, foreign, HumanMessage("three")])
        assert texts(second)[4:] == ["two", "from elsewhere", "three", "re: three"]


def test_a_cached_answer_is_never_another_states(echoing: ModelServer) -> None:
    from langchain_core.globals import set_llm_cache

    set_llm_cache(InMemoryCache())
    try:
        with made(echoing, session="s") as chat:
            assert chat.cache is False
            chat.invoke("again")
            chat.invoke("again")
            assert len(echoing.requests) == 2
            assert texts(chat) == ["again", "re: again"] * 2
        with made(echoing) as plain:
            plain.invoke("again")
            plain.invoke("again")
            assert len(echoing.requests) == 3
    finally:
        set_llm_cache(None)
    with made(echoing, store=MemoryStore(), cache=InMemoryCache()) as wanted:
        for session in ("s", "t", "s"):
            wanted.invoke("again", at(session))
        assert len(echoing.requests) == 5  # the caller's own cache is kept apart by session


def test_a_list_that_ends_with_a_known_question_asks_anew(echoing: ModelServer) -> None:
    answers = iter(["first", "second", "third"])
    with ModelServer(model="m", script=lambda _: Scripted(next(answers))) as server, made(server, session="s") as chat:
        question = HumanMessage("why?", id="h1")
        assert chat.invoke([question]).content == "first"
        assert chat.invoke([question]).content == "second"
        assert texts(chat) == ["why?", "second"]
        assert chat.invoke([HumanMessage("why?")]).content == "third"  # without an id it is said again
        assert texts(chat) == ["why?", "second", "why?", "third"]


def test_the_config_names_session_and_owner(echoing: ModelServer) -> None:
    with made(echoing, session="field", store=MemoryStore()) as chat:
        chat.invoke("f")
        chat.invoke("a", at("a"))
        chat.invoke("t", {"configurable": {"thread_id": 7}})
        chat.invoke("both", {"configurable": {"thread_id": "b", "session_id": "a", "owner": "ann"}})
        chat.invoke("ann's", at("a", owner="ann"))
        assert texts(chat) == ["f", "re: f"]
        assert texts(chat, "a") == ["a", "re: a"]
        assert texts(chat, "b") == ["both", "re: both"]
        assert texts(chat, "7") == ["t", "re: t"]
        assert texts(chat, "a", owner="ann") == ["ann's", "re: ann's"]
        for bad in (at(""), at("a", owner="")):
            with pytest.raises(ConfigError, match="is empty"):
                chat.invoke("x", bad)


async def test_the_config_reaches_it_through_chains(echoing: ModelServer) -> None:
    async def inside(text: str) -> str:
        return str((await chat.ainvoke(text)).content)  # no config passed on: it is in the context

    with made(echoing, store=MemoryStore()) as chat:
        chain = ChatPromptTemplate.from_template("say {x}") | chat | StrOutputParser()
        assert chain.invoke({"x": 1}, at("s")) == "re: say 1"
        assert await chain.ainvoke({"x": 2}, at("s")) == "re: say 2"
        assert "".join(chain.stream({"x": 3}, at("s"))) == "re: say 3"
        assert "".join([c async for c in chain.astream({"x": 4}, at("s"))]) == "re: say 4"
        await RunnableLambda(inside).ainvoke("five", at("s"))
        chat.bind_tools([]).invoke("six", at("s"))
        chat.generate_prompt([chat._convert_input("plain")])
        events = [e["event"] async for e in chain.astream_events({"x": 7}, at("s"), version="v2")]
        assert "on_chat_model_stream" in events
        assert texts(chat, "s")[::2] == ["say 1", "say 2", "say 3", "say 4", "five", "six", "say 7"]


def test_a_store_without_a_session_is_plain(echoing: ModelServer) -> None:
    with made(echoing, store=MemoryStore()) as chat:
        chat.invoke("one")
        chat.invoke("two")
        assert len(echoing.requests[1].body["messages"]) == 1
    with made(echoing) as plain, pytest.raises(ConfigError, match="keeps no sessions"):
        plain.context("s")


async def test_a_call_that_names_no_session_of_a_store_is_warned_of_once(echoing: ModelServer, tmp_path: Path) -> None:
    """Nobody would notice that nothing is stored before they look for it; `memory://` stores nothing for good anyway."""
    url = f"sqlite:///{tmp_path}/chat.db"
    with made(echoing, store=url) as chat:
        with pytest.warns(CtxWarning, match="it names no session. Give session_id=") as warned:
            chat.invoke("one")
        assert warned[0].filename == __file__
        chat.invoke("two")
    with made(echoing, store=url) as chat:
        chat.invoke("three", {"configurable": {"session_id": None}})
        chat.invoke("meant so", {"configurable": {"thread_id": None}})
    with made(echoing, store=url) as chat:
        chat.invoke("four", at("s"))
        await chat.ainvoke("a title for it, to be kept nowhere")
        assert texts(chat, "s")[::2] == ["four"]
    with with_context(made(echoing), store=url, context_window=8_000) as wrapped:
        with pytest.warns(CtxWarning, match="it names no session"):
            await wrapped.ainvoke("five")
        assert "".join([c.text async for c in wrapped.astream("six")])


async def test_fifty_users_on_one_model_stay_apart(echoing: ModelServer, store_url: str) -> None:
    with made(echoing, store=store_url) as chat:

        async def talk(user: int) -> None:
            for number in range(3):
                await chat.ainvoke(f"user {user} says {number}", at("chat", owner=f"u{user}"))

        def talk_in_thread(user: int) -> None:
            for number in range(3):
                list(chat.stream(f"user {user} says {number}", at("chat", owner=f"u{user}")))

        await asyncio.gather(*(talk(u) for u in range(25)))
        with ThreadPoolExecutor(8) as pool:
            await asyncio.gather(*(asyncio.wrap_future(pool.submit(talk_in_thread, u)) for u in range(25, 50)))
        for request in echoing.requests:
            said = [m["content"] for m in request.body["messages"] if m["role"] == "user"]
            assert len({s.split()[1] for s in said}) == 1
        for user in range(50):
            assert texts(chat, "chat", owner=f"u{user}")[::2] == [f"user {user} says {n}" for n in range(3)]


def test_a_conversation_longer_than_the_window_goes_on(server: ModelServer) -> None:
    with ChatCtx(model="lookup", base_url=server.base_url, api_key="x", session="s", context_window=3_000) as chat:
        chat.invoke("The key to the cellar hangs behind the blue clock.")
        for number in range(40):
            chat.invoke(words(number))
        usage = chat.context().usage()
        assert usage.compactions > 0
        assert "blue clock" in chat.invoke("Where does the key to the cellar hang?").content
        assert max(len(r.body_bytes) for r in server.requests) < 30_000


def test_the_history_opens_what_the_chat_model_wrote(echoing: ModelServer, store_url: str) -> None:
    with made(echoing, session="s", store=store_url) as chat:
        chat.invoke("one")
    with CtxChatMessageHistory("s", store_url, 4_000) as history:
        assert contents(history.messages) == ["one", "re: one"]
        assert history.messages[1].additional_kwargs == {"reasoning_content": "hm"}


def test_copies_share_the_memory_store(echoing: ModelServer) -> None:
    with made(echoing, session="s") as chat:
        warmer = chat.configurable_fields(temperature=ConfigurableField(id="temperature"))
        warmer.invoke("one", {"configurable": {"temperature": 0.9}})
        assert echoing.requests[-1].body["temperature"] == 0.9
        assert texts(chat) == ["one", "re: one"]
        chat.model_copy(update={"temperature": 0.1}).invoke("two")
        assert echoing.requests[-1].body["temperature"] == 0.1
        assert len(texts(chat)) == 4


@pytest.mark.parametrize("on_abort", ["discard", "keep_partial"])
def test_an_abandoned_stream_leaves_what_was_chosen(on_abort: str) -> None:
    long = Scripted("one two three four five six seven eight", chunks=8)
    with ModelServer(model="m", script=[long]) as server, made(server, session="s", on_abort=on_abort) as chat:
        stream = chat.stream("count")
        next(stream)
        next(stream)
        stream.close()  # type: ignore[attr-defined]
        kept = texts(chat)
        assert kept == [] if on_abort == "discard" else kept[0] == "count" and kept[1].startswith("one")


def test_bad_input_leaves_the_session_as_it_was(chat: ChatCtx, echoing: ModelServer) -> None:
    chat.invoke([HumanMessage("before", id="h1")])
    cases: list[tuple[list[BaseMessage], type[Exception]]] = [
        ([], EmptyMessagesError),
        ([HumanMessage(WORDS * 500)], MessageTooLargeError),
    ]
    for messages, error in cases:
        with pytest.raises(error):
            chat.invoke(messages)
        assert texts(chat) == ["before", "re: before"]
    assert len(echoing.requests) == 1
    with pytest.raises(lc.ContextOverflowError):
        chat.invoke(WORDS * 500)
    chat.invoke([ToolMessage("x", tool_call_id="nope")])
    assert echoing.requests[-1].body["messages"][-1] == {"role": "user", "content": "Result of a tool call:\nx"}


def test_a_reserve_of_the_policy_goes_before_the_limit_of_a_reply(echoing: ModelServer) -> None:
    for policy, reserve in (({}, 100), ({"reply_reserve_tokens": 300}, 300)):
        with made(echoing, session="s", context_window=4_000, max_tokens=100, policy=policy) as chat:
            assert chat.context().policy.reply_reserve_tokens == reserve


def test_l2_an_id_that_came_with_another_text_is_no_reason_to_stop(chat: ChatCtx) -> None:
    """Some clients give each message that they send the id 0."""
    events: list[object] = []
    chat.context().subscribe(events.append)
    for text in ("one", "two", "two", "three"):
        assert chat.invoke([HumanMessage(text, id="0")]).text == f"re: {text}"
    assert texts(chat)[:4] == ["one", "re: one", "two", "re: two"]
    assert IdsRepeated(chat.context().session, ("0",)) in events


@pytest.mark.parametrize("field", [{}, {"context_window": None}, {"context_window": 4_000}])
def test_the_window_may_be_in_the_policy(echoing: ModelServer, field: dict[str, Any]) -> None:
    policy = {"context_window": 4_000, "keep_last": 3}
    with ChatCtx(model="echo", base_url=echoing.base_url, api_key="x", session="s", policy=policy, **field) as chat:
        chat.invoke("one")
        assert (chat.context_window, chat.context().policy.keep_last) == (4_000, 3)
        assert chat.context().policy.context_window == 4_000
        assert chat.profile is not None
        assert chat.profile["max_input_tokens"] == 4_000
    assert policy == {"context_window": 4_000, "keep_last": 3}
    with pytest.raises(ConfigError, match="names another window: give one of them"):
        ChatCtx(model="echo", session="s", policy=policy, context_window=8_000)


def test_a_summary_in_a_list_is_not_what_the_user_said(echoing: ModelServer) -> None:
    """A history hands out its own summaries, and a session has others."""
    summary = HumanMessage("So far: fillers.", additional_kwargs={"ctxfold": {"kind": "summary"}})
    with made(echoing, session="s", context_window=8_000) as chat:
        chat.invoke([summary, HumanMessage("one")])
        assert [m["content"] for m in echoing.requests[-1].body["messages"]] == ["one"]
        assert [m.text for m in chat.context().messages() if m.role == "user"] == ["one"]


def test_an_overflow_with_compaction_off_is_theirs_too(echoing: ModelServer) -> None:
    with made(echoing, session="s", context_window=400, policy={"auto_compact": False}) as chat:
        with pytest.raises(lc.ContextOverflowError) as caught:
            for number in range(10):
                chat.invoke(words(number))
        assert isinstance(caught.value, ContextOverflowError)


def test_a_reply_with_broken_arguments_is_kept_by_a_session() -> None:
    """Step 7, item A3: the result of a malformed call answers it."""
    broken = Scripted(tool_calls=(ScriptedCall("t", "{bad", id="c"),))
    with ModelServer(model="m", script=[broken, Scripted("Again.")]) as server, made(server, session="s") as chat:
        (call,) = chat.invoke("x").invalid_tool_calls
        assert (call["id"], call["args"]) == ("c", "{bad")
        assert chat.invoke([ToolMessage("no JSON", tool_call_id="c", status="error")]).text == "Again."
        assert texts(chat) == ["x", "", "no JSON", "Again."]


def test_a_session_is_made_by_the_constructor(echoing: ModelServer, store_url: str) -> None:
    with made(echoing, session="s", store=store_url):
        pass
    with CtxChatMessageHistory("s", store_url, 4_000, create=False) as history:
        assert history.messages == []
    with pytest.raises(SessionNotFoundError, match="'t'"):
        CtxChatMessageHistory("t", store_url, 4_000, create=False)
