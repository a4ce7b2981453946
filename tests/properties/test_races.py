"""Clients of one session at once: whatever the order of their steps and whoever is cancelled, nothing is lost, doubled or moved."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.properties.races import ADDING, CANCEL, EDITING, Op, Race

WINDOWS = (260, 4_000)  # tokens: in the small one a turn is compacted while it is under way
choices = st.lists(
    st.one_of(*[st.integers(0, 5)] * 3, st.integers(CANCEL, CANCEL + 5)),
    max_size=120,
)


def programs(kinds: Sequence[str]) -> st.SearchStrategy[list[tuple[int, list[Op]]]]:
    op = st.builds(Op, kind=st.sampled_from(kinds), words=st.integers(0, 8), rounds=st.integers(0, 2))
    return st.lists(st.tuples(st.integers(0, 1), st.lists(op, min_size=1, max_size=4)), min_size=2, max_size=3)


@pytest.mark.parametrize("window", WINDOWS)
@settings(max_examples=max(20, settings.default.max_examples // 2))
@given(played=programs(ADDING), chosen=choices, shared=st.booleans())
def test_turns_of_several_clients_at_once(
    window: int, played: list[tuple[int, list[Op]]], chosen: list[int], shared: bool
) -> None:
    asyncio.run(Race(chosen, window).run(played, shared=shared))


@settings(max_examples=max(20, settings.default.max_examples // 2))
@given(played=programs((*ADDING, *EDITING)), chosen=choices, shared=st.booleans(), window=st.sampled_from(WINDOWS))
def test_turns_and_edits_of_several_clients_at_once(
    window: int, played: list[tuple[int, list[Op]]], chosen: list[int], shared: bool
) -> None:
    asyncio.run(Race(chosen, window).run(played, shared=shared))
