"""Agents and workflows beyond those of test_engines, run for real over a CtxMemory."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llama_index.core.agent.workflow import (
    AgentInput,
    AgentStream,
    AgentWorkflow,
    CodeActAgent,
    FunctionAgent,
    ReActAgent,
)
from llama_index.core.base.llms.types import ChatMessage, ThinkingBlock, ToolCallBlock
from llama_index.core.chat_engine import SimpleChatEngine
from llama_index.core.tools import FunctionTool
from llama_index.core.workflow import Context, HumanResponseEvent, InputRequiredEvent, JsonSerializer
from llama_index.core.workflow.errors import WorkflowRuntimeError
from pydantic import BaseModel
from workflows.context.serializers import PickleSerializer

from ctxfold.adapters.tool_rounds import NO_RESULT
from ctxfold.testing import ModelServer
from llamaindex_ctx import CtxMemory
from tests.llamaindex.loopback_llm import Made
from tests.llamaindex.scripted_agents import Script, add, legal, roles, selecting
from tests.llamaindex.talk import FACT, QUESTION, bot, user

pytestmark = [
    # agents read all attributes of their own class, deprecated ones of pydantic too
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning"),
    pytest.mark.filterwarnings("ignore:is_running called from within a step:DeprecationWarning"),
]


async def test_an_agent_over_llamaindex_own_scripted_model(memory: CtxMemory) -> None:
    """Its calls stand beside the message and are all called the same."""
    script = [selecting(("one", "add", {"a": n, "b": 1}), text="adding") for n in range(3)]
    agent = FunctionAgent(tools=[add], llm=Script(*script, bot("Three sums.")))
    assert str(await agent.run("Add a lot.", memory=memory)) == "Three sums."
    assert roles(memory.get()) == ["user", *["assistant", "tool"] * 3, "assistant"]
    assert [m.content for m in memory.get() if m.role == "tool"] == ["1", "2", "3"]
    assert legal(memory)


async def test_a_code_agent(memory: CtxMemory) -> None:
    def execute(code: str) -> str:
        return f"ran {code}"

    llm = Script(bot("Let me see. <execute>6 * 7</execute>"), bot("It is 42."))
    agent = CodeActAgent(code_execute_fn=execute, llm=llm)
    assert str(await agent.run("What is six times seven?", memory=memory)) == "It is 42."
    assert roles(memory.get()) == ["user", "assistant", "user", "assistant"]
    assert "ran 6 * 7" in str(memory.get()[2].content)


async def test_a_code_agent_hands_off(memory: CtxMemory) -> None:
    """Its hand-off answers a call that stands in no message."""
    handoff = selecting(("h1", "handoff", {"to_agent": "adder", "reason": "sums"}), text="not mine")
    coder = CodeActAgent(
        code_execute_fn=lambda code: code,
        name="coder",
        description="d",
        llm=Script(handoff),
        can_handoff_to=["adder"],
    )
    adder = FunctionAgent(name="adder", description="adds", tools=[add], llm=Script(bot("It is 42.")))
    flow = AgentWorkflow(agents=[coder, adder], root_agent="coder")
    assert str(await flow.run(user_msg="40 + 2?", memory=memory)) == "It is 42."
    assert legal(memory)
    assert any("adder is now handling the request" in str(m.content) for m in memory.get())
    assert roles(memory.get())[-1] == "assistant"


async def test_a_react_agent_tries_again_after_a_bad_answer(memory: CtxMemory) -> None:
    llm = Script(
        bot('Thought: I need to add.\nAction: add\n{"a": 5 "b": 3}\n'),
        bot('Thought: I need to add.\nAction: add\nAction Input: {"a": 5, "b": 3}\n'),
        bot("Thought: I know.\nAnswer: It is 8."),
    )
    agent = ReActAgent(tools=[add], llm=llm, system_prompt="Be brief.")
    assert "8" in str(await agent.run("5 + 3?", memory=memory))
    assert memory.get()[0].content == "5 + 3?"
    assert roles(memory.get())[-1] == "assistant"


async def test_the_state_prompt_is_put_in_once_and_not_stored(memory: CtxMemory) -> None:
    async def count(ctx: Context) -> str:
        """Count."""
        state = await ctx.store.get("state")
        await ctx.store.set("state", {"counter": state["counter"] + 1})
        return "counted"

    count.__annotations__["ctx"] = Context
    llm = Script(selecting(("one", "count", {})), bot("done"))
    flow = AgentWorkflow(
        agents=[FunctionAgent(name="a", description="d", tools=[count], llm=llm)],
        initial_state={"counter": 0},
        state_prompt="State: {state}. Message: {msg}",
    )
    for question in ("first", "second"):
        handler = flow.run(user_msg=question, memory=memory)
        async for event in handler.stream_events():
            if isinstance(event, AgentInput):
                assert all(str(m.content).count("State:") <= 1 for m in event.input)
        await handler
    assert [m.content for m in memory.get_all() if m.role == "user"] == ["first", "second"]
    assert any("State: {'counter': 0}" in str(m.content) for m in llm.sent[0])
    assert [m.content for m in memory.get_all() if m.role == "tool"] == ["counted"]


class Sum(BaseModel):
    total: int


async def test_structured_output_sees_the_whole_turn(memory: CtxMemory) -> None:
    seen: list[list[ChatMessage]] = []

    def shaped(messages: list[ChatMessage]) -> dict[str, Any]:
        seen.append(messages)
        return Sum(total=42).model_dump()

    agent = FunctionAgent(
        tools=[add], llm=Script(selecting(("one", "add", {"a": 40, "b": 2})), bot("42.")), structured_output_fn=shaped
    )
    response = await agent.run("40 + 2?", memory=memory)
    assert response.get_pydantic_model(Sum) == Sum(total=42)
    assert roles(seen[0]) == ["user", "assistant", "tool", "assistant"]


async def test_parallel_results_before_a_direct_return(memory: CtxMemory) -> None:
    """LlamaIndex drops the results behind the first that is returned directly; their calls are answered by a note."""
    direct = FunctionTool.from_defaults(fn=add, name="direct", return_direct=True)
    llm = Script(selecting(("a", "direct", {"a": 1, "b": 2}), ("b", "add", {"a": 3, "b": 4})), bot("next"))
    agent = FunctionAgent(tools=[add, direct], llm=llm, allow_parallel_tool_calls=True)
    assert str(await agent.run("Both.", memory=memory)) == "3"
    assert legal(memory)
    assert NO_RESULT in [m.content for m in memory.get()]
    await agent.run("And now?", memory=memory)
    assert legal(memory)


async def test_thinking_travels_to_the_stream_and_back_to_the_model(
    server: ModelServer, llms: Made, memory: CtxMemory
) -> None:
    llm = llms(server)
    agent = FunctionAgent(tools=[add], llm=llm)
    handler = agent.run('Please call add with {"a": 40, "b": 2}', memory=memory)
    events = [e async for e in handler.stream_events() if isinstance(e, AgentStream)]
    await handler
    assert events
    await agent.run("And now?", memory=memory)
    sent = [m for m in llm.sent[-1] if any(isinstance(b, ToolCallBlock) for b in m.blocks)]
    assert any(isinstance(b, ThinkingBlock) for b in sent[0].blocks)
    assert sent[0].additional_kwargs["reasoning_content"]


async def test_an_engine_and_an_agent_take_turns(server: ModelServer, llms: Made, memory: CtxMemory) -> None:
    llm = llms(server)
    engine = SimpleChatEngine.from_defaults(llm=llm, memory=memory)
    engine.chat(FACT)
    agent = FunctionAgent(tools=[add], llm=llm)
    await agent.run('Please call add with {"a": 40, "b": 2}', memory=memory)
    assert "4711" in (await engine.achat(QUESTION)).response
    assert legal(memory)


# what goes wrong in a run


async def test_early_stopping_leaves_a_conversation_that_goes_on(memory: CtxMemory) -> None:
    calls = [selecting((f"c{n}", "add", {"a": n, "b": n})) for n in range(3)]
    llm = Script(calls[0], calls[1], bot("So far: nothing."), calls[2], bot("Done now."))
    agent = FunctionAgent(tools=[add], llm=llm, early_stopping_method="generate")
    context = Context(agent)
    stopped = await agent.run("Add a lot.", memory=memory, ctx=context, max_iterations=2)
    assert str(stopped) == "So far: nothing."
    assert roles(memory.get()) == ["user", "assistant"]
    assert str(await agent.run("Go on.", ctx=context, max_iterations=20)) in {"Done now.", "So far: nothing."}
    assert legal(memory)


async def test_a_run_that_fails_leaves_what_was_said(memory: CtxMemory) -> None:
    call = selecting(("one", "add", {"a": 1, "b": 2}))
    agent = FunctionAgent(tools=[add], llm=Script(call))
    context = Context(agent)
    with pytest.raises(WorkflowRuntimeError, match="Max iterations of 3"):
        await agent.run("Add for ever.", memory=memory, ctx=context, max_iterations=3)
    assert [m.content for m in memory.get()] == ["Add for ever."]
    again = FunctionAgent(tools=[add], llm=Script(bot("Enough.")))
    # the scratchpad of the failed run still lies in the context: its rounds come in behind the new question
    assert str(await again.run("Stop.", ctx=context)) == "Enough."
    assert legal(memory)
    assert roles(memory.get())[:2] == ["user", "user"]
    assert memory.get()[-1].content == "Enough."


# human in the loop, and contexts that travel


async def ask_name(ctx: Context) -> str:
    """Ask the user's name."""
    told = await ctx.wait_for_event(HumanResponseEvent, waiter_event=InputRequiredEvent(prefix="Your name?"))
    return f"The user is called {told.response}."


