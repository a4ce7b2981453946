"""A `CtxMemory` and an LLM of `with_context` over one session: several runs at once, and questions that agents rewrite."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent
from llama_index.core.agent.workflow.multi_agent_workflow import DEFAULT_HANDOFF_OUTPUT_PROMPT
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.chat_engine import SimpleChatEngine
from llama_index.core.tools import FunctionTool
from llama_index.core.workflow import StartEvent, StopEvent, Workflow, step

from ctxfold import BackendError
from ctxfold.testing import ErrorReply, ModelServer, Scripted, ScriptedCall
from llamaindex_ctx import CtxLLM, CtxMemory, with_context
from tests.llamaindex.scripted_agents import legal
from tests.llamaindex.served_llm import ADD, WAYS, ask
from tests.llamaindex.talk import bot, calling, contents, result, user, words
from tests.llamaindex.twins import Driver

pytestmark = [
    # workflows ask every attribute of an agent, pydantic's deprecated ones too
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning:inspect"),
    pytest.mark.filterwarnings("ignore:is_running called from within a step:DeprecationWarning"),
]


def echo(body: Any) -> Scripted:
    return Scripted(f"Answer to {body['messages'][-1]['content']}")


@asynccontextmanager
async def one_session(
    url: str, script: Any = echo, *, window: int = 8_000
) -> AsyncIterator[tuple[Any, CtxMemory, ModelServer]]:
    async with ModelServer(script=script, context_window=window) as server:
        inner = CtxLLM(model="m", base_url=server.base_url, api_key="x", context_window=window, max_tokens=200)
        llm = with_context(inner, session_id="s", store=url)
        with CtxMemory.from_defaults("s", store=url, context_window=window) as memory:
            yield llm, memory, server
        await llm.aclose()
        await inner.aclose()


@pytest.mark.parametrize("way", WAYS)
async def test_a_question_that_others_overtook_is_asked_behind_theirs(store_url: str, way: str) -> None:
    """Another run puts its question between this run's reading of the memory and its request: both stay."""
    async with one_session(store_url) as (llm, memory, server):
        memory.put("Ann?")
        window = memory.get()
        memory.put("Bob?")
        (*_, response) = await ask(llm, way, window)
        assert response.message.content == "Answer to Ann?"
        assert [m["content"] for m in server.requests[-1].body["messages"]] == ["Bob?", "Ann?"]
        assert contents(memory.get_all()) == ["Bob?", "Ann?", "Answer to Ann?"]
        memory.context.undo()
        assert contents(memory.get_all()) == ["Ann?", "Bob?", "Answer to Ann?"]


async def test_requests_of_a_workflow_that_ask_the_same_both_stay(store_url: str) -> None:
    """A run that goes on after a cancellation asks twice, and may end with the first answer: a memory must not lose it."""
    held = threading.Event()
    script = [Scripted("First."), Scripted("Second.", held=held), Scripted("Bye.")]
    async with one_session(store_url, script) as (llm, memory, server):

        class Twice(Workflow):
            @step
            async def ask(self, ev: StartEvent) -> StopEvent:
                memory.put("Ann?")
                window = memory.get()
                first = await llm.achat(window)
                second = asyncio.create_task(llm.achat(window))
                while len(server.requests) < 2:
                    await asyncio.sleep(0.01)
                assert contents(memory.get_all()) == ["Ann?", "First."]  # hidden from that request alone
                held.set()
                return StopEvent(result=[first.message.content, (await second).message.content])

        assert await Twice().run() == ["First.", "Second."]
        assert [[m["content"] for m in r.body["messages"]] for r in server.requests] == [["Ann?"]] * 2
        assert contents(memory.get_all()) == ["Ann?", "First.", "Second."]
        memory.put("Thanks.")
        await llm.achat(memory.get())
        assert contents(memory.get_all())[-2:] == ["Thanks.", "Bye."]


