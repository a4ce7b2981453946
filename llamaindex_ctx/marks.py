"""What is noted on LlamaIndex messages, and under which names."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from llama_index.core.base.llms.types import ChatMessage, MessageRole

__all__ = [
    "ID_KEY",
    "KIND_KEY",
    "NAMESPACE",
    "REASONING_KEY",
    "Json",
    "is_section",
    "is_summary",
    "section",
    "without_marks",
]

ID_KEY: Final = "ctxfold_id"
KIND_KEY: Final = "ctxfold_kind"
NAMESPACE: Final = "llama_index"
REASONING_KEY: Final = "reasoning_content"  # where OpenAI-like integrations look for it
Json: TypeAlias = dict[str, Any]


def is_section(message: ChatMessage) -> bool:
    """Whether an engine injected the message for one request: it is never stored."""
    return message.additional_kwargs.get(KIND_KEY) == "section"


def is_summary(message: ChatMessage) -> bool:
    """Whether an engine wrote the message to stand for older ones."""
    return message.additional_kwargs.get(KIND_KEY) == "summary"


def section(text: str) -> ChatMessage:
    """Text for one request only, in the user role, marked so that it is never stored."""
    return ChatMessage(role=MessageRole.USER, content=text, additional_kwargs={KIND_KEY: "section"})


def without_marks(message: ChatMessage, *, keep_id: bool = False) -> ChatMessage:
    """The message without what was noted on it here."""
    marks = {KIND_KEY} if keep_id else {ID_KEY, KIND_KEY}
    kwargs = {k: v for k, v in message.additional_kwargs.items() if k not in marks}
    return message.model_copy(update={"additional_kwargs": kwargs})
