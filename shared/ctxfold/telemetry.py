"""Records OpenTelemetry spans of requests and compactions; does nothing without `opentelemetry-api`.

Attributes follow the semantic conventions for generative AI. No text of a message is recorded.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

from ctxfold.messages import Usage
from ctxfold.protocols import AsyncChunkStream, Chunk, ChunkStream, Reply, Request

if TYPE_CHECKING:
    from opentelemetry.trace import Span

__all__ = ["Noted", "record_reply", "request_span", "span", "traced", "traced_async"]

Noted: TypeAlias = "Span | None"


@cache
def _api() -> Any:
    """Returns the package, None when it is not installed: pip install "ctxfold[otel]"."""
    try:
        from opentelemetry import trace
    except ImportError:
        return None
    return trace


@contextmanager
def span(name: str, attributes: Mapping[str, Any], *, calls_model: bool = False) -> Generator[Noted, None, None]:
    """Opens a span for the block; yields None without the package. An error that leaves the block is recorded by its class.

    `calls_model` is True for the block that makes a model call: its kind is CLIENT, that of every other block INTERNAL.
    """
    api = _api()
    if api is None:
        yield None
        return
    kind = api.SpanKind.CLIENT if calls_model else api.SpanKind.INTERNAL
    tracer = api.get_tracer("ctxfold")
    with tracer.start_as_current_span(
        name, kind=kind, attributes=attributes, record_exception=False, set_status_on_exception=False
    ) as open_span:
        try:
            yield open_span
        except Exception as error:
            _record_failure(open_span, error)
            raise


def _record_failure(open_span: Span, error: BaseException) -> None:
    """Records the kind or class of the error only: its message may quote the conversation."""
    api = _api()
    open_span.set_attribute("error.type", getattr(error, "kind", None) or type(error).__name__)
    open_span.set_status(api.Status(api.StatusCode.ERROR))


def request_span(request: Request, model: str, operation: str) -> AbstractContextManager[Noted]:
    """Opens a span for a request whose reply is awaited as a whole."""
    name, attributes = _described(request, model, operation)
    return span(name, attributes, calls_model=True)


def _described(request: Request, model: str, operation: str) -> tuple[str, dict[str, Any]]:
    """Returns the name and the attributes of a request's span; the request may name another model than its backend's."""
    asked = request.model or model
    attributes = {
        "gen_ai.operation.name": operation,
        "gen_ai.request.model": asked,
        "gen_ai.request.max_tokens": request.max_tokens,
        "gen_ai.request.temperature": request.temperature,
        "gen_ai.request.stop_sequences": list(request.stop) or None,
    }
    return f"{operation} {asked}", {key: value for key, value in attributes.items() if value is not None}


def record_reply(noted: Noted, reply: Reply) -> None:
    """Records the attributes of a reply."""
    if noted is None:
        return
    if reply.message.model is not None:
        noted.set_attribute("gen_ai.response.model", reply.message.model)
    if reply.finish_reason is not None:
        noted.set_attribute("gen_ai.response.finish_reasons", [reply.finish_reason])
    if reply.usage is not None:
        _record_usage(noted, reply.usage)


def _record_usage(noted: Span, usage: Usage) -> None:
    noted.set_attribute("gen_ai.usage.input_tokens", usage.input_tokens)
    noted.set_attribute("gen_ai.usage.output_tokens", usage.output_tokens)
    noted.set_attribute("gen_ai.usage.cache_read.input_tokens", usage.cache_read_tokens)


def traced(open_stream: Callable[[Request], ChunkStream], request: Request, model: str) -> ChunkStream:
    """Opens the stream with a span from its request to its end; the bare stream without the package."""
    begun = _begun(request, model)
    if begun is None:
        return open_stream(request)
    try:
        return _Traced(open_stream(request), begun)
    except BaseException as error:
        _record_failure(begun, error)
        begun.end()
        raise


async def traced_async(
    open_stream: Callable[[Request], Awaitable[AsyncChunkStream]], request: Request, model: str
) -> AsyncChunkStream:
    begun = _begun(request, model)
    if begun is None:
        return await open_stream(request)
    try:
        return _TracedAsync(await open_stream(request), begun)
    except BaseException as error:
        _record_failure(begun, error)
        begun.end()
        raise


def _begun(request: Request, model: str) -> Span | None:
    api = _api()
    if api is None:
        return None
    name, attributes = _described(request, model, "chat")
    begun: Span = api.get_tracer("ctxfold").start_span(name, kind=api.SpanKind.CLIENT, attributes=attributes)
    return begun


def _record_chunk(noted: Span, chunk: Chunk) -> None:
    if chunk.model is not None:
        noted.set_attribute("gen_ai.response.model", chunk.model)
    if chunk.finish_reason is not None:
        noted.set_attribute("gen_ai.response.finish_reasons", [chunk.finish_reason])
    if chunk.usage is not None:
        _record_usage(noted, chunk.usage)


class _Traced:
    def __init__(self, stream: ChunkStream, noted: Span) -> None:
        self._stream, self._noted = stream, noted

    def __iter__(self) -> Iterator[Chunk]:
        try:
            for chunk in self._stream:
                _record_chunk(self._noted, chunk)
                yield chunk
        except Exception as error:
            _record_failure(self._noted, error)
            raise
        finally:
            if self._noted.is_recording():
                self._noted.end()

    def close(self) -> None:
        self._stream.close()
        if self._noted.is_recording():  # closed before it was read
            self._noted.end()


class _TracedAsync:
    def __init__(self, stream: AsyncChunkStream, noted: Span) -> None:
        self._stream, self._noted = stream, noted

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        try:
            async for chunk in self._stream:
                _record_chunk(self._noted, chunk)
                yield chunk
        except Exception as error:
            _record_failure(self._noted, error)
            raise
        finally:
            if self._noted.is_recording():
                self._noted.end()

    async def aclose(self) -> None:
        await self._stream.aclose()
        if self._noted.is_recording():
            self._noted.end()