async def test_a_request_with_hidden_messages_repeats_no_more_than_it_holds(store_url: str) -> None:
    async with one_session(store_url) as (llm, memory, server):

        class Overtaken(Workflow):
            @step
            async def ask(self, ev: StartEvent) -> StopEvent:
                memory.put("Ann?")
                window = memory.get()
                await llm.achat(window)
                memory.put("Bob?")
                await llm.achat(memory.get())
                before = llm.context().usage().prefix
                await llm.achat(window)
                return StopEvent(result=(before, llm.context().usage().prefix))

        before, after = await Overtaken().run()
        assert [m["content"] for m in server.requests[-1].body["messages"]] == ["Ann?"]
        assert after.reused_tokens - before.reused_tokens <= after.sent_tokens - before.sent_tokens
        assert contents(memory.get_all()) == ["Ann?", "Answer to Ann?", "Bob?", "Answer to Bob?", "Answer to Ann?"]


async def test_results_that_are_asked_about_again_give_up_their_answer(store_url: str) -> None:
    """Who never heard of an answer asks once more, as a workflow does whose run was cancelled when the answer was stored."""
    script = [Scripted(tool_calls=(ScriptedCall("add", '{"a": 1, "b": 1}'),)), Scripted("One."), Scripted("Two.")]
    async with one_session(store_url, script) as (llm, memory, server):
        listed = [user("Add.")]
        listed.append((await llm.achat_with_tools([ADD], chat_history=listed)).message)
        listed.append(result(listed[-1].additional_kwargs["tool_calls"][0]["id"], "2"))
        for answer in ("One.", "Two."):
            assert (await llm.achat(listed)).message.content == answer
            assert [m["role"] for m in server.requests[-1].body["messages"]] == ["user", "assistant", "tool"]
        assert contents(memory.get_all()) == ["Add.", "", "2", "Two."]


async def test_results_are_asked_about_again_without_what_was_said_since(store_url: str) -> None:
    """A service takes no request that ends with an answer, and a later question keeps its answer."""
    script = [Scripted(tool_calls=(ScriptedCall("add", '{"a": 1, "b": 1}'),)), *map(Scripted, ("One.", "Hi.", "Two."))]
    async with one_session(store_url, script) as (llm, memory, server):
        listed = [user("Add.")]
        listed.append((await llm.achat_with_tools([ADD], chat_history=listed)).message)
        listed.append(result(listed[-1].additional_kwargs["tool_calls"][0]["id"], "2"))
        answer = (await llm.achat(listed)).message
        await llm.achat([*listed, answer, user("Hello.")])
        assert (await llm.achat(listed)).message.content == "Two."
        assert [m["role"] for m in server.requests[-1].body["messages"]] == ["user", "assistant", "tool"]
        assert contents(memory.get_all()) == ["Add.", "", "2", "One.", "Hello.", "Hi.", "Two."]


async def test_a_window_that_is_asked_again_gives_up_its_own_answer_only(store_url: str) -> None:
    async with one_session(store_url) as (llm, memory, _):
        memory.put("Ann?")
        window = memory.get()
        await llm.achat(window)
        memory.put("Bob?")
        await llm.achat(memory.get())
        await llm.achat(window)
        assert contents(memory.get_all()) == ["Bob?", "Answer to Bob?", "Ann?", "Answer to Ann?"]


async def test_a_caller_goes_back_behind_later_questions(store_url: str) -> None:
    """Who cuts a memory's list after a question asks that one anew: what followed it leaves the conversation."""
    async with one_session(store_url) as (llm, memory, _):
        for question in ("Ann?", "Bob?"):
            memory.put(question)
            await llm.achat(memory.get())
        await llm.achat(memory.get_all()[:1])
        assert contents(memory.get_all()) == ["Ann?", "Answer to Ann?"]


async def test_an_overtaken_question_stays_when_its_request_fails(store_url: str) -> None:
    async with one_session(store_url, [ErrorReply(400, "no"), Scripted("Yes.")]) as (llm, memory, _):
        memory.put("Ann?")
        window = memory.get()
        memory.put("Bob?")
        with pytest.raises(BackendError):
            await llm.achat(window)
        assert sorted(map(str, contents(memory.get_all()))) == ["Ann?", "Bob?"]
        await llm.achat(window)
        assert contents(memory.get_all()) == ["Bob?", "Ann?", "Yes."]


