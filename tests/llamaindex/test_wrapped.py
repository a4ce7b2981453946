"""`with_context`: an LLM that is not ours, in a window that the engine keeps."""

from __future__ import annotations

import asyncio
import copy
import threading
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from llama_index.core import PromptTemplate
from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent, ReActAgent
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, ThinkingBlock
from llama_index.core.callbacks import CallbackManager, TokenCountingHandler
from llama_index.core.chat_engine import SimpleChatEngine
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.mock import MockFunctionCallingLLM, MockLLM
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.types import PydanticProgramMode
from llama_index.llms.openai_like import OpenAILike
from openai import BadRequestError, UnprocessableEntityError
from pydantic import BaseModel

from ctxfold import ConfigError, HistoryCompacted, Prices
from ctxfold.compaction.strategy import CompactionInput, Plan, Skip
from ctxfold.errors import EmptyMessagesError, MessageTooLargeError
from ctxfold.testing import ErrorReply, ModelServer, Scripted, ScriptedCall
from llamaindex_ctx import CtxMemory, with_context
from llamaindex_ctx.wrapper import ContextLLM
from tests.llamaindex.served_llm import HELLO, stock_llm
from tests.llamaindex.served_llm import ask as responses
from tests.llamaindex.thinking import ROUNDS, look, look_long, serving, steps, tool

pytestmark = [
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning"),
    pytest.mark.filterwarnings("ignore:is_running called from within a step:DeprecationWarning"),
]
KINDS = ["deepseek", "openai_like"]
HOWS = ["chat", "achat", "stream_chat", "astream_chat"]
WINDOW = 3_000


def talk(body: Any) -> Scripted:
    """Says what it was asked last, at some length; thinks about it."""
    asked = [str(m["content"])[:4] for m in body["messages"] if m["role"] == "user"]
    return Scripted(f"I see {asked[-1]}. " + "It is a long story. " * 20, reasoning="Hm.", chunks=4)


def ask(text: str) -> list[ChatMessage]:
    return [ChatMessage(text)]


async def say(llm: Any, how: str, messages: list[ChatMessage], **options: Any) -> ChatResponse:
    match how:
        case "chat":
            return llm.chat(messages, **options)
        case "achat":
            return await llm.achat(messages, **options)
        case "stream_chat":
            responses = list(llm.stream_chat(messages, **options))
        case _:
            responses = [r async for r in await llm.astream_chat(messages, **options)]
    whole = responses[-1].message.content or ""
    assert "".join(r.delta or "" for r in responses) == whole
    return responses[-1]


# an agent's run


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_run_that_outgrows_the_window(kind: str, streaming: bool) -> None:
    """Without, the service refuses (reasoning, and the window); with one line the run finishes, nothing of it is lost."""
    async with serving(kind, context_window=WINDOW) as (_, llm):
        memory = CtxMemory.from_defaults("s", context_window=WINDOW)
        with pytest.raises(BadRequestError):
            await FunctionAgent(llm=llm, tools=[tool(look_long)], streaming=streaming).run("Find all.")
        agent = FunctionAgent(
            llm=with_context(llm, context_window=WINDOW),
            tools=[tool(look_long)],
            streaming=streaming,
            system_prompt="You look things up.",
        )
        for question in ("Find all.", "Find them again."):
            answer = await agent.run(question, memory=memory, max_iterations=2 * ROUNDS)
            assert str(answer) == "All found."
        told = memory.get_all()
        assert sum(m.role == "tool" for m in told) == 2 * ROUNDS
        assert len(told) == 2 * (1 + 2 * ROUNDS + 1)
        assert all("ctxfold_kind" not in m.additional_kwargs for m in told)


async def test_runs_side_by_side_do_not_see_each_other() -> None:
    """Four agents ask the same words of one LLM at once."""
    async with serving("deepseek", context_window=WINDOW) as (server, llm):
        chat = with_context(llm, context_window=WINDOW)

        async def one() -> str:
            agent = FunctionAgent(llm=chat, tools=[tool()])
            return str(await agent.run("Find all.", max_iterations=2 * ROUNDS))

        assert await asyncio.gather(*(one() for _ in range(4))) == ["All found."] * 4
        assert len(server.requests) == 4 * (ROUNDS + 1)
        longest = max(len(r.body["messages"]) for r in server.requests)
        assert longest == 1 + 2 * ROUNDS


