"""Lists changes of the sources that a test has to notice: a module for each area, and `python -m tests.mutants` to try them."""

from __future__ import annotations

from tests.mutants import (
    adapters,
    compaction,
    engine,
    history,
    langchain,
    llamaindex,
    retrieval,
    sessions,
    stores,
    transcripts,
    wires,
)
from tests.mutants.mutant import Mutant

AREAS: dict[str, tuple[Mutant, ...]] = {
    "adapters": adapters.MUTANTS,
    "compaction": compaction.MUTANTS,
    "engine": engine.MUTANTS,
    "history": history.MUTANTS,
    "langchain": langchain.MUTANTS,
    "llamaindex": llamaindex.MUTANTS,
    "retrieval": retrieval.MUTANTS,
    "sessions": sessions.MUTANTS,
    "stores": stores.MUTANTS,
    "transcripts": transcripts.MUTANTS,
    "wires": wires.MUTANTS,
}
MUTANTS: tuple[Mutant, ...] = tuple(mutant for mutants in AREAS.values() for mutant in mutants)
