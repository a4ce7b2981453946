"""What is said in the tests, as LlamaIndex's messages."""

from __future__ import annotations

from llama_index.core.base.llms.types import ChatMessage


def user(text: str) -> ChatMessage:
    return ChatMessage(role="user", content=text)


def bot(text: str) -> ChatMessage:
    return ChatMessage(role="assistant", content=text)


def parking(i: int) -> list[ChatMessage]:
    return [user(f"Employee {i} has the parking place {i * 37 % 101} in street {i}."), bot(f"Noted for employee {i}.")]
