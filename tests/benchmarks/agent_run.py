"""One long agent run: 300 tool calls of 40 kB each through a 32k window, on a server as strict as DeepSeek; peers beside."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ctxfold import Prices
from ctxfold.backends.openai_chat import canonical_lines
from ctxfold.testing import ModelServer, PrefixStats, Scripted, ScriptedCall
from ctxfold.testing import model as lookup
from ctxfold.tokens.text import text_counter
from tests.benchmarks.prefix import common
from tests.benchmarks.sheets import Cell, Sheet
from tests.support.summaries import asks_on_live_prefix

__all__ = ["QUESTIONS", "Run", "agent_run", "facts", "folded", "output", "run"]

WINDOW = 32_000
CALLS, QUICK_CALLS = 300, 3
OUTPUT_CHARS = 40_000
SYSTEM = "You watch the nightly jobs. Run each job once, in order, and report when all of them are done."
SUITES = ("payments", "ledger", "search", "mail", "billing", "export", "audit")
PRICES = Prices.relative()  # cached read 0.1, write 1.25, output 5, in units of a plain input token
QUESTIONS = (
    ("first lines", "Which revision was {name} checked out at?", "r{revision}"),
    ("an error in the middle", "Which checksum did {name} expect?", "{checksum}"),
    ("last lines", "Which exit code did {name} end with?", "{code}"),
)

Middleware = Callable[[Any], Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Run:
    """What a run came to: model calls that were answered, requests that were refused, and the agent's requests as bytes."""

    name: str
    calls: int
    refused: int
    failure: str
    bodies: tuple[bytes, ...]
    traffic: PrefixStats
    output_tokens: int
    summaries: int
    seconds: float
    found: tuple[int, ...] = ()

    @property
    def reuse(self) -> float:
        """Bytes of the agent's requests that stood at the same place in its request before, over all of their bytes."""
        shared = sum(common(a, b) for a, b in itertools.pairwise(self.bodies))
        return shared / sum(map(len, self.bodies))

    @property
    def cost(self) -> float:
        """In plain input tokens, summaries included; what no earlier request began with is written to the cache."""
        sent, cached = self.traffic.prompt_tokens, self.traffic.cached_tokens
        return (
            cached * PRICES.cache_read_per_mtok
            + (sent - cached) * PRICES.cache_write_per_mtok
            + self.output_tokens * PRICES.output_per_mtok
        )


def facts(job: int) -> dict[str, str]:
    """What only the output of this job says: one value in its first lines, one in the middle, one in its last lines.

    Jobs have names, and codes look like no other number: recall goes by words, and "1" stands in every line of every log.
    """
    return {
        "name": f"job J{1_000 + job}",
        "revision": str(10_000 + job * 37),
        "checksum": f"{job * 2_654_435_761 % 2**32:08x}",
        "code": str(7_000 + job * 7 % 1_800),
    }


def output(job: int) -> str:
    """A build log of 40 kB."""
    known = facts(job)
    suite = SUITES[job % len(SUITES)]
    lines = [f"Now {known['name']} is checked out at revision r{known['revision']}, suite {suite}."]
    middle, total = 0, len(lines[0])
    end = f"Now {known['name']} ends with exit code {known['code']}."
    for step in itertools.count(1):
        line = (
            f"step {step} of suite {suite}: compiled part_{job}_{step}.py, nothing to report, took {step * 31 % 900} ms"
        )
        if total > OUTPUT_CHARS // 2 and not middle:
            middle = step
            line = f"ERROR step {step}: checksum mismatch, {known['name']} expected checksum {known['checksum']}."
        total += len(line) + 1
        if total > OUTPUT_CHARS - len(end):
            break
        lines.append(line)
    return "\n".join([*lines, end])


class _Player:
    """The agent's model: one job after the other, then a report; questions and summaries are left to `lookup`."""

    def __init__(self, calls: int) -> None:
        self.left = calls
        self.answered = self.summaries = self.output_tokens = 0
        self._done = False
        self._count = text_counter(encoding="o200k_base", allow_download=False).count

    def __call__(self, body: Any) -> Any:
        reply = self._reply(body)
        if isinstance(reply, Scripted):
            said = (reply.content, reply.reasoning, *(f"{c.name}{c.arguments}" for c in reply.tool_calls))
            self.output_tokens += sum(map(self._count, said))
        return reply

    def _reply(self, body: Any) -> Any:
        live = asks_on_live_prefix(body)
        if live or not body.get("tools") or self._done:
            self.summaries += live or not self._done
            return lookup.reply(body, count=self._count, room=2_000, thinking=True)
        self.answered += 1
        if self.left == 0:
            self._done = True
            return Scripted("All jobs are done.", reasoning="That was the last one.")
        self.left -= 1
        job = self.answered
        why = f"Job {job - 1} has ended, so job {job} is next; nothing in its log asks for another order."
        return Scripted(reasoning=why, tool_calls=(ScriptedCall("run_job", json.dumps({"job": job})),))