async def test_an_overtaken_question_keeps_its_answer_when_the_second_one_fails(store_url: str) -> None:
    script = [Scripted("Ann's."), Scripted("Bob's."), ErrorReply(400, "no")]
    async with one_session(store_url, script) as (llm, memory, _):
        memory.put("Ann?")
        window = memory.get()
        await llm.achat(window)
        memory.put("Bob?")
        await llm.achat(memory.get())
        with pytest.raises(BackendError):
            await llm.achat(window)
        assert contents(memory.get_all()) == ["Ann?", "Ann's.", "Bob?", "Bob's."]


async def test_a_question_that_comes_while_another_is_asked_leaves_it_its_answer(store_url: str) -> None:
    async with one_session(store_url) as (llm, memory, server):
        memory.put("Bob?")
        reply = await llm.astream_chat(memory.get())
        await anext(reply)
        memory.put("Ann?")
        window = memory.get()
        async for _ in reply:
            pass
        assert contents(memory.get_all()) == ["Bob?", "Answer to Bob?", "Ann?"]
        await llm.achat(window)
        assert [m["content"] for m in server.requests[-1].body["messages"]] == ["Bob?", "Answer to Bob?", "Ann?"]
        assert contents(memory.get_all()) == ["Bob?", "Answer to Bob?", "Ann?", "Answer to Ann?"]


async def test_a_question_that_comes_in_a_tool_round_leaves_it_its_place(store_url: str) -> None:
    script = [Scripted(tool_calls=(ScriptedCall("add", '{"a": 1, "b": 1}'),)), *map(Scripted, ("Two.", "Ann's."))]
    async with one_session(store_url, script) as (llm, memory, _):
        memory.put("Bob?")
        asked = memory.get()
        call = (await llm.achat_with_tools([ADD], chat_history=asked)).message
        memory.put("Ann?")
        window = memory.get()
        await llm.achat([*asked, call, result(call.additional_kwargs["tool_calls"][0]["id"], "2")])
        await llm.achat(window)
        assert contents(memory.get_all()) == ["Bob?", "", "2", "Two.", "Ann?", "Ann's."]


async def test_agents_at_once_keep_all_questions(store_url: str) -> None:
    def script(body: Any) -> Scripted:
        if body["messages"][-1]["role"] == "tool":
            return Scripted("Done.")
        return Scripted(tool_calls=(ScriptedCall("add", '{"a": 1, "b": 1}'),))

    async with one_session(store_url, script) as (llm, memory, _):
        questions = [f"Question {number}?" for number in range(4)]
        runs = (FunctionAgent(llm=llm, tools=[ADD]).run(question, memory=memory) for question in questions)
        assert [str(answer) for answer in await asyncio.gather(*runs)] == ["Done."] * 4
        told = memory.get_all()
        assert sorted(str(m.content) for m in told if m.role == "user") == questions
        assert [sum(m.role == role for m in told) for role in ("assistant", "tool")] == [8, 4]


@pytest.mark.parametrize("single", [True, False])
async def test_a_state_that_an_agent_writes_into_its_question_is_sent_and_not_stored(
    store_url: str, single: bool
) -> None:
    script = [Scripted(tool_calls=(ScriptedCall("add", '{"a": 1, "b": 1}'),)), Scripted("Two."), Scripted("Again.")]
    async with one_session(store_url, script) as (llm, memory, server):
        agent = FunctionAgent(llm=llm, tools=[ADD], initial_state={"mood": "good"} if single else {})
        flow: Any = agent if single else AgentWorkflow(agents=[agent], initial_state={"mood": "good"})
        for question in ("One and one?", "And now?"):
            await flow.run(question, memory=memory)
        assert contents(memory.get_all()) == ["One and one?", "", "2", "Two.", "And now?", "Again."]
        asked = [[m["content"] for m in r.body["messages"] if m["role"] == "user"] for r in server.requests]
        assert [["good" in text for text in texts] for texts in asked] == [[True], [False], [False, True]]


