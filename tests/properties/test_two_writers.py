"""Two handles, each with its own engine, on one session: edits taken back, messages that come again, windows that shrink."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ctxfold import (
    AgentContext,
    BackendError,
    CtxError,
    MemoryStore,
    Message,
    Request,
    ScriptedBackend,
    ToolCallPart,
    assistant,
    tool_result,
    user,
)
from ctxfold.tokens.text import MessageCounter
from tests.properties.machine import assert_legal
from tests.support.driven import COUNTER
from tests.support.open_sessions import opened

COUNT = MessageCounter(COUNTER)
WINDOWS = (300, 600, 1_200)
OPS = (
    *("add", "add", "send", "send", "fail", "calls", "results", "compact", "undo", "undo", "readd", "readd"),
    *("pin", "update", "remove", "insert", "restore", "clear", "set", "revise", "shrink", "fork", "reopen"),
)
steps = st.lists(st.tuples(st.integers(0, 1), st.sampled_from(OPS), st.integers(0, 200)), min_size=4, max_size=40)


class Two:
    def __init__(self, window: int) -> None:
        self.store, self.window, self.number = MemoryStore(), window, 0
        self.handles = [self.opened(), self.opened()]
        self.waiting: list[tuple[Message, ...]] = [(), ()]
        self.stored: dict[str, Message] = {}
        self.answer: Any = "ok"

    def opened(self) -> AgentContext:
        summaries = ScriptedBackend(["short"] * 1_000)
        backend = ScriptedBackend([self.reply] * 1_000)
        settings: dict[str, Any] = {"store": self.store, "summarizer": summaries, "counter": COUNTER}
        return AgentContext(backend, context_window=self.window, system="Be careful.", **settings)

    def reply(self, request: Request) -> Any:
        ids = [m.id for m in request.messages]
        assert len(ids) == len(set(ids))
        assert_legal(request.messages)
        assert request.messages[0].text == "Be careful."
        open_session = opened(self.asking)
        assert sum(map(COUNT.count, request.messages)) <= open_session.rules().budget_tokens
        return self.answer

    def said(self, size: int) -> list[Message]:
        self.number += 1
        name = f"n{self.number}"
        calls = [ToolCallPart(f"call_{i}", "look", "{}") for i in range(size % 4)]
        results = [tool_result(c.id, "found " * size, id=f"{name}r{i}") for i, c in enumerate(calls)]
        middle = [assistant("", id=f"{name}a", calls=calls), *results] if calls else []
        return [user(f"question {name} " * (size % 9), id=f"{name}u"), *middle, assistant("yes " * size, id=f"{name}z")]

    def known(self, messages: Sequence[Message]) -> None:
        self.stored |= {m.id: m for m in messages}

    def do(self, who: int, op: str, size: int) -> None:  # noqa: C901 - one case for each operation
        ctx = self.asking = self.handles[who]
        live = ctx.view().live
        some = live[size % len(live)].message if len(live) else None
        match op:
            case "add":
                ctx.add(messages := self.said(size))
                self.known(messages)
            case "send" | "fail" | "calls":
                question, *_, self.answer = self.said(size)
                if op == "fail":
                    self.answer = BackendError("down", kind="server")
                elif op == "calls":
                    self.answer = assistant("", id=f"{question.id}c", calls=[ToolCallPart(f"c{size}", "look", "{}")])
                reply = ctx.send(question)
                self.waiting[who] = (reply.message,) if reply.message.tool_calls else ()
                self.known([question])
            case "results":
                waiting, self.waiting[who] = self.waiting[who], ()
                self.answer = "done"
                for message in waiting:
                    ctx.send([tool_result(c.id, "found " * size) for c in message.tool_calls])
            case "readd":
                kept = [m for m in list(self.stored.values())[-12:] if m.role != "tool" and not m.tool_calls]
                ctx.add(kept[size % 5 :] or self.said(size))
            case "update" if some is not None and some.role in ("user", "assistant") and not some.tool_calls:
                ctx.edit.update(size % len(live), (user if some.role == "user" else assistant)("changed", id="x"))
            case "pin" if some is not None:
                ctx.pin(some.id)
            case "remove" if some is not None:
                ctx.edit.remove(some.id)
            case "insert":
                ctx.edit.insert(size % (len(live) + 1), self.said(0)[0])
            case "restore" if self.stored:
                ctx.restore(list(self.stored)[size % len(self.stored)])
            case "set":
                ctx.edit.set_messages(
                    [*ctx.messages()[1 : size % 4 : 2], *self.said(size)[:: 1 if size % 4 == 0 else 9]]
                )
            case "revise":
                ctx.edit.revise(lambda messages: [m for m in messages if m.role == "user"][size % 4 :])
            case "shrink":
                ctx.set_policy(context_window=WINDOWS[size % 3])
            case "fork":
                self.check(ctx.fork(f"fork {self.number} {size}"))
            case "reopen":
                self.handles[who] = self.opened()
            case "clear":
                ctx.edit.clear()
            case "compact" | "undo":
                getattr(ctx, op)()
            case _:
                pass

    def check(self, ctx: AgentContext) -> tuple[Message, ...]:
        view = ctx.at(ctx.session).view()
        assert_legal(view.messages)
        assert len({e.id for e in view}) == len(view)
        assert view.tokens == sum(map(COUNT.count, view.messages))
        return view.messages

    def check_same(self, one: AgentContext, other: AgentContext) -> None:
        """Both show the same messages; a summary may arrive in the background between the two readings."""
        before, seen = self.check(one), self.check(other)
        assert seen in (before, self.check(one))


@given(taken=steps, window=st.sampled_from(WINDOWS))
def test_two_writers_leave_one_legal_session(taken: list[tuple[int, str, int]], window: int) -> None:
    two = Two(window)
    for who, op, size in taken:
        with contextlib.suppress(CtxError):
            two.do(who, op, size)
        two.check_same(*two.handles)
    fresh = two.opened()
    two.check_same(two.handles[0], fresh)
    for message_id in two.stored:
        assert fresh.archive.get(message_id).id == message_id
