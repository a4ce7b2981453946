"""What a tool output or a question made of one repeated sign costs: stored, compacted, recalled and shown."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from ctxfold import AgentContext, ScriptedBackend, ToolCallPart, assistant, tool_result, user
from ctxfold.errors import NotEnoughHistoryError
from tests.benchmarks.sheets import Cell, Sheet

__all__ = ["UNITS", "body", "pass_through", "run"]

SIZES = (15_000, 30_000, 60_000, 1_000_000)  # characters
UNITS: Mapping[str, str] = MappingProxyType(
    {
        "blank lines": "\n",
        "CRLF": "\r\n",
        "spaces": " ",
        "tabs": "\t",
        "spaced lines": "\n ",
        "one letter": "a",
        "one digit": "1",
        "dashes": "-",
        "list marks": "- ",
        "list lines": "- \n",
        "numbered lines": "1. \n",
        "brackets": "[",
        "braces": "{",
        "quotes": '"',
        "angle brackets": "<",
        "tags": "<a",
        "closing tags": "</",
        "full-width angle brackets": "＜",
        "nested JSON": '{"a":',
        "JSON rows": '{"id": "a1", "v": 12}, ',
        "CJK": "日",
        "CJK sentences": "日。",
        "emoji": "😀",
        "URLs": "https://a.b/c?d=e&",
        "scheme signs": "://a:",
        "base64": "aGVsbG8",
        "backslashes": "\\",
        "colons": ":",
        "labels": "a: ",
        "equal signs": "=",
        "passwords": "password=",
        "key headers": "-----BEGIN PRIVATE KEY-----",
        "tokens": "eyJaaaaaaaa.",
        "dotted": "x.",
        "dots": ".",
        "thousands": "1,",
        "paths": "/a",
        "addresses": "a@",
        "failures": "error ",
        "rules": "You must not do it. ",
        "names": "Name Bc ",
        "NUL": "\x00",
        "invisible": "\x01\u200b",
        "references": " (#1",
        "template tokens": "[INST ",
    }
)
SUMMARY = (
    "The user asked for a.py and order W1234567 for $9,250 on 2023-01-01; 33 items.\n- It must not fail.\n1. Next: x"
)


def body(name: str, chars: int) -> str:
    """So many characters of the named unit; "prose" and "ids" are ordinary text to compare with."""
    if name == "prose":
        unit = "Last week the team moved box KX-12 into hall 7, and Anna noted 40 further words about it. "
    elif name == "ids":
        numbers = random.Random(1)
        return " ".join(f"id-{numbers.randrange(10**9)}" for _ in range(chars // 12))[:chars]
    else:
        unit = UNITS[name]
    return (unit * (chars // len(unit) + 1))[:chars]


def pass_through(text: str, role: Literal["user", "tool"], *, context_window: int = 8_000) -> tuple[str, ...]:
    """Store the text, compact the conversation, search it and build the next request; returns the texts of that request."""
    summarizer = ScriptedBackend([SUMMARY] * 4_000, context_window=200_000)
    with AgentContext(context_window=context_window, summarizer=summarizer, min_free_ratio=0.01, probe=True) as ctx:
        ctx.add(user("Please look at the error in a.py.", id="u0"))
        if role == "tool":
            call = assistant("", id="a1", calls=[ToolCallPart("c1", "look", "{}")])
            ctx.add([call, tool_result("c1", text, id="t1"), assistant("Done.", id="a2")])
        else:
            ctx.add([user(text, id="u1"), assistant("Done.", id="a2")])
        for n in range(6):
            ctx.add(
                [user(f"Question {n} on error a id-1.", id=f"u{n + 10}"), assistant("word " * 300, id=f"a{n + 10}")]
            )
        with contextlib.suppress(NotEnoughHistoryError):  # the scripted summary answers none of the probe's questions
            ctx.compact(force=True)
        ctx.set_policy(probe=False)
        with contextlib.suppress(NotEnoughHistoryError):  # or an extractive one has freed all that there was
            ctx.compact(force=True)
        ctx.search("error name a 1")
        ctx.add(user("What about error a, name and id?", id="newest"))
        return tuple(m.text for m in ctx.window(recall=True).messages)


def cpu_s(text: str, role: Literal["user", "tool"]) -> float:
    began = time.process_time()
    pass_through(text, role, context_window=max(8_000, 2 * len(text)))
    return time.process_time() - began


def run(*, quick: bool = False) -> list[Sheet]:
    """One row for each text: CPU seconds by size."""
    sizes = SIZES[:2] if quick else SIZES
    names = ("prose", "ids", *(list(UNITS)[:4] if quick else UNITS))
    cpu_s(body("prose", 1_000), "tool")  # encodings are loaded once
    rows: list[tuple[Cell, ...]] = [
        (name, role, *(cpu_s(body(name, size), role) for size in sizes)) for name in names for role in ("tool", "user")
    ]
    return [
        Sheet(
            "CPU seconds by text",
            ("text", "role", *(f"{size // 1_000:,} kB" for size in sizes)),
            tuple(rows),
            "Stored, compacted, searched and recalled. Twice the text may take about twice as long.",
        )
    ]