# LlamaIndex finds the context's parameter by its type, not by the name of it
ask_name.__annotations__["ctx"] = Context


@pytest.mark.parametrize("serializer", [JsonSerializer(), PickleSerializer()], ids=["json", "pickle"])
async def test_a_human_answers_after_the_context_has_travelled(serializer: Any, memory: CtxMemory) -> None:
    llm = Script(selecting(("one", "ask_name", {})), bot("Hello Ann."))
    flow = AgentWorkflow(agents=[FunctionAgent(name="a", description="d", tools=[ask_name], llm=llm)], root_agent="a")
    handler = flow.run(user_msg="Who am I?", memory=memory)
    data: dict[str, Any] = {}
    async for event in handler.stream_events():
        if isinstance(event, InputRequiredEvent):
            data = handler.ctx.to_dict(serializer=serializer)
            await handler.cancel_run()
            break
    held = data if isinstance(serializer, PickleSerializer) else json.loads(json.dumps(data))
    restored = Context.from_dict(flow, held, serializer=serializer)
    handler = flow.run(user_msg="Who am I?", ctx=restored)
    assert handler.ctx is not None
    handler.ctx.send_event(HumanResponseEvent(response="Ann"))
    assert str(await handler) == "Hello Ann."
    assert [m.content for m in memory.get() if m.role == "tool"] == ["The user is called Ann."]
    assert legal(memory)


