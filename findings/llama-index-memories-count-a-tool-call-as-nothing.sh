#!/bin/sh
# llama-index-core 0.14.25.
# Memory and ChatMemoryBuffer count the text blocks of a message against their token limit. A ToolCallBlock counts as nothing, whatever its
# arguments hold, so that an agent that writes files through its tools never reaches the limit, and its window outgrows the model's.
# Seen: limit 500, arguments in the window of Memory 20,000 words, of ChatMemoryBuffer 20,000 words.
# Exits with 0 as long as that is so.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install -q "llama-index-core==0.14.25" 2>/dev/null
cat >"$folder/run.py" <<'PROGRAM'
import logging

logging.disable(logging.CRITICAL)
from llama_index.core.base.llms.types import ChatMessage, ToolCallBlock
from llama_index.core.memory import ChatMemoryBuffer, Memory


def words(memory):
    for number in range(20):
        call = ToolCallBlock(tool_call_id=f"c{number}", tool_name="write", tool_kwargs={"text": "word " * 1_000})
        memory.put(ChatMessage(role="user", content="Write."))
        memory.put(ChatMessage(role="assistant", blocks=[call]))
        memory.put(ChatMessage(role="tool", content="ok", additional_kwargs={"tool_call_id": f"c{number}"}))
        memory.put(ChatMessage(role="assistant", content="Done."))
    calls = [b for m in memory.get() for b in m.blocks if isinstance(b, ToolCallBlock)]
    return sum(len(call.tool_kwargs["text"].split()) for call in calls)


shown = words(Memory.from_defaults(token_limit=500)), words(ChatMemoryBuffer.from_defaults(token_limit=500))
print("words of arguments in the windows of Memory and ChatMemoryBuffer", shown)
assert shown == (20_000, 20_000)
PROGRAM
"$folder/env/bin/python" "$folder/run.py"
