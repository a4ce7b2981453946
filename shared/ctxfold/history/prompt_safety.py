"""Makes stored text safe to quote in a prompt, so that it cannot pose as part of the conversation's structure."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable
from functools import cache
from typing import Any

from ctxfold.lru import lazy_pattern

MARK = "[quoted]"
_INVISIBLE = lazy_pattern(
    "[\x00-\x08\x0b-\x1f\x7f-\x84\x86-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u202a-\u202e"
    "\u2060-\u2069\u3164\ud800-\udfff\ufeff\uffa0\ufff0-\ufffb\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
# a joiner is writing between letters of these scripts and between emoji (Persian, Indic, families); elsewhere it hides something
_JOINED = "\u0600-\u08ff\u0900-\u109f\u1780-\u17ff\ufb50-\ufdff\ufe70-\ufefc\u2190-\u2bff\ufe0f\U0001f000-\U0001faff"
_JOINER = lazy_pattern(f"[\u200c\u200d](?:(?<![{_JOINED}][\u200c\u200d])|(?![{_JOINED}]))")
_LINE_ENDS = lazy_pattern("[\x85\u2028\u2029]")  # str.splitlines ends a line at them, a reader sees none
_MARKUP = lazy_pattern(
    r"[<＜](?=[\s/\\|｜]*+(?:message|transcript|previous_summary|part|section|item|system|user|assistant|tool|tool_call|function"
    r"|start_of_turn|end_of_turn|start_of_role|end_of_role|start_of_image|end_of_image|start_header_id|end_header_id|eot_id|eom_id"
    r"|begin_of_text|end_of_text|endoftext|begin[_▁]of|end[_▁]of|fim_prefix|fim_middle|fim_suffix|channel|tool_response|unused\d"
    r"|extra_id|reserved_special|bos|eos|im_start|im_end|antml)(?:\b|[_▁]|\d|>)|[\s/\\|｜]*+s>)",
    re.I,
)
_TEMPLATE = lazy_pattern(
    r"[\[<]{1,2}(\s*+/?\s*+(?:(?i:INST|SYS)|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT)\s*+)[\]>]{1,2}"
)
_BEGINNING = lazy_pattern(r"^([^\w\n\[]{0,200})(\[?[^\n:：\]]{1,72}[:：\]])", re.M)
_CODE = lazy_pattern(r"[{}()=\"'`;]")
_WORD = lazy_pattern(r"[^\W\d_]+")
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
    "state of the work",
    "passages recalled",
    "end of ",
    "section ",
)
_LOOKALIKE = str.maketrans(
    "аеорсухіѕјԁкмтвнАЕОРСУХІЅЈКМТВНαεορτυικΑΕΟΡΤΥΙΚνΜΝ", "aeopcyxisjdkmtbhAEOPCYXISJKMTBHaeoptuikAEOPTYIKvMN"
)
_NAME_PAIRS = (
    *(("api", "key"), ("access", "token"), ("auth", "token"), ("refresh", "token"), ("access", "key")),
    *((first, second) for first in ("client", "secret") for second in ("secret", "key")),
)
_SECRET_NAMES = (
    *("password", "passwd", "pwd", "passphrase", "_secret"),
    *(f"{first}{link}{second}" for first, second in _NAME_PAIRS for link in ("", "_", "-")),
)
_QUOTE = r"\\*[\"']?"  # JSON in JSON has backslashes before it
_WORD_BEGINS = r"(?:\b|(?<=\\[nrt]))"  # also behind the end of a line as JSON has it, whose last sign is a letter
_NAMED_SECRET = (
    rf"(?:(?<!\w)|(?<=\\[nrt])|(?-i:{_WORD_BEGINS}[A-Z][A-Z0-9_]{{0,64}}_))"  # also "DB_PASSWORD"
    r"(?:passw(?:or)?d|pwd|passphrase|api[_-]?key|(?:access|auth|refresh)[_-]?token|(?:client|secret)[_-]?(?:secret|key)"
    r"|(?:aws[_-]?)?secret[_-]?access[_-]?key|(?-i:(?<=_)SECRET))"
    rf"{_QUOTE}\s*[:=]\s*(?:\\*\"[^\"\n]{{6,}}\"|\\*'[^'\n]{{6,}}'|[^\s\"',;]{{6,}})"
)
_SIGNS = r"[\w.+/~!@#$%^*-]"  # without those before a value, so that a long text is read once
# names that code and prose use too: a letter and a digit in the value tell a credential from another name
_PERHAPS_SECRET = (
    r"(?:(?<![\w.-])|(?<=\\[nrt]))"
    r"(?:SECRET|[A-Z][A-Z0-9_]{0,64}_TOKEN|[a-z][a-z0-9_]{0,64}_(?:password|passwd|pwd|passphrase|secret|api_key))"
    rf"{_QUOTE}\s*[:=]\s*{_QUOTE}(?={_SIGNS}*[0-9])(?={_SIGNS}*[A-Za-z])\w{_SIGNS}{{7,}}+=*+(?![\w(\[{{<])"
)
_GITLAB = "pat|dt|ft|soat|rt|ptt|agent|oas|cbt|imt"
# each with what its text in lower case holds at least: most texts hold none of it
_SECRETS: tuple[tuple[str, tuple[str, ...], re.Pattern[str]], ...] = tuple(
    (
        name,
        signs,
        lazy_pattern(pattern.replace(r"\b", _WORD_BEGINS, 1) if pattern.startswith(r"\b") else pattern, flags),
    )
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
        (
            "AWS secret",
            ("secret",),
            rf"(?<=secret)[\w ]{{0,16}}{_QUOTE}\s*[:=]\s*{_QUOTE}[A-Za-z0-9/+]{{40}}(?![\w/+])",
            re.I,
        ),
        (
            "GitHub token",
            ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
            r"\b(?:gh[pousr]_\w{20,}|github_pat_\w{20,})",
            0,
        ),
        (
            "GitLab token",
            tuple(f"gl{kind}-" for kind in _GITLAB.split("|")),
            rf"\bgl(?:{_GITLAB})-[\w-]{{16,}}",
            0,
        ),
        (
            "Slack token",
            ("xox", "slack.com"),
            r"\bxox[abeoprs]-[\w-]{10,}|https://hooks\.slack\.com/services/[\w/]+",
            0,
        ),
        ("Google key", ("aiza",), r"\bAIza[\w-]{30,}", 0),
        ("Hugging Face token", ("hf_",), r"\bhf_\w{20,}", 0),
        ("npm token", ("npm_",), r"\bnpm_\w{30,}", 0),
        ("PyPI token", ("pypi-",), r"\bpypi-(?:AgE[\w-]{12,}|[\w-]{40,})", 0),
        ("Groq key", ("gsk_",), r"\bgsk_[A-Za-z0-9]{20,}", 0),
        ("xAI key", ("xai-",), r"\bxai-[A-Za-z0-9_-]{20,}", 0),
        ("Perplexity key", ("pplx-",), r"\bpplx-[A-Za-z0-9]{20,}", 0),
        ("Replicate token", ("r8_",), r"\br8_[A-Za-z0-9]{20,}", 0),
        ("Cerebras key", ("csk-",), r"\bcsk-[a-z0-9]{24,}", 0),
        ("NVIDIA key", ("nvapi-",), r"\bnvapi-[\w-]{20,}", 0),
        ("Fireworks key", ("fw_",), r"\bfw_[A-Za-z0-9]{20,}", 0),
        ("Together key", ("tgp_v1_",), r"\btgp_v1_[\w-]{20,}", 0),
        ("Tavily key", ("tvly-",), r"\btvly-[\w-]{20,}", 0),
        ("Firecrawl key", ("fc-",), r"\bfc-[0-9a-f]{32}", 0),
        ("Jina key", ("jina_",), r"\bjina_[A-Za-z0-9_-]{30,}", 0),
        ("LlamaCloud key", ("llx-",), r"\bllx-[A-Za-z0-9]{20,}", 0),
        ("LangSmith key", ("lsv2_",), r"\blsv2_(?:pt|sk)_[0-9a-f]{24,}_?[0-9a-f]*", 0),
        ("Pinecone key", ("pcsk_",), r"\bpcsk_\w{20,}", 0),
        ("E2B key", ("e2b_",), r"\be2b_[0-9a-f]{20,}", 0),
        ("Apify token", ("apify_api_",), r"\bapify_api_[A-Za-z0-9]{20,}", 0),
        ("Databricks token", ("dapi",), r"\bdapi[0-9a-f]{32}(?:-\d)?", 0),
        ("DigitalOcean token", ("_v1_",), r"\bdo[opr]_v1_[0-9a-f]{32,}", 0),
        (
            "Shopify token",
            ("shpat_", "shpca_", "shppa_", "shpss_", "shptka_"),
            r"\bshp(?:at|ca|pa|ss|tka)_[0-9A-Fa-f]{32,}",
            0,
        ),
        ("Google access token", ("ya29.",), r"\bya29\.[\w.-]{20,}", 0),
        ("Google client secret", ("gocspx-",), r"\bGOCSPX-[\w-]{20,}", 0),
        ("Slack app token", ("xapp-",), r"\bxapp-\d-[\w-]{20,}", 0),
        ("Stripe webhook secret", ("whsec_",), r"\bwhsec_[A-Za-z0-9+/=]{24,}", 0),
        ("Notion token", ("ntn_",), r"\bntn_[A-Za-z0-9]{40,}", 0),
        ("Linear key", ("lin_",), r"\blin_(?:api|oauth)_[A-Za-z0-9]{30,}", 0),
        ("Airtable token", ("pat",), r"\bpat[A-Za-z0-9]{14}\.[0-9a-f]{64}", 0),
        ("Figma token", ("figd_", "figo_", "figu_", "figr_"), r"\bfig[dour]_[\w-]{30,}", 0),
        ("Atlassian token", ("atatt3", "atbb"), r"\b(?:ATATT3[\w=-]{40,}|ATBB[A-Za-z0-9]{28,})", 0),
        ("Telegram token", (":aa",), r"\b\d{8,10}:AA[\w-]{33}", 0),
        ("Twilio key", tuple(f"sk{digit}" for digit in "0123456789abcdef"), r"\bSK[0-9a-f]{32}", 0),
        ("Mailgun key", ("key-",), r"\bkey-[0-9a-f]{32}", 0),
        ("Mailchimp key", ("-us",), r"\b[0-9a-f]{32}-us\d{1,2}", 0),
        ("Brevo key", ("xkeysib-",), r"\bxkeysib-[0-9a-f]{64}-\w{16}", 0),
        ("Square token", ("sq0",), r"\bsq0(?:atp|csp|idp)-[\w-]{20,}", 0),
        ("Dropbox token", ("sl.",), r"\bsl\.[\w-]{80,}", 0),
        ("Vault token", ("hvs.", "hvb.", "hvr."), r"\bhv[sbr]\.[\w-]{24,}", 0),
        ("Terraform token", (".atlasv1.",), r"\b[A-Za-z0-9]{14}\.atlasv1\.[\w-]{60,}", 0),
        ("Doppler token", ("dp.",), r"\bdp\.(?:pt|st|ct|sa|scim|audit)\.\w{40,}", 0),
        ("Supabase key", ("sbp_", "sb_secret_"), r"\b(?:sbp_[0-9a-f]{40}|sb_secret_[\w-]{20,})", 0),
        ("Netlify token", ("nfp_",), r"\bnfp_[A-Za-z0-9]{36,}", 0),
        ("Heroku key", ("hrku-",), r"\bHRKU-[\w-]{30,}", 0),
        ("New Relic key", ("nrak-",), r"\bNRAK-[A-Z0-9]{27}", 0),
        ("Grafana token", ("glsa_", "glc_"), r"\bgl(?:sa_[A-Za-z0-9]{32}_[0-9a-f]{8}|c_[A-Za-z0-9+/]{32,}=*)", 0),
        ("Sentry token", ("sntry",), r"\bsntry[su]_[A-Za-z0-9+/=_-]{40,}", 0),
        ("PostHog key", ("phx_",), r"\bphx_[A-Za-z0-9]{40,}", 0),
        ("RubyGems key", ("rubygems_",), r"\brubygems_[0-9a-f]{48}", 0),
        ("crates.io token", ("cio",), r"\bcio[A-Za-z0-9]{32}", 0),
        ("Docker Hub token", ("dckr_pat_",), r"\bdckr_pat_[\w-]{20,}", 0),
        ("PlanetScale token", ("pscale_",), r"\bpscale_(?:tkn|pw|oauth)_[\w.-]{30,}", 0),
        ("Postman key", ("pmak-",), r"\bPMAK-[0-9a-f]{24}-[0-9a-f]{34}", 0),
        ("Pulumi token", ("pul-",), r"\bpul-[0-9a-f]{40}", 0),
        ("Tailscale key", ("tskey-",), r"\btskey-[a-z]+-[\w-]{16,}", 0),
        ("Alibaba key", ("ltai",), r"\bLTAI[A-Za-z0-9]{16,}", 0),
        ("Tencent key", ("akid",), r"\bAKID[A-Za-z0-9]{32}", 0),
        ("age key", ("age-secret-key-",), r"\bAGE-SECRET-KEY-1[A-Z0-9]{58}", 0),
        ("SendGrid key", ("sg.",), r"\bSG\.[\w-]{16,}\.[\w-]{16,}", 0),
        ("JSON web token", ("eyj",), r"\beyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]*", 0),
        (
            "authorization",
            ("authorization",),
            rf"(?<=authorization){_QUOTE}\s*[:=]\s*{_QUOTE}(?:bearer|basic|token)\s+[\w.~+/=-]{{8,}}",
            re.I,
        ),
        ("bearer token", ("bearer",), r"\bbearer\s+[\w.~+/-]{20,}=*", re.I),
        ("storage key", ("accountkey=",), r"(?<=AccountKey=)[\w+/]{40,}=*", re.I),
        ("password in a URL", ("://",), r"(?<=://)[^\s/:@]{1,64}:[^\s/@]{1,128}(?=@)", 0),
        ("password", _SECRET_NAMES, _NAMED_SECRET, re.I),
        (
            "password",
            ("secret", "_token", "_password", "_passwd", "_pwd", "_passphrase", "_api_key"),
            _PERHAPS_SECRET,
            0,
        ),
    )
)


def neutral(text: str) -> str:
    """Returns text without control, direction and other invisible characters, and with markup that imitates ours defused."""
    plain = text if text.isascii() else _LINE_ENDS.sub(" ", text)
    plain = _INVISIBLE.sub("", plain)
    if "\u200c" in plain or "\u200d" in plain:
        plain = _JOINER.sub("", plain)
    return plain.replace("</", "<\\/").replace("<|", "<\\|").replace("<｜", "<\\｜")


def strip_control_chars(text: str) -> str:
    """Returns text in which ctxfold's markup, and tokens that models read as turns, are markup no more."""
    plain = neutral(text)
    if "<" in plain or "＜" in plain:
        plain = _MARKUP.sub("‹", plain)
    return _TEMPLATE.sub(r"(\1)", plain) if "[" in plain or "<" in plain else plain


