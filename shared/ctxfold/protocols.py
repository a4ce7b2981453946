"""Defines the protocols that the engine calls: backends, stores, token counters, embedders, clock and ids."""

from __future__ import annotations

import time
import uuid
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from ctxfold.history.memory_items import ItemStore
from ctxfold.history.records import Draft, Record, SessionKey
from ctxfold.messages import Message, ProviderSummary, ToolCallPart, ToolSpec, Usage
from ctxfold.policy.prices import Prices


class Embedder(Protocol):
    """Computes embeddings: texts with near vectors have similar meanings. When it raises, recall goes by words alone."""

    def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]: ...

    async def aembed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]: ...


Wire: TypeAlias = Literal["openai_chat", "openai_responses", "anthropic_messages", "gemini", "bedrock_converse"]
ResponseType: TypeAlias = Literal["empty", "reasoning", "content", "reasoning_and_content"]


@dataclass(frozen=True, slots=True)
class Request:
    """A request to a backend.

    Args:
        messages: the window as the engine holds it, reasoning included; the provider's profile decides what of it is sent.
        tool_choice: "auto", "none", "required" or a tool's name.
        extra: goes into the request body as it is.
        unbound_before: the messages below this index were produced with other messages before them, because a compaction, an
            edit or another system prompt came in between. Profiles that bind reasoning to its prefix leave out theirs.
        refused_before: the service refused the reasoning of the messages below this index, so it is not sent.
        stable_messages: how many leading messages the next request will repeat; None when unknown. With it, or with
            `cache_key`, the profile's prompt-cache marks are set.
        cache_key: the same for all requests of a session.
        compact: the request asks the service for its own summary of the messages and not for an answer. It is set only where
            `BackendCapabilities.compacts_from` names the size from which on the service writes one.
        live_prefix: the request asks for a summary and begins exactly as the conversation's last request, so that the
            provider's prompt cache serves it. Its settings are those of that request and must not be changed.
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
    refused_before: int = 0
    stable_messages: int | None = None
    cache_key: str | None = None
    live_prefix: bool = False
    compact: bool = False


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer; `message` carries usage, model and finish reason, `raw` is the provider's own object.

    `empty_content` says that the service sent content, and that it was empty. A service that shortened the context on its own
    side says so: `usage` covers the context of the answer, `billed` all tokens spent, including the service's summary (None
    where both are the same), and `applied_edits` holds the provider's reports of what it cleared,
    and of thinking that it left out. `summary` answers a request with `compact`; None where the service wrote none.
    """

    message: Message
    usage: Usage | None = None
    finish_reason: str | None = None
    raw: Any = None
    empty_content: bool = False
    billed: Usage | None = None
    applied_edits: tuple[Mapping[str, Any], ...] = ()
    summary: ProviderSummary | None = None

    @property
    def response_type(self) -> ResponseType:
        """Returns whether the answer has reasoning, content or both; tool calls do not count."""
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
    """A piece of a tool call as it arrived: index and id may be missing, repeated or wrong; `stream.Fold` assembles the pieces."""

    index: int | None = None
    id: str | None = None
    name: str | None = None
    arguments: str = ""
    extra: str | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """A translated piece of a streamed answer.

    Args:
        raw: the provider's own object.
        sealed: a block that arrived whole and that only its provider can read; it keeps its place between text and reasoning.
        reasoning_block: the provider's own form of the reasoning just before it. It ends that part, or makes an empty one.
        text_extra: the data that belongs to the text just before it. It ends that part, or makes an empty one.
        own_part: text, reasoning and calls of the chunk are separate parts, in the order in which they arrived.
        whole: the finished message, from a source that has it; its id, model and usage are ignored.
        empty_content: the service sent content here that was empty; a chunk with nothing else gives no event.
        billed: as in `Reply`.
        applied_edits: as in `Reply`.
        hands_over: what follows was written by `model`, and not by the model that was asked.
    """

    reasoning: str = ""
    content: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    reasoning_details: tuple[Any, ...] = ()
    signature: str | None = None
    sealed: Mapping[str, Any] | None = None
    reasoning_block: Mapping[str, Any] | None = None
    text_extra: Mapping[str, Any] | None = None
    own_part: bool = False
    refusal: str = ""
    usage: Usage | None = None
    finish_reason: str | None = None
    model: str | None = None
    raw: Any = None
    whole: Message | None = None
    empty_content: bool = False
    billed: Usage | None = None
    applied_edits: tuple[Mapping[str, Any], ...] = ()
    hands_over: bool = False


class ChunkStream(Protocol):
    """An open stream of chunks. It is returned once the first event has arrived; `close` ends the connection at once."""

    def __iter__(self) -> Iterator[Chunk]: ...

    def close(self) -> None: ...


