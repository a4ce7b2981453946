"""The examples of the page on sections run, and what it shows is what is sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.core.driven import scripted

REPLIES = [f"reply {i}" for i in range(40)]


def test_the_examples_of_the_page_run() -> None:
    page = (Path(__file__).parents[2] / "docs" / "sections.md").read_text(encoding="utf-8")
    blocks = [block.split("```")[0] for block in page.split("```python\n")[1:]]
    backend = scripted(*REPLIES)

    class Index:
        def search(self, text: str, limit: int) -> list[tuple[str, str]]:
            return [("handbook/returns.md", "Goods may be returned within 15 days of delivery.")]

    names: dict[str, Any] = {"backend": backend, "index": Index(), "item_id": "none"}
    for block in blocks[:2]:
        exec(compile(block, "docs/sections.md", "exec"), names)
    shown = page.split("```\n")[2].strip()
    assert [m.text for m in backend.requests[0].messages if m.kind == "section"] == [shown], (
        "what the page shows is what is sent"
    )
    names["ctx"].close()
