"""Strategies: what to compact, and how, decided on one `Case`. Users' own plug in here, and are checked before anything is done."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, cast, runtime_checkable

from ctxfold.budget import Policy
from ctxfold.compaction.plan import Decision, Facts, Hold, Plan, Writer
from ctxfold.errors import CtxError, StrategyError
from ctxfold.history.cuts import check_sequence, kept, legal_cuts
from ctxfold.history.view import Entry, View
from ctxfold.messages import Message
from ctxfold.ports import TokenCounter
from ctxfold.trigger import Signals, Verdict, counts, evaluate

__all__ = ["Case", "Strategy", "Summarizer", "SummarizerStrategy", "as_strategy", "checked", "decide", "rewritten"]

MODEL_SHARE = 0.6  # of a summary's limit; the rest is for its ledger, which nobody has to be paid for
MIN_FREE_TOKENS = 256  # a trigger may fire on a short history: freeing less is worth no break of the prefix
HEADING_TOKENS = 32  # a summary's limit is for its text: role and heading come on top


@dataclass(frozen=True, slots=True)
class Case:
    """What a strategy decides on: the view as it is, the session's rules, and why it is asked (`facts.mode`)."""

    view: View
    facts: Facts
    rules: Policy
    counter: TokenCounter

    @property
    def used_tokens(self) -> int:
        """What the next request holds, tools and the like included."""
        return self.view.tokens + self.facts.overhead_tokens

    @property
    def needed_tokens(self) -> float:
        """What an epoch has to free: a share of the budget; where a trigger fires earlier, of what is used; where the user has
        named an amount, of what a compaction can touch, however little that is."""
        rules, ratio = self.rules, self.rules.min_free_ratio
        if rules.trigger is None:
            return ratio * rules.budget_tokens
        if counts(rules.trigger):
            return max(1.0, ratio * min(rules.budget_tokens, self.touchable_tokens))
        return min(ratio * rules.budget_tokens, max(ratio * self.used_tokens, MIN_FREE_TOKENS))

    @property
    def touchable_tokens(self) -> int:
        """What the next request holds besides system prompts, tools and the like."""
        return self.view.tokens - sum(e.tokens for e in self.view.system)

    @property
    def fits(self) -> bool:
        return self.used_tokens <= self.rules.budget_tokens

    def due(self) -> Verdict | None:
        """What the policy's trigger says; None when it has none, and the ratios count."""
        trigger = self.rules.trigger
        return None if trigger is None else evaluate(trigger, self.signals())

    def signals(self) -> Signals:
        """What triggers look at. Growth per call is the mean over the live conversation; reads all of it."""
        rules, view = self.rules, self.view
        calls = sum(e.message.role == "assistant" for e in view.live)
        fixed = sum(e.tokens for e in view.system)
        compressed = sum(e.tokens for e in view.compressed)
        live = view.tokens - fixed - compressed - sum(e.tokens for e in view.turn)
        return Signals(
            used_tokens=self.used_tokens,
            budget_tokens=rules.budget_tokens,
            context_window=rules.context_window,
            messages=len(view.live),
            turns=sum(e.message.role == "assistant" and not e.message.tool_calls for e in view.live),
            turns_since_summary=self.facts.turns_since_summary,
            idle_s=self.facts.idle_s,
            growth_tokens_per_call=live / calls if calls else 0.0,
            size_after_tokens=fixed + rules.summary_tokens,
            summary_tokens=int(MODEL_SHARE * rules.summary_tokens),
            tail_ratio=rules.tail_ratio,
            prompt_tokens=fixed,
        )

    def older_than(self, count: int) -> tuple[Entry, ...]:
        """Live entries before the newest `count`, back to a legal cut; what has to stay is not among them."""
        live = self.view.live
        cut = max((c for c in legal_cuts(live) if c <= len(live) - count), default=0)
        keep = kept(live, pins=self.facts.pins)
        return tuple(e for e in live[:cut] if e.id not in keep)

    def summarize(self, entries: Iterable[Entry], reason: str, *, writer: Writer = "model") -> Decision:
        """A plan by which a summary of the entries, and of the summaries before it, takes their place."""
        covered = (*self.view.compressed, *entries)
        if not covered:
            return Hold(f"{reason}: there is nothing to summarise")
        tokens = sum(e.tokens for e in covered)
        limit = 0 if writer == "nobody" else min(self.rules.summary_tokens + HEADING_TOKENS, tokens // 2)
        after = self.view.tokens - tokens + limit
        return Plan("", reason, self.view.tokens, after, covered=covered, writer=writer)

    def drop(self, entries: Iterable[Entry], reason: str) -> Decision:
        """A plan by which the entries, and the summaries before them, leave the view; the archive keeps them."""
        return self.summarize(entries, reason, writer="nobody")


class Strategy(Protocol):
    """Decides what to compact. `name` is stored in the session's policy; `plan` is asked when a turn has closed, when a request
    has to fit and on demand. It is pure: it changes nothing and may be asked any number of times."""

    @property
    def name(self) -> str: ...

    def plan(self, case: Case) -> Decision: ...


@runtime_checkable
class Summarizer(Protocol):
    """Rewrites a message list: `summarize` returns a shorter one, made of messages of the old list and of new text messages.

    It may not drop system prompts, the newest user message or pinned ones, nor change a message, nor separate a tool call from
    its results: StrategyError, and nothing is changed. `summarize` may be async; `should_summarize` is asked often, and may not.
    """

    def should_summarize(self, history: list[Message]) -> bool: ...

    def summarize(self, history: list[Message]) -> list[Message] | Awaitable[list[Message]]: ...


@dataclass(frozen=True, slots=True)
class SummarizerStrategy:
    """A `Summarizer` as a strategy. Its new messages become one summary, before what stays of the live conversation.

    It is asked before each request too, between tool rounds as well; of the turn under way it sees everything, and all of it stays.
    """

    summarizer: Summarizer
    name: str

    def plan(self, case: Case) -> Decision:
        history = _said(case.view)
        if case.facts.mode != "forced":
            due: object = self.summarizer.should_summarize(list(history))
            _check_plain(due, f"should_summarize of {self.name!r}")
            if not due:
                return Hold("the summarizer sees nothing to do")
        call = partial(self.summarizer.summarize, list(history))
        return Plan(self.name, f"{case.facts.mode}: {self.name}", case.view.tokens, case.view.tokens, rewrite=call)


def as_strategy(given: object) -> Strategy:
    """A strategy from an object with `plan`, or with `should_summarize` and `summarize`; StrategyError for any other."""
    name = getattr(given, "name", None) or type(given).__name__
    if callable(getattr(given, "plan", None)):
        if not isinstance(getattr(given, "name", None), str):
            raise StrategyError(
                f"the strategy {type(given).__name__} has no name: give it one (name = 'mine'); sessions store it"
            )
        found: Strategy = given  # type: ignore[assignment]
        _refuse_async(found.plan, f"plan of {found.name!r}")
        return found
    if isinstance(given, Summarizer):
        _refuse_async(given.should_summarize, f"should_summarize of {name!r}")
        return SummarizerStrategy(given, str(name))
    raise StrategyError(
        f"{type(given).__name__} is no strategy: it needs plan(case), or should_summarize(history) and summarize(history)"
    )


def decide(strategy: Strategy, case: Case) -> Decision:
    """What the strategy wants, checked. StrategyError when it raises, returns no decision, or wants what is not allowed."""
    try:
        decision = cast("object", strategy.plan(case))
        _check_plain(decision, f"plan of {strategy.name!r}")
        if isinstance(decision, Hold) or (isinstance(decision, Plan) and decision.rewrite is not None):
            return decision
        if isinstance(decision, Plan):
            return checked(replace(decision, strategy=decision.strategy or strategy.name), case)
    except CtxError:
        raise
    except Exception as error:
        raise StrategyError(f"strategy {strategy.name!r} raised {error!r}; nothing was compacted") from error
    raise StrategyError(
        f"strategy {strategy.name!r} returned {type(decision).__name__}; nothing was compacted: return a Plan, or "
        "Hold(reason) where nothing is to be done"
    )


def checked(plan: Plan, case: Case) -> Plan:
    """The plan, once it is known to leave a legal conversation and to keep what has to stay."""
    entries = case.view.turn if plan.turn_id is not None else (*case.view.compressed, *case.view.live)
    known = {e.id: e for e in entries}
    newest_elsewhere = any(e.message.role == "user" and e.message.kind == "message" for e in case.view.turn)
    keep = kept(entries, pins=case.facts.pins, question=plan.turn_id is not None or not newest_elsewhere)
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


def rewritten(plan: Plan, case: Case, result: Sequence[Message]) -> Decision:
    """What a summarizer did to the message list, as a plan; StrategyError when it did what it may not."""
    name, view = plan.strategy, case.view
    own = {e.id for e in view.turn}  # what is being answered stays, whatever the result has of it
    result = [m for m in result if m.id not in own]
    answering = any(e.message.role == "user" and e.message.kind == "message" for e in view.turn)
    history = {e.id: e for e in (*view.system, *view.compressed, *view.live) if e.message.kind != "section"}
    new = [m for m in result if m.id not in history]
    left = [m for m in result if m.id in history]
    ids = [m.id for m in left]
    if ids != [i for i in history if i in set(ids)]:
        raise StrategyError(f"summarizer {name!r} changed the order of the messages, or has one twice")
    for message in left:
        if history[message.id].message != message:
            raise StrategyError(f"summarizer {name!r} changed the message {message.id!r}: leave it or drop it")
    gone = [e for e in history.values() if e.id not in set(ids)]
    if any(not m.text or m.tool_calls or m.tool_results for m in new):
        raise StrategyError(f"summarizer {name!r} added a message that is no text")
    _check_kept(name, {e.id for e in gone}, kept(tuple(history.values()), pins=case.facts.pins, question=not answering))
    if not gone:
        return Hold(f"summarizer {name!r} took nothing out")
    text = "\n\n".join(m.text for m in new)
    before, cost = sum(e.tokens for e in gone), sum(case.counter.count(m) for m in new)
    if cost >= before:
        raise StrategyError(
            f"summarizer {name!r} made {cost} tokens of {before}: a summary has to be smaller than its source"
        )
    after = view.tokens - before + cost
    made = replace(plan, covered=tuple(gone), text=text or None, writer="nobody", tokens_after=after, rewrite=None)
    return checked(made, case)


def _refuse_async(function: object, name: str) -> None:
    if inspect.iscoroutinefunction(function):
        raise StrategyError(
            f"{name} is async, but it is asked at every turn and decides at once: make it a plain function; the slow part goes "
            "into summarize, or into the function that a Plan carries as rewrite, and these may be async"
        )


def _check_plain(result: object, name: str) -> None:
    """Raises StrategyError for an awaitable, which would pass for a yes."""
    if not inspect.isawaitable(result):
        return
    if inspect.iscoroutine(result):
        result.close()
    raise StrategyError(f"{name} returned {type(result).__name__}, which has to be awaited: make it a plain function")


def _check_kept(name: str, touched: set[str], keep: Iterable[str]) -> None:
    if lost := touched & set(keep):
        raise StrategyError(
            f"strategy {name!r} drops or changes {sorted(lost)[0]!r}, which has to stay: system prompts, the newest user "
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
        tuple((c.id, c.name, c.arguments) for c in message.tool_calls),
        tuple(r.call_id for r in message.tool_results),
    )


def _said(view: View) -> list[Message]:
    """The conversation without what was put in beside it."""
    return [m for m in view.messages if m.kind != "section"]
