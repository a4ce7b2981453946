"""Whatever is kept, shared or forgotten by whom: nobody is ever shown what is another owner's, or another session's own."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from ctxfold import AgentContext, MemoryStore, assistant, memory_section, user
from ctxfold.tokens.text import RatioCounter
from tests.support.driven import scripted

OWNERS = ("ann", "bob", "ann'", "ann%")
SESSIONS = ("s1", "s2", "ann")
KINDS = ("facts", "corrections", "persona", "digest", "cross_session", "summaries", "tree", "graph")
DATA = {"graph": {"subject": "tree", "predicate": "stands", "object": "garden"}, "tree": {"level": "0"}}


@dataclass(frozen=True)
class Kept:
    """One item, with a marker that says whose it is."""

    owner: str
    session: str
    kind: str
    shared: bool
    key: str
    forgotten: bool

    @property
    def marker(self) -> str:
        return f"garden-{OWNERS.index(self.owner)}-{SESSIONS.index(self.session)}-{int(self.shared)}"


kept = st.builds(
    Kept,
    st.sampled_from(OWNERS),
    st.sampled_from(SESSIONS),
    st.sampled_from([k for k in KINDS if k != "cross_session"]),
    st.booleans(),
    st.sampled_from(["", "garden"]),
    st.booleans(),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(kept, max_size=12), st.sampled_from(OWNERS), st.sampled_from(SESSIONS))
def test_nothing_of_anybody_else_is_shown(items: list[Kept], owner: str, session: str) -> None:
    backend = scripted("yes")
    sections = [memory_section(kind, min_free_ratio=0.0) for kind in KINDS]
    with AgentContext(
        backend,
        store=MemoryStore(),
        owner=owner,
        session_id=session,
        context_window=20_000,
        counter=RatioCounter(),
        sections=sections,
    ) as context:
        for n, item in enumerate(items):
            theirs = context.at(item.session, owner=item.owner)
            done = theirs.memory.add(
                item.kind, f"{item.marker} {n}", key=item.key, shared=item.shared, **DATA.get(item.kind, {})
            )
            theirs.add([user(f"said {item.marker}", id=f"u{n}"), assistant("ok", id=f"a{n}")])
            if item.forgotten:
                theirs.memory.forget(done.item.id)
        seen = [i.text for i in context.memory.list(everything=True)]
        seen += [r.item.text for r in context.memory.search("garden", limit=100)]
        context.send("What of the garden?")
        seen += [m.text for m in backend.requests[0].messages if m.kind == "section"]
        seen.append(context.service.prepare_context("And the garden?").recalled)
        text = "\n".join(seen)
        for item in items:
            mine = item.owner == owner and (item.shared or item.session == session)
            assert mine or item.marker not in text
