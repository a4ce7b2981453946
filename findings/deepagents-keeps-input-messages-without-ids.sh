#!/bin/sh
# deepagents 0.7.32 with langgraph 1.2.24, langchain 1.5.2 and langchain-core 1.8.3.
# In LangGraph's `add_messages` each message of a state has an id: one that comes without gets one. deepagents has a reducer of its own for its
# messages, which leaves ("user", text) and HumanMessage(text) at `id=None` in the state, in each later step and turn. Code that tells messages
# apart by their ids, as RemoveMessage does, finds none for what the user said.
# Seen: create_agent [True, True], create_deep_agent [False, True] (whether question and answer have an id).
# Exits with 0 as long as that is so.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install -q "deepagents==0.7.32" "langgraph==1.2.24" "langchain==1.5.2" "langchain-core==1.8.3" 2>/dev/null
cat >"$folder/run.py" <<'PROGRAM'
import itertools
import warnings

from deepagents import create_deep_agent
from langchain.agents import create_agent
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver

warnings.simplefilter("ignore")


class Model(GenericFakeChatModel):
    def bind_tools(self, tools, **kwargs):
        return self


def have_ids(make):
    model = Model(messages=(AIMessage(f"answer {n}") for n in itertools.count()))
    agent = make(model, [], checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "t"}}
    agent.invoke({"messages": [("user", "Hello")]}, config)
    state = agent.invoke({"messages": [("user", "And now?")]}, config)
    return [m.id is not None for m in state["messages"][:2]]


plain, deep = have_ids(create_agent), have_ids(create_deep_agent)
print("create_agent", plain, "create_deep_agent", deep)
assert (plain, deep) == ([True, True], [False, True])
PROGRAM
"$folder/env/bin/python" "$folder/run.py"
