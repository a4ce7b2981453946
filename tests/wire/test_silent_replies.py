"""Valid replies without text are answers, what stands beside texts is kept, and usage is what the service counted."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ctxfold import AgentContext, Completed, Reply, ToolSpec, open_backend, tool_result
from ctxfold.messages import TextPart
from ctxfold.testing import ModelServer, RawReply, Scripted, ScriptedCall
from ctxfold.testing.served_converse import event_frame
from tests.support.wires import WIRES
from tests.wire.anthropic_wire import block, end

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ"
SEARCHED = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "plums"}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}


def anthropic(
    *blocks: dict[str, Any], stream: bool, start: Any = None, last: Any = None, reason: str = "end_turn"
) -> RawReply:
    started = {"input_tokens": 40, "output_tokens": 1} if start is None else start
    ended = {"output_tokens": 9} if last is None else last
    message = {"type": "message", "role": "assistant", "model": "claude-sonnet-4-5", "content": list(blocks)}
    if not stream:
        whole = {**message, "stop_reason": reason, "usage": {**started, **ended}}
        return RawReply(headers={"content-type": "application/json"}, frames=(json.dumps(whole).encode(),))
    events: list[Any] = [{"type": "message_start", "message": {**message, "content": [], "usage": started}}]
    events += [event for n, one in enumerate(blocks) for event in block(n, one)]
    events += end(reason, **ended)
    return RawReply(frames=tuple(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n".encode() for e in events))


def converse(*blocks: dict[str, Any], stream: bool, events: Any = ()) -> RawReply:
    usage = {"inputTokens": 40, "outputTokens": 9, "totalTokens": 49}
    if not stream:
        message = {"role": "assistant", "content": list(blocks)}
        whole = {"output": {"message": message}, "stopReason": "end_turn", "usage": usage}
        return RawReply(headers={"content-type": "application/json"}, frames=(json.dumps(whole).encode(),))
    rows = [("messageStart", {"role": "assistant"}), *events, ("messageStop", {"stopReason": "end_turn"})]
    rows.append(("metadata", {"usage": usage}))
    frames = (
        event_frame(
            {":message-type": "event", ":event-type": kind, ":content-type": "application/json"},
            json.dumps(body).encode(),
        )
        for kind, body in rows
    )
    return RawReply(headers={"content-type": "application/vnd.amazon.eventstream"}, frames=tuple(frames))


def asked(context: AgentContext, content: Any, *, stream: bool, **options: Any) -> Reply:
    if not stream:
        return context.send(content, **options)
    *_, last = context.send_stream(content, **options)
    assert isinstance(last, Completed)
    return last.reply


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("case", ["nothing", "server_blocks", "pause"])
@pytest.mark.parametrize("wire", ["anthropic_messages", "bedrock_converse"])
def test_w6_a_turn_that_ends_without_text_is_an_answer_once(wire: str, case: str, stream: bool) -> None:
    """W6: `empty_response`, asked three times, billed three times, then an error."""
    served = WIRES[wire]
    if wire == "anthropic_messages":
        blocks = () if case == "nothing" else (SEARCHED, FOUND)
        silent = anthropic(*blocks, stream=stream, reason="pause_turn" if case == "pause" else "end_turn")
    else:
        run = {"toolUse": {"toolUseId": "t1", "name": "nova_grounding", "type": "server_tool_use", "input": {}}}
        opened = {key: value for key, value in run["toolUse"].items() if key != "input"}
        events = [
            ("contentBlockStart", {"contentBlockIndex": 0, "start": {"toolUse": opened}}),
            ("contentBlockStop", {"contentBlockIndex": 0}),
        ]
        some = case != "nothing"
        silent = converse(*([run] if some else []), stream=stream, events=events if some else ())
    call = Scripted("", tool_calls=(ScriptedCall("look"),))
    with (
        ModelServer(script=[call, silent, Scripted("So.")]) as server,
        open_backend(**{**served.settings(server), "max_retries": 2}) as backend,
        AgentContext(backend, store="memory://", context_window=9_000) as context,
    ):
        tools = (ToolSpec("look", "Looks."),)
        (made,) = context.send("Look.", tools=tools).message.tool_calls
        reply = asked(context, [tool_result(made.id, "plums", id="r1")], stream=stream, tools=tools)
        assert (reply.message.text, len(server.requests)) == ("", 2)
        assert reply.usage is not None
        assert (reply.usage.input_tokens, reply.usage.output_tokens) == (40, 9)
        assert context.send("Go on.", tools=tools).message.text == "So."


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_w7_converse_keeps_citations_and_images_and_sends_them_back(stream: bool) -> None:
    """W7: citationsContent, `citation` and `image` deltas were lost without a word."""
    citation = {"title": "Hall", "location": {"web": {"url": "https://hall.example"}}}
    cited = {"citationsContent": {"content": [{"text": "In the hall."}], "citations": [citation]}}
    image = {"image": {"format": "png", "source": {"bytes": PNG}}}
    pieces = [PNG[:20], PNG[20:]]
    events = [
        ("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": "In the "}}),
        ("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": "hall."}}),
        ("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"citation": citation}}),
        ("contentBlockStop", {"contentBlockIndex": 0}),
        ("contentBlockStart", {"contentBlockIndex": 1, "start": {"image": {"format": "png"}}}),
        *(
            ("contentBlockDelta", {"contentBlockIndex": 1, "delta": {"image": {"source": {"bytes": piece}}}})
            for piece in pieces
        ),
        ("contentBlockStop", {"contentBlockIndex": 1}),
    ]
    served = WIRES["bedrock_converse"]
    with (
        ModelServer(script=[converse(cited, image, stream=stream, events=events), Scripted("So.")]) as server,
        open_backend(**served.settings(server)) as backend,
        AgentContext(backend, store="memory://", context_window=9_000) as context,
    ):
        reply = asked(context, "Where?", stream=stream)
        assert reply.message.text == "In the hall."
        context.send("And?")
    assert server.requests[1].body["messages"][1]["content"] == [cited, image]
    assert any(isinstance(p, TextPart) and p.extra and "hall.example" in p.extra for p in reply.message.parts)


@pytest.mark.parametrize(
    "last",
    [
        {"output_tokens": 9},
        {"input_tokens": 0, "output_tokens": 9},
        {"input_tokens": None, "output_tokens": 9},
        {"input_tokens": 0, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0, "output_tokens": 9},
        {"input_tokens": 40, "output_tokens": 9},
    ],
)
def test_w9_a_last_event_without_input_does_not_take_it_back(last: dict[str, int]) -> None:
    """W9: llama.cpp's /v1/messages counts the input at the start, and says 0 at the end."""
    served = WIRES["anthropic_messages"]
    script = [anthropic({"type": "text", "text": "So."}, stream=True, last=last)]
    with ModelServer(script=script) as server, open_backend(**served.settings(server)) as backend:
        context = AgentContext(backend, store="memory://", context_window=9_000)
        usage = asked(context, "Go.", stream=True).usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens) == (40, 9)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_w9_a_fallback_names_the_model_that_wrote(stream: bool) -> None:
    """W9: the reply was named after the model that declined, and its thinking was sent to that one."""
    fallback = {
        "type": "fallback",
        "from": {"model": "claude-sonnet-4-5"},
        "to": {"model": "claude-haiku-4-5"},
        "trigger": {"type": "refusal"},
    }
    script: list[Any] = [anthropic(fallback, {"type": "text", "text": "So."}, stream=stream), Scripted("And so.")]
    served = WIRES["anthropic_messages"]
    with (
        ModelServer(script=script) as server,
        open_backend(**served.settings(server)) as backend,
        AgentContext(backend, store="memory://", context_window=9_000) as context,
    ):
        message = asked(context, "Go.", stream=stream).message
        assert (message.model, message.text) == ("claude-haiku-4-5", "So.")
        context.send("And?")
    assert server.requests[1].body["messages"][1]["content"][-1]["text"] == "So."
