"""Frames of AWS event streams: however they are cut, with right and wrong checksums, and up to their limits."""

from __future__ import annotations

import struct
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctxfold import BackendError
from ctxfold.backends.converse_parse import MAX_FRAME_BYTES, EventStreamDecoder, Frame
from ctxfold.testing.served_converse import event_frame

HEADERS = {":event-type": "contentBlockDelta", ":message-type": "event"}
ONE, TWO = event_frame(HEADERS, b'{"a":1}'), event_frame({}, b"")


def framed(headers: bytes, payload: bytes, size: int | None = None) -> bytes:
    """A frame with these header bytes; `size` is stated in place of its length."""
    lengths = struct.pack(">II", 16 + len(headers) + len(payload) if size is None else size, len(headers))
    frame = lengths + struct.pack(">I", crc32(lengths)) + headers + payload
    return frame + struct.pack(">I", crc32(frame))


@given(
    st.lists(
        st.tuples(st.dictionaries(st.text("abc", min_size=1, max_size=3), st.text("xyz", max_size=4)), st.binary())
    )
)
def test_frames_come_back_however_they_are_cut(frames: list[tuple[dict[str, str], bytes]]) -> None:
    data = b"".join(event_frame(headers, payload) for headers, payload in frames)
    for size in (1, 3, 16, len(data) + 1):
        decoder = EventStreamDecoder()
        found = [one for at in range(0, len(data), size) for one in decoder.feed(data[at : at + size])]
        assert found == [Frame(headers, payload) for headers, payload in frames]


def test_headers_of_every_type() -> None:
    values = [b"\x00", b"\x01", b"\x02\x05", b"\x03\x00\x05", b"\x04" + bytes(4), b"\x05" + bytes(8)]
    values += [b"\x06\x00\x02ab", b"\x07\x00\x02ab", b"\x08" + bytes(8), b"\x09" + bytes(16)]
    headers = b"".join(b"\x01" + bytes([97 + place]) + value for place, value in enumerate(values))
    (frame,) = EventStreamDecoder().feed(framed(headers, b"p"))
    assert frame == Frame({"h": "ab"}, b"p")


@pytest.mark.parametrize("place", range(len(ONE)))
def test_one_changed_bit_is_found(place: int) -> None:
    broken = bytearray(ONE)
    broken[place] ^= 1
    found: list[Frame] = []
    decoder = EventStreamDecoder()
    with pytest.raises(BackendError, match="wrong checksum") as caught:
        for frame in decoder.feed(TWO + bytes(broken)):
            found.append(frame)
    assert found == [Frame({}, b"")], "what came before it is whole"
    assert caught.value.kind == ("protocol" if place < 12 else "connection"), (
        "with a right length it is the service's stream"
    )


@pytest.mark.parametrize(
    "data",
    [
        framed(b"", b"", size=15),
        framed(b"", b"", size=MAX_FRAME_BYTES + 1),
        framed(b"\x00" * 140_000, b""),
        framed(b"\x05abc", b""),
        framed(b"\x01a\x0b", b""),
        framed(b"\x01a\x07\x00\x09ab", b""),
        framed(b"\x01a\x07\x00\x01\xff", b""),
        b"data: {}\n\ndata: [DONE]\n\n",
    ],
)
def test_what_is_no_frame(data: bytes) -> None:
    with pytest.raises(BackendError) as caught:
        list(EventStreamDecoder().feed(data))
    assert caught.value.kind == "protocol"


def test_a_limit_of_ones_own() -> None:
    assert len(list(EventStreamDecoder(len(ONE)).feed(ONE))) == 1
    with pytest.raises(BackendError, match=f"at most {len(ONE) - 1} bytes"):
        list(EventStreamDecoder(len(ONE) - 1).feed(ONE))
