#!/bin/sh
# langchain 1.5.2 with langgraph 1.2.24 and langchain-core 1.8.3.
# A key of an agent's state that a middleware marks as PrivateStateAttr is in neither the input nor the output schema: the result of `invoke` does not
# have it. Each item of `stream(..., stream_mode="values")` has it once it is set, the last one, with which the same run ends, included: a program
# that passes the items on to its clients shows them what the middleware keeps for itself.
# Seen: invoke ['messages'], last of stream ['messages', 'note'].
# Exits with 0 as long as that is so.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install -q "langchain==1.5.2" "langgraph==1.2.24" "langchain-core==1.8.3" 2>/dev/null
cat >"$folder/run.py" <<'PROGRAM'
from typing import Annotated, NotRequired

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, AgentState
from langchain.agents.middleware.types import PrivateStateAttr
from langchain_core.language_models import FakeListChatModel


class State(AgentState):
    note: NotRequired[Annotated[str, PrivateStateAttr]]


class Notes(AgentMiddleware):
    state_schema = State

    def after_model(self, state, runtime):
        return {"note": "for the middleware alone"}


agent = create_agent(FakeListChatModel(responses=["Hi."]), [], middleware=[Notes()])
asked = {"messages": [("user", "Hello.")]}
result, streamed = sorted(agent.invoke(asked)), sorted([*agent.stream(asked, stream_mode="values")][-1])
print("invoke", result, "last of stream", streamed)
assert (result, streamed) == (["messages"], ["messages", "note"])
PROGRAM
"$folder/env/bin/python" "$folder/run.py"
