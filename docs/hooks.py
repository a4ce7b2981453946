"""What mkdocs does in addition to rendering: pages from other files, the reference, checks of code blocks, and llms.txt."""

from __future__ import annotations

import ast
import importlib
import inspect
import logging
import re
import runpy
import sys
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
BORROWED: Final = {"contributing.md": ROOT / "CONTRIBUTING.md", "changelog.md": ROOT / "CHANGELOG.md"}
PACKAGES: Final = {
    "ctxfold": "The engine. [Every public name](../reference.md#every-public-name) says which page explains what.",
    "langchain_ctx": "The classes for LangChain. [Which one to use](../langchain.md).",
    "llamaindex_ctx": "The classes for LlamaIndex. [Which one to use](../llamaindex.md).",
}
LINK: Final = re.compile(r"\[([^\]]*)\]\(((?!https?:|#)[^)\s]+)\)")
BLOCK: Final = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
CODE_COLUMNS: Final = 77  # of a code block on a screen of 1,280 pixels; a longer line is cut off
LITERAL_MARK: Final = re.compile(r"(?:\A|\n)\s*(?:[-*+]|\d+\.) .{0,40}")
TEXTS: Final = re.compile(r"<(?:p|li|dd)\b[^>]*>(.*?)</(?:p|li|dd)>", re.DOTALL)
PRE: Final = re.compile(r"<pre.*?</pre>", re.DOTALL)
UNSEARCHED: Final = ("decisions/", "changelog.md", "contributing.md")  # whoever looks for these knows where they are
# a guide comes before the list of every name, and the first pages before the others
BOOSTS: Final = {
    ("reference/", "architecture"): 0.2,
    ("reference", "comparison", "migration", "context-quality", "tracing"): 0.6,
    ("faq", "troubleshooting", "recipes", "cli", "sessions"): 1.5,
}
log = logging.getLogger("mkdocs.hooks.ctxfold")  # below "mkdocs", whose warnings stop a strict build
pages: dict[str, tuple[str, str]] = {}


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages that are made from files outside docs/, and those of the reference."""
    from mkdocs.structure.files import File

    for name, path in BORROWED.items():
        files.append(File.generated(config, name, content=path.read_text(encoding="utf-8")))
    for package, about in PACKAGES.items():
        for name, content in reference(package, about).items():
            files.append(File.generated(config, f"reference/{name}.md", content=content))
    return files


def reference(package: str, about: str) -> dict[str, str]:
    """Returns a package's pages: the list of its public names, one for each class, and those of errors, events and functions."""
    for place in (str(ROOT / "shared"), str(ROOT)):
        if place not in sys.path:
            sys.path.insert(0, place)
    module = importlib.import_module(package)
    where = _homes(package)
    front = sorted(where.keys() & {*module.__all__}, key=str.casefold)
    grouped: dict[str, list[str]] = {}
    lists: list[str] = []
    for heading, names in (("In front", front), ("By module", sorted(where.keys() - {*front}, key=str.casefold))):
        lists += [f"## {heading}", "", "| name | what it is |", "|---|---|"]
        for name in names:
            found = getattr(importlib.import_module(where[name]), name)
            page = _page_of(name, found, where[name])
            grouped.setdefault(page, []).append(name)
            words = (inspect.getdoc(found) or "").split("\n\n")[0].replace("\n", " ").replace("|", "\\|")
            words = words if inspect.isclass(found) or inspect.isroutine(found) else f"in `{where[name]}`"
            lists.append(f"| [`{name}`]({package}/{page}.md#{where[name]}.{name}) | {words} |")
        lists.append("")
    made = {package: "\n".join([f"# `{package}`", "", about, "", *lists])}
    for page, names in grouped.items():
        title = f"`{page}`" if page in names else f"`{package}`: {page}"
        blocks = [f"::: {where[name]}.{name}" for name in names]
        made[f"{package}/{page}"] = "\n\n".join([f"# {title}", *blocks]) + "\n"
    return made


