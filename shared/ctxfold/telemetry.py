"""Records OpenTelemetry spans of requests and compactions, and metrics of sessions; does nothing without `opentelemetry-api`.

Attributes follow the semantic conventions for generative AI. No text of a message is recorded, and no metric names a session.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

from ctxfold.events import Appended, CompactionHeld, Event, HistoryCompacted, TurnEnded
from ctxfold.messages import Usage
from ctxfold.protocols import AsyncChunkStream, Chunk, ChunkStream, ContextBackend, Reply, Request, capabilities_of

if TYPE_CHECKING:
    from opentelemetry.trace import Span

OptionalSpan: TypeAlias = "Span | None"  # None without the package
# by the names of our rows, where the semantic conventions have another one
_PROVIDER_NAMES: Mapping[str, str] = {
    "amazon_bedrock": "aws.bedrock",
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "gemini": "gcp.gemini",
    "google_genai": "gcp.gemini",
    "google_vertexai": "gcp.vertex_ai",
    "mistral": "mistral_ai",
    "vertex": "gcp.vertex_ai",
    "xai": "x_ai",
}


@cache
def _api() -> Any:
    """Returns the package, None when it is not installed: pip install "ctxfold[otel]"."""
    try:
        from opentelemetry import trace
    except ImportError:
        return None
    return trace


@contextmanager
def span(name: str, attributes: Mapping[str, Any], *, calls_model: bool = False) -> Generator[OptionalSpan, None, None]:
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


def request_span(request: Request, backend: ContextBackend, operation: str) -> AbstractContextManager[OptionalSpan]:
    """Opens a span for a request whose reply is awaited as a whole."""
    name, attributes = _described(request, backend, operation)
    return span(name, attributes, calls_model=True)


def _described(request: Request, backend: ContextBackend, operation: str) -> tuple[str, dict[str, Any]]:
    """Returns the name and the attributes of a request's span; the request may name another model than its backend's."""
    model = request.model or backend.model
    provider = capabilities_of(backend).provider
    attributes = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": None if provider is None else _PROVIDER_NAMES.get(provider, provider),
        "gen_ai.request.model": model,
        "gen_ai.request.max_tokens": request.max_tokens,
        "gen_ai.request.temperature": request.temperature,
        "gen_ai.request.stop_sequences": list(request.stop) or None,
    }
    return f"{operation} {model}", {key: value for key, value in attributes.items() if value is not None}


def record_reply(open_span: OptionalSpan, reply: Reply) -> None:
    """Records the attributes of a reply."""
    if open_span is not None:
        _record_answer(open_span, reply.message.model, reply.finish_reason, reply.usage)


def _record_answer(open_span: Span, model: str | None, finish_reason: str | None, usage: Usage | None) -> None:
    if model is not None:
        open_span.set_attribute("gen_ai.response.model", model)
    if finish_reason is not None:
        open_span.set_attribute("gen_ai.response.finish_reasons", [finish_reason])
    if usage is not None:
        open_span.set_attribute("gen_ai.usage.input_tokens", usage.input_tokens)
        open_span.set_attribute("gen_ai.usage.output_tokens", usage.output_tokens)
        open_span.set_attribute("gen_ai.usage.cache_read.input_tokens", usage.cache_read_tokens)


def traced(open_stream: Callable[[Request], ChunkStream], request: Request, backend: ContextBackend) -> ChunkStream:
    """Opens the stream with a span from its request to its end; the bare stream without the package."""
    open_span = _start(request, backend)
    if open_span is None:
        return open_stream(request)
    try:
        return _Traced(open_stream(request), open_span)
    except BaseException as error:
        _record_failure(open_span, error)
        open_span.end()
        raise


async def traced_async(
    open_stream: Callable[[Request], Awaitable[AsyncChunkStream]], request: Request, backend: ContextBackend
) -> AsyncChunkStream:
    open_span = _start(request, backend)
    if open_span is None:
        return await open_stream(request)
    try:
        return _TracedAsync(await open_stream(request), open_span)
    except BaseException as error:
        _record_failure(open_span, error)
        open_span.end()
        raise


def _start(request: Request, backend: ContextBackend) -> Span | None:
    api = _api()
    if api is None:
        return None
    name, attributes = _described(request, backend, "chat")
    open_span: Span = api.get_tracer("ctxfold").start_span(name, kind=api.SpanKind.CLIENT, attributes=attributes)
    return open_span


@contextmanager
def _ending(open_span: Span) -> Generator[None, None, None]:
    """Ends the span with the block, and records an error that leaves it."""
    try:
        yield
    except Exception as error:
        _record_failure(open_span, error)
        raise
    finally:
        if open_span.is_recording():
            open_span.end()


class _Traced:
    def __init__(self, stream: ChunkStream, open_span: Span) -> None:
        self._stream, self._span = stream, open_span

    def __iter__(self) -> Iterator[Chunk]:
        with _ending(self._span):
            for chunk in self._stream:
                _record_answer(self._span, chunk.model, chunk.finish_reason, chunk.usage)
                yield chunk

    def close(self) -> None:
        self._stream.close()
        if self._span.is_recording():  # closed before it was read
            self._span.end()


class _TracedAsync:
    def __init__(self, stream: AsyncChunkStream, open_span: Span) -> None:
        self._stream, self._span = stream, open_span

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        with _ending(self._span):
            async for chunk in self._stream:
                _record_answer(self._span, chunk.model, chunk.finish_reason, chunk.usage)
                yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()
        if self._span.is_recording():
            self._span.end()


# metrics


class _Instruments:
    """The instruments of ctxfold, made once; they report to the meter provider that the program sets, also later."""

    def __init__(self, meter: Any) -> None:
        self.messages = meter.create_counter("ctxfold.messages", "{message}", "Messages stored")
        self.turns = meter.create_counter("ctxfold.turns", "{turn}", "Turns that ended")
        self.compactions = meter.create_counter("ctxfold.compactions", "{compaction}", "Compactions committed")
        self.held = meter.create_counter("ctxfold.compactions.held", "{compaction}", "Compactions that changed nothing")
        self.freed = meter.create_counter("ctxfold.compactions.freed", "{token}", "Tokens that compactions took away")
        self.summary_calls = meter.create_counter("ctxfold.summary_calls", "{call}", "Model calls for summaries")
        self.tokens = meter.create_counter("ctxfold.tokens", "{token}", "Tokens that model services reported")
        self.fill = meter.create_histogram("ctxfold.window.fill", "1", "Share of the token budget that a request takes")
        self.retries = meter.create_counter("ctxfold.store.retries", "{retry}", "Store calls tried again")
        self.leases = meter.create_counter("ctxfold.leases", "{lease}", "Leases asked for")
        self.opened = meter.create_counter("ctxfold.sessions.opened", "{session}", "Sessions that a call opened")


@cache
def _instruments() -> _Instruments | None:
    try:
        from opentelemetry import metrics
    except ImportError:
        return None
    return _Instruments(metrics.get_meter("ctxfold"))


def record_event(event: Event) -> None:
    """Counts what an event of a session tells."""
    instruments = _instruments()
    if instruments is None:
        return
    match event:
        case Appended():
            instruments.messages.add(len(event.messages))
            for message in event.messages:
                _count_tokens(instruments, message.usage, "chat", message.model)
        case TurnEnded():
            instruments.turns.add(1, {"ctxfold.turn.status": event.status})
        case HistoryCompacted():
            named = {"ctxfold.strategy": event.strategy, "ctxfold.fallback_level": event.fallback_level}
            instruments.compactions.add(1, named)
            instruments.freed.add(max(0, event.tokens_before - event.tokens_after))
            if event.summary_calls:
                instruments.summary_calls.add(event.summary_calls)
            _count_tokens(instruments, event.summary_usage, "summarize", None)
        case CompactionHeld():
            instruments.held.add(1)
        case _:
            pass


def _count_tokens(instruments: _Instruments, usage: Usage | None, operation: str, model: str | None) -> None:
    """Counts reported tokens; the cached ones are part of the input, reasoning is part of the output."""
    if usage is None:
        return
    named = {"gen_ai.operation.name": operation} | ({"gen_ai.response.model": model} if model else {})
    counts = {
        "input": usage.input_tokens,
        "output": usage.output_tokens,
        "cache_read": usage.cache_read_tokens,
        "cache_write": usage.cache_write_tokens,
        "reasoning": usage.reasoning_tokens,
    }
    for kind, count in counts.items():
        if count:
            instruments.tokens.add(count, {**named, "gen_ai.token.type": kind})


def record_window(used_tokens: int, budget_tokens: int) -> None:
    """Records how full the window of a request is."""
    instruments = _instruments()
    if instruments is not None:
        instruments.fill.record(used_tokens / budget_tokens)


def record_lease(*, taken: bool) -> None:
    """Counts a lease that was asked for: taken, or held by another worker."""
    instruments = _instruments()
    if instruments is not None:
        instruments.leases.add(1, {"ctxfold.lease.taken": taken})


def record_opened(*, cached: bool) -> None:
    """Counts a session that a call opened: still open in this process, or read from the store."""
    instruments = _instruments()
    if instruments is not None:
        instruments.opened.add(1, {"ctxfold.session.cached": cached})


def record_retry(backend: str) -> None:
    """Counts a store call that met a lock, a lost race or a dropped connection, and is tried again."""
    instruments = _instruments()
    if instruments is not None:
        instruments.retries.add(1, {"db.system.name": backend})