@pytest.mark.parametrize("how", ["achat", "astream_chat"])
async def test_equal_questions_at_once_are_a_turn_each(how: str) -> None:
    """One that joined the turn of the other would lose its reply: the turn ends with the reply of the other call."""
    release = threading.Event()
    script = lambda body: replace(talk(body), held=release)  # noqa: E731
    async with serving("deepseek", script) as (server, llm), asyncio.timeout(60):
        chat = with_context(llm, context_window=WINDOW, session_id="s")
        calls = []
        for number in range(3):
            calls.append(asyncio.create_task(say(chat, how, ask("Same."))))
            while len(server.requests) <= number:
                await asyncio.sleep(0.005)
        release.set()
        for reply in await asyncio.gather(*calls):
            assert str(reply.message.content).startswith("I see Same.")
        assert [m.role for m in chat.context("s").messages()] == ["user", "assistant"] * 3


async def test_a_run_is_gone_on_with_and_not_begun_anew() -> None:
    """Each request of a run begins like the one before, as long as everything fits."""
    async with serving("deepseek", context_window=64_000) as (server, llm):
        agent = FunctionAgent(llm=with_context(llm), tools=[tool(look_long)])
        await agent.run("Find all.", max_iterations=2 * ROUNDS)
        bodies = [r.body["messages"] for r in server.requests]
        assert all(after[: len(before)] == before for before, after in pairwise(bodies))


async def test_an_agent_without_a_prompt_is_not_given_that_of_the_one_before() -> None:
    """An agent that is handed the conversation, and a chat engine over the same memory, go on with the list of another."""
    handoff = ScriptedCall("handoff", '{"to_agent": "clerk", "reason": "money"}')
    script = [Scripted("", tool_calls=(handoff,), reasoning="Hm."), Scripted("Paid."), Scripted("Goodbye.")]
    async with serving("deepseek", script) as (server, llm):
        chat, memory = with_context(llm), CtxMemory.from_defaults("s", context_window=64_000)
        agents: list[Any] = [
            FunctionAgent(name=name, description=name, llm=chat, tools=[tool()], system_prompt=prompt)
            for name, prompt in (("porter", "You greet."), ("clerk", None))
        ]
        assert str(await AgentWorkflow(agents=agents, root_agent="porter").run("Pay me.", memory=memory)) == "Paid."
        assert str(await SimpleChatEngine.from_defaults(llm=chat, memory=memory).achat("Thanks.")) == "Goodbye."
        roles = [[m["role"] for m in r.body["messages"]] for r in server.requests]
    handed = ["user", "assistant", "tool"]
    assert roles == [["system", "user"], handed, [*handed, "assistant", "user"]]


async def test_another_branch_of_a_list_starts_from_its_own_messages() -> None:
    async with serving("deepseek", talk) as (server, llm):
        chat = with_context(llm)
        first = (await say(chat, "chat", ask("Q000"))).message
        for text in ("Q001", "Q002"):
            await say(chat, "chat", [*ask("Q000"), first, *ask(text)])
            said = [str(m["content"])[:4] for m in server.requests[-1].body["messages"] if m["role"] == "user"]
            assert said == ["Q000", text]


async def test_a_react_agent() -> None:
    def react(body: Any) -> Scripted:
        last = str(body["messages"][-1]["content"])
        if "Entry 7" in last:
            return Scripted("Thought: I can answer now.\nAnswer: It is entry 7.", reasoning="Hm.")
        return Scripted('Thought: I need a tool.\nAction: look\nAction Input: {"key": 7}', reasoning="Hm.")

    async with serving("deepseek", react) as (_, llm):
        agent = ReActAgent(llm=with_context(llm), tools=[tool(look)], streaming=False)
        assert str(await agent.run("Find it.")) == "It is entry 7."


