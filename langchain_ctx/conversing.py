"""A chat model's call in its session: a plain one, or that of a place in a graph, which follows the list it is handed."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing
from dataclasses import replace
from typing import TypeAlias, cast

from ctxfold.errors import OrphanToolResultError
from ctxfold.exchange import Question
from ctxfold.messages import Message
from ctxfold.ports import Reply
from ctxfold.stream import StreamPiece
from langchain_ctx.keys import Address
from langchain_ctx.listing import Said, newest, open_turn, parted
from langchain_ctx.sessions import Sessions, Visit

__all__ = ["Conversation"]

Events: TypeAlias = Generator[StreamPiece, None, None]
AsyncEvents: TypeAlias = AsyncGenerator[StreamPiece, None]


class Conversation:
    """Asks one question. In a place the question has the whole list, and runs side by side do not meet."""

    def __init__(self, sessions: Sessions, address: Address, question: Question) -> None:
        self._sessions = sessions
        self._address = address
        self._question = question
        given = question.given_ids or frozenset()
        # what a node adds for one call has no id: it is in the session, and in no later list
        self._listed = Said([m for m in question.messages if m.id in given])

    def ask(self) -> Reply:
        try:
            return self._ask(self._question)
        except OrphanToolResultError:
            return self._ask(_told_anew(self._question))

    async def aask(self) -> Reply:
        try:
            return await self._aask(self._question)
        except OrphanToolResultError:
            return await self._aask(_told_anew(self._question))

    def stream(self, done: Callable[[Reply], object] | None = None) -> Events:
        """Events of the reply; `done` gets it whole once it is stored."""
        whole: list[Reply] = []
        try:
            yield from self._stream(self._question, whole.append)
        except OrphanToolResultError:  # that is known before there is any event
            yield from self._stream(_told_anew(self._question), whole.append)
        if done is not None:
            done(whole[0])

    async def astream(self, done: Callable[[Reply], object] | None = None) -> AsyncEvents:
        whole: list[Reply] = []
        try:
            async with aclosing(self._astream(self._question, whole.append)) as events:
                async for event in events:
                    yield event
        except OrphanToolResultError:
            async with aclosing(self._astream(_told_anew(self._question), whole.append)) as events:
                async for event in events:
                    yield event
        if done is not None:
            done(whole[0])

    def _ask(self, question: Question) -> Reply:
        key = self._address.key
        if not self._address.place:
            with self._sessions.places.beside_others(question) as mine:
                return self._sessions.at(key.session, key.owner).ask(mine)
        with self._sessions.visit(self._address, self._listed) as visit:
            settled, mine = _told(question, visit)
            if settled:
                visit.session.add(settled)
            reply = visit.session.ask(mine)
            visit.leave(self._listed.and_then(reply.message), waiting=bool(reply.message.tool_calls))
        return reply

    async def _aask(self, question: Question) -> Reply:
        key = self._address.key
        if not self._address.place:
            with self._sessions.places.beside_others(question) as mine:
                return await (await self._sessions.aat(key.session, key.owner)).aask(mine)
        async with self._sessions.avisit(self._address, self._listed) as visit:
            settled, mine = _told(question, visit)
            if settled:
                await visit.session.aadd(settled)
            reply = await visit.session.aask(mine)
            await visit.aleave(self._listed.and_then(reply.message), waiting=bool(reply.message.tool_calls))
        return reply

    def _stream(self, question: Question, done: Callable[[Reply], object]) -> Events:
        key, whole = self._address.key, list[Reply]()
        if not self._address.place:
            with self._sessions.places.beside_others(question) as mine:
                yield from self._sessions.at(key.session, key.owner).stream(mine, whole.append)
        else:
            with self._sessions.visit(self._address, self._listed) as visit:
                settled, mine = _told(question, visit)
                if settled:
                    visit.session.add(settled)
                yield from visit.session.stream(mine, whole.append)
                reply = whole[0].message
                visit.leave(self._listed.and_then(reply), waiting=bool(reply.tool_calls))
        done(whole[0])

    async def _astream(self, question: Question, done: Callable[[Reply], object]) -> AsyncEvents:
        key, whole = self._address.key, list[Reply]()
        if not self._address.place:
            with self._sessions.places.beside_others(question) as mine:
                context = await self._sessions.aat(key.session, key.owner)
                async with aclosing(cast("AsyncEvents", context.astream(mine, whole.append))) as events:
                    async for event in events:
                        yield event
        else:
            async with self._sessions.avisit(self._address, self._listed) as visit:
                settled, mine = _told(question, visit)
                if settled:
                    await visit.session.aadd(settled)
                async with aclosing(cast("AsyncEvents", visit.session.astream(mine, whole.append))) as events:
                    async for event in events:
                        yield event
                reply = whole[0].message
                await visit.aleave(self._listed.and_then(reply), waiting=bool(reply.tool_calls))
        done(whole[0])


def _told(question: Question, visit: Visit) -> tuple[tuple[Message, ...], Question]:
    """What the session should have had before, and the question to it."""
    messages = question.messages
    known = newest([m.id for m in messages], visit.line.known)
    settled, told = parted(messages[max(known, 0) :], visit.line, goes_on=known >= 0)
    return settled, replace(question, key=visit.line.key, messages=told, whole=visit.left is None)


def _told_anew(question: Question) -> Question:
    """With calls under new ids. One that waited long for its result, such as for a person's word, was taken for dead: the
    session keeps its old id for what it has dropped.
    """
    new = {m.id: uuid.uuid4().hex for m in open_turn(question.messages) if m.tool_calls}
    messages = tuple(
        replace(m, id=new.get(m.id, m.id), usage=None if m.id in new else m.usage) for m in question.messages
    )
    return replace(question, messages=messages, given_ids=frozenset(new.values()).union(question.given_ids or ()))
