"""Which golden sessions there are, how one is run, and where their hashes are kept."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path

from tests.golden.setting import Setting
from tests.golden.trace import Trace

STORED = Path(__file__).with_name("sessions.jsonl")
FACES = {
    "engine": ("engine_face", "run", 60),
    "chain": ("langchain_faces", "run_chain", 30),
    "chat": ("langchain_faces", "run_chat", 30),
    "node": ("langchain_faces", "run_node", 30),
    "agent": ("langchain_faces", "run_agent", 30),
    "history": ("langchain_faces", "run_history", 30),
    "memory": ("llamaindex_faces", "run_memory", 30),
    "llm": ("llamaindex_faces", "run_llm", 30),
    "wrapped": ("llamaindex_faces", "run_wrapped", 30),
    "llama_agent": ("llamaindex_faces", "run_agent", 30),
}
_FIRST_SEEDS = {name: 1_000 * (number + 1) for number, name in enumerate(FACES)}


def seeds(face: str) -> range:
    """The seeds of a face's sessions: the thousands tell the face."""
    first = _FIRST_SEEDS[face]
    return range(first, first + FACES[face][2])


def face_of(seed: int) -> str:
    """Returns the face that a seed belongs to; ValueError for one that has no session."""
    for face in FACES:
        if seed in seeds(face):
            return face
    raise ValueError(f"seed {seed} has no session: {', '.join(f'{f} {s.start}-{s.stop - 1}' for f, s in ranges())}")


def ranges() -> list[tuple[str, range]]:
    return [(face, seeds(face)) for face in FACES]


def play(seed: int) -> Trace:
    """Runs one session from its seed."""
    module, name, _ = FACES[face_of(seed)]
    with offline(), ExitStack() as resources:
        setting = Setting.of(seed, resources)
        getattr(import_module(f"tests.golden.{module}"), name)(setting)
    return setting.trace


@contextmanager
def offline() -> Iterator[None]:
    """No count may depend on a table that some machine has to fetch."""
    before = os.environ.get("CTXFOLD_OFFLINE")
    os.environ["CTXFOLD_OFFLINE"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["CTXFOLD_OFFLINE"]
        else:
            os.environ["CTXFOLD_OFFLINE"] = before


def stored() -> dict[int, list[str]]:
    """The hashes of every session's steps, by seed."""
    lines = map(json.loads, STORED.read_text().splitlines())
    return {line["seed"]: line["steps"] for line in lines}


def write(faces: Collection[str]) -> int:
    """Runs the sessions of these faces and stores their hashes beside the others'; returns how many were run."""
    made = {seed: play(seed).hashes() for face in faces for seed in seeds(face)}
    kept = {**(stored() if STORED.exists() else {}), **made}
    lines = [
        json.dumps({"seed": seed, "face": face, "steps": kept[seed]})
        for face, its_seeds in ranges()
        for seed in its_seeds
        if seed in kept
    ]
    STORED.write_text("\n".join(lines) + "\n")
    return len(made)


def first_difference(seed: int, expected: list[str]) -> str | None:
    """Names the first step of a session that differs from the stored one; None when none does."""
    trace = play(seed)
    found = trace.hashes()
    if found == expected:
        return None
    same = next(
        (n for n, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b), min(len(found), len(expected))
    )
    name = trace.steps[same][0] if same < len(trace.steps) else "(missing)"
    return f"{face_of(seed)} seed {seed}, step {name}: `python -m tests.golden --show {seed}` in both trees, then diff"
