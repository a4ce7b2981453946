"""Builds the golden store of format version 3: what that of version 2 has, its search index in leaves.

`python -m tests.golden.build_v3` writes `v3_rows.sql` and `v3_schema_*.sql`. Written once per format, when it is released; never
changed afterwards: later versions of ctxfold have to open it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from sqlalchemy import Dialect
from sqlalchemy.dialects import postgresql, sqlite

from ctxfold import SqlStore
from ctxfold.stores.sql_schema import create_tables
from tests.golden import build_v1, build_v2

FOLDER = build_v1.FOLDER
TABLES = (*build_v1.TABLES, "ctxfold_memory", "ctxfold_postings", "ctxfold_vectors")
DIALECTS: dict[str, type[Dialect]] = {"sqlite": sqlite.dialect, "postgresql": postgresql.dialect}


def build() -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "golden.db"
        with SqlStore(f"sqlite:///{path}") as store:
            build_v2.fill(store)
        return build_v1.rows(path, TABLES)


class _Written:
    """Takes statements down instead of a database."""

    def __init__(self) -> None:
        self.statements: list[str] = []

    def execute(self, sql: str, _parameters: object = (), /) -> None:
        self.statements.append(sql.strip())


def schema(name: str) -> str:
    """The tables and indexes of a new store, as statements."""
    written = _Written()
    create_tables(written, DIALECTS[name]())  # type: ignore[arg-type]
    kept = (s for s in written.statements if s.startswith("CREATE"))
    return "".join(f"{statement};\n" for statement in kept)


if __name__ == "__main__":
    (FOLDER / "v3_rows.sql").write_text(build(), encoding="utf-8")
    for dialect in DIALECTS:
        (FOLDER / f"v3_schema_{dialect}.sql").write_text(schema(dialect), encoding="utf-8")
