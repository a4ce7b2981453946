"""An LLM that is asked in its caller's own words: what stands behind `with_context`."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import AsyncIterator, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from llama_index.core.base.llms.types import ChatResponse, ToolCallBlock
from llama_index.core.tools.types import BaseTool

from ctxfold.errors import BackendError
from ctxfold.exchange import Options
from ctxfold.messages import ToolSpec
from ctxfold.ports import AsyncChunkStream, ChunkStream, Reply, Request
from llamaindex_ctx.backend import AsyncForeignStream, ForeignStream, LlamaIndexBackend, bare_messages
from llamaindex_ctx.foreign import whole_reply
from llamaindex_ctx.marks import ID_KEY, mark

__all__ = ["ONE_CALL", "Call", "CallersBackend", "failing_as_it_did"]

_CALL = "ctxfold_call"  # among the options of a request
ONE_CALL = "ctxfold_one_call"  # among the arguments of `chat`


@dataclass(slots=True)
class Call:
    """One call: the caller's arguments, and the LLM's own responses that were not handed on yet."""

    reply_id: str
    arguments: Mapping[str, Any]
    one_call: bool = (
        False  # of a whole reply only the first tool call is kept, as the LLM's own `chat_with_tools` does it
    )
    waiting: deque[ChatResponse] = field(default_factory=deque[ChatResponse])

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Call:
        sent = {name: value for name, value in arguments.items() if name != ONE_CALL}
        return cls(uuid.uuid4().hex, sent, bool(arguments.get(ONE_CALL)))

    def options(self, scratch: str) -> Options:
        """For the engine; of the arguments it needs to know what takes room."""
        limit = self.arguments.get("max_tokens")
        return Options(
            max_tokens=limit if isinstance(limit, int) else None,
            tools=tuple(_counted(tool) for tool in self.arguments.get("tools") or ()),
            scratch=scratch or None,
            extra={_CALL: self},
        )

    def begin(self) -> None:
        """Forget what an attempt that failed has left."""
        self.waiting.clear()

    def put(self, response: ChatResponse) -> None:
        mark(response.message, **{ID_KEY: self.reply_id})
        self.waiting.append(response)

    def take(self) -> Iterator[ChatResponse]:
        while self.waiting:
            yield self.waiting.popleft()


class CallersBackend(LlamaIndexBackend):
    """Sends a window with the arguments of the call that asks for it; responses are kept as they came."""

    def send(self, request: Request) -> Reply:
        call = _call(request)
        with self.translated():
            response = self.llm.chat(bare_messages(request.messages), **call.arguments)
            return self._whole(response, call)

    async def asend(self, request: Request) -> Reply:
        call = _call(request)
        with self.translated():
            response = await self.llm.achat(bare_messages(request.messages), **call.arguments)
            return self._whole(response, call)

    def open_stream(self, request: Request) -> ChunkStream:
        call = _call(request)
        with self.translated():
            source = _each(self.llm.stream_chat(bare_messages(request.messages), **call.arguments), call)
            return ForeignStream(source, next(source, None), self)

    async def aopen_stream(self, request: Request) -> AsyncChunkStream:
        call = _call(request)
        with self.translated():
            source = _aeach(await self.llm.astream_chat(bare_messages(request.messages), **call.arguments), call)
            return AsyncForeignStream(source, await anext(source, None), self)

    def _whole(self, response: ChatResponse, call: Call) -> Reply:
        if call.one_call:
            llm: Any = self.llm
            response = llm._validate_chat_with_tools_response(response, (), allow_parallel_tool_calls=False)
            _forget_other_calls(response)
        call.put(response)
        return whole_reply(response, self.model)


@contextmanager
def failing_as_it_did() -> Generator[None]:
    """A failure of the caller's LLM leaves as the LLM raised it: retries and fallbacks around it know that class."""
    try:
        yield
    except BackendError as error:
        cause = error.__cause__
        if error.kind == "context_overflow" or not isinstance(cause, Exception):
            raise
        raise cause from cause.__cause__


def _call(request: Request) -> Call:
    call = cast("Call", request.extra[_CALL])
    call.begin()
    return call


def _forget_other_calls(response: ChatResponse) -> None:
    """Beside the message, too, only the calls that its blocks have kept."""
    message = response.message
    kept = {block.tool_call_id for block in message.blocks if isinstance(block, ToolCallBlock)}
    beside: object = message.additional_kwargs.get("tool_calls")
    if kept and isinstance(beside, list):
        calls = cast("list[object]", beside)
        message.additional_kwargs["tool_calls"] = [c for c in calls if getattr(c, "id", None) in kept]


def _each(source: Iterator[ChatResponse], call: Call) -> Iterator[ChatResponse]:
    try:
        for response in source:
            call.put(response)
            yield response
    finally:
        close = getattr(source, "close", None)
        if close is not None:
            close()


async def _aeach(source: AsyncIterator[ChatResponse], call: Call) -> AsyncIterator[ChatResponse]:
    try:
        async for response in source:
            call.put(response)
            yield response
    finally:
        close = getattr(source, "aclose", None)
        if close is not None:
            await close()


def _counted(tool: object) -> ToolSpec:
    """A tool for counting, in whichever shape the LLM takes it."""
    row: object = tool.metadata.to_openai_tool(skip_length_check=True) if isinstance(tool, BaseTool) else tool
    if not isinstance(row, Mapping):
        return ToolSpec("tool", str(row), {})
    fields = cast("Mapping[str, Any]", row)
    inner: object = fields.get("function")
    told = cast("Mapping[str, Any]", inner) if isinstance(inner, Mapping) else fields
    schema: object = told.get("parameters") or told.get("input_schema")
    parameters = cast("Mapping[str, Any]", schema) if isinstance(schema, Mapping) else told
    return ToolSpec(str(told.get("name") or "tool"), str(told.get("description") or ""), parameters)
