"""Benchmarks: `python -m tests.benchmarks [name ...] [--quick]`. Times are printed, never asserted; compare ratios of one run."""

BENCHMARKS = (
    "per_turn",
    "opening",
    "prefix",
    "streaming",
    "real_prefix",
    "recall_latency",
    "encryption",
    "agent_run",
    "agent_turn",
    "llamaindex_put_get",
    "summary_calls",
    "agents_50",
    "hostile_text",
    "excerpts",
    "pages",
)
# over public conversations, or servers of their own: see README.md
SHOWS = (
    "survival",
    "planted_facts",
    "reader",
    "bad_summariser",
    "tau_prefix",
    "evidence",
    "agent_state",
    "pruning",
    "faults",
    "scale",
    "stores",
    "checkpoints",
    "conformance",
    "memories",
    "failover",
    "durable",
    "answers",
)
