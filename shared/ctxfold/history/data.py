"""Text as data: what nobody said in this conversation may be shown in it, but cannot pose as a part of it.

`neutral` and `defused` keep every word. `as_data` also marks lines that begin as a turn of a conversation would, hides
credentials and cuts what is too long: sections, recalled passages and memory items go through it.
"""

from __future__ import annotations

import re
import unicodedata

__all__ = ["as_data", "defused", "neutral", "redacted", "without_private_keys"]

MARK = "[quoted]"
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x84\x86-\x9f\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff"
    "\ufff9-\ufffb\U000e0000-\U000e0fff]"
)
_LINE_ENDS = re.compile("[\x85\u2028\u2029]")  # str.splitlines ends a line at them, a reader sees none
_MARKUP = re.compile(
    r"[<＜](?=[\s/\\|]*(?:message|transcript|previous_summary|part|section|item|system|user|assistant|tool|tool_call|function"
    r"|start_of_turn|end_of_turn|bos|eos|s>|im_start|im_end|antml)(?:\b|_|>))",
    re.I,
)
_TEMPLATE = re.compile(r"[\[<]{1,2}(\s*/?\s*(?:INST|SYS)\s*)[\]>]{1,2}", re.I)
_BEGINNING = re.compile(r"^([^\w\n\[]*)(\[?[^\n:：\]]{1,72}[:：\]])", re.M)
_CODE = re.compile(r"[{}()=\"'`;]")
_WORD = re.compile(r"[^\W\d_]+")
_TURN_NAMES = frozenset(
    """
    system user human assistant ai bot model developer tool function instruction instructions response prompt admin operator
    système utilisateur sistema usuario asistente usuário assistente benutzer assistent nutzer система пользователь ассистент
    系统 系統 用户 用戶 助手 助理 システム ユーザー アシスタント 시스템 사용자 어시스턴트 النظام المستخدم المساعد प्रणाली उपयोगकर्ता
    """.split()  # noqa: SIM905 - a list would be ten times as long
)
_OWN_HEADINGS = (
    "summary of prior conversation",
    "facts, verbatim",
    "from tool outputs",
    "passages recalled",
    "end of ",
    "section ",
)
_LOOKALIKE = str.maketrans(
    "аеорсухіѕјԁкмтвнАЕОРСУХІЅЈКМТВНαεορτυικΑΕΟΡΤΥΙΚνΜΝ", "aeopcyxisjdkmtbhAEOPCYXISJKMTBHaeoptuikAEOPTYIKvMN"
)
_NAMED_SECRET = (
    r"(?<!\w)(?:passw(?:or)?d|pwd|passphrase|api[_-]?key|access[_-]?token|(?:client|secret)[_-]?(?:secret|key))"
    r"[\"']?\s*[:=]\s*(?:\"[^\"\n]{6,}\"|'[^'\n]{6,}'|[^\s\"',;]{6,})"
)
_SECRETS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(pattern, flags))
    for name, pattern, flags in (
        ("private key", r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.S),
        ("Anthropic key", r"\bsk-ant-[\w-]{16,}", 0),
        ("OpenAI key", r"\bsk-(?:proj-|svcacct-|admin-|or-v1-)?[\w-]{20,}", 0),
        ("Stripe key", r"\b[sr]k_(?:live|test)_\w{16,}", 0),
        ("AWS access key", r"\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}\b", 0),
        ("AWS secret", r"(?<=secret)[\w ]{0,16}[\"']?\s*[:=]\s*[\"']?[A-Za-z0-9/+]{40}(?![\w/+])", re.I),
        ("GitHub token", r"\b(?:gh[pousr]_\w{20,}|github_pat_\w{20,})", 0),
        ("GitLab token", r"\bglpat-[\w-]{16,}", 0),
        ("Slack token", r"\bxox[abeoprs]-[\w-]{10,}|https://hooks\.slack\.com/services/[\w/]+", 0),
        ("Google key", r"\bAIza[\w-]{30,}", 0),
        ("Hugging Face token", r"\bhf_\w{20,}", 0),
        ("npm token", r"\bnpm_\w{30,}", 0),
        ("PyPI token", r"\bpypi-[\w-]{40,}", 0),
        ("SendGrid key", r"\bSG\.[\w-]{16,}\.[\w-]{16,}", 0),
        ("JSON web token", r"\beyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]*", 0),
        ("authorization", r"(?<=authorization)[\"']?\s*[:=]\s*[\"']?(?:bearer|basic|token)\s+[\w.~+/=-]{8,}", re.I),
        ("bearer token", r"\bbearer\s+[\w.~+/-]{20,}=*", re.I),
        ("storage key", r"(?<=AccountKey=)[\w+/]{40,}=*", re.I),
        ("password in a URL", r"(?<=://)[^\s/:@]{1,64}:[^\s/@]{1,128}(?=@)", 0),
        ("password", _NAMED_SECRET, re.I),
    )
)


def neutral(text: str) -> str:
    """Text without control, direction and other invisible characters, and with markup that could pose as ours defused."""
    plain = text if text.isascii() else _LINE_ENDS.sub(" ", text)
    return _INVISIBLE.sub("", plain).replace("</", "<\\/").replace("<|", "<\\|")


def defused(text: str) -> str:
    """Text in which our markup, and what models take for a turn of their own, is no markup any more."""
    return _TEMPLATE.sub(r"(\1)", _MARKUP.sub("‹", neutral(text)))


def redacted(text: str) -> str:
    """Text in which credentials of common shapes are named instead of shown."""
    for name, pattern in _SECRETS:
        text = pattern.sub(f"[redacted: {name}]", text)
    return text


def without_private_keys(text: str) -> str:
    """Text without keys of many lines; to be called before it is taken apart into lines."""
    return _SECRETS[0][1].sub(f"[redacted: {_SECRETS[0][0]}]", text) if "PRIVATE KEY-----" in text else text


def as_data(text: str, *, max_chars: int | None = None) -> str:
    """What a stranger wrote, to be shown as such: see the module. Of a longer text `max_chars` are shown, and how much is not."""
    whole = len(text)
    if max_chars is not None and whole > 4 * max_chars + 4_096:
        text = text[: 4 * max_chars + 4_096]  # no pattern is run over megabytes that nobody will see
    shown = redacted(_BEGINNING.sub(_marked, defused(text)))
    if max_chars is None or (len(shown) <= max_chars and whole == len(text)):
        return shown
    shown = shown[:max_chars].rstrip()
    return f"{shown} [... {max(whole - len(shown), 1):,} characters more]"


def _marked(match: re.Match[str]) -> str:
    """The line's beginning, marked where it reads as a speaker's name or as one of our headings."""
    folded = unicodedata.normalize("NFKC", match[2])
    plain = folded.translate(_LOOKALIKE).casefold().strip("[] :：\t")
    words = _WORD.findall(plain)
    named = {*words, *_WORD.findall(folded.casefold())} & _TURN_NAMES
    speaks = bool(named) and len(words) <= 2 and not _CODE.search(match[0])
    return f"{match[1]}{MARK} {match[2]}" if speaks or plain.startswith(_OWN_HEADINGS) else match[0]
