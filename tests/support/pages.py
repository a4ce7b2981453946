"""The pages of docs/ for the tests that run them: a page, a section of it, and Python examples."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

__all__ = ["DOCS", "examples", "page", "section"]

DOCS: Final = Path(__file__).resolve().parents[2] / "docs"


def page(name: str) -> str:
    """Returns the text of a page."""
    return (DOCS / name).read_text(encoding="utf-8")


def section(text: str, heading: str) -> str:
    """Returns what follows a heading, such as "## Edit", up to the next heading of its level or a higher one."""
    level = len(heading) - len(heading.lstrip("#"))
    # a line that begins with one "#" is a comment in an example
    found = re.search(rf"^{re.escape(heading)}\n(.*?)(?=^#{{2,{level}}} |\Z)", text, flags=re.S | re.M)
    assert found is not None, heading
    return found[1]


def examples(text: str) -> list[str]:
    """Returns the Python blocks of a text, in order."""
    return re.findall(r"^```python\n(.*?)^```", text, flags=re.S | re.M)
