"""The same agent with its context managed by each face, on a strict server."""

from __future__ import annotations

from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_core.tools import BaseTool
from langchain_openai import ChatOpenAI
from langchain_openai.chat_models.base import BaseChatOpenAI

from ctxfold.testing import ModelServer
from langchain_ctx import ChatCtx, ContextMiddleware, ContextNode, with_context
from tests.langchain.running import T

FACES = pytest.mark.parametrize(
    "face", ["middleware", "with_context", "ChatCtx", "ChatCtx and middleware", "ContextNode"]
)


async def run(app: Any, how: str, text: str, config: Any = T) -> str:
    """The text of the run's last message."""
    given, both = {"messages": [HumanMessage(text)]}, ["values", "messages"]
    match how:
        case "invoke":
            found = app.invoke(given, config)
        case "ainvoke":
            found = await app.ainvoke(given, config)
        case "stream":
            found = [state for mode, state in app.stream(given, config, stream_mode=both) if mode == "values"][-1]
        case _:
            parts = [part async for part in app.astream(given, config, stream_mode=both)]
            found = [state for mode, state in parts if mode == "values"][-1]
    return str(found["messages"][-1].text)


class Agents:
    """Agents of one face on one server, closed together."""

    def __init__(self, face: str, server: ModelServer, *tools: BaseTool) -> None:
        self._face, self._url, self._tools = face, server.base_url, tools
        self._open: list[Any] = []

    def agent(self, store: str, saver: Any, *, context_window: int = 8_000) -> Any:
        """A new agent, with new objects all the way down."""
        model: Any = ChatOpenAI(model="m", base_url=self._url, api_key="x", max_retries=0)  # type: ignore[arg-type]
        middleware: list[Any] = []
        match self._face:
            case "middleware":
                middleware = [ContextMiddleware(context_window=context_window, store=store, history_tools=False)]
            case "with_context":
                model = with_context(model, context_window=context_window, store=store)
            case "ChatCtx":
                model = self._chat(context_window=context_window, store=store)
            case "ChatCtx and middleware":
                model = self._chat()
                middleware = [ContextMiddleware(context_window=context_window, store=store, history_tools=False)]
            case _:
                model = Fitted(**model_settings(self._url), fit=ContextNode(context_window=context_window, store=store))
        self._open += [model, *middleware]
        return create_agent(model, [*self._tools], middleware=middleware, checkpointer=saver)

    def _chat(self, **settings: Any) -> ChatCtx:
        return ChatCtx(**model_settings(self._url), provider="openai", **settings)

    async def aclose(self) -> None:
        for one in self._open:
            await closed(one)
            if fit := getattr(one, "fit", None):
                await fit.aclose()


async def closed(model: Any) -> None:
    """Closes the model's sessions and the connections of its client, which LangChain's package keeps open."""
    if hasattr(model, "aclose"):
        await model.aclose()
    if hasattr(model, "close"):
        model.close()
    client = getattr(model, "inner", model)
    if isinstance(client, BaseChatOpenAI):
        client.root_client.close()
        await client.root_async_client.close()
    elif anthropic := getattr(client, "_async_client", None):
        await anthropic.close()


def model_settings(url: str) -> dict[str, Any]:
    return {"model": "m", "base_url": url, "api_key": "x", "max_retries": 0}


class Fitted(ChatOpenAI):
    """A model before which a node stands."""

    fit: Any = None

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self.fit | super().bind_tools(tools, **kwargs)
