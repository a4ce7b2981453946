"""Text as terms and sentences: one tokenizer for search, recall and extractive summaries, on every store."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache

__all__ = ["LONG_LINE_CHARS", "STOP_WORDS", "sentences", "stretches", "term_counts", "terms"]

LONG_LINE_CHARS = 2_000  # a longer run without the end of a sentence is gone through in stretches
MAX_TERM_CHARS = 256  # a longer word is data; it is found by its beginning

_CJK = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
_TOKEN = re.compile(rf"[{_CJK}]+|[^\W_{_CJK}]+(?:[-_.@/:][^\W_{_CJK}]+)*")
_IS_CJK = re.compile(f"[{_CJK}]")
_PIECE = re.compile(r"[-_.@/:]")
_SENTENCE_END = re.compile(r"(?<=[.!?;])\s+|(?<=[。！？；])|\n+|(?<=[}\]]),\s*")

STOP_WORDS = frozenset(
    [
        "a",
        "about",
        "after",
        "all",
        "also",
        "am",
        "an",
        "and",
        "any",
        "are",
        "as",
        "at",
        "be",
        "been",
        "before",
        "but",
        "by",
        "can",
        "could",
        "did",
        "do",
        "does",
        "done",
        "for",
        "from",
        "get",
        "had",
        "has",
        "have",
        "he",
        "her",
        "him",
        "his",
        "how",
        "i",
        "if",
        "in",
        "into",
        "is",
        "it",
        "its",
        "just",
        "let",
        "me",
        "my",
        "no",
        "not",
        "now",
        "of",
        "on",
        "one",
        "or",
        "our",
        "out",
        "over",
        "please",
        "shall",
        "she",
        "should",
        "so",
        "some",
        "such",
        "than",
        "that",
        "the",
        "their",
        "them",
        "then",
        "there",
        "these",
        "they",
        "this",
        "those",
        "to",
        "too",
        "up",
        "us",
        "was",
        "we",
        "were",
        "what",
        "when",
        "where",
        "which",
        "who",
        "whom",
        "whose",
        "why",
        "will",
        "with",
        "would",
        "you",
        "your",
    ]
)


def terms(text: str) -> Iterator[str]:
    """Search terms in order: lower-case words without stop words, lightly stemmed; identifiers whole and in pieces;
    Chinese, Japanese and Korean as overlapping pairs of characters (a lone character as itself)."""
    for match in _TOKEN.finditer(text.lower()):
        token: str = match.group()
        long = len(token) > MAX_TERM_CHARS
        if token.isascii() and token.isalnum():  # most are
            if token not in STOP_WORDS:
                yield token[:MAX_TERM_CHARS] if long else _stem(token)
            continue
        if _IS_CJK.match(token):
            yield from (token[i : i + 2] for i in range(max(1, len(token) - 1)))
            continue
        pieces = _PIECE.split(token)
        if len(pieces) > 1:
            yield token[:MAX_TERM_CHARS]
        yield from (_stem(p[:MAX_TERM_CHARS]) for p in pieces if p not in STOP_WORDS)


def term_counts(text: str) -> Counter[str]:
    """How often each term occurs."""
    return Counter(terms(text))


def sentences(text: str) -> list[str]:
    """The text's sentences and lines, stripped, without empty ones; JSON arrays fall apart at their elements.

    What goes on for more than `LONG_LINE_CHARS` comes in stretches, so that no sentence takes long to look at.
    """
    parts = (part.strip() for part in _SENTENCE_END.split(text))
    return [s for part in parts for s in ((part,) if len(part) <= LONG_LINE_CHARS else stretches(part)) if s]


def stretches(text: str, max_chars: int = LONG_LINE_CHARS) -> Iterator[str]:
    """The text in pieces of at most so many characters, cut at white space where the second half of a piece has some.

    One call of a regular expression holds the interpreter until it returns: a megabyte at once would stop every thread.
    """
    start = 0
    while len(text) - start > max_chars:
        limit = start + max_chars
        gap = max(text.rfind(sign, start + max_chars // 2, limit) for sign in " \n\t")
        end = gap + 1 or limit
        yield text[start:end].strip()
        start = end
    yield text[start:].strip()


@lru_cache(maxsize=65_536)
def _stem(word: str) -> str:
    if not word.isascii() or not word.isalpha() or len(word) < 4:
        return word
    for ending, least in (("ies", 3), ("ing", 4), ("ed", 4), ("es", 4), ("s", 3)):
        if word.endswith(ending) and len(word) - len(ending) >= least and not word.endswith("ss"):
            stem = word[: -len(ending)]
            return stem + "y" if ending == "ies" else stem.rstrip("e") if ending == "es" else stem
    return word.rstrip("e") if len(word) > 4 else word
