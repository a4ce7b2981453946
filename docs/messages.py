"""Collects the error messages of the three packages from their source, for the page on troubleshooting.

The site has them in place of the line `<!-- messages -->`; `python docs/messages.py` prints them.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

__all__ = ["MARK", "PLACEHOLDER", "collect", "listed"]

ROOT: Final = Path(__file__).resolve().parents[1]
PACKAGES: Final = ("shared/ctxfold", "langchain_ctx", "llamaindex_ctx")
MARK: Final = "<!-- messages -->"
PLACEHOLDER: Final = "…"
INTERNAL: Final = frozenset(
    {"BadRequestError", "ContentCodingError"}
)  # of the loopback server, and within the HTTP client
FEWEST_LETTERS: Final = 8


def collect(root: Path = ROOT) -> dict[str, list[str]]:
    """Returns the messages of each error class, sorted; values that a message is filled with are the placeholder."""
    messages_by_class: dict[str, set[str]] = defaultdict(set)
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            for name, message in _messages(ast.parse(path.read_text(encoding="utf-8"))):
                messages_by_class[name].add(message)
    return {name: sorted(messages_by_class[name], key=str.casefold) for name in sorted(messages_by_class)}


def listed(messages: Mapping[str, list[str]]) -> str:
    """Returns the messages as Markdown, with a heading for each class."""
    parts: list[str] = []
    for name, texts in messages.items():
        parts.append(f"### {name}\n\n" + "\n".join(f"- `{text}`" for text in texts) + "\n")
    return "\n".join(parts)


def _messages(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        name = _name(node.func)
        if name == "warn" and any(_name(argument) == "CtxWarning" for argument in node.args[1:]):
            name = "CtxWarning"
        if not name.endswith(("Error", "CtxWarning")) or hasattr(builtins, name) or name in INTERNAL:
            continue
        message = _text(node.args[0])
        if message is not None and len(re.findall(r"[A-Za-z]", message)) >= FEWEST_LETTERS:
            yield name, message


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _text(node: ast.expr) -> str | None:
    match node:
        case ast.Constant(value=str(text)):
            filled = text
        case ast.JoinedStr(values=values):
            filled = "".join(str(v.value) if isinstance(v, ast.Constant) else PLACEHOLDER for v in values)
        case _:
            return None
    return re.sub(r"\s+", " ", filled.replace("`", "'")).strip()


if __name__ == "__main__":
    print(listed(collect()))
