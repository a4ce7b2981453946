"""`CtxLLM` sends the files that blocks name, as no service can read them here; what is stored names them still."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.base.llms.types import (
    AudioBlock,
    ChatMessage,
    ChatResponse,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    TextBlock,
    VideoBlock,
)
from llama_index.core.llms.mock import MockLLM
from pydantic import PrivateAttr

from ctxfold import MessageError
from ctxfold.testing import Scripted
from llamaindex_ctx import CtxMemory, with_context
from tests.llamaindex.served_llm import WAYS, ask, served

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
JPEG = b"\xff\xd8\xff\xe0" + b"\x00" * 300


def inline(mime: str, data: bytes) -> str:
    return f"data:{mime};base64,{base64.b64encode(data).decode()}"


def asking(*blocks: ContentBlock) -> list[ChatMessage]:
    return [ChatMessage(role="user", blocks=[*blocks, TextBlock(text="what is it?")])]


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "a.png"
    path.write_bytes(PNG)
    return path


CASES = {
    "image": (ImageBlock, "a.png", PNG, {"type": "image_url", "image_url": {"url": inline("image/png", PNG)}}),
    "unnamed image": (ImageBlock, "a", JPEG, {"type": "image_url", "image_url": {"url": inline("image/jpeg", JPEG)}}),
    "audio": (
        AudioBlock,
        "a.mp3",
        b"ID3\x03",
        {"type": "input_audio", "input_audio": {"data": base64.b64encode(b"ID3\x03").decode(), "format": "mp3"}},
    ),
    "video": (
        VideoBlock,
        "a.webm",
        b"\x1aE",
        {"type": "video_url", "video_url": {"url": inline("video/webm", b"\x1aE")}},
    ),
    "document": (
        DocumentBlock,
        "a.pdf",
        b"%PDF-1.7 \xff",
        {"type": "file", "file": {"filename": "t.pdf", "file_data": inline("application/pdf", b"%PDF-1.7 \xff")}},
    ),
    "text that looks like base64": (
        DocumentBlock,
        "a.txt",
        b"abcd",
        {"type": "file", "file": {"filename": "t.pdf", "file_data": inline("text/plain", b"abcd")}},
    ),
}


@pytest.mark.parametrize("name", CASES)
async def test_a_file_is_sent_as_what_it_holds(name: str, tmp_path: Path) -> None:
    block_type, file_name, data, row = CASES[name]
    path = tmp_path / file_name
    path.write_bytes(data)
    extra: dict[str, Any] = {"title": "t.pdf"} if block_type is DocumentBlock else {}
    messages = asking(block_type(path=path, **extra))
    before = messages[0].model_dump()
    async with served(Scripted("A dot.")) as (llm, server):
        await ask(llm, "chat", messages)
    assert server.requests[0].body["messages"][0]["content"] == [row, {"type": "text", "text": "what is it?"}]
    assert messages[0].model_dump() == before


@pytest.mark.parametrize("way", WAYS)
async def test_in_each_way_of_asking(way: str, picture: Path) -> None:
    async with served(Scripted("A dot.")) as (llm, server):
        await ask(llm, way, asking(ImageBlock(path=picture, detail="low")))
    sent = server.requests[0].body["messages"][0]["content"][0]
    assert sent == {"type": "image_url", "image_url": {"url": inline("image/png", PNG), "detail": "low"}}


@pytest.mark.parametrize("way", WAYS)
async def test_a_file_that_is_gone_is_named(way: str, picture: Path) -> None:
    messages = asking(ImageBlock(path=picture))
    picture.unlink()
    async with served(Scripted("A dot.")) as (llm, server):
        with pytest.raises(MessageError, match=r"a\.png' cannot be read \(No such file"):
            await ask(llm, way, messages)
    assert server.requests == []


async def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.png").touch()
    async with served(Scripted("A dot.")) as (llm, _):
        with pytest.raises(MessageError, match="0 bytes"):
            await ask(llm, "chat", asking(ImageBlock(path=tmp_path / "a.png")))


async def test_bytes_and_addresses_are_sent_as_they_are(picture: Path) -> None:
    both = ImageBlock(image=JPEG, path=picture)
    picture.unlink()
    async with served(Scripted("A dot.")) as (llm, server):
        await ask(llm, "chat", asking(both, ImageBlock(url="https://example.org/a.png")))
    sent = server.requests[0].body["messages"][0]["content"]
    assert [row["image_url"]["url"] for row in sent[:2]] == [inline("image/jpeg", JPEG), "https://example.org/a.png"]


async def test_what_is_stored_names_the_file_and_what_is_sent_holds_it(picture: Path) -> None:
    memory = CtxMemory.from_defaults("s", token_limit=3_000)
    memory.put_messages(asking(ImageBlock(path=picture)))
    stored = memory.get_all()[0].blocks[0]
    assert isinstance(stored, ImageBlock)
    assert (stored.path, stored.image) == (picture, None)
    async with served(Scripted("A dot."), Scripted("A dot."), settings={"context_window": 8_000}) as (llm, server):
        await ask(llm, "chat", memory.get())
        with with_context(llm, session_id="s") as kept:
            kept.chat(asking(ImageBlock(path=picture)))
            held = kept.context().view().messages[0]
    for request in server.requests:
        assert request.body["messages"][0]["content"][0]["image_url"]["url"] == inline("image/png", PNG)
    assert inline("image/png", PNG) not in str(held.parts)


class Foreign(MockLLM):
    """Keeps what it was given."""

    _given: list[ChatMessage] = PrivateAttr(default_factory=list)

    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        self._given = list(messages)
        return ChatResponse(message=ChatMessage(role="assistant", content="A dot."))


def test_an_llm_that_is_not_ours_gets_the_blocks_as_they_came(picture: Path) -> None:
    messages = asking(ImageBlock(path=picture), DocumentBlock(path=picture, title="t"))
    llm = Foreign()
    with with_context(llm, session_id="s", context_window=8_000) as kept:
        kept.chat(messages)
    assert [b.model_dump(mode="json") for b in llm._given[0].blocks] == [
        b.model_dump(mode="json") for b in messages[0].blocks
    ]
