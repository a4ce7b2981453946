"""What is sent to an OpenAI-compatible service, as its row says."""

from __future__ import annotations

import json

import pytest

from ctxfold import (
    ConfigError,
    MediaPart,
    Message,
    OpenAIChatBackend,
    ReasoningPart,
    Request,
    TextPart,
    ToolCallPart,
    assistant,
    open_backend,
    system,
    user,
)
from ctxfold.errors import InvalidTextError
from ctxfold.protocols import Wire
from tests.backends.openai_backend import CALL, ROUND, TOOL, body, make, rows


@pytest.mark.parametrize(
    ("provider", "field", "carried"),
    [
        ("deepseek", "reasoning_content", ["r1", "r2", ""]),
        ("moonshot", "reasoning_content", ["r1", "r2", None]),
        ("dashscope", "reasoning_content", [None, "r2", None]),
        ("vllm", "reasoning", ["r1", "r2", None]),
        ("openai", "reasoning_content", [None, None, None]),
        ("generic", "reasoning_content", [None, None, None]),
    ],
)
def test_reasoning_travels_as_the_row_says(provider: str, field: str, carried: list[str | None]) -> None:
    sent = [row for row in rows(provider) if row["role"] == "assistant"]
    assert [row.get(field) for row in sent] == carried
    assert all((field in row) is (value is not None) for row, value in zip(sent, carried, strict=True))


def test_reasoning_of_tool_rounds_only_and_the_placeholder() -> None:
    out = {"keep": "tool_rounds", "field": "why", "placeholder": " ", "placeholder_on": "tool_calls"}
    row = {"name": "x", "base_url": "http://h", "reasoning_out": out}
    bare = assistant("", id="a4", calls=[CALL])
    assert [r.get("why") for r in rows(row, (*ROUND, bare)) if r["role"] == "assistant"] == [None, "r2", None, " "]


def test_details_travel_as_an_array_and_only_to_their_own_model() -> None:
    blocks = [{"type": "reasoning.text", "text": "r"}]
    part = ReasoningPart("r", None, json.dumps(blocks))
    message = Message("a", "assistant", (part, TextPart("t")), model="m")
    (row,) = rows("openrouter", [message])
    assert row["reasoning_details"] == blocks
    assert "reasoning_details" not in rows("openrouter", [message], model="another")[0]


def test_the_stored_message_is_left_alone() -> None:
    before = repr(ROUND)
    rows("openai")
    assert repr(ROUND) == before


def test_roles_and_content() -> None:
    image = MediaPart("image", '{"type":"image_url","image_url":{"url":"http://x/i.png"}}')
    seen = Message("u3", "user", (TextPart("look"), image), name="ann")
    sent = rows("openai", (*ROUND, seen))
    assert sent[0] == {"role": "developer", "content": "S"}
    call = {"id": "c1", "type": "function", "function": {"name": "ls", "arguments": '{"d": "/"}'}}
    assert sent[4] == {"role": "assistant", "content": None, "tool_calls": [call]}
    assert sent[5] == {"role": "tool", "tool_call_id": "c1", "content": "bin"}
    assert sent[7] == {
        "role": "user",
        "content": [{"type": "text", "text": "look"}, json.loads(image.data)],
        "name": "ann",
    }
    assert rows("generic")[4]["content"] == ""


def test_extra_of_a_call_travels_with_it() -> None:
    call = ToolCallPart("c", "f", "{}", extra='{"extra_content": {"sig": 1}}')
    assert rows("generic", [assistant("", id="a", calls=[call])])[0]["tool_calls"][0]["extra_content"] == {"sig": 1}


def test_one_leading_system() -> None:
    messages = (system("A", id="1"), system("B", id="2"), user("u", id="3"), system("C", id="4"))
    own = {"name": "own", "base_url": "http://localhost:9", "request": {"one_leading_system": True}}
    assert rows(None, messages, profile=own) == [
        {"role": "system", "content": "A\n\nB"},
        {"role": "user", "content": "u"},
        {"role": "user", "content": "C"},
    ]
    assert [r["role"] for r in rows("generic", messages)] == ["system", "system", "user", "system"]
    assert (make("vllm").scratch_role, make("generic").scratch_role) == ("user", "system")


def test_body_fields() -> None:
    sent = body("openai", max_tokens=5, temperature=0.5, stop=("x",), tools=(TOOL,), extra={"seed": 1})
    assert list(sent)[:3] == ["model", "messages", "tools"]
    assert (sent["max_completion_tokens"], sent["temperature"], sent["stop"], sent["seed"]) == (5, 0.5, ["x"], 1)
    assert sent["tools"][0]["function"]["parameters"] == TOOL.parameters
    assert (sent["stream"], sent["stream_options"]) == (True, {"include_usage": True})
    whole = body("generic", stream=False, model="x", max_tokens=5)
    assert (whole["stream"], whole["max_tokens"], whole["model"]) == (False, 5, "x")
    assert "stream_options" not in whole
    assert body("zhipu", tools=(TOOL,))["tool_stream"] is True
    assert "tool_stream" not in body("zhipu")