# a session of the LLM's own


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("kind", KINDS)
async def test_an_existing_llm_in_a_small_window(kind: str, how: str, store_url: str) -> None:
    """Twelve questions through a window of 1,000 tokens; replies are stored under the ids that were shown."""
    async with serving(kind, talk, context_window=1_000) as (_, llm):
        chat = with_context(llm, session_id="s", store=store_url, context_window=1_000)
        for number in range(12):
            message = (await say(chat, how, ask(f"Q{number:03} please"))).message
            assert (message.content or "").startswith(f"I see Q{number:03}")
            thoughts = [b.content for b in message.blocks if isinstance(b, ThinkingBlock)]
            assert thoughts == ["Hm."]
            kept = chat.context().archive.get(message.additional_kwargs["ctxfold_id"])
            assert (kept.text, kept.reasoning) == (message.content, "Hm.")
        usage = chat.context().usage()
        assert usage.turns == 12
        assert usage.compactions > 0
        await chat.aclose()


@pytest.mark.parametrize("streaming", [True, False])
async def test_one_session_for_memory_and_llm(streaming: bool, store_url: str) -> None:
    """A CtxMemory over the same session shows the run as the LLM stored it: each message once."""
    async with serving("deepseek") as (_, llm):
        chat = with_context(llm, session_id="s", store=store_url)
        memory = CtxMemory.from_defaults("s", store=store_url, context_window=64_000)
        agent = FunctionAgent(llm=chat, tools=[tool()], streaming=streaming, system_prompt="You look things up.")
        for turn in (1, 2):
            assert str(await agent.run("Find all.", memory=memory, max_iterations=2 * ROUNDS)) == "All found."
            told = [m.role for m in memory.get_all()]
            assert told.count("user") == turn
            assert told.count("tool") == turn * ROUNDS
            assert told.count("assistant") == turn * (ROUNDS + 1)
        memory.close()
        await chat.aclose()


async def test_a_stock_memory_may_forget() -> None:
    """What the memory no longer hands over stays in the LLM's session."""
    async with serving("openai_like", None, context_window=8_000) as (_, llm):
        chat = with_context(llm, session_id="s", context_window=8_000)
        buffer = ChatMemoryBuffer.from_defaults(token_limit=120)
        engine = SimpleChatEngine.from_defaults(llm=chat, memory=buffer)
        await engine.achat("My locker is 47-B.")
        for number in range(6):
            await engine.achat(f"Note that box {number} stands in hall {number}, behind the third door on the left.")
        assert all("47-B" not in (m.content or "") for m in buffer.get())
        assert "47-B" in str(await engine.achat("What is my locker?"))


async def test_sessions_and_owners_over_one_llm(store_url: str) -> None:
    async with serving("deepseek", talk) as (server, llm):
        chat = with_context(llm, store=store_url)
        for name, owner in (("a", "ann"), ("a", "bob"), ("b", "ann")):
            chat.at(name, owner=owner).chat(ask(f"Q-{name}{owner[0]}"))
        assert all(len(r.body["messages"]) == 1 for r in server.requests)
        assert chat.context("a", owner="bob").messages()[0].text == "Q-ab"
        with pytest.raises(ConfigError, match="session"):
            chat.context()
        chat.close()


# what stays the LLM's


async def test_it_stands_for_the_llm() -> None:
    async with serving("deepseek", talk) as (_, llm):
        chat = with_context(llm, session_id="s", context_window=9_000)
        assert isinstance(chat, FunctionCallingLLM)
        assert chat.metadata == llm.metadata.model_copy(update={"context_window": 9_000})
        assert chat.complete("Q000").text == llm.complete("Q000").text
        assert chat.context().messages() == ()
        assert copy.deepcopy(chat).chat(ask("Q000")).message.content
        assert len(chat.context().messages()) == 2


async def test_only_the_first_of_two_calls_where_one_was_asked_for() -> None:
    def two(body: Any) -> Scripted:
        if body["messages"][-1]["role"] == "tool":
            return Scripted("Done.", reasoning="Hm.")
        return Scripted(
            tool_calls=(ScriptedCall("look", '{"key": 1}'), ScriptedCall("look", '{"key": 2}')), reasoning="Hm."
        )

    async with serving("deepseek", two) as (_, llm):
        chat = with_context(llm, session_id="s")
        agent = FunctionAgent(llm=chat, tools=[tool()], streaming=False, allow_parallel_tool_calls=False)
        assert str(await agent.run("Find one.")) == "Done."
        assert [m.role for m in chat.context().messages()] == ["user", "assistant", "tool", "assistant"]


