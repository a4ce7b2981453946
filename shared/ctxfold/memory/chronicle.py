"""What a session leaves behind at its compactions, without a further question to a model: its summaries, their digest, their tree.

Four summaries of one level are made into one of the next: the tree answers first with the general, then with the detailed.
"""

from __future__ import annotations

from collections.abc import Sequence

from ctxfold.compaction.summarize import own_words, summarize
from ctxfold.flow import Flow
from ctxfold.history.items import MemoryItem
from ctxfold.history.view import Entry
from ctxfold.journal import Journal
from ctxfold.memory.keep import MAX_CHARS, Memories, Remember, made_item
from ctxfold.messages import Message, user
from ctxfold.ports import Ports

__all__ = ["CHRONICLE", "chronicle"]

CHRONICLE = ("summaries", "digest", "tree")
FAN_OUT = 4  # summaries of a level that are made into one


def chronicle(
    journal: Journal, summary: Message, covered: Sequence[str], ports: Ports, *, kinds: Sequence[str]
) -> Flow[None]:
    """Keep the summary of a compaction under each of the kinds wanted; the `covered` messages are its sources."""
    text = own_words(summary.text)[:MAX_CHARS]
    for kind in (k for k in CHRONICLE if k in kinds):
        data = {"level": "0"} if kind == "tree" else {}
        item = made_item(journal.key, ports, kind, text, sources=covered, data=data)
        yield from Remember(journal.key.owner, [item])
    if "tree" in kinds:
        yield from _grow(journal, ports)


def _grow(journal: Journal, ports: Ports) -> Flow[None]:
    """Make parents until no level has four nodes without one."""
    for level in range(8):
        nodes = yield from Memories(journal.key.owner, ["tree"])
        mine = [n for n in reversed(nodes) if n.session == journal.key.session]
        taken = {i for n in mine for i in dict(n.data).get("children", "").split()}
        free = [n for n in mine if dict(n.data)["level"] == str(level) and n.id not in taken][:FAN_OUT]
        if len(free) < FAN_OUT:
            return
        parent = yield from _parent(free, level + 1, journal, ports)
        yield from Remember(journal.key.owner, [parent])


def _parent(nodes: Sequence[MemoryItem], level: int, journal: Journal, ports: Ports) -> Flow[MemoryItem]:
    entries = [Entry(n.id, 0, user(n.text, id=n.id), ports.counter.count_text(n.text)) for n in nodes]
    window = ports.summarizer.context_window if ports.summarizer is not None else None
    summary = yield from summarize(
        entries,
        rules=journal.rules(),
        counter=ports.counter,
        window_tokens=None if ports.summarizer is None else window or journal.rules().context_window,
    )
    sources = tuple(dict.fromkeys(s for n in nodes for s in n.sources))
    data = {"level": str(level), "children": " ".join(n.id for n in nodes)}
    return made_item(journal.key, ports, "tree", own_words(summary.text)[:MAX_CHARS], sources=sources, data=data)
