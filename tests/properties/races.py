"""Clients of one session whose steps are interleaved at each call of the store and the model, in an order that the test chooses.

Any of these steps may be the last one before a client is cancelled, also after the store has written.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ctxfold import (
    AgentContext,
    CtxError,
    MemoryStore,
    Message,
    Reply,
    Request,
    ScriptedBackend,
    ToolCallPart,
    assistant,
    tool_result,
    user,
)
from ctxfold.history.view import View
from ctxfold.protocols import StoreCapabilities
from ctxfold.tokens.text import MessageCounter
from tests.properties.machine import assert_legal
from tests.support.driven import COUNTER

COUNT = MessageCounter(COUNTER)
ADDING = ("add", "send", "stream", "compact", "read")
EDITING = ("update", "remove", "pin", "undo", "clear", "insert")
TAKING_OUT = {"remove", "undo", "clear"}
CANCEL = 100  # a choice from here on cancels the client
IDLE_ROUNDS = 12  # of the loop, in which each client comes to its next gate
MOST_WAITS = 10_000  # of a millisecond each, for work in a thread; after them the clients wait for each other
TRIES = 6
WORDS = "alpha beta gamma delta "


@dataclass(frozen=True)
class Op:
    """What a client does: a turn with tool rounds, or something with the message that `words` selects."""

    kind: str
    words: int
    rounds: int


@dataclass
class Gates:
    """Holds back each step of the clients until it is chosen."""

    choices: list[int]
    waiting: list[tuple[str, asyncio.Future[None]]] = field(default_factory=list[tuple[str, asyncio.Future[None]]])
    open: bool = False  # once all clients have ended

    async def __call__(self) -> None:
        if self.open:
            return
        gate = asyncio.get_running_loop().create_future()
        task = asyncio.current_task()
        self.waiting.append((task.get_name() if task is not None else "", gate))
        await gate

    async def play(self, clients: Sequence[asyncio.Task[None]]) -> None:
        """Lets the clients go on, one step at a time, until all have ended."""
        by_name = {client.get_name(): client for client in clients}
        waits = 0
        while not all(client.done() for client in clients):
            for _ in range(IDLE_ROUNDS):
                await asyncio.sleep(0)
            self.waiting = [(name, gate) for name, gate in self.waiting if not gate.done()]
            if not self.waiting:
                waits += 1
                assert waits < MOST_WAITS, f"these clients wait for each other: {[c for c in clients if not c.done()]}"
                await asyncio.sleep(0.001 if waits > IDLE_ROUNDS else 0)
                continue
            choice = self.choices.pop(0) if self.choices else 0
            name, gate = self.waiting.pop(choice % len(self.waiting))
            if choice >= CANCEL and name in by_name:
                by_name[name].cancel()
            else:
                gate.set_result(None)
        self.open = True


class GatedStore:
    """One process's way to a store, with a gate before each call, and one behind each write."""

    capabilities = StoreCapabilities(blocking=False)

    def __init__(self, store: MemoryStore, gates: Gates) -> None:
        self.store, self.gates = store, gates

    def __getattr__(self, name: str) -> Any:
        plain = getattr(self.store, name[1:], None) if name.startswith("a") else None
        if plain is None:
            return getattr(self.store, name)

        async def called(*args: Any, **kwargs: Any) -> Any:
            await self.gates()
            result = plain(*args, **kwargs)
            if name == "aappend":
                await self.gates()
            return result

        return called


class GatedBackend(ScriptedBackend):
    def __init__(self, gates: Gates, reply: Callable[[Request], Any]) -> None:
        super().__init__([reply] * 1_000)
        self.gates = gates

    async def asend(self, request: Request) -> Reply:
        await self.gates()
        return await super().asend(request)

    async def aopen_stream(self, request: Request) -> Any:
        await self.gates()
        return await super().aopen_stream(request)


