"""Turns under DBOS, LangGraph and Restate: processes that are killed, and the bytes that each engine writes down for a request.

Needs the tests' PostgreSQL, and Restate's server (`make restate`), without which its rows are left out.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path

from ctxfold.testing import ModelServer
from tests.benchmarks.checkpoints import POSTGRES_URL
from tests.benchmarks.sheets import Cell, Sheet
from tests.durable import on_dbos, on_langgraph, on_restate
from tests.durable.journals import QUESTIONS, REQUESTS, WINDOW, Reader, tokens_of
from tests.durable.kills import TURNS, Killed, killed_until_done, play
from tests.durable.restate_server import binary
from tests.support.postgres_schema import fresh_schema

__all__ = ["run"]

KILLS, QUICK_KILLS = 200, 4

# what most programs do: a step returns the model's message or the tool's output
WHOLE = """
from dbos import DBOS, DBOSConfig

from ctxfold import AgentContext, Message, open_backend, tool_result, user

backend = open_backend("generic", "m", base_url=model_url, api_key="x")
context = AgentContext(backend, context_window=4_000, store=store_url)


@DBOS.step()
def ask(session: str, messages: list[Message]) -> Message:
    return context.at(session).send(messages, tools=specs).message


@DBOS.step()
def call_tool(name: str, arguments: str) -> str:
    return tools[name](arguments)


@DBOS.workflow()
def turn(session: str, text: str) -> str:
    run = DBOS.workflow_id
    reply = ask(session, [user(text, id=f"{run}-question")])
    while reply.tool_calls:
        results = [
            tool_result(call.id, call_tool(call.name, call.arguments), id=f"{run}-{call.id}") for call in reply.tool_calls
        ]
        reply = ask(session, results)
    return reply.id


config: DBOSConfig = {"name": "agent", "system_database_url": system_url, "application_version": "1"}
"""


def run(*, quick: bool = False) -> list[Sheet]:
    """Two tables: what kills did to the sessions, and the size of journals."""
    kills = QUICK_KILLS if quick else KILLS
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        return [_kills(folder, kills), _journals(folder)]


def _kills(folder: Path, kills: int) -> Sheet:
    rows: list[tuple[Cell, ...]] = []

    def row(engine: str, killed: Killed) -> None:
        messages = sum(len(it.messages) for it in killed.sessions)
        rows.append((engine, killed.kills, len(killed.sessions), messages, *killed.counts()))

    with ModelServer(model="m", script=play, strict="openai") as model:
        with on_dbos.schema(POSTGRES_URL) as system, fresh_schema(POSTGRES_URL) as store_url:
            row("DBOS", on_dbos.killed(store_url, system, model.base_url, kills))
        with fresh_schema(POSTGRES_URL) as saver, fresh_schema(POSTGRES_URL) as store_url:
            row("LangGraph", on_langgraph.killed(store_url, saver.replace("+psycopg", ""), model.base_url, kills))
        if (program := binary()) is not None:
            with fresh_schema(POSTGRES_URL) as store_url:
                row("Restate", on_restate.killed(program, folder / "killed", store_url, model, kills))
    columns = ("engine", "kills", "sessions", "messages", "lost", "doubled", "out of order")
    note = f"{TURNS} turns a session, each with two rounds of tools. Restate's server is killed too, with every twentieth worker."
    return Sheet(f"Durable turns, {kills} kills", columns, tuple(rows), note)


def _journals(folder: Path) -> Sheet:
    rows: list[tuple[Cell, ...]] = []

    def row(engine: str, form: str, written: int, store_url: str, play: Reader) -> None:
        assert play.requests == REQUESTS, play.requests
        tokens = tokens_of(store_url, "long")
        rows.append((engine, form, tokens, written / 1e6, round(written / REQUESTS)))

    if (program := binary()) is not None:
        reader, store_url = Reader(), f"sqlite:///{folder / 'restate.db'}"
        with (
            ModelServer(model="m", script=reader, strict="openai") as model,
            on_restate.application(program, folder / "journal", store_url, model.base_url, window=WINDOW) as it,
        ):
            for number, text in enumerate(QUESTIONS):
                it.ask("long", number, text)
            row("Restate", "ids", on_restate.journal_bytes(it.restate), store_url, reader)
    for form, code in (("ids", on_dbos.APP), ("messages and outputs", WHOLE)):
        reader = Reader()
        with (
            ModelServer(model="m", script=reader, strict="openai") as model,
            on_dbos.schema(POSTGRES_URL) as system,
            fresh_schema(POSTGRES_URL) as store_url,
        ):
            killed_until_done(on_dbos.read_logs, store_url, system, model.base_url, code, kills=0, seconds=0)
            row("DBOS", form, on_dbos.journal_bytes(system), store_url, reader)
    for form, delta in (("checkpoints", False), ("checkpoints, delta channel", True)):
        reader = Reader()
        with (
            ModelServer(model="m", script=reader, strict="openai") as model,
            fresh_schema(POSTGRES_URL) as saver,
            fresh_schema(POSTGRES_URL) as store_url,
        ):
            saver_url = saver.replace("+psycopg", "")
            on_langgraph.set_up(saver_url)
            on_langgraph.read_logs(store_url, saver_url, model.base_url, delta=delta)
            row("LangGraph", form, on_langgraph.checkpoint_bytes(saver_url), store_url, reader)
    columns = ("engine", "what it writes down", "tokens told", "MB", "bytes a request")
    return Sheet(
        f"Journals of {REQUESTS} requests to the model", columns, tuple(rows), "Uncompressed: see docs/scaling.md."
    )
