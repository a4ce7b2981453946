"""Measures the packages: `python -m tests.size` prints the figures and fails where one is above its budget.

A code line is a line without blanks, comments, docstrings and imports. The import chain is the longest one, file by file, with
imports under TYPE_CHECKING. The budgets in `tests/size.json` may only fall: `python -m tests.size --lower` writes those that are
reached.
"""

from __future__ import annotations

import ast
import importlib
import io
import json
import sys
import tokenize
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUDGET = Path(__file__).with_suffix(".json")
PACKAGES = {
    "ctxfold": ROOT / "shared" / "ctxfold",
    "langchain_ctx": ROOT / "langchain_ctx",
    "llamaindex_ctx": ROOT / "llamaindex_ctx",
}


def code_lines(source: str) -> int:
    """Returns how many lines hold code."""
    lines = source.splitlines()
    empty = {number for number, line in enumerate(lines, 1) if not line.strip() or line.lstrip().startswith("#")}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.STRING:  # a line of a text may begin with a "#"
            empty -= {n for n in range(token.start[0] + 1, token.end[0] + 1) if lines[n - 1].strip()}
    for node in ast.walk(ast.parse(source)):
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if documented and ast.get_docstring(node, clean=False) is not None:
            node = node.body[0]  # type: ignore[attr-defined]
        elif not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        empty.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines) - len(empty)


def _modules() -> dict[str, Path]:
    modules: dict[str, Path] = {}
    for package, folder in PACKAGES.items():
        for file in sorted(folder.rglob("*.py")):
            parts = (package, *file.relative_to(folder).with_suffix("").parts)
            modules[".".join(parts).removesuffix(".__init__")] = file
    return modules


def import_chain(modules: dict[str, Path]) -> int:
    """Returns the length of the longest chain of imports between the modules; a package's own list of names is no link."""
    imported: dict[str, set[str]] = {}
    for name, file in modules.items():
        found: set[str] = set()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    target = f"{node.module}.{alias.name}"
                    found.add(target if target in modules else node.module)
        imported[name] = (found & modules.keys()) - {name, *PACKAGES}

    @cache
    def height(name: str) -> int:
        return 1 + max(map(height, imported[name]), default=0)

    return max(map(height, imported))


def measured() -> dict[str, int]:
    """Returns all figures by name."""
    modules = _modules()
    sources = {name: file.read_text(encoding="utf-8") for name, file in modules.items()}
    figures: dict[str, int] = {}
    for package in PACKAGES:
        mine = [text for name, text in sources.items() if name.split(".")[0] == package]
        figures[f"code lines of {package}"] = sum(map(code_lines, mine))
        figures[f"public names of {package}"] = len(importlib.import_module(package).__all__)
    figures["code lines"] = sum(figures[f"code lines of {package}"] for package in PACKAGES)
    figures["lines"] = sum(text.count("\n") for text in sources.values())
    figures["modules"] = len(modules)
    figures["import chain"] = import_chain(modules)
    context = importlib.import_module("ctxfold").AgentContext
    figures["members of AgentContext"] = sum(not name.startswith("_") for name in dir(context))
    return figures


def main() -> int:
    figures, budget = measured(), json.loads(BUDGET.read_text(encoding="utf-8"))
    for name, figure in figures.items():
        over = f"  over its budget of {budget[name]:,}" if figure > budget.get(name, figure) else ""
        print(f"{name:32}{figure:8,}{over}")
    if "--lower" in sys.argv[1:]:
        lowered = {name: min(figures[name], limit) for name, limit in budget.items()}
        BUDGET.write_text(json.dumps(lowered, indent=2) + "\n", encoding="utf-8")
    over = [name for name, limit in budget.items() if figures[name] > limit]
    if over:
        print(f"over budget: {', '.join(over)}. Remove what your change made idle", file=sys.stderr)
    return int(bool(over))


if __name__ == "__main__":
    sys.exit(main())
