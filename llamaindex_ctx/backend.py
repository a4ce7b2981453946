"""Makes any LlamaIndex LLM a backend of the engine, also one that asks with the arguments of a caller's call."""

from __future__ import annotations

import json
import uuid
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from llama_index.core.base.llms.types import ChatMessage, ChatResponse, TextBlock, ThinkingBlock, ToolCallBlock
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import LLM
from llama_index.core.tools.types import BaseTool, ToolMetadata, ToolOutput

from ctxfold.adapters.calls import BorrowedModel, Invoke, ModelStream
from ctxfold.compaction.live_prefix import answers_freely
from ctxfold.connect import reasoning_rules
from ctxfold.effects import Flow
from ctxfold.engine.request import Options, check_call, limit_among
from ctxfold.errors import BackendError, ConfigError
from ctxfold.history.cuts import later_system_as_users, results_in_order
from ctxfold.messages import Message, Opaque, ReasoningPart, ToolSpec, Usage
from ctxfold.protocols import (
    BackendCapabilities,
    Chunk,
    ContextBackend,
    Reply,
    Request,
    ToolCallDelta,
    Wire,
    capabilities_of,
)
from llamaindex_ctx.messages import distinct_blocks, to_chat_messages, with_distinct_call_ids
from llamaindex_ctx.metadata import ID_KEY, mark, without_marks
from llamaindex_ctx.replies import field_of, noted, usage_of, whole_reply
from llamaindex_ctx.summarizer import LlmSummarizer, check_llm, told_window
from llamaindex_ctx.tools import counted

# packages that send thinking blocks back, with the service and the wire that each of them calls
_NATIVE: Mapping[str, tuple[str, Wire]] = {
    "llama_index.llms.anthropic": ("anthropic", "anthropic_messages"),
    "llama_index.llms.bedrock_converse": ("bedrock", "bedrock_converse"),
}


