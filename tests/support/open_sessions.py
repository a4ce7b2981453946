"""Looks behind an AgentContext: the state that its engine holds in memory."""

from __future__ import annotations

from ctxfold import AgentContext, SessionKey
from ctxfold.session_state import OpenSession


def opened(context: AgentContext, key: SessionKey | None = None) -> OpenSession:
    """Returns the open session of a context, or of another key of its engine."""
    engine, own_key = context._engine, context._key  # pyright: ignore[reportPrivateUsage]
    session = engine.known(key or own_key)
    assert session is not None, "the session is not in memory"
    return session
