"""SQLite, PostgreSQL and Valkey side by side: a turn on each, the same windows and hits on all, and what Valkey needs.

`CTXFOLD_SCALE` is the number of messages that Valkey keeps, 100,000 by default: 100 in a session, 20 sessions of an owner, and a
tenth as many again in one session. The servers are started on loopback; PostgreSQL is left out where it is not installed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any

import psycopg
import redis
from sqlalchemy.engine import make_url

from ctxfold import AgentContext, assistant, user
from tests.benchmarks.conversation import WINDOW, exchange, filled_context
from tests.benchmarks.lanes import Lane, Plan, race
from tests.benchmarks.scale import (
    EACH,
    OWNED,
    RATES,
    RULES,
    add_long,
    archive,
    open_bytes,
    openings,
    session_key,
    texts,
    turns_of_process,
)
from tests.benchmarks.sheets import Cell, Sheet, times
from tests.stores.servers import cluster_programs, started_cluster
from tests.stores.valkey_server import cluster, free_port, server
from tests.support.driven import COUNTER
from tests.support.processes import import_once, together

__all__ = ["run"]

import_once(__name__)

SQLITE = "SQLite file, synced"
SYNCED = ("--appendonly", "yes", "--appendfsync", "always")
EVERY_SECOND = ("--appendonly", "yes", "--appendfsync", "everysec")
NOT_REWRITTEN = ("--auto-aof-rewrite-percentage", "0")
STORED = 1_000
QUESTIONS, ASKED = 500, 2_000
WORKERS, TURNS = (1, 2, 4), 200
# a process that has opened a store, and no session
BARE = """
import os, sys
from ctxfold.connect import open_store
store = open_store(sys.argv[1])
store.sessions("nobody")
print(int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
"""


def run(*, quick: bool = False) -> list[Sheet]:
    messages = int(os.environ.get("CTXFOLD_SCALE", "4000" if quick else "100000"))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))

        def valkey(name: str, *options: str) -> str:
            port = free_port()
            stack.enter_context(server(folder / name, port, *options))
            return f"valkey://127.0.0.1:{port}/0"

        places = {SQLITE: f"sqlite:///{folder}/a.db"}
        programs = cluster_programs()
        if programs is not None:
            places["PostgreSQL"] = stack.enter_context(started_cluster(programs)).url
        places["Valkey, appendfsync always"] = valkey("always", *SYNCED)
        places["Valkey, appendfsync everysec"] = valkey("everysec", *EVERY_SECOND)
        places["Valkey, in memory alone"] = valkey("memory")
        turns = turns_beside(places, quick=quick)
        ports = stack.enter_context(cluster(folder / "cluster"))
        for name in ("Valkey, appendfsync always", "Valkey, in memory alone"):
            del places[name]
        places["Valkey cluster"] = f"valkey://127.0.0.1:{ports[0]}?cluster=true"
        places |= encrypted(folder, places.get("PostgreSQL"), valkey("sealed"))
        asked = same_answers(places, quick=quick)
        return [turns, asked, *valkey_alone(valkey("scale", *EVERY_SECOND, *NOT_REWRITTEN), messages)]


def encrypted(folder: Path, postgresql: str | None, valkey: str) -> dict[str, str]:
    """Returns the URLs of encrypted stores, with a key file that their processes find."""
    keys = folder / "master.keys"
    keys.touch(mode=0o600)
    keys.write_text(f"one {b64encode(os.urandom(32)).decode()}\n")
    os.environ["CTXFOLD_KEYS"] = str(keys)
    places = {
        "SQLite, encrypted": f"encrypted+sqlite:///{folder}/sealed.db",
        "Valkey, encrypted": f"encrypted+{valkey}",
    }
    if postgresql is not None:
        with psycopg.connect(postgresql.replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute("CREATE DATABASE sealed ENCODING 'UTF8' TEMPLATE template0")
        url = make_url(postgresql).set(database="sealed").render_as_string(hide_password=False)
        places["PostgreSQL, encrypted"] = f"encrypted+{url}"
    return places


# side by side


def turns_beside(places: dict[str, str], *, quick: bool) -> Sheet:
    with ExitStack() as stack:
        lanes: list[Lane] = []
        for name, url in places.items():
            context = stack.enter_context(filled_context(url, 100 if quick else STORED))
            lanes.append(Lane(name, STORED, _turn(context)))
        race(lanes, Plan(turns=20, block=5) if quick else Plan(turns=400))
        base = lanes[0]
        rows: list[tuple[Cell, ...]] = [
            (
                lane.name,
                lane.median_ms(),
                lane.mean_ms(),
                lane.cpu_median_ms(),
                lane.cpu_mean_ms(),
                times(lane.median_ms(), base.median_ms()),
                times(lane.mean_ms(), base.mean_ms()),
                times(lane.cpu_median_ms(), base.cpu_median_ms()),
            )
            for lane in lanes
        ]
    columns = ("store", "median ms", "mean ms", "CPU median ms", "CPU mean ms", "median", "mean", "CPU median")
    return Sheet(
        f"A turn on each store: two messages added, window read, {STORED:,} messages before (context_window={WINDOW:,})",
        columns,
        tuple(rows),
        f"The last three are to those of {SQLITE}. The CPU of servers is not in it.",
    )


def _turn(context: AgentContext) -> Callable[[int], object]:
    def turn(number: int) -> object:
        context.add(exchange(number, "x"))
        return context.window().messages

    return turn


def same_answers(places: dict[str, str], *, quick: bool) -> Sheet:
    """Tells a conversation of public chats to each store, and compares windows and hits for questions from all over it."""
    said = texts()
    questions = 50 if quick else QUESTIONS
    found: dict[str, list[tuple[str, str]]] = {}
    for name, url in places.items():
        with _opened(url) as context:
            for first in range(0, ASKED, 20):
                context.add([(assistant if n % 2 else user)(said[n], id=f"m{n}") for n in range(first, first + 20)])
        with _opened(url) as context:
            found[name] = [_answer(context, said[number * 37 % ASKED][:100]) for number in range(questions)]
    base = found[SQLITE]
    rows = [
        (name, *(sum(a[at] == b[at] for a, b in zip(rows, base, strict=True)) for at in (0, 1)))
        for name, rows in found.items()
    ]
    note = f"{ASKED:,} messages of 560 characters; recalled passages are part of a window."
    return Sheet(
        f"{questions} questions beside SQLite", ("store", "equal windows", "equal 20 best hits"), tuple(rows), note
    )


def _opened(url: str) -> AgentContext:
    return AgentContext(session_id="asked", store=url, context_window=WINDOW, counter=COUNTER)


def _answer(context: AgentContext, question: str) -> tuple[str, str]:
    window = context.window(recall=True, question=question)
    shown = [window.recalled, *((message.role, message.text) for message in window.messages)]
    hits = [(hit.reference, hit.score, hit.excerpt) for hit in context.search(question, limit=20)]
    assert hits
    return _digest(shown), _digest(hits)


def _digest(value: object) -> str:
    return sha256(repr(value).encode()).hexdigest()


# what Valkey needs


def valkey_alone(url: str, messages: int) -> list[Sheet]:
    start_s = time.perf_counter()

    def tell(what: str) -> None:
        print(f"{time.perf_counter() - start_s:6.0f} s  {what}", file=sys.stderr, flush=True)

    port = int(url.partition("127.0.0.1:")[2].partition("/")[0])
    with redis.Redis(port=port) as client:
        AgentContext(store=url, owner=RULES.owner, session_id=RULES.session, context_window=128_000).close()
        before = _memory(client)
        archived: list[tuple[float, ...]] = []
        first, sessions = 0, messages // EACH
        for workers in WORKERS:
            tell(f"{workers} processes archive")
            count = max(1, sessions // sum(WORKERS))
            archived.append(_rates(client, archive, url, workers, first, count, EACH))
            first += count * workers
        stored = first * EACH
        tell(f"sizes of {stored:,} messages")
        used, resident, log = (now - then for now, then in zip(_memory(client), before, strict=True))
        client.bgrewriteaof()
        while client.info("persistence")["aof_rewrite_in_progress"]:
            time.sleep(0.05)
        rewritten = int(client.info("persistence")["aof_current_size"])
        sizes: list[tuple[Cell, ...]] = [
            ("memory that the server uses", used // stored),
            ("the same, resident in the process", resident // stored),
            *((f"of that, keys of {kind}", size // stored) for kind, size in _kinds(client).most_common(6)),
            ("append-only file as it was written", log // stored),
            ("append-only file once rewritten", rewritten // stored),
        ]
        tell("turns")
        turns = [_rates(client, turns_of_process, url, workers, 0, TURNS, 1) for workers in WORKERS]
        tell("one session")
        long = max(EACH, messages // 10)
        together(add_long, [(url, 0, long)])
        _, [(opening_ms, first_ms, later_ms)] = together(openings, [(url,)])
        tell("open sessions")
        _, [(open_resident, _)] = together(open_bytes, [(url, first, False)])
        bare = int(subprocess.run([sys.executable, "-c", BARE, url], check=True, capture_output=True).stdout)
        key = session_key(0)
        with AgentContext(store=url, owner=key.owner, session_id=key.session, context_window=128_000) as owned:
            erased_s = time.perf_counter()
            owned.erasure.erase_owner()
            erased_s = time.perf_counter() - erased_s
    rest: list[tuple[Cell, ...]] = [
        ("a process that has opened a store, and no session, resident bytes", bare),
        (f"an open session of {EACH} messages, resident bytes, with {first:,} open", open_resident),
        (f"open a session of {long:,} messages in a process that has not seen it, median ms", opening_ms),
        ("the first question after that, with its recall, median ms", first_ms),
        ("a later question, median ms", later_ms),
        (f"the erasure of an owner with {OWNED} sessions of {EACH} messages, s", erased_s),
    ]
    return [
        Sheet(
            f"Valkey: bytes a message, {stored:,} messages of 560 characters", ("what", "bytes/message"), tuple(sizes)
        ),
        Sheet(
            "Valkey: rates with several processes",
            RATES,
            tuple((workers, *archived[n], *turns[n]) for n, workers in enumerate(WORKERS)),
            "Archived: stored and indexed, 20 at once. A turn adds two messages and reads the window.",
        ),
        Sheet("Valkey: workers and long sessions", ("what", "measured"), tuple(rest)),
    ]


def _rates(
    client: Any, work: Callable[..., float], url: str, workers: int, first: int, count: int, each: int
) -> tuple[float, float, float]:
    """Returns what all processes do in a second without their start, and the CPU milliseconds of each, here and in the server."""
    before_s = _server_s(client)
    took_s, cpu_s = together(work, [(url, first + n * count, count) for n in range(workers)])
    done = workers * count * each
    return done / took_s, sum(cpu_s) / done * 1e3, (_server_s(client) - before_s) / done * 1e3


def _server_s(client: Any) -> float:
    about = client.info("cpu")
    return float(about["used_cpu_user"]) + float(about["used_cpu_sys"])


def _memory(client: Any) -> tuple[int, int, int]:
    """Returns the bytes that are used, resident, and in the append-only file."""
    memory = client.info("memory")
    return memory["used_memory"], memory["used_memory_rss"], client.info("persistence")["aof_current_size"]


def _kinds(client: Any) -> Counter[str]:
    """Returns the bytes of all keys by kind, the last part of their names."""
    bytes_by_kind: Counter[str] = Counter()
    for names in _pieces(client):
        pipe = client.pipeline(transaction=False)
        for name in names:
            pipe.memory_usage(name, samples=0)
        for name, size in zip(names, pipe.execute(), strict=True):
            bytes_by_kind[name.decode().rpartition(":")[2]] += size
    return bytes_by_kind


def _pieces(client: Any) -> Iterator[list[bytes]]:
    cursor = 0
    while True:
        cursor, names = client.scan(cursor, count=1_000)
        yield names
        if not cursor:
            return
