"""The search index of the SQL store within a connection: leaves are rows."""

from __future__ import annotations

from collections.abc import Sequence

from ctxfold.history.records import SessionKey
from ctxfold.index.cache import Hit
from ctxfold.stores.leaf_index import ALL, NEWEST_SEQ, Leaf, LeafIndex, joined, leaves_for
from ctxfold.stores.posting_leaves import leaf_key, stored_term
from ctxfold.stores.sql_engine import Driven
from ctxfold.stores.sql_rows import Rows


class SqlIndex(LeafIndex[Driven]):
    """Reads and writes the hits of sessions, and searches all sessions of an owner at once."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def owner_hits(
        self, connection: Driven, owner: str, terms: Sequence[str], newest: int
    ) -> dict[str, dict[str, tuple[Hit, ...]]]:
        """Returns the newest hits of each term in each session of the owner, by session: one statement per term."""
        by_session: dict[str, dict[str, tuple[Hit, ...]]] = {}
        limit = leaves_for(newest)
        sqlite = self.rows.dialect == "sqlite"
        for term in terms:
            name = stored_term(term)
            low, high = leaf_key(name, 0), leaf_key(name, NEWEST_SEQ)
            values = (
                (owner, owner, high, owner, low, owner, high, limit - 1)
                if sqlite
                else (owner, high, owner, low, limit, owner)
            )
            leaves: dict[str, list[bytes]] = {}
            for session, data in connection.execute(self.rows.sql.owner_leaves, values):
                leaves.setdefault(str(session), []).append(data)
            for session, data_of_leaves in leaves.items():
                hits = joined(data_of_leaves, name)[-newest:]
                if len(data_of_leaves) == limit and len(hits) < newest:
                    hits = self.newest_hits(connection, SessionKey(owner, session), [term], newest)[term]
                if hits:
                    by_session.setdefault(session, {})[term] = hits
        return by_session

    def leaves(
        self, connection: Driven, key: SessionKey, ranges: Sequence[tuple[bytes, bytes]], limit: int
    ) -> list[list[Leaf]]:
        if not ranges:
            return []
        sql = self.rows.sql.leaves
        leaves: list[list[Leaf]] = [[] for _ in ranges]
        if self.rows.dialect != "sqlite":
            lows, highs = [low for low, _ in ranges], [high for _, high in ranges]
            for at, first_key, data in connection.execute(sql, (lows, highs, *key, *key, limit)):
                leaves[int(at) - 1].append((first_key, data))
            return leaves
        read: list[Leaf] = []
        read_from = b""
        for at in sorted(range(len(ranges)), key=ranges.__getitem__, reverse=True):
            low, high = ranges[at]
            if read and high < read_from and read[-1][0] <= low:
                read = read[-1:]  # the lowest leaf of the range above holds all of this one, too
            else:
                read = connection.execute(sql, (*key, high, *key, low, low, limit)).fetchall()
            leaves[at], read_from = read, low
        return leaves

    def leaves_of(self, connection: Driven, key: SessionKey, keys: Sequence[bytes]) -> list[Leaf]:
        if self.rows.dialect != "sqlite":
            sql = self.rows.sql.leaves_of
            return [(first, data) for first, data in connection.execute(sql, (*key, *key, list(keys)))]
        leaf_lists = self.leaves(connection, key, [(k, k) for k in keys], 1)
        return list({leaf[0]: leaf for leaves in leaf_lists for leaf in leaves}.values())

    def every_leaf(self, connection: Driven, key: SessionKey) -> list[Leaf]:
        return list(connection.execute(self.rows.sql.every_leaf, (*key, ALL)))

    def put(self, connection: Driven, key: SessionKey, leaves: Sequence[Leaf]) -> None:
        if leaves:
            self.rows.many(connection, self.rows.sql.put_leaf, [(*key, *leaf) for leaf in leaves])

    def drop(self, connection: Driven, key: SessionKey, first_keys: Sequence[bytes]) -> None:
        self.rows.many(connection, self.rows.sql.drop_leaf, [(*key, first) for first in first_keys])
