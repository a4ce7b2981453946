"""LlamaIndex messages survive the way into the engine and back; what other faces wrote reads as normal messages."""

from __future__ import annotations

import base64
import copy
import json
import pickle
from dataclasses import replace
from io import BytesIO
from typing import Any

import pytest
from llama_index.core.base.llms.types import (
    AudioBlock,
    CacheControl,
    CachePoint,
    ChatMessage,
    CitableBlock,
    CitationBlock,
    DocumentBlock,
    ImageBlock,
    MessageRole,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    VideoBlock,
)
from llama_index.core.llms.llm import ToolSelection

from ctxfold import MediaPart, Message, ReasoningPart, Role, TextPart, ToolCallPart, ToolResultPart, assistant
from ctxfold.messages import Opaque
from llamaindex_ctx import CtxMemory
from llamaindex_ctx.messages import from_chat_message, from_chat_messages, to_chat_message, to_chat_messages
from llamaindex_ctx.metadata import mark, section
from tests.llamaindex.talk import bot, calling, contents, result, user
from tests.properties.machine import assert_legal

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
TOOL = ChatMessage(role="tool", content="found", additional_kwargs={"tool_call_id": "c1"})
OPENAI_CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"q": "a"}'}}


def dumped(message: ChatMessage) -> dict[str, Any]:
    value = message.model_dump()
    value["additional_kwargs"].pop("ctxfold_id", None)
    return value


