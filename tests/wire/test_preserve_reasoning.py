"""What a message itself says of its reasoning: whether it goes back, in place of what the provider's row says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ctxfold import (
    AgentContext,
    Message,
    MessageError,
    OpenAIChatBackend,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    assistant,
    tool_result,
    user,
)
from ctxfold.history.records import MessageAdded, encode_body
from ctxfold.testing import ModelServer
from tests.wire.anthropic_wire import MODEL, make

CALL = ToolCallPart("c1", "look", "{}")


def conversation(preserve: bool | None) -> list[Message]:
    """Each answer has reasoning, one beside a tool call; the newest question begins a round of its own."""
    answers = [
        assistant("", id="a1", reasoning="r1", calls=[CALL]),
        assistant("done", id="a2", reasoning="r2"),
        assistant("fine", id="a3", reasoning="r3"),
    ]
    first, second, third = (replace(m, preserve_reasoning=preserve) for m in answers)
    found = tool_result("c1", "found", id="t1")
    return [user("look", id="u1"), first, found, second, user("and?", id="u2"), third, user("now?", id="u3")]


@pytest.mark.parametrize(
    ("provider", "preserve", "carried"),
    [
        ("dashscope", None, [None, None, None]),  # the row keeps the current round's alone
        ("dashscope", True, ["r1", "r2", "r3"]),
        ("dashscope", False, [None, None, None]),
        ("moonshot", None, ["r1", "r2", "r3"]),  # the row keeps all
        ("moonshot", True, ["r1", "r2", "r3"]),
        ("moonshot", False, ["r1", None, None]),  # beside tool calls the provider demands it
    ],
)
def test_a_message_overrules_the_row_of_chat_completions(
    provider: str, preserve: bool | None, carried: list[str | None]
) -> None:
    """Step 7, D A3: the message's own `preserve_reasoning` wins, except beside tool calls that have to keep theirs."""
    with OpenAIChatBackend(provider=provider, model="m", base_url="http://127.0.0.1:9/v1", api_key="x") as service:
        sent = service.to_request_messages(conversation(preserve))
    assert [row.get("reasoning_content") for row in sent if row["role"] == "assistant"] == carried


@pytest.mark.parametrize(
    ("preserve", "model", "kept"),
    [
        (None, MODEL, [True, True]),
        (True, MODEL, [True, True]),
        (False, MODEL, [True, False]),
        (True, "another", [False, False]),  # the service would refuse another model's signature
    ],
)
def test_a_message_overrules_the_row_of_anthropic(preserve: bool | None, model: str, kept: list[bool]) -> None:
    """Step 7, D A3: the same on the other wire; a signature that the service would refuse stays here all the same."""
    thought = ReasoningPart("hm", "SIG")
    asking = Message("a1", "assistant", (thought, CALL), model=model, preserve_reasoning=preserve)
    answer = Message("a2", "assistant", (thought, TextPart("done")), model=model, preserve_reasoning=preserve)
    with make() as service:
        sent = service.to_request_messages(
            [user("look", id="u1"), asking, tool_result("c1", "found", id="t1"), answer, user("and?", id="u2")]
        )
    answers = [row["content"] for row in sent if row["role"] == "assistant"]
    assert [blocks[0]["type"] == "thinking" for blocks in answers] == kept


def test_it_is_stored_where_it_is_set_and_sent_after_a_restart(tmp_path: Path) -> None:
    """Step 7, D A3: through a database, an export and a request; the stored copy keeps the reasoning."""
    url = f"sqlite:///{tmp_path / 'chat.db'}"
    kept, stripped = (
        replace(assistant(f"t{p}", id=f"a{p}", reasoning=f"r{p}"), preserve_reasoning=p) for p in (True, False)
    )
    said = [user("one", id="u1"), kept, user("two", id="u2"), stripped]
    with AgentContext(session_id="s", store=url, context_window=8_000) as ctx:
        ctx.add(said)
    with ModelServer(model="lookup") as server:
        service = OpenAIChatBackend(provider="dashscope", model="lookup", base_url=server.base_url, api_key="x")
        with service, AgentContext(service, session_id="s", store=url, context_window=8_000) as ctx:
            assert ctx.messages() == tuple(said)
            lines = [service.message_to_jsonl(m) for m in ctx.messages()]
            assert [service.message_from_jsonl(line) for line in lines] == said
            ctx.send("and now?")
        body = server.requests[0].body
    answers = [row.get("reasoning_content") for row in body["messages"] if row["role"] == "assistant"]
    assert answers == ["rTrue", None]


def test_a_message_that_does_not_say_is_stored_as_before() -> None:
    """Step 7, D A3: stored formats keep their bytes."""
    plain = assistant("t", id="a", reasoning="r")
    assert "preserve_reasoning" not in encode_body(MessageAdded(plain))
    marked = json.loads(encode_body(MessageAdded(replace(plain, preserve_reasoning=False))))
    assert marked["message"].pop("preserve_reasoning") is False
    assert json.dumps(marked, separators=(",", ":")) == encode_body(MessageAdded(plain))


def test_what_is_neither_true_nor_false_is_refused() -> None:
    """Step 7, D A3: before it is stored, where no later reader could take it."""
    wrong: Any = "yes"
    with AgentContext(session_id="s", context_window=8_000) as ctx:
        with pytest.raises(MessageError, match="preserve_reasoning 'yes'"):
            ctx.add([replace(user("hi", id="u"), preserve_reasoning=wrong)])
        assert ctx.messages() == ()
