"""Code written for LlamaIndex's own memories, with a CtxMemory in their place: the same messages, prompts and calls."""

from __future__ import annotations

import copy
import json
import pickle
import re
from typing import Any

import pytest
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.generic_utils import messages_to_history_str, messages_to_prompt
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.base.response.schema import NodeWithScore, Response
from llama_index.core.chat_engine import (
    CondensePlusContextChatEngine,
    CondenseQuestionChatEngine,
    ContextChatEngine,
    SimpleChatEngine,
)
from llama_index.core.llms import MockLLM
from llama_index.core.llms.mock import MockFunctionCallingLLM
from llama_index.core.memory import ChatMemoryBuffer, SimpleComposableMemory
from llama_index.core.query_engine import CustomQueryEngine
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import QueryBundle, TextNode
from llama_index.core.storage.chat_store.base_db import MessageStatus
from llama_index.core.workflow import Context
from llama_index.llms.openai_like import OpenAILike
from pydantic import PrivateAttr

from ctxfold import ConfigError
from ctxfold.testing import ModelServer
from llamaindex_ctx import CtxMemory, with_context
from tests.llamaindex.scripted_agents import Script, add, selecting
from tests.llamaindex.talk import bot, contents, parking, result, user
from tests.llamaindex.twins import Driver
from tests.support.pages import page

pytestmark = [
    # agents read all attributes of their own class, deprecated ones of pydantic too
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning"),
    pytest.mark.filterwarnings("ignore:is_running called from within a step:DeprecationWarning"),
]

TALK = [user("first question"), bot("first answer"), user("second question"), bot("second answer")]


def compacted(**settings: Any) -> CtxMemory:
    memory = CtxMemory.from_defaults(token_limit=400, **settings)
    for i in range(30):
        memory.put_messages(parking(i))
        memory.get()
    assert memory.context.usage().compactions
    return memory


# messages


async def test_messages_are_those_that_were_put(call: Driver, memory: CtxMemory) -> None:
    await call(memory, "put_messages", TALK)
    assert await call(memory, "get") == await call(memory, "get_all") == TALK
    assert (await call(memory, "get", initial_token_count=5))[0] == TALK[0]
    engine = SimpleChatEngine.from_defaults(llm=MockLLM(), memory=memory)
    assert engine.chat_history == TALK


def test_a_composed_memory_tells_nothing_twice(memory: CtxMemory) -> None:
    beside = ChatMemoryBuffer.from_defaults(chat_history=list(TALK))
    composed = SimpleComposableMemory.from_defaults(primary_memory=memory, secondary_memory_sources=[beside])
    memory.set(TALK)
    assert composed.get("And now?") == TALK


@pytest.mark.parametrize("way", ["itself", "copy", "deep copy", "pickle", "json"])
def test_ids_stand_beside_the_entries_and_are_known_again(way: str, memory: CtxMemory) -> None:
    memory.put_messages(TALK)
    given = memory.get()
    match way:
        case "copy":
            given = [m.model_copy() for m in given]
        case "deep copy":
            given = copy.deepcopy(given)
        case "pickle":
            given = pickle.loads(pickle.dumps(given))
        case "json":
            given = [ChatMessage.model_validate_json(m.model_dump_json()) for m in given]
        case _:
            assert given[0].additional_kwargs == {}
    ids = [m.additional_kwargs["ctxfold_id"] for m in given]
    assert ids == [m.id for m in memory.context.messages()] == [m.additional_kwargs.get("ctxfold_id") for m in given]
    assert "ctxfold_id" in given[0].additional_kwargs
    assert "ctxfold_kind" not in given[0].additional_kwargs
    memory.put_messages(given)
    assert len(memory.get_all()) == 4
    with pytest.raises(KeyError):
        _ = given[0].additional_kwargs["nobody_noted_this"]


