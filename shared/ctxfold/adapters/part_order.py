"""Notes the order of a reply's parts beside a framework's message, which has no place for it, and restores it from the note."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeAlias, cast
from zlib import crc32

from ctxfold.messages import MediaPart, Message, Opaque, Part, ReasoningPart, TextPart, ToolCallPart
from ctxfold.validation import as_dicts

Place: TypeAlias = dict[str, Any]


def order_note(parts: Iterable[Part]) -> list[Place]:
    """Returns the place of each part, as JSON values: lengths in place of texts, counts in place of a provider's blocks.

    Calls are named by their ids. An empty text that its provider sent nothing beside has no place.
    """
    return [place for part in parts if (place := _place(part)) is not None]


def _place(part: Part) -> Place | None:
    match part:
        case TextPart(text="", extra=None):
            return None
        case TextPart():
            return _given(text=len(part.text)) if part.extra is None else _with_extra(part.text, part.extra)
        case ReasoningPart():
            count = None if part.details is None else len(_blocks(part.details))
            return _given(thought=len(part.text), signature=part.signature, details=count)
        case ToolCallPart():
            return {"call": part.id}
        case MediaPart():
            return {"media": part.kind}
        case _:
            return None


def _with_extra(text: str, extra: str) -> Place:
    return {"text": len(text), "extra": extra, "crc": crc32(text.encode("utf-8", "surrogatepass"))}


def _given(**fields: Any) -> Place:
    return {name: value for name, value in fields.items() if value is not None}


def _blocks(details: str) -> list[object]:
    value: object = json.loads(details)
    return cast("list[object]", value) if isinstance(value, list) else [value]


def arranged(note: object, parts: Sequence[Part]) -> list[Part]:
    """Returns the parts in the order of the note, cut and with what the provider sent beside them.

    A text that was changed since the note was made loses what was beside it, since that belongs to the old words; where the
    lengths changed, all texts are kept as they are now, at the first one's place. Thoughts likewise. Calls that are new come last.
    """
    places = _places(note)
    if not places:
        return list(parts)
    texts = [p for p in parts if isinstance(p, TextPart)]
    thoughts = [p for p in parts if isinstance(p, ReasoningPart)]
    calls = {p.id: p for p in parts if isinstance(p, ToolCallPart)}
    media = iter([p for p in parts if isinstance(p, MediaPart)])
    text_runs = _runs(_cut_texts(places, texts), texts, sum("text" in place for place in places))
    thought_runs = _runs(_cut_all(places, thoughts), thoughts, sum("thought" in place for place in places))
    ordered: list[Part] = []
    if not any("thought" in place for place in places):
        ordered += thoughts
    for place in places:
        if "text" in place:
            ordered += next(text_runs)
        elif "thought" in place:
            ordered += next(thought_runs)
        elif "call" in place:
            ordered += [calls.pop(place["call"])] if place["call"] in calls else []
        elif "media" in place:
            ordered += [medium] if (medium := next(media, None)) is not None else []
    if not any("text" in place for place in places):
        ordered += texts
    return [*ordered, *media, *calls.values(), *(p for p in parts if isinstance(p, Opaque))]


def _places(note: object) -> list[Place]:
    """Returns the entries of a note that say something; a note may have been through other hands."""
    return [entry for entry in as_dicts(note) if _is_place(entry)]


def _is_place(entry: Mapping[str, object]) -> bool:
    lengths = [entry[name] for name in ("text", "thought", "details", "crc") if name in entry]
    texts = [entry[name] for name in ("extra", "signature", "call", "media") if name in entry]
    return all(isinstance(n, int) and n >= 0 for n in lengths) and all(isinstance(t, str) for t in texts)


def _runs(cut: Sequence[Part] | None, whole: Sequence[Part], count: int) -> Iterator[Sequence[Part]]:
    """Yields what stands at each of `count` places: one cut part each, or all parts as they are at the first of them."""
    if cut is None:
        return iter([whole, *([()] * (count - 1))])
    return iter([(part,) for part in cut])


def _cut_texts(places: Sequence[Place], texts: Sequence[TextPart]) -> list[Part] | None:
    whole = "".join(part.text for part in texts)
    own = [place for place in places if "text" in place]
    if sum(place["text"] for place in own) != len(whole):
        return None
    pieces: list[Part] = []
    for place, (start, end) in zip(own, _ends(place["text"] for place in own), strict=True):
        text, extra = whole[start:end], place.get("extra")
        pieces.append(TextPart(text, extra if place == _with_extra(text, extra or "") else None))
    return pieces


def _cut_all(places: Sequence[Place], thoughts: Sequence[ReasoningPart]) -> list[Part] | None:
    blocks = [block for part in thoughts if part.details is not None for block in _blocks(part.details)]
    cut = cut_thoughts(places, "".join(part.text for part in thoughts), blocks)
    return None if cut is None else [*cut]


def cut_thoughts(note: object, text: str, blocks: Sequence[object]) -> list[ReasoningPart] | None:
    """Returns the thoughts of a note, cut out of their joined text and their provider's blocks; None when these do not fit it."""
    own = [place for place in _places(note) if "thought" in place]
    lengths, counts = [place["thought"] for place in own], [place.get("details", 0) for place in own]
    if sum(lengths) != len(text) or sum(counts) != len(blocks):
        return None
    pieces: list[ReasoningPart] = []
    for place, (start, end), (first, last) in zip(own, _ends(lengths), _ends(counts), strict=True):
        details = json.dumps(blocks[first:last], ensure_ascii=False) if "details" in place else None
        pieces.append(ReasoningPart(text[start:end], place.get("signature"), details))
    return pieces


def _ends(lengths: Iterable[int]) -> Iterator[tuple[int, int]]:
    at = [0]
    for length in lengths:
        at.append(at[-1] + length)
    return pairwise(at)


def bound(message: Message) -> bool:
    """Returns True when the message has what only the model that made it may be sent back."""
    return any(
        (isinstance(part, ReasoningPart) and (part.signature is not None or part.details is not None))
        or (isinstance(part, TextPart | ToolCallPart) and part.extra is not None)
        for part in message.parts
    )
