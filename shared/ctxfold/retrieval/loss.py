"""Notices a reply that says that earlier content is missing, so that the next request recalls for its question once more.

The one place with words of languages: a sentence that denies that something is there, and names the conversation. Of other
languages nothing is noticed.
"""

from __future__ import annotations

import re

from ctxfold.history.view import View
from ctxfold.index.terms import sentences
from ctxfold.lru import lazy_pattern
from ctxfold.messages import is_final, is_question

MOST_SENTENCES, MOST_CHARS = 3, 240  # of a reply's beginning, and of one of them
NEAR_CHARS = 40  # between what denies and what is denied
# what denies, what is denied, and what names the conversation: in English, German, Spanish, French, Chinese and Japanese
_WORDS = r"""
n['’]t\b|\bnot?\b|cannot|nothing|\blost\b|missing|unable
\b(?:have|see|find|locate|recall|remember|access|know|visible|available|records?|mention|tells|lost|missing)\b
\b(?:conversation|chat|messages?|discussion|context|(?:earlier|previous) mention|you (?:\w+ )?(?:told|said|mentioned|gave|shared))\b

\bnichts?\b|\bkein|\bfehl|\bverloren
\bhabe\b|\bseh|\bfinde|\berinner|\bweiß\b|\bzugriff|\bsichtbar|\bverfügbar|\b(?:lieg|steh|komm|fehl)t\b|\bverloren
gespräch|unterhaltung|\bchat|nachricht|\bverlauf|\b(?:du|sie|ihr)\b.{0,20}\b(?:gesagt|genannt|erwähnt|gegeben)

\bno\b|\bnada\b|\bning[uú]n|\bperdid
\bteng|\bencuentr|\bveo\b|\bver\b|\brec(?:uerd|ord)|\bacce|\bdispon|\bapare|\bconsta|\bperdid
\b(?:conversaci|chat\b|mensaje|historial|dijiste|me dij|me diste|lo que hablamos|(?:mencion|compart)\w+ (?:antes|anterior))

\bne\b|\bn['’]|\baucun|\brien\b|\bperdu\b
\bai\b|\bacc[èé]|trouve|\bsouvien|\brappel|\bvoi[sr]?\b|\bvisible|\bdispos|\bfigure|\bindique|\bperdu\b
\b(?:conversation|discussion|échange|message|historique|(?:vous (?:m['’])?avi?ez|tu (?:m['’]as|avais)) (?:dit|donné|partagé))

没|沒|不|无法|無法|丢失
有|看|找|记得|記得|查|访问|提到|丢失
对话|對話|聊天|消息|[您你](?:之前|先前|早前)?(?:说|說|提|告诉|给)

ませ|ない|なく
確認|参照|アクセス|見つか|見当た|覚え|見え|残っ|出て|あり|履歴がない|持っ
会話|やり取り|履歴|メッセージ|チャット|おっしゃ|伺っ|お話
"""
_ROWS = [row.split("\n") for row in _WORDS.strip().split("\n\n")]
_BETWEEN = f".{{0,{NEAR_CHARS}}}?"
_DENIES = [lazy_pattern(f"(?:{no}){_BETWEEN}(?:{it})|(?:{it}){_BETWEEN}(?:{no})", re.I) for no, it, _ in _ROWS]
_NAMES = [lazy_pattern(names, re.I) for *_, names in _ROWS]


def says_missing(reply: str) -> bool:
    """Tells whether a reply begins with saying that something of the conversation is missing."""
    beginning = [s for s in sentences(reply[: 4 * MOST_CHARS])[:MOST_SENTENCES] if len(s) <= MOST_CHARS]
    return any(d.search(s) and n.search(s) for s in beginning for d, n in zip(_DENIES, _NAMES, strict=True))


def lost_question(view: View) -> str:
    """Returns the question before the newest one, if its reply says that something is missing and the one before did not."""
    before, _ = view.parted()
    questions, missing = list[str](), list[bool]()
    for entry in reversed(before):
        if is_final(entry.message) and len(missing) == len(questions):
            missing.append(says_missing(entry.message.text))
        elif is_question(entry.message) and len(missing) > len(questions):
            questions.append(entry.message.text)
        if missing[:1] == [False] or len(missing) > 1:
            break
    return questions[0] if questions and missing[1:] != [True] else ""
