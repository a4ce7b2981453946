"""Reports the events of a session during a model call to the run's callbacks, stream and trace."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict
from typing import Any

from langchain_core.callbacks import (
    BaseCallbackHandler,
    BaseCallbackManager,
    Callbacks,
    adispatch_custom_event,
    dispatch_custom_event,
)
from langchain_core.runnables import RunnableConfig, ensure_config
from langchain_core.runnables.config import var_child_runnable_config

from ctxfold.events import (
    CompactionHeld,
    CompactionProgress,
    CompactionStarted,
    Event,
    HistoryCompacted,
    PromptTruncated,
    RewriteRefused,
    SectionInjected,
    SectionSkipped,
    WindowGauge,
)
from langchain_ctx.active_model import Caller, current_caller
from langchain_ctx.models import is_same_model

# these are reported with counts and reasons; events that carry messages are for subscribers in the same program
REPORTED = (HistoryCompacted, CompactionHeld, PromptTruncated, RewriteRefused, SectionInjected, SectionSkipped)
STATUS = (CompactionStarted, CompactionProgress, WindowGauge)  # these go to LangGraph's custom stream only, at once
_REPORT: ContextVar[Report | None] = ContextVar("ctxfold_report", default=None)


class Report:
    """Collects the events of one model call for the run's callbacks, and writes them to the custom stream at once."""

    def __init__(self, write: Callable[[Any], None] | None) -> None:
        self.write = write
        self._events: list[Event] = []

    def add(self, event: Event) -> None:
        self._events.append(event)

    def send(self) -> None:
        """Hands the events so far to the run's callbacks."""
        for name, data in self._take_events():
            dispatch_custom_event(name, data)

    async def asend(self) -> None:
        for name, data in self._take_events():
            await adispatch_custom_event(name, data)

    def _take_events(self) -> list[tuple[str, dict[str, Any]]]:
        events, self._events = self._events, []
        if not events:
            return []
        # outside of any run, as in a test of the middleware alone, there is nobody to be told
        inside = getattr(ensure_config().get("callbacks"), "parent_run_id", None) is not None
        return [(f"ctxfold.{type(event).__name__}", _data(event)) for event in events if inside]


def listen(event: Event) -> None:
    """Reports an event of the model call under way, and no other; subscribe it to an engine.

    A chat model has no report: its events go to the custom stream of the graph that it runs in.
    """
    report = _REPORT.get()
    if report is not None and isinstance(event, REPORTED):
        report.add(event)
    if isinstance(event, REPORTED + STATUS):
        write = _graph_writer() if report is None else report.write
        if write is not None:
            write({"ctxfold": {"event": type(event).__name__, **_data(event)}})


def _data(event: Event) -> dict[str, Any]:
    if isinstance(event, WindowGauge):
        room = {"room_tokens": event.room_tokens, "until_compaction_tokens": event.until_compaction_tokens}
        return {**asdict(event), **room}
    return asdict(event)


def _graph_writer() -> Callable[[Any], None] | None:
    """Returns what writes to the custom stream of the LangGraph run under way; None outside of any."""
    if var_child_runnable_config.get() is None:
        return None
    try:
        from langgraph.config import get_stream_writer
    except ImportError:  # langchain-core alone
        return None
    try:
        return get_stream_writer()
    except (RuntimeError, LookupError):  # a chain that is no part of a graph
        return None


@contextmanager
def reporting(write: Callable[[Any], None] | None) -> Generator[Report, None, None]:
    report = Report(write)
    token = _REPORT.set(report)
    try:
        yield report
    finally:
        _REPORT.reset(token)


class _ModelAsked(BaseCallbackHandler):
    """Notes which model a call has asked: middleware further in may have picked another one."""

    run_inline = True

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    def on_chat_model_start(self, *args: Any, metadata: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        asked = (metadata or {}).get("ls_model_name")
        if isinstance(asked, str) and not is_same_model(asked, self._caller.name):
            self._caller.name = asked


@contextmanager
def annotated(metadata: Mapping[str, Any]) -> Generator[None, None, None]:
    """Runs within the block carry this metadata, in traces and in LangGraph's message stream; the caller learns whom they ask."""
    around = ensure_config()
    own, given = _ModelAsked(current_caller()), around.get("callbacks")
    callbacks: Callbacks = [*(given or ()), own] if not isinstance(given, BaseCallbackManager) else given.copy()
    if isinstance(callbacks, BaseCallbackManager):
        callbacks.add_handler(own)
    config: RunnableConfig = {
        **around,
        "callbacks": callbacks,
        "metadata": {**around.get("metadata", {}), **metadata},
    }
    token = var_child_runnable_config.set(config)
    try:
        yield
    finally:
        var_child_runnable_config.reset(token)
