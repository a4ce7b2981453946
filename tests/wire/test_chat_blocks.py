"""What chat completions send beside plain text is kept on every row, and goes back where its provider wants it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from ctxfold import AgentContext, Completed, Message, OpenAIChatBackend, Reply, ToolSpec, open_backend, user
from ctxfold.backends.profile import load_profile, provider_names
from ctxfold.messages import MediaPart, ReasoningPart, TextPart, ToolCallPart, ToolResultPart
from ctxfold.testing import ModelServer, RawReply, Scripted

ROWS = [name for name in provider_names() if load_profile(name).wire == "openai_chat"]
SIGNED = [
    {"type": "reasoning.text", "text": "Why so.", "signature": "sig", "format": "x", "index": 0},
    {"type": "reasoning.encrypted", "data": "AAAA", "id": "r1", "index": 1},
    {"type": "reasoning.server_tool_call", "name": "search", "arguments": "{}", "index": 2},
]
THINKING = [
    {"type": "thinking", "thinking": "Why so.", "signature": "sig"},
    {"type": "redacted_thinking", "data": "BB"},
]
ANNOTATIONS = [{"type": "url_citation", "url_citation": {"url": "https://a.example", "title": "A"}}]
IMAGES = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}]
CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}


def played(message: dict[str, Any], *, stream: bool, finish: str | None = "stop") -> RawReply:
    """Returns a reply with this message, streamed as one delta for each field."""
    if not stream:
        choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish or "stop"}
        body = json.dumps({"id": "x", "object": "chat.completion", "model": "m", "choices": [choice]})
        return RawReply(headers={"content-type": "application/json"}, frames=(body.encode(),))
    calls = [{**call, "index": n} for n, call in enumerate(message.get("tool_calls", ()))]
    deltas: list[dict[str, Any]] = [{"role": "assistant"}]
    deltas += [{name: calls if name == "tool_calls" else value} for name, value in message.items()]
    rows: list[dict[str, Any]] = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    rows += [{"index": 0, "delta": {}, "finish_reason": finish}] if finish else []
    events = [json.dumps({"object": "chat.completion.chunk", "model": "m", "choices": [row]}) for row in rows]
    return RawReply(frames=tuple(f"data: {event}\n\n".encode() for event in (*events, "[DONE]")))


def answered(row: str, reply: RawReply, *, stream: bool) -> tuple[Reply, Message]:
    """Returns the reply of a service with this row, and its message."""
    with (
        ModelServer(script=[reply]) as server,
        open_backend(row, "m", base_url=server.base_url, api_key="k", max_retries=0) as backend,
        AgentContext(backend, store="memory://", context_window=50_000) as context,
    ):
        if stream:
            *_, last = context.send_stream("Go.")
            assert isinstance(last, Completed)
            return last.reply, last.reply.message
        found = context.send("Go.")
        return found, found.message


def sent_back(row: str, message: Message, *, model: str = "m") -> Any:
    with OpenAIChatBackend(provider=row, model="m", base_url="http://127.0.0.1:9", api_key="k") as backend:
        rows = backend.to_request_messages([user("Go.", id="u"), message], model=model)
    return next(one for one in rows if one["role"] == "assistant")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    "fields", ["reasoning_details", "thinking_blocks", "reasoning_content", "annotations", "images"]
)
@pytest.mark.parametrize("row", ROWS)
def test_w3_every_row_keeps_at_least_what_the_generic_row_keeps(row: str, fields: str, stream: bool) -> None:
    """W3: `snowflake` dropped signed reasoning details, and others what their row did not name."""
    value = {
        "reasoning_details": SIGNED,
        "thinking_blocks": THINKING,
        "reasoning_content": "Why so.",
        "annotations": ANNOTATIONS,
        "images": IMAGES,
    }[fields]
    opened = "</think>" if row.endswith("prefilled") else ""
    message = {fields: value, "content": f"{opened}So.", "tool_calls": [CALL]}
    _, generic = answered("generic", played({**message, "content": "So."}, stream=stream), stream=stream)
    _, found = answered(row, played(message, stream=stream), stream=stream)
    assert (found.text, found.reasoning, found.tool_calls) == (generic.text, generic.reasoning, generic.tool_calls)
    kept = {p.details for p in found.parts if isinstance(p, ReasoningPart)}
    assert {p.details for p in generic.parts if isinstance(p, ReasoningPart)} == kept
    assert [p.extra for p in generic.parts if isinstance(p, TextPart)] == [
        p.extra for p in found.parts if isinstance(p, TextPart)
    ]
    assert generic.reasoning or fields in ("annotations", "images")


def test_w3_a_stream_of_snowflake_ends_without_a_finish_reason() -> None:
    """W3: each stream failed as broken off."""
    reply, message = answered(
        "snowflake",
        played({"reasoning_details": SIGNED, "content": "So.", "annotations": ANNOTATIONS}, stream=True, finish=None),
        stream=True,
    )
    assert (reply.finish_reason, message.text) == ("stop", "So.")
    assert sent_back("snowflake", message)["reasoning_details"] == SIGNED
    assert "reasoning_details" not in sent_back("snowflake", message, model="other")
    assert "url_citation" in str(message.parts)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_w2_litellm_gets_thinking_blocks_back_and_null_beside_calls(stream: bool) -> None:
    """W2: reasoning_content went back, which Claude behind the proxy refuses, and "" made the proxy invent a text."""
    message = {"content": None, "thinking_blocks": THINKING, "reasoning_content": "Why so.", "tool_calls": [CALL]}
    _, found = answered("litellm", played(message, stream=stream, finish="tool_calls"), stream=stream)
    back = sent_back("litellm", found)
    assert (back["content"], back["thinking_blocks"]) == (None, THINKING)
    assert "reasoning_content" not in back
    assert "thinking_blocks" not in sent_back("litellm", found, model="other")
    plain = Message("a", "assistant", (ReasoningPart("Why so."), TextPart("So.")), model="m")
    assert sent_back("litellm", plain)["reasoning_content"] == "Why so.", "of a model without blocks"


@pytest.mark.parametrize(("thinking", "effort"), [(True, "medium"), ("high", "high"), (None, None), (False, None)])
def test_w2_thinking_reaches_litellm_as_an_effort(thinking: Any, effort: str | None) -> None:
    """W2: `thinking=True` did nothing."""
    with (
        ModelServer(script=[Scripted("So.")]) as server,
        open_backend("litellm", "m", base_url=server.base_url, api_key="k") as backend,
    ):
        AgentContext(backend, store="memory://", context_window=9_000).send("Go.", thinking=thinking)
    assert server.requests[0].body.get("reasoning_effort") == effort


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_w4_openrouter_gets_server_tool_calls_and_images_back(stream: bool) -> None:
    """W4: blocks of type reasoning.server_tool_call were left out, because of how their name ends, and images lost."""
    message = {"content": "So.", "reasoning_details": SIGNED, "images": IMAGES, "annotations": ANNOTATIONS}
    _, found = answered("openrouter", played(message, stream=stream), stream=stream)
    back = sent_back("openrouter", found)
    assert (back["reasoning_details"], back["images"], back["annotations"]) == (SIGNED, IMAGES, ANNOTATIONS)
    other = sent_back("openrouter", found, model="other")
    assert not {"reasoning_details", "images", "annotations"} & other.keys()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("field", ["images", "audio"])
def test_w6_a_reply_with_an_image_or_a_sound_alone_is_an_answer_once(field: str, stream: bool) -> None:
    """W6: `empty_response`, asked three times, billed three times, then an error."""
    value = IMAGES if field == "images" else {"id": "audio_1", "data": "AA==", "transcript": "So."}
    message = {"content": None, field: value}
    with (
        ModelServer(script=[played(message, stream=stream), Scripted("never asked")]) as server,
        open_backend("openrouter", "m", base_url=server.base_url, api_key="k") as backend,
        AgentContext(backend, store="memory://", context_window=9_000) as context,
    ):
        reply = context.send("Draw.")
        assert (reply.finish_reason, len(server.requests)) == ("stop", 1)
        assert json.dumps(value) in str(reply.message.parts)


MISTRAL: Sequence[Any] = (
    {"type": "thinking", "thinking": [{"type": "text", "text": "Why "}], "closed": False},
    {"type": "thinking", "thinking": [{"type": "text", "text": "so."}], "signature": "sig", "closed": True},
    {"type": "text", "text": "It is in "},
    {"type": "reference", "reference_ids": [3, 4]},
    {"type": "text", "text": "the hall."},
    {"type": "tool_reference", "tool": "web_search", "title": "Hall", "url": "https://hall.example"},
)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_w5_mistral_gets_signatures_and_references_back_in_their_places(stream: bool) -> None:
    """W5: a signature on a thinking chunk, reference and tool_reference chunks were dropped."""
    _, found = answered("mistral", played({"content": list(MISTRAL)}, stream=stream), stream=stream)
    assert (found.text, found.reasoning) == ("It is in the hall.", "Why so.")
    thought = {
        "type": "thinking",
        "thinking": [{"type": "text", "text": "Why so."}],
        "closed": True,
        "signature": "sig",
    }
    assert sent_back("mistral", found)["content"] == [thought, *MISTRAL[2:]]
    assert sent_back("mistral", found, model="other")["content"] == "It is in the hall."


def test_w5_a_reference_within_a_thought_keeps_its_place() -> None:
    """W5: the same within a thinking chunk."""
    inner = [
        {"type": "text", "text": "Why "},
        {"type": "reference", "reference_ids": [1]},
        {"type": "text", "text": "so."},
    ]
    _, found = answered(
        "mistral", played({"content": [{"type": "thinking", "thinking": inner}]}, stream=False), stream=False
    )
    assert found.reasoning == "Why so."
    back = sent_back("mistral", found)["content"]
    assert [part for block in back for part in block["thinking"]] == inner


@pytest.mark.parametrize("row", ["openai", "generic", "mistral"])
def test_w8_an_image_of_a_tool_stands_in_a_user_message_behind_the_whole_round(row: str) -> None:
    """W8: `image_url` stood within role `tool`, which OpenAI's schema does not know."""
    image = MediaPart("image", json.dumps(IMAGES[0]))
    calls = tuple(ToolCallPart(f"callabc0{n}", "look", "{}") for n in range(2))
    messages = [
        user("Look twice.", id="u1"),
        Message("a1", "assistant", calls, model="m"),
        Message("r1", "tool", (ToolResultPart("callabc00", "A plum.", "look"), image)),
        Message("r2", "tool", (ToolResultPart("callabc01", "", "look"), image)),
        user("Which?", id="u2"),
    ]
    with OpenAIChatBackend(provider=row, model="m", base_url="http://127.0.0.1:9", api_key="k") as backend:
        rows = backend.to_request_messages(messages)
        whole = backend.to_request_messages(messages[:-1])
    assert [(one["role"], one["content"]) for one in rows[2:4]] == [("tool", "A plum."), ("tool", "")]
    behind = [one for one in rows[4:] if one["role"] == "user"]
    blocks = [block for one in behind for block in (one["content"] if isinstance(one["content"], list) else [])]
    assert [block for block in blocks if block["type"] == "image_url"] == [IMAGES[0], IMAGES[0]]
    assert rows[: len(whole) - 1] == whole[:-1], "a later turn keeps what was sent"
    if row == "mistral":
        roles = [one["role"] for one in rows[4:]]
        assert roles == ["assistant", "user"], "user and assistant alternate"


def test_w8_a_strict_server_takes_rounds_with_images() -> None:
    """W8: the same, over the wire."""
    tools = (ToolSpec("look", "Looks."),)
    image = MediaPart("image", json.dumps(IMAGES[0]))
    calls = [json.loads(json.dumps(CALL))]
    script: list[Any] = [
        played({"content": None, "tool_calls": calls}, stream=False, finish="tool_calls"),
        Scripted("So."),
    ]
    with (
        ModelServer(script=script, strict="openai") as server,
        open_backend("openai", "m", base_url=server.base_url, api_key="k", max_retries=0) as backend,
        AgentContext(backend, store="memory://", context_window=9_000) as context,
    ):
        context.send("Look.", tools=tools)
        context.send([Message("r1", "tool", (ToolResultPart("call_1", "A plum."), image))], tools=tools)
    assert [one["role"] for one in server.requests[1].body["messages"]] == ["user", "assistant", "tool", "user"]
