"""The README's examples run as they stand, each by itself and in one folder, with OpenAI's address led to the loopback server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctxfold.testing import ModelServer

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", README, flags=re.S)


@pytest.fixture
def provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelServer]:
    monkeypatch.chdir(tmp_path)
    with ModelServer(model="lookup", context_window=64_000) as server:
        monkeypatch.setenv("OPENAI_API_KEY", "x")
        monkeypatch.setenv("OPENAI_API_BASE", server.base_url)
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        yield server


def test_the_examples_in_order(provider: ModelServer, capsys: pytest.CaptureFixture[str]) -> None:
    printed: list[str] = []
    for example in EXAMPLES:
        names: dict[str, object] = {}  # complete: nothing comes from the one before but the session in the file
        exec(compile(example, "README.md", "exec"), names)
        printed.append(capsys.readouterr().out)
        if "memory" in names:
            names["memory"].context.close()  # type: ignore[attr-defined]
    told, in_a_chain, in_llamaindex = printed
    assert told.strip()
    assert "My locker is 47-B." in in_a_chain
    assert "My locker is 47-B." in in_llamaindex
    assert len(provider.requests) == 3


def test_each_example_is_short() -> None:
    for example in EXAMPLES:
        lines = [line for line in example.splitlines() if line.strip() and not line.startswith(("from ", "import "))]
        assert len(lines) <= 10


def test_the_readme_is_short_and_shows_the_picture() -> None:
    assert len(README.splitlines()) <= 150
    alt, path = re.findall(r"!\[(.+?)\]\((.+?)\)", README, flags=re.S)[0]
    assert len(alt) > 80
    assert (Path(__file__).parents[2] / path).is_file()
