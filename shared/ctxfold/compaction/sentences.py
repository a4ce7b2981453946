"""Splits text into sentences, and tells of each whether it is whole and clear, and whether it is a rule, a wish or a decision."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from ctxfold.history.terms import CJK, DATE_GOES_ON, stretches, terms

MAX_CHARS = 220  # of a statement; of a longer sentence the clauses with a subject stand alone
MIN_WORDS = 3
MAX_HESITATIONS = 2  # repeated words, broken words and "uh" that make a sentence hard to read
MAX_NAMED = 2  # content words of a sentence with "it" that says nothing without the one before
MAX_WISH_CHARS = 90  # of a sentence that states a preference; longer ones tell a story
MAX_TRAILING_CHARS = 8  # of the word that a sentence breaks off with
# patterns of lower-case words without `re.I` are searched in `lowered` text
_END = re.compile(r"(?<=[.!?…])[\"'”’)\]*]*\s+(?=\S)|(?<=[。！？；])\s*(?=\S)")
# the number of a heading or an item, at the beginning or behind a colon
_NUMBER_ALONE = re.compile(r"(?:^|:\s)\W{0,4}\d{1,3}\.$")
NUMBER_CHARS = 12  # in which it is looked for
_NOTE = re.compile(rf"\[[^\W\d_][^\[\]\n]{{0,{MAX_CHARS}}}\]")  # such as "[Ben sits down. He waits.]"
_ABBREVIATED = re.compile(r"(?:^|[\s(])(?:Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|vs|e\.g|i\.e|Nr|approx|ca|cf|[A-Z])\.$")
_WORD = re.compile(r"[^\W_]+(?:['’][^\W\d_]+)?")
_IS_CJK = re.compile(f"[{CJK}]")
_SPACE_BEFORE = re.compile(r" ([.,!?;])(?= |$)")
_TWO_SIGNS = re.compile(r"[;,:!?.]\s*[;,:!?.]")
_DOUBLED = re.compile(r"([;,:!?])(?:\s*\1)+(?=\s|$)|(?<=\w)\s*\.(?:\s*\.)+(?=\s|$)")
_NEEDS_PREVIOUS = re.compile(
    r"(?:he|she|it|they|his|hers?|its|theirs?|him|them|mine|yours|ours|this|that|these|those|both|so does|same)\b"
    r"(?!\s+(?:is|was)\s+why)",
    re.I,
)
_POINTS_BACK = re.compile(
    r"\b(?:it|them|ones?)(?:\s*[.!…]*$|\s?[—–;])"
    r"|\b(?:it|them) (?:out|up|down|on|off|in|into|to|by|before|after|until|till|from|with|for|at|there|here|too|again|now)\b"
)
_STOP = r"(?=\s*(?:[^\w\s]|$))"  # nothing, or a sign, follows
# "Make that a rule.", "I meant it!" and "Scratch that itch" take nothing back
_CORRECTS = re.compile(
    r"(?:(?:oh|ah|hmm|oops|argh|ok|okay|no|sorry)\b[\s,.!]*)*"
    r"(?:(?:no|sorry)\W+wait\b(?!\s(?:times?|lists?|for|until|till)\b)"
    r"|wait\W+no\b(?!\s(?:one|more|longer|problem|matter|way|idea)\b)"
    rf"|(?:scratch|strike) that\b(?:{_STOP}|(?=\s(?:I|we|you|he|she|it|they|there|the|my|our|let|make)\b))"
    rf"|(?:correction|my mistake)\b{_STOP}"
    rf"|I meant\b(?!\s(?:to (?!say|write|type)|what I|every word)|\sit{_STOP})"
    r"|make that\b(?=\s(?:(?:the|on|at|for|about|around|next|by) )?(?:[^\w\s]?\d|(?-i:[A-Z])[\w-]++\s*(?:[^\w\s]|$)"
    r"|(?:two|three|four|five|six|seven|eight|nine|ten|twelve|half|quarter|noon|midnight|tomorrow|tonight"
    r"|(?:mon|tues|wednes|thurs|fri|satur|sun)day)\b)))",
    re.I,
)
_VERBS = re.compile(
    r"(?<![\w-])(?:am|is|are|was|were|be|been|has|have|had|do|does|did|can|could|will|would|shall|should|may|might|must|isn"
    r"|aren"
    r"|wasn|weren|don|doesn|didn|can|couldn|won|wouldn|shouldn|haven|hasn|hadn|gets?|got|goes|go|went|makes?|made|takes?"
    r"|took|comes?|came"
    r"|says?|said|sees?|saw|knows?|knew|thinks?|thought|wants?|needs?|likes?|loves?|hates?|prefers?|lives?|works?|uses?"
    r"|keeps?|kept|holds?|held"
    r"|owns?|owes?|costs?|pays?|paid|buys?|bought|sells?|sold|gives?|gave|finds?|found|tells?|told|asks?|calls?|tries|try"
    r"|leaves?|left|puts?"
    r"|means?|meant|lets?|begins?|began|seems?|helps?|shows?|hears?|heard|plays?|runs?|ran|moves?|believes?|brings?|brought"
    r"|happens?|writes?"
    r"|wrote|sits?|sat|stands?|stood|loses?|lost|meets?|met|includes?|sets?|learns?|changes?|leads?|led|understands?"
    r"|understood|watch(?:es)?"
    r"|follows?|stops?|creates?|speaks?|spoke|reads?|spends?|spent|grows?|grew|opens?|walks?|wins?|won|offers?|remembers?"
    r"|appears?|adds?"
    r"|fails?|works?|returns?|expects?|builds?|built|stays?|falls?|fell|cuts?|reaches?|kills?|remains?|sends?|sent|books?"
    r"|flies|fly|flew"
    r"|starts?|ends?|lasts?|weighs?|contains?|requires?|supports?|detects?|mounts?|installs?|boots?|connects?|allergic"
    r"|feels?|felt|drives?|drove"
    r"|arrives?|departs?|belongs?|equals?|amounts?|expires?|depends?|checks?|looks?|turns?|throws?|matters?|agrees?"
    r"|decides?|chose|chooses?"
    r"|never|always|avoid|please|remember|ensure)(?![\w-])|['’](?:m|re|s|ve|ll|d|t)(?!\w)|(?<=\w)n['’]t|(?:(?<=\s)|^(?=\w+ed\b))\w{2,}(?:ed"
    r"|ing)(?!\w|[@/.-]\w)"
)
_SUBJECT = re.compile(
    r"(?:I|we|you|he|she|it|they|there|this|that|these|those|my|our|the|a|an|your|his|her|their)\b|[A-Z]", re.I
)
_TRAILING = re.compile(  # a letter behind a number is a unit
    r"(?:[,\-–—:({\[]|\b(?:and|or|but|the|a|an|to|of|if|that|because|with|(?<!\bit\s)(?:is|was)|I|where|when|which|who|whose|than|into|so"
    r"|my|our|your|their|every|very)|(?<!\d)\s(?-i:[c-hjlmo-qstvw]))\s*[.…]*$",
    re.I,
)
_FILLERS = ("uh", "um", "uhm", "er", "erm", "eh", "mm", "hmm", "yeah")
_TRAILING_FILLER = re.compile(rf"(?<![\s,.])(?:[\s,.]+(?:{'|'.join(_FILLERS)}))+[\s,.!…]*$", re.I)
_NOISE = re.compile(r"\{[a-z]+\}", re.I)  # of a transcript
_BROKEN_OFF = re.compile(r"\{(?:disfmarker|gap)\}", re.I)
_OPEN_QUOTE = re.compile(r"^[\"”][\s,.]*|(?<!\s)\s*[\"“]$")
_FILLER = re.compile(
    r"^(?:(?:ok(?:ay)?|yes|yeah|yep|no|nope|well|so|um|uh|hmm?|mm|oh|ah|right|sure|alright|cool|thanks|thank you|great|hi"
    r"|hey|hello)\b[\s,.!]*)+",
    re.I,
)
_OPENER = re.compile(
    r"^(?:(?:by the way|anyway|also|oh|ah|hmm|well|so|and|but|now|ok(?:ay)?|yes|yeah|actually|basically|i mean|you know|you see"
    r"|like i said"
    r"|as i said|speaking of which|on another note|for the record|fyi|btw|just so you know)\b[\s,.:]+)+(?=\S)",
    re.I,
)
_SUBORDINATE = re.compile(
    r"[\"'“]*\s*(?:because|cuz|that|which|to|with|than|of|like|and that|so that)\b(?!['’])(?! (?:is|was|are|means|said|one)\b)",
    re.I,
)
_HESITATION = re.compile(  # also a letter of a word that breaks off, and a sentence that begins anew without an end
    r"\b(?=\w)(?:(?:uhm?|erm|h?mm)\b|(\w++)(?:\s+\1\b| - (?=[A-Z]))|(?<!['’.-])(?<!\d\s)(?-i:[d-hjlmo-qstvw])(?= )"
    r"|(?<=(?-i:[a-z]) )(?-i:And|But|If|It|We|You|They|That|This|Yeah|Oh|Well|So|Or|He|She|What|Because)(?= ))",
    re.I,
)
_DASHES = re.compile(r"^(?:-\s+)+")
# "um" is a word of other languages
_ENGLISH = re.compile(r"\b(?:the|and|but|you|that|it|what|people|have|with|is|are)\b")
_OTHER_LANGUAGES = re.compile(  # function words of German, French, Spanish, Italian, Portuguese and Dutch
    r"\b(?:der|die|das|und|ist|nicht|ich|wir|ein|eine|mit|dem|den|le|la|les|et|est|je|nous|vous|une|des|dans|pour|el|los"
    r"|las|es|yo|una|con|para|por|que|il|lo|gli|sono|non|não|eu|uma|os|het|een|ik|niet|van)\b"
)
_UHS = re.compile(r"(?:(?<=\s)|^)(?:uh|um|uhm|erm)\b[,.]?\s+|,?\s(?:uh|um|uhm|erm)(?=\s*[,.!?…]*$)", re.I)
_STUTTER = re.compile(
    r"\b(?=[taiwyos])(the|a|an|I|we|you|they|it|is|to|of|and|in|if|this|so)(?:,?(?:\s-)?\s+\1)+\b", re.I
)
_CLAUSES = re.compile(
    r"(?:;\s+|\s[—–-]+\s|—|,\s+(?:and|but|so|because|which|while|although|though|as|since|especially|even though)\s+(?=\S))"
)
_WHO = (
    r"(?:you|agents?|users?|customers?|assistants?|everyone|everybody|nobody|no one|we|it|they"
    r"|(?:the|all|any|each|every|our)\s(?:\w+\s){0,2}?\w+)"
)
_IMPERATIVE = re.compile(
    r"(?:(?:please|and|but|also|so|ok|okay|then|remember)[:,\s]+)*"
    r"(?:(?:never|always|do not|don['’]t|avoid)\s+(?!(?:been|had|seen|heard|got|thought|knew|know|mind|worry|wanted|want"
    r"|really|think"
    r"|get me|the|a|an|i|you|we|it|that|this|see|have|need|care|like)\b)[a-z]"
    r"|(?:make sure|ensure|be sure to|only (?:use|book|call|send|pay|take|ask|buy|answer))\b|remember (?:to|that)\b)"
    r"|(?:the )?(?:rule|policy)\b[^:]{0,24}:",
    re.I,
)
_DUTY = re.compile(
    r"must|shall|may not|should|only|ha(?:s|ve) to (?:never|always)|from now|circumstances|allowed|forbidden"
    r"|prohibited|mandatory"
)
_OBLIGED = re.compile(
    r"\b(?:from now on|under no circumstances|(?:is|are) (?:not allowed|forbidden|prohibited|mandatory))\b"
    rf"|\b{_WHO}\s(?:must(?: not| never| always)?(?!\s+(?:have|be\s+(?:nice|fun|hard|great|tough|a|an|so|very)|admit|say))"
    r"|may not|shall(?: not)?|should (?:never|always|not)|shouldn['’]t|can only|may only|(?:has|have) to (?:never|always))\s"
)
_PREFERENCE = re.compile(
    r"\ballergic\b|\b(?:I|we|he|she|they|[A-Z]\w+)\s(?:really |would |strongly |always |only )?(?:prefers?|refuses?|hates?"
    r"|loves?"
    r"|can['’]t (?:eat|fly|drink|stand)|(?:do not|don['’]t|does not|doesn['’]t) (?:want|eat|drink|fly|use)|wants?|needs?)\s"
    r"|\b(?:my|[A-Z]\w+['’]s) (?:favou?rite|preferred)\b|\b(?:I|we)['’]d (?:like|prefer|rather)\b",
)
_DIRECTIVE_CJK = re.compile(
    r"必须|务必|一律|只能|只要|只用|以后|记住|记得|应该|要求|偏好|过敏|确保|至少|最多|不要|请勿|勿|禁止|别(?!的|人)|切忌|避免|无需|不能|不得|总是"
)
_DECISION = re.compile(
    r"\b(?:(?:I|we|they|he|she|[A-Z]\w+) (?:have |has |had |['’]ve )?(?:all )?(?:decided|agreed|settled on|chose|chosen"
    r"|approved|confirmed"
    r"|cancell?ed|booked|scheduled|postponed|signed|promised|committed to|voted)"
    r"|(?:changed|moved|switched|rescheduled|postponed|raised|lowered|reduced)\b[^.!?]{0,60}?\b(?:to|from|by)\s(?:\w+\s){0,2}\S{0,20}\d"
    r"|(?:is|are|was|were|been) (?:decided|agreed|approved|confirmed|cancell?ed|booked|scheduled|postponed|moved to)"
    r"|let['’]s (?:go with|use|meet|take|keep|move|start)|we (?:['’]ll|will|shall) (?:go with|use|meet|take)"
    r"|I(?:['’]?ll| will) (?:take|go with|book|buy|send|bring|pay|deliver|ship|prepare)|the (?:plan|deal|decision) is)\b"
    r"|决定|约定|同意|确认",
)
_COURTESY = re.compile(
    r"\b(?:hope (?:you|this|that|all|everything)|thank|thanks|looking forward|have a (?:great|nice|good)|welcome"
    r"|good (?:morning|evening|luck)"
    r"|how are you|no problem|sounds good|appreciate|excited to|happy to (?:help|assist)|glad to|let me know"
    r"|just say the word|(?:mention|say|ask you|tell you) (?:something|one thing)\W*$|i['’]m sorry|^sorry\b|go ahead"
    r"|sorry (?:to|for|about))\b|谢谢|您好|你好|不客气|请问"
)
GENERIC = frozenset(  # words of any conversation, as `terms` stems them
    term
    for word in """
        able actually again ago agree allow already alright although always another answer anybody anymore anyone
        anything anyway around ask asked aware away awesome back bad basically because become before began begin
        behind believe best better big bit both brb bring btw call came cannot cause certain certainly change check
        clear clearly come coming complete completely confused consider cool correct couple course day deal definitely
        difference different difficult doing don down dude each easier easily easy either else end enough especially
        even ever every everybody everyone everything exactly example fact fair far feel few figure find fine first
        follow forget found four full fun funny further gave general generally give given glad goes going gone gonna
        good got gotta gotten great guess guy guys hah haha half hand happen hard haven having hear heard hello help
        here hey high hmm hold hope however huh idea imagine imo important instead interested interesting issue keep
        kind kinda knew know known large last later least leave left less let level like likely listen literally
        little lol long longer look looking lot lots love low luck made main make making man many matter may maybe
        mean meant mention mentioned mentioning mhm might mind mine minute mmm moment more most mostly move much must
        nah name near nearly necessarily need neither never new next nice nobody none nope normal nothing notice
        number obvious obviously off often okay old once only ooh open order other others otherwise ought overall own
        part people perfect perhaps person pick piece place plan plus point possible possibly pretty probably problem
        put question quick quickly quite rather read ready real really reason recall recently remember right run said
        same saw say saying second see seem seen send sense sent set several show side similar simple simply since
        single small somebody somehow someone something sometime sometimes somewhat somewhere sorry sort sound speak
        start started stay step still stop straight stuff suggest suggested suppose sure take taken talk talking tell
        thank thanks thing things think third though thought three through time times together told tomorrow tonight
        took top totally tough tried true try trying turn twice two type uh uhm um understand until use used user
        using usually various very via wait wanna want wanted way week welcome well went while whole why wish without
        won wonder wondering word words work worked working works worry worse worst worth wouldn wow write wrong ya
        yeah year yep yes yesterday yet yup
    """.split()  # noqa: SIM905 - a list would be ten times as long
    for term in terms(word)
)
_ALSO_LATIN = str.maketrans("İıſ", "iis")  # which `re.I` takes for these letters


def split_sentences(block: str) -> Iterator[str]:
    """Yields the sentences of a block in order; abbreviations, ordinal numbers of dates, numbers of items and what stands
    in square brackets end none."""
    for stretch in (block,) if len(block) <= 2_000 else stretches(block):
        notes = [note.span() for note in _NOTE.finditer(stretch)]
        start = 0
        for match in _END.finditer(stretch):
            if _ABBREVIATED.search(stretch[max(0, match.start() - 8) : match.start()]):
                continue
            before = stretch[max(start, match.start() - NUMBER_CHARS) : match.start()]
            if DATE_GOES_ON.match(stretch, match.start()) or _NUMBER_ALONE.search(before):
                continue
            if any(first < match.end() < end for first, end in notes):
                continue
            yield stretch[start : match.end()]
            start = match.end()
        yield stretch[start:]


def plain(sentence: str) -> str:
    """Returns a sentence without hesitations, signs of emphasis around it, doubled punctuation and open quotation marks."""
    text = " ".join(_NOISE.sub(" ", _BROKEN_OFF.sub(" - ", sentence)).split()).strip("* ")
    if text.startswith("_") and text.endswith("_") and " " in text:
        text = text.strip("_")
    if text.count('"') % 2:
        text = _OPEN_QUOTE.sub("", text, count=1)
    text = _SPACE_BEFORE.sub(r"\1", text)
    lower = lowered(text)
    if _ENGLISH.search(lower):
        text = _UHS.sub("", text) if any(uh in lower for uh in ("uh", "um", "erm")) else text
        text = _STUTTER.sub(r"\1", text)
    text = _DASHES.sub("", text)
    return _DOUBLED.sub(lambda m: m[1] or ".", text).strip() if _TWO_SIGNS.search(text) else text.strip()


def without_opener(text: str) -> str:
    """Returns a sentence without the words that only lead up to it."""
    bare = _DASHES.sub("", _OPENER.sub("", text))
    if bare == text or not is_whole(bare):
        return text
    return bare[:1].upper() + bare[1:] if text[:1].isupper() else bare


def clauses(text: str) -> Iterator[str]:
    """Yields the parts of a long sentence that have a subject of their own, joined up to the limit."""
    parts: list[str] = []
    start = 0
    for match in _CLAUSES.finditer(text):
        parts.append(text[start : match.start()])
        start = match.end()
    parts.append(text[start:])
    joined = ""
    for part in (p.strip(" ,;") for p in parts):
        if joined and (len(joined) + len(part) > MAX_CHARS or (_SUBJECT.match(part) and len(joined) > 60)):
            yield cut(joined)
            joined = part if _SUBJECT.match(part) else ""
        else:
            joined = f"{joined}, {part}" if joined else part
    if joined:
        yield cut(joined)


def cut(text: str) -> str:
    """Returns the text, or of a longer one its beginning up to the limit."""
    if len(text) <= MAX_CHARS:
        return text
    end = text.rfind(" ", 0, MAX_CHARS)
    return f"{text[: end if end > 0 else MAX_CHARS].rstrip(' ,;:-')} …"


def lowered(text: str) -> str:
    """Returns the text in lower case, as long as before, for patterns of lower-case words: four times as fast as `re.I`."""
    return text.lower() if text.isascii() else text.translate(_ALSO_LATIN).lower()


@lru_cache(maxsize=16_384)
def is_whole(text: str) -> bool:
    """Tells whether a text reads as a sentence of its own: enough words, a verb, and no end that breaks off."""
    if _IS_CJK.search(text):
        return len(_IS_CJK.findall(text)) >= 5
    bare = _FILLER.sub("", text)
    words = _WORD.findall(bare)
    if words and words[-1].lower() in _FILLERS:
        bare = _TRAILING_FILLER.sub("", bare)
        words = _WORD.findall(bare)
    if len(words) < MIN_WORDS or not any(len(w) > 2 for w in words):
        return False
    end = len(bare.rstrip().rstrip(".…").rstrip())
    if _TRAILING.search(bare, max(0, end - MAX_TRAILING_CHARS)):
        return False
    if (
        bare[:1].islower()
        and re.match(r"(?:and|or|but|which|than|as|of|to|from|for|with|in|on|at)\b", bare)
        and len(words) < 6
    ):
        return False
    if _SUBORDINATE.match(bare) and not re.search(r",\s+(?:I|we|you|he|she|it|they|the|my)\b", bare):
        return False
    return _VERBS.search(lowered(bare)) is not None or _is_other_sentence(bare, len(words))


def _is_other_sentence(text: str, words: int) -> bool:
    """Tells whether a text reads as a sentence of another European language, whose verbs are not known: by its end."""
    ends = text.rstrip("\"'”’)»").endswith((".", "!", "?"))
    return ends and words > MIN_WORDS and len(_OTHER_LANGUAGES.findall(lowered(text))) > 1


@lru_cache(maxsize=8_192)
def is_clear(text: str) -> bool:
    """Tells whether a sentence says by itself what it is about, in words that do not falter."""
    return not needs_previous(text) and not falters(text)


@lru_cache(maxsize=8_192)
def falters(text: str) -> bool:
    """Tells whether a spoken sentence hesitates, repeats itself or begins anew so often that it is hard to read."""
    return sum(1 for _ in _HESITATION.finditer(text)) >= MAX_HESITATIONS


def is_correction(text: str) -> bool:
    """Tells whether a sentence takes back what was said just before it."""
    return _CORRECTS.match(text) is not None


def needs_previous(text: str) -> bool:
    """Tells whether a sentence begins with a pronoun, names nothing, or names little and something as "it" or "them"."""
    if _NEEDS_PREVIOUS.match(text):
        return True
    named = len(content_words(text))
    return named == 0 or (named <= MAX_NAMED and _POINTS_BACK.search(lowered(text)) is not None)


@lru_cache(maxsize=8_192)
def is_directive(text: str) -> bool:
    """Tells whether a sentence, or an item of a list, tells somebody what to do or not to do, now and later."""
    lower = lowered(text)
    if any(map(_IMPERATIVE.match, _items(text))) or (_DUTY.search(lower) and _OBLIGED.search(lower)):
        return True
    return not text.isascii() and _DIRECTIVE_CJK.search(text) is not None


def _items(text: str) -> Iterator[str]:
    """Yields a text and, where it is a list, its items without their heading."""
    yield text
    heading, colon, rest = text.partition(": ")
    if colon and ("; " in rest or not is_whole(heading)):
        yield from rest.split("; ")


@lru_cache(maxsize=8_192)
def is_decision(text: str) -> bool:
    """Tells whether a sentence says what was decided, agreed, promised or done about a plan."""
    return _DECISION.search(text) is not None


def is_preference(text: str) -> bool:
    """Tells whether a sentence says in few words what somebody wants, prefers or cannot have."""
    return len(text) <= MAX_WISH_CHARS and _PREFERENCE.search(text) is not None


@lru_cache(maxsize=8_192)
def is_courtesy(text: str) -> bool:
    """Tells whether a sentence only greets, thanks or wishes."""
    return _COURTESY.search(lowered(text)) is not None


@lru_cache(maxsize=8_192)
def content_words(text: str) -> frozenset[str]:
    """Returns the words, stemmed, that say what a sentence is about: no numbers, and none that fit any conversation."""
    words = frozenset(terms(text)) - GENERIC
    return frozenset([w for w in words if (len(w) > 2 or not w.isascii()) and not w[0].isdigit()])
