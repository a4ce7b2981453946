"""The inspector by its content: as text, as JSON, in a notebook, and as a page in a real browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from functools import reduce
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from ctxfold import Section, assistant, user
from ctxfold.inspect.report import MOST_CHARS, MOST_MESSAGES
from tests.conftest import NO_BROWSER
from tests.support.driven import Driven, context, scripted, tool_round, turns

ATTACK = "</pre></details><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\"> & 'so' \"on\""


def lived(ctx: Any) -> Any:
    """A session to which a little of everything has happened."""
    ctx.add([user(f"my locker is 47-B {ATTACK}", id="m"), assistant("noted", id="n")])
    ctx.add(turns(8))
    ctx.pin("u7")
    ctx.compact(force=True)
    ctx.add([user("look", id="q"), *tool_round("t", "found 12 boxes " * 300), assistant("done", id="d")])
    ctx.edit.update(-1, assistant("done, in the end", id="d"))
    ctx.edit.remove(0)
    ctx.undo()
    ctx.erasure.erase("u0")
    return ctx


def sections(ctx: Any) -> Any:
    ctx.send("which documents?")
    return ctx


@pytest.fixture
def inspected(make: Callable[..., Driven]) -> Any:
    asked = Section("documents", lambda _: ["page one says hello"], share=0.4)
    ctx = make(
        scripted("So far: fillers.", "these", "those", "others"),
        context_window=2_000,
        system="Be brief.",
        sections=[asked],
        session_id="<s>",
    )
    sections(lived(ctx))
    return ctx


def test_every_block_says_what_it_costs_and_why(inspected: Any) -> None:
    told = inspected.explain()
    assert told.used_tokens == sum(told.zones.values())
    for zone in ("system", "summary", "section"):
        assert told.zones[zone] == sum(b.tokens for b in told.blocks if b.zone == zone) > 0
    *_, reply = told.blocks
    assert told.zones["live"] == sum(b.tokens for b in told.blocks if b.zone == "live") - reply.tokens
    assert told.zones["recalled"] > 0
    zones = [b.zone for b in told.blocks]
    assert set(zones) == {"system", "summary", "section", "live"}
    blocks = {b.id: b for b in told.blocks}
    assert blocks["u7"].why == "pinned"
    assert blocks["t-r0"].why == "excerpt of a large tool output"
    (summary,) = [b for b in told.blocks if b.zone == "summary"]
    assert re.fullmatch(r"\d+ messages, extractive", summary.source)
    (document,) = [b for b in told.blocks if b.zone == "section"]
    assert document.why == "documents, found for the question"
    for block in told.blocks:
        assert 0 < block.at_s <= told.now_s
        if block.reference:
            assert inspected.archive.get(block.reference).id == block.id
    assert json.loads(json.dumps(told.to_dict()))["blocks"][0]["zone"] == "system"


def test_the_timeline(inspected: Any) -> None:
    steps = inspected.archive.inspect().timeline
    assert [s.what for s in steps] == ["pin", "compaction", "edit", "edit", "undo", "erasure", "section"]
    assert [s.detail for s in steps if s.what == "edit"] == ["d replaced", steps[3].detail]
    assert [s.undone for s in steps] == [False, False, False, True, False, False, False]
    assert steps[1].tokens_before > steps[1].tokens_after > 0
    assert (steps[4].detail, steps[5].detail) == ("of message removed", "u0")


def test_the_timeline_of_a_fork(make: Callable[..., Driven]) -> None:
    ctx = make(scripted("So far: fillers."), context_window=2_000, session_id="first")
    ctx.add(turns(10))
    ctx.pin("u3")
    ctx.unpin("u3")
    ctx.compact(force=True)
    ctx.restore("u0")
    ctx.edit.insert(0, user("put in", id="i"))
    ctx.add(user("a remark", id="n"), visibility="user")
    forked = ctx.fork("second")
    forked.edit.clear()
    forked.add([user("look", id="q"), tool_round("w")[0]])
    report = forked.archive.inspect()
    assert [(s.what, s.detail) for s in report.timeline if s.what not in ("pin", "compaction")] == [
        ("unpin", "u3"),
        ("restored", "u0"),
        ("edit", "i put in"),
        ("fork", "from first"),
        ("edit", "cleared"),
    ]
    where = {m.id: m.where for m in report.messages}
    assert (where["n"], where["q"], where["w-a"]) == ("for the user only", "in an open turn", "in an open turn")


def test_where_every_message_is(inspected: Any) -> None:
    stored = {m.id: m for m in inspected.archive.inspect().messages}
    assert stored["m"].where == "compacted"
    assert stored["t-r0"].where == "shown as an excerpt"
    assert stored["d"].where == "in the window"
    assert stored["d"].text == "done, in the end"
    assert "u0" not in stored
    assert stored["t-a"].text == "-> look({})"
    for message in stored.values():
        assert inspected.archive.get(message.reference).id == message.id


def test_it_prints(inspected: Any) -> None:
    text = str(inspected.archive.inspect())
    assert "What happened:" in text
    assert re.search(r"compaction +\d+ -> \d+ tokens  summarize: \d+ messages covered, extractive", text)
    assert "(undone)" in text
    with context() as empty:
        assert str(empty.archive.inspect()).endswith("What happened:\nnothing yet")


TAGS = frozenset(
    {
        "div",
        "style",
        "h3",
        "h4",
        "p",
        "span",
        "i",
        "b",
        "small",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "section",
        "pre",
        "details",
        "summary",
        "figure",
        "figcaption",
        "svg",
        "path",
        "line",
    }
)


class Reader(HTMLParser):
    """The elements of a page, and whether they nest."""

    VOID = frozenset({"meta", "input", "br", "img", "link"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("part", ["explain", "archive.inspect"])
def test_a_notebook_gets_well_formed_html_without_scripts(inspected: Any, part: str) -> None:
    page = Reader(reduce(getattr, part.split("."), inspected)()._repr_html_())
    tags = {tag for tag, _ in page.found}
    assert "script" not in tags
    assert tags <= TAGS
    assert not [a for _, attributes in page.found for a in attributes if a.startswith("on") or a in ("src", "href")]
    bars = {a["data-zone"] for tag, a in page.found if "data-zone" in a}
    assert bars == {"system", "summary", "section", "live", "recalled", "free", "reply"}
    widths = [float(w) for w in re.findall(r'style="width:([\d.]+)%', inspected.explain()._repr_html_())]
    assert sum(widths) == pytest.approx(100, abs=0.1)


def test_the_page_needs_nothing_from_outside(inspected: Any) -> None:
    html = inspected.archive.inspect().page()
    page = Reader(html)
    assert [tag for tag, _ in page.found if tag == "script"] == ["script"]
    assert not [a for _, attributes in page.found for a in attributes if a in ("src", "href", "srcset", "action")]
    assert "http://" not in html
    assert "https://" not in html
    assert "default-src &#x27;none&#x27;" in html


def test_what_broke_the_prefix(inspected: Any) -> None:
    inspected.send("more")
    inspected.edit.remove(0)
    inspected.send("and more")
    told = inspected.explain()
    assert dict(told.prefix.breaks)["edit"] == 1
    assert "edit 1&times;" in told._repr_html_()
    with context() as silent:
        assert "No request was made here" in silent.explain()._repr_html_()


def test_long_sessions_and_long_messages_are_cut_and_say_so() -> None:
    with context(context_window=4_000) as ctx:
        ctx.add([*turns(1_100, words=1), user("x" * (MOST_CHARS + 7), id="long")])
        found = ctx.archive.inspect()
        assert (len(found.messages), found.left_out) == (MOST_MESSAGES, 201)
        assert found.messages[-1].text.endswith("[7 more characters]")
        assert "The oldest 201 messages are left out" in found.page()


# in a browser


@pytest.fixture(scope="module")
def browser() -> str:
    found = next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )
    if found is None:
        pytest.skip(NO_BROWSER)
    return found


def shown(browser: str, page: Path, fragment: str = "") -> str:
    """The page's own elements after its script has run."""
    command = [
        browser,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={page.parent}/profile",
        "--dump-dom",
    ]
    done = subprocess.run([*command, f"{page.as_uri()}{fragment}"], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_page_in_a_browser(inspected: Any, browser: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(inspected.archive.inspect().page(), encoding="utf-8")
    dom = shown(browser, page, "#q=locker%2047-B")
    assert "<title>ctxfold: &lt;s&gt;</title>" in dom  # no script but the page's own ran
    details = re.findall(r"<details([^>]*)>(.*?)</details>", dom.split('<section class="all">')[1], flags=re.S)
    visible = [text for attributes, text in details if "hidden" not in attributes]
    assert len(details) > 10
    assert len(visible) == 1
    assert "47-B" in visible[0]
    assert "onerror=" in visible[0]  # as text
    assert "1 found" in dom or 'value="1 found"' in dom or "<output>1 found</output>" in dom
    whole = shown(browser, page)
    assert 'hidden=""' not in whole
    assert whole.count("<img") == 0
    for zone in ("system", "summary", "section", "live", "free", "reply"):
        assert f'data-zone="{zone}"' in whole