class Race:
    """The clients, what they were told, and what must hold when all of them have ended."""

    def __init__(self, choices: Sequence[int], window: int) -> None:
        self.gates, self.store, self.window = Gates([*choices]), MemoryStore(), window
        self.answers: dict[str, Message] = {}
        self.acknowledged: dict[str, list[list[str]]] = {}  # by client, of each turn

    def opened(self, *, gated: bool = True) -> AgentContext:
        store: Any = GatedStore(self.store, self.gates) if gated else self.store
        return AgentContext(
            GatedBackend(self.gates, self.reply),
            store=store,
            session_id="s",
            context_window=self.window,
            reply_reserve_tokens=40,
            counter=COUNTER,
            summarizer=GatedBackend(self.gates, lambda _: "short"),
        )

    def reply(self, request: Request) -> Message:
        assert_legal(request.messages)
        ids = [m.id for m in request.messages]
        assert len(ids) == len(set(ids)), "a message twice in one request"
        task = asyncio.current_task()
        return self.answers[task.get_name() if task is not None else ""]

    async def run(self, programs: Sequence[tuple[int, Sequence[Op]]], *, shared: bool) -> None:
        """Plays the programs, each on one of two contexts, which are the same one when it is `shared`."""
        one = self.opened()
        contexts = (one, one if shared else self.opened())
        clients = [
            asyncio.create_task(self.client(f"c{i}", contexts[which], ops), name=f"c{i}")
            for i, (which, ops) in enumerate(programs)
        ]
        await self.gates.play(clients)
        for client in clients:
            client.result()
        kinds = {op.kind for _, ops in programs for op in ops}
        await self.check(contexts, kept=not kinds & TAKING_OUT, ordered="insert" not in kinds)

    async def client(self, name: str, ctx: AgentContext, ops: Sequence[Op]) -> None:
        turns = self.acknowledged[name] = []
        for number, op in enumerate(ops):
            if op.kind in ("add", "send", "stream"):
                turns.append([])
                await self.take(ctx, name, f"{name}{number}", op, turns[-1])
            else:
                await insist(lambda op=op, number=number: self.edit(ctx, f"{name}{number}", op), tries=1)

    async def take(self, ctx: AgentContext, client: str, name: str, op: Op, acknowledged: list[str]) -> None:
        """Takes a turn, each request again until it succeeds."""
        question = user(f"question {name} " + WORDS * op.words, id=f"{name}-u")
        rounds: list[tuple[Message, Message]] = []
        for i in range(op.rounds):
            calling = assistant("", id=f"{name}-a{i}", calls=[ToolCallPart(f"{name}-{i}", "look", "{}")])
            rounds.append((calling, tool_result(f"{name}-{i}", "found " + WORDS * op.words, id=f"{name}-r{i}")))
        answer = assistant(f"answer {name}", id=f"{name}-z")
        if op.kind == "add":
            whole = [question, *(m for each in rounds for m in each), answer]
            if await insist(lambda: ctx.aadd(whole)):
                acknowledged += [m.id for m in whole]
            return
        asked = question
        for reply, result in [*rounds, (answer, question)]:
            self.answers[client] = reply
            told: list[str] = []

            async def ask(asked: Message = asked, told: list[str] = told) -> None:
                if op.kind == "send":
                    told[:] = [(await ctx.asend([asked])).message.id]
                    return
                async for _ in ctx.asend_stream([asked]):
                    pass

            if not await insist(ask):
                return
            acknowledged += [asked.id, *told]
            asked = result

    async def edit(self, ctx: AgentContext, name: str, op: Op) -> None:
        said = [m for m in ctx.view().messages if m.kind == "message" and m.role != "tool" and not m.tool_calls]
        some = said[op.words % len(said)] if said else None
        match op.kind:
            case "clear":
                await ctx.edit.aclear()
            case "compact" | "undo":
                await getattr(ctx, f"a{op.kind}")()
            case "read":
                await ctx.amessages()
            case "insert":
                await ctx.edit.ainsert(0, user("inserted", id=f"{name}-i"))
            case "update" if some is not None:
                changed = user if some.role == "user" else assistant
                await ctx.edit.aupdate(some.id, changed(f"changed {name}", id="x"))
            case "remove" if some is not None:
                await ctx.edit.aremove(some.id)
            case "pin" if some is not None:
                await ctx.apin(some.id)
            case _:
                pass

    async def check(self, contexts: Sequence[AgentContext], *, kept: bool, ordered: bool) -> None:
        for ctx in contexts:  # a rollback that was cancelled too is written with the context's next call
            await ctx.amessages()
        fresh = self.opened(gated=False)
        ids = [m.id for m in await fresh.amessages()]
        assert not [i for i, count in Counter(ids).items() if count > 1], f"twice in messages(): {ids}"
        view = fresh.view()
        assert_legal(view.messages)
        assert view.tokens == sum(map(COUNT.count, view.messages))
        for ctx in contexts:
            assert {m.id for m in await ctx.amessages()} == set(ids), "another process has other messages"
            assert_same_but_for_a_waiting_round(ctx.view(), view)
        if not kept:
            return
        places = {message_id: place for place, message_id in enumerate(ids)}
        for turns in self.acknowledged.values():
            told = [i for turn in turns for i in turn]
            assert set(told) <= places.keys(), f"acknowledged and lost: {set(told) - places.keys()}"
            order = [places[i] for i in told]
            assert not ordered or order == sorted(order), f"out of order: {told} stand at {order}"


def assert_same_but_for_a_waiting_round(mine: View, theirs: View) -> None:
    """Asserts that two processes see the same. A context that holds a turn open also sees its calls that wait for results."""
    zones = [(v.system, v.compressed, [*v.live]) for v in (mine, theirs)]
    assert zones[0] == zones[1], "another process sees something else"
    complete = {e.id for e in theirs.turn}
    assert complete <= {e.id for e in mine.turn}, "another process sees more of an open turn"
    waiting = [e.message for e in mine.turn if e.id not in complete]
    assert all(m.tool_calls or m.role == "tool" for m in waiting), f"only this process sees {waiting}"


async def insist(attempt: Callable[[], Awaitable[object]], *, tries: int = TRIES) -> bool:
    """Tries again after a cancellation or an error; returns False where all tries failed."""
    for _ in range(tries):
        try:
            await attempt()
        except (CtxError, asyncio.CancelledError):
            continue
        return True
    return False
