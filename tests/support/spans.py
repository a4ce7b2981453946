"""Collects the OpenTelemetry spans of a process, whose tracer provider can be set only once."""

from __future__ import annotations

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

__all__ = ["collected_spans"]

_EXPORTER = InMemorySpanExporter()


def collected_spans() -> InMemorySpanExporter:
    """Returns the exporter that gets all spans from here on, without those before."""
    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(_EXPORTER))
        trace.set_tracer_provider(provider)
    _EXPORTER.clear()
    return _EXPORTER
