"""Images, sounds, films and documents: LlamaIndex blocks and the shapes that chat APIs know."""

from __future__ import annotations

import base64
import json
import mimetypes
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

from llama_index.core.base.llms.types import (
    AudioBlock,
    ChatMessage,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    TextBlock,
    VideoBlock,
)
from pydantic import ValidationError

from ctxfold.errors import MessageError
from ctxfold.messages import MediaPart

MediaBlock: TypeAlias = ImageBlock | AudioBlock | VideoBlock | DocumentBlock
MEDIA_BLOCKS: Final = (ImageBlock, AudioBlock, VideoBlock, DocumentBlock)

_TYPES: Final[Mapping[str, type[MediaBlock]]] = {
    "image": ImageBlock,
    "audio": AudioBlock,
    "video": VideoBlock,
    "document": DocumentBlock,
}
_BYTES: Final = {"image": "image", "audio": "audio", "video": "video", "document": "data"}
_MIME: Final = {"image": "image_mimetype", "video": "video_mimetype", "document": "document_mimetype"}
_FALLBACK_MIME: Final = {"image": "image/png", "video": "video/mp4", "document": "application/octet-stream"}
_HEAD: Final = 8192  # bytes that tell what kind of file it is


def names_files(message: ChatMessage) -> bool:
    """Returns True if a block of the message names a local file instead of holding its bytes."""
    return any(_file_of(block) is not None for block in message.blocks)


def with_files(message: ChatMessage) -> ChatMessage:
    """Returns a copy whose blocks hold the bytes of the files that they name, because a service cannot read local files.

    MessageError when a file is gone, empty or not to be read. A message without files comes back as it is.
    """
    if not names_files(message):
        return message
    return message.model_copy(update={"blocks": [_with_bytes(block) for block in message.blocks]})


def _file_of(block: ContentBlock) -> Path | None:
    if not isinstance(block, MEDIA_BLOCKS) or not block.path or getattr(block, _BYTES[block.block_type]):
        return None
    return Path(block.path)


def _with_bytes(block: ContentBlock) -> ContentBlock:
    path = _file_of(block)
    if path is None:
        return block
    kind = block.block_type
    try:
        data = path.read_bytes()
    except OSError as error:
        raise MessageError(
            f"{kind} {str(path)!r} cannot be read ({error.strerror}): put the file back, or give its bytes or a url"
        ) from error
    if not data:
        raise MessageError(f"{kind} {str(path)!r} has 0 bytes: give a file with content")
    fields: dict[str, Any] = {_BYTES[kind]: base64.b64encode(data), "path": None}
    named = _MIME.get(kind, "format")
    if not getattr(block, named):
        head = _TYPES[kind].model_validate({_BYTES[kind]: data[:_HEAD]})
        fields[named] = getattr(head, named) or (mimetypes.guess_type(path.name)[0] if kind in _MIME else None)
    return block.model_copy(update=fields)


def media_part(block: MediaBlock) -> tuple[MediaPart, dict[str, Any]]:
    """Returns the part in the shape of chat APIs, and the other fields of the block."""
    kind = block.block_type
    content = getattr(block, _BYTES[kind])
    if content is not None and not isinstance(content, bytes):
        content.seek(0)
        block = block.model_copy(update={_BYTES[kind]: base64.b64encode(content.read())})
    fields = block.model_dump(mode="json")
    data = cast("str | None", fields.pop(_BYTES[kind]))
    mime = fields.get(_MIME.get(kind, ""))
    where = str(fields.get("url") or "")
    if fields.get("path"):
        where = Path(str(fields["path"])).absolute().as_uri()
    if data is not None and kind != "audio":
        where = f"data:{mime or _FALLBACK_MIME[kind]};base64,{data}"
    return MediaPart(kind, json.dumps(_wire(kind, where, data, fields)), mime), {**fields, "_bytes": data is not None}


def _wire(kind: str, where: str, data: str | None, fields: Mapping[str, Any]) -> dict[str, Any]:
    match kind:
        case "audio" if data is not None:
            return {"type": "input_audio", "input_audio": {"data": data, "format": fields.get("format") or "wav"}}
        case "audio":
            return {"type": "audio_url", "audio_url": {"url": where}}
        case "video":
            return {"type": "video_url", "video_url": {"url": where}}
        case "document":
            return {"type": "file", "file": {"filename": fields.get("title"), "file_data": where}}
        case _:
            detail = {"detail": fields["detail"]} if fields.get("detail") else {}
            return {"type": "image_url", "image_url": {"url": where, **detail}}


def media_block(part: MediaPart, fields: Mapping[str, Any]) -> MediaBlock:
    """Restores a block from its part and the fields that `media_part` returned."""
    rest = dict(fields)
    has_bytes = rest.pop("_bytes")
    kind = part.kind
    data = _payload(json.loads(part.data)) if has_bytes else None
    values = {**rest, _BYTES[kind]: data}
    try:
        return _TYPES[kind].model_validate(values)
    except ValidationError:
        # a file that is gone by now: the reference stays, whoever resolves it finds out
        return _TYPES[kind].model_construct(None, **values)


def _payload(wire: Mapping[str, Any]) -> bytes:
    if wire["type"] == "input_audio":
        return str(wire["input_audio"]["data"]).encode()
    inner = wire[wire["type"]]
    return str(inner.get("url") or inner.get("file_data")).partition(";base64,")[2].encode()


def plain_media_block(part: MediaPart) -> MediaBlock | TextBlock:
    """Returns a block for media that LangChain wrote; a note where LlamaIndex has no block for their shape."""
    wire = cast("dict[str, Any]", json.loads(part.data))
    inner = wire.get(str(wire.get("type")))
    source: Any = inner if inner is not None else wire
    values: dict[str, Any] = {"url": source} if isinstance(source, str) else dict(source)
    kind = {"image_url": "image", "input_audio": "audio", "audio_url": "audio", "video_url": "video"}.get(
        str(wire.get("type")), {"file": "document"}.get(part.kind, part.kind)
    )
    if kind not in _TYPES:
        return TextBlock(text=f"[{part.kind} attachment, not shown]")
    data = values.get("base64") or values.get("data")
    where = values.get("url") or values.get("file_data")
    if data is None and isinstance(where, str) and ";base64," in where:
        data = where.partition(";base64,")[2]
    mime = part.mime or values.get("mime_type")
    known: dict[str, Any] = {} if kind == "audio" or not mime else {_MIME[kind]: mime}
    if isinstance(data, str):
        known[_BYTES[kind]] = data.encode()
    elif isinstance(where, str) and where:
        known["url"] = where
    else:
        return TextBlock(text=f"[{part.kind} attachment, not shown]")
    try:
        return _TYPES[kind].model_validate(known)
    except ValidationError:
        return TextBlock(text=f"[{part.kind} attachment, not shown: {where}]")
