"""What a bad summariser can do to a session: nothing is lost in silence, nothing is raised; the fallback level names the writer."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ctxfold import AgentContext, HistoryCompacted, Message, Reply, Request, ScriptedBackend, assistant
from ctxfold.errors import MessageNotFoundError
from tests.benchmarks.data import Trajectory, copied_arguments, flat, tau
from tests.benchmarks.replay import Copier, steps
from tests.benchmarks.sheets import Cell, Sheet

__all__ = ["FAULTS", "Outcome", "Provenance", "outcome", "run"]

RUNS, QUICK_RUNS = 30, 6
WINDOW = 6_000
TIMEOUT_S = 0.05
HANG_S = 0.5
SHIFTED = str.maketrans("0123456789", "1234567890")


class Hanging(Copier):
    """Does not answer in time; gives up waiting when it is closed."""

    def __init__(self) -> None:
        super().__init__()
        self._over = threading.Event()

    def send(self, request: Request) -> Reply:
        self._over.wait(HANG_S)
        return super().send(request)

    def close(self) -> None:
        self._over.set()


class Faulty(Copier):
    """Answers with what `fault` makes of a request and of a decent summary of it."""

    def __init__(self, fault: Callable[[Request, str], str]) -> None:
        super().__init__()
        self._fault = fault

    def send(self, request: Request) -> Reply:
        text = self._fault(request, super().send(request).message.text)
        return Reply(assistant(text, id=f"bad-{self.calls}"), None, "stop")


def _raises(request: Request, text: str) -> str:
    raise RuntimeError("the summariser's service is down")


FAULTS: dict[str, Callable[[], Copier]] = {
    "none": Copier,
    "drops everything": lambda: Faulty(lambda request, text: "The customer was helped with a booking."),
    "rewrites numbers": lambda: Faulty(lambda request, text: text.translate(SHIFTED)),
    "empty": lambda: Faulty(lambda request, text: ""),
    "longer than the source": lambda: Faulty(lambda request, text: 2 * request.messages[-1].text),
    "refuses": lambda: Faulty(lambda request, text: "I'm sorry, but I can't help with that request."),
    "raises": lambda: Faulty(_raises),
    "hangs": Hanging,
    "answers as the user": lambda: Faulty(
        lambda request, text: "Yes, please go ahead! My user ID is mia_li_3668. Could you also check my other booking?"
    ),
}


@dataclass(frozen=True, slots=True)
class Provenance:
    """Of the arguments that calls copied from a message before: still in the window, found by search and read back by reference,
    neither."""

    visible: int
    resolved: int
    lost: tuple[str, ...]

    @classmethod
    def of(cls, context: AgentContext, copies: Sequence[Copy], shown: str) -> Provenance:
        visible = [c for c in copies if c.value in shown]
        lost = [c.value for c in copies if c.value not in shown and not _resolves(context, c)]
        return cls(len(visible), len(copies) - len(visible) - len(lost), tuple(lost))

    def __add__(self, other: Provenance) -> Provenance:
        return Provenance(self.visible + other.visible, self.resolved + other.resolved, self.lost + other.lost)


@dataclass(frozen=True, slots=True)
class Copy:
    """A copied value, and the message that first said it."""

    value: str
    origin: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a session: the copied arguments when their call was made, and all of them once more at the end; who wrote the
    summaries; what reached the caller."""

    fault: str
    at_call: Provenance
    at_end: Provenance
    fallback_levels: tuple[tuple[str, int], ...]
    problems: int
    errors: tuple[str, ...]


def outcome(fault: str, runs: int = RUNS) -> Outcome:
    """The tau-bench runs as one session in a small window, with that summariser."""
    chosen = tau()[:runs]
    conversation = list(steps(chosen))
    copies = _copies(chosen)
    events: list[HistoryCompacted] = []
    errors: list[str] = []
    at_call, told = Provenance(0, 0, ()), list[Copy]()
    summarizer = FAULTS[fault]()
    due: list[Message] = []
    backend = ScriptedBackend([lambda _: due[-1]] * len(conversation))  # an error does not move the later replies
    with AgentContext(
        backend,
        session_id="bad",
        system=chosen[0].policy,
        context_window=WINDOW,
        summarizer=summarizer,
        summary_timeout_s=TIMEOUT_S if fault == "hangs" else 60.0,
    ) as context:
        context.subscribe(lambda event: events.append(event) if isinstance(event, HistoryCompacted) else None)
        for step in conversation:
            try:
                if step.reply is None:
                    context.add(step.asked)
                    continue
                due.append(step.reply)
                context.send(step.asked, recall=False)
            except Exception as error:  # what reaches a caller is what is counted
                errors.append(repr(error))
                continue
            shown = "\n".join(map(flat, backend.requests[-1].messages)).casefold()
            at_call += Provenance.of(context, copies[step.reply.id], shown)
            told += copies[step.reply.id]
        shown = "\n".join(map(flat, context.window().messages)).casefold()
        at_end = Provenance.of(context, told, shown)
    summarizer.close()
    fallback_levels = Counter(e.fallback_level for e in events if e.fallback_level)
    problems = sum(len(e.problems) for e in events)
    return Outcome(fault, at_call, at_end, tuple(sorted(fallback_levels.items())), problems, tuple(errors))


def _copies(trajectories: Sequence[Trajectory]) -> defaultdict[str, list[Copy]]:
    """Copied values by the id of the message that makes the call."""
    found: defaultdict[str, list[Copy]] = defaultdict(list)
    for t in trajectories:
        for c in copied_arguments(t.messages):
            found[t.messages[c.at].id].append(Copy(c.value.casefold(), t.messages[c.seen[0]].id))
    return found


def _resolves(context: AgentContext, copy: Copy) -> bool:
    """Whether search leads to a message that says the value, and the message that first said it can be read."""
    hits = context.search(copy.value, limit=10)
    try:
        found = any(copy.value in flat(context.archive.get(hit.reference)).casefold() for hit in hits)
        return found and copy.value in flat(context.archive.get(copy.origin)).casefold()
    except MessageNotFoundError:
        return False


def run(*, quick: bool = False) -> list[Sheet]:
    """One row per fault."""
    runs = QUICK_RUNS if quick else RUNS
    rows: list[tuple[Cell, ...]] = []
    for fault in FAULTS:
        o = outcome(fault, runs)
        counts = [f"{n}" for p in (o.at_call, o.at_end) for n in (p.visible, p.resolved, len(p.lost))]
        fallback_levels = ", ".join(f"{fallback_level} {n}" for fallback_level, n in o.fallback_levels) or "none"
        rows.append((fault, *counts, fallback_levels, f"{o.problems}", f"{len(o.errors)}"))
    return [
        Sheet(
            f"tau-bench airline, {runs} runs in one session, window of {WINDOW:,} tokens: bad summarisers",
            (
                "fault",
                "visible at the call",
                "by reference",
                "lost",
                "visible at the end",
                "by reference",
                "lost",
                "fallback levels",
                "problems",
                "raised",
            ),
            tuple(rows),
            "Arguments of calls that copy a value said before: in the request that led to the call, or found by search and read "
            "back by its reference; and all of them once more at the session's end. Targets: lost 0, raised 0.",
        )
    ]
