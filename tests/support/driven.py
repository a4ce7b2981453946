"""One test, two drivers: `Driven` calls a context's methods directly, or their async twins on a loop of its own."""

from __future__ import annotations

import asyncio
from typing import Any

from ctxfold import AgentContext, Message, ScriptedBackend, ToolCallPart, assistant, tool_result, user
from ctxfold.effects import FlowMethods
from ctxfold.tokens.text import RatioCounter


class Driven:
    """A context, or a part of one, whose methods are called sync or async; streams come back as lists of events."""

    def __init__(self, ctx: Any, runner: asyncio.Runner | None) -> None:
        self.ctx = ctx
        self._runner = runner

    def __getattr__(self, name: str) -> Any:
        twin = getattr(self.ctx, f"a{name}", None)
        if self._runner is None or twin is None:
            found = getattr(self.ctx, name)
            return Driven(found, self._runner) if isinstance(found, FlowMethods) else found

        def call(*args: Any, **kwargs: Any) -> Any:
            async def awaited() -> Any:
                return await getattr(self.ctx, f"a{name}")(*args, **kwargs)

            assert self._runner is not None
            return self._runner.run(awaited())

        return call

    def send_stream(self, *args: Any, stop_after: int | None = None, **kwargs: Any) -> list[Any]:
        """All events, or the first few of a stream that is then given up."""
        events: list[Any] = []
        if self._runner is None:
            stream = self.ctx.send_stream(*args, **kwargs)
            for event in stream:
                events.append(event)
                if stop_after is not None and len(events) >= stop_after:
                    stream.close()
                    break
            return events

        async def read() -> None:
            stream = self.ctx.asend_stream(*args, **kwargs)
            async for event in stream:
                events.append(event)
                if stop_after is not None and len(events) >= stop_after:
                    await stream.aclose()
                    break

        self._runner.run(read())
        return events


COUNTER = RatioCounter()


def context(backend: Any = None, **settings: Any) -> AgentContext:
    """A context in memory, with a counter that is equal on every machine."""
    settings = {"context_window": 1_000, "counter": COUNTER, **settings}
    return AgentContext(backend, **settings)


def scripted(*replies: Any, **settings: Any) -> ScriptedBackend:
    return ScriptedBackend(replies, **settings)


def call(call_id: str, arguments: str = "{}") -> ToolCallPart:
    return ToolCallPart(call_id, "look", arguments)


def tool_round(name: str, result: str = "found", calls: int = 1) -> list[Message]:
    parts = [call(f"{name}-c{i}") for i in range(calls)]
    results = [tool_result(p.id, result, id=f"{name}-r{i}") for i, p in enumerate(parts)]
    return [assistant("", id=f"{name}-a", calls=parts), *results]


def turns(count: int, *, start: int = 0, words: int = 12) -> list[Message]:
    found: list[Message] = []
    for i in range(start, start + count):
        found.append(user(f"question {i} " + "word " * words, id=f"u{i}"))
        found.append(assistant(f"answer {i} " + "reply " * words, id=f"a{i}"))
    return found


def text_of(messages: Any) -> str:
    return "\n".join(m.text for m in messages)