def quoted_name(name: str) -> str:
    """Returns a name as a JSON string on one line: a name that a user chose cannot pass for lines of a text that a model reads."""
    return json.dumps(strip_control_chars(name), ensure_ascii=False)


def _any_of(words: Iterable[str]) -> re.Pattern[str]:
    """Returns a pattern of all the words in which common beginnings stand once: four times as fast as a search for each."""
    beginnings: dict[str, Any] = {}
    for word in words:
        rest = beginnings
        for letter in word:
            rest = rest.setdefault(letter, {})
        rest[""] = {}

    def pattern(rest: dict[str, Any]) -> str:
        if "" in rest:
            return ""  # a word ends here: whatever follows, it was found
        return f"(?:{'|'.join(re.escape(letter) + pattern(each) for letter, each in sorted(rest.items()))})"

    return re.compile(pattern(beginnings))


@cache
def _any_sign() -> re.Pattern[str]:
    return _any_of(sign for _, signs, _ in _SECRETS for sign in signs)


def redacted(text: str) -> str:
    """Returns text in which credentials of common shapes are replaced by their kind."""
    folded = text.casefold()  # as the patterns that ignore case do, long s and Kelvin sign included
    if not _any_sign().search(folded):
        return text
    for name, signs, pattern in _SECRETS:
        for sign in signs:
            if sign in folded:
                text = pattern.sub(f"[redacted: {name}]", text)
                break
    return text


