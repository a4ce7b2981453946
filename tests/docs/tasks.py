"""Twelve tasks, each as one would do it without ctxfold and with it: programs that run, and their lines and concepts.

A line is one that is not empty, formatted at 77 columns. A concept is a name that is imported, an attribute or method that is used,
the name of an argument, or a key that is read. `test_tasks.py` runs both sides, and holds the table of docs/comparison.md to them.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Final

__all__ = ["TASKS", "Task", "concepts", "lines"]


@dataclass(frozen=True, slots=True)
class Task:
    """`other` and `ours` leave what they found in `result`; `shared` is run before both, and not counted."""

    name: str
    with_what: str
    other: str
    ours: str
    shared: str = ""


def lines(program: str) -> int:
    return sum(1 for line in program.splitlines() if line.strip())


def concepts(program: str) -> int:
    names: set[str] = set()
    for node in ast.walk(ast.parse(program)):
        match node:
            case ast.ImportFrom(names=found) | ast.Import(names=found):
                names |= {each.name for each in found}
            case ast.Attribute(attr=name):
                names.add(name)
            case ast.keyword(arg=str(name)) | ast.Subscript(slice=ast.Constant(value=str(name))):
                names.add(name)
            case _:
                pass
    return len(names)


TALK: Final = """
thread = {"configurable": {"thread_id": "ann"}}
def tell(agent):
    agent.invoke({"messages": [("user", "My locker is 47-B.")]}, thread)
    for day in range(40):
        text = f"Day {day}: the harbour was busy, as it is on every day of the week. " * 8
        agent.invoke({"messages": [("user", text)]}, thread)
    return agent.invoke({"messages": [("user", "What is my locker?")]}, thread)["messages"][-1].text
"""
TOLD: Final = """
from ctxfold import AgentContext, assistant, user
ctx = AgentContext(session_id="ann", store=f"sqlite:///{folder}/ours.db", context_window=2_000)
ctx.add("My locker is 47-B.")
for day in range(60):
    ctx.add([user(f"Day {day}: the harbour was busy, as on every day."), assistant("Noted.")])
from langchain_core.messages import AIMessage, HumanMessage
messages = [HumanMessage("My locker is 47-B.", id="first")]
for day in range(60):
    messages += [HumanMessage(f"Day {day}: the harbour was busy, as on every day."), AIMessage("Noted.")]
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
builder = StateGraph(MessagesState)
builder.add_node("model", lambda state: {"messages": [model.invoke(state["messages"][-6:])]})
builder.add_edge(START, "model")
saver = InMemorySaver()
graph = builder.compile(checkpointer=saver)
thread = {"configurable": {"thread_id": "ann"}}
graph.invoke({"messages": messages}, thread)
graph.invoke({"messages": [("user", "My bike is green.")]}, thread)
"""

TASKS: Final = (
    Task(
        "an agent that goes on when its window is full",
        "`SummarizationMiddleware`",
        """from langchain.agents import create_agent
from langchain.agents.middleware import SummarizationMiddleware
from langgraph.checkpoint.memory import InMemorySaver

shorter = SummarizationMiddleware(
    model, trigger=("tokens", 4_000), keep=("messages", 8)
)
agent = create_agent(
    model, tools, middleware=[shorter], checkpointer=InMemorySaver()
)
result = tell(agent)
""",
        """from langchain.agents import create_agent
from langchain_ctx import ContextMiddleware

context = ContextMiddleware(context_window=8_000)
agent = create_agent(model, tools, middleware=[context])
result = tell(agent)
""",
        TALK,
    ),
    Task(
        "a chat model that remembers, in a file",
        "LangGraph, `SqliteSaver`, `trim_messages`",
        """from langchain_core.messages import trim_messages
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph


def answer(state: MessagesState):
    kept = trim_messages(
        state["messages"], max_tokens=6_000, token_counter="approximate"
    )
    return {"messages": [model.invoke(kept)]}


builder = StateGraph(MessagesState)
builder.add_node("answer", answer)
builder.add_edge(START, "answer")
with SqliteSaver.from_conn_string(f"{folder}/other.db") as saver:
    chat = builder.compile(checkpointer=saver)
    chat.invoke({"messages": [("user", "My locker is 47-B.")]}, thread)
    last = chat.invoke({"messages": [("user", "My locker?")]}, thread)
result = last["messages"][-1].text
""",
        """from langchain_ctx import with_context

chat = with_context(
    model, store=f"sqlite:///{folder}/chat.db", context_window=8_000
)
chat.invoke("My locker is 47-B.", thread)
result = chat.invoke("My locker?", thread).text
""",
        'thread = {"configurable": {"thread_id": "ann"}}\n',
    ),
    Task(
        "a LlamaIndex chat engine that remembers",
        "`Memory`",
        """from llama_index.core.chat_engine import SimpleChatEngine
from llama_index.core.memory import Memory

memory = Memory.from_defaults(
    session_id="ann",
    token_limit=6_000,
    async_database_uri=f"sqlite+aiosqlite:///{folder}/other.db",
)
engine = SimpleChatEngine.from_defaults(llm=llm, memory=memory)
engine.chat("My locker is 47-B.")
result = str(engine.chat("What is my locker?"))
""",
        """from llama_index.core.chat_engine import SimpleChatEngine
