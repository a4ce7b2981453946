"""What happens to a session during a model call, told to the run that makes it: its callbacks, its stream, its trace."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict
from typing import Any

from langchain_core.callbacks import adispatch_custom_event, dispatch_custom_event
from langchain_core.runnables import RunnableConfig, ensure_config
from langchain_core.runnables.config import var_child_runnable_config

from ctxfold import events
from ctxfold.events import Event

__all__ = ["Report", "annotated", "listen", "reporting"]

# told as counts and reasons; events that carry messages are for subscribers in the same program
TOLD = ("HistoryCompacted", "CompactionHeld", "PromptTruncated", "RewriteRefused", "SectionInjected", "SectionSkipped")
_TOLD = tuple(getattr(events, name) for name in TOLD if hasattr(events, name))
_REPORT: ContextVar[Report | None] = ContextVar("ctxfold_report", default=None)


class Report:
    """What was heard and not yet told, for one model call."""

    def __init__(self, write: Callable[[Any], None] | None) -> None:
        self._write = write
        self._heard: list[Event] = []

    def hear(self, event: Event) -> None:
        self._heard.append(event)

    def tell(self) -> None:
        for name, data in self._taken():
            dispatch_custom_event(name, data)

    async def atell(self) -> None:
        for name, data in self._taken():
            await adispatch_custom_event(name, data)

    def _taken(self) -> list[tuple[str, dict[str, Any]]]:
        heard, self._heard = self._heard, []
        told = [(type(event).__name__, asdict(event)) for event in heard]
        for name, data in told:
            if self._write is not None:
                self._write({"ctxfold": {"event": name, **data}})
        # outside of any run, as in a test of the middleware alone, there is nobody to be told
        inside = getattr(ensure_config().get("callbacks"), "parent_run_id", None) is not None
        return [(f"ctxfold.{name}", data) for name, data in told if inside]


def listen(event: Event) -> None:
    """The engine's subscriber: events of the model call under way go to its report, no others."""
    report = _REPORT.get()
    if report is not None and isinstance(event, _TOLD):
        report.hear(event)


@contextmanager
def reporting(write: Callable[[Any], None] | None) -> Generator[Report, None, None]:
    report = Report(write)
    token = _REPORT.set(report)
    try:
        yield report
    finally:
        _REPORT.reset(token)


@contextmanager
def annotated(**metadata: Any) -> Generator[None, None, None]:
    """Runs within the block carry this metadata, in traces and in LangGraph's message stream."""
    around = ensure_config()
    config: RunnableConfig = {**around, "metadata": {**around.get("metadata", {}), **metadata}}
    token = var_child_runnable_config.set(config)
    try:
        yield
    finally:
        var_child_runnable_config.reset(token)
