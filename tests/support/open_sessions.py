"""Looks behind an AgentContext: the state that its engine holds in memory."""

from __future__ import annotations

from dataclasses import replace

from ctxfold import AgentContext, MemoryStore
from ctxfold.history.records import MessageAdded, SessionKey
from ctxfold.protocols import Clock
from ctxfold.state import Session


def opened(context: AgentContext, key: SessionKey | None = None) -> Session:
    """Returns the open session of a context, or of another key of its engine."""
    engine, own_key = context.handle.engine, context.handle.key  # pyright: ignore[reportPrivateUsage]
    session = engine.known(key or own_key)
    assert session is not None, "the session is not in memory"
    return session


def stored_texts(store: MemoryStore) -> str:
    """The texts of all messages that any session of the default owner has stored."""
    keys = [SessionKey("default", name) for name in store.sessions("default")]
    bodies = [r.body for key in keys for r in store.read(key)]
    return "\n".join(b.message.text for b in bodies if isinstance(b, MessageAdded))


def set_clock(context: AgentContext, clock: Clock) -> None:
    """Lets an engine and its open session live by a clock of the test's."""
    engine, session = context.handle.engine, opened(context)  # pyright: ignore[reportPrivateUsage]
    engine.ports = engine.fitter.ports = session.ports = replace(engine.ports, clock=clock)
