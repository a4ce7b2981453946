"""Room for the next request: what a model may be shown, and the compactions that make it fit. Flows over one set of ports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ctxfold.background import Start
from ctxfold.compaction.apply import Outcome, Postponed, compact, facts_of, written_later
from ctxfold.compaction.goal import refresh_goal
from ctxfold.compaction.pairs import prepare_pairs
from ctxfold.compaction.plan import Mode
from ctxfold.compaction.strategy import Strategy, SummarizerStrategy
from ctxfold.compaction.tiers import BUILT_IN
from ctxfold.errors import CtxError
from ctxfold.events import CompactionHeld, HistoryCompacted, MemoryLearnt, Subscribers
from ctxfold.flow import Flow
from ctxfold.history.view import View
from ctxfold.journal import Journal
from ctxfold.memory.chronicle import chronicle
from ctxfold.memory.learn import EXTRACTED, learn
from ctxfold.messages import Message, user
from ctxfold.ports import Ports
from ctxfold.zones.assemble import (
    newest_question,
    newest_user,
    overflow,
    recalled,
    remember,
    remembered,
    too_large,
)
from ctxfold.zones.inject import Filled, fill
from ctxfold.zones.section import Section
from ctxfold.zones.sources import Sources

__all__ = ["Room", "Window"]

FIT_TRIES = 4
PROVIDER_RATIO = 0.95  # of the budget: up to here a provider that compacts by itself is left to do so
BESIDE_TOKENS = 8  # role and gaps of the message in which recalled passages and sections travel


@dataclass(frozen=True, slots=True)
class Window:
    """What a model may be shown: the view, and what travels with this request only: recalled passages and sections."""

    view: View
    recalled: str = ""

    @property
    def messages(self) -> tuple[Message, ...]:
        return self.view.messages


class Room:
    """What fits the window of a session, and what makes it fit."""

    def __init__(self, ports: Ports, strategies: Mapping[str, Strategy], events: Subscribers) -> None:
        self.ports = ports
        self.strategies = strategies
        self.events = events
        self.sections: tuple[Section, ...] = ()
        self.sources = Sources()

    def window(
        self,
        journal: Journal,
        *,
        turn_id: str | None = None,
        overhead_tokens: int = 0,
        max_tokens: int | None = None,
        auto_compact: bool | None = None,
        recall: bool = True,
        question: str | None = None,
        sections: Sequence[Section] | None = None,
    ) -> Flow[Window]:
        """What a request may hold, made to fit. ContextOverflowError when it cannot, or may not be, made to.

        `question` is what is about to be asked, where it is not stored yet: it is counted, recall looks for it, and all
        sections travel with the request, or those given, as none was stored with it. Without `recall` nothing is looked for.
        Required sections are asked first, and the view is made to fit beside them.
        """
        rules = journal.rules()
        extra = overhead_tokens + max(0, (max_tokens or 0) - rules.reply_reserve_tokens)
        journal.overhead_tokens = extra
        allowed = journal.may_compact(auto_compact)
        if allowed:
            yield from self._prepare(journal, turn_id)
            yield from self._ask_summarizer(journal, turn_id, extra)
        view = journal.view(turn_id)
        asked = self._coming(journal, view, question)
        wanted = self._wanted(sections, question is not None) if recall else ()
        required, others = [s for s in wanted if s.required], [s for s in wanted if not s.required]
        reserved = ""
        if required:
            newest = asked or newest_user(view) or user("", id=self._asked_id(journal))
            room = rules.budget_tokens - sum(e.tokens for e in view.system) - extra - BESIDE_TOKENS
            room -= self.ports.counter.count(newest)
            reserved = yield from self._travelling(journal, view, required, newest, room, turn_id)
            extra += self.ports.counter.count_text(reserved) + BESIDE_TOKENS if reserved else 0
            journal.overhead_tokens = extra  # triggers have to see it too
        extra += self.ports.counter.count(asked) if asked else 0
        view = yield from self._fit(journal, turn_id, extra, allowed=allowed)
        asking = asked or newest_question(view)
        if not recall or asking is None:
            return Window(view, reserved)
        room = rules.budget_tokens - view.tokens - extra - (0 if reserved else BESIDE_TOKENS)
        text = yield from recalled(journal, view, self.ports, question=asking, room_tokens=room)
        room -= self.ports.counter.count_text(text) if others else 0
        beside = yield from self._travelling(journal, view, others, asking, room, turn_id)
        return Window(view, "\n\n".join(t for t in (reserved, text, beside) if t))

    def _ask_summarizer(self, journal: Journal, turn_id: str | None, extra: int) -> Flow[None]:
        """Ask a summarizer of the user's on every input and between tool rounds; when it fails, the request goes on without."""
        if turn_id is None or not isinstance(self.strategies.get(journal.rules().strategy), SummarizerStrategy):
            return
        try:
            yield from self._compact(journal, "close", turn_id=turn_id, overhead_tokens=extra)
        except CtxError as error:
            self.events.emit(CompactionHeld(journal.key.session, f"the compaction failed: {error}"))

    def _wanted(self, sections: Sequence[Section] | None, unstored: bool) -> Sequence[Section]:
        """The sections that travel with a request: all of them where none was stored with the question."""
        if sections is not None:
            return sections
        return [s for s in self.sections if unstored or s.lifetime == "request"]

    def _travelling(
        self,
        journal: Journal,
        view: View,
        sections: Sequence[Section],
        question: Message,
        room_tokens: int,
        turn_id: str | None,
    ) -> Flow[str]:
        """The sections of this request as text, the same all turn long; all of them required, or none."""
        if not sections:
            return ""
        whole, count = any(s.whole for s in sections), self.ports.counter.count_text
        key = f"{question.id} {'required' if sections[0].required else 'sections'}"
        known = remembered(journal, key, question)
        if known is not None and (whole or count(known) <= room_tokens):
            return known
        filled = yield from self.fill(
            journal,
            view,
            sections,
            question,
            room_tokens=room_tokens,
            required_tokens=room_tokens,
            turn_id=turn_id,
        )
        for each in filled:
            self.events.emit(each.event(journal.key.session))
        return remember(journal, key, question, "\n\n".join(f.text for f in filled))

    def fill(
        self,
        journal: Journal,
        view: View,
        sections: Sequence[Section],
        question: Message,
        *,
        room_tokens: int,
        required_tokens: int = 0,
        turn_id: str | None,
    ) -> Flow[tuple[Filled, ...]]:
        """The sections that have something to say on the question; why others have not is told to subscribers."""
        filled, events = yield from fill(
            journal,
            view,
            sections,
            question.text,
            room_tokens=room_tokens,
            required_tokens=required_tokens,
            sources=self.sources,
            ports=self.ports,
            turn_id=turn_id,
        )
        for event in events:
            self.events.emit(event)
        return filled

    def make_room(self, journal: Journal, *, turn_id: str | None = None) -> Flow[None]:
        """What a request at this point would have had compacted, for those who only store a conversation."""
        if not journal.may_compact():
            return
        try:
            yield from self._fit(journal, turn_id, journal.overhead_tokens, allowed=True)
        except CtxError as error:
            # what is stored stays so; a request asks for room again
            self.events.emit(CompactionHeld(journal.key.session, f"the conversation does not fit: {error}"))

    def _fit(self, journal: Journal, turn_id: str | None, extra: int, *, allowed: bool) -> Flow[View]:
        """The view, compacted until it fits beside `extra` tokens; constant time when it does."""
        rules, view = journal.rules(), journal.view(turn_id)
        reason = "automatic compaction is off"
        for _ in range(FIT_TRIES if allowed else 0):
            if view.tokens + extra <= rules.budget_tokens:
                break
            if (error := too_large(view, extra, rules)) is not None:
                raise error  # no compaction could help: nothing is written
            outcome = yield from self._compact(journal, "cap", turn_id=turn_id, overhead_tokens=extra)
            reason, before = outcome.reason, view
            view = journal.view(turn_id)
            if not outcome.compacted and view.epoch == before.epoch:
                break
        if view.tokens + extra > rules.budget_tokens:
            raise overflow(view, extra, rules, reason)
        return view

    def _coming(self, journal: Journal, view: View, question: str | None) -> Message | None:
        """The question as a message, unless it stands in the view already."""
        newest = newest_question(view) if question else None
        if not question or (newest is not None and newest.text == question):
            return None
        return user(question, id=self._asked_id(journal))

    def _asked_id(self, journal: Journal) -> str:
        """The id of a question that is not stored. What is found is kept by it, and after a compaction there is more to find."""
        return f"asked:{journal.state.compactions}.{journal.state.turns}"

    def recalled(self, journal: Journal, question: Message) -> Flow[str]:
        """Passages of compacted messages for a question that is not stored yet, within the room that it leaves."""
        view, rules = journal.view(), journal.rules()
        room = rules.budget_tokens - view.tokens - journal.overhead_tokens - BESIDE_TOKENS
        room -= self.ports.counter.count(question)
        return (yield from recalled(journal, view, self.ports, question=question, room_tokens=room))

    def maintain(
        self, journal: Journal, *, idle_s: float = 0.0, full: bool = False, auto_compact: bool | None = None
    ) -> Flow[Outcome | None]:
        """Ordinary triggers, asked when a turn has closed; after a pause of `idle_s`, before the next one is stored.

        With `full` they are not asked: the service has said that its window is. `auto_compact` is the request's own choice.
        """
        if not journal.may_compact(auto_compact):
            return None
        used = journal.view().tokens + journal.overhead_tokens
        if journal.provider_compacts and not full and used <= PROVIDER_RATIO * journal.rules().budget_tokens:
            return None
        try:
            yield from self._prepare(journal, None)
            overhead = journal.overhead_tokens
            mode: Mode = "forced" if full else "close"
            return (yield from self._compact(journal, mode, overhead_tokens=overhead, idle_s=idle_s))
        except CtxError as error:
            # the turn itself is stored and stays so; the next request asks for room again where it needs it
            self.events.emit(CompactionHeld(journal.key.session, f"the compaction failed: {error}"))
            return None

    def compact(
        self,
        journal: Journal,
        *,
        turn_id: str | None = None,
        strategy: Strategy | None = None,
        summary_tokens: int | None = None,
    ) -> Flow[Outcome]:
        """Compaction on demand, whatever the triggers say; with a turn, of its own rounds too.

        `strategy` is asked in place of the session's own; `summary_tokens` is the limit of this one summary.
        """
        overhead = journal.overhead_tokens if strategy is not None else 0
        return (
            yield from self._compact(
                journal,
                "forced",
                turn_id=turn_id,
                overhead_tokens=overhead,
                strategy=strategy,
                summary_tokens=summary_tokens,
            )
        )

    def apply_tool_summaries(self, journal: Journal) -> Flow[int]:
        """Show the summaries of tool outputs that wait, whatever the triggers say; how many."""
        own = {journal.rules().strategy: BUILT_IN["tool_summaries"]}
        outcome, events = yield from compact(journal, facts_of(journal, "forced"), self.ports, own)
        for event in events:
            self.events.emit(event)
        return outcome.event.archived if outcome.event is not None else 0

    def _prepare(self, journal: Journal, turn_id: str | None) -> Flow[None]:
        """What compactions will go by, found out off the hot path."""
        for aim in (yield from refresh_goal(journal, self.ports, turn_id=turn_id)):
            self.events.emit(aim)
        for told in (yield from prepare_pairs(journal, self.ports, turn_id=turn_id)):
            self.events.emit(told)

    def _compact(
        self,
        journal: Journal,
        mode: Mode,
        *,
        turn_id: str | None = None,
        overhead_tokens: int = 0,
        idle_s: float = 0.0,
        strategy: Strategy | None = None,
        summary_tokens: int | None = None,
    ) -> Flow[Outcome]:
        own = self.strategies if strategy is None else {journal.rules().strategy: strategy}
        facts = facts_of(journal, mode, turn_id=turn_id, overhead_tokens=overhead_tokens, idle_s=idle_s)
        before = journal.view(turn_id)
        outcome, events = yield from compact(journal, facts, self.ports, own, summary_tokens=summary_tokens)
        for event in events:
            self.events.emit(event)
        if outcome.postponed is not None:
            yield from Start(self._write_later(journal, outcome.postponed))
        if outcome.event is not None and (kinds := journal.rules().memory):
            yield from Start(self._remember(journal, before, outcome.event, kinds))
        return outcome

    def _write_later(self, journal: Journal, postponed: Postponed) -> Flow[None]:
        """In the background, the summary by the model of what was imported."""
        try:
            told = yield from written_later(journal, postponed, self.ports)
        except Exception as error:  # noqa: BLE001 - in the background nobody else would hear of it
            told = str(error) or repr(error)
        if isinstance(told, str):
            text = f"the imported messages keep their extractive summary: {told}"
            self.events.emit(CompactionHeld(journal.key.session, text))
        else:
            self.events.emit(told)

    def _remember(
        self, journal: Journal, before: View, compacted: HistoryCompacted, kinds: Sequence[str]
    ) -> Flow[None]:
        """In the background, keep what a compaction leaves to remember; it takes nothing from the session when it fails."""
        gone, known = frozenset(compacted.covered), {e.id for e in before}
        covered = [e for e in before if e.id in gone]
        summary = next((e.message for e in journal.view().compressed if e.id not in known), None)
        try:
            if summary is not None:
                yield from chronicle(journal, summary, compacted.covered, self.ports, kinds=kinds)
        except Exception as error:  # noqa: BLE001 - in the background nobody else would hear of it
            self.events.emit(MemoryLearnt(journal.key.session, problem=str(error) or repr(error)))
        learnt = [k for k in kinds if k in EXTRACTED]
        if learnt:
            _, event = yield from learn(journal, covered, self.ports, kinds=learnt)
            self.events.emit(event)
