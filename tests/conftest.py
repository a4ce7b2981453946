"""What every test shares: one copy of ctxfold, hypothesis profiles, and PostgreSQL if there is a server."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import certifi
import hypothesis
import pytest

from ctxfold import AgentContext
from tests.support.connections import close_others, left_connections, watch_connections
from tests.support.driven import Driven, context

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

# an editable install puts the root on sys.path: `import shared.ctxfold` would load a second engine
sys.modules["shared"] = None  # type: ignore[assignment]

# read when numpy is imported, by processes of the tests as well: its threads wait for each other at full load, which takes four
# times the processor time for matrices as small as those here, away from the other workers
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# commits of stores in tests wait for no disk: what a killed process has written stays in a file of memory as well
MEMORY = Path("/dev/shm")
if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 2 << 30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

POSTGRES_URL = "postgresql+psycopg://postgres@127.0.0.1:5432/test"
NO_BROWSER = "no Chromium found: the inspector's page was not looked at in a browser (.ci/run installs it)"
NO_PGBOUNCER = "pgbouncer is not installed: the store was not tried behind it (.ci/run installs it)"
NO_STRACE = "strace cannot run here: how often SQLite syncs was not counted (.ci/run installs it)"
NO_CLUSTER = (
    "PostgreSQL's initdb is not installed: the store was not tried through restarts of a server (.ci/run installs it)"
)
NO_HISTORY = (
    "the history of this copy has no older release: the store was not tried beside one (git fetch --unshallow gets it)"
)
NO_RESTATE = "Restate's server is not installed: no turn was killed under it (`make restate` installs it from npm)"
_NOT_RUN = "PostgreSQL half not run: no server at 127.0.0.1:5432 (user postgres, database test)"

_slow = [hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large]
_dev = hypothesis.settings(deadline=None, max_examples=50, suppress_health_check=_slow)
hypothesis.settings.register_profile("dev", parent=_dev)
hypothesis.settings.register_profile("ci", parent=_dev, derandomize=True, max_examples=100)
hypothesis.settings.register_profile("long", parent=_dev, max_examples=2000)
_default = "ci" if os.environ.get("CI") else "dev"
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", _default))


watch_connections()

# files of few tests that take long, the longest first: what begins last should not leave one worker alone
LONG = (
    "shows/test_shows_prefix.py",
    "golden/test_sessions.py",
    "langchain/test_agent_run.py",
    "llamaindex/test_workflow_server.py",
    "shows/",
    "durable/",
    "wire/test_fuzz.py",
    "wire/test_provider_compaction.py",
    "stores/test_store_suite.py",
    "stores/test_search_index.py",
    "faces/",
    "properties/",
    "packaging/",
    "realmodel/",
    "retrieval/test_kept_vectors.py",
    "llamaindex/test_memory_agree.py",
    "docs/",
    "cli/",
)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Collects without looking for cycles: a million objects stay, and later passes need not visit them again.

    After that they are looked for at every 10,000 new objects instead of 700: what tests import makes each full pass dear.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(10_000)
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    folder = str(Path(__file__).parent) + os.sep

    def place(item: pytest.Item) -> int:
        path = str(item.path).removeprefix(folder).replace(os.sep, "/")
        return next((place for place, name in enumerate(LONG) if path.startswith(name)), len(LONG))

    items.sort(key=place)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, object, object]:
    """Fails the test that leaves an async connection open, rather than the one in which it is collected."""
    result = yield
    close_others()
    assert not (left := left_connections()), f"close the model's async client in the event loop that used it: {left}"
    return result


@pytest.fixture(autouse=True)
def stock_databases(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Closes the databases that LlamaIndex's memories open and cannot close: their threads would end in a later test's time."""
    sql = sys.modules.get("llama_index.core.storage.chat_store.sql")
    if sql is None:
        yield
        return
    create: Callable[..., Any] = sql.create_async_engine
    engines: list[Any] = []

    def created(*args: Any, **settings: Any) -> Any:
        engines.append(create(*args, **settings))
        return engines[-1]

    monkeypatch.setattr(sql, "create_async_engine", created)
    yield
    if engines:
        loop = asyncio.new_event_loop()
        for engine in engines:
            loop.run_until_complete(engine.dispose())
        loop.close()


@pytest.fixture(scope="session", autouse=True)
def one_authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Lets clients trust one authority instead of the hundred of certifi, which take 25 ms to read: no test uses TLS."""
    first = Path(certifi.where()).read_text(encoding="ascii").partition("-----END CERTIFICATE-----")
    bundle = tmp_path_factory.mktemp("authorities") / "one.pem"
    bundle.write_text("".join(first[:2]), encoding="ascii")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("SSL_CERT_FILE", str(bundle))
        yield


@pytest.fixture(params=["sync", "async"])
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner | None]:
    if request.param == "sync":
        yield None
        return
    with asyncio.Runner() as loop:
        yield loop


@pytest.fixture
def make(runner: asyncio.Runner | None) -> Iterator[Callable[..., Driven]]:
    """Makes contexts in memory (or over a given store), driven one way or the other; closed at the end."""
    made: list[AgentContext] = []

    def build(backend: Any = None, **settings: Any) -> Driven:
        made.append(context(backend, **settings))
        return Driven(made[-1], runner)

    yield build
    for ctx in made:
        ctx.close()


@pytest.fixture(scope="session")
def postgres_url() -> str:
    """URL of a PostgreSQL server that answered just now; skips, with a line in the summary, where none is."""
    import psycopg

    try:
        with psycopg.connect(POSTGRES_URL.replace("+psycopg", ""), connect_timeout=30) as connection:
            connection.execute("select 1")
    except psycopg.OperationalError as error:
        pytest.skip(f"{_NOT_RUN}: no server at 127.0.0.1:5432, user postgres, database test ({str(error).strip()})")
    return POSTGRES_URL


@pytest.fixture(scope="session")
def kept_schema(postgres_url: str) -> Iterator[str]:
    from tests.support.postgres_schema import (
        fresh_schema,
    )  # needs a driver, which the source distribution is tested without

    with fresh_schema(postgres_url) as url:
        yield url


@pytest.fixture
def emptied_schema(kept_schema: str) -> Iterator[str]:
    """URL of a PostgreSQL schema without rows, whose tables an earlier test may have made; a test uses one at a time."""
    from tests.support.postgres_schema import empty

    yield kept_schema
    empty(kept_schema)


@pytest.fixture(params=["sqlite", "postgresql"])
def shared_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of an empty store that several processes may use: a file, then a PostgreSQL schema."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'shared.db'}"
    url: str = request.getfixturevalue("emptied_schema")
    return url


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Says in the last lines which tests did not run because a program or server is missing."""
    skipped = [str(report.longrepr) for report in terminalreporter.stats.get("skipped", [])]
    reasons = [text for text in skipped if _NOT_RUN in text]
    if reasons:
        terminalreporter.write_line(f"{_NOT_RUN}; {len(reasons)} tests skipped", yellow=True)
    for reason in (NO_BROWSER, NO_PGBOUNCER, NO_STRACE, NO_CLUSTER, NO_HISTORY, NO_RESTATE):
        if any(reason in text for text in skipped):
            terminalreporter.write_line(reason, yellow=True)
