"""The pages of the site: the tutorials run, every page with Python is run by some test, and the pages use plain words."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.pages import page, section

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
BLOCK = re.compile(r"^```python\n(.*?)^```", flags=re.S | re.M)


def test_the_tutorials_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_API_BASE"):
        monkeypatch.setenv(name, "")  # put back afterwards: the first program sets them
    names: dict[str, Any] = {}
    printed: list[str] = []
    for block in BLOCK.findall((DOCS / "tutorials.md").read_text(encoding="utf-8")):
        exec(compile(block, "tutorials.md", "exec"), names)
        printed.append(capsys.readouterr().out)
    names["memory"].context.close()
    names["middleware"].close()
    names["server"].close()
    _, agent, engine, session = printed
    assert "3351" in agent
    assert "until the next compaction" in agent
    assert "5585" in engine
    assert "7819" in session
    assert "pinned" in session


@pytest.mark.parametrize("page", [page for page in PAGES if BLOCK.search((DOCS / page).read_text(encoding="utf-8"))])
def test_a_page_with_python_is_run_by_a_test(page: str) -> None:
    name = Path(page).stem
    words = re.compile(rf'["/ ]{re.escape(name)}(\.md)?["\s,]')
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    assert any("compile(" in source and words.search(source) for source in sources), page


@pytest.mark.parametrize("page", PAGES)
def test_every_picture_has_a_text_in_its_place(page: str) -> None:
    for text, target in re.findall(r"!\[(.*?)\]\((.*?)\)", (DOCS / page).read_text(encoding="utf-8"), flags=re.S):
        assert len(text) > 60, target
        assert (DOCS / page).parent.joinpath(target).is_file()


def test_every_page_is_in_the_site() -> None:
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    named = set(re.findall(r"([\w/-]+\.md)$", site, flags=re.M))
    borrowed = {
        "contributing.md",
        "changelog.md",
        *(f"reference/{p}.md" for p in ("ctxfold", "langchain_ctx", "llamaindex_ctx")),
    }
    assert named == {*PAGES, *borrowed}


def test_every_word_that_the_pages_rely_on_is_in_the_glossary() -> None:
    words = set(re.findall(r"^\| \*\*(.+?)\*\*", section(page("reference.md"), "## Glossary"), flags=re.M))
    assert {"epoch", "tail", "recall", "section", "fallback level", "wire", "row", "session", "window", "turn"} <= words
