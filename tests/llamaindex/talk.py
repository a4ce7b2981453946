"""What is said in the tests, as LlamaIndex's messages."""

from __future__ import annotations

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


def result(call_id: str) -> ChatMessage:
    return ChatMessage(role="tool", content=f"found {call_id}", additional_kwargs={"tool_call_id": call_id})


def parking(i: int) -> list[ChatMessage]:
    return [user(f"Employee {i} has the parking place {i * 37 % 101} in street {i}."), bot(f"Noted for employee {i}.")]
