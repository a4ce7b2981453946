"""Defines SlimCheckpointer, whose checkpoints refer to large contents that a ctxfold store holds once."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, cast, get_args

from langchain_core.messages import BaseMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)
from langgraph.types import Overwrite, Send

from ctxfold.effects import Flow, StoreCall, arun, run
from ctxfold.errors import ConfigError, MessageConflictError, MessageNotFoundError
from ctxfold.history.records import OFFLOADED, Draft, Erased, MessageAdded, SessionKey
from ctxfold.lru import LruCache
from ctxfold.messages import Message, user
from ctxfold.protocols import Ports, Store, SystemClock, Uncounted
from ctxfold.validation import check_name, is_a, kind_of, whole_number
from langchain_ctx.session_routing import Names, session_key

if TYPE_CHECKING:
    from langgraph.checkpoint.base import DeltaChannelHistory  # not in older ones that langchain accepts

Missing: TypeAlias = Literal["error", "placeholder"]

MIN_CHARS = 2_000
KEPT = "ctxfold_content"  # names the reference among a message's `additional_kwargs`
OWNER = "ctxfold_owner"  # names in a checkpoint's metadata whose contents it refers to
ERASED = "[the content of this message was erased]"
GONE = "[the content of this message is not in the store any more]"
_STORED = 8_192  # contents that are known to be stored
_TEXT, _JSON = "t", "j"
_BATCH = 64  # contents that are written or read at once
_OPEN_TURN = "checkpoints"  # a turn that never closes: no view of the log shows the contents
_BEGAN = ":began"  # names the record whose time tells a log from one that is begun anew after an erasure


class _Content(NamedTuple):
    """The content of a message as it is stored: the record's id has its form and digest, an erasure finds it by `name`."""

    record_id: str
    name: str
    text: str


def _content_of(message: BaseMessage, min_chars: int) -> _Content | None:
    """Returns what of a message is stored apart; None for a message that stays whole.

    A result is named by its call, as it gets an id of its own only after the tool's checkpoint.
    """
    name = message.tool_call_id if isinstance(message, ToolMessage) else message.id
    whole = message.content
    if not name or KEPT in message.additional_kwargs or (isinstance(whole, str) and len(whole) < min_chars):
        return None
    form, text = _encoded(whole)
    if len(text) < min_chars:
        return None
    digest = hashlib.sha256(text.encode()).hexdigest()[:32]
    return _Content(f"{form}{digest}:{name}", name, text)


def _encoded(content: Any) -> tuple[str, str]:
    """Returns the form of a content, text or JSON, and the content in it; "" for a content that JSON does not carry unchanged."""
    try:
        if isinstance(content, str):
            content.encode()
            return _TEXT, content
        text = json.dumps(content)
        return _JSON, text if json.loads(text) == content else ""
    except UnicodeEncodeError:  # a lone surrogate
        return _JSON, json.dumps(content)
    except (TypeError, ValueError):
        return _JSON, ""


def _mapped(value: Any, change: Callable[[BaseMessage], BaseMessage]) -> Any:
    """Returns the value with every message in it changed; a value without a changed message is returned as it is."""
    if isinstance(value, BaseMessage):
        return change(value)
    if isinstance(value, Send):
        arg = _mapped(value.arg, change)
        return value if arg is value.arg else _sending(value, arg)
    if isinstance(value, Overwrite):
        inner = _mapped(value.value, change)
        return value if inner is value.value else Overwrite(inner)
    if type(value) is dict:
        entries = cast("Mapping[Any, Any]", value)
        changed = {name: _mapped(item, change) for name, item in entries.items()}
        return changed if any(changed[name] is not item for name, item in entries.items()) else entries
    if not isinstance(value, tuple) and type(value) is not list:
        return value
    old = cast("Sequence[Any]", value)
    new = [_mapped(item, change) for item in old]
    if all(a is b for a, b in zip(new, old, strict=True)):
        return old
    if hasattr(old, "_make"):  # a named tuple
        return cast("Any", old)._make(new)
    return tuple(new) if isinstance(old, tuple) else new


def _sending(send: Send, arg: Any) -> Send:
    """Returns a copy that sends something else; its timeout, which older Sends do not have, stays."""
    other = copy.copy(send)
    other.arg = arg
    return other


