"""The README's examples run as they stand, in one folder, against the loopback server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctxfold.testing import ModelServer
from langchain_ctx import ChatCtx
from llamaindex_ctx import CtxLLM

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", README, flags=re.S)


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, object]]:
    """What the README says a reader brings: a LangChain model, tools, a LlamaIndex LLM, an endpoint."""
    monkeypatch.chdir(tmp_path)
    with ModelServer(model="lookup", context_window=8_000) as server:
        model = ChatCtx(model="lookup", base_url=server.base_url, api_key="x")  # type: ignore[arg-type]
        llm = CtxLLM(model="lookup", base_url=server.base_url, api_key="x", context_window=8_000)
        yield {"model": model, "tools": [], "llm": llm, "base_url": server.base_url}
        model.close()
        llm.close()


def test_the_examples_in_order(names: dict[str, object], capsys: pytest.CaptureFixture[str]) -> None:
    assert len(EXAMPLES) == 4
    for example in EXAMPLES:
        exec(compile(example, "README.md", "exec"), names)
    printed = capsys.readouterr().out
    assert printed.count("My locker is 47-B.") >= 3, (
        "told to an agent, answered by a chain, in LlamaIndex and by the engine"
    )


def test_each_example_is_short() -> None:
    for example in EXAMPLES:
        lines = [line for line in example.splitlines() if line.strip() and not line.startswith(("from ", "import "))]
        assert len(lines) <= 10
