"""Counts tokens of messages, text and media without a network.

Text is counted with a tiktoken encoding where its file is on disk, and by character classes elsewhere. Media are estimated
from the type, size and length in their headers. Providers publish formulas that differ by a factor of two to three, so an
estimate takes the higher one; the calibration from reported usage corrects the rest."""

from __future__ import annotations

import base64
import binascii
import hashlib
import importlib.util
import json
import os
import re
import struct
import tempfile
import threading
import time
import urllib.request
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from ctxfold.errors import ConfigError
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
from ctxfold.validation import json_problem

if TYPE_CHECKING:
    from tiktoken import Encoding


DOWNLOAD_DEADLINE_S: Final = 3.0
_BLOCK_CHARS: Final = 2048


class CtxWarning(UserWarning):
    """Warns about something that works less well than it could; the message says what to do."""


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
_CL100K_MODELS: Final = re.compile(r"(gpt-4(?![.o\d])|gpt-3|davinci-002|babbage-002|text-embedding-)")


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

    rows = (line.split() for line in data.splitlines() if line)
    ranks = {base64.b64decode(token): int(rank) for token, rank in rows}
    return Encoding(name, pat_str=file.pattern, mergeable_ranks=ranks, special_tokens={})


# Where every encoding starts a new piece: after a letter or digit, before space or a sign (no apostrophe).
_LAST_SAFE_CUT: Final = re.compile(r"(?s:.*)[^\W_](?=[\s!-&(-/:-@\[-`{-~、。，！？；：…])")


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


_CJK_RUN: Final = re.compile(
    "[\u1100-\u11ff\u2e80-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\ufe30-\ufe4f\uff00-\uffef\U00020000-\U0003ffff]+"
)
_NON_ASCII_RUN: Final = re.compile("[^\x00-\x7f]+")
_SYMBOL_RUN: Final = re.compile("[\u2190-\u2bff\ud800-\uf8ff\ufe00-\ufe0f\U0001f000-\U0001ffff]+")
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


UNKNOWN_IMAGE_TOKENS = 800  # a mid-sized image; providers charge between 85 and 1,600
LOW_DETAIL_TOKENS = 85  # OpenAI, "detail": "low": https://platform.openai.com/docs/guides/images-vision
# Anthropic: 1,500 to 3,000 tokens of text for a page, by its density: https://docs.claude.com/en/docs/build-with-claude/pdf-support
PAGE_TOKENS = 2_000
PAGE_BYTES = 50_000  # of a PDF whose page marks are compressed
# The least that a page with a word on it takes in a PDF: its dictionary, its place among its parent's children and in the table of
# objects take about 150 bytes, its stream of text about 100. Real pages take kilobytes, so this bounds forged files alone.
LEAST_PAGE_BYTES = 250
# Gemini: 32 tokens for a second of sound, and 258 for each frame, one a second: https://ai.google.dev/gemini-api/docs/tokens
AUDIO_TOKENS_A_SECOND = 32
VIDEO_TOKENS_A_SECOND = 290
AUDIO_BYTES_A_SECOND = 8_000  # 64 kbit/s, compressed speech
VIDEO_BYTES_A_SECOND = 125_000  # 1 Mbit/s
BYTES_PER_TOKEN = 4  # of a file of another type
HEAD_CHARS = 262_144  # of base64: headers of photographs hold a preview before the dimensions
DEPTH = 4  # a block holds its data under one or two names
_PAGE = re.compile(rb"/Type\s{0,8}/Page(?![a-zA-Z])")
_TEXTUAL = re.compile(
    r"text/|application/(?:json|xml|yaml|x-yaml|toml|csv|javascript|x-ndjson|sql)\b|.*\+(?:json|xml)\b", re.I
)
_SUFFIXES = {
    "csv": "text/csv",
    "html": "text/html",
    "json": "application/json",
    "md": "text/markdown",
    "pdf": "application/pdf",
    "txt": "text/plain",
    "xml": "text/xml",
}
_DATA_URL = re.compile(r"data:([^;,]{0,127})[^,]{0,127};base64,")
_TEXT_KEYS = frozenset({"text", "content", "title", "context", "data"})
_DATA_KEYS = frozenset({"base64", "data", "file_data", "bytes", "image", "audio"})


@dataclass(frozen=True, slots=True)
class Medium:
    """An image, file or sound: `size` in bytes, `width` and `height` in pixels, length in `seconds`; None when unknown."""

    kind: str
    mime: str | None = None
    size: int | None = None
    width: int | None = None
    height: int | None = None
    pages: int | None = None
    seconds: float | None = None
    url: str | None = None
    text: str | None = None
    detail: str | None = None

    def __str__(self) -> str:
        """Returns a description, such as `image, image/png, 640 x 480 pixels, 12,345 bytes`."""
        words = [self.kind, self.mime or ""]
        words += [f"{self.width} x {self.height} pixels"] if self.width else []
        words += [f"{self.pages} pages"] if self.pages else []
        words += [f"{self.seconds:,.0f} seconds"] if self.seconds else []
        words += [f"{self.size:,} bytes"] if self.size is not None else []
        words += [self.url[:200]] if self.url else []
        return ", ".join(word for word in words if word)