_Known: TypeAlias = MutableMapping[str, str | None]  # texts of contents by record id; None for an erased one


@dataclass(slots=True)
class _Slimmed:
    """Puts references in place of the contents of messages, and collects the contents."""

    min_chars: int
    contents: dict[str, _Content] = field(default_factory=dict[str, _Content])

    def __call__(self, message: BaseMessage) -> BaseMessage:
        content = _content_of(message, self.min_chars)
        if content is None:
            return message
        self.contents[content.record_id] = content
        note = (
            f"[{len(content.text)} characters that a ctxfold store holds: read this state through "
            "ContextMiddleware.slim_checkpointer]"
        )
        kept = {**message.additional_kwargs, KEPT: content.record_id}
        return message.model_copy(update={"content": note, "additional_kwargs": kept})


def _references(value: Any) -> list[str]:
    """Returns the ids of the records that messages in the value refer to."""
    references: dict[str, None] = {}

    def collect(message: BaseMessage) -> BaseMessage:
        reference = message.additional_kwargs.get(KEPT)
        if isinstance(reference, str):
            references[reference] = None
        return message

    _mapped(value, collect)
    return [*references]


def _whole(value: Any, known: Mapping[str, str | None], missing: Missing, key: SessionKey) -> Any:
    """Returns the value with the contents of its messages in place of references."""

    def restored(message: BaseMessage) -> BaseMessage:
        reference = message.additional_kwargs.get(KEPT)
        if not isinstance(reference, str):
            return message
        if reference not in known and missing == "error":
            raise MessageNotFoundError(
                f"the content of message {message.id!r} is not in {key.session!r} of owner {key.owner!r}: it was erased with its "
                "thread, or this checkpointer has another store or owner than the one that wrote the state. Give that one, delete "
                'the thread, or read the rest with missing="placeholder"'
            )
        text = known.get(reference)
        if text is None:
            content: Any = ERASED if reference in known else GONE
        else:
            content = json.loads(text) if reference.startswith(_JSON) else text
        kept = {name: item for name, item in message.additional_kwargs.items() if name != KEPT}
        return message.model_copy(update={"content": content, "additional_kwargs": kept})

    return _mapped(value, restored)


