"""Agents on Anthropic's Messages against a strict server: past the window, over other wires, and what the server refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from ctxfold import (
    AgentContext,
    BackendError,
    Message,
    ReasoningPart,
    Request,
    TextPart,
    ToolCallPart,
    open_backend,
    system,
    user,
)
from ctxfold import tool_result as result_of
from ctxfold.backends.http_backend import HttpBackend
from ctxfold.protocols import Wire
from ctxfold.stores.memory import MemoryStore
from ctxfold.testing import ErrorReply, ModelServer, Scripted, ScriptedCall
from ctxfold.testing.served import signature
from tests.wire.agent_session import TOOLS, Model, past_the_window, turn
from tests.wire.anthropic_wire import folded

BOUND, FREE = "claude-opus-5-5", "claude-sonnet-4-5"
MARK = {"type": "ephemeral"}
CALL = Scripted(reasoning="Think.", tool_calls=(ScriptedCall("look", '{"n": 1}', "c1"),))
Change = Callable[[dict[str, Any]], Any]


def messages(server: ModelServer, model: str = FREE, **settings: Any) -> HttpBackend:
    given: dict[str, Any] = {"thinking": True, "max_retries": 0, **settings}
    return open_backend("anthropic", model, base_url=server.base_url, api_key="k", **given)


def kinds(row: dict[str, Any]) -> list[str]:
    return [block["type"] for block in row["content"]]


@pytest.mark.parametrize(
    ("model_id", "way"),
    [
        *((FREE, way) for way in ("sync", "async", "streamed", "streamed async")),
        (BOUND, "sync"),
        (BOUND, "streamed async"),
    ],
)
async def test_turns_with_tools_past_the_window_are_never_refused(model_id: str, way: str) -> None:
    model = Model()
    with ModelServer(script=model, strict="anthropic") as server:
        bodies = await past_the_window(messages(server, model_id), server, model, way)
    for body in bodies if model_id == FREE else ():  # a model that binds thinking loses it with what stood before
        rows = body["messages"]
        asked = max(i for i, row in enumerate(rows) if row["role"] == "user" and "tool_result" not in kinds(row))
        for row in rows[asked + 1 :]:
            assert row["role"] == "user" or kinds(row)[0] == "thinking", "of the open turn"


@pytest.mark.parametrize("way", ["sync", "streamed async"])
async def test_a_session_goes_over_to_other_wires_and_comes_back(way: str) -> None:
    store, model = MemoryStore(), Model()
    first: tuple[str, str, Wire | None] = ("anthropic", FREE, None)
    others: tuple[tuple[str, str, Wire | None], ...] = (
        ("generic", "llama", None),
        ("openai", "gpt-5.5", "openai_responses"),
        ("gemini", "gemini-3-flash-preview", "gemini"),
        ("bedrock", "us.anthropic.claude-sonnet-4-5-20250929-v1:0", None),
        ("anthropic", BOUND, None),
    )
    with ModelServer(script=model, strict="anthropic") as server:
        for provider, name, wire in (first, *others, first):
            backend = open_backend(provider, name, wire=wire, base_url=server.base_url, api_key="k", max_retries=0)
            async with backend, AgentContext(backend, session_id="s", store=store, context_window=60_000) as context:
                for number in range(2):
                    await turn(context, f"{provider} {name} {number}?", way)
        bodies = [request.body for request in server.requests]
    assert len(bodies) == model.asked, "none was refused and sent again"
    signed = [block for row in bodies[-1]["messages"] for block in row["content"] if block["type"] == "thinking"]
    assert len(signed) == 2 * 3 + 3 + 2, "of its own model alone"


def test_whole_and_streamed_replies_say_the_same() -> None:
    said = Scripted("Looking.", "Think about it for a while.", (ScriptedCall("look", '{"n": 1}', "c1"),))
    request = Request((system("Be brief.", id="s"), user("q", id="u")), tools=TOOLS, stable_messages=2)
    with ModelServer(script=lambda _: said) as server, messages(server) as backend:
        whole = backend.send(request)
        chunks = list(backend.open_stream(request))
        assert [chunk.reasoning for chunk in chunks if chunk.reasoning] == ["Think about it for ", "a while."]
        streamed = folded(chunks)
        assert streamed.message.parts == whole.message.parts
    assert whole.message.parts == (
        ReasoningPart(said.reasoning, signature("messages", said.reasoning)),
        TextPart("Looking."),
        ToolCallPart("c1", "look", '{"n": 1}'),
    )
    assert (streamed.finish_reason, whole.finish_reason) == ("tool_calls", "tool_calls")
    assert whole.usage is not None
    assert streamed.usage is not None
    assert (whole.usage.cache_read_tokens, whole.usage.output_tokens) == (0, streamed.usage.output_tokens)
    assert streamed.usage.cache_read_tokens == streamed.usage.input_tokens == whole.usage.input_tokens
    assert streamed.usage.reasoning_tokens == whole.usage.reasoning_tokens


def test_a_script_reads_a_request_as_a_chat_completion() -> None:
    seen: list[Any] = []
    source = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    use = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"n": 1}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "image", "source": source}]}
    file = {"type": "document", "title": "a.pdf", "source": {"type": "url", "url": "https://x.test/a.pdf"}}
    body: dict[str, Any] = {
        "model": "m",
        "max_tokens": 9,
        "system": "Be brief.",
        "messages": [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": [{"type": "text", "text": "Looking."}, use]},
            {"role": "user", "content": [result, {"type": "text", "text": "And this?"}, file]},
        ],
        "tools": [{"name": "look", "input_schema": {"type": "object"}}, {"type": "web_search_20250305", "name": "s"}],
        "tool_choice": {"type": "tool", "name": "look"},
    }
    with ModelServer(script=lambda chat: seen.append(chat) or Scripted("ok"), strict="anthropic") as server:
        assert refusal(server, body) == ""
        assert refusal(server, {**body, "tool_choice": {"type": "any"}}) == ""
    function = {"name": "look", "arguments": '{"n": 1}'}
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    pdf = {"type": "file", "file": {"filename": "a.pdf", "file_data": "https://x.test/a.pdf"}}
    call = {"id": "toolu_1", "type": "function", "function": function}
    assert seen[0] == {
        "model": "m",
        "max_tokens": 9,
        "stream": False,
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": "Looking.", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "toolu_1", "content": [image]},
            {"role": "user", "content": [{"type": "text", "text": "And this?"}, pdf]},
        ],
        "tools": [
            {"type": "function", "function": {"name": "look", "description": "", "parameters": {"type": "object"}}}
        ],
        "tool_choice": {"type": "function", "function": {"name": "look"}},
    }
    assert seen[1]["tool_choice"] == "required"


def refusal(server: ModelServer, body: dict[str, Any], change: Change | None = None) -> str:
    """What a strict server says to a request that was changed by hand; "" when it answers."""
    if change is not None:
        change(body)
    answer = httpx.post(f"{server.base_url}/messages", json=body)
    if answer.status_code == 200:
        return ""
    said = answer.json()
    assert (said["type"], said["error"].keys()) == ("error", {"type", "message"})
    assert (answer.status_code, said["error"]["type"]) == (400, "invalid_request_error")
    return str(said["error"]["message"])


def more_marks(body: dict[str, Any]) -> None:
    body["tools"][0]["cache_control"] = MARK
    body["messages"][0]["content"] = [{"type": "text", "text": "q", "cache_control": MARK}] * 4


def marked_result(body: dict[str, Any]) -> None:
    more_marks(body)
    body["messages"][0]["content"].pop()
    body["messages"][2]["content"][0]["content"] = [{"type": "text", "text": "five", "cache_control": MARK}]


def foreign_ids(body: dict[str, Any]) -> None:
    body["messages"][1]["content"][1]["id"] = body["messages"][2]["content"][0]["tool_use_id"] = "a|b"


def no_mode(body: dict[str, Any]) -> None:
    del body["thinking"]
    body["messages"][1]["content"].pop(0)


def text_first(body: dict[str, Any]) -> None:
    body["messages"][2]["content"].insert(0, {"type": "text", "text": "x"})


def at(index: int, place: int, **fields: Any) -> Change:
    return lambda body: body["messages"][index]["content"][place].update(fields)


def blank(text: str) -> Change:
    return lambda body: body["messages"][0]["content"].append({"type": "text", "text": text})


REFUSED: dict[str, tuple[str, Change]] = {
    "changed": ("messages.1.content.0: Invalid `signature` in `thinking` block", at(1, 0, thinking="Other.")),
    "unsigned": ("Invalid `signature` in `thinking` block", at(1, 0, signature="")),
    "left out": (
        "messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found `tool_use`",
        lambda b: b["messages"][1]["content"].pop(0),
    ),
    "left out, no mode": ("Expected `thinking` or `redacted_thinking`, but found `tool_use`", no_mode),
    "unlimited": ("max_tokens: Field required", lambda b: b.pop("max_tokens")),
    "all for thinking": (
        "must be greater than `thinking.budget_tokens`",
        lambda b: b.update(max_tokens=b["thinking"]["budget_tokens"]),
    ),
    "forced": ("Thinking may not be enabled", lambda b: b.update(tool_choice={"type": "any"})),
    "no message": ("at least one message", lambda b: b["messages"].clear()),
    "twice": ("must alternate", lambda b: b["messages"].append({"role": "user", "content": "x"})),
    "assistant first": ('must use the "user" role', lambda b: b["messages"].pop(0)),
    "system": ('Unexpected role "system"', lambda b: b["messages"].insert(0, {"role": "system", "content": "x"})),
    "blank": ("must contain non-whitespace text", blank(" \n")),
    "empty text": ("must contain non-whitespace text", blank("")),
    "blank system": ("system: text content blocks", lambda b: b.update(system=[{"type": "text", "text": ""}])),
    "empty": ("messages.0: all messages must have non-empty content", lambda b: b["messages"][0]["content"].clear()),
    "audio": ("Input tag 'input_audio'", lambda b: b["messages"][0]["content"].append({"type": "input_audio"})),
    "a user's thought": (
        "Input tag 'thinking'",
        lambda b: b["messages"][0]["content"].append(b["messages"][1]["content"][0]),
    ),
    "unanswered": (
        "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: c1",
        lambda b: b["messages"][2].update(content=[{"type": "text", "text": "x"}]),
    ),
    "unanswered at the end": ("`tool_use` ids were found", lambda b: b["messages"].pop()),
    "answered late": ("`tool_use` ids were found", text_first),
    "answer to nothing": (
        "messages.2.content.1: unexpected `tool_use_id` found in `tool_result` blocks: c9",
        lambda b: b["messages"][2]["content"].append({"type": "tool_result", "tool_use_id": "c9", "content": "x"}),
    ),
    "answer first of all": (
        "messages.0.content.1: unexpected `tool_use_id`",
        lambda b: b["messages"][0]["content"].append(b["messages"][2]["content"][0]),
    ),
    "text as input": ("tool_use.input: Input should be a valid dictionary", at(1, 1, input="{}")),
    "foreign id": ("tool_use.id: String should match pattern", foreign_ids),
    "five marks": ("A maximum of 4 blocks with cache_control may be provided. Found 5.", more_marks),
    "five marks, one inside": ("Found 5.", marked_result),
    "a marked thought": ("thinking blocks cannot have cache_control", at(1, 0, cache_control=MARK)),
}
ACCEPTED: dict[str, Change] = {
    "as it was": lambda _: None,
    "thinks as it sees fit": lambda b: (b["messages"][1]["content"].pop(0), b.update(thinking={"type": "adaptive"})),
    "no longer thinks": lambda b: (b["messages"][1]["content"].pop(0), b.update(thinking={"type": "disabled"})),
    "an earlier turn": lambda b: (
        b["messages"][1]["content"].pop(0),
        b["messages"].extend([{"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]),
    ),
    "an empty system prompt": lambda b: b.update(system=""),
    "a text after the results": lambda b: b["messages"][2]["content"].append({"type": "text", "text": "x"}),
}


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[ModelServer, ModelServer]]:
    """A strict server and one that is not; both call a tool first, with thinking."""

    def play(body: Any) -> Scripted:
        return CALL if len(body["messages"]) == 1 else Scripted("ok")

    with ModelServer(script=play, strict="anthropic") as strict, ModelServer(script=play) as lenient:
        yield strict, lenient


def told_of(server: ModelServer, change: Change) -> str:
    """What a server says to the second request of a tool round, changed by hand; the first was answered with thinking."""
    with messages(server) as backend:
        said = backend.send(Request((user("q", id="u"),), tools=TOOLS)).message
        good = (user("q", id="u"), said, result_of("c1", "five", id="r"))
        body = backend.request_body(Request(good, tools=TOOLS), stream=False)
    return refusal(server, body, change)


@pytest.mark.parametrize("case", REFUSED)
def test_the_server_refuses_what_anthropic_refuses(case: str, servers: tuple[ModelServer, ModelServer]) -> None:
    strict, lenient = servers
    words, change = REFUSED[case]
    assert words in told_of(strict, change)
    assert told_of(lenient, change) == "", "a server that is not strict takes it"


@pytest.mark.parametrize("case", ACCEPTED)
def test_the_server_takes_what_anthropic_takes(case: str, servers: tuple[ModelServer, ModelServer]) -> None:
    assert told_of(servers[0], ACCEPTED[case]) == ""


def test_thinking_is_wanted_from_a_model_that_always_thinks_whoever_called() -> None:
    """Calls that this server never made: the first turn of an open round begins with thinking all the same."""
    use: dict[str, Any] = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "x"}
    rows: list[tuple[str, Any]] = [("user", "q"), ("assistant", [use]), ("user", [result])]
    body: dict[str, Any] = {"model": "m", "max_tokens": 9, "messages": [{"role": r, "content": c} for r, c in rows]}
    with ModelServer(strict="anthropic") as server:
        assert refusal(server, body) == ""
        thinks = {"max_tokens": 2000, "thinking": {"type": "enabled", "budget_tokens": 1024}}
        assert "but found `tool_use`" in refusal(server, {**body, **thinks})


@pytest.mark.parametrize("model_id", [BOUND, FREE])
def test_a_message_of_any_wire_can_be_sent(model_id: str) -> None:
    """Text, calls and results remain; what only another provider reads is left out."""
    parts = (
        ReasoningPart("r", "sig", '[{"type": "reasoning", "id": "rs_1", "encrypted_content": "E"}]'),
        TextPart("Yes.", '{"thoughtSignature": "T", "id": "msg_1"}'),
        ToolCallPart("call|1", "look", "not json", '{"thought_signature": "T"}'),
    )
    settings = {} if model_id == BOUND else {"thinking": False}  # thinking cannot begin inside a round of tools
    with ModelServer(script=[Scripted("ok")], strict="anthropic") as server:
        with messages(server, model_id, **settings) as backend:
            said = Message("a", "assistant", parts, model="gpt-5.5")
            asked = (user("q", id="u"), said, result_of("call|1", "", id="r"))
            assert backend.send(Request(asked, tools=TOOLS)).message.text == "ok"
        sent = server.requests[0].body["messages"][1]["content"]
    assert [block["type"] for block in sent] == ["text", "tool_use"]
    assert sent[1]["input"] == {"INVALID_JSON": "not json"}


@pytest.mark.parametrize(("reply", "requested"), [(2000, None), (20, 420)])
def test_an_error_of_the_window_has_its_numbers(reply: int, requested: int | None) -> None:
    text = "word " * (20 if requested is None else 400)
    with (
        ModelServer(script=[Scripted("ok")], context_window=50) as server,
        messages(server, thinking=False) as backend,
        pytest.raises(BackendError) as caught,
    ):
        backend.send(Request((user(text, id="u"),), max_tokens=reply))
    assert (caught.value.kind, caught.value.limit_tokens) == ("context_overflow", 50)
    told = str(caught.value)
    assert ("> 50 maximum" in told) is (requested is not None)
    assert ("exceed context limit" in told) is (requested is None)
    if requested is not None:
        assert 400 <= (caught.value.requested_tokens or 0) < requested


@pytest.mark.parametrize(
    ("status", "kind", "named"),
    [
        (401, "auth", "authentication_error"),
        (404, "rejected", "not_found_error"),
        (429, "rate_limit", "rate_limit_error"),
        (500, "server", "api_error"),
        (529, "overloaded", "overloaded_error"),
    ],
)
def test_errors_have_the_shape_and_types_of_the_wire(status: int, kind: str, named: str) -> None:
    plain = ErrorReply(status, {"error": {"message": "Told.", "type": "x"}})
    own = ErrorReply(status, {"type": "error", "error": {"type": named, "message": "Told."}, "request_id": "r"})
    with ModelServer(script=[plain, own, plain]) as server:
        body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "q"}]}
        answers = [httpx.post(f"{server.base_url}/messages", json=body) for _ in range(2)]
        assert answers[0].json() == {"type": "error", "error": {"type": named, "message": "Told."}}
        assert answers[1].json() == own.body
        with messages(server) as backend, pytest.raises(BackendError, match="Told") as caught:
            backend.send(Request((user("q", id="u"),)))
    assert caught.value.kind == kind


async def test_the_server_counts_a_request_as_its_reply_does() -> None:
    """And refuses to count what it would refuse to answer."""
    talk = (system("Be brief.", id="s"), user("How many plums?", id="u"))
    with ModelServer(script=[Scripted("Five.")], strict="anthropic") as server, messages(server) as backend:
        counted = backend.estimate_tokens(talk, tools=TOOLS)
        assert await backend.aestimate_tokens(talk, tools=TOOLS) == counted
        usage = backend.send(Request(talk, tools=TOOLS)).usage
        assert usage is not None
        assert usage.input_tokens == counted > 10
        with pytest.raises(BackendError, match="at least one message"):
            backend.estimate_tokens(talk[:1])
        assert len(server.requests) == 1, "only what asks the model"
