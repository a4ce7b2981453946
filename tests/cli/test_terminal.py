"""What a person has at the terminal: completion, the live view in a pipe and in a pseudo-terminal, the doctor."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ctxfold.cli.app import app
from ctxfold.testing import ModelServer
from tests.support.driven import context, turns

Run = Callable[..., Any]
POSIX = pytest.mark.skipif(
    sys.platform == "win32", reason="Windows has no bash, no pseudo-terminals and no SIGINT for a single process"
)
COMMAND = str(Path(sys.executable).parent / "ctxfold")


# completion: Typer's own


@pytest.mark.parametrize(("line", "offered"), [("ctxfold mem", {"memory"}), ("ctxfold memory add --ab", {"--about"})])
def test_a_shell_completes_commands_and_options(line: str, offered: set[str]) -> None:
    words = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" ")), "_CTXFOLD_COMPLETE": "complete_bash"}
    done = subprocess.run([COMMAND], env=os.environ | words, capture_output=True, text=True, check=True, timeout=60)
    assert set(done.stdout.split()) == offered


# watch


def test_watch_once(ctxfold: Run) -> None:
    shown = ctxfold("watch", "ann", "--once").out
    told = ctxfold("window", "ann", "--json").json
    for zone in ("system", "summary", "live"):
        tokens = sum(b["tokens"] for b in told["blocks"] if b["zone"] == zone)
        assert re.search(rf"{zone} +{tokens:,} ", shown), zone
    assert told["gauge"]["forecast"] in shown
    assert re.search(r"1 compactions; the newest:\n\d{4}-\d\d-\d\d \S+  [\d,]+ -> [\d,]+ tokens", shown)
    assert "\x1b" not in shown
    missing = ctxfold("watch", "nobody", "--once")
    assert missing.code == 3
    assert "does not exist" in missing.err


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """Lets processes that tests start be interrupted: a shell that starts the tests in the background has them ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def ended(process: subprocess.Popen[Any]) -> int:
    process.send_signal(signal.SIGINT)
    return process.wait(timeout=60)


def used(line: str) -> int:
    return int(line.split()[1].replace(",", ""))


@POSIX
def test_watch_prints_a_line_for_each_change(store: str) -> None:
    arguments = [COMMAND, "watch", "bob", "--store", store, "--interval", "0.05"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            first = process.stdout.readline()
            with context(store=store, session_id="bob", context_window=4_000) as bob:
                bob.add(turns(60))
            while used(line := process.stdout.readline()) <= used(first):  # a line for the new window came before
                assert line, process.stderr.read()
            assert re.match(r"\d\d:\d\d:\d\d [\d,]+ of [\d,]+ tokens used .* \| live [\d,]+ \| 0 compactions", first)
            with context(store=store, session_id="bob", context_window=4_000) as bob:
                bob.compact(force=True)
            while "| 1 compactions" not in (line := process.stdout.readline()):
                assert line, process.stderr.read()
            assert ended(process) == 0
            assert process.stderr.read() == ""
        finally:
            process.kill()


def test_watch_ends_with_the_session(store: str) -> None:
    arguments = [COMMAND, "watch", "bob", "--store", store, "--interval", "0.05"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline()
            with context(store=store, session_id="bob") as bob:
                bob.erasure.erase_session()
            _, errors = process.communicate(timeout=60)
            assert process.returncode == 3
            assert "does not exist" in errors
        finally:
            process.kill()


def read_until(terminal: int, text: str, seen: str = "") -> str:
    while text not in seen:
        ready, _, _ = select.select([terminal], [], [], 60)
        assert ready, seen
        seen += os.read(terminal, 65_536).decode()
    return seen


@POSIX
def test_watch_in_a_terminal(store: str) -> None:
    """The view stands in its place and is drawn anew, and the terminal is left as it was."""
    import pty  # not on Windows

    ours, theirs = pty.openpty()
    arguments = [COMMAND, "watch", "ann", "--store", store, "--interval", "0.05"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "110", "LINES": "40"}
    process = subprocess.Popen(arguments, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    try:
        seen = read_until(ours, "1 compactions; the newest:")
        with context(store=store, session_id="ann", context_window=1_500) as ann:
            ann.compact(force=True)
        seen = read_until(ours, "2 compactions; the newest:", seen)
        assert "\x1b[?25l" in seen  # the cursor is hidden
        assert ended(process) == 0
        assert "\x1b[?25h" in read_until(ours, "\x1b[?25h", seen)
        assert "Traceback" not in seen
    finally:
        process.kill()
        process.wait()
        os.close(ours)


# doctor


def test_the_doctor_finds_all_well(ctxfold: Run) -> None:
    done = ctxfold("doctor", "--json")
    assert done.code == 0
    assert done.json["ok"]
    checks = {check["what"]: check for check in done.json["checks"]}
    assert {check["verdict"] for check in checks.values()} <= {"ok", "missing"}
    assert checks["extra cli"]["detail"].startswith("rich ")
    assert checks["store"]["detail"].endswith("opens, format 3, 2 sessions of owner 'default'")
    shown = ctxfold("doctor", "--owner", "mallory").out
    assert re.search(r"^ok +store +sqlite:///.* 1 sessions of owner 'mallory'$", shown, flags=re.M)
    assert shown.endswith("all is well\n")


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("missing.db", "there is no store file"),
        ("postgresql+psycopg://nobody:secret@127.0.0.1:9/none", "cannot reach"),
        (__file__, "no SQLite database"),
    ],
)
def test_the_doctor_on_a_store_that_does_not_open(place: str, told: str) -> None:
    done = CliRunner().invoke(app, ["doctor", "--store", place])
    assert done.exit_code == 1
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("failed")]
    assert told in line
    assert "secret" not in done.stdout
    assert re.search(r"^1 of \d+ checks failed$", done.stdout, flags=re.M)


