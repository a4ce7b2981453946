"""Checked summaries of messages that no session keeps, for whoever stores a conversation elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ctxfold.budget import Policy
from ctxfold.compaction.summarize import HEADING, Summary, summarize
from ctxfold.compaction.transcript import transcript
from ctxfold.connect import ports, session_rules
from ctxfold.errors import EmptyMessagesError, SummarizationFailedError
from ctxfold.flow import Flow, arun, run
from ctxfold.history.view import Entry
from ctxfold.messages import Message, validated
from ctxfold.ports import ContextBackend, TokenCounter
from ctxfold.tokens import TextCounter

__all__ = ["Summary", "SummaryWriter"]


class SummaryWriter:
    """Writes what can stand for a list of messages: by a model, checked against them and completed by verbatim lines.

    Messages of kind "summary" are earlier summaries, and are carried over. Where the model fails or invents, an extractive
    summary takes over; `Summary.rung` and `problems` say so.

    Args:
        backend: the model that writes; None writes extractive summaries.
        context_window: of that model, in tokens; None takes what the backend knows.
        summary_tokens: upper limit of a summary; one is never longer than half of its source.
        prompt: instructions in place of the built-in ones; {words} becomes the limit.
    """

    def __init__(
        self,
        backend: ContextBackend | None = None,
        *,
        context_window: int | None = None,
        summary_tokens: int = 2_048,
        counter: TokenCounter | TextCounter | None = None,
        prompt: str | None = None,
    ) -> None:
        self._rules: Policy = session_rules(
            context_window, backend, summary_tokens=summary_tokens, summary_prompt=prompt, references=False
        )
        self._ports = ports(store=None, backend=backend, counter=counter)

    @property
    def counter(self) -> TokenCounter:
        return self._ports.counter

    def write(self, messages: Sequence[Message]) -> Summary:
        """The summary of all the messages. SummarizationFailedError when not even a line of them fits the limit."""
        return run(self._written(messages), self._ports)

    async def awrite(self, messages: Sequence[Message]) -> Summary:
        return await arun(self._written(messages), self._ports)

    def _written(self, messages: Sequence[Message]) -> Flow[Summary]:
        if not messages:
            raise EmptyMessagesError("no message to summarise: give at least one")
        counter = self._ports.counter
        entries = [Entry(m.id, n, validated(m), counter.count(m)) for n, m in enumerate(messages, 1)]
        window = None if self._ports.backend is None else self._rules.context_window
        summary = yield from summarize(entries, rules=self._rules, counter=counter, window_tokens=window)
        # that line points to an archive, and there is none here
        return summary if summary.rung != "truncate" else self._verbatim(messages, summary)

    def _verbatim(self, messages: Sequence[Message], failed: Summary) -> Summary:
        """Messages that are too short to be summarised stand for themselves."""
        text = "\n".join([HEADING, *transcript(messages)])
        if (tokens := self._ports.counter.count_text(text)) > self._rules.summary_tokens:
            raise SummarizationFailedError(
                f"{len(messages)} messages ({tokens} tokens) could not be summarised within {self._rules.summary_tokens} tokens: "
                f"{'; '.join(failed.problems)}"
            )
        return replace(failed, text=text, rung="verbatim", archived=0)
