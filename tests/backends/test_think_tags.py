"""Thinking that stands in tags within the text, however it is cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctxfold.backends.openai_chat import TagSplitter


@given(st.integers(1, 7), st.sampled_from([True, False]))
def test_think_tags_however_they_are_cut(size: int, starts_open: bool) -> None:
    text = "<think>a <b> c</think>one <thin two<think>b</think>three</thi"
    text = text.removeprefix("<think>") if starts_open else text
    splitter = TagSplitter("<think>", "</think>", starts_open=starts_open)
    pairs = [splitter.feed(text[i : i + size]) for i in range(0, len(text), size)] + [splitter.close()]
    assert "".join(r for r, _ in pairs) == "a <b> cb"
    assert "".join(c for _, c in pairs) == "one <thin twothree</thi"


@pytest.mark.parametrize("size", [1, 3, 100])
def test_a_prefilled_tag_may_be_repeated(size: int) -> None:
    text = "\n<think>x</think>y"
    splitter = TagSplitter("<think>", "</think>", starts_open=True)
    pairs = [splitter.feed(text[i : i + size]) for i in range(0, len(text), size)]
    assert "".join(r for r, _ in pairs).strip() == "x"
    assert "".join(c for _, c in pairs) == "y"
