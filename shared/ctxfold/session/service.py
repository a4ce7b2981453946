"""Defines ContextService: stateless operations on sessions of one engine, such as create, delta, compact and remove."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, TypeAlias, TypeVar, get_args

from ctxfold.compaction.built_in import BetweenRounds, Focus, Newest, Trim
from ctxfold.compaction.commit import Outcome
from ctxfold.compaction.goal import refresh_goal
from ctxfold.compaction.tool_summaries import flush_pairs, summarise_pairs
from ctxfold.effects import Flow, FlowMethods, async_method, sync_method
from ctxfold.engine import edit as editing
from ctxfold.engine import section_placement
from ctxfold.engine.engine import Engine
from ctxfold.errors import ConfigError, StoreError
from ctxfold.events import SectionInjected, SectionSkipped
from ctxfold.history.records import SessionKey
from ctxfold.history.view import Place
from ctxfold.messages import Message, user
from ctxfold.protocols import Ports
from ctxfold.sections.fill import Filled, fill, ranked_skills
from ctxfold.sections.section import Item, shares_by_kind
from ctxfold.state import Session
from ctxfold.validation import name_or_own, whole_number

T = TypeVar("T")
Assembly: TypeAlias = Literal["full_history", "memory_first", "adaptive"]
Tier: TypeAlias = Literal["none", "soft", "hard"]
ADAPTIVE_TURNS = 20  # a session with so many has "adaptive" windows that are memory-first
CODE = "code"
MEMORY_FIRST_MESSAGES = 2  # newest messages of a memory-first window, in whole tool rounds


@dataclass(frozen=True, slots=True)
class ContextDelta:
    """The context of one turn.

    Send `messages`, then `recalled` if there is any, then the question. The caller places `code`. `injected` and `skipped` report
    on each section. `used_tokens` counts all of these and the question.
    """

    messages: tuple[Message, ...]
    recalled: str
    code: str
    injected: tuple[SectionInjected, ...]
    skipped: tuple[SectionSkipped, ...]
    assembly: Assembly
    used_tokens: int
    budget_tokens: int


class ContextService(FlowMethods):
    """Operations on the sessions of a context's engine. It has no state, and is as safe across threads and tasks as the engine.

    `context.service` returns one; `session` and `owner` of a call replace those of that context.
    """

    def __init__(self, engine: Engine, key: SessionKey) -> None:
        self._engine = engine
        self._key = key

    # clearing

    @sync_method
    def clear_history(self, *, session: str | None = None, owner: str | None = None) -> Flow[tuple[Message, ...]]:
        """Empties the conversation and returns the removed messages. System prompts stay, and the archive keeps everything."""
        return self._edit(session, owner, editing.clear)

    aclear_history = async_method(clear_history)

    @sync_method
    def reset_conversation(self, *, session: str | None = None, owner: str | None = None) -> Flow[tuple[Message, ...]]:
        """Begins a new conversation in the same session: like `clear_history`, and discards open turns."""
        return self._edit(session, owner, _reset)

    areset_conversation = async_method(reset_conversation)

    @sync_method
    def trim_messages_to_budget(
        self, budget_tokens: int, *, session: str | None = None, owner: str | None = None
    ) -> Flow[int]:
        """Drops the oldest messages until the view fits; returns how many. With 0 tokens it does nothing.

        Raises ConfigError for a negative number. System prompts, pins, the newest user message and whole tool rounds stay; undo
        restores the others.
        """
        return self._edit(session, owner, lambda e, s: _trimmed(e, s, budget_tokens))

    atrim_messages_to_budget = async_method(trim_messages_to_budget)

    # sections

    @sync_method
    def inject(
        self,
        kind: str,
        items: Sequence[Item | str],
        *,
        place: Place = "tail",
        session: str | None = None,
        owner: str | None = None,
    ) -> Flow[SectionInjected | None]:
        """Stores a section of any kind and returns its event; None when it has nothing new."""
        return self._edit(session, owner, lambda e, s: section_placement.inject(e, s, kind, items, place=place))

    ainject = async_method(inject)

    @sync_method
    def remove(self, kind: str | None = None, *, session: str | None = None, owner: str | None = None) -> Flow[int]:
        """Removes the sections of a kind, or all of them, and returns how many there were.

        Recognises sections by their metadata, never by their text. Raises ConfigError for a kind that is neither built in, nor
        configured, nor in the session, because such a name is a misspelling.
        """
        return self._edit(session, owner, lambda e, s: section_placement.remove(e, s, kind))

    aremove = async_method(remove)

    @sync_method
    def prepare_context(
        self,
        question: str,
        *,
        assembly: Assembly = "full_history",
        session: str | None = None,
        owner: str | None = None,
    ) -> Flow[ContextDelta]:
        """Returns the context of one turn: sections (sources are called concurrently), recalled passages, and a fitting window.

        A model says which of several likely items of a section "skills" come first, as in `disambiguate_skills`.
        "memory_first" keeps the newest two messages and gives the freed tokens to the sections; "adaptive" does so once the
        session has 20 turns.
        """
        return self._edit(session, owner, lambda e, s: _prepared(e, s, question, assembly))

    aprepare_context = async_method(prepare_context)

    # compaction

    @sync_method
    def maybe_compact(self, *, session: str | None = None, owner: str | None = None) -> Flow[Tier]:
        """Compacts if a trigger is due; returns "none", "soft" (tool outputs replaced) or "hard" (a summary was written)."""
        return self._edit(session, owner, _maintained)

    amaybe_compact = async_method(maybe_compact)

    @sync_method
    def compact_context(
        self,
        *,
        focus: bool | str = False,
        summary_tokens: int | None = None,
        session: str | None = None,
        owner: str | None = None,
    ) -> Flow[Outcome]:
        """Compacts now, whether or not a trigger is due. The outcome also reports a failure of the store.

        `summary_tokens` is the limit of this one summary. With a topic as `focus`, older exchanges relevant to it stay word for
        word; with True, the topic is the current goal and step, or the newest question.
        """
        return self._edit(session, owner, lambda e, s: _compacted(e, s, focus, summary_tokens))

    acompact_context = async_method(compact_context)

    @sync_method
    def maybe_soft_compact_mid_iteration(self, *, session: str | None = None, owner: str | None = None) -> Flow[bool]:
        """Replaces older outputs of the open turn with excerpts when the soft ratio is exceeded; returns True when it did.

        It does so at most once a turn, and never calls a model.
        """
        return self._edit(session, owner, _between_rounds)

    amaybe_soft_compact_mid_iteration = async_method(maybe_soft_compact_mid_iteration)

    @sync_method
    def maybe_proactive_compress(
        self,
        threshold_ratio: float = 0.75,
        *,
        focus: bool | str = False,
        session: str | None = None,
        owner: str | None = None,
    ) -> Flow[bool]:
        """Compacts, without cooldown, when more than the given share of the budget is used; returns True when it did.

        For `focus` see `compact_context`.
        """
        return self._edit(session, owner, lambda e, s: _ahead(e, s, threshold_ratio, focus))

    amaybe_proactive_compress = async_method(maybe_proactive_compress)

    # tool pairs, goals, skills

    @sync_method
    def summarize_tool_pairs(self, *, session: str | None = None, owner: str | None = None) -> Flow[int]:
        """Summarises all tool outputs but the newest six; returns how many. The window does not change."""
        return self._edit(session, owner, lambda e, s: summarise_pairs(s))

    asummarize_tool_pairs = async_method(summarize_tool_pairs)

    @sync_method
    def apply_tool_pair_summaries(self, *, session: str | None = None, owner: str | None = None) -> Flow[int]:
        """Shows the waiting summaries of tool outputs; returns how many."""
        return self._edit(session, owner, lambda e, s: e.fitter.apply_tool_summaries(s))

    aapply_tool_pair_summaries = async_method(apply_tool_pair_summaries)

    @sync_method
    def flush_tool_pair_summaries(self, *, session: str | None = None, owner: str | None = None) -> Flow[bool]:
        """Stores summaries of tool outputs that could not be stored before; returns whether all are stored."""
        return self._edit(session, owner, lambda e, s: flush_pairs(s))

    aflush_tool_pair_summaries = async_method(flush_tool_pair_summaries)

    @sync_method
    def maybe_refresh_goal(self, *, session: str | None = None, owner: str | None = None) -> Flow[str]:
        """Applies the model's last answer about goal and step, asks again in the background, and returns the goal ("" for none).

        Does nothing while the pruning order needs no goal.
        """
        return self._edit(session, owner, _refreshed)

    amaybe_refresh_goal = async_method(maybe_refresh_goal)

    maybe_refresh_task_goal, amaybe_refresh_task_goal = maybe_refresh_goal, amaybe_refresh_goal

    @sync_method
    def maybe_refresh_subgoal(self, *, session: str | None = None, owner: str | None = None) -> Flow[str]:
        """Does the same as `maybe_refresh_goal`; returns the current step, "" for none."""
        return self._edit(session, owner, _refreshed_step)

    amaybe_refresh_subgoal = async_method(maybe_refresh_subgoal)

    @sync_method
    def disambiguate_skills(
        self, question: str, skills: Mapping[str, str], scores: Mapping[str, float] | None = None
    ) -> Flow[tuple[str, ...] | None]:
        """Returns the names of skills, relevant ones first by a model's judgement; None when it fails: keep your own order.

        With `scores` by name the best is first, and the model is asked only about those within a tenth of it.
        """
        return ranked_skills(question, skills, scores)

    adisambiguate_skills = async_method(disambiguate_skills)

    # driving

    def _edit(self, session: str | None, owner: str | None, work: Callable[[Engine, Session], Flow[T]]) -> Flow[T]:
        key = SessionKey(
            name_or_own("owner name", owner, self._key.owner), name_or_own("session name", session, self._key.session)
        )
        return (yield from work(self._engine, (yield from self._engine.open(key))))

    @property
    def _ports(self) -> Ports:
        return self._engine.ports


def _reset(engine: Engine, session: Session) -> Flow[tuple[Message, ...]]:
    for turn_id in tuple(session.state.open):
        yield from engine.close(session, turn_id, "discarded")
    return (yield from editing.clear(engine, session))


def _trimmed(engine: Engine, session: Session, budget_tokens: int) -> Flow[int]:
    if budget_tokens == 0:
        return 0
    limit = whole_number("budget_tokens", budget_tokens, "give the tokens to trim to, or 0 to trim nothing")
    outcome = yield from engine.fitter.compact(session, session.stage(), strategy=Trim(limit))
    return outcome.event.archived if outcome.event is not None else 0


def _maintained(engine: Engine, session: Session) -> Flow[Tier]:
    outcome = yield from engine.fitter.maintain(session, session.stage())
    if outcome is None or outcome.event is None:
        return "none"
    return "soft" if outcome.event.strategy in ("clear_tools", "tool_summaries") else "hard"


def _between_rounds(engine: Engine, session: Session) -> Flow[bool]:
    turn_id = next(reversed(session.state.open), None)
    outcome = yield from engine.fitter.compact(session, session.stage(turn_id), strategy=BetweenRounds())
    return outcome.compacted


def _compacted(engine: Engine, session: Session, focus: bool | str, summary_tokens: int | None) -> Flow[Outcome]:
    try:
        return (
            yield from engine.fitter.compact(
                session, session.stage(), strategy=_focus(focus), summary_tokens=summary_tokens
            )
        )
    except StoreError as error:
        return Outcome(None, f"nothing was compacted, the store failed: {error}", status="not_stored")


def _focus(focus: bool | str) -> Focus | None:
    return Focus(focus if isinstance(focus, str) else "") if focus else None


def _ahead(engine: Engine, session: Session, threshold_ratio: float, focus: bool | str) -> Flow[bool]:
    if not 0 <= threshold_ratio <= 1:
        raise ConfigError(f"threshold_ratio is {threshold_ratio}: give a part of the budget, between 0 and 1")
    turn_id = next(reversed(session.state.open), None)
    stage = session.stage(turn_id)
    if stage.view.tokens + session.overhead_tokens <= threshold_ratio * stage.rules.budget_tokens:
        return False
    outcome = yield from engine.fitter.compact(session, stage, strategy=_focus(focus))
    return outcome.compacted


def _refreshed(engine: Engine, session: Session) -> Flow[str]:
    engine.events.emit(*(yield from refresh_goal(session, session.stage())))
    return session.state.goal.goal


def _refreshed_step(engine: Engine, session: Session) -> Flow[str]:
    yield from _refreshed(engine, session)
    step = session.state.goal.subgoals[-1:]
    return step[0].text if step else ""


def _prepared(engine: Engine, session: Session, question: str, assembly: Assembly) -> Flow[ContextDelta]:
    """Stores the sections before the question: the caller adds the question and the reply like any other messages."""
    if assembly not in get_args(Assembly):
        raise ConfigError(f"assembly is {assembly!r}: use one of {', '.join(get_args(Assembly))}")
    counter, fitter = engine.ports.counter, engine.fitter
    memory_first = assembly == "memory_first" or (assembly == "adaptive" and session.state.turns >= ADAPTIVE_TURNS)
    if memory_first:
        yield from fitter.compact(session, session.stage(), strategy=Newest(MEMORY_FIRST_MESSAGES))
    stage, question_tokens = session.stage(), counter.count(user(question, id="asked"))
    budget = stage.rules.budget_tokens
    sources = replace(fitter.sources, judges_skills=True)
    fill_sections = partial(fill, session, question=question, sources=sources)
    required, required_events = yield from fill_sections(
        stage,
        [s for s in fitter.sections if s.required],
        room_tokens=0,
        required_tokens=budget - sum(e.tokens for e in stage.view.system) - question_tokens,
    )
    reserved = sum(f.tokens for f in required)
    window = yield from fitter.window(session, stage, question=question, sections=(), overhead_tokens=reserved)
    used = window.view.tokens + question_tokens + fitter.count_text(window.recalled)
    share = shares_by_kind([s.kind for s in fitter.sections], memory_first=memory_first)
    optional, optional_events = yield from fill_sections(
        replace(stage, view=window.view),
        [s if s.share is not None else replace(s, share=share.get(s.kind)) for s in fitter.sections if not s.required],
        room_tokens=budget - used - session.overhead_tokens,
    )
    filled, events = (*required, *optional), (*required_events, *optional_events)
    engine.events.emit(*events)
    yield from section_placement.store(engine, session, [f for f in filled if _stored(f)])
    section_texts = [f.text for f in filled if not _stored(f) and f.note.kind != CODE]
    return ContextDelta(
        messages=session.view().messages,
        recalled="\n\n".join(text for text in (window.recalled, *section_texts) if text),
        code="".join(f.text for f in filled if f.note.kind == CODE),
        injected=tuple(f.event(session.key.session) for f in filled),
        skipped=tuple(e for e in events if isinstance(e, SectionSkipped)),
        assembly="memory_first" if memory_first else "full_history",
        used_tokens=used + sum(f.tokens for f in filled),
        budget_tokens=budget,
    )


def _stored(filled: Filled) -> bool:
    return filled.section.lifetime == "epoch" and filled.note.kind != CODE
