"""A chat model's call in its session: a plain one, or that of a place in a graph, which follows the list it is handed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing
from dataclasses import replace
from typing import TypeAlias, cast

from ctxfold.exchange import Question
from ctxfold.messages import Message
from ctxfold.ports import Reply
from ctxfold.stream import StreamEvent
from langchain_ctx.keys import Address
from langchain_ctx.listing import Said, newest, parted
from langchain_ctx.sessions import Sessions, Visit

__all__ = ["Conversation"]

Events: TypeAlias = Generator[StreamEvent, None, None]
AsyncEvents: TypeAlias = AsyncGenerator[StreamEvent, None]


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
        key = self._address.key
        if not self._address.place:
            with self._sessions.places.beside_others(self._question) as question:
                return self._sessions.at(key.session, key.owner).ask(question)
        with self._sessions.visit(self._address, self._listed) as visit:
            settled, question = self._told(visit)
            if settled:
                visit.session.add(settled)
            reply = visit.session.ask(question)
            visit.leave(self._listed.and_then(reply.message), waiting=bool(reply.message.tool_calls))
        return reply

    async def aask(self) -> Reply:
        key = self._address.key
        if not self._address.place:
            with self._sessions.places.beside_others(self._question) as question:
                return await (await self._sessions.aat(key.session, key.owner)).aask(question)
        async with self._sessions.avisit(self._address, self._listed) as visit:
            settled, question = self._told(visit)
            if settled:
                await visit.session.aadd(settled)
            reply = await visit.session.aask(question)
            await visit.aleave(self._listed.and_then(reply.message), waiting=bool(reply.message.tool_calls))
        return reply

    def stream(self, done: Callable[[Reply], object] | None = None) -> Events:
        """Events of the reply; `done` gets it whole once it is stored."""
        key, whole = self._address.key, list[Reply]()
        if not self._address.place:
            with self._sessions.places.beside_others(self._question) as question:
                yield from self._sessions.at(key.session, key.owner).stream(question, whole.append)
        else:
            with self._sessions.visit(self._address, self._listed) as visit:
                settled, question = self._told(visit)
                if settled:
                    visit.session.add(settled)
                yield from visit.session.stream(question, whole.append)
                reply = whole[0].message
                visit.leave(self._listed.and_then(reply), waiting=bool(reply.tool_calls))
        if done is not None:
            done(whole[0])

    async def astream(self, done: Callable[[Reply], object] | None = None) -> AsyncEvents:
        key, whole = self._address.key, list[Reply]()
        if not self._address.place:
            with self._sessions.places.beside_others(self._question) as question:
                context = await self._sessions.aat(key.session, key.owner)
                async with aclosing(cast("AsyncEvents", context.astream(question, whole.append))) as events:
                    async for event in events:
                        yield event
        else:
            async with self._sessions.avisit(self._address, self._listed) as visit:
                settled, question = self._told(visit)
                if settled:
                    await visit.session.aadd(settled)
                async with aclosing(cast("AsyncEvents", visit.session.astream(question, whole.append))) as events:
                    async for event in events:
                        yield event
                reply = whole[0].message
                await visit.aleave(self._listed.and_then(reply), waiting=bool(reply.tool_calls))
        if done is not None:
            done(whole[0])

    def _told(self, visit: Visit) -> tuple[tuple[Message, ...], Question]:
        """What the session should have had before, and the question to it."""
        messages = self._question.messages
        known = newest([m.id for m in messages], visit.line.known)
        settled, told = parted(messages[max(known, 0) :], visit.line, goes_on=known >= 0)
        return settled, replace(self._question, key=visit.line.key, messages=told, whole=visit.left is None)
