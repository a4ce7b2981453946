"""R4: a picture, a sound, a film or a file that was compacted is named wherever its message is: `[image, png, 2 kB, #1]`."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest

from ctxfold import MediaPart, Message, Request, TextPart, assistant
from tests.support.driven import Driven, scripted, turns

Make = Callable[..., Driven]
DATA = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"\0" * 2_000).decode()
MEDIA = {
    "[image, png, 2 kB, #1]": ("image", "image/png"),
    "[audio, wav, 2 kB, #1]": ("audio", "audio/wav"),
    "[video, mp4, 2 kB, #1]": ("video", "video/mp4"),
    "[document, pdf, 2 kB, #1]": ("file", "application/pdf"),
}


def shown(kind: str, mime: str, text: str) -> list[Message]:
    data = json.dumps({"type": kind, "base64": DATA, "mime_type": mime})
    return [
        Message("m", "user", (*((TextPart(text),) if text else ()), MediaPart(kind, data, mime))),
        assistant("I have looked at it.", id="n"),
    ]


@pytest.mark.parametrize("text", ["The meter of flat 12 reads like this.", ""], ids=["with words", "alone"])
@pytest.mark.parametrize("line", MEDIA)
def test_it_is_named_in_transcript_summary_recall_and_search(line: str, text: str, make: Make) -> None:
    asked: list[str] = []

    def summarise(request: Request) -> str:
        asked.append(request.messages[-1].text)
        return "The tenant asked about fillers."

    for summarizer in (scripted(*[summarise] * 9), None):
        ctx = make(context_window=3_000, summarizer=summarizer)
        ctx.add(shown(*MEDIA[line], text))
        ctx.add(turns(24))
        ctx.compact(force=True)
        assert ctx.archive.explain("m").where == "compacted"
        assert line in ctx.view().compressed[0].message.text
        kind = line[1:].partition(",")[0]
        question = f"What did the {kind} of the meter show?"
        assert line in ctx.window(recall=True, question=question).recalled
        assert "m" in [hit.message_id for hit in ctx.search(f"{kind} {line.split(', ')[1]}")]
        if not text:
            assert ctx.search(kind)[0].excerpt == line
    assert line in "".join(asked)
    assert DATA[:40] not in "".join(asked)


def test_a_medium_without_a_known_type_or_size_is_named(make: Make) -> None:
    ctx: Any = make(context_window=3_000)
    data = json.dumps({"type": "image_url", "image_url": {"url": "https://example.com/a"}})
    ctx.add([Message("m", "user", (MediaPart("image", data),)), assistant("Seen.", id="n")])
    ctx.add(turns(24))
    ctx.compact(force=True)
    assert "[image, #1]" in ctx.view().compressed[0].message.text


def test_its_name_does_not_move_what_other_questions_find(make: Make) -> None:
    """The score counts how long a message is: a picture adds nothing to that, whether its message is visible or compacted."""
    scores: list[list[float]] = []
    for kinds in ((), ("image", "audio") * 8):
        ctx = make(context_window=3_000)
        data = json.dumps({"type": "image", "base64": DATA, "mime_type": "image/png"})
        ctx.add(
            [
                Message("m", "user", (TextPart("The meter of flat 12."), *(MediaPart(k, data) for k in kinds))),
                assistant("I have looked at the meter.", id="n"),
            ]
        )
        ctx.add(turns(24))
        for _ in range(2):
            scores.append([hit.score for hit in ctx.search("meter")])
            if ctx.archive.explain("m").where != "compacted":
                ctx.compact(force=True)
        assert ctx.archive.explain("m").where == "compacted"
    assert scores[:2] == scores[2:]
    assert len(scores[0]) == 2