async def test_what_an_agent_writes_into_its_question_takes_room(store_url: str) -> None:
    async with one_session(store_url, lambda _: Scripted("Yes."), window=2_000) as (llm, memory, server):
        for number in range(12):
            memory.put_messages([f"Note {number}: {words('so', 80)}", "Well?"])
            await llm.achat(memory.get())
        memory.put("And now?")
        window = memory.get()
        window[-1] = window[-1].model_copy(update={"blocks": user(f"State: {words('good', 900)}. And now?").blocks})
        await llm.achat(window)
        asked = [r for r in server.requests if r.body["messages"][-1]["content"].startswith("State: good")]
        assert len(asked) == 1, "the first one fits"
        assert memory.get_all()[-2].content == "And now?"


async def test_an_agents_prompt_takes_the_place_of_the_one_before(store_url: str) -> None:
    """The memory shows the session's prompts, which come back with the agent's own: prompts must not pile up."""
    async with one_session(store_url) as (llm, memory, server):
        memory.put(ChatMessage(role="system", content="Ann is a customer."))
        for day in ("Monday", "Tuesday", "Wednesday"):
            agent = FunctionAgent(llm=llm, tools=[ADD], system_prompt=f"It is {day}.")
            await agent.run("What day is it?", memory=memory)
            prompts = [m["content"] for m in server.requests[-1].body["messages"] if m["role"] == "system"]
            assert sorted(prompts) == ["Ann is a customer.", f"It is {day}."]
        assert [m.content for m in memory.get_all() if m.role == "system"].count("Ann is a customer.") == 1
        await llm.achat(memory.get_all()[:-1])
        prompts = [m["content"] for m in server.requests[-1].body["messages"] if m["role"] == "system"]
        assert sorted(prompts) == ["Ann is a customer.", "It is Wednesday."], "without one of its own the last stays"


async def test_agents_of_a_workflow_are_not_given_each_others_prompts(store_url: str) -> None:
    script = [
        Scripted(tool_calls=(ScriptedCall("handoff", '{"to_agent": "clerk", "reason": "money"}'),)),
        Scripted("Paid."),
        Scripted("Welcome."),
    ]
    async with one_session(store_url, script) as (llm, memory, server):
        roles = {"porter": "You greet.", "clerk": "You pay."}
        agents: list[Any] = [
            FunctionAgent(name=name, description=name, llm=llm, tools=[ADD], system_prompt=prompt)
            for name, prompt in roles.items()
        ]
        flow = AgentWorkflow(agents=agents, root_agent="porter")
        for question in ("Pay me.", "Hello."):
            await flow.run(question, memory=memory)
        prompts = [[m["content"] for m in r.body["messages"] if m["role"] == "system"] for r in server.requests]
        assert prompts == [["You greet."], ["You pay."], ["You greet."]]


@pytest.mark.parametrize("streaming", [True, False])
async def test_an_agent_that_is_handed_a_question_is_sent_the_handoff(store_url: str, streaming: bool) -> None:
    """The LLM has the call in a turn of its own; the memory puts the result there, of which nobody has told its engine yet."""
    handoff = ScriptedCall("handoff", '{"to_agent": "clerk", "reason": "money"}', "h1")
    script = [
        Scripted("To the clerk.", tool_calls=(handoff,)),
        Scripted(tool_calls=(ScriptedCall("add"),)),
        Scripted("Paid."),
    ]
    async with one_session(store_url, script) as (llm, memory, server):
        agents: list[Any] = [
            FunctionAgent(name=name, description=name, llm=llm, tools=[ADD], streaming=streaming)
            for name in ("porter", "clerk")
        ]
        assert str(await AgentWorkflow(agents=agents, root_agent="porter").run("Pay me.", memory=memory)) == "Paid."
        sent = [(m["role"], m.get("content") or "") for m in server.requests[1].body["messages"]]
        moved = DEFAULT_HANDOFF_OUTPUT_PROMPT.format(to_agent="clerk", reason="money")
        assert sent == [("user", "Pay me."), ("assistant", "To the clerk."), ("tool", moved)]
        assert contents(memory.get_all())[:3] == ["Pay me.", "To the clerk.", moved]
        assert [m.role.value for m in memory.get_all()][3:] == ["assistant", "tool", "assistant"]
        assert legal(memory)


