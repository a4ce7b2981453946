#!/bin/sh
# llama-index-llms-openai 0.8.3 with llama-index-core 0.14.25.
# A reply of the Responses API may hold several message items. OpenAIResponses keeps the text blocks of all of them in one list and adds the
# whole list to the message at each item, so that n items of one text each become n (n + 1) / 2 text blocks.
# Seen: three items, ['one', 'one', 'two', 'one', 'two', 'three'].
# Exits with 0 as long as that is so.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q 'llama-index-core==0.14.25' 'llama-index-llms-openai==0.8.3' 2>/dev/null
cat > "$folder/try.py" <<'PY'
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from llama_index.core.llms import ChatMessage
from llama_index.llms.openai import OpenAIResponses


class Service(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        output = [
            {
                "type": "message",
                "id": f"msg_{n}",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": text, "annotations": []}],
            }
            for n, text in enumerate(("one", "two", "three"))
        ]
        details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
        answer = {
            "id": "resp_1",
            "object": "response",
            "created_at": 1,
            "model": "gpt-4.1-mini",
            "status": "completed",
            "output": output,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": {"input_tokens": 9, "output_tokens": 3, "total_tokens": 12, **details},
        }
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
threading.Thread(target=server.serve_forever, daemon=True).start()
llm = OpenAIResponses(model="gpt-4.1-mini", api_key="x", api_base=f"http://127.0.0.1:{server.server_port}/v1")
message = llm.chat([ChatMessage(role="user", content="Count to three.")]).message
server.shutdown()
texts = [block.text for block in message.blocks if block.block_type == "text"]
print(texts)
assert texts == ["one", "one", "two", "one", "two", "three"], "each text comes once now"
PY
"$folder/venv/bin/python" -W ignore "$folder/try.py"