def without_private_keys(text: str) -> str:
    """Returns text without keys that span lines; call it before the text is split into lines."""
    return _SECRETS[0][2].sub(f"[redacted: {_SECRETS[0][0]}]", text) if "PRIVATE KEY-----" in text else text


def as_quoted_data(text: str, *, max_chars: int | None = None) -> str:
    """Returns third-party text marked as quoted data, see the module. A longer text is cut at `max_chars`, with a note."""
    whole = len(text)
    if max_chars is not None and whole > 4 * max_chars + 4_096:
        text = text[: 4 * max_chars + 4_096]  # no pattern is run over megabytes that nobody will see
    shown = redacted(_BEGINNING.sub(_marked, strip_control_chars(text)))
    if max_chars is None or (len(shown) <= max_chars and whole == len(text)):
        return shown
    shown = shown[:max_chars].rstrip()
    return f"{shown} [... {max(whole - len(shown), 1):,} characters more]"


def _marked(match: re.Match[str]) -> str:
    """Returns the line's beginning, marked where it reads as a speaker's name or as one of ctxfold's headings."""
    folded = unicodedata.normalize("NFKC", match[2])
    folded = folded.replace("\u200c", "").replace("\u200d", "")
    plain = folded.translate(_LOOKALIKE).casefold().strip("[] :：\t")
    words = _WORD.findall(plain)
    named = {*words, *_WORD.findall(folded.casefold())} & _TURN_NAMES
    speaks = bool(named) and len(words) <= 2 and not _CODE.search(match[0])
    return f"{match[1]}{MARK} {match[2]}" if speaks or plain.startswith(_OWN_HEADINGS) else match[0]
