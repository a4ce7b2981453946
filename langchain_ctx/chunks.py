"""Stream events as LangChain message chunks that merge into the stored reply."""

from __future__ import annotations

from typing import Any, assert_never

from langchain_core.messages import AIMessageChunk
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGenerationChunk

from ctxfold.messages import Message, Part, ReasoningPart, TextPart
from ctxfold.protocols import ToolCallDelta
from ctxfold.stream import Content, ContentFirst, StreamPiece, Thinking, ToolCalls
from langchain_ctx.messages import reasoning_kwargs, reply_notes, usage_metadata
from langchain_ctx.refusals import refusal_block


class ChunkWriter:
    """Writes one reply's chunks, all with its id; usage, model and finish reason stand on the last one only.

    With `blocks` (output_version "v1") content is a list of standard blocks, and every segment has an index of its own: reasoning
    and a tool call that shared index 0 would be merged into one.
    """

    def __init__(self, message_id: str, provider: str, *, blocks: bool) -> None:
        self._id = message_id
        self._provider = provider
        self._blocks = blocks
        self._segment = ""
        self._segments = 0
        self._ids: list[str] = []  # of the reply's calls so far, "" for one that has none yet
        self._names: list[str] = []

    def event(self, event: StreamPiece) -> ChatGenerationChunk:
        match event:
            case Thinking(text=text):
                block = {"type": "reasoning", "reasoning": text, "index": self._index("reasoning")}
                return self._chunk([block] if self._blocks else "", additional_kwargs={"reasoning_content": text})
            case ContentFirst(text=text) | Content(text=text):
                if self._blocks:
                    return self._chunk([{"type": "text", "text": text, "index": self._index("text")}])
                return self._chunk(text)
            case ToolCalls(calls=calls, numbers=numbers):
                return self._tool_calls([(n, self._news(n, delta)) for n, delta in zip(numbers, calls, strict=True)])
            case _:
                assert_never(event)

    def last(self, message: Message) -> ChatGenerationChunk:
        """Returns the chunk that ends the stream, with what is known only then; completes missing ids of calls."""
        extra = reasoning_kwargs(message)
        extra.pop("reasoning_content", None)
        shown: list[Part] = [ReasoningPart(message.reasoning)] if self._blocks and message.reasoning else []
        notes = reply_notes(message, [*shown, TextPart(message.text)])
        if notes:
            extra["ctxfold"] = notes
        refusal = message.opaque("refusal")
        if refusal is not None:
            extra["refusal"] = refusal
        metadata = {"model_name": message.model, "finish_reason": message.finish_reason}
        late = [
            (index, ToolCallDelta(id=call.id))
            for index, (call, known_id) in enumerate(zip(message.tool_calls, self._ids, strict=False))
            if not known_id
        ]
        chunk = self._tool_calls(late)
        chunk.message.additional_kwargs = extra
        chunk.message.response_metadata |= {name: value for name, value in metadata.items() if value is not None}
        assert isinstance(chunk.message, AIMessageChunk)
        if self._blocks and (block := refusal_block(chunk.message)) is not None:
            chunk.message.content = [*chunk.message.content, {**block, "index": self._index("refusal")}]
        chunk.message.chunk_position = "last"
        if message.usage is not None:
            chunk.message.usage_metadata = UsageMetadata(**usage_metadata(message.usage))  # type: ignore[typeddict-item]
        return chunk

    def _news(self, number: int, delta: ToolCallDelta) -> ToolCallDelta:
        """Returns the delta with its id and its name only where its call had none before."""
        if number == len(self._ids):
            self._ids.append("")
            self._names.append("")
        new_id = None if self._ids[number] else delta.id or None
        new_name = None if self._names[number] else delta.name or None
        self._ids[number] = self._ids[number] or new_id or ""
        self._names[number] = self._names[number] or new_name or ""
        return ToolCallDelta(id=new_id, name=new_name, arguments=delta.arguments)

    def _tool_calls(self, placed: list[tuple[int, ToolCallDelta]]) -> ChatGenerationChunk:
        pieces = [tool_call_chunk(name=d.name, args=d.arguments, id=d.id, index=i) for i, d in placed]
        if not self._blocks:
            return self._chunk("", tool_call_chunks=pieces)
        if pieces:
            self._segment = "tool_calls"
        blocks: list[Any] = [
            {"type": "tool_call_chunk", "name": d.name, "args": d.arguments, "id": d.id, "index": f"lc_tc_{i}"}
            for i, d in placed
        ]
        return self._chunk(blocks, tool_call_chunks=pieces)

    def _index(self, kind: str) -> str:
        if self._segment != kind:
            self._segment = kind
            self._segments += 1
        return f"lc_{kind}_{self._segments}"

    def _chunk(self, content: str | list[Any], **fields: Any) -> ChatGenerationChunk:
        metadata = {"model_provider": self._provider}
        if self._blocks:
            metadata["output_version"] = "v1"
        message = AIMessageChunk(content=content, id=self._id, response_metadata=metadata, **fields)
        return ChatGenerationChunk(message=message)
