"""Splits messages into statements: whole sentences with who said them and what they are about; marks fragments as such.

A list below a heading is one statement with the heading as its subject. A sentence that begins with a pronoun comes with the
sentence before it, a bare answer with its question. Words such as "next Friday" get the date that they mean, where the time of
the message is known.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import chain, zip_longest

from ctxfold.compaction.excerpts import failure_lines
from ctxfold.compaction.text_units import is_code, is_code_block, is_numbered, without_markers
from ctxfold.history.prompt_safety import strip_control_chars
from ctxfold.history.terms import DATE_GOES_ON, STOP_WORDS, stretches, terms
from ctxfold.history.view import Entry
from ctxfold.messages import Message

MAX_CHARS = 220  # of a statement; of a longer sentence the clauses with a subject stand alone
MIN_WORDS = 3
MAX_HESITATIONS = 2  # repeated words, broken words and "uh" that make a sentence hard to read
# of a sentence with "it" that says nothing without the one before; a longer one names its subject
MAX_POINTING_CHARS = 60
MAX_WISH_CHARS = 90  # of a sentence that states a preference; longer ones tell a story
LIVE_S = 0.5  # messages that follow each other faster were handed over together
MAX_TRAILING_CHARS = 8  # of the word that a sentence breaks off with
LIST_CHARS = 200  # of a heading with the items of its list
_CJK = r"\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_STAMP = re.compile(
    r"^\s{0,8}[\[(]?(?P<day>\d{4}-\d{2}-\d{2}|\d{1,2}[./]\d{1,2}[./]\d{2,4})?[T,]?\s{0,4}"
    r"(?P<clock>\d{1,2}:\d{2}(?::\d{2})?(?:\.\d{1,9})?(?:\s?[AaPp][Mm])?Z?)?(?:\s{0,4}UTC)?[\])]?(?:\s{1,4}-)?\s{1,8}(?=\S)"
)
_LABEL = re.compile(r"^(?:<([^<>\s]{1,32})>\s+|([^\W_][^:\n<>{}\[\]\"“”?!;]{0,31}?):\s+)(?=\S)")
_ROLE = re.compile(  # "User Interface" is somebody's title
    r"\W*(?:(?:user|human)\b(?!\s(?-i:[A-Z][a-z]))|(?:assistant|system|tool|ai|developer|open tool call)\b)", re.I
)
_NO_SPEAKERS = frozenset(
    """
    note notes summary question answer re ps p.s error warning update fyi edit subject from to date time total price address
    name phone email e-mail example important reminder tip step steps rule output input result results http https file path
    """.split()  # noqa: SIM905 - a list would be ten times as long
)
# what a summary without facts says; nobody said it, so the next summary does not repeat it
ARCHIVED_NOTE = re.compile(r"^(\d{1,18}) earlier messages are archived\.$", re.M)
FENCE = "```"  # before and after a block of code in Markdown
MAX_FAILURES = 2  # lines of one output or block of code
_LIST_MARK = re.compile(r"^\s*(?:[-*•–]+\s+|#{1,6}\s+|>\s+|\d{1,3}[.)、]\s+|\(?[a-z]\)\s+)")
_BARE_MARK = re.compile(r"^\s*(?:[-*•–#>]+|\d{1,3}[.)、]?)\s*$")
# not `2**10`, nor `__init__.py`: names in code have no space between the signs
_EMPHASIS = re.compile(
    r"(?<![A-Za-z0-9_*])(\*{2,3})(?=\S)([^*]++)(?<=\S)\1(?![A-Za-z0-9_*])|(?<!\w)__(?=\S)(?=[^_\s]++\s)([^_]++)(?<=\S)__(?!\w)"
)
_HEADING = re.compile(r"^\s*#{1,6}\s+")
_TABLE_RULE = re.compile(r"[ |:-]+")
_CELL_END = re.compile(r"(?<!\\)\|")
_EMPHASISED = re.compile(r"^\s*(?:[-*•]\s+|\d{1,3}[.)]\s+)?\*\*[^*]{2,100}\*\*\s*:?\s*$")
_NUMBERED = re.compile(r"^\s*\d{1,3}[.)]\s")
_FIELD = re.compile(rf"^([^\W\d_][\w ()/{_CJK}'-]{{0,40}}?)\s*[:：]\s*(\S.*)$")
# patterns of lower-case words without `re.I` are searched in `lowered` text
_END = re.compile(r"(?<=[.!?…])[\"'”’)\]*]*\s+(?=\S)|(?<=[。！？；])\s*(?=\S)")
# the number of a heading or an item, at the beginning or behind a colon
_NUMBER_ALONE = re.compile(r"(?:^|:\s)\W{0,4}\d{1,3}\.$")
NUMBER_CHARS = 12  # in which it is looked for
_ABBREVIATED = re.compile(r"(?:^|[\s(])(?:Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|vs|e\.g|i\.e|Nr|approx|ca|cf|[A-Z])\.$")
_WORD = re.compile(r"[^\W_]+(?:['’][^\W\d_]+)?")
_IS_CJK = re.compile(f"[{_CJK}]")
_SPACE_BEFORE = re.compile(r" ([.,!?;])(?= |$)")
_TWO_SIGNS = re.compile(r"[;,:!?.]\s*[;,:!?.]")
_DOUBLED = re.compile(r"([;,:!?])(?:\s*\1)+(?=\s|$)|(?<=\w)\s*\.(?:\s*\.)+(?=\s|$)")
_NEEDS_PREVIOUS = re.compile(
    r"(?:he|she|it|they|his|her|its|their|him|them|this|that|these|those|both|so does|same)\b(?!\s+(?:is|was)\s+why)",
    re.I,
)
_POINTS_BACK = re.compile(r"\b(?:it|them)(?:\s*[.!…]*$|\s?[—–;])")
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
    r"|never|always|avoid|please|remember|ensure)(?![\w-])|['’](?:m|re|s|ve|ll|d|t)(?!\w)|(?<=\w)n['’]t|(?<=\s)\w{2,}(?:ed"
    r"|ing)(?!\w)"
)
_SUBJECT = re.compile(
    r"(?:I|we|you|he|she|it|they|there|this|that|these|those|my|our|the|a|an|your|his|her|their)\b|[A-Z]", re.I
)
_TRAILING = re.compile(
    r"(?:[,\-–—:({\[]|\b(?:and|or|but|the|a|an|to|of|if|that|because|with|is|was|I|where|when|which|who|whose|than|into|so"
    r"|my|our|your|their|every|very)|\s(?-i:[c-hjlmo-qstvw]))\s*[.…]*$",
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
    r"^(?:(?:by the way|anyway|also|oh|ah|well|so|and|but|now|ok(?:ay)?|yes|yeah|actually|basically|i mean|you know|you see"
    r"|like i said"
    r"|as i said|speaking of which|on another note|for the record|fyi|btw|just so you know)\b[\s,.:]+)+(?=\S)",
    re.I,
)
_SUBORDINATE = re.compile(
    r"[\"'“]*\s*(?:because|cuz|that|which|to|with|than|of|like|and that|so that)\b(?!['’])(?! (?:is|was|are|means|said|one)\b)",
    re.I,
)
_HESITATION = re.compile(  # also a letter of a word that breaks off, and a sentence that begins anew without an end
    r"\b(?=\w)(?:(?:uhm?|erm|h?mm)\b|(\w++)(?:\s+\1\b| - (?=[A-Z]))|(?<!['’.-])(?-i:[d-hjlmo-qstvw])(?= )"
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
_GENERIC = frozenset(  # words of any conversation, as `terms` stems them
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
_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_WHEN = re.compile(
    rf"\b(?:(?P<near>today|tonight|tomorrow|yesterday|the day after tomorrow|the day before yesterday|this (?:morning"
    rf"|afternoon|evening))"
    rf"|(?P<which>next|last|this|on|by|until|till|before|coming)\s(?P<day>{'|'.join(_DAYS)})"
    r"|in (?P<ahead>\d{1,3}|a|an|one|two|three|four|five|six|seven|ten) (?P<ahead_unit>days?|weeks?)"
    r"|(?P<back>\d{1,3}|a|an|one|two|three|four|five|six|seven|ten) (?P<back_unit>days?|weeks?) ago)\b(?!\s*\(\d{4}-|['’]s\b)",
    re.I,
)
_ALSO_LATIN = str.maketrans("İıſ", "iis")  # which `re.I` takes for these letters
_COUNTS = {"a": 1, "an": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "ten": 10}
_NEAR_DAYS = {"tomorrow": 1, "yesterday": -1, "the day after tomorrow": 2, "the day before yesterday": -2}


@dataclass(frozen=True, slots=True)
class Speech:
    """The words of one speaker: a message, or a part of it, without time stamp and name.

    Args:
        speaker: the name in front of the text, or the role; "" where the text names its speaker itself, as a ledger line does.
        text: the words.
        named: `speaker` is a name.
        at: when it was said, None where that is not known.
    """

    speaker: str
    text: str
    named: bool = False
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Statement:
    """A sentence that can stand alone.

    Args:
        text: the sentence, verbatim except for white space, marks of lists and doubled punctuation; dates may be added.
        line: the sentence with its speaker, and with the sentence or the question before it where it needs that.
        speaker: who said it, "" where the line says it in its own words.
        named: `speaker` is a name, not a role.
        whole: it has a subject and a verb; otherwise it is a fragment.
        question: it asks.
    """

    text: str
    line: str
    speaker: str = ""
    named: bool = False
    whole: bool = True
    question: bool = False


def named_speakers(messages: Iterable[Message]) -> frozenset[str]:
    """Returns the names that stand before what is said: `Message.name`, names after a time stamp, and labels that repeat."""
    certain: set[str] = set()
    labels: Counter[str] = Counter()
    first: set[str] = set()
    behind_stamps: list[str] = []
    labelled = texts = stamped = 0
    for message in messages:
        if message.role == "tool" or message.kind == "summary" or not (text := message.text):
            continue
        if message.name:
            certain.add(message.name)
        texts += 1
        for index, line in enumerate(_without_code(text, message).splitlines()[:400]):
            stamp = _stamp(line)
            rest = line[stamp.end() :] if stamp else line
            stamped += stamp is not None
            if (label := _label(rest)) is not None:
                if rest.startswith("<"):
                    certain.add(label)
                elif stamp:
                    behind_stamps.append(label)
                else:
                    labels[label] += 1
                if not index:
                    first.add(label)
                    labelled += 1
    if len(behind_stamps) > stamped / 2:
        certain |= {*behind_stamps}  # otherwise "Try:" may begin a message
    else:
        labels.update(behind_stamps)
    if labelled > 2 and labelled > texts / 2:
        certain |= first  # a chat of several people: most messages begin with a name
    repeated = {name for name, count in labels.items() if count > 1 and not _is_field_name(name)}
    return frozenset(name for name in certain | repeated if not _ROLE.match(name))  # nobody speaks for the assistant


def spoken(message: Message, speakers: frozenset[str], at: datetime | None = None) -> Iterator[Speech]:
    """Yields what each speaker of a message says, in order; lines without a speaker of their own belong to the one before."""
    name = message.name if message.name and not _ROLE.match(message.name) else ""
    speaker: str = name or ("" if message.kind == "summary" else message.role)
    named, when = bool(name), at
    lines: list[str] = []
    words = message.text if message.kind != "summary" else ARCHIVED_NOTE.sub("", message.text)
    for raw in strip_control_chars(_without_code(without_markers(words), message)).splitlines():
        line, own_at = raw, None
        if (stamp := _stamp(raw)) is not None:
            line, own_at = raw[stamp.end() :], _moment(stamp)
        label = _label(line)
        is_speaker = label is not None and (label in speakers or (message.kind == "summary" and bool(label)))
        if (is_speaker or own_at is not None) and any(x.strip() for x in lines):
            yield Speech(speaker, "\n".join(lines), named, when)
            lines = []
        if is_speaker and label is not None:
            matched = _LABEL.match(line)
            line = line[matched.end() :] if matched else line
            speaker, named = label, label not in ("user", "assistant", "system")
        if own_at is not None:
            when = own_at
        lines.append(line)
    if any(x.strip() for x in lines):
        yield Speech(speaker, "\n".join(lines), named, when)


def statements(speech: Speech, question: str) -> list[Statement]:
    """Returns the statements and fragments of what somebody said, in order. `question` is what it answers, if anything."""
    result: list[Statement] = []
    previous = ""
    for block in _blocks(speech.text):
        for sentence in _sentences(block):
            text = _plain(sentence)
            if not _WORD.search(text) or text.startswith("["):
                continue
            asks = text.endswith(("?", "？"))
            whole = is_whole(text)
            context = ""
            if whole and previous and _needs_previous(text) and len(previous) + len(text) < MAX_CHARS:
                context = previous
            for clause in _clauses(text) if len(text) > MAX_CHARS else (text,):
                shown = _dated(_bare(clause) if whole and not asks else clause, speech.at)
                words = f"{_dated(context, speech.at)} {shown}" if context else shown
                if not whole and not result and question and len(question) + len(words) < MAX_CHARS:
                    line = f'{speech.speaker or "user"}, asked "{question}": {words}'
                else:
                    line = f"{speech.speaker}: {words}" if speech.speaker else words
                result.append(Statement(shown, line, speech.speaker, speech.named, whole and is_whole(clause), asks))
            previous = text if whole and not asks else ""
    return result


def lowered(text: str) -> str:
    """Returns the text in lower case, as long as before, for patterns of lower-case words: four times as fast as `re.I`."""
    return text.lower() if text.isascii() else text.translate(_ALSO_LATIN).lower()


@lru_cache(maxsize=8_192)
def is_directive(text: str) -> bool:
    """Tells whether a sentence tells somebody what to do or not to do, now and later."""
    bare = _LIST_MARK.sub("", text)
    lower = lowered(bare)
    if _IMPERATIVE.match(bare) is not None or (_DUTY.search(lower) and _OBLIGED.search(lower)):
        return True
    return not bare.isascii() and _DIRECTIVE_CJK.search(bare) is not None


@lru_cache(maxsize=8_192)
def is_clear(text: str) -> bool:
    """Tells whether a sentence says by itself what it is about, in words that do not falter."""
    return not _needs_previous(text) and not falters(text)


@lru_cache(maxsize=8_192)
def falters(text: str) -> bool:
    """Tells whether a spoken sentence hesitates, repeats itself or begins anew so often that it is hard to read."""
    return sum(1 for _ in _HESITATION.finditer(text)) >= MAX_HESITATIONS


def _needs_previous(text: str) -> bool:
    """Tells whether a sentence begins with a pronoun, or is a short one about "it" or "them"."""
    if _NEEDS_PREVIOUS.match(text):
        return True
    return len(text) <= MAX_POINTING_CHARS and _POINTS_BACK.search(lowered(text)) is not None


@lru_cache(maxsize=8_192)
def content_words(text: str) -> frozenset[str]:
    """Returns the words, stemmed, that say what a sentence is about: no numbers, and none that fit any conversation."""
    words = frozenset(terms(text)) - _GENERIC
    return frozenset([w for w in words if (len(w) > 2 or not w.isascii()) and not w[0].isdigit()])


@lru_cache(maxsize=8_192)
def is_courtesy(text: str) -> bool:
    """Tells whether a sentence only greets, thanks or wishes."""
    return _COURTESY.search(lowered(text)) is not None


@lru_cache(maxsize=8_192)
def is_decision(text: str) -> bool:
    """Tells whether a sentence says what was decided, agreed, promised or done about a plan."""
    return _DECISION.search(text) is not None


def is_preference(text: str) -> bool:
    """Tells whether a sentence says in few words what somebody wants, prefers or cannot have."""
    return len(text) <= MAX_WISH_CHARS and _PREFERENCE.search(text) is not None


def _without_code(text: str, message: Message) -> str:
    """Returns what somebody says without program code: blocks between fences, and a listing with line numbers.

    Lines in them that report a failure stay, and so does a block that is no code.
    """
    if message.role == "tool" or message.kind == "summary":
        return text
    if FENCE in text:
        text = "\n".join(_outside_of_code(text.splitlines()))
    if not (is_numbered(text) and is_code(text)):
        return text
    words = (line for line in text.splitlines() if not is_numbered(line))
    return "\n".join([*words, *failure_lines(text, MAX_FAILURES)])


def _outside_of_code(lines: Iterable[str]) -> Iterator[str]:
    """Yields the lines without fences, and of a block of code only those that report a failure."""
    block: list[str] | None = None
    for line in chain(lines, [FENCE]):  # a block may lack its end
        if not line.lstrip().startswith(FENCE) or line.count(FENCE) > 1:
            if block is None:
                yield line
            else:
                block.append(line)
        elif block is None:
            block = []
        else:
            text = "\n".join(block)
            yield from failure_lines(text, MAX_FAILURES) if is_code_block(text) else block
            block = None


# speakers and times


def _stamp(line: str) -> re.Match[str] | None:
    match = _STAMP.match(line)
    if match is None or not (match["day"] or match["clock"]):
        return None
    bracketed = line.lstrip().startswith(("[", "("))
    # without brackets, "10:30 works for me" is no stamp: a name has to follow
    return match if bracketed or _LABEL.match(line[match.end() :]) else None


def _label(line: str) -> str | None:
    match = _LABEL.match(line)
    if match is None:
        return None
    label = (match[1] or match[2]).strip()
    words = label.split()
    return None if len(words) > 4 or label.casefold() in _NO_SPEAKERS else label


def _is_field_name(label: str) -> bool:
    """Tells whether a label that repeats is rather the name of a value, or a word such as "Try", than the name of a person."""
    words = label.split()
    if len(words) > 3 or any(w in STOP_WORDS or w.casefold() in _NO_SPEAKERS for w in words):
        return True
    return all(term in _GENERIC for term in terms(label))


def _moment(stamp: re.Match[str]) -> datetime | None:
    day = stamp["day"]
    if day is None or "-" not in day:
        return None  # a day and a month in an order that is not known
    try:
        return datetime.fromisoformat(day).replace(tzinfo=UTC)
    except ValueError:
        return None


def spoken_times(sources: Sequence[Entry | Message]) -> list[datetime | None]:
    """Returns when each message was said, as far as its session knows; None for the messages of a list that came at once.

    A history that is handed over as a list is stored within moments: the time of its records is not when it was said.
    """
    stored_s = [s.at_s if isinstance(s, Entry) else 0.0 for s in sources]
    times: list[datetime | None] = []
    for index, at_s in enumerate(stored_s):
        neighbours_s = [s for s in (*stored_s[max(0, index - 1) : index], *stored_s[index + 1 : index + 2]) if s]
        is_live = at_s > 0 and all(abs(at_s - s) >= LIVE_S for s in neighbours_s)
        times.append(datetime.fromtimestamp(at_s, UTC) if is_live else None)
    return times


def _dated(text: str, at: datetime | None) -> str:
    """Returns the text with the dates that its words mean, seen from the time when it was said."""
    if at is None:
        return text
    return _WHEN.sub(lambda match: f"{match[0]} ({_date(match, at)})" if _date(match, at) else match[0], text)


def _date(match: re.Match[str], at: datetime) -> str:
    if match["near"]:
        days = _NEAR_DAYS.get(match["near"].casefold(), 0)
    elif match["day"]:
        weekday, which = _DAYS.index(match["day"].casefold()), match["which"].casefold()
        days_ahead = (weekday - at.weekday()) % 7 or 7
        if which == "next" and days_ahead + at.weekday() < 7:  # of this week or of the next: people mean either
            return f"{at + timedelta(days_ahead):%Y-%m-%d} or {at + timedelta(days_ahead + 7):%Y-%m-%d}"
        days = days_ahead - 7 if which == "last" else days_ahead
    elif match["ahead"]:
        days = _days(match["ahead"], match["ahead_unit"])
    else:
        days = -_days(match["back"], match["back_unit"])
    return f"{at + timedelta(days):%Y-%m-%d}"


def _days(count: str, unit: str) -> int:
    number = int(count) if count.isdigit() else _COUNTS[count.casefold()]
    return number * (7 if unit.casefold().startswith("week") else 1)


# sentences


def _blocks(text: str) -> Iterator[str]:
    """Yields the lines of a text; a heading and the short items of the list below it, or a run of fields, as one."""
    group: list[str] = []
    heading = ""
    for raw in _rows_as_fields(text.splitlines()):
        unmarked = _LIST_MARK.sub("", raw).strip()
        line = _unemphasised(_LIST_MARK.sub("", unmarked) if _HEADING.match(raw) else unmarked)
        if not line or _BARE_MARK.match(raw):
            continue
        marked = bool(_LIST_MARK.match(raw))
        is_heading = len(line) <= 120 and (
            line.endswith((":", "："))
            or (_HEADING.match(raw) is not None and not is_whole(line))
            or _names_record(raw, line)
        )
        is_item = not is_heading and len(line) <= 100 and (marked or (_is_field(line) and not is_whole(line)))
        full = bool(group) and len(heading) + sum(map(len, group)) + len(line) > LIST_CHARS
        if group and (not is_item or full or _starts_record(line, group)):
            yield _listed(heading, group)
            group = []
            heading = heading if is_item else ""
        if is_heading:
            *before, heading = _sentences(line.rstrip(":： "))
            yield from before  # "It takes 12 weeks. This is why:" says more than a heading
        elif is_item:
            group.append(line)
        else:
            yield f"{heading}: {line}" if heading and not is_whole(line) else line
            heading = ""
    if group:
        yield _listed(heading, group)


def _unemphasised(line: str) -> str:
    return _EMPHASIS.sub(lambda m: m[2] or m[3], line).strip() if "**" in line or "__" in line else line.strip()


def _rows_as_fields(lines: Sequence[str]) -> Iterator[str]:
    """Yields the lines; each row of a Markdown table as fields with the names of its columns, in place of header and rows."""
    names: list[str] = []
    for at, line in enumerate(lines):
        following = lines[at + 1] if at + 1 < len(lines) else ""
        if "|" not in line:
            names = []
            yield line
        elif "-" in following and "|" in following and _TABLE_RULE.fullmatch(following):
            names = _cells(line)
        elif names and not _TABLE_RULE.fullmatch(line):
            fields = zip_longest(names, _cells(line), fillvalue="")
            yield "; ".join(f"{name}: {cell}" if name else cell for name, cell in fields if _WORD.search(cell))
        elif not names:
            yield line


def _cells(row: str) -> list[str]:
    return [
        _unemphasised(cell.replace("\\|", "|"))
        for cell in _CELL_END.split(row.strip().removeprefix("|").removesuffix("|"))
    ]


def _listed(heading: str, items: Sequence[str]) -> str:
    if len(items) == 1 and is_whole(items[0]):
        return items[0]
    joined = "; ".join(i.rstrip(";,. ") for i in items)
    return f"{heading}: {joined}" if heading else joined


def _is_field(line: str) -> bool:
    return _FIELD.match(line) is not None


def _names_record(raw: str, line: str) -> bool:
    """Tells whether a line is the heading of the fields below it, such as `1. **Flight HAT069**`, or emphasised as a whole."""
    if _FIELD.match(line):
        return False
    if _EMPHASISED.match(raw):
        return True
    return _NUMBERED.match(raw) is not None and any(c.isdigit() for c in line) and not is_whole(line)


def _starts_record(line: str, group: Sequence[str]) -> bool:
    field, first = _FIELD.match(line), _FIELD.match(group[0])
    return field is not None and first is not None and field[1] == first[1]


def _sentences(block: str) -> Iterator[str]:
    for stretch in (block,) if len(block) <= 2_000 else stretches(block):
        start = 0
        for match in _END.finditer(stretch):
            if _ABBREVIATED.search(stretch[max(0, match.start() - 8) : match.start()]):
                continue
            before = stretch[max(start, match.start() - NUMBER_CHARS) : match.start()]
            if DATE_GOES_ON.match(stretch, match.start()) or _NUMBER_ALONE.search(before):
                continue
            yield stretch[start : match.end()]
            start = match.end()
        yield stretch[start:]


def _plain(sentence: str) -> str:
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


def _bare(text: str) -> str:
    """Returns a sentence without the words that only lead up to it."""
    bare = _DASHES.sub("", _OPENER.sub("", text))
    if bare == text or not is_whole(bare):
        return text
    return bare[:1].upper() + bare[1:] if text[:1].isupper() else bare


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


def _clauses(text: str) -> Iterator[str]:
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
            yield _cut(joined)
            joined = part if _SUBJECT.match(part) else ""
        else:
            joined = f"{joined}, {part}" if joined else part
    if joined:
        yield _cut(joined)


def _cut(text: str) -> str:
    if len(text) <= MAX_CHARS:
        return text
    end = text.rfind(" ", 0, MAX_CHARS)
    return f"{text[: end if end > 0 else MAX_CHARS].rstrip(' ,;:-')} …"
