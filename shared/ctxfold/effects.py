"""The few ways out of the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ParamSpec, Protocol, TypeVar, runtime_checkable

from ctxfold.errors import ConfigError
from ctxfold.flow import Effect, Flow, arun, run
from ctxfold.history.records import Draft, Record, SessionKey
from ctxfold.ports import (
    AsyncChunkStream,
    ChunkStream,
    ContextBackend,
    Document,
    Head,
    Ports,
    Postings,
    Reply,
    Request,
    Rewrite,
)
from ctxfold.tracing import Noted, span, told_reply, told_request, traced, traced_async

__all__ = [
    "AppendLog",
    "Complete",
    "Copies",
    "EraseLogs",
    "EraseOwner",
    "FetchLog",
    "FindLog",
    "LookedUp",
    "NumberedRecord",
    "OpenStream",
    "ReadHead",
    "ReadLog",
    "Search",
    "Sessions",
    "SnapshotBefore",
]


P = ParamSpec("P")
T = TypeVar("T")


@runtime_checkable
class _OffLoop(Protocol):
    """A store that runs its sync methods away from the loop, as those of `stores` do; `blocking` says that they take time."""

    blocking: bool

    async def offload(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T: ...


@runtime_checkable
class _Sparing(Protocol):
    """A backend that knows which models cannot do without thinking."""

    def sparing(self, request: Request) -> Request: ...


@dataclass(frozen=True, slots=True)
class ReadHead(Effect[Head | None]):
    key: SessionKey

    def perform(self, ports: Ports) -> Head | None:
        return ports.store.head(self.key)

    async def aperform(self, ports: Ports) -> Head | None:
        return await ports.store.ahead(self.key)


@dataclass(frozen=True, slots=True)
class ReadLog(Effect[tuple[Record, ...]]):
    key: SessionKey
    after: int = 0
    upto: int | None = None

    def perform(self, ports: Ports) -> tuple[Record, ...]:
        return ports.store.read(self.key, after=self.after, upto=self.upto)

    async def aperform(self, ports: Ports) -> tuple[Record, ...]:
        return await ports.store.aread(self.key, after=self.after, upto=self.upto)


@dataclass(frozen=True, slots=True)
class FetchLog(Effect[tuple[Record, ...]]):
    key: SessionKey
    seqs: Sequence[int]

    def perform(self, ports: Ports) -> tuple[Record, ...]:
        return ports.store.fetch(self.key, self.seqs)

    async def aperform(self, ports: Ports) -> tuple[Record, ...]:
        return await ports.store.afetch(self.key, self.seqs)


@dataclass(frozen=True, slots=True)
class FindLog(Effect[tuple[Record, ...]]):
    key: SessionKey
    ids: Sequence[str]

    def perform(self, ports: Ports) -> tuple[Record, ...]:
        return ports.store.find(self.key, self.ids)

    async def aperform(self, ports: Ports) -> tuple[Record, ...]:
        return await ports.store.afind(self.key, self.ids)


@dataclass(frozen=True, slots=True)
class NumberedRecord(Effect[Record | None]):
    key: SessionKey
    number: int

    def perform(self, ports: Ports) -> Record | None:
        return ports.store.numbered(self.key, self.number)

    async def aperform(self, ports: Ports) -> Record | None:
        return await ports.store.anumbered(self.key, self.number)


@dataclass(frozen=True, slots=True)
class SnapshotBefore(Effect[int]):
    key: SessionKey
    seq: int

    def perform(self, ports: Ports) -> int:
        return ports.store.snapshot_before(self.key, self.seq)

    async def aperform(self, ports: Ports) -> int:
        return await ports.store.asnapshot_before(self.key, self.seq)


@dataclass(frozen=True, slots=True)
class AppendLog(Effect[tuple[Record, ...]]):
    key: SessionKey
    drafts: Sequence[Draft]
    known: int = 0
    expect: int | None = None
    documents: Sequence[Document] = ()
    known_id: str | None = None

    def perform(self, ports: Ports) -> tuple[Record, ...]:
        return ports.store.append(
            self.key,
            self.drafts,
            known=self.known,
            expect=self.expect,
            documents=self.documents,
            known_id=self.known_id,
        )

    async def aperform(self, ports: Ports) -> tuple[Record, ...]:
        return await ports.store.aappend(
            self.key,
            self.drafts,
            known=self.known,
            expect=self.expect,
            documents=self.documents,
            known_id=self.known_id,
        )


@dataclass(frozen=True, slots=True)
class Search(Effect[Postings]):
    key: SessionKey
    terms: Sequence[str]
    newest: int | None = None
    among: Sequence[int] | None = None

    def perform(self, ports: Ports) -> Postings:
        return ports.store.postings(self.key, self.terms, newest=self.newest, among=self.among)

    async def aperform(self, ports: Ports) -> Postings:
        return await ports.store.apostings(self.key, self.terms, newest=self.newest, among=self.among)


@dataclass(frozen=True, slots=True)
class LookedUp(Effect[T]):
    """What a flow finds that asks nothing but the store; on a loop it runs in one thread where the store's calls would take one
    each. A cancelled caller leaves it to its end."""

    flow: Flow[T]

    def perform(self, ports: Ports) -> T:
        return run(self.flow, ports)

    async def aperform(self, ports: Ports) -> T:
        if isinstance(ports.store, _OffLoop) and ports.store.blocking:
            return await ports.store.offload(run, self.flow, ports)
        return await arun(self.flow, ports)


@dataclass(frozen=True, slots=True)
class Copies(Effect[tuple[str, ...]]):
    """The owner's other sessions whose log begins as this one's does."""

    key: SessionKey

    def perform(self, ports: Ports) -> tuple[str, ...]:
        return ports.store.copies(self.key)

    async def aperform(self, ports: Ports) -> tuple[str, ...]:
        return await ports.store.acopies(self.key)


@dataclass(frozen=True, slots=True)
class Sessions(Effect[tuple[str, ...]]):
    owner: str

    def perform(self, ports: Ports) -> tuple[str, ...]:
        return ports.store.sessions(self.owner)

    async def aperform(self, ports: Ports) -> tuple[str, ...]:
        return await ports.store.asessions(self.owner)


@dataclass(frozen=True, slots=True)
class EraseLogs(Effect[bool]):
    rewrites: Sequence[Rewrite]
    gone: Sequence[SessionKey] = ()

    def perform(self, ports: Ports) -> bool:
        return ports.store.erase(self.rewrites, gone=self.gone)

    async def aperform(self, ports: Ports) -> bool:
        return await ports.store.aerase(self.rewrites, gone=self.gone)


@dataclass(frozen=True, slots=True)
class EraseOwner(Effect[bool]):
    owner: str

    def perform(self, ports: Ports) -> bool:
        return ports.store.erase_owner(self.owner)

    async def aperform(self, ports: Ports) -> bool:
        return await ports.store.aerase_owner(self.owner)


def _need(backend: ContextBackend | None) -> ContextBackend:
    if backend is None:
        raise ConfigError("this session has no backend: give one (backend=OpenAIChatBackend(...)) to send messages")
    return backend


@dataclass(frozen=True, slots=True)
class Complete(Effect[Reply]):
    """A whole answer from the backend, or from the summariser, which is asked as `sparing` makes it of its backend."""

    request: Request
    summarizer: bool = False

    def _backend(self, ports: Ports) -> ContextBackend:
        return _need(ports.summarizer if self.summarizer else ports.backend)

    def _asked(self, backend: ContextBackend) -> Request:
        return backend.sparing(self.request) if self.summarizer and isinstance(backend, _Sparing) else self.request

    def _span(self, backend: ContextBackend) -> AbstractContextManager[Noted]:
        operation = "summarize" if self.summarizer else "chat"
        return span(f"{operation} {backend.model}", told_request(self.request, backend.model, operation))

    def perform(self, ports: Ports) -> Reply:
        backend = self._backend(ports)
        with self._span(backend) as noted:
            reply = backend.send(self._asked(backend))
            told_reply(noted, reply)
        return reply

    async def aperform(self, ports: Ports) -> Reply:
        backend = self._backend(ports)
        with self._span(backend) as noted:
            reply = await backend.asend(self._asked(backend))
            told_reply(noted, reply)
        return reply


@dataclass(frozen=True, slots=True)
class OpenStream(Effect["ChunkStream | AsyncChunkStream"]):
    """An open answer, once its first event is there: a ChunkStream, or an AsyncChunkStream when driven on a loop."""

    request: Request

    def perform(self, ports: Ports) -> ChunkStream:
        backend = _need(ports.backend)
        return traced(backend.open_stream, self.request, backend.model)

    async def aperform(self, ports: Ports) -> AsyncChunkStream:
        backend = _need(ports.backend)
        return await traced_async(backend.aopen_stream, self.request, backend.model)
