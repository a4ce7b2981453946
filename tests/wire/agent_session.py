"""An agent's model and turns, with reasoning and tools, for the sessions of several wires."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ctxfold import AgentContext, Completed, Reply, ToolSpec, tool_result
from ctxfold.backends.http_backend import HttpBackend
from ctxfold.testing import ModelServer, Scripted, ScriptedCall

TOOLS = (ToolSpec("look", "Looks a thing up.", {"type": "object", "properties": {"n": {"type": "integer"}}}),)
ROUNDS = 2  # of tools in each turn


class Model:
    """Thinks before each reply, and calls tools twice, in parallel, before it answers."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, body: Mapping[str, Any]) -> Scripted | None:
        self.asked += 1
        messages = body["messages"]
        if not body.get("tools") or "ummar" in messages[-1]["content"]:
            return None  # a summary is asked for
        last = max(i for i, m in enumerate(messages) if m["role"] == "user")
        done = sum(bool(m.get("tool_calls")) for m in messages[last:])
        thought = f"Thought {self.asked} about it."
        if done < ROUNDS:
            calls = tuple(ScriptedCall("look", json.dumps({"n": n})) for n in range(1 + done))
            return Scripted("Looking." if done else "", reasoning=thought, tool_calls=calls)
        return Scripted(f"Answer {self.asked}.", reasoning=thought)


async def ask(context: AgentContext, content: Any, way: str) -> Reply:
    if way == "sync":
        return context.send(content, tools=TOOLS)
    if way == "async":
        return await context.asend(content, tools=TOOLS)
    events: list[Any] = []
    if way == "streamed":
        events = list(context.send_stream(content, tools=TOOLS))
    else:
        events = [event async for event in context.asend_stream(content, tools=TOOLS)]
    assert isinstance(events[-1], Completed)
    return events[-1].reply


async def turn(context: AgentContext, question: str, way: str) -> Reply:
    """Asks, and answers every call until the model has."""
    reply = await ask(context, question, way)
    while reply.message.tool_calls:
        calls = reply.message.tool_calls
        results = [tool_result(c.id, f"Shelf {c.arguments} holds plums. " * 8, id=f"r-{c.id}") for c in calls]
        reply = await ask(context, results, way)
    return reply


async def past_the_window(backend: HttpBackend, server: ModelServer, model: Model, way: str) -> list[Mapping[str, Any]]:
    """Runs turns with tools past the window, twice; returns the bodies of the requests, of which none was refused."""
    async with backend, AgentContext(backend, store="memory://", context_window=3_500, system="Be brief.") as context:
        for number in range(10):
            question = f"Question {number}: which shelf? " + "It is the one in the hall. " * 5
            reply = await turn(context, question, way)
            assert reply.message.text.startswith("Answer")
        assert context.usage().compactions > 1
    bodies = [request.body for request in server.requests]
    assert len(bodies) == model.asked, "none was refused and sent again"
    return bodies
