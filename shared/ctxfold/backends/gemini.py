"""Writes requests of Google's generateContent, with thought signatures where they came from, and parses its replies. Pure."""

from __future__ import annotations

import json
import mimetypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, cast

from ctxfold.backends.errors import error_body
from ctxfold.backends.media import chat_form, data_url, media_block, unread
from ctxfold.backends.profile import (
    Profile,
    arguments_object,
    block_lines,
    check_extra,
    function_fields,
    kept_reasoning,
    sampling,
    thinking_fields,
    tool_choice,
    without_refused,
)
from ctxfold.backends.response_parser import AnswerParser, first_choice, tokens_at
from ctxfold.history.cuts import NOBODY_ASKED
from ctxfold.lru import lazy_pattern
from ctxfold.messages import (
    MediaPart,
    Message,
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    ToolSpec,
    Usage,
)
from ctxfold.protocols import Chunk, Request, ToolCallDelta, Wire
from ctxfold.validation import MAX_JSON_DEPTH, as_dict, as_dicts, as_text, strict_text

WirePart = dict[str, Any]
SIGNATURE = "thoughtSignature"
# marks of the blocks of other wires
_FOREIGN = frozenset({"type", "reasoningContent", "toolUse", "citationsContent", "cachePoint"})
_NATIVE_MEDIA = frozenset({"fileData", "file_data", "inlineData", "inline_data"})  # unless there is a type


@dataclass(frozen=True, slots=True)
class Projected:
    """A conversation in the form of requests: the parts of the system instruction, and contents of user and model."""

    system: list[WirePart] = field(default_factory=list[WirePart])
    contents: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])


def project(profile: Profile, messages: Sequence[Message], *, model: str, refused_before: int = 0) -> Projected:
    """Projects messages: leading system messages separate, later ones as the user's; a turn with nothing left is left out."""
    kept = kept_reasoning(profile.reasoning_out, messages, model=model)
    result, contents = Projected(), list[dict[str, Any]]()
    head = next((i for i, message in enumerate(messages) if message.role != "system"), len(messages))
    turns: list[tuple[Message, list[WirePart]]] = []
    for index, message in enumerate(messages):
        keeps = kept[index] and index >= refused_before
        parts = message_parts(message, reasoning=keeps, placeholder=profile.request.call_placeholder)
        if index < head:
            result.system.extend(parts)
        elif parts or message.role == "tool":
            turns.append((message, parts))
    for is_round, run in groupby(turns, key=lambda turn: turn[0].role == "tool"):
        if is_round:
            contents += round_contents([part for message, _ in run for part in message.parts], contents)
            continue
        for message, parts in run:
            role = "model" if message.role == "assistant" else "user"
            # a call may not follow another model content, so that neighbours are one
            if role == "model" and contents and contents[-1]["role"] == "model":
                contents[-1]["parts"] += parts
            else:
                contents.append({"role": role, "parts": parts})
    if contents and contents[0]["role"] == "model":
        contents.insert(0, {"role": "user", "parts": [{"text": NOBODY_ASKED}]})
    result.contents.extend(contents)
    return result


def round_contents(
    parts: Sequence[Part], contents: Sequence[Mapping[str, Any]], unnamed: str = "unknown"
) -> list[dict[str, Any]]:
    """Returns the contents of a round: all results of the last content's calls, in their order, and the media in one of its own."""
    last = contents[-1]["parts"] if contents and contents[-1]["role"] == "model" else ()
    calls = [part["functionCall"] for part in last if "functionCall" in part]
    known = {call["id"]: (place, call["name"]) for place, call in reversed(list(enumerate(calls)))}
    results: list[tuple[int, WirePart]] = []
    for part in parts:
        if isinstance(part, ToolResultPart):
            place, name = known.get(part.call_id, (len(calls), ""))
            response = {"error" if part.is_error else "output": part.content}
            answer = {"id": part.call_id, "name": name or part.name or unnamed, "response": response}
            results.append((place, {"functionResponse": answer}))
    ordered = [part for _, part in sorted(results, key=lambda placed: placed[0])]
    media = [media_part(part) for part in parts if isinstance(part, MediaPart)]
    return [{"role": "user", "parts": group} for group in (ordered, media) if group]


