"""Runs the graphs of `app/` on `langgraph dev` with two users, and says what went wrong: `python -m tests.hosts.langgraph_server`.

The model is a loopback `ModelServer` of this process, so that what each run has sent is seen here.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from langgraph_sdk import get_client

from ctxfold.testing import ModelServer, Scripted, ScriptedCall

APP = Path(__file__).parent / "app"
GRAPHS = ("agent", "owned", "fixed", "node", "fit", "history")
STARTS_IN_S = 90
SECRET = "OPAL"


def play(body: Any) -> Scripted:
    """Looks something up once where the question says so, and answers with a story otherwise."""
    last = body["messages"][-1]
    text = str(last["content"])
    if last["role"] == "user" and text.startswith("Look") and body.get("tools"):
        return Scripted(tool_calls=(ScriptedCall("look", json.dumps({"query": text[:20]})),))
    return Scripted(f"I heard: {text[:40]}. " + "It is a long story. " * 25)


class Host:
    """A running server, its users' clients, and what the model was asked."""

    def __init__(self, folder: Path, model: ModelServer) -> None:
        self.model = model
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""

    def start(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        environment = {
            **os.environ,
            "MODEL_URL": self.model.base_url,
            "CTXFOLD_STORE": f"sqlite:///{self._folder}/store",
            "LANGSMITH_TRACING": "false",
            "LANGGRAPH_CLI_NO_ANALYTICS": "1",
        }
        command = [Path(sys.executable).parent / "langgraph", "dev", "--no-browser", "--no-reload", "--port", str(port)]
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*map(str, command)], cwd=self._folder / "app", env=environment, stdout=log, stderr=log
            )

    async def ready(self) -> None:
        for _ in range(STARTS_IN_S * 2):
            try:
                await asyncio.to_thread(urllib.request.urlopen, f"{self.url}/ok", timeout=2)
            except OSError:
                await asyncio.sleep(0.5)
            else:
                return
        raise RuntimeError(f"the server did not start: {self._folder / 'server.log'}")

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    async def restart(self) -> None:
        self.stop()
        self.start()
        await self.ready()

    def client(self, user: str) -> Any:
        return get_client(url=self.url, headers={"x-user": user})

    def sent_since(self, count: int) -> list[str]:
        return [json.dumps(r.body) for r in self.model.requests[count:]]


@asynccontextmanager
async def hosting() -> AsyncGenerator[Host, None]:
    with (
        tempfile.TemporaryDirectory() as name,
        ModelServer(model="m", script=play, strict="openai", context_window=5_000) as model,
    ):
        folder = Path(name)
        shutil.copytree(APP, folder / "app")
        host = Host(folder, model)
        host.start()
        try:
            await host.ready()
            yield host
        finally:
            host.stop()
            if log := os.environ.get("HOST_LOG"):
                shutil.copy(folder / "server.log", log)


def said(text: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text, **fields}]}


async def run(client: Any, thread: str, graph: str, given: Any, **how: Any) -> Any:
    """Runs a graph on a thread to its end; an error of the run is returned as a value."""
    return await client.runs.wait(thread, graph, input=given, raise_error=False, **how)


def forged(thread: str, session: str, root: str) -> dict[str, Any]:
    """A private state key as `ContextMiddleware` writes it, which names a session of somebody's."""
    return {
        "root": root,
        "session": session,
        "head": 1,
        "head_id": "m:0",
        "before": 0,
        "digest": "",
        "handed": {"0": "0"},
    }


def ways_to(hers: str) -> dict[str, Callable[[str], dict[str, Any]]]:
    """Returns how a client may name another user's thread: what it sends beside its input, on a thread `mine` of its own."""
    return {
        "configurable": lambda _: {"config": {"configurable": {"session_id": hers}}},
        "owner": lambda _: {"config": {"configurable": {"session_id": hers, "owner": "ann", "user_id": "ann"}}},
        "context": lambda _: {"context": {"session_id": hers, "owner": "ann"}},
        "metadata": lambda _: {"metadata": {"session_id": hers, "ctxfold_owner": "ann"}},
        "place": lambda _: {"config": {"configurable": {"checkpoint_ns": f"{hers}|x:1"}}},
        "command": lambda mine: {"command": {"update": {"ctxfold": forged(mine, hers, mine)}}},
        "a copied command": lambda mine: {"command": {"update": {"ctxfold": forged(mine, hers, hers)}}},
    }


