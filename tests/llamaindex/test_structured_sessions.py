"""Structured output of an LLM that keeps a session: question and answer are stored, as those of any call."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from llama_index.core import PromptTemplate
from llama_index.core.agent.workflow import FunctionAgent, ReActAgent
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.program import FunctionCallingProgram
from llama_index.core.tools import FunctionTool
from pydantic import BaseModel

from ctxfold.testing import ModelServer, Scripted, ScriptedCall
from llamaindex_ctx import CtxMemory, with_context
from llamaindex_ctx.wrapper import ContextLLM
from tests.llamaindex.served_llm import stock_llm
from tests.llamaindex.talk import user

# LlamaIndex's streams of a structured LLM call a method that pydantic has renamed
pytestmark = [
    pytest.mark.filterwarnings("ignore:The `json` method is deprecated"),
    # workflows ask every attribute of an agent, pydantic's deprecated ones too
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning:inspect"),
    pytest.mark.filterwarnings("ignore:is_running called from within a step"),
]
ANSWER = ("assistant", "Thought: I can answer without using any more tools.\nAnswer: You are Ann.")


class Person(BaseModel):
    """A person."""

    name: str


def script(body: Any) -> Scripted:
    return Scripted(tool_calls=(ScriptedCall("Person", '{"name": "Ann"}'),)) if body.get("tools") else Scripted("Fine.")


@pytest.fixture
async def served() -> AsyncIterator[tuple[ContextLLM, ModelServer]]:
    async with ModelServer(context_window=8_000, script=script) as server, stock_llm(server) as llm:
        yield with_context(llm, session_id="a"), server


async def asked(llm: ContextLLM, how: str, text: str) -> Any:
    """The output of a structured call, made in one of LlamaIndex's ways."""
    structured, prompt = llm.as_structured_llm(Person), PromptTemplate(text)
    match how:
        case "chat":
            return structured.chat([user(text)]).raw
        case "achat":
            return (await structured.achat([user(text)])).raw
        case "stream_chat":
            return list(structured.stream_chat([user(text)]))[-1].raw
        case "astream_chat":
            return [r async for r in await structured.astream_chat([user(text)])][-1].raw
        case "structured_predict":
            return llm.structured_predict(Person, prompt)
        case "astructured_predict":
            return await llm.astructured_predict(Person, prompt)
        case _:
            return FunctionCallingProgram.from_defaults(output_cls=Person, llm=llm, prompt=prompt)()


@pytest.mark.parametrize(
    "how",
    ["chat", "achat", "stream_chat", "astream_chat", "structured_predict", "astructured_predict", "program"],
)
async def test_a_structured_call_is_stored_and_sent_with_the_next(
    how: str, served: tuple[ContextLLM, ModelServer]
) -> None:
    llm, server = served
    await llm.achat([user("I am Ann.")])
    assert (await asked(llm, how, "Who am I?")).name == "Ann"
    assert (await asked(llm, how, "Who again?")).name == "Ann"
    await llm.achat([user("Thanks.")])
    sent = [(m["role"], m.get("content") or None) for m in server.requests[-1].body["messages"]]
    call = [("assistant", None), ("tool", "Received.")]
    assert sent == [
        ("user", "I am Ann."),
        ("assistant", "Fine."),
        ("user", "Who am I?"),
        *call,
        ("user", "Who again?"),
        *call,
        ("user", "Thanks."),
    ]
    stored = llm.context().messages()
    assert [m.role for m in stored] == [role for role, _ in sent] + ["assistant"]


async def test_a_call_of_a_tool_still_waits_for_its_result(served: tuple[ContextLLM, ModelServer]) -> None:
    llm, server = served
    tool = FunctionTool.from_defaults(lambda name: name, name="Person", description="Looks a person up.")
    reply = await llm.achat_with_tools([tool], user_msg="Look.")
    (selection,) = llm.get_tool_calls_from_response(reply)
    await llm.achat([ChatMessage(role="tool", content="found", additional_kwargs={"tool_call_id": selection.tool_id})])
    sent = [(m["role"], m.get("content") or None) for m in server.requests[-1].body["messages"]]
    assert sent == [("user", "Look."), ("assistant", None), ("tool", "found")]


@pytest.mark.parametrize("calls_functions", [True, False], ids=["by a call", "in text"])
async def test_an_agent_asks_for_its_output_class_outside_of_the_session(calls_functions: bool) -> None:
    def reply(body: Any) -> Scripted:
        asks = str(body["messages"][-1]["content"]).startswith("<current_conversation>")
        if asks and body.get("tools"):
            return Scripted(tool_calls=(ScriptedCall("Person", '{"name": "Ann"}'),))
        return Scripted('{"name": "Ann"}' if asks else ANSWER[1])

    settings = {"is_function_calling_model": calls_functions}
    kind: Any = FunctionAgent if calls_functions else ReActAgent
    async with ModelServer(context_window=8_000, script=reply) as server, stock_llm(server, **settings) as inner:
        llm = with_context(inner, session_id="a")
        agent = kind(llm=llm, tools=[], output_cls=Person)
        for question in ("Who am I?", "Who again?"):
            answer = await agent.run(question, memory=CtxMemory.from_defaults(context_window=8_000))
            assert answer.structured_response == {"name": "Ann"}
        lengths = [len([m for m in r.body["messages"] if m["role"] != "system"]) for r in server.requests]
        stored = [(m.role, m.text) for m in llm.context().messages() if m.role != "system"]
    assert lengths == [1, 1, 3, 1]
    assert stored == [("user", "Who am I?"), ANSWER, ("user", "Who again?"), ANSWER]
