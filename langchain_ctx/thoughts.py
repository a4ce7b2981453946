"""A message's reasoning between the engine's parts and LangChain's `additional_kwargs`.

There it is one text and one list of details. What that cannot say (several thoughts, thoughts between texts, each with its own
signature) is told beside it, under "ctxfold", so that a service that checks its thoughts gets them back as it gave them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from ctxfold.messages import Message, Part, ReasoningPart, TextPart

__all__ = ["reasoning_kwargs", "with_thoughts"]

_TEXT = "reasoning_content"
_DETAILS = "reasoning_details"


def reasoning_kwargs(message: Message, *, in_content: bool = False) -> tuple[dict[str, Any], dict[str, Any]]:
    """A message's reasoning for `additional_kwargs`, and what of it goes under "ctxfold" there.

    `in_content`: the content shows the texts too, as blocks, and with them their places.
    """
    places = list(_places(message))
    parts = [part for _, part in places]
    kwargs: dict[str, Any] = {}
    if any(p.text for p in parts):
        kwargs[_TEXT] = "".join(p.text for p in parts)
    details = [block for p in parts if p.details is not None for block in json.loads(p.details)]
    if details:
        kwargs[_DETAILS] = details
    if len(parts) <= 1 and all(at == 0 for at, _ in places):
        signature = parts[0].signature if parts else None
        return kwargs, {} if signature is None else {"signature": signature}
    if in_content and not any(p.signature or p.details for p in parts):
        return kwargs, {}
    return kwargs, {"thoughts": [_told(at, part) for at, part in places]}


def _places(message: Message) -> Iterator[tuple[int, ReasoningPart]]:
    """Each thought, and how many characters of text stand before it."""
    at = 0
    for part in message.parts:
        if isinstance(part, TextPart):
            at += len(part.text)
        elif isinstance(part, ReasoningPart):
            yield at, part


def _told(at: int, part: ReasoningPart) -> dict[str, Any]:
    told: dict[str, Any] = {"at": at, "length": len(part.text)}
    if part.signature is not None:
        told["signature"] = part.signature
    if part.details is not None:
        told["details"] = len(json.loads(part.details))
    return told


def with_thoughts(
    parts: Sequence[Part], kwargs: dict[str, Any], ours: Mapping[str, Any], kept: dict[str, Any]
) -> list[Part]:
    """The content's parts with the reasoning out of `kwargs`, which loses what was taken; none of it twice."""
    text: Any = kwargs.get(_TEXT)
    details: Any = kwargs.get(_DETAILS)
    blocks = [p for p in parts if isinstance(p, ReasoningPart)]
    both = bool(blocks) and isinstance(text, str) and text == "".join(p.text for p in blocks)
    if blocks and not both:
        return list(parts)
    text = text if isinstance(text, str) else ""
    found = cast("list[object]", details) if isinstance(details, list) and _fits_json(kwargs[_DETAILS]) else []
    places = _read(ours, text, found, alone=len(blocks) <= 1)
    if both:
        kept["both"] = True
        del kwargs[_TEXT]
        if places is None:
            return list(parts)
    elif places is None:
        places = [(0, ReasoningPart(text, None, _json(found) if found else None))] if text or found else []
    if text:
        kwargs.pop(_TEXT, None)
    if any(part.details is not None for _, part in places):
        del kwargs[_DETAILS]
    return _woven([p for p in parts if not isinstance(p, ReasoningPart)], places)


def _read(
    ours: Mapping[str, Any], text: str, details: Sequence[object], *, alone: bool
) -> list[tuple[int, ReasoningPart]] | None:
    """The thoughts as they were told; None when nothing was, or when it no longer fits the reasoning."""
    told: Any = ours.get("thoughts")
    signature: Any = ours.get("signature")
    if told is None and isinstance(signature, str) and alone:
        return [(0, ReasoningPart(text, signature, _json(details) if details else None))]
    if not isinstance(told, list):
        return None
    told = cast("list[dict[str, Any]]", told)
    places: list[tuple[int, ReasoningPart]] = []
    start = used = 0
    for one in told:
        match one:
            case {"at": int(at), "length": int(length)}:
                end, count = start + length, one.get("details")
                own = None if count is None else _json(details[used : used + count])
                places.append((at, ReasoningPart(text[start:end], one.get("signature"), own)))
                start, used = end, used + (count or 0)
            case _:
                return None
    return places if (start, used) == (len(text), len(details)) else None


def _woven(parts: Sequence[Part], places: Sequence[tuple[int, ReasoningPart]]) -> list[Part]:
    """Each thought at its place among the texts."""
    woven: list[Part] = []
    waiting = list(places)
    at = 0
    for part in parts:
        rest = part
        while isinstance(rest, TextPart) and waiting and waiting[0][0] < at + len(rest.text):
            cut = waiting[0][0] - at
            if cut > 0:
                woven.append(TextPart(rest.text[:cut]))
                rest = replace(rest, text=rest.text[cut:])
                at += cut
            woven.append(waiting.pop(0)[1])
        at += len(rest.text) if isinstance(rest, TextPart) else 0
        woven.append(rest)
    return [*woven, *(thought for _, thought in waiting)]


def _json(details: Sequence[object]) -> str:
    return json.dumps(details, ensure_ascii=False)


def _fits_json(value: object) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True
