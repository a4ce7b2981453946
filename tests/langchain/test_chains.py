"""The history in chains as people have them: prompt | model in RunnableWithMessageHistory, both modes, sync, async, streamed."""

from __future__ import annotations

import asyncio
import inspect
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from langchain_core.exceptions import ModelAPIError
from langchain_core.language_models import FakeListChatModel, GenericFakeChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import ConfigurableFieldSpec, Runnable, RunnableLambda
from langchain_core.runnables.history import RunnableWithMessageHistory

from ctxfold.errors import StoreUnavailableError
from ctxfold.history.records import MessageAdded, SessionKey
from ctxfold.testing import ErrorReply, ModelServer, Scripted
from langchain_ctx import ChatCtx, CtxChatMessageHistory
from langchain_ctx.history import HistoryFactory
from tests.langchain.test_history import WORDS, FailingStore, contents, words

PROMPT = ChatPromptTemplate.from_messages(
    [("system", "Answer from what was said."), MessagesPlaceholder("history"), ("human", "{question}")]
)


def session(name: str, **more: Any) -> Any:
    return {"configurable": {"session_id": name, **more}}


def keyed(model: Runnable[Any, Any], factory: Any, **options: Any) -> Runnable[Any, Any]:
    return RunnableWithMessageHistory(
        PROMPT | model, factory, input_messages_key="question", history_messages_key="history", **options
    )


@pytest.fixture
def factory() -> Any:
    with CtxChatMessageHistory.factory(context_window=2_000) as made:
        yield made


@pytest.fixture
def lookup(server: ModelServer) -> Any:
    with ChatCtx(model="lookup", base_url=server.base_url, api_key="x") as model:
        yield model


def test_keys_mode(factory: HistoryFactory, lookup: ChatCtx) -> None:
    chain = keyed(lookup, factory)
    chain.invoke({"question": "The parcel weighs seven kilos."}, session("s"))
    assert "seven" in chain.invoke({"question": "How much does the parcel weigh?"}, session("s")).content
    assert [m.type for m in factory("s").messages] == ["human", "ai", "human", "ai"]
    assert factory("s").messages[1].additional_kwargs["reasoning_content"]


async def test_keys_mode_async_and_streamed(factory: HistoryFactory, lookup: ChatCtx) -> None:
    chain = keyed(lookup, factory)
    await chain.ainvoke({"question": "The parcel weighs seven kilos."}, session("s"))
    pieces = [c async for c in chain.astream({"question": "How much does the parcel weigh?"}, session("s"))]
    assert "seven" in "".join(str(p.content) for p in pieces)
    list(chain.stream({"question": "And the letter?"}, session("s")))
    read = factory("s").messages
    assert [m.type for m in read] == ["human", "ai"] * 3
    assert read[3].id == pieces[0].id
    assert type(read[3]) is AIMessage


def test_list_mode(factory: HistoryFactory, lookup: ChatCtx) -> None:
    chain = RunnableWithMessageHistory(lookup, factory)
    chain.invoke([HumanMessage("The parcel weighs seven kilos.")], session("s"))
    assert "seven" in chain.invoke([HumanMessage("How much does the parcel weigh?")], session("s")).content
    assert contents(factory("s").messages)[::2] == ["The parcel weighs seven kilos.", "How much does the parcel weigh?"]


async def test_list_mode_async_and_streamed(factory: HistoryFactory, lookup: ChatCtx) -> None:
    chain = RunnableWithMessageHistory(lookup, factory)
    await chain.ainvoke([HumanMessage("The parcel weighs seven kilos.")], session("s"))
    async for _ in chain.astream([HumanMessage("How much does the parcel weigh?")], session("s")):
        pass
    for _ in chain.stream("And the letter?", session("s")):
        pass
    assert [m.type for m in factory("s").messages] == ["human", "ai"] * 3


def test_dict_in_and_dict_out(factory: HistoryFactory) -> None:
    def agent(state: dict[str, list[BaseMessage]]) -> dict[str, list[BaseMessage]]:
        return {"messages": [*state["messages"], AIMessage(f"I have {len(state['messages'])}.")]}

    chain = RunnableWithMessageHistory(
        RunnableLambda(agent), factory, input_messages_key="messages", output_messages_key="messages"
    )
    for text in ("one", "two", "three"):
        chain.invoke({"messages": [HumanMessage(text)]}, session("s"))
    assert contents(factory("s").messages) == ["one", "I have 1.", "two", "I have 3.", "three", "I have 5."]


