"""The first page prints what stands under its example, recipes run, and the build refuses what the site would show badly."""

from __future__ import annotations

import logging
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ctxfold.testing import ModelServer
from tests.support.pages import DOCS, examples, page

HOOKS = runpy.run_path(str(DOCS / "hooks.py"))
FROM_PACKAGES_OF_THE_SUITE = {
    "LangGraph with PostgreSQL",
    "In place of `SummarizationMiddleware`",
}  # `make recipes` runs all


def test_the_example_of_index_md_prints_what_stands_under_it(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = examples(page("index.md"))
    names: dict[str, Any] = {}
    exec(compile(example, "index.md", "exec"), names)
    names["ctx"].close()
    (printed,) = re.findall(r"^```text\n(.*?)^```", page("index.md"), flags=re.S | re.M)
    assert capsys.readouterr().out == printed


@pytest.fixture
def own_schema(postgres_url: str) -> Iterator[str]:
    from tests.support.postgres_schema import fresh_schema  # needs a driver

    with fresh_schema(postgres_url) as url:
        yield url


@pytest.mark.parametrize("name", sorted(FROM_PACKAGES_OF_THE_SUITE))
def test_a_program_of_recipes_md_knows_what_was_said(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.chdir(tmp_path)
    if "PostgreSQL" in name:  # the checkpointer's tables are not for other tests
        url = request.getfixturevalue("own_schema")
        monkeypatch.setenv("DATABASE_URL", url.replace("+psycopg", ""))
    (program,) = examples(re.split(rf"^## {re.escape(name)}$", page("recipes.md"), flags=re.M)[1].split("\n## ")[0])
    with ModelServer(context_window=8_000) as server:
        for variable in ("OPENAI_BASE_URL", "OPENAI_API_BASE"):
            monkeypatch.setenv(variable, server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        names: dict[str, Any] = {}
        exec(compile(program, "recipes.md", "exec"), names)
        for value in list(names.values()):
            if hasattr(value, "close") and not isinstance(value, type | ModuleType):
                value.close()
    assert "47-B" in capsys.readouterr().out.splitlines()[-1]


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize(
    "html",
    ["<p>Take one:\n- a\n- b</p>", "<li><p>so\n1. first</p></li>", "<dd>x\n * y</dd>"],
)
def test_a_list_that_is_shown_as_text_stops_the_build(html: str, caplog: pytest.LogCaptureFixture) -> None:
    HOOKS["on_page_content"](html, SimpleNamespace(file=SimpleNamespace(src_uri="x.md")), None, None)
    assert warned(caplog)


def test_dashes_in_text_and_code_do_not_stop_the_build(caplog: pytest.LogCaptureFixture) -> None:
    html = "<p>from 1 - 2, so\nnot - a list</p><pre><code>x\n- y</code></pre><ul><li>a</li></ul><td>1. accept</td>"
    assert HOOKS["on_page_content"](html, SimpleNamespace(file=SimpleNamespace(src_uri="x.md")), None, None) == html
    assert not warned(caplog)


@pytest.mark.parametrize(("columns", "refused"), [(77, False), (78, True)])
def test_a_line_of_code_that_the_page_cuts_off_stops_the_build(
    columns: int, refused: bool, caplog: pytest.LogCaptureFixture
) -> None:
    line = f'x = "{"y" * (columns - 6)}"'
    assert len(line) == columns
    shown = SimpleNamespace(file=SimpleNamespace(src_uri="x.md"), title="X", meta={})
    HOOKS["on_page_markdown"](f"```python\n{line}\n```\n", shown, None, None)
    assert bool(warned(caplog)) is refused


def test_a_code_block_of_a_guide_has_few_words_around_it() -> None:
    for name in ("index.md", "tutorials.md", "recipes.md", "migration.md"):
        words = len(re.sub(r"^```.*?^```|^\|.*?$", "", page(name), flags=re.S | re.M).split())
        assert words <= 200 * len(re.findall(r"^```\w*\n.*?^```", page(name), flags=re.S | re.M)), name
