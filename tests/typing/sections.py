"""Sections, memory and the context service, as type checkers see them. Checked, never run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_type

from ctxfold import AgentContext, ContextService, Event, Item, Query, Section, memory_section
from ctxfold.events import MemoryLearnt, SectionInjected, SectionSkipped
from ctxfold.history.memory_items import MemoryItem, Remembered
from ctxfold.memory.store import Recollection
from ctxfold.session.service import ContextDelta


def plain(query: Query) -> list[str]:
    return [query.text]


async def awaited(query: Query) -> Sequence[Item]:
    return [Item(query.text, score=0.5, source="a.md", id="1")]


def sections() -> AgentContext:
    return AgentContext(
        context_window=1_000,
        sections=[
            Section("documents", plain),
            Section("code", awaited, place="head", lifetime="request", share=0.1, timeout_s=None),
            Section("rules", plain, lifetime="request", required=True),
            memory_section("facts", share=0.05),
        ],
    )


def memory(context: AgentContext) -> None:
    done = context.memory.add("facts", "Berlin", key="home town")
    assert_type(done, Remembered)
    assert_type(done.replaced, MemoryItem | None)
    assert_type(context.memory.list("facts"), tuple[MemoryItem, ...])
    assert_type(context.memory.search("Berlin"), tuple[Recollection, ...])
    assert_type(context.memory.forget(done.item.id), tuple[MemoryItem, ...])


async def service(context: AgentContext) -> None:
    operations: ContextService = context.service
    assert_type(operations.inject("documents", ["one", Item("two")]), SectionInjected | None)
    assert_type(await operations.aremove("documents"), int)
    delta = await operations.aprepare_context("question", assembly="adaptive", session="other")
    assert_type(delta, ContextDelta)
    assert_type(delta.skipped, tuple[SectionSkipped, ...])
    assert_type(
        operations.disambiguate_skills("question", {"pdf": "reads PDF files"}, {"pdf": 0.5}), tuple[str, ...] | None
    )


def heard(event: Event) -> None:
    if isinstance(event, MemoryLearnt):
        assert_type(event.dropped, int)
