#!/bin/sh
# langchain-core 1.8.3 with langgraph 1.2.24 and langchain 1.5.2.
# `collect_runs()` gathers the root runs of what is called within it. For an agent it lists each model call too, without a parent, beside the agent's
# own run: its handler is not inherited, so that the call within the graph gets it anew, where nothing of the graph's run is known to it.
# Seen: ['GenericFakeChatModel', 'LangGraph'] and parents [None, None] for one question.
# Exits with 0 as long as that is so.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install -q "langgraph==1.2.24" "langchain==1.5.2" "langchain-core==1.8.3" 2>/dev/null
cat >"$folder/run.py" <<'PROGRAM'
from langchain.agents import create_agent
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.tracers.context import collect_runs

agent = create_agent(GenericFakeChatModel(messages=iter([AIMessage("Hello.")])))
with collect_runs() as collected:
    agent.invoke({"messages": [("user", "Hello?")]})
names = [run.name for run in collected.traced_runs]
parents = [run.parent_run_id for run in collected.traced_runs]
print(names, "and parents", parents)
assert names == ["GenericFakeChatModel", "LangGraph"] and parents == [None, None]
PROGRAM
"$folder/env/bin/python" "$folder/run.py"
