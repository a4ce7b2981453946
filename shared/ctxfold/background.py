"""Effects around background work and leases, and what a session knows of the work that it has under way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ctxfold.events import OutputsPrepared
from ctxfold.flow import Effect, Flow, arun, run
from ctxfold.history.records import SessionKey
from ctxfold.messages import Message, Usage
from ctxfold.ports import Ports
from ctxfold.tasks import apause, pause

__all__ = ["Ahead", "Aim", "Pairs", "Pause", "Release", "Start", "TakeLease"]


@dataclass(frozen=True, slots=True)
class Start(Effect[bool]):
    """Begin a flow in the background, by the driver that performs this; whether it began. The flow keeps its own errors."""

    flow: Flow[None]

    def perform(self, ports: Ports) -> bool:
        if ports.tasks is None:
            self.flow.close()
            return False
        return ports.tasks.start(lambda stopped: run(_until(self.flow, stopped), ports))

    async def aperform(self, ports: Ports) -> bool:
        if ports.tasks is None:
            self.flow.close()
            return False
        return ports.tasks.start_on_loop(arun(self.flow, ports))


def _until(flow: Flow[None], stopped: Callable[[], bool]) -> Flow[None]:
    """The flow, ended before its next effect once it is to stop."""
    result: Any = None
    error: BaseException | None = None
    try:
        while not stopped():
            effect = flow.send(result) if error is None else flow.throw(error)
            result, error = None, None
            try:
                result = yield effect
            except GeneratorExit:
                raise
            except BaseException as raised:  # noqa: BLE001 - the flow decides
                error = raised
    except StopIteration:
        return
    finally:
        flow.close()


@dataclass(frozen=True, slots=True)
class TakeLease(Effect[bool]):
    """Whether `holder` may do the named work for `ttl_s` seconds: nobody else holds it, in any process."""

    key: SessionKey
    name: str
    holder: str
    ttl_s: float

    def perform(self, ports: Ports) -> bool:
        return ports.store.lease(self.key, self.name, self.holder, now_s=ports.clock.now_s(), ttl_s=self.ttl_s)

    async def aperform(self, ports: Ports) -> bool:
        return await ports.store.alease(self.key, self.name, self.holder, now_s=ports.clock.now_s(), ttl_s=self.ttl_s)


@dataclass(frozen=True, slots=True)
class Release(Effect[None]):
    """Give the lease back; nothing happens when it has passed to another."""

    key: SessionKey
    name: str
    holder: str

    def perform(self, ports: Ports) -> None:
        ports.store.release(self.key, self.name, self.holder)

    async def aperform(self, ports: Ports) -> None:
        await ports.store.arelease(self.key, self.name, self.holder)


@dataclass(frozen=True, slots=True)
class Pause(Effect[None]):
    """Nothing, for a while; an event loop goes on meanwhile."""

    seconds: float

    def perform(self, ports: Ports) -> None:
        pause(self.seconds)

    async def aperform(self, ports: Ports) -> None:
        await apause(self.seconds)


@dataclass(slots=True)
class Ahead:
    """What is being done before it is asked for: `ready` is a plan with its summary, see `compaction.prepare`.

    In an epoch in which it failed it is not tried again.
    """

    running: bool = False
    ready: object = None
    failed_epoch: int = -1


@dataclass(slots=True)
class Aim:
    """What is being found out about the goal: for which user message, and what was found last, see `compaction.goal`."""

    running: bool = False
    message_id: str = ""
    ready: object = None


@dataclass(slots=True)
class Pairs:
    """Summaries of tool outputs on their way into the log, see `compaction.pairs`; `left_out` are not worth one."""

    running: bool = False
    unwritten: list[Message] = field(default_factory=list[Message])
    calls: int = 0
    usage: Usage = field(default_factory=Usage)
    problems: list[str] = field(default_factory=list[str])
    left_out: set[str] = field(default_factory=set[str])
    told: list[OutputsPrepared] = field(default_factory=list[OutputsPrepared])
