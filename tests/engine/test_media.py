"""Step 7, item B23: a medium is named when it is read back, and counted by what it is."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from typing import Any

import pytest

from ctxfold import MediaPart, Message, TextPart, history_tools, user
from ctxfold.tokens.media import medium_of
from ctxfold.tokens.text import MessageCounter, RatioCounter
from tests.support.driven import context, turns
from tests.timing import cpu_s

COUNTER = MessageCounter(RatioCounter())
TEXT = "A line of a long report. " * 400


def png(width: int, height: int, padding: int = 0) -> bytes:
    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"\0" * padding) + chunk(b"IEND", b"")


def gif(width: int, height: int) -> bytes:
    return b"GIF89a" + struct.pack("<HH", width, height) + b"\0" * 20


def jpeg(width: int, height: int, preview: int = 0) -> bytes:
    before = b"\xff\xe1" + struct.pack(">H", preview + 2) + b"\0" * preview if preview else b""
    return b"\xff\xd8" + before + b"\xff\xc0" + struct.pack(">HBHH", 11, 8, height, width) + b"\3" + b"\0" * 20


def webp(width: int, height: int) -> bytes:
    size = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return b"RIFF\0\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0" + size + b"\0" * 20


def lossy_webp(width: int, height: int) -> bytes:
    return b"RIFF\0\0\0\0WEBPVP8 \0\0\0\0\0\0\0\x9d\x01\x2a" + struct.pack("<HH", width, height) + b"\0" * 20


def lossless_webp(width: int, height: int) -> bytes:
    return b"RIFF\0\0\0\0WEBPVP8L\0\0\0\0\x2f" + struct.pack("<I", width - 1 | (height - 1) << 14) + b"\0" * 20


def wave(seconds: int) -> bytes:
    rate = 16_000
    body = b"\0" * (seconds * rate * 2)
    head = (
        b"RIFF"
        + struct.pack("<I", 36 + len(body))
        + b"WAVEfmt "
        + struct.pack("<IHHIIHH", 16, 1, 1, rate, 2 * rate, 2, 16)
    )
    return head + b"data" + struct.pack("<I", len(body)) + body


def pdf(pages: int, padding: int = 0) -> bytes:
    body = b"".join(b"<< /Type /Page /Parent 2 0 R >>\n" for _ in range(pages))
    return b"%PDF-1.7\n<< /Type /Pages /Count 99 >>\n" + body + b"\0" * padding


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def url(mime: str, data: bytes) -> str:
    return f"data:{mime};base64,{b64(data)}"


def openai_image(mime: str, data: bytes, **more: Any) -> MediaPart:
    return MediaPart("image", json.dumps({"type": "image_url", "image_url": {"url": url(mime, data), **more}}), mime)


def anthropic_image(mime: str, data: bytes) -> MediaPart:
    source = {"type": "base64", "media_type": mime, "data": b64(data)}
    return MediaPart("image", json.dumps({"type": "image", "source": source}))


def openai_file(name: str, mime: str, data: bytes) -> MediaPart:
    return MediaPart(
        "file", json.dumps({"type": "file", "file": {"filename": name, "file_data": url(mime, data)}}), mime
    )


def sound(form: str, data: bytes) -> MediaPart:
    return MediaPart("audio", json.dumps({"type": "input_audio", "input_audio": {"data": b64(data), "format": form}}))


def anthropic_text(text: str) -> MediaPart:
    source = {"type": "text", "media_type": "text/plain", "data": text}
    return MediaPart("document", json.dumps({"type": "document", "source": source}))


def tokens(part: MediaPart) -> int:
    return COUNTER.count(Message("m", "user", (part,))) - COUNTER.count(user("", id="m"))


@pytest.mark.parametrize(
    ("width", "height", "most"),
    [
        # OpenAI: 85 + 170 for each of the tiles; Anthropic: width x height / 750, 1,600 at most. The larger one counts
        (512, 512, 349.5),
        (200, 200, 255),
        (1_024, 1_024, 1_398.1),
        (2_048, 4_096, 1_600),
        (4_000, 300, 765),
    ],
)
@pytest.mark.parametrize("make", [png, gif, jpeg, webp, lossy_webp, lossless_webp])
def test_images_are_counted_by_their_dimensions(make: Any, width: int, height: int, most: float) -> None:
    mime = f"image/{make.__name__.rpartition('_')[2]}"
    for part in (openai_image(mime, make(width, height)), anthropic_image(mime, make(width, height))):
        assert tokens(part) == pytest.approx(most, abs=1)


def test_an_image_of_low_detail_and_ones_that_say_nothing() -> None:
    assert tokens(openai_image("image/png", png(2_000, 2_000), detail="low")) == 85
    assert tokens(openai_image("image/jpeg", jpeg(1_024, 1_024, preview=60_000))) == pytest.approx(1_398.1, abs=1)
    tables = b"\xff\xd8\xff\xc4" + struct.pack(">H", 30) + b"\1" * 28 + jpeg(1_024, 1_024)[2:]
    assert tokens(openai_image("image/jpeg", tables)) == pytest.approx(1_398.1, abs=1), (
        "tables may stand before the frame"
    )
    unknown = [
        MediaPart("image", '{"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}'),
        MediaPart("image", '{"url": "x"}'),
        openai_image("image/tiff", b"II*\0" + b"\0" * 500),
        openai_image("image/png", png(5, 5)[:20]),
        MediaPart("image", '{"type": "image_url", "image_url": {"url": "data:image/png;base64,!!!!"}}'),
    ]
    assert [tokens(part) for part in unknown] == [800] * 5


def test_files_are_counted_by_what_they_hold() -> None:
    """A 4 kB PDF, 10 MB of audio and a document of some thousand tokens all counted about 800."""
    assert tokens(openai_file("a.pdf", "application/pdf", pdf(2, padding=4_000))) == 4_000
    assert tokens(openai_file("a.pdf", "application/pdf", pdf(0, padding=500_000))) == 11 * 2_000
    text = COUNTER.count_text(TEXT)
    assert text > 2_000
    assert tokens(openai_file("a.txt", "text/plain", TEXT.encode())) == text
    assert tokens(openai_file("a.json", "application/json", TEXT.encode())) == text
    assert tokens(anthropic_text(TEXT)) == text
    content = [{"type": "text", "text": TEXT}]
    assert (
        tokens(
            MediaPart("document", json.dumps({"type": "document", "source": {"type": "content", "content": content}}))
        )
        == text
    )
    assert (
        tokens(MediaPart("search_result", json.dumps({"type": "search_result", "source": "x", "content": content})))
        == text
    )
    assert tokens(openai_file("a.bin", "application/octet-stream", b"\0" * 40_000)) == 10_000
    assert tokens(MediaPart("file", '{"type": "file", "file": {"file_id": "f-1"}}')) == 800


def test_a_pdf_has_no_more_pages_than_its_bytes_allow() -> None:
    """A forged file of 700,000 page marks, 8 MB, counted 1,400,000,000 tokens."""
    marks = b"%PDF-1.7\n" + b"/Type/Page " * 700_000
    most = -(-len(marks) // 250)
    assert medium_of(openai_file("a.pdf", "application/pdf", marks)).pages == most
    assert tokens(openai_file("a.pdf", "application/pdf", marks)) == most * 2_000
    small = pdf(40, padding=40 * 250)  # as small as pages can be
    assert medium_of(openai_file("a.pdf", "application/pdf", small)).pages == 40
    assert medium_of(openai_file("a.pdf", "application/pdf", pdf(2))).pages == 1


def test_sound_and_film_are_counted_by_their_length() -> None:
    assert tokens(sound("wav", wave(10))) == pytest.approx(320, abs=1)
    assert tokens(sound("mp3", b"\xff\xfb" + b"\0" * 800_000)) == pytest.approx(3_200, abs=10)
    film = {"type": "video_url", "video_url": {"url": url("video/mp4", b"\0" * 1_250_000)}}
    assert tokens(MediaPart("video", json.dumps(film))) == pytest.approx(2_900, abs=5)
    elsewhere = {"type": "audio_url", "audio_url": {"url": "https://example.org/a.mp3"}}
    assert tokens(MediaPart("audio", json.dumps(elsewhere))) == 800, "of unknown length"


def test_the_cost_of_counting_is_linear() -> None:
    def spent(size: int) -> float:
        part = openai_file("a.pdf", "application/pdf", b"/Type " * (size // 6))
        return cpu_s(lambda: MessageCounter(RatioCounter()).count(Message("m", "user", (part,))))

    assert spent(4_000_000) < 40 * max(spent(400_000), 0.0005)


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (openai_image("image/png", png(640, 480)), "[image, image/png, 640 x 480 pixels, 57 bytes]"),
        (openai_file("a.pdf", "application/pdf", pdf(3, 866)), "[document, application/pdf, 3 pages, 1,000 bytes]"),
        (sound("wav", wave(3)), "[audio, audio/wav, 3 seconds, 96,044 bytes]"),
        (
            MediaPart("image", '{"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}'),
            "https://example.org/a.png]",
        ),
    ],
    ids=["image", "pdf", "sound", "url"],
)
def test_a_medium_is_named_when_it_is_read_back(part: MediaPart, words: str) -> None:
    """`read_message` answered "characters 0 to 16 of 16" for a message with an image."""
    with context(context_window=20_000) as ctx:
        ctx.add(Message("seen", "user", (TextPart("Look at this:"), part)))
        ctx.add(turns(8))
        read = next(t for t in history_tools(ctx) if t.name == "read_message")
        answer = read.call(reference="seen")
        assert "Look at this:\n[" in answer
        assert words in answer
        assert b64(png(640, 480)) not in answer
