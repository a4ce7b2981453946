"""The SSE decoder: wherever the bytes are cut, and its limits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctxfold import BackendError
from ctxfold.backends.response_parser import SseDecoder, SseEvent


@given(st.data())
def test_sse_gives_the_same_events_wherever_it_is_cut(data: st.DataObject) -> None:
    newline = data.draw(st.sampled_from([b"\n", b"\r\n", b"\r"]))
    lines = [
        "data: é1",
        "data:2",
        "",
        ": note",
        "event: e",
        "id: 3",
        "data: {\u2028\u0085}",
        "",
        "",
        "data: end",
        "",
        "",
    ]
    stream = b"\xef\xbb\xbf" + newline.join(line.encode() for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    decoder = SseDecoder()
    events = [event for piece in pieces for event in decoder.feed(piece)]
    events += decoder.close()
    assert events == [SseEvent("", "é1\n2"), SseEvent("e", "{\u2028\u0085}"), SseEvent("", "end")]


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"])
def test_sse_byte_by_byte(newline: bytes) -> None:
    decoder = SseDecoder()
    stream = newline.join([b"data: a", b"data: \xe4\xb8\x96", b"", b"data: b", b"", b""])
    events = [event for i in range(len(stream)) for event in decoder.feed(stream[i : i + 1])]
    assert [event.data for event in events] == ["a\n世", "b"]


def test_an_event_that_lacks_its_blank_line_comes_at_the_end() -> None:
    decoder = SseDecoder()
    assert decoder.feed(b"data: a\n\nevent: e\ndata: b\ndata: c") == [SseEvent("", "a")]
    assert decoder.close() == [SseEvent("e", "b\nc")]


def test_sse_limits() -> None:
    with pytest.raises(BackendError, match="over 100 bytes"):
        SseDecoder(100).feed(b"data: " + b"x" * 100)
    decoder = SseDecoder(100)
    with pytest.raises(BackendError, match="over 100 bytes"):
        for _ in range(20):
            decoder.feed(b"data: 12345678\n")
    with pytest.raises(BackendError, match="UTF-8"):
        SseDecoder().feed(b"data: \xff\n\n")
    assert len(SseDecoder(100).feed(b"data: 12345678\n\n" * 50)) == 50
