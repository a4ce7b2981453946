"""Spans around requests and compactions, kept by an in-memory exporter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from ctxfold.errors import BackendError
from ctxfold.messages import Usage, assistant
from ctxfold.ports import Reply
from tests.core.driven import Driven, scripted, turns

_exporter = InMemorySpanExporter()


@pytest.fixture
def spans() -> Iterator[Callable[[], list[Any]]]:
    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(_exporter))
        trace.set_tracer_provider(provider)  # can be set once per process
    _exporter.clear()
    yield lambda: list(_exporter.get_finished_spans())
    _exporter.clear()


USAGE = Usage(12, 3, 4)


def test_a_request_has_a_span_with_its_usage(make: Callable[..., Driven], spans: Any) -> None:
    reply = Reply(assistant("hi", id="a1"), USAGE, "stop")
    make(scripted(reply)).send("secret words", max_tokens=50, temperature=0.5)
    (one,) = spans()
    assert one.name == "chat scripted"
    assert dict(one.attributes) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "scripted",
        "gen_ai.request.max_tokens": 50,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 12,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.usage.cache_read.input_tokens": 4,
    }
    assert "secret" not in one.to_json()


@pytest.mark.parametrize("stop_after", [None, 1])
def test_a_streams_span_ends_with_the_stream(make: Callable[..., Driven], spans: Any, stop_after: int | None) -> None:
    reply = Reply(assistant("good morning to you all", id="a1"), USAGE, "stop")
    make(scripted(reply)).send_stream("hello", stop_after=stop_after)
    (one,) = spans()
    assert one.end_time is not None
    assert one.attributes.get("gen_ai.usage.input_tokens") == (12 if stop_after is None else None)


def test_an_error_is_told_by_its_kind_alone(make: Callable[..., Driven], spans: Any) -> None:
    errors = [BackendError("secret words", kind="server") for _ in range(2)]
    ctx = make(scripted(*errors))
    for ask in (ctx.send, ctx.send_stream):
        with pytest.raises(BackendError):
            ask("hello")
    assert [s.attributes["error.type"] for s in spans()] == ["server", "server"]
    assert not any("secret" in s.to_json() for s in spans())


def test_a_compaction_has_a_span_and_its_summary_call_is_inside(make: Callable[..., Driven], spans: Any) -> None:
    ctx = make(scripted("So far: fillers."), summary_timeout_s=None)
    ctx.add(turns(14))
    outcome = ctx.compact()
    compact = next(s for s in spans() if s.name == "compact")
    inner = next(s for s in spans() if s.name == "summarize scripted")
    assert inner.parent.span_id == compact.context.span_id
    assert compact.attributes["ctxfold.tokens_after"] < compact.attributes["ctxfold.tokens_before"]
    assert compact.attributes["ctxfold.rung"] == outcome.event.rung
