"""ContextService: what the model systems call a context service, as stateless functions over one engine. Each operation is written
once as a flow; every call may name another session and owner. What has a kind has one form for all kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, TypeAlias, TypeVar, get_args

from ctxfold import editing, injection
from ctxfold.compaction.apply import Outcome
from ctxfold.compaction.goal import refresh_goal
from ctxfold.compaction.on_demand import BetweenRounds, Focus, Newest, Trim
from ctxfold.compaction.pairs import flush_pairs, summarise_pairs
from ctxfold.engine import Engine
from ctxfold.errors import ConfigError, StoreError
from ctxfold.events import SectionInjected, SectionSkipped
from ctxfold.flow import Flow, arun, run
from ctxfold.given import name_or_own, whole_number
from ctxfold.history.records import SessionKey
from ctxfold.history.sections import Place
from ctxfold.journal import Journal
from ctxfold.messages import Message, user
from ctxfold.zones.inject import Filled, fill
from ctxfold.zones.section import Item
from ctxfold.zones.shares import shares
from ctxfold.zones.skills import ranked_skills

__all__ = ["Assembly", "ContextDelta", "ContextService", "Tier"]

T = TypeVar("T")
Assembly: TypeAlias = Literal["full_history", "memory_first", "adaptive"]
Tier: TypeAlias = Literal["none", "soft", "hard"]
ADAPTIVE_TURNS = 20  # from here on "adaptive" is memory-first
CODE = "code"
KEPT_FIRST = 2  # newest messages of a memory-first window, whole tool rounds


@dataclass(frozen=True, slots=True)
class ContextDelta:
    """What a turn begins with.

    Send `messages`, then `recalled` if there is any, then the question. `code` is for the caller to place. `injected` and
    `skipped` say what became of each section; tokens are those of all that is named here, the question too.
    """

    messages: tuple[Message, ...]
    recalled: str
    code: str
    injected: tuple[SectionInjected, ...]
    skipped: tuple[SectionSkipped, ...]
    assembly: Assembly
    used_tokens: int
    budget_tokens: int


class ContextService:
    """Operations on the sessions of a context's engine; it holds nothing of its own, and is as safe across threads and tasks.

    `context.service` makes one; `session` and `owner` of a call stand for that context's.
    """

    def __init__(self, engine: Engine, key: SessionKey) -> None:
        self._engine = engine
        self._key = key

    # clearing

    def clear_history(self, *, session: str | None = None, owner: str | None = None) -> tuple[Message, ...]:
        """Empty the conversation; system prompts stay, and the archive keeps everything. What went."""
        return self._run(session, owner, editing.clear)

    async def aclear_history(self, *, session: str | None = None, owner: str | None = None) -> tuple[Message, ...]:
        return await self._arun(session, owner, editing.clear)

    def reset_conversation(self, *, session: str | None = None, owner: str | None = None) -> tuple[Message, ...]:
        """A new conversation in the same session: as `clear_history`, and turns under way are given up."""
        return self._run(session, owner, _reset)

    async def areset_conversation(self, *, session: str | None = None, owner: str | None = None) -> tuple[Message, ...]:
        return await self._arun(session, owner, _reset)

    def trim_messages_to_budget(
        self, budget_tokens: int, *, session: str | None = None, owner: str | None = None
    ) -> int:
        """Drop the oldest messages until the view fits; how many went. 0 tokens is no budget, and nothing is done.
        ConfigError for a negative number.

        System prompts, pins, the newest user message and whole tool rounds stay; undo brings the others back.
        """
        return self._run(session, owner, lambda e, j: _trimmed(e, j, budget_tokens))

    async def atrim_messages_to_budget(
        self, budget_tokens: int, *, session: str | None = None, owner: str | None = None
    ) -> int:
        return await self._arun(session, owner, lambda e, j: _trimmed(e, j, budget_tokens))

    # sections

    def inject(
        self,
        kind: str,
        items: Sequence[Item | str],
        *,
        place: Place = "tail",
        session: str | None = None,
        owner: str | None = None,
    ) -> SectionInjected | None:
        """Put a section of any kind in; None when it says nothing new. See `ctxfold.injection.inject`."""
        return self._run(session, owner, lambda e, j: injection.inject(e, j, kind, items, place=place))

    async def ainject(
        self,
        kind: str,
        items: Sequence[Item | str],
        *,
        place: Place = "tail",
        session: str | None = None,
        owner: str | None = None,
    ) -> SectionInjected | None:
        return await self._arun(session, owner, lambda e, j: injection.inject(e, j, kind, items, place=place))

    def remove(self, kind: str | None = None, *, session: str | None = None, owner: str | None = None) -> int:
        """Removes the sections of a kind, or all of them, and returns how many there were.

        Sections are recognised by their metadata, never by their text. ConfigError for a kind that is not built in, belongs to no
        configured section and is not in the session: such a name is a misspelling.
        """
        return self._run(session, owner, lambda e, j: injection.remove(e, j, kind))

    async def aremove(self, kind: str | None = None, *, session: str | None = None, owner: str | None = None) -> int:
        return await self._arun(session, owner, lambda e, j: injection.remove(e, j, kind))

    def prepare_context(
        self,
        question: str,
        *,
        assembly: Assembly = "full_history",
        session: str | None = None,
        owner: str | None = None,
    ) -> ContextDelta:
        """Everything for one turn: sections asked at once and put in, recall, and a window made to fit.

        "memory_first" shows the newest two messages and gives what that frees to the sections; "adaptive" does so from turn 20 on.
        """
        return self._run(session, owner, lambda e, j: _prepared(e, j, question, assembly))

    async def aprepare_context(
        self,
        question: str,
        *,
        assembly: Assembly = "full_history",
        session: str | None = None,
        owner: str | None = None,
    ) -> ContextDelta:
        return await self._arun(session, owner, lambda e, j: _prepared(e, j, question, assembly))

    # compaction

    def maybe_compact(self, *, session: str | None = None, owner: str | None = None) -> Tier:
        """Ask the triggers: nothing was due, tool outputs gave way (soft), or a summary was written (hard)."""
        return self._run(session, owner, _maintained)

    async def amaybe_compact(self, *, session: str | None = None, owner: str | None = None) -> Tier:
        return await self._arun(session, owner, _maintained)

    def compact_context(
        self,
        *,
        focus: bool | str = False,
        summary_tokens: int | None = None,
        session: str | None = None,
        owner: str | None = None,
    ) -> Outcome:
        """Compact now, whatever the triggers say; the outcome says what became of it, a failure of the store included.

        `summary_tokens` is the limit of this one summary.

        With `focus`, older exchanges that bear on that topic stay word for word; True: on the goal and step in force, or the
        newest question.
        """
        return self._run(session, owner, lambda e, j: _compacted(e, j, focus, summary_tokens))

    async def acompact_context(
        self,
        *,
        focus: bool | str = False,
        summary_tokens: int | None = None,
        session: str | None = None,
        owner: str | None = None,
    ) -> Outcome:
        return await self._arun(session, owner, lambda e, j: _compacted(e, j, focus, summary_tokens))

    def maybe_soft_compact_mid_iteration(self, *, session: str | None = None, owner: str | None = None) -> bool:
        """Between tool rounds of a turn, above the soft ratio: its older outputs give way. Once a turn, never with a model."""
        return self._run(session, owner, _between_rounds)

    async def amaybe_soft_compact_mid_iteration(self, *, session: str | None = None, owner: str | None = None) -> bool:
        return await self._arun(session, owner, _between_rounds)

    def maybe_proactive_compress(
        self,
        threshold_ratio: float = 0.75,
        *,
        focus: bool | str = False,
        session: str | None = None,
        owner: str | None = None,
    ) -> bool:
        """Compact ahead of the triggers, without cooldown, when more than that share of the budget is used; whether it did.

        `focus` is that of `compact_context`.
        """
        return self._run(session, owner, lambda e, j: _ahead(e, j, threshold_ratio, focus))

    async def amaybe_proactive_compress(
        self,
        threshold_ratio: float = 0.75,
        *,
        focus: bool | str = False,
        session: str | None = None,
        owner: str | None = None,
    ) -> bool:
        return await self._arun(session, owner, lambda e, j: _ahead(e, j, threshold_ratio, focus))

    # tool pairs, goals, skills

    def summarize_tool_pairs(self, *, session: str | None = None, owner: str | None = None) -> int:
        """Summarise older tool outputs, all but the newest six; how many. The window does not change."""
        return self._run(session, owner, lambda e, j: summarise_pairs(j, e.ports))

    async def asummarize_tool_pairs(self, *, session: str | None = None, owner: str | None = None) -> int:
        return await self._arun(session, owner, lambda e, j: summarise_pairs(j, e.ports))

    def apply_tool_pair_summaries(self, *, session: str | None = None, owner: str | None = None) -> int:
        """Show the summaries of tool outputs that wait; how many."""
        return self._run(session, owner, lambda e, j: e.room.apply_tool_summaries(j))

    async def aapply_tool_pair_summaries(self, *, session: str | None = None, owner: str | None = None) -> int:
        return await self._arun(session, owner, lambda e, j: e.room.apply_tool_summaries(j))

    def flush_tool_pair_summaries(self, *, session: str | None = None, owner: str | None = None) -> bool:
        """Store summaries of tool outputs that the store did not take before; whether none waits any more."""
        return self._run(session, owner, lambda e, j: flush_pairs(j, e.ports))

    async def aflush_tool_pair_summaries(self, *, session: str | None = None, owner: str | None = None) -> bool:
        return await self._arun(session, owner, lambda e, j: flush_pairs(j, e.ports))

    def maybe_refresh_goal(self, *, session: str | None = None, owner: str | None = None) -> str:
        """Apply the goal and step found out last, and ask for the next in the background; the goal in force, "" for none.

        Nothing happens while the pruning order needs no goal.
        """
        return self._run(session, owner, _refreshed)

    async def amaybe_refresh_goal(self, *, session: str | None = None, owner: str | None = None) -> str:
        return await self._arun(session, owner, _refreshed)

    maybe_refresh_task_goal, amaybe_refresh_task_goal = maybe_refresh_goal, amaybe_refresh_goal

    def maybe_refresh_subgoal(self, *, session: str | None = None, owner: str | None = None) -> str:
        """As `maybe_refresh_goal`, which finds out both at once; the step under way, "" for none."""
        return self._run(session, owner, _refreshed_step)

    async def amaybe_refresh_subgoal(self, *, session: str | None = None, owner: str | None = None) -> str:
        return await self._arun(session, owner, _refreshed_step)

    def disambiguate_skills(self, question: str, skills: Mapping[str, str]) -> tuple[str, ...] | None:
        """The names of skills, those that a model finds to apply first; None when it fails: keep your own order."""
        return run(ranked_skills(question, skills), self._engine.ports)

    async def adisambiguate_skills(self, question: str, skills: Mapping[str, str]) -> tuple[str, ...] | None:
        return await arun(ranked_skills(question, skills), self._engine.ports)

    # driving

    def _flow(self, session: str | None, owner: str | None, work: Callable[[Engine, Journal], Flow[T]]) -> Flow[T]:
        key = SessionKey(
            name_or_own("owner name", owner, self._key.owner), name_or_own("session name", session, self._key.session)
        )
        journal = yield from self._engine.open(key)
        return (yield from work(self._engine, journal))

    def _run(self, session: str | None, owner: str | None, work: Callable[[Engine, Journal], Flow[T]]) -> T:
        return run(self._flow(session, owner, work), self._engine.ports)

    async def _arun(self, session: str | None, owner: str | None, work: Callable[[Engine, Journal], Flow[T]]) -> T:
        return await arun(self._flow(session, owner, work), self._engine.ports)


def _reset(engine: Engine, journal: Journal) -> Flow[tuple[Message, ...]]:
    for turn_id in tuple(journal.state.open):
        yield from engine.close(journal, turn_id, "discarded")
    return (yield from editing.clear(engine, journal))


def _trimmed(engine: Engine, journal: Journal, budget_tokens: int) -> Flow[int]:
    if budget_tokens == 0:
        return 0
    limit = whole_number("budget_tokens", budget_tokens, "give the tokens to trim to, or 0 to trim nothing")
    outcome = yield from engine.room.compact(journal, strategy=Trim(limit))
    return outcome.event.archived if outcome.event is not None else 0


def _maintained(engine: Engine, journal: Journal) -> Flow[Tier]:
    outcome = yield from engine.room.maintain(journal)
    if outcome is None or outcome.event is None:
        return "none"
    return "soft" if outcome.event.strategy in ("clear_tools", "tool_summaries") else "hard"


def _between_rounds(engine: Engine, journal: Journal) -> Flow[bool]:
    turn_id = next(reversed(journal.state.open), None)
    outcome = yield from engine.room.compact(journal, turn_id=turn_id, strategy=BetweenRounds())
    return outcome.compacted


def _compacted(engine: Engine, journal: Journal, focus: bool | str, summary_tokens: int | None) -> Flow[Outcome]:
    try:
        return (yield from engine.room.compact(journal, strategy=_focus(focus), summary_tokens=summary_tokens))
    except StoreError as error:
        return Outcome(None, f"nothing was compacted, the store failed: {error}", status="not_stored")


def _focus(focus: bool | str) -> Focus | None:
    return Focus(focus if isinstance(focus, str) else "") if focus else None


def _ahead(engine: Engine, journal: Journal, threshold_ratio: float, focus: bool | str) -> Flow[bool]:
    if not 0 <= threshold_ratio <= 1:
        raise ConfigError(f"threshold_ratio is {threshold_ratio}: give a part of the budget, between 0 and 1")
    turn_id = next(reversed(journal.state.open), None)
    used = journal.view(turn_id).tokens + journal.overhead_tokens
    if used <= threshold_ratio * journal.rules().budget_tokens:
        return False
    outcome = yield from engine.room.compact(journal, turn_id=turn_id, strategy=_focus(focus))
    return outcome.compacted


def _refreshed(engine: Engine, journal: Journal) -> Flow[str]:
    for event in (yield from refresh_goal(journal, engine.ports)):
        engine.events.emit(event)
    return journal.state.goal.goal


def _refreshed_step(engine: Engine, journal: Journal) -> Flow[str]:
    yield from _refreshed(engine, journal)
    step = journal.state.goal.subgoals[-1:]
    return step[0].text if step and not step[0].completed else ""


def _prepared(engine: Engine, journal: Journal, question: str, assembly: Assembly) -> Flow[ContextDelta]:
    """What is stored is stored before the question is: the caller adds that, and the reply, as any other messages."""
    if assembly not in get_args(Assembly):
        raise ConfigError(f"assembly is {assembly!r}: use one of {', '.join(get_args(Assembly))}")
    counter, room = engine.ports.counter, engine.room
    memory_first = assembly == "memory_first" or (assembly == "adaptive" and journal.state.turns >= ADAPTIVE_TURNS)
    if memory_first:
        yield from room.compact(journal, strategy=Newest(KEPT_FIRST))
    budget, asked = journal.rules().budget_tokens, counter.count(user(question, id="asked"))
    view = journal.view()
    look = partial(fill, journal, question=question, sources=room.sources, ports=engine.ports)
    required, first = yield from look(
        view,
        [s for s in room.sections if s.required],
        room_tokens=0,
        required_tokens=budget - sum(e.tokens for e in view.system) - asked,
    )
    reserved = sum(f.tokens for f in required)
    window = yield from room.window(journal, question=question, sections=(), overhead_tokens=reserved)
    used = window.view.tokens + asked + counter.count_text(window.recalled)
    share = shares([s.kind for s in room.sections], memory_first=memory_first)
    others = [s for s in room.sections if not s.required]
    found, then = yield from look(
        window.view,
        [s if s.share is not None else replace(s, share=share.get(s.kind)) for s in others],
        room_tokens=budget - used - journal.overhead_tokens,
    )
    filled, events = (*required, *found), (*first, *then)
    for event in events:
        engine.events.emit(event)
    yield from injection.store(engine, journal, [f for f in filled if _stored(f)])
    beside = "\n\n".join(f.text for f in filled if not _stored(f) and f.note.kind != CODE)
    return ContextDelta(
        messages=journal.view().messages,
        recalled="\n\n".join(t for t in (window.recalled, beside) if t),
        code="".join(f.text for f in filled if f.note.kind == CODE),
        injected=tuple(f.event(journal.key.session) for f in filled),
        skipped=tuple(e for e in events if isinstance(e, SectionSkipped)),
        assembly="memory_first" if memory_first else "full_history",
        used_tokens=used + sum(f.tokens for f in filled),
        budget_tokens=budget,
    )


def _stored(filled: Filled) -> bool:
    return filled.section.lifetime == "epoch" and filled.note.kind != CODE