from llamaindex_ctx import CtxMemory

memory = CtxMemory.from_defaults(
    session_id="ann",
    token_limit=6_000,
    store=f"sqlite:///{folder}/ours.db",
)
engine = SimpleChatEngine.from_defaults(llm=llm, memory=memory)
engine.chat("My locker is 47-B.")
result = str(engine.chat("What is my locker?"))
""",
    ),
    Task(
        "find what was said, by words, the best first",
        "LangGraph's `Store` with an embedder",
        """from langgraph.store.memory import InMemoryStore

store = InMemoryStore(
    index={"dims": 384, "embed": embed, "fields": ["text"]}
)
for message in messages:
    store.put(("ann",), message.id, {"text": message.text})
hits = store.search(("ann",), query="Which locker?", limit=3)
result = [hit.value["text"] for hit in hits]
""",
        """hits = ctx.search("Which locker?", limit=3)
result = [hit.excerpt for hit in hits]
""",
        TOLD
        + """
from tests.support.minilm import MiniLM
embed = MiniLM().embed
for number, message in enumerate(messages):
    message.id = str(number)
messages = messages[:20]
""",
    ),
    Task(
        "how full the window is",
        "`count_tokens_approximately`",
        """from langchain_core.messages.utils import count_tokens_approximately

limit = model.profile["max_input_tokens"]
result = f"{count_tokens_approximately(messages)} of {limit} tokens"
""",
        """result = str(ctx.explain().gauge)
""",
        TOLD,
    ),
    Task(
        "keep one message word for word through all summaries",
        "a prompt of one's own",
        """from langchain.agents import create_agent
from langchain.agents.middleware import dynamic_prompt

pinned = {"ann": ["My locker is 47-B."]}


@dynamic_prompt
def with_pins(request):
    thread = request.runtime.execution_info.thread_id
    return "Remember: " + " ".join(pinned.get(thread, []))


agent = create_agent(model, tools, middleware=[with_pins])
asked = {"messages": [("user", "What is my locker?")]}
result = agent.invoke(asked, thread)["messages"][-1].text
""",
        """ctx.pin("#1")
fill(ctx)
result = " ".join(m.text for m in ctx.window().messages)
""",
        """
from ctxfold import AgentContext, assistant, user
ctx = AgentContext(session_id="ann", context_window=2_000)
ctx.add("My locker is 47-B.")
thread = {"configurable": {"thread_id": "ann"}}
def fill(ctx):
    for day in range(60):
        ctx.add([user(f"Day {day}: the harbour was busy, as on every day."), assistant("Noted.")])
""",
    ),
    Task(
        "go back to an earlier point and try another way",
        "LangGraph's checkpoints",
        """earlier = next(
    state
    for state in graph.get_state_history(thread)
    if len(state.values["messages"]) == 122 and not state.next
)
asked = {"messages": [("user", "What is my locker?")]}
result = len(graph.invoke(asked, earlier.config)["messages"])
""",
        """branch = ctx.fork("what-if", at="#121")
result = len(branch.messages())
""",
        TOLD,
    ),
    Task(
        "delete for good all that a user said",
        "a checkpointer, thread by thread",
        """threads = {
    saved.config["configurable"]["thread_id"] for saved in saver.list(None)
}
for name in threads:
    saver.delete_thread(name)
result = list(saver.list(None))
""",
        """ctx.erasure.erase_owner()
result = []
""",
        TOLD,
    ),
    Task(
        "a fact about the user, in every conversation",
        "LangGraph's `Store`",
        """from langgraph.store.memory import InMemoryStore

store = InMemoryStore()
store.put(("ann", "facts"), "home town", {"text": "Berlin"})
hits = store.search(("ann", "facts"))
result = [hit.value["text"] for hit in hits]
""",
        """ctx.memory.add("facts", "Berlin", key="home town")
result = [item.text for item in ctx.memory.list("facts")]
""",
        TOLD,
    ),
    Task(
        "a shorter list of messages, without a session",
        "`trim_messages`",
        """from langchain_core.messages import trim_messages

result = trim_messages(
    messages,
    max_tokens=600,
    token_counter="approximate",
    start_on="human",
    include_system=True,
)
""",
        """from ctxfold.adapters.summaries import compact_messages

result = compact_messages(listed, context_window=2_000)
""",
        TOLD + "listed = ctx.messages()\n",
    ),
    Task(
        "take the conversation along as a file",
        "`messages_to_dict`",
        """import json
from pathlib import Path

from langchain_core.messages import messages_to_dict

saved = json.dumps(messages_to_dict(messages))
Path(f"{folder}/talk.json").write_text(saved)
result = len(messages)
""",
        """result = ctx.files.export_jsonl(f"{folder}/talk.jsonl")
""",
        TOLD,
    ),
    Task(
        "what a request will hold, before it is sent",
        "a model that takes the request down",
        """from langchain.agents import create_agent
from langchain.agents.middleware import wrap_model_call

sent = []


@wrap_model_call
def take_down(request, handler):
    sent.extend(request.messages)
    return handler(request)


agent = create_agent(model, tools, middleware=[take_down])
agent.invoke({"messages": messages}, thread)
result = len(sent)
""",
        """result = len(ctx.window().messages)
""",
        TOLD,
    ),
)
