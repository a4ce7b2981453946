"""Reads the type, size and length of images, files and sounds from their headers, and estimates their tokens.

Providers publish formulas that differ by a factor of two to three, so an estimate takes the higher one; the calibration from
reported usage corrects the rest.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from ctxfold.lru import lazy_pattern
from ctxfold.messages import MediaPart, Message, TextPart

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
_TEXTUAL = lazy_pattern(
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
_DATA_URL = lazy_pattern(r"data:([^;,]{0,127})[^,]{0,127};base64,")
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


def with_media_named(message: Message, number: int = 0, *, sized: bool = False) -> Message:
    """Returns the message with a line such as `[image, png, 2 kB, #17]` in place of each medium; `number` is the message's.

    With `sized`, the line of a picture has its width and height: `[image, 64x48, png, 2 kB]`.
    """
    lines = {p: TextPart(f"\n{_line_of(p, number, sized)}\n") for p in message.parts if isinstance(p, MediaPart)}
    if not lines:
        return message
    return replace(message, parts=tuple(lines[p] if isinstance(p, MediaPart) else p for p in message.parts))


def shown_text(message: Message, number: int = 0) -> str:
    """Returns what a message holds for a reader: its words, a line for each medium, and its calls."""
    calls = [f"-> {call.name}({call.arguments})" for call in message.tool_calls]
    return "\n".join(filter(None, [with_media_named(message, number, sized=True).text.strip("\n"), *calls]))


def images_of(message: Message) -> tuple[MediaPart, ...]:
    """Returns the pictures of a message."""
    return tuple(p for p in message.parts if isinstance(p, MediaPart) and medium_of(p).kind == "image")


def inline_data(part: MediaPart) -> tuple[str, bytes] | None:
    """Returns the type and the bytes of a medium that lies within its part; None for one at an address, or without a type."""
    try:
        encoded, mime = _encoded(dict(_strings(json.loads(part.data), DEPTH)), part.mime)
    except (ValueError, RecursionError):
        return None
    return None if encoded is None or mime is None else (mime, _decoded(encoded))


def row_text(message: Message, most_chars: int) -> str:
    """Returns what a message holds for a reader in one line, which is never empty."""
    line = " ".join(shown_text(message).split()) or ("[reasoning]" if message.parts else "[nothing]")
    return line if len(line) <= most_chars else f"{line[: most_chars - 3]}..."


def name_of(part: MediaPart) -> str:
    """Returns kind and form of a medium, such as `image, png`."""
    medium = medium_of(part)
    return ", ".join(filter(None, (medium.kind, (medium.mime or "").rpartition("/")[2])))


def _line_of(part: MediaPart, number: int, sized: bool) -> str:
    medium = medium_of(part)
    shown = "" if medium.size is None else f"{max(1, round(medium.size / 1_000)):,} kB"
    kind, _, form = name_of(part).partition(", ")
    pixels = f"{medium.width}x{medium.height}" if sized and medium.width else ""
    return f"[{', '.join(filter(None, (kind, pixels, form, shown, f'#{number}' if number else '')))}]"


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
