"""Recall by meaning beside recall by words: what only one of them finds is found, and a failing embedder costs only itself."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from ctxfold import assistant, user
from ctxfold.index.cache import Vectors
from tests.support.driven import Driven, turns
from tests.support.minilm import MiniLM

Make = Callable[..., Driven]
MEANINGS = ({"automobile", "car", "vehicle"}, {"red", "crimson", "colour", "color"}, {"cat", "pet", "kitten"})


class Meanings:
    """An embedder for which some words mean alike, and that counts what it is asked."""

    def __init__(self, error: Exception | None = None) -> None:
        self.asked: list[str] = []
        self.error = error

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        self.asked += texts
        if self.error is not None:
            raise self.error
        words = [set(text.lower().replace("?", " ").replace(".", " ").split()) for text in texts]
        return [[float(len(w & meaning)) for meaning in MEANINGS] for w in words]

    async def aembed(self, texts: Sequence[str]) -> list[list[float]]:
        return self.embed(texts)


def told(make: Make, embedder: Any, **settings: Any) -> Driven:
    ctx = make(None, context_window=2_000, strategy="sliding_window", keep_last=2, embedder=embedder, **settings)
    ctx.add([user("My automobile is crimson.", id="m1"), assistant("Nice.", id="m2"), *turns(2, start=90)])
    ctx.add([user("The invoice number is 4417.", id="m3"), assistant("Noted.", id="m4"), *turns(3)])
    return ctx


def test_what_is_said_in_other_words_is_found(make: Make) -> None:
    question = "Which color has the vehicle?"
    assert "crimson" not in told(make, None).window(recall=True, question=question).recalled
    found = told(make, Meanings()).window(recall=True, question=question).recalled
    assert "My automobile is crimson." in found
    assert "invoice" not in found


def test_what_is_found_by_words_is_found_still(make: Make) -> None:
    found = told(make, Meanings()).window(recall=True, question="What is the invoice number?").recalled
    assert "The invoice number is 4417." in found


def test_each_message_is_embedded_once_and_only_after_it_was_compacted(make: Make) -> None:
    embedder = Meanings()
    ctx = told(make, embedder)
    for question in ("Which vehicle?", "Which car?"):
        ctx.window(recall=True, question=question)
        ctx.add(turns(1, start=10 + len(question)))
    assert len(embedder.asked) == len(set(embedder.asked)), "each text once"
    assert "My automobile is crimson." in embedder.asked
    newest = ctx.view().live[-1].message.text
    assert newest not in embedder.asked


def test_a_private_key_is_not_given_to_the_embedder(make: Make) -> None:
    embedder = Meanings()
    ctx = make(None, context_window=2_000, strategy="sliding_window", keep_last=2, embedder=embedder)
    key = "-----BEGIN PRIVATE KEY-----\nMIIabcMII\n-----END PRIVATE KEY-----"
    ctx.add([user(f"My car key is this.\n{key}\nKeep it.", id="m1"), assistant("Nice.", id="m2"), *turns(4)])
    ctx.window(recall=True, question="Which vehicle?")
    (embedded,) = (text for text in embedder.asked if "My car key" in text)
    assert "MIIabcMII" not in embedded
    assert "Keep it." in embedded


def test_a_sentence_counts_by_itself_however_much_stands_around_it(make: Make) -> None:
    embedder = Meanings()
    ctx = make(None, context_window=2_000, strategy="sliding_window", keep_last=2, embedder=embedder)
    chat = [f"On day {n} of the long journey we walked along the river until the evening came." for n in range(12)]
    told_aside = " ".join([*chat[:6], "My automobile is crimson.", *chat[6:]])
    cats = "The cat and the kitten are a pet of the family that lives beside us in the house, and so is the cat of Ben."
    ctx.add([user(told_aside, id="m1"), assistant("Nice.", id="m2"), user(cats, id="m3"), assistant("Ah.", id="m4")])
    ctx.add(turns(4))
    found = ctx.window(recall=True, question="Which color has the vehicle?").recalled
    assert "My automobile is crimson." in found
    assert "My automobile is crimson." in embedder.asked, "a text of its own"


@pytest.mark.parametrize("word", ["telegraph ", "Überlänge", "長い文です", "🚲"])
def test_an_embedder_gets_no_text_longer_than_what_models_read(make: Make, word: str) -> None:
    embedder = Meanings()
    ctx = make(None, context_window=2_000, strategy="sliding_window", keep_last=2, embedder=embedder)
    ctx.add([user(word * 120, id="m1"), assistant("Nice.", id="m2"), *turns(4)])
    ctx.window(recall=True, question="Which vehicle?")
    pieces = [text for text in embedder.asked if word.strip() in text]
    assert max(len(piece.encode()) for piece in pieces) <= 400
    assert "".join("".join(pieces).split()) == "".join((word * 120).split()), "and all of it"


def test_the_sentence_that_asks_is_embedded_without_the_chat_around_it(make: Make) -> None:
    embedder = Meanings()
    ctx = told(make, embedder)
    found = ctx.window(recall=True, question="The cat slept. Which color has the vehicle? What a pet!").recalled
    assert "Which color has the vehicle?" in embedder.asked
    assert "crimson" in found


def test_an_erased_message_is_not_found(make: Make) -> None:
    ctx = told(make, Meanings())
    question = "Which color has the vehicle?"
    assert "crimson" in ctx.window(recall=True, question=question).recalled
    ctx.erasure.erase("m1")
    assert "crimson" not in ctx.window(recall=True, question="What color has the vehicle?").recalled


def test_what_was_taken_out_by_hand_is_not_found(make: Make) -> None:
    ctx = make(None, context_window=2_000, embedder=Meanings())
    ctx.add([user("My automobile is crimson.", id="m1"), assistant("Nice.", id="m2"), *turns(8)])
    ctx.edit.remove(0)
    ctx.compact(force=True)
    assert "crimson" not in ctx.window(recall=True, question="Which color has the vehicle?").recalled


def test_a_failing_embedder_leaves_recall_by_words(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    ctx = told(make, Meanings(RuntimeError("no such model")))
    with caplog.at_level(logging.WARNING, "ctxfold"):
        found = ctx.window(recall=True, question="What is the invoice number?").recalled
    assert "4417" in found
    assert "no such model" in caplog.text


def test_what_words_and_meaning_both_find_comes_first(make: Make) -> None:
    """Each message stands far from the others, and recall has room for one line, then for all."""
    for tokens, expected in ((66, ["The vehicle is red."]), (400, ["It is a crimson car.", "The vehicle is red."])):
        ctx = make(
            None,
            context_window=2_000,
            strategy="sliding_window",
            keep_last=2,
            embedder=Meanings(),
            recall_tokens=tokens,
        )
        said = ("It is a crimson car.", "The vehicle is red.", "A hall is open.")
        for n, text in enumerate(said):
            ctx.add([user(text, id=f"m{n}"), assistant("Noted.", id=f"n{n}"), *turns(4, start=10 * n)])
        found = ctx.window(recall=True, question="Which vehicle is red?").recalled
        assert [text for text in said if text in found] == expected


def test_no_vector_goes_and_equal_ones_are_found_the_newest_first() -> None:
    vectors = Vectors()
    for n in range(5_000):
        vectors.add((n, 0), [1.0, float(n)])
    assert len(vectors) == len(vectors.nearest([1.0, 0.0], 6_000, ())) == 5_000
    assert list(vectors.nearest([1.0, 0.0], 1, ())) == [(0, 0)]
    assert list(vectors.nearest([1.0, 0.0], 1, (0,))) == [(1, 0)]
    assert vectors.nearest([-1.0, 0.0], 5, ()) == {}
    vectors.add((6_000, 4), [2.0, 0.0])
    assert list(vectors.nearest([1.0, 0.0], 2, ())) == [(6_000, 4), (0, 0)]
    with pytest.raises(ValueError, match="3 numbers after one of 2"):
        vectors.nearest([1.0, 0.0, 0.0], 1, ())


def test_the_nearest_of_those_behind_many_visible_ones() -> None:
    vectors = Vectors()
    for n in range(3_000):
        vectors.add((n, 0), [1.0, n // 100])
    assert list(vectors.nearest([1.0, 0.0], 30, ())) == [(n, 0) for n in range(99, 69, -1)]
    assert list(vectors.nearest([1.0, 0.0], 30, range(250))) == [(n, 0) for n in range(299, 269, -1)]
    assert all(type(score) is float for score in vectors.nearest([1.0, 0.0], 30, ()).values())


def test_a_real_model_finds_what_shares_no_word_with_the_question(make: Make) -> None:
    """all-MiniLM-L6-v2; the likeness of the two sentences is the one on the model's own page."""
    model = MiniLM()
    eats, bread = model.embed(["A man is eating food.", "A man is eating a piece of bread."])
    assert sum(a * b for a, b in zip(eats, bread, strict=True)) == pytest.approx(0.755, abs=0.002)
    for embedder, is_found in ((model, True), (None, False)):
        ctx = make(None, context_window=2_000, strategy="sliding_window", keep_last=2, embedder=embedder)
        ctx.add([user("My doctor says that my blood sugar is far too high.", id="m1"), assistant("I see.", id="m2")])
        ctx.add([user("The train to Bergen leaves at nine.", id="m3"), assistant("Noted.", id="m4"), *turns(3)])
        found = ctx.window(recall=True, question="Might diabetes be an issue?").recalled
        assert ("blood sugar" in found) is is_found
