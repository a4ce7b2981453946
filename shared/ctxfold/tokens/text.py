"""Counts the tokens of text: with a tiktoken encoding where its file is on disk, and by character classes elsewhere."""

from __future__ import annotations

import binascii
import hashlib
import importlib.util
import os
import re
import tempfile
import threading
import time
import urllib.request
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol

from ctxfold.errors import ConfigError, CtxWarning
from ctxfold.lru import lazy_pattern

if TYPE_CHECKING:
    from tiktoken import Encoding
import json
from collections.abc import Iterable
from functools import lru_cache

from ctxfold.messages import (
    MediaPart,
    Message,
    ProviderSummary,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    ToolSpec,
)
from ctxfold.tokens.media import medium_of, medium_tokens
from ctxfold.validation import json_problem

DOWNLOAD_DEADLINE_S: Final = 3.0
_BLOCK_CHARS: Final = 2048


class EncodingNotFoundError(ConfigError):
    """The file of the encoding is not on this machine and could not be downloaded in time."""


class TextCounter(Protocol):
    """Counts the tokens of one text; equal ids mean equal counts."""

    @property
    def id(self) -> str: ...

    def count(self, text: str) -> int: ...


@dataclass(frozen=True, slots=True)
class _EncodingFile:
    """The address of an encoding, its digest, and the pattern that splits text before merging."""

    url: str
    sha256: str
    pattern: str

    @property
    def cache_key(self) -> str:
        """Returns the file name that tiktoken uses in its cache folders."""
        return hashlib.sha1(self.url.encode(), usedforsecurity=False).hexdigest()


_UPPER: Final = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}"
_LOWER: Final = r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_LEAD: Final = r"[^\r\n\p{L}\p{N}]?"
_CONTRACTION: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_PUBLISHED: Final = "https://openaipublic.blob.core.windows.net/encodings/"
_FILES: Final[Mapping[str, _EncodingFile]] = MappingProxyType(
    {
        "cl100k_base": _EncodingFile(
            url=f"{_PUBLISHED}cl100k_base.tiktoken",
            sha256="223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
            pattern=rf"{_CONTRACTION}|{_LEAD}\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*"
            r"|\s*[\r\n]+|\s+(?!\S)|\s+",
        ),
        "o200k_base": _EncodingFile(
            url=f"{_PUBLISHED}o200k_base.tiktoken",
            sha256="446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
            pattern=rf"{_LEAD}[{_UPPER}]*[{_LOWER}]+{_CONTRACTION}?|{_LEAD}[{_UPPER}]+[{_LOWER}]*{_CONTRACTION}?"
            r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ),
    }
)
_CL100K_MODELS: Final = lazy_pattern(r"(gpt-4(?![.o\d])|gpt-3|davinci-002|babbage-002|text-embedding-)")


def encoding_name(model: str | None) -> str:
    """Returns the encoding of an OpenAI model name, also `openai/...` and `ft:...`; the newest for an unknown model."""
    bare = (model or "").strip().lower().rpartition("/")[2].removeprefix("ft:")
    return "cl100k_base" if _CL100K_MODELS.match(bare) else "o200k_base"


