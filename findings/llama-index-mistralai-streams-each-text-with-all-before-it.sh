#!/bin/sh
# llama-index-llms-mistralai 0.11.0 with llama-index-core 0.14.25 and mistralai 3.7.0.
# Streamed, each chunk adds a text block with all of the text so far to the same list of blocks, and no block replaces the one before.
# The last response of a stream is the answer an agent stores: its content has each beginning of the answer in a line of its own.
# Seen for the pieces "One ", "two ", "three.": 'One \nOne two \nOne two three.\nOne two three.' where the service wrote 'One two three.'.
# Exits with 0 as long as the last response of a stream repeats its text.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q 'llama-index-core==0.14.25' 'llama-index-llms-mistralai==0.11.0' 'mistralai==3.7.0' 2>/dev/null
cat > "$folder/try.py" <<'PY'
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from llama_index.core.base.llms.types import ChatMessage
from llama_index.llms.mistralai import MistralAI


class Service(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        pieces = [("One ", None), ("two ", None), ("three.", None), ("", "stop")]
        lines = []
        for text, finish in pieces:
            choice = {"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": finish}
            chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "mistral-small-latest", "choices": [choice]}
            lines.append(f"data: {json.dumps(chunk)}\n\n")
        data = "".join([*lines, "data: [DONE]\n\n"]).encode()
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
threading.Thread(target=server.serve_forever, daemon=True).start()
llm = MistralAI(model="mistral-small-latest", api_key="k", endpoint=f"http://127.0.0.1:{server.server_port}", max_retries=0)
*_, last = llm.stream_chat([ChatMessage(role="user", content="Count.")])
server.shutdown()
print(repr(last.message.content))
assert last.message.content != "One two three.", "the text stands once now"
assert last.message.content.count("One") > 1
PY
"$folder/venv/bin/python" -W ignore "$folder/try.py"
