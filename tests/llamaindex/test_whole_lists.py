"""A list that goes on from what the memory has, handed over whole: `set`, `aset`, and `chat_history=` of a request."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage, LLMMetadata, TextBlock
from llama_index.core.chat_engine import CondensePlusContextChatEngine, ContextChatEngine, SimpleChatEngine
from llama_index.core.llms.mock import MockFunctionCallingLLM
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.llms.openai_like import OpenAILike

from ctxfold.testing import ModelServer, Scripted
from llamaindex_ctx import CtxMemory, with_context
from tests.llamaindex.scripted_agents import Script, add, selecting
from tests.llamaindex.talk import bot, calling, contents, result, user
from tests.llamaindex.twins import Driver

# workflows ask every attribute of an agent, pydantic's deprecated ones too
pytestmark = pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning:inspect")

TURNS, LIMIT = 36, 900
Turn: TypeAlias = "Callable[[CtxMemory, list[ChatMessage], ChatMessage], Any]"


def asked(i: int) -> ChatMessage:
    return user(
        f"Question {i}: where does employee {i * 37 % 101} park the lorry with the {i}th load of oranges today?"
    )


def answered(i: int) -> ChatMessage:
    return bot(f"Answer {i}: on parking place {i * 53 % 97}, behind the cold store, until the {i}th load is counted.")


class Summaries(MockFunctionCallingLLM):
    """Writes summaries, and counts them."""

    def __init__(self) -> None:
        super().__init__(response_generator=self._next)
        self._calls = 0

    def _next(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatMessage:
        self._calls += 1
        return bot("The user asked where employees park, and was told.")

    @property
    def calls(self) -> int:
        return self._calls


class Chatting(Script):
    """A chat model, as response synthesizers tell them apart."""

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(is_chat_model=True, is_function_calling_model=True, context_window=8_000)


class Shelf(BaseRetriever):
    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [NodeWithScore(node=TextNode(text="Lorries park behind the cold store."))]


async def costs(path: Path, turn: Callable[..., Any]) -> tuple[int, int, list[int]]:
    """Compactions, summary calls, and the size of the database at a third, two thirds and the end of the conversation."""
    summaries, sizes = Summaries(), list[int]()
    told: list[ChatMessage] = []
    url = f"sqlite:///{path}"
    with CtxMemory.from_defaults("s", store=url, context_window=LIMIT, llm=summaries) as memory:
        for i in range(TURNS):
            await turn(memory, told, i)
            told += [asked(i), answered(i)]
            if (i + 1) % (TURNS // 3) == 0:
                sizes.append(_content(path))
        assert contents(memory.get_all()) == contents(told)
        return memory.context.usage().compactions, summaries.calls, sizes


def _content(path: Path) -> int:
    """Bytes of all records: a file's size goes in pages."""
    with closing(sqlite3.connect(path)) as database:
        return int(database.execute("SELECT SUM(LENGTH(payload)) FROM ctxfold_records").fetchone()[0])


async def _put(memory: CtxMemory, told: list[ChatMessage], i: int) -> None:
    await memory.aput(asked(i))
    await memory.aget()
    await memory.aput(answered(i))


async def _set(memory: CtxMemory, told: list[ChatMessage], i: int) -> None:
    memory.set(list(told))
    await _put(memory, told, i)


async def _aset_with_marks(memory: CtxMemory, told: list[ChatMessage], i: int) -> None:
    await memory.aset(await memory.aget_all())
    await _put(memory, told, i)


async def _window(memory: CtxMemory, told: list[ChatMessage], i: int) -> None:
    await memory.aset(await memory.aget())
    await _put(memory, told, i)


async def _bare_window(memory: CtxMemory, told: list[ChatMessage], i: int) -> None:
    memory.set([ChatMessage(role=m.role, content=m.content) for m in memory.get(asked(i))])
    await _put(memory, told, i)


async def _agent(memory: CtxMemory, told: list[ChatMessage], i: int) -> None:
    agent = FunctionAgent(llm=Script(answered(i)), tools=[])
    await agent.run(asked(i), chat_history=list(told), memory=memory)


def _engine(kind: Any, **settings: Any) -> Turn:
    async def turn(memory: CtxMemory, told: list[ChatMessage], i: Any) -> None:
        engine = kind.from_defaults(llm=Chatting(answered(i)), memory=memory, **settings)
        await engine.achat(asked(i).content, chat_history=list(told))

    return turn


@pytest.fixture(scope="module")
def put_costs(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, int]:
    """Returns compactions and summary calls when only what is new is put."""
    compactions, calls, _ = asyncio.run(costs(tmp_path_factory.mktemp("put") / "put.db", _put))
    assert compactions > 2
    return compactions, calls


@pytest.mark.parametrize(
    "turn",
    [
        _set,
        _aset_with_marks,
        _window,
        _bare_window,
        _agent,
        _engine(SimpleChatEngine),
        _engine(ContextChatEngine, retriever=Shelf()),
        _engine(CondensePlusContextChatEngine, retriever=Shelf(), skip_condense=True),
    ],
    ids=["set", "aset", "window", "bare-window", "agent", "simple", "context", "condense"],
)
async def test_a_known_list_costs_no_more_than_putting_what_is_new(
    tmp_path: Path, put_costs: tuple[int, int], turn: Turn
) -> None:
    """Step 7, item B13: 60 turns at 1,500 made 51 compactions and 115 summary calls, and the database grew quadratically."""
    compactions, calls = put_costs
    found = await costs(tmp_path / "list.db", turn)
    assert found[0] <= compactions + 1
    assert found[1] <= calls + 1
    one, two, three = found[2]
    assert three - two < 1.4 * (two - one), "the database grows with what is said"


