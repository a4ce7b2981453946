"""Defines the options that all commands share, opens stores and sessions, and turns errors into exit codes."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Collection, Generator, Iterable, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, TypeAlias

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ctxfold.connect import ENCRYPTED, open_store
from ctxfold.errors import ConfigError, CtxError, StoreError, UnknownRoleError
from ctxfold.history.prompt_safety import neutral
from ctxfold.protocols import Store
from ctxfold.session.context import AgentContext

StoreUrl: TypeAlias = Annotated[
    str,
    typer.Option(
        "--store", envvar="CTXFOLD_STORE", help="sqlite:///chat.db, a path to such a file, or postgresql+psycopg://..."
    ),
]


OWNER_VARIABLE = "CTXFOLD_OWNER"


def checked_owner(context: typer.Context, owner: str | None) -> str | None:
    """Refuses an empty owner: Click treats an empty variable as not set and would use the default."""
    source = context.get_parameter_source("owner")
    unset = source is not None and source.name == "DEFAULT" and os.environ.get(OWNER_VARIABLE) == ""
    if unset or owner == "":
        raise typer.BadParameter(f"the owner is empty: name one, or leave {OWNER_VARIABLE} unset for the default one")
    return owner


Owner: TypeAlias = Annotated[
    str, typer.Option("--owner", envvar=OWNER_VARIABLE, callback=checked_owner, help="the owner of the sessions")
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="print JSON, for programs")]
Name: TypeAlias = Annotated[str, typer.Argument(metavar="SESSION", help="the session's name")]

SHORT = 11  # characters of a column beside which a message has 40 of 80
WIDE = 110  # columns from which on a table has all of its own
PIPED_COLUMNS = 200
ANY_WINDOW = 1 << 20  # sessions are opened with their own settings; no command depends on this value
OWNER = "default"
CODES = ((ConfigError, 2), (UnknownRoleError, 2), (LookupError, 3), (StoreError, 4))  # others: 1


_AGE = re.compile(r"(\d{1,6})([hdwy])")
_UNITS = {"h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1), "y": timedelta(days=365)}


def age(option: str, text: str) -> timedelta:
    """Returns the span of time that an option names as 12h, 30d, 6w or 1y; raises ConfigError for anything else."""
    match = _AGE.fullmatch(text)
    if match is None:
        raise ConfigError(f"{option} {text!r}: give a number and h, d, w or y, such as 30d")
    return int(match[1]) * _UNITS[match[2]]


def moment(option: str, text: str | None) -> timedelta | datetime | None:
    """Returns what `--since` and `--until` name: how long ago (30d), or a date or time, which is UTC unless it says otherwise."""
    if text is None or _AGE.fullmatch(text):
        return None if text is None else age(option, text)
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{option} {text!r}: give how long ago, such as 30d, or a date such as 2026-11-23") from None
    return parsed if parsed.tzinfo is not None else parsed.replace(tzinfo=UTC)


def output() -> Console:
    is_terminal = sys.stdout.isatty()
    width = None if is_terminal or "COLUMNS" in os.environ else PIPED_COLUMNS
    return Console(highlight=False, markup=False, soft_wrap=not is_terminal, width=width)


def print_rows(rows: Iterable[Mapping[str, object]], *, wide: Collection[str] = ()) -> None:
    """Prints a table of these rows, a line for each. The last column, a message, has the room that the others leave.

    A narrow terminal has no `wide` columns; where another column is long there, the message has a line of its own.
    """
    console, rows = output(), list(rows)
    is_wide = console.width >= WIDE
    names = [name for row in rows[:1] for name in row if is_wide or name not in wide]
    cells = [[Text(shown(str(row[name]))) for name in names] for row in rows]
    if wide and not is_wide and any(len(cell) > SHORT for row in cells for cell in row[:-1]):
        for *facts, message in cells:
            console.print(Text(" ").join(facts))
            console.print(Text("  ") + message, no_wrap=True, overflow="ellipsis", soft_wrap=False)
        return
    table = Table(*names[:-1], box=None, expand=True, padding=(0, 1, 0, 0))
    table.add_column("".join(names[-1:]), ratio=1, no_wrap=True, overflow="ellipsis")
    for row in cells:
        table.add_row(*row)
    console.print(table if rows else "nothing found")


def progress() -> Console:
    """Returns the console for progress: stderr, so that the output stays clean."""
    return Console(stderr=True, highlight=False)


def shown(text: str) -> str:
    """Returns text that is safe for a terminal, without escape sequences and invisible characters."""
    return neutral(text)


def is_stdout(file: Path | None) -> bool:
    """Returns True for `-`, the name that stands for the standard output."""
    return str(file) == "-"


@contextmanager
def output_file(file: Path) -> Generator[Path, None, None]:
    """Yields the file to write; for `-` one of its own, which is written to stdout when it is complete."""
    if not is_stdout(file):
        yield file
        return
    with TemporaryDirectory() as folder:
        complete = Path(folder, "output")
        yield complete
        content = complete.read_bytes()
    if sys.stdout.isatty():
        content = shown(content.decode()).encode()
    sys.stdout.buffer.write(content)
    sys.stdout.flush()


def print_json(value: object) -> None:
    """Prints a JSON value in ASCII, so that no text in it can affect the terminal."""
    print(json.dumps(value, indent=2, default=_plain))


def print_result(payload: object, text: str, *, as_json: bool) -> None:
    """Prints the result of a command: the payload as JSON, or the text."""
    print_json(payload) if as_json else output().print(text)


def _plain(value: object) -> Any:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)


@contextmanager
def within(*, as_json: bool = False) -> Generator[None, None, None]:
    """Ends the command with a line on stderr and an exit code when ctxfold or a file raises an error, without a traceback."""
    try:
        yield
    except BrokenPipeError:  # the reader of the output has gone, as `head` does: typer ends quietly
        raise
    except (CtxError, OSError) as error:
        here = "ctxfold policy SESSION context_window=... raises it"
        text = f"{error}; {here}" if "raise context_window" in str(error) else str(error)
        payload = {"error": {"type": type(error).__name__, "message": text}}
        print(json.dumps(payload) if as_json else f"error: {shown(text)}", file=sys.stderr)
        raise typer.Exit(next((code for kind, code in CODES if isinstance(error, kind)), 1)) from None


def _is_store(path: Path) -> bool:
    """Tells whether a SQLite file has ctxfold's tables; opening it as a store would make them in somebody else's."""
    import sqlite3  # not for commands without a store

    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
        try:
            return connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'ctxfold_meta'").fetchone() is not None
        except sqlite3.DatabaseError:
            return True  # damaged, locked or no database: the store says which, and writes nothing


@contextmanager
def opened(url: str, *, new: bool = False) -> Generator[Store, None, None]:
    """Opens a store; raises ConfigError for a file that does not exist, unless `new` allows to make it."""
    address = url if "://" in url else f"sqlite:///{url}"
    path = address.partition("///")[2].partition("?")[0]
    in_file = address.removeprefix(ENCRYPTED).startswith("sqlite")
    if address.endswith("memory://"):
        raise ConfigError("a store in memory ends with its process: give a file or a server")
    if in_file and not new and not Path(path).is_file():
        raise ConfigError(f"there is no store file {path!r} in {Path.cwd()}: check --store, or run its program first")
    if in_file and not new and not _is_store(Path(path)):
        raise ConfigError(f"{path!r} is a file of another program, or empty: check --store (nothing was written to it)")
    store = open_store(address)
    try:
        yield store
    finally:
        store.close()


def session_in(store: Store, name: str, owner: str, *, create: bool = False, **settings: Any) -> AgentContext:
    """Returns a session of a store with its stored settings; a new one is made only with `create`."""
    all_settings: dict[str, Any] = {"context_window": ANY_WINDOW, "background": False, **settings}
    return AgentContext(store=store, session_id=name, owner=owner, create=create, **all_settings)


@contextmanager
def session(
    url: str, name: str, owner: str, *, create: bool = False, **settings: Any
) -> Generator[AgentContext, None, None]:
    """Opens a session as `session_in` does, in a store of its own."""
    with opened(url, new=create) as store, session_in(store, name, owner, create=create, **settings) as context:
        yield context
