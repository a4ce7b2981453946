"""`ContextSummarizer`: our summaries for people who keep `SummarizationMiddleware`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from langchain_core.messages import BaseMessage, HumanMessage, MessageLikeRepresentation, convert_to_messages
from langchain_core.runnables import Runnable, RunnableConfig

from ctxfold.ports import TokenCounter
from ctxfold.summaries import Summary, SummaryWriter
from ctxfold.tokens import TextCounter
from langchain_ctx.convert import from_langchain
from langchain_ctx.errors import translated
from langchain_ctx.summarizer import as_summarizer

__all__ = ["ContextSummarizer"]

_LEAD = "Here is a summary of the conversation to date:"  # how that middleware begins the message with its summary


class ContextSummarizer(Runnable[Sequence[MessageLikeRepresentation], str]):
    """Messages in, the text of their summary out: written by a model, checked, completed by verbatim lines.

    ```python
    SummarizationMiddleware(
        model,
        trigger=("tokens", 50_000),
        token_counter=token_counter(model),
        summarizer=ContextSummarizer(model),
        trim_tokens_to_summarize=None,  # else it is handed the last 4,000 tokens, and the rest is lost unread
    )
    ```
    The summary before is known as such and carried over. Where the model fails or invents, an extractive summary takes over:
    the agent's turn goes on. Long lists are summarised in pieces that fit the model's window.

    Args:
        model: who writes: a chat model or a backend; None writes extractive summaries.
        context_window: of that model, in tokens; None takes its profile's.
        summary_tokens: upper limit of a summary; one is never longer than half of its source.
        prompt: instructions in place of the built-in ones; {words} becomes the limit, other braces are text.
        on_summary: is told of every summary: what wrote it, what is kept, what went wrong.
    """

    def __init__(
        self,
        model: Any = None,
        *,
        context_window: int | None = None,
        summary_tokens: int = 2_048,
        counter: TokenCounter | TextCounter | None = None,
        prompt: str | None = None,
        on_summary: Callable[[Summary], object] | None = None,
    ) -> None:
        self._writer = SummaryWriter(
            as_summarizer(model),
            context_window=context_window,
            summary_tokens=summary_tokens,
            counter=counter,
            prompt=prompt,
        )
        self._on_summary = on_summary

    def invoke(
        self, input: Sequence[MessageLikeRepresentation], config: RunnableConfig | None = None, **kwargs: Any
    ) -> str:
        return self._call_with_config(self._summarize, input, config)

    async def ainvoke(
        self, input: Sequence[MessageLikeRepresentation], config: RunnableConfig | None = None, **kwargs: Any
    ) -> str:
        return await self._acall_with_config(self._asummarize, input, config)

    def _summarize(self, given: Sequence[MessageLikeRepresentation]) -> str:
        with translated():
            return self._told(self._writer.write([_message(m) for m in convert_to_messages(given)]))

    async def _asummarize(self, given: Sequence[MessageLikeRepresentation]) -> str:
        with translated():
            return self._told(await self._writer.awrite([_message(m) for m in convert_to_messages(given)]))

    def _told(self, summary: Summary) -> str:
        if self._on_summary is not None:
            self._on_summary(summary)
        return summary.text


def _message(message: BaseMessage) -> Any:
    told = from_langchain(message)
    if isinstance(message, HumanMessage) and message.additional_kwargs.get("lc_source") == "summarization":
        text = HumanMessage(message.text.removeprefix(_LEAD).strip(), id=told.id)
        return replace(from_langchain(text), kind="summary")
    return told
