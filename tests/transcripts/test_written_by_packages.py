"""What the packages of these formats really write is read, whole and in order."""

from __future__ import annotations

import io
import json
import tracemalloc
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from langchain_core.load import dumpd
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage, messages_to_dict
from langsmith.schemas import Run
from llama_index.core.base.llms.types import ChatMessage, ImageBlock, TextBlock, ThinkingBlock, ToolCallBlock
from llama_index.core.storage.chat_store import SimpleChatStore
from openai.types.chat import ChatCompletion
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

from ctxfold.transcripts.reading import read_transcripts, transcript_format
from tests.transcripts.samples import PNG, chat, node
from tests.transcripts.test_readers import told, written

MESSAGES = [
    SystemMessage("Add."),
    HumanMessage(
        [
            {"type": "text", "text": "1 and 1?"},
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
        ]
    ),
    AIMessage(
        [
            {"type": "thinking", "thinking": "Easy.", "signature": "x"},
            {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}},
        ],
        tool_calls=[{"id": "c1", "name": "add", "args": {"a": 1}}],
        usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
    ),
    ToolMessage("2", tool_call_id="c1", artifact={"unsent": "kept for the program"}),
    AIMessage("Two.", additional_kwargs={"reasoning_content": "Done."}, response_metadata={"finish_reason": "stop"}),
]
TOLD = [
    "system: Add.",
    "user: 1 and 1? [image]",
    'assistant: (Easy.) add({"a": 1})',
    "tool: 2",
    "assistant: (Done.) Two.",
]


@pytest.mark.parametrize("dumped", [messages_to_dict(MESSAGES), dumpd(MESSAGES), {"messages": dumpd(MESSAGES)}])
def test_langchain(tmp_path: Path, dumped: Any) -> None:
    path = written(tmp_path, json.dumps(dumped))
    assert transcript_format(path) == "langchain"
    assert [told(c) for c in read_transcripts(path)] == [TOLD]


def test_langsmith(tmp_path: Path) -> None:
    at = datetime(2026, 5, 1, tzinfo=UTC)
    run = Run(
        id=UUID(int=1),
        trace_id=UUID(int=1),
        name="ChatOpenAI",
        run_type="llm",
        start_time=at,
        end_time=at + timedelta(seconds=1),
        inputs={"messages": [dumpd(MESSAGES[:4])]},
        outputs={
            "generations": [[{"text": "Two.", "type": "ChatGeneration", "message": dumpd(MESSAGES[4])}]],
            "llm_output": None,
        },
        extra={"metadata": {"ls_provider": "openai"}, "runtime": {"sdk": "langsmith-py", "platform": "Linux and more"}},
    )
    path = written(tmp_path, run.model_dump_json() + "\n")
    assert transcript_format(path) == "langsmith"
    conversation = next(read_transcripts(path))
    assert told(conversation) == TOLD
    assert conversation.times_s[0] == at.timestamp()


@pytest.mark.parametrize("nested", [False, True])
def test_llamaindex(tmp_path: Path, nested: bool) -> None:
    store = SimpleChatStore()
    for message in (
        ChatMessage(
            role="user",
            blocks=[TextBlock(text="1 and 1?"), ImageBlock(image=b"\x89PNG\r\n\x1a\n0000", image_mimetype="image/png")],
        ),
        ChatMessage(
            role="assistant",
            blocks=[
                ThinkingBlock(content="Easy."),
                ToolCallBlock(tool_call_id="c1", tool_name="add", tool_kwargs={"a": 1}),
            ],
        ),
        ChatMessage("2", role="tool", additional_kwargs={"tool_call_id": "c1", "name": "add"}),
        ChatMessage("Two.", role="assistant"),
    ):
        store.add_message("ann", message)
    kept = {key: [message.model_dump(mode="json") for message in held] for key, held in store.store.items()}
    text = json.dumps({"store": kept, "class_name": "SimpleChatStore"})
    path = written(tmp_path, json.dumps(text) if nested else text)
    assert SimpleChatStore.from_persist_path(str(path)).get_messages("ann")[-1].content == "Two.", (
        "the package reads it, too"
    )
    assert transcript_format(path) == "llamaindex"
    assert [told(c) for c in read_transcripts(path)] == [
        ["user: 1 and 1? [image]", 'assistant: (Easy.) add({"a": 1})', "tool: 2", "assistant: Two."]
    ]


