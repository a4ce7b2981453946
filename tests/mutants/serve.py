"""Runs tests in forks of a process that has imported what other people's packages take longest to import."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path

OPTIONS = ("-x", "-q", "-p", "no:cacheprovider", "-p", "pytest_asyncio.plugin")
TIMED_OUT = -9
SLOW = ("hypothesis", "httpx", "pydantic", "sqlalchemy.ext.asyncio", "tiktoken", "numpy")
FRAMEWORKS = (
    "langchain.agents",
    "langgraph.graph",
    "langchain_openai",
    "llama_index.core",
    "llama_index.llms.openai_like",
)


class TestServer:
    """Runs the tests of one copy of the source tree, one list of node ids after the other."""

    __test__ = False

    def __init__(self, root: Path) -> None:
        self._output = root.with_name(f"{root.name}.log")
        paths = os.pathsep.join((str(root), str(root / "shared")))
        environment = os.environ | {"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1", "CI": "1"}
        environment |= {"OPENBLAS_NUM_THREADS": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        command = [sys.executable, "-c", "from tests.mutants.serve import serve; serve()", str(self._output)]
        self._process = subprocess.Popen(
            command, cwd=root, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )

    def run(self, tests: Sequence[str], timeout_s: float | None = None) -> tuple[int, str]:
        """Returns the exit code of pytest, TIMED_OUT after `timeout_s` seconds, and what it has written."""
        requests, answers = self._process.stdin, self._process.stdout
        assert requests is not None
        assert answers is not None
        requests.write(json.dumps([*OPTIONS, *(f"tests/{test}" for test in tests)]).encode() + b"\n")
        child = int(answers.readline())
        ended, _, _ = select.select([answers], [], [], timeout_s)
        if not ended:
            with suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
        code = int(answers.readline())
        return (code if ended else TIMED_OUT), self._output.read_text(errors="replace")

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


def serve() -> None:
    """Reads lists of arguments, one a line; writes the id of the process that runs them, and its exit code."""
    for name in (*SLOW, *FRAMEWORKS):
        with suppress(ImportError):
            import_module(name)
    for line in sys.stdin:
        child = os.fork()
        if not child:
            os.setsid()
            output = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            for number in (1, 2):
                os.dup2(output, number)
            import pytest

            code = int(pytest.main(json.loads(line)))
            sys.stdout.flush()
            os._exit(code)
        print(child, flush=True)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
