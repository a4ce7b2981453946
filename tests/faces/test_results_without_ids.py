"""L3: results without a known id are paired with their calls in both faces: by the tool's name, then by order."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, ToolCallBlock
from llama_index.core.llms.llm import ToolSelection
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import SecretStr

from ctxfold import AgentContext, MemoryStore, Message, assistant, tool_result, user
from ctxfold.history.cuts import with_known_calls
from ctxfold.messages import ToolCallPart
from ctxfold.testing import ModelServer, Scripted, ScriptedCall
from langchain_ctx import ChatCtx, ContextMiddleware, ContextNode, CtxChatMessageHistory
from langchain_ctx import with_context as wrapped_model
from langchain_ctx.message_lists import LangChainList, converted_from
from langchain_ctx.messages import from_langchain
from llamaindex_ctx import CtxChatStore, CtxMemory, CtxMemoryBlock, with_context
from tests.llamaindex.served_llm import stock_llm

pytestmark = pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning:inspect")
ROUNDS = 12


def called(*calls: tuple[str, str]) -> Message:
    return assistant("", id="a", calls=[ToolCallPart(i, name, "{}") for i, name in calls])


def answered(messages: list[Message]) -> list[str]:
    return [m.tool_results[0].call_id for m in with_known_calls(messages) if m.tool_results]


@pytest.mark.parametrize(
    ("calls", "results", "told"),
    [
        ([("c1", "look"), ("c2", "find")], [("", "find"), ("", "look")], ["c2", "c1"]),
        ([("c1", "look"), ("c2", "look")], [("look", None), ("look", None)], ["c1", "c2"]),
        ([("c1", "look"), ("c2", "find")], [("", None), ("", None)], ["c1", "c2"]),
        ([("c1", "look"), ("c2", "look")], [("??", "look"), ("c1", None)], ["c2", "c1"]),
        ([("c1", "look"), ("c2", "find")], [("??", None), ("", "look")], ["c2", "c1"]),
        ([("c1", "look"), ("c2", "look")], [("?1", None), ("?2", None)], ["c1", "c2"]),
        ([("0", "look"), ("0#1", "look")], [("0", None), ("0", None)], ["0", "0#1"]),
        ([("c1", "look")], [("c1", None), ("c1", None)], ["c1", "c1"]),
        ([("c1", "look")], [("c1", None), ("??", None)], ["c1", "??"]),
    ],
)
def test_l3_results_are_matched_by_id_then_by_tool_then_by_order(
    calls: list[tuple[str, str]], results: list[tuple[str, str | None]], told: list[str]
) -> None:
    told_results = [tool_result(i, "ok", id=f"r{n}", name=name) for n, (i, name) in enumerate(results)]
    assert answered([user("q", id="u"), called(*calls), *told_results, user("next", id="v")]) == told


def nameless(number: int, tools: tuple[str, ...]) -> ChatMessage:
    blocks = [ToolCallBlock(tool_call_id=None, tool_name=t, tool_kwargs={"n": number}) for t in tools]
    return ChatMessage(role="assistant", blocks=blocks)


def named_by_tool(tool: str, text: str) -> ChatMessage:
    return ChatMessage(role="tool", content=text, additional_kwargs={"tool_call_id": tool})


def run_of_rounds() -> list[ChatMessage]:
    messages = [ChatMessage(role="user", content="q")]
    for n in range(ROUNDS):
        tools = ("look", "look", "find")[: 1 + n % 3]
        messages += [nameless(n, tools), *(named_by_tool(t, f"{n}.{i} {t}") for i, t in enumerate(tools))]
    return [*messages, ChatMessage(role="assistant", content="done")]


def check_pairs(messages: list[ChatMessage]) -> None:
    assert len(messages) == len(run_of_rounds())
    waiting: list[ToolCallBlock] = []
    for message, given in zip(messages, run_of_rounds(), strict=True):
        assert (message.role, message.content) == (given.role, given.content)
        if message.role.value == "tool":
            assert message.additional_kwargs["tool_call_id"] == waiting.pop(0).tool_call_id
        else:
            assert not waiting
            waiting = [b for b in message.blocks if isinstance(b, ToolCallBlock)]


@pytest.mark.parametrize("one_by_one", [True, False])
@pytest.mark.parametrize("face", ["memory", "chat store", "set"])
def test_l3_a_memory_and_a_chat_store_pair_them(face: str, one_by_one: bool) -> None:
    given = run_of_rounds()
    if face == "chat store":
        with CtxChatStore() as store:
            for part in [[m] for m in given] if one_by_one else [given]:
                store.add_messages("k", part)
            check_pairs(store.get_messages("k"))
        return
    with CtxMemory.from_defaults("s", context_window=16_000) as memory:
        if face == "set":
            memory.set(given)
        else:
            for part in [[m] for m in given] if one_by_one else [given]:
                memory.put_messages(part)
        check_pairs(memory.get())
        check_pairs(memory.get_all())


@pytest.mark.parametrize("one_by_one", [True, False])
async def test_l3_a_memory_block_pairs_them(one_by_one: bool) -> None:
    """A stock memory flushes as many messages as it has too many, also in the middle of a round."""
    with CtxMemory.from_defaults("b", context_window=16_000) as memory:
        block, given = CtxMemoryBlock(memory), run_of_rounds()
        for part in [[m] for m in given] if one_by_one else [given]:
            await block.aput(part)
        check_pairs(memory.get_all())


def langchain_run(result_id: str) -> list[BaseMessage]:
    messages: list[BaseMessage] = [HumanMessage("q", id="u")]
    for n in range(ROUNDS):
        tools = ("look", "look", "find")[: 1 + n % 3]
        calls: list[Any] = [{"name": t, "args": {"n": n}, "id": None, "type": "tool_call"} for t in tools]
        messages.append(AIMessage("", id=f"a{n}", tool_calls=calls))
        messages += [
            ToolMessage(f"{n}.{i}", tool_call_id=result_id, name=t, id=f"r{n}.{i}") for i, t in enumerate(tools)
        ]
    return [*messages, AIMessage("done", id="z")]


@pytest.mark.parametrize("result_id", ["", "unknown"])
@pytest.mark.parametrize("one_by_one", [True, False])
def test_l3_a_langchain_history_pairs_them(result_id: str, one_by_one: bool) -> None:
    given = langchain_run(result_id)
    with CtxChatMessageHistory("s", context_window=16_000) as history:
        for part in [[m] for m in given] if one_by_one else [given]:
            history.add_messages(part)
        shown = history.messages
    assert [(m.type, m.content) for m in shown] == [(m.type, m.content) for m in given]
    waiting: list[str | None] = []
    for message in shown:
        if isinstance(message, ToolMessage):
            assert message.tool_call_id == waiting.pop(0)
        elif isinstance(message, AIMessage):
            waiting = [call["id"] for call in message.tool_calls]


def sent_by(face: str, said: list[BaseMessage]) -> list[dict[str, Any]]:
    """The messages of the request that a face makes of a list."""
    with ModelServer(script=lambda _: Scripted("done"), context_window=8_000) as server, ExitStack() as opened:
        model = opened.enter_context(ChatCtx(model="m", base_url=server.base_url, api_key=SecretStr("x")))
        settings: Any = {"context_window": 8_000, "store": "memory://"}
        config: Any = {"configurable": {"thread_id": "t"}}
        match face:
            case "wrapper":
                opened.enter_context(wrapped_model(model, session_id="t", **settings)).invoke(said)
            case "chat":
                chat = ChatCtx(model="m", base_url=server.base_url, api_key=SecretStr("x"), session="t", **settings)
                opened.enter_context(chat).invoke(said)
            case "node":
                (opened.enter_context(ContextNode(**settings)) | model).invoke(said, config)
            case _:
                middleware = opened.enter_context(ContextMiddleware(**settings))
                create_agent(model, [], middleware=[middleware]).invoke({"messages": said}, config)
        (body,) = [r.body for r in server.requests]
    messages: list[dict[str, Any]] = body["messages"]
    return messages


def calling(*ids: str) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": "look", "args": {}, "id": i, "type": "tool_call"} for i in ids])


LIST_FACES = pytest.mark.parametrize("face", ["wrapper", "chat", "node", "middleware"])


@LIST_FACES
@pytest.mark.parametrize("ids", [("??", "?!"), ("", "??"), ("c1", "??")])
def test_l3_results_under_unknown_ids_at_the_end_of_a_list_reach_the_model(face: str, ids: tuple[str, str]) -> None:
    results = [ToolMessage(f"FOUND {n}", tool_call_id=i) for n, i in enumerate(ids)]
    sent = sent_by(face, [HumanMessage("q"), calling("c1", "c2"), *results])
    told = [(m["tool_call_id"], m["content"]) for m in sent if m["role"] == "tool"]
    assert told == [("c1", "FOUND 0"), ("c2", "FOUND 1")]


@LIST_FACES
@pytest.mark.parametrize(
    "before",
    [[], [HumanMessage("q"), AIMessage("hm")], [HumanMessage("q"), calling("late"), AIMessage("hm")]],
    ids=["alone", "of no call", "late"],
)
def test_l3_results_of_no_call_at_the_end_of_a_list_are_asked_as_text(face: str, before: list[BaseMessage]) -> None:
    """Services refuse such a result, and a list that ends with an answer asks nothing."""
    sent = sent_by(face, [*before, ToolMessage("FOUND", tool_call_id="late", name="look")])
    assert [m["role"] for m in sent] == (["user", "assistant", "user"] if before else ["user"])
    assert "FOUND" in str(sent[-1]["content"])


OUT = "Result of a tool call:\n"
NOTE = "(no result: the run ended before this call returned)"


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (["q", "=x", "done"], ["q", f"{OUT}=x", "done"]),
        (["=x", "done"], [f"{OUT}=x", "done"]),
        (["=x"], [f"{OUT}=x"]),
        (["q", "a b", "=a", "done"], ["q", "a b", "=a", NOTE, "done"]),
        (["q", "a", "done"], ["q", "a", NOTE, "done"]),
        (["q", "a", "?", "=a", "done"], ["q", "a", "=a", "?", "done"]),
        (["q", "a", "hm", "=a", "done"], ["q", "a", "=a", "hm", "done"]),
        (["q", "a", "=a", "=a again", "done"], ["q", "a", "=a", f"{OUT}=a again", "done"]),
        (["q", "a", "=a", "?", "=a again", "done"], ["q", "a", "=a", "?", f"{OUT}=a again", "done"]),
    ],
)
def test_l3_a_langchain_history_keeps_every_result(given: list[str], shown: list[str]) -> None:
    """One of no call that came with other messages was left out, and so was a round with an unanswered call."""

    def message(text: str) -> BaseMessage:
        if text.startswith("="):
            return ToolMessage(text, tool_call_id=text[1:].split()[0])
        calls = [i for i in text.split() if len(i) == 1 and i in "ab"]
        return calling(*calls) if calls else AIMessage(text) if text in ("hm", "done") else HumanMessage(text)

    with CtxChatMessageHistory("s", context_window=8_000) as history:
        history.add_messages([message(text) for text in given])
        told = [" ".join(c["id"] for c in getattr(m, "tool_calls", ())) or m.content for m in history.messages]
        assert told == shown
        history.add_messages(history.messages)
        assert len(history.messages) == len(shown), "what is there already is not stored twice"


def test_l3_a_history_knows_a_result_that_it_has_told_as_text() -> None:
    said = [HumanMessage("q", id="q"), AIMessage("A", id="k"), ToolMessage("R", tool_call_id="zz", id="t")]
    with CtxChatMessageHistory("s", context_window=8_000) as history:
        for messages in (said, said[:2], said, [*said, AIMessage("done", id="d")]):
            history.add_messages(messages)
        assert [m.content for m in history.messages] == ["q", "A", f"{OUT}R", "done"]


def test_l3_a_history_adds_notes_for_two_calls_of_one_id() -> None:
    with CtxChatMessageHistory("s", context_window=8_000) as history:
        history.add_messages([HumanMessage("q"), calling("0", "0"), HumanMessage("n")])
        assert [m.content for m in history.messages] == ["q", "", NOTE, NOTE, "n"]


@LIST_FACES
def test_l3_two_calls_of_one_id_with_a_message_between_their_results(face: str) -> None:
    results = [ToolMessage("sunny Bonn", tool_call_id="w"), ToolMessage("sunny Rome", tool_call_id="w")]
    sent = sent_by(
        face, [HumanMessage("q"), calling("w", "w"), HumanMessage("a picture"), *results, HumanMessage("and?")]
    )
    assert [m["content"] for m in sent if m["role"] == "tool"] == ["sunny Bonn", "sunny Rome"]
    assert [m["role"] for m in sent][:4] == ["user", "assistant", "tool", "tool"]


@LIST_FACES
def test_l3_two_calls_of_one_id_with_one_result(face: str) -> None:
    sent = sent_by(
        face, [HumanMessage("q"), calling("w", "w"), ToolMessage("R", tool_call_id="w"), HumanMessage("and?")]
    )
    assert sent[-1]["content"] == "and?"
    assert len([m for m in sent if m["role"] == "tool"]) == sum(len(m.get("tool_calls", ())) for m in sent)


@pytest.mark.parametrize("face", ["history", "memory"])
def test_l3_a_message_for_the_user_alone_hides_no_open_round(face: str) -> None:
    """With a result of no call in the same list, the round that waited was lost."""
    store = MemoryStore()
    with AgentContext(session_id="s", store=store, context_window=8_000) as context:
        context.add([user("q", id="q"), called(("x", "look"), ("y", "look")), tool_result("x", "RX", id="rx")])
        context.add([user("progress", id="p")], visibility="user")
    if face == "history":
        with CtxChatMessageHistory("s", store, context_window=8_000) as history:
            told = [ToolMessage("RY", tool_call_id="y"), AIMessage("done"), ToolMessage("late", tool_call_id="zz")]
            history.add_messages(told)
            texts = [str(m.content) for m in history.messages]
    else:
        with CtxMemory.from_defaults("s", store=store, context_window=8_000) as memory:
            memory.put_messages([named_by_tool("y", "RY"), ChatMessage(role="assistant", content="done")])
            texts = [m.content or "" for m in memory.get()]
    assert texts[:5] == ["q", "", "RX", "RY", "done"]


def test_l3_a_memory_may_be_set_to_a_result_alone() -> None:
    with CtxMemory.from_defaults("s", context_window=8_000) as memory:
        memory.set([named_by_tool("gone", "FOUND IT")])
        assert [(m.role.value, m.content) for m in memory.get()] == [("user", f"{OUT}FOUND IT")]


def test_l3_a_list_of_a_graph_reads_each_message_as_the_whole_list_does() -> None:
    given = langchain_run("")
    incoming, whole = LangChainList(given), converted_from(given, 0)
    assert [incoming.message(i) for i in range(len(given))] == whole
    assert [converted_from(given, i)[0] for i in range(len(given))] == whole
    assert from_langchain(given[0]) == whole[0]


@pytest.mark.parametrize("face", ["wrapper", "set", "put_messages"])
def test_l3_a_trimmed_list_may_begin_with_a_result(face: str) -> None:
    """A list that its keeper cut inside a round: the result of a call that is gone is told as text."""
    cut = [named_by_tool("gone", "FOUND IT"), ChatMessage(role="user", content="so?")]
    with ModelServer(script=[Scripted("yes")]) as server:
        stock = OpenAILike(model="m", api_base=server.base_url, api_key="x", context_window=8_000, is_chat_model=True)
        with with_context(stock) as llm, CtxMemory.from_defaults("s", context_window=8_000) as memory:
            if face == "wrapper":
                llm.chat(cut)
            else:
                getattr(memory, face)(cut)
                stock.chat(memory.get())
        sent = server.requests[-1].body["messages"]
    assert [m["role"] for m in sent] == ["user", "user"]
    assert "FOUND IT" in sent[0]["content"]


def test_l3_a_result_under_another_id_is_no_answer_to_a_call_with_an_id() -> None:
    """The rest of a cancelled run, added while another call waits, must not take the place of its result."""
    with AgentContext(context_window=4_000) as ctx, pytest.raises(Exception, match="not open"):
        ctx.add([user("q"), called(("c2", "look"))])
        ctx.add(tool_result("c1", "old", id="r", name="look"))


class Nameless(OpenAILike):
    """An LLM as Ollama's package makes one: blocks without ids, and selections whose id is the tool's name."""

    def _without_ids(self, response: ChatResponse) -> ChatResponse:
        blocks = [
            b.model_copy(update={"tool_call_id": None}) if isinstance(b, ToolCallBlock) else b
            for b in response.message.blocks
        ]
        response.message = ChatMessage(role="assistant", blocks=blocks)
        return response

    async def achat(self, messages: Any, **kwargs: Any) -> ChatResponse:
        return self._without_ids(await super().achat(messages, **kwargs))

    async def astream_chat(self, messages: Any, **kwargs: Any) -> Any:
        responses = await super().astream_chat(messages, **kwargs)

        async def each() -> Any:
            async for response in responses:
                yield self._without_ids(response)

        return each()

    def get_tool_calls_from_response(self, response: ChatResponse, *args: Any, **kwargs: Any) -> list[ToolSelection]:
        selections = super().get_tool_calls_from_response(response, *args, **kwargs)
        return [s.model_copy(update={"tool_id": s.tool_name}) for s in selections]


async def weather(city: str) -> str:
    """Tells the weather of a city; it takes longer for Bonn, the first."""
    await asyncio.sleep(0.02 if city == "Bonn" else 0)
    return f"sunny in {city}"


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("own_memory", [True, False])
async def test_l3_a_wrapped_llm_sends_results_in_the_order_of_their_calls(streaming: bool, own_memory: bool) -> None:
    """A service without ids pairs by order, whichever tool is done first."""
    twice = tuple(ScriptedCall("weather", f'{{"city": "{city}"}}', f"x{city}") for city in ("Bonn", "Rome"))
    script = [*[Scripted(tool_calls=twice)] * 2, Scripted("Sunny."), Scripted("Yes.")]
    async with ModelServer(context_window=8_000, script=script) as server, stock_llm(server) as stock:
        settings = {name: getattr(stock, name) for name in ("model", "api_base", "api_key", "context_window")}
        llm = Nameless(**settings, is_chat_model=True, is_function_calling_model=True, reuse_client=False)
        memory = (
            CtxMemory.from_defaults("a", context_window=8_000)
            if own_memory
            else ChatMemoryBuffer.from_defaults(token_limit=8_000)
        )
        agent = FunctionAgent(
            llm=with_context(llm), tools=[FunctionTool.from_defaults(async_fn=weather)], streaming=streaming
        )
        await agent.run("Bonn and Rome?", memory=memory)
        await agent.run("Sure?", memory=memory)
        bodies = [r.body for r in server.requests]
    for body, rounds in zip(bodies, (0, 1, 2, 2), strict=True):
        texts = [m["content"] for m in body["messages"] if m["role"] == "tool"]
        assert texts == ["sunny in Bonn", "sunny in Rome"] * rounds
        ids = [c["id"] for m in body["messages"] for c in m.get("tool_calls") or ()]
        assert ids == [m["tool_call_id"] for m in body["messages"] if m["role"] == "tool"]
        assert len(set(ids)) == 2 * rounds


@pytest.mark.parametrize("stray", ["zz", "x"], ids=["of no call", "a second one"])
def test_l3_an_agent_goes_on_after_a_result_of_no_call(stray: str) -> None:
    """The next list has that result behind one that the session knows: it was refused, and so was each longer list."""
    said: list[BaseMessage] = [
        HumanMessage("q"),
        calling("x"),
        *(ToolMessage("R", tool_call_id=i) for i in ("x", stray)),
    ]
    with ModelServer(script=lambda _: Scripted("done"), context_window=8_000) as server:
        model = ChatCtx(model="m", base_url=server.base_url, api_key=SecretStr("x"))
        agent: Any = create_agent(model, [], middleware=[ContextMiddleware(context_window=8_000)])
        for turn in range(4):
            answer = agent.invoke({"messages": said}, {"configurable": {"thread_id": "t"}})["messages"][-1]
            said += [AIMessage(answer.content), HumanMessage(f"more {turn}")]
        sent = server.requests[-1].body["messages"]
    assert [m["role"] for m in sent[:3]] == ["user", "assistant", "tool"]
    assert sent[-1]["content"] == "more 2"
