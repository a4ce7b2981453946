"""Where prompt-cache marks stand, over a session of 50 turns and beside marks that somebody else set."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from ctxfold import (
    AgentContext,
    MediaPart,
    Message,
    ReasoningPart,
    Request,
    TextPart,
    ToolCallPart,
    ToolSpec,
    assistant,
    open_backend,
    system,
    tool_result,
    user,
)
from ctxfold.backends.http_backend import HttpBackend
from ctxfold.testing import ModelServer, Scripted, ScriptedCall

TOOLS = (ToolSpec("ls"), ToolSpec("cat"))
HEAD = (system("Be brief.", id="s"), Message("sum", "user", (TextPart("Before: much."),), kind="summary"))
SCRATCH = Message("scratch", "user", (TextPart("recalled"),), kind="section")
MODEL = "claude-opus-4-8"


def body(messages: tuple[Message, ...], **fields: Any) -> dict[str, Any]:
    with open_backend("anthropic", MODEL, api_key="k") as backend:
        return backend.request_body(Request(messages, **fields), stream=True)


def blocks(sent: dict[str, Any]) -> list[dict[str, Any]]:
    rows = [block for row in sent["messages"] for block in row["content"]]
    return [*sent.get("tools", ()), *sent.get("system", ()), *rows]


def marked(sent: dict[str, Any]) -> list[int]:
    return [i for i, block in enumerate(blocks(sent)) if "cache_control" in block]


def plain(sent: dict[str, Any], upto: int) -> list[str]:
    return [json.dumps({k: v for k, v in b.items() if k != "cache_control"}) for b in blocks(sent)[:upto]]


def turn(number: int) -> tuple[Message, ...]:
    asked = user(f"question {number}", id=f"u{number}")
    if number % 3:
        return (asked, assistant(f"answer {number}", id=f"a{number}"))
    call = ToolCallPart(f"c{number}", "ls", "{}")
    thought = ReasoningPart("hm", f"sig{number}")
    return (
        asked,
        Message(f"a{number}", "assistant", (thought, call), model=MODEL),
        tool_result(call.id, "bin", id=f"t{number}"),
        Message(f"b{number}", "assistant", (TextPart("done"),), model=MODEL),
    )


def test_marks_over_fifty_turns_stand_at_head_epoch_head_and_newest_stable_message() -> None:
    live: tuple[Message, ...] = ()
    before: list[str] = []
    for number in range(50):
        if number == 25:  # a compaction: another epoch head, and a shorter history
            live = live[-6:]
        question = user(f"question {number}", id=f"u{number}")
        messages = (*HEAD, *live, question)
        sent = body((*messages, SCRATCH), tools=TOOLS, stable_messages=len(messages), cache_key="session")
        found = blocks(sent)
        newest = next(i for i, b in enumerate(found) if b.get("text") == question.text)
        # tools come first, then the system prompt, then the summary: head, epoch head, end of the request before, newest stable
        assert marked(sent) == [2, 3, *([newest - 2] if live else []), newest]
        assert found[2]["text"] == "Be brief."
        assert found[3]["text"] == "Before: much."
        assert "cache_control" not in found[-1]
        assert found[-1]["text"] == "recalled"
        assert all(found[i]["cache_control"] == {"type": "ephemeral"} for i in marked(sent))
        if number not in (0, 25):  # what was marked as stable is what this request begins with
            assert plain(sent, len(before)) == before
        before = plain(sent, newest + 1)
        live = (*live, *turn(number))


def test_nothing_is_marked_unless_the_request_says_what_stays() -> None:
    assert marked(body((*HEAD, *turn(1)), tools=TOOLS)) == []
    assert marked(body((*HEAD, *turn(1)), tools=TOOLS, cache_key="k"))
    assert marked(body((*HEAD, *turn(1)), tools=TOOLS, stable_messages=0)) == [2, 3]


def test_without_a_system_prompt_the_tools_are_the_head() -> None:
    assert marked(body(turn(1), tools=TOOLS, stable_messages=2)) == [1, 2, 3]
    assert marked(body(turn(1), stable_messages=2)) == [0, 1]
    assert marked(body(turn(1)[:1], stable_messages=1)) == [0]


def test_thinking_is_never_marked() -> None:
    only = Message("a", "assistant", (ReasoningPart("hm", "sig"),), model=MODEL)
    sealed = Message("b", "assistant", (ReasoningPart("", None, '[{"type":"redacted_thinking","data":"x"}]'),))
    assert marked(body((user("q", id="u"), only, sealed), stable_messages=3)) == [0]


def picture(**mark: Any) -> MediaPart:
    return MediaPart("image", json.dumps({"type": "image", "source": {"type": "url", "url": "x"}, **mark}))


def test_marks_that_stand_already_stay_and_count() -> None:
    own = {"cache_control": {"type": "ephemeral"}}
    pictures = Message("p", "user", (picture(**own), picture(**own), picture(**own)))
    messages = (*HEAD, pictures, *turn(1))
    sent = body(messages, tools=TOOLS, stable_messages=len(messages))
    # room for one: the newest stable message
    assert marked(sent) == [4, 5, 6, len(blocks(sent)) - 1]
    full = Message("p", "user", tuple(picture(**own) for _ in range(4)))
    assert marked(body((*HEAD, full, *turn(1)), tools=TOOLS, stable_messages=4)) == [4, 5, 6, 7]
    automatic = body((*HEAD, pictures, *turn(1)), tools=TOOLS, stable_messages=4, extra=own)
    assert marked(automatic) == [4, 5, 6]
    assert automatic["cache_control"] == own["cache_control"]
    inside = (user("q", id="u"), assistant("", id="a", calls=[ToolCallPart("c", "ls", "{}")]))
    result = Message("t", "tool", (*tool_result("c", "x", id="t").parts, picture(**own)))
    nested = body((*HEAD, *inside, result), tools=TOOLS, stable_messages=5)
    assert marked(nested) == [2, 4, len(blocks(nested)) - 1]


def test_marks_before_a_long_lived_one_live_as_long() -> None:
    long = picture(cache_control={"type": "ephemeral", "ttl": "1h"})
    messages = (*HEAD, Message("p", "user", (long, TextPart("see"))), *turn(1))
    sent = body(messages, tools=TOOLS, stable_messages=len(messages))
    lifetimes = [b["cache_control"].get("ttl") for b in blocks(sent) if "cache_control" in b]
    assert lifetimes == ["1h", "1h", None, None]


def test_chat_completions_get_the_sessions_key_where_the_row_has_a_field_for_it() -> None:
    def sent(provider: str, **fields: Any) -> dict[str, Any]:
        with open_backend(provider, "m", api_key="k") as backend:
            return backend.request_body(Request((user("q", id="u"),), **fields), stream=False)

    assert sent("openai", cache_key="owner/session")["prompt_cache_key"] == "owner/session"
    assert sent("openai", cache_key="a", extra={"prompt_cache_key": "b"})["prompt_cache_key"] == "b"
    assert "prompt_cache_key" not in sent("openai", stable_messages=1)
    assert "prompt_cache_key" not in sent("deepseek", cache_key="a")


# the server's own cache


def rounds(seed: int) -> list[tuple[ScriptedCall, ...]]:
    """The calls of twelve rounds, 1 to 60 each."""
    chance = random.Random(seed)
    return [tuple(ScriptedCall("ls", id=f"c{n}x{i}") for i in range(chance.randint(1, 60))) for n in range(12)]


@pytest.mark.parametrize("provider", ["anthropic", "bedrock"])
@pytest.mark.parametrize("seed", range(4))
def test_r3_after_a_round_of_any_size_everything_that_was_sent_is_read_from_the_cache(provider: str, seed: int) -> None:
    calls = rounds(seed)
    script = [*(Scripted(tool_calls=each) for each in calls), Scripted("Done.")]
    with ModelServer(script=script, strict="anthropic") as server, asking(provider, server) as backend:
        context = AgentContext(backend, session_id="s", system="Be brief.", context_window=200_000)
        reply, held = context.send("Look everywhere. " * 40, tools=TOOLS), 0
        for each in (*calls, ()):
            usage = reply.usage
            assert usage is not None
            assert usage.cache_read_tokens >= 0.97 * held, "all that the request before has written"
            held = usage.cache_read_tokens + usage.cache_write_tokens
            assert held >= 0.9 * usage.input_tokens, "the newest message is marked"
            if each:
                reply = context.send([tool_result(c.id, "bin", id=f"t{c.id}") for c in each], tools=TOOLS)


def asking(provider: str, server: ModelServer) -> HttpBackend:
    model = MODEL if provider == "anthropic" else f"anthropic.{MODEL}-v1:0"
    return open_backend(provider, model, api_key="k", base_url=server.base_url)


@pytest.mark.parametrize("provider", ["anthropic", "bedrock"])
@pytest.mark.parametrize(("more", "is_read"), [(19, True), (20, False)])
def test_r3_the_server_reads_what_was_written_within_twenty_blocks_of_a_mark(
    provider: str, more: int, is_read: bool
) -> None:
    first = (*HEAD, *(user(f"question {n}", id=f"u{n}") for n in range(30)))
    longer = (*first, *(user(f"more {n}", id=f"v{n}") for n in range(more)))
    with ModelServer(script=[Scripted("ok")] * 4, strict="anthropic") as server, asking(provider, server) as backend:
        for messages in (first, longer):
            usage = backend.send(Request(messages, tools=TOOLS, stable_messages=len(messages), max_tokens=9)).usage
            assert usage is not None
            written = usage.cache_read_tokens + usage.cache_write_tokens
        head = backend.send(Request((*HEAD, user("else", id="w")), tools=TOOLS, max_tokens=9)).usage
        assert head is not None
        assert (head.cache_read_tokens, head.cache_write_tokens) == (0, 0), "nothing is read or written without a mark"
    assert written == pytest.approx(usage.input_tokens, rel=0.02)
    assert (usage.cache_read_tokens > 0.3 * usage.input_tokens) is is_read
