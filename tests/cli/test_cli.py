"""Every command on a real file: what it prints, what it changes, how it fails."""

from __future__ import annotations

import json
import os
import shlex
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ctxfold import AgentContext, MediaPart, Message, SqlStore, assistant, user
from ctxfold.cli.app import app
from ctxfold.errors import MessageErasedError
from ctxfold.testing import ModelServer
from tests.erasure.scan import places_of
from tests.support.driven import context, turns

Run = Callable[..., Any]


# looking


def test_sessions(ctxfold: Run) -> None:
    assert [row["session"] for row in ctxfold("sessions", "--json").json] == ["ann", "bob"]
    listed = ctxfold("sessions").out
    assert "ann" in listed
    assert "eve" not in listed
    assert ctxfold("sessions", "--owner", "mallory", "--json").json[0]["session"] == "eve"
    assert "no sessions of owner 'nobody'" in ctxfold("sessions", "--owner", "nobody").out


def test_show_prints_everything_ever_said(ctxfold: Run) -> None:
    told = ctxfold("show", "ann", "--json").json
    assert len(told) == 83
    assert told[1] == {
        "id": "m",
        "role": "user",
        "kind": "message",
        "text": "my locker is 47-B \x1b[31m[bold]red\x1b[0m",
    }
    assert [m["id"] for m in ctxfold("show", "ann", "--last", "2", "--json").json] == ["u39", "a39"]
    assert ctxfold("show", "ann", "--audience", "model", "--json").json[1]["kind"] == "summary"
    assert "-> look({})" in ctxfold("show", "bob").out
    assert ctxfold("show", "bob", "--json").json[1]["tool_calls"][0]["name"] == "look"


def test_what_a_message_says_cannot_reach_the_terminal(ctxfold: Run) -> None:
    for command in (("show", "ann"), ("show", "ann", "m"), ("search", "ann", "locker")):
        done = ctxfold(*command)
        assert "47-B" in done.out
        assert "\x1b" not in done.out
        assert "[bold]" in done.out  # no markup of ours either
    assert "\x1b" not in ctxfold("show", "ann", "--json").out


def test_show_reads_single_messages_back(ctxfold: Run) -> None:
    reference = ctxfold("search", "ann", "locker", "--json").json[0]["reference"]
    assert [m["id"] for m in ctxfold("show", "ann", reference, "a3", "--json").json] == ["m", "a3"]


def test_window(ctxfold: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    told = ctxfold("window", "ann", "--question", "which locker?", "--json").json
    assert [b["zone"] for b in told["blocks"][:3]] == ["system", "summary", "live"]
    assert told["used_tokens"] == sum(b["tokens"] for b in told["blocks"])
    assert "47-B" in told["recalled"]
    shown = ctxfold("window", "ann", "--question", "which locker?").out
    assert "stands for compacted" in shown
    assert "until the next compaction" in shown
    assert told["gauge"]["forecast"] in shown
    assert "47-B" in shown


def test_search(ctxfold: Run) -> None:
    hits = ctxfold("search", "ann", "question 17", "--limit", "1", "--json").json
    assert [hit["message_id"] for hit in hits] == ["u17"]
    assert "nothing found" in ctxfold("search", "ann", "zebra").out


def test_search_in_all_sessions(ctxfold: Run) -> None:
    hits = ctxfold("search", "--all", "look", "locker", "--json").json
    assert {(hit["session"], hit["message_id"]) for hit in hits} >= {("ann", "m"), ("bob", "q")}
    found = ctxfold("search", "--all", "look", "locker", "--session", "bob", "--role", "user", "--json").json
    assert [hit["message_id"] for hit in found] == ["q"]
    assert not ctxfold("search", "--all", "locker", "--role", "tool", "--json").json
    assert not ctxfold("search", "--all", "locker", "--until", "1h", "--json").json
    assert not ctxfold("search", "--all", "locker", "--until", "2026-01-31", "--json").json
    assert ctxfold("search", "--all", "locker", "--since", "2026-01-31T10:00+01:00", "--json").json
    assert {hit["session"] for hit in ctxfold("search", "bob", "locker", "look", "--json").json} == {"bob"}
    shown = ctxfold("search", "--all", "locker").out
    assert "47-B" in shown
    assert "ann" in shown
    assert "nothing found" in ctxfold("search", "--all", "mine alone").out  # eve's, of another owner
    assert "nothing found" in ctxfold("search", "--all", "locker", "--owner", "nobody").out
    assert ctxfold("search", "--all", "mine alone", "--owner", "mallory", "--json").json[0]["session"] == "eve"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["ann"], "say where to search"),
        (["ann", "locker", "--session", "bob"], "say where to search"),
        (["--all", "locker", "--since", "soon"], "--since 'soon': give how long ago"),
        (["--all", "locker", "--role", "robot"], "use one of assistant, system, tool, user"),
    ],
)
def test_a_search_that_nobody_understands(ctxfold: Run, arguments: list[str], told: str) -> None:
    done = ctxfold("search", *arguments)
    assert (done.code, done.out) == (2, "")
    assert told in done.err


