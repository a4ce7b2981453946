"""A store with many sessions on a PostgreSQL server of its own: sizes, rates with several processes, questions, open sessions.

`CTXFOLD_SCALE` is the number of messages, 1,000,000 by default: 100 in a session, 20 sessions of an owner, and a tenth as many
again in one session.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from multiprocessing.synchronize import Barrier
from pathlib import Path
from statistics import median

import psycopg

from ctxfold import AgentContext, Document, Draft, MessageCounter, SessionKey, SqlStore, assistant, user
from ctxfold.effects import run as run_flow
from ctxfold.history.records import MessageAdded, PolicyChanged
from ctxfold.history.terms import term_counts
from ctxfold.protocols import Ports
from ctxfold.retrieval.bm25 import ranked
from tests.benchmarks.data import DataMissingError
from tests.benchmarks.index_layouts import texts
from tests.benchmarks.sheets import Cell, Sheet
from tests.stores.servers import cluster_programs, started_cluster
from tests.support.driven import COUNTER
from tests.support.processes import CONTEXT, import_once, start

__all__ = ["run"]

import_once(__name__)

EACH, OWNED, BATCH = 100, 20, 20
WORKERS = (1, 2, 4)
TURNS = 100  # of each process
QUESTIONS = 100
LONG = SessionKey("owner-long", "long")
RULES = SessionKey("owner-rules", "rules")  # whose rules all others get


def run(*, quick: bool = False) -> list[Sheet]:
    """Three tables: sizes by table, rates by number of processes, and the rest."""
    messages = int(os.environ.get("CTXFOLD_SCALE", "4000" if quick else "1000000"))
    programs = cluster_programs()
    if programs is None:
        raise DataMissingError("PostgreSQL's initdb is not installed")
    sessions = max(sum(WORKERS), messages // EACH)
    with started_cluster(programs) as cluster:
        AgentContext(store=cluster.url, owner=RULES.owner, session_id=RULES.session, context_window=128_000).close()
        append_rates: list[float] = []
        first = 0
        for workers in WORKERS:
            share = sessions * workers // sum(WORKERS)
            append_rates.append(_rate(_append, cluster.url, workers, first, share // workers, EACH))
            first += share // workers * workers
        with SqlStore(cluster.url) as store:
            _fill(store, LONG, max(EACH, messages // 10))
        turn_rates = [_rate(_turns, cluster.url, workers, 0, TURNS, 1) for workers in WORKERS]
        sizes = _sizes(cluster.url, first * EACH + max(EACH, messages // 10))
        questions = _questions(cluster.url)
        opened = min(sessions, 10_000)
        open_bytes = _open_bytes(cluster.url, opened)
    rates: list[tuple[Cell, ...]] = [
        (workers, append, turns) for workers, append, turns in zip(WORKERS, append_rates, turn_rates, strict=True)
    ]
    rest: list[tuple[Cell, ...]] = [
        (f"a question of 8 terms in a session of {max(EACH, messages // 10):,} messages, median ms", questions),
        (f"memory of an open session of {EACH} messages, bytes, with {opened:,} open", open_bytes),
    ]
    return [
        Sheet(
            f"Bytes a message, {first * EACH:,} messages of 560 characters in {first:,} sessions, and one long session",
            ("table", "bytes/message"),
            tuple(sizes),
            "Indexes included, after VACUUM.",
        ),
        Sheet(
            "Rates with several processes",
            ("processes", "archived messages/s", "turns/s"),
            tuple(rates),
            f"Archived: stored and indexed, {BATCH} in a transaction. A turn adds two messages and reads the window.",
        ),
        Sheet("Long and many sessions", ("what", "measured"), tuple(rest), ""),
    ]


def _key(session: int) -> SessionKey:
    return SessionKey(f"owner-{session // OWNED}", f"session-{session:032d}")


def _fill(store: SqlStore, key: SessionKey, count: int, *, offset: int = 0) -> None:
    said = _TEXTS or _read_texts()
    rules = next(r.body for r in store.read(RULES) if isinstance(r.body, PolicyChanged))
    known = store.append(key, [Draft("rules", rules, None, 1.0)])[-1].seq
    for first in range(0, count, BATCH):
        part = [(n, said[(offset + n) % len(said)]) for n in range(first, min(count, first + BATCH))]
        drafts = [Draft(f"m:{n}", MessageAdded(user(text, id=str(n))), f"t{n}", 1.0) for n, text in part]
        documents = [
            Document(n + 2, counts, sum(counts.values())) for n, text in part for counts in [term_counts(text)]
        ]
        known = store.append(key, drafts, known=known, documents=documents)[-1].seq


_TEXTS: list[str] = []


def _read_texts() -> list[str]:
    _TEXTS.extend(texts())
    return _TEXTS


def _append(url: str, first: int, count: int, ready: Barrier) -> None:
    _read_texts()
    with SqlStore(url) as store:
        ready.wait()
        for session in range(first, first + count):
            _fill(store, _key(session), EACH, offset=session * EACH)
    ready.wait()


def _turns(url: str, first: int, count: int, ready: Barrier) -> None:
    key = SessionKey("owner-turns", f"turns-{first}-{ready.parties}")
    with AgentContext(store=url, owner=key.owner, session_id=key.session, context_window=32_000) as context:
        context.add(user("Hello", id=f"hello-{first}"))
        ready.wait()
        for n in range(count):
            question = user(f"Which hall is box {n} in?", id=f"q{first}-{n}")
            context.add([question, assistant(f"Box {n} is in hall {n % 9}.", id=f"a{first}-{n}")])
            context.window()
    ready.wait()


def _rate(work: object, url: str, workers: int, first: int, count: int, each: int) -> float:
    """Returns how much all processes do in a second, without their start."""
    ready = CONTEXT.Barrier(workers + 1, timeout=3_600)
    processes = [start(work, url, first + n * count, count, ready) for n in range(workers)]  # type: ignore[arg-type]
    ready.wait()
    start_s = time.perf_counter()
    ready.wait()
    took_s = time.perf_counter() - start_s
    for process in processes:
        process.join()
    return workers * count * each / took_s


def _sizes(url: str, messages: int) -> list[tuple[Cell, ...]]:
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as server:
        server.execute("VACUUM")
        return [
            (table, server.execute("SELECT pg_total_relation_size(%s)", (table,)).fetchall()[0][0] // messages)
            for table in ("ctxfold_records", "ctxfold_postings", "ctxfold_sessions")
        ]


def _questions(url: str) -> float:
    """Returns the median time of a question, each with other words."""
    said = _TEXTS or _read_texts()
    times_s: list[float] = []
    with SqlStore(url) as store:
        ports = Ports(store, MessageCounter(COUNTER))
        for n in range(QUESTIONS):
            terms = sorted(term_counts(said[n * 37 % len(said)]))[:8]
            start_s = time.perf_counter()
            run_flow(ranked(LONG, terms), ports)
            times_s.append(time.perf_counter() - start_s)
    return median(times_s) * 1e3


def _open_bytes(url: str, count: int) -> int:
    with ExitStack() as stack:
        store = stack.enter_context(SqlStore(url))
        before = _resident()
        for session in range(count):
            key = _key(session)
            context = AgentContext(store=store, owner=key.owner, session_id=key.session, context_window=128_000)
            stack.enter_context(context).view()
        return (_resident() - before) // count


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
