"""The index of messages that are still in the view, kept between questions, is the one that would be made anew."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from ctxfold.index.cache import LiveIndex, PassageCache
from ctxfold.index.terms import term_counts
from ctxfold.messages import Message, user

WORDS = st.lists(st.sampled_from(["a1", "a1b", "b", "locker", "lockers", "票价", "x_y.z", "é"]), min_size=1, max_size=9)
SEQS = st.integers(1, 12)


def made_anew(messages: dict[int, Message]) -> LiveIndex:
    return LiveIndex().with_messages((seq, *counts(messages[seq])) for seq in sorted(messages))


def counts(message: Message) -> tuple[Counter[str], int]:
    found = term_counts(message.text)
    return found, found.total()


@given(st.lists(st.dictionaries(SEQS, WORDS, max_size=8), max_size=6))
def test_messages_come_and_go_in_any_order(steps: list[dict[int, list[str]]]) -> None:
    cache = PassageCache()
    known: dict[tuple[int, str], Message] = {}
    for step in steps:
        messages: dict[int, Message] = {}
        for seq, words in step.items():
            messages[seq] = known.setdefault((seq, " ".join(words)), user(" ".join(words), id=str(seq)))
        assert cache.live_index(messages, counts) == made_anew(messages)


def test_hits_are_in_order_and_counted() -> None:
    index = made_anew({7: user("A red red door.", id="a"), 3: user("A red box.", id="b")})
    assert index.hits == {"red": ((3, 1, 2), (7, 2, 3)), "box": ((3, 1, 2),), "door": ((7, 1, 3),)}
    assert index.lengths == {3: 2, 7: 3}
    assert index.without([7]).hits == {"red": ((3, 1, 2),), "box": ((3, 1, 2),)}


def test_a_message_is_taken_apart_once_while_it_stays() -> None:
    cache, read = PassageCache(), list[str]()

    def counting(message: Message) -> tuple[Counter[str], int]:
        read.append(message.text)
        return counts(message)

    first, second = user("The locker is 41.", id="a"), user("The gate code is 7.", id="b")
    for _ in range(2):
        cache.live_index({1: first, 2: second}, counting)
    assert read == [first.text, second.text]
    changed = user("The locker is 42.", id="a")
    assert cache.live_index({1: changed}, counting) == made_anew({1: changed})
    assert read[2:] == [changed.text]
    cache.live_index({2: second}, counting)
    assert read[3:] == [second.text]  # what the last question did not have is not kept
