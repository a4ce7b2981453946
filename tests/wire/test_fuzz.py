"""Mutated streams: each ends in a typed error or a whole reply, never in another exception, a hang, or a lost bound.

Every recorded stream cut at every byte, and 20,000 from fixed seeds with bits flipped, bytes inserted or removed, values
of another type, frames dropped, doubled, swapped or taken from another recording; a few hundred of them over real sockets.
CTXFOLD_FUZZ multiplies their number.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from ctxfold import BackendError, CtxError, Message, Reply, Request, open_backend, user
from ctxfold.backends.anthropic import MessagesParser
from ctxfold.backends.errors import http_failure
from ctxfold.backends.gemini import GeminiParser
from ctxfold.backends.http_backend import HttpBackend
from ctxfold.backends.openai_chat import ChatParser
from ctxfold.backends.openai_responses_parse import ResponsesParser
from ctxfold.backends.profile import load_profile
from ctxfold.backends.response_parser import MAX_EVENT_BYTES, SseDecoder
from ctxfold.messages import validated
from ctxfold.stream import Fold
from tests.wire.raw_server import Play, RawServer

SCALE = int(os.environ.get("CTXFOLD_FUZZ", "1"))
TOTAL, PARTS, SOCKETS = 20_000 * SCALE, 4, 300 * SCALE
SEED = 20_261_121

HERE = Path(__file__).parent
ALL = [json.loads(line) for line in (Path(__file__).parent / "vectors.jsonl").read_text(encoding="utf-8").splitlines()]
PARSERS = {
    "openai_chat": ChatParser,
    "anthropic_messages": MessagesParser,
    "gemini": GeminiParser,
    "openai_responses": ResponsesParser,
}
FURTHER = {
    "gemini": "vectors_gemini.jsonl",
    "openai_responses": "vectors_responses.jsonl",
}  # wires with recordings of their own; 20,000 mutants of each with CTXFOLD_FUZZ=8
PROVIDERS = {"openai_responses": "openai"}
STEPS = {
    "openai_responses": 1 if SCALE > 1 else 11
}  # long recordings, which are cut at every byte only when there is time
VECTORS = [v for v in ALL if load_profile(v["provider"]).wire in PARSERS]
FRAMES = {v["name"]: [frame.encode(v["frame_encoding"]) for frame in v["frames"]] for v in VECTORS}
REQUEST = Request((user("Hello", id="u"),))
Outcome: TypeAlias = Reply | BackendError


def cut_into_reads(data: bytes, rng: random.Random) -> list[bytes]:
    """The bytes as a network might bring them: one by one, in pieces, or all at once."""
    size = rng.choice((1, 7, 64, 1_000, len(data) or 1))
    if size == 1 and len(data) > 600:
        size = 3
    return [data[i : i + size] for i in range(0, len(data), size)]


def flipped(frames: list[bytes], rng: random.Random) -> list[bytes]:
    data = bytearray(b"".join(frames))
    for _ in range(rng.randint(1, 8)):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return [bytes(data)]


def patched(frames: list[bytes], rng: random.Random) -> list[bytes]:
    """Bytes removed, and others put in that mean something to a decoder."""
    data = bytearray(b"".join(frames))
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(data))
        del data[place : place + rng.randint(0, 12)]
        data[place:place] = rng.choice(
            (
                b"\n",
                b"\r",
                b"\n\n",
                b"data: ",
                b"\xff",
                b"\xe2\x80\xa8",
                b"null",
                b'"',
                b"{}",
                b"[[",
                b"\\ud83d",
                b"<think>",
            )
        )
    return [bytes(data)]


def doubled(frames: list[bytes], rng: random.Random) -> list[bytes]:
    place = rng.randrange(len(frames))
    return [*frames[: place + 1], *frames[place : place + rng.randint(1, 3)], *frames[place + 1 :]]


def reordered(frames: list[bytes], rng: random.Random) -> list[bytes]:
    return rng.sample(frames, len(frames))


def dropped(frames: list[bytes], rng: random.Random) -> list[bytes]:
    return [frame for frame in frames if rng.random() > 0.25]


def spliced(frames: list[bytes], rng: random.Random) -> list[bytes]:
    """The head of one recording with the tail of another."""
    other = rng.choice(list(FRAMES.values()))
    return [*frames[: rng.randrange(len(frames) + 1)], *other[rng.randrange(len(other)) :]]


def retyped(frames: list[bytes], rng: random.Random) -> list[bytes]:
    """A value of another type in place of one in a payload."""
    data = b"".join(frames)
    for _ in range(rng.randint(1, 3)):
        places = [i for i in range(len(data)) if data[i : i + 2] == b'":']
        if not places:
            break
        start = rng.choice(places) + 2
        end = min((data.find(c, start) for c in (b",", b"}", b"]") if data.find(c, start) > 0), default=len(data))
        data = data[:start] + rng.choice(VALUES) + data[end:]
    return [data]


VALUES = (
    b"null",
    b"0",
    b"-1",
    b"1e400",
    b"true",
    b'"x"',
    b"[]",
    b"{}",
    b"[1]",
    b'{"a":{}}',
    b"NaN",
    b'"\\ud800"',
    b"9" * 40,
)
MUTATIONS: tuple[Callable[[list[bytes], random.Random], list[bytes]], ...] = (
    flipped,
    patched,
    doubled,
    reordered,
    dropped,
    spliced,
    retyped,
)


def recorded(wire: str) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (HERE / FURTHER[wire]).read_text(encoding="utf-8").splitlines()]
    rows = [{**row, "wire": wire, "provider": PROVIDERS.get(wire, row["provider"])} for row in rows]
    FRAMES.update({v["name"]: [frame.encode(v["frame_encoding"]) for frame in v["frames"]] for v in rows})
    return rows


def cuts(vectors: Sequence[dict[str, Any]] = VECTORS, *, step: int = 1) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Every recording cut at every byte, or at each `step` bytes."""
    for vector in vectors:
        whole = b"".join(FRAMES[vector["name"]])
        for place in (*range(0, len(whole), step), len(whole)):
            yield vector, whole[:place]


