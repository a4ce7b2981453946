"""Turns of a LangGraph agent as docs/scaling.md has them, in processes that are killed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import psycopg
from langchain_core.tools import tool
from langgraph.checkpoint.postgres import PostgresSaver

from langchain_ctx import ChatCtx, ContextMiddleware
from tests.benchmarks.checkpoints import delta_state
from tests.durable.journals import QUESTIONS, WINDOW, read_log
from tests.durable.kills import TURNS, Killed, found, killed_until_done, question, read
from tests.support.pages import examples, page, section
from tests.support.processes import import_once

__all__ = ["checkpoint_bytes", "killed", "read_logs", "run", "set_up"]

import_once(__name__)

(AGENT,) = examples(section(page("scaling.md"), "### LangGraph"))


@tool
def read_file(name: str) -> str:
    """Reads a file."""
    return read(name)


def run(store_url: str, saver_url: str, model_url: str, thread: str) -> None:
    """Runs the page's agent for each turn, in a process that may end at any moment."""
    _turns(AGENT, store_url, saver_url, model_url, thread, [read_file], [question(number) for number in range(TURNS)])


def read_logs(store_url: str, saver_url: str, model_url: str, *, delta: bool) -> None:
    """Runs the long conversation, with LangGraph's delta channel for the messages or without."""
    code = AGENT.replace("context_window=4_000", f"context_window={WINDOW}")
    if delta:
        code = code.replace("checkpointer=saver", "checkpointer=saver, state_schema=delta_state()")
    _turns(code, store_url, saver_url, model_url, "long", [tool(read_log, description="Reads a log.")], QUESTIONS)


def _turns(
    code: str,
    store_url: str,
    saver_url: str,
    model_url: str,
    thread: str,
    tools: Sequence[Any],
    texts: Sequence[str],
) -> None:
    with (
        ChatCtx(model="m", base_url=model_url, api_key="x", max_retries=0) as model,  # type: ignore[arg-type]
        PostgresSaver.from_conn_string(saver_url) as saver,
    ):
        names: dict[str, Any] = {"store_url": store_url, "model": model, "tools": tools, "saver": saver}
        names["delta_state"] = delta_state
        exec(compile(code, "scaling.md", "exec", dont_inherit=True), names)
        for number, text in enumerate(texts):
            names["agent_turn"](names["agent"], thread, f"{thread}-q{number}", text)
        names["context"].close()


def killed(store_url: str, saver_url: str, model_url: str, kills: int) -> Killed:
    """Kills processes until it has done so as often as `kills`."""
    set_up(saver_url)
    arguments = (store_url, saver_url, model_url)
    began = time.monotonic()
    killed_until_done(run, *arguments, "plain", kills=0, seconds=0)
    run_s = time.monotonic() - began  # a later kill would find the work done
    result = Killed(found(store_url, "plain"))
    while result.kills < kills:
        thread = f"s{len(result.sessions)}"
        result.kills += killed_until_done(run, *arguments, thread, kills=kills - result.kills, seconds=run_s)
        result.sessions.append(found(store_url, _session_of(store_url, saver_url, thread)))
    return result


def set_up(saver_url: str) -> None:
    with PostgresSaver.from_conn_string(saver_url) as saver:
        saver.setup()


def checkpoint_bytes(saver_url: str) -> int:
    """Returns the size of all checkpoints and their writes, as text and so uncompressed; a byte of a blob counts as one."""
    with psycopg.connect(saver_url) as connection:
        return sum(
            int(connection.execute(query.encode()).fetchone()[0])  # type: ignore[index]
            for query in (
                "SELECT sum(octet_length(t::text)) FROM checkpoints t",
                "SELECT sum(coalesce(octet_length(blob), 0)) FROM checkpoint_blobs",
                "SELECT sum(octet_length(blob)) FROM checkpoint_writes",
            )
        )


def _session_of(store_url: str, saver_url: str, thread: str) -> str:
    """The session that belongs to the thread's newest state."""
    with PostgresSaver.from_conn_string(saver_url) as saver:
        newest = saver.get_tuple({"configurable": {"thread_id": thread}})
    assert newest is not None
    context = ContextMiddleware(context_window=4_000, store=store_url)
    session = context.context(newest.checkpoint["channel_values"]).session
    context.close()
    return session
