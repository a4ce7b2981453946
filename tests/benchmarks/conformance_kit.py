"""The fixed-budget benchmark of compaction-conformance-kit, run in its own environment: prints its entries as JSON.

`python -m tests.benchmarks.conformance_kit [--stripped] [--quick]`. Stripped, the sessions lack the kit's own markers ("FACT:" and
the like), by which its entries know what to keep.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

from ctxfold import AgentContext, assistant, system, user
from ctxfold.errors import NotEnoughHistoryError

ROLES = {"user": user, "assistant": assistant, "system": system}
SEEDS = (1, 2, 3, 4)


class Characters:
    """The kit's budgets are characters."""

    id = "characters"

    def count(self, text: str) -> int:
        return len(text)


def compactor(window: Callable[[], AgentContext], text: type, stripped: Callable[[str], str]) -> type:
    class Ctxfold:
        """One session: it is told all turns in the first round, and compacted in each. The system prompt is the host's."""

        name = "ctxfold"

        def __init__(self) -> None:
            self.session: AgentContext | None = None

        def compact(self, turns: Sequence[Any], round_num: int = 1, budget_chars: int | None = None) -> Any:
            if self.session is None:
                newest = sum(len(t.text) + 1 for t in turns[-2:])  # the newest exchange always stays
                self.session = window(summary_tokens=(budget_chars or 10**6) - newest)  # type: ignore[call-arg]
                for turn in turns:
                    self.session.add(ROLES[turn.role](stripped(turn.text)))
            try:
                self.session.compact(force=True)
            except NotEnoughHistoryError:
                assert round_num > 1, "nothing is left to compact only after the first round"
            kept = [m.text for m in self.session.window().messages if m.role != "system"]
            return text(text="\n".join(kept), compactor_name=self.name, round_num=round_num)

    return Ctxfold


def main(*, quick: bool, stripped: bool) -> None:
    from compaction_kit import benchmark, compactors, corpus, semantic, semantic_corpus  # type: ignore[import-not-found]
    from compaction_kit.compacted import CompactedContext  # type: ignore[import-not-found]
    from compaction_kit.session import SeededSession, Turn  # type: ignore[import-not-found]

    headers = tuple(f"{header}: " for header in compactors._TYPE_HEADERS.values())

    def bare(text: str) -> str:
        return next((text.removeprefix(h) for h in headers if text.startswith(h)), text) if stripped else text

    def unmarked(build: Callable[[int], Any]) -> Callable[[int], Any]:
        def built(seed: int) -> Any:
            session, *rest = build(seed)
            turns = tuple(Turn(t.role, bare(t.text), t.canary_id) for t in session.turns)
            return SeededSession(turns, session.canary_positions), *rest

        return built

    benchmark.build_random_session = unmarked(corpus.build_random_session)
    benchmark.build_semantic_session = unmarked(semantic_corpus.build_semantic_session)
    benchmark.build_semantic_heldout_session = unmarked(semantic_corpus.build_semantic_heldout_session)

    def session(summary_tokens: int) -> AgentContext:
        return AgentContext(
            context_window=400_000,
            counter=Characters(),
            summary_tokens=summary_tokens,
            recall_ratio=0.0,  # nobody asks anything
            references=False,  # and nothing can be read back
            keep_last=1,
            auto_compact=False,
        )

    entries = {
        "ctxfold": compactor(session, CompactedContext, bare),  # type: ignore[arg-type]
        "semantic-checklist": semantic.SemanticChecklistCompactor,
        "update-aware-checklist": compactors.UpdateAwareChecklistCompactor,
    }
    found = benchmark.run_budget_benchmark(entries, seeds=SEEDS[:1] if quick else SEEDS)
    print(json.dumps(found["entries"]))


if __name__ == "__main__":
    main(quick="--quick" in sys.argv, stripped="--stripped" in sys.argv)