def agent_run(name: str, calls: int, middleware: Middleware, *, questions: int = 0) -> Run:
    """The run with that middleware around one agent; `questions` jobs are asked about afterwards, one after the other.

    Without a checkpointer: it would keep every state of a list that grows to 12 MB.
    """
    from langchain.agents import create_agent
    from langchain_core.tools import tool
    from langchain_deepseek import ChatDeepSeek

    from langchain_ctx import with_reasoning

    @tool
    def run_job(job: int) -> str:
        """Runs a nightly job and answers with its log."""
        return output(job)

    player = _Player(calls)
    with ModelServer(model="m", script=player, strict="deepseek", context_window=WINDOW) as server:
        model = with_reasoning(ChatDeepSeek(model="m", api_base=server.base_url, api_key="x", max_retries=0))  # type: ignore[arg-type]
        agent = create_agent(model, [run_job], system_prompt=SYSTEM, middleware=middleware(model))
        past: list[Any] = []

        def ask(text: str) -> tuple[str, str]:
            try:
                state = agent.invoke({"messages": [*past, ("user", text)]}, {"recursion_limit": 10 * calls + 100})
            except Exception as error:
                return "", f"{type(error).__name__}: {error}"
            past[:] = state["messages"]
            return state["messages"][-1].text, ""

        start = time.perf_counter()
        answer, failure = ask(f"Run all {calls} jobs.")
        seconds = time.perf_counter() - start
        if not failure and answer != "All jobs are done.":
            failure = f"ended with {answer!r}"
        agents = [r.body for r in server.requests if r.body.get("tools") and not asks_on_live_prefix(r.body)]
        before = Run(
            name,
            calls=player.answered,
            refused=len(server.requests) - server.prefix_stats().requests,
            failure=failure,
            bodies=tuple(canonical_lines((), [*body["tools"], *body["messages"]]) for body in agents),
            traffic=server.prefix_stats(),
            output_tokens=player.output_tokens,
            summaries=player.summaries,
            seconds=seconds,
        )
        return before if failure or not questions else _asked(before, ask, calls, questions)


def _asked(before: Run, ask: Callable[[str], tuple[str, str]], calls: int, count: int) -> Run:
    jobs = range(1, calls + 1, max(1, calls // count))
    found = [0] * len(QUESTIONS)
    for job, (place, (_, question, wanted)) in itertools.product(jobs, enumerate(QUESTIONS)):
        answer, _ = ask(question.format(**facts(job)))
        found[place] += wanted.format(**facts(job)) in answer
    return replace(before, found=tuple(found))


def folded(_model: Any, **policy: Any) -> Sequence[Any]:
    """Ours, in one line."""
    from langchain_ctx import ContextMiddleware

    return [ContextMiddleware(context_window=WINDOW, **policy)]


def _summarization(model: Any, **settings: Any) -> Sequence[Any]:
    from langchain.agents.middleware import SummarizationMiddleware

    return [SummarizationMiddleware(model, **settings)]


def _clearing(_model: Any, **settings: Any) -> Sequence[Any]:
    from langchain.agents.middleware.context_editing import ClearToolUsesEdit, ContextEditingMiddleware

    return [ContextEditingMiddleware(edits=[ClearToolUsesEdit(**settings)])]


# a window holds two outputs and no third: LangChain's own keep more than that by default, so each is also shown with the
# settings under which it gets furthest
MIDDLEWARE: tuple[tuple[str, Middleware], ...] = (
    ("ctxfold", folded),
    ("ctxfold, excerpts of 4 % of the budget", partial(folded, excerpt_ratio=0.04)),
    ("ctxfold, no recalled passages", partial(folded, recall_ratio=0)),
    ("no middleware", lambda _model: []),
    ("SummarizationMiddleware at 24,000 tokens", partial(_summarization, trigger=("tokens", 24_000))),
    (
        "SummarizationMiddleware at 8,000, keeps 2 messages",
        partial(_summarization, trigger=("tokens", 8_000), keep=("messages", 2)),
    ),
    ("ClearToolUsesEdit at 24,000", partial(_clearing, trigger=24_000)),
    (
        "ClearToolUsesEdit at 8,000, keeps 1, inputs too",
        partial(_clearing, trigger=8_000, keep=1, clear_tool_inputs=True),
    ),
)


def run(*, quick: bool = False) -> list[Sheet]:
    """One table: ours, LangChain's own, and the bare agent."""
    calls, questions = (QUICK_CALLS, 1) if quick else (CALLS, 8)
    runs = [agent_run(name, calls, middleware, questions=questions) for name, middleware in MIDDLEWARE]
    return [
        Sheet(
            f"An agent run of {calls} tool calls, outputs of {OUTPUT_CHARS:,} characters, window of {WINDOW:,} tokens",
            (
                "middleware",
                "calls made",
                "refused",
                "bytes reused",
                "prompt tokens",
                "cached",
                "summaries",
                "cost, k",
                "s",
                "facts: first, error, last",
            ),
            tuple(_row(r, calls) for r in runs),
            "Bytes reused: of the agent's requests, in its request before. Prompt tokens (cached: by whole messages) and cost "
            "count summaries too; cost in plain input tokens: cached read 0.1, write 1.25, output 5. Facts: of "
            f"{len(range(1, calls + 1, max(1, calls // questions)))} jobs asked about afterwards, how many values from the "
            "output's first line, an error line in the middle and the last line the model could still tell. Target: all calls, "
            "none refused, reuse 97 %.",
        )
    ]


def _row(run: Run, calls: int) -> tuple[Cell, ...]:
    return (
        run.name,
        f"{min(run.calls, calls)} of {calls}",
        f"{run.refused}",
        f"{run.reuse:.1%}",
        run.traffic.prompt_tokens,
        f"{run.traffic.cached_tokens:,}",
        f"{run.summaries}",
        run.cost / 1e3,
        run.seconds,
        ", ".join(map(str, run.found)) if run.found else "-",
    )
