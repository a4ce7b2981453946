#!/bin/bash
# LiteLLM 1.108.7, chat completions to Anthropic: an assistant message with tool calls and `content: ""`, which is what OpenAI's
# own API and most clients write, reaches Claude with a text that nobody said:
#   [{"type": "text", "text": "[System: Empty message content sanitised to satisfy protocol]"}, {"type": "tool_use", ...}]
# With `content: null` it is the call alone. With signed thinking blocks missing, that text is then the first block of the message,
# which Claude refuses while it thinks ("Expected `thinking` or `redacted_thinking`, but found `text`").
# Exits with 0 while LiteLLM does this, with another code once that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q 'litellm==1.108.7' 2>/dev/null
export LITELLM_LOCAL_MODEL_COST_MAP=True
"$folder/venv/bin/python" - <<'PY'
import json

from litellm.litellm_core_utils.prompt_templates.factory import anthropic_messages_pt


def blocks(content):
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": content, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "plums"},
    ]
    return anthropic_messages_pt(messages=messages, model="claude-sonnet-4-5", llm_provider="anthropic")[1]["content"]


empty, null = blocks(""), blocks(None)
print("content '' :", json.dumps(empty))
print("content null:", json.dumps(null))
assert [block["type"] for block in empty] == ["text", "tool_use"], empty
assert "sanitised" in empty[0]["text"], empty
assert [block["type"] for block in null] == ["tool_use"], null
PY
