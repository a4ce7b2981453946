"""Step 7, item A4: no text makes the work grow faster than its length, and long work leaves the event loop."""

from __future__ import annotations

import asyncio
import importlib
import pkgutil
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Literal

import pytest

import ctxfold
import langchain_ctx
import llamaindex_ctx
from ctxfold import AgentContext, MediaPart, Message, ToolCallPart, assistant, tool_result, user
from ctxfold.backends.openai_chat import TagSplitter
from ctxfold.compaction.goal import probe
from ctxfold.history.view import Entry
from ctxfold.index.terms import sentences, stretches, terms
from ctxfold.lru import _LazyPattern  # pyright: ignore[reportPrivateUsage]
from ctxfold.tokens.text import MessageCounter, RatioCounter
from tests.benchmarks.hostile_text import UNITS, body, pass_through
from tests.timing import cpu_s

# only tried at one place each, never looked for: `match` and `fullmatch`, on text in which runs of white space are one
ANCHORED = frozenset(
    {
        "ctxfold.backends.media._DATA_URL",
        "ctxfold.cli.reading._EXTRA",
        "ctxfold.compaction.text_units._DOCTYPE",
        "ctxfold.compaction.text_units._KEY",
        "ctxfold.compaction.excerpts._NONE_AFTER",
        "ctxfold.index.terms._RULE",
        "ctxfold.index.cache._STAMP",
        "ctxfold.compaction.extract.ROLE_LINE",
        "ctxfold.compaction.verify._DATE",
        "ctxfold.tokens.media._TEXTUAL",
        "ctxfold.tokens.text._LAST_SAFE_CUT",
    }
)
MORE = (
    "{}, ",
    "],  ",
    "1 ",
    "[ ",
    "<|",
    "``` ",
    " (#1)",
    "GOAL: ",
    "GOAL:\n",
    "secret",
    "data:",
    "a\n\n",
    " \t\n",
    "INST",
)


def patterns() -> Iterator[tuple[str, re.Pattern[Any]]]:
    """Every compiled pattern that the three packages hold, by the name that holds it."""
    seen: set[tuple[Any, int]] = set()
    for package in (ctxfold, langchain_ctx, llamaindex_ctx):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if found.name.endswith("__main__"):
                continue
            for name, pattern in _held(importlib.import_module(found.name), found.name):
                if (pattern.pattern, pattern.flags) not in seen:
                    seen.add((pattern.pattern, pattern.flags))
                    yield name, pattern


def _held(value: object, name: str, depth: int = 0) -> Iterator[tuple[str, re.Pattern[Any]]]:
    if isinstance(value, _LazyPattern):
        value = re.compile(*value._made_of)  # pyright: ignore[reportPrivateUsage]
    if isinstance(value, re.Pattern):
        yield name, value
    elif depth < 4 and isinstance(value, tuple | list | frozenset):
        for index, item in enumerate(value):
            yield from _held(item, f"{name}[{index}]", depth + 1)
    elif depth < 4 and isinstance(value, dict):
        for key, item in list(value.items()):
            yield from _held(item, f"{name}[{key!r}]", depth + 1)
    elif isinstance(value, ModuleType) or (depth < 2 and type(value).__module__.startswith("ctxfold.")):
        for key, item in list(getattr(value, "__dict__", {}).items()):
            if not isinstance(item, ModuleType):
                yield from _held(item, f"{name}.{key}", depth + 1)


PATTERNS = dict(patterns())


def test_the_patterns_are_found() -> None:
    assert len(PATTERNS) > 80
    assert set(PATTERNS) >= ANCHORED


