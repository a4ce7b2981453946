"""Two releases on one store: what either has written, compacted or erased is the same for the other, and each goes on from it.

The older one is a wheel that is built here from a commit of this repository; the newer one is the working tree.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import NO_HISTORY
from tests.stores.valkey_server import free_port, server
from tests.support.postgres_schema import fresh_schema

ROOT = Path(__file__).resolve().parents[2]
# the first tree whose stores, with that on Valkey, have to stay readable both ways: see docs/decisions/0010
OLDER = "03fdb639156d"
Do = Callable[..., Any]


@pytest.fixture(scope="session")
def older_packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the packages of the older release, as a user installs them."""
    if not (ROOT / ".git").exists():
        pytest.skip(NO_HISTORY)  # a source archive
    git = ["git", "-C", str(ROOT)]
    archive = subprocess.run([*git, "archive", OLDER], capture_output=True, check=False)
    if archive.returncode != 0:  # a shallow copy (git fetch --unshallow gets the commit)
        pytest.skip(NO_HISTORY)
    tree, built, installed = (tmp_path_factory.mktemp(name) for name in ("tree", "built", "installed"))
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as files:
        files.extractall(tree, filter="data")
    run("build", "--wheel", "--no-isolation", "--outdir", str(built), str(tree))
    [wheel] = built.iterdir()
    run("pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile", "--target", str(installed), str(wheel))
    return installed


def run(*module: str) -> None:
    done = subprocess.run([sys.executable, "-m", *module], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def worker(packages: Path) -> Iterator[Do]:
    """A process with the packages of a folder."""
    program = str(Path(__file__).with_name("release_worker.py"))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment["PYTHONPATH"] = str(packages)
    # not the folder of the program, in which modules of tests have common names
    command = [sys.executable, "-P", "-X", "utf8", program]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8"
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def do(*deed: Any) -> Any:
            process.stdin.write(json.dumps(deed) + "\n")
            process.stdin.flush()
            answer = json.loads(process.stdout.readline())
            if isinstance(answer, dict) and "failed" in answer:
                pytest.fail(f"{deed}: {answer['failed']}")
            return answer

        where = Path(json.loads(process.stdout.readline()))
        assert where.is_relative_to(packages)
        try:
            yield do
        finally:
            process.stdin.close()


@pytest.fixture(scope="module")
def workers(older_packages: Path) -> Iterator[tuple[Do, Do]]:
    with worker(older_packages) as older, worker(ROOT / "shared") as newer:
        yield older, newer


@pytest.fixture(params=["sqlite", "postgresql", "valkey"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[str]:
    with ExitStack() as stack:
        if request.param == "sqlite":
            yield f"sqlite:///{tmp_path}/a.db"
        elif request.param == "valkey":
            port = free_port()
            stack.enter_context(server(tmp_path, port))
            yield f"valkey://127.0.0.1:{port}/0"
        else:  # a schema without tables: the first to come makes them
            yield stack.enter_context(fresh_schema(request.getfixturevalue("postgres_url")))


@pytest.mark.parametrize("first", ["older", "newer"])
def test_either_release_goes_on_from_what_the_other_has_stored(first: str, url: str, workers: tuple[Do, Do]) -> None:
    one, other = workers if first == "older" else workers[::-1]

    def both_see() -> dict[str, Any]:
        told: dict[str, Any] = one("seen", url)
        assert other("seen", url) == told
        return told

    one("write", url, 0)
    one("fork", url)
    written = both_see()
    assert written["sessions"] == ["talk", "talk/copy"]
    assert len(written["talk"]["messages"]) == 120
    assert written["talk"]["What is the key of the mill number 7?"]["hits"]
    other("write", url, 30)
    other("erase", url, 0)  # what the one has written and compacted
    went_on = both_see()
    assert len(went_on["talk"]["messages"]) < 240
    assert "u1" not in {row[0] for row in went_on["talk"]["messages"]}
    one("compact", url, 60)
    compacted = both_see()["talk"]["window"]
    other("undo", url)
    assert both_see()["talk"]["window"] != compacted
    one("erase", url, 30)
    one("write", url, 70)
    again = both_see()
    assert "u71" in {row[0] for row in again["talk"]["messages"]}
    other("erase_session", url)
    assert both_see()["sessions"] == ["talk"]
    one("erase_owner", url)
    emptied = both_see()
    assert emptied["talk"]["messages"] == emptied["memory"] == emptied["everywhere"] == []


def test_both_may_be_at_work_at_once(url: str, workers: tuple[Do, Do]) -> None:
    """Each keeps the session open while the other goes on with it, as when workers are replaced one after the other."""
    one, other = workers
    for each in (one, other):
        each("hold", url)
    told: Any = None
    for number, (writer, reader) in enumerate([(other, one), (one, other), (other, one)]):
        told = writer("write", url, 30 * number)
        assert reader("look", url) == told
        told = reader("erase", url, 30 * number)
        assert writer("look", url) == told
    for each in (one, other):
        each("let go", url)
    assert one("seen", url)["talk"] == other("seen", url)["talk"] == told