def test_inspect(ctxfold: Run, tmp_path: Path) -> None:
    told = ctxfold("inspect", "ann", "--json").json
    assert [step["what"] for step in told["timeline"]] == ["compaction"]
    assert len(told["messages"]) == 83
    assert "What happened:" in ctxfold("inspect", "ann").out
    file = tmp_path / "ann.html"
    assert ctxfold("inspect", "ann", "--html", str(file)).out == f"written to {file}\n"
    page = file.read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert "47-B" in page
    assert ctxfold("inspect", "ann", "--html", str(tmp_path / "no" / "ann.html")).code == 1


# changing


def test_compact_and_undo(ctxfold: Run) -> None:
    before = ctxfold("window", "ann", "--json").json
    done = ctxfold("compact", "ann", "--force", "--json").json
    assert done["tokens_after"] < done["tokens_before"] == before["used_tokens"]
    assert done["fallback_level"] == "extractive"
    assert ctxfold("undo", "ann", "--json").json["tokens"] == [done["tokens_after"], done["tokens_before"]]
    assert ctxfold("window", "ann", "--json").json["blocks"] == before["blocks"]
    assert "messages archived" in ctxfold("compact", "ann", "--force").out
    refused = ctxfold("compact", "bob")
    assert refused.code == 1
    assert "error: nothing was compacted" in refused.err


@pytest.mark.parametrize(
    ("model", "rest"),
    [("lookup", ("--provider", "generic")), ("lookup", ()), ("ollama:lookup", ("--wire", "openai_chat"))],
)
def test_compact_with_a_model(ctxfold: Run, model: str, rest: tuple[str, ...]) -> None:
    with ModelServer(model="lookup", context_window=8_000) as server:
        arguments = ("--model", model, *rest, "--base-url", server.base_url)
        done = ctxfold("compact", "ann", "--force", *arguments, "--json").json
        assert done["summary_calls"] >= 1
        assert len(server.requests) >= 1
        assert server.requests[-1].body["model"] == "lookup"


def test_a_model_that_does_not_answer_is_named(ctxfold: Run) -> None:
    done = ctxfold("compact", "ann", "--force", "--model", "m", "--base-url", "http://127.0.0.1:9/v1")
    assert (done.code, "(extractive)" in done.out) == (0, True)
    assert done.err.startswith("model: generic (connect): cannot connect to http://127.0.0.1:9")


def test_a_wire_that_the_provider_does_not_speak(ctxfold: Run) -> None:
    refused = ctxfold("compact", "ann", "--model", "lookup", "--wire", "gemini")
    assert refused.code != 0
    assert "'generic' speaks openai_chat, openai_responses, and not gemini" in refused.err


def test_a_session_keeps_its_rules(ctxfold: Run, store: str) -> None:
    for command in (("show", "ann"), ("compact", "ann", "--force"), ("undo", "ann"), ("search", "ann", "locker")):
        assert ctxfold(*command).code == 0
    with context(store=store, session_id="ann", create=False) as ann:
        assert ann.policy.context_window == 1_500


def test_fork(ctxfold: Run) -> None:
    assert ctxfold("fork", "ann", "new", "--at", "u3", "--json").json["messages"] == 10
    assert [m["id"] for m in ctxfold("show", "new", "--json").json][-1] == "u3"
    sessions = {row["session"]: row for row in ctxfold("sessions", "--json").json}
    assert sessions["ann"]["forks"] == ["new"]
    assert sessions["new"]["budget"] == sessions["ann"]["budget"]  # its rules come along, the command's are not stored
    taken = ctxfold("fork", "ann", "bob")
    assert (taken.code, "exists already" in taken.err) == (1, True)


