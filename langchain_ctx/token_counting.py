"""Provides the engine's token count as a function for `trim_messages` and similar callers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, MessageLikeRepresentation, ToolMessage, convert_to_messages

from ctxfold.connect import message_counter
from ctxfold.errors import ConfigError, MessageError
from ctxfold.protocols import TokenCounter
from ctxfold.tokens.text import TextCounter
from ctxfold.validation import is_a, kind_of
from langchain_ctx.messages import from_langchain
from langchain_ctx.models import model_name
from langchain_ctx.tools import counted

REMEMBERED = 100_000  # counts; each takes about 100 bytes
_PLAIN = (str, int, float)


def token_counter(
    model: BaseChatModel | str | None = None,
    *,
    counter: TokenCounter | TextCounter | None = None,
    tools: Sequence[Any] = (),
    count_reasoning: bool = True,
) -> MessageTokens:
    """Returns a function that counts the tokens of messages as ctxfold does.

    ```python
    trim_messages(messages, max_tokens=4_000, token_counter=token_counter(model))
    ```
    It counts text in every script, reasoning, tool calls with their arguments, tool results and media. Counts are cached by
    message. `tools` are added to every count; `counter` replaces the model's encoding.
    """
    if model is not None and not is_a(model, (str, BaseChatModel)):
        raise ConfigError(
            f"the model of token_counter is {kind_of(model)}: give a LangChain chat model, or a model's name"
        )
    name = model_name(model) if isinstance(model, BaseChatModel) else model
    return MessageTokens(message_counter(counter, model=name, count_reasoning=count_reasoning), tools)


class MessageTokens:
    """The counter that `token_counter` returns. It is safe across threads.

    It takes messages in any order, and any message that LangChain converts.
    """

    def __init__(self, counter: TokenCounter, tools: Sequence[Any]) -> None:
        self._counter = counter
        self._tools_tokens = counter.count_tools(counted(tools))
        self._known: dict[int, int] = {}

    def __call__(self, messages: Iterable[MessageLikeRepresentation], *, tools: Sequence[Any] | None = None) -> int:
        known, total = self._known, self._tools_tokens
        for item in messages:
            message = item if isinstance(item, BaseMessage) else convert_to_messages([item])[0]
            # by 64 bits of what is counted, not by id: a trimmed copy keeps the id, and no content is kept alive
            key = hash(_counted(message))
            tokens = known.get(key)
            total += self._count(key, message) if tokens is None else tokens
        return total + (self._counter.count_tools(counted(tools)) if tools else 0)

    def _count(self, key: int, message: BaseMessage) -> int:
        try:
            tokens = self._counter.count(from_langchain(message, new_id=str))
        except MessageError:  # what no model is sent, such as a role of one's own, still has a text
            tokens = self._counter.count_text(message.text)
        if len(self._known) >= REMEMBERED:
            self._known.clear()
        self._known[key] = tokens
        return tokens


def _counted(message: BaseMessage) -> tuple[object, ...]:
    """Returns all that the count of a message depends on, as a hashable value; strings are shared and cache their hash."""
    content, kwargs = message.content, message.additional_kwargs
    content_key = content if isinstance(content, str) else _frozen(content)
    rest = _frozen(kwargs) if kwargs else None
    if isinstance(message, AIMessage):
        return message.type, content_key, rest, _frozen(message.tool_calls) if message.tool_calls else None
    return message.type, content_key, rest, message.tool_call_id if isinstance(message, ToolMessage) else None


def _frozen(value: object) -> object:
    if value is None or isinstance(value, _PLAIN):
        return value
    if isinstance(value, dict):
        items = cast("dict[str, object]", value).items()
        return tuple([(name, item if isinstance(item, str) else _frozen(item)) for name, item in items])
    if isinstance(value, list | tuple):
        return tuple([_frozen(item) for item in cast("Sequence[object]", value)])
    return repr(value)
