"""The application of examples/workflow_server, run by llama-agents' own server in a process of its own and asked over loopback."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from llama_agents.client import WorkflowClient
from llama_index.core.base.llms.types import ChatMessage
from workflows.context.serializers import JsonSerializer

from ctxfold import MemoryStore
from ctxfold.testing import ModelServer, Scripted, ScriptedCall
from llamaindex_ctx import CtxMemory
from llamaindex_ctx.store_registry import register_store

SERVER = Path(__file__).parents[2] / "examples" / "workflow_server" / "server.py"


def play(body: Any) -> Scripted:
    """A model that reads the log once for each question, and answers with what the window holds of the first message."""
    messages = body["messages"]
    added = ("Passages recalled", "[A note")  # by the context, behind the question
    asked = max(
        (i for i, m in enumerate(messages) if m["role"] == "user" and not m["content"].startswith(added)), default=-1
    )
    if not body.get("tools") or any(m["role"] == "tool" for m in messages[asked + 1 :]):
        known = "47-B" in json.dumps(messages)
        return Scripted(f"The pumps were looked at. The locker is {'47-B' if known else 'not known'}.")
    return Scripted(tool_calls=(ScriptedCall("read_log", json.dumps({"hour": 7})),))


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@asynccontextmanager
async def running(
    folder: Path, model: ModelServer, stop: signal.Signals = signal.SIGTERM
) -> AsyncIterator[WorkflowClient]:
    port = free_port()
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "WORKFLOWS_PY_SERVER_HOST": "127.0.0.1",
        "WORKFLOWS_PY_SERVER_PORT": str(port),
        "MODEL": "generic:m",
        "OPENAI_BASE_URL": model.base_url,
        "CONTEXT_WINDOW": "6000",
    }
    command = [sys.executable, "-m", "llama_agents.server", str(SERVER)]
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        try:
            client = WorkflowClient(base_url=f"http://127.0.0.1:{port}")
            while True:
                try:
                    await client.is_healthy()
                    break
                except httpx.TransportError:
                    assert process.poll() is None, process.stdout.read().decode()  # type: ignore[union-attr]
                    await asyncio.sleep(0.1)
            yield client
        finally:
            process.send_signal(stop)
            process.communicate(timeout=60)


async def ask(client: WorkflowClient, session_id: str, question: str) -> dict[str, Any]:
    done = await client.run_workflow("pumps", start_event={"session_id": session_id, "question": question})
    assert done.error is None
    assert done.result is not None
    return done.result.value


async def test_sessions_of_a_workflow_server_stay_in_their_window_and_outlive_it(tmp_path: Path) -> None:
    with ModelServer(model="m", script=play, context_window=6_000) as model:
        async with running(tmp_path, model) as client:
            first = await ask(client, "ann", "My locker is 47-B.")
            assert "The locker is 47-B." in first["answer"]
            for hour in range(8):
                answered = await ask(client, "ann", f"What about hour {hour}?")
            assert answered["compactions"] > 0
            assert answered["window_tokens"] <= answered["budget_tokens"]
            assert "not known" in (await ask(client, "bob", "What is my locker?"))["answer"]
        async with running(tmp_path, model) as client:
            assert "47-B" in (await ask(client, "ann", "What is my locker?"))["answer"]
            started = await client.run_workflow_nowait(
                "pumps", start_event={"session_id": "ann", "question": "And hour 9?"}
            )
            streamed = [event.type async for event in client.get_workflow_events(started.handler_id)]
    assert "ToolCallResult" in streamed
    assert "AgentStream" in streamed
    assert streamed[-1] == "Answered"


async def test_h7_a_run_that_is_resumed_has_its_question_once(tmp_path: Path) -> None:
    """The server resumes what began more than 30 seconds before it starts."""
    held = threading.Event()
    script = [Scripted("Late.", held=held), Scripted("The pumps run.")]
    with ModelServer(model="m", script=script, context_window=6_000) as model:
        async with running(tmp_path, model, signal.SIGKILL) as client:
            event = {"session_id": "ann", "question": "Do they run?"}
            begun = await client.run_workflow_nowait("pumps", start_event=event)
            while not model.requests:
                await asyncio.sleep(0.1)
            await asyncio.sleep(33)
        held.set()
        async with running(tmp_path, model) as client:
            while (handler := await client.get_handler(begun.handler_id)).status == "running":
                await asyncio.sleep(0.2)
    assert handler.status == "completed"
    with CtxMemory.from_defaults("ann", store=f"sqlite:///{tmp_path / 'sessions.db'}", context_window=6_000) as memory:
        told = [m.content for m in memory.get_all()]
    assert told == ["Do they run?", "The pumps run."]


def test_h8_a_memory_in_a_context_of_the_server_is_read_back() -> None:
    """The server's default serialiser reads no class that it was not given."""
    register_store("h8", MemoryStore())
    memory = CtxMemory.from_defaults("ann", store="h8", context_window=6_000)
    memory.put(ChatMessage(role="user", content="hi"))
    text = JsonSerializer().serialize(memory)
    again = JsonSerializer(allowed_types=[CtxMemory]).deserialize(text)
    assert [m.content for m in again.get_all()] == ["hi"]
    with pytest.raises(ValueError, match="allowed"):
        JsonSerializer(allowed_types=[]).deserialize(text)
