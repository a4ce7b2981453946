"""Summarises and compacts lists of messages that no session keeps."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, TypedDict, Unpack

from ctxfold.compaction.strategy import Strategy, Summarizer
from ctxfold.compaction.summarize import HEADING, Summary, summarize
from ctxfold.compaction.transcript import transcript
from ctxfold.connect import message_counter, ports, session_rules
from ctxfold.effects import Flow, arun, flow_of, run
from ctxfold.errors import ConfigError, EmptyMessagesError, SummarizationFailedError
from ctxfold.history.view import Entry
from ctxfold.messages import Message, validated
from ctxfold.policy.settings import Policy
from ctxfold.protocols import ContextBackend, TokenCounter
from ctxfold.session.context import AgentContext
from ctxfold.tokens.text import TextCounter
from ctxfold.validation import unpacked, whole_number

LEAST_WINDOW_TOKENS = 4_000


class SummaryWriter:
    """Writes a summary of a list of messages. A model writes it, and it is checked against the messages and completed by
    verbatim lines.

    Messages of kind "summary" are earlier summaries, which the new one continues. When the model fails or invents facts, an
    extractive summary is used instead; `Summary.fallback_level` and `problems` report it.

    Args:
        backend: the model that writes; None writes extractive summaries.
        context_window: the window of that model, in tokens; None takes the backend's value.
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
        """Returns the summary of all messages; raises SummarizationFailedError when not even one line fits the limit."""
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
        return summary if summary.fallback_level != "truncate" else self._verbatim(messages, summary)

    def _verbatim(self, messages: Sequence[Message], failed: Summary) -> Summary:
        """Returns the messages themselves, where they are too short to be summarised."""
        text = "\n".join([HEADING, *transcript(messages)])
        if (tokens := self._ports.counter.count_text(text)) > self._rules.summary_tokens:
            raise SummarizationFailedError(
                f"{len(messages)} messages ({tokens} tokens) could not be summarised within {self._rules.summary_tokens} tokens: "
                f"{'; '.join(failed.problems)}"
            )
        return replace(failed, text=text, fallback_level="verbatim", archived=0)


class CompactionSettings(TypedDict, total=False):
    """The settings of `compact_messages`.

    Attributes:
        preserve_n_last: how many of the newest messages stay, 4 by default.
        strategy: the name of a built-in strategy, "summarize" by default, or an object of your own: see docs/strategies.md.
        summarizer: the model that writes a summary; without one it is extractive.
        counter: counts tokens; without one tiktoken does.
        context_window: the window in tokens for which the strategy decides; without one it is such that all messages fit.
        summary_tokens: upper limit of a summary, 1,024 by default.
    """

    preserve_n_last: int
    strategy: str | Strategy | Summarizer
    summarizer: ContextBackend | None
    counter: TokenCounter | TextCounter | None
    context_window: int | None
    summary_tokens: int


@unpacked
def compact_messages(
    messages: Sequence[Message], *, pinned: Collection[str] = (), **settings: Unpack[CompactionSettings]
) -> tuple[Message, ...]:
    """Returns the messages as a strategy compacts them. The list itself is not changed, and nothing is stored.

    Kept word for word are system prompts, the messages whose ids are `pinned` (with their tool rounds), the newest user message
    and the newest `preserve_n_last`, 4 by default, which grow to whole tool rounds. The strategy is "summarize" by default, and its
    summary has at most `summary_tokens`, 1,024 by default; without a `summarizer` it is extractive. Without a `context_window` all
    messages fit.

    Raises:
        NotEnoughHistoryError: nothing can be compacted.
        MessageNotFoundError: a pinned id is not in the list.
        StrategyError: a strategy of your own failed or broke its contract.
    """
    with _session_for(messages, settings) as context:
        return context.handle.run_flow(lambda _: _compacted(context, messages, pinned))


@unpacked
async def acompact_messages(
    messages: Sequence[Message], *, pinned: Collection[str] = (), **settings: Unpack[CompactionSettings]
) -> tuple[Message, ...]:
    """The async form of `compact_messages`."""
    with _session_for(messages, settings) as context:
        return await context.handle.arun_flow(lambda _: _compacted(context, messages, pinned))


def _compacted(
    context: AgentContext, messages: Sequence[Message], pinned: Collection[str]
) -> Flow[tuple[Message, ...]]:
    yield from flow_of(AgentContext.add)(context, messages)
    if pinned:
        yield from flow_of(AgentContext.pin)(context, *pinned)
    yield from flow_of(AgentContext.compact)(context, force=True)
    return (yield from flow_of(AgentContext.view)(context)).messages


def _session_for(messages: Sequence[Message], settings: CompactionSettings) -> AgentContext:
    """Returns an empty session in memory, which compacts only on demand."""
    if (name := next((n for n in settings if n not in CompactionSettings.__annotations__), None)) is not None:
        raise ConfigError(
            f"compact_messages has no setting {name!r}: there are {', '.join(CompactionSettings.__annotations__)}"
        )
    # a list has no archive, so its summary refers to no message
    given: dict[str, Any] = {"strategy": "summarize", "summary_tokens": 1_024, "references": False, **settings}
    count = message_counter(given.pop("counter", None))
    preserved = given.pop("preserve_n_last", 4)
    given["keep_last"] = whole_number(
        "preserve_n_last", preserved, "give how many of the newest messages stay, 1 or more"
    )
    if given.get("context_window") is None:
        # pins may take a quarter of the budget, and the newest messages half of it
        given["context_window"] = max(LEAST_WINDOW_TOKENS, 8 * sum(count.count(validated(m)) for m in messages))
    return AgentContext(counter=count, auto_compact=False, **given)
