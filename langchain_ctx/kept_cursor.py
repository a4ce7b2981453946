"""Reads the cursor that `ContextMiddleware` keeps in an agent's state, from the state of a run and from a thread's checkpoints."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.memory import InMemorySaver

from ctxfold.effects import Effect
from ctxfold.history.diff import Cursor
from ctxfold.protocols import Ports
from ctxfold.validation import is_a, warn_caller
from langchain_ctx.session_routing import place_of_graph

KEPT = "ctxfold"  # the key of the state
LOOKED_AT = 64  # the newest checkpoints of a thread


def kept_cursor(state: object) -> Cursor | None:
    """Returns the cursor in the state of an agent, in a snapshot of it, or in its values; warns of anything else there."""
    values = cast("object", state if isinstance(state, Mapping) else getattr(state, "values", None))
    saved: Any = cast("Mapping[str, Any]", values).get(KEPT) if isinstance(values, Mapping) else None
    cursor = Cursor.from_dict(cast("Mapping[str, Any]", saved)) if isinstance(saved, Mapping) else None
    if saved is not None and cursor is None:
        warn_caller(
            f"the private key {KEPT!r} of this state was changed and is ignored: the messages tell the session apart"
        )
    return cursor


def outlives(config: RunnableConfig) -> bool:
    """Returns True where a checkpointer keeps the state of the running graph beyond the process: an empty state is a new thread."""
    saver: Any = config.get("configurable", {}).get("__pregel_checkpointer")
    return isinstance(saver, BaseCheckpointSaver) and type(cast("object", saver)) is not InMemorySaver


@dataclass(frozen=True, slots=True)
class KeptElsewhere(Effect[bool]):
    """Tells whether a checkpoint of the run's thread has a cursor of the session."""

    saver: BaseCheckpointSaver[Any]
    thread: RunnableConfig
    session: str

    @classmethod
    def of(cls, config: RunnableConfig, session: str) -> KeptElsewhere | None:
        """Returns the look-up in the running graph's checkpointer, which LangGraph puts into the config of its nodes."""
        configurable = config.get("configurable", {})
        saver: Any = configurable.get("__pregel_checkpointer")
        names = {"thread_id": configurable.get("thread_id"), "checkpoint_ns": place_of_graph(config)}
        return cls(saver, {"configurable": names}, session) if is_a(saver, BaseCheckpointSaver) else None

    def perform(self, ports: Ports) -> bool:
        return any(map(self._has_cursor, self.saver.list(self.thread, limit=LOOKED_AT)))

    async def aperform(self, ports: Ports) -> bool:
        checkpoints = cast("AsyncGenerator[CheckpointTuple, None]", self.saver.alist(self.thread, limit=LOOKED_AT))
        async with aclosing(checkpoints):
            async for checkpoint in checkpoints:
                if self._has_cursor(checkpoint):
                    return True
        return False

    def _has_cursor(self, checkpoint: CheckpointTuple) -> bool:
        cursor = kept_cursor(checkpoint.checkpoint["channel_values"])
        return cursor is not None and cursor.root == self.session
