"""Messages as JSON lines in the shape of OpenAI-compatible chat APIs, with what that shape lacks beside it."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ctxfold.effects import ReadLog
from ctxfold.errors import ConfigError
from ctxfold.flow import Flow
from ctxfold.history.records import MessageAdded, MessageInserted, MessageReplaced, Restored
from ctxfold.journal import Journal
from ctxfold.messages import MediaPart, Message

__all__ = ["as_line", "exported", "write_lines"]


def as_line(message: Message, zone: str) -> str:
    """One message as one line of JSON."""
    value: dict[str, Any] = {"id": message.id, "zone": zone, "role": message.role, "content": message.text}
    if message.reasoning:
        value["reasoning_content"] = message.reasoning
    if message.tool_calls:
        value["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
            for c in message.tool_calls
        ]
    if message.tool_results:
        value["tool_call_id"] = message.tool_results[0].call_id
    media = [json.loads(p.data) for p in message.parts if isinstance(p, MediaPart)]
    if media:
        value["media"] = media
    for name in ("name", "model", "finish_reason"):
        if getattr(message, name):
            value[name] = getattr(message, name)
    if message.kind != "message":
        value["kind"] = message.kind
    return json.dumps(value, ensure_ascii=False)


def exported(journal: Journal, zone: str) -> Flow[list[str]]:
    """Lines of the window ("window"), or of every message ever stored, as it was stored, in order ("all")."""
    if zone == "window":
        view = journal.view()
        zones = (("immutable", view.system), ("compressed", view.compressed), ("incremental", view.live))
        return [as_line(e.message, name) for name, entries in zones for e in entries]
    if zone != "all":
        raise ConfigError(f'zone is {zone!r}: use "all" or "window"')
    records = yield from ReadLog(journal.key)
    visible = {e.id for e in journal.view()}
    lines: list[str] = []
    for record in records:
        match record.body:
            case (
                MessageAdded(message=m) | MessageInserted(message=m) | MessageReplaced(message=m) | Restored(message=m)
            ):
                lines.append(as_line(m, "window" if m.id in visible else "archive"))
            case _:
                continue
    return lines


def write_lines(path: str | os.PathLike[str], lines: Sequence[str]) -> int:
    """Write the file beside its place and move it there, so that it is never half there."""
    target = Path(path)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
        Path(name).replace(target)
    except BaseException:
        with suppress(FileNotFoundError):
            Path(name).unlink()
        raise
    return len(lines)
