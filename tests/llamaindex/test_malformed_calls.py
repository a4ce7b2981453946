"""A model's tool call whose arguments are no JSON: agents go on, in the same run, in the next one, and after a restart."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent
from llama_index.core.base.llms.types import ChatMessage, ToolCallBlock
from llama_index.core.memory import ChatMemoryBuffer

from ctxfold.testing import ModelServer, Scripted, ScriptedCall
from llamaindex_ctx import CtxChatStore, CtxLLM, CtxMemory, with_context
from tests.llamaindex.served_llm import ADD, stock_llm
from tests.llamaindex.talk import bot, contents, result, user
from tests.llamaindex.twins import Driver

# workflows ask every attribute of an agent, pydantic's deprecated ones too
pytestmark = pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning:inspect")

BROKEN = '{"a":1,"b":'


def script(*, beside: bool) -> list[Scripted]:
    """A broken call (with a valid one `beside` it), a valid one, and answers to this question and the next."""
    calls = (ScriptedCall("add", '{"a": 2, "b": 2}'), ScriptedCall("add", BROKEN))
    return [
        Scripted("", tool_calls=calls if beside else calls[1:]),
        Scripted("", tool_calls=(ScriptedCall("add", '{"a": 1, "b": 2}'),)),
        Scripted("The sum is 3."),
        Scripted("You are welcome."),
        Scripted("Goodbye."),
    ]


@asynccontextmanager
async def model(kind: str, server: ModelServer) -> AsyncIterator[Any]:
    address: dict[str, Any] = {"model": "m", "api_key": "x", "context_window": 8_000}
    if kind == "stock":
        async with stock_llm(server) as llm:
            yield with_context(llm)
        return
    ours = CtxLLM(base_url=server.base_url, **address)
    yield with_context(ours) if kind == "wrapped" else ours
    await ours.aclose()


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside"])
@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("kind", ["plain", "wrapped", "stock"])
async def test_an_agent_goes_on_after_a_malformed_call(
    tmp_path: Path, kind: str, streaming: bool, beside: bool
) -> None:
    """Step 7, item A3: the tool refuses it, the model calls again, and the thread goes on, after a restart as well."""
    url = f"sqlite:///{tmp_path / 'chat.db'}"
    async with ModelServer(script=script(beside=beside)) as server, model(kind, server) as llm:
        agent = FunctionAgent(llm=llm, tools=[ADD], streaming=streaming)
        with CtxMemory.from_defaults("s", store=url, context_window=8_000) as memory:
            assert str(await agent.run("Add 1 and 2.", memory=memory)) == "The sum is 3."
            refused = [m.content or "" for m in memory.get_all() if m.role == "tool"]
            assert refused[-1] == "3"
            # LlamaIndex's own LLM calls the tool with what it can read of the arguments
            why = "unsupported operand" if kind == "stock" else "INVALID_JSON"
            assert any(why in each for each in refused[:-1]), (
                "calls of one message run at once, so their results come in any order"
            )
            assert str(await agent.run("Thanks!", memory=memory)) == "You are welcome."
            whole = contents(memory.get_all())
        workflow = AgentWorkflow(agents=[agent])
        with CtxMemory.from_defaults("s", store=url, context_window=8_000) as again:
            assert contents(again.get_all()) == whole
            assert str(await workflow.run("Bye!", memory=again)) == "Goodbye."
        sent = [m for m in server.requests[-1].body["messages"] if m.get("tool_calls")]
    broken = [c["function"]["arguments"] for m in sent for c in m["tool_calls"]][int(beside)]
    assert "1" in broken


async def test_a_session_that_holds_a_malformed_call_goes_on(tmp_path: Path, call: Driver) -> None:
    """Step 7, item A3: put by hand, compacted, handed back as a list, and read by another memory over the same store."""
    url = f"sqlite:///{tmp_path / 'chat.db'}"
    broken = ChatMessage(
        role="assistant", blocks=[ToolCallBlock(tool_call_id="c", tool_name="add", tool_kwargs=BROKEN)]
    )
    round_ = [user("Add."), broken, result("c", "Error: 'b' is missing."), bot("I cannot.")]
    with CtxMemory.from_defaults("s", store=url, token_limit=300) as memory:
        await call(memory, "put_messages", round_)
        shown = await call(memory, "get")
        assert shown[1].blocks == broken.blocks, "as the model wrote it"
        await call(memory, "set", shown)
        await call(memory, "set", [*round_, user("Again?"), bot("No.")])
        for i in range(12):
            await call(memory, "put_messages", [user(f"Note {i} of many words about nothing."), bot(f"Noted {i}.")])
        assert memory.context.usage().compactions
    with CtxChatStore(url) as store:
        assert (await call(store, "get_messages", "s"))[1].blocks == broken.blocks
        await call(store, "set_messages", "t", round_)
        buffer = ChatMemoryBuffer.from_defaults(chat_store=store, chat_store_key="t", token_limit=1_000)
        assert contents(buffer.get()) == contents(round_)


async def test_a_malformed_call_of_an_engines_own_llm_is_sent_back_as_an_object(call: Driver) -> None:
    """Step 7, item A3: services that parse the history would refuse every later request."""
    async with ModelServer(script=[Scripted("Fine.")]) as server:
        llm = CtxLLM(model="m", base_url=server.base_url, api_key="x", context_window=8_000)
        broken = ChatMessage(
            role="assistant", blocks=[ToolCallBlock(tool_call_id="c", tool_name="add", tool_kwargs=BROKEN)]
        )
        response = await call(llm, "chat", [user("Add."), broken, result("c", "Error"), user("Well?")])
        assert response.message.content == "Fine."
        (sent,) = [m for m in server.requests[-1].body["messages"] if m.get("tool_calls")]
        assert sent["tool_calls"][0]["function"]["arguments"] == '{"INVALID_JSON": "{\\"a\\":1,\\"b\\":"}'
        await llm.aclose()
        llm.close()
