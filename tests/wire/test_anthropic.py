"""The Messages API: how requests are written."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from ctxfold import (
    ConfigError,
    MediaPart,
    Message,
    ReasoningPart,
    Request,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    assistant,
    system,
    tool_result,
    user,
)
from tests.wire.anthropic_wire import MODEL, ROUND, THOUGHT, TOOL, body, make


def test_a_conversation_travels_as_system_and_alternating_blocks() -> None:
    sent = body(tools=(TOOL,))
    assert sent["system"] == [{"type": "text", "text": "Be brief."}]
    assert [row["role"] for row in sent["messages"]] == ["user", "assistant", "user"]
    assert sent["messages"][1]["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": "SIG1"},
        {"type": "text", "text": "Looking."},
        {"type": "tool_use", "id": "toolu_1", "name": "ls", "input": {"d": "/"}},
        {"type": "tool_use", "id": "toolu_2", "name": "ls", "input": {"d": "/tmp"}},
    ]
    assert sent["messages"][2]["content"] == [
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": "bin"},
        {"type": "tool_result", "tool_use_id": "toolu_2", "content": "", "is_error": True},
        {"type": "text", "text": "And now?"},
    ]
    assert sent["tools"] == [{"name": "ls", "description": "list a folder", "input_schema": TOOL.parameters}]
    assert make().to_request_messages(ROUND) == sent["messages"]


def test_late_system_messages_become_the_users_and_blank_text_is_left_out() -> None:
    sent = body([system("a", id="1"), system("b", id="2"), user(" \n", id="3"), user("q", id="4"), system("c", id="5")])
    assert [b["text"] for b in sent["system"]] == ["a", "b"]
    assert sent["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "q"}, {"type": "text", "text": "c"}]}
    ]
    assert make().scratch_role == "user"
    assert "system" not in body([user("q", id="1")])


def test_a_conversation_that_the_assistant_begins_has_a_users_turn_in_front() -> None:
    greeted = [assistant("Welcome!", id="1"), user("hi", id="2")]
    rows = body(greeted)["messages"]
    assert [row["role"] for row in rows] == ["user", "assistant", "user"]
    assert rows[1:] == make().to_request_messages(greeted)
    assert body([*greeted, assistant("yes", id="3"), user("so?", id="4")])["messages"][:3] == rows
    assert [row["role"] for row in body([system("s", id="s"), *greeted])["messages"]] == ["user", "assistant", "user"]


def test_ids_of_other_providers_are_rewritten_in_call_and_result_alike() -> None:
    call = ToolCallPart("functions.ls:0", "ls", "{}")
    rows = body([user("q", id="u"), assistant("", id="a", calls=[call]), tool_result(call.id, "x", id="t")])["messages"]
    (use,), (result,) = rows[1]["content"], rows[2]["content"]
    assert use["id"] == result["tool_use_id"] != call.id
    assert use["id"].replace("_", "").isalnum()
    other = ToolCallPart("functions.ls.0", "ls", "{}")
    assert make().to_request_messages([assistant("", id="a", calls=[other])])[0]["content"][0]["id"] != use["id"]


def test_media_travel_as_given_and_images_of_chat_completions_are_rewritten() -> None:
    own = {"type": "image", "source": {"type": "file", "file_id": "f1"}}
    inline = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    linked = {"type": "image_url", "image_url": {"url": "https://example.org/x.png"}}
    media = [MediaPart("image", json.dumps(m)) for m in (own, inline, linked)]
    sent = body([Message("u", "user", (TextPart("see"), *media))])["messages"][0]["content"]
    assert sent[1:] == [
        own,
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
        {"type": "image", "source": {"type": "url", "url": "https://example.org/x.png"}},
    ]
    shown = Message("t", "tool", (ToolResultPart("c1", "seen"), media[0]))
    (result,) = make().to_request_messages([shown])[0]["content"]
    assert result["content"] == [{"type": "text", "text": "seen"}, own]


@pytest.mark.parametrize(
    ("arguments", "sent"),
    [("{", {"INVALID_JSON": "{"}), ("[1]", {"INVALID_JSON": "[1]"}), ("", {}), ('{"a": 1}', {"a": 1}), ("{}", {})],
)
def test_a_malformed_call_goes_back_as_an_object(arguments: str, sent: dict[str, Any]) -> None:
    """Step 7, item A3: the service takes objects only."""
    (block,) = body([assistant("", id="a", calls=[ToolCallPart("c", "ls", arguments)])])["messages"][-1]["content"]
    assert block["input"] == sent


def test_max_tokens_are_asked_for_or_the_rows_or_stated() -> None:
    assert body(max_tokens=7)["max_tokens"] == 7
    assert body()["max_tokens"] == 128_000
    assert body(model="claude-haiku-4-5")["max_tokens"] == 64_000
    assert body(model="elsewhere")["max_tokens"] == 8192


@pytest.mark.parametrize(
    ("model", "thinking", "sent"),
    [
        (MODEL, None, {"thinking": {"type": "adaptive", "display": "summarized"}}),
        (MODEL, False, {"output_config": {"effort": "low"}}),
        ("claude-opus-5", False, {"thinking": {"type": "disabled"}}),
        ("claude-opus-4-8", None, {}),
        (
            "claude-opus-4-8",
            "xhigh",
            {"thinking": {"type": "adaptive", "display": "summarized"}, "output_config": {"effort": "xhigh"}},
        ),
        ("claude-opus-4-6", True, {"thinking": {"type": "adaptive"}}),
        (
            "claude-sonnet-4-6",
            "max",
            {"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}},
        ),
        ("claude-sonnet-4-5", "low", {"thinking": {"type": "enabled", "budget_tokens": 4096}}),
        ("claude-sonnet-4-5", None, {}),
        ("claude-later-7", None, {}),
        ("claude-later-7", False, {"output_config": {"effort": "low"}}),
        ("elsewhere", None, {}),
        ("elsewhere", False, {"thinking": {"type": "disabled"}}),
    ],
)
def test_thinking_is_switched_as_the_model_wants_it(model: str, thinking: Any, sent: dict[str, Any]) -> None:
    fields = body([user("q", id="q")], model=model, thinking=thinking, temperature=0.5)
    assert {name: fields[name] for name in ("thinking", "output_config") if name in fields} == sent
    takes_temperature = model.startswith(("claude-opus-4-6", "claude-sonnet-4", "elsewhere")) and not thinking
    assert ("temperature" in fields) is takes_temperature


def test_a_thinking_budget_stays_below_max_tokens() -> None:
    assert (
        body([user("q", id="q")], model="claude-haiku-4-5", thinking=True, max_tokens=4000)["thinking"]["budget_tokens"]
        == 2000
    )
    assert (
        body([user("q", id="q")], model="claude-haiku-4-5", thinking=True, max_tokens=1025)["thinking"]["budget_tokens"]
        == 1024
    )
    with pytest.raises(ConfigError, match="raise max_tokens"):
        body([user("q", id="q")], model="claude-haiku-4-5", thinking=True, max_tokens=1024)


def test_tool_choice_is_forced_only_where_the_model_takes_it() -> None:
    def choice(wanted: str, model: str, **fields: Any) -> Any:
        return body(model=model, tools=(TOOL,), tool_choice=wanted, **fields)["tool_choice"]

    assert choice("auto", MODEL) == {"type": "auto"}
    assert choice("none", MODEL) == {"type": "none"}
    assert choice("required", "claude-opus-5", thinking=False) == {"type": "any"}
    assert choice("ls", "claude-opus-4-8") == {"type": "tool", "name": "ls"}
    with pytest.raises(ConfigError, match="while thinking"):
        choice("ls", "claude-opus-5")
    with pytest.raises(ConfigError, match="cannot force"):
        choice("required", MODEL, thinking=False)


def test_stop_and_extra_fields() -> None:
    sent = body(stop=("END",), extra={"metadata": {"user_id": "u"}})
    assert sent["stop_sequences"] == ["END"]
    assert sent["metadata"] == {"user_id": "u"}
    with pytest.raises(ConfigError, match="system"):
        body(extra={"system": "x"})


def test_reasoning_of_another_model_and_unsigned_reasoning_stay_here() -> None:
    def kinds(message: Message) -> list[str]:
        return [b["type"] for b in make().to_request_messages([message])[0]["content"]]

    assert kinds(THOUGHT)[0] == "thinking"
    assert kinds(replace(THOUGHT, model=None))[0] == "thinking"
    assert kinds(replace(THOUGHT, model="claude-opus-5"))[0] == "text"
    assert kinds(assistant("x", id="a", reasoning="unsigned")) == ["text"]
    foreign = ReasoningPart("x", None, '[{"type": "reasoning.text", "text": "x"}]')
    assert kinds(Message("a", "assistant", (foreign, TextPart("x")))) == ["text"]


def test_reasoning_bound_to_another_prefix_is_dropped_where_the_row_binds_it() -> None:
    later = replace(THOUGHT, id="a2")
    messages = [*ROUND, later, tool_result("toolu_1", "", id="t3"), tool_result("toolu_2", "", id="t4")]

    def thinking(model: str, unbound_before: int) -> list[bool]:
        own = [replace(m, model=model) if m.role == "assistant" else m for m in messages]
        rows = body(own, model=model, unbound_before=unbound_before)["messages"]
        return [row["content"][0]["type"] == "thinking" for row in rows if row["role"] == "assistant"]

    assert thinking(MODEL, 0) == [True, True]
    assert thinking(MODEL, len(ROUND)) == [False, True]
    assert thinking(MODEL, len(messages)) == [False, False]
    assert thinking("claude-opus-4-6", len(messages)) == [True, True]
    assert make().to_request_messages(messages, unbound_before=9)[1]["content"][0]["type"] == "text"


def test_canonical_bytes_grow_as_a_prefix() -> None:
    backend = make()
    for count in range(1, len(ROUND)):
        shorter = backend.canonical_bytes(Request(ROUND[:count], tools=(TOOL,)))
        assert backend.canonical_bytes(Request(ROUND, tools=(TOOL,))).startswith(shorter)