@pytest.mark.parametrize("how", HOWS)
async def test_a_failure_is_the_llms_own_and_leaves_the_session_as_it_was(how: str) -> None:
    refused = ErrorReply(422, {"error": {"message": "no", "type": "invalid"}})
    async with serving("openai_like", [refused, Scripted("Hi.")]) as (_, llm):
        chat = with_context(llm, session_id="s")
        with pytest.raises(UnprocessableEntityError):
            await say(chat, how, ask("hello"))
        assert chat.context().messages() == ()
        assert (await say(chat, how, ask("hello"))).message.content == "Hi."


@pytest.mark.parametrize("how", HOWS)
async def test_an_overflow_is_learnt_and_the_call_made_again(how: str) -> None:
    """The window given is far too large: the service says so, and the next request fits."""
    async with serving("openai_like", talk, context_window=1_000) as (_, llm):
        chat = with_context(llm, session_id="s", context_window=100_000)
        for number in range(12):
            answer = await say(chat, how, ask(f"Q{number:03} please"))
            assert (answer.message.content or "").startswith(f"I see Q{number:03}")
        assert chat.context().usage().compactions > 0
        assert chat.context().usage().budget_tokens <= 1_000


async def test_what_can_never_fit_is_said_with_numbers() -> None:
    async with serving("deepseek", talk, context_window=1_000) as (_, llm):
        chat = with_context(llm, context_window=1_000)
        with pytest.raises(MessageTooLargeError, match=r"\d+ tokens.*raise context_window"):
            await say(chat, "achat", ask("far too long " * 2_000))


async def test_summaries_are_written_by_the_llm_and_events_tell() -> None:
    async with serving("deepseek", steps, context_window=1_500) as (server, llm):
        chat = with_context(llm, session_id="s", context_window=1_500)
        seen: list[Any] = []
        chat.context().subscribe(seen.append)
        agent = FunctionAgent(llm=chat, tools=[tool(look_long)])
        assert str(await agent.run("Find all.", max_iterations=2 * ROUNDS)) == "All found."
        assert any(isinstance(e, HistoryCompacted) for e in seen)
        assert any(not r.body.get("tools") for r in server.requests)


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("session_id", [None, "s"])
async def test_arguments_of_a_call_reach_the_llm_and_the_stored_id_comes_back(how: str, session_id: str | None) -> None:
    async with ModelServer(script=lambda _: Scripted("Yes.")) as server, stock_llm(server) as llm:
        chat = with_context(llm, session_id=session_id, context_window=8_000)
        [*_, answer] = await responses(chat, how, HELLO, temperature=0.25, context_window=4_000)
        body = server.requests[-1].body
        assert (body["temperature"], "context_window" in body) == (0.25, False)
        if session_id:
            assert answer.message.additional_kwargs["ctxfold_id"] == chat.context().messages()[-1].id


@pytest.mark.parametrize("how", ["stream_chat", "astream_chat"])
@pytest.mark.parametrize("session_id", [None, "s"])
async def test_a_stream_has_every_response_of_the_llm(how: str, session_id: str | None) -> None:
    """The last one, which tells the usage, adds no text."""
    async with ModelServer(script=[Scripted("One, two, three.", chunks=3)] * 2) as server, stock_llm(server) as llm:
        options = {"stream_options": {"include_usage": True}}
        bare = await responses(llm, how, HELLO, **options)
        wrapped = await responses(with_context(llm, session_id=session_id), how, HELLO, **options)
    assert [r.delta for r in wrapped] == [r.delta for r in bare]
    assert wrapped[-1].raw.usage.completion_tokens == bare[-1].raw.usage.completion_tokens > 0


async def test_a_stream_that_is_left_leaves_nothing_behind() -> None:
    async with serving("deepseek", talk) as (_, llm):
        chat = with_context(llm, session_id="s")
        responses = chat.stream_chat(ask("Q000"))
        next(responses)
        responses.close()
        pieces = await chat.astream_chat(ask("Q001"))
        await anext(pieces)
        await pieces.aclose()
        assert chat.context().messages() == ()
        assert (await say(chat, "achat", ask("Q002"))).message.content


