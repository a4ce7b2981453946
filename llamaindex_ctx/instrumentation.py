"""What happens in sessions, told through LlamaIndex's instrumentation."""

from __future__ import annotations

from typing import Any

from llama_index.core.instrumentation.events import BaseEvent
from llama_index_instrumentation import get_dispatcher

from ctxfold.events import Event

__all__ = ["SessionEvent", "dispatcher", "tell"]

dispatcher = get_dispatcher("llamaindex_ctx")


class SessionEvent(BaseEvent):
    """Something that a session's engine reports; `event` is one of `ctxfold.events`, such as HistoryCompacted.

    It carries the span in which it happened. `name` is the class of `event`.
    """

    session: str
    name: str
    event: Any

    @classmethod
    def class_name(cls) -> str:
        return "SessionEvent"


def tell(event: Event) -> None:
    """Hand an engine's event to LlamaIndex's handlers; subscribe it to a context."""
    if _heard():
        dispatcher.event(SessionEvent(session=event.session, name=type(event).__name__, event=event))


def _heard() -> bool:
    """Whether anybody listens: most processes have no handler, and an event costs more than the look."""
    place = dispatcher
    while not place.event_handlers:
        if not place.propagate:
            return False
        place = place.parent
    return True