class AsyncChunkStream(Protocol):
    """The async form of `ChunkStream`."""

    def __aiter__(self) -> AsyncIterator[Chunk]: ...

    async def aclose(self) -> None: ...


@dataclass(frozen=True, slots=True)
class BackendCapabilities:
    """Declares the properties of a model service that change how the engine treats it; the defaults suit most services.

    Args:
        binds_reasoning: the service accepts a reply's reasoning only together with everything that stood before it.
        reasoning_optional: the service accepts turns without their reasoning, so a request whose reasoning it refuses is sent
            again without it.
        reasoning_expires: reasoning goes back only within its tool round; the next user turn leaves it out.
        truncates_silently: the service cuts a prompt that is too long and reports no error.
        compacts_itself: the service compacts on its own side, so that triggers wait until 95 % of the budget.
        compacts_from: tokens of a conversation from which on the service writes a summary of its own when it is asked to
            (`Request.compact`); None where it never does.
        provider: the name of the service, for traces; None where it is unknown.
        sparing: a function that changes a summariser's request so that the model answers briefly and, where possible, without
            thinking; None sends the request as it is.
        continues: of a summariser that is another object than the session's backend: returns True when it can send the given
            request, the last one of the conversation, again with an instruction after it; None where it cannot.
        of_model: a function that returns the properties for another model of the service, which a request may name; None where
            all its models have these.
    """

    binds_reasoning: bool = False
    reasoning_optional: bool = False
    reasoning_expires: bool = False
    truncates_silently: bool = False
    compacts_itself: bool = False
    compacts_from: int | None = None
    provider: str | None = None
    sparing: Callable[[Request], Request] | None = None
    continues: Callable[[Request], bool] | None = None
    of_model: Callable[[str], BackendCapabilities] | None = None


class ContextBackend(Protocol):
    """A model service; `ctxfold.backends.base.BaseBackend` derives all members but `model` and `send`.

    Once a request was sent, every failure is a BackendError. Before that, ConfigError says that the service does not support
    the request, MessageError that a message cannot be sent.
    """

    @property
    def model(self) -> str: ...

    @property
    def context_window(self) -> int | None:
        """Returns the model's window in tokens; None when it is unknown."""
        ...

    @property
    def scratch_role(self) -> str:
        """Returns the role that the service accepts for one message at the very end of a request."""
        ...

    @property
    def capabilities(self) -> BackendCapabilities: ...

    def send(self, request: Request) -> Reply: ...

    async def asend(self, request: Request) -> Reply: ...

    def open_stream(self, request: Request) -> ChunkStream: ...

    async def aopen_stream(self, request: Request) -> AsyncChunkStream: ...

    def close(self) -> None: ...

    async def aclose(self) -> None: ...


class TokenCounter(Protocol):
    """Counts the tokens of requests; another `id` means that counts may differ."""

    @property
    def id(self) -> str: ...

    def count(self, message: Message) -> int: ...

    def count_text(self, text: str) -> int: ...

    def count_tools(self, tools: Sequence[ToolSpec]) -> int: ...


class Uncounted:
    """Counts nothing: for readers of a log that need no token counts."""

    id = "uncounted"

    def count(self, message: Message) -> int:
        return 0

    def count_text(self, text: str) -> int:
        return 0

    def count_tools(self, tools: Sequence[ToolSpec]) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class Head:
    """The end of a log: its last seq, and that of its newest snapshot (0 when there is none)."""

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
    """The figures that BM25 needs for one query.

    `documents` and `total_length` give the size of the archive. `by_term` holds for each term the hits (seq, occurrences of the
    term, length of the document), in order of seq. `numbered` counts the session's records that have a number: where there are as
    many documents, nothing is outside of the archive.
    """

    documents: int
    total_length: int
    by_term: Mapping[str, tuple[tuple[int, int, int], ...]]
    numbered: int = 0


@dataclass(frozen=True, slots=True)
class Rewrite:
    """The changes that an erasure makes to one session whose log ends at `expect`.

    `records` come in place of those with the same seq, documents `unindexed` leave the index with all their terms, and
    `drafts` are appended. Whatever else was made from the messages `ids` goes too.
    """

    key: SessionKey
    expect: int
    ids: tuple[str, ...]
    records: tuple[Record, ...]
    unindexed: tuple[int, ...]
    drafts: tuple[Draft, ...]


@dataclass(frozen=True, slots=True)
class StoreCapabilities:
    """Declares which abilities a store has and how it is called.

    Args:
        blocking: the sync methods wait for a disk or a network. On an event loop, a flow that only reads then runs as a whole
            in one worker thread, through the sync methods; otherwise each call uses its async form.
        owner_index: the store has the methods of `OwnerIndex`; without them, a search over all sessions reads one session after
            another.
        vectors: the store has the methods of `VectorIndex`; without them, each process computes vectors again.
    """

    blocking: bool = True
    owner_index: bool = False
    vectors: bool = False


