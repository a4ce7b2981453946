"""No value in a stored part blocks a session: it is refused when it is added, or every wire can send it."""

from __future__ import annotations

import json

import pytest

from ctxfold import AgentContext, BackendError, Completed, CtxError, Message, ToolSpec, tool_result, user
from ctxfold.messages import (
    PROVIDER_SUMMARY,
    MediaPart,
    Opaque,
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    assistant,
)
from ctxfold.testing import ModelServer, Scripted, ScriptedCall
from ctxfold.validation import MAX_JSON_DEPTH
from tests.support.wires import WIRES, opened

TOOLS = (ToolSpec("look", "Looks a thing up.", {"type": "object", "properties": {}}),)
OBJECTS = ("anthropic_messages", "gemini", "bedrock_converse")  # where a whole reply has arguments as an object
# one more and one less than a part may have, and than a request
DEPTHS = (50, *(MAX_JSON_DEPTH + more for more in (-20, -10, -9, 0, 1)), 900, 5_000, 50_000)


def deep(value: object) -> int:
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(deep, inner), default=0)


def nested(depth: int) -> str:
    return '{"a":' * depth + "1" + "}" * depth


def listed(depth: int) -> str:
    return '{"a":' + "[" * depth + "]" * depth + "}"


HOSTILE = {
    "nan": '{"a": NaN}',
    "infinity": '{"a": [1, -Infinity]}',
    "too_large": '{"a": 1e999}',
    "surrogate": '{"a": "\\ud800"}',
    "surrogate_key": '{"\\uDfff": 1}',
    "surrogates_swapped": '{"a": "\\udc00\\ud800"}',
    "long_number": '{"a": ' + "9" * 5_000 + "}",
    "nul": '{"a": "\\u0000"}',
    "brackets_in_text": json.dumps({"a": "[{" * 500 + '\\"'}),
    "list": "[1]",
    "number": "5",
    "null": "null",
    "empty": "",
    "cut": '{"a": ',
    **{f"objects_{depth}": nested(depth) for depth in DEPTHS},
    **{f"lists_{depth}": listed(depth) for depth in DEPTHS},
}


def asked(context: AgentContext, question: str, *, stream: bool) -> Message:
    if not stream:
        return context.send(question, tools=TOOLS).message
    *_, last = context.send_stream(question, tools=TOOLS)
    assert isinstance(last, Completed)
    return last.reply.message


def parts_of(text: str) -> dict[str, tuple[Message, ...]]:
    """Returns messages in which the text stands in each place of a part that holds JSON or text."""
    call = ToolCallPart("c1", "look", "{}")
    within = [text] if text.startswith("[") else ["[" + text + "]", text]

    def said(*parts: Part) -> tuple[Message, ...]:
        return (Message("a1", "assistant", (*parts, TextPart("Yes."))),)

    def called(part: ToolCallPart) -> tuple[Message, ...]:
        return Message("a1", "assistant", (part,)), tool_result("c1", "found", id="r1"), assistant("So.", id="a2")

    return {
        "arguments": called(ToolCallPart("c1", "look", text)),
        "call_extra": called(ToolCallPart("c1", "look", "{}", text)),
        "text_extra": said(TextPart("x", text)),
        "media": (Message("u1", "user", (MediaPart("image", text, "image/png"),)), assistant("Seen.", id="a2")),
        **{f"details_{n}": said(ReasoningPart("", None, one)) for n, one in enumerate(within)},
        "opaque": said(Opaque("theirs", text)),
        "summary": (Message("s1", "user", (TextPart("So far."), Opaque(PROVIDER_SUMMARY, text)), kind="summary"),),
        "result": (Message("a1", "assistant", (call,)), Message("r1", "tool", (ToolResultPart("c1", text),))),
        "text": (user(text or "x", id="u1"), assistant(text or "x", id="a1")),
    }


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("hostile", HOSTILE)
def test_v1_a_stored_part_is_refused_when_it_is_added_or_every_request_with_it_is_accepted(
    wire: str, hostile: str
) -> None:
    """V1: NaN, 1e999 or half a surrogate pair in the arguments of one call failed every later request of the session."""
    served = WIRES[wire]
    refused: dict[str, CtxError] = {}
    with (
        ModelServer(script=lambda _: Scripted("fine"), strict=served.strict) as server,
        opened(served, server) as backend,
    ):
        for place, messages in parts_of(HOSTILE[hostile]).items():
            context = AgentContext(backend, store="memory://", context_window=400_000)
            context.add(user("Begin.", id="u0"))
            for message in messages:
                try:
                    context.add(message)
                except CtxError as error:
                    refused[place] = error
                    break
            for question in ("Go on.", "And then?"):
                assert context.send(question, tools=TOOLS).message.text == "fine", place
    for request in server.requests:
        json.dumps(dict(request.body), allow_nan=False).encode()
        assert deep(request.body) <= MAX_JSON_DEPTH, "readers of services stop early"
    if hostile.split("_")[0] in ("nan", "infinity", "too", "surrogate", "surrogates", "cut"):
        assert refused, "what services do not read is refused where it is no model's text"
    assert not refused.keys() & {"arguments", "result", "text"}, "these are texts"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("hostile", HOSTILE)
def test_v1_what_the_model_itself_sent_goes_back_as_strict_json(wire: str, hostile: str, stream: bool) -> None:
    """V1: the same, sent by the model: as text in a stream, as an object in a whole reply of three wires."""
    served, arguments = WIRES[wire], HOSTILE[hostile]
    script = [Scripted("", tool_calls=(ScriptedCall("look", arguments),)), Scripted("So."), Scripted("Again.")]
    with ModelServer(script=script, strict=served.strict) as server, opened(served, server) as backend:
        context = AgentContext(backend, store="memory://", context_window=400_000)
        kind = ""
        try:
            (call,) = asked(context, "Look it up.", stream=stream).tool_calls
            context.add(tool_result(call.id, "found", id="r1"))
        except BackendError as error:
            kind = error.kind
        # too deep in a reply that has it as an object, or malformed as the service itself says
        assert not kind or (wire in OBJECTS and kind in ("protocol", "server"))
        assert [asked(context, "Go on.", stream=stream).text for _ in range(2)] == ["So.", "Again."]
