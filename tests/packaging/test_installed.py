"""The distributions in fresh environments. `make dist` runs this; it asks the package index for the dependencies."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONSTRAINTS = ROOT / "constraints-dev.txt"
pytestmark = pytest.mark.skipif("CTXFOLD_DIST" not in os.environ, reason="`make dist` installs the distributions")

# a part of the suite that needs no framework, no server and few seconds
FAST = [
    "tests/backends/test_openai_request.py",
    "tests/backends/test_openai_parse.py",
    "tests/sections",
    "tests/stores/test_windows_paths.py",
]

IMPORT = """
import ctxfold, importlib.resources, sys
heavy = sorted({"httpx", "sqlalchemy", "tiktoken", "langchain_core", "llama_index"} & set(sys.modules))
assert (importlib.resources.files("ctxfold") / "py.typed").is_file()
for name in ctxfold.__all__:
    getattr(ctxfold, name)
print(heavy or "none")
"""

LANGCHAIN = """
import langchain_ctx, langchain_ctxfold
from langchain_core.language_models import FakeListChatModel
assert langchain_ctxfold.__all__ == langchain_ctx.__all__
for name in langchain_ctx.__all__:
    assert getattr(langchain_ctxfold, name) is getattr(langchain_ctx, name), name
model = langchain_ctxfold.with_context(FakeListChatModel(responses=["noted", "47-B"]), session_id="s", context_window=4_000)
model.invoke("My locker is 47-B.")
print(model.invoke("What is my locker?").text)
"""

LLAMAINDEX = """
import llama_index.memory, llamaindex_ctx
from llama_index.core.llms import ChatMessage
from llama_index.memory.ctxfold import CtxMemory, __all__ as names
assert CtxMemory is llamaindex_ctx.CtxMemory
assert set(names) - {"register_store"} <= set(llamaindex_ctx.__all__)
assert llama_index.memory.__file__ is None, "llama_index.memory is a namespace that other distributions share"
memory = CtxMemory.from_defaults(session_id="s", context_window=4_000)
memory.put(ChatMessage(role="user", content="My locker is 47-B."))
print(memory.get()[-1].content)
memory.close()
"""


class Environment:
    """A virtual environment of its own, which does not see the checkout."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder / "venv", with_pip=False)
        self._folder = folder
        self._python = str(folder / "venv" / ("Scripts/python.exe" if os.name == "nt" else "bin/python"))

    def run(self, *arguments: str, cwd: Path | None = None) -> str:
        return self._output([self._python, *arguments], cwd or self._folder)

    def pip(self, command: str, *arguments: object) -> None:
        """Runs the pip of the checkout on this environment, which saves an installation of pip."""
        self._output(
            [sys.executable, "-m", "pip", "--python", self._python, command, *map(str, arguments)], self._folder
        )

    def install(self, *what: object) -> None:
        self.pip("install", "--quiet", "--no-compile", "-c", CONSTRAINTS, *what)

    @staticmethod
    def _output(command: list[str], folder: Path) -> str:
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PYTEST", "CTXFOLD_DIST"))}
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def built(dist: Path, pattern: str) -> Path:
    [file] = dist.glob(pattern)
    return file


def test_the_wheel_without_extras_and_the_thin_distributions_beside_it(dist: Path, tmp_path: Path) -> None:
    fresh = Environment(tmp_path)
    wheel = built(dist, "ctxfold-*.whl")
    fresh.install(wheel)
    assert fresh.run("-c", IMPORT) == "none\n"
    fresh.install(wheel, built(dist, "langchain_ctxfold-*.whl"), built(dist, "llama_index_memory_ctxfold-*.whl"))
    assert fresh.run("-c", LANGCHAIN) == "47-B\n"
    assert fresh.run("-c", LLAMAINDEX) == "My locker is 47-B.\n"
    fresh.pip("check")


def test_the_source_distribution_passes_its_own_tests(dist: Path, tmp_path: Path) -> None:
    fresh = Environment(tmp_path)
    source = built(dist, "ctxfold-*.tar.gz")
    with tarfile.open(source) as archive:
        archive.extractall(tmp_path, filter="data")
    unpacked = tmp_path / source.name.removesuffix(".tar.gz")
    fresh.install(source, "pytest", "pytest-asyncio", "hypothesis")
    # the installed package is tested, not the unpacked one: shared/ is not on the path
    quiet = ("-W", "ignore:tokens are estimated", "-p", "no:cacheprovider", "-o", "pythonpath=.")
    told = fresh.run("-m", "pytest", "-q", *quiet, *FAST, cwd=unpacked)
    assert re.search(r"\d{3} passed", told), told
    assert "failed" not in told


def test_the_source_distributions_of_the_thin_projects(dist: Path, tmp_path: Path) -> None:
    """Their version stands in no file of theirs, so a build from the archive alone must find it in PKG-INFO."""
    for name in ("langchain_ctxfold", "llama_index_memory_ctxfold"):
        source = built(dist, f"{name}-*.tar.gz")
        with tarfile.open(source) as archive:
            archive.extractall(tmp_path, filter="data")
        unpacked = tmp_path / source.name.removesuffix(".tar.gz")
        subprocess.run(
            [
                sys.executable,
                "-m",
                "build",
                "--no-isolation",
                "--wheel",
                "--outdir",
                str(tmp_path / "again"),
                str(unpacked),
            ],
            check=True,
            capture_output=True,
        )
        assert built(tmp_path / "again", f"{name}-*.whl").name == built(dist, f"{name}-*.whl").name
