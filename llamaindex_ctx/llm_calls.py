"""Asks an LLM with the arguments of a caller's call, and keeps its responses for that caller as they came."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from llama_index.core.base.llms.types import ChatResponse, ToolCallBlock
from llama_index.core.program.function_program import get_function_tool
from llama_index.core.tools import FunctionTool
from llama_index.core.tools.types import BaseTool

from ctxfold.adapters.calls import Invoke, ModelStream
from ctxfold.compaction.live_prefix import answers_freely
from ctxfold.effects import Flow
from ctxfold.engine.request import Options, check_call, limit_among
from ctxfold.messages import Message, ToolSpec
from ctxfold.protocols import BackendCapabilities, Chunk, Reply, Request
from llamaindex_ctx.backend import CumulativeChunks, LlamaIndexBackend, window_for
from llamaindex_ctx.messages import distinct_blocks, with_distinct_call_ids
from llamaindex_ctx.metadata import ID_KEY, mark
from llamaindex_ctx.replies import field_of, whole_reply
from llamaindex_ctx.summarizer import LlmSummarizer

_CALL = "ctxfold_call"  # among the options of a request
# among the arguments of `chat`
ONE_CALL = "ctxfold_one_call"
PARSED = "ctxfold_parsed"
REPLIES = "ctxfold_replies"
WINDOW = "context_window"


@dataclass(slots=True)
class LlmCall:
    """The arguments of one call, and the LLM's responses that have not reached the caller yet."""

    reply_id: str
    arguments: Mapping[str, Any]
    # of a whole reply only the first tool call is kept, as the LLM's own `chat_with_tools` does it
    one_call: bool = False
    context_window: int | None = None  # of this call alone
    parsed: bool = False  # a program reads the calls of the reply: no result of them will come
    replies: list[Message] = field(default_factory=list[Message])  # what the engine has stored, for a caller of ours
    waiting: deque[ChatResponse] = field(default_factory=deque[ChatResponse])

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> LlmCall:
        check_call(arguments)
        sent = {name: value for name, value in arguments.items() if name not in (ONE_CALL, WINDOW, PARSED, REPLIES)}
        one_call, parsed = bool(arguments.get(ONE_CALL)), bool(arguments.get(PARSED))
        return cls(uuid.uuid4().hex, sent, one_call, arguments.get(WINDOW), parsed, arguments.get(REPLIES, []))

    def options(self, passages: str, scratch: str = "") -> Options:
        """Returns the options for the engine: the arguments that take room in the request, and text for this request alone."""
        return Options(
            max_tokens=limit_among(self.arguments),
            tools=tuple(_counted(tool) for tool in self.arguments.get("tools") or ()),
            scratch=scratch or None,
            passages=passages or None,
            context_window=self.context_window,
            extra={_CALL: self},
        )

    def begin(self) -> None:
        """Discards the state of a failed attempt."""
        self.waiting.clear()

    def put(self, response: ChatResponse) -> None:
        if len(blocks := distinct_blocks(response.message)) < len(response.message.blocks):
            response.message = response.message.model_copy(update={"blocks": blocks})
        response.message = with_distinct_call_ids(response.message, self.reply_id)
        mark(response.message, **{ID_KEY: self.reply_id})
        self.waiting.append(response)

    def take(self) -> Iterator[ChatResponse]:
        while self.waiting:
            yield self.waiting.popleft()


class CallersBackend(LlamaIndexBackend):
    """Sends a window with the arguments of the call that asks for it; responses are kept as they came."""

    def answer(self, request: Request) -> Flow[Reply]:
        call = _call(request)
        with self.translated():
            messages = window_for(self.llm, request)
            response: ChatResponse = yield from Invoke(self.llm.chat, self.llm.achat, messages, **call.arguments)
            if call.one_call:
                llm: Any = self.llm
                response = llm._validate_chat_with_tools_response(response, (), allow_parallel_tool_calls=False)
                _forget_other_calls(response)
            call.put(response)
            return whole_reply(response, self.model)

    def _streamed(self, request: Request, usage: Mapping[str, Any]) -> Flow[ModelStream[ChatResponse]]:
        call, llm = _call(request), self.llm
        options = {**usage, **call.arguments}
        with self.translated():
            source = yield from Invoke(llm.stream_chat, llm.astream_chat, window_for(llm, request), **options)
        return (yield from self.read_stream(source, _CallChunks(self.model, call)))


class _CallChunks(CumulativeChunks):
    """Keeps each response for the caller before it is read."""

    def __init__(self, model: str, call: LlmCall) -> None:
        super().__init__(model)
        self._call = call

    def read(self, response: ChatResponse, /) -> Iterator[Chunk]:
        self._call.put(response)
        yield from super().read(response)


def _repeats(request: Request) -> bool:
    """Tells whether the call that made this request left the LLM free to answer in text."""
    arguments = _arguments(request)
    free = arguments.get("tool_choice") in (None, "auto", "none") and not arguments.get("tool_required")
    return free and answers_freely(arguments.keys() - {"tool_choice", "tool_required"})


def _arguments(request: Request) -> Mapping[str, Any]:
    return cast("LlmCall", request.extra[_CALL]).arguments


class CallersSummarizer(LlmSummarizer):
    """Summaries by the LLM that answers, on the live prefix where it can be: with the arguments of the newest call."""

    capabilities = BackendCapabilities(continues=_repeats)

    def answer(self, request: Request) -> Flow[Reply]:
        """Returns the summary. Whatever the LLM raises leaves here as BackendError."""
        if not request.live_prefix:
            return (yield from super().answer(request))
        with self.marked():
            messages, arguments = window_for(self.llm, request), _arguments(request)
            return whole_reply((yield from Invoke(self.llm.chat, self.llm.achat, messages, **arguments)), self.model)


def _call(request: Request) -> LlmCall:
    call = cast("LlmCall", request.extra[_CALL])
    call.begin()
    return call


def _forget_other_calls(response: ChatResponse) -> None:
    """Removes calls from `additional_kwargs` that the blocks of the message no longer have."""
    message = response.message
    call_ids = {block.tool_call_id for block in message.blocks if isinstance(block, ToolCallBlock)}
    tool_calls: object = message.additional_kwargs.get("tool_calls")
    if call_ids and isinstance(tool_calls, list):
        calls = cast("list[object]", tool_calls)
        message.additional_kwargs["tool_calls"] = [c for c in calls if field_of(c, "id") in call_ids]


def is_output_class(tool: BaseTool) -> bool:
    """Returns True for the tool that stands for the class of a structured output: what is called is LlamaIndex's own function."""
    return isinstance(tool, FunctionTool) and tool.fn.__module__ == get_function_tool.__module__


def _counted(tool: object) -> ToolSpec:
    """Returns a tool for counting, from any shape that the LLM takes."""
    row: object = tool.metadata.to_openai_tool(skip_length_check=True) if isinstance(tool, BaseTool) else tool
    if not isinstance(row, Mapping):
        return ToolSpec("tool", str(row), {})
    fields = cast("Mapping[str, Any]", row)
    inner: object = fields.get("function")
    function = cast("Mapping[str, Any]", inner) if isinstance(inner, Mapping) else fields
    schema: object = function.get("parameters") or function.get("input_schema")
    parameters = cast("Mapping[str, Any]", schema) if isinstance(schema, Mapping) else function
    return ToolSpec(str(function.get("name") or "tool"), str(function.get("description") or ""), parameters)
