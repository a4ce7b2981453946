"""A service that thinks and calls a tool ten times, and other people's LLMs that ask it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from llama_index.core.tools import FunctionTool
from llama_index.llms.deepseek import DeepSeek
from llama_index.llms.openai_like import OpenAILike

from ctxfold.testing import ModelServer, Script, Scripted, ScriptedCall

ROUNDS = 10


def look(key: int) -> str:
    """Looks something up."""
    return f"Entry {key}."


def look_long(key: int) -> str:
    """Looks something up."""
    return f"Entry {key}. " + "It says a good deal more than anybody needs. " * 30


def tool(function: Any = look) -> FunctionTool:
    return FunctionTool.from_defaults(function, name="look")


def steps(body: Mapping[str, Any]) -> Scripted:
    """The next entry after the newest result since the question; whoever offers no tools wants a summary."""
    if not body.get("tools"):
        return Scripted("Entries were looked up, one after another.")
    since = next(i for i, m in reversed(list(enumerate(body["messages"]))) if str(m["content"]).startswith("Find"))
    results = [m for m in body["messages"][since:] if m["role"] == "tool"]
    done = int(results[-1]["content"].split(".")[0].removeprefix("Entry ")) + 1 if results else 0
    if done == ROUNDS:
        return Scripted("All found.", reasoning="That was the last.")
    return Scripted(reasoning=f"Number {done} is next.", tool_calls=(ScriptedCall("look", json.dumps({"key": done})),))


@asynccontextmanager
async def serving(kind: str, script: Script | None = steps, **settings: Any) -> AsyncIterator[tuple[ModelServer, Any]]:
    """The strict service, and an LLM of this kind that asks it; without a script it is `lookup` that answers."""
    model = "lookup" if script is None else "deepseek-chat"
    async with ModelServer(**{"model": model, "script": script, "strict": "deepseek", **settings}) as server:
        llm = foreign(kind, server)
        try:
            yield server, llm
        finally:
            llm._get_client().close()
            await llm._get_aclient().close()


def foreign(kind: str, server: ModelServer, **fields: Any) -> Any:
    told = {"model": "deepseek-chat", "api_base": server.base_url, "api_key": "x", "max_retries": 0, **fields}
    like = {"is_chat_model": True, "is_function_calling_model": True, "context_window": 64_000}
    llm = DeepSeek(**told) if kind == "deepseek" else OpenAILike(**{**like, **told})
    llm._get_client(), llm._get_aclient()  # made on first use otherwise: a copy would have its own
    return llm