async def intrude(host: Host, graph: str, hers: str, way: Callable[[str], dict[str, Any]]) -> None:
    """Runs a graph on a thread of another user's, by a way that names `hers`."""
    ben = host.client("ben")
    mine = (await ben.threads.create())["thread_id"]
    await run(ben, mine, graph, said("INTRUDER says hello."))
    how = way(mine)
    question = said("INTRUDER asks what the word is.")
    await run(ben, mine, graph, None if "command" in how else question, **how)
    await run(ben, mine, graph, question)
    for key in (forged(mine, hers, mine), forged(mine, hers, hers)) if graph in ("agent", "owned") else ():
        await ben.threads.update_state(mine, {"ctxfold": key})
        await run(ben, mine, graph, said("INTRUDER asks again."))


async def intrusions(host: Host) -> list[str]:
    """One user tries by all that a client can set to be shown, or to write into, a conversation of the other."""
    problems: list[str] = []
    ann = host.client("ann")
    for graph in GRAPHS:
        hers = (await ann.threads.create())["thread_id"]
        began = len(host.model.requests)
        await run(ann, hers, graph, said(f"My word is {SECRET}."))
        await run(ann, hers, graph, said("And it stays."))
        asked = len(host.model.requests)
        if not any(SECRET in body for body in host.sent_since(began)):
            problems.append(f"{graph}: the user's own run did not work")
        for name, way in ways_to(hers).items():
            await intrude(host, graph, hers, way)
            if any(SECRET in body for body in host.sent_since(asked)):
                problems.append(f"{graph}: by {name} the other user's conversation was shown")
                break
        asked = len(host.model.requests)
        await run(ann, hers, graph, said("What was it?"))
        sent = host.sent_since(asked)
        if any("INTRUDER" in body for body in sent):
            problems.append(f"{graph}: the other user wrote into the conversation")
        if not any(SECRET in body for body in sent):
            problems.append(f"{graph}: the user's own conversation is lost")
    return problems


async def life(host: Host) -> list[str]:
    """One thread lives through tool rounds, all multitask strategies, a cancel, a copy, a fork and a restart of the server.

    Its window of 5,000 tokens is compacted many times; the server's own list tells what a session should hold.
    """
    problems: list[str] = []
    ann = host.client("ann")
    thread = (await ann.threads.create())["thread_id"]
    for number in range(20):
        await run(ann, thread, "agent", said(f"{'Look' if number % 3 == 0 else 'Think'} at matter {number}."))
    for strategy in ("enqueue", "interrupt", "rollback", "reject"):
        for number in range(3):
            try:
                await ann.runs.create(thread, "agent", input=said(f"{strategy} {number}."), multitask_strategy=strategy)
            except httpx.HTTPStatusError as error:
                if error.response.status_code not in (409, 422):
                    raise
        await settled(ann, thread)
    going = await ann.runs.create(thread, "agent", input=said("This is cancelled."))
    await ann.runs.cancel(thread, going["run_id"], wait=True)
    problems += await answers(host, ann, thread, "after a cancel")
    other = (await ann.threads.copy(thread) or {}).get("thread_id")
    if other is not None:
        problems += await answers(host, ann, other, "in a copy")
    history = await ann.threads.get_history(thread, limit=40)
    early = next(s for s in reversed(history) if not s["next"])
    await run(ann, thread, "agent", said("From an earlier state."), checkpoint_id=early["checkpoint"]["checkpoint_id"])
    problems += await answers(host, ann, thread, "after a fork")
    await host.restart()
    ann = host.client("ann")
    problems += await answers(host, ann, thread, "after a restart")
    for number in range(20):
        problems += await answers(host, ann, thread, f"in turn {number} behind it")
    return problems


async def settled(client: Any, thread: str) -> None:
    """Waits until no run of the thread is pending or going on."""
    for _ in range(240):
        runs = await client.runs.list(thread)
        if all(r["status"] not in ("pending", "running") for r in runs):
            return
        await asyncio.sleep(0.25)


async def answers(host: Host, client: Any, thread: str, when: str) -> list[str]:
    """Returns what is wrong with the next turn: its question is to be asked once, in a window that the strict server takes."""
    asked, text = len(host.model.requests), f"A question {when}."
    before = len((await client.threads.get_state(thread))["values"]["messages"])
    found = await run(client, thread, "agent", said(text))
    listed = (found or {}).get("messages", [])
    problems = [] if len(listed) == before + 2 else [f"{when}: the run failed: {str(found)[:200]}"]
    sent = [body for body in host.sent_since(asked) if text in body]
    return problems + ([] if sent and sent[0].count(text) == 1 else [f"{when}: the question was not asked once"])


async def main() -> int:
    async with hosting() as host:
        chosen = sys.argv[1:] or ["intrusions", "life"]
        problems = await intrusions(host) if "intrusions" in chosen else []
        problems += await life(host) if "life" in chosen else []
    for problem in problems:
        print(problem)
    print(f"langgraph dev: {len(problems)} problems")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
