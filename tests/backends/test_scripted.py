"""The scripted backend: replies in order, whole and in pieces."""

from __future__ import annotations

from typing import Any

import pytest

from ctxfold import (
    BackendError,
    Message,
    ReasoningPart,
    Reply,
    Request,
    ScriptedBackend,
    TextPart,
    Usage,
    assistant,
    user,
)
from ctxfold.stream import Fold
from tests.backends.openai_backend import CALL, ROUND


def test_scripted_plays_in_order_and_keeps_requests() -> None:
    usage = Usage(3, 4)
    backend = ScriptedBackend(
        [
            "one",
            assistant("two", id="a", calls=[CALL]),
            Reply(assistant("three", id="b"), usage, "length"),
            lambda request: request.messages[-1].text.upper(),
            BackendError("no", kind="auth"),
        ],
        context_window=100,
    )
    messages = [user("hi", id="u")]
    got = [backend.send(Request(messages)) for _ in range(4)]
    messages.append(user("later", id="v"))
    assert [r.message.text for r in got] == ["one", "two", "three", "HI"]
    assert [r.finish_reason for r in got] == ["stop", "tool_calls", "length", "stop"]
    assert len({r.message.id for r in got}) == 4
    assert got[2].usage == usage
    with pytest.raises(BackendError, match="no"):
        backend.send(Request(messages))
    with pytest.raises(BackendError, match="5 replies, this is request 6"):
        backend.send(Request(messages))
    assert [len(r.messages) for r in backend.requests] == [1, 1, 1, 1, 2, 2]
    assert (backend.model, backend.context_window, backend.scratch_role) == ("scripted", 100, "system")


async def test_scripted_streams_in_pieces() -> None:
    message = assistant("a long enough answer", id="a", reasoning="a long enough thought", calls=[CALL])
    backend = ScriptedBackend([message, message, BackendError("x", kind="server")])
    chunks = list(backend.open_stream(Request(ROUND)))
    assert len(chunks) > 7
    fold, afold = Fold("a"), Fold("a")
    for chunk in chunks:
        fold.feed(chunk)
    async for chunk in await backend.aopen_stream(Request(ROUND)):
        afold.feed(chunk)
    assert fold.close() == afold.close()
    assert fold.close().message.parts == message.parts
    with pytest.raises(BackendError):
        await backend.aopen_stream(Request(ROUND))
    stream = ScriptedBackend(["0123456789abcdef"]).open_stream(Request(ROUND))
    first = next(iter(stream))
    stream.close()
    assert (first.content, list(stream)) == ("01234567", [])


@pytest.mark.parametrize(
    "parts",
    [
        (
            ReasoningPart("signed", "SIG"),
            ReasoningPart("", None, '[{"type": "redacted_thinking", "data": "x"}]'),
            TextPart("so"),
            ReasoningPart("", "SIG2"),
            CALL,
        ),
        (ReasoningPart("listed", None, '[{"type": "reasoning.text", "text": "listed"}]'), TextPart("so")),
    ],
)
def test_scripted_streams_reasoning_blocks_as_they_are(parts: tuple[Any, ...]) -> None:
    fold = Fold("a", "scripted")
    for chunk in ScriptedBackend([Message("a", "assistant", parts)]).open_stream(Request(ROUND)):
        fold.feed(chunk)
    assert fold.close().message.parts == parts
