"""The same session as other libraries would send it; the caller keeps the list where they keep none."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ctxfold import Message, system
from ctxfold.backends.openai_chat import canonical_lines
from ctxfold.tokens.text import text_counter
from tests.benchmarks.replay import COUNTER, Step, Trace

__all__ = ["Encoder", "langchain_message", "llama_message", "peer_traces"]

Look = Callable[[], list[int]]
Keep = Callable[[Message], None]


def peer_traces(policy: str, conversation: Sequence[Step], budget: int) -> Iterator[tuple[str, Trace]]:
    """Requests of each peer for the whole session."""
    yield "no management", _traced(conversation, lambda trace: _everything(policy, trace))
    yield "LangChain trim_messages", _traced(conversation, lambda trace: _trimmed(policy, budget, trace))
    yield (
        "LangChain ClearToolUsesEdit, trigger at the budget",
        _traced(conversation, lambda trace: _cleared(policy, budget, trace)),
    )
    yield "LlamaIndex ChatMemoryBuffer", _traced(conversation, lambda trace: _buffer(policy, budget, trace))
    with asyncio.Runner() as runner:
        yield "LlamaIndex Memory", _traced(conversation, lambda trace: _memory(policy, budget, trace, runner))


def _traced(conversation: Sequence[Step], make: Callable[[Trace], tuple[Keep, Look]]) -> Trace:
    trace = Trace()
    keep, look = make(trace)
    for step in conversation:
        for message in step.asked:
            keep(message)
        if step.reply is not None:
            trace.requests.append(look())
            keep(step.reply)
    return trace


def _everything(policy: str, trace: Trace) -> tuple[Keep, Look]:
    lines = [trace.line(system(policy, id="policy"))]
    return lambda message: lines.append(trace.line(message)), lambda: list(lines)


# LangChain


def langchain_message(message: Message) -> Any:
    from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage

    if message.role == "tool":
        result = message.tool_results[0]
        return ToolMessage(result.content, tool_call_id=result.call_id, name=message.name or "tool", id=message.id)
    if message.role == "assistant":
        calls = [
            {"id": c.id, "name": c.name, "args": json.loads(c.arguments), "type": "tool_call"}
            for c in message.tool_calls
        ]
        return AIMessage(message.text, tool_calls=calls, id=message.id)
    return (SystemMessage if message.role == "system" else HumanMessage)(message.text, id=message.id)


class _Lines:
    """Lines and token counts of LangChain's messages, each worked out once: an edited message is another object."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._numbers: dict[int, int] = {}
        self._tokens: dict[int, int] = {}
        self._held: list[Any] = []  # so that no id() is given twice

    def tokens(self, messages: Sequence[Any]) -> int:
        return sum(map(self._count, messages))

    def numbers(self, messages: Sequence[Any]) -> list[int]:
        from langchain_core.messages import convert_to_openai_messages

        for message in messages:
            if id(message) not in self._numbers:
                line = canonical_lines((), convert_to_openai_messages([message]))
                self._numbers[id(message)] = self.trace.add(line, self._count(message))
        return [self._numbers[id(m)] for m in messages]

    def _count(self, message: Any) -> int:
        if id(message) not in self._tokens:
            self._held.append(message)
            calls = getattr(message, "tool_calls", ())
            said = "".join(f"{c['id']}{c['name']}{json.dumps(c['args'])}" for c in calls)
            count = COUNTER.count_text
            self._tokens[id(message)] = 4 + count(message.text) + count(said) + 4 * len(calls)
        return self._tokens[id(message)]


def _trimmed(policy: str, budget: int, trace: Trace) -> tuple[Keep, Look]:
    from langchain_core.messages import trim_messages

    messages = [langchain_message(system(policy, id="policy"))]
    lines = _Lines(trace)
    known = {messages[0].id: messages[0]}

    def keep(message: Message) -> None:
        messages.append(langchain_message(message))
        known[message.id] = messages[-1]

    def look() -> list[int]:
        kept = trim_messages(
            messages,
            max_tokens=budget,
            token_counter=lambda listed: lines.tokens([known[m.id] for m in listed]),
            start_on="human",
            include_system=True,
        )
        return lines.numbers([known[m.id] for m in kept])  # it hands out copies

    return keep, look


