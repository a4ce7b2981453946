"""Programs in the manner of LlamaIndex's documentation, run with its memory and then with the import alone changed."""

from __future__ import annotations

import ast
import inspect
from typing import Any

import pytest
from llama_index.core import MockEmbedding
from llama_index.core.base.llms.types import ChatMessage, LLMMetadata
from llama_index.core.memory import Memory

from tests.llamaindex.scripted_agents import Script, selecting
from tests.llamaindex.talk import bot

pytestmark = [
    # agents read all attributes of their own class, deprecated ones of pydantic too
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning"),
    pytest.mark.filterwarnings("ignore:is_running called from within a step:DeprecationWarning"),
    # LlamaIndex's Memory leaves its connection to the collector
    pytest.mark.filterwarnings("ignore:.*aiosqlite.core.Connection.*was deleted before being closed:ResourceWarning"),
]
THERE = "from llama_index.core.memory import "
MEMORIES = ("Memory", "ChatMemoryBuffer", "ChatSummaryMemoryBuffer")
MODES = ("simple", "context", "condense_question", "condense_plus_context", "best")

CHAT_ENGINE = """
from llama_index.core import Document, VectorStoreIndex
from llama_index.core.memory import ChatMemoryBuffer

memory = ChatMemoryBuffer.from_defaults(token_limit=3_000)
documents = [Document(text="The ferry to Visby leaves at nine. Dogs travel on the upper deck.")]
index = VectorStoreIndex.from_documents(documents, embed_model=embed_model)
engine = index.as_chat_engine(chat_mode=mode, llm=llm, memory=memory)
results.append(str(engine.chat("When does the ferry leave?")))
results.append("".join(engine.stream_chat("And where do dogs travel?").response_gen))
results.append(str(await engine.achat("How long does it take?")))
history = list(engine.chat_history)
engine.reset()
results.append(str(engine.chat_history))
results.append(str(engine.chat("Is there another one?")))
"""

FUNCTION_AGENT = """
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.memory import Memory

memory = Memory.from_defaults(session_id="trip", token_limit=40_000)


def multiply(a: int, b: int) -> int:
    "Multiplies two numbers."
    return a * b


agent = FunctionAgent(tools=[multiply], llm=llm, system_prompt="You calculate.")
results.append(str(await agent.run(user_msg="What is 6 times 7?", memory=memory)))
results.append(str(await agent.run(user_msg="And half of it?", memory=memory)))
history = await memory.aget()
results.append(str([m.role.value for m in await memory.aget_all()]))
"""

AGENT_WORKFLOW = """
from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent
from llama_index.core.memory import Memory
from llama_index.core.workflow import Context


async def note(ctx: Context, text: str) -> str:
    "Notes a text."
    async with ctx.store.edit_state() as state:
        state["state"]["notes"].append(text)
    return "Noted."


taker = FunctionAgent(name="taker", description="Takes notes.", tools=[note], llm=llm, can_handoff_to=["writer"])
writer = FunctionAgent(name="writer", description="Writes.", llm=llm, system_prompt="You write the report.")
flow = AgentWorkflow(agents=[taker, writer], root_agent="taker", initial_state={"notes": []})
memory = Memory.from_defaults(session_id="report", token_limit=8_000)
ctx = Context(flow)
results.append(str(await flow.run(user_msg="Write about ferries.", ctx=ctx, memory=memory)))
results.append(str((await ctx.store.get("state"))["notes"]))
history = memory.get_all()
"""

SUMMARY_BUFFER = """
from llama_index.core.chat_engine import SimpleChatEngine
from llama_index.core.llms import ChatMessage
from llama_index.core.memory import ChatSummaryMemoryBuffer

earlier = [ChatMessage(role="user", content="I am Ann."), ChatMessage(role="assistant", content="Hello, Ann.")]
memory = ChatSummaryMemoryBuffer.from_defaults(chat_history=earlier, llm=llm, token_limit=2_000)
engine = SimpleChatEngine.from_defaults(llm=llm, memory=memory, system_prompt="You are brief.")
results.append(str(engine.chat("Who am I?")))
history = memory.get()
results.append(str([m.content for m in memory.get_all()]))
"""

CHAT_STORE = """
from llama_index.core.chat_engine import SimpleChatEngine
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.storage.chat_store import SimpleChatStore

chat_store = SimpleChatStore()
memory = ChatMemoryBuffer.from_defaults(token_limit=3_000, chat_store=chat_store, chat_store_key="user1")
engine = SimpleChatEngine.from_defaults(llm=llm, memory=memory)
results.append(str(engine.chat("I am Ann.")))
loaded = SimpleChatStore(store={key: chat_store.get_messages(key) for key in chat_store.get_keys()})
memory = ChatMemoryBuffer.from_defaults(token_limit=3_000, chat_store=loaded, chat_store_key="user1")
engine = SimpleChatEngine.from_defaults(llm=llm, memory=memory)
results.append(str(engine.chat("Who am I?")))
history = loaded.get_messages("user1")
"""