def test_nothing_of_ours_stands_in_a_prompt() -> None:
    """LlamaIndex writes all `additional_kwargs` into the prompts of completion models and of condensing engines."""
    window = compacted().get("Where does employee 0 park?")
    assert [m.additional_kwargs.get("ctxfold_kind") for m in window][:: len(window) - 1] == ["summary", "section"]
    assert "ctxfold" not in messages_to_prompt(window) + messages_to_history_str(window)


def test_nothing_of_ours_is_sent_along(memory: CtxMemory) -> None:
    """As older releases left their calls, in `additional_kwargs` alone, the OpenAI package sends every entry."""
    old: dict[str, Any] = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    calling = ChatMessage(role="assistant", content=None, additional_kwargs={"tool_calls": [old]})
    memory.set([user("look"), calling, result("c1"), bot("There."), user("And now?")])
    with ModelServer(model="lookup", strict="openai") as server:
        llm = OpenAILike(
            model=server.model, api_base=server.base_url, api_key="x", is_chat_model=True, context_window=8_000
        )
        llm.chat(memory.get())
        sent = server.requests[-1].body["messages"]
    assert [sorted(m) for m in sent][1:3] == [["content", "role", "tool_calls"], ["content", "role", "tool_call_id"]]


async def test_a_stock_buffer_prompts_with_nothing_of_ours_either() -> None:
    """The LLM's wrapper knows its replies and an agent's results by id."""
    memory = ChatMemoryBuffer.from_defaults(token_limit=3_000)
    llm = with_context(Script(selecting(("one", "add", {"a": 1, "b": 2})), bot("3")), context_window=4_000)
    await FunctionAgent(tools=[add], llm=llm).run("1 + 2?", memory=memory)
    assert len(memory.get()) == 4
    assert "ctxfold" not in messages_to_prompt(memory.get())


# engines


def test_a_completion_model_is_prompted_as_ever(memory: CtxMemory) -> None:
    engine = SimpleChatEngine.from_defaults(llm=MockLLM(), memory=memory)
    assert str(engine.chat("one")) == "user: one\nassistant: "
    assert str(engine.chat("two")) == "user: one\nassistant: user: one\nassistant: \nuser: two\nassistant: "
    engine.reset()
    assert str(engine.chat("three")) == "user: three\nassistant: "


class Asked(CustomQueryEngine):
    """Answers with what it was asked."""

    def custom_query(self, query_str: str) -> Response:
        return Response(response=query_str)


async def test_a_question_is_condensed_from_the_words_alone(call: Driver, memory: CtxMemory) -> None:
    engine = CondenseQuestionChatEngine.from_defaults(query_engine=Asked(), llm=MockLLM(), memory=memory)
    memory.set([user("old question"), bot("old answer")])
    answer = str(await call(engine, "chat", "new question"))
    assert "user: old question\nassistant: old answer\n\n" in answer


class Shelf(BaseRetriever):
    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [NodeWithScore(node=TextNode(text="The canteen opens at half past seven."), score=1.0)]


@pytest.mark.parametrize("engine_class", [ContextChatEngine, CondensePlusContextChatEngine])
def test_a_completion_model_behind_a_retriever_can_be_prompted_as_ever(engine_class: Any, memory: CtxMemory) -> None:
    """The engine's templates make entries of the marks; the function that docs/migration.md gives leaves them out."""
    given = re.search(r"`messages_to_prompt=(lambda .*?)`", page("migration.md"))
    assert given is not None
    words_alone = MockLLM(messages_to_prompt=eval(given[1]))
    memory.set(TALK)
    stock = ChatMemoryBuffer.from_defaults(chat_history=list(TALK))
    ours = engine_class.from_defaults(retriever=Shelf(), llm=words_alone, memory=memory)
    theirs = engine_class.from_defaults(retriever=Shelf(), llm=MockLLM(), memory=stock)
    answer = str(theirs.chat("new question"))
    assert "assistant: first answer\n" in answer
    assert str(ours.chat("new question")) == answer


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_query_bundle_is_a_question(call: Driver, streaming: bool) -> None:
    memory = compacted()
    engine = ContextChatEngine.from_defaults(retriever=Shelf(), llm=MockLLM(max_tokens=8), memory=memory)
    question = QueryBundle("Where does employee 0 park?")
    reply = await call(engine, "stream_chat" if streaming else "chat", question)
    if streaming and call.is_async:
        assert [piece async for piece in reply.async_response_gen()]
        if reply.awrite_response_to_history_task is not None:
            await reply.awrite_response_to_history_task
    elif streaming:
        assert list(reply.response_gen)
    assert memory.get_all()[-2] == user(str(question))
    assert memory.get(question) == memory.get(str(question))


