"""The bundled demo conversation: its layout, its sizes, and that its questions can be answered from it."""

import json
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import examples.demo

DATA: dict[str, Any] = json.loads(
    Path(examples.demo.__file__).with_name("conversation.json").read_text(encoding="utf-8")
)
TURNS: list[dict[str, Any]] = DATA["turns"]
QUESTIONS: list[dict[str, Any]] = DATA["questions"]
CALLED = [turn for turn in TURNS if turn["rounds"]]
STOPWORDS = frozenset(
    re.findall(
        r"\w+",
        "a about above after all an and are as at be been before by did do does for from had has have how i"
        " if in is it its long many may must of on one or our that the their there they this to was we what"
        " when where which who whom with you your",
    )
)
HAN = re.compile(r"[\u4e00-\u9fff]+")


def texts(turn: dict[str, Any], where: str) -> list[str]:
    """What the turn says in that place."""
    if where == "tool":
        return [result for round_ in turn["rounds"] for result in round_["results"]]
    return [turn[where]]


def sentences(text: str) -> list[str]:
    return [part.strip() for part in re.split(r"\n|(?<=[.!?;])\s+|(?<=[。！？])", text) if part.strip()]


def terms(text: str) -> set[str]:
    """Content words; for Chinese, pairs of neighbouring characters."""
    words = {word for word in re.findall(r"\w+", HAN.sub(" ", text.lower())) if word not in STOPWORDS}
    return words | {run[i : i + 2] for run in HAN.findall(text) for i in range(len(run) - 1)}


def length(text: str) -> int:
    """Words, a Chinese character counting as one."""
    return len(HAN.sub(" ", text).split()) + sum(len(run) for run in HAN.findall(text))


def holds(text: str, expect: str) -> bool:
    return expect.lower() in text.lower()


EVERY_SENTENCE = [
    sentence
    for turn in TURNS
    for where in ("user", "tool", "answer")
    for text in texts(turn, where)
    for sentence in sentences(text)
]
EVERY_TERMS = [terms(sentence) for sentence in EVERY_SENTENCE]
FREQUENCY = Counter(term for found in EVERY_TERMS for term in found)


def best_sentence(question: str) -> str:
    """The sentence that shares the rarest words with the question; of equals, the newest."""
    asked = terms(question)

    def score(index: int) -> tuple[float, int]:
        shared = asked & EVERY_TERMS[index]
        return round(sum(math.log(len(EVERY_TERMS) / FREQUENCY[term]) for term in shared), 6), index

    return EVERY_SENTENCE[max(range(len(EVERY_SENTENCE)), key=score)]


def test_counts_of_turns_and_tokens() -> None:
    assert set(DATA) == {"system", "tools", "turns", "pins", "questions"}
    assert 196 <= len(TURNS) <= 210
    assert 40 <= len(CALLED) <= 50
    spoken = sum(len(turn["user"]) + len(turn["answer"]) + len(turn["reasoning"] or "") for turn in TURNS)
    used = sum(len(json.dumps(round_, ensure_ascii=False)) for turn in TURNS for round_ in turn["rounds"])
    assert 30_000 <= (spoken + used) / 4 <= 40_000
    with_reasoning = sum(bool(turn["reasoning"] or turn["rounds"]) for turn in TURNS)
    assert 0.5 <= with_reasoning / len(TURNS) <= 0.7


@pytest.mark.parametrize("index", range(len(TURNS)))
def test_turn_layout(index: int) -> None:
    turn = TURNS[index]
    assert set(turn) == {"user", "rounds", "reasoning", "answer"}
    assert 15 <= length(turn["user"]) <= 80
    assert 20 <= length(turn["answer"]) <= 90
    assert turn["reasoning"] is None or turn["reasoning"].strip()
    assert len(turn["rounds"]) <= 3
    names = {tool["function"]["name"] for tool in DATA["tools"]}
    for round_ in turn["rounds"]:
        assert set(round_) == {"reasoning", "calls", "results"}
        assert round_["reasoning"].strip()
        assert 1 <= len(round_["calls"]) == len(round_["results"])
        assert all(200 <= len(result) <= 1500 for result in round_["results"])
        for call in round_["calls"]:
            assert set(call) == {"id", "name", "arguments"}
            assert isinstance(call["arguments"], dict)
            assert call["name"] in names


