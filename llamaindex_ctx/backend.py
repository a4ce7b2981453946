"""Any LlamaIndex LLM as the engine's backend: `AgentContext(LlamaIndexBackend(llm), ...)`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from llama_index.core.base.llms.types import ChatMessage, ChatResponse
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import LLM
from llama_index.core.tools.types import BaseTool, ToolMetadata, ToolOutput

from ctxfold.connect import foreign_failure
from ctxfold.errors import BackendError, ConfigError, MessageError
from ctxfold.messages import Message, ToolSpec
from ctxfold.ports import AsyncChunkStream, Chunk, ChunkStream, ContextBackend, Reply, Request
from llamaindex_ctx.foreign import CumulativeChunks, whole_reply
from llamaindex_ctx.revert import to_chat_messages
from llamaindex_ctx.summarizer import check_llm, told_window

__all__ = ["AsyncForeignStream", "ForeignStream", "LlamaIndexBackend", "bare_messages"]


class LlamaIndexBackend:
    """Asks a LlamaIndex LLM: text, tools where it calls functions, and reasoning where it gives it.

    `max_tokens` and `temperature` are passed on where the LLM has a field of that name, `stop` and `extra` as keyword arguments.
    The window is `context_window`, or that of the LLM's metadata where somebody told it. The LLM is not closed here.
    """

    scratch_role = "user"  # a system message at the end is refused by several services

    def __init__(self, llm: LLM, *, context_window: int | None = None) -> None:
        check_llm("the LLM of a LlamaIndexBackend", llm)
        if getattr(llm, "session", None) is not None:
            raise ConfigError(
                "this LLM keeps a session of its own: give LlamaIndexBackend one without session, or use its backend"
            )
        self.llm = llm
        self._window = context_window

    @property
    def model(self) -> str:
        return self.llm.metadata.model_name

    @property
    def context_window(self) -> int | None:
        return self._window or told_window(self.llm)

    def send(self, request: Request) -> Reply:
        messages, options = self._asked(request)
        with self.translated():
            if request.tools:
                return whole_reply(self._calling().chat_with_tools(chat_history=messages, **options), self.model)
            return whole_reply(self.llm.chat(messages, **options), self.model)

    async def asend(self, request: Request) -> Reply:
        messages, options = self._asked(request)
        with self.translated():
            if request.tools:
                answer = await self._calling().achat_with_tools(chat_history=messages, **options)
            else:
                answer = await self.llm.achat(messages, **options)
            return whole_reply(answer, self.model)

    def open_stream(self, request: Request) -> ChunkStream:
        messages, options = self._asked(request)
        with self.translated():
            if request.tools:
                source = self._calling().stream_chat_with_tools(chat_history=messages, **options)
            else:
                source = self.llm.stream_chat(messages, **options)
            return ForeignStream(source, next(source, None), self)

    async def aopen_stream(self, request: Request) -> AsyncChunkStream:
        messages, options = self._asked(request)
        with self.translated():
            if request.tools:
                source = await self._calling().astream_chat_with_tools(chat_history=messages, **options)
            else:
                source = await self.llm.astream_chat(messages, **options)
            return AsyncForeignStream(source, await anext(source, None), self)

    def close(self) -> None:
        """The LLM belongs to whoever made it."""

    async def aclose(self) -> None:
        """The LLM belongs to whoever made it."""

    def _asked(self, request: Request) -> tuple[list[ChatMessage], dict[str, Any]]:
        if request.tools:
            self._calling()
        return bare_messages(request.messages), self._options(request)

    def _options(self, request: Request) -> dict[str, Any]:
        fields = type(self.llm).model_fields
        told = {"max_tokens": request.max_tokens, "temperature": request.temperature}
        options: dict[str, Any] = {n: v for n, v in told.items() if v is not None and n in fields}
        if getattr(self.llm, "backend", None) is not None and request.thinking is not None:
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
        raise ConfigError(f"{type(self.llm).__name__} calls no functions: leave tools out, or use another LLM")

    @contextmanager
    def translated(self) -> Generator[None]:
        """Whatever the LLM raises leaves the block as BackendError; what cannot be sent at all, as our own."""
        try:
            yield
        except (ConfigError, MessageError):
            raise
        except Exception as error:
            raise foreign_failure(error, self.model) from error


def bare_messages(messages: Sequence[Message]) -> list[ChatMessage]:
    """The messages without our own marks, which some integrations would send along."""
    found = to_chat_messages(messages)
    for message in found:
        message.additional_kwargs = dict(message.additional_kwargs)  # the marks stay behind
    return found


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
        raise ConfigError(f"tool {self._metadata.name!r} is only offered here: run it yourself and send its result")


class ForeignStream:
    """The differences between cumulative responses; the generator's failures leave as BackendError."""

    def __init__(self, source: Iterator[ChatResponse], first: ChatResponse | None, owner: LlamaIndexBackend) -> None:
        if first is None:
            raise _nothing(owner.model)
        self._source, self._first, self._owner = source, first, owner

    def __iter__(self) -> Iterator[Chunk]:
        chunks = CumulativeChunks(self._owner.model)
        response: ChatResponse | None = self._first
        while response is not None:
            yield from chunks.read(response)
            with self._owner.translated():
                response = next(self._source, None)
        yield from chunks.end()

    def close(self) -> None:
        close = getattr(self._source, "close", None)
        if close is not None:
            close()


class AsyncForeignStream:
    def __init__(
        self, source: AsyncIterator[ChatResponse], first: ChatResponse | None, owner: LlamaIndexBackend
    ) -> None:
        if first is None:
            raise _nothing(owner.model)
        self._source, self._first, self._owner = source, first, owner

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        chunks = CumulativeChunks(self._owner.model)
        response: ChatResponse | None = self._first
        while response is not None:
            for chunk in chunks.read(response):
                yield chunk
            with self._owner.translated():
                response = await anext(self._source, None)
        for chunk in chunks.end():
            yield chunk

    async def aclose(self) -> None:
        close = getattr(self._source, "aclose", None)
        if close is not None:
            await close()


def _nothing(model: str) -> BackendError:
    return BackendError(
        f"the stream of {model} ended before its first piece: try again", kind="empty_response", retryable=True
    )


if TYPE_CHECKING:
    from llama_index.core.llms.mock import MockLLM

    _: ContextBackend = LlamaIndexBackend(MockLLM())
