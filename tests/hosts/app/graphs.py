"""Each face in a graph, over one store: the server brings threads, checkpoints and users."""

from __future__ import annotations

import os
from typing import Any

from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_core.runnables import ConfigurableFieldSpec, RunnableConfig
from langchain_core.runnables.history import RunnableWithMessageHistory
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph

from langchain_ctx import ContextMiddleware, ContextNode, CtxChatMessageHistory, with_context

STORE = os.environ["CTXFOLD_STORE"]
WINDOW = 5_000
model = ChatOpenAI(model="m", base_url=os.environ["MODEL_URL"], api_key="x", max_retries=0)  # type: ignore[arg-type]


def look(query: str) -> str:
    """Looks something up."""
    return f"{query}: " + "a line of the log that says little. " * 12


wrapped = with_context(model, context_window=WINDOW, store=f"{STORE}-node.db")
fitting = ContextNode(context_window=WINDOW, store=f"{STORE}-fit.db")
histories = CtxChatMessageHistory.factory(context_window=WINDOW, store=f"{STORE}-history.db")
THREAD = ConfigurableFieldSpec(id="thread_id", annotation=str)
remembering = RunnableWithMessageHistory(model, histories, history_factory_config=[THREAD])

agent: Any = create_agent(
    model,
    [look],
    system_prompt="AGENT",
    middleware=[ContextMiddleware(context_window=WINDOW, store=f"{STORE}-agent.db")],
)
owned: Any = create_agent(
    model,
    [look],
    system_prompt="AGENT",
    middleware=[
        ContextMiddleware(context_window=WINDOW, store=f"{STORE}-owned.db", owner_key="langgraph_auth_user_id")
    ],
)
fixed: Any = create_agent(
    model,
    system_prompt="AGENT",
    middleware=[
        ContextMiddleware(
            context_window=WINDOW, store=f"{STORE}-fixed.db", session_id="desk", owner_key="langgraph_auth_user_id"
        )
    ],
)


async def ask(state: MessagesState, config: RunnableConfig) -> Any:
    return {"messages": await wrapped.ainvoke(state["messages"], config)}


async def ask_fitted(state: MessagesState, config: RunnableConfig) -> Any:
    return {"messages": await model.ainvoke(await fitting.ainvoke(state["messages"], config), config)}


async def ask_remembering(state: MessagesState, config: RunnableConfig) -> Any:
    newest = [m for m in state["messages"][-1:] if isinstance(m, HumanMessage)]
    return {"messages": await remembering.ainvoke(newest, config)}


def _of(step: Any) -> Any:
    return StateGraph(MessagesState).add_node("ask", step).add_edge(START, "ask").compile()


node, fit, history = _of(ask), _of(ask_fitted), _of(ask_remembering)
