"""A process is killed before and after each round trip to Valkey, in turns with compactions: nothing is lost or doubled."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from ctxfold import AgentContext, Message, assistant, user
from ctxfold.stores.valkey_server import ValkeyServer
from ctxfold.tokens.text import RatioCounter
from tests.stores.valkey_server import free_port, server

TURNS = 14
KILLED = 9


def turn(number: int) -> list[Message]:
    text = f"The key number {number} is {number * 7_919 % 9_973}, and hangs in the mill behind the door. " * 2
    return [user(text, id=f"u{number}"), assistant(f"Noted {number}.", id=f"a{number}")]


def told(url: str, acknowledged: Callable[[int], None]) -> None:
    with AgentContext(session_id="kills", store=url, context_window=500, counter=RatioCounter()) as ctx:
        stored = {message.id for message in ctx.messages()}
        for number in range(TURNS):
            if missing := [message for message in turn(number) if message.id not in stored]:
                ctx.add(missing)
            acknowledged(number)


def killed_at(url: str, place: int, file: Path) -> int:
    """Tells the turns in a child that dies at a place: before the round trip of an even one, after that of an odd one."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    calls, run = 0, ValkeyServer.run

    def counted(self: ValkeyServer, *args: object, **options: object) -> object:
        nonlocal calls
        calls += 1
        if 2 * calls == place:
            os._exit(KILLED)
        found = run(self, *args, **options)  # type: ignore[arg-type]
        if 2 * calls + 1 == place:
            os._exit(KILLED)
        return found

    try:
        ValkeyServer.run = counted  # type: ignore[method-assign, assignment]
        with file.open("a", buffering=1) as acknowledged:
            told(url, lambda number: print(number, file=acknowledged) or acknowledged.flush())  # type: ignore[func-returns-value]
        os._exit(0)
    except BaseException:
        os._exit(1)


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    port = free_port()
    with server(tmp_path_factory.mktemp("kills"), port):
        yield port


def test_a_kill_at_any_round_trip_loses_and_doubles_nothing(port: int, tmp_path: Path) -> None:
    url = f"valkey://127.0.0.1:{port}"
    expected = [message.text for number in range(TURNS) for message in turn(number)]
    for place in range(2, 2_000):
        with redis.Redis(port=port) as client:
            client.flushall()
        file = tmp_path / str(place)
        ended = killed_at(url, place, file)
        if ended == 0:
            break
        assert ended == KILLED
        last = max(map(int, file.read_text().split()), default=-1)
        with AgentContext(session_id="kills", store=url, context_window=500, counter=RatioCounter()) as ctx:
            texts = [message.text for message in ctx.messages()]
            assert texts == expected[: len(texts)]
            assert len(texts) >= 2 * (last + 1)
        told(url, lambda _: None)
        with AgentContext(session_id="kills", store=url, context_window=500, counter=RatioCounter()) as ctx:
            assert [message.text for message in ctx.messages()] == expected
            assert ctx.usage().compactions > 0
            assert "number 3 is" in ctx.search("key number 3")[0].excerpt
    assert place > 60
