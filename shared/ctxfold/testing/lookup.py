"""Extractive reading: the sentence that answers a question, the sentences that carry the facts."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ctxfold.testing.language as language
from ctxfold.testing.script import as_list, as_mapping, calls_of, part_text
from ctxfold.validation import read_json

UNKNOWN = ("I do not know.", "我不知道。")
_ENOUGH = 0.5  # share of the question's weight that a sentence must hold
_CARRIED = 0.9  # what a word counts that only the sentence before holds
_NUMBER = re.compile(r"\d|[一二三四五六七八九十百千万][月日号点年元个岁]")
_MONTH = re.compile(
    r"\b(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec|mon|tues|wednes|thurs|fri|satur|sun)(?:\w*(?:day|ber|ary))?\b"
    r"|\b(?:march|april|june|july|august)\b|星期|周[一二三四五六日末]",
    re.IGNORECASE,
)
_NAME = re.compile(r"(?<=[\w,;:] )[A-Z][\w-]+")
_TOKEN = re.compile(r"https?://\S+|[A-Za-z0-9_][A-Za-z0-9_./@-]*")
_PREFERENCE = re.compile(
    r"\b(?:prefers?|likes?|loves?|hates?|favou?rite|wants?|needs?|decided?|chose|chosen|agreed|called|named|allergic|"
    r"plan(?:s|ned)?|goal|deadline|because|means?)\b|喜欢|偏好|讨厌|决定|选择|需要|计划|过敏|名叫|叫做|叫|住在|目标",
    re.IGNORECASE,
)
_NEGATION = re.compile(
    r"\b(?:never|always|must|not|don't|cannot|can't|only|no longer)\b|必须|从不|总是|只能|禁止|不",
    re.IGNORECASE,
)
_PRONOUN = re.compile(r"^\W*(?:it|its|he|his|she|her|they|their|this|that|these|those)\b|^[他她它这那]", re.IGNORECASE)
_AMOUNT = re.compile(
    r"\b(?:when|how (?:many|much|old|long|far)|number|date|time|day|year|price|cost|code|amount|phone|"
    r"deadline|budget)\b|多少|几|什么时候|号码|日期|时间|哪[天年]|价格|预算|密码|电话",
    re.IGNORECASE,
)
_PERSON = re.compile(r"\b(?:who|whom|whose|name|named|called)\b|谁|名字|叫什么", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence of a request, with its message."""

    text: str
    message: int
    role: str
    words: frozenset[str]
    carried: frozenset[str]  # words of the sentence before, which a pronoun refers to


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a search; `sentence` is None when nothing matched well enough."""

    text: str
    sentence: Sentence | None
    score: float
    read: int


def content_text(content: Any) -> str:
    """Returns the text of a message's content, also of a list of parts."""
    if isinstance(content, str):
        return content
    texts = (part_text(part) for part in as_list(content))
    return "\n".join(text for text in texts if text is not None)


def message_sentences(message: Mapping[str, Any]) -> list[str]:
    """Returns every sentence of a message: its text, JSON results by record, and the arguments of its calls."""
    sentences: list[str] = []
    texts = [content_text(message.get("content"))]
    texts += [str(as_mapping(call.get("function")).get("arguments", "")) for call in calls_of(message)]
    for text in texts:
        try:
            parsed = read_json(text) if text.lstrip()[:1] in ("{", "[") else None
        except (ValueError, RecursionError):
            parsed = None
        sentences += language.sentences(text) if parsed is None else language.flatten_json(parsed)
    return sentences


def question_of(messages: Sequence[Mapping[str, Any]]) -> tuple[int, str] | None:
    """Returns the position of the newest unanswered question and its sentence; None when there is none.

    All user messages since the last plain assistant message count, so that a note sent after the question does not hide it.
    """
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        if message.get("role") == "assistant" and not message.get("tool_calls"):
            break
        if message.get("role") == "user":
            read = language.sentences(content_text(message.get("content")))
            questions = [sentence for sentence in read if language.is_question(sentence)]
            if questions:
                return index, questions[-1]
    return None


def _same(text: str) -> str:
    return re.sub(r"\W+", " ", language.unlabelled(text)).strip().lower()


_UNKNOWN_SAME = frozenset(_same(text) for text in UNKNOWN)


def _statement(sentence: str) -> str | None:
    """Returns the part of a sentence that states something: of a question, the words before its last comma."""
    if not language.is_question(sentence):
        return sentence
    cut = max(sentence.rfind(mark) for mark in (", ", "; ", "，", "；"))
    before = sentence[:cut].strip() if cut > 0 else ""
    return before if before and not language.is_question(before) else None


