"""What is said in the tests, as LlamaIndex's messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llama_index.core.base.llms.types import ChatMessage, ToolCallBlock

FACT = "My locker number is 4711 and it stands on the ninth floor."
QUESTION = "What is my locker number?"


def user(text: str) -> ChatMessage:
    return ChatMessage(role="user", content=text)


def bot(text: str) -> ChatMessage:
    return ChatMessage(role="assistant", content=text)


def calling(*ids: str) -> ChatMessage:
    return ChatMessage(
        role="assistant", blocks=[ToolCallBlock(tool_call_id=i, tool_name="look", tool_kwargs={"q": i}) for i in ids]
    )


def searching(call_id: str, **kwargs: Any) -> ChatMessage:
    return ChatMessage(
        role="assistant", blocks=[ToolCallBlock(tool_call_id=call_id, tool_name="search", tool_kwargs=kwargs)]
    )


def result(call_id: str, text: str = "") -> ChatMessage:
    return ChatMessage(role="tool", content=text or f"found {call_id}", additional_kwargs={"tool_call_id": call_id})


def words(word: str, count: int) -> str:
    return " ".join([word] * count)


def contents(messages: Sequence[ChatMessage]) -> list[str | None]:
    return [m.content for m in messages]


def parking(i: int) -> list[ChatMessage]:
    return [user(f"Employee {i} has the parking place {i * 37 % 101} in street {i}."), bot(f"Noted for employee {i}.")]
