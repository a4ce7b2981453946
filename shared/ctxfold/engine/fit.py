"""Makes the view of a session fit the window of the next request by compaction, and fills sections and passages beside it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain

from ctxfold.compaction.built_in import BUILT_IN, BY_RATIO, WAITING_SUMMARIES, EarlyArguments, Tiered
from ctxfold.compaction.commit import Outcome, Postponed
from ctxfold.compaction.compact import compact, session_facts, write_postponed
from ctxfold.compaction.goal import refresh_goal
from ctxfold.compaction.steps import ARGUMENT_RATIO
from ctxfold.compaction.strategy import Occasion, Strategy, SummarizerStrategy
from ctxfold.compaction.tool_outputs import outputs_of
from ctxfold.compaction.tool_summaries import prepare_pairs
from ctxfold.effects import Flow, Start
from ctxfold.engine.recall import NOTHING_FOUND, PassageFitter
from ctxfold.errors import BudgetError, ContextOverflowError, CtxError, MessageTooLargeError, StrategyError
from ctxfold.events import CompactionHeld, HistoryCompacted, MemoryLearnt, Subscribers
from ctxfold.history.calibration import observed, reported_size
from ctxfold.history.diff import without_repeated_prompts
from ctxfold.history.view import Entry, View, WindowTokens
from ctxfold.memory.extraction import EXTRACTED, learn, remember_summary
from ctxfold.memory.store import memory_section
from ctxfold.messages import Message, is_final, is_prompt, is_question, user
from ctxfold.policy.settings import Policy, needs_goal, needs_tool_summaries
from ctxfold.protocols import Ports, capabilities_of
from ctxfold.sections.fill import Filled, Sources, fill
from ctxfold.sections.section import Section
from ctxfold.state import CompactionPause, Session, Stage

_log = logging.getLogger("ctxfold")

FIT_TRIES = 4
PROVIDER_RATIO = 0.95  # of the budget: up to here a provider that compacts by itself is left to do so
# arguments are looked at again when the view has grown by this share of what they would have to free
ARGUMENT_STEP = 0.125
FRAME_TOKENS = 8  # role and gaps of the message that holds recalled passages and sections
COUNTED_TEXTS = 64  # texts whose token counts are cached


@dataclass(frozen=True, slots=True)
class Window:
    """Holds the messages that the model receives: the view, and the recalled passages and sections of this request only.

    `recalled_numbers` are the messages whose passages it has, and `hidden_numbers` those that gave way to them.
    """

    view: View
    recalled: str = ""
    recalled_numbers: tuple[int, ...] = ()
    hidden_numbers: tuple[int, ...] = ()

    @property
    def messages(self) -> tuple[Message, ...]:
        return self.view.messages


class WindowFitter:
    """Makes room in the windows of sessions: before a request, after a turn, or on demand."""

    def __init__(
        self, ports: Ports, strategies: Mapping[str, Strategy], events: Subscribers, sections: tuple[Section, ...]
    ) -> None:
        self.ports = ports
        # of a request: its passages and sections come again in each tool round
        self.count_text = lru_cache(maxsize=COUNTED_TEXTS)(ports.counter.count_text)
        self.passages = PassageFitter(ports, self.count_text)
        self.strategies = strategies
        self.events = events
        self.sections = sections  # where not all of them fit, earlier ones take precedence
        self.sources = Sources()

    def sections_of(self, rules: Policy) -> tuple[Section, ...]:
        """Returns the sections of a session: the given ones, and one for each kind of memory that its compactions store."""
        given = {section.kind for section in self.sections} if rules.memory else ()
        return (*self.sections, *(memory_section(k, lifetime="request") for k in rules.memory if k not in given))

    def window(
        self,
        session: Session,
        stage: Stage,
        *,
        overhead_tokens: int = 0,
        max_tokens: int | None = None,
        auto_compact: bool | None = None,
        recall: bool = True,
        question: str | None = None,
        sections: Sequence[Section] | None = None,
        whole_tail: bool = False,
    ) -> Flow[Window]:
        """Returns the window of the next request. Raises ContextOverflowError when it cannot, or may not, be made to fit.

        Required sections are filled first, and the view is made to fit beside them. Without `recall` the window has neither
        passages nor sections. `question` is a user message that is not stored yet: it is counted, passages are searched for it,
        and all sections (or `sections`) go into the window, not only those of one request. With `whole_tail`, no live message
        gives way to passages.
        """
        count, rules = self.count_text, stage.rules
        reply_tokens = max(0, (max_tokens or 0) - rules.reply_reserve_tokens)
        overhead_tokens += reply_tokens
        session.sent_overhead_tokens = overhead_tokens
        may_compact = rules.auto_compact if auto_compact is None else auto_compact
        if may_compact:
            stage = yield from self._compact_early(session, stage, overhead_tokens)
        new_question = _new_question(session, stage.view, question) if question else None
        if sections is None:
            sections = [s for s in self.sections_of(rules) if question is not None or s.lifetime == "request"]
        sections = sections if recall else ()
        required = [s for s in sections if s.required]
        optional = [s for s in sections if not s.required]
        texts, found = list[str](), NOTHING_FOUND
        if required:
            newest = stage.view.newest_user()
            asked = new_question or (newest.message if newest else user("", id=_question_id(session)))
            # the budget that the system prompts and the question leave
            room = rules.budget_tokens - sum(e.tokens for e in stage.view.system) - overhead_tokens - FRAME_TOKENS
            room -= self.ports.counter.count(asked)
            text = yield from self._section_text(session, stage, required, asked, room)
            texts = [text] if text else []
            overhead_tokens += count(text) + FRAME_TOKENS if text else 0
            session.sent_overhead_tokens = overhead_tokens  # triggers have to see it too
            stage = session.with_new_view(stage)
        if new_question is not None:
            overhead_tokens += self.ports.counter.count(new_question)
        if stage.view.tokens + overhead_tokens > rules.budget_tokens:
            stage = yield from self._fitted(
                session, stage, overhead_tokens, reply_tokens=reply_tokens, may_compact=may_compact
            )
        fitted = stage.view
        if recall and (to_answer := new_question or newest_question(stage.view)) is not None:
            other_tokens = overhead_tokens + (0 if texts else FRAME_TOKENS)
            reserved_tokens = sum(int(s.share_ratio * rules.budget_tokens) for s in optional)
            room_tokens = rules.budget_tokens - stage.view.tokens - other_tokens
            view, found = yield from self.passages.fit(
                session, stage, to_answer, room_tokens - reserved_tokens, whole_tail=whole_tail
            )
            stage = replace(stage, view=view)
            texts.append(found.text)
            if optional:
                room_tokens = rules.budget_tokens - stage.view.tokens - other_tokens - count(found.text)
                texts.append((yield from self._section_text(session, stage, optional, to_answer, room_tokens)))
        recalled = "\n\n".join(t for t in texts if t)
        return Window(without_repeated_prompts(stage.view), recalled, found.numbers, _gave_way(fitted, stage.view))

    def note_window(
        self, session: Session, window: Window, tools_tokens: int, turn_id: str | None = None
    ) -> WindowTokens:
        """Returns the size of a window that is handed out; it is stored with the reply."""
        known = session.state.calibrations.get(session.model)
        recalled, ratio = self.count_text(window.recalled), 1.0 if known is None else known.ratio
        size = replace(
            window.view.measured(recalled=recalled, tools=tools_tokens, ratio=ratio),
            recalled_numbers=window.recalled_numbers or None,
            hidden_numbers=window.hidden_numbers or None,
        )
        open_turns = session.open_turns()  # others may have been closed by another process
        session.sent_windows = {t: s for t, s in session.sent_windows.items() if t in open_turns}
        session.sent_windows[turn_id or ""] = (session.model, size)
        return size

    def note_reply(self, session: Session, turn_id: str | None, messages: Sequence[Message]) -> Flow[None]:
        """Learns from the reply among new messages of a turn, whose request somebody else sent, and notes the size of that.

        What its sender put beside our messages, such as tools, is not known. In a small request it would pass for a large error of
        our count; in one that takes more than the triggers allow, all of it has to give way.
        """
        sent, count = session.sent_windows, self.ports.counter.count
        key = turn_id if turn_id in sent else ""
        place = next((i for i, m in enumerate(messages) if m.role == "assistant"), None)
        if place is None or key not in sent or any(map(is_question, messages[place:])):
            return
        model, size = sent.pop(key)
        size = replace(size, live=size.live + sum(map(count, messages[:place])))
        reply = messages[place]
        if reported := reply.usage.input_tokens if reply.usage else 0:
            rules, known = session.window_rules(), session.state.calibrations.get(model)
            large = reported > rules.hard_ratio * rules.budget_tokens
            if large and (learnt := observed(known, model=model, estimated=size.own_count, reported=reported)):
                yield from session.append([session.draft(learnt)])
        session.reply_sizes[reply.id] = reported_size(size, reply.usage)

    def _compact_early(self, session: Session, stage: Stage, overhead_tokens: int) -> Flow[Stage]:
        """Compacts what the policy has compacted before a request that may well fit, and returns the stage after that.

        A summarizer of the user's is asked on every input and between tool rounds. Large arguments of earlier calls become
        excerpts where that is worth an epoch.
        """
        if needs_goal(stage.rules) or needs_tool_summaries(stage.rules):
            yield from self._prepare(session, stage)
            stage = session.with_new_view(stage)
        strategy = self.strategies.get(stage.rules.strategy)
        if stage.turn_id is not None and isinstance(strategy, SummarizerStrategy):
            stage = yield from self._try_compact(session, stage, overhead_tokens)
        if self._arguments_due(session, stage):
            stage = yield from self._try_compact(session, stage, overhead_tokens, EarlyArguments())
        return stage

    def _try_compact(
        self, session: Session, stage: Stage, overhead_tokens: int, strategy: Strategy | None = None
    ) -> Flow[Stage]:
        """Compacts if that is due, and returns the stage after that; a failure is reported and stops no request."""
        try:
            yield from self._compact(session, stage, "after_turn", overhead_tokens=overhead_tokens, strategy=strategy)
        except CtxError as error:
            self._report_failed(session, error)
        return session.with_new_view(stage)

    def _report_failed(self, session: Session, error: CtxError) -> None:
        """Emits the event, and logs a warning once for a strategy of the user's that fails: it is asked again and again."""
        if isinstance(error, StrategyError) and not session.strategy_failed:
            session.strategy_failed = True
            _log.warning("session %r is not compacted: %s", session.key.session, error)
        self.events.emit(CompactionHeld(session.key.session, f"the compaction failed: {error}"))

    def _fitted(
        self, session: Session, stage: Stage, overhead_tokens: int, *, may_compact: bool, reply_tokens: int = 0
    ) -> Flow[Stage]:
        """Compacts a view that does not fit beside `overhead_tokens` until it does.

        `reply_tokens` of them are what the reply may take beyond the reserve.
        """
        budget_tokens, window = stage.rules.budget_tokens, session.described_window(stage.context_window)
        reason = "automatic compaction is off"
        for _ in range(FIT_TRIES if may_compact else 0):
            if stage.view.tokens + overhead_tokens <= budget_tokens:
                break
            if (error := _too_large(stage, overhead_tokens, reply_tokens, window)) is not None:
                raise error  # no compaction could help: nothing is written
            outcome = yield from self._compact(session, stage, "must_fit", overhead_tokens=overhead_tokens)
            reason, epoch = outcome.reason, stage.view.epoch
            stage = session.with_new_view(stage)
            if not outcome.compacted and stage.view.epoch == epoch:
                break
        if stage.view.tokens + overhead_tokens > budget_tokens:
            raise _overflow(stage, overhead_tokens, reason, reply_tokens, window)
        return stage

    def _section_text(
        self,
        session: Session,
        stage: Stage,
        sections: Sequence[Section],
        question: Message,
        room_tokens: int,
    ) -> Flow[str]:
        """Returns the sections of this request as text, the same all turn long. They are all required, or none is."""
        key = f"{question.id} {'required' if sections[0].required else 'sections'}"
        known = session.request_text(key, question)
        unbounded = any(s.whole for s in sections)
        if known is not None and (unbounded or self.count_text(known.text) <= room_tokens):
            return known.text
        filled = yield from self.fill(
            session, stage, sections, question.text, room_tokens=room_tokens, required_tokens=room_tokens
        )
        self.events.emit(*(f.event(session.key.session) for f in filled))
        text = "\n\n".join(f.text for f in filled)
        session.keep_request_text(key, question, text)
        return text

    def fill(
        self,
        session: Session,
        stage: Stage,
        sections: Sequence[Section],
        question: str,
        *,
        room_tokens: int,
        required_tokens: int = 0,
        by_hand: bool = False,
    ) -> Flow[tuple[Filled, ...]]:
        """Returns the sections that have something to say on the question; subscribers learn why others have not."""
        filled, events = yield from fill(
            session,
            stage,
            sections,
            question,
            room_tokens=room_tokens,
            required_tokens=required_tokens,
            sources=self.sources,
            by_hand=by_hand,
        )
        self.events.emit(*events)
        return filled

    def make_room(self, session: Session, stage: Stage) -> Flow[None]:
        """Compacts as a request at this point would have done, for callers that only store a conversation."""
        overhead_tokens = session.overhead_tokens
        if not stage.rules.auto_compact or stage.view.tokens + overhead_tokens <= stage.rules.budget_tokens:
            return
        try:
            yield from self._fitted(session, stage, overhead_tokens, may_compact=True)
        except CtxError as error:
            # what is stored stays so; a request asks for room again
            self.events.emit(CompactionHeld(session.key.session, f"the conversation does not fit: {error}"))

    def maintain(
        self,
        session: Session,
        stage: Stage,
        *,
        idle_s: float = 0.0,
        full: bool = False,
        auto_compact: bool | None = None,
    ) -> Flow[Outcome | None]:
        """Asks the ordinary triggers, after a turn has closed, or before the next one is stored after a pause of `idle_s`.

        With `full` they are not asked: the service has said that its window is. `auto_compact` is the request's own choice.
        """
        overhead = session.overhead_tokens
        if not (stage.rules.auto_compact if auto_compact is None else auto_compact):
            return None
        if not full and self._nothing_due(session, stage, stage.view.tokens + overhead):
            return None
        try:
            yield from self._prepare(session, stage)
            occasion: Occasion = "on_demand" if full else "after_turn"
            stage = session.with_new_view(stage)
            return (yield from self._compact(session, stage, occasion, overhead_tokens=overhead, idle_s=idle_s))
        except CtxError as error:
            # the turn itself is stored and stays so; the next request asks for room again where it needs it
            self._report_failed(session, error)
            return None

    def compact(
        self,
        session: Session,
        stage: Stage,
        *,
        strategy: Strategy | None = None,
        summary_tokens: int | None = None,
    ) -> Flow[Outcome]:
        """Compacts on demand, whatever the triggers say; with the stage of a turn, its own rounds too.

        `strategy` is asked in place of the session's own; `summary_tokens` is the limit of this one summary.
        """
        return (
            yield from self._compact(
                session,
                stage,
                "on_demand",
                overhead_tokens=session.overhead_tokens if strategy is not None else 0,
                strategy=strategy,
                summary_tokens=summary_tokens,
            )
        )

    def apply_tool_summaries(self, session: Session) -> Flow[int]:
        """Shows the waiting summaries of tool outputs, whatever the triggers say, and returns how many there were."""
        stage = session.stage()
        strategies = {stage.rules.strategy: BUILT_IN["tool_summaries"]}
        facts = session_facts(session, "on_demand")
        outcome, events = yield from compact(session, stage, facts, strategies)
        self.events.emit(*events)
        return outcome.event.archived if outcome.event is not None else 0

    def _nothing_due(self, session: Session, stage: Stage, used_tokens: int) -> bool:
        """Tells, in constant time, whether a closed turn leaves nothing to do: no goal, no background work, no compaction.

        A policy with a trigger, and a strategy of the user's, are always asked.
        """
        rules = stage.rules
        if session.provider_compacts and used_tokens <= PROVIDER_RATIO * rules.budget_tokens:
            return True
        may_prune = "tool" in stage.view.live_roles or session.state.deferred
        ratio = min(rules.soft_ratio, rules.hard_ratio) if may_prune else rules.hard_ratio
        if rules.background and rules.prepare_ratio:
            ratio = min(ratio, rules.prepare_ratio)
        return (
            rules.trigger is None
            and rules.strategy in BY_RATIO
            and rules.strategy not in self.strategies
            and used_tokens < ratio * rules.budget_tokens
            and len(session.state.deferred) < WAITING_SUMMARIES
            and not needs_goal(rules)
            and not needs_tool_summaries(rules)
        )

    def _prepare(self, session: Session, stage: Stage) -> Flow[None]:
        """Takes in, and begins, the background work on which compactions rely: the goal, and summaries of tool outputs."""
        self.events.emit(*(yield from refresh_goal(session, stage)))
        self.events.emit(*(yield from prepare_pairs(session, stage)))

    def _arguments_due(self, session: Session, stage: Stage) -> bool:
        """Tells whether arguments of earlier calls may take enough room to give way; mostly in constant time.

        They are looked at when the view has grown by a share of what they would have to free. Not under a trigger of the user's,
        and not within a round where the provider would no longer accept the turn's reasoning after a break of the prefix.
        """
        rules, view = stage.rules, stage.view
        least, pause = ARGUMENT_RATIO * rules.budget_tokens, session.argument_pause
        paused = pause is not None and pause.epoch == view.epoch and view.tokens < pause.until_tokens
        if view.tokens < least or paused or session.provider_compacts or rules.trigger is not None:
            return False
        strategy = self.strategies.get(rules.strategy) or BUILT_IN.get(rules.strategy)
        if not isinstance(strategy, Tiered) or not strategy.shortens_arguments:
            return False
        session.argument_pause = CompactionPause(view.epoch, view.tokens + ARGUMENT_STEP * least, rules)
        last = view.last()
        asks = last is not None and last.message.role == "user"
        allowed = asks or not capabilities_of(self.ports.backend, session.model).binds_reasoning
        return allowed and ("tool" in view.live_roles or any(e.message.tool_calls for e in view.turn))

    def _compact(
        self,
        session: Session,
        stage: Stage,
        occasion: Occasion,
        *,
        overhead_tokens: int = 0,
        idle_s: float = 0.0,
        strategy: Strategy | None = None,
        summary_tokens: int | None = None,
    ) -> Flow[Outcome]:
        strategies = self.strategies if strategy is None else {stage.rules.strategy: strategy}
        must_fit = occasion == "must_fit"
        facts = session_facts(
            session,
            occasion,
            turn_id=stage.turn_id,
            overhead_tokens=overhead_tokens,
            idle_s=idle_s,
            gives_way=_giving_way(stage.view, overhead_tokens, stage.rules) if must_fit else frozenset(),
        )
        outcome, events = yield from compact(session, stage, facts, strategies, summary_tokens=summary_tokens)
        self.events.emit(*events)
        if outcome.postponed is not None:
            yield from Start(self._write_later(session, outcome.postponed))
        if outcome.event is not None and (kinds := stage.rules.memory):
            yield from Start(self._remember(session, stage.view, outcome.event, kinds))
        return outcome

    def _write_later(self, session: Session, postponed: Postponed) -> Flow[None]:
        """Has the model write the summary of imported messages, in the background."""
        try:
            result = yield from write_postponed(session, postponed)
        except Exception as error:  # noqa: BLE001 - in the background nobody else would hear of it
            result = str(error) or repr(error)
        if isinstance(result, str):
            text = f"the imported messages keep their extractive summary: {result}"
            self.events.emit(CompactionHeld(session.key.session, text))
        else:
            self.events.emit(result)

    def _remember(
        self, session: Session, before: View, compacted: HistoryCompacted, kinds: Sequence[str]
    ) -> Flow[None]:
        """Stores memories of the covered messages, in the background; a failure takes nothing from the session."""
        covered_ids, known = frozenset(compacted.covered), {e.id for e in before}
        covered = [e for e in before if e.id in covered_ids]
        summary = next((e.message for e in session.view().compressed if e.id not in known), None)
        try:
            if summary is not None:
                yield from remember_summary(session, summary, compacted.covered, kinds=kinds)
        except Exception as error:  # noqa: BLE001 - in the background nobody else would hear of it
            self.events.emit(MemoryLearnt(session.key.session, problem=str(error) or repr(error)))
        learnt = [k for k in kinds if k in EXTRACTED]
        if learnt:
            _, event = yield from learn(session, covered, kinds=learnt)
            self.events.emit(event)


