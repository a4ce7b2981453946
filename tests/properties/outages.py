"""A store that fails on purpose, and clients that try again until each of their messages is acknowledged."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ctxfold import AgentContext, Message, Request, ScriptedBackend, ToolCallPart, assistant, tool_result, user
from ctxfold.errors import StoreUnavailableError
from ctxfold.history.records import Record
from ctxfold.protocols import StoreCapabilities
from tests.properties.machine import assert_legal
from tests.support.driven import COUNTER

FAULTS = ("ok", "fail", "lost", "down", "die", "die after")
DOWN_CALLS = 4  # calls of any kind that fail after a "down"
LATE_S = 1_000.0  # an open turn is given up after 900 s without a record
WINDOWS = (
    180,
    220,
    300,
    4_000,
)  # tokens: in the small ones a turn with tool rounds does not fit, and is stored in pieces
WORDS = "alpha beta gamma delta "


class Died(BaseException):
    """The process ended here: nothing that it would still have done reaches the store."""


@dataclass
class Weather:
    """What happens to the next appends, in order, whoever makes them; `age_s` is how long ago everything was written."""

    faults: deque[str] = field(default_factory=deque[str])
    down: int = 0
    age_s: float = 0.0

    def next_fault(self, name: str) -> str:
        if self.down:
            self.down -= 1
            return "fail"
        if name != "append" or not self.faults:
            return "ok"
        fault = self.faults.popleft()
        if fault == "down":
            self.down = DOWN_CALLS
            return "fail"
        return fault


class UnreliableStore:
    """One process's way to a real store. "lost" writes and then reports a failure, as a connection that breaks after the commit."""

    def __init__(self, store: Any, weather: Weather) -> None:
        self.store, self.weather, self.dead = store, weather, False

    capabilities = StoreCapabilities(blocking=False)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("a") and name not in ("append",) and hasattr(type(self.store), name[1:]):
            plain = getattr(self, name[1:])

            async def called(*args: Any, **kwargs: Any) -> Any:
                return plain(*args, **kwargs)

            return called
        if name in ("lease", "release"):  # a lease of a dead process only makes the others wait
            return lambda *args, **kwargs: True
        method = getattr(self.store, name)
        return lambda *args, **kwargs: self._call(name, method, args, kwargs)

    def _call(self, name: str, method: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if self.dead:
            raise Died
        match self.weather.next_fault(name):
            case "fail":
                raise StoreUnavailableError(f"{name}: the store does not answer")
            case "lost":
                method(*args, **kwargs)
                raise StoreUnavailableError(f"{name}: the connection broke after the commit")
            case "die" | "die after" as when:
                if when == "die after":
                    method(*args, **kwargs)
                self.dead = True
                raise Died
            case _:
                found = method(*args, **kwargs)
        if isinstance(found, tuple) and found and isinstance(found[0], Record):
            return tuple(replace(r, at_s=r.at_s - self.weather.age_s) for r in found)
        return found


@dataclass(frozen=True)
class Step:
    """One turn of one client: how it is told to the engine, its tool rounds, and what passes before each new attempt."""

    client: int
    kind: str
    rounds: int
    words: int
    between: Sequence[str]


@dataclass
class Told:
    """A client's turn: its messages in order, and those that were acknowledged before its first attempt."""

    before: frozenset[str]
    ids: list[str] = field(default_factory=list[str])


class World:
    """Two clients of one session, each with a process of its own, over one store."""

    def __init__(self, store: Any, session: str, faults: Sequence[str], *, window: int) -> None:
        self.store, self.session, self.window = store, session, window
        self.weather = Weather()
        self.answer: Any = "ok"
        self.number = 0
        self.told: list[Told] = []
        self.acknowledged: list[str] = []
        self.contexts = [self.opened(), self.opened()]
        self.weather.faults.extend(faults)

    def opened(self, *, watched: bool = True) -> AgentContext:
        backend = ScriptedBackend([self.reply] * 200)
        summaries = ScriptedBackend(["short"] * 200)
        store: Any = UnreliableStore(self.store, self.weather) if watched else self.store
        return AgentContext(
            backend,
            store=store,
            session_id=self.session,
            context_window=self.window,
            reply_reserve_tokens=40,
            summarizer=summaries,
            counter=COUNTER,
        )

    def reply(self, request: Request) -> Any:
        assert_legal(request.messages)
        ids = [m.id for m in request.messages]
        assert len(ids) == len(set(ids)), "a message twice in one request"
        return self.answer

    # one client's turn

    def written(self, step: Step) -> tuple[Message, list[list[Message]], Message]:
        """Makes the messages of a turn: the question, the tool rounds and the answer."""
        self.number += 1
        name = f"n{self.number}"
        question = user(f"question {name} " + WORDS * step.words, id=f"{name}-u")
        middle: list[list[Message]] = []
        for index in range(step.rounds):
            calls = [ToolCallPart(f"{name}-{index}-{i}", "look", "{}") for i in range(1 + index % 2)]
            results = [tool_result(c.id, "found " + WORDS * step.words, id=f"r-{c.id}") for c in calls]
            middle.append([assistant("", id=f"{name}-a{index}", calls=calls), *results])
        return question, middle, assistant(f"answer {name}", id=f"{name}-z")

    def begun(self) -> Told:
        told = Told(frozenset(self.acknowledged))
        self.told.append(told)
        return told

    def take(self, step: Step) -> None:
        question, middle, answer = self.written(step)
        told = self.begun()
        match step.kind:
            case "add":
                self.insist(step, told, lambda ctx: add(ctx, [question, *(m for r in middle for m in r), answer]))
            case "add_rest":
                for part in ([question], [*(m for r in middle for m in r), answer]):
                    self.insist(step, told, lambda ctx, part=part: add(ctx, part))
            case "add_parts":
                for part in ([question], *middle, [answer]):
                    self.insist(step, told, lambda ctx, part=part: add(ctx, part))
            case _:
                asked: list[Message] = [question]
                for calling, *results in middle:
                    self.answer = calling
                    self.insist(step, told, lambda ctx, asked=asked: self.ask(ctx, asked, step.kind))
                    asked = list(results)
                self.answer = answer
                self.insist(step, told, lambda ctx, asked=asked: self.ask(ctx, asked, step.kind))

    def ask(self, ctx: AgentContext, messages: list[Message], kind: str) -> list[str]:
        if kind == "stream":
            list(ctx.send_stream(messages))
            return [m.id for m in messages]
        reply = ctx.send(messages)
        return [*(m.id for m in messages), reply.message.id]

    def insist(self, step: Step, told: Told, attempt: Callable[[AgentContext], list[str]]) -> None:
        """Try until it is acknowledged."""
        pauses = deque(step.between)
        for _ in range(64):
            try:
                acknowledged = attempt(self.contexts[step.client])
            except StoreUnavailableError:
                pause = pauses.popleft() if pauses else "same"
            except Died:
                pause = pauses.popleft() if pauses else "restart"
                pause = "restart" if pause == "same" else pause
            else:
                told.ids += acknowledged
                self.acknowledged += acknowledged
                return
            self.weather.age_s += LATE_S if pause == "late" else 0.0
            if pause != "same":
                self.reopen(step.client)
        raise AssertionError("64 attempts failed")

    def reopen(self, client: int) -> None:
        for _ in range(64):
            try:
                self.contexts[client] = self.opened()
            except (StoreUnavailableError, Died):
                continue
            return

    # what must hold

    def check(self) -> None:
        fresh = self.opened(watched=False)
        assert_legal(fresh.view().messages)
        messages = fresh.messages()
        ids, answers = [m.id for m in messages], [m.text for m in messages if m.role == "assistant" and m.text]
        twice = [i for i, count in Counter([*ids, *answers]).items() if count > 1]
        assert not twice, f"twice in messages(): {twice}"
        places = {message_id: place for place, message_id in enumerate(ids)}
        lost = [i for i in self.acknowledged if i not in places]
        assert not lost, f"acknowledged and lost: {lost}"
        for told in self.told:
            order = [places[i] for i in told.ids]
            assert order == sorted(order), f"out of order: {told.ids} stand at {order}"
            earlier = max((places[i] for i in told.before), default=-1)
            assert not order or order[0] > earlier, f"{told.ids[0]} stands before what was acknowledged earlier"


def add(ctx: AgentContext, messages: list[Message]) -> list[str]:
    ctx.add(messages)
    return [m.id for m in messages]
