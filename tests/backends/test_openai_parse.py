"""Replies of OpenAI-compatible services: uncommon deltas, bad ends, and a limit."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ctxfold import TextPart
from ctxfold.backends.openai_chat import ChatParser
from ctxfold.backends.profile import load_profile
from ctxfold.stream import Fold


def parsed(provider: str, *events: Any, done: bool = True) -> tuple[Fold, ChatParser]:
    parser, fold = ChatParser(load_profile(provider)), Fold("a")
    data = b"".join(b"data: " + json.dumps(e).encode() + b"\n\n" for e in events) + b"data: [DONE]" * done
    for chunk in (*parser.feed(data), *parser.close()):
        fold.feed(chunk)
    return fold, parser


def choice(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"delta": delta, "finish_reason": finish}]}


def test_less_common_deltas() -> None:
    blocks = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "so"}]
    old = {"name": "f", "arguments": {"x": 1}}
    other = {"choices": [{"index": 1, "delta": {"content": "the second choice"}}], "usage": {}}
    fold, parser = parsed("generic", choice(content=blocks), choice(function_call=old), other, 7, choice("stop"))
    reply = fold.close()
    assert parser.error is None
    assert (reply.message.reasoning, reply.message.text, reply.usage) == ("hm", "so", None)
    assert [(c.name, json.loads(c.arguments)) for c in reply.message.tool_calls] == [("f", {"x": 1})]


def test_reasoning_that_stands_in_details_only() -> None:
    detail = {"type": "reasoning.text", "text": "hm", "index": 0}
    fold, _ = parsed("openrouter", choice(reasoning_details=[detail]), choice("stop", content="x"))
    assert fold.close().message.reasoning == "hm"


@pytest.mark.parametrize("provider", ["generic", "openrouter"])
def test_reasoning_that_stands_in_two_fields_and_in_details_is_told_once(provider: str) -> None:
    texts = [{"reasoning_content": "hm", "reasoning": "hm"}, {"reasoning_content": None, "reasoning": " so"}]
    deltas = [
        {**t, "reasoning_details": [{"type": "reasoning.text", "text": t["reasoning"], "index": 0}]} for t in texts
    ]
    fold, _ = parsed(provider, *(choice(**delta) for delta in deltas), choice("stop", content="x"))
    assert fold.close().message.reasoning == "hm so"


def test_a_sound_in_pieces_goes_back_whole() -> None:
    pieces = [{"id": "s", "transcript": "Hel"}, {"data": "QU"}, {"data": "JD", "transcript": "lo"}, {"expires_at": 9}]
    fold, _ = parsed("openai", *(choice(audio=piece) for piece in pieces), choice("stop"))
    (part,) = fold.close().message.parts
    assert isinstance(part, TextPart)
    assert json.loads(part.extra or "{}") == {
        "openai_chat": {"audio": {"id": "s", "transcript": "Hello", "data": "QUJD", "expires_at": 9}}
    }


@pytest.mark.parametrize(
    ("provider", "events", "done", "kind"),
    [
        ("deepseek", [choice("insufficient_system_resource", content="x")], True, "overloaded"),
        ("zhipu", [choice("network_error", content="x")], True, "server"),
        ("generic", [choice("abort", content="x")], True, "server"),
        ("generic", [choice(content="x")], True, "stream_truncated"),
        ("generic_no_finish_reason", [choice(content="x")], False, "stream_truncated"),
        ("generic", [choice("tool_calls")], True, "empty_response"),
        ("generic", [], True, "stream_truncated"),
    ],
)
def test_bad_ends(provider: str, events: list[Any], done: bool, kind: str) -> None:
    _, parser = parsed(provider, *events, done=done)
    assert parser.error is not None
    assert (parser.error.kind, parser.complete) == (kind, False)


def test_a_named_error_event_and_a_cut_last_event() -> None:
    parser = ChatParser(load_profile("generic"))
    parser.feed(b'event: error\ndata: {"reason": "x"}\n\n')
    assert parser.error is not None
    assert parser.error.kind == "server"
    cut = ChatParser(load_profile("generic"))
    cut.feed(b'data: {"choices": [{"del')
    assert cut.close() == []
    assert cut.error is not None
    assert cut.error.kind == "stream_truncated"


def test_a_reply_without_end_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctxfold.backends.response_parser.MAX_REPLY_BYTES", 100)
    parser = ChatParser(load_profile("generic"))
    parser.feed(b" ")
    parser.feed(b"[" * 101)
    assert parser.error is not None
    assert "100 bytes" in str(parser.error)
