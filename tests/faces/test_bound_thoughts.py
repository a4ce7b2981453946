"""A service that accepts a thought only behind the very messages that it was made behind, as the newest models of Claude do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.tools import FunctionTool

from ctxfold import BackendError
from ctxfold.testing import ErrorReply, ModelServer, Scripted, ScriptedCall
from ctxfold.testing.script import Reply, api_error
from langchain_ctx import ChatCtx
from llamaindex_ctx import CtxLLM, CtxMemory, with_context
from tests.llamaindex.served_llm import WAYS, ask

MODEL = "claude-opus-5-5"
FOUND = "It hangs there on a hook, behind the ladder. " * 40


class BoundThoughts:
    """Thinks before each reply and refuses a thought behind other messages; `rounds` tool rounds come before each answer."""

    def __init__(self, *, rounds: int = 0, always: bool = False) -> None:
        self.refused = 0
        self._rounds = rounds
        self._always = always
        self._made: dict[str, str] = {}

    def __call__(self, body: Mapping[str, Any]) -> Reply:
        messages = body["messages"]
        for index, message in enumerate(messages):
            thought = message.get("reasoning_content")
            if self._always or (thought and self._made.get(thought) != json.dumps(messages[:index], sort_keys=True)):
                self.refused += 1
                return bound_error(index)
        thought = f"thought {len(self._made)}"
        self._made[thought] = json.dumps(messages, sort_keys=True)
        if self._rounds and len(self._made) % (self._rounds + 1):
            return Scripted(reasoning=thought, tool_calls=(ScriptedCall("find", '{"key": 1}'),))
        return Scripted(f"Answer {len(self._made)}.", reasoning=thought)


def bound_error(index: int) -> ErrorReply:
    return api_error(400, f"messages.{index}.content.0: `thinking` block is bound to a different conversation")


def serving(script: BoundThoughts, window: int = 64_000) -> ModelServer:
    return ModelServer(script=script, context_window=window, strict="anthropic", reasoning=True)


def thoughts(server: ModelServer) -> list[int]:
    """How many thoughts each request had."""
    return [str(request.body["messages"]).count("'type': 'thinking'") for request in server.requests]


@pytest.mark.parametrize("way", WAYS)
async def test_a_list_of_llamaindex_without_its_beginning_is_sent_without_thoughts(way: str) -> None:
    script = BoundThoughts()
    with serving(script) as server:
        llm = CtxLLM(model=MODEL, provider="anthropic", base_url=server.base_url, api_key="x", max_tokens=4_000)
        history: list[ChatMessage] = []
        for number in range(4):
            history.append(ChatMessage(f"question {number}"))
            history.append((await ask(llm, way, history))[-1].message)
        assert (thoughts(server), script.refused) == ([0, 1, 2, 3], 0)
        history = [*history[2:], ChatMessage("and now?")]
        server.clear_requests()
        (*_, response) = await ask(llm, way, history)
        assert response.message.content == "Answer 5."
        history += [response.message, ChatMessage("and then?")]
        assert (await ask(llm, way, history))[-1].message.content == "Answer 6."
        # refused, sent without, and the next request has the new thought alone
        assert (thoughts(server), script.refused) == ([3, 0, 1], 1)
        await llm.aclose()
        llm.close()


async def answer(model: ChatCtx, way: str, messages: list[BaseMessage]) -> AIMessage:
    match way:
        case "chat":
            return model.invoke(messages)
        case "achat":
            return await model.ainvoke(messages)
        case "stream_chat":
            chunks = list(model.stream(messages))
        case _:
            chunks = [chunk async for chunk in model.astream(messages)]
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    return whole


@pytest.mark.parametrize("way", WAYS)
async def test_a_list_of_langchain_without_its_beginning_is_sent_without_thoughts(way: str) -> None:
    script = BoundThoughts()
    with serving(script) as server:
        model = ChatCtx(model=MODEL, provider="anthropic", base_url=server.base_url, api_key="x", max_tokens=4_000)  # type: ignore[arg-type]
        history: list[BaseMessage] = []
        for number in range(4):
            history.append(HumanMessage(f"question {number}"))
            history.append(await answer(model, way, history))
        assert (thoughts(server), script.refused) == ([0, 1, 2, 3], 0)
        history = [*history[2:], HumanMessage("and now?")]
        server.clear_requests()
        reply = await answer(model, way, history)
        assert reply.text == "Answer 5."
        assert (await answer(model, way, [*history, reply, HumanMessage("and then?")])).text == "Answer 6."
        assert (thoughts(server), script.refused) == ([3, 0, 1], 1)
        await model.aclose()
        model.close()


@pytest.mark.parametrize("way", WAYS)
async def test_a_second_refusal_is_the_callers_to_see(way: str) -> None:
    script = BoundThoughts(always=True)
    with serving(script) as server:
        llm = CtxLLM(model=MODEL, provider="anthropic", base_url=server.base_url, api_key="x", max_tokens=4_000)
        thinking = ChatMessage(role="assistant", content="Yes.", additional_kwargs={"reasoning_content": "hm"})
        with pytest.raises(BackendError, match="bound to a different conversation"):
            await ask(llm, way, [ChatMessage("one"), thinking, ChatMessage("two")])
        with pytest.raises(BackendError, match="bound to a different conversation"):
            await ask(llm, way, [ChatMessage("no thoughts")])
        assert script.refused == 3, "a list without thoughts is not sent twice"
        await llm.aclose()
        llm.close()


@pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning:inspect")
@pytest.mark.parametrize("session_id", [None, "s"])
async def test_an_agent_goes_on_after_compactions(session_id: str | None) -> None:
    """Passages stay where they are in the session, so that few requests are refused."""

    def find(key: int) -> str:
        """Looks for a key."""
        return f"Key {key} is in shed {len(server.requests)}. {FOUND}"

    script = BoundThoughts(rounds=5)
    with serving(script, window=9_000) as server:
        llm = CtxLLM(
            model=MODEL,
            provider="anthropic",
            base_url=server.base_url,
            api_key="x",
            context_window=9_000,
            max_tokens=2_500,
            thinking=True,
        )
        chat = with_context(llm, session_id=session_id)
        with CtxMemory.from_defaults("m", context_window=9_000, llm=llm) as memory:
            for number in range(10):
                agent = FunctionAgent(llm=chat, tools=[FunctionTool.from_defaults(find)])
                reply = await agent.run(f"Where is key {number} of the old house?", memory=memory)
                assert "Answer" in str(reply)
        assert 0 < script.refused <= 12
        await chat.aclose()
        chat.close()
        await llm.aclose()
        llm.close()
