"""Builds the distributions once, or takes those that `make dist` built."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECTS = {
    "ctxfold": ROOT,
    "langchain_ctxfold": ROOT / "packaging" / "langchain-ctxfold",
    "llama_index_memory_ctxfold": ROOT / "packaging" / "llama-index-memory-ctxfold",
}


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with a wheel and a source distribution of each project."""
    if given := os.environ.get("CTXFOLD_DIST"):
        return (ROOT / given).resolve()
    folder = tmp_path_factory.mktemp("dist")
    for project in PROJECTS.values():
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(project)]
        built = subprocess.run(command, capture_output=True, text=True, check=False)
        assert built.returncode == 0, built.stdout + built.stderr
    return folder