def newest_question(view: View) -> Message | None:
    """Returns the newest user message that has no final answer yet; None when the view ends with a reply."""
    last, newest = view.last(), view.newest_user()
    return None if newest is None or (last is not None and is_final(last.message)) else newest.message


def _new_question(session: Session, view: View, question: str) -> Message | None:
    """Returns the question, which is about to be asked, as a message; None when it is in the view already."""
    newest = newest_question(view)
    if newest is not None and newest.text == question:
        return None
    return user(question, id=_question_id(session))


def _gave_way(before: View, after: View) -> tuple[int, ...]:
    """Returns the numbers of the live messages that a view no longer has."""
    shown = {e.seq for e in (before if before is after else after).live}
    return tuple(e.number for e in before.live if e.seq not in shown)


def _question_id(session: Session) -> str:
    """Returns an id for a question that is not stored. Its texts are cached under it until the archive grows."""
    return f"asked:{session.state.compactions}.{session.state.turns}"


def _too_large(stage: Stage, overhead_tokens: int, reply_tokens: int, window: str) -> BudgetError | None:
    """Returns the error for a question, or an output that is never shortened, that does not fit even alone.

    A question that has its answer gives way like any other message. `window` describes the window in the message.
    """
    rules, view = stage.rules, stage.view
    question = newest_question(view)
    newest, alone = newest_user_alone(view, overhead_tokens)
    if question is None or newest is None or alone <= rules.budget_tokens:
        return _excluded_too_large(view, alone, rules, window) if rules.exclude_tools else None
    if alone - reply_tokens <= rules.budget_tokens:
        reply = rules.reply_reserve_tokens + reply_tokens
        return ContextOverflowError(
            f"max_tokens asks for a reply of {reply} tokens; with system prompt, tools and the newest user message, of "
            f"{newest.tokens} tokens, the request needs {alone + rules.reply_reserve_tokens}, the window is "
            f"{window}: lower max_tokens, or raise context_window"
        )
    return MessageTooLargeError(
        f"the newest user message {newest.id!r} has {newest.tokens} tokens, the system prompt "
        f"{alone - newest.tokens - overhead_tokens}, tools and what else is sent {overhead_tokens}: together {alone} of "
        f"{rules.budget_tokens} that the window of {window} has for the prompt: shorten the largest of them, give "
        "fewer tools, or raise context_window"
    )