def message_parts(
    message: Message, *, reasoning: bool = True, placeholder: Mapping[str, Any] | None = None
) -> list[WirePart]:
    """Returns the parts of a message in order; an empty text is left out unless it is signed, because the service refuses it.

    Without `reasoning` all signatures are left out too. `placeholder` is set on the first call of a turn without signatures.
    """
    parts: list[WirePart] = []
    for part in message.parts:
        match part:
            case TextPart(text=text):
                extra = _extra_fields(part.extra) if reasoning else {}
                if text or extra:
                    parts.append({"text": text, **extra})
            case ReasoningPart():
                if reasoning:
                    parts += _reasoning_parts(part)
            case MediaPart():
                parts.append(media_part(part))
            case ToolCallPart():
                call = {"id": part.id, "name": part.name, "args": arguments_object(part)}
                parts.append({"functionCall": call, **(_extra_fields(part.extra) if reasoning else {})})
            case _:  # results are in tool messages, opaque parts are never sent
                continue
    first = next((part for part in parts if "functionCall" in part), None)
    if placeholder is not None and first is not None and not any(SIGNATURE in part for part in parts):
        first.update(placeholder)
    return parts


def _extra_fields(extra: str | None) -> dict[str, Any]:
    """Returns the fields that this service sent with a text or a call."""
    return {} if extra is None else dict(as_dict(as_dict(json.loads(extra)).get(WIRE)))


def _reasoning_parts(part: ReasoningPart) -> list[WirePart]:
    """Returns a thought, or the parts of the service's own tools as they came."""
    sealed = as_dicts(json.loads(part.details)) if part.details is not None else []
    own = [item for item in sealed if item and _FOREIGN.isdisjoint(item)]
    if part.signature is not None:
        return [*own, {"text": part.text, "thought": True, SIGNATURE: part.signature}]
    return [*own, {"text": part.text, "thought": True}] if part.text else own


def media_part(part: MediaPart) -> WirePart:
    """Returns the service's own part unchanged; blocks of the other wires are converted, and text stands for an unknown one."""
    data = media_block(part)
    if "type" not in data and not _NATIVE_MEDIA.isdisjoint(data):
        return data
    match chat_form(data):
        case {"type": "image_url", "image_url": {"url": str(url)} | str(url)}:
            return _address(url, part.mime)
        case (
            {"type": "file", "file": {"file_data": str(url)}}
            | {
                "type": _,
                "source": {"type": "url", "url": str(url)},
            }
            | {"type": "input_file", "file_url": str(url)}
        ):
            return _address(url, part.mime)
        case {"type": "input_audio", "input_audio": {"data": str(sound), "format": str(form)}}:
            return {"inlineData": {"mimeType": f"audio/{form}", "data": sound}}
        case {"base64": str(content)}:
            mime = str(data.get("mime_type") or part.mime or "application/octet-stream")
            return {"inlineData": {"mimeType": mime, "data": content}}
        case {"url": str(url)}:
            return _address(url, part.mime)
        case _:
            return {"text": unread(part)}


def _address(url: str, mime: str | None) -> WirePart:
    inline = data_url(url)
    if inline is not None:
        return {"inlineData": {"mimeType": inline["mime"], "data": inline["data"]}}
    kind = mime or mimetypes.guess_type(url.partition("?")[0])[0]
    return {"fileData": {"mimeType": kind, "fileUri": url} if kind else {"fileUri": url}}


_RESERVED = frozenset({"contents", "systemInstruction"})
_MODES: Mapping[str, str] = {"auto": "AUTO", "none": "NONE", "required": "ANY"}
_IN_CACHE = frozenset({"systemInstruction", "tools", "toolConfig"})


def request_body(profile: Profile, request: Request, *, model: str, stream: bool = False) -> dict[str, Any]:
    """Returns the JSON body of a request; raises ConfigError when the profile does not support it.

    Objects in `extra` are merged with those of the request, and its `tools` are added. A request with `cachedContent` goes
    without system instruction and tools, which the service has in its cache and refuses beside it.
    """
    check_extra(request, _RESERVED)
    projected = project(profile, request.messages, model=model, refused_before=request.refused_before)
    body: dict[str, Any] = {}
    if projected.system:
        body["systemInstruction"] = {"role": "user", "parts": projected.system}
    body["contents"] = projected.contents
    if request.tools:
        body["tools"] = [{"functionDeclarations": [tool_body(tool) for tool in request.tools]}]
    choice = tool_choice(profile, request)
    if choice is not None:
        named = {"mode": "ANY", "allowedFunctionNames": [choice]}
        body["toolConfig"] = {"functionCallingConfig": {"mode": _MODES[choice]} if choice in _MODES else named}
    generation = sampling(request, "maxOutputTokens", "stopSequences")
    added: list[Mapping[str, Any]] = [{"generationConfig": generation}, profile.request.extra_body]
    if request.tools:
        added.append(profile.request.extra_body_with_tools)
    for fields in (*added, thinking_fields(profile, request.thinking), request.extra):
        body = _merged(body, fields)
    if "cachedContent" in body:
        body = {name: value for name, value in body.items() if name not in _IN_CACHE}
    body["generationConfig"] = without_refused(profile, body["generationConfig"], request.thinking)
    if not body["generationConfig"]:
        del body["generationConfig"]
    return without_refused(profile, body, request.thinking)


