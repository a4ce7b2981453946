"""What every handle on a session can do without a model: keep, edit, pin and compact. Each method has an async form."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TypeAlias, TypeVar, cast

from ctxfold import archive, editing
from ctxfold.archive import Hit
from ctxfold.budget import Policy
from ctxfold.compaction.apply import Outcome
from ctxfold.compaction.goal import set_goal, set_subgoal
from ctxfold.compaction.pairs import summarise_pairs
from ctxfold.engine import Added, Engine
from ctxfold.errors import (
    BudgetError,
    EmptyMessagesError,
    HeadMovedError,
    MessageError,
    NotEnoughHistoryError,
    SessionError,
)
from ctxfold.flow import Flow, arun, run
from ctxfold.follow import Line, Listed, Trail, follow, trail
from ctxfold.given import is_a
from ctxfold.history.cuts import open_calls
from ctxfold.history.records import GoalSet, SessionKey
from ctxfold.journal import Journal
from ctxfold.messages import Message, Role, Visibility, system, tool_result, user
from ctxfold.ports import ContextBackend, TokenCounter
from ctxfold.remembering import SessionMemory

__all__ = ["Input", "SessionHandle"]

T = TypeVar("T")
Input: TypeAlias = "str | Message | Sequence[Message]"


class SessionHandle:
    """One session of an engine, by its key."""

    _engine: Engine
    _key: SessionKey
    _prompts: tuple[str, ...] | None
    _create: bool
    _turn: str | None  # that messages were added to
    _asked_turn: str | None  # that the newest request was made in

    # identity

    @property
    def session(self) -> str:
        return self._key.session

    @property
    def owner(self) -> str:
        return self._key.owner

    @property
    def policy(self) -> Policy:
        """The rules that this context was made with."""
        return self._engine.rules

    @property
    def backend(self) -> ContextBackend | None:
        return self._engine.ports.backend

    @property
    def counter(self) -> TokenCounter:
        return self._engine.ports.counter

    def new_id(self) -> str:
        """A message id that was never given before."""
        return self._engine.ports.ids.new()

    def user_message(self, text: str) -> Message:
        return user(text, id=self.new_id())

    def system_message(self, text: str) -> Message:
        return system(text, id=self.new_id())

    def tool_message(self, tool_call_id: str, content: str, *, name: str | None = None) -> Message:
        return tool_result(tool_call_id, content, id=self.new_id(), name=name)

    def _messages(self, content: Input) -> tuple[Message, ...]:
        if isinstance(content, str):
            return (self.user_message(content),)
        # a framework's message can be iterated over too, by its fields
        one = isinstance(content, Message | Mapping) or hasattr(content, "content") or not is_a(content, Iterable)
        messages = (cast("Message", content),) if one else tuple(cast("Sequence[Message]", content))
        if not messages:
            raise EmptyMessagesError("no message to send: give at least one")
        return messages

    @property
    def memory(self) -> SessionMemory:
        """What is remembered for the owner beyond this conversation: add, list, search, forget, learn."""
        return SessionMemory(self._engine, self._journal)

    # keeping

    def add(
        self,
        messages: Input,
        *,
        visibility: Visibility | None = None,
        known_ids: bool = True,
        skip_orphans: bool = False,
    ) -> Added:
        """Store messages without asking the model; a known id with the same content is kept once.

        `visibility` "user" keeps them from the model: neither counted nor sent; "model" from `messages(audience="user")`.
        `known_ids` False says that all ids were made just now, and saves looking for them in the store.
        `skip_orphans` leaves out tool results without their call and calls that were never answered, in place of
        OrphanToolResultError; the event MessagesLeftOut names them.
        """
        return self._run(self._add(messages, visibility, known_ids, skip_orphans))

    async def aadd(
        self,
        messages: Input,
        *,
        visibility: Visibility | None = None,
        known_ids: bool = True,
        skip_orphans: bool = False,
    ) -> Added:
        return await self._arun(self._add(messages, visibility, known_ids, skip_orphans))

    def _add(
        self, content: Input, visibility: Visibility | None, known_ids: bool, skip_orphans: bool = False
    ) -> Flow[Added]:
        messages = _seen_by(visibility, self._messages(content))
        known_ids = known_ids and not isinstance(content, str)
        add = partial(
            self._engine.add, messages=messages, turn_id=self._turn, known_ids=known_ids, skip_orphans=skip_orphans
        )
        journal = self._engine.known(self._key)
        added: Added | None = None
        if journal is not None and not journal.take_backs and self._prompts in (None, journal.view().prompts):
            # mostly nobody else has written since: then nothing needs to be read first
            with suppress(BudgetError, HeadMovedError, MessageError, SessionError):
                added = yield from add(journal, expect=journal.state.head)
        if added is None:
            added = yield from add((yield from self._journal()))
        self._turn = added.turn_id
        return added

    def extend(self, messages: Sequence[Message]) -> Added:
        """Stores several messages in one step, as `add` does."""
        return self.add(messages)

    async def aextend(self, messages: Sequence[Message]) -> Added:
        return await self.aadd(messages)

    def set_messages(self, messages: Sequence[Message], *, prompts: bool = False, recognise: bool = False) -> None:
        """Put messages in place of the whole conversation at once, with `prompts` of the system prompts too.

        What was there stays in the archive. With `prompts` and `recognise`, messages at the beginning that the conversation
        or its window has already, by position and content, stay as they are, compacted or not; only what differs is replaced.
        """
        self._run(self._set(messages, prompts, recognise))

    async def aset_messages(
        self, messages: Sequence[Message], *, prompts: bool = False, recognise: bool = False
    ) -> None:
        await self._arun(self._set(messages, prompts, recognise))

    def _set(self, messages: Sequence[Message], prompts: bool, recognise: bool) -> Flow[None]:
        return self._anew(lambda e, j: editing.set_all(e, j, messages, prompts=prompts, recognise=recognise))

    def revise(self, change: editing.Change) -> None:
        """Put what `change` makes of the conversation, as the user sees it, in its place at once; None leaves it as it is.

        System prompts are part of it. Where somebody else writes meanwhile, `change` is asked anew: nothing of theirs is lost.
        """
        self._run(self._anew(lambda e, j: editing.revise(e, j, change, turn_id=self._turn), whole=False))

    async def arevise(self, change: editing.Change) -> None:
        await self._arun(self._anew(lambda e, j: editing.revise(e, j, change, turn_id=self._turn), whole=False))

    def update(self, index: int, message: Message) -> Message:
        """Replace the live message at `index`, under its id; role and tool calls have to stay. The old one is returned."""
        return self._run(self._edit(lambda e, j: editing.update(e, j, index, message)))

    async def aupdate(self, index: int, message: Message) -> Message:
        return await self._arun(self._edit(lambda e, j: editing.update(e, j, index, message)))

    def insert(self, index: int, message: Message) -> None:
        """Insert before live message `index`; never inside a tool round."""
        self._run(self._edit(lambda e, j: editing.insert(e, j, index, message)))

    async def ainsert(self, index: int, message: Message) -> None:
        await self._arun(self._edit(lambda e, j: editing.insert(e, j, index, message)))

    def remove(self, index: int | str) -> tuple[Message, ...]:
        """Remove a live message, by index, id or `#17`, with its tool round; what went. MessageNotFoundError when it is gone."""
        return self._run(self._edit(lambda e, j: editing.remove(e, j, index)))

    async def aremove(self, index: int | str) -> tuple[Message, ...]:
        return await self._arun(self._edit(lambda e, j: editing.remove(e, j, index)))

    def pop(self) -> tuple[Message, ...]:
        """Remove the newest live message, with its tool round; what went."""
        return self._run(self._edit(editing.pop))

    async def apop(self) -> tuple[Message, ...]:
        return await self._arun(self._edit(editing.pop))

    def retain(self, role: Role) -> tuple[Message, ...]:
        """Keep only one role's live messages; what went."""
        return self._run(self._edit(lambda e, j: editing.retain(e, j, role)))

    async def aretain(self, role: Role) -> tuple[Message, ...]:
        return await self._arun(self._edit(lambda e, j: editing.retain(e, j, role)))

    def clear(self, *, prompts: bool = False) -> tuple[Message, ...]:
        """Empty the conversation, system prompts only with `prompts`; what went. The archive keeps what was there."""
        return self._run(self._cleared(prompts))

    async def aclear(self, *, prompts: bool = False) -> tuple[Message, ...]:
        return await self._arun(self._cleared(prompts))

    def pin(self, *message_ids: str) -> None:
        """Keep messages, by id or `#17`, verbatim through every compaction; PinBudgetError beyond a quarter of the budget."""
        self._run(self._edit(lambda e, j: editing.pin(e, j, message_ids)))

    async def apin(self, *message_ids: str) -> None:
        await self._arun(self._edit(lambda e, j: editing.pin(e, j, message_ids)))

    def unpin(self, *message_ids: str) -> None:
        """End the pins of messages, by id or `#17`; one that is not pinned stays so."""
        self._run(self._edit(lambda e, j: editing.unpin(e, j, message_ids)))

    async def aunpin(self, *message_ids: str) -> None:
        await self._arun(self._edit(lambda e, j: editing.unpin(e, j, message_ids)))

    # rules

    @property
    def auto_compact(self) -> bool:
        """Whether this session is compacted when its triggers fire; set it to switch."""
        return self.rules().auto_compact

    @auto_compact.setter
    def auto_compact(self, value: bool) -> None:
        self.set_policy(auto_compact=value)

    def rules(self) -> Policy:
        """The rules in force, those set at run time or learnt from the provider included."""
        return self._run(self._journal()).window_rules()

    def set_policy(self, **fields: object) -> Policy:
        """Other rules for this session from here on, by the names of `Policy`; they hold when it is opened anew too."""
        return self._run(self._edit(lambda e, j: editing.set_policy(e, j, fields)))

    async def aset_policy(self, **fields: object) -> Policy:
        return await self._arun(self._edit(lambda e, j: editing.set_policy(e, j, fields)))

    def goal(self) -> GoalSet:
        """What the conversation is for, and its steps, as set or found out last: some pruning orders go by them."""
        return self._run(self._journal()).state.goal

    async def agoal(self) -> GoalSet:
        return (await self._arun(self._journal())).state.goal

    def set_goal(self, text: str | None) -> None:
        """Say what the conversation is for; None leaves it to be found out. It stays until it is set again."""
        self._run(self._edit(lambda e, j: set_goal(j, e.ports, text)))

    async def aset_goal(self, text: str | None) -> None:
        await self._arun(self._edit(lambda e, j: set_goal(j, e.ports, text)))

    def set_subgoal(self, text: str | None) -> None:
        """Begin a step of the task: what is stored from here on belongs to it, and the step before is completed.

        None ends the step without another, and leaves steps to be found out.
        """
        self._run(self._edit(lambda e, j: set_subgoal(j, e.ports, text)))

    async def aset_subgoal(self, text: str | None) -> None:
        await self._arun(self._edit(lambda e, j: set_subgoal(j, e.ports, text)))

    # the archive

    def search(self, query: str, limit: int = 10) -> tuple[Hit, ...]:
        """The messages that bear on the query, best first, whether the model still sees them or not."""
        return self._run(self._edit(lambda _, j: archive.search(j, query, limit=limit)))

    async def asearch(self, query: str, limit: int = 10) -> tuple[Hit, ...]:
        return await self._arun(self._edit(lambda _, j: archive.search(j, query, limit=limit)))

    def restore(self, *references: str) -> tuple[Message, ...]:
        """Bring originals back, by id or `#17`, with their tool rounds: at the tail, or in place of an excerpt; what came back.

        ContextOverflowError, before anything is written, when they do not fit.
        """
        return self._run(self._edit(lambda e, j: archive.restore(e, j, references)))

    async def arestore(self, *references: str) -> tuple[Message, ...]:
        return await self._arun(self._edit(lambda e, j: archive.restore(e, j, references)))

    # a list that somebody else keeps

    def follow(self, listed: Listed, left: Trail | None) -> Line:
        """The session that goes with the list, this one or a branch of it; `left` is what `trail` gave for its last state."""
        return self._run(follow(self._engine, self._key, listed, left))

    async def afollow(self, listed: Listed, left: Trail | None) -> Line:
        return await self._arun(follow(self._engine, self._key, listed, left))

    def trail(self, line: SessionKey, listed: Listed) -> Trail:
        """To be kept beside the list as it is now, which the session `line` serves."""
        return self._run(trail(self._engine, self._key, line, listed))

    async def atrail(self, line: SessionKey, listed: Listed) -> Trail:
        return await self._arun(trail(self._engine, self._key, line, listed))

    # compacting

    def compact(self) -> Outcome:
        """Compact now, a turn under way included; NotEnoughHistoryError when nothing may be compacted."""
        return _needed(self._run(self._edit(lambda e, j: e.room.compact(j, turn_id=_only_turn(j)))))

    async def acompact(self) -> Outcome:
        return _needed(await self._arun(self._edit(lambda e, j: e.room.compact(j, turn_id=_only_turn(j)))))

    def summarize_tools(self) -> int:
        """Summarise older tool outputs ahead, all but the newest six; how many. The window stays until it has to shrink."""
        return self._run(self._edit(lambda e, j: summarise_pairs(j, e.ports)))

    async def asummarize_tools(self) -> int:
        return await self._arun(self._edit(lambda e, j: summarise_pairs(j, e.ports)))

    def apply_tool_summaries(self) -> int:
        """Show the summaries of tool outputs that were written ahead; how many. Originals stay readable."""
        return self._run(self._edit(lambda e, j: e.room.apply_tool_summaries(j)))

    async def aapply_tool_summaries(self) -> int:
        return await self._arun(self._edit(lambda e, j: e.room.apply_tool_summaries(j)))

    def compacted_in_turn(self) -> bool:
        """Whether a summary was written since the last turn closed."""
        return _fresh_summary(self._run(self._journal()))

    async def acompacted_in_turn(self) -> bool:
        return _fresh_summary(await self._arun(self._journal()))

    def undo(self) -> None:
        """Take back the last compaction or edit."""
        self._run(self._edit(editing.undo))

    async def aundo(self) -> None:
        await self._arun(self._edit(editing.undo))

    # driving

    def _own_turn(self, journal: Journal) -> str | None:
        """The turn that this context has begun, while it is open; nobody else is shown it."""
        with journal.lock:
            return next((t for t in (self._turn, self._asked_turn) if t in journal.state.open), None)

    def _journal(self) -> Flow[Journal]:
        return (yield from self._engine.open(self._key, create=self._create, prompts=self._prompts))

    def _edit(self, change: Callable[[Engine, Journal], Flow[T]]) -> Flow[T]:
        journal = yield from self._journal()
        return (yield from change(self._engine, journal))

    def _anew(self, change: Callable[[Engine, Journal], Flow[str | None]], *, whole: bool = True) -> Flow[None]:
        """A change that leaves another turn under way, or none: the one before is dropped, with the calls that wait in it.

        One of the `whole` conversation drops every turn that waits for results, whoever opened it.
        """
        journal = yield from self._journal()
        before, self._turn = self._turn, (yield from change(self._engine, journal))
        for turn in self._waiting(journal, before, whole=whole):
            if turn != self._turn:
                yield from self._engine.close(journal, turn, "discarded")

    def _waiting(self, journal: Journal, own: str | None, *, whole: bool = True) -> list[str]:
        """The turns that go when a conversation is put aside."""
        with journal.lock:
            return [t for t, turn in journal.state.open.items() if t == own or (whole and open_calls(turn.entries))]

    def _cleared(self, prompts: bool) -> Flow[tuple[Message, ...]]:
        gone: list[Message] = []

        def change(engine: Engine, journal: Journal) -> Flow[None]:
            waiting = [e.message for t in self._waiting(journal, self._turn) for e in journal.view(t).turn]
            gone.extend((*(yield from editing.clear(engine, journal, prompts=prompts)), *waiting))

        yield from self._anew(change)
        return tuple(gone)

    def _run(self, flow: Flow[T]) -> T:
        return run(flow, self._engine.ports)

    async def _arun(self, flow: Flow[T]) -> T:
        return await arun(flow, self._engine.ports)


def _seen_by(visibility: Visibility | None, messages: Sequence[Message]) -> tuple[Message, ...]:
    return tuple(messages if visibility is None else (replace(m, visibility=visibility) for m in messages))


def _fresh_summary(journal: Journal) -> bool:
    return journal.state.summary_turn == journal.state.turns


def _only_turn(journal: Journal) -> str | None:
    """The turn under way; of several, nobody can say whose compaction this is."""
    with journal.lock:
        turns = list(journal.state.open)
    return turns[0] if len(turns) == 1 else None


def _needed(outcome: Outcome) -> Outcome:
    if not outcome.compacted:
        raise NotEnoughHistoryError(f"nothing was compacted: {outcome.reason}")
    return outcome
