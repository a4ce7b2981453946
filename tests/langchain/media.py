"""Tiny files of three kinds, made on the spot."""

from __future__ import annotations

import io
import struct
import wave
import zlib
from pathlib import Path

__all__ = ["write_media"]


def _png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + b"\xff\0\0" * width for _ in range(height))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def _wav(frames: int) -> bytes:
    held = io.BytesIO()
    with wave.open(held, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(8_000)
        sound.writeframes(b"\0\0" * frames)
    return held.getvalue()


def _pdf(title: str) -> bytes:
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 72 72] >>",
        f"<< /Title ({title}) >>",
    ]
    body, places = b"%PDF-1.4\n", list[int]()
    for number, content in enumerate(objects, 1):
        places.append(len(body))
        body += f"{number} 0 obj\n{content}\nendobj\n".encode()
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    tail = f"xref\n0 5\n0000000000 65535 f \n{table}trailer\n<< /Size 5 /Root 1 0 R /Info 4 0 R >>\n"
    return body + f"{tail}startxref\n{len(body)}\n%%EOF\n".encode()


def write_media(folder: Path) -> dict[str, Path]:
    """A PNG of 3 x 2 pixels, a WAV of half a second and a PDF with a title, by suffix."""
    made = {".png": _png(3, 2), ".wav": _wav(4_000), ".pdf": _pdf("A dummy")}
    for suffix, data in made.items():
        (folder / f"sample{suffix}").write_bytes(data)
    return {suffix: folder / f"sample{suffix}" for suffix in made}
