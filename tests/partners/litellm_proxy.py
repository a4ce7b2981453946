"""A real LiteLLM proxy in front of the strict Anthropic server: thinking, tool rounds and parallel calls, whole and streamed."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ctxfold import AgentContext, Completed, Reply, ToolSpec, open_backend, tool_result
from ctxfold.testing import ModelServer, Scripted, ScriptedCall

QUESTIONS = 5
ROUNDS = 2  # of tools before each answer
STARTS_WITHIN_S = 180.0
TOOLS = (ToolSpec("look", "Looks a thing up.", {"type": "object", "properties": {"n": {"type": "integer"}}}),)


class Model:
    """Thinks before each reply, and calls tools, one and then two, before it answers."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, body: Mapping[str, Any]) -> Scripted:
        self.asked += 1
        messages = body["messages"]
        if not body.get("tools"):
            return Scripted("The user asked for entries.")
        last = max(i for i, message in enumerate(messages) if message["role"] == "user")
        done = sum(bool(message.get("tool_calls")) for message in messages[last:])
        thought = f"Thought {self.asked} about it."
        if done < ROUNDS:
            calls = tuple(ScriptedCall("look", json.dumps({"n": n})) for n in range(1 + done))
            return Scripted("", reasoning=thought, tool_calls=calls)
        return Scripted(f"Answer {self.asked}.", reasoning=thought)


@contextmanager
def proxy(server: ModelServer) -> Iterator[tuple[str, str]]:
    """Yields the address of a LiteLLM proxy on a free port of loopback, and its key."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    key = f"sk-{secrets.token_hex(24)}"
    upstream = {"model": "anthropic/claude-sonnet-4-5", "api_base": server.base_url.removesuffix("/v1"), "api_key": "k"}
    with tempfile.TemporaryDirectory() as folder:
        config, log = Path(folder, "config.yaml"), Path(folder, "log")
        config.write_text(json.dumps({"model_list": [{"model_name": "claude", "litellm_params": upstream}]}))
        command = [str(Path(sys.executable).with_name("litellm")), "--config", str(config), "--telemetry", "False"]
        quiet = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "DISABLE_ADMIN_UI": "True", "LITELLM_MASTER_KEY": key}
        with log.open("w") as output:
            process = subprocess.Popen(
                [*command, "--host", "127.0.0.1", "--port", str(port)],
                env={**os.environ, **quiet},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            _wait(f"http://127.0.0.1:{port}/health/liveliness", process, log)
            yield f"http://127.0.0.1:{port}/v1", key
        finally:
            process.terminate()
            process.wait(30)


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + STARTS_WITHIN_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the proxy did not start:\n{log.read_text()[-2000:]}") from None
            time.sleep(0.5)


def asked(context: AgentContext, content: Any, *, stream: bool) -> Reply:
    if not stream:
        return context.send(content, tools=TOOLS, thinking=True)
    *_, last = context.send_stream(content, tools=TOOLS, thinking=True)
    assert isinstance(last, Completed)
    return last.reply


def main() -> None:
    """Runs 20 thinking rounds with tools, half of them streamed; raises when one was refused or a thought is missing."""
    model = Model()
    with ModelServer(script=model, strict="anthropic") as server, proxy(server) as (base_url, key):
        for stream in (False, True):
            with (
                open_backend("litellm", "claude", base_url=base_url, api_key=key, max_retries=0) as backend,
                AgentContext(backend, store="memory://", context_window=60_000) as context,
            ):
                for number in range(QUESTIONS):
                    reply = asked(context, f"Question {number}?", stream=stream)
                    while calls := reply.message.tool_calls:
                        results = [tool_result(call.id, "Plums.", id=f"r-{call.id}") for call in calls]
                        reply = asked(context, results, stream=stream)
                    assert reply.message.text.startswith("Answer"), reply
                    assert reply.message.reasoning, "the thought of the answer is kept"
        bodies = [request.body for request in server.requests]
    rounds = 2 * QUESTIONS * ROUNDS
    refused = len(bodies) - model.asked
    assert not refused, f"{refused} of {len(bodies)} requests were refused"
    assert all(body["thinking"]["type"] == "enabled" for body in bodies)
    for body in bodies:
        replies = [message["content"] for message in body["messages"] if message["role"] == "assistant"]
        assert all(content[0]["type"] == "thinking" for content in replies), "each reply goes back with its thought"
        texts = [block["text"] for content in replies for block in content if block["type"] == "text"]
        assert all(text.startswith("Answer") for text in texts), "nothing was invented beside a call"
    print(
        f"litellm {version('litellm')}: {rounds} thinking rounds with tools, {len(bodies)} requests, {refused} refused"
    )
