"""Runs the six programs of docs/recipes.md as a user would, against real FastAPI, Streamlit, Chainlit, PostgreSQL and LangGraph.

`make recipes` makes an environment for it. The services that models are asked of are loopback servers: `ModelServer`, and one that
speaks Ollama's chat API.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx

from ctxfold.testing import ModelServer

PAGE = Path(__file__).resolve().parents[2] / "docs" / "recipes.md"
TOLD, ASKED, KNOWN = "My locker is 47-B.", "What is my locker?", "47-B"
START_S = 60.0


def programs() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.S | re.M)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def started(command: list[str], port: int) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-m", *command])
    try:
        deadline = time.monotonic() + START_S
        while True:
            try:
                httpx.get(f"http://127.0.0.1:{port}/")
                break
            except httpx.HTTPError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{command[0]} does not answer") from None
                time.sleep(0.2)
        yield
    finally:
        process.terminate()
        process.wait(timeout=30)


def fastapi() -> None:
    port = free_port()
    kinds: set[str] = set()
    with started(["uvicorn", "app:app", "--port", str(port), "--log-level", "warning"], port):
        url = f"http://127.0.0.1:{port}/chats/ann"
        for number in range(40):
            text = f"The code of locker {number} is {number * 1_117}. " + "Note it. " * 90
            rows = [json.loads(line) for line in httpx.post(url, params={"text": text}, timeout=60).text.splitlines()]
            kinds |= {row.get("event", "text") for row in rows}
        answer = httpx.post(url, params={"text": "What is the code of locker 3?"}, timeout=60).text
    assert kinds == {"text", "CompactionStarted", "CompactionProgress", "HistoryCompacted"}, kinds
    assert "3351" in answer, answer


def streamlit() -> None:
    from streamlit.testing.v1 import AppTest

    page = AppTest.from_file(str(Path("app.py").resolve()), default_timeout=60).run()
    for text in (TOLD, ASKED):
        page.chat_input[0].set_value(text).run()
        assert not page.exception, page.exception
    shown = [(message.name, message.markdown[0].value) for message in page.chat_message]
    assert shown[0] == ("user", TOLD)
    assert shown[-1][0] == "assistant"
    assert KNOWN in shown[-1][1], shown
    assert "until the next compaction" in page.sidebar.markdown[0].value


def chainlit() -> None:
    import socketio

    port = free_port()
    with started(["chainlit", "run", "app.py", "--headless", "--port", str(port)], port):
        client = socketio.SimpleClient()
        auth = {"sessionId": "s1", "clientType": "webapp", "userEnv": "{}", "chatProfile": "", "threadId": ""}
        client.connect(f"http://127.0.0.1:{port}", socketio_path="/ws/socket.io", auth=auth, transports=["websocket"])
        client.emit("connection_successful")
        answers = []
        for text in (TOLD, ASKED):
            row = {"id": str(uuid.uuid4()), "threadId": "", "name": "user", "type": "user_message", "output": text}
            client.emit("client_message", {"message": {**row, "createdAt": "2026-01-01T00:00:00Z"}})
            while True:
                name, *about = client.receive(timeout=60)
                if name in ("new_message", "update_message") and about[0]["type"] == "assistant_message":
                    answers.append(about[0]["output"])
                    break
        client.disconnect()
    assert KNOWN in answers[-1], answers


def in_one_run() -> None:
    where = {"DATABASE_URL": "postgresql://postgres@127.0.0.1/test", **os.environ}
    command = [sys.executable, "app.py"]
    done = subprocess.run(command, env=where, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert KNOWN in done.stdout.splitlines()[-1], done.stdout


class Ollama(BaseHTTPRequestHandler):
    """Answers /api/chat as Ollama streams it: a call of the tool first, then what the tool returned."""

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        message: dict[str, Any] = {"role": "assistant", "content": ""}
        last = asked["messages"][-1]
        if last["role"] == "tool":
            message["content"] = last["content"]
        else:
            message["tool_calls"] = [{"function": {"name": "tide", "arguments": {"harbour": "Visby"}}}]
        row = {"model": asked["model"], "created_at": "2026-01-01T00:00:00Z", "message": message}
        last_row = {**row, "message": {"role": "assistant", "content": ""}, "done": True, "done_reason": "stop"}
        body = "".join(json.dumps(r) + "\n" for r in ({**row, "done": False}, last_row)).encode()
        if not asked.get("stream"):
            body = json.dumps({**row, "done": True, "done_reason": "stop"}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/x-ndjson")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def ollama() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Ollama)
    Thread(target=server.serve_forever, daemon=True).start()
    os.environ["OLLAMA_HOST"] = f"http://127.0.0.1:{server.server_port}"
    program = Path("app.py")
    address = f'"qwen3:4b", base_url="{os.environ["OLLAMA_HOST"]}",'
    program.write_text(program.read_text(encoding="utf-8").replace('"qwen3:4b",', address), encoding="utf-8")
    done = subprocess.run([sys.executable, "app.py"], capture_output=True, text=True, check=False, timeout=300)
    server.shutdown()
    assert done.returncode == 0, done.stderr
    assert "High tide in Visby at 17:40." in done.stdout, done.stdout


CHECKS: tuple[Callable[[], None], ...] = (fastapi, streamlit, chainlit, in_one_run, ollama, in_one_run)


def main() -> None:
    texts = programs()
    assert len(texts) == len(CHECKS), len(texts)
    start = Path.cwd()
    for text, check in zip(texts, CHECKS, strict=True):
        with tempfile.TemporaryDirectory() as folder, ModelServer(context_window=8_000) as server:
            os.environ.update(OPENAI_API_KEY="none", OPENAI_BASE_URL=server.base_url, OPENAI_API_BASE=server.base_url)
            os.chdir(folder)
            Path("app.py").write_text(text, encoding="utf-8")
            check()
            os.chdir(start)
        print(f"{check.__name__}: as it should be", flush=True)


if __name__ == "__main__":
    main()
