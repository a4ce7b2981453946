"""Splits text into terms and sentences: one tokenizer for search, recall and extractive summaries, on every store."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from ctxfold.lru import lazy_pattern
from ctxfold.validation import check_text

LONG_LINE_CHARS = 2_000  # a longer run without the end of a sentence is gone through in stretches
MAX_JSON_CHARS = 200_000  # longer JSON is split as text
LEAST_ROWS = 3  # lines with equal columns that make a table
WHOLE_OBJECT_CHARS = 1_000  # a JSON object up to this length is one record
MAX_TERM_CHARS = 256  # a longer word is data; it is found by its beginning
LONGEST_NAME = 64  # characters of a name that is split into its words
LEAST_MEAN_CHARS = 3  # of the words of a name, on average; base64 has shorter ones
WORD_CHARS, REMEMBERED_TOKENS = 24, 16_384  # the terms of so many tokens up to this length are remembered
WINDOW_CHARS = 100_000  # that one call of a regular expression goes through: it holds the interpreter until it returns
ENDING_CHARS = 100  # of the end of a sentence and of what follows it, which may show that it ends none
# from here on most tokens have been there before: they are counted before they are split into terms
LONG_TEXT_CHARS = 20_000

CJK = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
_TOKEN = lazy_pattern(rf"[{CJK}]+|[^\W_{CJK}]+(?:[-_.@/:][^\W_{CJK}]+)*")
_IS_CJK = lazy_pattern(f"[{CJK}]")
_ESCAPED = lazy_pattern(rf"\\([nrt])([^\W_{CJK}]+)")  # in JSON, the word after the end of a line: a "\n" before "zebra"
_CODE_POINT = lazy_pattern(r"\\u([0-9a-fA-F]{4})")
_PIECE = lazy_pattern(r"[-_.@/:]")
_PROSE = lazy_pattern(r"[.!?]\s|,\s+(?:and|but|so|which)\b")
_RULE = lazy_pattern(r"[\s|:+=-]*")  # the line under a table's header
_HUMP = lazy_pattern(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")  # between the words of "parseHTTPHeader"
_VOWEL = lazy_pattern(r"[aeiou]|(?<!^)y")
_LACKS_E = lazy_pattern(r"[^aeiou]?[aeiouy][^aeiouwxy]")  # what is left of "moved" or "using"
# a time, a name or a heading, if any
_BEFORE_JSON = lazy_pattern(r"(?:\[[^\]\n]{1,48}\] ?)?(?:[^\n{\[]{1,80}:\s)?(?=[{\[])")
# the full stop of an ordinal number ends no sentence: "vom 9. bis zum 20. August"
_ORDINAL_GOES_ON = (
    r"(?:(?<=\b\d\.\s)|(?<=\b\d\d\.\s))\s*(?:(?i:Jan(?:uar)?|Jänner|Feb(?:ruar)?|März|Mar[st]s?|Apr(?:il)?|Ma[ij]|Jun[ij]?|Jul[ij]?"
    r"|Aug(?:ust)?|Sept?(?:ember)?|Okt(?:ober)?|Nov(?:ember)?|De[cszk](?:ember)?)\b|(?:bis|auf|und|oder|zum|ist|sind|noch|schon"
    r"|dieses|diesen|kommenden|habe|haben)\b)"
)
# begins with what it consumes, which a search finds at once
_ASCII_END = rf"[\s,](?:(?<=[.!?;]\s)(?!{_ORDINAL_GOES_ON})\s*|(?<=\n)\n*|(?<=[}}\]],)\s*)"
_SENTENCE_END = lazy_pattern(rf"(?<=[。！？；])|{_ASCII_END}")
_SENTENCE_END_IN_ASCII = lazy_pattern(_ASCII_END)
# of stop words; what is left of one would be a term of its own: "s", or "didn" and "t"
_SHORT_FORM = lazy_pattern(
    r"\b(?:are|could|did|do|does|had|has|have|is|should|was|were|would|ca|wo)n['’]t\b|['’](?:d|ll|m|re|s|ve)\b", re.I
)

STOP_WORDS = frozenset(
    """
    a about after all also am an and any are as at be been before but by can could did do does done for from get had has have
    he her him his how i if in into is it its just let me my no not now of on one or our out over please shall she should so
    some such than that the their them then there these they this those to too up us was we were what when where which who
    whom whose why will with would you your
    """.split()  # noqa: SIM905 - a list would be ten times as long
)

# of German, French and Spanish, without those that are English words too
_FUNCTION_WORDS = frozenset(
    """
    wer wen wem wessen wo woher wohin worauf womit woran wofür wovon wodurch warum weshalb wieso wann wie wieviel wieviele
    welche welchem welchen welcher welches der das dem den ein eine einem einen einer eines und oder ist sind waren wird
    werden wurde wurden haben hatte hatten bei beim auf aus nach von vom zu zum zur für über unter als sich er sie ihr
    ihre ihrem ihren ihrer ihm ihn ich wir uns mich mir dich dir mein meine meinem meinen meiner dein deine sein seine seinem
    seinen seiner nicht kein keine keinen auch noch schon dass qui que quoi quel quelle quels quelles où quand
    pourquoi combien est sont était étaient ont avait avaient le les un une de au aux ou dans avec se sa ses ce cette ces il
    elle ils elles je tu nous vous ne pas qué quién quiénes cuál cuáles dónde cuándo cómo cuánto cuánta cuántos cuántas por
    para del el los las una en al su sus era fue había lo nos
    """.split()  # noqa: SIM905 - a list would be ten times as long
)
_ALSO_ENGLISH = frozenset(
    """
    am an as comment con des die du es et hat im in la me mit on par pour so son um war was
    """.split()  # noqa: SIM905 - a list would be ten times as long
)
_LEFT_OUT = _FUNCTION_WORDS | _ALSO_ENGLISH
LEAST_FUNCTION_WORDS = 2  # that tell of which language a query is
# not a piece of an identifier, such as "un.py" or "el_paso"
_LETTERS = lazy_pattern(r"(?<![\w./])[^\W\d_]++(?!\w|[./]\w)")
_ASKS_CJK = lazy_pattern(
    "(?:为什么|什么时候|什么|怎么样|怎么|哪里|哪儿|哪些|哪个|哪天|哪|多少|谁|吗|呢|(?<![但可还要只于])是|(?<!目)的(?!确)|了(?!解))+"
)


def terms(text: str) -> Iterator[str]:
    """Returns the search terms in order: lower-case words without stop words, lightly stemmed; identifiers whole and in pieces;
    Chinese, Japanese and Korean as overlapping pairs of characters (a lone character as itself). Escapes of JSON are resolved: the
    word behind `\\n` counts with the "n" and without, since `C:\\new` is a path."""
    return chain.from_iterable(map(_terms_by_token.__getitem__, _tokens(text)))


def _tokens(text: str) -> Iterable[str]:
    if len(text) > WINDOW_CHARS:
        return chain.from_iterable(map(_tokens, _windows(text)))
    if "\\" in text:
        text = _ESCAPED.sub(r" \1\2 \2", _CODE_POINT.sub(lambda escape: chr(int(escape[1], 16)), text))
    if "İ" in text:  # in lower case it is two characters, and the second one parts words
        text = text.replace("İ", "i\u0307")
    return _TOKEN.findall(text)


def _windows(text: str) -> Iterator[str]:
    """Yields the text in pieces of limited length that end between two words, where there are any: see `stretches`."""
    start = 0
    while len(text) - start > WINDOW_CHARS:
        limit = start + WINDOW_CHARS
        gap = max(text.rfind(sign, start + WINDOW_CHARS // 2, limit) for sign in ' \n\t,"')
        end = gap + 1 or limit
        yield text[start:end]
        start = end
    yield text[start:]


def _terms_of(token: str) -> tuple[str, ...]:
    word = token.lower()
    if word.isascii() and word.isalnum():  # most are
        if word in STOP_WORDS:
            return ()
        whole = word[:MAX_TERM_CHARS] if len(word) > MAX_TERM_CHARS else _stem(word)
        return (whole, *_words_within(token)) if word[1:] != token[1:] else (whole,)
    if _IS_CJK.match(word):
        return tuple(word[i : i + 2] for i in range(max(1, len(word) - 1)))
    pieces = _PIECE.split(token)
    terms = [word[:MAX_TERM_CHARS]] if len(pieces) > 1 else []
    for piece in pieces:
        if (lower := piece.lower()) not in STOP_WORDS:
            terms.append(_stem(lower[:MAX_TERM_CHARS]))
        terms += _words_within(piece)
    return tuple(terms)


def _words_within(name: str) -> Iterator[str]:
    """Yields the terms of the words of a name such as "parseHTTPHeader"; none where they are so short that it may be data."""
    words = _HUMP.split(name) if len(name) <= LONGEST_NAME else []
    if 1 < len(words) <= len(name) / LEAST_MEAN_CHARS:
        for word in words:
            if len(word) > 1 and (lower := word.lower()) not in STOP_WORDS:
                yield _stem(lower)


class _TermsByToken(dict[str, tuple[str, ...]]):
    """Remembers the terms of short tokens. A dictionary, as a hit takes a third of the time of one of `lru_cache`."""

    def __missing__(self, token: str) -> tuple[str, ...]:
        found = _terms_of(token)
        if len(token) <= WORD_CHARS:
            if len(self) >= REMEMBERED_TOKENS:
                self.clear()
            self[token] = found
        return found


_terms_by_token = _TermsByToken()


def term_counts(text: str) -> Counter[str]:
    """Returns how often each term occurs, in the order of the first occurrences."""
    if len(text) < LONG_TEXT_CHARS:
        return Counter(terms(text))
    counts = Counter[str]()
    for token, times in Counter(_tokens(text)).items():
        for term in _terms_by_token[token]:
            counts[term] += times
    return counts


def query_terms(query: str, *, function_words: bool = False) -> tuple[str, ...]:
    """Returns the terms that a query searches for, each once; short forms of stop words, as in "what's" and "didn't", have none.

    Nor have the words that only ask or join in German, French, Spanish and Chinese, unless there are no others, or with
    `function_words`.
    """
    check_text("the query", query)
    shortened = _SHORT_FORM.sub(" ", query)
    other_words = shortened if function_words else _without_function_words(shortened)
    return tuple(term_counts(other_words)) or tuple(term_counts(shortened))


def _without_function_words(query: str) -> str:
    """Returns a query without function words of other languages, where it has two of them or more, and fewer English ones.

    Words that begin with a capital letter, as in "El Al" and "Los Angeles", tell of no language, other than the first one.
    """
    query = _ASKS_CJK.sub(" ", query) if _IS_CJK.search(query) else query
    first, *others = _LETTERS.findall(query) or [""]
    words = {first.lower(), *filter(str.islower, others)}
    certain, both = len(words & _FUNCTION_WORDS), len(words & _ALSO_ENGLISH)
    english = len((words & STOP_WORDS) - _ALSO_ENGLISH)
    if certain <= english or certain + both < LEAST_FUNCTION_WORDS:
        return query
    return _LETTERS.sub(lambda m: " " if m[0].lower() in _LEFT_OUT else m[0], query)


def sentences(text: str) -> list[str]:
    """Returns the text's sentences and lines, stripped, without empty ones; JSON arrays are split at their elements.

    What goes on for more than `LONG_LINE_CHARS` comes in stretches, so that no sentence takes long to look at.
    """
    end = _SENTENCE_END_IN_ASCII if text.isascii() else _SENTENCE_END
    parts = map(str.strip, end.split(text) if len(text) <= WINDOW_CHARS else _split_sentences(text, end))
    return [s for part in parts for s in ((part,) if len(part) <= LONG_LINE_CHARS else stretches(part)) if s]


def _split_sentences(text: str, sentence_end: re.Pattern[str]) -> Iterator[str]:
    """Yields what `sentence_end.split` returns, empty texts aside, without a search through all of the text at once."""
    start = searched = 0
    while searched < len(text):
        limit = searched + WINDOW_CHARS
        sure = limit - ENDING_CHARS if limit < len(text) else limit  # too little is seen of what follows a later end
        for end in sentence_end.finditer(text, searched, limit):
            if end.start() >= sure:
                break
            yield text[start : end.start()]
            start = end.end()
        searched = max(sure, start)
    yield text[start:]


def records(text: str) -> list[str]:
    """Returns the sentences of prose, the elements of a JSON list, and the rows of a table, each with the table's header.

    A JSON object of more than `WHOLE_OBJECT_CHARS` is split at its longest list; what stands beside that list is a record of its
    own. A name or a heading may stand before JSON. Empty for an empty text.
    """
    stripped = text.strip() if len(text) <= MAX_JSON_CHARS else ""
    if (before := _BEFORE_JSON.match(stripped)) is not None:
        try:
            value: object = json.loads(stripped[before.end() :])
        except (ValueError, RecursionError):
            value = None
        whole = isinstance(value, dict) and len(text) <= WHOLE_OBJECT_CHARS
        if json_records := [_dumped(value)] if whole else _json_records(value):
            return [f"{before[0]}{json_records[0]}", *json_records[1:]]
    lines = text.split("\n")
    separator = _column_separator(lines)
    if separator is None:
        return sentences(text)
    parts: list[str] = []
    start = 0
    while start < len(lines):
        end = _table_end(lines, start, separator)
        if _is_table(lines[start:end], separator):
            header = lines[start].strip()
            rows = (line.strip() for line in lines[start + 1 : end] if not _RULE.fullmatch(line))
            parts += [f"{header}\n{row}"[:LONG_LINE_CHARS] for row in rows]
        else:
            end = max(end, start + 1)
            parts += sentences("\n".join(lines[start:end]))
        start = end
    return parts


def _json_records(value: Any) -> list[str]:
    """Returns the elements of a list, or of the longest list in an object, after what stands beside that; else nothing."""
    if isinstance(value, list):
        elements: list[Any] = [*value]  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        return [piece for each in elements for piece in stretches(_dumped(each))]
    if not isinstance(value, dict):
        return []
    members: dict[str, Any] = {**value}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    lists = [name for name, member in members.items() if isinstance(member, list)]
    if not lists:
        return []
    longest = max(lists, key=lambda name: len(members[name]))
    common = {name: member for name, member in members.items() if name != longest}
    return [*([_dumped(common)] if common else []), *_json_records(members[longest])]


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _column_separator(lines: Sequence[str]) -> str | None:
    """Returns the sign between the columns of a table that the lines hold, None without a table."""
    for separator in "|\t,":
        starts = _table_starts(lines, separator)
        if any(_is_table(lines[start : _table_end(lines, start, separator)], separator) for start in starts):
            return separator
    return None


def _is_table(lines: Sequence[str], separator: str) -> bool:
    """Tells whether these lines are a table: a sign before each line, as a quote or an indent, separates nothing, and neither does
    the one tab between the number of a line and the line."""
    if len(lines) < LEAST_ROWS:
        return False
    number, _, line = lines[0].partition("\t")
    if separator == "\t" and number.strip().isdecimal() and "\t" not in line.strip():
        return False
    around = f" {separator}"
    return any(separator in line.strip(around) for line in lines)


def _table_starts(lines: Sequence[str], separator: str) -> Iterator[int]:
    columns = [line.count(separator) for line in lines]
    return (i for i in range(len(lines)) if columns[i] and (i == 0 or columns[i - 1] != columns[i]))


def _table_end(lines: Sequence[str], start: int, separator: str) -> int:
    """Returns where the lines end that have as many separators as the first of them, at least two where it is a comma."""
    columns = lines[start].count(separator)
    end = start
    if columns >= (2 if separator == "," else 1):
        while end < len(lines) and lines[end].count(separator) == columns and not _PROSE.search(lines[end]):
            end += 1
    return end


def stretches(text: str, max_chars: int = LONG_LINE_CHARS) -> Iterator[str]:
    """Returns the text in pieces of limited length, cut at white space where the second half of a piece has some.

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


