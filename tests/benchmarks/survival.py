"""Do marked facts outlive ten summaries of summaries? With a summariser that repeats every marked fact it is shown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ctxfold import AgentContext, Message, TextPart, user
from tests.benchmarks.data import bfcl, copied_arguments, plain, tau
from tests.benchmarks.replay import COUNTER
from tests.benchmarks.sheets import Cell, Sheet
from tests.benchmarks.tau_peers import langchain_message
from tests.support.oracle import OracleSummarizer, fact, facts

__all__ = ["CASES", "Case", "Survived", "langchain_survived", "run", "survived"]

GENERATIONS = 10
SUMMARIZER_WINDOW = 1_200
WINDOW = 60_000  # so large that only the asked-for compactions happen
FITTING = 1  # facts per generation that a summary of any generation has room for

Generation = tuple[tuple[Message, ...], tuple[str, ...]]  # messages, and the facts that stand in them


@dataclass(frozen=True, slots=True)
class Case:
    """One session: where it is from, and whether all facts together fit a summary."""

    source: str
    fits: bool


CASES = tuple(Case(source, fits) for source in ("tau_airline", "bfcl_memory") for fits in (True, False))


@dataclass(frozen=True, slots=True)
class Survived:
    """Of all facts: seen in the window at the end, found by search and read back by reference, neither."""

    facts: int
    visible: int
    resolved: int
    lost: tuple[str, ...]
    generations: int
    widest: float  # the longest span, in windows of the summariser


def generations(case: Case) -> Iterator[Generation]:
    """The source in ten parts of about equal length, with the facts marked in the messages that say them."""
    messages, said = _tau() if case.source == "tau_airline" else _bfcl()
    size = -(-len(messages) // GENERATIONS)
    for start in range(0, len(messages), size):
        part = range(start, min(start + size, len(messages)))
        here = [(i, text) for i in part for text in said.get(i, ())]
        if case.fits:
            here = here[:FITTING]
        marked = {i: [text for at, text in here if at == i] for i, _ in here}
        yield tuple(_marked(messages[i], marked.get(i, ())) for i in part), tuple(text for _, text in here)


def _marked(message: Message, texts: Sequence[str]) -> Message:
    if not texts:
        return message
    return replace(message, parts=(*message.parts, TextPart("\n" + " ".join(map(fact, texts)))))


def _tau() -> tuple[list[Message], dict[int, list[str]]]:
    """Runs in one list; a fact is a value that a later call copies, in the first message of a person or agent that says it."""
    messages: list[Message] = []
    said: dict[int, list[str]] = {}
    for trajectory in tau():
        known = set[str]()
        whole = trajectory.messages
        while whole[-1].role != "assistant" or whole[-1].tool_calls:
            whole = whole[:-1]
        for copied in copied_arguments(whole):
            place = next((i for i in copied.seen if whole[i].role == "user"), None)
            if place is not None and copied.value not in known and "<" not in copied.value:
                known.add(copied.value)
                text = f"run {trajectory.number} has {copied.value}"
                said.setdefault(len(messages) + place, []).append(text)
        messages += whole
    return messages, said


def _bfcl() -> tuple[list[Message], dict[int, list[str]]]:
    """What the five persons said, one after the other; a fact is a question's number, in the message with its evidence."""
    spoken, questions = bfcl()
    places = {(name, i): n for n, (name, i) in enumerate((s, i) for s in spoken for i in range(len(spoken[s])))}
    messages = [user(text, id=f"b{n}") for n, text in enumerate(t for texts in spoken.values() for t in texts)]
    said: dict[int, list[str]] = {}
    for n, q in enumerate(questions):
        found = (i for i, text in enumerate(spoken[q.scenario]) if q.pieces[0] in plain(text))
        at = next(found, None)
        if at is not None:
            said.setdefault(places[q.scenario, at], []).append(f"item {n} is {q.id.removeprefix('memory_')}")
    return messages, said