def test_thinking_is_switched_by_the_row() -> None:
    assert body("deepseek")["thinking"] == {"type": "enabled"}
    assert body("deepseek", thinking=False)["thinking"] == {"type": "disabled"}
    assert body("deepseek", thinking="medium")["reasoning_effort"] == "high"
    assert "enable_thinking" not in body("dashscope")
    assert body("dashscope", thinking=True)["enable_thinking"] is True
    assert body("dashscope", model="qwen3.8-x", thinking="high")["reasoning_effort"] == "xhigh"
    with_default = OpenAIChatBackend(provider="openai", model="m", api_key="k", thinking="low")
    assert with_default.request_body(Request(ROUND), stream=True)["reasoning_effort"] == "low"
    assert with_default.request_body(Request(ROUND, thinking=False), stream=True)["reasoning_effort"] == "none"
    with pytest.raises(ConfigError, match="levels: low, medium, high, max"):
        body("openai", thinking="huge")
    with pytest.raises(ConfigError, match="cannot switch thinking off"):
        body("moonshot", model="kimi-k3", thinking=False)


def test_sampling_parameters_are_dropped_while_thinking() -> None:
    assert "temperature" not in body("deepseek", temperature=1.0)
    assert "top_p" not in body("deepseek", extra={"top_p": 0.5})
    assert body("deepseek", temperature=1.0, thinking=False)["temperature"] == 1.0


def test_tool_choice() -> None:
    assert body(tools=(TOOL,), tool_choice="auto")["tool_choice"] == "auto"
    assert body(tools=(TOOL,), tool_choice="ls")["tool_choice"] == {"type": "function", "function": {"name": "ls"}}
    assert "tool_choice" not in body(tool_choice="none")
    assert body("deepseek", tools=(TOOL,), tool_choice="required", thinking=False)["tool_choice"] == "required"
    for provider, fields, told in (
        ("deepseek", {"tools": (TOOL,), "tool_choice": "ls"}, "'deepseek' cannot force a tool call while thinking"),
        ("moonshot", {"tools": (TOOL,), "tool_choice": "required"}, "'moonshot' cannot force"),
        ("generic", {"tools": (TOOL,), "tool_choice": "cp"}, "'cp' is not a tool"),
        ("generic", {"tool_choice": "required"}, "needs tools"),
        ("generic", {"extra": {"messages": []}}, "messages"),
    ):
        with pytest.raises(ConfigError, match=told):
            body(provider, **fields)


async def test_what_cannot_be_sent_is_told_before_anything_is_sent() -> None:
    backend = make()
    with pytest.raises(InvalidTextError):
        backend.send(Request((user("\ud800", id="u"),)))
    with pytest.raises(ConfigError, match="JSON"):
        await backend.asend(Request(ROUND, extra={"x": object()}))


def test_canonical_bytes_grow_as_a_prefix_and_parse_arguments() -> None:
    backend = make("deepseek")
    lines = backend.canonical_bytes(Request(ROUND, tools=(TOOL,))).splitlines()
    assert json.loads(lines[0])["function"]["name"] == "ls"
    assert json.loads(lines[5])["tool_calls"][0]["function"]["arguments"] == {"d": "/"}
    for end in range(1, len(ROUND)):
        shorter = backend.canonical_bytes(Request(ROUND[:end], tools=(TOOL,)))
        assert shorter.endswith(b"\n")
        assert backend.canonical_bytes(Request(ROUND, tools=(TOOL,))).startswith(shorter)


@pytest.mark.parametrize(
    ("provider", "arguments", "sent"),
    [
        ("openai", '{"a":1,"b":', '{"a":1,"b":'),
        ("generic", '{"a":1,"b":', '{"INVALID_JSON": "{\\"a\\":1,\\"b\\":"}'),
        ("vllm", "[1]", '{"INVALID_JSON": "[1]"}'),
        ("llamacpp", "", "{}"),
        ("vllm", '{"a":  1}', '{"a":  1}'),
    ],
)
def test_a_malformed_call_goes_back_as_the_service_takes_it(provider: str, arguments: str, sent: str) -> None:
    """Step 7, item A3: OpenAI takes the text; servers that parse the history refuse it, and every later request with it."""
    *_, row = rows(provider, [assistant("", id="a", calls=[ToolCallPart("c", "ls", arguments)])])
    assert row["tool_calls"][0]["function"] == {"name": "ls", "arguments": sent}


@pytest.mark.parametrize("wire", ["openai_chat", "openai_responses"])
@pytest.mark.parametrize(
    ("texts", "sent"),
    [
        (("The page.", "What is its title?"), "The page.\n\nWhat is its title?"),
        (("", "One. ", "Two.", "\nThree.", ""), "One. Two.\nThree."),
        (("Alone.",), "Alone."),
        ((), ""),
    ],
)
def test_texts_of_a_users_message_do_not_run_together(wire: Wire, texts: tuple[str, ...], sent: str) -> None:
    question = Message("u", "user", tuple(map(TextPart, texts)))
    answer = Message("a", "assistant", (TextPart("An an"), TextPart("swer.")))
    with open_backend("openai", "m", wire=wire, base_url="http://localhost:1", api_key="k") as service:
        body = service.request_body(Request((question, answer)), stream=False)
    rows = body.get("messages") or body["input"]
    assert rows[0]["content"] == sent
    assert "An answer." in json.dumps(rows[1])
