"""How much of each request a prefix cache could serve: the bundled conversation in a tenth of its length, and plain trimming."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from ctxfold import AgentContext, OpenAIChatBackend, ToolSpec, tool_result
from ctxfold.backends.openai_chat import canonical_lines
from ctxfold.testing import ModelServer
from ctxfold.tokens.text import MessageCounter, text_counter
from examples.demo.story import Story, Turn, load_story, playing
from tests.benchmarks.sheets import Cell, Sheet

__all__ = ["common", "run"]

QUICK_TURNS = 60


def run(*, quick: bool = False) -> list[Sheet]:
    """One table: bytes sent, bytes that stood in the request before, breaks and their causes."""
    story = load_story()
    turns = story.turns[:QUICK_TURNS] if quick else story.turns
    tools = tuple(_tool(row) for row in story.tools)
    window = _tokens(story, story.turns) // 10
    rows = [
        _row("ctxfold", *_folded(story, turns, tools, window, recall=False)),
        _row("ctxfold, with recalled passages at the end", *_folded(story, turns, tools, window, recall=True)),
        _row("LangChain trim_messages", _trimmed(story, turns, tools, window), None),
    ]
    return [
        Sheet(
            f"Prefix reuse: the bundled conversation, {len(turns)} turns, window of {window:,} tokens",
            ("how", "requests", "bytes sent", "bytes reused", "reuse", "breaks in bytes", "causes named by the engine"),
            tuple(rows),
            "Canonical bytes: tools, then messages, one JSON line each. Reused is the longest common prefix with the request "
            "before. A recalled passage is a request's last line; it is no break that the next request has another one.",
        )
    ]


def _row(name: str, requests: tuple[list[bytes], bool], causes: Sequence[tuple[str, int]] | None) -> tuple[Cell, ...]:
    bodies, scratch = requests
    sent = sum(map(len, bodies))
    shared = [common(*pair) for pair in pairwise(bodies)]
    breaks = sum(
        count < len(_without_scratch(before) if scratch else before)
        for count, (before, _) in zip(shared, pairwise(bodies), strict=True)
    )
    said = "-" if causes is None else ", ".join(f"{cause} {count}" for cause, count in causes) or "none"
    return name, len(bodies), sent, sum(shared), f"{sum(shared) / sent:.1%}", breaks, said


def common(a: bytes, b: bytes) -> int:
    """Length of the longest common prefix."""
    same, differs = 0, min(len(a), len(b)) + 1
    while differs - same > 1:
        middle = (same + differs) // 2
        if a[:middle] == b[:middle]:
            same = middle
        else:
            differs = middle
    return same


def _without_scratch(body: bytes) -> bytes:
    """The request less a recalled passage, which is a system message at its very end."""
    head, _, last = body.removesuffix(b"\n").rpartition(b"\n")
    return head + b"\n" if head and json.loads(last).get("role") == "system" else body


def _tool(row: dict[str, Any]) -> ToolSpec:
    function = row["function"]
    return ToolSpec(function["name"], function["description"], function["parameters"])


def _folded(
    story: Story, turns: Sequence[Turn], tools: tuple[ToolSpec, ...], window: int, *, recall: bool
) -> tuple[tuple[list[bytes], bool], tuple[tuple[str, int], ...]]:
    """The requests as they arrived at a server, and the breaks that the engine counted."""
    with (
        ModelServer(script=playing(story)) as server,
        ModelServer() as writer,
        OpenAIChatBackend(provider="generic", model="played", base_url=server.base_url) as backend,
        OpenAIChatBackend(provider="generic", model="lookup", base_url=writer.base_url) as summarizer,
        AgentContext(
            backend, session_id="prefix", system=story.system, context_window=window, summarizer=summarizer
        ) as context,
    ):
        for turn in turns:
            reply = context.send(turn.user, tools=tools, recall=recall)
            outputs = {c.id: text for r in turn.rounds for c, text in zip(r.calls, r.results, strict=True)}
            while calls := reply.message.tool_calls:
                results = [tool_result(c.id, outputs[c.id], id=context.handle.new_id(), name=c.name) for c in calls]
                reply = context.send(results, tools=tools, recall=recall)
        bodies = [canonical_lines(tools, request.body["messages"]) for request in server.requests]
        return (bodies, recall), context.usage().prefix.breaks


def _conversation(story: Story, turns: Sequence[Turn]) -> Iterator[tuple[Any, bool]]:
    """Messages in order, each with whether a request follows it."""
    from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage

    yield SystemMessage(story.system), False
    for turn in turns:
        yield HumanMessage(turn.user), True
        for step in turn.rounds:
            calls = [{"id": c.id, "name": c.name, "args": c.arguments, "type": "tool_call"} for c in step.calls]
            yield AIMessage("", tool_calls=calls), False
            for call, output in zip(step.calls, step.results, strict=True):
                yield ToolMessage(output, tool_call_id=call.id, name=call.name), call is step.calls[-1]
        yield AIMessage(turn.answer), False


def _trimmed(story: Story, turns: Sequence[Turn], tools: tuple[ToolSpec, ...], window: int) -> tuple[list[bytes], bool]:
    from langchain_core.messages import convert_to_openai_messages, trim_messages

    known: dict[int, int] = {}
    count = text_counter().count

    def tokens(message: Any) -> int:
        if id(message) not in known:
            calls = "".join(f"{c['id']}{c['name']}{json.dumps(c['args'])}" for c in getattr(message, "tool_calls", ()))
            known[id(message)] = 4 + count(message.text) + count(calls) + 4 * len(getattr(message, "tool_calls", ()))
        return known[id(message)]

    room = window - window // 5 - MessageCounter(text_counter()).count_tools(tools)
    messages: list[Any] = []
    bodies: list[bytes] = []
    for message, asked in _conversation(story, turns):
        messages.append(message)
        if asked:
            kept = trim_messages(
                messages,
                max_tokens=room,
                token_counter=lambda listed: sum(map(tokens, listed)),
                start_on="human",
                include_system=True,
            )
            bodies.append(canonical_lines(tools, convert_to_openai_messages(kept)))
    return bodies, False


def _tokens(story: Story, turns: Sequence[Turn]) -> int:
    """The conversation's length without the reasoning, which is not sent again."""
    count = text_counter().count
    total = Counter({"system": count(story.system)})
    for turn in turns:
        total["said"] += count(turn.user) + count(turn.answer)
        for step in turn.rounds:
            total["tools"] += sum(map(count, step.results))
            total["tools"] += sum(count(f"{c.name}{json.dumps(c.arguments, ensure_ascii=False)}") for c in step.calls)
    return total.total()
