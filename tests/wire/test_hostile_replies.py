"""V1: whatever value a model's service sends in any field of a reply, the session gets an answer or a typed error, and goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from ctxfold import AgentContext, Completed, CtxError, Message, Request, ToolSpec, open_backend, tool_result, user
from ctxfold.backends.converse_parse import EventStreamDecoder
from ctxfold.testing import ModelServer, RawReply, Scripted, ScriptedCall
from ctxfold.testing.served_converse import event_frame
from tests.support.wires import WIRES

TOOLS = (ToolSpec("look", "Looks a thing up.", {"type": "object", "properties": {}}),)
ANSWER = Scripted("So it is.", reasoning="Why so.", tool_calls=(ScriptedCall("look", '{"a": 1}'),), chunks=2)
HERE = '"@here@"'
HOSTILE = (
    "NaN",
    "-1e999",
    '"\\ud800"',
    '"\\u0000"',
    '""',
    "null",
    "true",
    "-7",
    "9" * 400,
    "9" * 5_000,
    "{}",
    "[]",
    '{"": {"": "\\udfff"}}',
    '[null, 5, "x", {"type": "text"}]',
    '{"a":' * 150 + "1" + "}" * 150,
    "[" * 50_000 + "]" * 50_000,
)
# goes back as it came, because only the service knows its own kinds of items and what it has signed; and what events are parts of
SIGNED = {"type", "thinking", "signature", "delta", "index"}
ITEMS = {
    "type",
    "id",
    "item_id",
    "output_index",
    "content_index",
    "role",
    "status",
    "content",
    "encrypted_content",
    "item",
}
OPAQUE: dict[str, set[str]] = {"anthropic_messages": SIGNED, "openai_responses": ITEMS}
Event = tuple[str, Any]  # what stands around a JSON value on the wire, and the value


class Tap(httpx.HTTPTransport):
    """Keeps the bytes of the newest reply."""

    data = b""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = super().handle_request(request)
        response.read()
        self.data = response.content
        return httpx.Response(response.status_code, headers=response.headers, content=self.data)


def events_of(wire: str, *, stream: bool) -> list[Event]:
    """Returns the reply of the model server on a wire as its values."""
    tap = Tap()
    with (
        ModelServer(script=[ANSWER]) as server,
        httpx.Client(transport=tap) as client,
        open_backend(**WIRES[wire].settings(server), http_client=client) as backend,
    ):
        request = Request((user("Go.", id="u"),), tools=TOOLS)
        _ = list(backend.open_stream(request)) if stream else backend.send(request)
    if not stream:
        return [("", json.loads(tap.data))]
    if wire == "bedrock_converse":
        frames = EventStreamDecoder().feed(tap.data)
        return [(frame.headers[":event-type"], json.loads(frame.payload)) for frame in frames]
    blocks = [block.split("\n") for block in tap.data.decode().replace("\r\n", "\n").split("\n\n")]
    lines = [(head, line[6:]) for head, line in ((b[0], b[-1]) for b in blocks) if line.startswith("data: {")]
    return [(head if head.startswith("event:") else "", json.loads(line)) for head, line in lines]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield from places(one, (*path, key))


def changed(value: Any, path: tuple[Any, ...]) -> Any:
    """Returns a copy in which the mark stands at the path."""
    if not path:
        return "@here@"
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = changed(value[path[0]], path[1:])
    return copy


def written(wire: str, events: list[Event], hostile: str, *, stream: bool) -> RawReply:
    texts = [(head, json.dumps(value).replace(HERE, hostile)) for head, value in events]
    if not stream:
        return RawReply(headers={"content-type": "application/json"}, frames=(texts[0][1].encode(),))
    if wire == "bedrock_converse":
        kind = {":message-type": "event"}
        frames = tuple(event_frame({**kind, ":event-type": head}, text.encode()) for head, text in texts)
        return RawReply(headers={"content-type": "application/vnd.amazon.eventstream"}, frames=(b"".join(frames),))
    body = "".join(f"{head}\n" * bool(head) + f"data: {text}\n\n" for head, text in texts)
    return RawReply(frames=(body.encode(),))


def cases(wire: str, *, stream: bool) -> Iterator[RawReply]:
    """Yields the reply with each hostile value at each place; places of one name in events of one kind are tried once."""
    events, known = events_of(wire, stream=stream), set[object]()
    for number, (head, value) in enumerate(events):
        for path in places(value):
            kind = (head, value.get("type"), tuple(0 if isinstance(step, int) else step for step in path))
            kinds = (*kind, str(value)[:40]) if len(path) < 3 else kind
            if kinds in known:
                continue
            known.add(kinds)
            if wire in OPAQUE and (path[-1] in OPAQUE[wire] if path else stream):
                continue
            for hostile in HOSTILE:
                other = [*events[:number], (head, changed(value, path)), *events[number + 1 :]]
                yield written(wire, other, hostile, stream=stream)


def asked(context: AgentContext, question: str, *, stream: bool) -> Message:
    if not stream:
        return context.send(question, tools=TOOLS).message
    *_, last = context.send_stream(question, tools=TOOLS)
    assert isinstance(last, Completed)
    return last.reply.message


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("wire", WIRES)
def test_v1_no_value_in_a_reply_blocks_the_session(wire: str, stream: bool) -> None:
    """V1: each field of a reply with each hostile value: an answer or a typed error, and the next request is accepted."""
    served, replies, count = WIRES[wire], list[RawReply | Scripted](), 0
    with (
        ModelServer(script=lambda _: replies.pop(0), strict=served.strict) as server,
        open_backend(**served.settings(server)) as backend,
    ):
        for reply in cases(wire, stream=stream):
            count += 1
            replies[:] = [reply, Scripted("Fine.")]
            context = AgentContext(backend, store="memory://", context_window=400_000)
            try:
                for call in asked(context, "Look it up.", stream=stream).tool_calls:
                    context.add(tool_result(call.id, "found", id=call.id))
            except CtxError:
                replies[:] = [Scripted("Fine.")]
            assert asked(context, "Go on.", stream=stream).text == "Fine.", reply.frames[0][:2_000]
    assert count > 100