class SlimCheckpointer(BaseCheckpointSaver[Any]):
    """Wraps a LangGraph checkpointer so that its checkpoints hold references in place of large contents of messages.

    ```python
    context = ContextMiddleware(context_window=64_000, store="sqlite:///chat.db")
    agent = create_agent(model, tools, middleware=[context], checkpointer=context.slim_checkpointer(saver))
    ```
    LangGraph stores all messages with every step, so the size of a checkpointer's database grows with the square of the length
    of a run. With this wrapper, each large content is stored once, in the ctxfold store, in a log beside the thread's session.
    All readers of the state still receive whole messages: the model, tools, `get_state`, `get_state_history`, time travel.
    Checkpoints written without it stay readable. `langchain_ctx.ContextMiddleware.slim_checkpointer` creates one with the
    middleware's store.

    Args:
        saver: the checkpointer that stores the checkpoints; the wrapper does not close it.
        store: the store for the contents; use the middleware's, so that an erasure covers both.
        owner: the owner of the contents.
        owner_key: the key of `configurable` that names the owner of each run, in place of `owner`.
        min_chars: contents with fewer characters stay in the checkpoint.
        missing: "error" raises MessageNotFoundError when a content is not in the store; "placeholder" puts a note in its place.
            A content that was erased with its message is always replaced by a note.
    """

    def __init__(
        self,
        saver: BaseCheckpointSaver[Any],
        *,
        store: Store,
        owner: str = "default",
        owner_key: str | None = None,
        min_chars: int = MIN_CHARS,
        missing: Missing = "error",
    ) -> None:
        if missing not in get_args(Missing):
            raise ConfigError(f"missing is {missing!r}: use one of {', '.join(get_args(Missing))}")
        if not is_a(saver, BaseCheckpointSaver):
            raise ConfigError(
                f"the checkpointer is {kind_of(saver)}: give a LangGraph checkpointer, such as InMemorySaver(); what its "
                "from_conn_string returns is entered first: with SqliteSaver.from_conn_string(...) as saver"
            )
        super().__init__(serde=saver.serde)
        self._saver = saver
        self._ports = Ports(store=store, counter=Uncounted())
        self._names = Names(None, check_name("owner", owner), owner_key)
        self._min_chars = whole_number(
            "min_chars", min_chars, "give the characters from which on a content is stored apart"
        )
        self._missing: Missing = missing
        # by log, the time when it was begun, and record
        self._stored: LruCache[tuple[SessionKey, float, str], bool] = LruCache(_STORED)

    def __repr__(self) -> str:
        return (
            f"SlimCheckpointer({type(self._saver).__name__}, store={self._ports.store!r}, owner={self._names.owner!r})"
        )

    # writing

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        slim, flow = self._slim(config, checkpoint["channel_values"])
        run(flow, self._ports)
        return self._saver.put(config, _with_values(checkpoint, slim), self._noted(config, metadata), new_versions)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        slim, flow = self._slim(config, checkpoint["channel_values"])
        await arun(flow, self._ports)
        return await self._saver.aput(
            config, _with_values(checkpoint, slim), self._noted(config, metadata), new_versions
        )

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        slim, flow = self._slim(config, [*writes])
        run(flow, self._ports)
        self._saver.put_writes(config, slim, task_id, task_path)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        slim, flow = self._slim(config, [*writes])
        await arun(flow, self._ports)
        await self._saver.aput_writes(config, slim, task_id, task_path)

    def _slim(self, config: RunnableConfig, value: Any) -> tuple[Any, Flow[None]]:
        """Returns the value with references, and the flow that stores what they refer to."""
        slimmed = _Slimmed(self._min_chars)
        slim = _mapped(value, slimmed)
        return slim, self._store(self._key(config), [*slimmed.contents.values()])

    def _store(self, key: SessionKey, contents: Sequence[_Content]) -> Flow[None]:
        if not contents:
            return
        # any process may have erased the thread since, and what was stored before with it
        began = yield from StoreCall(Store.find, key, [_BEGAN])
        began_s = began[0].at_s if began else SystemClock().now_s()
        first = [] if began else [_draft(_BEGAN, user("", id=_BEGAN), began_s)]
        new = [c for c in contents if self._stored.get((key, began_s, c.record_id)) is None]
        for start in range(0, len(new), _BATCH):
            batch = new[start : start + _BATCH]
            try:
                yield from StoreCall(Store.append, key, [*first, *_drafts(batch)], known=1 << 62)
            except MessageConflictError:  # one of them was erased meanwhile, and stays erased
                there = yield from StoreCall(Store.find, key, [c.record_id for c in batch])
                known_ids = {record.id for record in there}
                rest = _drafts([c for c in batch if c.record_id not in known_ids])
                yield from StoreCall(Store.append, key, [*first, *rest], known=1 << 62)
            self._stored.update({(key, began_s, c.record_id): True for c in batch})

    def _noted(self, config: RunnableConfig, metadata: CheckpointMetadata) -> CheckpointMetadata:
        """Returns the metadata with the owner where that is another than this object's; a client may have named one there."""
        noted: dict[str, Any] = {name: value for name, value in metadata.items() if name != OWNER}
        owner = self._key(config).owner
        return cast("CheckpointMetadata", noted if owner == self._names.owner else {**noted, OWNER: owner})

    # reading

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        stored = self._saver.get_tuple(config)
        return None if stored is None else run(self._read(config, stored, {}), self._ports)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        stored = await self._saver.aget_tuple(config)
        return None if stored is None else await arun(self._read(config, stored, {}), self._ports)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        known: dict[SessionKey, _Known] = {}
        for stored in self._saver.list(config, filter=filter, before=before, limit=limit):
            yield run(self._read(config, stored, known), self._ports)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        known: dict[SessionKey, _Known] = {}
        async for stored in self._saver.alist(config, filter=filter, before=before, limit=limit):
            yield await arun(self._read(config, stored, known), self._ports)

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        histories = self._saver.get_delta_channel_history(config=config, channels=channels)
        if not _references(histories):
            return histories
        key = self._key_of(config, self._saver.get_tuple(config))
        return cast("Mapping[str, DeltaChannelHistory]", run(self._restored(key, histories, {}), self._ports))

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        histories = await self._saver.aget_delta_channel_history(config=config, channels=channels)
        if not _references(histories):
            return histories
        key = self._key_of(config, await self._saver.aget_tuple(config))
        return cast("Mapping[str, DeltaChannelHistory]", await arun(self._restored(key, histories, {}), self._ports))

    def _read(
        self, config: RunnableConfig | None, stored: CheckpointTuple, known: dict[SessionKey, _Known]
    ) -> Flow[CheckpointTuple]:
        key = self._key_of(config, stored)
        value = (stored.checkpoint["channel_values"], stored.pending_writes)
        values, writes = yield from self._restored(key, value, known.setdefault(key, {}))
        return stored._replace(checkpoint=_with_values(stored.checkpoint, values), pending_writes=writes)

    def _restored(self, key: SessionKey, value: Any, known: _Known) -> Flow[Any]:
        """Returns the value with whole messages; `known` gets what had to be read."""
        references = _references(value)
        unread = [reference for reference in references if reference not in known]
        for start in range(0, len(unread), _BATCH):
            records = yield from StoreCall(Store.find, key, [_BEGAN, *unread[start : start + _BATCH]])
            began_s = next((record.at_s for record in records if record.id == _BEGAN), None)
            for record in records:
                match record.body:
                    case MessageAdded(message=message):
                        known[record.id] = message.text
                        if began_s is not None:
                            self._stored.put((key, began_s, record.id), True)
                    case Erased():
                        known[record.id] = None
                    case _:
                        continue
        return _whole(value, known, self._missing, key) if references else value

    # threads

    def delete_thread(self, thread_id: str) -> None:
        """Deletes the thread's checkpoints and the contents that they refer to; `ContextMiddleware.erase` deletes its sessions."""
        newest = self._saver.get_tuple(_thread(thread_id))
        self._saver.delete_thread(thread_id)
        self._ports.store.erase((), gone=(self._key_of(_thread(thread_id), newest),))
        self._stored.clear()

    async def adelete_thread(self, thread_id: str) -> None:
        newest = await self._saver.aget_tuple(_thread(thread_id))
        await self._saver.adelete_thread(thread_id)
        await self._ports.store.aerase((), gone=(self._key_of(_thread(thread_id), newest),))
        self._stored.clear()

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        self._saver.delete_for_runs(run_ids)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        await self._saver.adelete_for_runs(run_ids)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        self._saver.prune(thread_ids, strategy=strategy)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        await self._saver.aprune(thread_ids, strategy=strategy)

    # what the wrapped checkpointer decides

    @property
    def config_specs(self) -> Any:
        return cast("Any", self._saver).config_specs

    def get_next_version(self, current: Any, channel: None) -> Any:
        return self._saver.get_next_version(current, channel)

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> SlimCheckpointer:
        saver = self._saver.with_allowlist(extra_allowlist)
        if saver is self._saver:
            return self
        other = copy.copy(self)
        other._saver, other.serde = saver, saver.serde
        return other

    # keys

    def _key(self, config: RunnableConfig) -> SessionKey:
        return self._key_in(config.get("configurable", {}).get("thread_id"), self._names.owner_in(config))

    def _key_of(self, config: RunnableConfig | None, stored: CheckpointTuple | None) -> SessionKey:
        """Returns the log of a checkpoint's contents, under the owner that it names: a reader's config need not have one."""
        own = None if stored is None else cast("Mapping[str, Any]", stored.metadata).get(OWNER)
        thread = (config or {} if stored is None else stored.config).get("configurable", {}).get("thread_id")
        return self._key_in(thread, self._names.owner if own is None else own)

    @staticmethod
    def _key_in(thread: object, owner: object) -> SessionKey:
        key = session_key(thread, owner)
        return key._replace(session=f"{key.session}{OFFLOADED}")


def _drafts(contents: Sequence[_Content]) -> list[Draft]:
    now_s = SystemClock().now_s()
    return [_draft(c.record_id, user(c.text, id=c.name), now_s) for c in contents]


def _draft(record_id: str, message: Message, at_s: float) -> Draft:
    return Draft(record_id, MessageAdded(message), _OPEN_TURN, at_s)


def _with_values(checkpoint: Checkpoint, values: Any) -> Checkpoint:
    return {**checkpoint, "channel_values": values}


def _thread(thread_id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}