def test_a_message_without_content_and_with_blocks_is_not_emptied(tmp_path: Path) -> None:
    """Lines of a chat store once went into sessions as empty messages."""
    message = ChatMessage(role="user", blocks=[TextBlock(text="Hi")])
    path = written(tmp_path, message.model_dump_json() + "\n")
    assert [told(c) for c in read_transcripts(path)] == [["user: Hi"]]


def test_openai(tmp_path: Path) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    body = ChatCompletion.model_validate(
        {
            "id": "x",
            "object": "chat.completion",
            "created": 1_780_000_000,
            "model": "gpt-5",
            "choices": [
                {
                    "index": 0,
                    "finish_reason": "tool_calls",
                    "message": {"role": "assistant", "content": "I add.", "tool_calls": [call]},
                }
            ],
        }
    ).model_dump()
    line = {
        "id": "b",
        "custom_id": "q-1",
        "response": {"status_code": 200, "request_id": "r", "body": body},
        "error": None,
    }
    conversation = next(read_transcripts(written(tmp_path, json.dumps(line))))
    assert (conversation.format, conversation.id, conversation.times_s[0]) == ("openai-batch", "q-1", 1_780_000_000)
    assert told(conversation)[0] == 'assistant: I add. add({"a": 1})'
    messages = [
        {"role": "user", "content": "Add."},
        body["choices"][0]["message"],
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
    ]
    conversation = next(read_transcripts(written(tmp_path, json.dumps({"messages": messages}))))
    assert told(conversation) == ["user: Add.", 'assistant: I add. add({"a": 1})', "tool: 2"]


def test_the_console_of_opentelemetry(tmp_path: Path) -> None:
    """Pretty JSON, one object after the other; the messages on a span are JSON in a text, and each span repeats the history."""
    out = io.StringIO()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(out=out)))
    tracer = provider.get_tracer("test")
    history: list[Any] = []
    for question, answer in (("Ping?", "Pong."), ("Again?", '{"again": "pong"}')):
        history.append({"role": "user", "parts": [{"type": "text", "content": question}]})
        reply = {"role": "assistant", "parts": [{"type": "text", "content": answer}], "finish_reason": "stop"}
        with tracer.start_as_current_span("chat gpt-5") as span:
            span.set_attribute("gen_ai.conversation.id", "conv-1")
            span.set_attribute("gen_ai.input.messages", json.dumps(history))
            span.set_attribute("gen_ai.output.messages", json.dumps([reply]))
        history.append(reply)
    provider.shutdown()
    path = written(tmp_path, out.getvalue())
    assert transcript_format(path) == "opentelemetry"
    found = list(read_transcripts(path))
    assert [(c.id, told(c)) for c in found] == [
        ("conv-1", ["user: Ping?", "assistant: Pong.", "user: Again?", 'assistant: {"again": "pong"}'])
    ]


def test_a_large_export_is_read_one_conversation_at_a_time(tmp_path: Path) -> None:
    path, words = tmp_path / "conversations.json", "word " * 2_000
    with path.open("w", encoding="utf-8") as file:
        for number in range(400):
            nodes = [
                node("r", None),
                *(node(f"n{i}", f"n{i - 1}" if i else "r", "user", f"{number} {words}") for i in range(4)),
            ]
            file.write(("[" if number == 0 else ",\n") + json.dumps(chat(f"C{number}", "n3", *nodes)))
        file.write("]")
    read: list[tuple[int, int]] = []
    tracemalloc.start()
    try:
        count = sum(len(c.messages) for c in read_transcripts(path, on_progress=lambda *done: read.append(done)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    size = path.stat().st_size
    assert (count, size > 16_000_000, peak < 8_000_000) == (1_600, True, True), peak
    assert read[-1] == (size, size)
    assert [done for done, _ in read] == sorted(done for done, _ in read)
