"""LlamaIndex's scripted model for its agents, a tool for them, and what to ask of the memory they leave."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.llms.llm import ToolSelection
from llama_index.core.llms.mock import MockFunctionCallingLLM

from llamaindex_ctx import CtxMemory


def selecting(*calls: tuple[str, str, dict[str, Any]], text: str = "") -> ChatMessage:
    """As LlamaIndex's scripted model calls tools: beside the message, not in blocks."""
    chosen = [ToolSelection(tool_id=i, tool_name=name, tool_kwargs=kwargs) for i, name, kwargs in calls]
    return ChatMessage(role="assistant", content=text, additional_kwargs={"tool_calls": chosen})


class Script(MockFunctionCallingLLM):
    """LlamaIndex's scripted model, one answer after the other; keeps what it was sent."""

    def __init__(self, *answers: ChatMessage) -> None:
        super().__init__(response_generator=self._next)
        self._answers = list(answers)
        self._sent: list[list[ChatMessage]] = []

    def _next(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatMessage:
        self._sent.append(list(messages))
        return self._answers[min(len(self._sent), len(self._answers)) - 1]

    @property
    def sent(self) -> list[list[ChatMessage]]:
        return self._sent


def roles(messages: Sequence[ChatMessage]) -> list[str]:
    return [m.role.value for m in messages]


def legal(memory: CtxMemory) -> bool:
    """Whether every call of the window is answered right behind it, and every result has its call."""
    waiting: set[str] = set()
    for message in memory.context.window().messages:
        if message.role == "tool":
            if not {r.call_id for r in message.tool_results} <= waiting:
                return False
            waiting -= {r.call_id for r in message.tool_results}
        elif waiting:
            return False
        else:
            waiting = {c.id for c in message.tool_calls}
    return not waiting


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b
