"""What an agent's state keeps of its session, so that the session goes wherever the agent's checkpoints go."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NotRequired, cast

from langchain.agents.middleware.types import AgentState, PrivateStateAttr
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.runnables import ensure_config

from ctxfold.follow import Trail
from ctxfold.history.records import SessionKey
from ctxfold.messages import Message
from langchain_ctx.convert import from_langchain
from langchain_ctx.history import session_key

__all__ = ["KEPT", "ContextState", "Named", "kept_in", "place_of", "root_of"]

KEPT = "ctxfold"


class ContextState(AgentState[Any]):
    """The agent's state, with what `ContextMiddleware` keeps beside its messages."""

    ctxfold: NotRequired[Annotated[dict[str, Any] | None, PrivateStateAttr]]


class Named:
    """One of the agent's messages, as its session follows it."""

    def __init__(self, message: BaseMessage) -> None:
        self._message = message
        self._version = ""

    @property
    def id(self) -> str:
        return str(self._message.id)

    @property
    def version(self) -> str:
        self._version = self._version or self._read()
        return self._version

    def _read(self) -> str:
        told = self._message
        calls = (told.tool_calls, told.invalid_tool_calls) if isinstance(told, AIMessage) else None
        answers = told.tool_call_id if isinstance(told, ToolMessage) else None
        text = repr((told.type, told.content, calls, answers))
        return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=6).hexdigest()

    def message(self) -> Message:
        return from_langchain(self._message)


def kept_in(state: object) -> Trail | None:
    """What the state of an agent, a snapshot of it, or its values keep."""
    values = cast("object", state if isinstance(state, Mapping) else getattr(state, "values", None))
    found = cast("Mapping[str, Any]", values).get(KEPT) if isinstance(values, Mapping) else None
    return None if found is None else Trail.from_dict(found)


def place_of(configurable: Mapping[str, Any]) -> str:
    """Where in its caller's graph an agent runs: it is on its caller's thread, and this is what names it."""
    return str(configurable.get("checkpoint_ns") or "").rpartition("|")[0]  # less the node that is running


def root_of(messages: Sequence[BaseMessage], *, session: str | None, owner: str) -> SessionKey:
    """The session that a run asks for by its settings, its thread, or else its first message."""
    told = ensure_config().get("configurable", {})
    name = session or told.get("thread_id")
    if name is None:
        name = f"run-{messages[0].id}"
    place = place_of(told)
    return session_key(f"{name}/{place}" if place else name, told.get("owner", owner))
