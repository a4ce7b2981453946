"""L11, L12: memory blocks get flat text, say why they fail, and serve one session each."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from llama_index.core.base.llms.types import ChatMessage, TextBlock
from llama_index.core.embeddings.mock_embed_model import MockEmbedding
from llama_index.core.memory import FactExtractionMemoryBlock, StaticMemoryBlock, VectorMemoryBlock
from llama_index.core.memory.memory import BaseMemoryBlock

from ctxfold.errors import ConfigError
from ctxfold.testing import ModelServer, Scripted
from llamaindex_ctx import CtxMemory
from tests.llamaindex.served_llm import stock_llm
from tests.llamaindex.talk import bot, calling, result, user, words
from tests.llamaindex.test_memory_blocks import Vectors


def rounds(count: int) -> list[ChatMessage]:
    return [
        m
        for n in range(count)
        for m in (
            user(f"question {n} {words('river', 30)}"),
            calling(f"c{n}"),
            result(f"c{n}", words("stone", 30)),
            bot("so"),
        )
    ]


async def test_l11_a_strict_service_takes_what_a_fact_block_sends() -> None:
    facts = Scripted("<facts><fact>Ann likes rivers.</fact></facts>")
    with ModelServer(strict="openai", script=lambda body: facts) as server:
        async with stock_llm(server) as llm:
            block = FactExtractionMemoryBlock(name="facts", llm=llm)
            with CtxMemory.from_defaults("s", token_limit=1_200, memory_blocks=[block]) as memory:
                for message in rounds(12):
                    await memory.aput(message)
                    await memory.aget()
        bodies = [r.body for r in server.requests]
    assert bodies
    assert block.facts == ["Ann likes rivers."]
    assert {m["role"] for body in bodies for m in body["messages"]} <= {"system", "user", "assistant"}
    assert not any("tool_calls" in m for body in bodies for m in body["messages"])
    assert "calls look" in str(bodies)


class Failing(BaseMemoryBlock[str]):
    """A block whose service is down."""

    async def _aget(self, messages: Any = None, **kwargs: Any) -> str:
        return ""

    async def _aput(self, messages: list[ChatMessage]) -> None:
        raise ValueError("the vector service does not answer at port 9")


async def test_l11_a_block_that_fails_says_why(caplog: pytest.LogCaptureFixture) -> None:
    with (
        CtxMemory.from_defaults("s", token_limit=1_200, memory_blocks=[Failing(name="bad")]) as memory,
        caplog.at_level(logging.WARNING, "ctxfold"),
    ):
        for message in rounds(12):
            await memory.aput(message)
            await memory.aget()
    assert "memory block 'bad' did not take" in caplog.text
    assert "ValueError: the vector service does not answer at port 9" in caplog.text


@pytest.mark.parametrize("other", [{"session_id": "b"}, {"session_id": "a", "owner": "ben"}])
def test_l12_one_block_object_does_not_serve_two_sessions(other: dict[str, str]) -> None:
    block = VectorMemoryBlock(vector_store=Vectors(), embed_model=MockEmbedding(embed_dim=4))
    with CtxMemory.from_defaults("a", token_limit=1_200, memory_blocks=[block]):
        with pytest.raises(ConfigError, match="blocks of its own"):
            CtxMemory(**other, token_limit=1_200, memory_blocks=[block])
        with CtxMemory.from_defaults("a", token_limit=1_200, memory_blocks=[block]) as again:
            assert again.memory_blocks == [block], "a server opens the same session for each request"


def test_l12_a_static_block_holds_nothing_of_a_session() -> None:
    block = StaticMemoryBlock(name="core", static_content=[TextBlock(text="Be kind.")])
    for name in ("a", "b"):
        with CtxMemory.from_defaults(name, token_limit=1_200, memory_blocks=[block]) as memory:
            memory.put(user("hi"))
            assert "Be kind." in str([m.content for m in memory.get()])
