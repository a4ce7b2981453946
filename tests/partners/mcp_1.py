"""`ctxfold mcp` on mcp 1, asked by LangChain's adapters, which have no release for mcp 2."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from langchain_mcp_adapters.client import MultiServerMCPClient

from ctxfold import AgentContext, assistant, user

COMMAND = str(Path(sys.executable).with_name("ctxfold"))
STARTS_WITHIN_S = 60.0


async def asked(connection: Any) -> None:
    """Searches, and asks for what there is not: each answer arrives once, as text."""
    tools = {tool.name: tool for tool in await MultiServerMCPClient({"past": connection}).get_tools()}
    assert list(tools) == ["search", "read", "list_sessions", "remember", "pin", "unpin"], list(tools)
    call = {"name": "search", "args": {"query": "locker"}, "id": "c", "type": "tool_call"}
    answer = await tools["search"].ainvoke(call)
    assert str(answer.content).count("47-B") == 1, answer
    assert answer.artifact is None, answer.artifact
    try:
        told = str(await tools["read"].ainvoke({"session": "nobody", "reference": "#1"}))
    except Exception as error:  # the adapters raise what a tool answers as its error
        told = str(error)
    assert "nobody" in told, told


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = f"sqlite:///{Path(folder, 'chat.db')}"
        with AgentContext(session_id="ann", store=store, context_window=8_000) as context:
            context.add([user("My locker is 47-B.", id="q"), assistant("Noted.", id="a")])
        asyncio.run(asked({"transport": "stdio", "command": COMMAND, "args": ["mcp", "--store", store]}))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        server = subprocess.Popen([COMMAND, "mcp", "--store", store, "--http", str(port)], stderr=subprocess.DEVNULL)
        try:
            _wait(port)
            asyncio.run(asked({"transport": "streamable_http", "url": f"http://127.0.0.1:{port}/mcp"}))
        finally:
            server.terminate()
            server.wait(30)
    print(f"mcp {version('mcp')}, langchain-mcp-adapters {version('langchain-mcp-adapters')}: over pipes and HTTP")


def _wait(port: int) -> None:
    end = time.monotonic() + STARTS_WITHIN_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)