def test_tools_are_function_schemas_that_fit_the_arguments() -> None:
    assert 3 <= len(DATA["tools"]) <= 4
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in DATA["tools"]}
    for call in (call for turn in CALLED for round_ in turn["rounds"] for call in round_["calls"]):
        schema = schemas[call["name"]]
        assert set(schema["required"]) <= set(call["arguments"]) <= set(schema["properties"])


def test_call_ids_and_prose_are_unique() -> None:
    ids = [call["id"] for turn in CALLED for round_ in turn["rounds"] for call in round_["calls"]]
    assert len(ids) == len(set(ids))
    for part in ("user", "answer"):
        assert len({turn[part] for turn in TURNS}) == len(TURNS)


def test_some_rounds_are_parallel_and_some_turns_have_several() -> None:
    assert sum(len(round_["calls"]) > 1 for turn in CALLED for round_ in turn["rounds"]) >= 3
    assert sum(len(turn["rounds"]) > 1 for turn in CALLED) >= 3


def test_about_eight_turns_are_chinese() -> None:
    chinese = [turn for turn in TURNS if sum(map(len, HAN.findall(turn["user"]))) > 15]
    assert 7 <= len(chinese) <= 9
    assert all(HAN.search(turn["answer"]) for turn in chinese)


def test_pins_are_user_rules_that_questions_ask_about() -> None:
    pins = DATA["pins"]
    assert 4 <= len(pins) <= 6
    assert pins == sorted(set(pins))
    assert all("rule" in TURNS[index]["user"] for index in pins)
    pinned = [question["turn"] for question in QUESTIONS if question["pinned"]]
    assert 5 <= len(pinned) <= 6
    assert set(pinned) <= set(pins)


def test_counts_of_questions() -> None:
    early = [question for question in QUESTIONS if question["turn"] < 0.75 * len(TURNS)]
    assert len(QUESTIONS) == len({question["question"] for question in QUESTIONS}) == 60
    assert len(early) >= 40
    assert sum(question["where"] == "tool" for question in early) >= 10
    assert sum(question["where"] == "answer" for question in QUESTIONS) >= 3
    assert sum(bool(HAN.search(question["question"])) for question in QUESTIONS) >= 4
    quarters = Counter(4 * question["turn"] // len(TURNS) for question in QUESTIONS)
    assert all(quarters[quarter] >= 8 for quarter in range(4))


@pytest.mark.parametrize("index", range(len(QUESTIONS)))
def test_question_can_be_answered_by_a_lexical_search(index: int) -> None:
    question: dict[str, Any] = QUESTIONS[index]
    assert set(question) == {"question", "expect", "turn", "where", "pinned"}
    turn = TURNS[int(question["turn"])]
    said = [s for text in texts(turn, question["where"]) for s in sentences(text)]
    assert question["expect"]
    for expect in question["expect"]:
        holders = [sentence for sentence in said if holds(sentence, expect)]
        assert holders, f"{expect!r} is not in the {question['where']} text of turn {question['turn']}"
        assert max(len(terms(question["question"]) & terms(sentence)) for sentence in holders) >= 2
        assert not holds(question["question"], expect), "the question gives its answer away"
        assert holds(best_sentence(question["question"]), expect)


def test_answers_of_tool_questions_are_only_in_tool_outputs() -> None:
    spoken = [text for turn in TURNS for text in (turn["user"], turn["answer"], turn["reasoning"] or "")]
    for question in QUESTIONS:
        if question["where"] == "tool":
            for expect in question["expect"]:
                assert not [text for text in spoken if holds(text, expect)]