async def test_the_history_given_with_a_run_replaces_the_conversation(memory: CtxMemory) -> None:
    memory.put_messages([user("old"), bot("older")])
    agent = FunctionAgent(tools=[add], llm=Script(bot("Fine.")))
    await agent.run("New?", chat_history=[user("a"), bot("b")], memory=memory)
    assert [m.content for m in memory.get()] == ["a", "b", "New?", "Fine."]
    memory.context.undo()


async def test_50_turns_of_two_agents_that_hand_off_to_each_other(memory: CtxMemory) -> None:
    """The same memory through many contexts, small enough to compact; every window is a legal conversation."""

    def over(to: str, text: str) -> list[ChatMessage]:
        return [selecting((f"h-{to}", "handoff", {"to_agent": to, "reason": "its turn"})), bot(text)]

    small = CtxMemory.from_defaults("small", context_window=1_200)
    for turn in range(25):
        first, second = ("clerk", "porter") if turn % 2 else ("porter", "clerk")
        script = over(second, f"Turn {turn}: {' '.join(str(n) for n in range(30))}.")
        agents = [
            FunctionAgent(name=name, description=f"the {name}", tools=[add], llm=Script(*answers))
            for name, answers in ((first, script[:1]), (second, script[1:]))
        ]
        flow = AgentWorkflow(agents=agents, root_agent=first)
        await flow.run(user_msg=f"Question {turn}?", memory=small)
        assert legal(small)
    assert small.context.usage().compactions
    assert [m.content for m in small.get_all() if m.role == "user"] == [f"Question {turn}?" for turn in range(25)]