async def test_an_order_to_stop_is_not_stored(store_url: str) -> None:
    """It would be obeyed in every later run."""

    def script(body: Any) -> Scripted:
        if "maximum number of iterations" in str(body["messages"][-1]["content"]):
            return Scripted("So far two.")
        return Scripted(tool_calls=(ScriptedCall("add", '{"a": 1, "b": 1}'),))

    async with one_session(store_url, script) as (llm, memory, server):
        agent = FunctionAgent(llm=llm, tools=[ADD], early_stopping_method="generate")
        for _ in range(2):
            assert str(await agent.run("Count.", memory=memory, max_iterations=2)) == "So far two."
        assert contents(memory.get_all()) == ["Count.", "", "2", "So far two."] * 2
        assert str(server.requests[-1].body).count("maximum number of iterations") == 1


async def test_a_known_list_is_not_stored_anew_because_the_session_has_a_prompt(store_url: str) -> None:
    """A web server hands over the whole chat with each request; the prompt is the agent's and not in that list."""
    told: list[ChatMessage] = []
    async with one_session(store_url, window=1_500) as (llm, memory, _):
        agent = FunctionAgent(llm=llm, tools=[ADD], system_prompt="You know where lorries park.")
        for number in range(20):
            question = user(f"Question {number}: {words('lorry', 40)}?")
            answer = await agent.run(question, chat_history=list(told), memory=memory)
            told += [question, ChatMessage(role="assistant", content=str(answer))]
        assert memory.context.usage().turns == 20
        memory.set(told)
        assert contents(memory.get_all()) == contents(told), "the prompt is none of these messages"


@pytest.mark.parametrize("late", [True, False])
async def test_a_call_that_the_session_has_a_note_for_does_not_hinder_a_run(store_url: str, late: bool) -> None:
    """The LLM stored a note for a call whose run was cancelled; the next run hands the call to the memory again."""
    script = [Scripted(tool_calls=(ScriptedCall("add", '{"a": 1, "b": 1}'),)), Scripted("No sum."), Scripted("Bye.")]
    async with one_session(store_url, script) as (llm, memory, _):
        memory.put("Add.")
        call = (await llm.achat_with_tools([ADD], chat_history=memory.get())).message
        answer = (await llm.achat([*memory.get(), call])).message
        ran = [call, *([result(call.additional_kwargs["tool_calls"][0]["id"], "2")] if late else []), answer]
        for _ in range(2):
            await memory.aput_messages(ran)
        note = "(no result: the run ended before this call returned)"
        assert contents(memory.get_all()) == ["Add.", "", note, "No sum."]
        memory.put("Thanks.")
        await llm.achat(memory.get())
        assert contents(memory.get_all())[-2:] == ["Thanks.", "Bye."]


async def test_a_result_that_comes_after_its_note_was_answered_is_passed_over(store_url: str) -> None:
    script = [Scripted(tool_calls=(ScriptedCall("add", '{"a": 1, "b": 1}'),)), Scripted("No sum."), Scripted("Well.")]
    async with one_session(store_url, script) as (llm, memory, server):
        memory.put("Add.")
        call = (await llm.achat_with_tools([ADD], chat_history=memory.get())).message
        question = memory.get()
        await llm.achat([*question, call])
        late = result(call.additional_kwargs["tool_calls"][0]["id"], "2")
        assert (await llm.achat([*question, call, late])).message.content == "Well."
        assert [m["role"] for m in server.requests[-1].body["messages"]] == ["user", "assistant", "tool", "assistant"]


async def test_a_late_result_is_passed_over_in_a_run_that_ends_with_calls(store_url: str) -> None:
    """A run that goes on after a cancellation asks twice at once: it ends with the first answer, and what it leaves may end with
    the calls of the other one."""
    script = [Scripted(tool_calls=(ScriptedCall("add", '{"a": 1, "b": 1}'),)), Scripted("No sum.")]
    async with one_session(store_url, script) as (llm, memory, _):
        memory.put("Add.")
        call = (await llm.achat_with_tools([ADD], chat_history=memory.get())).message
        answer = (await llm.achat([*memory.get(), call])).message
        late = result(call.additional_kwargs["tool_calls"][0]["id"], "2")
        await memory.aput_messages([call, late, answer, calling("other")])
        note = "(no result: the run ended before this call returned)"
        assert contents(memory.get_all())[:4] == ["Add.", "", note, "No sum."]
        memory.put("Thanks.")
        assert contents(memory.get())[-1] == "Thanks."
        assert legal(memory)