def candidates(messages: Sequence[Mapping[str, Any]], *, without: int, question: str) -> list[Sentence]:
    """Returns the statements of all other messages, in order, without earlier equal questions and "I do not know."."""
    statements: list[Sentence] = []
    same_question = _same(question)
    for index, message in enumerate(messages):
        if index == without:
            continue
        before: frozenset[str] = frozenset()
        for sentence in message_sentences(message):
            text = _statement(sentence)
            if text is None or _same(text) == same_question or _same(text) in _UNKNOWN_SAME:
                continue
            own = language.words(text)
            # "Her number is 12." speaks of whom the sentence before names
            carried = before - own if _PRONOUN.match(language.unlabelled(text)) else frozenset[str]()
            statements.append(Sentence(text, index, str(message.get("role", "")), own, carried))
            before = own
    return statements


def answer(messages: Sequence[Mapping[str, Any]], *, without: int, question: str) -> Answer:
    """Returns the sentence with most of the question's content words, rare ones first; the newest of equal ones."""
    read = candidates(messages, without=without, question=question)
    unknown = UNKNOWN[language.is_chinese(question)]
    query = language.query(question)
    spread = Counter(word for sentence in read for word in sentence.words)
    # by inverse document frequency; a word found nowhere weighs a quarter more than one found once
    rare = {w.text: math.log((len(read) + 2) / (spread[w.text] + 0.5)) for w in query if spread[w.text]}
    weights = {w.text: w.weight * rare.get(w.text, 1.25 * math.log((len(read) + 2) / 1.5)) for w in query}
    total = sum(weights.values())
    best, best_score = None, 0.0
    question_words = language.words(question) if language.asks_for_more(question) else frozenset[str]()
    for sentence in read:
        if sentence.words <= question_words:  # repeats the question: tells nothing
            continue
        own = sum(weight for word, weight in weights.items() if word in sentence.words)
        carried = sum(weight for word, weight in weights.items() if word in sentence.carried)
        weight_sum = own + _CARRIED * carried
        if not own or weight_sum / total < _ENOUGH:
            continue
        score = round(weight_sum / total + _fits(question, sentence.text), 6)
        if score >= best_score:
            best, best_score = sentence, score
    return Answer(language.unlabelled(best.text) if best else unknown, best, best_score, len(read))


def _fits(question: str, sentence: str) -> float:
    """Returns a small bonus for a sentence that holds the kind of thing that is asked for."""
    fresh = sentence
    for word in re.findall(r"\w+", question):
        fresh = re.sub(rf"\b{re.escape(word)}\b", " ", fresh)
    if _AMOUNT.search(question) and (_NUMBER.search(fresh) or _MONTH.search(fresh)):
        return 0.15
    return 0.1 if _PERSON.search(question) and _NAME.search(fresh) else 0.0


def _is_identifier(token: str) -> bool:
    """Returns True for a word that was not made for reading: mixed with digits, underscored, all capitals, a URL."""
    letters = any(character.isalpha() for character in token)
    digits = any(character.isdigit() for character in token)
    return letters and (digits or "_" in token or "://" in token or (len(token) > 1 and token.isupper()))


def fact_score(sentence: str) -> float:
    """Returns how many facts a sentence holds: numbers, identifiers, names, dates, preferences, negations."""
    bare = language.unlabelled(sentence)
    if language.is_question(bare) or _same(bare) in _UNKNOWN_SAME:
        return 0.0
    identifiers = sum(_is_identifier(token) for token in _TOKEN.findall(bare))
    marks = min(len(_NUMBER.findall(bare)), 3) + 2 * min(identifiers, 2)
    return (
        marks
        + min(len(_NAME.findall(bare)), 3)
        + bool(_MONTH.search(bare))
        + 2 * bool(_PREFERENCE.search(bare))
        + 2 * bool(_NEGATION.search(bare))
        + 0.1 * min(len(language.words(bare)), 10)
    )


def summarise(sentences: Iterable[str], *, limit_tokens: int, count: Callable[[str], int]) -> str:
    """Returns the sentences richest in facts that fit the limit, in order, each at most once."""
    distinct = {_same(sentence): sentence for sentence in reversed(list(sentences)) if _same(sentence)}
    ordered = list(reversed(distinct.values()))
    scores = [fact_score(sentence) for sentence in ordered]
    costs = [count(sentence) + 1 for sentence in ordered]
    # a fact in fewer tokens first; the square root keeps long rich sentences in the race
    worth = [score / math.sqrt(cost) for score, cost in zip(scores, costs, strict=True)]
    ranking = sorted(range(len(ordered)), key=lambda index: (-worth[index], -index))
    chosen: set[int] = set()
    room_tokens = limit_tokens
    for index in ranking:
        if scores[index] >= 0.3 and costs[index] <= room_tokens:
            chosen.add(index)
            room_tokens -= costs[index]
    return "\n".join(sentence for index, sentence in enumerate(ordered) if index in chosen)
