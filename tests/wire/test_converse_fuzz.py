"""Mutated event streams of Converse: each ends in a typed error or a whole reply.

Payloads are mutated inside frames with right checksums, since a wrong one ends the stream before anything is read; and bytes are
mutated as they travel. CTXFOLD_FUZZ multiplies their number: 7 plays more than 20,000.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from ctxfold import BackendError, CtxError, Reply
from ctxfold.backends.converse_parse import ConverseParser, EventStreamDecoder
from ctxfold.backends.profile import load_profile
from ctxfold.messages import validated
from ctxfold.stream import Fold
from ctxfold.testing.served_converse import event_frame
from tests.wire.test_fuzz import cut_into_reads, flipped, patched, retyped
from tests.wire.vector_runs import frames, vectors

TOTAL = 3_000 * int(os.environ.get("CTXFOLD_FUZZ", "1"))
SEED = 20_261_123
PROFILE = load_profile("bedrock")
STREAMS = [v for v in vectors("vectors_converse.jsonl") if v["status"] == 200]
WHOLE = {v["name"]: b"".join(frames(v)) for v in STREAMS}


def split(vector: dict[str, Any]) -> list[tuple[dict[str, str], bytes]]:
    """The frames of a vector that are whole, as headers and payloads."""
    found: list[tuple[dict[str, str], bytes]] = []
    with contextlib.suppress(BackendError):
        found += [(dict(frame.headers), frame.payload) for frame in EventStreamDecoder().feed(WHOLE[vector["name"]])]
    return found


def mutated(vector: dict[str, Any], rng: random.Random) -> bytes:
    kind = rng.randrange(8)
    if kind == 0:
        return flipped([WHOLE[vector["name"]]], rng)[0]
    if kind == 1:
        return b"".join(patched([WHOLE[vector["name"]]], rng))
    messages = split(vector)
    at = rng.randrange(len(messages))
    headers, payload = messages[at]
    match kind:
        case 2:
            messages[at] = (headers, b"".join(flipped([payload or b"{}"], rng)))
        case 3:
            messages[at] = ({**headers, rng.choice(sorted(headers)): rng.choice(("", "x", "event", "error"))}, payload)
        case 4:
            del messages[at]
        case 5:
            messages.insert(rng.randrange(len(messages)), (headers, payload))
        case 6:
            rng.shuffle(messages)
        case _:
            messages[at] = (headers, b"".join(retyped([payload], rng)))
    return b"".join(event_frame(*message) for message in messages)


def outcome(reads: Sequence[bytes]) -> Reply | BackendError:
    parser, fold = ConverseParser(PROFILE), Fold("a1")
    for data in (*reads, None):
        for chunk in parser.close() if data is None else parser.feed(data):
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


def check(found: Reply | BackendError) -> None:
    if isinstance(found, BackendError):
        assert found.kind
        return
    assert found.finish_reason
    assert found.message.parts or found.finish_reason != "tool_calls", "a model may end its turn without a word"
    with contextlib.suppress(CtxError):
        validated(found.message)


@pytest.mark.parametrize("vector", STREAMS, ids=lambda v: v["name"])
def test_a_stream_cut_at_any_byte_is_whole_or_an_error(vector: dict[str, Any]) -> None:
    data, expected = WHOLE[vector["name"]], vector["expected"]
    for place in range(len(data) + 1):
        found = outcome([data[:place]])
        check(found)
        if isinstance(found, Reply):
            assert expected["error"] is None
            assert (found.message.reasoning, found.message.text) == (expected["reasoning"], expected["content"])
            assert len(found.message.tool_calls) == len(expected["tool_calls"])


def test_mutated_streams() -> None:
    rng, outcomes = random.Random(SEED), Counter[str]()
    for number in range(TOTAL):
        vector = STREAMS[number % len(STREAMS)]
        data = mutated(vector, rng)
        try:
            found = outcome(cut_into_reads(data, rng))
            check(found)
        except BaseException as error:
            error.add_note(f"{vector['name']}, seed {SEED}, number {number}: {data!r}")
            raise
        outcomes[type(found).__name__] += 1
    print(f"seed {SEED}: {dict(outcomes)}")
    assert min(outcomes.values()) > TOTAL // 20
