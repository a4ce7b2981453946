"""A store with many sessions on a PostgreSQL server of its own: sizes, rates with several processes, questions, open sessions.

`CTXFOLD_SCALE` is the number of messages, 1,000,000 by default: 100 in a session, 20 sessions of an owner, and a tenth as many
again in one session. One session in 20 is written through the store, at the rates that are shown; the server copies it to the
others. At the end all of them become one owner's, which is erased.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from itertools import count as numbers
from pathlib import Path
from statistics import median

import psycopg

from ctxfold import AgentContext, SqlStore, Store, assistant, user
from ctxfold.connect import open_store
from ctxfold.effects import run as run_flow
from ctxfold.history.records import Draft, MessageAdded, PolicyChanged, SessionKey
from ctxfold.index.terms import term_counts
from ctxfold.protocols import Document, Ports
from ctxfold.retrieval.bm25 import ranked
from ctxfold.tokens.text import MessageCounter
from tests.benchmarks.data import DataMissingError, folder
from tests.benchmarks.sheets import Cell, Sheet
from tests.stores.servers import Cluster, cluster_programs, started_cluster
from tests.support.driven import COUNTER
from tests.support.processes import Ready, import_once, together

__all__ = [
    "EACH",
    "LONG",
    "OWNED",
    "RULES",
    "add_long",
    "archive",
    "open_bytes",
    "openings",
    "run",
    "session_key",
    "texts",
    "turns_of_process",
]

import_once(__name__)

EACH, OWNED, BATCH = 100, 20, 20
JOINED = 8  # lines of a chat that make one message of some 560 characters
COPIES = 20  # of a session, the one that was written among them
RATES = (
    "processes",
    "archived messages/s",
    "worker CPU ms/message",
    "server CPU ms/message",
    "turns/s",
    "worker CPU ms/turn",
    "server CPU ms/turn",
)
WORKERS = (1, 2, 4)
TURNS = 200  # of each process
QUESTIONS = 100
OPENINGS = 20
TRACED = 200  # sessions: tracing each allocation takes its time
LONG = SessionKey("owner-long", "long")
LONG_WINDOW = 32_000
RULES = SessionKey("owner-rules", "rules")  # whose rules all others get
ALL = "owner-all"
TABLES = ("ctxfold_records", "ctxfold_postings", "ctxfold_sessions")

Work = Callable[[str, int, int, Ready], float]


def run(*, quick: bool = False) -> list[Sheet]:
    """Four tables: sizes by table, rates by number of processes, long and many sessions, and the erasure of an owner."""
    messages = int(os.environ.get("CTXFOLD_SCALE", "4000" if quick else "1000000"))
    programs = cluster_programs()
    if programs is None:
        raise DataMissingError("PostgreSQL's initdb is not installed")
    written = max(sum(WORKERS), messages // EACH // COPIES)
    long = max(EACH, messages // 10)
    start_s = time.perf_counter()

    def tell(what: str) -> None:
        print(f"{time.perf_counter() - start_s:6.0f} s  {what}", file=sys.stderr, flush=True)

    with started_cluster(programs) as cluster:
        AgentContext(store=cluster.url, owner=RULES.owner, session_id=RULES.session, context_window=128_000).close()
        appends: list[tuple[float, ...]] = []
        first = 0
        for workers in WORKERS:
            tell(f"{workers} processes archive")
            share = written * workers // sum(WORKERS)
            appends.append(_rates(archive, cluster, workers, first, share // workers, EACH))
            first += share // workers * workers
        sessions = first * COPIES
        beside = long * 9 // 10
        tell(
            f"the server copies {first} sessions to {sessions}, and one process adds {beside:,} messages to one session"
        )
        with ThreadPoolExecutor(1) as pool:
            filled = pool.submit(together, add_long, [(cluster.url, 0, beside)])
            _copy(cluster.url, first)
            tell("all are copied")
            filled.result()
        tell(f"the process adds {long - beside:,} more")
        long_s, _ = together(add_long, [(cluster.url, beside, long)])
        tell("turns")
        turns = [_rates(turns_of_process, cluster, workers, 0, TURNS, 1) for workers in WORKERS]
        stored = sessions * EACH + long
        tell(f"sizes of {stored:,} messages, before and after a vacuum")
        sizes = _sizes(cluster.url, stored)
        tell("the long session is opened and asked")
        _, [(opening_ms, first_recall_ms, recall_ms)] = together(openings, [(cluster.url,)])
        questions_ms = _questions(cluster.url)
        opened = min(sessions, 10_000)
        tell(f"{opened:,} sessions are opened")
        _, [(open_resident, _)] = together(open_bytes, [(cluster.url, opened, False)])
        _, [(_, traced)] = together(open_bytes, [(cluster.url, min(opened, TRACED), True)])
        _, [long_bytes] = together(_long_bytes, [(cluster.url,)])
        tell("all sessions become one owner's, which is erased")
        erasure = _erasure(cluster.url, stored)
    rest: list[tuple[Cell, ...]] = [
        (f"messages/s into it at the end, {BATCH} in a call, with what it compacts", (long - beside) / long_s),
        ("open it in a process that has not seen it, median ms", opening_ms),
        ("the first question after that, with its recall, median ms", first_recall_ms),
        ("a question with its recall in the open session, median ms", recall_ms),
        ("of that, the ranking of a question of 8 terms, median ms", questions_ms),
        ("memory of that session after its questions, traced bytes", long_bytes),
        (f"memory of an open session of {EACH} messages, resident bytes, with {opened:,} open", open_resident),
        (f"the same, traced bytes, with {min(opened, TRACED):,} open", traced),
    ]
    return [
        Sheet(
            f"Bytes a message, {sessions * EACH:,} messages of 560 characters in {sessions:,} sessions, and {long:,} in one",
            ("table", "bytes/message", "after VACUUM"),
            tuple(sizes),
            "Indexes included.",
        ),
        Sheet(
            "Rates with several processes",
            RATES,
            tuple((workers, *appends[n], *turns[n]) for n, workers in enumerate(WORKERS)),
            f"Archived: stored and indexed, {BATCH} in a transaction. A turn adds two messages and reads the window.",
        ),
        Sheet(f"A session of {long:,} messages, and many sessions", ("what", "measured"), tuple(rest)),
        Sheet(f"The erasure of an owner with {stored:,} messages", ("what", "measured"), tuple(erasure)),
    ]


def session_key(session: int) -> SessionKey:
    return SessionKey(f"owner-{session // OWNED}", f"session-{session:032d}")


def fill(store: Store, key: SessionKey, count: int, *, offset: int) -> None:
    said = texts()
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


def texts() -> list[str]:
    """Lines of public chats and meetings, eight in one message; DataMissingError where they are not there."""
    if not _TEXTS:
        lines: list[str] = []
        for name in ("ubuntu_irc", "qmsum", "molweni"):
            for conversation in json.loads((folder(name) / "conversations.json").read_text(encoding="utf-8")):
                lines += [message["text"] for message in conversation["messages"] if message["text"]]
        _TEXTS.extend(" ".join(lines[at : at + JOINED]) for at in range(0, len(lines), JOINED))
    return _TEXTS


# work of other processes


def archive(url: str, first: int, count: int, ready: Ready) -> float:
    """Returns the seconds of CPU that the process has used."""
    texts()
    with closing(open_store(url)) as store:
        store.head(RULES)
        ready()
        start_s = time.process_time()
        for session in range(first, first + count):
            fill(store, session_key(session), EACH, offset=session * EACH)
        return time.process_time() - start_s


def turns_of_process(url: str, first: int, count: int, ready: Ready) -> float:
    session = f"turns-{os.getpid()}"
    with AgentContext(store=url, owner="owner-turns", session_id=session, context_window=32_000) as context:
        context.add(user("Hello", id="hello"))
        ready()
        start_s = time.process_time()
        for n in range(first, first + count):
            question = user(f"Which hall is box {n} in?", id=f"q{n}")
            context.add([question, assistant(f"Box {n} is in hall {n % 9}.", id=f"a{n}")])
            context.window()
        return time.process_time() - start_s


def _long_session(store: str | Store) -> AgentContext:
    return AgentContext(
        store=store, owner=LONG.owner, session_id=LONG.session, context_window=LONG_WINDOW, strategy="truncate"
    )


def add_long(url: str, start: int, end: int, ready: Ready) -> None:
    said = texts()
    with _long_session(url) as context:
        context.view()
        ready()
        for first in range(start, end, BATCH):
            context.add(
                [
                    (assistant if n % 2 else user)(said[n % len(said)], id=f"m{n}")
                    for n in range(first, min(end, first + BATCH))
                ],
                known_ids=False,
            )


def openings(url: str, ready: Ready) -> tuple[float, float, float]:
    """Returns the median milliseconds to open the long session, of its first question, and of a question later."""
    said = texts()
    opening: list[float] = []
    first: list[float] = []
    later: list[float] = []
    with closing(open_store(url)) as store:
        store.head(LONG)
        ready()
        for n in range(OPENINGS):
            questions = iter(said[(n * 6 + k) * 37 % len(said)][:100] for k in range(6))
            start_s = time.perf_counter()
            with _long_session(store) as context:
                context.view()
                opening.append(time.perf_counter() - start_s)
                for times in (first, *[later] * 5):
                    start_s = time.perf_counter()
                    context.window(recall=True, question=next(questions))
                    times.append(time.perf_counter() - start_s)
    return median(opening) * 1e3, median(first) * 1e3, median(later) * 1e3


def open_bytes(url: str, count: int, trace: bool, ready: Ready) -> tuple[int, int]:
    """Returns the resident and the traced bytes of each session, with `count` of them open over one engine."""
    with closing(open_store(url)) as store:
        context = AgentContext(
            store=store, owner=RULES.owner, session_id=RULES.session, context_window=128_000, max_sessions=count + 1
        )
        ready()
        if trace:
            tracemalloc.start()
        before = resident()
        for key in map(session_key, range(count)):
            context.at(key.session, owner=key.owner).view()
        traced = tracemalloc.get_traced_memory()[0] if trace else 0
        return (resident() - before) // count, traced // count


def _long_bytes(url: str, ready: Ready) -> int:
    said = texts()
    with SqlStore(url) as store:
        _long_session(store).window(recall=True, question=said[0][:100])  # fills the caches of the process
        ready()
        tracemalloc.start()
        context = _long_session(store)
        for n in range(QUESTIONS):
            context.window(recall=True, question=said[n * 37 % len(said)][:100])
        return tracemalloc.get_traced_memory()[0]


def _erase(url: str, ready: Ready) -> tuple[float, int]:
    """Returns the seconds that the erasure took, and by how many bytes the process grew."""
    with SqlStore(url) as store:
        store.head(_all_key())
        ready()
        before, start_s = resident(), time.perf_counter()
        store.erase_owner(ALL)
        return time.perf_counter() - start_s, max(0, _peak() - before)


def _read_until_gone(url: str, ready: Ready) -> float:
    """Returns the seconds until a reader finds nothing of the owner any more."""
    with SqlStore(url) as store:
        store.head(_all_key())
        ready()
        start_s = time.perf_counter()
        while store.head(_all_key()) is not None or store.sessions(ALL):
            time.sleep(0.005)
        return time.perf_counter() - start_s


# what is measured from here


def _copy(url: str, written: int) -> None:
    """Has the server copy the first sessions, under the names of all others."""
    number = f"CAST(SUBSTR(session, {len('session-') + 1}) AS BIGINT)"
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as server:
        for table in TABLES:
            read = "SELECT column_name FROM information_schema.columns WHERE table_name = %s ORDER BY ordinal_position"
            columns = [str(row[0]) for row in server.execute(read, (table,)).fetchall()]
            for copy in range(1, COPIES):
                new = f"({number} + {copy * written})"
                values = {
                    "owner": f"'owner-' || {new} / {OWNED}",
                    "session": f"'session-' || LPAD({new}::text, 32, '0')",
                }
                chosen = ", ".join(values.get(name, name) for name in columns)
                own = f"session >= '{session_key(0).session}' AND session <= '{session_key(written - 1).session}'"
                server.execute(
                    f"INSERT INTO {table} ({', '.join(columns)}) SELECT {chosen} FROM {table} WHERE {own}".encode()
                )


def _rates(work: Work, cluster: Cluster, workers: int, first: int, count: int, each: int) -> tuple[float, float, float]:
    """Returns what all processes do in a second without their start, and the CPU milliseconds of each, here and in the server."""
    before_s = _server_s(cluster)
    took_s, cpu_s = together(work, [(cluster.url, first + n * count, count) for n in range(workers)])
    done = workers * count * each
    return done / took_s, sum(cpu_s) / done * 1e3, (_server_s(cluster) - before_s) / done * 1e3


def _server_s(cluster: Cluster) -> float:
    """Returns the CPU seconds of the server's backends that have ended."""
    time.sleep(0.5)  # for those of processes that have just ended
    pid = (cluster.data / "postmaster.pid").read_text(encoding="ascii").split()[0]
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