class CumulativeChunks:
    """Turns responses that each hold everything so far into the pieces between them."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._text = ""
        self._thought = ""
        self._signature: str | None = None
        self._last: ChatResponse | None = None
        self._usage: Usage | None = (
            None  # the newest report: some services send one with every chunk, others before the last
        )

    def read(self, response: ChatResponse, /) -> Iterator[Chunk]:
        """Returns the reasoning and text that this response adds; tool calls, usage and the rest wait for the end."""
        self._last = response
        self._usage = _newer(usage_of(response), self._usage)
        thought = _thinking(response)
        new: object = noted(response).get("thinking_delta")
        thought = thought if thought.startswith(self._thought) else self._thought
        piece = new if isinstance(new, str) and new else thought[len(self._thought) :]
        if piece:
            self._thought += piece
            yield Chunk(reasoning=piece, raw=response.raw)
        text = response.delta if response.delta is not None else _text(response)[len(self._text) :]
        if text:
            yield from self._seal(response)
            self._text += text
            yield Chunk(content=text, raw=response.raw)

    def _seal(self, response: ChatResponse) -> Iterator[Chunk]:
        """Seals the thinking with its signature before any text; after text it would belong to another block of thinking."""
        if self._signature is not None or self._text:
            return
        self._signature = _signature(response)
        if self._signature is not None:
            yield Chunk(signature=self._signature, raw=response.raw)

    def end(self) -> Iterator[Chunk]:
        """Returns what only the whole response tells: the rest of the text, tool calls, usage, finish reason and the message."""
        if self._last is None:
            return
        yield from self._seal(self._last)
        reply = whole_reply(self._last.model_copy(update={"message": self._thoughtful(self._last)}), self._model)
        whole = reply.message
        details = [d for p in whole.parts if isinstance(p, ReasoningPart) and p.details for d in json.loads(p.details)]
        yield Chunk(
            content=whole.text[len(self._text) :] if whole.text.startswith(self._text) else "",
            reasoning_details=tuple(details),
            tool_calls=tuple(
                ToolCallDelta(n, c.id, c.name, c.arguments, c.extra) for n, c in enumerate(whole.tool_calls)
            ),
            usage=self._usage,
            finish_reason=reply.finish_reason,
            model=whole.model,
            raw=self._last.raw,
            whole=replace(whole, usage=self._usage),
        )

    def _thoughtful(self, last: ChatResponse) -> ChatMessage:
        """Returns the last message, with the thinking and the signature of earlier chunks where it lacks them."""
        message, signature = last.message, _signature(last)
        if len(_thinking(last)) >= len(self._thought) and (self._signature is None or signature is not None):
            return message
        info: dict[str, object] = {}
        for block in message.blocks:
            if isinstance(block, ThinkingBlock):
                info |= block.additional_information
        if self._signature is not None:
            info["signature"] = self._signature
        thinking = ThinkingBlock(content=self._thought, additional_information=info)
        others = [b for b in message.blocks if not isinstance(b, ThinkingBlock)]
        return message.model_copy(update={"blocks": [thinking, *others]})


def _newer(usage: Usage | None, before: Usage | None) -> Usage | None:
    """Returns the newer report, with the numbers of the one before where it has none."""
    if usage is None or before is None:
        return usage or before
    return Usage(*(getattr(usage, f.name) or getattr(before, f.name) for f in fields(Usage)))


def _text(response: ChatResponse) -> str:
    return "".join(b.text for b in response.message.blocks if isinstance(b, TextBlock))


def _signature(response: ChatResponse) -> str | None:
    """Returns the first signature of its thinking."""
    blocks = (b for b in response.message.blocks if isinstance(b, ThinkingBlock))
    return next((s for b in blocks if isinstance(s := field_of(b.additional_information, "signature"), str)), None)


def _thinking(response: ChatResponse) -> str:
    return "".join(b.content or "" for b in response.message.blocks if isinstance(b, ThinkingBlock))


class LlamaIndexBackend(BorrowedModel):
    """A backend over a LlamaIndex LLM: text, tools where the LLM supports function calls, and reasoning where it returns it.

    `max_tokens` and `temperature` are passed on where the LLM has a field of that name, `stop` and `extra` as keyword
    arguments. The window is `context_window`, or the value in the LLM's metadata where it was set. `close` does not close the
    LLM.
    """

    def __init__(self, llm: LLM, *, context_window: int | None = None) -> None:
        check_llm("the LLM of a LlamaIndexBackend", llm)
        if getattr(llm, "session_id", None) is not None:
            raise ConfigError(
                "this LLM keeps a session of its own: give LlamaIndexBackend one without session_id, or use its backend"
            )
        self.llm = llm
        self._window = context_window
        self._usage_refused = False

    @property
    def model(self) -> str:
        return self.llm.metadata.model_name

    @property
    def context_window(self) -> int | None:
        return self._window or told_window(self.llm)

    @property
    def capabilities(self) -> BackendCapabilities:
        """Returns those of the service behind a CtxLLM. Of Anthropic's and Bedrock's it is known what they do with reasoning."""
        return self._capabilities_for(self.model)

    def _capabilities_for(self, model: str) -> BackendCapabilities:
        if not _is_ours(self.llm):
            return replace(_rules_of(self.llm), sparing=_without_limit)
        llm: Any = self.llm
        # a message of LlamaIndex has no place for the service's own summary
        return replace(capabilities_of(llm.backend, model), compacts_from=None, of_model=self._capabilities_for)

    def answer(self, request: Request) -> Flow[Reply]:
        messages, options = self._call_arguments(request)
        with self.translated():
            if request.tools:
                llm = self._calling()
                called = Invoke(llm.chat_with_tools, llm.achat_with_tools, chat_history=messages, **options)
            else:
                called = Invoke(self.llm.chat, self.llm.achat, messages, **options)
            return whole_reply((yield from called), self.model)

    def stream(self, request: Request) -> Flow[Any]:
        # LlamaIndex's OpenAI client asks for the usage of a stream by this option only, which its user may have set
        asks = any(cls.__module__ == "llama_index.llms.openai.base" for cls in type(self.llm).__mro__)
        chosen = "stream_options" in (getattr(self.llm, "additional_kwargs", None) or {})
        if asks and not chosen and not self._usage_refused:
            try:
                return (yield from self._streamed(request, {"stream_options": {"include_usage": True}}))
            except BackendError as error:
                if "stream_options" not in str(error):
                    raise
            self._usage_refused = True  # the service does not know the option
        return (yield from self._streamed(request, {}))

    def _streamed(self, request: Request, usage: Mapping[str, Any]) -> Flow[ModelStream[ChatResponse]]:
        messages, options = self._call_arguments(request)
        options = {**usage, **options}
        with self.translated():
            if request.tools:
                llm = self._calling()
                called = Invoke(
                    llm.stream_chat_with_tools, llm.astream_chat_with_tools, chat_history=messages, **options
                )
            else:
                called = Invoke(self.llm.stream_chat, self.llm.astream_chat, messages, **options)
            source = yield from called
        return (yield from self.read_stream(source, CumulativeChunks(self.model)))

    def _call_arguments(self, request: Request) -> tuple[list[ChatMessage], dict[str, Any]]:
        if request.tools:
            self._calling()
        return window_for(self.llm, request), self._options(request)

    def _options(self, request: Request) -> dict[str, Any]:
        fields = type(self.llm).model_fields
        limits = {"max_tokens": request.max_tokens, "temperature": request.temperature}
        options: dict[str, Any] = {n: v for n, v in limits.items() if v is not None and n in fields}
        if _is_ours(self.llm) and request.thinking is not None:
            options["thinking"] = request.thinking  # only an LLM of ours knows the word
        if request.model is not None and request.model != self.model:
            options["model"] = request.model
        if request.stop:
            options["stop"] = list(request.stop)
        if request.tools:
            options |= {"tools": [_Offered(t) for t in request.tools], "allow_parallel_tool_calls": True}
            if request.tool_choice == "required":
                options["tool_required"] = True
            elif request.tool_choice not in (None, "auto"):
                options["tool_choice"] = request.tool_choice
        return options | dict(request.extra)

    def _calling(self) -> FunctionCallingLLM:
        if isinstance(self.llm, FunctionCallingLLM) and self.llm.metadata.is_function_calling_model:
            return self.llm
        raise ConfigError(
            f"{type(self.llm).__name__} does not support function calls: leave tools out, or use another LLM"
        )


def window_for(llm: LLM, request: Request) -> list[ChatMessage]:
    """Returns the request's messages for the LLM, without reasoning that its service would refuse.

    They have none of ctxfold's marks, which some integrations would send; a CtxLLM gets the marks that it uses.
    """
    binds = _rules_of(llm).binds_reasoning
    accepted = _accepted(request, max(request.refused_before, request.unbound_before if binds else 0))
    if type(llm).__module__.startswith("llama_index.llms.mistralai"):  # it refuses a system message behind an answer
        accepted = later_system_as_users(accepted)
    values = to_chat_messages(results_in_order(accepted))
    if _is_ours(llm):
        return [without_marks(message) for message in values]
    for message in values:
        message.additional_kwargs = dict(message.additional_kwargs)  # the marks stay behind
    return values


def _accepted(request: Request, reasoning_from: int) -> Sequence[Message]:
    """Returns the messages, the first ones without reasoning; one that holds nothing else is left out."""
    if not reasoning_from:
        return request.messages
    bare = [m.without_reasoning() if m.role == "assistant" else m for m in request.messages[:reasoning_from]]
    held = [m for m in bare if any(not isinstance(part, Opaque) for part in m.parts)]
    return [*held, *request.messages[reasoning_from:]]


def _rules_of(llm: LLM) -> BackendCapabilities:
    """Returns what the service behind an LLM does with reasoning, and all that a CtxLLM says of its own."""
    backend: ContextBackend | None = getattr(llm, "backend", None)
    name = llm.metadata.model_name
    if backend is not None:
        return capabilities_of(backend, name)
    return _class_rules(type(llm), name, bool(getattr(llm, "thinking_dict", None) or getattr(llm, "thinking", None)))


@lru_cache(maxsize=64)
def _class_rules(llm_class: type[LLM], model: str, thinks: bool) -> BackendCapabilities:
    modules = [cls.__module__ for cls in llm_class.__mro__]
    service = next((of for package, of in _NATIVE.items() if any(m.startswith(package) for m in modules)), None)
    if service is None:
        return BackendCapabilities()
    return reasoning_rules(service[0], model, thinks=thinks, wire=service[1])


def _without_limit(request: Request) -> Request:
    """Returns a summariser's request without `max_tokens`: a model that thinks counts its thinking as output, up to the limit."""
    return replace(request, max_tokens=None)


def _is_ours(llm: LLM) -> bool:
    return getattr(llm, "backend", None) is not None


class _Schema(ToolMetadata):
    """A tool described by a JSON schema rather than by a pydantic class."""

    def __init__(self, tool: ToolSpec) -> None:
        super().__init__(description=tool.description, name=tool.name, fn_schema=None)
        self._parameters = tool.parameters

    def get_parameters_dict(self) -> dict[str, Any]:
        return {"type": "object", "properties": {}, **self._parameters}


class _Offered(BaseTool):
    """A tool that the model may call and somebody else runs."""

    def __init__(self, tool: ToolSpec) -> None:
        self._metadata = _Schema(tool)

    @property
    def metadata(self) -> ToolMetadata:
        return self._metadata

    def __call__(self, input: Any) -> ToolOutput:
        raise ConfigError(
            f"tool {self._metadata.name!r} is only declared to the model here: run it yourself and send its result"
        )


if TYPE_CHECKING:
    from llama_index.core.llms.mock import MockLLM

    _: ContextBackend = LlamaIndexBackend(MockLLM())


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
            tools=tuple(counted(tool) for tool in self.arguments.get("tools") or ()),
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
