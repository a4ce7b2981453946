"""Defines ValkeyStore, which keeps sessions on a Valkey or Redis server, a cluster, or behind sentinels.

All keys of an owner share a hash tag, so that they are in one slot, and what belongs together is written at once: a short script
compares the heads of the sessions with what was read, and runs the commands only where nothing has changed. Leases go by the
server's clock.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

from ctxfold.errors import (
    HeadMovedError,
    StoreCorruptError,
)
from ctxfold.history.records import Draft, Record, SessionKey, fingerprint
from ctxfold.lru import LruCache
from ctxfold.protocols import Document, Head, Postings, Rewrite, StoreCapabilities
from ctxfold.stores.base import (
    Fresh,
    ItemsAtOnce,
    OwnedItems,
    VectorStore,
    checked_drafts,
    checked_key,
    decode_item,
    encode_item,
    encoded,
    erased_meanwhile,
    new_records,
    read_record,
    sealed,
    unseen,
    written_at,
)
from ctxfold.stores.leaf_index import Leaf, LeafIndex
from ctxfold.stores.valkey_server import (
    PIECE,
    Batch,
    Command,
    ValkeyServer,
    lease_name,
    owner_key,
    session_key,
    vectors_key,
)

T = TypeVar("T")

_NEXT = 8  # records that are read with a head
_STATES = 512  # sessions whose heads are remembered
_KINDS = ("head", "records", "ids", "numbers", "snapshots", "leaves", "places", "erased", "embedders")
# leaves that cover ranges of keys: for each range which of them, then their first keys and data, each once
_LEAVES = """
local ranges, keys, data, place = {}, {}, {}, {}
for i = 2, #ARGV, 2 do
  local low, high = ARGV[i], ARGV[i + 1]
  local found = redis.call('ZREVRANGEBYLEX', KEYS[1], '[' .. high, '(' .. low, 'LIMIT', 0, ARGV[1])
  if #found < tonumber(ARGV[1]) then
    local below = redis.call('ZREVRANGEBYLEX', KEYS[1], '[' .. low, '-', 'LIMIT', 0, 1)
    if below[1] then found[#found + 1] = below[1] end
  end
  local places = {}
  for j, key in ipairs(found) do
    if not place[key] then
      keys[#keys + 1] = key
      data[#data + 1] = redis.call('HGET', KEYS[2], key)
      place[key] = #keys
    end
    places[j] = place[key] - 1
  end
  ranges[#ranges + 1] = places
end
return {ranges, keys, data}
"""
_LEASE = """
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1000000
local held = redis.call('HGET', KEYS[1], ARGV[1])
if held then
  local until_s, holder = string.match(held, '^(%S+) (.*)$')
  if holder ~= ARGV[2] and tonumber(until_s) > now then return 0 end
end
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.6f %s', now + ARGV[3], ARGV[2]))
return 1
"""
_RELEASE = """
local held = redis.call('HGET', KEYS[1], ARGV[1])
if held and string.match(held, '^%S+ (.*)$') == ARGV[2] then redis.call('HDEL', KEYS[1], ARGV[1]) end
return 1
"""


@dataclass(frozen=True, slots=True)
class _State:
    """The head of a session: as it is stored, and the id of its last record where this process wrote it."""

    raw: bytes = b""
    seq: int = 0
    snapshot: int = 0
    documents: int = 0
    length: int = 0
    numbered: int = 0
    began: str = ""  # tells a session from one of the same name that was erased
    last_id: str = ""

    @classmethod
    def read(cls, raw: bytes | None) -> _State:
        return cls(raw, *json.loads(raw)) if raw else cls(began=f"{random.getrandbits(64):016x}")

    def written(self) -> _State:
        fields = [self.seq, self.snapshot, self.documents, self.length, self.numbered, self.began]
        return replace(self, raw=json.dumps(fields, separators=(",", ":")).encode())


class ValkeyStore(ItemsAtOnce, VectorStore):
    """Keeps sessions on Valkey or Redis, version 7 or newer.

    Args:
        url: `valkey://host:6379/0`, or `valkeys://` with TLS; `redis://` and `rediss://` are the same. `?cluster=true` names a
            node of a cluster, `?sentinel=NAME` the sentinels, as `host:port,host:port`, of that service.
        wait: how many replicas have a write before it counts as done; with fewer StoreUnavailableError is raised, and the
            same write may be tried again. Also `?wait=1`.
        timeout_s: how long one call is tried again while the server cannot be used.
    """

    capabilities = StoreCapabilities(vectors=True)

    def __init__(self, url: str, *, wait: int = 0, timeout_s: float = 30.0) -> None:
        self._server = ValkeyServer(url, wait=wait, timeout_s=timeout_s)
        self._index = _Index(self._server)
        self._states: LruCache[SessionKey, _State] = LruCache(_STATES)

    def __repr__(self) -> str:
        return f"ValkeyStore({self._server.name!r})"

    def close(self) -> None:
        self._server.close()

    # the log

    def head(self, key: SessionKey) -> Head | None:
        (raw,) = self._server.run(checked_key(key)[0], [("GET", session_key(key, "head"))])
        state = _State.read(raw)
        return Head(state.seq, state.snapshot) if raw else None

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
        checked_key(key)
        key = SessionKey(*key)
        ready = checked_drafts(drafts)
        payloads = {item.draft.id: encoded(item.draft.body, item.draft.id) for item in ready}
        state = self._states.get(key)
        if (
            (ready or documents)
            and state
            and state.seq == known
            and known_id in (None, state.last_id)
            and expect in (None, known)
        ):
            # nobody else has written since: one round trip
            batch = Batch(absent=[(session_key(key, "ids"), item.draft.id) for item in ready])
            records = self._put(batch, key, state, unseen(ready, {}), payloads, documents)
            if records is not None:
                return records
        names = [item.draft.id for item in ready]
        for _ in self._server.tries(f"session {key.session!r}"):
            state, there = self._look(key, [*([] if known_id is None else [known_id]), *names])
            if known_id is not None and there.get(known_id, ("", 0))[1] != known:
                raise erased_meanwhile(key)
            if expect is not None and expect != state.seq and not written_at(ready, there, expect):
                raise HeadMovedError(expect, state.seq)
            new = unseen(ready, {name: each for name, (each, _) in there.items()})
            records = self._put(Batch(), key, state, new, payloads, documents)
            if records is not None:
                older = self._records(key, known, state.seq)
                return (*older, *(record for record in records if record.seq > known))
        raise AssertionError("unreachable")

    def _look(self, key: SessionKey, names: Sequence[str]) -> tuple[_State, dict[str, tuple[str, int]]]:
        """Returns the head, and fingerprint and seq of those records that are there, by id."""
        pieces = [names[at : at + PIECE] for at in range(0, len(names), PIECE)]
        ids: list[Command] = [("HMGET", session_key(key, "ids"), *piece) for piece in pieces]
        raw, *found = self._server.run(key.owner, [("GET", session_key(key, "head")), *ids])
        rows = zip(names, (row for each in found for row in each), strict=True)
        pairs = {name: row.decode().split(" ") for name, row in rows if row is not None}
        return _State.read(raw), {name: (digest, int(seq)) for name, (digest, seq) in pairs.items()}

    def _put(
        self,
        batch: Batch,
        key: SessionKey,
        state: _State,
        new: Sequence[Fresh],
        payloads: Mapping[str, str],
        documents: Sequence[Document],
    ) -> tuple[Record, ...] | None:
        """Writes what is new; returns its records, or None where another worker has written meanwhile."""
        added = self._index.add(batch, key, documents, archived=state.documents) if documents else ()
        if not (new or added or not state.raw):
            return ()
        moved, records = _appended(batch, key, state, new, payloads)
        length = moved.length + sum(document.length for document in added)
        moved = replace(moved, documents=moved.documents + len(added), length=length).written()
        batch.unchanged[session_key(key, "head")] = state.raw
        batch.add("SET", session_key(key, "head"), [moved.raw])
        if not state.raw:
            batch.add("SADD", owner_key(key.owner, "sessions"), [key.session])
        if not self._server.commit(key.owner, batch):
            self._states.pop(key)
            return None
        self._states.put(key, replace(moved, last_id=records[-1].id if records else state.last_id))
        return records

    def read(self, key: SessionKey, *, after: int = 0, upto: int | None = None) -> tuple[Record, ...]:
        checked_key(key)
        first = max(after, 0) + 1
        guess = range(first, first + _NEXT if upto is None else min(upto + 1, first + _NEXT))
        if not guess:
            return ()
        raw, rows = self._server.run(
            key[0], [("GET", session_key(key, "head")), ("HMGET", session_key(key, "records"), *guess)]
        )  # nearly always, few records are new
        last = _State.read(raw).seq
        records = tuple(_record(seq, row) for seq, row in zip(guess, rows, strict=True) if row and seq <= last)
        end = last if upto is None else min(upto, last)
        return records if end < guess.stop else (*records, *self._records(key, guess.stop - 1, end))

    def fetch(self, key: SessionKey, seqs: Sequence[int]) -> tuple[Record, ...]:
        checked_key(key)
        return self._rows(key, sorted({seq for seq in seqs if seq > 0}))

    def find(self, key: SessionKey, ids: Sequence[str]) -> tuple[Record, ...]:
        checked_key(key)
        names = [name for name in ids if "\0" not in name]
        pieces = [("HMGET", session_key(key, "ids"), *names[at : at + PIECE]) for at in range(0, len(names), PIECE)]
        found = [
            row for each in (self._server.run(key[0], pieces) if pieces else ()) for row in each if row is not None
        ]
        return self._rows(key, sorted({int(row.rpartition(b" ")[2]) for row in found}))

    def numbered(self, key: SessionKey, number: int) -> Record | None:
        (seq,) = self._server.run(checked_key(key)[0], [("HGET", session_key(key, "numbers"), number)])
        return None if seq is None else next(iter(self._rows(key, [int(seq)])), None)

    def snapshot_before(self, key: SessionKey, seq: int) -> int:
        command = ("ZREVRANGEBYSCORE", session_key(checked_key(key), "snapshots"), f"({seq}", 0, "LIMIT", 0, 1)
        return int(next(iter(self._server.run(key[0], [command])[0]), 0))

    def _records(self, key: SessionKey, after: int, upto: int) -> tuple[Record, ...]:
        records = self._rows(key, range(max(after, 0) + 1, upto + 1))
        if len(records) < upto - max(after, 0):
            raise StoreCorruptError(f"records of session {key[1]!r} are missing: restore the store from a copy")
        return records

    def _rows(self, key: SessionKey, seqs: Sequence[int]) -> tuple[Record, ...]:
        commands = [("HMGET", session_key(key, "records"), *seqs[at : at + PIECE]) for at in range(0, len(seqs), PIECE)]
        rows = [row for each in (self._server.run(key[0], commands) if commands else ()) for row in each]
        return tuple(_record(seq, row) for seq, row in zip(seqs, rows, strict=True) if row is not None)

    # the search index

    def postings(
        self, key: SessionKey, terms: Sequence[str], *, newest: int | None = None, among: Sequence[int] | None = None
    ) -> Postings:
        (raw,) = self._server.run(checked_key(key)[0], [("GET", session_key(key, "head"))])
        state, names = _State.read(raw), list(dict.fromkeys(terms))
        if among is not None:
            hits = self._index.hits_among(None, key, names, among)
        elif newest is not None:
            hits = self._index.newest_hits(None, key, names, newest)
        else:
            hits = self._index.hits(None, key, names)
        return Postings(state.documents, state.length, hits, state.numbered)

    # leases

    def lease(self, key: SessionKey, name: str, holder: str, *, now_s: float, ttl_s: float) -> bool:
        checked_key(key)
        command = ("EVAL", _LEASE, 1, owner_key(key[0], "leases"), lease_name(key, name), holder, ttl_s)
        return self._server.run(key[0], [command], writes=True) == [1]

    def release(self, key: SessionKey, name: str, holder: str) -> None:
        checked_key(key)
        self._server.run(
            key[0], [("EVAL", _RELEASE, 1, owner_key(key[0], "leases"), lease_name(key, name), holder)], writes=True
        )

    def sessions(self, owner: str) -> tuple[str, ...]:
        checked_key(SessionKey(owner, ""))
        (names,) = self._server.run(owner, [("SMEMBERS", owner_key(owner, "sessions"))])
        return tuple(sorted(name.decode() for name in names))

    def owners(self) -> tuple[str, ...]:
        """Returns the owners that have sessions, sorted: for whoever runs the store, and for no program that serves one of them."""
        return self._server.owners()

    def copies(self, key: SessionKey) -> tuple[str, ...]:
        owner, session = checked_key(key)
        names = [session, *(name for name in self.sessions(owner) if name != session)]
        commands = [("HGET", session_key(SessionKey(owner, name), "records"), 1) for name in names]
        first, *others = (row and json.loads(row)[0] for row in self._server.run(owner, commands))
        return tuple(name for name, other in zip(names[1:], others, strict=True) if other and other == first)

    # vectors

    def embedders(self, key: SessionKey) -> dict[str, bytes]:
        (names,) = self._server.run(checked_key(key)[0], [("SMEMBERS", session_key(key, "embedders"))])
        marks = (
            self._server.run(key[0], [("HGET", vectors_key(key, name.decode()), 0) for name in names]) if names else ()
        )
        return {name.decode(): mark for name, mark in zip(names, marks, strict=True) if mark is not None}

    def vectors(self, key: SessionKey, embedder: str, *, seqs: Sequence[int] | None = None) -> dict[int, bytes]:
        place = vectors_key(checked_key(key), embedder)
        if seqs is None:
            (found,) = self._server.run(key[0], [("HGETALL", place)])
            return {int(seq): data for seq, data in found.items() if int(seq)}
        wanted = [seq for seq in dict.fromkeys(seqs) if seq > 0]
        (values,) = self._server.run(key[0], [("HMGET", place, *wanted)]) if wanted else ((),)
        return {seq: data for seq, data in zip(wanted, values, strict=True) if data is not None}

    def put_vectors(self, key: SessionKey, embedder: str, vectors: Mapping[int, bytes]) -> None:
        checked_key(key)
        for _ in self._server.tries(f"session {key[1]!r}") if vectors else ():
            asked = [("GET", session_key(key, "head")), ("SMISMEMBER", session_key(key, "erased"), *vectors)]
            head, erased = self._server.run(key[0], asked)
            kept = [row for row, gone in zip(vectors.items(), erased, strict=True) if not gone]
            batch = Batch({session_key(key, "head"): head or b""})
            if head is None or not kept:
                return
            batch.add("SADD", session_key(key, "embedders"), [embedder])
            batch.add("HSET", vectors_key(key, embedder), [value for row in kept for value in row], each=2)
            if self._server.commit(key[0], batch):
                return

    def drop_vectors(self, key: SessionKey, embedder: str) -> None:
        places = [("DEL", vectors_key(checked_key(key), embedder)), ("SREM", session_key(key, "embedders"), embedder)]
        self._server.run(key[0], places, writes=True)

    # memory items

    def items_of(self, owner: str) -> OwnedItems:
        return self._items(owner)[1]

    def _items(self, owner: str) -> tuple[bytes, OwnedItems]:
        version, rows = self._server.run(
            owner, [("GET", owner_key(owner, "version")), ("HVALS", owner_key(owner, "items"))]
        )
        owned = OwnedItems()
        for row in rows:
            place, payload = json.loads(row)
            item = decode_item(payload)
            owned.rows[item.id] = ((place[0], place[1], place[2]), item)
        return version or b"", owned

    @contextmanager
    def _changed(self, batch: Batch, owner: str) -> Generator[OwnedItems]:
        """Loads the items of an owner, and adds the differences to the batch at the end of the block."""
        version, owned = self._items(owner)
        before = dict(owned.rows)
        yield owned
        gone = [name for name in before if name not in owned.rows]
        changed = {name: row for name, row in owned.rows.items() if before.get(name) is not row}
        if gone or changed:
            batch.unchanged[owner_key(owner, "version")] = version
            batch.add("SET", owner_key(owner, "version"), [f"{random.getrandbits(64):016x}"])
        batch.add("HDEL", owner_key(owner, "items"), gone)
        rows = [(name, json.dumps([place, encode_item(item)])) for name, (place, item) in changed.items()]
        batch.add("HSET", owner_key(owner, "items"), [value for row in rows for value in row], each=2)

    def change_items(self, owner: str, change: Callable[[OwnedItems], T]) -> T:
        for _ in self._server.tries(f"the memory of owner {owner!r}"):
            batch = Batch()
            with self._changed(batch, owner) as owned:
                result = change(owned)
            if not batch.commands or self._server.commit(owner, batch):
                return result
        raise AssertionError("unreachable")

    # erasure

    def erase(self, rewrites: Sequence[Rewrite], *, gone: Sequence[SessionKey] = ()) -> bool:
        removed = [SessionKey(*checked_key(key)) for key in gone]
        for owner in sorted({key.owner for key in (*removed, *(change.key for change in rewrites))}):
            mine = [change for change in rewrites if change.key.owner == owner]
            for _ in self._server.tries(f"owner {owner!r}"):
                batch = Batch()
                with self._changed(batch, owner) as owned:
                    for change in mine:
                        if self._rewrite(batch, change):
                            owned.drop_learnt(change.key.session, change.ids)
                    for key in removed:
                        if key.owner == owner:
                            self._remove(batch, key)
                            owned.drop_session(key.session)
                if not batch.commands or self._server.commit(owner, batch):
                    break
            for key in (*removed, *(change.key for change in mine)):
                self._states.pop(key)
        return True

    def _rewrite(self, batch: Batch, change: Rewrite) -> bool:
        """Rewrites a session for an erasure; False when an earlier attempt did so already."""
        key, fresh = SessionKey(*checked_key(change.key)), checked_drafts(change.drafts)
        state, there = self._look(key, [item.draft.id for item in fresh])
        if state.seq != change.expect:
            if written_at(fresh, there, change.expect):
                return False
            raise HeadMovedError(change.expect, state.seq)
        batch.unchanged[session_key(key, "head")] = state.raw
        rows = [(record, encoded(record.body, record.id), fingerprint(record.body)) for record in change.records]
        _put_rows(batch, key, rows)
        batch.add("SADD", session_key(key, "erased"), [r.seq for r in change.records if r.body.kind == "erased"])
        seqs = [*(record.seq for record in change.records), *change.unindexed]
        (embedders,) = self._server.run(key.owner, [("SMEMBERS", session_key(key, "embedders"))])
        for name in embedders:
            batch.add("HDEL", vectors_key(key, name.decode()), seqs)
        unindexed = self._index.hits_among(batch, key, [""], change.unindexed)[""]
        self._index.remove(batch, key, [hit[0] for hit in unindexed])
        moved, _ = _appended(batch, key, state, fresh, {i.draft.id: encoded(i.draft.body, i.draft.id) for i in fresh})
        length = moved.length - sum(hit[2] for hit in unindexed)
        moved = replace(moved, documents=moved.documents - len(unindexed), length=length).written()
        batch.add("SET", session_key(key, "head"), [moved.raw])
        return True

    def _remove(self, batch: Batch, key: SessionKey) -> None:
        leases = owner_key(key.owner, "leases")
        head, embedders, held = self._server.run(
            key.owner,
            [("GET", session_key(key, "head")), ("SMEMBERS", session_key(key, "embedders")), ("HKEYS", leases)],
        )
        batch.unchanged[session_key(key, "head")] = head or b""
        places = [
            *(session_key(key, kind) for kind in _KINDS),
            *(vectors_key(key, name.decode()) for name in embedders),
        ]
        batch.commands += [("DEL", place) for place in places]
        batch.add("SREM", owner_key(key.owner, "sessions"), [key.session])
        batch.add("HDEL", leases, [name for name in held if name.startswith(lease_name(key, "").encode())])

    def erase_owner(self, owner: str) -> bool:
        while names := self.sessions(owner):
            self.erase((), gone=[SessionKey(owner, name) for name in names])
        self._server.run(
            owner, [("DEL", *(owner_key(owner, kind) for kind in ("items", "version", "leases")))], writes=True
        )
        return True


class _Index(LeafIndex[Batch | None]):
    """Leaves are fields of a hash, in the order of a sorted set; what is written goes into a batch."""

    def __init__(self, server: ValkeyServer) -> None:
        self._server = server

    def leaves(
        self, connection: Batch | None, key: SessionKey, ranges: Sequence[tuple[bytes, bytes]], limit: int
    ) -> list[list[Leaf]]:
        if not ranges:
            return []
        bounds = [bound for each in ranges for bound in each]
        command = ("EVAL", _LEAVES, 2, session_key(key, "places"), session_key(key, "leaves"), limit, *bounds)
        (found,) = self._server.run(key[0], [command])
        places, keys, data = found
        return [[(keys[at], data[at]) for at in each] for each in places]

    def leaves_of(self, connection: Batch | None, key: SessionKey, keys: Sequence[bytes]) -> list[Leaf]:
        found = self.leaves(connection, key, [(k, k) for k in keys], 1)
        return list({leaf[0]: leaf for leaves in found for leaf in leaves}.values())

    def every_leaf(self, connection: Batch | None, key: SessionKey) -> list[Leaf]:
        (found,) = self._server.run(key[0], [("HGETALL", session_key(key, "leaves"))])
        return list(found.items())

    def put(self, connection: Batch | None, key: SessionKey, leaves: Sequence[Leaf]) -> None:
        assert connection is not None
        connection.add("HSET", session_key(key, "leaves"), [value for leaf in leaves for value in leaf], each=2)
        connection.add(
            "ZADD", session_key(key, "places"), [value for first, _ in leaves for value in (0, first)], each=2
        )

    def drop(self, connection: Batch | None, key: SessionKey, first_keys: Sequence[bytes]) -> None:
        assert connection is not None
        connection.add("HDEL", session_key(key, "leaves"), first_keys)
        connection.add("ZREM", session_key(key, "places"), first_keys)


def _appended(
    batch: Batch, key: SessionKey, state: _State, new: Sequence[Fresh], payloads: Mapping[str, str]
) -> tuple[_State, tuple[Record, ...]]:
    """Adds the rows of new records to the batch; returns the head behind them, and the records."""
    records = tuple(new_records(new, state.seq, state.numbered))
    _put_rows(batch, key, [(r, payloads[r.id], item.fingerprint) for r, item in zip(records, new, strict=True)])
    numbers = [value for r in records if r.number for value in (r.number, r.seq)]
    batch.add("HSET", session_key(key, "numbers"), numbers, each=2)
    snapshots = [r.seq for r in records if r.body.kind == "snapshot_taken"]
    batch.add("ZADD", session_key(key, "snapshots"), [value for seq in snapshots for value in (seq, seq)], each=2)
    numbered = max((r.number for r in records), default=0) or state.numbered
    snapshot = max(snapshots, default=state.snapshot)
    return replace(state, seq=state.seq + len(records), snapshot=snapshot, numbered=numbered), records


def _put_rows(batch: Batch, key: SessionKey, rows: Iterable[tuple[Record, str, str]]) -> None:
    records: list[object] = []
    ids: list[object] = []
    for record, payload, digest in rows:
        row = [record.id, record.turn_id, record.at_s, record.number, sealed(record, payload)]
        records += [record.seq, json.dumps(row, separators=(",", ":"))]
        ids += [record.id, f"{digest} {record.seq}"]
    batch.add("HSET", session_key(key, "records"), records, each=2)
    batch.add("HSET", session_key(key, "ids"), ids, each=2)


def _record(seq: int, row: bytes) -> Record:
    record_id, turn_id, at_s, number, payload = json.loads(row)
    return read_record(seq, record_id, turn_id, at_s, payload, number)
