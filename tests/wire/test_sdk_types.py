"""Walks the type definitions of the providers' own packages: each event, block, part and delta is kept, sent back verbatim, or
stands in a list of exceptions with its reason. A type that a newer package brings fails here until somebody has decided."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from typing import Any

from anthropic.types import ContentBlock, RawContentBlockDelta
from anthropic.types.beta import BetaContentBlock, BetaRawContentBlockDelta
from botocore.session import get_session  # type: ignore[import-untyped]
from google.genai import types as genai
from openai.types.chat import ChatCompletionMessage
from openai.types.chat.chat_completion_chunk import ChoiceDelta
from openai.types.responses import ResponseOutputItem, ResponseStreamEvent

from ctxfold import (
    AnthropicBackend,
    BedrockBackend,
    GeminiBackend,
    Message,
    OpenAIChatBackend,
    OpenAIResponsesBackend,
    user,
)
from ctxfold.backends.anthropic import MessagesParser
from ctxfold.backends.converse_parse import ConverseParser
from ctxfold.backends.gemini import GeminiParser
from ctxfold.backends.openai_chat import ChatParser
from ctxfold.backends.openai_responses_parse import ResponsesParser
from ctxfold.backends.profile import load_profile
from ctxfold.backends.response_parser import AnswerParser
from ctxfold.errors import BackendError
from ctxfold.messages import Part
from ctxfold.stream import Fold
from ctxfold.testing.served_converse import event_frame
from tests.wire.sdk_samples import Json, kind, members, sample, shape_sample

AT = "http://127.0.0.1:9"
BEFORE = user("Go.", id="u")


def read(parser: AnswerParser, data: Iterable[bytes]) -> Message | None:
    """Returns the message of a reply; None where it is none."""
    fold = Fold("a", "m")
    try:
        for one in data:
            for chunk in parser.feed(one):
                fold.feed(chunk)
        for chunk in parser.close():
            fold.feed(chunk)
        return None if parser.error is not None else fold.close().message
    except BackendError:
        return None


def sse(events: Iterable[Json]) -> list[bytes]:
    return [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events]


def parts(message: Message | None) -> tuple[Part, ...]:
    return () if message is None else message.parts


def holds(rows: Any, block: Json) -> bool:
    """Returns True where the block stands in the rows as it is."""
    if rows == block:
        return True
    inner = rows.values() if isinstance(rows, Mapping) else rows if isinstance(rows, list) else ()
    return any(holds(one, block) for one in inner)


class Tally:
    """How many types a package has, and what becomes of them."""

    def __init__(self, package: str, exceptions: Mapping[str, str]) -> None:
        self._package, self._exceptions = package, exceptions
        self._counts: Counter[str] = Counter()
        self._wrong: list[str] = []
        self._excepted: set[str] = set()

    def add(self, name: str, *, verbatim: bool = False, kept: bool = False) -> None:
        if verbatim or kept:
            self._counts["verbatim" if verbatim else "kept"] += 1
            return
        self._counts["excepted"] += 1
        self._excepted.add(name)
        if name not in self._exceptions:
            self._wrong.append(name)

    def close(self, least: int) -> None:
        total = sum(self._counts.values())
        told = ", ".join(f"{number} {what}" for what, number in sorted(self._counts.items()))
        print(f"{self._package} {version(self._package)}: {total} types: {told}")
        assert not self._wrong, f"neither kept nor excepted: {', '.join(self._wrong)}"
        idle = sorted(set(self._exceptions) - self._excepted)
        assert not idle, f"excepted without need: {', '.join(idle)}"
        assert total >= least, "the walk finds the types"


# OpenAI: Responses

AUDIO = "audio of the Realtime API, which has no item in a response"
BEGINS = "begins what the deltas after it and the item's end bring"
PROGRESS = "says how far a tool of the service is; its item says the rest"
REPEATED = "the item that ends has it all; nothing of it is shown before"
_STATES = {
    "code_interpreter_call": ("completed", "in_progress", "interpreting"),
    "file_search_call": ("completed", "in_progress", "searching"),
    "image_generation_call": ("completed", "generating", "in_progress", "partial_image"),
    "mcp_call": ("completed", "failed", "in_progress"),
    "mcp_list_tools": ("completed", "failed", "in_progress"),
    "web_search_call": ("completed", "in_progress", "searching"),
}
_EXCEPTED = {
    AUDIO: ("audio.delta", "audio.done", "audio.transcript.delta", "audio.transcript.done"),
    BEGINS: ("content_part.added", "created", "in_progress", "queued", "reasoning_summary_part.added"),
    PROGRESS: tuple(f"{tool}.{state}" for tool, states in _STATES.items() for state in states),
    REPEATED: (
        "code_interpreter_call_code.delta",
        "code_interpreter_call_code.done",
        "custom_tool_call_input.delta",
        "custom_tool_call_input.done",
        "mcp_call_arguments.delta",
        "mcp_call_arguments.done",
        "output_text.annotation.added",
        "reasoning_summary_part.done",
    ),
}
RESPONSES_EXCEPTIONS = {f"response.{name}": reason for reason, names in _EXCEPTED.items() for name in names}


def responses_sample(item: Json) -> Json:
    """Returns an output item with what the service demands of it beyond its types."""
    if item["type"] == "message":
        item = {**item, "content": [{"type": "output_text", "text": "So.", "annotations": [], "logprobs": []}]}
    if item["type"] in ("function_call", "mcp_call", "mcp_approval_request"):
        item = {**item, "arguments": "{}"}
    return item


def responses_items() -> dict[str, Json]:
    return {kind(model): responses_sample(sample(model)) for model in members(ResponseOutputItem)}


def responses_reply(items: list[Json], events: Iterable[Json] = (), status: str = "completed") -> Message | None:
    """Returns the message of a stream with these events whose end has these items."""
    body = {"id": "r", "object": "response", "status": status, "model": "m", "output": items}
    end = {"type": f"response.{status}", "response": body}
    return read(ResponsesParser(load_profile("openai").for_wire("openai_responses")), sse([*events, end]))


def test_every_item_and_event_of_openais_responses() -> None:
    tally = Tally("openai", RESPONSES_EXCEPTIONS)
    backend = OpenAIResponsesBackend(model="m", base_url=AT, api_key="k")
    for name, item in responses_items().items():
        # a compaction alone is no answer
        message = responses_reply([item, responses_items()["message"]] if name == "compaction" else [item])
        sent = backend.to_request_messages([BEFORE, message]) if message is not None else []
        tally.add(name, verbatim=holds(sent, item))
    for model in members(ResponseStreamEvent):
        tally.add(kind(model), kept=_event_is_kept(kind(model), sample(model)))
    tally.close(least=70)


# which item an event is about, by the beginning of its name
ITEM_OF = {
    "apply_patch_call": "apply_patch_call",
    "code_interpreter_call": "code_interpreter_call",
    "custom_tool_call": "custom_tool_call",
    "file_search_call": "file_search_call",
    "function_call": "function_call",
    "image_generation_call": "image_generation_call",
    "mcp_call": "mcp_call",
    "mcp_list_tools": "mcp_list_tools",
    "reasoning": "reasoning",
    "shell_call": "shell_call",
    "web_search_call": "web_search_call",
}


def _event_is_kept(name: str, event: Json) -> bool:
    """Returns True where a stream with the event says more than one without it, though its item never ends."""
    short = name.removeprefix("response.")
    about = next((item for begin, item in ITEM_OF.items() if short.startswith(begin)), "message")
    item = responses_items()[about]
    at = {"output_index": 0, "item_id": item["id"], "content_index": 0, "summary_index": 0}
    empty: Json = {"arguments": "", "content": [], "summary": [], "encrypted_content": None}
    begun = {field: empty.get(field, value) for field, value in item.items()}
    added = {"type": "response.output_item.added", "output_index": 0, "item": begun}
    placed = {**event, **{field: value for field, value in at.items() if field in event}, "type": name}
    if about == "function_call":
        placed |= {field: '{"a": 1}' for field in ("arguments", "delta") if field in event}
    if "item" in event:
        placed["item"] = item
    if "part" in event:
        placed["part"] = {"type": "output_text", "text": "So.", "annotations": []}
    if "response" in event:
        placed["response"] = {**event["response"], "output": [item], "status": short, "error": None}
    before = [] if short in ("output_item.added", "output_item.done") else [added]
    return bool(_outcome([*before, placed]) != _outcome(before))


def _outcome(events: list[Json]) -> Any:
    parser = ResponsesParser(load_profile("openai").for_wire("openai_responses"))
    message = read(
        parser, sse([*events, {"type": "response.incomplete", "response": {"status": "incomplete", "output": []}}])
    )
    return (parts(message), message and message.finish_reason, parser.error and parser.error.kind)


# OpenAI: chat completions

CHAT_FIELDS = {"role": "is the assistant's in every reply"}


def test_every_field_of_openais_chat_messages() -> None:
    tally = Tally("openai", CHAT_FIELDS)
    backend = OpenAIChatBackend(provider="generic", model="m", base_url=AT, api_key="k")
    for model, key in ((ChatCompletionMessage, "message"), (ChoiceDelta, "delta")):
        for name, value in sample(model).items():
            given = {"content": "So.", name: value} if name != "content" else {"content": value}
            plain = parts(_chat(key, {"content": "So."}))
            message = _chat(key, given)
            sent = backend.to_request_messages([BEFORE, message]) if message is not None else []
            tally.add(
                name, verbatim=len(sent) > 1 and sent[1].get(name) == value, kept=parts(message) not in ((), plain)
            )
    tally.close(least=10)


def _chat(key: str, message: Json) -> Message | None:
    parser = ChatParser(load_profile("generic"))
    body: Json = {"model": "m", "choices": [{"index": 0, key: message, "finish_reason": "stop"}]}
    if key == "message":
        return read(parser, [json.dumps(body).encode()])
    return read(parser, [b"data: " + json.dumps(body).encode() + b"\n\n", b"data: [DONE]\n\n"])


# Anthropic

ANTHROPIC: dict[str, str] = {}


def test_every_block_and_delta_of_anthropic() -> None:
    tally = Tally("anthropic", ANTHROPIC)
    backend = AnthropicBackend(model="m", base_url=AT, api_key="k")
    blocks = {kind(model): sample(model) for union in (ContentBlock, BetaContentBlock) for model in members(union)}
    for name, block in blocks.items():
        message = _anthropic([block])
        sent = backend.to_request_messages([BEFORE, message]) if message is not None else []
        says = bool(message and (message.text or message.tool_calls or message.model == _to_model(block)))
        tally.add(name, verbatim=holds(sent, block), kept=says)
    for union in (RawContentBlockDelta, BetaRawContentBlockDelta):
        for model in members(union):
            tally.add(kind(model), kept=_delta_is_kept(kind(model), sample(model)))
    tally.close(least=25)


def _to_model(block: Json) -> str | None:
    """Returns the model that a fallback block names as the writer of what follows."""
    to = block.get("to")
    return to["model"] if isinstance(to, dict) else None


BLOCK_OF = {
    "citations_delta": {"type": "text", "text": ""},
    "compaction_delta": {"type": "compaction", "content": None},
    "input_json_delta": {"type": "tool_use", "id": "t", "name": "look", "input": {}},
    "signature_delta": {"type": "thinking", "thinking": "", "signature": ""},
    "text_delta": {"type": "text", "text": ""},
    "thinking_delta": {"type": "thinking", "thinking": "", "signature": ""},
}


def _anthropic(blocks: list[Json]) -> Message | None:
    body = {"type": "message", "role": "assistant", "model": "m", "content": blocks, "stop_reason": "end_turn"}
    return read(MessagesParser(load_profile("anthropic")), [json.dumps(body).encode()])


def _delta_is_kept(name: str, delta: Json) -> bool:
    def streamed(*deltas: Json) -> Message | None:
        start = BLOCK_OF.get(name, {"type": "text", "text": ""})
        events: list[Json] = [{"type": "content_block_start", "index": 0, "content_block": start}]
        events += [{"type": "content_block_delta", "index": 0, "delta": one} for one in deltas]
        events.append({"type": "content_block_stop", "index": 0})
        events.append({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}})
        return read(MessagesParser(load_profile("anthropic")), sse([*events, {"type": "message_stop"}]))

    return parts(streamed(delta)) != parts(streamed())


# Google

GENAI: dict[str, str] = {}


def test_every_part_of_google_genai() -> None:
    tally = Tally("google-genai", GENAI)
    backend = GeminiBackend(model="m", base_url=AT, api_key="k")
    for name, field in genai.Part.model_fields.items():
        one = genai.Part.model_validate(
            sample(genai.Part, by_alias=False) if name == "*" else {name: _genai_value(field, name)}
        )
        part = one.model_dump(mode="json", by_alias=True, exclude_none=True)
        # fields that are said of another one
        given = (
            {"text": "So.", **part}
            if name in ("thought", "thought_signature", "part_metadata", "video_metadata")
            else part
        )
        message = _gemini([given])
        sent = backend.to_request_messages([BEFORE, message]) if message is not None else []
        tally.add(name, verbatim=holds(sent, given), kept=bool(message and (message.tool_calls or message.text)))
    tally.close(least=12)


def _genai_value(field: Any, name: str) -> Any:
    holder = type("Holder", (genai.Part,), {})
    assert issubclass(holder, genai.Part)
    return sample(genai.Part, by_alias=False)[name]


def _gemini(given: list[Json]) -> Message | None:
    body = {"candidates": [{"content": {"role": "model", "parts": given}, "finishReason": "STOP"}], "modelVersion": "m"}
    return read(GeminiParser(load_profile("gemini").for_wire("gemini")), [json.dumps(body).encode()])


# Amazon

BOTOCORE: dict[str, str] = {}


def test_every_block_start_and_delta_of_bedrock() -> None:
    model = get_session().get_service_model("bedrock-runtime")
    tally = Tally("botocore", BOTOCORE)
    backend = BedrockBackend(model="m", base_url=AT, api_key="k")
    for name, shape in model.shape_for("ContentBlock").members.items():
        block = {name: shape_sample(shape)}
        message = _converse([block])
        sent = backend.to_request_messages([BEFORE, message]) if message is not None else []
        tally.add(name, verbatim=holds(sent, block), kept=bool(message and (message.text or message.tool_calls)))
    for name, shape in model.shape_for("ContentBlockStart").members.items():
        tally.add(f"start.{name}", kept=_start_is_kept({name: shape_sample(shape)}))
    for name, shape in model.shape_for("ContentBlockDelta").members.items():
        tally.add(f"delta.{name}", kept=_bedrock_delta_is_kept(name, {name: shape_sample(shape)}))
    tally.close(least=20)


def _converse(blocks: list[Json]) -> Message | None:
    body = {"output": {"message": {"role": "assistant", "content": blocks}}, "stopReason": "end_turn", "usage": {}}
    return read(ConverseParser(load_profile("bedrock")), [json.dumps(body).encode()])


def _converse_stream(*events: tuple[str, Json]) -> Message | None:
    rows = [*events, ("contentBlockStop", {"contentBlockIndex": 0}), ("messageStop", {"stopReason": "end_turn"})]
    frames = [event_frame({":message-type": "event", ":event-type": n}, json.dumps(body).encode()) for n, body in rows]
    return read(ConverseParser(load_profile("bedrock")), frames)


def _start_is_kept(start: Json) -> bool:
    return bool(parts(_converse_stream(("contentBlockStart", {"contentBlockIndex": 0, "start": start}))))


def _bedrock_delta_is_kept(name: str, delta: Json) -> bool:
    starts: Json = {
        "toolUse": {"toolUse": {"toolUseId": "t", "name": "look"}},
        "toolResult": {"toolResult": {"toolUseId": "t"}},
    }
    begun = [("contentBlockStart", {"contentBlockIndex": 0, "start": starts[name]})] if name in starts else []
    plain = parts(_converse_stream(*begun))
    return parts(_converse_stream(*begun, ("contentBlockDelta", {"contentBlockIndex": 0, "delta": delta}))) != plain
