"""A model for LangChain's standard tests: it reads the request, and answers from nothing else.

It calls tools when it is told to or when a tool's name is asked for, fills arguments and JSON from the schema and the user's words,
and says what it finds in images, audio and PDF files. What it cannot read it refuses, as services do.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
import re
import struct
import wave
from collections.abc import Iterator, Mapping
from typing import Any

from ctxfold.testing import ErrorReply, Reply, Scripted, ScriptedCall
from ctxfold.testing.model import minimal

Json = Mapping[str, Any]
_QUOTED = re.compile(r"'([^']+)'|\"([^\"]+)\"|「([^」]+)」")
_PLACE = re.compile(r"\bin ((?:[A-Z][\w.]*[, ]*)+)")
_GENERIC = {"get", "a", "the", "tool", "function"}


class RefusedError(Exception):
    """The request holds something that no service reads."""


class StandardModel:
    """Callable as a ModelServer's script; thinks aloud when `thinking`, unless the request switches that off."""

    def __init__(self, *, thinking: bool) -> None:
        self._thinking = thinking

    def __call__(self, body: Json) -> Reply | None:
        try:
            seen = [find for message in body["messages"] for find in _read(message.get("content"))]
            return self._answer(body, seen)
        except RefusedError as error:
            return ErrorReply(400, {"error": {"message": str(error), "type": "invalid_request_error"}})

    def _answer(self, body: Json, seen: list[str]) -> Scripted | None:
        messages = body["messages"]
        text = next((_text(m.get("content")) for m in reversed(messages) if m["role"] == "user"), "")
        call = _call(body, text)
        if call is not None:
            return Scripted(tool_calls=(call,), reasoning=self._thought(body, f"I shall call {call.name}."))
        wanted = body.get("response_format") or {}
        if wanted.get("type") == "json_schema":
            answer = filled(wanted["json_schema"]["schema"], text)
            return Scripted(json.dumps(answer, ensure_ascii=False), self._thought(body, "They want JSON."))
        if wanted.get("type") == "json_object":
            keys = [next(filter(None, match)) for match in _QUOTED.findall(text)]
            return Scripted(json.dumps(dict.fromkeys(keys, text)), self._thought(body, "They want JSON."))
        if seen:
            return Scripted(f"I see {'; '.join(seen)}.", self._thought(body, "Let me look."))
        return None  # lookup knows

    def _thought(self, body: Json, text: str) -> str:
        switched_off = (body.get("thinking") or {}).get("type") == "disabled"
        return text if self._thinking and not switched_off else ""


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return " ".join(block.get("text", "") for block in content or ())


def _call(body: Json, text: str) -> ScriptedCall | None:
    """The call that is demanded, or that the newest message asks for."""
    tools = [tool["function"] for tool in body.get("tools") or ()]
    choice = body.get("tool_choice")
    if choice == "none" or not tools:
        return None
    if isinstance(choice, Mapping):
        tools = [tool for tool in tools if tool["name"] == choice["function"]["name"]]
    words = set(re.findall(r"\w+", text.lower()))
    asked = [t for t in tools if (set(t["name"].lower().split("_")) - _GENERIC) & words or t["name"] in text]
    forced = choice == "required" or isinstance(choice, Mapping)
    if not forced and (not asked or body["messages"][-1]["role"] != "user"):
        return None
    tool = (asked or tools)[0]
    return ScriptedCall(tool["name"], json.dumps(filled(tool["parameters"], text), ensure_ascii=False))


def filled(schema: Json, text: str) -> Any:
    """A value that fits the schema, out of the text's numbers, quotations and places, else the words themselves."""
    numbers = iter(re.findall(r"-?\d+", text))
    quoted = [next(filter(None, match)) for match in _QUOTED.findall(text)]
    places = [match.strip(" ,") for match in _PLACE.findall(text)]
    return _filled(schema, schema, numbers, iter(quoted + places), text)


def _filled(schema: Json, root: Json, numbers: Iterator[str], strings: Iterator[str], text: str) -> Any:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return _filled(root["$defs"][name], root, numbers, strings, text)
    match schema.get("type"):
        case "object":
            fields = schema.get("properties", {})
            required = schema.get("required", [])
            return {name: _filled(fields[name], root, numbers, strings, text) for name in required}
        case "integer":
            return int(next(numbers, minimal(schema)))
        case "string" if "enum" not in schema:
            return next(strings, text)
        case _:
            return minimal(schema, root)


def _read(content: Any) -> Iterator[str]:
    """What a message's blocks show beside text."""
    for block in content if isinstance(content, list) else ():
        match block:
            case {"type": "text", "text": str()}:
                pass
            case {"type": "image_url", "image_url": {"url": str(url)}}:
                yield _image(url) if url.startswith("data:") else f"an image at {url}"
            case {"type": "input_audio", "input_audio": {"data": str(data), "format": "wav"}}:
                yield _sound(_decoded(data))
            case {"type": "file", "file": {"filename": str(), "file_data": str(url)}}:
                yield _document(url)
            case _:
                raise RefusedError(f"Invalid content block: {json.dumps(block)[:100]}")


def _decoded(data: str) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except binascii.Error as error:
        raise RefusedError(f"Invalid base64: {error}") from None


def _image(url: str) -> str:
    head, _, data = url.partition(";base64,")
    raw = _decoded(data)
    if head != "data:image/png" or raw[:8] != b"\x89PNG\r\n\x1a\n":
        raise RefusedError("Invalid image: not a PNG")
    width, height = struct.unpack(">II", raw[16:24])
    return f"a PNG of {width} x {height} pixels"


def _sound(raw: bytes) -> str:
    try:
        with wave.open(io.BytesIO(raw)) as sound:
            return f"a WAV of {sound.getnframes() / sound.getframerate():.2f} s"
    except (wave.Error, EOFError) as error:
        raise RefusedError(f"Invalid audio: {error}") from None


def _document(url: str) -> str:
    head, _, data = url.partition(";base64,")
    raw = _decoded(data)
    title = re.search(rb"/Title \(([^)]*)\)", raw)
    if head != "data:application/pdf" or not raw.startswith(b"%PDF-") or title is None:
        raise RefusedError("Invalid file: not a PDF with a title")
    return f"a PDF called {title[1].decode()}"