def test_a_strategy_of_ones_own_and_prices() -> None:
    class Newest:
        name = "newest"

        def plan(self, case: CompactionInput) -> Plan | Skip:
            old = case.older_than(4)
            return case.drop(old, "more than four messages") if old else Skip("four messages or fewer")

    chat = with_context(
        MockLLM(max_tokens=40), session_id="s", context_window=400, strategy=Newest(), prices=Prices.relative()
    )
    for n in range(30):
        chat.chat(ask(f"Q{n:03} please, and thank you very much"))
    usage = chat.context().usage()
    assert usage.compactions > 0
    assert usage.cost is not None


# refusals


def test_a_thinking_llm_that_cannot_be_helped() -> None:
    class Thinking(MockFunctionCallingLLM):
        thinking: bool = True

    with pytest.raises(ConfigError, match="CtxLLM"):
        with_context(Thinking(), session_id="s")
    plain = with_context(MockLLM(), session_id="s", context_window=8_000)
    assert "hello" in (plain.chat(ask("hello")).message.content or "")


def test_an_llm_that_calls_no_functions() -> None:
    plain = with_context(MockLLM(), session_id="s", context_window=8_000)
    with pytest.raises(ConfigError, match="does not support function calls"):
        plain.chat_with_tools([tool()], "hello")


def test_a_window_that_nobody_told() -> None:
    bare = OpenAILike(model="m", api_base="http://127.0.0.1:9/v1", api_key="x", is_chat_model=True)
    with pytest.raises(ConfigError, match=r"not told its context window.*3900"):
        with_context(bare)
    assert with_context(bare, context_window=8_000).metadata.context_window == 8_000
    with pytest.raises(ConfigError, match="hard_ratios"):
        with_context(bare, context_window=8_000, hard_ratios=0.9)


def test_an_llm_that_keeps_its_context_already() -> None:
    once = with_context(MockLLM(), context_window=8_000)
    with pytest.raises(ConfigError, match="already"):
        with_context(once)


def test_an_empty_list_asks_nothing() -> None:
    with pytest.raises(EmptyMessagesError, match="at least one"):
        with_context(MockLLM(), context_window=8_000).chat([])


def test_one_out_of_a_dict_says_how_to_make_it() -> None:
    kept = with_context(MockLLM(), context_window=8_000)
    again = ContextLLM(inner=kept.inner, window=kept.window)
    with pytest.raises(ConfigError, match="with_context"):
        again.chat(ask("hello"))


@pytest.mark.parametrize("session_id", [None, "s"])
async def test_a_token_counter_of_the_settings_counts_what_is_sent(session_id: str | None) -> None:
    handler = TokenCountingHandler(tokenizer=str.split)
    async with serving("openai_like", talk) as (_, llm):
        wrapped = with_context(llm, session_id=session_id)
        wrapped.callback_manager = CallbackManager([handler])  # as `Settings.llm` and response synthesizers do
        wrapped.chat(ask("The locker is 47-B."))
        await wrapped.achat(ask("My bike is green."))
        list(wrapped.stream_chat(ask("What is my locker?")))
    assert len(handler.llm_token_counts) == 3
    assert all(event.total_token_count for event in handler.llm_token_counts)


async def test_prompts_and_the_way_to_structured_output_are_those_of_the_llm() -> None:
    def reply(body: Any) -> Scripted:
        return Scripted('{"name": "Blue"}' if "schema" in str(body["messages"]) else "Noted.")

    class Album(BaseModel):
        """An album."""

        name: str

    async with serving("openai_like", reply) as (server, llm):
        llm.system_prompt = "Be brief."
        llm.pydantic_program_mode = PydanticProgramMode.LLM
        wrapped = with_context(llm)
        wrapped.predict(PromptTemplate("What of {x}?"), x="cats")
        asked = server.requests[-1].body["messages"]
        album = wrapped.structured_predict(Album, PromptTemplate("An album about {x}, please."), x="cats")
        assert "tools" not in server.requests[-1].body
    assert [(m["role"], m["content"]) for m in asked] == [("system", "Be brief."), ("user", "What of cats?")]
    assert album == Album(name="Blue")
