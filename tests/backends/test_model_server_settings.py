"""Step 7, C: the model server's life, its record of requests, and scripts that cannot be played."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from ctxfold import AgentContext, BackendError, ConfigError, Request, open_backend, user
from ctxfold.backends.errors import http_failure
from ctxfold.backends.profile import load_profile
from ctxfold.testing import ErrorReply, ModelServer, RawReply, Scripted, ScriptedCall

ASKED = Request((user("hi", id="u"),))


async def test_a_server_that_was_started_may_be_used_in_a_block() -> None:
    """Step 7, C: `.start()` and then `with` said that it is already running."""
    server = ModelServer(script=[Scripted("a"), Scripted("b")]).start()
    with server as same, open_backend("generic", "m", base_url=same.base_url) as backend:
        assert same is server
        assert backend.send(ASKED).message.text == "a"
    with pytest.raises(ConfigError, match="not running"):
        _ = server.base_url
    server.start()
    async with server, open_backend("generic", "m", base_url=server.base_url) as backend:
        with pytest.raises(ConfigError, match="already running"):
            server.start()
        assert (await backend.asend(ASKED)).message.text == "b"


def test_requests_can_be_cleared() -> None:
    """Step 7, C: between two parts of a test; ids of replies stay unique."""
    with ModelServer() as server:
        ids: list[str] = []
        for _ in range(3):
            body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
            ids.append(httpx.post(f"{server.base_url}/chat/completions", json=body).json()["id"])
            assert len(server.requests) == 1
            server.clear_requests()
            assert server.requests == []
    assert len(set(ids)) == 3


def test_requests_are_plain_data() -> None:
    """What `json.dumps` refused was a read-only mapping."""
    with ModelServer() as server:
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        httpx.post(f"{server.base_url}/chat/completions", json=body)
        (asked,) = server.requests
    assert json.loads(json.dumps(asked.body)) == body
    assert json.loads(json.dumps(asked.headers))["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("entry", "hint"),
    [
        ("hello", "is a str: give Scripted"),
        ({"content": "x"}, "is a dict"),
        (Scripted, "the class Scripted"),
        (None, "is None"),
        (Scripted(tool_calls=({"name": "ls"},)), "a dict among its tool_calls"),  # type: ignore[arg-type]
        (Scripted(tool_calls=(ScriptedCall("ls", {"d": 1}),)), "a dict where text is needed"),  # type: ignore[arg-type]
        (Scripted(3), "an int where text is needed"),  # type: ignore[arg-type]
        (RawReply(frames=("data: x",)), "a str among its frames"),  # type: ignore[arg-type]
        (RawReply(then="later"), "'later'"),  # type: ignore[arg-type]
        (ErrorReply("500", "x"), "no number"),  # type: ignore[arg-type]
    ],
)
def test_a_script_entry_that_cannot_be_played_is_named(entry: Any, hint: str) -> None:
    """Step 7, C: it closed the connection without a word, at the call that came to it."""
    with pytest.raises(ConfigError, match=f"script entry 1 of 2.*{hint}"):
        ModelServer(script=[Scripted("fine"), entry])
    if entry is not None:
        with (
            ModelServer(script=lambda _: entry) as server,
            open_backend("generic", "m", base_url=server.base_url, max_retries=0) as backend,
            pytest.raises(BackendError, match=f"script function.*{hint}") as caught,
        ):
            backend.send(ASKED)
        assert caught.value.status == 500


@pytest.mark.parametrize("script", ["hello", {"content": "x"}, 3, b"x"])
def test_a_script_that_is_no_list_is_told(script: Any) -> None:
    """Step 7, C: a text was played letter by letter."""
    with pytest.raises(ConfigError, match="script is"):
        ModelServer(script=script)


def test_lines_of_one_wire_import_on_a_backend_of_another(tmp_path: Any) -> None:
    """Step 7, C: OpenAI's own lines with `content: null` were refused on an Anthropic backend."""
    call = {"id": "c1", "type": "function", "function": {"name": "ls", "arguments": '{"d": 1}'}}
    thought = {"type": "thinking", "thinking": "so", "signature": "s"}
    use = {"type": "tool_use", "id": "c1", "name": "ls", "input": {"d": 1}}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": "bin"}
    asked = {"role": "user", "content": "list it"}
    chat = [
        asked,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "bin"},
        {"role": "assistant", "content": "It has bin.", "reasoning_content": "so"},
    ]
    blocks = [
        asked,
        {"role": "assistant", "content": [thought, use]},
        {"role": "user", "content": [result]},
        {"role": "assistant", "content": [{"type": "text", "text": "It has bin."}]},
    ]
    for provider in ("anthropic", "generic"):
        for lines in (chat, blocks):
            path = tmp_path / "lines.jsonl"
            path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
            with (
                open_backend(provider, "m", api_key="k") as backend,
                AgentContext(backend, session_id="s", store="memory://", context_window=9000) as context,
            ):
                context.files.import_jsonl(path)
                messages = context.messages()
            assert [m.role for m in messages] == ["user", "assistant", "tool", "assistant"]
            assert [(c.id, c.name) for c in messages[1].tool_calls] == [("c1", "ls")]
            assert messages[2].text == "bin"
            assert any(m.reasoning == "so" for m in messages)


@pytest.mark.parametrize("row", ["generic", "openai", "openrouter", "gemini"])
def test_geminis_words_for_an_overflow_are_read_by_every_row(row: str) -> None:
    """Step 7, C: gateways pass them on, and the generic row did not know them."""
    words = "The input token count (1,200,000) exceeds the maximum number of tokens allowed (1048576)."
    said = {"error": {"code": 400, "message": words, "status": "INVALID_ARGUMENT"}}
    error = http_failure(load_profile(row), 400, json.dumps(said).encode())
    assert (error.kind, error.limit_tokens, error.requested_tokens) == ("context_overflow", 1_048_576, 1_200_000)