class _Encodings:
    """Caches the encodings of this process: each is loaded once, and a failed download is not repeated."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loaded: dict[str, Encoding] = {}
        self._failed_downloads: dict[str, str] = {}
        self._warned = False

    def get(self, name: str, *, allow_download: bool) -> Encoding:
        """Returns the encoding; raises EncodingNotFoundError within the download deadline."""
        file = _FILES.get(name)
        if file is None:
            raise ConfigError(f"encoding {name!r} is not one of {len(_FILES)}: use {' or '.join(_FILES)}")
        with self._lock:
            if (loaded := self._loaded.get(name)) is not None:
                return loaded
            data = _read_cached(file) or self._download(name, file, allow_download=allow_download)
            self._loaded[name] = encoding = _build(name, file, data)
            return encoding

    def _download(self, name: str, file: _EncodingFile, *, allow_download: bool) -> bytes:
        if not allow_download or os.environ.get("CTXFOLD_OFFLINE", "").lower() in {"1", "true", "yes"}:
            reason = "downloads are switched off"
        elif (failed := self._failed_downloads.get(name)) is not None:
            reason = failed
        else:
            outcome = _download_within(file, DOWNLOAD_DEADLINE_S)
            if isinstance(outcome, bytes):
                return outcome
            self._failed_downloads[name] = reason = outcome
        folders = list(_cache_folders())
        raise EncodingNotFoundError(
            f"encoding {name} is in none of {len(folders)} cache folders and {reason}: put its file, named "
            f"{file.cache_key}, into a folder and set TIKTOKEN_CACHE_DIR to it, "
            "or install llama-index-core, which has it"
        )

    def warn_once(self, cause: EncodingNotFoundError) -> None:
        """Warns once per process, however many counters fall back."""
        with self._lock:
            first, self._warned = not self._warned, True
        if first:
            warnings.warn(f"tokens are estimated by character class, not counted: {cause}", CtxWarning, stacklevel=3)


_encodings: Final = _Encodings()


def _cache_folders() -> Iterator[Path]:
    """Yields the folders that may hold encoding files, in the order in which they are tried."""
    for variable in ("TIKTOKEN_CACHE_DIR", "DATA_GYM_CACHE_DIR"):
        if folder := os.environ.get(variable):
            yield Path(folder)
    yield _own_cache_folder()
    # only its folder is looked up: importing llama_index takes a second
    spec = importlib.util.find_spec("llama_index")
    for root in (spec.submodule_search_locations or ()) if spec else ():
        yield Path(root) / "core" / "_static" / "tiktoken_cache"
    yield Path(tempfile.gettempdir()) / "data-gym-cache"


def _own_cache_folder() -> Path:
    if folder := os.environ.get("CTXFOLD_CACHE_DIR"):
        return Path(folder)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path(os.path.expanduser("~")) / ".cache") / "ctxfold" / "tiktoken"


def _read_cached(file: _EncodingFile) -> bytes | None:
    for folder in _cache_folders():
        try:
            data = (folder / file.cache_key).read_bytes()
        except OSError:
            continue  # absent or unreadable here: the next folder may have it
        if _is_intact(file, data):
            return data
    return None


def _is_intact(file: _EncodingFile, data: bytes) -> bool:
    return hashlib.sha256(data).hexdigest() == file.sha256


def _download_within(file: _EncodingFile, deadline_s: float) -> bytes | str:
    """Returns the verified file, also stored in the cache folder, or the reason why there is none; obeys the deadline."""
    outcome: list[bytes | str] = []
    end = time.monotonic() + deadline_s
    # a thread, as name resolution knows no time-out; a daemon, so that a hung one does not delay the exit
    worker = threading.Thread(
        target=lambda: outcome.append(_fetch(file.url, end)), name="ctxfold-encoding", daemon=True
    )
    worker.start()
    worker.join(deadline_s)
    result = outcome[0] if outcome else f"the download did not finish within {deadline_s:g} s"
    if isinstance(result, bytes):
        if not _is_intact(file, result):
            return f"the download ({len(result)} bytes) is not the published file"
        _store(_own_cache_folder() / file.cache_key, result)
    return result


def _fetch(url: str, end: float) -> bytes | str:
    try:
        with urllib.request.urlopen(url, timeout=max(0.1, end - time.monotonic())) as response:
            parts: list[bytes] = []
            while part := response.read(1 << 16):
                parts.append(part)
                if time.monotonic() > end:
                    return "the download was too slow"
            return b"".join(parts)
    except (OSError, ValueError) as error:
        return f"the download failed ({error})"


def _store(path: Path, data: bytes) -> None:
    """Stores the file if possible; with a read-only home, the next process downloads it again."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError:
        with suppress(OSError):  # the folder may be a file, and on Windows a scanner may hold the temporary file open
            temporary.unlink()


def _build(name: str, file: _EncodingFile, data: bytes) -> Encoding:
    from tiktoken import Encoding

    fields = data.split()  # a token and its rank in each of 200,000 lines: no loop of Python's
    ranks = dict(zip(map(binascii.a2b_base64, fields[::2]), map(int, fields[1::2]), strict=True))
    return Encoding(name, pat_str=file.pattern, mergeable_ranks=ranks, special_tokens={})


