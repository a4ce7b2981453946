#!/bin/sh
# llama-index-llms-ollama 0.11.0 with llama-index-core 0.14.25 and ollama 0.6.3.
# Ollama's wire has no ids: a result belongs to the call at the same place. The package selects each call under the tool's name as its
# id, and FunctionAgent passes results on as its tools return. Of two parallel calls of one tool, the slower first, the second request
# therefore has the results in the other order, and the model reads the weather of Rome as that of Bonn.
# Seen: calls ['Bonn', 'Rome'], results ['rain in Rome', 'sun in Bonn'].
# Exits with 0 as long as the results come in another order than their calls.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q 'llama-index-core==0.14.25' 'llama-index-llms-ollama==0.11.0' 'ollama==0.6.3' 2>/dev/null
cat > "$folder/try.py" <<'PY'
import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.tools import FunctionTool
from llama_index.llms.ollama import Ollama

requests = []


class Service(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        requests.append(body)
        message = {"role": "assistant", "content": "Done."}
        if len(requests) == 1:
            calls = [{"function": {"name": "weather", "arguments": {"city": city}}} for city in ("Bonn", "Rome")]
            message = {"role": "assistant", "content": "", "tool_calls": calls}
        answer = {"model": "m", "created_at": "2026-01-01T00:00:00Z", "message": message, "done": True, "done_reason": "stop"}
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


async def weather(city: str) -> str:
    """Tells the weather of a city."""
    await asyncio.sleep(0.3 if city == "Bonn" else 0)
    return f"sun in {city}" if city == "Bonn" else f"rain in {city}"


async def main():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    llm = Ollama(model="m", base_url=f"http://127.0.0.1:{server.server_port}", context_window=4000)
    agent = FunctionAgent(llm=llm, tools=[FunctionTool.from_defaults(async_fn=weather)], streaming=False)
    await agent.run("What is the weather in Bonn and Rome?")
    server.shutdown()
    messages = requests[1]["messages"]
    cities = [c["function"]["arguments"]["city"] for m in messages for c in m.get("tool_calls") or ()]
    results = [m["content"] for m in messages if m["role"] == "tool"]
    print("calls", cities, "results", results)
    assert cities == ["Bonn", "Rome"]
    assert results == ["rain in Rome", "sun in Bonn"], "the results come in the order of their calls now"


asyncio.run(main())
PY
"$folder/venv/bin/python" -W ignore "$folder/try.py"