@pytest.mark.parametrize("mode", ["keys", "list"])
def test_a_long_conversation_goes_on_in_a_small_window(mode: str, factory: HistoryFactory) -> None:
    """The view shrinks between the runs, and never in one: every user message is kept, none twice."""
    sent: list[int] = []

    def answer(given: Any) -> AIMessage:
        messages = given.to_messages() if hasattr(given, "to_messages") else given
        sent.append(len(messages))
        return AIMessage(f"Noted after {len(messages)}.")

    model = RunnableLambda(answer)
    chain = keyed(model, factory) if mode == "keys" else RunnableWithMessageHistory(model, factory)
    for number in range(40):
        text = words(number)
        chain.invoke({"question": text} if mode == "keys" else [HumanMessage(text)], session("s"))
    assert max(sent) < 50
    usage = factory("s").context.usage()
    assert usage.compactions > 0
    assert usage.turns == 40
    assert_all_kept(factory, "s", [words(n) for n in range(40)])


def assert_all_kept(factory: HistoryFactory, name: str, said: list[str]) -> None:
    store = factory("any").context.handle.store  # the log itself
    records = store.read(SessionKey("default", name))
    kept = [r.body.message.text for r in records if isinstance(r.body, MessageAdded) and r.body.message.role == "user"]
    assert sorted(kept) == sorted(said)


@pytest.mark.parametrize("mode", ["keys", "list"])
async def test_ten_overlapping_turns_keep_ten_user_messages(mode: str) -> None:
    async with CtxChatMessageHistory.factory(context_window=20_000) as factory:

        async def answer(_: Any) -> AIMessage:
            await asyncio.sleep(0.02)
            return AIMessage("ok")

        model: Any = RunnableLambda(answer)
        chain = keyed(model, factory) if mode == "keys" else RunnableWithMessageHistory(model, factory)
        asked: list[Any] = [f"message {n}" for n in range(10)]
        inputs = [{"question": t} if mode == "keys" else [HumanMessage(t)] for t in asked]
        await asyncio.gather(*(chain.ainvoke(i, session("s")) for i in inputs))
        read = await factory("s").aget_messages()
        assert sorted(contents([m for m in read if m.type == "human"])) == sorted(asked)
        assert sum(m.type == "ai" for m in read) == 10


def test_overlapping_turns_in_threads(factory: HistoryFactory) -> None:
    chain = keyed(FakeListChatModel(responses=["ok"]), factory)
    with ThreadPoolExecutor(10) as pool:
        list(pool.map(lambda n: chain.invoke({"question": f"m{n}"}, session("s")), range(10)))
    assert sorted(contents([m for m in factory("s").messages if m.type == "human"])) == [f"m{n}" for n in range(10)]


def test_one_handle_may_serve_run_after_run() -> None:
    with CtxChatMessageHistory("s", context_window=1_000) as history:
        chain = RunnableWithMessageHistory(FakeListChatModel(responses=["ok"]), lambda session_id: history)
        for number in range(12):
            chain.invoke([HumanMessage(words(number))], session("s"))
        assert history.context.usage().turns == 12
        assert history.context.usage().compactions > 0


def test_owners_come_with_the_config(factory: HistoryFactory) -> None:
    fields = [
        ConfigurableFieldSpec(id="session_id", annotation=str, is_shared=True),
        ConfigurableFieldSpec(id="owner", annotation=str, is_shared=True),
    ]
    chain = keyed(FakeListChatModel(responses=["ok"]), factory, history_factory_config=fields)
    chain.invoke({"question": "ann's"}, session("s", owner="ann"))
    chain.invoke({"question": "bob's"}, session("s", owner="bob"))
    assert contents(factory("s", "ann").messages) == ["ann's", "ok"]
    assert factory("s").messages == []


def test_a_failed_or_abandoned_run_leaves_nothing(factory: HistoryFactory) -> None:
    script = [Scripted("one two three four five six seven", chunks=6), ErrorReply(500, "down"), Scripted("fine")]
    with (
        ModelServer(model="scripted", script=script) as server,
        ChatCtx(model="scripted", base_url=server.base_url, api_key="x", max_retries=0) as model,
    ):
        chain = keyed(model, factory)
        stream = chain.stream({"question": "stop early"}, session("s"))
        next(stream)
        stream.close()  # type: ignore[attr-defined]
        with pytest.raises(ModelAPIError, match="500"):
            chain.invoke({"question": "fails"}, session("s"))
        chain.invoke({"question": "works"}, session("s"))
    assert contents(factory("s").messages) == ["works", "fine"]


