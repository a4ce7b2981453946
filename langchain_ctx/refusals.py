"""Shows a refused reply as LangChain does: a block in its `content_blocks`, and an error in place of a structured answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Final

from langchain_core import exceptions as lc
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.block_translators import get_translator, register_translator
from langchain_core.runnables import Runnable, RunnableGenerator

# since langchain-core 1.7.5
ModelRefusalError: Final[type[Exception]] = getattr(lc, "ModelRefusalError", lc.OutputParserException)
_REFUSED: Final = "content_filter"  # the finish reason of a refused reply, whatever its provider calls it
_OF_LANGCHAIN: Final = ("anthropic", "bedrock", "groq", "openai")  # whose own packages return other messages
_OF_CTXFOLD: Final = ("azure", "gemini", "vertex")  # names that no package of LangChain has


def provider_label(provider: str) -> str:
    """Returns the provider's name for metadata, or another where LangChain expects messages of that provider's own package."""
    return f"ctx-{provider}" if provider not in _OF_CTXFOLD and get_translator(provider) else provider


def refusal_block(message: BaseMessage) -> dict[str, Any] | None:
    """Returns LangChain's standard block for a refused reply of ChatCtx, which may be without text; None for other messages."""
    if message.response_metadata.get("finish_reason") != _REFUSED:
        return None
    return {"type": "refusal", "refusal": message.additional_kwargs.get("refusal") or ""}


def unless_refused() -> Runnable[Any, Any]:
    """Returns a step that passes on a model's reply, also in chunks, or a mapping with a reply as its `raw`.

    It raises ModelRefusalError where the model refused.
    """
    return _step(_is_accepted, lambda _: None)


def unless_no_call() -> Runnable[Any, Any]:
    """Returns a step that passes on a model's reply, also in chunks. It raises OutputParserException for one without a call."""
    return _step(_calls, _check_called)


def _step(check: Callable[[Any], bool], check_end: Callable[[bool], None]) -> Runnable[Any, Any]:
    """Returns a step that passes on replies; `check_end` is told at the end whether `check` was true for one of them."""

    def passed(replies: Iterator[Any]) -> Iterator[Any]:
        found = False
        for reply in replies:
            found = check(reply) or found
            yield reply
        check_end(found)

    async def apassed(replies: AsyncIterator[Any]) -> AsyncIterator[Any]:
        found = False
        async for reply in replies:
            found = check(reply) or found
            yield reply
        check_end(found)

    return RunnableGenerator(passed, apassed)


def _calls(reply: BaseMessage) -> bool:
    return bool(getattr(reply, "tool_call_chunks", None) or getattr(reply, "tool_calls", None)) or (
        refusal_block(reply) is not None
    )


def _check_called(calls: bool) -> None:
    if not calls:
        raise lc.OutputParserException(
            "the model answered without the tool call of the schema, and cannot be forced to make it: ask for it in the prompt, "
            "or use method='json_schema'"
        )


def _is_accepted(reply: Any) -> bool:
    message: BaseMessage = reply if isinstance(reply, BaseMessage) else reply["raw"]
    if (block := refusal_block(message)) is not None:
        reason = f": {block['refusal']}" if block["refusal"] else ""
        error = ModelRefusalError(f"the model refused to answer{reason}")
        error.raw_message = message  # type: ignore[attr-defined]
        raise error
    return True


def _content_blocks(message: AIMessage | AIMessageChunk) -> list[Any]:
    block = refusal_block(message)
    if block is None:
        raise NotImplementedError  # LangChain goes on with its best-effort parsing
    parsed = message.model_copy(update={"response_metadata": {}}).content_blocks
    return [*parsed, block]


for _label in (*map(provider_label, _OF_LANGCHAIN), *_OF_CTXFOLD):
    register_translator(_label, _content_blocks, _content_blocks)
