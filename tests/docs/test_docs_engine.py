"""The pages on the engine, on editing and on public names: examples run as they stand, tables say what there is."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import ctxfold
import langchain_ctx
import llamaindex_ctx
from ctxfold import Policy
from ctxfold.backends.profile import load_profile, provider_names
from ctxfold.engine.request import RequestOptions
from ctxfold.policy.settings import policy_for
from ctxfold.testing import ModelServer
from tests.support.pages import DOCS, examples, page, section
from tests.support.public_names import API, public_names

ENGINE = page("engine.md")
EDITING = section(page("sessions.md"), "## Edit")
SETTINGS = section(page("reference.md"), "## Settings")


def named(text: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", text))


def rows(text: str, heading: str) -> list[list[str]]:
    """The cells of the first table under a heading."""
    part = text.partition(heading)[2] if heading else text
    table = re.search(r"\n\|.*?\n\n", part + "\n\n", flags=re.S)
    assert table is not None
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[0].strip().splitlines()[2:]]


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    monkeypatch.chdir(tmp_path)
    with ModelServer(model="lookup", context_window=8_000) as server:
        yield {"base_url": server.base_url}


def run(text: str, name: str, names: dict[str, Any]) -> None:
    for example in examples(text):
        exec(compile(example, name, "exec", dont_inherit=True), names)


def test_the_engine(names: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert len(examples(ENGINE)) == 6
    run(ENGINE, "engine.md", names)
    printed = capsys.readouterr().out
    assert "My locker is 47-B." in printed
    assert "A red umbrella." in printed
    assert "A blue umbrella in 48-B." in printed
    assert "stop " in printed
    assert "spent 0.0" in printed
    assert [m.role for m in names["ctx"].messages()][-4:] == ["user", "assistant", "tool", "assistant"]
    names["ctx"].close()
    names["backend"].close()


def test_editing(names: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert len(examples(EDITING)) == 2
    run(EDITING, "sessions.md", names)
    assert capsys.readouterr().out.splitlines() == ["['My locker is 48-B.', 'Noted.']"] * 2
    names["ctx"].close()


def test_what_has_no_page_of_its_own(names: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert len(examples(API)) == 2
    run(API, "reference.md", names)
    printed = capsys.readouterr().out
    assert "4711" in printed
    assert "['human', 'ai'] ['user', 'assistant']" in printed


def test_every_provider_is_in_the_table() -> None:
    told = {name: row[1] for row in rows(ENGINE, "## Models") for name in sorted(named(row[0]))}
    assert sorted(told) == list(provider_names())
    assert told == {name: f"`{key}`" if (key := load_profile(name).key_env) else "none" for name in provider_names()}


def test_every_option_of_send_is_in_the_table() -> None:
    told = {name for row in rows(ENGINE, "its own object") for name in re.findall(r"`(\w+)(?:=\w+)?`", row[0])}
    assert told == set(RequestOptions.__annotations__) - {"on_abort"}
    assert "on_abort=" in ENGINE


def test_every_setting_is_in_its_table_with_its_default() -> None:
    table = {name: row[1] for row in rows(SETTINGS, "") for name in named(row[0])}
    assert table.keys() == Policy.model_fields.keys()
    for name, field in Policy.model_fields.items():
        if not field.is_required():
            assert ast.literal_eval(table[name].strip("`")) == field.default, name
    assert policy_for(10_000).model_dump(include={"reply_reserve_tokens", "summary_tokens"}) == {
        "reply_reserve_tokens": 2_000,
        "summary_tokens": 1_600,
    }


def test_every_event_and_error_on_the_page_exists() -> None:
    section = ENGINE.partition("## Events and costs")[2].partition("## Token counting")[0]
    events = {name for name in named(section) if name[0].isupper()}
    assert "HistoryCompacted" in events
    assert events <= public_names("ctxfold").keys()
    failing = named(ENGINE.partition("## Errors")[2].partition("## Test your own")[0])
    builtins = {"ValueError", "LookupError", "ConnectionError"}
    assert {n for n in failing if n.endswith("Error")} - builtins <= public_names("ctxfold").keys()


@pytest.mark.parametrize("package", [ctxfold, langchain_ctx, llamaindex_ctx])
def test_type_checkers_see_what_a_package_loads(package: Any) -> None:
    imports = [
        node
        for node in ast.walk(ast.parse(Path(package.__file__).read_text("utf-8")))
        if isinstance(node, ast.ImportFrom)
    ]
    homes = {name.asname: node.module for node in imports for name in node.names if name.asname}
    assert homes.keys() == set(package.__all__)
    assert all(getattr(package, name) is getattr(import_module(str(home)), name) for name, home in homes.items())


@pytest.mark.parametrize("package", [ctxfold, langchain_ctx, llamaindex_ctx])
def test_every_public_name_is_in_its_table(package: Any) -> None:
    told = [name for row in rows(API, f"### `{package.__name__}`") for name in re.findall(r"`(\w+)`", row[0])]
    assert sorted(told) == sorted(package.__all__), "each once, and nothing else"
    public = public_names(package.__name__)
    assert [n for n, found in public.items() if isinstance(found, type | type(run)) and not found.__doc__] == []


@pytest.mark.parametrize("name", [path.name for folder in (DOCS, DOCS.parent) for path in sorted(folder.glob("*.md"))])
def test_links_lead_somewhere(name: str) -> None:
    path = DOCS / name if (DOCS / name).exists() else DOCS.parent / name
    prose = re.sub(r"^```.*?^```", "", path.read_text("utf-8"), flags=re.S | re.M)
    for target, _, heading in (link.partition("#") for link in re.findall(r"\]\(([^)]+)\)", prose)):
        if target.startswith("http"):
            continue
        found = path if not target else (path.parent / target).resolve()
        assert found.exists(), target
        if heading:
            titles = re.findall(r"^#+ (.*)$", found.read_text(encoding="utf-8"), flags=re.M)
            slugs = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
            assert heading in slugs, (target, heading)