def test_a_question_too_large_for_the_window_gives_way_once_it_has_its_answer(factory: HistoryFactory) -> None:
    """The chain reads the history before it adds the next question: an error there would stop the session for good."""
    chain = keyed(FakeListChatModel(responses=["blue"]), factory)
    chain.invoke({"question": f"{WORDS * 60} Anna's locker is 41. Which colour?"}, session("s"))
    chain.invoke({"question": "next"}, session("s"))
    summary, *rest = contents(factory("s").messages)
    assert "Anna's locker is 41." in summary
    assert rest == ["blue", "next", "blue"]
    assert any(m.text.startswith(WORDS * 60) for m in factory("s").context.messages()), "the archive has the whole text"


def test_a_storage_failure_is_raised_by_the_next_run() -> None:
    store = FailingStore()
    with CtxChatMessageHistory.factory(store=store, context_window=2_000) as factory:
        chain = keyed(FakeListChatModel(responses=["ok"]), factory)
        chain.invoke({"question": "one"}, session("s"))
        store.failing = True
        chain.invoke({"question": "two"}, session("s"))  # only logged by RunnableWithMessageHistory
        store.failing = False
        with pytest.raises(StoreUnavailableError, match="disk is full"):
            chain.invoke({"question": "three"}, session("s"))
        chain.invoke({"question": "four"}, session("s"))
        assert contents(factory("s").messages) == ["one", "ok", "four", "ok"]


def test_the_summariser_keeps_out_of_the_callers_stream() -> None:
    summarizer = GenericFakeChatModel(messages=iter(AIMessage(f"summary {n}") for n in range(100)))
    with CtxChatMessageHistory.factory(context_window=600, summarizer=summarizer) as factory:
        chain = keyed(GenericFakeChatModel(messages=iter(AIMessage("answer") for _ in range(20))), factory)

        async def run() -> list[str]:
            seen = []
            for number in range(12):
                async for event in chain.astream_events({"question": words(number)}, session("s"), version="v2"):
                    if event["event"] == "on_chat_model_stream":
                        seen.append(str(event["data"]["chunk"].content))
            return seen

        seen = "".join(asyncio.run(run()))
        assert factory("s").context.usage().compactions > 0
        assert "answer" in seen
        assert "summary" not in seen


# the signatures that a factory meets

CONFIG = [
    ConfigurableFieldSpec(id="session_id", annotation=str, default="", is_shared=True),
    ConfigurableFieldSpec(id="owner", annotation=str, default="default", is_shared=True),
]
TYPICAL: dict[str, Any] = {
    "input_messages_key": "question",
    "output_messages_key": "answer",
    "history_messages_key": "history",
    "history_factory_config": CONFIG,
}


def test_every_parameter_of_the_runnable_with_its_default_and_a_typical_value(factory: HistoryFactory) -> None:
    own = [p for p in inspect.signature(RunnableWithMessageHistory.__init__).parameters.values() if p.name in TYPICAL]
    assert [p.name for p in own] == list(TYPICAL)
    plain = RunnableWithMessageHistory(lookup_of_nothing, factory, **{p.name: p.default for p in own})
    assert plain.invoke([HumanMessage("one")], session("plain")).text == "ok"
    keyed_chain = RunnableWithMessageHistory(answering_by_key, factory, **TYPICAL)
    config: Any = {"configurable": {"session_id": "s", "owner": "ann"}}
    assert keyed_chain.invoke({"question": "two"}, config)["answer"].text == "ok"
    assert contents(factory("s", "ann").messages) == ["two", "ok"]
    assert contents(factory("s").messages) == []


def test_a_factory_is_called_by_position_and_by_name(factory: HistoryFactory) -> None:
    """As RunnableWithMessageHistory does: by position for one field, by name for several."""
    assert list(inspect.signature(factory).parameters) == [spec.id for spec in CONFIG]
    factory("s", "ann").add_messages([HumanMessage("one"), AIMessage("ok")])
    assert contents(factory(session_id="s", owner="ann").messages) == ["one", "ok"]
    assert contents(factory(session_id="s").messages) == contents(factory("s").messages) == []


lookup_of_nothing: Any = RunnableLambda(lambda _: AIMessage("ok"))
answering_by_key: Any = RunnableLambda(lambda _: {"answer": AIMessage("ok")})
