"""Runs one call of a chat model in its session."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing, contextmanager
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from ctxfold.adapters.calls import received
from ctxfold.effects import Flow
from ctxfold.engine.engine import Engine
from ctxfold.engine.turn import TurnInput, ask
from ctxfold.history.diff import MessageList, newest_known, own_ids, split_settled
from ctxfold.messages import content_key
from ctxfold.protocols import Reply
from ctxfold.stream import StreamPiece
from langchain_ctx.message_lists import with_lost_results
from langchain_ctx.session_routing import Address
from langchain_ctx.sessions import AttachedSession, Sessions

Events: TypeAlias = Generator[StreamPiece, None, None]
AsyncEvents: TypeAlias = AsyncGenerator[StreamPiece, None]


class Conversation:
    """Runs one turn. At a place of a graph its input is the whole list, and concurrent runs never share a session."""

    def __init__(self, sessions: Sessions, address: Address, turn_input: TurnInput) -> None:
        self._sessions = sessions
        self._address = address
        given_ids = turn_input.given_ids or frozenset()
        ids, self._repeated = own_ids(
            [m.id for m in turn_input.messages], lambda i: content_key(turn_input.messages[i])
        )
        messages = tuple(m if m.id == i else replace(m, id=i) for m, i in zip(turn_input.messages, ids, strict=True))
        given_ids = given_ids.union(i for i, m in zip(ids, turn_input.messages, strict=True) if m.id in given_ids)
        self._turn_input = replace(turn_input, messages=messages, given_ids=given_ids)
        # a message that a node adds for one call has no id: it is in the session, and in no later list
        self._incoming = MessageList([m for m in messages if m.id in given_ids])

    def ask(self) -> Reply:
        return self._sessions.run(self._address.key, self._ask)

    async def aask(self) -> Reply:
        return await self._sessions.arun(self._address.key, self._ask)

    def stream(self, done: Callable[[Reply], object] | None = None) -> Events:
        """Yields the events of the reply; `done` gets the whole reply once it is stored."""
        sessions, key, replies = self._sessions, self._address.key, list[Reply]()
        with self._turn() as turn:
            own = sessions.run(key, partial(self._begin, turn))
            yield from sessions.at(own.key.session, own.key.owner).handle.stream(own, replies.append)
            sessions.run(key, partial(turn.end, reply=replies[0]))
        if done is not None:
            done(replies[0])

    async def astream(self, done: Callable[[Reply], object] | None = None) -> AsyncEvents:
        sessions, key, replies = self._sessions, self._address.key, list[Reply]()
        with self._turn() as turn:
            own = await sessions.arun(key, partial(self._begin, turn))
            context = await sessions.aat(own.key.session, own.key.owner)
            async with aclosing(context.handle.astream(own, replies.append)) as events:
                async for event in events:
                    yield event
            await sessions.arun(key, partial(turn.end, reply=replies[0]))
        if done is not None:
            done(replies[0])

    def _ask(self, engine: Engine) -> Flow[Reply]:
        with self._turn() as turn:
            reply, _ = yield from ask(engine, (yield from self._begin(turn, engine)))
            yield from turn.end(engine, reply)
        return reply

    def _begin(self, turn: _Turn, engine: Engine) -> Flow[TurnInput]:
        own = yield from turn.begin(engine)
        self._sessions.report_repeated(engine, own.key, self._repeated)
        return own

    @contextmanager
    def _turn(self) -> Generator[_Turn, None, None]:
        if not self._address.place:
            with self._sessions.subgraphs.as_own_turn(self._turn_input) as own:
                yield _Turn(own, parsed=self._address.parsed)
        else:
            with self._sessions.attaching(self._address, self._incoming) as attach:
                yield _PlaceTurn(self._turn_input, attach, self._incoming, parsed=self._address.parsed)


class _Turn:
    """A turn of a session that has the conversation before it. `parsed`: a parser reads the calls of the reply."""

    def __init__(self, turn_input: TurnInput, *, parsed: bool) -> None:
        self._turn_input = turn_input
        self._parsed = parsed
        self._key = turn_input.key

    def begin(self, engine: Engine) -> Flow[TurnInput]:
        """Returns the input for the session that serves it."""
        yield from ()
        return self._turn_input

    def end(self, engine: Engine, reply: Reply) -> Flow[None]:
        """Answers calls that a parser reads, so that their turn closes: no other result of them will come."""
        if self._parsed and (results := received(reply, engine.ports.ids.new)):
            yield from engine.add((yield from engine.open(self._key)), results)


class _PlaceTurn(_Turn):
    """A turn at a place of a graph: the session takes over what the list has before it."""

    def __init__(
        self,
        turn_input: TurnInput,
        attach: Callable[[Engine], Flow[AttachedSession]],
        incoming: MessageList,
        *,
        parsed: bool,
    ) -> None:
        super().__init__(turn_input, parsed=parsed)
        self._attach = attach
        self._incoming = incoming
        self._attached: AttachedSession | None = None

    def begin(self, engine: Engine) -> Flow[TurnInput]:
        attached = self._attached = yield from self._attach(engine)
        self._key = attached.key
        listed = with_lost_results(self._turn_input.messages)
        known = newest_known([m.id for m in listed], attached.attachment.known)
        settled, messages = split_settled(
            listed[max(known, 0) :], attached.attachment.restored, continues_known=known >= 0
        )
        yield from attached.add(engine, settled, after=messages[0].id if settled else None)
        whole = attached.cursor is None
        return replace(self._turn_input, key=attached.key, messages=messages, whole=whole, attached=True)

    def end(self, engine: Engine, reply: Reply) -> Flow[None]:
        yield from super().end(engine, reply)
        if self._attached is not None:
            incoming = self._incoming.followed_by(reply.message)
            waiting = bool(reply.message.tool_calls) and not self._parsed
            yield from self._attached.leave(engine, incoming, waiting=waiting)