def _giving_way(view: View, overhead_tokens: int, rules: Policy) -> frozenset[str]:
    """Returns the newest user message where it has its answer and does not fit even alone, and a system message before newer ones.

    The open turn has the newer ones: the conversation before it need not keep its own.
    """
    newest, alone = newest_user_alone(view, overhead_tokens)
    answered = newest is not None and newest_question(view) is None
    ids = {newest.id} if newest is not None and answered and alone > rules.budget_tokens else set[str]()
    if any(is_prompt(e.message) for e in view.turn):
        ids |= {e.id for e in view.live if is_prompt(e.message)}
    return frozenset(ids)


def newest_user_alone(view: View, overhead_tokens: int) -> tuple[Entry | None, int]:
    """Returns the entry of the newest user message, and the tokens of a request that holds nothing else of the conversation."""
    newest = view.newest_user()
    return newest, sum(e.tokens for e in view.system) + overhead_tokens + (newest.tokens if newest else 0)


def _excluded_too_large(view: View, fixed_tokens: int, rules: Policy, window: str) -> MessageTooLargeError | None:
    """Returns the error for a newest round that does not fit, and that outputs of `exclude_tools` keep from being shortened.

    `fixed_tokens` are those of the system prompts, the newest user message and what else the request holds.
    """
    newest: list[Entry] = []
    for entry in chain(reversed(view.turn), reversed(view.live)):
        newest.append(entry)
        if entry.message.role != "tool":
            break
    excluded_ids = outputs_of(rules.exclude_tools, reversed(newest))
    needed = fixed_tokens + sum(e.tokens for e in newest)
    if not excluded_ids or needed <= rules.budget_tokens:
        return None
    largest = max((e for e in newest if e.id in excluded_ids), key=lambda e: e.tokens)
    return MessageTooLargeError(
        f"the tool output {largest.id!r} has {largest.tokens} tokens and is shown whole, because its tool is in exclude_tools; "
        f"with system prompt, tools and question, the newest calls and their outputs take {needed} of {rules.budget_tokens} that "
        f"the window of {window} has for the prompt: let the tool return less, take it out of exclude_tools before "
        "it is called, or raise context_window"
    )


def _overflow(stage: Stage, overhead_tokens: int, reason: str, reply_tokens: int, window: str) -> BudgetError:
    """Returns the error for a view that cannot be made to fit: its newest user message alone, or everything together."""
    needed = stage.view.tokens + overhead_tokens + stage.rules.reply_reserve_tokens
    return _too_large(stage, overhead_tokens, reply_tokens, window) or ContextOverflowError(
        f"the request needs {needed} tokens, the window is {window}; {reason}: raise context_window, unpin messages or call "
        "compact()"
    )