async def test_a_list_that_differs_begins_anew_where_it_differs(call: Driver) -> None:
    """Step 7, item B13: what stands before the difference keeps its compaction; what stands after it goes."""
    with CtxMemory.from_defaults("s", token_limit=600) as memory:
        told = [m for i in range(30) for m in (asked(i), answered(i))]
        for message in told:
            await call(memory, "put", message)
        compactions = memory.context.usage().compactions
        assert compactions
        other = [*told[:-2], user("Something else?"), bot("Indeed.")]
        await call(memory, "set", other)
        assert contents(await call(memory, "get_all")) == contents(other)
        shown = contents(await call(memory, "get"))
        assert shown[-2:] == ["Something else?", "Indeed."]
        assert told[-2].content not in shown
        assert memory.context.usage().compactions == compactions
        assert memory.context.search("28th load of oranges")
        memory.context.undo()
        assert contents(await call(memory, "get_all")) == contents(told)
        await call(memory, "set", told[:-4])
        assert contents(await call(memory, "get_all")) == contents(told[:-4])


async def test_a_list_that_differs_in_what_is_compacted_takes_the_place_of_all(call: Driver) -> None:
    """Step 7, item B13: a summary that stands for other words cannot stay."""
    with CtxMemory.from_defaults("s", token_limit=600) as memory:
        told = [m for i in range(30) for m in (asked(i), answered(i))]
        await call(memory, "put_messages", told)
        for i in range(30, 33):
            await call(memory, "put_messages", [asked(i), answered(i)])
        assert memory.context.usage().compactions
        other = [user("Hello!"), bot("Hello."), *told[:4]]
        await call(memory, "set", other)
        assert contents(await call(memory, "get_all")) == contents(other) == contents(await call(memory, "get"))
        await call(memory, "set", [])
        assert await call(memory, "get_all") == []


async def test_a_tool_round_differs_as_a_whole(call: Driver) -> None:
    """Step 7, item B13: another result takes the place of the first, with its call; a list without the round drops it."""
    with CtxMemory.from_defaults("s", token_limit=2_000) as memory:
        told = [asked(0), answered(0), asked(1), calling("a"), result("a", "one"), answered(1)]
        await call(memory, "put_messages", told)
        other = [*told[:4], result("a", "two"), answered(1)]
        await call(memory, "set", other)
        assert contents(await call(memory, "get_all")) == contents(other)
        await call(memory, "set", other[:4])
        assert contents(await call(memory, "get")) == contents(other[:3]), "the call waits again"
        await call(memory, "put_messages", [result("a", "three"), answered(1)])
        assert contents(await call(memory, "get_all"))[-2:] == ["three", answered(1).content]
        plain = [*told[:3], answered(1)]
        await call(memory, "set", plain)
        assert contents(await call(memory, "get_all")) == contents(plain)
        waiting = [*plain, asked(2), calling("b")]
        await call(memory, "set", waiting)
        assert contents(await call(memory, "get")) == contents(waiting[:-1])
        await call(memory, "put_messages", [result("b"), answered(2)])
        assert contents(await call(memory, "get_all"))[-2:] == ["found b", answered(2).content]


async def test_an_agent_with_tools_whose_caller_keeps_questions_and_answers(tmp_path: Path) -> None:
    """Step 7, item B13: the caller's list lacks the newest turn's tool round; no earlier compaction is lost."""
    told: list[ChatMessage] = []
    with CtxMemory.from_defaults("s", store=f"sqlite:///{tmp_path / 'a.db'}", context_window=LIMIT) as memory:
        for i in range(30):
            script = Script(selecting((f"c{i}", "add", {"a": i, "b": 1})), answered(i))
            await FunctionAgent(llm=script, tools=[add]).run(asked(i), chat_history=list(told), memory=memory)
            told += [asked(i), answered(i)]
        assert memory.context.usage().compactions < 12
        await memory.aset(told)
        assert contents(memory.get_all()) == contents(told)


async def test_what_stands_beside_a_message_is_not_lost(call: Driver) -> None:
    """Step 7, item B13: equal words with other `additional_kwargs` are no known message; a list without them keeps ours."""
    with CtxMemory.from_defaults("s", token_limit=1_000) as memory:
        await call(memory, "put_messages", [asked(0), answered(0)])
        rated = bot(answered(0).content or "")
        rated.additional_kwargs = {"rating": 5}
        await call(memory, "set", [asked(0), rated])
        assert dict((await call(memory, "get_all"))[-1].additional_kwargs) == {"rating": 5}
        await call(memory, "set", [asked(0), answered(0), asked(1)])
        assert dict((await call(memory, "get_all"))[1].additional_kwargs) == {"rating": 5}


@pytest.mark.parametrize("session", [None, "s"])
def test_l2_an_edited_copy_of_a_message_in_a_list_is_another_message(session: str | None) -> None:
    """A copy carries the id of its original in its `additional_kwargs`; LlamaIndex itself reads no ids."""
    with (
        CtxMemory.from_defaults("m", context_window=4_000) as memory,
        ModelServer(script=lambda _: Scripted("ok")) as server,
    ):
        memory.put_messages([ChatMessage(role="user", content="one"), ChatMessage(role="assistant", content="yes")])
        said = memory.get()
        first = said[0]
        stock = OpenAILike(model="m", api_base=server.base_url, api_key="x", context_window=4_000, is_chat_model=True)
        with with_context(stock, session_id=session, store="memory://" if session else None) as llm:
            for number in range(4):
                said.append(first.model_copy(update={"blocks": [TextBlock(text=f"copy {number}")]}))
                said.append(llm.chat(said).message)
        asked = [m["content"] for m in server.requests[-1].body["messages"] if m["role"] == "user"]
    assert asked == ["one", *(f"copy {n}" for n in range(4))]