def described(part: MediaPart) -> str:
    """Returns the properties of a medium in brackets, and below them the text that it holds."""
    medium = medium_of(part)
    return f"[{medium}]\n{medium.text}" if medium.text else f"[{medium}]"


def medium_of(part: MediaPart) -> Medium:
    """Returns the properties of a medium, read from its block and the header of its data."""
    try:
        data: object = json.loads(part.data)
    except (ValueError, RecursionError):
        data = None  # stored before parts were checked: the session stays readable, and the service refuses the part
    strings = dict(_strings(data, DEPTH))
    url = next((v for k, v in strings.items() if k.endswith("url") and not v.startswith("data:")), None)
    detail = strings.get("detail")
    encoded, mime = _encoded(strings, part.mime)
    kind = _kind(part.kind, mime, data)
    if encoded is None:
        text = "\n".join(_texts(data, DEPTH)) or None
        return Medium(kind, mime, url=url, text=text, detail=detail)
    size = len(encoded) * 3 // 4 - encoded[-2:].count("=")
    if kind == "image":
        width, height = dimensions(_decoded(encoded[:HEAD_CHARS]))
        return Medium(kind, mime, size, width, height, detail=detail)
    if kind == "audio":
        return Medium(kind, mime, size, seconds=_wave_seconds(_decoded(encoded[:HEAD_CHARS]), size))
    if mime == "application/pdf":
        marked_pages = min(len(_PAGE.findall(_decoded(encoded))), -(-size // LEAST_PAGE_BYTES))
        return Medium("document", mime, size, pages=marked_pages or max(1, -(-size // PAGE_BYTES)))
    if mime is not None and _TEXTUAL.match(mime):
        return Medium("document", mime, size, text=_decoded(encoded).decode("utf-8", "replace"))
    return Medium(kind, mime, size)


def medium_tokens(medium: Medium, count: Callable[[str], int]) -> int:
    """Estimates the tokens of a medium in a request; `count` counts text."""
    match medium.kind:
        case "image":
            return _image_tokens(medium)
        case "audio":
            seconds = medium.seconds or (medium.size or 0) / AUDIO_BYTES_A_SECOND
            return max(UNKNOWN_IMAGE_TOKENS if medium.size is None else 0, _up(seconds * AUDIO_TOKENS_A_SECOND))
        case "video":
            seconds = (medium.size or 0) / VIDEO_BYTES_A_SECOND
            return max(UNKNOWN_IMAGE_TOKENS, _up(seconds * VIDEO_TOKENS_A_SECOND))
        case _ if medium.text is not None:
            return count(medium.text)
        case _ if medium.pages is not None:
            return medium.pages * PAGE_TOKENS
        case _:
            return max(UNKNOWN_IMAGE_TOKENS, (medium.size or 0) // BYTES_PER_TOKEN)


def _image_tokens(image: Medium) -> int:
    if image.detail == "low":
        return LOW_DETAIL_TOKENS
    if not image.width or not image.height:
        return UNKNOWN_IMAGE_TOKENS
    return max(_by_tiles(image.width, image.height), _by_area(image.width, image.height))


def _by_tiles(width: int, height: int) -> int:
    """Applies OpenAI's formula: scale to fit 2,048 x 2,048, then to a shorter side of 768; 85, and 170 per tile of 512 x 512."""
    scale = min(1.0, 2_048 / max(width, height))
    scale = min(scale, 768 / min(width, height))
    return 85 + 170 * _up(width * scale / 512) * _up(height * scale / 512)


def _by_area(width: int, height: int) -> int:
    """Applies Anthropic's formula: width x height / 750 after scaling to a longer side of 1,568; at most about 1,600 tokens."""
    scale = min(1.0, 1_568 / max(width, height))
    return min(1_600, _up(width * scale * height * scale / 750))


def _up(number: float) -> int:
    return -int(-number // 1)


# the data of a block


def _strings(value: object, depth: int, name: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, Mapping) and depth:
        for key, inner in cast("Mapping[str, Any]", value).items():
            yield from _strings(inner, depth - 1, str(key))


def _texts(value: object, depth: int, name: str = "") -> Iterator[str]:
    """Yields the text that a model sees of a block: an Anthropic document, a search result, a block of another framework."""
    if isinstance(value, str):
        if name in _TEXT_KEYS:
            yield value
    elif isinstance(value, Mapping) and depth:
        for key, inner in cast("Mapping[str, Any]", value).items():
            yield from _texts(inner, depth - 1, str(key))
    elif isinstance(value, list) and depth:
        for inner in cast("list[object]", value):
            yield from _texts(inner, depth - 1, name)


def _encoded(strings: Mapping[str, str], mime: str | None) -> tuple[str | None, str | None]:
    """Returns the base64 text and its media type, from a data URL or from the data field of a block."""
    media_type = next((strings[k] for k in ("media_type", "mime_type", "mime") if k in strings), mime)
    for value in strings.values():
        if prefix := _DATA_URL.match(value):
            return value[prefix.end() :], prefix[1] or media_type
    suffix = strings.get("filename", strings.get("format", "")).rpartition(".")[2].lower()
    media_type = media_type or _SUFFIXES.get(suffix) or (f"audio/{suffix}" if "format" in strings else None)
    if strings.get("type") == "text" or (
        media_type is not None and media_type.startswith("text/") and "base64" not in strings
    ):
        return None, media_type  # Anthropic's documents of plain text
    return next((v for k, v in strings.items() if k in _DATA_KEYS and v and not v.startswith("http")), None), media_type


def _kind(kind: str, mime: str | None, data: object) -> str:
    named = f"{kind} {cast('Mapping[str, Any]', data).get('type', '') if isinstance(data, Mapping) else ''}"
    for name in ("image", "audio", "video"):
        if name in named or (mime or "").startswith(f"{name}/"):
            return name
    return "document" if "document" in named else kind


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text[: len(text) // 4 * 4] or text + "=" * (-len(text) % 4))
    except (ValueError, binascii.Error):
        return b""


# headers


def dimensions(head: bytes) -> tuple[int | None, int | None]:
    """Returns width and height of a PNG, GIF, JPEG or WebP image from its first bytes; (None, None) when unknown."""
    try:
        if head[:8] == b"\x89PNG\r\n\x1a\n":
            width, height = struct.unpack(">II", head[16:24])
            return width, height
        if head[:6] in (b"GIF87a", b"GIF89a"):
            width, height = struct.unpack("<HH", head[6:10])
            return width, height
        if head[:2] == b"\xff\xd8":
            return _jpeg(head)
        if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
            return _webp(head)
    except struct.error:  # the header is cut short
        pass
    return None, None


def _jpeg(head: bytes) -> tuple[int | None, int | None]:
    at = 2
    while at + 9 <= len(head) and head[at] == 0xFF:
        marker = head[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack(">HH", head[at + 5 : at + 9])
            return width, height
        at += 2 + struct.unpack(">H", head[at + 2 : at + 4])[0]
    return None, None


def _webp(head: bytes) -> tuple[int | None, int | None]:
    match head[12:16]:
        case b"VP8X":
            return int.from_bytes(head[24:27], "little") + 1, int.from_bytes(head[27:30], "little") + 1
        case b"VP8 ":
            width, height = struct.unpack("<HH", head[26:30])
            return width & 0x3FFF, height & 0x3FFF
        case b"VP8L":
            bits = int.from_bytes(head[21:25], "little")
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case _:
            return None, None


def _wave_seconds(head: bytes, size: int) -> float | None:
    """Returns the length of a WAV file in seconds, from the byte rate in its header."""
    if head[:4] != b"RIFF" or head[8:12] != b"WAVE" or len(head) < 32:
        return None
    rate = int.from_bytes(head[28:32], "little")
    return size / rate if rate else None


MESSAGE_OVERHEAD_TOKENS = 4  # role and separators, as in OpenAI's published counting recipe for chat messages
LONG_TEXT_CHARS = 20_000  # the counts of texts from this length on are cached
LONG_TEXTS = 8  # number of cached counts of long texts
MEDIA_KEPT = 1_024  # number of cached counts of media: a message is counted several times, and its data is large


class MessageCounter:
    """Counts the tokens of messages and tools: visible text, tool calls and results, media, and reasoning that is sent."""

    def __init__(self, text: TextCounter, *, count_reasoning: bool = True) -> None:
        self._text = text
        # a long text is counted several times before it is stored, the first time in a worker thread
        self._long = lru_cache(maxsize=LONG_TEXTS)(text.count)
        self._count_reasoning = count_reasoning
        self._media: dict[tuple[str, str | None, int, int], int] = {}
        self.id = f"{text.id}{'+reasoning' if count_reasoning else ''}"

    def count(self, message: Message) -> int:
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
            if len(self._media) >= MEDIA_KEPT:
                self._media.clear()
            self._media[key] = known
        return known

    def count_all(self, messages: Iterable[Message]) -> int:
        return sum(self.count(m) for m in messages)

    def count_text(self, text: str) -> int:
        return self._long(text) if len(text) >= LONG_TEXT_CHARS else self._text.count(text)

    def count_tools(self, tools: Iterable[ToolSpec]) -> int:
        """Counts the JSON schemas of the tools; raises ConfigError for a schema that is not JSON."""
        return sum(MESSAGE_OVERHEAD_TOKENS + self._text.count(_schema(t)) for t in tools)


def _schema(tool: ToolSpec) -> str:
    try:
        return json.dumps([tool.name, tool.description, dict(tool.parameters)], ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"the parameters of tool {tool.name!r} are not JSON ({json_problem(error)}): give a JSON schema of plain values"
        ) from None