def mutants(
    count: int, rng: random.Random, vectors: Sequence[dict[str, Any]] = VECTORS
) -> Iterator[tuple[dict[str, Any], bytes]]:
    for number in range(count):
        vector = vectors[number % len(vectors)]
        frames = MUTATIONS[number // len(vectors) % len(MUTATIONS)](FRAMES[vector["name"]], rng)
        yield vector, b"".join(frames)


def parsed(vector: dict[str, Any], reads: Sequence[bytes]) -> Outcome:
    """What the decoder, the parser and the fold make of it: the same steps as for an answer over a socket."""
    profile = load_profile(vector["provider"]).for_wire(vector.get("wire"))
    if vector["status"] != 200:
        return http_failure(profile, vector["status"], b"".join(reads))
    parser, fold = PARSERS[profile.wire](profile), Fold("a1")
    for data in (*reads, None):
        chunks = parser.close() if data is None else parser.feed(data)
        for chunk in chunks:
            fold.feed(chunk)
        if parser.done or parser.error is not None:
            break
    fold.partial()
    if parser.error is not None:
        return parser.error
    try:
        return fold.close()
    except BackendError as error:
        return error


def check(outcome: Outcome) -> None:
    """A typed error that says something, or a reply that is whole and can be stored or is refused with a typed error."""
    if isinstance(outcome, BackendError):
        assert outcome.kind
        assert str(outcome)
        return
    message = outcome.message
    assert outcome.finish_reason
    assert message.finish_reason == outcome.finish_reason
    assert message.parts or outcome.finish_reason not in ("stop", "tool_calls")
    with contextlib.suppress(CtxError):  # such as a call whose arguments are no object
        validated(message)


def checked(vector: dict[str, Any], data: bytes, rng: random.Random, seed: int) -> Outcome:
    """The stream stands in the notes of what it makes fail."""
    try:
        outcome = parsed(vector, cut_into_reads(data, rng))
        check(outcome)
    except BaseException as error:
        error.add_note(f"{vector['name']}, seed {seed}: {data!r}")
        raise
    return outcome


def said(message: Message) -> tuple[str, str, list[tuple[str, str, str]]]:
    return message.reasoning, message.text, [(c.id, c.name, c.arguments) for c in message.tool_calls]


def test_a_recording_cut_at_any_byte_is_whole_or_an_error() -> None:
    rng, outcomes = random.Random(SEED), Counter[str]()
    for vector, data in cuts():
        outcome = checked(vector, data, rng, SEED)
        outcomes[type(outcome).__name__] += 1
        if isinstance(outcome, Reply):
            wanted = vector["expected"]
            calls = [(c["id"], c["name"], c["arguments"]) for c in wanted["tool_calls"]]
            assert wanted["error"] is None
            assert said(outcome.message) == (wanted["reasoning"], wanted["content"], calls)
    print(f"seed {SEED}: {dict(outcomes)}")
    assert outcomes["BackendError"] > outcomes["Reply"] > 0


@pytest.mark.parametrize("part", range(PARTS))
def test_mutated_streams(part: int) -> None:
    seed = SEED + part
    rng = random.Random(seed)
    outcomes = Counter(type(checked(vector, data, rng, seed)).__name__ for vector, data in mutants(TOTAL // PARTS, rng))
    print(f"seed {seed}: {dict(outcomes)}")
    assert min(outcomes["BackendError"], outcomes["Reply"]) > TOTAL // PARTS // 20


@pytest.mark.parametrize("wire", FURTHER)
def test_streams_of_further_wires_cut_and_mutated(wire: str) -> None:
    rng, outcomes, vectors = random.Random(SEED), Counter[str](), recorded(wire)
    for vector, data in cuts(vectors, step=STEPS.get(wire, 1)):
        outcome = checked(vector, data, rng, SEED)
        if isinstance(outcome, Reply):
            assert outcome.message.text == vector["expected"]["content"]
            assert len(outcome.message.tool_calls) == len(vector["expected"]["tool_calls"])
    for vector, data in mutants(TOTAL // 8, rng, vectors):
        outcomes[type(checked(vector, data, rng, SEED)).__name__] += 1
    print(f"seed {SEED}: {dict(outcomes)}")
    assert min(outcomes["BackendError"], outcomes["Reply"]) > TOTAL // 8 // 20


class Sockets:
    """Mutated streams played over a socket, and what they give in process."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.pairs = [(v, d) for v, d in mutants(SOCKETS // 4, rng) if v["status"] == 200]
        self.reads = [cut_into_reads(data, rng) for _, data in self.pairs]
        self.ends = [rng.choices(("eof", "abort", "hang"), (90, 8, 2))[0] for _ in self.pairs]
        self.seed = seed

    def plays(self) -> list[Play]:
        rows = zip(self.pairs, self.reads, self.ends, strict=True)
        return [Play(reads, headers=vector["headers"], then=end) for (vector, _), reads, end in rows]

    def backend(self, server: RawServer, number: int) -> HttpBackend:
        """Patient, where the connection ends by itself."""
        provider, patience_s = self.pairs[number][0]["provider"], 0.3 if self.ends[number] == "hang" else 60
        return open_backend(
            provider,
            "m",
            base_url=server.base_url,
            api_key="k",
            max_retries=0,
            idle_timeout_s=patience_s,
            timeout_s=2 * patience_s,
        )

    def compare(self, number: int, outcome: Outcome) -> None:
        (vector, data), end = self.pairs[number], self.ends[number]
        try:
            check(outcome)
            expected = parsed(vector, self.reads[number])
            if end != "eof" and not isinstance(outcome, Reply):
                return  # the connection's own end may come first
            assert type(outcome) is type(expected)
            if isinstance(outcome, Reply) and isinstance(expected, Reply):
                assert [part.type for part in outcome.message.parts] == [part.type for part in expected.message.parts]
                assert outcome.message.text == expected.message.text
            elif isinstance(outcome, BackendError) and isinstance(expected, BackendError):
                assert outcome.kind == expected.kind
        except BaseException as error:
            error.add_note(f"{vector['name']}, {end}, seed {self.seed}: {data!r}")
            raise


@pytest.fixture(params=[SEED + 100, SEED + 101])
def sockets(request: pytest.FixtureRequest) -> Sockets:
    return Sockets(request.param)


def test_mutated_streams_over_sockets(sockets: Sockets) -> None:
    with RawServer(*sockets.plays()) as server:
        for number in range(len(sockets.pairs)):
            fold = Fold("a1")
            outcome: Outcome
            with sockets.backend(server, number) as backend:
                try:
                    for chunk in backend.open_stream(REQUEST):
                        fold.feed(chunk)
                    outcome = fold.close()
                except BackendError as error:
                    outcome = error
            sockets.compare(number, outcome)


async def test_mutated_streams_over_sockets_async(sockets: Sockets) -> None:
    with RawServer(*sockets.plays()) as server:
        for number in range(len(sockets.pairs)):
            fold = Fold("a1")
            outcome: Outcome
            async with sockets.backend(server, number) as backend:
                try:
                    async for chunk in await backend.aopen_stream(REQUEST):
                        fold.feed(chunk)
                    outcome = fold.close()
                except BackendError as error:
                    outcome = error
            sockets.compare(number, outcome)


LIMIT = 128 * 1024
ENDLESS = {
    "line": b"x" * 8192,
    "comment": b": " + b"x" * 8192,
    "data lines": b"data: xy\n" * 1000,
    "empty data lines": b"data\n" * 1000,
    "event name": b"event: " + b"x" * 8192,
}


@pytest.mark.parametrize("piece", ENDLESS.values(), ids=ENDLESS)
def test_an_endless_event_takes_no_more_memory_than_its_limit(piece: bytes) -> None:
    decoder = SseDecoder(LIMIT)
    tracemalloc.start()
    try:
        with pytest.raises(BackendError, match=str(LIMIT)) as caught:
            while True:
                decoder.feed(piece)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert caught.value.kind == "protocol"
    assert peak < 3 * LIMIT


def test_the_limit_of_an_event_is_stated_and_holds_in_a_parser() -> None:
    parser = ChatParser(load_profile("generic"))
    fed = 0
    while parser.error is None:
        parser.feed(b"data: " + b"x" * 65_536 if fed == 0 else b"x" * 65_536)
        fed += 65_536
        assert fed <= MAX_EVENT_BYTES + 65_536
    assert parser.error.kind == "protocol"
    assert str(MAX_EVENT_BYTES) in str(parser.error)


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'{"choices":['])
@pytest.mark.parametrize("status", [200, 400])
@pytest.mark.parametrize("streamed", [False, True])
def test_nesting_too_deep_for_the_json_decoder(opening: bytes, status: int, streamed: bool) -> None:
    body = (b"data: " if streamed else b"") + opening * 200_000 + b"\n\n"
    outcome = parsed({"provider": "generic", "status": status}, [body])
    check(outcome)
    assert isinstance(outcome, BackendError)
