"""The tau-bench runs as one session in a 32k budget: what breaks the prefix, how much of it is reused, and what that costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ctxfold import AgentContext, RatioTrigger, memory_section
from ctxfold.policy.triggers import EconomicTrigger
from tests.benchmarks.data import tau
from tests.benchmarks.replay import COUNTER, PRICES, Copier, CopyingBackend, Step, Trace, Traffic, steps
from tests.benchmarks.sheets import Cell, Sheet
from tests.benchmarks.tau_peers import peer_traces

__all__ = ["BUDGET", "SWEPT", "Played", "economic", "played", "run", "session_steps"]

BUDGET = 32_000
WINDOW = 40_000  # less a fifth for the reply
SWEPT = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
QUICK_RUNS = 8
CHANGED_EVERY = 50  # steps, after which what is remembered changes


@dataclass(frozen=True, slots=True)
class Played:
    """What one setting of ours made of the session; `named` are the requests that the engine called breaks, with the cause."""

    name: str
    traffic: Traffic
    named: tuple[tuple[int, str], ...]
    compactions: int
    summary_calls: int
    summary_cost: float
    output_tokens: int

    @property
    def cost(self) -> float:
        return self.traffic.cost(self.output_tokens) + self.summary_cost

    @property
    def unnamed(self) -> tuple[int, ...]:
        """Breaks in the bytes without a name, and names without a break."""
        return tuple(sorted(set(self.traffic.breaks) ^ {i for i, _ in self.named}))


def session_steps(runs: int | None = None) -> tuple[str, list[Step]]:
    """The airline's policy, and every request of all runs (or the first so many)."""
    found = tau()[:runs]
    return found[0].policy, list(steps(found))


def played(
    name: str,
    policy: str,
    conversation: Sequence[Step],
    *,
    beside: bool = False,
    apart: bool = False,
    window: int = WINDOW,
    **rules: Any,
) -> Played:
    """The session as ctxfold plays it; what it sends is taken from the requests that reach the backend.

    With `beside`, recalled passages travel with each question, and facts and a digest that change now and then are sections. What
    only one request holds stands behind what the next one repeats, and is left out of the comparison. Summaries are asked for on
    the live prefix, with `apart` of another model.
    """
    if beside:
        rules |= {"sections": [memory_section("facts"), memory_section("digest")]}
    backend = CopyingBackend([s.reply for s in conversation if s.reply is not None])
    summarizer = Copier() if apart else None
    named: list[tuple[int, str]] = []
    before: Counter[str] = Counter()
    with AgentContext(
        backend, session_id="tau", system=policy, context_window=window, summarizer=summarizer, **rules
    ) as context:
        for place, step in enumerate(conversation):
            if beside and place % CHANGED_EVERY == 0:
                _remember(context, place)
            if step.reply is None:
                context.add(step.asked)
                continue
            context.send(step.asked, recall=beside)
            now = Counter(dict(context.usage().prefix.breaks))
            named += [(len(backend.requests) - 1, cause) for cause in (now - before)]
            before = now
        compactions = context.usage().compactions
    trace = Trace()
    for request in backend.requests:
        stable = request.messages[: request.stable_messages] if beside else request.messages
        trace.requests.append([trace.line(m) for m in stable])
    output = sum(COUNTER.count(s.reply) for s in conversation if s.reply is not None)
    copier = summarizer or backend.copier
    return Played(name, trace.traffic(), tuple(named), compactions, copier.calls, copier.cost(), output)


def _remember(context: AgentContext, place: int) -> None:
    """New facts on what airline customers ask about, one of them with another value than before, and a new digest."""
    context.memory.add(
        "facts", f"The newest refund case on a flight or reservation is number {place}", key="refund case"
    )
    context.memory.add("facts", f"Reservation desk {place} handles the user's baggage and cancellation requests")
    context.memory.add("digest", f"{place} steps of airline reservations, changes, refunds and cancellations so far.")


def swept(policy: str, conversation: Sequence[Step], ratios: Sequence[float] = SWEPT) -> list[Played]:
    """One trigger after the other, each at a fixed share of the budget."""
    return [played(f"trigger at {ratio:.0%}", policy, conversation, trigger=RatioTrigger(at=ratio)) for ratio in ratios]


def economic(policy: str, conversation: Sequence[Step]) -> Played:
    """The trigger that works out for itself when a compaction pays."""
    return played("economic trigger", policy, conversation, trigger=EconomicTrigger(prices=PRICES))


def run(*, quick: bool = False) -> list[Sheet]:
    """Prefix and cost, ours and everybody's, over the same requests."""
    policy, conversation = session_steps(QUICK_RUNS if quick else None)
    late = played("ctxfold, defaults", policy, conversation)
    fixed = swept(policy, conversation, SWEPT[::3] if quick else SWEPT)
    beside = played("ctxfold, with recall, facts and digest", policy, conversation, beside=True)
    apart = played("ctxfold, summaries by another model", policy, conversation, apart=True)
    ours = [late, apart, beside, economic(policy, conversation), *fixed]
    best = min(p.cost for p in fixed)
    rows: list[tuple[Cell, ...]] = [
        (
            p.name,
            *_figures(p.traffic),
            ", ".join(f"{cause} {n}" for cause, n in sorted(Counter(c for _, c in p.named).items())) or "none",
            f"{len(p.unnamed)}",
            f"{p.compactions} ({p.summary_calls})",
            p.cost / 1e3,
            f"{p.cost / best:.3f} x",
        )
        for p in ours
    ]
    for name, trace in peer_traces(policy, conversation, BUDGET):
        traffic = trace.traffic()
        cost = traffic.cost(late.output_tokens)
        rows.append((name, *_figures(traffic), "-", "-", "-", cost / 1e3, f"{cost / best:.3f} x"))
    return [
        Sheet(
            f"tau-bench airline, {len(conversation)} requests in one session, budget of {BUDGET:,} tokens",
            (
                "how",
                "largest request",
                "bytes reused",
                "breaks in bytes",
                "causes named",
                "unnamed",
                "epochs (summary calls)",
                "cost, k",
                "to the best fixed",
            ),
            tuple(rows),
            "Canonical bytes of whole messages. Cost in plain input tokens: cached read 0.1, write 1.25, output 5; summary calls "
            "included, which read what was sent before from the cache. Targets: unnamed 0, reuse 0.98, economic 1.05 x or less of "
            "the best swept trigger.",
        )
    ]


def _figures(traffic: Traffic) -> tuple[Cell, Cell, Cell]:
    return f"{traffic.largest_tokens:,}", f"{traffic.reuse:.2%}", f"{len(traffic.breaks)}"
