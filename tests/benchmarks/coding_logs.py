"""Measures recall of what a coding agent has read, tried and changed: questions about real modules that it worked on.

Each session is an agent's work on eight modules: it lists the definitions, reads a part, calls something wrongly and gets a
traceback, and adds a comment. The outputs are real: the source of modules of the standard library and of installed packages.
Questions are made of their syntax trees, once with the name as it is written and once in words ("the file type class"). They
are asked after all of it, through the public API with the defaults; a token is four characters. A question counts as answered when
one message of the request, or one recalled line, holds the answer.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import random
import re
import traceback
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import count
from typing import TypeVar

from ctxfold import AgentContext, Message, ToolCallPart, assistant, tool_result, user
from tests.benchmarks.data import flat
from tests.benchmarks.recall_quality import COUNTER, Asked, Conversation, filled, ranked
from tests.benchmarks.sheets import Cell, Sheet

__all__ = ["WINDOWS", "Work", "answered", "sessions", "table"]

WINDOWS = (8_000, 16_000, 32_000)
CHUNK_CHARS = 800  # of what BM25 has for passages
READ_LINES = 260
MODULES = {
    "tuned on": (
        "argparse zipfile http.client asyncio.queues configparser smtplib tarfile sched",
        "csv ftplib imaplib shelve queue socketserver logging.handlers xmlrpc.client",
        "subprocess urllib.request threading selectors pathlib random textwrap difflib",
    ),
    "not tuned on": (
        "httpx._client jinja2.environment anyio._core._sockets tenacity sqlalchemy.pool.impl aiohttp.client",
        "pydantic.main rich.console requests.sessions yaml.constructor networkx.classes.graph docutils.nodes",
        "langchain_core.runnables.base llama_index.core.schema openai._base_client fsspec.spec attr._make",
    ),
    "not looked at": (
        "http.server http.cookiejar email.message email.header pdb bdb ast inspect",
        "typing ssl socket shutil plistlib statistics fractions calendar",
        "gzip lzma mailbox multiprocessing.pool optparse pickle pprint trace",
    ),
}
_DEFINITION = re.compile(r"\s*(async def|def|class) ")
_WORD_OF_NAME = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")
_Function = ast.FunctionDef | ast.AsyncFunctionDef
Node = TypeVar("Node", bound=ast.AST)


class Work:
    """Holds an agent's work on some modules: its messages, and the questions about them with their answers."""

    def __init__(self, modules: Sequence[str]) -> None:
        self.messages: list[Message] = []
        self.questions: dict[str, str] = {}
        self._random = random.Random(0)
        self._ids = count()
        for module in modules:
            self._on(module)

    def _says(self, text: str, reply: str = "") -> None:
        self.messages.append((assistant if reply else user)(reply or text, id=f"m{next(self._ids)}"))

    def _calls(self, tool: str, output: str, **arguments: object) -> None:
        number = next(self._ids)
        call = ToolCallPart(f"c{number}", tool, json.dumps(arguments))
        self.messages.append(assistant("", id=f"m{number}", calls=[call]))
        self.messages.append(tool_result(call.id, output, id=f"r{number}", name=tool))

    def _on(self, module: str) -> None:
        loaded = importlib.import_module(module)
        lines = inspect.getsource(loaded).split("\n")
        path = f"src/{module.replace('.', '/')}.py"
        tree = ast.parse("\n".join(lines))
        defined = [
            n for n in tree.body if isinstance(n, (ast.ClassDef, _Function)) and (n.end_lineno or 0) - n.lineno > 8
        ]
        focus = self._random.choice([n for n in defined if isinstance(n, ast.ClassDef)] or defined)
        first = max(1, focus.lineno - 20)
        last = min(len(lines), first + READ_LINES)
        inner = [
            n
            for n in ast.walk(tree)
            if first <= getattr(n, "lineno", 0) and (getattr(n, "end_lineno", None) or last + 1) <= last
        ]
        self._says(f"We need to understand {focus.name} in {path} before we change it. Read the part and try it.")
        outline = [f"{at}:{line}" for at, line in enumerate(lines, 1) if _DEFINITION.match(line)]
        self._calls("bash", "\n".join(outline), command=f'grep -nE "(def|class) " {path}')
        part = "\n".join(f"{at:6}\t{lines[at - 1]}" for at in range(first, last + 1))
        self._calls("read_file", part, path=path, start_line=first, end_line=last)
        failure = _failure(module, focus.name)
        self._calls("bash", failure, command=f"python probe_{module.rpartition('.')[2]}.py")
        self._says("", "I have read it and tried it. Tell me what to change.")
        self.questions[f"Which error came up when we ran probe_{module.rpartition('.')[2]}.py?"] = failure.split("\n")[
            -1
        ]
        if methods := [n for n in inner if isinstance(n, _Function)]:
            method = self._random.choice(methods)
            todo = f"# TODO(ops-{self._random.randrange(1_000, 9_999)}): measure it"
            self._says(f"Put a todo above {method.name} in {path}.")
            self._calls(
                "edit_file",
                "edited",
                path=path,
                old=lines[method.lineno - 1],
                new=f"{todo}\n{lines[method.lineno - 1]}",
            )
            self._says("", "Done.")
            self.questions[f"Which todo did we put above {method.name} in {path}?"] = todo
        for each in self._some(defined):
            answer = f"{each.lineno}:{lines[each.lineno - 1]}"
            self.questions[f"At which line of {path} is {each.name} defined?"] = answer
            self.questions[f"Which line of {path} begins the {_in_words(each.name)}?"] = answer
        self._about(focus.name, inner, lines)

    def _about(self, name: str, inner: Sequence[ast.AST], lines: Sequence[str]) -> None:
        spoken = _in_words(name)
        for method in self._some([n for n in inner if isinstance(n, _Function) and len(_documented(n)) > 15]):
            self.questions[f"What does the docstring of {method.name} in {name} say?"] = _documented(method)
            self.questions[f"What is the {_in_words(method.name)} of the {spoken} for?"] = _documented(method)
        for each in self._some(
            [n for n in inner if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Attribute)]
        ):
            attribute = each.targets[0]
            assert isinstance(attribute, ast.Attribute)
            line = lines[each.lineno - 1].strip()
            self.questions[f"What is {attribute.attr} of {name} set to?"] = line
            self.questions[f"What do we set the {_in_words(attribute.attr)} of the {spoken} to?"] = line
        for each in self._some([n for n in inner if isinstance(n, ast.Raise) and _message(n)]):
            self.questions[f'When does {name} say "{_message(each)}"?'] = lines[each.lineno - 1].strip()

    def _some(self, nodes: Sequence[Node]) -> list[Node]:
        return self._random.sample(nodes, min(2, len(nodes)))


