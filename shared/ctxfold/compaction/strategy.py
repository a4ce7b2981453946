"""Defines strategies, which decide on one `CompactionInput` what to compact. Strategies of users are checked before use."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, Protocol, TypeAlias, cast, runtime_checkable

from ctxfold.errors import CtxError, StrategyError
from ctxfold.history.cuts import check_sequence, kept, legal_cuts
from ctxfold.history.records import Subgoal
from ctxfold.history.view import Entry, View
from ctxfold.messages import Message, ToolCallPart, is_question
from ctxfold.policy.settings import Policy
from ctxfold.policy.triggers import Signals, Verdict, counts, evaluate
from ctxfold.protocols import TokenCounter
from ctxfold.validation import kind_of

Occasion: TypeAlias = Literal["after_turn", "must_fit", "on_demand"]
Writer: TypeAlias = Literal["provider", "model", "extractive", "note", "none"]

_IN_REASONS: Mapping[Occasion, str] = {
    "after_turn": "after the turn",
    "must_fit": "before a request",
    "on_demand": "on demand",
}


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """The facts about a session that a decision needs beyond the view.

    Args:
        pins: ids of pinned messages.
        turns_since_summary: turns closed since the last summary was written.
        turn_id: the open turn that is compacted, None for the session's past.
        overhead_tokens: tokens of the request besides the view (tools, scratch).
        occasion: "after_turn" when a turn has closed (triggers and cooldown apply), "must_fit" when a request has to fit the
            budget, "on_demand" when the user asks.
        idle_s: seconds since the last message, where a turn begins.
        goal: the goal of the conversation, "" when unknown.
        subgoals: the steps towards the goal, oldest first.
        deferred: summaries of tool outputs that are not shown yet, as entries by message id.
        gives_way: ids of messages that need not stay: the newest user message where it has its answer and no request can hold it,
            and the newest system message where the open turn has a newer one.
        saved_tokens: tokens by which the view is shorter than without any compaction.
    """

    pins: Collection[str]
    turns_since_summary: int
    turn_id: str | None = None
    overhead_tokens: int = 0
    occasion: Occasion = "after_turn"
    idle_s: float = 0.0
    goal: str = ""
    subgoals: tuple[Subgoal, ...] = ()
    deferred: Mapping[str, Entry] = field(default_factory=dict[str, Entry])
    gives_way: frozenset[str] = frozenset()
    saved_tokens: int = 0

    def kept(self, entries: Sequence[Entry], *, question: bool = True) -> frozenset[str]:
        """Returns the ids that stay verbatim even left of a cut, as `cuts.kept` does, without those in `gives_way`."""
        return kept(entries, pins=self.pins, question=question) - self.gives_way


@dataclass(frozen=True, slots=True)
class Plan:
    """Describes one epoch change: a summary replaces the `covered` entries, and the `shown` messages replace their originals.

    Args:
        strategy: name of the strategy that made the plan.
        reason: why, with the numbers; stored with the compaction.
        tokens_before: tokens of the view now.
        tokens_after: upper estimate of the tokens of the view afterwards.
        covered: entries that the summary replaces.
        shown: stand-ins for messages, under the same ids.
        turn_id: set when the covered entries belong to an open turn.
        writer: who writes the summary: "provider" (the conversation's service, or else "model"), "model" (with its fallbacks),
            "extractive", "note" (one line) or "none" (the entries leave without a summary).
        text: a summary that exists already.
        rewrite: a function, sync or async, that returns the new message list; the plan becomes the difference.
        within: the covered entries are live messages, and the summary takes their place among them.
    """

    strategy: str
    reason: str
    tokens_before: int
    tokens_after: int
    covered: tuple[Entry, ...] = ()
    shown: tuple[Message, ...] = ()
    turn_id: str | None = None
    writer: Writer = "model"
    text: str | None = None
    rewrite: Callable[[], Sequence[Message] | Awaitable[Sequence[Message]]] | None = None
    within: bool = False

    @property
    def freed_tokens(self) -> int:
        """Returns the number of tokens that the plan frees at least."""
        return self.tokens_before - self.tokens_after


@dataclass(frozen=True, slots=True)
class Skip:
    """The decision not to compact now, with the reason; `exhausted` is True when one is due but would not free enough."""

    reason: str
    exhausted: bool = False


Decision: TypeAlias = Plan | Skip


def reason_for(occasion: Occasion, explanation: str) -> str:
    """Returns the reason of a plan: the occasion and the numbers behind it."""
    return f"{_IN_REASONS[occasion]}: {explanation}"


MIN_FREE_TOKENS = 256  # a trigger may fire on a short history; freeing less is not worth a break of the prefix
HEADING_TOKENS = 32  # role and heading, which come on top of a summary's limit


@dataclass(frozen=True, slots=True)
class CompactionInput:
    """The input of a strategy: the view, the session's policy, and the occasion on which it is asked (`facts.occasion`)."""

    view: View
    facts: SessionFacts
    rules: Policy
    counter: TokenCounter

    @property
    def used_tokens(self) -> int:
        """Returns the tokens of the next request, with tools and other overhead."""
        return self.view.tokens + self.facts.overhead_tokens

    @property
    def needed_tokens(self) -> float:
        """Returns the tokens that a compaction has to free: a share of the budget, or of the used tokens where a trigger fires
        earlier.

        Where the trigger names an amount, the share is of the tokens that a compaction may replace, however few.
        """
        rules, ratio = self.rules, self.rules.min_free_ratio
        if rules.trigger is None:
            return ratio * rules.budget_tokens
        if counts(rules.trigger):
            return max(1.0, ratio * min(rules.budget_tokens, self.touchable_tokens))
        return min(ratio * rules.budget_tokens, max(ratio * self.used_tokens, MIN_FREE_TOKENS))

    @property
    def touchable_tokens(self) -> int:
        """Returns the tokens of the view without system prompts."""
        return self.view.tokens - sum(e.tokens for e in self.view.system)

    @property
    def fits(self) -> bool:
        """Returns True when the next request is within the budget as it is."""
        return self.used_tokens <= self.rules.budget_tokens

    def due(self) -> Verdict | None:
        """Returns the verdict of the policy's trigger; None when it has none, and the ratios apply."""
        trigger = self.rules.trigger
        return None if trigger is None else evaluate(trigger, self.signals())

    def signals(self) -> Signals:
        """Returns the numbers that triggers compare. Reads the whole live conversation, for its mean growth per call."""
        rules, view = self.rules, self.view
        calls = sum(e.message.role == "assistant" for e in view.live)
        fixed = sum(e.tokens for e in view.system)
        compressed = sum(e.tokens for e in view.compressed)
        live: float = view.tokens - fixed - compressed - sum(e.tokens for e in view.turn)
        if (last := view.last()) is not None and last.number and compressed:
            # of the whole session: what is left after a compaction is a small sample
            live = (self.touchable_tokens + self.facts.saved_tokens) * len(view.live) / last.number
        return Signals(
            used_tokens=self.used_tokens,
            budget_tokens=rules.budget_tokens,
            messages=len(view.live),
            turns=sum(e.message.role == "assistant" and not e.message.tool_calls for e in view.live),
            turns_since_summary=self.facts.turns_since_summary,
            idle_s=self.facts.idle_s,
            growth_tokens_per_call=live / calls if calls else 0.0,
            size_after_tokens=fixed + self.facts.overhead_tokens + rules.summary_tokens,
            summary_tokens=rules.summary_tokens,
            tail_ratio=rules.tail_ratio,
            prompt_tokens=fixed,
        )

    def older_than(self, count: int) -> tuple[Entry, ...]:
        """Returns the live entries before the newest `count`, back to a legal cut, without those that have to stay."""
        live = self.view.live
        cut = max((c for c in legal_cuts(live) if c <= len(live) - count), default=0)
        keep = self.facts.kept(live)
        return tuple(e for e in live[:cut] if e.id not in keep)

    def summarize(self, entries: Iterable[Entry], reason: str, *, writer: Writer = "model") -> Decision:
        """Returns a plan that replaces the entries, and the summaries before them, with one summary."""
        covered = (*self.view.compressed, *entries)
        if not covered:
            return Skip(f"{reason}: there is nothing to summarise")
        tokens = sum(e.tokens for e in covered)
        limit = 0 if writer == "none" else min(self.rules.summary_tokens + HEADING_TOKENS, tokens // 2)
        after = self.view.tokens - tokens + limit
        return Plan("", reason, self.view.tokens, after, covered=covered, writer=writer)

    def drop(self, entries: Iterable[Entry], reason: str) -> Decision:
        """Returns a plan that removes the entries, and the summaries before them, from the view; the archive keeps them."""
        return self.summarize(entries, reason, writer="none")


class Strategy(Protocol):
    """Decides what to compact.

    `name` is stored in the session's policy. `plan` is called when a turn has closed, when a request has to fit and on demand. It
    has to be pure: it changes nothing and may be called any number of times.
    """

    @property
    def name(self) -> str: ...

    def plan(self, case: CompactionInput) -> Decision: ...


@runtime_checkable
class Summarizer(Protocol):
    """Rewrites a message list: `summarize` returns a shorter one, made of messages of the old list and of new text messages.

    Dropping a system prompt, the newest user message or a pinned one, changing a message, or separating a tool call from its
    results raises StrategyError, and nothing is changed. `summarize` may be async; `should_summarize` is called often and may not.
    """

    def should_summarize(self, history: list[Message]) -> bool: ...

    def summarize(self, history: list[Message]) -> list[Message] | Awaitable[list[Message]]: ...


# what a constructor takes; a function is called with the messages and returns those that stay
StrategyLike: TypeAlias = str | Strategy | Summarizer | Callable[[list[Message]], Sequence[Message]]


@dataclass(frozen=True, slots=True)
class SummarizerStrategy:
    """Adapts a `Summarizer`. Its new messages become one summary in front of the remaining conversation.

    It is also asked before each request, between tool rounds as well; it sees the whole turn under way, and all of that stays.
    """

    summarizer: Summarizer
    name: str

    def plan(self, case: CompactionInput) -> Decision:
        history = [m for m in case.view.messages if m.kind != "section"]
        if case.facts.occasion != "on_demand":
            due: object = self.summarizer.should_summarize(list(history))
            _check_plain(due, f"should_summarize of {self.name!r}")
            if not due:
                return Skip("the summarizer sees nothing to do")
        call = partial(self.summarizer.summarize, list(history))
        reason = reason_for(case.facts.occasion, self.name)
        return Plan(self.name, reason, case.view.tokens, case.view.tokens, rewrite=call)


@dataclass(frozen=True, slots=True)
class FunctionStrategy:
    """Adapts a function that returns what stays of a conversation, such as `lambda messages: messages[-20:]`.

    It is called after each turn, where the policy has a trigger only when that is due, and before a request that has to fit. It is
    given the messages without system prompts, which stay. What it leaves out is kept in the archive. StrategyError, and nothing
    is changed, where it returns a message that it was not given, changes one or their order, or separates a call from its results,
    or drops the newest user message or a pinned one.
    """

    stays: Callable[[list[Message]], Sequence[Message]]
    name: str

    def plan(self, case: CompactionInput) -> Decision:
        due = case.due() if case.facts.occasion == "after_turn" else None
        if due is not None and not due.due:
            return Skip(due.explanation)
        reason = reason_for(case.facts.occasion, self.name if due is None else f"{self.name}, {due.explanation}")
        return Plan(self.name, reason, case.view.tokens, case.view.tokens, rewrite=partial(self._rewrite, case.view))

    def _rewrite(self, view: View) -> Sequence[Message]:
        prompts = [e.message for e in view.system]
        given = [m for m in view.messages if m.kind != "section"][len(prompts) :]
        result = self.stays(list(given))
        _check_plain(result, self.name)
        stays, known = tuple(result), {m.id for m in given}
        if new := next((m for m in stays if getattr(m, "id", None) not in known), None):
            raise StrategyError(
                f"strategy {self.name!r} returned {kind_of(new)} that is none of the messages it was given: return some of these; "
                "an object with should_summarize(history) and summarize(history) may add a summary"
            )
        return [*prompts, *stays]


def as_strategy(candidate: object) -> Strategy:
    """Returns the object as a strategy: one with `plan`, one with `should_summarize` and `summarize`, or a function.

    Raises StrategyError for any other.
    """
    name = getattr(candidate, "name", None) or type(candidate).__name__
    if callable(getattr(candidate, "plan", None)):
        if not isinstance(getattr(candidate, "name", None), str):
            raise StrategyError(
                f"the strategy {type(candidate).__name__} has no name: give it one (name = 'mine'); sessions store it"
            )
        strategy: Strategy = candidate  # type: ignore[assignment]
        _refuse_async(strategy.plan, f"plan of {strategy.name!r}")
        return strategy
    if isinstance(candidate, Summarizer):
        _refuse_async(candidate.should_summarize, f"should_summarize of {name!r}")
        return SummarizerStrategy(candidate, str(name))
    if callable(candidate) and not isinstance(candidate, type):
        name = getattr(candidate, "__name__", str(name))
        _refuse_async(candidate, f"the strategy {name!r}")
        return FunctionStrategy(cast("Callable[[list[Message]], Sequence[Message]]", candidate), name)
    raise StrategyError(
        f"{type(candidate).__name__} is not a strategy: it needs plan(case), or should_summarize(history) and summarize(history), "
        "or be a function from the messages to those that stay"
    )


def decide(strategy: Strategy, case: CompactionInput) -> Decision:
    """Returns the strategy's decision. Raises StrategyError when it fails, returns no decision, or plans what is not allowed."""
    try:
        decision = cast("object", strategy.plan(case))
        _check_plain(decision, f"plan of {strategy.name!r}")
        if isinstance(decision, Skip) or (isinstance(decision, Plan) and decision.rewrite is not None):
            return decision
        if isinstance(decision, Plan):
            return checked(replace(decision, strategy=decision.strategy or strategy.name), case)
    except CtxError:
        raise
    except Exception as error:
        raise StrategyError(f"strategy {strategy.name!r} raised {error!r}; nothing was compacted") from error
    raise StrategyError(
        f"strategy {strategy.name!r} returned {type(decision).__name__}; nothing was compacted: return a Plan, or "
        "Skip(reason) where nothing is to be done"
    )


def checked(plan: Plan, case: CompactionInput) -> Plan:
    """Returns the plan; StrategyError when it leaves an illegal conversation or removes a message that has to stay."""
    entries = case.view.turn if plan.turn_id is not None else (*case.view.compressed, *case.view.live)
    known = {e.id: e for e in entries}
    newest_elsewhere = any(is_question(e.message) for e in case.view.turn)
    keep = case.facts.kept(entries, question=plan.turn_id is not None or not newest_elsewhere)
    covered = {e.id for e in plan.covered}
    for entry in plan.covered:
        if known.get(entry.id) != entry:
            raise StrategyError(
                f"strategy {plan.strategy!r} covers {entry.id!r}, which is not in the conversation as it is"
            )
    _check_kept(plan.strategy, covered | {m.id for m in plan.shown}, keep)
    for message in plan.shown:
        old = known.get(message.id)
        if old is None or _shape(old.message) != _shape(message):
            raise StrategyError(f"strategy {plan.strategy!r} shows another message under the id {message.id!r}")
    _check_rounds(plan.strategy, [e.message for e in entries if e.id not in covered])
    return plan


def rewritten(plan: Plan, case: CompactionInput, result: Sequence[Message]) -> Decision:
    """Returns the plan that turns the view into a summarizer's message list; StrategyError where the list breaks the contract."""
    name, view = plan.strategy, case.view
    turn_ids = {e.id for e in view.turn}  # the turn being answered stays, whatever the result has of it
    result = [m for m in result if m.id not in turn_ids]
    answering = any(is_question(e.message) for e in view.turn)
    history = {e.id: e for e in (*view.system, *view.compressed, *view.live) if e.message.kind != "section"}
    new = [m for m in result if m.id not in history]
    remaining = [m for m in result if m.id in history]
    ids = [m.id for m in remaining]
    if ids != [i for i in history if i in set(ids)]:
        raise StrategyError(f"summarizer {name!r} changed the order of the messages, or has one twice")
    for message in remaining:
        if history[message.id].message != message:
            raise StrategyError(f"summarizer {name!r} changed the message {message.id!r}: leave it or drop it")
    removed = [e for e in history.values() if e.id not in set(ids)]
    if any(not m.text or m.tool_calls or m.tool_results for m in new):
        raise StrategyError(f"summarizer {name!r} added a message that is not text")
    keep = case.facts.kept(tuple(view.live), question=not answering) | {e.id for e in view.system}
    _check_kept(name, {e.id for e in removed}, keep)
    if not removed:
        return Skip(f"summarizer {name!r} removed nothing")
    text = "\n\n".join(m.text for m in new)
    before, cost = sum(e.tokens for e in removed), sum(case.counter.count(m) for m in new)
    if cost >= before:
        raise StrategyError(
            f"summarizer {name!r} made {cost} tokens of {before}: a summary must be smaller than its source"
        )
    after = view.tokens - before + cost
    covering = replace(plan, covered=tuple(removed), text=text or None, writer="none", tokens_after=after, rewrite=None)
    return checked(covering, case)


def _refuse_async(function: object, name: str) -> None:
    if inspect.iscoroutinefunction(function):
        raise StrategyError(
            f"{name} is async, but it is called at every turn and must return at once: make it a plain function; slow work goes "
            "into summarize, or into the function that a Plan carries as rewrite, and these may be async"
        )


def _check_plain(result: object, name: str) -> None:
    """Raises StrategyError for an awaitable, which would pass for a yes."""
    if not inspect.isawaitable(result):
        return
    if inspect.iscoroutine(result):
        result.close()
    raise StrategyError(f"{name} returned {type(result).__name__}, an awaitable: make it a plain function")


def _check_kept(name: str, touched: set[str], keep: Iterable[str]) -> None:
    if lost := touched & set(keep):
        raise StrategyError(
            f"strategy {name!r} drops or changes {sorted(lost)[0]!r}, which must stay: system prompts, the newest user "
            "message and pinned messages with their tool rounds are kept"
        )


def _check_rounds(name: str, rest: Sequence[Message]) -> None:
    try:
        check_sequence(rest)
    except CtxError as error:
        raise StrategyError(f"strategy {name!r} separates a tool call from its results: {error}") from None


def _shape(message: Message) -> tuple[object, ...]:
    return (
        message.role,
        tuple((c.id, c.name, *_fields(c)) for c in message.tool_calls),
        tuple(r.call_id for r in message.tool_results),
    )


def _fields(call: ToolCallPart) -> tuple[str, ...]:
    """Returns the names of a call's arguments, which a stand-in may shorten; of a malformed call, its text."""
    arguments = call.parsed()
    return (call.arguments,) if arguments is None else tuple(sorted(arguments))