def _page_of(name: str, found: object, module: str) -> str:
    if module.endswith((".errors", ".events")):
        return module.rpartition(".")[2]
    return name if inspect.isclass(found) else "functions"


def _homes(package: str) -> dict[str, str]:
    """Returns the module of each public name, as the package's own imports and the tables of reference.md say."""
    start = Path(str(importlib.import_module(package).__file__))
    homes: dict[str, str] = {}
    for node in ast.walk(ast.parse(start.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(package):
            homes |= {name.asname or name.name: str(node.module) for name in node.names}
    tables = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    for name, listed in re.findall(rf"^\| `({package}\.[\w.]+)` \| ([^|]*) \|", tables, flags=re.MULTILINE):
        homes |= dict.fromkeys(re.findall(r"`(\w+)`", listed), name)
    return homes


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Leads links to files outside docs/ to their pages, lists the error messages, and warns of Python that does not compile."""
    name = page.file.src_uri
    if name.startswith(UNSEARCHED):
        page.meta["search"] = {"exclude": True}
    elif boost := next((value for pages, value in BOOSTS.items() if name.startswith(pages)), None):
        page.meta["search"] = {"boost": boost}
    for block in BLOCK.findall(markdown):
        for line in block.splitlines() if name not in BORROWED else ():
            if len(line) > CODE_COLUMNS:
                log.warning(
                    "%s: a line of code has %d columns, the page shows %d: %s", name, len(line), CODE_COLUMNS, line
                )
        try:
            compile(block, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        except SyntaxError as error:
            log.warning("%s: a Python block does not compile: %s", name, error)
    if name == "troubleshooting.md":
        messages = runpy.run_path(str(ROOT / "docs" / "messages.py"))
        markdown = markdown.replace(messages["MARK"], messages["listed"](messages["collect"]()))
    source = BORROWED.get(name, ROOT / "docs" / name)
    text = LINK.sub(lambda match: _led(match, source, name), markdown)
    pages[name] = (str(page.title), text)
    return text


def _led(match: re.Match[str], source: Path, name: str) -> str:
    words, (target, _, heading) = match[1], match[2].partition("#")
    target_path = (source.parent / target).resolve()
    borrowed = {path: page for page, path in BORROWED.items()}
    if target_path in borrowed:
        inside = borrowed[target_path]
    elif (name in BORROWED or name.startswith("reference/")) and target_path.is_relative_to(ROOT / "docs"):
        inside = target_path.relative_to(ROOT / "docs").as_posix()
    elif not target_path.is_relative_to(ROOT / "docs") and target_path.exists():
        return f"{words} (`{target_path.relative_to(ROOT).as_posix()}` in the repository)"
    else:
        return match[0]
    up = "../" * name.count("/")
    return f"[{words}]({up}{inside}{'#' + heading if heading else ''})"


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Warns of a list that is shown as running text, because no empty line is before it."""
    for text in TEXTS.findall(PRE.sub("", html)):
        for mark in LITERAL_MARK.findall(text):
            log.warning(
                "%s: a list mark is shown as text; put an empty line before the list: %s",
                page.file.src_uri,
                mark.strip(),
            )
    return html


def on_post_build(config: Any) -> None:
    """Writes llms.txt, the list of pages, and llms-full.txt, their text without the reference."""
    site = Path(config["site_dir"])
    listed = [f"# {config['site_name']}", "", f"> {config['site_description']}", "", "## Pages", ""]
    listed += [f"- [{title}]({name.removesuffix('.md')}.html)" for name, (title, _) in pages.items()]
    (site / "llms.txt").write_text("\n".join(listed) + "\n", encoding="utf-8")
    whole = [text for name, (_, text) in pages.items() if not name.startswith("reference/")]
    (site / "llms-full.txt").write_text("\n\n".join(whole), encoding="utf-8")
