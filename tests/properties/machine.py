"""A session that is driven by random operations and watched: what every request and every view must hold at any time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ctxfold import (
    AgentContext,
    BackendError,
    CtxError,
    HistoryCompacted,
    Message,
    Query,
    Request,
    ScriptedBackend,
    Section,
    ToolSpec,
    assistant,
    tool_result,
    user,
)
from ctxfold.effects import Flow
from ctxfold.protocols import Ports
from ctxfold.sections.section import EngineSource
from ctxfold.state import Session
from tests.support.driven import COUNTER, Driven
from tests.support.oracle import OracleSummarizer
from tests.support.strategies import Op, rounds

PROMPTS = ("You are careful.", "Answer briefly.")
TOOLS = (ToolSpec("look", "looks things up", {"type": "object"}),)
CAUSES = {"compaction", "edit", "recall", "concurrent_turn", "aborted_turn", "model", "tools", "thinking"}
EDITS = {"update", "insert", "remove", "pop", "retain", "clear", "set", "undo"}


def canonical(request: Request) -> bytes:
    """Tools, then messages, one JSON line each; tool arguments parsed."""
    lines: list[Any] = [[t.name, t.description, dict(t.parameters)] for t in request.tools]
    for m in request.messages[: request.stable_messages]:  # behind them stands what only this request holds
        calls = [[c.id, c.name, json.loads(c.arguments)] for c in m.tool_calls]
        answers = [r.call_id for r in m.tool_results]
        lines.append([m.role, m.text, m.reasoning, calls, answers])
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def assert_legal(messages: Sequence[Message], *, open_at_end: bool = False) -> None:
    """Every call is answered at once and every result answers a call; with `open_at_end` the last round may still be open."""
    waiting: set[str] = set()
    for m in messages:
        if m.role == "tool":
            for r in m.tool_results:
                assert r.call_id in waiting, f"orphan result {m.id}"
                waiting.discard(r.call_id)
        else:
            assert not waiting, f"calls {waiting} unanswered before {m.id}"
            waiting = {c.id for c in m.tool_calls}
    assert open_at_end or not waiting, f"calls {waiting} unanswered at the end"


@dataclass
class Turn:
    name: str
    ids: set[str] = field(default_factory=set)
    newest_user: str = ""
    waiting: tuple[str, ...] = ()
    request: bytes | None = None


class Machine:
    def __init__(
        self, store: Any, session: str, runner: Any, *, window: int, summarizer: str, sections: bool = False
    ) -> None:
        self.store, self.session, self.runner = store, session, runner
        self.window, self.summarizer_kind, self.sections = window, summarizer, sections
        self.number = 0
        self.turns: dict[int, Turn] = {}
        self.left: list[tuple[AgentContext, Turn]] = []
        self.now: Turn | None = None
        self.plan: Any = None
        self.compactions = 0
        self.open()

    # a context and what is compared with it

    def open(self) -> None:
        self.backend = ScriptedBackend([self.reply] * 500)
        self.ctx = self.context(self.backend, system=PROMPTS)
        self.ctx.subscribe(self.event)
        self.driven = Driven(self.ctx, self.runner)
        self.last: bytes | None = None
        self.left = []
        for turn in self.turns.values():
            turn.request = None

    def context(self, backend: Any, **settings: Any) -> AgentContext:
        from ctxfold.tokens.text import MessageCounter

        oracle: Any = OracleSummarizer(MessageCounter(COUNTER))
        if self.summarizer_kind == "fails":
            oracle = ScriptedBackend([BackendError("down", kind="server")] * 1000)
        return AgentContext(
            backend,
            session_id=self.session,
            store=self.store,
            context_window=self.window,
            summarizer=oracle,
            counter=COUNTER,
            sections=[Section("documents", EngineSource(self.found))] if self.sections else (),
            **settings,
        )

    def found(self, open_session: Session, query: Query, ports: Ports) -> Flow[list[str]]:
        """Three things in turn, and every fourth time nothing."""
        yield from ()
        return [f"found {self.number % 4}"] if self.number % 4 else []

    def event(self, event: Any) -> None:
        self.compactions += isinstance(event, HistoryCompacted)

    def reply(self, request: Request) -> Any:
        self.check_request(request)
        answer = self.plan
        if isinstance(answer, Message) and self.now is not None and answer.tool_calls:
            self.now.ids.add(answer.id)
        return answer

    def check_request(self, request: Request) -> None:
        assert self.now is not None
        ids = [m.id for m in request.messages]
        assert len(ids) == len(set(ids)), "a message twice in one request"
        assert_legal(request.messages)
        assert tuple(m.text for m in request.messages[:2]) == PROMPTS
        assert self.now.newest_user in ids, "the newest user message is lost"
        assert self.pins() <= set(ids), "a pin is lost"
        others = {i for t in (*self.turns.values(), *(t for _, t in self.left)) if t is not self.now for i in t.ids}
        assert not others & set(ids), "another open turn's message"
        sent = canonical(request)
        before = self.now.request or self.last
        self.now.request = self.last = sent
        self.expected += before is not None and not sent.startswith(before)

    def pins(self) -> set[str]:
        return {b.id for b in self.ctx.explain().blocks if b.why == "pinned"}

    # operations

    def apply(self, op: Op) -> None:
        before, compactions, pins = self.closed_versions(), self.compactions, self.pins()
        self.expected = 0
        breaks = dict(self.ctx.usage().prefix.breaks)
        try:
            getattr(self, f"do_{op.name}")(op)
        except CtxError:
            if compactions == self.compactions and op.name not in {"set"}:
                assert self.closed_versions() == before, op
        if op.name != "reopen":
            after = dict(self.ctx.usage().prefix.breaks)
            grown = {c: n - breaks.get(c, 0) for c, n in after.items() if n != breaks.get(c, 0)}
            assert set(grown) <= CAUSES
            assert sum(grown.values()) == self.expected, (op, grown, self.expected)
        if op.name not in EDITS and op.name != "unpin":
            assert pins <= self.pins(), "a pin is lost"
        self.check_view()

    def closed_versions(self) -> list[str]:
        """Returns the versions in the view; results that a failed call has stored in its open turn stay, so they do not count."""
        view = self.ctx.view()
        return [e.version for e in view][: len(view) - len(view.turn)]

    def check_view(self) -> None:
        view = self.ctx.view()
        assert view.tokens == sum(self.ctx.handle.counter.count(m) for m in view.messages)
        assert_legal(view.messages, open_at_end=bool(view.turn))  # the context shows the open turn that it owns
        assert tuple(m.text for m in view.messages[:2]) == PROMPTS
        ids = [e.id for e in view]
        assert len(ids) == len(set(ids))

    def check_fresh(self) -> None:
        """Another process sees the same, but for the open turn that this context owns."""
        other = self.context(None, create=False)
        mine, its = self.ctx.view(), other.view()
        assert [*its.system, *its.compressed, *its.live] == [*mine.system, *mine.compressed, *mine.live]
        assert {e.id for e in its.turn} <= {e.id for e in mine.turn}
        assert its.epoch == mine.epoch
        a, b = self.ctx.usage(), other.usage()
        assert (a.reported, a.replies, a.turns, a.compactions) == (b.reported, b.replies, b.turns, b.compactions)
        pinned = {x.id for x in other.explain().blocks if x.why == "pinned"}
        assert pinned == self.pins()

    def name(self) -> str:
        self.number += 1
        return f"n{self.number}"

    def ask(self, op: Op, *, fails: bool = False, stream: bool = False, stop_after: int | None = None) -> None:
        """A new question in a slot, or the results that its open turn waits for."""
        name = self.name()
        turn = self.turns.get(op.slot)
        fresh = turn is None
        if turn is None:
            message = user(f"question {name} " + "q" * op.size, id=f"{name}-u")
            turn = Turn(name, {message.id}, message.id)
            messages = [message]
        else:
            messages = [
                tool_result(c, f"result {name} " + "r" * op.size, id=f"{name}-{i}") for i, c in enumerate(turn.waiting)
            ]
            turn.ids |= {m.id for m in messages}
        self.now = turn
        parts = rounds(name, op.calls, 0)[0]
        self.plan = parts if op.calls else assistant(f"answer {name} " + "a" * op.size, id=f"{name}-z", reasoning=name)
        if fails:
            self.plan = BackendError("down", kind="server")
        options = {
            "recall": self.sections,
            "tools": TOOLS if op.at % 7 == 0 else (),
            "on_abort": "keep_partial" if op.at % 2 else "discard",
        }
        reply = None
        try:
            if stream:
                self.driven.send_stream(messages, stop_after=stop_after, **options)
            else:
                options.pop("on_abort")
                reply = self.driven.send(messages, **options)
        except CtxError:
            if not fresh:
                turn.waiting = ()  # the results are stored: the next attempt sends them again
                turn.waiting = tuple(self.open_calls(messages))
                self.turns.pop(op.slot)
                self.left.append((self.ctx, turn))
            raise
        finally:
            self.now = None
        if stream and stop_after is not None:
            self.turns.pop(op.slot, None)
            if not fresh and options["on_abort"] == "discard":
                self.left.append((self.ctx, turn))
            return
        if op.calls:
            turn.waiting = tuple(c.id for c in parts.tool_calls)
            self.turns[op.slot] = turn
        else:
            self.turns.pop(op.slot, None)
        assert reply is None or reply.message.role == "assistant"

    @staticmethod
    def open_calls(messages: list[Message]) -> list[str]:
        return [r.call_id for m in messages for r in m.tool_results]

    def do_ask(self, op: Op) -> None:
        self.ask(op)

    def do_fail(self, op: Op) -> None:
        self.ask(op, fails=True)

    def do_stream(self, op: Op) -> None:
        self.ask(op, stream=True)

    def do_break_stream(self, op: Op) -> None:
        self.ask(op, stream=True, stop_after=1)

    def do_add(self, op: Op) -> None:
        name = self.name()
        middle = rounds(name, op.calls, op.size) if op.calls else ()
        end = assistant(f"added answer {name}", id=f"{name}-z")
        given = [user(f"added {name} " + "q" * op.size, id=f"{name}-u"), *middle, end]
        handle = Driven(self.ctx.at(self.session), self.runner)
        handle.add(given)
        assert handle.add(given).messages == (), "known messages are kept once"

    def do_leave_open(self, op: Op) -> None:
        name = self.name()
        handle = self.ctx.at(self.session)
        asking = rounds(name, max(1, op.calls), 0)[0]
        opened = [user(f"left {name}", id=f"{name}-u"), asking]
        Driven(handle, self.runner).add(opened)
        turn = Turn(name, {m.id for m in opened})
        if op.at % 2:
            turn.ids = set()  # its whole prefix joins the view
            Driven(handle, self.runner).add([user(f"instead {name}", id=f"{name}-v")])
        else:
            self.left.append((handle, turn))

    def live(self, op: Op) -> tuple[int, Message]:
        live = self.ctx.view().live
        if not len(live):
            raise CtxError("nothing live")
        at = op.at % len(live)
        return at, live[at].message

    def do_pin(self, op: Op) -> None:
        self.driven.pin(self.live(op)[1].id)

    def do_unpin(self, op: Op) -> None:
        self.driven.unpin(self.live(op)[1].id)

    def do_update(self, op: Op) -> None:
        at, old = self.live(op)
        new = Message("x", old.role, old.parts)
        if not old.tool_calls and old.role != "tool":
            new = (user if old.role == "user" else assistant)(f"updated {self.name()}", id="x")
        self.driven.edit.update(at, new)

    def do_insert(self, op: Op) -> None:
        name = self.name()
        at = op.at % (len(self.ctx.view().live) + 1)
        self.driven.edit.insert(at, user(f"inserted {name}", id=f"{name}-i"))

    def do_remove(self, op: Op) -> None:
        self.driven.edit.remove(self.live(op)[0])

    def do_pop(self, op: Op) -> None:
        self.driven.edit.pop()

    def do_retain(self, op: Op) -> None:
        self.driven.edit.retain("user" if op.at % 2 else "assistant")

    def do_clear(self, op: Op) -> None:
        self.driven.edit.clear()

    def do_set(self, op: Op) -> None:
        kept = list(self.ctx.view().live)
        place = op.at % (len(kept) + 1)
        whole = [e.message for e in kept[:place] if e.message.kind == "message" and e.message.role in {"user"}]
        self.driven.edit.set_messages(whole)
        assert [e.id for e in self.ctx.view().live] == [m.id for m in whole]

    def do_compact(self, op: Op) -> None:
        live = [e for e in self.ctx.view().live if e.message.role == "user" and e.message.kind == "message"]
        self.driven.compact(force=True)
        if live:
            assert live[-1].id in {e.id for e in self.ctx.view()}, "the newest user message is lost"

    def do_undo(self, op: Op) -> None:
        self.driven.undo()

    def do_reopen(self, op: Op) -> None:
        self.check_fresh()
        self.open()