def _sizes(url: str, messages: int) -> list[tuple[Cell, ...]]:
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as server:

        def bytes_each() -> list[int]:
            read = "SELECT pg_total_relation_size(%s)"
            return [server.execute(read, (table,)).fetchall()[0][0] // messages for table in TABLES]

        before = bytes_each()
        server.execute("VACUUM ANALYZE")
        return list(zip(TABLES, before, bytes_each(), strict=True))


def _questions(url: str) -> float:
    """Returns the median milliseconds to rank the archive of the long session, each time for other words."""
    said = texts()
    times_s: list[float] = []
    with SqlStore(url) as store:
        ports = Ports(store, MessageCounter(COUNTER))
        for n in range(QUESTIONS):
            terms = sorted(term_counts(said[n * 37 % len(said)]))[:8]
            start_s = time.perf_counter()
            run_flow(ranked(LONG, terms), ports)
            times_s.append(time.perf_counter() - start_s)
    return median(times_s) * 1e3


def _all_key() -> SessionKey:
    return SessionKey(ALL, session_key(0).session)


def _erasure(url: str, messages: int) -> list[tuple[Cell, ...]]:
    """Gives all sessions to one owner and erases that, beside a reader and a writer of other sessions."""
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as server:
        for table in TABLES:
            server.execute(f"UPDATE {table} SET owner = '{ALL}'".encode())
        server.execute("VACUUM ANALYZE")
    stop, waits = threading.Event(), [0.0]
    writer = threading.Thread(target=_write_beside, args=(url, stop, waits))
    with ExitStack() as stack:
        writer.start()
        stack.callback(writer.join)
        stack.callback(stop.set)
        _, [(took_s, grown), gone_s] = together(_either, [(url, True), (url, False)])
    return [
        ("out of sight after, s", gone_s),
        ("all rows removed after, s", took_s),
        ("messages removed a second", messages / took_s),
        ("more memory of the process that erases, bytes", grown),
        ("writes of another owner meanwhile", len(waits) - 1),
        ("the longest of them, s", max(waits)),
    ]


def _either(url: str, erases: bool, ready: Ready) -> object:
    return _erase(url, ready) if erases else _read_until_gone(url, ready)


def _write_beside(url: str, stop: threading.Event, waits: list[float]) -> None:
    key = SessionKey("owner-beside", "beside")
    with SqlStore(url) as store:
        for n in numbers():
            if stop.is_set():
                return
            start_s = time.perf_counter()
            store.append(key, [Draft(f"m:{n}", MessageAdded(user("beside", id=str(n))), None, 1.0)])
            waits.append(time.perf_counter() - start_s)
            time.sleep(0.01)


def resident() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _peak() -> int:
    """Returns the most memory that the process has had, in bytes."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024
