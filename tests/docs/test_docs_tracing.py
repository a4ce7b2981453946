"""The programs of docs/tracing.md run as they stand and print what the page shows, each in a process of its own.

A tracer provider, and handlers of a dispatcher, are set for a whole process: other tests would report to them, too.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctxfold.testing import ModelServer

PAGE = (Path(__file__).parents[2] / "docs" / "tracing.md").read_text(encoding="utf-8")
PROGRAM = """
import sys
exec(compile(sys.stdin.read(), "tracing.md", "exec"), {"base_url": sys.argv[1]})
"""


@pytest.fixture
def base_url() -> Iterator[str]:
    with ModelServer(model="lookup", context_window=8_000) as server:
        yield server.base_url


@pytest.mark.parametrize(
    ("heading", "outputs"), [("OpenTelemetry", 3), ("Metrics", 1), ("LangChain", 1), ("LlamaIndex", 1)]
)
def test_a_section_prints_what_it_shows(heading: str, outputs: int, base_url: str, tmp_path: Path) -> None:
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```python\n(.*?)^```", section, flags=re.S | re.M)
    shown = re.findall(r"^```text\n(.*?)^```", section, flags=re.S | re.M)
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM, base_url],
        input="\n".join(blocks),
        capture_output=True,
        encoding="utf-8",
        cwd=tmp_path,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert len(shown) == outputs
    assert ran.stdout.startswith(shown[0] if outputs > 1 else "")
    assert ran.stdout.endswith("".join(shown[-2:]))
