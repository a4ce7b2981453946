"""Extractive reading: the sentence that answers a question, and those that carry the facts, in four languages."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ctxfold.testing.script import as_list, as_mapping, calls_of, part_text
from ctxfold.validation import read_json


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


_STOP = _set("""
    a about above after again all also am an and any anything are as at be because been before being
    both but by can could did do does done down else ever every for from further had has have having
    he her here hers him his how i if in into is it its itself just let like me more most much my no
    nor not now of off ok okay on once only or other our out over own please s said same say says
    she should so some such t tell than that the their them then there these they this those through
    to too under until up us very was we were what when where which while who whom whose why will
    with would you your yours remember remind know again exactly actually many ll re ve d m
""")
# Words that name the kind of answer or a light action: a fact often states them otherwise.
_GENERIC = _set("""
    name number date time day month year place city kind type colour color price amount cost address
    code value choose chose pick decide decid use plan want need get got go make made give gave take
    took set agree mention call happen work start end keep kept put live stay find found long far
    old big did earlier mine previous last 名字 姓名 号码 时间 日期 地址 价格 地点 颜色 数字 多久 密码
""")
_ALIAS = {"called": "nam", "named": "nam", "favourit": "favorit", "colour": "color"}
_CJK_STOP = re.compile(
    r"什么时候|为什么|什么|哪里|哪儿|哪个|哪天|哪一|哪|谁|多少|几|怎么|怎样|如何|是不是|有没有|请问|告诉|记得|知道|"
    r"我们|你们|他们|她们|我|你|您|他|她|它|的|了|是|吗|[呢吧啊呀]$|把|被|就|也|很|在|一下|这|那|"
    r"私|ですか|でした|です|ました|ます|ください|何(?=で)|誰|どこ|いつ|どれ|[はがをにのでともかへやね]"
)
_CJK_RUN = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]+")
_HANGUL_PARTICLE = re.compile(r"(?<=[\uac00-\ud7a3])(은|는|이|가|을|를|에|의|도|로|와|과|에서)$")
_WORD = re.compile(r"[^\W_]+(?:[-_.:/@#'’][^\W_]+)*")
_WIDE = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
_HANGUL = re.compile(r"[\uac00-\ud7a3]")
_BREAK = re.compile(r"(?<=[。！？；])|(?<=[.!?])[\"')\]]*\s+|\n+")
_ABBREVIATION = re.compile(r"(?:\b(?:Mr|Mrs|Ms|Dr|St|No|vs|etc|approx|Inc|Ltd|Jr|Sr|Prof|e\.g|i\.e)|\b[A-Z])\.\s*$")
_LABEL = re.compile(
    r"^\W*(?:\[?\d+\]?\W*)?(?:user|human|assistant|ai|system|tool|用户|助手)\s*(?:\([^)]*\))?\s*[:：]\s*",
    re.IGNORECASE,
)
_ASKS = re.compile(
    r"^\W*(?:so |and |but |now |please |ok |okay |hey |hi )*(?:what|who|whom|whose|when|where|which|why|how|"
    r"tell me|remind me|give me|show me|recall|list|do you (?:remember|know|recall))\b",
    re.IGNORECASE,
)
_ORDERS = re.compile(
    r"(?:^|[,，])[^\w,，]*+(?:please )?(?:(?:tell me|remind me|give me|show me|recall)\b|请?告诉我|请?提醒我)",
    re.IGNORECASE,
)
_ASKS_CJK = re.compile(
    r"什么|哪[里儿个天一些年位种]|谁|多少|几[个点号月岁]|怎么|怎样|如何|是不是|有没有|[吗呢]$|ですか$|何|どこ|いつ"
)


@dataclass(frozen=True, slots=True)
class Word:
    """A content word; `weight` is 1 for a plain word, and shares of 1 for the bigrams of one run."""

    text: str
    weight: float = 1.0


def is_wide(text: str) -> bool:
    """Returns True when the text contains Chinese or Japanese characters."""
    return _WIDE.search(text) is not None


def is_chinese(text: str) -> bool:
    """Returns True for Chinese text: Han characters and no kana."""
    return is_wide(text) and re.search(r"[\u3040-\u30ff]", text) is None


def sentences(text: str) -> list[str]:
    """Returns the sentences and lines of the text, in order, verbatim."""
    complete: list[str] = []
    pending = ""
    for piece in _BREAK.split(text):
        pending = f"{pending} {piece}" if pending else piece
        if len(pending) < 400 and _ABBREVIATION.search(pending):
            continue
        if pending.strip():
            complete.append(pending.strip())
        pending = ""
    return [*complete, pending.strip()] if pending.strip() else complete


def unlabelled(sentence: str) -> str:
    """Returns the sentence without a leading speaker label, as in transcripts."""
    return _LABEL.sub("", sentence, count=1)


def is_question(sentence: str) -> bool:
    """Returns True when the sentence asks for something."""
    bare = unlabelled(sentence).strip().rstrip("\"')]”")
    if bare.endswith(("?", "？")) or _ORDERS.search(bare):
        return True
    if bare.endswith((".", "!", "。", "！", "：", ":")):
        return False
    return bool(_ASKS.match(bare) or _ASKS_CJK.search(bare))


def asks_for_more(question: str) -> bool:
    """Returns True when an answer must say more than the question does, which yes-or-no questions do not need."""
    bare = unlabelled(question)
    return bool(_ASKS.match(bare) or _ORDERS.search(bare) or _ASKS_CJK.search(bare.rstrip("?？")))


def stem(word: str) -> str:
    """Returns the word in lower case without plural, -ing, -ed and possessive; identifiers stay whole."""
    word = re.sub(r"['’]s?$", "", word).lower()
    if word in _ALIAS:
        return _ALIAS[word]
    if any(character.isdigit() for character in word) or not word.isalpha() or len(word) < 4:
        return word
    root = _root(word)
    return _ALIAS.get(root, root)


def _root(word: str) -> str:
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    for suffix in ("ing", "ed"):
        if word.endswith(suffix) and len(word) - len(suffix) >= 3:
            root = word[: -len(suffix)]
            return root[:-1] if root[-1] == root[-2] and root[-1] not in "lse" else root.removesuffix("e")
    if word.endswith("es") and word[-3] in "sxzh":
        return word[:-2].removesuffix("e")
    if word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    return word.removesuffix("e")


def _latin(text: str) -> Iterator[str]:
    for match in _WORD.finditer(_CJK_RUN.sub(" ", text)):
        raw = _HANGUL_PARTICLE.sub("", match.group())
        whole = stem(raw)
        if raw.lower() in _STOP or whole in _STOP:
            continue
        if not re.search("['’]", whole):
            yield whole
        if not whole.isalnum():  # "order-17" also answers for "order" and "17"; "don't" for nothing
            parts = re.split(r"[-_.:/@#'’]", raw)
            yield from (stem(part) for part in parts if len(part) > 1 and part.lower() not in _STOP)


def _bigrams(run: str) -> list[str]:
    return [run[index : index + 2] for index in range(len(run) - 1)] or [run]


def words(text: str) -> frozenset[str]:
    """Returns all terms of the text that a question's word can match."""
    terms: set[str] = set()
    for word in _latin(text):
        terms.add(word)
        if _HANGUL.search(word):
            terms.update(_bigrams(word))
    for run in _CJK_RUN.findall(text):
        terms.update(run)
        terms.update(_bigrams(run))
        for part in _CJK_STOP.split(run):
            if part:
                terms.update(_bigrams(part))
    return frozenset(terms)


