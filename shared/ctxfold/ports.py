"""The seams: what the engine asks of the outside world, as protocols, and the bundle that carries them."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from ctxfold.history.items import ItemStore
from ctxfold.history.records import Draft, Record, SessionKey
from ctxfold.messages import Message, ToolCallPart, ToolSpec, Usage
from ctxfold.prices import Prices
from ctxfold.vectors import Embedder

__all__ = [
    "AsyncChunkStream",
    "Chunk",
    "ChunkStream",
    "Clock",
    "ContextBackend",
    "Document",
    "Head",
    "Ids",
    "Ports",
    "Postings",
    "Reply",
    "Request",
    "ResponseType",
    "Rewrite",
    "Store",
    "SystemClock",
    "Tasks",
    "TokenCounter",
    "ToolCallDelta",
    "UuidIds",
]


ResponseType: TypeAlias = Literal["empty", "reasoning", "content", "reasoning_and_content"]


@dataclass(frozen=True, slots=True)
class Request:
    """What a backend is asked to answer.

    `messages` is the window as the engine holds it, reasoning included: the backend's row decides what of it travels.
    `tool_choice` is "auto", "none", "required" or a tool's name. `extra` goes into the request body as it is.
    `unbound_before`: messages at an index below it were answered with something else before them (a compaction, an edit,
    another system prompt); rows that bind reasoning to what stood before it do not send theirs.
    `stable_messages`: how many leading messages the next request will repeat, None when nothing is known; with it, or with
    `cache_key` (the same for all requests of a session), the row's prompt-cache marks are set.
    """

    messages: Sequence[Message]
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    stop: tuple[str, ...] = ()
    thinking: bool | str | None = None
    model: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])
    unbound_before: int = 0
    stable_messages: int | None = None
    cache_key: str | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer; `message` carries usage, model and finish reason, `raw` is the provider's own object.

    `empty_content` says that the service sent content, and that it was empty.
    """

    message: Message
    usage: Usage | None = None
    finish_reason: str | None = None
    raw: Any = None
    empty_content: bool = False

    @property
    def response_type(self) -> ResponseType:
        """Returns which of reasoning and content the answer has; tool calls do not count."""
        reasoning, content = bool(self.message.reasoning), bool(self.message.text)
        if reasoning:
            return "reasoning_and_content" if content else "reasoning"
        return "content" if content else "empty"

    @property
    def content(self) -> str | None:
        """Returns the visible text: None where the answer has none, "" where the service sent an empty one."""
        return self.message.text or ("" if self.empty_content else self.message.content)

    @property
    def reasoning_content(self) -> str | None:
        """Returns the thinking text, None where there is none."""
        return self.message.reasoning or None

    @property
    def tool_calls(self) -> tuple[ToolCallPart, ...]:
        return self.message.tool_calls


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A piece of a tool call as it came: index and id may be missing, repeated or wrong; `stream.Fold` sorts it out."""

    index: int | None = None
    id: str | None = None
    name: str | None = None
    arguments: str = ""
    extra: str | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """One piece of a streamed answer, translated; `raw` is the provider's own object.

    `sealed` is a block that came whole and only its provider can read; it keeps its place between text and reasoning.
    `whole` is the finished message where a source knows it; its id, model and usage are not read.
    `empty_content`: content was sent here, and it was empty; a chunk with nothing else gives no event.
    """

    reasoning: str = ""
    content: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    reasoning_details: tuple[Any, ...] = ()
    signature: str | None = None
    sealed: Mapping[str, Any] | None = None
    refusal: str = ""
    usage: Usage | None = None
    finish_reason: str | None = None
    model: str | None = None
    raw: Any = None
    whole: Message | None = None
    empty_content: bool = False


class ChunkStream(Protocol):
    """An open answer. The first event has arrived when it is handed out; `close` ends the connection at once."""

    def __iter__(self) -> Iterator[Chunk]: ...

    def close(self) -> None: ...


class AsyncChunkStream(Protocol):
    """The same for async code."""

    def __aiter__(self) -> AsyncIterator[Chunk]: ...

    async def aclose(self) -> None: ...


class ContextBackend(Protocol):
    """A model service. What the service does wrong leaves it as BackendError, and nothing else does once a request is on its way.

    Before anything is sent, ConfigError says that the row cannot do what is asked, MessageError that a message cannot travel.

    `scratch_role` is the role in which the row allows one message at the very end of a request. A backend may also say, by
    attributes of these names: `binds_reasoning` (to everything that stood before it), `reasoning_expires` (it goes back only
    within its round), `truncates_silently` (it cuts what does not fit), `compacts_itself` (the service does so on its own side,
    and triggers wait until 95 % of the budget), `sparing(request)` (a summariser's request for a short answer without thinking,
    as the model can do it).
    `context_window` is the row's default for the model, None when unknown.
    """

    @property
    def model(self) -> str: ...

    @property
    def context_window(self) -> int | None: ...

    @property
    def scratch_role(self) -> str: ...

    def send(self, request: Request) -> Reply: ...

    async def asend(self, request: Request) -> Reply: ...

    def open_stream(self, request: Request) -> ChunkStream: ...

    async def aopen_stream(self, request: Request) -> AsyncChunkStream: ...

    def close(self) -> None: ...

    async def aclose(self) -> None: ...


class TokenCounter(Protocol):
    """Counts what is sent; `id` changes whenever counts would."""

    @property
    def id(self) -> str: ...

    def count(self, message: Message) -> int: ...

    def count_text(self, text: str) -> int: ...

    def count_tools(self, tools: Sequence[ToolSpec]) -> int: ...


@dataclass(frozen=True, slots=True)
class Head:
    """Where a log ends: its last seq, and that of its newest snapshot (0 when there is none)."""

    seq: int
    snapshot_seq: int


@dataclass(frozen=True, slots=True)
class Document:
    """A message made searchable: the record that holds it and its terms with their counts."""

    seq: int
    terms: Mapping[str, int]
    length: int


@dataclass(frozen=True, slots=True)
class Postings:
    """What BM25 needs for one query: size of the archive, and per term (seq, count in it, its length), in order of seq."""

    documents: int
    total_length: int
    by_term: Mapping[str, tuple[tuple[int, int, int], ...]]


@dataclass(frozen=True, slots=True)
class Rewrite:
    """What an erasure makes of one session, while its log ends at `expect`.

    `records` come in place of those with the same seq, documents `unindexed` leave the index with all their terms, and
    `drafts` are appended. Whatever else was made from the messages `ids` goes too.
    """

    key: SessionKey
    expect: int
    ids: tuple[str, ...]
    records: tuple[Record, ...]
    unindexed: tuple[int, ...]
    drafts: tuple[Draft, ...]


class Store(ItemStore, Protocol):
    """An append-only log per (owner, session). Safe across threads, tasks and, where it is durable, processes.

    Async forms do the same without blocking the loop. Failures are StoreError.
    """

    def head(self, key: SessionKey) -> Head | None:
        """Where the session's log ends; None when there is no such session."""
        ...

    async def ahead(self, key: SessionKey) -> Head | None: ...

    def append(
        self,
        key: SessionKey,
        drafts: Sequence[Draft],
        *,
        known: int = 0,
        expect: int | None = None,
        documents: Sequence[Document] = (),
        known_id: str | None = None,
    ) -> tuple[Record, ...]:
        """Append in one transaction, making the session when it is new; returns every record after seq `known`.

        A draft whose id is already there with the same fingerprint is skipped; with another, MessageConflictError and
        nothing is written. With `expect`, HeadMovedError unless the log ends there. With `known_id`, SessionNotFoundError
        unless the record `known` has that id: the session was erased meanwhile. A SnapshotTaken draft moves the newest
        snapshot.
        """
        ...

    async def aappend(
        self,
        key: SessionKey,
        drafts: Sequence[Draft],
        *,
        known: int = 0,
        expect: int | None = None,
        documents: Sequence[Document] = (),
        known_id: str | None = None,
    ) -> tuple[Record, ...]: ...

    def read(self, key: SessionKey, *, after: int = 0, upto: int | None = None) -> tuple[Record, ...]:
        """Records with after < seq <= upto, in order."""
        ...

    async def aread(self, key: SessionKey, *, after: int = 0, upto: int | None = None) -> tuple[Record, ...]: ...

    def fetch(self, key: SessionKey, seqs: Sequence[int]) -> tuple[Record, ...]:
        """The records with these seqs, in order of seq; missing ones are left out."""
        ...

    async def afetch(self, key: SessionKey, seqs: Sequence[int]) -> tuple[Record, ...]: ...

    def find(self, key: SessionKey, ids: Sequence[str]) -> tuple[Record, ...]:
        """The records with these record ids, in order of seq; missing ones are left out."""
        ...

    async def afind(self, key: SessionKey, ids: Sequence[str]) -> tuple[Record, ...]: ...

    def numbered(self, key: SessionKey, number: int) -> Record | None:
        """The record that brought the message with that number; None when there is none."""
        ...

    async def anumbered(self, key: SessionKey, number: int) -> Record | None: ...

    def snapshot_before(self, key: SessionKey, seq: int) -> int:
        """The seq of the newest snapshot before `seq`, 0 when there is none."""
        ...

    async def asnapshot_before(self, key: SessionKey, seq: int) -> int: ...

    def postings(
        self, key: SessionKey, terms: Sequence[str], *, newest: int | None = None, among: Sequence[int] | None = None
    ) -> Postings:
        """What the archive holds of the terms: all hits, or the `newest` of each, or those in the documents `among`."""
        ...

    async def apostings(
        self, key: SessionKey, terms: Sequence[str], *, newest: int | None = None, among: Sequence[int] | None = None
    ) -> Postings: ...

    def lease(self, key: SessionKey, name: str, holder: str, *, now_s: float, ttl_s: float) -> bool:
        """Whether `holder` now has the named lease of the session, until it is released or `ttl_s` has passed.

        A holder that has it keeps it for longer. The session need not exist. `now_s` is the caller's clock: a store that several
        machines share goes by the clock of its server instead.
        """
        ...

    async def alease(self, key: SessionKey, name: str, holder: str, *, now_s: float, ttl_s: float) -> bool: ...

    def release(self, key: SessionKey, name: str, holder: str) -> None:
        """Give a lease back; nothing happens when another has it."""
        ...

    async def arelease(self, key: SessionKey, name: str, holder: str) -> None: ...

    def sessions(self, owner: str) -> tuple[str, ...]:
        """The names of an owner's sessions, sorted."""
        ...

    async def asessions(self, owner: str) -> tuple[str, ...]: ...

    def copies(self, key: SessionKey) -> tuple[str, ...]:
        """The owner's other sessions whose log begins with the same record: the forks of it, and what it was forked from."""
        ...

    async def acopies(self, key: SessionKey) -> tuple[str, ...]: ...

    def erase(self, rewrites: Sequence[Rewrite], *, gone: Sequence[SessionKey] = ()) -> bool:
        """Rewrite logs, and remove the sessions `gone` with all that belongs to them, in one transaction.

        HeadMovedError, and nothing is done, when one of the logs has grown. Whether nothing of the old text is left in files
        that this store writes to; False where another process is in the way, and a later call will see to it.
        """
        ...

    async def aerase(self, rewrites: Sequence[Rewrite], *, gone: Sequence[SessionKey] = ()) -> bool: ...

    def erase_owner(self, owner: str) -> bool:
        """Remove everything that belongs to the owner, in one transaction; see `erase`."""
        ...

    async def aerase_owner(self, owner: str) -> bool: ...

    def close(self) -> None: ...

    async def aclose(self) -> None: ...


