"""Chat engines beyond those of test_engines, run for real over a CtxMemory."""

from __future__ import annotations

from typing import Any

import pytest
from llama_index.core.base.llms.types import ChatMessage, ThinkingBlock
from llama_index.core.base.response.schema import NodeWithScore, Response, StreamingResponse
from llama_index.core.chat_engine import CondenseQuestionChatEngine
from llama_index.core.chat_engine.multi_modal_condense_plus_context import MultiModalCondensePlusContextChatEngine
from llama_index.core.chat_engine.multi_modal_context import MultiModalContextChatEngine
from llama_index.core.chat_engine.types import StreamingAgentChatResponse
from llama_index.core.query_engine import CustomQueryEngine
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import ImageNode, QueryBundle, TextNode

from ctxfold.testing import ModelServer
from llamaindex_ctx import CtxMemory
from tests.llamaindex.loopback_llm import Made
from tests.llamaindex.scripted_agents import roles
from tests.llamaindex.talk import FACT, QUESTION, bot, user


class Echo(CustomQueryEngine):
    """Answers with the query that it was given, so that condensing shows."""

    streaming: bool = False

    def custom_query(self, query_str: str) -> Any:
        if not self.streaming:
            return Response(response=f"Asked: {query_str}")
        return StreamingResponse(response_gen=iter(["Asked: ", query_str]))  # type: ignore[arg-type]


def test_condense_question_chat_and_stream(server: ModelServer, llms: Made, memory: CtxMemory) -> None:
    llm = llms(server)
    engine = CondenseQuestionChatEngine.from_defaults(query_engine=Echo(), llm=llm, memory=memory)
    assert engine.chat(FACT).response == f"Asked: {FACT}"
    engine.chat("And where is the canteen?")
    assert FACT in str(llm.sent[-1][-1].content)
    assert roles(memory.get_all()) == ["user", "assistant"] * 2
    streaming = CondenseQuestionChatEngine.from_defaults(query_engine=Echo(streaming=True), llm=llm, memory=memory)
    answer = streaming.stream_chat("And the library?")
    text = "".join(answer.response_gen)
    assert text.startswith("Asked: ")
    assert roles(memory.get_all()) == ["user", "assistant"] * 3
    assert memory.get_all()[-1].content == text
    engine.reset()
    assert memory.get() == engine.chat_history == []


async def test_condense_question_async(server: ModelServer, llms: Made, memory: CtxMemory) -> None:
    engine = CondenseQuestionChatEngine.from_defaults(query_engine=Echo(), llm=llms(server), memory=memory)
    assert (await engine.achat(FACT)).response == f"Asked: {FACT}"
    await engine.achat(QUESTION)
    assert roles(await memory.aget_all()) == ["user", "assistant"] * 2


class Album(BaseRetriever):
    """A text and a picture."""

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        nodes = [
            TextNode(text="The canteen opens at half past seven."),
            ImageNode(image="aGk=", image_mimetype="image/png"),
        ]
        return [NodeWithScore(node=node, score=1.0) for node in nodes]


@pytest.mark.parametrize("kind", [MultiModalContextChatEngine, MultiModalCondensePlusContextChatEngine])
def test_multi_modal_engines(kind: Any, server: ModelServer, llms: Made, memory: CtxMemory) -> None:
    llm = llms(server)
    engine = kind.from_defaults(retriever=Album(), multi_modal_llm=llm, memory=memory, system_prompt="Be brief.")
    engine.chat(FACT)
    assert [b.block_type for b in llm.sent[-1][-1].blocks] == ["image", "text"]
    engine.chat(QUESTION)
    assert FACT in [m.content for m in llm.sent[-1]]
    streamed = engine.stream_chat("And the library?")
    text = "".join(streamed.response_gen)
    assert memory.get_all()[-1].content == text
    assert roles(memory.get_all()) == ["user", "assistant"] * 3
    engine.reset()
    assert engine.chat_history == []


@pytest.mark.parametrize("kind", [MultiModalContextChatEngine, MultiModalCondensePlusContextChatEngine])
async def test_multi_modal_engines_async(kind: Any, server: ModelServer, llms: Made, memory: CtxMemory) -> None:
    engine = kind.from_defaults(
        retriever=Album(), multi_modal_llm=llms(server), memory=memory, system_prompt="Be brief."
    )
    given = [user(FACT), bot("Noted.")]
    assert (await engine.achat(QUESTION, chat_history=given)).response == memory.get()[-1].content
    streamed = await engine.astream_chat("And the library?")
    text = "".join([piece async for piece in streamed.async_response_gen()])
    if streamed.awrite_response_to_history_task is not None:
        await streamed.awrite_response_to_history_task
    assert [m.content for m in await memory.aget_all()][:2] == [FACT, "Noted."]
    assert (await memory.aget_all())[-1].content == text


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
async def test_a_streamed_reply_keeps_its_thinking(is_async: bool, memory: CtxMemory) -> None:
    from llama_index.core.base.llms.types import ChatResponse, TextBlock

    def whole() -> ChatResponse:
        blocks = [ThinkingBlock(content="hm", additional_information={"signature": "s"}), TextBlock(text="hello there")]
        beside = {"reasoning_content": "hm"}  # the engine keeps one text block and these
        message = ChatMessage(role="assistant", blocks=blocks, additional_kwargs=beside)
        return ChatResponse(message=message, delta="hello there")

    async def later() -> Any:
        yield whole()

    if is_async:
        await StreamingAgentChatResponse(achat_stream=later()).awrite_response_to_history(memory)
    else:
        StreamingAgentChatResponse(chat_stream=iter([whole()])).write_response_to_history(memory)
    assert memory.get_all()[0].content == "hello there"
    assert memory.context.messages()[0].reasoning == "hm"