# Where every encoding starts a new piece: after a letter or digit, before space or a sign (no apostrophe).
_LAST_SAFE_CUT: Final = lazy_pattern(r"(?s:.*)[^\W_](?=[\s!-&(-/:-@\[-`{-~、。，！？；：…])")


def _blocks(text: str) -> Iterator[str]:
    """Yields the text in blocks of bounded length, cut where tokens end if there is such a place.

    Merging takes more than linear time in an unbroken run, and matching recurses on it: a megabyte of one letter would stall.
    Only a run of over 2,048 characters without a safe place is cut inside.
    """
    start = 0
    while len(text) - start > _BLOCK_CHARS:
        limit = start + _BLOCK_CHARS
        # one character more than the block, so that the look-ahead sees what follows it
        cut = _LAST_SAFE_CUT.match(text, start, limit + 1)
        end = cut.end() if cut else limit
        yield text[start:end]
        start = end
    yield text[start:]


class TiktokenCounter:
    """Counts exactly with an OpenAI encoding; safe across threads; special tokens count as plain text."""

    __slots__ = ("_encode", "_id")

    def __init__(self, encoding: str = "o200k_base", *, allow_download: bool = True) -> None:
        """Loads the encoding, 0.2-0.4 s once per process; raises EncodingNotFoundError within 3 s."""
        loaded = _encodings.get(encoding, allow_download=allow_download)
        self._encode: Callable[[str], list[int]] = loaded.encode_ordinary
        self._id = f"tiktoken:{encoding}"

    @property
    def id(self) -> str:
        """Returns `tiktoken:` and the encoding."""
        return self._id

    def count(self, text: str) -> int:
        """Returns the tokens of the text in linear time; a lone surrogate counts as its replacement character."""
        try:
            text.encode()
        except UnicodeEncodeError:
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        if len(text) <= _BLOCK_CHARS:
            return len(self._encode(text))
        return sum(len(self._encode(block)) for block in _blocks(text))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._id}>"


