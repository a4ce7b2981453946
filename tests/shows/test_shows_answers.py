"""Answers by a model: each question is asked once in every way, also over a restart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ctxfold.testing import ModelServer
from tests.benchmarks import answers

PLACES = ("Leith", "Ostend", "Vigo", "Cadiz", "Genoa", "Split")


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One conversation, in which only the beginning says where the ship was built."""
    said = [
        "The ship was built in Bergen.",
        *(f"On day {n} we lay off {PLACES[n % 6]} in {n} knots of wind." for n in range(200)),
    ]
    messages = [{"id": f"m{n}", "role": "user", "text": text} for n, text in enumerate(said)]
    asked = {"q": "Where was the ship built?", "answer": "Bergen | bergen, norway", "evidence": ["m0"]}
    place = tmp_path / "data" / "ship"
    place.mkdir(parents=True)
    told = [{"id": "ship", "messages": messages, "questions": [asked, asked]}]
    (place / "conversations.json").write_text(json.dumps(told), encoding="utf-8")
    monkeypatch.setenv("CTXFOLD_DATA_DIR", str(place.parent))
    return tmp_path / "answers.jsonl"


def test_a_restart_asks_only_what_was_not_asked(data: Path) -> None:
    with ModelServer(model="lookup") as server:
        for _ in range(2):
            (sheet,) = answers.run(
                base_url=server.base_url, model="lookup", results=str(data), questions=1, sets=["ship"]
            )
            asked = len(server.requests)
            kept = data.read_text(encoding="utf-8").splitlines()
            data.write_text("\n".join(kept[: len(kept) // 2 + 1]) + "\n", encoding="utf-8")
    rows = {(row[0], row[1]): row for row in sheet.rows}
    assert len(rows) == 2 * 6
    assert len(kept) == 12
    assert asked > 12
    for window in ("500", "1,000"):
        assert rows[window, "ctxfold"][5] in ("1 of 1", "0 of 1"), "the evidence is in the request"
        assert rows[window, "evidence alone"][5] in ("1 of 1", "0 of 1")
        assert rows[window, "trim_messages"][5] == "0 of 0"


@pytest.mark.parametrize(
    ("reply", "right"),
    [("It was ten years.", True), ("10!", True), ("In 2010.", False), ("I do not know.", False)],
)
def test_any_of_the_expected_texts_is_right_as_whole_words(reply: str, right: bool) -> None:
    assert answers.scored(reply, "10 | ten")[0] is right


def test_the_interval_of_a_share_is_wilsons() -> None:
    low, high = answers.wilson(8, 10)
    assert (round(low, 3), round(high, 3)) == (0.490, 0.943)
