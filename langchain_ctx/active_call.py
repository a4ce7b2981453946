"""The model call under way: whose model answers for the session, and who hears of the session's events."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from langchain_core.callbacks import (
    BaseCallbackHandler,
    BaseCallbackManager,
    Callbacks,
    adispatch_custom_event,
    dispatch_custom_event,
)
from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import RunnableConfig, ensure_config
from langchain_core.runnables.config import var_child_runnable_config

from ctxfold.adapters.calls import BorrowedModel, Invoke, forms, other_way
from ctxfold.effects import Flow
from ctxfold.errors import BackendError, ConfigError
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
from ctxfold.protocols import BackendCapabilities, ContextBackend, Reply, Request, capabilities_of
from langchain_ctx.models import capabilities, is_same_model, model_name, model_window
from langchain_ctx.summarizer import as_summarizer

T = TypeVar("T")


@dataclass(slots=True)
class Caller:
    """The ways in which the current call can ask its model; each is set where its kind of call supports it.

    `repeat` asks the model for a summary on the live prefix: as the call itself asks it, with the same tools and settings, but
    nothing of it reaches the call's own stream. `repeats` says whether a request of the session is one that the
    call would send alike. `own` is the model as the caller gave it, where `model` is a copy that sends reasoning back.
    """

    model: BaseChatModel
    answer: Callable[[Request], Flow[Reply]] | None = None
    stream: Callable[[Request], Flow[Any]] | None = None
    repeat: Callable[[Request], Flow[Reply]] | None = None
    repeats: Callable[[Request], bool] | None = None
    own: BaseChatModel | None = None
    under_way: int = 0
    name: str = field(init=False)
    capabilities: BackendCapabilities = field(init=False)

    def __post_init__(self) -> None:
        self.name = model_name(self.model)
        self.capabilities = capabilities(self.model)


_CALLER: ContextVar[Caller] = ContextVar("ctxfold_caller")


@contextmanager
def calling(caller: Caller) -> Generator[None, None, None]:
    """Makes sessions ask this caller's model within the block."""
    token = _CALLER.set(caller)
    caller.under_way += 1
    try:
        yield
    finally:
        caller.under_way -= 1
        _CALLER.reset(token)


def current_caller() -> Caller:
    """Returns the caller of the call under way; ConfigError outside of a call."""
    caller = _CALLER.get(None)
    if caller is None:
        raise ConfigError("no model is being called: this session's model comes with each call of the agent or chain")
    return caller


def called_model() -> BaseChatModel | None:
    """Returns the model of the call under way; None outside of a call."""
    caller = _CALLER.get(None)
    return None if caller is None else caller.model


class CallersModel(BorrowedModel):
    """The backend of a session whose model is that of the current call."""

    @property
    def capabilities(self) -> BackendCapabilities:
        """Returns those of the service behind the model that is being called; the defaults outside of a call."""
        caller = _CALLER.get(None)
        return BackendCapabilities() if caller is None else caller.capabilities

    @property
    def context_window(self) -> int | None:
        """Returns the window in the profile of the model that is being called; None outside of a call."""
        caller = _CALLER.get(None)
        return None if caller is None else model_window(caller.model)

    @property
    def model(self) -> str:
        caller = _CALLER.get(None)
        return "" if caller is None else caller.name

    def answer(self, request: Request) -> Flow[Reply]:
        return (current_caller().answer or other_way)(request)

    def stream(self, request: Request) -> Flow[Any]:
        return (current_caller().stream or other_way)(request)


class CallersSummarizer(CallersModel):
    """Writes summaries with `summarizer`, a chat model or backend; without one, with the model of the call that needs them.

    Outside of any call, that is the model asked last. The model of the call itself is asked on the live prefix where possible.
    """

    def __init__(self, summarizer: Any) -> None:
        self._given = summarizer
        self._own = as_summarizer(summarizer)
        self._last: BaseChatModel | None = None

    @property
    def capabilities(self) -> BackendCapabilities:
        """Returns the capabilities of the given summariser, which `continues` the live prefix where it is the call's own model."""
        return replace(capabilities_of(self._own), continues=self._continues)

    @property
    def context_window(self) -> int | None:
        return None if self._own is None else self._own.context_window

    @property
    def model(self) -> str:
        return super().model if self._own is None else self._own.model

    def seen(self, model: BaseChatModel) -> None:
        self._last = model

    def _continues(self, request: Request) -> bool:
        caller = _CALLER.get(None)
        if caller is None or not caller.under_way or caller.repeats is None:
            return False
        same = self._given is None or self._given is caller.own or self._given is caller.model
        return same and caller.repeats(request)

    def _writer(self) -> ContextBackend:
        caller = _CALLER.get(None)
        writer = self._own or as_summarizer(self._last if caller is None else caller.model)
        if writer is None:
            raise BackendError("no model was asked yet that could write a summary", kind="rejected")
        return writer

    def answer(self, request: Request) -> Flow[Reply]:
        if request.live_prefix:
            return (yield from (current_caller().repeat or other_way)(request))
        return cast("Reply", (yield from Invoke(*forms(self._writer(), "send"), request)))


def keeps_sessions(model: BaseChatModel) -> bool:
    """Returns True when the model manages a context itself: two sessions behind one call would each cut the other's window."""
    settings: list[object] = [getattr(model, name, None) for name in ("session", "sessions", "store")]
    # `store=False` of ChatOpenAI is about its service
    return any(setting is not None and not isinstance(setting, bool) for setting in settings)


def check_sends_window(model: BaseChatModel) -> None:
    """Raises ConfigError for a model that sends the newest messages alone, because its service keeps the conversation."""
    if getattr(model, "use_previous_response_id", None) is True:
        raise ConfigError(
            f"this {type(model).__name__} has use_previous_response_id=True: the service keeps the conversation and gets "
            "no window of it; leave that out"
        )


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

    def send(self) -> Flow[None]:
        """Hands the events so far to the run's callbacks."""
        events, self._events = self._events, []
        # outside of any run, as in a test of the middleware alone, there is nobody to be told
        inside = bool(events) and getattr(ensure_config().get("callbacks"), "parent_run_id", None) is not None
        for event in events if inside else ():
            name = f"ctxfold.{type(event).__name__}"
            yield from Invoke(dispatch_custom_event, adispatch_custom_event, name, _data(event))


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
    config: RunnableConfig = {**around, "callbacks": callbacks, "metadata": {**around.get("metadata", {}), **metadata}}
    token = var_child_runnable_config.set(config)
    try:
        yield
    finally:
        var_child_runnable_config.reset(token)


if TYPE_CHECKING:
    _: ContextBackend = CallersModel()