def _cleared(policy: str, budget: int, trace: Trace) -> tuple[Keep, Look]:
    """ContextEditingMiddleware applies its edits to a copy of all messages at every call, and keeps none of them."""
    from langchain.agents.middleware.context_editing import ClearToolUsesEdit

    messages = [langchain_message(system(policy, id="policy"))]
    lines = _Lines(trace)
    edit = ClearToolUsesEdit(trigger=budget)
    edited: dict[str, Any] = {}

    def look() -> list[int]:
        copied = list(messages)
        edit.apply(copied, count_tokens=lines.tokens)
        # the same edit makes the same message again: one object for all of them
        same = [m if m is old else edited.setdefault(str(m.id), m) for m, old in zip(copied, messages, strict=True)]
        return lines.numbers(same)

    return lambda message: messages.append(langchain_message(message)), look


# LlamaIndex


def llama_message(message: Message) -> Any:
    from llama_index.core.base.llms.types import ChatMessage, TextBlock, ToolCallBlock

    blocks: list[Any] = [TextBlock(text=message.text)] if message.text or not message.tool_calls else []
    blocks += [
        ToolCallBlock(tool_call_id=c.id, tool_name=c.name, tool_kwargs=json.loads(c.arguments))
        for c in message.tool_calls
    ]
    extra: dict[str, Any] = {"number": message.id}
    if message.role == "tool":
        extra["tool_call_id"] = message.tool_results[0].call_id
    return ChatMessage(role=message.role, blocks=blocks, additional_kwargs=extra)


def _buffer(policy: str, budget: int, trace: Trace) -> tuple[Keep, Look]:
    """Fed the newest messages that overfill its limit: the older ones it would drop one by one, at every call."""
    from llama_index.core.memory import ChatMemoryBuffer

    first = system(policy, id="policy")
    encoder = Encoder()
    known: dict[str, Message] = {}
    newest: list[tuple[Any, int]] = []

    def keep(message: Message) -> None:
        known[message.id] = message
        newest.append((llama_message(message), COUNTER.count_text(message.text)))  # it counts no tool calls
        while sum(tokens for _, tokens in newest[1:]) > budget * 1.05:
            del newest[0]

    def look() -> list[int]:
        buffer = ChatMemoryBuffer.from_defaults(
            chat_history=[m for m, _ in newest], token_limit=budget - COUNTER.count(first), tokenizer_fn=encoder.encode
        )
        shown = [known[m.additional_kwargs["number"]] for m in buffer.get()]
        return [trace.line(m) for m in (first, *shown)]

    return keep, look


def _memory(policy: str, budget: int, trace: Trace, runner: asyncio.Runner) -> tuple[Keep, Look]:
    from llama_index.core.memory import Memory

    first = system(policy, id="policy")
    known: dict[str, Message] = {}
    memory = Memory.from_defaults(
        session_id="tau", token_limit=budget - COUNTER.count(first), tokenizer_fn=Encoder().encode
    )

    def keep(message: Message) -> None:
        known[message.id] = message
        runner.run(memory.aput(llama_message(message)))

    def look() -> list[int]:
        shown = [known[m.additional_kwargs["number"]] for m in runner.run(memory.aget())]
        return [trace.line(m) for m in (first, *shown)]

    return keep, look


class Encoder:
    """A tokenizer for memories that ask for token lists: its lists only have a length, each text's worked out once."""

    def __init__(self) -> None:
        self._lengths: dict[str, int] = {}

    def encode(self, text: str) -> Any:
        if text not in self._lengths:
            self._lengths[text] = text_counter().count(text)
        return range(self._lengths[text])
