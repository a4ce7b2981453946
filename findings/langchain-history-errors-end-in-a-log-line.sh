#!/bin/sh
# langchain-core 1.8.3.
# RunnableWithMessageHistory stores question and answer in a listener at the end of the run. What the history's `add_messages` raises there ends in
# a warning of the logger langchain_core.callbacks.manager: the chain returns its answer as if the turn were stored, and the next turn goes on
# without it.
# Seen: answer "Noted.", raised to the caller None, logged 1, stored 0.
# Exits with 0 as long as that is so.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install -q "langchain-core==1.8.3" 2>/dev/null
cat >"$folder/run.py" <<'PROGRAM'
import logging
import warnings

warnings.simplefilter("ignore")
from langchain_core.chat_history import InMemoryChatMessageHistory
from langchain_core.language_models import FakeListChatModel
from langchain_core.runnables.history import RunnableWithMessageHistory


class Full(InMemoryChatMessageHistory):
    def add_messages(self, messages):
        raise OSError("no space left on device")


lines = []
logger = logging.getLogger("langchain_core.callbacks.manager")
logger.addHandler(type("Kept", (logging.Handler,), {"emit": lambda self, record: lines.append(record.getMessage())})())
logger.propagate = False
history = Full()
chain = RunnableWithMessageHistory(FakeListChatModel(responses=["Noted."]), lambda session_id: history)
raised = answer = None
try:
    answer = chain.invoke("My locker is 12.", {"configurable": {"session_id": "s"}}).content
except OSError as error:
    raised = error
told = sum("no space left" in line for line in lines)
print("answer", answer, "raised", raised, "logged", told, "stored", len(history.messages))
assert (answer, raised, told, len(history.messages)) == ("Noted.", None, 1, 0)
PROGRAM
"$folder/env/bin/python" "$folder/run.py"
