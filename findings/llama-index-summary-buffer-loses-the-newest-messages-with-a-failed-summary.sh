#!/bin/sh
# llama-index-core 0.14.25.
# ChatSummaryMemoryBuffer moves the newest messages, those that shall stay as they are, out of its history before it asks for a summary of the
# others. When that one request fails, `get` raises, and it is the newest messages that are gone for good: the next window has a summary of the
# older ones and ends in the middle of the talk, without what the user said last.
# Seen: put 12, kept 7, "locker 12" (said last) in the next window False.
# Exits with 0 as long as that is so.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install -q "llama-index-core==0.14.25" 2>/dev/null
cat >"$folder/run.py" <<'PROGRAM'
import logging
import warnings

warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.llms.mock import MockLLM
from llama_index.core.memory import ChatSummaryMemoryBuffer


class FailsOnce(MockLLM):
    def chat(self, messages, **kwargs):
        if not asked:
            asked.append(1)
            raise RuntimeError("no quota left")
        return super().chat(messages, **kwargs)


asked = []
memory = ChatSummaryMemoryBuffer.from_defaults(token_limit=150, llm=FailsOnce())
for number in range(11):
    role = "assistant" if number % 2 else "user"
    memory.put(ChatMessage(role=role, content=f"Sentence {number} of a talk about one thing and another, as people do. " * 2))
memory.put(ChatMessage(role="user", content="My ticket is for locker 12."))
raised = None
try:
    memory.get()
except RuntimeError as error:
    raised = str(error)
kept = len(memory.get_all())
window = " ".join(str(m.content) for m in memory.get())
print("raised", raised, "kept", kept, "of 12, what was said last in the next window", "locker 12" in window)
assert raised == "no quota left" and kept == 7 and "locker 12" not in window
PROGRAM
"$folder/env/bin/python" "$folder/run.py"