MESSAGES = {
    "text": ChatMessage(role="user", content="hello"),
    "empty text": ChatMessage(role="assistant", content=""),
    "no blocks": ChatMessage(role="assistant", blocks=[]),
    "two texts": ChatMessage(role="user", blocks=[TextBlock(text="a"), TextBlock(text="b")]),
    "developer": ChatMessage(role=MessageRole.DEVELOPER, content="be brief"),
    "chatbot": ChatMessage(role=MessageRole.CHATBOT, content="hi"),
    "model": ChatMessage(role=MessageRole.MODEL, content="hi"),
    "function": ChatMessage(role=MessageRole.FUNCTION, content="r", additional_kwargs={"tool_call_id": "c1"}),
    "thinking": ChatMessage(
        role="assistant",
        blocks=[
            ThinkingBlock(
                content="hm", num_tokens=7, additional_information={"signature": "sig", "more": [1, {"a": None}]}
            ),
            TextBlock(text="so"),
        ],
    ),
    "redacted thinking": ChatMessage(role="assistant", blocks=[ThinkingBlock(content=None), TextBlock(text="so")]),
    "thinking between": ChatMessage(
        role="assistant",
        blocks=[ThinkingBlock(content="1"), TextBlock(text="a"), ThinkingBlock(content="2"), TextBlock(text="b")],
    ),
    "reasoning in kwargs": ChatMessage(role="assistant", content="so", additional_kwargs={"reasoning_content": "hm"}),
    "calls": ChatMessage(
        role="assistant",
        blocks=[
            TextBlock(text="look"),
            ToolCallBlock(tool_call_id="c1", tool_name="look", tool_kwargs={"q": "ä", "n": 1.5}),
            ToolCallBlock(tool_call_id="c2", tool_name="look", tool_kwargs='{"q":  "spaced"}'),
            ToolCallBlock(tool_call_id=None, tool_name="look", tool_kwargs={}),
            ToolCallBlock(tool_call_id="c1", tool_name="look", tool_kwargs=""),
        ],
    ),
    "calls in kwargs": ChatMessage(role="assistant", content="", additional_kwargs={"tool_calls": [OPENAI_CALL]}),
    "tool": ChatMessage(role="tool", content="found", additional_kwargs={"tool_call_id": "c1", "name": "look"}),
    "tool, two blocks": ChatMessage(
        role="tool", blocks=[TextBlock(text="a"), TextBlock(text="b")], additional_kwargs={"tool_call_id": "c1"}
    ),
    "tool with image": ChatMessage(
        role="tool", blocks=[TextBlock(text="a"), ImageBlock(image=PNG)], additional_kwargs={"tool_call_id": "c1"}
    ),
    "tool with citable": ChatMessage(
        role="tool",
        blocks=[CitableBlock(title="t", source="s", content=[TextBlock(text="said"), TextBlock(text="so")])],
        additional_kwargs={"tool_call_id": "c1"},
    ),
    "tool with much": ChatMessage(
        role="tool",
        blocks=[
            TextBlock(text="a"),
            CitableBlock(title="t", source="s", content=[TextBlock(text="said")]),
            ImageBlock(image=PNG),
            CitableBlock(title="none", source="s", content=[ImageBlock(image=PNG)]),
            CachePoint(cache_control=CacheControl(type="ephemeral")),
            CitationBlock(
                cited_content=TextBlock(text=""), source="s", title="empty", additional_location_info={"p": 1}
            ),
            TextBlock(text="b"),
        ],
        additional_kwargs={"tool_call_id": "c1"},
    ),
    "image": ChatMessage(role="user", blocks=[TextBlock(text="see"), ImageBlock(image=PNG, detail="low")]),
    "image url": ChatMessage(role="user", blocks=[ImageBlock(url="https://example.org/a.png")]),
    "audio": ChatMessage(role="user", blocks=[AudioBlock(audio=b"RIFF\x00\xff", format="wav")]),
    "video": ChatMessage(role="user", blocks=[VideoBlock(url="https://example.org/a.mp4", fps=2)]),
    "document": ChatMessage(role="user", blocks=[DocumentBlock(data=b"%PDF-1.7 \xff", title="t.pdf")]),
    "cache point": ChatMessage(
        role="user", blocks=[TextBlock(text="a"), CachePoint(cache_control=CacheControl(type="ephemeral"))]
    ),
    "citable": ChatMessage(role="user", blocks=[CitableBlock(title="t", source="s", content=[TextBlock(text="said")])]),
    "citation": ChatMessage(
        role="assistant",
        blocks=[
            CitationBlock(
                cited_content=TextBlock(text="said"), source="s", title="t", additional_location_info={"p": 1}
            )
        ],
    ),
    "odd kwargs": ChatMessage(
        role="assistant",
        content="x",
        additional_kwargs={"refusal": None, "annotations": [{"a": 1}], "tool_call_id": "c9"},
    ),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_a_round_trip_is_exact(name: str) -> None:
    message = MESSAGES[name]
    before = message.model_dump()
    there = from_chat_message(message, "m1")
    assert dumped(to_chat_message(there)) == before
    assert to_chat_message(there).additional_kwargs["ctxfold_id"] == "m1"
    assert from_chat_message(to_chat_message(there), "other") == there
    assert message.model_dump() == before


def test_plain_messages_carry_nothing_beside_their_parts() -> None:
    for name in ("text", "tool", "two texts"):
        assert not any(isinstance(p, Opaque) for p in from_chat_message(MESSAGES[name], "m").parts)


def test_what_a_model_can_see_becomes_parts() -> None:
    parts = from_chat_message(MESSAGES["calls"], "m").parts
    calls = [p for p in parts if isinstance(p, ToolCallPart)]
    assert [c.id for c in calls] == ["c1", "c2", "call_m_2", "c1#3"]
    assert [c.arguments for c in calls] == ['{"q": "ä", "n": 1.5}', '{"q":  "spaced"}', "{}", "{}"]
    assert from_chat_message(MESSAGES["calls in kwargs"], "m").tool_calls[0].name == "look"
    assert from_chat_message(MESSAGES["reasoning in kwargs"], "m").reasoning == "hm"
    assert from_chat_message(MESSAGES["citable"], "m").text == "said"
    assert from_chat_message(MESSAGES["thinking"], "m").parts[0] == ReasoningPart("hm", "sig")
    assert from_chat_message(MESSAGES["developer"], "m").role == "system"


def test_stream_leftovers_and_file_objects() -> None:
    streamed = ChatMessage(role="assistant", content="a", additional_kwargs={"thinking_delta": "h"})
    assert "thinking_delta" not in to_chat_message(from_chat_message(streamed, "m")).additional_kwargs
    image = ChatMessage(role="user", blocks=[ImageBlock(image=BytesIO(PNG))])
    block = to_chat_message(from_chat_message(image, "m")).blocks[0]
    assert isinstance(block, ImageBlock)
    assert block.resolve_image().read() == PNG


def test_a_file_that_is_gone_leaves_its_reference(tmp_path: Any) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(PNG)
    stored = from_chat_message(ChatMessage(role="user", blocks=[ImageBlock(path=path)]), "m")
    path.unlink()
    block = to_chat_message(stored).blocks[0]
    assert isinstance(block, ImageBlock)
    assert str(block.path) == str(path)


def test_messages_of_other_faces_are_normal_messages() -> None:
    written = Message(
        "l1",
        "assistant",
        (
            ReasoningPart("hm", "sig"),
            TextPart("look"),
            ToolCallPart("c1", "look", '{"q": "a"}'),
            Opaque("langchain", "{}"),
        ),
    )
    message = to_chat_messages([written])[0]
    assert message.role is MessageRole.ASSISTANT
    assert message.blocks == [
        ThinkingBlock(content="hm", additional_information={"signature": "sig"}),
        TextBlock(text="look"),
        ToolCallBlock(tool_call_id="c1", tool_name="look", tool_kwargs={"q": "a"}),
    ]
    assert message.additional_kwargs == {"reasoning_content": "hm"}
    assert message.additional_kwargs["ctxfold_id"] == "l1"


@pytest.mark.parametrize(
    "data",
    [
        '{"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}',
        '{"type": "image", "url": "https://example.org/a.png"}',
        '{"type": "image", "base64": "iVBORw0KGgo=", "mime_type": "image/png"}',
        '{"type": "image_url", "image_url": "data:image/png;base64,iVBORw0KGgo="}',
    ],
)
def test_images_of_other_faces_are_image_blocks(data: str) -> None:
    message = to_chat_message(Message("l1", "user", (MediaPart("image", data),)))
    assert isinstance(message.blocks[0], ImageBlock)


def test_media_without_a_block_is_named_not_dropped() -> None:
    message = to_chat_message(Message("l1", "user", (MediaPart("hologram", '{"type": "hologram"}'),)))
    assert message.content == "[hologram attachment, not shown]"


def test_one_message_for_each_result() -> None:
    both = Message("t", "tool", (ToolResultPart("a", "1"), ToolResultPart("b", "2")))
    assert [m.additional_kwargs["tool_call_id"] for m in to_chat_messages([both])] == ["a", "b"]


def test_a_summary_is_known_by_its_kind() -> None:
    message = to_chat_message(Message("s", "user", (TextPart("so far"),), kind="summary"))
    assert message.role is MessageRole.USER
    assert dict(message.additional_kwargs.items()) == {"ctxfold_id": "s", "ctxfold_kind": "summary"}
    assert from_chat_message(message, "x").kind == "summary"


def test_an_excerpt_is_shown_not_what_it_stands_for() -> None:
    stored = from_chat_message(MESSAGES["tool, two blocks"], "m")
    parts = tuple(
        ToolResultPart("c1", "excerpt of a and b") if isinstance(p, ToolResultPart) else p for p in stored.parts
    )
    assert to_chat_message(Message("m", "tool", parts)).content == "excerpt of a and b"


def test_what_a_tool_cites_is_its_result() -> None:
    assert from_chat_message(MESSAGES["tool with citable"], "m").tool_results[0].content == "said\nso"
    assert from_chat_message(MESSAGES["tool with much"], "m").tool_results[0].content == "a\nsaid\n\nb"


def test_an_excerpt_of_cited_text_is_shown_alone() -> None:
    stored = from_chat_message(MESSAGES["tool with much"], "m")
    parts = tuple(ToolResultPart("c1", "in short") if isinstance(p, ToolResultPart) else p for p in stored.parts)
    shown = to_chat_message(Message("m", "tool", parts))
    assert shown.content == "in short"
    assert [b.block_type for b in shown.blocks] == ["text", "image", "citable", "cache"]
    assert "said" not in shown.model_dump_json()


def test_cited_results_of_a_tool_that_were_stored_without_their_text_come_back() -> None:
    cited = CitableBlock(title="t", source="s", content=[TextBlock(text="said")])
    notes = [{"k": "slice", "n": 1}, {"k": "raw", "block": cited.model_dump(mode="json")}]
    beside = {"role": "tool", "kwargs": {"tool_call_id": "c1"}, "blocks": notes}
    stored = Message("m", "tool", (ToolResultPart("c1", "a"), Opaque("llama_index", json.dumps(beside))))
    assert to_chat_message(stored).blocks == [TextBlock(text="a"), cited]


def test_a_large_cited_result_is_counted_and_cut_and_found() -> None:
    text = "Nothing to report here. " * 2_000 + "The heron nests at weir nine. " + "All quiet. " * 2_000
    cited = CitableBlock(title="t", source="s", content=[TextBlock(text=text)])
    call = ToolCallBlock(tool_call_id="c1", tool_name="look", tool_kwargs={})
    memory = CtxMemory.from_defaults(token_limit=2_000)
    memory.put_messages(
        [
            ChatMessage(role="user", content="q"),
            ChatMessage(role="assistant", blocks=[call]),
            ChatMessage(role="tool", blocks=[cited], additional_kwargs={"tool_call_id": "c1"}),
            ChatMessage(role="assistant", content="a"),
        ]
    )
    shown = sum(len(m.model_dump_json()) for m in memory.get())
    assert shown < 2_000 * 8
    assert memory.context.view().tokens <= 2_000
    assert [b for m in memory.get_all() for b in m.blocks if isinstance(b, CitableBlock)] == [cited]
    assert "heron" in memory.context.search("heron weir")[0].excerpt


def test_parallel_results_without_ids_go_to_their_calls_in_order() -> None:
    calls = [ToolCallBlock(tool_name="look", tool_kwargs={}), ToolCallBlock(tool_name="look", tool_kwargs={})]
    results = [ChatMessage(role="tool", content=text) for text in ("1", "2")]
    found = from_chat_messages([ChatMessage(role="assistant", blocks=calls), *results])
    assert [m.tool_results[0].call_id for m in found[1:]] == [c.id for c in found[0].tool_calls]


@pytest.mark.parametrize(
    "call",
    [
        OPENAI_CALL,
        {"id": "c1", "name": "look", "input": {"q": "a"}, "type": "tool_use"},
        ToolSelection(tool_id="c1", tool_name="look", tool_kwargs={"q": "a"}),
    ],
    ids=["openai", "anthropic", "selection"],
)
def test_calls_noted_beside_a_message_are_calls(call: object) -> None:
    found = from_chat_messages(
        [ChatMessage(role="assistant", content="", additional_kwargs={"tool_calls": [call]}), TOOL]
    )
    assert found[0].tool_calls == (ToolCallPart("c1", "look", '{"q": "a"}'),)
    assert found[1].tool_results[0].call_id == "c1"


def test_a_result_behind_a_reply_that_called_nothing_is_told_by_the_user() -> None:
    """A code agent calls in plain text; its hand-off answers a call that no message holds."""
    image = ImageBlock(image=PNG)
    shown = ChatMessage(role="tool", blocks=[TextBlock(text="seen"), image], additional_kwargs={"tool_call_id": "c2"})
    found = from_chat_messages([ChatMessage(role="assistant", content="<execute>1</execute>"), TOOL, shown])
    assert [m.role for m in found] == ["assistant", "user", "user"]
    assert found[1].text == "Result of a tool call:\nfound"
    assert to_chat_message(found[2]).blocks[0] == TextBlock(text="Result of a tool call:\nseen")
    assert isinstance(to_chat_message(found[2]).blocks[1], ImageBlock)


def test_l13_a_function_message_without_a_call_id_answers_the_call_that_waits() -> None:
    said = [user("q"), calling("c"), ChatMessage(role=MessageRole.FUNCTION, content="r"), bot("done")]
    found = from_chat_messages(said)
    assert found[1].tool_calls[0].id == found[2].tool_results[0].call_id
    assert [m.role.value for m in map(to_chat_message, found)] == ["user", "assistant", "function", "assistant"]


TOLD: dict[str, list[ChatMessage]] = {
    "unknown id": [user("q"), result("zz")],
    "unknown id, call waits": [user("q"), calling("c"), result("zz"), result("c")],
    "user between": [user("q"), calling("c"), user("wait"), result("c")],
    "system between": [user("q"), calling("c"), ChatMessage(role="system", content="rule"), result("c")],
    "function without id": [user("q"), ChatMessage(role=MessageRole.FUNCTION, content="found")],
}


@pytest.mark.parametrize("kind", TOLD)
def test_l3_results_put_one_by_one_are_kept_and_paired(kind: str) -> None:
    """The plain memories take them; a service takes no result of a call that is not there, so that it is shown as text."""
    with CtxMemory.from_defaults(context_window=2_000) as memory:
        for message in [*TOLD[kind], bot("done")]:
            memory.put(message)
        assert_legal(memory.context.window().messages)
        kept = "\n".join(text or "" for text in contents(memory.get_all()))
        assert all((m.content or "") in kept for m in TOLD[kind])


def test_the_engine_message_keeps_its_own_id() -> None:
    stored = assistant("hi", id="known")
    assert from_chat_message(to_chat_message(stored), "new") == stored


def test_a_section_is_sent_but_never_stored() -> None:
    message = section("recalled")
    assert from_chat_messages([message])[0].kind == "section"
    memory = CtxMemory.from_defaults(context_window=2_000)
    memory.put(message)
    memory.set([message])
    assert memory.get_all() == []


@pytest.mark.parametrize("role", ["system", "user", "assistant"])
def test_a_plain_message_is_what_llamaindex_itself_would_make(role: Role) -> None:
    made = to_chat_messages([Message("m1", role, (TextPart("a word"),)), Message("m2", role, (TextPart("a word"),))])
    checked = ChatMessage(role=role, blocks=[TextBlock(text="a word")])
    assert made[0] == checked
    mark(checked, ctxfold_id="m1")
    for twin in (made[0], pickle.loads(pickle.dumps(made[0])), copy.deepcopy(made[0]), made[0].model_copy()):
        assert twin == checked
        assert twin.__getstate__() == checked.__getstate__()
        assert twin.model_dump_json(exclude_unset=True) == checked.model_dump_json(exclude_unset=True)
    made[0].blocks.append(TextBlock(text="more"))
    made[0].additional_kwargs["mine"] = True
    assert made[1].content == "a word"
    assert dict(made[1].additional_kwargs.items()) == {"ctxfold_id": "m2"}


def test_what_a_message_has_beyond_its_notes_is_shown() -> None:
    """The notes say which blocks a message came with; a part that was added since has none."""
    stored = from_chat_message(ChatMessage(role="user", content="as it came", additional_kwargs={"own": 1}), "u")
    longer = replace(stored, parts=(*stored.parts, TextPart("added")))
    assert [b.text for b in to_chat_message(longer).blocks if isinstance(b, TextBlock)] == ["as it came", "added"]
