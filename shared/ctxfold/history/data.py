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
_TEMPLATE = re.compile(r"[\[<]{1,2}(\s*+/?\s*+(?:INST|SYS)\s*+)[\]>]{1,2}", re.I)
_BEGINNING = re.compile(r"^([^\w\n\[]{0,200})(\[?[^\n:：\]]{1,72}[:：\]])", re.M)
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
# each with what its text in lower case holds at least: most texts hold none of it
_SECRETS: tuple[tuple[str, tuple[str, ...], re.Pattern[str]], ...] = tuple(
    (name, signs, re.compile(pattern, flags))
    for name, signs, pattern, flags in (
        (
            "private key",
            ("private key-----",),
            r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
            re.S,
        ),
        ("Anthropic key", ("sk-ant-",), r"\bsk-ant-[\w-]{16,}", 0),
        ("OpenAI key", ("sk-",), r"\bsk-(?:proj-|svcacct-|admin-|or-v1-)?[\w-]{20,}", 0),
        ("Stripe key", ("sk_", "rk_"), r"\b[sr]k_(?:live|test)_\w{16,}", 0),
        ("AWS access key", ("akia", "asia", "abia", "acca"), r"\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}\b", 0),
        ("AWS secret", ("secret",), r"(?<=secret)[\w ]{0,16}[\"']?\s*[:=]\s*[\"']?[A-Za-z0-9/+]{40}(?![\w/+])", re.I),
        (
            "GitHub token",
            ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
            r"\b(?:gh[pousr]_\w{20,}|github_pat_\w{20,})",
            0,
        ),
        ("GitLab token", ("glpat-",), r"\bglpat-[\w-]{16,}", 0),
        (
            "Slack token",
            ("xox", "slack.com"),
            r"\bxox[abeoprs]-[\w-]{10,}|https://hooks\.slack\.com/services/[\w/]+",
            0,
        ),
        ("Google key", ("aiza",), r"\bAIza[\w-]{30,}", 0),
        ("Hugging Face token", ("hf_",), r"\bhf_\w{20,}", 0),
        ("npm token", ("npm_",), r"\bnpm_\w{30,}", 0),
        ("PyPI token", ("pypi-",), r"\bpypi-[\w-]{40,}", 0),
        ("SendGrid key", ("sg.",), r"\bSG\.[\w-]{16,}\.[\w-]{16,}", 0),
        ("JSON web token", ("eyj",), r"\beyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]*", 0),
        (
            "authorization",
            ("authorization",),
            r"(?<=authorization)[\"']?\s*[:=]\s*[\"']?(?:bearer|basic|token)\s+[\w.~+/=-]{8,}",
            re.I,
        ),
        ("bearer token", ("bearer",), r"\bbearer\s+[\w.~+/-]{20,}=*", re.I),
        ("storage key", ("accountkey=",), r"(?<=AccountKey=)[\w+/]{40,}=*", re.I),
        ("password in a URL", ("://",), r"(?<=://)[^\s/:@]{1,64}:[^\s/@]{1,128}(?=@)", 0),
        ("password", ("passw", "pwd", "passphrase", "key", "token", "secret"), _NAMED_SECRET, re.I),
    )
)


def neutral(text: str) -> str:
    """Text without control, direction and other invisible characters, and with markup that could pose as ours defused."""
    plain = text if text.isascii() else _LINE_ENDS.sub(" ", text)
    return _INVISIBLE.sub("", plain).replace("</", "<\\/").replace("<|", "<\\|")


def defused(text: str) -> str:
    """Text in which our markup, and what models take for a turn of their own, is no markup any more."""
    plain = neutral(text)
    if "<" in plain or "＜" in plain:
        plain = _MARKUP.sub("‹", plain)
    return _TEMPLATE.sub(r"(\1)", plain) if "[" in plain or "<" in plain else plain


def redacted(text: str) -> str:
    """Text in which credentials of common shapes are named instead of shown."""
    folded = text.casefold()  # as the patterns that ignore case do, long s and Kelvin sign included
    for name, signs, pattern in _SECRETS:
        for sign in signs:
            if sign in folded:
                text = pattern.sub(f"[redacted: {name}]", text)
                break
    return text


def without_private_keys(text: str) -> str:
    """Text without keys of many lines; to be called before it is taken apart into lines."""
    return _SECRETS[0][2].sub(f"[redacted: {_SECRETS[0][0]}]", text) if "PRIVATE KEY-----" in text else text


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
