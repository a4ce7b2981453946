"""What a person has at the terminal: completion in real shells, the live view in a pipe and in a pseudo-terminal, the doctor."""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from ctxfold.cli.app import app
from ctxfold.testing import ModelServer
from tests.support.driven import context, turns

Run = Callable[..., Any]
POSIX = pytest.mark.skipif(
    sys.platform == "win32", reason="Windows has no bash, no pseudo-terminals and no SIGINT for a single process"
)
COMMAND = str(Path(sys.executable).parent / "ctxfold")


def script(shell: str) -> str:
    done = CliRunner().invoke(app, ["completion", shell])
    assert done.exit_code == 0, done.stderr
    return done.stdout


def commands(command: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    command = command or typer.main.get_command(app)
    for name, sub in getattr(command, "commands", {}).items():
        yield (*path, name), sub
        yield from commands(sub, (*path, name))


# completion


LINES: list[tuple[list[str], set[str]]] = [
    (["mem"], {"memory"}),
    (["memory", ""], {"list", "add", "forget", "--help"}),
    (["memory", "add", "--ab"], {"--about"}),
    (["search", "chat-1", "--s"], {"--store", "--session", "--since"}),
    (["search", "--store", "chat"], {"chat.db"}),
    (["import", "copy", "chat"], {"chat.db"}),
    (["--ver"], {"--version"}),
    (["export", "memory", "--z"], {"--zone"}),  # a session called like a command
]


def installed(shell: str) -> str:
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"{shell} is not installed, so its completion is not tried")
    return path


@POSIX
@pytest.mark.parametrize(("line", "offered"), LINES)
def test_bash_completes(line: list[str], offered: set[str], tmp_path: Path) -> None:
    (tmp_path / "chat.db").touch()
    words = " ".join(f"'{word}'" for word in ["ctxfold", *line])
    test = f'COMP_WORDS=({words}); COMP_CWORD={len(line)}; _ctxfold; printf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run(
        ["bash", "--norc", "-c", f"{script('bash')}\n{test}"], capture_output=True, text=True, cwd=tmp_path
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert set(done.stdout.split()) == offered


@POSIX
@pytest.mark.parametrize(("line", "offered"), LINES)
def test_fish_completes(line: list[str], offered: set[str], tmp_path: Path) -> None:
    (tmp_path / "chat.db").touch()
    (tmp_path / "ctxfold.fish").write_text(script("fish"), encoding="utf-8")
    asked = f"source ctxfold.fish; complete --do-complete 'ctxfold {' '.join(line)}'"
    done = subprocess.run(
        [installed("fish"), "--no-config", "-c", asked], capture_output=True, text=True, cwd=tmp_path, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    # fish offers options only where a dash was typed
    assert {told.split("\t")[0] for told in done.stdout.splitlines()} == offered - (
        {"--help"} if line[-1] == "" else set()
    )


@POSIX
def test_zsh_completes(tmp_path: Path) -> None:
    """Types the lines and the tabulator key at a real zsh in a pseudo-terminal, and has it print the line or the list."""
    import pty  # not on Windows

    (tmp_path / "chat.db").touch()
    (tmp_path / "ctxfold.zsh").write_text(script("zsh"), encoding="utf-8")
    (tmp_path / "start.zsh").write_text(
        "PS1=; unsetopt zle_bracketed_paste 2>/dev/null; unset zle_bracketed_paste; setopt no_beep no_always_last_prompt\n"
        "autoload -Uz compinit; compinit -u -D; source ctxfold.zsh\n"
        "told() { print -r -- \"<line $BUFFER>END\"; BUFFER='' }; zle -N told; bindkey '^X' told; bindkey '^I' complete-word\n"
        "print READY\n",
        encoding="utf-8",
    )
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "dumb", "COLUMNS": "300", "LINES": "60", "ZDOTDIR": str(tmp_path)}
    process = subprocess.Popen(
        [installed("zsh"), "-f", "-i"], stdin=theirs, stdout=theirs, stderr=theirs, env=environment, cwd=tmp_path
    )
    os.close(theirs)
    try:
        os.write(ours, b"source start.zsh\n")
        read_until(ours, "READY\r\n")
        for line, offered in LINES:
            os.write(ours, f"ctxfold {' '.join(line)}\t\x18".encode())
            seen = read_until(ours, ">END\r\n")
            if len(offered) == 1:
                assert seen.rstrip().rpartition("<line ")[2].split(">")[0].split()[-1] in offered, seen
            else:
                assert offered <= set(seen.split()), seen
    finally:
        process.kill()
        process.wait()
        os.close(ours)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_has_every_command_and_option(shell: str) -> None:
    text = script(shell)
    for path, command in commands():
        assert re.search(rf"\b{path[-1]}\b", text), path
        for parameter in command.params:
            for option in parameter.opts if parameter.param_type_name == "option" else ():
                assert (f"-l {option[2:]} " if shell == "fish" else option) in text, (path, option)
    assert "$(" not in text.replace("$(compgen", "")  # no help text is run by the shell
    assert "`" not in text


def test_fish_offers_options_where_their_command_stands() -> None:
    lines = script("fish").splitlines()
    assert "complete -c ctxfold -n '__fish_use_subcommand' -f -a watch" in "\n".join(lines)
    about = next(line for line in lines if "-l about" in line)
    assert "'__fish_seen_subcommand_from memory; and __fish_seen_subcommand_from add'" in about
    assert " -r " in about
    flag = next(line for line in lines if "-l read-only" in line)
    assert " -r " not in flag
    assert all(line.count("'") == 4 for line in lines)


def test_a_shell_that_is_not_known() -> None:
    done = CliRunner().invoke(app, ["completion", "tcsh"])
    assert done.exit_code == 2
    assert "use bash, zsh, fish" in done.stderr.replace("\n", " ")


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
                bob.compact()
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
                bob.erase_session()
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
            ann.compact()
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