class Clock(Protocol):
    def now_s(self) -> float:
        """Unix time in seconds."""
        ...


class Ids(Protocol):
    def new(self) -> str:
        """An id never given before, by any process."""
        ...


class Tasks(Protocol):
    """Work that goes on while the caller does something else."""

    def start(self, work: Callable[[Callable[[], bool]], None]) -> bool:
        """Run it in a thread; it is given a function that says whether to stop. Whether it was begun."""
        ...

    def start_on_loop(self, work: Coroutine[Any, Any, None]) -> bool:
        """Run it as a task of the running loop. Whether it was begun."""
        ...

    def close(self, *, wait: bool) -> None:
        """Wait for what is under way, or end it; nothing is begun any more."""
        ...

    async def aclose(self, *, wait: bool) -> None: ...


class SystemClock:
    def now_s(self) -> float:
        return time.time()


class UuidIds:
    def new(self) -> str:
        return uuid.uuid4().hex


@dataclass(frozen=True, slots=True)
class Ports:
    """The outside world of one engine; `summarizer` writes summaries, None means the extractive one; without `tasks`
    nothing is done in the background, without `prices` nothing is said of cost."""

    store: Store
    counter: TokenCounter
    backend: ContextBackend | None = None
    summarizer: ContextBackend | None = None
    clock: Clock = field(default_factory=SystemClock)
    ids: Ids = field(default_factory=UuidIds)
    tasks: Tasks | None = None
    prices: Prices | None = None
    embedder: Embedder | None = None