class Store(ItemStore, Protocol):
    """An append-only log per (owner, session). Safe across threads, tasks and, where it is durable, processes.

    Async forms do the same without blocking the loop. Failures are StoreError. A store for another database derives from
    `ctxfold.stores.key_value.KeyValueStore` (six methods) or, method by method, from `ctxfold.stores.base.BaseStore`,
    which derives the async forms.
    """

    @property
    def capabilities(self) -> StoreCapabilities: ...

    @abstractmethod
    def head(self, key: SessionKey) -> Head | None:
        """Returns where the session's log ends; None when there is no such session."""
        ...

    async def ahead(self, key: SessionKey) -> Head | None: ...

    @abstractmethod
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
        """Appends in one transaction, creating the session when it is new; returns every record after seq `known`.

        A draft whose id is stored with the same fingerprint is skipped. Raises MessageConflictError, and writes nothing, when
        the fingerprint differs; HeadMovedError when the log does not end at `expect`; SessionNotFoundError when the record
        `known` does not have the id `known_id`, because the session was erased meanwhile. A draft whose body is of the kind
        "snapshot_taken" becomes the newest snapshot: look at kinds, since nothing else of a body is there to see in an encrypted
        store.
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
    ) -> tuple[Record, ...]:
        """The async form of `append`. After a cancellation the records may or may not be stored: read the head again."""
        ...

    @abstractmethod
    def read(self, key: SessionKey, *, after: int = 0, upto: int | None = None) -> tuple[Record, ...]:
        """Returns the records with after < seq <= upto, in order."""
        ...

    async def aread(self, key: SessionKey, *, after: int = 0, upto: int | None = None) -> tuple[Record, ...]: ...

    @abstractmethod
    def fetch(self, key: SessionKey, seqs: Sequence[int]) -> tuple[Record, ...]:
        """Returns the records with these seqs, in order of seq; missing ones are left out."""
        ...

    async def afetch(self, key: SessionKey, seqs: Sequence[int]) -> tuple[Record, ...]: ...

    @abstractmethod
    def find(self, key: SessionKey, ids: Sequence[str]) -> tuple[Record, ...]:
        """Returns the records with these record ids, in order of seq; missing ones are left out."""
        ...

    async def afind(self, key: SessionKey, ids: Sequence[str]) -> tuple[Record, ...]: ...

    @abstractmethod
    def numbered(self, key: SessionKey, number: int) -> Record | None:
        """Returns the record that added the message with that number; None when there is none."""
        ...

    async def anumbered(self, key: SessionKey, number: int) -> Record | None: ...

    @abstractmethod
    def snapshot_before(self, key: SessionKey, seq: int) -> int:
        """Returns the seq of the newest snapshot before `seq`; 0 when there is none."""
        ...

    async def asnapshot_before(self, key: SessionKey, seq: int) -> int: ...

    @abstractmethod
    def postings(
        self, key: SessionKey, terms: Sequence[str], *, newest: int | None = None, among: Sequence[int] | None = None
    ) -> Postings:
        """Returns the archive's hits of the terms: all, or the `newest` so many of each term, or those in the documents `among`.

        The empty term stands for the documents themselves: it has one hit with 0 occurrences in each, so its hits list what is
        indexed.
        """
        ...

    async def apostings(
        self, key: SessionKey, terms: Sequence[str], *, newest: int | None = None, among: Sequence[int] | None = None
    ) -> Postings: ...

    @abstractmethod
    def lease(self, key: SessionKey, name: str, holder: str, *, now_s: float, ttl_s: float) -> bool:
        """Takes the named lease of the session for `holder`, for `ttl_s` seconds or until `release`; returns True on success.

        A holder that has the lease already extends it. The session need not exist. `now_s` is the caller's clock in Unix time;
        a store that several machines share uses its server's clock instead.
        """
        ...

    async def alease(self, key: SessionKey, name: str, holder: str, *, now_s: float, ttl_s: float) -> bool: ...

    @abstractmethod
    def release(self, key: SessionKey, name: str, holder: str) -> None:
        """Releases a lease; does nothing when another holder has it."""
        ...

    async def arelease(self, key: SessionKey, name: str, holder: str) -> None: ...

    @abstractmethod
    def sessions(self, owner: str) -> tuple[str, ...]:
        """Returns the names of an owner's sessions, sorted."""
        ...

    async def asessions(self, owner: str) -> tuple[str, ...]: ...

    @abstractmethod
    def copies(self, key: SessionKey) -> tuple[str, ...]:
        """Returns the owner's other sessions whose log begins with the same record: its forks, and those it was forked from."""
        ...

    async def acopies(self, key: SessionKey) -> tuple[str, ...]: ...

    @abstractmethod
    def erase(self, rewrites: Sequence[Rewrite], *, gone: Sequence[SessionKey] = ()) -> bool:
        """Rewrites logs, and removes the sessions `gone` with all their data, in one transaction.

        Raises HeadMovedError, and changes nothing, when one of the logs has grown. Returns True when no file of this store
        still holds old text, and False when another process prevents that; a later call completes it.
        """
        ...

    async def aerase(self, rewrites: Sequence[Rewrite], *, gone: Sequence[SessionKey] = ()) -> bool: ...

    @abstractmethod
    def erase_owner(self, owner: str) -> bool:
        """Removes everything that belongs to the owner, in one transaction; returns the same as `erase`."""
        ...

    async def aerase_owner(self, owner: str) -> bool: ...

    @abstractmethod
    def close(self) -> None: ...

    async def aclose(self) -> None: ...


