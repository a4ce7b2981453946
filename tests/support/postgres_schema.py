"""A PostgreSQL schema for one test, gone after it, or emptied for the next."""

from __future__ import annotations

import uuid
from collections.abc import Generator
from contextlib import contextmanager

import psycopg
import pytest

from ctxfold.testing.store_suite import StoreSuite


@contextmanager
def fresh_schema(postgres_url: str) -> Generator[str, None, None]:
    """A URL whose tables live in a schema of their own; the schema is dropped at the end.

    No test here ends the server, so that its commits need not wait for the disk; killed clients lose nothing by that. The two
    options are parted by a tab: SQLAlchemy writes a space as "+", which libpq takes for a plus.
    """
    schema = f"ctxfold_{uuid.uuid4().hex[:16]}"
    server = postgres_url.replace("+psycopg", "")
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f'CREATE SCHEMA "{schema}"'.encode())
    try:
        yield f"{postgres_url}?options=-csynchronous_commit%3Doff%09-csearch_path%3D{schema}"
    finally:
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f'DROP SCHEMA "{schema}" CASCADE'.encode())


def empty(url: str) -> None:
    """Deletes the rows of all tables of a schema, but those that say how they were made.

    It takes a tenth of the time of a new schema with its tables, for tests that ask nothing about how these come to be.
    """
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        names = connection.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace "
            "AND relkind IN ('r', 'p') AND NOT relispartition AND relname <> 'ctxfold_meta'"
        ).fetchall()
        connection.execute(";".join(f'DELETE FROM "{name}"' for (name,) in names).encode())


class OnPostgres(StoreSuite):
    """The suite in a schema of its own, which is emptied after each test."""

    @pytest.fixture(scope="class")
    @classmethod
    def schema(cls, postgres_url: str) -> Generator[str]:
        with fresh_schema(postgres_url) as url:
            yield url

    @pytest.fixture
    def place(self, schema: str) -> Generator[str]:
        yield schema
        empty(schema)
