"""Defines EncryptedStore, which keeps sessions in another store so that only who has the keys can read them.

The other store sees kinds of records, times, counts and sizes, ids and search terms as keyed hashes, and all else sealed. The key
of an owner is a record of the owner's, wrapped by a master key: it travels with copies of the store, and goes with the owner.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from ctxfold.errors import (
    ConfigError,
    HeadMovedError,
    MessageConflictError,
    SessionNotFoundError,
    StoreCorruptError,
    StoreFormatError,
    StoreUnavailableError,
)
from ctxfold.history.memory_items import SEAL, MemoryItem, Remembered, normalised
from ctxfold.history.records import (
    STORE_KEY,
    Body,
    Draft,
    Record,
    Sealed,
    SessionKey,
    decode_body,
    fingerprint,
)
from ctxfold.lru import LruCache
from ctxfold.protocols import Document, Head, OwnerIndex, Postings, Rewrite, Store, VectorIndex
from ctxfold.stores.base import (
    VectorStore,
    checked_drafts,
    checked_items,
    checked_key,
    conflict,
    encoded,
    erased_meanwhile,
)
from ctxfold.stores.sealing import ID_CHARS, KeySource, OwnerKey, key_finder, new_secret, unwrap, wrap

D = TypeVar("D", Draft, Record)

# an owner whose key is that of the store: it seals names; and the session with the key of its owner
STORE, KEY = STORE_KEY
_KEYS = 4_096  # owners whose keys are remembered, and names
MAX_HIDDEN_BYTES = 352  # of a name that is sealed: 512 are stored
_SESSIONS = 512  # sessions whose newest records are remembered
_TRIES = 20


class _Inner(Store, VectorIndex, OwnerIndex, Protocol):
    """The store behind an encrypted one, with the methods that only some stores have."""

    def owners(self) -> tuple[str, ...]: ...


class EncryptedStore(VectorStore):
    """Encrypts what another store keeps; it closes that store.

    Args:
        keys: the path of a file of master keys, or a function that returns the name and the bytes of the key of a name (None for
            the key in use), or raises LookupError.
        hide_names: the other store gets the names of owners and sessions sealed, too. A store that exists keeps what it was
            made with; None stands for that, and for False in a new one.
    """

    def __init__(self, store: Store, *, keys: KeySource, hide_names: bool | None = None) -> None:
        self._store = cast("_Inner", store)
        self._find = key_finder(keys)
        self._keys: LruCache[str, OwnerKey] = LruCache(_KEYS)
        # of each session the newest record that was seen, sealed and open: it is read again before every write
        self._newest: LruCache[SessionKey, tuple[Record, Record]] = LruCache(_SESSIONS)
        self._hidden = lru_cache(_KEYS)(self._hide)
        self.capabilities = replace(store.capabilities, blocking=True)
        self._own = self._stored(STORE) or self._new(STORE, hides_names=bool(hide_names))
        if hide_names not in (None, self._own.hides_names):
            advice = "leave it out, or export and import to change it"
            raise ConfigError(f"the store was made with hide_names={self._own.hides_names}: {advice}")

    def __repr__(self) -> str:
        return f"EncryptedStore({self._store!r})"

    def close(self) -> None:
        self._store.close()

    # keys

    def _record(self, owner: str) -> Sealed | None:
        """Returns the stored key of an owner: its id as the digest, and its wrapped secret as the text."""
        body = next((record.body for record in self._store.read(SessionKey(owner, KEY), upto=1)), None)
        if body is not None and not isinstance(body, Sealed):
            raise StoreFormatError(f"session {KEY!r} of owner {owner!r} is not a key: give it another name")
        return body

    def _stored(self, owner: str) -> OwnerKey | None:
        """Returns the key of an owner as it is in the store now; None where there is none."""
        if (stored := self._record(owner)) is None:
            self._keys.pop(owner)
            return None
        key = self._keys.get(owner)
        if key is None or key.id != stored.digest:
            try:
                key = OwnerKey(unwrap(self._find, stored.text), owner)
            except ConfigError:
                if self._record(owner) == stored:
                    raise
                return self._stored(owner)  # it was wrapped anew meanwhile, and the master key taken away
            if key.id != stored.digest:
                raise StoreCorruptError(f"the key of owner {owner!r} is that of another: restore the store from a copy")
            self._keys.put(owner, key)
        return key

    def _new(self, owner: str, *, hides_names: bool = False) -> OwnerKey:
        """Stores a new key of an owner; where another worker was quicker, returns that one's."""
        names = self._store.sessions(owner) if owner != STORE else getattr(self._store, "owners", tuple)()
        if names and KEY not in names and STORE not in names:
            raise StoreFormatError(f"{self._store!r} has plain sessions: export them, and import them into a new store")
        secret = new_secret(hides_names=hides_names)
        sealed = Sealed("key", OwnerKey(secret, owner).id, wrap(self._find, secret))
        with suppress(HeadMovedError):
            self._store.append(SessionKey(owner, KEY), [Draft(KEY, sealed)], expect=0)
            self._rewrap(owner, sealed, secret)  # a rotation that began before the append has not seen it
        if (stored := self._stored(owner)) is None:
            raise StoreUnavailableError(f"owner {owner!r} was erased while it was in use: try again")
        return stored

    def _key(self, owner: str) -> OwnerKey:
        """Returns the key of an owner, and for one who has none a key that opens nothing."""
        return self._keys.get(owner) or self._stored(owner) or OwnerKey(new_secret(), owner)

    def _key_of(self, owner: str, sealed: str) -> OwnerKey | None:
        """Returns the key that has sealed this; None when it was erased. Others may have erased and begun the owner anew."""
        return next((key for key in self._lately(owner) if key.id == sealed[:ID_CHARS]), None)

    def _lately(self, owner: str) -> Iterator[OwnerKey]:
        """Yields the key of an owner and, for who has found nothing with it, the one that an erasure has put in its place."""
        key = self._key(owner)
        yield key
        if (stored := self._stored(owner)) is not None and stored.id != key.id:
            yield stored

    def rotate(self, owners: Iterable[str] | None = None) -> int:
        """Wraps keys that are wrapped by older master keys with the one in use; returns how many.

        Others may write meanwhile. Without `owners` the keys of all are wrapped, which needs a store that can list them.
        """
        places = {self._owner(owner) for owner in (self.owners() if owners is None else owners)}
        changed = 0
        for owner in {STORE, *places}:
            if (body := self._record(owner)) is not None:
                with suppress(HeadMovedError):  # the owner was erased meanwhile
                    changed += self._rewrap(owner, body, unwrap(self._find, body.text))
        return changed

    def _rewrap(self, owner: str, body: Sealed, secret: bytes) -> bool:
        """Stores an owner's key under the master key in use; returns False when it is under that one already."""
        new = replace(body, text=wrap(self._find, secret))
        if new != body:
            self._store.erase([Rewrite(SessionKey(owner, KEY), 1, (), (Record(1, KEY, new),), (), ())])
        return new != body

    def owners(self) -> tuple[str, ...]:
        """Returns the owners that have keys, sorted: for whoever runs the store, and for no program that serves one of them."""
        if not hasattr(self._store, "owners"):
            raise ConfigError(f"{self._store!r} cannot list its owners: name them")
        return tuple(sorted(self._name(owner) for owner in self._store.owners() if owner != STORE))

    # names

    def _hide(self, name: str) -> str:
        if not self._own.hides_names or not name:
            return name
        # lengths to the next 16 bytes are seen
        return self._own.seal(name + "\0" * (-len(name.encode()) % 16), "name")

    def _name(self, hidden: str) -> str:
        return self._own.open(hidden, "name").decode().rstrip("\0") if self._own.hides_names and hidden else hidden

    def _owner(self, owner: str) -> str:
        return self._place(SessionKey(owner, "")).owner

    def _place(self, key: SessionKey) -> SessionKey:
        """Returns the names by which the other store knows a session."""
        owner, session = checked_key(key)
        if self._own.hides_names and (size := max(len(owner.encode()), len(session.encode()))) > MAX_HIDDEN_BYTES:
            raise ConfigError(f"a name takes {size} bytes, at most {MAX_HIDDEN_BYTES} are hidden: choose another one")
        if owner == STORE or session == KEY:
            raise ConfigError(f"{STORE!r} and {KEY!r} are names of ctxfold's own: choose another one")
        return SessionKey(self._hidden(owner), self._hidden(session))

    # records

    def _inner(self, key: OwnerKey, place: SessionKey, item: D, digest: str) -> D:
        """Returns the draft or record for the other store; `digest` is the fingerprint of its body."""
        kind, inner_id, digest = item.body.kind, key.hashed(item.id), key.hashed(digest)
        turn_id = None if item.turn_id is None else key.hashed(item.turn_id)
        content = f"{item.id}\0{item.turn_id or ''}\0{encoded(item.body, item.id)}"
        sealed = key.seal(content, *place, kind, digest, inner_id, turn_id or "")
        return replace(item, id=inner_id, body=Sealed(kind, digest, sealed), turn_id=turn_id)

    def _open(self, place: SessionKey, record: Record, mine: tuple[Body, Draft] | None = None) -> Record:
        """Returns the record as it was written; `mine` is what this worker has just sealed under its id."""
        if mine is not None and mine[0] == record.body:
            return Record(record.seq, mine[1].id, mine[1].body, mine[1].turn_id, record.at_s, record.number)
        if (newest := self._newest.get(place)) is not None and newest[0] == record:
            return newest[1]
        if not isinstance(body := record.body, Sealed):
            raise StoreFormatError(f"session {place.session!r} is not encrypted: export it, and import it here")
        if (key := self._key_of(place.owner, body.text)) is None:
            advice = "restore the store from a copy, or erase the owner again where an erasure was interrupted"
            raise StoreCorruptError(f"{place.session!r} is not sealed with the key of its owner: {advice}")
        content = key.open(body.text, *place, body.kind, body.digest, record.id, record.turn_id or "").decode()
        record_id, turn_id, payload = content.split("\0", 2)
        turn = record.turn_id and turn_id
        return Record(record.seq, record_id, decode_body(payload), turn, record.at_s, record.number)

    def _noted(self, place: SessionKey, records: Sequence[Record], opened: Sequence[Record]) -> tuple[Record, ...]:
        if records:
            self._newest.put(place, (records[-1], opened[-1]))
        return tuple(opened)

    # the log

    def head(self, key: SessionKey) -> Head | None:
        # whoever asks for that one asks whether plain sessions would stand beside it
        return None if key == STORE_KEY else self._store.head(self._place(key))

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
        place = self._place(key)
        if known_id is not None:
            owner_key = self._key(place.owner)
            guard: dict[str, Any] = {"known": known, "known_id": owner_key.hashed(known_id), "expect": expect}
            try:
                return self._append(owner_key, place, drafts, documents, **guard)
            except SessionNotFoundError:
                raise erased_meanwhile(SessionKey(*key)) from None
        for _ in range(_TRIES):
            # a record of the log shows that its key is this one; without any, the key is read again afterwards
            owner_key = self._stored(place.owner) or self._new(place.owner)
            at = getattr(self._store.head(place), "seq", 0)
            ids = [owner_key.hashed(self._open(place, record).id) for record in self._store.fetch(place, (at,))]
            guard = {"known": at, "known_id": ids[0], "expect": expect} if ids else {"expect": expect or 0}
            try:
                records = self._append(owner_key, place, drafts, documents, **guard)
            except (HeadMovedError, SessionNotFoundError) as error:
                if expect is not None and isinstance(error, HeadMovedError):
                    raise
                continue
            if ids or self._still(owner_key, place):
                older = self.read(key, after=known, upto=at)
                return (*older, *(record for record in records if record.seq > known))
        raise StoreUnavailableError(f"session {key[1]!r} was erased or begun {_TRIES} times meanwhile: try again")

    def _still(self, key: OwnerKey, place: SessionKey) -> bool:
        """Returns True while the owner has this key; else removes what was just written with it."""
        if (stored := self._stored(place.owner)) is not None and stored.id == key.id:
            return True
        if any(getattr(record.body, "text", "").startswith(key.id) for record in self._store.read(place, upto=1)):
            self._store.erase((), gone=(place,))
        return False

    def _append(
        self, key: OwnerKey, place: SessionKey, drafts: Sequence[Draft], documents: Sequence[Document], **guard: Any
    ) -> tuple[Record, ...]:
        inner = [self._inner(key, place, item.draft, item.fingerprint) for item in checked_drafts(drafts)]
        hashed = [Document(d.seq, {key.term(t): n for t, n in d.terms.items()}, d.length) for d in documents]
        mine = {sealed.id: (sealed.body, draft) for sealed, draft in zip(inner, drafts, strict=True)}
        try:
            records = self._store.append(place, inner, documents=hashed, **guard)
        except MessageConflictError as error:
            changed = [draft for name, (_, draft) in mine.items() if repr(name) in str(error)]
            raise MessageConflictError(*map(conflict, changed)) from None
        return self._noted(place, records, [self._open(place, record, mine.get(record.id)) for record in records])

    def read(self, key: SessionKey, *, after: int = 0, upto: int | None = None) -> tuple[Record, ...]:
        place = self._place(key)
        records = self._store.read(place, after=after, upto=upto)
        return self._noted(place, records, [self._open(place, record) for record in records])

    def fetch(self, key: SessionKey, seqs: Sequence[int]) -> tuple[Record, ...]:
        place = self._place(key)
        return tuple([self._open(place, record) for record in self._store.fetch(place, seqs)])

    def find(self, key: SessionKey, ids: Sequence[str]) -> tuple[Record, ...]:
        place = self._place(key)
        # a record that was seen is looked for too: where it is, this is the log that was sealed with the key
        seen = [newest[0].id] if (newest := self._newest.get(place)) is not None else []
        for owner_key in self._lately(place.owner):
            hashed = dict.fromkeys(map(owner_key.hashed, ids))
            if records := self._store.find(place, [*hashed, *seen]):
                return tuple([self._open(place, record) for record in records if record.id in hashed])
        return ()

    def numbered(self, key: SessionKey, number: int) -> Record | None:
        place = self._place(key)
        record = self._store.numbered(place, number)
        return record and self._open(place, record)

    def snapshot_before(self, key: SessionKey, seq: int) -> int:
        return self._store.snapshot_before(self._place(key), seq)

    # the search index

    def postings(
        self, key: SessionKey, terms: Sequence[str], *, newest: int | None = None, among: Sequence[int] | None = None
    ) -> Postings:
        place, found = self._place(key), Postings(0, 0, dict.fromkeys(terms, ()))
        for owner_key in self._lately(place.owner):
            hashed = [owner_key.term(term) for term in terms]
            found = _named(self._store.postings(place, hashed, newest=newest, among=among), terms, hashed)
            if not found.documents or any(found.by_term.values()):
                break
        return found

    def owner_postings(self, owner: str, terms: Sequence[str], *, newest: int) -> Mapping[str, Postings]:
        place, found = self._owner(owner), dict[str, Postings]()
        for key in self._lately(place):
            hashed = [key.term(term) for term in terms]
            there = self._store.owner_postings(place, hashed, newest=newest)
            found = {self._name(n): _named(each, terms, hashed) for n, each in there.items() if n != KEY}
            if any(any(each.by_term.values()) for each in found.values()):
                break
        return found

    async def aowner_postings(self, owner: str, terms: Sequence[str], *, newest: int) -> Mapping[str, Postings]:
        return await self.offload(self.owner_postings, owner, terms, newest=newest)

    # vectors: those that were sealed with a key of before an erasure are left out, and are computed again

    def embedders(self, key: SessionKey) -> Mapping[str, bytes]:
        place = self._place(key)
        marks = {n: self._vectors(place, n, {0: mark}) for n, mark in self._store.embedders(place).items()}
        return {name: opened[0] for name, opened in marks.items() if opened}

    def vectors(self, key: SessionKey, embedder: str, *, seqs: Sequence[int] | None = None) -> Mapping[int, bytes]:
        place = self._place(key)
        return self._vectors(place, embedder, self._store.vectors(place, embedder, seqs=seqs))

    def _vectors(self, place: SessionKey, embedder: str, sealed: Mapping[int, bytes]) -> dict[int, bytes]:
        ids = {data[:ID_CHARS] for data in sealed.values()}
        keys = {key_id: self._key_of(place.owner, key_id.decode("latin-1")) for key_id in ids}
        opening = ((seq, data, keys[data[:ID_CHARS]]) for seq, data in sealed.items())
        return {seq: key.open(data, *place, embedder, str(seq)) for seq, data, key in opening if key is not None}

    def put_vectors(self, key: SessionKey, embedder: str, vectors: Mapping[int, bytes]) -> None:
        place = self._place(key)
        if (owner_key := self._stored(place.owner)) is not None:
            sealed = {s: owner_key.seal_bytes(data, *place, embedder, str(s)) for s, data in vectors.items()}
            self._store.put_vectors(place, embedder, sealed)

    def drop_vectors(self, key: SessionKey, embedder: str) -> None:
        self._store.drop_vectors(self._place(key), embedder)

    # leases and names

    def lease(self, key: SessionKey, name: str, holder: str, *, now_s: float, ttl_s: float) -> bool:
        return self._store.lease(self._place(key), name, holder, now_s=now_s, ttl_s=ttl_s)

    def release(self, key: SessionKey, name: str, holder: str) -> None:
        self._store.release(self._place(key), name, holder)

    def sessions(self, owner: str) -> tuple[str, ...]:
        return tuple(sorted(self._name(name) for name in self._store.sessions(self._owner(owner)) if name != KEY))

    def copies(self, key: SessionKey) -> tuple[str, ...]:
        return tuple(sorted(map(self._name, self._store.copies(self._place(key)))))

    # memory items

    def _sealed_item(self, key: OwnerKey, owner: str, item: MemoryItem) -> MemoryItem:
        about = key.hashed(normalised(item.key)) if item.key else ""

        def sealed(text: str, *rest: object) -> str:
            content = key.seal(json.dumps([text, *rest]), owner, item.kind, about)
            return f"{key.hashed(normalised(text))}{SEAL}{content}" if text else ""

        return replace(
            item,
            text=sealed(item.text, item.key, item.data),
            key=about,
            data=(),
            session=self._hidden(item.session),
            sources=tuple(key.seal(source, owner) for source in item.sources),
            replaces=sealed(item.replaces),
        )

    def _open_items(self, owner: str, items: Iterable[MemoryItem]) -> Iterator[MemoryItem]:
        """Yields the items; those that were sealed with a key of before an erasure are left out."""
        for item in items:
            sealed = item.text.partition(SEAL)[2]
            if item.text and not sealed:
                raise StoreFormatError(f"memory item {item.id!r} is not encrypted: read it from the plain store")
            key = self._key_of(owner, sealed or "".join(item.sources[:1]) or self._key(owner).id)
            if key is not None:
                at = (owner, item.kind, item.key)
                text, about, data = json.loads(key.open(sealed, *at)) if sealed else ("", "", ())
                old = item.replaces.partition(SEAL)[2]
                yield replace(
                    item,
                    text=text,
                    key=about,
                    data=tuple((name, value) for name, value in data),
                    session=self._name(item.session),
                    sources=tuple(key.open(source, owner).decode() for source in item.sources),
                    replaces=json.loads(key.open(old, *at))[0] if old else "",
                )

    def remember(self, owner: str, items: Sequence[MemoryItem]) -> tuple[Remembered, ...]:
        place = self._owner(owner)
        if not (ready := checked_items(owner, items)):
            return ()
        key = self._stored(place) or self._new(place)
        done = self._store.remember(place, [self._sealed_item(key, place, item) for item in ready])
        opened = (tuple(self._open_items(place, filter(None, (each.item, each.replaced)))) for each in done)
        return tuple(Remembered(item, each.new, *old) for each, (item, *old) in zip(done, opened, strict=True))

    def memories(
        self, owner: str, *, kinds: Sequence[str] | None = None, newest: int = 2_000, everything: bool = False
    ) -> tuple[MemoryItem, ...]:
        place = self._owner(owner)
        items = self._store.memories(place, kinds=kinds, newest=newest, everything=everything)
        return tuple(self._open_items(place, items))

    def forget(self, owner: str, ids: Sequence[str]) -> tuple[MemoryItem, ...]:
        place = self._owner(owner)
        return tuple(self._open_items(place, self._store.forget(place, ids)))

    # erasure

    def erase(self, rewrites: Sequence[Rewrite], *, gone: Sequence[SessionKey] = ()) -> bool:
        changes = [self._rewrite(change) for change in rewrites]
        return self._store.erase(changes, gone=[self._place(key) for key in gone])

    def _rewrite(self, change: Rewrite) -> Rewrite:
        place = self._place(change.key)
        key = self._key(place.owner)
        self._newest.pop(place)
        return replace(
            change,
            key=place,
            ids=tuple(key.seal(name, place.owner) for name in change.ids),
            records=tuple(self._inner(key, place, r, fingerprint(r.body)) for r in change.records),
            drafts=tuple(self._inner(key, place, d.draft, d.fingerprint) for d in checked_drafts(change.drafts)),
        )

    def erase_owner(self, owner: str) -> bool:
        place = self._owner(owner)
        self._keys.pop(place)
        self._newest.discard(lambda key, _: key.owner == place)
        return self._store.erase_owner(place)


def _named(found: Postings, terms: Sequence[str], hashed: Sequence[str]) -> Postings:
    """Returns the postings by the terms that were hashed."""
    by_term = {term: found.by_term.get(name, ()) for term, name in zip(terms, hashed, strict=True)}
    return replace(found, by_term=by_term)


if TYPE_CHECKING:
    from ctxfold.stores.memory import MemoryStore

    _: Store = EncryptedStore(MemoryStore(), keys="keys")
    _index: OwnerIndex = EncryptedStore(MemoryStore(), keys="keys")
