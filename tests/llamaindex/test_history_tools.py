"""A FunctionAgent that reads back, pins and compacts its own memory's session, over a server."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage, ImageBlock, TextBlock

from ctxfold import assistant, user
from ctxfold.testing import ModelServer, Scripted, ScriptedCall
from llamaindex_ctx import CtxLLM, CtxMemory, history_tools

# workflows ask every attribute of an agent, pydantic's deprecated ones too
pytestmark = pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning:inspect")


def play(body: Any) -> Scripted:
    """Searches, reads what it found, pins the newest answer, compacts, then says what it read."""
    if not body.get("tools"):
        return Scripted("They spoke about gates.")
    outputs = [m["content"] for m in body["messages"] if m["role"] == "tool"]
    steps = [
        lambda: ("search_history", {"query": "gate code"}),
        lambda: ("read_message", {"reference": outputs[0].split()[0]}),
        lambda: ("pin_message", {"reference": "a11"}),
        lambda: ("compact_history", {}),
    ]
    if len(outputs) < len(steps):
        name, arguments = steps[len(outputs)]()
        return Scripted(tool_calls=(ScriptedCall(name, json.dumps(arguments)),))
    return Scripted(" | ".join(outputs[1:]))


@pytest.mark.parametrize("streaming", [True, False])
async def test_an_agent_uses_them(streaming: bool) -> None:
    with ModelServer(model="m", script=play) as server:
        llm = CtxLLM(model="m", base_url=server.base_url, api_key="x", context_window=4_000)
        memory = CtxMemory.from_defaults(llm=llm, token_limit=3_000)
        context = memory.context
        context.add([user("The gate code is 7731. " + "word " * 30, id="g"), assistant("Noted.", id="n")])
        for i in range(12):
            context.add([user("word " * 30, id=f"u{i}"), assistant("reply " * 30, id=f"a{i}")])
        context.compact(force=True)
        context.add([user("between", id="b"), assistant("yes " * 30, id="b2")])
        for i in range(12, 36):
            context.add([user("word " * 30, id=f"u{i}"), assistant("reply " * 30, id=f"a{i}")])
        agent = FunctionAgent(tools=history_tools(context), llm=llm, streaming=streaming)
        said = str(await agent.run("What is the gate code?", memory=memory))
        await llm.aclose()
        assert "The gate code is 7731." in said
        assert "Pinned a11." in said
        assert "Compacted: " in said
        assert [b.id for b in context.explain().blocks if b.why == "pinned"] == ["a11"]
        sent = {t["function"]["name"]: t["function"]["parameters"] for t in server.requests[-1].body["tools"]}
        assert sent["read_message"]["required"] == ["reference"]


PIXEL = b"iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


async def test_an_image_is_returned_where_the_tool_may_return_images() -> None:
    """Step 7, item B23."""
    memory = CtxMemory.from_defaults(token_limit=8_000)
    blocks = [TextBlock(text="Look:"), ImageBlock(image=PIXEL, image_mimetype="image/png")]
    memory.put_messages([ChatMessage(role="user", blocks=blocks), ChatMessage(role="assistant", content="I see.")])
    seen, answer = (m.id for m in memory.context.messages())
    memory.context.add(replace(memory.context.archive.get(seen), id="hidden"), visibility="user")
    for media in (False, True):
        read = next(t for t in history_tools(memory.context, media=media) if t.metadata.name == "read_message")
        for reference, shown in ((seen, media), (answer, False), ("nobody", False), ("hidden", False)):
            for output in (read.call(reference=reference), await read.acall(reference=reference)):
                assert [b.block_type for b in output.blocks] == (["text", "image"] if shown else ["text"])
                assert ("[image, image/png, 1 x 1 pixels, 70 bytes]" in output.content) == (reference == seen)
                if shown:
                    assert output.blocks[1].image == PIXEL
