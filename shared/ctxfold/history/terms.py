"""Text as terms and sentences: one tokenizer for search, recall and extractive summaries, on every store."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache

__all__ = ["STOP_WORDS", "sentences", "term_counts", "terms"]

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
        if token.isascii() and token.isalnum():  # most are
            if token not in STOP_WORDS:
                yield _stem(token)
            continue
        if _IS_CJK.match(token):
            yield from (token[i : i + 2] for i in range(max(1, len(token) - 1)))
            continue
        pieces = _PIECE.split(token)
        if len(pieces) > 1:
            yield token
        yield from (_stem(p) for p in pieces if p not in STOP_WORDS)


def term_counts(text: str) -> Counter[str]:
    """How often each term occurs."""
    return Counter(terms(text))


def sentences(text: str) -> list[str]:
    """The text's sentences and lines, stripped, without empty ones; JSON arrays fall apart at their elements."""
    return [s for s in (part.strip() for part in _SENTENCE_END.split(text)) if s]


@lru_cache(maxsize=65_536)
def _stem(word: str) -> str:
    if not word.isascii() or not word.isalpha() or len(word) < 4:
        return word
    for ending, least in (("ies", 3), ("ing", 4), ("ed", 4), ("es", 4), ("s", 3)):
        if word.endswith(ending) and len(word) - len(ending) >= least and not word.endswith("ss"):
            stem = word[: -len(ending)]
            return stem + "y" if ending == "ies" else stem.rstrip("e") if ending == "es" else stem
    return word.rstrip("e") if len(word) > 4 else word
