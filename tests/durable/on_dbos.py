"""Turns under DBOS as docs/scaling.md has them, in processes that are killed."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from ctxfold import ToolSpec
from tests.durable.journals import QUESTIONS, WINDOW, read_log
from tests.durable.kills import TURNS, Killed, found, killed_until_done, question, read
from tests.support.pages import examples, page, section
from tests.support.processes import import_once

__all__ = ["SPECS", "TOOLS", "app", "journal_bytes", "killed", "read_logs", "run", "schema", "start_turn"]

import_once(__name__)

APP, START, *STREAMED = examples(section(page("scaling.md"), "### DBOS"))
SPECS = [ToolSpec("read_file", "Reads a file.", {"type": "object", "properties": {"name": {"type": "string"}}})]
TOOLS = {"read_file": lambda arguments: read(json.loads(arguments)["name"])}


@contextmanager
def schema(postgres_url: str) -> Iterator[tuple[str, str]]:
    """The address of the database without its driver, and the name of a schema for DBOS, which is dropped at the end."""
    url, name = postgres_url.replace("+psycopg", ""), f"dbos_{uuid.uuid4().hex[:12]}"
    try:
        yield url, name
    finally:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f'DROP SCHEMA IF EXISTS "{name}" CASCADE'.encode())


def app(
    store_url: str, system: tuple[str, str], model_url: str, *, code: str = APP, window: int = 4_000, **names: Any
) -> dict[str, Any]:
    """Returns the names of the page's program, its steps and workflow among them."""
    system_url, system_schema = system
    names = {"specs": SPECS, "tools": TOOLS, **names, "__name__": "durable"}
    names |= {"store_url": store_url, "model_url": model_url, "system_url": system_url}
    _exec(code.replace("context_window=4_000", f"context_window={window}"), names)
    names["config"] |= {"dbos_system_schema": system_schema, "log_level": "CRITICAL", "console_log_level": "CRITICAL"}
    return names


def launch(names: dict[str, Any]) -> None:
    _exec(START.partition("# the same id")[0], names)


def start_turn(names: dict[str, Any], session: str, number: int, text: str) -> str:
    """Runs a turn, or continues it; returns the answer."""
    names |= {"session": session, "turn_id": f"{session}/turn-{number}", "text": text}
    _exec(START.partition("# the same id")[2].partition("\n")[2], names)
    return str(names["answer"])


def run(store_url: str, system: tuple[str, str], model_url: str, session: str) -> None:
    """Runs the page's workflow for each turn, in a process that may end at any moment."""
    names = app(store_url, system, model_url)
    launch(names)
    for number in range(TURNS):
        start_turn(names, session, number, question(number))
    names["DBOS"].destroy()


def read_logs(store_url: str, system: tuple[str, str], model_url: str, code: str = APP) -> None:
    """Runs the long conversation, in a process of its own."""
    tools = {"read_log": lambda arguments: read_log(**json.loads(arguments))}
    specs = [ToolSpec("read_log", "Reads a log.", {"type": "object", "properties": {"hour": {"type": "integer"}}})]
    names = app(store_url, system, model_url, code=code, window=WINDOW, tools=tools, specs=specs)
    launch(names)
    for number, text in enumerate(QUESTIONS):
        start_turn(names, "long", number, text)
    names["DBOS"].destroy()


def killed(store_url: str, system: tuple[str, str], model_url: str, kills: int) -> Killed:
    """Kills processes until it has done so as often as `kills`."""
    arguments = (store_url, system, model_url)
    # the first run makes the tables of DBOS, which the others find
    killed_until_done(run, *arguments, "first", kills=0, seconds=0)
    began = time.monotonic()
    killed_until_done(run, *arguments, "plain", kills=0, seconds=0)
    run_s = time.monotonic() - began  # a later kill would find the work done
    result = Killed(found(store_url, "plain"))
    while result.kills < kills:
        session, left = f"s{len(result.sessions)}", kills - result.kills
        result.kills += killed_until_done(run, *arguments, session, kills=left, seconds=run_s)
        result.sessions.append(found(store_url, session))
    return result


def journal_bytes(system: tuple[str, str]) -> int:
    """Returns the size of all that DBOS keeps of workflows and their steps, as text and so uncompressed."""
    url, name = system
    with psycopg.connect(url) as connection:
        return sum(
            int(connection.execute(f'SELECT sum(octet_length(t::text)) FROM "{name}".{table} t'.encode()).fetchone()[0])  # type: ignore[index]
            for table in ("workflow_status", "operation_outputs")
        )


def _exec(code: str, names: dict[str, Any]) -> None:
    exec(compile(code, "scaling.md", "exec", dont_inherit=True), names)