class OwnerIndex(Protocol):
    """The additional method of a store that declares `owner_index`: it searches all sessions of an owner in few statements."""

    def owner_postings(self, owner: str, terms: Sequence[str], *, newest: int) -> Mapping[str, Postings]:
        """Returns the result of `Store.postings` for each session, by its name; sessions without an archive may be left out."""
        ...

    async def aowner_postings(self, owner: str, terms: Sequence[str], *, newest: int) -> Mapping[str, Postings]: ...


class VectorIndex(Protocol):
    """The additional methods of a store that declares `vectors`: it keeps vectors as bytes, by session and embedder."""

    def embedders(self, key: SessionKey) -> Mapping[str, bytes]:
        """Returns the bytes stored under seq 0 for each embedder of the session, by the embedder's name."""
        ...

    async def aembedders(self, key: SessionKey) -> Mapping[str, bytes]: ...

    def vectors(self, key: SessionKey, embedder: str, *, seqs: Sequence[int] | None = None) -> Mapping[int, bytes]:
        """Returns the stored bytes by the seqs of the messages' records: all of them, or those with the given seqs."""
        ...

    async def avectors(
        self, key: SessionKey, embedder: str, *, seqs: Sequence[int] | None = None
    ) -> Mapping[int, bytes]: ...

    def put_vectors(self, key: SessionKey, embedder: str, vectors: Mapping[int, bytes]) -> None:
        """Stores vectors by seq, replacing older ones; skips records that were erased meanwhile.

        An erasure removes what belongs to the records that it rewrites.
        """
        ...

    async def aput_vectors(self, key: SessionKey, embedder: str, vectors: Mapping[int, bytes]) -> None: ...

    def drop_vectors(self, key: SessionKey, embedder: str) -> None:
        """Removes all vectors of an embedder in a session."""
        ...

    async def adrop_vectors(self, key: SessionKey, embedder: str) -> None: ...


class Clock(Protocol):
    def now_s(self) -> float:
        """Returns the Unix time in seconds."""
        ...


class Ids(Protocol):
    def new(self) -> str:
        """Returns an id that no process has used before."""
        ...


class Tasks(Protocol):
    """Work that goes on while the caller does something else."""

    def start(self, work: Callable[[Callable[[], bool]], None]) -> bool:
        """Runs the work in a thread, with a function that tells it to stop; returns True when it was started."""
        ...

    def start_on_loop(self, work: Coroutine[Any, Any, None]) -> bool:
        """Runs the work as a task of the running loop; returns True when it was started."""
        ...

    def close(self, *, wait: bool) -> None:
        """Waits for running work, or ends it; starts nothing afterwards."""
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
    """The services that one engine uses. `summarizer` writes summaries; None stands for extractive ones. Without `tasks` nothing
    runs in the background, without `prices` costs are not reported."""

    store: Store
    counter: TokenCounter
    backend: ContextBackend | None = None
    summarizer: ContextBackend | None = None
    clock: Clock = field(default_factory=SystemClock)
    ids: Ids = field(default_factory=UuidIds)
    tasks: Tasks | None = None
    prices: Prices | None = None
    embedder: Embedder | None = None

    def summary_window(self, session_window: int) -> int | None:
        """Returns the window of the model that writes summaries, by default the session's; None where no model does."""
        return None if self.summarizer is None else self.summarizer.context_window or session_window


_NO_CAPABILITIES = BackendCapabilities()


def capabilities_of(backend: ContextBackend | None, model: str | None = None) -> BackendCapabilities:
    """Returns what a backend declares, for `model` where a request names one; the defaults where it declares nothing."""
    declared: BackendCapabilities = getattr(backend, "capabilities", _NO_CAPABILITIES)
    return declared.of_model(model) if model and declared.of_model is not None else declared
