"""The examples of the page on sections run, and what it shows is what is sent."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ctxfold import assistant
from tests.support.driven import scripted

REPLIES = [f"reply {i}" for i in range(40)]


class Client:
    """As OpenAI's: `client.embeddings.create(...).data[0].embedding`."""

    @property
    def embeddings(self) -> Client:
        return self

    def create(self, *, model: str, input: list[str]) -> SimpleNamespace:
        return SimpleNamespace(data=[SimpleNamespace(embedding=[1.0, 0.0]) for _ in input])


def test_the_examples_of_the_page_run() -> None:
    page = (Path(__file__).parents[2] / "docs" / "sections.md").read_text(encoding="utf-8")
    blocks = [block.split("```")[0] for block in page.split("```python\n")[1:]]
    backend = scripted(*REPLIES)

    class Index:
        def search(self, text: str, limit: int) -> list[tuple[str, str]]:
            return [("handbook/returns.md", "Goods may be returned within 15 days of delivery.")]

    names: dict[str, Any] = {"backend": backend, "index": Index(), "client": Client()}
    first, remembered, embedded = blocks
    exec(compile(first, "docs/sections.md", "exec"), names)
    with names["ctx"]:
        exec(compile(remembered, "docs/sections.md", "exec"), names)
        assert [i.text for i in names["ctx"].memory.list()] == ["Berlin"], "the relation was forgotten"
    exec(compile(embedded, "docs/sections.md", "exec"), names)
    with names["ctx"] as ctx:
        ctx.add("The harbour gate opens at seven.")
        ctx.add(assistant("Noted.", id="a"))
        assert names["Vectors"]().embed(["x", "y"]) == [[1.0, 0.0], [1.0, 0.0]]
    shown = page.split("```\n")[2].strip()
    assert [m.text for m in backend.requests[0].messages if m.kind == "section"] == [shown], (
        "what the page shows is what is sent"
    )