def _in_words(name: str) -> str:
    return " ".join(word.lower() for word in _WORD_OF_NAME.findall(name))


def _documented(function: _Function) -> str:
    return (ast.get_docstring(function) or "").split("\n")[0].strip()


def _message(raised: ast.Raise) -> str:
    """Returns what an exception says, "" where that is no plain text in the line of the statement."""
    match raised:
        case ast.Raise(exc=ast.Call(args=[ast.Constant(value=str(text)), *_])) if raised.lineno == raised.end_lineno:
            return text
        case _:
            return ""


def _failure(module: str, name: str) -> str:
    """Returns the traceback of a call with arguments that the thing does not take."""
    probe = f"import {module} as module\nmodule.{name}(None, verbose=3, colour='red')"
    try:
        exec(compile(probe, "probe.py", "exec"), {})
    except Exception as error:  # whatever it raises is what the agent sees
        frames = [f for f in traceback.format_exception(error) if __file__ not in f]
        return re.sub(r'File ".*?/(?:site-packages|lib)/', 'File "', "".join(frames)).strip()
    return "no output"


@cache
def sessions(part: str) -> tuple[Work, ...]:
    """Returns the sessions with these modules."""
    return tuple(Work(modules.split()) for modules in MODULES[part])


def _chunks(messages: Sequence[Message]) -> Iterator[tuple[str, str]]:
    """Yields (role, text) of pieces of whole lines, as a passage store would hold them."""
    for message in messages:
        piece = ""
        for line in flat(message).splitlines(keepends=True):
            if piece and len(piece) + len(line) > CHUNK_CHARS:
                yield message.role, piece
                piece = ""
            piece += line
        yield message.role, piece


def answered(work: Work, window: int) -> list[tuple[Cell, ...]]:
    """Returns for each question whether ctxfold and BM25 over pieces of 800 characters show its answer, and the recalled tokens."""
    pieces = tuple(_chunks(work.messages))
    conversation = Conversation(pieces, (), ())
    rows: list[tuple[Cell, ...]] = []
    with AgentContext(None, context_window=window, counter=COUNTER) as context:
        context.add(work.messages)
        for question, answer in work.questions.items():
            request = context.window(recall=True, question=question)
            asked = Asked(question, answer, (), len(pieces))
            budget = window - window // 5 - COUNTER.count(question)
            peer = filled(conversation, ranked(conversation, asked, neighbours=False), budget)
            shown = [flat(m) for m in request.messages] + request.recalled.split("\n")
            rows.append(
                (*(any(answer in text for text in texts) for texts in (shown, peer)), COUNTER.count(request.recalled))
            )
    return rows


def table(*, quick: bool = False) -> Sheet:
    """Returns the share of the questions whose answer is in the request, by modules and window."""
    rows: list[tuple[Cell, ...]] = []
    for part in ["not looked at"] if quick else MODULES:
        for window in WINDOWS[:1] if quick else WINDOWS:
            found = [row for work in sessions(part)[: 1 if quick else None] for row in answered(work, window)]
            ours, peer, tokens = (sum(map(float, column)) / len(found) for column in zip(*found, strict=True))
            rows.append((part, f"{window:,}", len(found), f"{ours:.3f}", f"{peer:.3f}", round(tokens)))
    return Sheet(
        "What a coding agent has read, tried and changed, in the request",
        ("modules", "window", "questions", "ctxfold", "BM25 over pieces", "recalled tokens a question"),
        tuple(rows),
        "Answered: one message or recalled line holds the answer. BM25 has the whole prompt for pieces of 800 characters.",
    )
