"""The database of a LangGraph checkpointer after an agent run of large tool outputs, with and without references."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any

from ctxfold.testing import ModelServer, Scripted, ScriptedCall
from tests.benchmarks.agent_run import OUTPUT_CHARS, output
from tests.benchmarks.sheets import Cell, Sheet
from tests.support.postgres_schema import fresh_schema

__all__ = ["delta_state", "run"]

CALLS, QUICK_CALLS = 300, 6
POSTGRES_URL = "postgresql+psycopg://postgres@127.0.0.1:5432/test"
MODES = ("as it is", "delta channel")


def run(*, quick: bool = False) -> list[Sheet]:
    """One table: each checkpointer as it is and with LangGraph's delta channel."""
    calls = QUICK_CALLS if quick else CALLS
    rows = [_row(saver, mode, calls) for saver in ("SqliteSaver", "PostgresSaver") for mode in MODES]
    return [
        Sheet(
            f"Checkpoints of an agent run of {calls} tool calls, outputs of {OUTPUT_CHARS:,} characters",
            (
                "checkpointer",
                "messages channel",
                "checkpoints, MB",
                "ctxfold store, MB",
                "run, s",
                "get_state, ms",
                "equal",
            ),
            tuple(rows),
            "Sizes of the databases after the run. The store holds the session, its archive and its index. "
            "Equal: the messages of every tenth earlier state and of the newest "
            "one, compared with the run's own. Delta channels are LangGraph's, a beta, here with a snapshot each 100 updates: "
            "messages that came without an id, as results of tools do, get a new one each time a state is read.",
        )
    ]


def delta_state() -> type[Any]:
    """An agent's state whose messages LangGraph stores as writes, with a snapshot now and then."""
    from langchain.agents.middleware.types import AgentState
    from langchain_core.messages import AnyMessage
    from langgraph.channels import DeltaChannel
    from langgraph.graph.message import add_messages

    def folded(state: list[Any], writes: Sequence[Any]) -> list[Any]:
        for write in writes:
            state = add_messages(state, write)  # type: ignore[assignment]
        return state

    class DeltaState(AgentState[Any]):
        messages: Annotated[list[AnyMessage], DeltaChannel(folded, snapshot_frequency=100)]  # type: ignore[misc]

    DeltaState.__annotations__["messages"] = Annotated[list[AnyMessage], DeltaChannel(folded, snapshot_frequency=100)]
    return DeltaState


def _row(kind: str, mode: str, calls: int) -> tuple[Cell, ...]:
    from langchain.agents import create_agent
    from langchain_core.tools import tool

    from langchain_ctx import ChatCtx, ContextMiddleware

    @tool
    def run_job(job: int) -> str:
        """Runs a nightly job and answers with its log."""
        return output(job)

    def play(body: Any) -> Scripted:
        nonlocal left
        if not body.get("tools"):
            return Scripted("Jobs ran.")
        left -= 1
        if left < 0:
            return Scripted("All jobs are done.")
        return Scripted(tool_calls=(ScriptedCall("run_job", json.dumps({"job": calls - left})),))

    left = calls
    with ExitStack() as stack:
        store_url, saver, sizes = stack.enter_context(_databases(kind))
        server = stack.enter_context(ModelServer(model="m", script=play, strict="openai"))
        chat = ChatCtx(model="m", base_url=server.base_url, api_key="x", max_retries=0)  # type: ignore[arg-type]
        stack.callback(chat.close)
        context = ContextMiddleware(context_window=32_000, store=store_url, history_tools=False)
        stack.callback(context.close)
        schema = delta_state() if mode.startswith("delta") else None
        agent: Any = create_agent(chat, [run_job], middleware=[context], checkpointer=saver, state_schema=schema)
        config: Any = {"configurable": {"thread_id": "t"}, "recursion_limit": 10 * calls + 100}
        start = time.perf_counter()
        told = agent.invoke({"messages": [("user", f"Run all {calls} jobs.")]}, config)["messages"]
        seconds = time.perf_counter() - start
        start = time.perf_counter()
        newest = agent.get_state(config)
        read_ms = (time.perf_counter() - start) * 1e3
        states = [(newest.values["messages"], told)]
        for found in [*saver.list({"configurable": {"thread_id": "t"}}, limit=calls // 2)][::10]:
            messages = agent.get_state(found.config).values["messages"]
            states.append((messages, told[: len(messages)]))
        checkpoints, stored = sizes()
        return kind, mode, checkpoints / 1e6, stored / 1e6, seconds, read_ms, _equal(states)


def _equal(states: Sequence[tuple[Any, Any]]) -> str:
    if all(read == told for read, told in states):
        return "yes"
    texts = all([m.content for m in read] == [m.content for m in told] for read, told in states)
    return "but for ids" if texts else "NO"


@contextmanager
def _databases(kind: str) -> Generator[tuple[str, Any, Any], None, None]:
    """The URL of a store, a checkpointer with a database of its own, and what tells the bytes of both."""
    if kind == "SqliteSaver":
        from langgraph.checkpoint.sqlite import SqliteSaver

        with tempfile.TemporaryDirectory() as folder, SqliteSaver.from_conn_string(f"{folder}/checkpoints.db") as saver:
            yield (
                f"sqlite:///{folder}/store.db",
                saver,
                lambda: (_bytes(folder, "checkpoints"), _bytes(folder, "store")),
            )
        return
    from langgraph.checkpoint.postgres import PostgresSaver

    server = os.environ.get("CTXFOLD_POSTGRES_URL", POSTGRES_URL)
    with (
        fresh_schema(server) as store_url,
        fresh_schema(server) as url,
        PostgresSaver.from_conn_string(url.replace("+psycopg", "")) as saver,
    ):
        saver.setup()
        yield store_url, saver, lambda: (_schema_bytes(url), _schema_bytes(store_url))


def _bytes(folder: str, name: str) -> int:
    return sum(path.stat().st_size for path in Path(folder).glob(f"{name}.db*"))


def _schema_bytes(url: str) -> int:
    import psycopg

    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        row = connection.execute(
            "SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname = current_schema() AND c.relkind = 'r'"
        ).fetchone()
    return 0 if row is None else int(row[0])