@pytest.mark.parametrize("name", sorted(PATTERNS))
def test_no_pattern_takes_more_than_linear_time(name: str) -> None:
    """Step 7, item A4: each pattern over each hostile text, at 4,000 and 16,000 characters."""
    pattern = PATTERNS[name]
    binary = isinstance(pattern.pattern, bytes)

    def find(text: Any) -> object:
        """Finds every match, which begins with the search for the first one, and that with a match at the beginning."""
        return pattern.match(text) if name in ANCHORED else list(pattern.finditer(text))

    def cost(unit: str, chars: int) -> float:
        text: Any = (unit * (chars // len(unit) + 1))[:chars]
        text = text.encode() if binary else text
        return cpu_s(lambda: find(text), runs=1)

    for unit in (*UNITS.values(), *MORE):
        if cost(unit, 4_000) < 0.001:
            continue  # four times as much takes sixteen times as long if it is quadratic, which is nothing
        large = cost(unit, 16_000)
        if large > 0.05:  # what is quadratic takes sixteen times what a quarter of it takes, what is linear four times
            large = min(large, cost(unit, 16_000), cost(unit, 16_000))
            small = min(cost(unit, 4_000) for _ in range(3))
            assert large < 10 * max(small, 0.004), f"{unit!r}: {small:.3f} s, then {large:.3f} s"


CHARS = 16_000  # what is quadratic costs 27 times as much as prose here, and 100 times at 60,000


@pytest.fixture(scope="module")
def prose_cpu_s() -> float:
    pass_through(body("prose", 1_000), "tool")  # encodings are loaded once
    text = body("prose", CHARS)
    return cpu_s(lambda: pass_through(text, "user", context_window=200_000), runs=2)


ROLES: tuple[Literal["user", "tool"], ...] = ("user", "tool")


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("name", UNITS)
def test_a_hostile_text_costs_no_more_than_some_prose(
    name: str, role: Literal["user", "tool"], prose_cpu_s: float
) -> None:
    """Step 7, item A4: 60,000 blank lines took a hundred times as long as 60,000 characters of prose."""
    text = body(name, CHARS)
    spent = cpu_s(lambda: pass_through(text, role, context_window=200_000), runs=1)
    assert spent < 8 * prose_cpu_s


def test_the_loop_goes_on_while_a_long_text_is_stored_compacted_and_searched() -> None:
    """Step 7, item A4: other tasks of the loop run meanwhile, at every step."""

    async def story() -> dict[str, int]:
        beats: dict[str, int] = {}
        step = ""

        async def beat() -> None:
            while True:
                beats[step] = beats.get(step, 0) + 1
                await asyncio.sleep(0)

        other = asyncio.create_task(beat())
        text = "日本。" * 35_000
        async with AgentContext(context_window=400_000, min_free_ratio=0.01) as ctx:
            step = "add"
            call = assistant("", id="a1", calls=[ToolCallPart("c1", "look", "{}")])
            await ctx.aadd(
                [user("Look.", id="u0"), call, tool_result("c1", text, id="t1"), assistant("Done.", id="a2")]
            )
            for n in range(8):
                await ctx.aadd([user(f"Question {n}", id=f"u{n + 10}"), assistant("word " * 300, id=f"a{n + 10}")])
            step = "search"
            await ctx.asearch("日本")
            step = "compact"
            await ctx.acompact(force=True)
            step = "recall"
            await ctx.awindow(recall=True, question="日本")
            step = "end"
        other.cancel()
        return beats

    beats = asyncio.run(story())
    assert all(beats[step] > 20 for step in ("add", "search", "compact", "recall")), beats


def test_a_long_line_comes_in_stretches_and_nothing_is_left_out() -> None:
    text = " ".join(f"word{n}" for n in range(5_000))
    found = sentences(text)
    assert max(map(len, found)) <= 2_000
    assert " ".join(found) == text
    assert "".join(stretches("x" * 5_000)) == "x" * 5_000


def test_a_word_without_end_is_one_short_term() -> None:
    assert [len(t) for t in terms("a" * 10_000)] == [256]
    assert max(len(t) for t in terms("x." * 10_000)) == 256


def test_many_tags_in_one_piece_are_gone_through_once() -> None:
    """Step 7, item A4: each tag copied the rest of the text."""

    def cost(tags: int) -> float:
        return cpu_s(lambda: TagSplitter("<think>", "</think>").feed("<think>a</think>b" * tags))

    assert TagSplitter("<think>", "</think>").feed("<think>a</think>b" * 3) == ("aaa", "bbb")
    assert cost(64_000) < 10 * max(cost(16_000), 0.004)


def test_the_probe_looks_at_a_bounded_number_of_facts() -> None:
    """Step 7, item A4: every literal was looked for in every line, and compared with every question found."""

    def cost(rows: int) -> float:
        text = "\n".join(f"Order W{n:07} costs ${n + 100}.25" for n in range(rows))
        entries = [Entry("m", 1, user(text, id="m"), 0)]
        return cpu_s(lambda: next(probe("nothing", entries), None), runs=1)

    cost(100)
    assert cost(8_000) < 10 * max(cost(2_000), 0.02)


@pytest.mark.parametrize("data", ["", "[", "null", "3", "[" * 9_000])
def test_a_medium_that_cannot_be_read_is_counted_all_the_same(data: str) -> None:
    """Step 7, item B23: a session that holds one from an earlier version stays readable."""
    counter = MessageCounter(RatioCounter())
    empty, one = (counter.count(Message("m", "user", parts)) for parts in ((), (MediaPart("image", data),)))
    assert one - empty == 800
