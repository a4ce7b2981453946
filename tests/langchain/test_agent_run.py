"""A long agent run with large outputs, on a server as strict as DeepSeek: `tests.benchmarks.agent_run`, with fewer calls."""

from __future__ import annotations

from tests.benchmarks.agent_run import agent_run, facts, folded, output

CALLS = 160  # two epochs: the benchmark's 300 calls reuse as much


def test_a_run_finishes_is_never_refused_and_reuses_its_prefix() -> None:
    run = agent_run("ctxfold", CALLS, folded, questions=2)
    assert (run.failure, run.calls, run.refused) == ("", CALLS + 1, 0)
    assert run.summaries >= 1
    # the first output of 10,000 tokens fits the room and is shown whole, which costs .3 of a percent in a run of this length
    assert run.reuse >= 0.965
    assert run.found == (2, 2, 2), "what the excerpts left out is still told when it is asked for"


def test_outputs_are_what_the_benchmark_says() -> None:
    text, known = output(7), facts(7)
    assert 39_000 < len(text) <= 40_000
    lines = text.splitlines()
    assert known["revision"] in lines[0]
    assert known["code"] in lines[-1]
    assert sum(known["checksum"] in line for line in lines[100:-100]) == 1
