"""Reports the events of sessions through LlamaIndex's instrumentation."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, TypeVar, cast

from llama_index.core.instrumentation.event_handlers import NullEventHandler
from llama_index.core.instrumentation.events import BaseEvent
from llama_index.core.instrumentation.span_handlers import NullSpanHandler
from llama_index_instrumentation import get_dispatcher
from llama_index_instrumentation.dispatcher import Dispatcher

from ctxfold.events import Event

F = TypeVar("F", bound=Callable[..., Any])

dispatcher = get_dispatcher("llamaindex_ctx")


class SessionEvent(BaseEvent):
    """An instrumentation event for each event of a session; `event` is one of `ctxfold.events`, such as HistoryCompacted.

    It has the id of the span in which it happened. `name` is the class of `event`.
    """

    session: str
    name: str
    event: Any

    @classmethod
    def class_name(cls) -> str:
        return "SessionEvent"


def tell(event: Event) -> None:
    """Passes an engine's event to LlamaIndex's handlers; to be subscribed to a context."""
    # most processes have no handler, and making an event costs more than this check
    if any(not isinstance(h, NullEventHandler) for place in _places() for h in place.event_handlers):
        dispatcher.event(SessionEvent(session=event.session, name=type(event).__name__, event=event))


def span(method: F) -> F:
    """Makes a method a span of LlamaIndex's dispatcher where a handler listens; otherwise the method is only called."""
    traced: Any = dispatcher.span(method)

    def bound(self: object) -> Any:
        return (traced if _has_handlers() else method).__get__(self, type(self))

    if inspect.iscoroutinefunction(method):

        @wraps(method)
        async def awaited(self: object, *args: Any, **kwargs: Any) -> Any:
            return await bound(self)(*args, **kwargs)

        return cast("F", awaited)

    @wraps(method)
    def called(self: object, *args: Any, **kwargs: Any) -> Any:
        return bound(self)(*args, **kwargs)

    return cast("F", called)


def _has_handlers() -> bool:
    """Returns True if there is a handler of events or of spans."""
    handlers = (h for place in _places() for h in (*place.event_handlers, *cast("list[object]", place.span_handlers)))
    return any(not isinstance(h, NullEventHandler | NullSpanHandler) for h in handlers)


def _places() -> Iterator[Dispatcher]:
    """Returns the dispatchers that receive these events."""
    place = dispatcher
    yield place
    while place.propagate:
        place = place.parent
        yield place
