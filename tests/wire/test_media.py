"""Media in the form of any wire, sent on any wire: to the user of a model it is one and the same image or document."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ctxfold import MediaPart, Message, Request, TextPart, open_backend
from ctxfold.protocols import Wire

PNG, PDF = "data:image/png;base64,QUJD", "data:application/pdf;base64,QUJD"
IMAGES: dict[Wire, dict[str, Any]] = {
    "openai_chat": {"type": "image_url", "image_url": {"url": PNG}},
    "openai_responses": {"type": "input_image", "image_url": PNG},
    "anthropic_messages": {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}},
    "gemini": {"inlineData": {"mimeType": "image/png", "data": "QUJD"}},
    "bedrock_converse": {"image": {"format": "png", "source": {"bytes": "QUJD"}}},
}
FILES: dict[Wire, dict[str, Any]] = {
    "openai_chat": {"type": "file", "file": {"filename": "document", "file_data": PDF}},
    "openai_responses": {"type": "input_file", "filename": "document", "file_data": PDF},
    "anthropic_messages": {
        "type": "document",
        "source": {"type": "base64", "media_type": "application/pdf", "data": "QUJD"},
    },
    "gemini": {"inlineData": {"mimeType": "application/pdf", "data": "QUJD"}},
    "bedrock_converse": {"document": {"format": "pdf", "name": "document", "source": {"bytes": "QUJD"}}},
}
LINKS: dict[Wire, dict[str, Any]] = {
    "openai_chat": {"type": "image_url", "image_url": {"url": "https://a.example/b.png"}},
    "openai_responses": {"type": "input_image", "image_url": "https://a.example/b.png"},
    "anthropic_messages": {"type": "image", "source": {"type": "url", "url": "https://a.example/b.png"}},
    "gemini": {"fileData": {"mimeType": "image/png", "fileUri": "https://a.example/b.png"}},
    "bedrock_converse": {"text": "(image that cannot be shown: https://a.example/b.png)"},
}
PROVIDERS: dict[Wire, str] = {
    "openai_chat": "generic",
    "openai_responses": "openai",
    "anthropic_messages": "anthropic",
    "gemini": "gemini",
    "bedrock_converse": "bedrock",
}


def sent(wire: Wire, block: dict[str, Any]) -> dict[str, Any]:
    """Returns the block that stands for the media in a request on the wire."""
    message = Message("u", "user", (TextPart("See."), MediaPart("image", json.dumps(block))))
    with open_backend(PROVIDERS[wire], "m-test", wire=wire, base_url="http://localhost:1", api_key="k") as service:
        body = service.request_body(Request((message,), max_tokens=9), stream=False)
    (row,) = body.get("messages") or body.get("contents") or body["input"]
    found: dict[str, Any] = (row.get("content") or row["parts"])[1]
    return found


@pytest.mark.parametrize("to", PROVIDERS)
@pytest.mark.parametrize("made_on", PROVIDERS)
def test_media_of_every_wire_on_every_wire(made_on: Wire, to: Wire) -> None:
    assert sent(to, IMAGES[made_on]) == IMAGES[to]
    assert sent(to, FILES[made_on]) == FILES[to]
    if made_on != "bedrock_converse":  # which has none
        assert sent(to, LINKS[made_on]) == LINKS[to]


def test_a_file_keeps_its_name() -> None:
    file = {"type": "input_file", "filename": "plan.pdf", "file_data": PDF}
    assert sent("openai_chat", file)["file"]["filename"] == "plan.pdf"
    assert sent("bedrock_converse", file)["document"]["name"] == "plan pdf"
    titled = {**FILES["anthropic_messages"], "title": "The plan"}
    assert sent("openai_chat", titled)["file"]["filename"] == "The plan"


def test_the_detail_of_an_image_goes_along() -> None:
    image = {"type": "input_image", "image_url": PNG, "detail": "low"}
    chat = {"type": "image_url", "image_url": {"url": PNG, "detail": "low"}}
    assert sent("openai_chat", image) == chat
    assert sent("openai_responses", chat) == image


def test_a_sound_of_gemini_is_one_elsewhere() -> None:
    sound = {"inlineData": {"mimeType": "audio/wav", "data": "QUJD"}}
    assert sent("openai_chat", sound) == {"type": "input_audio", "input_audio": {"data": "QUJD", "format": "wav"}}


@pytest.mark.parametrize("wire", PROVIDERS)
def test_a_form_that_no_service_reads_becomes_text(wire: Wire) -> None:
    found = sent(wire, {"hologram": {"data": "QUJD"}})
    assert found["text"].startswith("(image ")