def test_the_doctor_asks_a_model_only_when_told() -> None:
    with ModelServer(model="lookup", context_window=8_000) as server:
        address = ["--provider", "generic", "--base-url", server.base_url]
        done = CliRunner().invoke(app, ["doctor", *address])
        assert (done.exit_code, len(server.requests)) == (0, 0)
        done = CliRunner().invoke(app, ["doctor", *address, "--model", "lookup"])
        assert (done.exit_code, len(server.requests)) == (0, 1)
        assert re.search(r"^ok +model lookup +answered '.*', \d+ tokens in, \d+ out$", done.stdout, flags=re.M)
    done = CliRunner().invoke(app, ["doctor", *address, "--model", "lookup"])
    assert done.exit_code == 1
    assert re.search(r"^failed +model lookup +BackendError: ", done.stdout, flags=re.M)


def test_the_doctor_names_what_is_not_installed(tmp_path: Path) -> None:
    metadata = tmp_path / "ctxfold-9.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(
        "Metadata-Version: 2.4\nName: ctxfold\nVersion: 9.0\nRequires-Dist: typer\n"
        'Requires-Dist: no-such-package<2,>=1; extra == "odd"\nRequires-Dist: rich>=13; extra == "even"\n'
        'Requires-Dist: no-such-package; extra == "all"\n'
    )
    code = "import sys; sys.modules['llama_index'] = None; from ctxfold.cli import main; main()"
    alone = {"CTXFOLD_OFFLINE": "1", "CTXFOLD_CACHE_DIR": str(tmp_path), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code, "doctor"],
        capture_output=True,
        text=True,
        env={**os.environ, **alone, "PYTHONPATH": str(tmp_path)},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"^ok +ctxfold +9\.0 on Python", done.stdout, flags=re.M)
    assert re.search(r'^missing +extra odd +no no-such-package: pip install "ctxfold\[odd\]"$', done.stdout, flags=re.M)
    assert re.search(r"^ok +extra even +rich \d", done.stdout, flags=re.M)
    assert "extra all" not in done.stdout
    assert re.search(r"^missing +encoding o200k_base +not on this machine", done.stdout, flags=re.M)