_CJK_RUN: Final = lazy_pattern(
    "[\u1100-\u11ff\u2e80-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\ufe30-\ufe4f\uff00-\uffef\U00020000-\U0003ffff]+"
)
_NON_ASCII_RUN: Final = lazy_pattern("[^\x00-\x7f]+")
_SYMBOL_RUN: Final = lazy_pattern("[\u2190-\u2bff\ud800-\uf8ff\ufe00-\ufe0f\U0001f000-\U0001ffff]+")
_MICRO: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class RatioCounter:
    """Estimates tokens from the number of characters of each class; equal on every machine."""

    ascii_per_token: float = 4.0
    """Characters of ASCII text in one token."""
    cjk_tokens_per_char: float = 0.6
    """Tokens of a Chinese, Japanese or Korean character or full-width sign."""
    other_tokens_per_char: float = 0.45
    """Tokens of a character of any other alphabet."""
    symbol_tokens_per_char: float = 1.5
    """Tokens of an emoji, arrow, dingbat, private or broken character."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value: float = getattr(self, name)
            if not 0.01 <= value <= 100:
                raise ConfigError(f"{name} is {value}: give a number from 0.01 to 100")

    @property
    def id(self) -> str:
        """Returns `ratio:` and the four parameters."""
        return (
            f"ratio:{self.ascii_per_token:g},{self.cjk_tokens_per_char:g},"
            f"{self.other_tokens_per_char:g},{self.symbol_tokens_per_char:g}"
        )

    def count(self, text: str) -> int:
        """Returns the estimated tokens, rounded up; 0 for the empty text only."""
        cjk = symbols = others = 0
        if not text.isascii():
            cjk = _chars(_CJK_RUN, text)
            symbols = _chars(_SYMBOL_RUN, text)
            others = _chars(_NON_ASCII_RUN, text) - cjk - symbols
        plain = len(text) - cjk - symbols - others
        # integers, so that the sum does not depend on the order or the machine
        micro_tokens = (
            plain * round(_MICRO / self.ascii_per_token)
            + cjk * round(_MICRO * self.cjk_tokens_per_char)
            + others * round(_MICRO * self.other_tokens_per_char)
            + symbols * round(_MICRO * self.symbol_tokens_per_char)
        )
        return -(-micro_tokens // _MICRO)


def _chars(runs: re.Pattern[str], text: str) -> int:
    return sum(map(len, runs.findall(text)))


def text_counter(model: str | None = None, *, encoding: str | None = None, allow_download: bool = True) -> TextCounter:
    """Returns an exact counter when its encoding is available within 3 s, else a RatioCounter with one warning.

    An explicit encoding takes precedence over the model's; for an unknown model, OpenAI's newest encoding is used.
    CTXFOLD_OFFLINE=1 or `allow_download=False` forbids the network. Equal encodings share their tables.
    """
    try:
        return TiktokenCounter(encoding or encoding_name(model), allow_download=allow_download)
    except EncodingNotFoundError as missing:
        _encodings.warn_once(missing)
        return RatioCounter()


if TYPE_CHECKING:
    _tiktoken: TextCounter = TiktokenCounter()
    _ratio: TextCounter = RatioCounter()


MESSAGE_OVERHEAD_TOKENS = 4  # role and separators, as in OpenAI's published counting recipe for chat messages
LONG_TEXT_CHARS = 20_000  # the counts of texts from this length on are cached
LONG_TEXTS = 8  # number of cached counts of long texts
# number of cached counts of media, as a message is counted several times and its data is large, and of tools, the same each turn
COUNTS_KEPT = 1_024


class MessageCounter:
    """Counts the tokens of messages and tools: visible text, tool calls and results, media, and reasoning that is sent."""

    def __init__(self, text: TextCounter, *, count_reasoning: bool = True) -> None:
        self._text = text
        # a long text is counted several times before it is stored, the first time in a worker thread
        self._long = lru_cache(maxsize=LONG_TEXTS)(text.count)
        self._schemas = lru_cache(maxsize=COUNTS_KEPT)(text.count)
        self._newest: tuple[Message | None, int] = (None, 0)  # and so is each message
        self._count_reasoning = count_reasoning
        self._media: dict[tuple[str, str | None, int, int], int] = {}
        self.id = f"{text.id}{'+reasoning' if count_reasoning else ''}"

    def count(self, message: Message) -> int:
        counted, total = self._newest
        if counted is not message:
            total = self._counted(message)
            self._newest = (message, total)
        return total

    def _counted(self, message: Message) -> int:
        total = MESSAGE_OVERHEAD_TOKENS
        for part in message.parts:
            match part:
                case TextPart(text=text):
                    total += self.count_text(text)
                case ReasoningPart(text=text):
                    total += self._text.count(text) if self._count_reasoning else 0
                case ToolCallPart():
                    total += MESSAGE_OVERHEAD_TOKENS + self._text.count(f"{part.id}{part.name}{part.arguments}")
                case ToolResultPart():
                    total += self.count_text(part.content) + self._text.count(part.call_id)
                case MediaPart():
                    total += self._count_medium(part)
                case _:
                    continue
        provided = ProviderSummary.of(message)
        return total if provided is None else max(total, MESSAGE_OVERHEAD_TOKENS + provided.tokens)

    def _count_medium(self, part: MediaPart) -> int:
        key = (part.kind, part.mime, len(part.data), hash(part.data))
        known = self._media.get(key)
        if known is None:
            known = medium_tokens(medium_of(part), self.count_text)
            if len(self._media) >= COUNTS_KEPT:
                self._media.clear()
            self._media[key] = known
        return known

    def count_all(self, messages: Iterable[Message]) -> int:
        return sum(self.count(m) for m in messages)

    def count_text(self, text: str) -> int:
        return self._long(text) if len(text) >= LONG_TEXT_CHARS else self._text.count(text)

    def count_tools(self, tools: Iterable[ToolSpec]) -> int:
        """Counts the JSON schemas of the tools; raises ConfigError for a schema that is not JSON."""
        return sum(MESSAGE_OVERHEAD_TOKENS + self._schemas(_schema(t)) for t in tools)


def _schema(tool: ToolSpec) -> str:
    try:
        return json.dumps([tool.name, tool.description, dict(tool.parameters)], ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"the parameters of tool {tool.name!r} are not JSON ({json_problem(error)}): give a JSON schema of plain values"
        ) from None
