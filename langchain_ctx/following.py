"""What an agent's state keeps of its session, so that the session goes wherever the agent's checkpoints go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, NotRequired, cast

from langchain.agents.middleware.types import AgentState, PrivateStateAttr
from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig

from ctxfold.follow import BRANCH, Trail
from ctxfold.history.records import SessionKey
from langchain_ctx.keys import MADE_FROM, Address, first_id, placed

__all__ = ["KEPT", "ContextState", "kept_in", "root_of"]

KEPT = "ctxfold"


class ContextState(AgentState[Any]):
    """The agent's state, with what `ContextMiddleware` keeps beside its messages."""

    ctxfold: NotRequired[Annotated[dict[str, Any] | None, PrivateStateAttr]]


def kept_in(state: object) -> Trail | None:
    """What the state of an agent, a snapshot of it, or its values keep."""
    values = cast("object", state if isinstance(state, Mapping) else getattr(state, "values", None))
    found = cast("Mapping[str, Any]", values).get(KEPT) if isinstance(values, Mapping) else None
    return None if found is None else Trail.from_dict(found)


def root_of(
    config: RunnableConfig,
    messages: Sequence[BaseMessage],
    state: Mapping[str, Any],
    *,
    session: str | None,
    owner: str,
) -> Address:
    """The session that a run asks for by its settings, its thread, or else its first message.

    In a sub-graph the first message of its `state` counts, too: what middleware adds to a request has another id each time.
    """
    told = config.get("configurable", {})
    name = told.get("thread_id") if session is None else session
    nameless = name is None
    if nameless:
        name = f"{MADE_FROM}{first_id(messages)}"
    root = placed(name, told, owner, first_id(state.get("messages")))
    key, left = root.key, kept_in(state)
    if left is not None and root.place and left.root.startswith(f"{key.session}{BRANCH}"):
        key = SessionKey(key.owner, left.root)
    return replace(root, key=key, made_up=root.made_up or nameless)
