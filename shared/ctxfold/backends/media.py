"""Brings images, files and sounds of every wire into the form of chat completions, from which each wire writes its own. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, cast

from ctxfold.lru import lazy_pattern
from ctxfold.messages import MediaPart

Block = dict[str, Any]
# media types of documents, and the names that Bedrock has for them
DOCUMENT_FORMATS: Mapping[str, str] = {
    "application/msword": "doc",
    "application/pdf": "pdf",
    "application/vnd.ms-excel": "xls",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": "xlsx",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": "docx",
    "text/csv": "csv",
    "text/html": "html",
    "text/markdown": "md",
    "text/plain": "txt",
}
_DATA_URL = lazy_pattern(r"data:(?P<mime>[^;,]{1,127})[^,]{0,127};base64,(?P<data>.*)", re.DOTALL)
_MIMES = {name: mime for mime, name in DOCUMENT_FORMATS.items()}


def media_block(part: MediaPart) -> Block:
    """Returns the media as their framework or provider gave them."""
    return cast("Block", json.loads(part.data))


def data_url(url: str) -> re.Match[str] | None:
    """Returns the match of a base64 data URL with its groups `mime` and `data`; None for another URL."""
    return _DATA_URL.fullmatch(url)


def unread(part: MediaPart) -> str:
    """Returns text in place of media that a service cannot read, so that the model knows that it does not see them."""
    return f"({part.kind} in a form that this service does not read)"


def chat_form(block: Block) -> Block:
    """Returns a block of another wire in the form of chat completions; one of no known form unchanged."""
    return (_typed(block) if "type" in block else _untyped(block)) or block


def _typed(block: Block) -> Block | None:
    """Returns a block of the Responses API or of Anthropic."""
    match block:
        case {"type": "input_image", "image_url": str(url), **rest}:
            return _image(url, {"detail": rest["detail"]} if "detail" in rest else {})
        case {"type": "input_file", "file_data": str(url), **rest}:
            return _file(url, rest.get("filename"))
        case {"type": "image", "source": {"type": "base64", "media_type": str(mime), "data": str(data)}}:
            return _image(_data_url(mime, data))
        case {"type": "image", "source": {"type": "url", "url": str(url)}}:
            return _image(url)
        case {"type": "document", "source": {"type": "base64", "media_type": str(mime), "data": str(data)}, **rest}:
            return _file(_data_url(mime, data), rest.get("title"))
        case _:
            return None


def _untyped(block: Block) -> Block | None:
    """Returns a block of generateContent or of Converse."""
    match block:
        case {"inlineData": {"mimeType": str(mime), "data": str(data)}} | {
            "inline_data": {"mime_type": str(mime), "data": str(data)}
        }:
            return _inline(mime, data)
        case {"fileData": {"mimeType": str(mime), "fileUri": str(url)}} if url.startswith("http"):
            return _image(url) if mime.startswith("image/") else None
        case {"image": {"format": str(name), "source": {"bytes": str(data)}}}:
            return _image(_data_url(f"image/{name}", data))
        case {"document": {"format": str(name), "source": {"bytes": str(data)}, **rest}}:
            return _file(_data_url(_MIMES.get(name, "text/plain"), data), rest.get("name"))
        case _:
            return None


def _inline(mime: str, data: str) -> Block:
    kind, _, form = mime.partition("/")
    if kind == "image":
        return _image(_data_url(mime, data))
    if kind == "audio":
        return {"type": "input_audio", "input_audio": {"data": data, "format": form}}
    return _file(_data_url(mime, data), None)


def _image(url: str, fields: Mapping[str, Any] | None = None) -> Block:
    return {"type": "image_url", "image_url": {"url": url, **(fields or {})}}


def _file(url: str, name: object) -> Block:
    return {"type": "file", "file": {"filename": name if isinstance(name, str) else "document", "file_data": url}}


def _data_url(mime: str, data: str) -> str:
    return f"data:{mime};base64,{data}"