async def test_rounds_that_come_interleaved(call: Driver) -> None:
    """Two requests at once of a run that goes on: each result stands behind the reply that called."""
    with CtxMemory.from_defaults("s") as memory:
        ran = [user("Look."), calling("a", "b"), calling("c"), result("c"), result("a"), result("b"), bot("Done.")]
        await call(memory, "put_messages", ran)
        assert contents(memory.get_all()) == ["Look.", None, "found a", "found b", None, "found c", "Done."]


async def test_a_result_that_comes_twice_is_kept_once(call: Driver) -> None:
    """A workflow that goes on after a cancellation hands in what it has once more; another result of the call is told as text."""
    with CtxMemory.from_defaults("s") as memory:
        ran = [user("Look."), calling("a"), result("a"), result("a"), result("a", "found more"), bot("Done.")]
        await call(memory, "put_messages", ran)
        said = contents(memory.get_all())
        assert said == ["Look.", None, "found a", "Result of a tool call:\nfound more", "Done."]


@pytest.mark.parametrize("session", [None, "s"])
async def test_a_list_that_ends_with_the_answer_is_asked(session: str | None) -> None:
    async with ModelServer(script=[Scripted("One."), Scripted("Two."), Scripted("Three.")]) as server:
        inner = CtxLLM(model="m", base_url=server.base_url, api_key="x", context_window=8_000)
        with with_context(inner, session_id=session) as llm:
            listed = [user("Count.")]
            for number in ("One.", "Two.", "Three."):
                listed.append((await llm.achat(listed)).message)
                assert listed[-1].content == number
        assert [m["content"] for m in server.requests[-1].body["messages"]] == ["Count.", "One.", "Two."]
        await inner.aclose()


async def test_references_are_those_of_the_memory() -> None:
    """A run numbers its messages too, and nobody can read them back: in one request a number would name two messages."""

    def script(_: Any) -> Scripted:
        number = len(server.requests)
        return Scripted("Green." if number % 7 == 0 else "", tool_calls=(ScriptedCall("find"),) if number % 7 else ())

    def find() -> str:
        """Looks for the keys."""
        at = len(server.requests)
        return "\n".join(f"Key {at}-{n} is in shed {n * at}." for n in range(200))

    async with ModelServer(script=script, context_window=4_000) as server:
        inner = CtxLLM(model="m", base_url=server.base_url, api_key="x", context_window=4_000, max_tokens=400)
        with CtxMemory.from_defaults(context_window=4_000) as memory, with_context(inner) as llm:
            for number in range(4):
                agent = FunctionAgent(llm=llm, tools=[FunctionTool.from_defaults(find)])
                await agent.run(f"In which shed is key {number + 1}-5?", memory=memory)
            first, *later = [[m for m in r.body["messages"] if m["content"]] for r in server.requests]
            asked = [messages for messages in (first, *later[:6]) if "#" in str(messages)]
            assert asked == [], "the memory has nothing before the first run is over"
            results = [m["content"] for messages in later for m in messages if m["role"] == "tool"]
            noted = [text for text in results if "archived as #" in text]
            assert noted
            for text in noted:
                reference = text.partition("archived as ")[2].partition(";")[0]
                assert memory.context.archive.get(reference).text.startswith(text[:8])
        await inner.aclose()


