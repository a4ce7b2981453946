"""The examples on the archive in docs/sessions.md run as they stand, one after the other in one folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.pages import examples, page, section

EXAMPLES = examples(section(page("sessions.md"), "## The archive"))


def test_the_examples_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    assert len(EXAMPLES) == 9
    for example in EXAMPLES:
        exec(compile(example, "sessions.md", "exec"), names)
    names["loaded"].close()
    names["ctx"].close()
    printed = capsys.readouterr().out
    assert "#1 user My locker is 47-B, and the spare key is with Ada Okafor." in printed
    assert "compacted summarised in" in printed
    assert "Message #1 (user), characters 0 to" in printed
    assert "Error" not in printed


def test_the_examples_on_encryption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for example in examples(section(page("sessions.md"), "## Encryption")):
        exec(compile(example, "sessions.md", "exec"), names)
    names["store"].close()
    excerpt, *counts = capsys.readouterr().out.split("\n")
    assert "locker is 47-B" in excerpt
    assert counts[:2] == ["2", "0"], "the owner's key and the store's own"
    held = b"".join(path.read_bytes() for path in tmp_path.glob("sealed.db*"))
    assert b"ctxfold_records" in held
    assert b"locker" not in held


def test_each_example_is_short() -> None:
    for example in EXAMPLES:
        lines = [x for x in example.splitlines() if x.strip() and not x.startswith(("from ", "import "))]
        assert len(lines) <= 10
