#!/bin/sh
# langchain-openai 1.7.4 with langchain-core 1.8.3 and openai 2.54.0.
# vLLM (`continuous_usage_stats`) and other servers of chat completions report usage with each chunk of a stream: the same prompt tokens each
# time, and the completion tokens so far. ChatOpenAI makes a `usage_metadata` of each report, and LangChain adds these up when it merges
# chunks, so that `stream` and an agent's `invoke` alike say that a prompt of 100 tokens had as many times 100 as there were chunks.
# Seen: {'input_tokens': 600, 'output_tokens': 20} for a prompt of 100 tokens and 5 tokens of answer.
# Exits with 0 as long as that is so.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install -q "langchain-openai==1.7.4" "langchain-core==1.8.3" "openai==2.54.0" 2>/dev/null
cat >"$folder/run.py" <<'PROGRAM'
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from langchain_openai import ChatOpenAI


class Service(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for done, text in enumerate(["It", " is", " a", " fine", " day", ""], 1):
            so_far = min(done, 5)
            chunk = {
                "id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m",
                "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None if text else "stop"}],
                "usage": {"prompt_tokens": 100, "completion_tokens": so_far, "total_tokens": 100 + so_far},
            }
            self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
threading.Thread(target=server.serve_forever, daemon=True).start()
model = ChatOpenAI(model="m", api_key="x", base_url=f"http://127.0.0.1:{server.server_port}/v1", stream_usage=True)
whole = None
for chunk in model.stream("How is the day?"):
    whole = chunk if whole is None else whole + chunk
server.shutdown()
usage = {name: whole.usage_metadata[name] for name in ("input_tokens", "output_tokens")}
print(repr(whole.text), usage)
assert usage == {"input_tokens": 600, "output_tokens": 20}, usage
PROGRAM
"$folder/env/bin/python" "$folder/run.py"
