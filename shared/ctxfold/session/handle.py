"""Defines KeyedSession, a session of an engine by its key, and SessionPart, the base of the parts of a context."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from ctxfold.effects import Flow, FlowMethods
from ctxfold.engine.engine import Engine
from ctxfold.history.cuts import open_calls
from ctxfold.history.records import SessionKey
from ctxfold.messages import Message
from ctxfold.protocols import Ports
from ctxfold.state import Session
from ctxfold.validation import is_a

T = TypeVar("T")


class KeyedSession(FlowMethods):
    """One session of an engine, by its key. It holds what one user of the session has open."""

    def __init__(self, engine: Engine, key: SessionKey, prompts: tuple[str, ...] | None, *, create: bool) -> None:
        self.engine = engine
        self.key = key
        self.prompts = prompts
        self.create = create
        self.turn: str | None = None  # that messages were added to
        self.request_turn: str | None = None  # that the newest request was made in

    def new_id(self) -> str:
        """Returns a message id that was never used before."""
        return self.engine.ports.ids.new()

    def with_id(self, message: Message) -> Message:
        """Returns the message; one without an id gets one."""
        return replace(message, id=self.new_id()) if is_a(message, Message) and message.id == "" else message

    def open(self) -> Flow[Session]:
        """Returns the session, up to date with its store."""
        return (yield from self.engine.open(self.key, create=self.create, prompts=self.prompts))

    def edit(self, change: Callable[[Engine, Session], Flow[T]]) -> Flow[T]:
        """Returns the flow of a change of the session."""
        session = yield from self.open()
        return (yield from change(self.engine, session))

    def edit_anew(self, change: Callable[[Engine, Session], Flow[str | None]], *, whole: bool = True) -> Flow[None]:
        """Makes a change that leaves another turn open, or none. The turn before is discarded, with its pending tool calls.

        A change of the `whole` conversation discards every turn that waits for tool results, whoever opened it.
        """
        session = yield from self.open()
        before, self.turn = self.turn, (yield from change(self.engine, session))
        for turn_id in self.waiting_turns(session, before, whole=whole):
            if turn_id != self.turn:
                yield from self.engine.close(session, turn_id, "discarded")

    def waiting_turns(self, session: Session, own: str | None, *, whole: bool = True) -> list[str]:
        """Returns the turns that are discarded when a conversation is replaced."""
        with session.lock:
            return [t for t, entry in session.state.open.items() if t == own or (whole and open_calls(entry.entries))]

    def own_turn(self, session: Session) -> str | None:
        """Returns the turn that this handle has open; no other handle sees it."""
        with session.lock:
            return next((t for t in (self.turn, self.request_turn) if t in session.state.open), None)

    @property
    def _ports(self) -> Ports:
        return self.engine.ports


class SessionPart(FlowMethods):
    """A part of a context: methods on its session that belong together."""

    def __init__(self, session: KeyedSession) -> None:
        self._session = session

    @property
    def _ports(self) -> Ports:
        return self._session.engine.ports
