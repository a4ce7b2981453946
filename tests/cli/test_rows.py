"""What fits a terminal of 80 columns and of 200: rows that say what a message holds, help without cut lines, and the commands that
explain a window and change the settings of a session."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ctxfold import AgentContext, MediaPart, Message, ReasoningPart, ToolCallPart, assistant, tool_result, user
from tests.support.driven import context, scripted, turns

Run = Callable[..., Any]
COMMAND = str(Path(sys.executable).parent / "ctxfold")
PNG = bytes.fromhex("89504e470d0a1a0a0000000d494844520000004000000030080600000000000000")
PICTURE = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64.b64encode(PNG).decode()}"}}
LONG = "It was a bright cold day in April, and the clocks were striking thirteen while he slipped through the doors."


@pytest.fixture(params=[80, 200])
def columns(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setenv("COLUMNS", str(request.param))
    return int(request.param)


@pytest.fixture
def agent(store: str) -> None:
    """The session "agent", with calls, a picture, reasoning alone, and words that fill any line."""
    read = ToolCallPart("c1", "read_file", '{"path": "notes.md"}')
    with context(store=store, session_id="agent", context_window=8_000) as ctx:
        ctx.add([user(LONG * 3), assistant("", calls=[read]), tool_result("c1", "47-B"), assistant("done")])
        ctx.add([Message("p", "user", (MediaPart("image", json.dumps(PICTURE)),)), assistant("A ship.")])
        ctx.add([user("and?"), Message("r", "assistant", (ReasoningPart("hm"),))])


def rows(out: str) -> list[tuple[str, str]]:
    """The reference and the message of each row of a table whose last column is the message."""
    lines = out.splitlines()
    at = next(i for i, line in enumerate(lines) if line.split()[-1:] in (["message"], ["sentence"]))
    start = re.search(r"message|best sentence", lines[at])
    assert start is not None
    number = lines[at].index("#")
    return [(line[number:].split(" ")[0], line[start.start() :].strip()) for line in lines[at + 1 :] if line.strip()]


def test_rows_say_what_a_message_holds(ctxfold: Run, agent: None, columns: int) -> None:
    told = rows(ctxfold("window", "agent").out)
    assert [reference for reference, _ in told] == [f"#{n}" for n in range(1, 9)]
    assert told[1][1].startswith('-> read_file({"path": "notes.md"})')
    assert told[4][1] == "[image, 64x48, png, 1 kB]"
    assert told[7][1] == "[reasoning]"
    assert all(text for _, text in told)
    assert len(told[0][1]) >= (40 if columns == 80 else 120)
    assert told[0][1].startswith("It was a bright cold day in April")


def test_no_line_is_wider_than_the_terminal(ctxfold: Run, agent: None, columns: int) -> None:
    for arguments in (
        ["window", "agent"],
        ["window", "ann"],
        ["search", "--all", "clocks"],
        ["diff", "ann", "2", "41"],
    ):
        lines = ctxfold(*arguments).out.splitlines()
        table = lines[next(i for i, line in enumerate(lines) if "#" in line) :]
        assert max(map(len, table)) <= columns, arguments


def test_a_search_keeps_long_names_whole(ctxfold: Run, store: str, columns: int) -> None:
    name = "a-session-with-a-name-of-its-own"
    with context(store=store, session_id=name, context_window=8_000) as ctx:
        ctx.add([user(LONG), assistant("noted")])
    shown = ctxfold("search", "--all", "clocks").out
    if columns == 80:
        head, sentence = shown.splitlines()
        assert re.fullmatch(rf"{name} #1 \S+ user", head)
        assert sentence.startswith("  It was a bright cold day in April, and the clocks were striking")
        assert len(sentence) <= 80
    else:
        assert rows(shown)[0][0] == "#1"
        assert "score" in shown
        assert name in shown
    assert re.search(rf"^{name} +1 +\d+ +6400 +0 *$", ctxfold("sessions").out, re.M)
    reference, sentence = rows(ctxfold("search", "--all", "question 17").out)[0]
    assert (reference, sentence[:15]) == ("#38", "question 17 wor")
    assert len(sentence) >= 40


def test_reasons_need_a_wide_terminal(ctxfold: Run, columns: int) -> None:
    assert ("newer than the last cut" in ctxfold("window", "ann").out) == (columns == 200)


def test_messages_are_shown_with_their_references(ctxfold: Run, agent: None) -> None:
    shown = ctxfold("show", "agent").out
    assert re.findall(r"^#\d+ \w+", shown, re.M)[:3] == ["#1 user", "#2 assistant", "#3 tool"]
    assert "[reasoning]" in shown
    reference = ctxfold("search", "ann", "locker", "--json").json[0]["reference"]
    assert ctxfold("show", "ann", reference).out.startswith(f"{reference} user m\n")


def test_the_report_has_the_rows_of_the_window(ctxfold: Run, agent: None, columns: int) -> None:
    shown = ctxfold("inspect", "ann").out
    assert "What happened:" in shown
    assert shown.count("#74 ") == 1
    assert rows(ctxfold("inspect", "agent").out.partition("What happened")[0])[4] == ("#5", "[image, 64x48, png, 1 kB]")


def test_a_pipe_has_whole_rows(store: str, agent: None) -> None:
    done = subprocess.run(
        [COMMAND, "window", "agent", "--store", store], capture_output=True, text=True, check=True, timeout=60, env={}
    )
    assert "newer than the last cut" in done.stdout
    assert max(map(len, done.stdout.splitlines())) > 150


# help


def help_of(*command: str) -> str:
    environment = {"COLUMNS": "80", "TERMINAL_WIDTH": "80", "PATH": ""}
    arguments = [COMMAND, *command, "--help"]
    return subprocess.run(arguments, capture_output=True, text=True, check=True, timeout=60, env=environment).stdout


def test_the_help_is_grouped_and_no_line_is_cut() -> None:
    told = help_of()
    assert re.findall(r"^(\w[\w ]*):$", told, re.M) == [
        "Options",
        "Read",
        "Change",
        "Files",
        "Serve and check",
        "Memory",
    ]
    names = re.findall(r"^  ([a-z]+)  ", told, re.M)
    assert len(names) == len(set(names)) == 21
    assert "..." not in told
    assert max(map(len, told.splitlines())) <= 80
    examples = re.findall(r"^ +Example: ctxfold (\w+)", told, re.M)
    assert examples == names, "an example each, in its place"


@pytest.mark.parametrize("name", ["why", "diff", "policy", "search", "import", "memory"])
def test_the_help_of_a_command_has_its_example(name: str) -> None:
    told = help_of(name)
    assert f"Example: ctxfold {name}" in told
    assert max(map(len, told.splitlines())) <= 80


# why


def test_why_a_message_is_out_of_the_window(ctxfold: Run) -> None:
    told = ctxfold("why", "ann", "#2").out
    assert told.startswith("#2 user: my locker is 47-B")
    assert "\x1b" not in told
    assert re.search(
        r"out of the window: compacted, summarised in \w+ \(summarize, after the turn: 19\d\d of 1200", told
    )
    payload = ctxfold("why", "ann", "m", "--json").json
    assert (payload["where"], payload["zone"], payload["recalled"]) == ("compacted", None, False)
    assert payload["message"]["text"].startswith("my locker")


def test_why_a_message_is_in_the_window(ctxfold: Run) -> None:
    assert "in the window, zone live, 20 tokens: visible, newer" in ctxfold("why", "ann", "#80").out
    assert "in the window, zone system, 7 tokens" in ctxfold("why", "ann", "#1").out
    missing = ctxfold("why", "ann", "#999")
    assert (missing.code, "'#999' is not in session 'ann'" in missing.err) == (3, True)


def test_why_a_message_was_left_out_without_a_summary(ctxfold: Run, store: str) -> None:
    with context(store=store, session_id="slide", context_window=8_000, strategy="sliding_window", keep_last=2) as ctx:
        ctx.add(turns(3))
    told = ctxfold("why", "slide", "#1").out
    assert "out of the window: compacted, left out without a summary (sliding_window, after the turn" in told


def test_why_a_message_was_recalled(ctxfold: Run, store: str) -> None:
    backend = scripted("It is 47-B.")
    with context(backend, store=store, session_id="ann", context_window=1_500) as ann:
        ann.send("Which locker is mine?")
    assert "the newest request recalled it" in ctxfold("why", "ann", "#2").out
    assert ctxfold("why", "ann", "#2", "--json").json["recalled"]


# diff


def test_the_difference_of_two_windows(ctxfold: Run, store: str) -> None:
    backend = scripted("It is 47-B.", "Fine.")
    with context(backend, store=store, session_id="ann", context_window=1_500) as ann:
        ann.send("Which locker is mine?")
        ann.send("Thanks.")
        newest = len(ann.archive.inspect().turns)
    told = ctxfold("diff", "ann", "41", str(newest - 1)).out
    assert re.match(
        r"turn 41 to turn \d+: 1,6\d\d to [\d,]+ tokens \(summary \+\d+, live -[\d,]+, recalled \+\d+\)", told
    )
    assert re.search(r"^\+ +summary", told, re.M)
    assert re.search(r"^- +#3 ", told, re.M)
    assert "\nrecalled: #2" in told
    assert "no longer recalled: #2" in ctxfold("diff", "ann", str(newest - 1), str(newest)).out
    payload = ctxfold("diff", "ann", "41", str(newest - 1), "--json").json
    assert payload["recalled"][0] == "#2"
    same = ctxfold("diff", "ann", "3", "3").out
    assert re.fullmatch(r"turn 3 to turn 3: (\d+) to \1 tokens \(no difference\)\n", same)


def test_a_turn_that_is_not_there(ctxfold: Run) -> None:
    done = ctxfold("diff", "bob", "1", "9")
    assert (done.code, done.out) == (3, "")
    assert "session 'bob' has no turn 9: it has turns 1 to 1" in done.err


# settings


def test_the_settings_in_force(ctxfold: Run) -> None:
    assert re.search(r"^context_window +1500$", ctxfold("policy", "ann").out, re.M)
    assert ctxfold("policy", "ann", "--json").json["strategy"] == "tiered"


def test_settings_are_changed_for_good(ctxfold: Run, store: str) -> None:
    told = ctxfold("policy", "bob", "keep=3", "trigger=('tokens', 800)", "auto_compact=false", "memory=facts").out
    assert [line.split()[0] for line in told.splitlines()] == ["auto_compact", "trigger", "keep_last", "memory"]
    with AgentContext(store=store, session_id="bob", context_window=1_000) as bob:
        assert (bob.policy.keep_last, bob.policy.auto_compact, bob.policy.memory) == (3, False, ("facts",))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("keep_last", "'keep_last': give a name and a value, such as context_window=8000"),
        ("keep_last=many", "keep_last is 'many'"),
        ("keep_lst=3", "did you mean keep_last"),
        ("max_tokens=900", "context_window limits the whole conversation"),
    ],
)
def test_settings_that_are_none(ctxfold: Run, change: str, told: str) -> None:
    before = ctxfold("policy", "bob", "--json").json
    done = ctxfold("policy", "bob", change)
    assert (done.code, done.out) == (2, "")
    assert told in done.err
    assert ctxfold("policy", "bob", "--json").json == before


def test_the_remedy_of_an_undo_can_be_done_where_it_is_named(ctxfold: Run) -> None:
    refused = ctxfold("undo", "ann")
    assert refused.code == 1
    assert "raise context_window first; ctxfold policy SESSION context_window=... raises it" in refused.err
    assert ctxfold("policy", "ann", "context_window=3000").code == 0
    assert ctxfold("undo", "ann").code == 0
    assert ctxfold("show", "ann", "--audience", "model", "--last", "100", "--json").json[1]["id"] == "m"


def test_messages_are_pinned_and_unpinned(ctxfold: Run) -> None:
    assert ctxfold("pin", "ann", "#80", "#81").code == 0
    assert "visible, pinned" in ctxfold("why", "ann", "#80").out
    assert ctxfold("pin", "ann", "#80", "--off").code == 0
    assert "visible, newer than the last cut" in ctxfold("why", "ann", "#80").out
    refused = ctxfold("pin", "ann", "#999")
    assert (refused.code, "'#999' is not in session 'ann'" in refused.err) == (3, True)