def query(text: str) -> tuple[Word, ...]:
    """Returns the weights of a question's content words: names, numbers and owners count twice, kinds of answer half."""
    strong = _entities(text)
    weights: dict[str, float] = {}
    for word in _latin(text):
        if _HANGUL.search(word):
            grams = _bigrams(word)
            weights.update((gram, 1 / len(grams)) for gram in grams)
        else:
            weights[word] = 2.0 if word in strong else 0.5 if word in _GENERIC_STEMS else 1.0
    for run in _CJK_RUN.finditer(text):
        for part, owner in _parts(run.group()):
            grams = _bigrams(part)
            weight = 0.5 if part in _GENERIC else 2.0 if owner else 1.0
            weights.update((gram, weight / len(grams)) for gram in grams)
    return tuple(Word(word, weight) for word, weight in weights.items())


def _parts(run: str) -> Iterator[tuple[str, bool]]:
    """Splits the run at function words; each part says whether it owns the next one (`X 的 Y`)."""
    start = 0
    for stop in _CJK_STOP.finditer(run):
        if stop.start() > start:
            yield run[start : stop.start()], stop.group() in ("的", "の")
        start = stop.end()
    if start < len(run):
        yield run[start:], False


def _entities(text: str) -> set[str]:
    """Stems of names (a capital inside the sentence), identifiers, numbers and possessives."""
    stems: set[str] = set()
    for match in _WORD.finditer(text):
        raw = match.group()
        first = not text[: match.start()].strip(" \"'(“")
        owner_or_joined = re.search(r"['’]s$|\w[-_]\w", raw) is not None
        shaped = owner_or_joined or any(character.isdigit() for character in raw)
        if shaped or (raw[0].isupper() and not first) or (len(raw) > 1 and raw.isupper()):
            stems.add(stem(raw))
    return stems


