"""`ctxfold import` of what other programs wrote: one session for each conversation, found by `search --all`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.transcripts.samples import CHATGPT_TREE, CLAUDE_PARALLEL, SAMPLES, Sample, chat, node

Run = Callable[..., Any]
WINDOW = ("--context-window", "20000")


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: f"{s.format}: {s.name}")
def test_what_was_imported_is_found(ctxfold: Run, tmp_path: Path, sample: Sample) -> None:
    file = tmp_path / "file"
    file.write_text(sample.text, encoding="utf-8")
    done = ctxfold("import", "old", str(file), *WINDOW, "--json").json
    told = [conversation for conversation in sample.told if conversation]
    assert (done["format"], done["messages"]) == (sample.format, sum(map(len, told)))
    assert [row["messages"] for row in done["sessions"]] == [len(conversation) for conversation in told]
    for row, conversation in zip(done["sessions"], told, strict=True):
        assert (row["session"] == "old") is (len(told) == 1)
        assert len(ctxfold("show", row["session"], "--json").json) == len(conversation)
    longest = max((text.partition(": ")[2] for conversation in told for text in conversation), key=len)
    assert any(hit["session"].startswith("old") for hit in ctxfold("search", "--all", longest, "--json").json)
    again = ctxfold("import", "old", str(file), "--json").json
    assert [(row["session"], row["messages"]) for row in again["sessions"]] == [
        (r["session"], 0) for r in done["sessions"]
    ]


def test_several_conversations_are_several_sessions(ctxfold: Run, tmp_path: Path) -> None:
    file = tmp_path / "conversations.json"
    file.write_text(CHATGPT_TREE.text, encoding="utf-8")
    done = ctxfold("import", "chats", str(file))
    assert done.out == (
        "4 messages into 2 sessions, chats/... (chatgpt)\nleft out: 1 other branches; 2 hidden messages of the program\n"
    )
    names = [row["session"] for row in ctxfold("sessions", "--json").json]
    assert {"chats/Bread b2-bread", "chats/Rye a1b2-rye"} <= set(names)
    assert ctxfold("window", "chats/Bread b2-bread", "--json").json["context_window"] == 128_000
    lacking = ctxfold("import", "chats", str(tmp_path / "conversation.json"))
    assert (lacking.code, "does not exist" in lacking.err) == (2, True)
    assert "2023-11-14" in ctxfold("search", "--all", "salt flour").out
    assert "salt" not in ctxfold("search", "--all", "salt", "--since", "30d").out, "messages keep their times"


def test_a_bad_conversation_stops_the_import_or_is_left_out(ctxfold: Run, tmp_path: Path) -> None:
    file = tmp_path / "conversations.json"
    rows = [chat(n, "u1", node("r", None), node("u1", "r", "user", f"{n} words")) for n in ("One", "Two", "Three")]
    rows[1]["mapping"]["u1"]["message"]["content"] = {"content_type": "hologram"}
    file.write_text(json.dumps(rows), encoding="utf-8")
    before = ctxfold("sessions", "--json").json
    refused = ctxfold("import", "chats", str(file), *WINDOW)
    assert (refused.code, "item 2: it resembles chatgpt" in refused.err) == (1, True)
    assert ctxfold("sessions", "--json").json == before
    partly = ctxfold("import", "chats", str(file), *WINDOW, "--skip-bad")
    assert (partly.code, partly.out) == (0, "2 messages into 2 sessions, chats/... (chatgpt)\n")
    assert "left out: item 2: it resembles chatgpt" in partly.err


def test_a_named_format_and_a_wrong_one(ctxfold: Run, tmp_path: Path) -> None:
    file = tmp_path / "file.jsonl"
    file.write_text(CLAUDE_PARALLEL.text, encoding="utf-8")
    assert (
        "8 messages into named (claude-code)"
        in ctxfold("import", "named", str(file), "--as", "claude-code", *WINDOW).out
    )
    wrong = ctxfold("import", "other", str(file), "--as", "chatgpt", *WINDOW)
    assert (wrong.code, "line 1: it resembles chatgpt" in wrong.err) == (1, True)
    unknown = ctxfold("import", "other", str(file), "--as", "pdf", *WINDOW)
    assert (unknown.code, "format is 'pdf'" in unknown.err) == (2, True)
