#!/bin/sh
# langgraph 1.2.24 with langchain 1.5.2 and langchain-core 1.8.3.
# With DeltaChannel (a beta) a checkpoint holds the writes of a step, and a state is made of them each time it is read. A message that came
# without an id, such as a tool's result or ("user", text), gets its id from `add_messages` then, so that it has another one at each read
# until a snapshot is written. In a plain `messages` channel it keeps the id of its first step.
# Seen: plain True, delta False (whether the ids of two reads are the same).
# Exits with 0 as long as that is so.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install -q "langgraph==1.2.24" "langchain==1.5.2" "langchain-core==1.8.3" 2>/dev/null
cat >"$folder/run.py" <<'PROGRAM'
import warnings
from typing import Annotated

from langchain_core.messages import AIMessage, AnyMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from typing_extensions import TypedDict

warnings.simplefilter("ignore")


def add_all(messages, writes):
    for write in writes:
        messages = add_messages(messages, write)
    return messages


class Plain(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


class Delta(TypedDict):
    messages: Annotated[list[AnyMessage], DeltaChannel(add_all, snapshot_frequency=100)]


def same_ids(schema):
    graph = StateGraph(schema)
    graph.add_node("answer", lambda state: {"messages": [AIMessage("Hello to you")]})
    graph.add_edge(START, "answer")
    app = graph.compile(checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "t"}}
    app.invoke({"messages": [("user", "Hello")]}, config)
    first, second = ([m.id for m in app.get_state(config).values["messages"]] for _ in range(2))
    assert all(first) and all(second) and len(first) == 2
    return first == second


plain, delta = same_ids(Plain), same_ids(Delta)
print("plain", plain, "delta", delta)
assert (plain, delta) == (True, False)
PROGRAM
"$folder/env/bin/python" "$folder/run.py"