def survived(case: Case, limit: int | None = None) -> Survived:
    """The case as ctxfold plays it: after each part everything that may go is compacted into one summary."""
    told: list[str] = []
    widest = 0.0
    done = 0
    oracle = OracleSummarizer(COUNTER, context_window=SUMMARIZER_WINDOW)
    with AgentContext(
        session_id="survival", context_window=WINDOW, summarizer=oracle, auto_compact=False, keep_last=1
    ) as context:
        for messages, here in list(generations(case))[:limit]:
            for message in messages:
                context.add(message)
            told += here
            before = context.usage().window_tokens
            context.compact(force=True)
            widest = max(widest, (before - context.usage().window_tokens) / SUMMARIZER_WINDOW)
            done += 1
        window = "\n".join(m.text for m in context.window().messages)
        visible = [text for text in told if text in window]
        rest = [text for text in told if text not in window]
        lost = tuple(text for text in rest if not _resolves(context, text))
    return Survived(len(told), len(visible), len(rest) - len(lost), lost, done, widest)


def _resolves(context: AgentContext, text: str) -> bool:
    return any(text in context.archive.get(hit.reference).text for hit in context.search(text, limit=10))


def langchain_survived(case: Case, limit: int | None = None) -> Survived:
    """The same with LangChain's SummarizationMiddleware as it comes, but for a trigger that fires after each part."""
    from langchain.agents.middleware import SummarizationMiddleware
    from langgraph.runtime import Runtime

    middleware = SummarizationMiddleware(_oracle_model(), trigger=("tokens", 1))
    messages: list[Any] = []
    told: list[str] = []
    widest = 0.0
    done = 0
    for part, here in list(generations(case))[:limit]:
        messages += [langchain_message(m) for m in part]
        told += here
        before = sum(COUNTER.count_text(m.text) for m in messages)
        changed = middleware.before_model({"messages": messages}, Runtime())
        messages = messages if changed is None else changed["messages"][1:]  # the first says that all others go
        widest = max(widest, (before - sum(COUNTER.count_text(m.text) for m in messages)) / SUMMARIZER_WINDOW)
        done += 1
    window = "\n".join(m.text for m in messages)
    lost = tuple(text for text in told if text not in window)
    return Survived(len(told), len(told) - len(lost), 0, lost, done, widest)


def _oracle_model() -> Any:
    """The oracle as a LangChain model."""
    from langchain_core.language_models.chat_models import SimpleChatModel

    class Oracle(SimpleChatModel):
        @property
        def _llm_type(self) -> str:
            return "oracle"

        def _call(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> str:
            found = facts("\n".join(m.text for m in messages))
            return "\n".join(map(fact, found)) or "Nothing to keep."

    return Oracle()


def run(*, quick: bool = False) -> list[Sheet]:
    """Ours and LangChain's on the same sessions."""
    limit = 2 if quick else None
    rows: list[tuple[Cell, ...]] = []
    for case in CASES:
        for name, play in (("ctxfold", survived), ("LangChain SummarizationMiddleware", langchain_survived)):
            s = play(case, limit)
            session = f"{case.source}, {'facts fit a summary' if case.fits else 'too many facts for one'}"
            counts = (f"{s.facts}", f"{s.visible}", f"{s.resolved}", f"{len(s.lost)}")
            rows.append((session, name, s.generations, f"{s.widest:.1f}", *counts))
    return [
        Sheet(
            "Marked facts after ten generations of summaries by an oracle that repeats every fact it is shown",
            ("session", "how", "generations", "widest span", "facts", "visible", "by reference", "lost"),
            tuple(rows),
            f"Spans in windows of the summariser ({SUMMARIZER_WINDOW:,} tokens). By reference: search finds the message, and its "
            "reference reads it back. LangChain's summariser has no limit here; the middleware itself cuts what it shows to it.",
        )
    ]