def _merged(body: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the body with more fields: objects are merged, tools are added, anything else is replaced."""
    merged = dict(body)
    for name, value in fields.items():
        present: object = body.get(name)
        if isinstance(present, dict) and isinstance(value, Mapping):
            merged[name] = _merged(cast("dict[str, Any]", present), cast("Mapping[str, Any]", value))
        elif name == "tools" and isinstance(present, list) and isinstance(value, list | tuple):
            merged[name] = [*cast("list[object]", present), *cast("Sequence[object]", value)]
        else:
            merged[name] = value
    return merged


def canonical_bytes(profile: Profile, request: Request, *, model: str) -> bytes:
    """Returns declarations, system instruction and parts as lines, to compare requests."""
    projected = project(profile, request.messages, model=model, refused_before=request.refused_before)
    rows = ((row["role"], row["parts"]) for row in projected.contents)
    return block_lines(map(tool_body, request.tools), projected.system, rows)


def tool_body(tool: ToolSpec) -> dict[str, Any]:
    """Returns the declaration of a function."""
    return function_fields(tool, "parametersJsonSchema")


WIRE: Wire = "gemini"  # the name under which parts keep what stood beside them

_STEP = lazy_pattern(r"\.([^.\[]+)|\[(\d{1,9})\]|\[['\"](.*?)['\"]\]")  # of a JSON path
_VALUES = ("stringValue", "numberValue", "boolValue")
_TEXT = frozenset({"text", "thought"})
_COUNTS = ("promptTokenCount", "candidatesTokenCount", "thoughtsTokenCount", "cachedContentTokenCount")


class GeminiParser(AnswerParser):
    """Decodes one reply of generateContent. Each part other than text and a function call becomes one sealed chunk.

    The wire has no end mark: the last event has a finish reason, and some servers give one with every event.
    """

    def __init__(self, profile: Profile, *, hide: Callable[[str], str] = str) -> None:
        super().__init__(profile, hide=hide)
        self._model: str | None = None
        self._calls = 0
        self._arguments: Any = None  # of a call that has not ended
        self._candidates = False
        self._empty_content = False

    def _payload(self, payload: object, event_name: str) -> list[Chunk]:
        if isinstance(payload, list):
            bodies: list[object] = cast("list[object]", payload)
            return [chunk for body in bodies if self.error is None for chunk in self._payload(body, event_name)]
        body = as_dict(payload)
        if body.get("candidates") and "error" not in body:
            return self._event_chunks(body)
        error = error_body(body)
        if error is None and event_name == "error":
            error = body or {"message": str(payload)}
        if error is not None:
            self._failed(error)
            return []
        feedback = as_dict(body.get("promptFeedback"))
        reason = as_text(feedback.get("blockReason"))
        if reason:
            message = as_text(feedback.get("blockReasonMessage"))
            self._fail(
                "content_filter", f"the prompt was blocked ({reason}){': ' * bool(message)}{message}", code=reason
            )
        return self._event_chunks(body)

    def _reply(self, payload: object) -> list[Chunk]:
        chunks = self._payload(payload, "")
        if self.error is None and not self._candidates:
            known = "usageMetadata" in as_dict(payload)
            self._fail("empty_response" if known else "protocol", "a reply without candidates")
        return chunks

    def _event_chunks(self, body: Mapping[str, Any]) -> list[Chunk]:
        """Returns one chunk for each part; the last one carries usage and finish reason."""
        candidate = first_choice(body.get("candidates"))
        if candidate:
            self._candidates = True
        if isinstance(model := body.get("modelVersion"), str):
            self._model = model
        parts = as_dicts(as_dict(candidate.get("content")).get("parts"))
        reason = candidate.get("finishReason")
        if len(parts) == 1 and len(parts[0]) == 1 and not reason and (text := as_text(parts[0].get("text"))):
            self.answered = True  # most of a stream
            usage = _usage(body.get("usageMetadata"))
            return [Chunk(content=text, usage=usage, model=self._model, raw=body)]
        part_fields = [fields for part in parts if (fields := self._part(part))]
        finish = self._ended(reason, as_text(candidate.get("finishMessage"))) if reason else None
        usage = _usage(body.get("usageMetadata"))
        if not part_fields:
            return [] if usage is None and finish is None else [self._last(body, usage, finish, {})]
        before = [Chunk(model=self._model, raw=body, **fields) for fields in part_fields[:-1]]
        return [*before, self._last(body, usage, finish, part_fields[-1])]

    def _last(
        self, body: Mapping[str, Any], usage: Usage | None, finish: str | None, fields: Mapping[str, Any]
    ) -> Chunk:
        shared: dict[str, Any] = {"model": self._model, "raw": body, "empty_content": self._empty_content}
        billed = _billed(body.get("usageMetadata"), usage)
        return Chunk(usage=usage, billed=billed, finish_reason=finish, **shared, **fields)

    def _part(self, part: Mapping[str, Any]) -> dict[str, Any] | None:
        """Returns the fields of the chunk of a part; None for an empty text that is not signed."""
        text = part.get("text")
        if part.get(SIGNATURE) == "":
            part = {name: value for name, value in part.items() if name != SIGNATURE}
        if type(text) is not str:
            if "functionCall" in part:
                return self._call(part)
            if part.keys() <= {*_TEXT, SIGNATURE}:  # nothing, or a text that is none
                return None
            self.answered = True  # by a server's own tool, an image, or a part of a kind unknown here, kept as it came
            return {"sealed": part}
        if text:
            self.answered = True
        thought = part.get("thought")
        if len(part) == 1 + ("thought" in part):
            self._empty_content = self._empty_content or not (text or thought)
            return {"reasoning" if thought else "content": text} if text else None
        if thought:
            signature = as_text(part.get(SIGNATURE))
            return {"reasoning": text, "signature": signature, "own_part": True} if text or signature else None
        extra = {name: value for name, value in part.items() if name not in _TEXT}
        return {"content": text, "text_extra": {WIRE: extra}, "own_part": True}

    def _call(self, part: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a call, or a piece of one: its arguments may come in pieces, and are complete with its last part."""
        call = as_dict(part["functionCall"])
        continues = self._arguments is not None and "name" not in call
        if not continues:
            self._arguments = call.get("args") or {}
        for piece in as_dicts(call.get("partialArgs")):
            _set_argument({"$": self._arguments}, piece)
        arguments = ""
        if not call.get("willContinue"):
            arguments, self._arguments = json.dumps(_filled(self._arguments), ensure_ascii=False), None
        if continues:
            return {"tool_calls": (ToolCallDelta(self._calls - 1, arguments=arguments),)}
        extra = {name: value for name, value in part.items() if name != "functionCall"}
        name, beside = as_text(call.get("name")) or None, strict_text({WIRE: extra}) if extra else None
        delta = ToolCallDelta(self._calls, as_text(call.get("id")) or None, name, arguments, beside)
        self._calls += 1
        self.answered = True
        return {"tool_calls": (delta,), "own_part": True}

    def _ended(self, raw: object, message: str) -> str | None:
        """Returns the normalised finish reason; calls also end with STOP, and a call that was not declared is a call."""
        finish = self._finished(raw)
        if finish in ("stop", "tool_calls"):
            finish = self._finish = "tool_calls" if self._calls else "stop"
        if finish != "error":
            return finish
        if self.error is not None and message:
            self._fail(self.error.kind, f"the answer ended with finish reason {raw!r}: {message}", code=as_text(raw))
        return None


def _set_argument(arguments: dict[Any, Any], piece: Mapping[str, Any]) -> None:
    """Sets the value at the piece's path, or continues the text there; a list is an object with numbers as names for now.

    `arguments` holds those of the call under "$", with which each path begins.
    """
    found = _STEP.findall(as_text(piece.get("jsonPath")))[:MAX_JSON_DEPTH]
    steps = ["$", *(int(number) if number else name or quoted for name, number, quoted in found)]
    for step in steps[:-1]:
        if not isinstance(arguments.get(step), dict):
            arguments[step] = {}
        arguments = arguments[step]
    value = next((piece[name] for name in _VALUES if name in piece), None)
    known = arguments.get(steps[-1])
    arguments[steps[-1]] = known + value if isinstance(known, str) and isinstance(value, str) else value


def _filled(value: Any) -> Any:
    """Returns arguments that came in pieces with their lists."""
    fields: dict[Any, Any] = {name: _filled(inner) for name, inner in as_dict(value).items()}
    if not fields:
        return value
    return list(fields.values()) if all(type(name) is int for name in fields) else fields


def _usage(metadata: object) -> Usage | None:
    """Returns the numbers of a usage object, which leaves thoughts out of the output; None when it has none."""
    if not isinstance(metadata, dict):
        return None
    numbers = cast("dict[str, object]", metadata)
    counts = [tokens_at(numbers, (name,)) for name in _COUNTS]
    if not any(counts) and numbers.keys().isdisjoint(_COUNTS):
        return None
    prompt, answer, thoughts, cached = counts
    return Usage(prompt, answer + thoughts, cached, 0, thoughts)


def _billed(metadata: object, usage: Usage | None) -> Usage | None:
    """Returns the usage with what the service's own tools brought, which is input beside the prompt; None without any."""
    tools = tokens_at(as_dict(metadata), ("toolUsePromptTokenCount",))
    return usage + Usage(tools) if usage is not None and tools else None
