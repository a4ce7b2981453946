"""What a memory stands on when it is made: how tokenizers are told apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ctxfold import ConfigError
from llamaindex_ctx import CtxMemory
from llamaindex_ctx.memory_settings import FunctionCounter
from tests.llamaindex.talk import bot, parking, user


class Encoding:
    """Cuts texts into pieces of one length."""

    def __init__(self, length: int) -> None:
        self.length = length

    def encode(self, text: str) -> list[str]:
        return cut(self.length, text)


def cut(length: int, text: str) -> list[str]:
    return [text[i : i + length] for i in range(0, len(text), length)]


def method(length: int) -> Callable[[str], Sequence[Any]]:
    return Encoding(length).encode


def part(length: int) -> Callable[[str], Sequence[Any]]:
    return partial(cut, length)


@pytest.mark.parametrize("made", [method, part])
def test_tokenizers_of_one_name_have_ids_of_their_own(made: Callable[[int], Callable[[str], Sequence[Any]]]) -> None:
    ids = [FunctionCounter(made(length)).id for length in (3, 4, 3)]
    assert ids[0] == ids[2] != ids[1]


def test_a_tokenizer_that_knows_few_characters_has_an_id() -> None:
    def plain(text: str) -> list[int]:
        return list(text.encode("ascii"))

    def latin(text: str) -> list[int]:
        return list(text.encode("latin-1"))

    latin.__qualname__ = plain.__qualname__
    counters = [FunctionCounter(tokenize) for tokenize in (plain, latin)]
    assert counters[0].id != counters[1].id
    assert [c.count("tea") for c in counters] == [3, 3]


def test_counts_are_made_anew_for_another_tokenizer(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'counts.db'}"
    said = [m for i in range(600) for m in parking(i)]  # enough for a snapshot

    def tokens(tokenize: Callable[[str], Sequence[Any]], store: str | None, *, new: bool) -> int:
        history = said if new else None
        with CtxMemory.from_defaults(
            "s", store=store, context_window=200_000, tokenizer_fn=tokenize, chat_history=history
        ) as memory:
            return memory.context.usage().window_tokens

    coarse = tokens(method(8), url, new=True)
    fine = tokens(method(2), url, new=False)
    assert fine == tokens(method(2), None, new=True) > 2 * coarse


def test_a_history_may_come_first_as_in_the_stock_memories() -> None:
    """Step 7, C: a list in the first place was a raw TypeError."""
    with CtxMemory.from_defaults([user("Hello."), bot("Hi.")], token_limit=1_000) as memory:
        assert [m.content for m in memory.get_all()] == ["Hello.", "Hi."]
        assert memory.session_id
    with CtxMemory.from_defaults([], token_limit=1_000) as memory:
        assert memory.get_all() == []
    wrong: Any
    for wrong in ({"a": 1}, 7, user("Hello.")):
        with pytest.raises(ConfigError, match="session_id is"):
            CtxMemory.from_defaults(wrong, token_limit=1_000)
    with pytest.raises(ConfigError, match="once"):
        CtxMemory.from_defaults([user("Hello.")], chat_history=[], token_limit=1_000)