def _stem(word: str) -> str:
    """Returns what the forms of an English word have in common: of "plans", "planned" and "planning" it is "plan".

    These are the rules for plurals, "-ed" and "-ing" of Porter's stemmer (https://tartarus.org/martin/PorterStemmer/), so that
    a word of any other language stays nearly as it is.
    """
    if not word.isascii() or not word.isalpha() or len(word) < 4:
        return word
    if word.endswith("ies") and len(word) > 4:
        return f"{word[:-3]}y"
    if word.endswith("s") and not word.endswith("ss"):
        word = word[:-2] if word.endswith(("xes", "ches", "shes", "sses", "zzes")) else word[:-1]
    return _without_verb_ending(word)


def _without_verb_ending(word: str) -> str:
    """Returns a word without "-ed" and "-ing", as often as it ends with one: "embedding" and "embed" become the same term."""
    while len(word) > 3 and (shorter := _without_one_ending(word)) != word:
        word = shorter
    return word


def _without_one_ending(word: str) -> str:
    if word.endswith(("reed", "teed")) and _VOWEL.search(word[:-3]):  # agreed, guaranteed; not need, freed
        word = word[:-1]
    ending = "ing" if word.endswith("ing") else "ed" if word.endswith("ed") and not word.endswith("eed") else ""
    stem = word.removesuffix(ending)
    if not ending or len(stem) < 2 or not _VOWEL.search(stem):
        return _without_e(word)
    if ending == "ed" and stem.endswith("i"):  # tried; died
        return f"{stem[:-1]}y" if len(stem) > 2 else f"{stem}e"
    return f"{stem}e" if _LACKS_E.fullmatch(stem) else _without_e(stem)


def _without_e(stem: str) -> str:
    """Returns a stem without a last "e", and with one consonant in place of two at its end: "hous", "plan"."""
    stem = stem.rstrip("e") if len(stem) > 4 else stem
    doubled = len(stem) > 3 and stem[-1] == stem[-2] and stem[-1] not in "aeiosfz"
    return stem[:-1] if doubled and (stem[-1] != "l" or len(stem) > 5) else stem