def flatten_json(value: Any, path: str = "") -> Iterator[str]:
    """Returns each innermost record as one `key: value, key: value` sentence, and long texts as their own sentences."""
    if isinstance(value, Mapping):
        yield from _flatten_record(as_mapping(value), path)
    elif isinstance(value, list):
        entries = as_list(value)
        if entries and not any(isinstance(item, (Mapping, list)) for item in entries):
            yield path + ", ".join(str(item) for item in entries)
        else:
            for item in entries:
                yield from flatten_json(item, path)
    else:
        yield from sentences(f"{path}{value}")


def _flatten_record(record: Mapping[str, Any], path: str) -> Iterator[str]:
    scalars: list[str] = []
    for key, item in record.items():
        if isinstance(item, str) and (len(item) > 200 or len(sentences(item)) > 1):
            yield from sentences(item)
        elif not isinstance(item, (Mapping, list)):
            scalars.append(f"{key}: {item if isinstance(item, str) else json.dumps(item)}")
    if scalars:
        yield path + ", ".join(scalars)
    inside = f"{path}{scalars[0]}, " if scalars else path  # mostly an id or a name: what the parts belong to
    for key, item in record.items():
        if isinstance(item, (Mapping, list)):
            yield from flatten_json(item, f"{inside}{key}: ")


_GENERIC_STEMS = frozenset(stem(word) for word in _GENERIC if word.isascii())


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
    found: list[str] = []
    texts = [content_text(message.get("content"))]
    texts += [str(as_mapping(call.get("function")).get("arguments", "")) for call in calls_of(message)]
    for text in texts:
        try:
            parsed = read_json(text) if text.lstrip()[:1] in ("{", "[") else None
        except (ValueError, RecursionError):
            parsed = None
        found += sentences(text) if parsed is None else flatten_json(parsed)
    return found


def question_of(messages: Sequence[Mapping[str, Any]]) -> tuple[int, str] | None:
    """Returns the position of the newest unanswered question and its sentence; None when there is none.

    All user messages since the last plain assistant message count, so that a note sent after the question does not hide it.
    """
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        if message.get("role") == "assistant" and not message.get("tool_calls"):
            break
        if message.get("role") == "user":
            read = sentences(content_text(message.get("content")))
            questions = [sentence for sentence in read if is_question(sentence)]
            if questions:
                return index, questions[-1]
    return None


def _same(text: str) -> str:
    return re.sub(r"\W+", " ", unlabelled(text)).strip().lower()


_UNKNOWN_SAME = frozenset(_same(text) for text in UNKNOWN)


def _statement(sentence: str) -> str | None:
    """Returns the part of a sentence that states something: of a question, the words before its last comma."""
    if not is_question(sentence):
        return sentence
    cut = max(sentence.rfind(mark) for mark in (", ", "; ", "，", "；"))
    before = sentence[:cut].strip() if cut > 0 else ""
    return before if before and not is_question(before) else None


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
            own = words(text)
            # "Her number is 12." speaks of whom the sentence before names
            carried = before - own if _PRONOUN.match(unlabelled(text)) else frozenset[str]()
            statements.append(Sentence(text, index, str(message.get("role", "")), own, carried))
            before = own
    return statements


def answer(messages: Sequence[Mapping[str, Any]], *, without: int, question: str) -> Answer:
    """Returns the sentence with most of the question's content words, rare ones first; the newest of equal ones."""
    read = candidates(messages, without=without, question=question)
    unknown = UNKNOWN[is_chinese(question)]
    asked = query(question)
    spread = Counter(word for sentence in read for word in sentence.words)
    # by inverse document frequency; a word found nowhere weighs a quarter more than one found once
    rare = {w.text: math.log((len(read) + 2) / (spread[w.text] + 0.5)) for w in asked if spread[w.text]}
    weights = {w.text: w.weight * rare.get(w.text, 1.25 * math.log((len(read) + 2) / 1.5)) for w in asked}
    total = sum(weights.values())
    best, best_score = None, 0.0
    question_words = words(question) if asks_for_more(question) else frozenset[str]()
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
    return Answer(unlabelled(best.text) if best else unknown, best, best_score, len(read))


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
    bare = unlabelled(sentence)
    if is_question(bare) or _same(bare) in _UNKNOWN_SAME:
        return 0.0
    identifiers = sum(_is_identifier(token) for token in _TOKEN.findall(bare))
    marks = min(len(_NUMBER.findall(bare)), 3) + 2 * min(identifiers, 2)
    return (
        marks
        + min(len(_NAME.findall(bare)), 3)
        + bool(_MONTH.search(bare))
        + 2 * bool(_PREFERENCE.search(bare))
        + 2 * bool(_NEGATION.search(bare))
        + 0.1 * min(len(words(bare)), 10)
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
