#!/bin/sh
# langchain-openai 1.7.4 with langchain-core 1.8.3 and openai 2.54.0.
# `n=2` asks a service of chat completions for two answers. Whole, ChatOpenAI returns two generations, and `invoke` has the first one. Streamed,
# it takes the first choice of each chunk, whatever the choice's `index` is, and services send the chunks of several choices in turns: the two
# answers are one text with pieces of both.
# Seen: whole 'It is fine.', streamed 'It You is ask fine.often.'
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

ANSWERS = ["It is fine.", "You ask often."]
HEAD = {"id": "c", "created": 1, "model": "m"}


def pieces():
    for words in zip(*(answer.split() for answer in ANSWERS)):
        for index, word in enumerate(words):
            last = ANSWERS[index].endswith(word)
            yield index, word if last else f"{word} "


class Service(BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        if not asked.get("stream"):
            choices = [
                {"index": i, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
                for i, text in enumerate(ANSWERS)
            ]
            body = json.dumps({**HEAD, "object": "chat.completion", "choices": choices}).encode()
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for index, text in pieces():
            choice = {"index": index, "delta": {"content": text}, "finish_reason": None}
            chunk = {**HEAD, "object": "chat.completion.chunk", "choices": [choice]}
            self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        for index in range(2):
            choice = {"index": index, "delta": {}, "finish_reason": "stop"}
            chunk = {**HEAD, "object": "chat.completion.chunk", "choices": [choice]}
            self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
threading.Thread(target=server.serve_forever, daemon=True).start()
model = ChatOpenAI(model="m", api_key="x", base_url=f"http://127.0.0.1:{server.server_port}/v1", n=2)
whole = model.invoke("How is the day?").text
streamed = "".join(chunk.text for chunk in model.stream("How is the day?"))
server.shutdown()
print(repr(whole), repr(streamed))
assert whole == "It is fine.", whole
assert streamed == "It You is ask fine.often.", streamed
PROGRAM
"$folder/env/bin/python" "$folder/run.py"
