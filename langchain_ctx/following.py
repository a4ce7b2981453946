"""What an agent's state keeps of its session, so that the session goes wherever the agent's checkpoints go."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, NotRequired, cast

from langchain.agents.middleware.types import AgentState, PrivateStateAttr
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.runnables import RunnableConfig, ensure_config

from ctxfold.follow import BRANCH, Trail
from ctxfold.history.records import SessionKey
from ctxfold.messages import Message
from langchain_ctx.convert import from_langchain
from langchain_ctx.history import RUN, WITHIN, first_id, placed_key

__all__ = ["KEPT", "ContextState", "Listing", "is_place", "kept_in", "root_of", "sessions_of"]

KEPT = "ctxfold"


class ContextState(AgentState[Any]):
    """The agent's state, with what `ContextMiddleware` keeps beside its messages."""

    ctxfold: NotRequired[Annotated[dict[str, Any] | None, PrivateStateAttr]]


class Listing:
    """The agent's messages, as their session follows them."""

    def __init__(self, messages: Sequence[BaseMessage]) -> None:
        self._messages = [*messages]
        self._versions: dict[int, str] = {}

    @property
    def ids(self) -> list[str]:
        return [str(m.id) for m in self._messages]

    def version(self, index: int) -> str:
        if index not in self._versions:
            self._versions[index] = _version(self._messages[index])
        return self._versions[index]

    def message(self, index: int) -> Message:
        return from_langchain(self._messages[index])

    def and_then(self, messages: Sequence[BaseMessage]) -> Listing:
        """The list once these have joined it."""
        longer = Listing([*self._messages, *messages])
        longer._versions = self._versions
        return longer


def _version(message: BaseMessage) -> str:
    calls = (message.tool_calls, message.invalid_tool_calls) if isinstance(message, AIMessage) else None
    answers = message.tool_call_id if isinstance(message, ToolMessage) else None
    text = repr((message.type, message.content, calls, answers))
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=6).hexdigest()


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
) -> SessionKey:
    """The session that a run asks for by its settings, its thread, or else its first message.

    In a sub-graph the first message of its `state` counts, too: what middleware adds to a request has another id each time.
    """
    told = config.get("configurable", {})
    name = session or told.get("thread_id")
    if name is None:
        name = f"run-{first_id(messages)}"
    root = placed_key(name, told, owner, None if session else first_id(state.get("messages")))
    left = kept_in(state)
    beside = left is not None and session is None and _placed(told) and left.root.startswith(f"{root.session}{BRANCH}")
    return SessionKey(root.owner, left.root) if left and beside else root


def is_place() -> bool:
    """Whether this runs in a sub-graph that LangGraph begins anew with each run of its caller."""
    return _placed(ensure_config().get("configurable", {}))


def _placed(told: Mapping[str, Any]) -> bool:
    return RUN in str(told.get("checkpoint_ns") or "").rpartition(WITHIN)[0]


def sessions_of(thread: str, names: Iterable[str]) -> list[str]:
    """Of these sessions those of a thread: its own, its branches', its sub-agents' and their branches'."""
    branch = rf"({BRANCH}[0-9a-f]{{8}})?"
    pattern = re.compile(rf"{re.escape(thread)}{branch}({re.escape(WITHIN)}.+)?", re.DOTALL)
    return [name for name in names if pattern.fullmatch(name)]