BLOCKS = """
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.memory import BaseMemoryBlock, Memory, StaticMemoryBlock


class Mentioned(BaseMemoryBlock[str]):
    "Keeps the names of the islands that left the window."

    islands: list[str] = []

    async def _aget(self, messages=None, **kwargs):
        return ", ".join(self.islands)

    async def _aput(self, messages):
        told = " ".join(str(m.content) for m in messages)
        self.islands += [name for name in ("Visby", "Runmaro") if name in told and name not in self.islands]

    async def atruncate(self, content, tokens_to_truncate):
        return ""


mentioned = Mentioned(name="mentioned", description="Islands", priority=1)
blocks = [StaticMemoryBlock(name="house", static_content="The kitchen is green.", priority=0), mentioned]
memory = Memory.from_defaults(
    session_id="blocks", token_limit=900, chat_history_token_ratio=0.5, token_flush_size=200, memory_blocks=blocks
)
await memory.aput_messages([
    ChatMessage(role="user" if i % 2 == 0 else "assistant", content=f"{'Visby' if i < 2 else 'The ferry'} {i}: " + "word " * 40)
    for i in range(20)
])
agent = FunctionAgent(llm=llm)
results.append(str(await agent.run(user_msg="What colour is the kitchen?", memory=memory)))
results.append(str(mentioned.islands))
history = []
"""

SCRIPTS: dict[str, tuple[ChatMessage, ...]] = {
    "FunctionAgent": (selecting(("c1", "multiply", {"a": 6, "b": 7})), bot("It is 42."), bot("It is 21.")),
    "AgentWorkflow": (
        selecting(("c1", "note", {"text": "at nine"})),
        selecting(("c2", "handoff", {"to_agent": "writer", "reason": "all noted"})),
        bot("Ferries leave at nine."),
    ),
}


class Chat(Script):
    """The scripted model as a chat model, so that engines with a retriever send it messages, not one prompt."""

    @property
    def metadata(self) -> LLMMetadata:
        return super().metadata.model_copy(update={"is_chat_model": True})


class Ran:
    """What a program has made: its results, its history, and the prompts that its model was sent."""

    def __init__(self, names: dict[str, Any], llm: Script) -> None:
        self.results: list[str] = names["results"]
        self.history = [(m.role.value, m.content) for m in names["history"]]
        self.prompts = [[(m.role.value, m.content) for m in sent] for sent in llm.sent]


async def run(code: str, name: str, **more: Any) -> Ran:
    llm = Chat(*SCRIPTS.get(name, (bot("At nine."), bot("On the upper deck."), bot("Three hours."), bot("At ten."))))
    names: dict[str, Any] = {"llm": llm, "embed_model": MockEmbedding(embed_dim=4), "results": [], **more}
    made: Any = eval(compile(code, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True), names)
    if inspect.iscoroutine(made):
        await made
    ran = Ran(names, llm)
    if isinstance(stock := names.get("memory"), Memory):
        # left to the collector, the thread of its connection may find the event loop closed in the middle of a later test
        await stock.sql_store._async_engine.dispose()
    return ran


def with_our_import(code: str) -> str:
    """The program with the import of the memory changed, and nothing else."""
    lines: list[str] = []
    for line in code.splitlines():
        imported = line.removeprefix(THERE).split(", ") if line.startswith(THERE) else []
        ours = [name for name in imported if name in MEMORIES]
        if ours:
            lines += [f"from llamaindex_ctx import CtxMemory as {name}" for name in ours]
            others = ", ".join(name for name in imported if name not in MEMORIES)
            lines += [f"{THERE}{others}"] if others else []
        else:
            lines.append(line)
    changed = "\n".join(lines)
    assert changed != code
    return changed


@pytest.mark.parametrize("mode", MODES)
async def test_chat_engines_of_every_mode(mode: str) -> None:
    stock = await run(CHAT_ENGINE, mode, mode=mode)
    ours = await run(with_our_import(CHAT_ENGINE), mode, mode=mode)
    assert ours.results == stock.results
    assert ours.history == stock.history
    assert ours.prompts == stock.prompts
    assert len(stock.history) == 6


PROGRAMS = {
    "FunctionAgent": FUNCTION_AGENT,
    "AgentWorkflow": AGENT_WORKFLOW,
    "ChatSummaryMemoryBuffer": SUMMARY_BUFFER,
    "SimpleChatStore": CHAT_STORE,
}


@pytest.mark.parametrize("name", PROGRAMS)
async def test_programs(name: str) -> None:
    stock = await run(PROGRAMS[name], name)
    ours = await run(with_our_import(PROGRAMS[name]), name)
    assert ours.results == stock.results
    assert ours.history == stock.history
    assert ours.prompts == stock.prompts
    assert stock.results
    assert stock.history


async def test_memory_blocks() -> None:
    """Blocks are asked and given what leaves the window; their place in the prompt is a difference that the docs name."""
    for code in (BLOCKS, with_our_import(BLOCKS)):
        ran = await run(code, "blocks")
        assert ran.results == ["At nine.", "['Visby']"]
        prompt = str(ran.prompts[-1])
        assert "The kitchen is green." in prompt
        assert "Visby" in prompt
        assert prompt.count("word word") < 20 * 39
