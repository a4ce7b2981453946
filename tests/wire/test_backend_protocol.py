"""Step 7, D A1 and A2: what a backend offers beside sending, and how an answer is read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ctxfold import BackendError, Message, Reply, Request, TextPart, ToolSpec, assistant, open_backend, system, user
from ctxfold.backends.transport import Retry
from tests.wire.anthropic_wire import MODEL
from tests.wire.raw_server import DONE, Play, RawServer, event, reply

ASKED = (system("Be brief.", id="s"), user("hi", id="u"))
TOOL = ToolSpec("ls", "list a folder")


def answered(message: dict[str, Any], finish: str = "stop") -> Reply:
    body = {"model": "m", "choices": [{"message": message, "finish_reason": finish}]}
    with (
        RawServer(Play([json.dumps(body).encode()])) as server,
        open_backend("generic", "m", base_url=server.base_url, max_retries=0) as backend,
    ):
        return backend.send(Request(ASKED))


CALL = [{"id": "c1", "type": "function", "function": {"name": "ls", "arguments": "{}"}}]


@pytest.mark.parametrize(
    ("message", "kind", "content", "reasoning"),
    [
        ({"content": "so"}, "content", "so", None),
        ({"content": "so", "reasoning": "why"}, "reasoning_and_content", "so", "why"),
        ({"content": None, "reasoning": "why"}, "reasoning", None, "why"),
        ({"content": "", "reasoning": "why"}, "reasoning", "", "why"),
        ({"reasoning": "why"}, "reasoning", None, "why"),
        ({"content": None, "tool_calls": CALL}, "empty", None, None),
        ({"content": "", "tool_calls": CALL}, "empty", "", None),
    ],
)
def test_an_answer_says_what_it_has(
    message: dict[str, Any], kind: str, content: str | None, reasoning: str | None
) -> None:
    """Step 7, D A2: absent content and empty content are told apart, and `text` is text either way."""
    found = answered(message)
    assert (found.response_type, found.content, found.reasoning_content) == (kind, content, reasoning)
    assert found.message.text == (content or "")
    assert [c.name for c in found.tool_calls] == (["ls"] if "tool_calls" in message else [])


def test_a_streamed_and_an_anthropic_answer_say_the_same() -> None:
    """Step 7, D A2: on both wires."""
    for first, content in ((event("", reasoning="why"), ""), (event(reasoning="why"), None)):
        with (
            RawServer(Play([first, event(finish="stop"), DONE])) as server,
            open_backend("generic", "m", base_url=server.base_url) as backend,
        ):
            found = backend.send(Request(ASKED))
            assert (found.response_type, found.content) == ("reasoning", content)
    thought = {"type": "thinking", "thinking": "hm", "signature": "S"}
    for blocks, content in (([thought, {"type": "text", "text": ""}], ""), ([thought], None)):
        body = {"type": "message", "content": blocks, "stop_reason": "end_turn"}
        with (
            RawServer(Play([json.dumps(body).encode()])) as server,
            open_backend("anthropic", MODEL, base_url=server.base_url, api_key="k") as backend,
        ):
            assert backend.send(Request(ASKED)).content == content


def test_a_message_without_text_has_no_content() -> None:
    """Step 7, D A2: on messages, an empty part is what tells them apart."""
    assert assistant("", id="a").content is None
    assert Message("a", "assistant", (TextPart(""),)).content == ""
    assert assistant("x", id="a").content == "x"


def test_messages_are_taken_out_of_replies_and_of_chunks() -> None:
    """Step 7, D A1: `extract_messages` of whole replies or of all chunks, `merge_chunks`, `to_system_message`."""
    frames = [event("hel", reasoning="why"), event("lo"), event(tool_calls=[{"index": 0, **CALL[0]}])]
    with (
        RawServer(Play([*frames, event(finish="tool_calls"), DONE]), Play([reply("whole")])) as server,
        open_backend("generic", "m", base_url=server.base_url) as backend,
    ):
        chunks = list(backend.open_stream(Request(ASKED)))
        whole = backend.send(Request(ASKED))
        (merged,) = backend.extract_messages(chunks)
        assert (merged.text, merged.reasoning, [c.id for c in merged.tool_calls]) == ("hello", "why", ["c1"])
        assert backend.merge_chunks(chunks) is not None
        assert backend.merge_chunks([]) is None
        assert [m.text for m in backend.extract_messages([whole, whole])] == ["whole", "whole"]
        assert backend.extract_messages([]) == []
        assert backend.to_system_message(merged) == system("hello", id=merged.id)


async def test_tokens_are_estimated_by_the_row_or_counted_by_the_service() -> None:
    """Step 7, D A1: Anthropic's endpoint is asked, in sync and async code; other rows estimate without a request."""
    busy = Play([b'{"error": {"message": "busy"}}'], status=503, then="keep")
    counted = Play([b'{"input_tokens": 4711}'], then="keep")
    retry = Retry(2, first_delay_s=0.001)
    with RawServer(busy, counted) as server:
        url = server.base_url.removesuffix("/v1") + "?team=a"
        async with open_backend("anthropic", MODEL, base_url=url, api_key="key-1", retry=retry) as backend:
            assert backend.estimate_tokens(ASKED, tools=(TOOL,)) == 4711
            assert await backend.aestimate_tokens(ASKED) == 4711
        assert set(server.paths) == {"/v1/messages/count_tokens?team=a"}
        assert server.headers[1]["x-api-key"] == "key-1"
        assert [row["role"] for row in server.bodies[1]["messages"]] == ["user"]
        assert server.bodies[1]["tools"][0]["name"] == "ls"
        assert server.bodies[1].keys() <= {"messages", "model", "system", "thinking", "tools"}
        async with open_backend("deepseek", "deepseek-v4-pro", base_url=server.base_url, api_key="k") as local:
            asked = len(server.bodies)
            few, more = local.estimate_tokens(ASKED), await local.aestimate_tokens(ASKED, tools=(TOOL,))
            assert 0 < few < more
            assert len(server.bodies) == asked
    for body, status in ((b'{"input_tokens": "many"}', 200), (b"<html>", 200), (b'{"error":{"message":"no"}}', 401)):
        with RawServer(Play([body], status=status)) as server:
            async with open_backend("anthropic", MODEL, base_url=server.base_url, api_key="k", retry=retry) as backend:
                with pytest.raises(BackendError) as caught:
                    backend.estimate_tokens(ASKED)
                assert caught.value.kind == ("auth" if status == 401 else "protocol")
