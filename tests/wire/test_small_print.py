"""W11: what is rare on the wires, each with the reply that the service would send."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ctxfold import AgentContext, Message, open_backend, tool_result, user
from ctxfold.testing import ModelServer, RawReply, Scripted
from ctxfold.testing.served_converse import event_frame
from tests.support.wires import WIRES
from tests.wire.anthropic_wire import make, parsed
from tests.wire.test_chat_blocks import answered, played, sent_back


def whole(body: Any) -> RawReply:
    return RawReply(headers={"content-type": "application/json"}, frames=(json.dumps(body).encode(),))


def test_w11_tokens_of_geminis_own_tools_are_input() -> None:
    """W11: `toolUsePromptTokenCount` was not counted; it is billed, and no part of the prompt that we sent."""
    usage = {"promptTokenCount": 10, "toolUsePromptTokenCount": 30, "candidatesTokenCount": 5, "totalTokenCount": 45}
    reply = {"candidates": [{"content": {"parts": [{"text": "So."}]}, "finishReason": "STOP"}], "usageMetadata": usage}
    served = WIRES["gemini"]
    with ModelServer(script=[whole(reply)]) as server, open_backend(**served.settings(server)) as backend:
        found = AgentContext(backend, store="memory://", context_window=9_000).send("Go.")
    assert found.usage is not None
    assert found.billed is not None
    assert (found.usage.input_tokens, found.billed.input_tokens, found.billed.output_tokens) == (10, 40, 5)


@pytest.mark.parametrize(("raw", "finish"), [("eos", "stop"), ("eos_token", "stop"), ("repetition", "length")])
def test_w11_finish_reasons_of_open_servers_have_their_names(raw: str, finish: str) -> None:
    """W11: they were passed on as they came, and an agent did not know that the reply was whole."""
    reply, _ = answered("vllm", played({"content": "So."}, stream=False, finish=raw), stream=False)
    assert reply.finish_reason == finish


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("row", ["groq", "huggingface"])
def test_w11_thinking_between_tags_is_reasoning(row: str, stream: bool) -> None:
    """W11: `<think>` stood in the text that the user sees."""
    _, message = answered(row, played({"content": "<think>Why so.</think>So."}, stream=stream), stream=stream)
    assert (message.reasoning, message.text) == ("Why so.", "So.")
    assert "Why" not in str(sent_back(row, message)["content"])


def test_w11_a_wrong_checksum_of_converse_is_tried_again() -> None:
    """W11: it failed at once, though the next try would have done."""
    rows: list[tuple[str, Any]] = [
        ("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": "So."}}),
        ("messageStop", {"stopReason": "end_turn"}),
    ]
    frames = [event_frame({":message-type": "event", ":event-type": n}, json.dumps(body).encode()) for n, body in rows]
    broken = (frames[0][:-5] + bytes([frames[0][-5] ^ 1]) + frames[0][-4:], frames[1])
    played_frames = RawReply(headers={"content-type": "application/vnd.amazon.eventstream"}, frames=broken)
    with ModelServer(script=[played_frames, Scripted("So.")]) as server:
        settings = {**WIRES["bedrock_converse"].settings(server), "max_retries": 1}
        with open_backend(**settings) as backend:
            reply = AgentContext(backend, store="memory://", context_window=9_000).send("Go.")
        assert (reply.message.text, len(server.requests)) == ("So.", 2)


def test_w11_the_toolset_of_a_call_goes_back_on_call_and_result() -> None:
    """W11: `toolset_name` was dropped from the call, and missing on its result."""
    call = {"type": "tool_use", "id": "t1", "name": "click", "input": {}, "toolset_name": "browser"}
    chunks, _ = parsed(
        {"type": "content_block_start", "index": 0, "content_block": call},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    )
    backend = make()
    message = backend.merge_chunks(chunks)
    assert message is not None
    own = Message("a", "assistant", message.parts, model=backend.model)
    rows = backend.to_request_messages([user("Go.", id="u"), own, tool_result("t1", "clicked", id="r")])
    assert rows[1]["content"] == [call]
    assert rows[2]["content"][0]["toolset_name"] == "browser"
    other = backend.to_request_messages(
        [user("Go.", id="u"), own, tool_result("t1", "clicked", id="r")], model="claude-opus-5"
    )
    assert "toolset_name" not in str(other)