@pytest.mark.parametrize("way", ["chat", "achat", "stream_chat", "astream_chat"])
async def test_passages_of_a_memory_give_way_to_tools_and_rounds(way: str) -> None:
    """The memory fills its window with passages, and knows neither the tools of the agent nor the rounds of its run."""

    def find(place: str) -> str:
        return place

    about = "Looks for a thing in one of the rooms of the old house by the river. " * 4
    tools = [FunctionTool.from_defaults(find, name=f"find_{n}", description=about) for n in range(8)]
    schemas = [tool.metadata.to_openai_tool() for tool in tools]
    async with ModelServer(script=lambda _: Scripted("Green."), context_window=2_000) as server:
        inner = CtxLLM(model="m", base_url=server.base_url, api_key="x", context_window=2_000)
        memory = CtxMemory.from_defaults(context_window=2_000)
        for n in range(60):
            told = f"The locker {n} of the old house by the river is green and has the code {n * 1117}, as Mr Ferreira said. "
            memory.put_messages([user(told * 2), bot("Noted.")])
        memory.context.compact(force=True)
        memory.put("Which locker of the old house is green, and which code did Mr Ferreira say it has?")
        window = memory.get()
        assert len(window[-2].content or "") > 2_500  # the passages
        llm = with_context(inner)
        await ask(llm, way, window, tools=schemas)
        sent = server.requests[-1].body["messages"]
        assert sent[-1]["content"].startswith("Passages recalled")
        assert sent[-1]["content"].endswith("[the rest is left out: the window has no room for it]")
        rounds = [calling("a"), result("a", "The green one is locker 17. " * 8)]
        await ask(llm, way, [*window, *rounds], tools=schemas)
        assert any(m["role"] == "tool" and "locker 17" in m["content"] for m in server.requests[-1].body["messages"])
        memory.close()
        await llm.aclose()
        await inner.aclose()


@pytest.mark.parametrize("way", WAYS)
async def test_a_run_goes_on_from_the_summary_of_a_memory(way: str) -> None:
    """A smaller window than the memory's: the summary is summarised once more, as a summary, not as what the user said."""
    async with ModelServer(script=lambda _: Scripted("Green."), context_window=2_400) as server:
        inner = CtxLLM(model="m", base_url=server.base_url, api_key="x", context_window=2_400)
        memory = CtxMemory.from_defaults(token_limit=3_000)
        llm = with_context(inner, recall_ratio=0.0)
        compacted_again: list[str] = []
        transcripts: list[str] = []
        for n in range(40):
            memory.put(f"Locker {n} has the code {n * 1117}. " + words("Please", 60))
            window = memory.get()
            server.clear_requests()
            (*_, response) = await ask(llm, way, window)
            memory.put(response.message)
            sent = [str(message["content"]) for request in server.requests for message in request.body["messages"]]
            transcripts += [text for text in sent if "<transcript>" in text]
            begins = {str(request.body["messages"][0]["content"]) for request in server.requests} - {window[0].content}
            compacted_again += [text for text in begins if text.startswith("[Summary of prior conversation]")]
        assert compacted_again
        assert transcripts
        assert not [t for t in transcripts if '<message role="user">\n[Summary of prior conversation]' in t]
        lines = [line for text in compacted_again for line in text.splitlines() if line.startswith("- ")]
        assert lines
        assert all(line.startswith("- user: Locker ") for line in lines)
        memory.close()
        await llm.aclose()
        await inner.aclose()


@pytest.mark.parametrize("session_id", [None, "s"])
def test_a_server_that_wants_turns_is_asked_beside_a_memory(session_id: str | None) -> None:
    """The memory hands out summary, open question and question as they are, all of the user."""

    def script(body: Any) -> Any:
        failed = body["messages"][-1]["content"].endswith("Fail.")
        return ErrorReply(400, {"error": {"message": "failed"}}) if failed else Scripted("Noted.")

    with ModelServer(script=script, context_window=3_000, strict="alternating") as server:
        inner = CtxLLM(model="m", base_url=server.base_url, api_key="x", context_window=3_000)
        memory = CtxMemory.from_defaults("m", context_window=3_000)
        llm = with_context(inner, session_id=session_id, alternating_roles=True)
        engine = SimpleChatEngine.from_defaults(llm=llm, memory=memory, system_prompt="Be brief.")
        for number in range(30):
            asked = f"Locker {number} has the code {number * 37}. " + words("Please", 100)
            if number == 7:
                with pytest.raises(BackendError, match="failed"):
                    engine.chat(f"{asked} Fail.")
            else:
                assert engine.chat(asked).response == "Noted."
        assert memory.context.usage().compactions > 0
        assert [m.role.value for m in memory.get_all()].count("user") == 30
        memory.close()
        llm.close()
        inner.close()
