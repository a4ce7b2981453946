"""Recorded shapes of Converse over a real socket, sync and async, however the network cuts them; and the requests after them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ctxfold import open_backend
from ctxfold.backends.converse_parse import ConverseParser
from ctxfold.backends.http_backend import HttpBackend
from ctxfold.stream import Fold
from tests.wire.raw_server import RawServer
from tests.wire.vector_runs import (
    ASKED,
    KEY,
    MODEL,
    check,
    check_echo,
    check_reply,
    cuts,
    frames,
    play,
    run_async,
    run_sync,
    vectors,
)

ALL = vectors("vectors_converse.jsonl")
GOOD = [v for v in ALL if v["expected"]["error"] is None]


def backend(server: RawServer) -> HttpBackend:
    return open_backend("bedrock", MODEL, base_url=server.base_url.removesuffix("/v1"), api_key=KEY, max_retries=0)


def test_all_of_them_are_here() -> None:
    assert len(ALL) == 12


@pytest.mark.parametrize("vector", ALL, ids=lambda v: v["name"])
def test_vector_sync(vector: dict[str, Any]) -> None:
    with RawServer(play(vector)) as server, backend(server) as service:
        check(vector, run_sync(service), service)
        assert server.paths == [f"/model/{MODEL}/converse-stream"]
        assert server.headers[0]["authorization"] == f"Bearer {KEY}"
        assert server.headers[0]["accept"] == "application/vnd.amazon.eventstream"


@pytest.mark.parametrize("vector", ALL, ids=lambda v: v["name"])
async def test_vector_async(vector: dict[str, Any]) -> None:
    with RawServer(play(vector)) as server:
        async with backend(server) as service:
            check(vector, await run_async(service), service)


@pytest.mark.parametrize("vector", ALL, ids=lambda v: v["name"])
def test_the_network_may_cut_anywhere(vector: dict[str, Any]) -> None:
    """Read sync and async in turns, so that each way meets every other cut."""
    plays = [play(vector, pieces) for pieces in cuts(b"".join(frames(vector)))]
    with RawServer(*plays) as server, backend(server) as service:
        for number in range(len(plays)):
            check(vector, asyncio.run(run_async(service)) if number % 2 else run_sync(service), service)


@pytest.mark.parametrize("vector", GOOD, ids=lambda v: v["name"])
def test_a_stream_that_answers_a_plain_request_is_read(vector: dict[str, Any]) -> None:
    with RawServer(play(vector)) as server, backend(server) as service:
        reply = service.send(ASKED)
        check_reply(vector, reply)
        assert server.paths == [f"/model/{MODEL}/converse"]


@pytest.mark.parametrize("vector", GOOD, ids=lambda v: v["name"])
def test_the_turn_goes_back_after_a_line_of_json(vector: dict[str, Any]) -> None:
    with open_backend("bedrock", MODEL, region="eu-west-1", api_key=KEY) as service:
        parser, fold = ConverseParser(service.profile), Fold("a1", MODEL)
        for chunk in (*parser.feed(b"".join(frames(vector))), *parser.close()):
            fold.feed(chunk)
        message = fold.close().message
        restored = service.message_from_jsonl(service.message_to_jsonl(message))
        assert restored == message
        check_echo(vector, restored, service)