def test_export_and_import_give_the_same_session(ctxfold: Run, tmp_path: Path, store: str) -> None:
    file = tmp_path / "out.jsonl"
    lines = ctxfold("export", "ann", str(file), "--json").json["lines"]
    assert lines == len(file.read_text(encoding="utf-8").splitlines())
    assert ctxfold("import", "copy", str(file), "--json").json == {"session": "copy", "messages": lines}
    assert ctxfold("show", "copy", "--json").json == ctxfold("show", "ann", "--json").json
    assert ctxfold("window", "copy", "--json").json["blocks"] == ctxfold("window", "ann", "--json").json["blocks"]
    with context(store=store, session_id="copy", create=False) as copy:
        assert copy.policy.context_window == 1_500
    again = ctxfold("import", "copy", str(file))
    assert (again.code, "into a new name" in again.err) == (1, True)


def test_a_file_named_by_a_dash_is_the_output(ctxfold: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else is in it, and no file has that name."""
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    ctxfold("export", "ann", str(tmp_path / "ann.jsonl"))
    for more in ((), ("--json",)):
        assert ctxfold("export", "ann", "-", *more).out == (tmp_path / "ann.jsonl").read_text(encoding="utf-8")
        page = ctxfold("inspect", "ann", "--html", "-", *more).out
        assert (page.startswith("<!doctype html>"), page.endswith("</html>\n")) == (True, True)
    missing = ctxfold("export", "nobody", "-")
    assert (missing.code, missing.out) == (3, "")
    assert sorted(tmp_path.iterdir()) == sorted([*before, tmp_path / "ann.jsonl"])


def test_import_of_bare_messages(ctxfold: Run, tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text('{"role": "user", "content": "hi"}\n{"role": "assistant", "content": "hello"}\n', encoding="utf-8")
    lacking = ctxfold("import", "new", str(file))
    assert (lacking.code, "give --context-window" in lacking.err) == (2, True)
    assert ctxfold("import", "new", str(file), "--context-window", "4000").out == "2 messages into new\n"
    assert "2 messages into bob" in ctxfold("import", "bob", str(file)).out
    file.write_text('{"role": "user", "content": "hi"}\nnonsense\n', encoding="utf-8")
    bad = ctxfold("import", "new", str(file))
    assert (bad.code, "line 2" in bad.err, "nothing was imported" in bad.err) == (1, True, True)
    assert ctxfold("import", "newer", str(file), "--context-window", "4000").err == bad.err
    assert "newer" not in ctxfold("sessions").out


def test_import_makes_a_new_store(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text('{"role": "user", "content": "hi"}\n', encoding="utf-8")
    place = str(tmp_path / "new.db")
    options = ["--context-window", "4000", "--store", place]
    assert CliRunner().invoke(app, ["import", "s", str(file), *options]).exit_code == 0
    assert "hi" in CliRunner().invoke(app, ["show", "s", "--store", place]).stdout


# erasing


def test_erase_messages(ctxfold: Run, store: str) -> None:
    ctxfold("fork", "ann", "new")
    done = ctxfold("erase", "ann", "m", "--yes", "--json").json
    assert done == {"messages": ["m"], "sessions": ["ann", "new"], "removed": [], "settled": True}
    assert "erased: 0 messages" in ctxfold("erase", "ann", "m", "--yes").out
    gone = ctxfold("show", "ann", "m")
    assert (gone.code, "was erased" in gone.err) == (3, True)
    with SqlStore(store) as opened:
        assert places_of("47-B", opened) == []
    with context(store=store, session_id="new") as fork, pytest.raises(MessageErasedError):
        fork.archive.get("m")


def test_erase_a_session_and_everything(ctxfold: Run) -> None:
    assert ctxfold("erase", "ann", "--yes", "--json").json["removed"] == ["ann"]
    assert ctxfold("erase", "--all", "--yes").out == "erased: 1 sessions (bob)\n"
    assert ctxfold("sessions", "--json").json == []
    assert len(ctxfold("show", "eve", "--owner", "mallory", "--json").json) == 2


def test_prune(ctxfold: Run) -> None:
    told = ctxfold("prune", "bob", "--max-messages", "1", "--yes", "--json").json
    assert (told["sessions"], told["removed"], told["busy"], told["settled"]) == (["bob"], [], False, True)
    assert told["messages"] > 0
    assert ctxfold("prune", "--max-messages", "1", "--older-than", "1d", "--yes").out.startswith("erased: ")
    assert ctxfold("prune", "--max-messages", "1", "--yes").out == "erased: 0 messages\n"
    assert "'nobody'" in ctxfold("prune", "nobody", "--max-bytes", "1", "--yes").err
    assert {line["session"] for line in ctxfold("sessions", "--json").json} == {"ann", "bob"}


def test_erase_by_age(ctxfold: Run) -> None:
    assert ctxfold("erase", "--all", "--older-than", "1d", "--yes", "--json").json["messages"] == []
    told = ctxfold("erase", "bob", "--older-than", "0h", "--yes", "--json").json
    assert told["messages"] == ["q", "t-a", "t-r0", "d"]
    assert len(ctxfold("show", "ann", "--json").json) == 83


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("erase", "ann"), 2, "cannot be undone: add --yes"),
        (("erase",), 2, "a session, or --all"),
        (("erase", "ann", "--all", "--yes"), 2, "either a session"),
        (("erase", "ann", "m", "--older-than", "1d", "--yes"), 2, "give one of them"),
        (("erase", "ann", "--older-than", "soon", "--yes"), 2, "such as 30d"),
        (("erase", "ann", "--older-than", "99999999999y", "--yes"), 2, "such as 30d"),
        (("erase", "nobody", "--yes"), 3, "does not exist"),
        (("show", "nobody"), 3, "session 'nobody' of owner 'default' does not exist"),
        (("show", "eve"), 3, "does not exist"),
        (("show", "ann", "nothing"), 3, "check the reference"),
        (("show", "ann", "--audience", "dog"), 2, "use one of all, user, model"),
        (("prune", "--yes"), 2, "use --older-than, --unused-for, --max-messages or --max-bytes"),
        (("prune", "--max-bytes", "0", "--yes"), 2, "'--max-bytes'"),
        (("prune", "--older-than", "0d", "--yes"), 2, "--older-than '0d' names no span"),
        (("undo", "bob"), 3, "no compaction or edit"),
        (("export", "ann", "/nowhere/out.jsonl"), 1, "No such file"),
        (("export", "ann", "out.jsonl", "--zone", "dog"), 2, "zone is 'dog'"),
    ],
)
def test_failures_are_a_line_and_a_code(ctxfold: Run, arguments: tuple[str, ...], code: int, told: str) -> None:
    before = len(ctxfold("show", "ann", "--json").json)
    done = ctxfold(*arguments)
    assert (done.code, done.out) == (code, "")
    assert told in done.err
    assert "Traceback" not in done.err
    assert len(ctxfold("show", "ann", "--json").json) == before


@pytest.mark.parametrize(
    ("arguments", "code", "kind"),
    [
        (("show", "nobody"), 3, "SessionNotFoundError"),
        (("export", "ann", "/nowhere/out.jsonl"), 1, "FileNotFoundError"),
    ],
)
def test_failures_as_json(ctxfold: Run, arguments: tuple[str, ...], code: int, kind: str) -> None:
    done = ctxfold(*arguments, "--json")
    assert (done.code, json.loads(done.err)["error"]["type"]) == (code, kind)


# the page


def test_every_command_on_the_page_works(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    lines = [line for line in page.splitlines() if line.startswith("ctxfold ")]
    assert len(lines) == 36
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CTXFOLD_STORE", store)
    with context(store=store, session_id="chat-1", context_window=1_500) as ctx:
        ctx.add([user("my locker code is 47-B", id="m"), assistant("noted", id="n"), *turns(45)])
    for line in lines:
        arguments = shlex.split(line, comments=True)[1:]
        if "--model" in arguments or arguments[0] == "ui":
            continue  # one asks a service, the other serves until Ctrl-C: see test_compact_with_a_model and test_ui
        if arguments[0] == "import" and not arguments[2].endswith("chat-1.jsonl"):
            continue  # a transcript of another program
        if arguments[0] == "erase":
            arguments.append("--yes")
        done = CliRunner().invoke(app, arguments)
        unknown_item = arguments[:2] == ["memory", "forget"]  # an id of somebody else's store
        assert done.exit_code == (3 if unknown_item else 0), (line, done.stderr)


# the installed command


def test_a_reader_that_goes_ends_a_command_quietly(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/long.db"
    with AgentContext(store=url, context_window=100_000) as ctx:
        ctx.add([user(f"{n} {'word ' * 200}", id=str(n)) for n in range(300)])
    command = [Path(sys.executable).parent / "ctxfold", "window", "default", "--store", url, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "{\n"
        process.stdout.close()
        assert process.stderr.read() == ""


def installed(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = Path(sys.executable).parent / "ctxfold"
    return subprocess.run(
        [command, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
    )


def test_the_installed_command(store: str, path: Path) -> None:
    done = installed("show", "bob", "--store", str(path))  # a path will do
    assert (done.returncode, done.stderr) == (0, "")
    assert "look" in done.stdout
    done = installed("sessions", "--json", CTXFOLD_STORE=store, CTXFOLD_OWNER="mallory")
    assert json.loads(done.stdout)[0]["session"] == "eve"


@pytest.mark.parametrize(
    ("place", "code", "told"),
    [
        (
            "missing.db",
            2,
            f"there is no store file 'missing.db' in {Path.cwd()}: check --store, or run its program first",
        ),
        ("memory://", 2, "ends with its process"),
        ("mysql://x", 2, "use sqlite:///file.db"),
        (__file__, 4, "no SQLite database"),
        ("postgresql+psycopg://nobody@127.0.0.1:9/none", 4, "cannot reach"),
    ],
)
def test_a_store_that_cannot_be_used(place: str, code: int, told: str) -> None:
    done = CliRunner().invoke(app, ["sessions", "--store", place])
    assert (done.exit_code, done.stdout) == (code, "")
    assert told in done.stderr
    assert not Path("missing.db").exists()


def test_the_installed_command_fails_without_a_traceback() -> None:
    done = installed("sessions", "--store", __file__)
    assert (done.returncode, done.stdout) == (4, "")
    assert "no SQLite database" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_its_packages_the_command_says_what_to_install() -> None:
    code = (
        "import sys; from importlib.abc import MetaPathFinder\n"
        "class Lacking(MetaPathFinder):\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'typer': raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, Lacking())\n"
        "from ctxfold.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert 'pip install "ctxfold[cli]"' in done.stderr
    assert "Traceback" not in done.stderr


def test_the_version(tmp_path: Path) -> None:
    done = installed("--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"ctxfold {version('ctxfold')}\n"


def test_a_warning_is_one_line(store: str, tmp_path: Path) -> None:
    """Where no encoding is found, tokens are estimated; nothing of our code is shown."""
    code = "import sys; sys.modules['llama_index'] = None; from ctxfold.cli import main; main()"
    alone = {"CTXFOLD_OFFLINE": "1", "CTXFOLD_CACHE_DIR": str(tmp_path), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code, "sessions", "--store", store],
        capture_output=True,
        text=True,
        env={**os.environ, **alone},
    )
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert line.startswith("warning: tokens are estimated by character class")


def test_without_its_packages_the_demo_says_what_to_install() -> None:
    code = "import runpy, sys; sys.modules['rich'] = None; runpy.run_module('examples.demo', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, 'error: the demo needs rich: pip install "ctxfold[all]"\n')


# pipes with a small character set, as Windows has them


@pytest.mark.parametrize("charset", ["cp1252", "ascii"])
def test_text_that_the_pipe_cannot_show_is_escaped(tmp_path: Path, charset: str) -> None:
    place = f"sqlite:///{tmp_path / 'chat.db'}"
    with context(store=place, session_id="ann") as ann:
        ann.add([user("the price is 20 \N{EURO SIGN}, \N{SNOWMAN}", id="m"), assistant("noted", id="n")])
    command = [sys.executable, "-c", "from ctxfold.cli import main; main()"]
    environment = {**os.environ, "PYTHONIOENCODING": charset, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [*command, "show", "ann", "--store", place], capture_output=True, env=environment, check=False
    )
    euro = "\N{EURO SIGN}" if charset == "cp1252" else "\\u20ac"
    assert (done.returncode, done.stderr) == (0, b"")
    assert f"the price is 20 {euro}, \\u2603" in done.stdout.decode(charset)


def test_a_message_of_media_alone_is_shown(tmp_path: Path) -> None:
    """R4: a picture that was not compacted was an empty line."""
    store = f"sqlite:///{tmp_path / 'chat.db'}"
    picture = MediaPart(
        "image", json.dumps({"type": "image_url", "image_url": {"url": "data:image/png;base64,aGVsbG8="}})
    )
    with AgentContext(session_id="s", store=store, context_window=8_000) as context:
        context.add([Message("u", "user", (picture,)), assistant("A ship.", id="a")])
    for command in ("show", "window"):
        assert "[image, png, 1 kB]" in CliRunner().invoke(app, [command, "s", "--store", store]).stdout


@pytest.mark.parametrize("command", [["sessions"], ["show", "ann"], ["search", "--all", "x"], ["doctor"], ["ui"]])
@pytest.mark.parametrize("tables", ["", "CREATE TABLE notes (text)"])
def test_a_file_of_another_program_is_not_made_a_store(command: list[str], tables: str, tmp_path: Path) -> None:
    place = tmp_path / "notes.db"
    with closing(sqlite3.connect(place)) as connection:
        connection.execute(tables) if tables else place.touch()
    before = place.read_bytes()
    done = CliRunner().invoke(app, [*command, "--store", str(place)])
    assert done.exit_code != 0
    assert "is a file of another program, or empty" in done.output + done.stderr
    assert place.read_bytes() == before
