"""The page on troubleshooting has every error class, and on the site every message of the source."""

from __future__ import annotations

import random
import re
import runpy
from functools import cache
from types import SimpleNamespace

import pytest

from ctxfold import AgentContext, CtxError, tool_result
from langchain_ctx import ContextMiddleware
from tests.support.pages import DOCS, page
from tests.support.public_names import public_names

MESSAGES = runpy.run_path(str(DOCS / "messages.py"))
PLACEHOLDER: str = MESSAGES["PLACEHOLDER"]


def of_the_site(name: str) -> str:
    """A page as the site renders it."""
    on_page_markdown = runpy.run_path(str(DOCS / "hooks.py"))["on_page_markdown"]
    about = SimpleNamespace(title=name, file=SimpleNamespace(src_uri=name), meta={})
    return str(on_page_markdown(page(name), about, config=None, files=None))


ADVICE, _, LISTED = of_the_site("troubleshooting.md").partition("## Every message")


@cache
def collected() -> dict[str, list[str]]:
    """Goes through the source once for all tests."""
    return dict(MESSAGES["collect"]())


def test_every_message_of_the_source_is_listed() -> None:
    assert sum(map(len, collected().values())) > 300
    parts = {part.partition("\n")[0]: part for part in LISTED.split("\n### ")[1:]}
    missing = [
        text for name, texts in collected().items() for text in texts if f"- `{text}`" not in parts.get(name, "")
    ]
    assert missing == []


def test_no_listed_message_is_gone_from_the_source() -> None:
    listed = set(re.findall(r"^- `(.*)`$", LISTED, flags=re.M))
    assert listed == {text for texts in collected().values() for text in texts}


def test_twelve_messages_at_random_are_found_by_their_words() -> None:
    texts = [text for texts in collected().values() for text in texts]
    for text in random.Random(16).sample(texts, 12):
        longest = max(text.split(PLACEHOLDER), key=len)
        assert longest in LISTED


def test_every_public_error_class_has_its_advice() -> None:
    public = {
        name
        for package in ("ctxfold", "langchain_ctx", "llamaindex_ctx")
        for name, found in public_names(package).items()
        if isinstance(found, type) and issubclass(found, CtxError)
    }
    assert len(public) > 40
    told = set(re.findall(r"`(\w+)`", ADVICE.partition("## Classes of errors")[2]))
    assert public <= told


def found(message: str) -> bool:
    """Whether one of the listed messages is this one, with its values filled in."""
    for listed in re.findall(r"^- `(.*)`$", LISTED, flags=re.M):
        pattern = ".*".join(re.escape(piece) for piece in listed.split(PLACEHOLDER))
        if len(listed) > 20 and re.fullmatch(pattern, message.replace("`", "'"), flags=re.S):
            return True
    return False


def test_errors_that_a_user_makes_are_found() -> None:
    with AgentContext(context_window=8_000) as ctx:
        for mistake in (
            lambda: AgentContext(),
            lambda: AgentContext(context_window=10),
            lambda: AgentContext(context_window=8_000, store="mysql://x"),
            lambda: ctx.add([tool_result("c1", "x", id="t1")]),
            lambda: ctx.undo(),
            lambda: ctx.pin("nothing"),
            lambda: ContextMiddleware(context_window=8_000, history_tools=["fly"]),
        ):
            with pytest.raises(CtxError) as raised:
                mistake()
            assert found(str(raised.value)), raised.value
    assert not found("the moon is full: wait for a month")