def test_an_engine_makes_a_memory_of_the_class() -> None:
    engine = SimpleChatEngine.from_defaults(llm=MockLLM(), memory_cls=CtxMemory, chat_history=TALK)
    assert engine.chat_history == TALK
    engine.chat("third question")
    assert len(engine.chat_history) == 6


class Breaking(MockFunctionCallingLLM):
    """Breaks off its first stream in the middle."""

    _broken: list[bool] = PrivateAttr(default_factory=list)

    async def astream_chat(self, messages: Any, **kwargs: Any) -> Any:
        whole = await super().astream_chat(messages, **kwargs)

        async def each() -> Any:
            async for response in whole:
                yield response
                if not self._broken:
                    self._broken.append(True)
                    raise ConnectionError("gone")

        return each()


async def test_a_stream_that_breaks_leaves_the_question(memory: CtxMemory) -> None:
    engine = SimpleChatEngine.from_defaults(llm=Breaking(), memory=memory)
    reply = await engine.astream_chat("one")
    with pytest.raises(ConnectionError, match="gone"):
        _ = [piece async for piece in reply.async_response_gen()]
    assert contents(memory.get_all()) == ["one"]
    reply = await engine.astream_chat("two")
    async for _ in reply.async_response_gen():
        break  # whoever stops listening gets the answer stored all the same
    assert reply.awrite_response_to_history_task is not None
    await reply.awrite_response_to_history_task
    assert [m.role.value for m in memory.get_all()] == ["user", "user", "assistant"]


@pytest.mark.parametrize("streaming", [False, True])
async def test_an_agent_that_says_nothing(streaming: bool, memory: CtxMemory) -> None:
    agent = FunctionAgent(llm=Script(ChatMessage(role="assistant", content=None)), streaming=streaming)
    context = Context(agent)
    for question in ("one", "two"):
        assert (await agent.run(question, memory=memory, ctx=context)).response.content is None
    assert contents(memory.get_all()) == ["one", None, "two", None]


# settings and statuses


async def test_the_limit_can_be_read() -> None:
    memory = CtxMemory.from_defaults(token_limit=120)
    again = CtxMemory.from_dict(json.loads(json.dumps(memory.to_dict())))
    assert memory.token_limit == again.token_limit == memory.at("other").token_limit == 120
    assert CtxMemory.from_defaults(context_window=400, reply_reserve_tokens=100).token_limit == 300


async def test_initial_tokens_over_the_limit_are_told_in_their_words(call: Driver) -> None:
    with pytest.raises(ValueError, match=r"^Initial token count exceeds token limit"):
        await call(CtxMemory.from_defaults(token_limit=49), "get", initial_token_count=50)


async def test_active_and_archived_messages(call: Driver) -> None:
    memory = compacted()
    everything = await call(memory, "get_all")
    active = await call(memory, "get_all", status=MessageStatus.ACTIVE)
    archived = await call(memory, "get_all", status=MessageStatus.ARCHIVED)
    assert archived + active == everything == await call(memory, "get_all", status=None)
    assert archived
    assert active == [m for m in await call(memory, "get") if "ctxfold_kind" not in m.additional_kwargs]
    with pytest.raises(ConfigError, match="erase_session"):
        await call(memory, "reset", status=MessageStatus.ARCHIVED)
    await call(memory, "reset", status=MessageStatus.ACTIVE)
    assert await call(memory, "get_all") == []
    memory.context.undo()
    assert await call(memory, "get_all") == everything
