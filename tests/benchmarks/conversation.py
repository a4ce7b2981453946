"""The conversation that all benchmarks of time share: short plain turns, each text with words of its own."""

from __future__ import annotations

from pathlib import Path

from ctxfold import AgentContext, Message, Store, assistant, user

__all__ = ["WINDOW", "exchange", "fill", "filled_context", "texts"]

WINDOW = 8_000
BATCH = 100


def texts(n: int) -> tuple[str, str]:
    """What user and assistant say in turn `n`."""
    hall = n % 9
    asked = (
        f"Message {n}: box KX-{n} stands in hall {hall}; please note it, with some further words of ordinary length."
    )
    return asked, f"Noted, box KX-{n} stands in hall {hall}."


def exchange(n: int, mark: str = "") -> list[Message]:
    asked, answered = texts(n)
    return [user(asked, id=f"{mark}u{n}"), assistant(answered, id=f"{mark}a{n}")]


def fill(context: AgentContext, messages: int) -> None:
    """Store so many messages, a batch at a time."""
    for start in range(0, messages // 2, BATCH // 2):
        stop = min(start + BATCH // 2, messages // 2)
        context.add([message for n in range(start, stop) for message in exchange(n)])


def filled_context(store: str | Store, messages: int) -> AgentContext:
    context = AgentContext(session_id="bench", store=store, context_window=WINDOW)
    fill(context, messages)
    return context


def database(folder: Path, name: str) -> str:
    return f"sqlite:///{folder / name}.db"


def label(size: int) -> str:
    return f"{size // 1000}k" if size % 1000 == 0 else str(size)
