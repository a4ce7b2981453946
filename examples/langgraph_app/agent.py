"""The graph that `langgraph.json` names: an agent with `ContextMiddleware`. The server brings threads and checkpoints."""

from __future__ import annotations

import os
from typing import Any

from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType]
from langchain.chat_models import init_chat_model
from langchain_core.tools import tool

from langchain_ctx import ContextMiddleware

__all__ = ["fitting", "graph", "model"]


@tool
def read_log(hour: int) -> str:
    """Reads the machine's log of one hour of the day, 0 to 23."""
    return "\n".join(f"{hour:02}:{minute:02} pump {minute % 7} reports {hour * minute} litres" for minute in range(60))


# Made once, when the server imports the module: a function here would be called for each run, on the server's event loop, and
# would open the store there.
fitting = ContextMiddleware(
    context_window=int(os.environ.get("CONTEXT_WINDOW", "32000")),
    store=os.environ.get("CTXFOLD_STORE", "sqlite:///agent.db"),
)
model = init_chat_model(os.environ.get("MODEL", "openai:gpt-5-mini"))
graph: Any = create_agent(
    model,
    [read_log],
    system_prompt="You look after the pumps.",
    middleware=[fitting],
)
