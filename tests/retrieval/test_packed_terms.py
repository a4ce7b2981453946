"""The terms of messages of the tail, kept between questions in little memory, count as a dict of them would."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from ctxfold.history.passage_cache import PackedTerms, PassageCache
from ctxfold.history.terms import term_counts
from ctxfold.messages import Message, user

WORDS = st.lists(st.sampled_from(["a1", "a1b", "b", "locker", "lockers", "票价", "x_y.z", "é"]), max_size=30)


@given(WORDS)
def test_packed_terms_are_the_counts_they_were_made_of(words: list[str]) -> None:
    counts = term_counts(" ".join(words))
    packed = PackedTerms(counts)
    assert dict(packed) == dict(counts)
    assert (len(packed), packed.total) == (len(counts), counts.total())
    for term in ("a", "a1", "lock", "", *counts):
        assert (term in packed) == (term in counts)
        assert packed.get(term, 0) == counts.get(term, 0)


def test_a_message_of_the_tail_is_taken_apart_once_while_it_stays() -> None:
    cache, made = PassageCache(), list[str]()

    def counts(message: Message) -> Counter[str]:
        made.append(message.text)
        return term_counts(message.text)

    first, second = user("The locker is 41.", id="a"), user("The gate code is 7.", id="b")
    for _ in range(2):
        found = cache.terms([(1, first), (2, second)], counts)
        assert {seq: dict(terms) for seq, terms in found.items()} == {
            1: dict(term_counts(first.text)),
            2: dict(term_counts(second.text)),
        }
    assert made == [first.text, second.text]
    changed = user("The locker is 42.", id="a")
    assert dict(cache.terms([(1, changed)], counts)[1]) == dict(term_counts(changed.text))
    assert made[2:] == [changed.text]
    cache.terms([(2, second)], counts)
    assert made[3:] == [second.text]  # what the last question did not have is not kept
