"""The stored notebooks: executed in order, installable where they are hosted, plots with a description, and the one with a key."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from ctxfold.testing import ModelServer
from tests.run_notebooks import ROOT, without_services

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def cells(path: Path) -> list[Any]:
    import nbformat  # takes a second, which is for the one worker that runs this file

    return [c for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_was_executed_from_its_first_cell_to_its_last(path: Path) -> None:
    assert [c.execution_count for c in cells(path)] == list(range(1, len(cells(path)) + 1))
    failed = [o for c in cells(path) for o in c.outputs if o.output_type == "error"]
    assert failed == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_the_first_cell_installs_only_what_is_missing(path: Path) -> None:
    first, *others = (c.source for c in cells(path))
    assert 'if find_spec("ctxfold") is None:\n    %pip install' in first
    assert not [source for source in others if "pip install" in source]
    assert cells(path)[0].outputs == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_every_plot_has_a_description(path: Path) -> None:
    plots = [o for c in cells(path) for o in c.outputs if "image/png" in o.get("data", {})]
    assert [o for o in plots if len(o.metadata.get("image/png", {}).get("alt", "")) < 60] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_no_notebook_uses_a_private_name_of_another_object(path: Path) -> None:
    private = [found for c in cells(path) for found in re.findall(r"\w+\._(?!_)\w+", c.source)]
    assert private == []


async def test_the_notebook_for_a_real_provider_runs_with_a_key() -> None:
    """A key makes it ask the service; here OpenAI's client is pointed at a loopback server."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(ROOT / "notebooks" / "08_real_provider.ipynb", as_version=4)
    with ModelServer(model="lookup") as server:
        environment = {
            **without_services(os.environ),
            "OPENAI_API_KEY": "not-needed",
            "OPENAI_API_BASE": server.base_url,
            "OPENAI_BASE_URL": server.base_url,
        }
        client = NotebookClient(notebook, timeout=300, kernel_name="python3", record_timing=False)
        await client.async_execute(env=environment)
        assert len(server.requests) > 40
    text = nbformat.writes(notebook)
    assert "skipped:" not in "".join(str(c.outputs) for c in notebook.cells if c.cell_type == "code")
    assert "openai:gpt-5-mini" in text
    assert "labels remembered" in text


def test_notebooks_are_executed_without_keys_and_endpoints_of_services() -> None:
    given = {
        "PATH": "/bin",
        "OPENAI_API_KEY": "k",
        "CTXFOLD_API_KEY": "k",
        "CTXFOLD_BASE_URL": "u",
        "CTXFOLD_MODEL": "m",
    }
    assert without_services(given) == {"PATH": "/bin"}
