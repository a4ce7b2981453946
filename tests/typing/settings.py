"""Settings that mypy and pyright must report: an unused ignore is an error, so each ignored line proves the report."""

from __future__ import annotations

from pathlib import Path

from ctxfold import AgentContext, Policy, TokensTrigger, ToolRule
from ctxfold.connect import SessionSettings
from ctxfold.policy.settings import PolicyFields
from ctxfold.session.context import load_snapshot
from langchain_ctx import ChatCtx


def right(path: Path, whole: Policy) -> None:
    fields: PolicyFields = {"hard_ratio": 0.8, "keep_last": 4, "memory": ("facts",)}
    settings: SessionSettings = {"context_window": 8_000, "reply_reserve_tokens": 500, "system": "Be brief."}
    with AgentContext(session_id="s", context_window=8_000, **fields) as ctx:
        ctx.set_policy(context_window=4_000, strategy="truncate", soft_ratio=0.5)
    AgentContext(**settings)
    AgentContext(context_window=8_000, max_sessions=1_000)
    AgentContext(policy=whole, trigger=TokensTrigger(at=4_000))
    AgentContext(exclude_tools=("read_memory",), tool_rules=(ToolRule(tool="browse", clear_first=True),))
    AgentContext("openai:gpt-5-mini", trigger=("tokens", 4_000), keep=("messages", 4), memory="facts")
    AgentContext(trigger=[("fraction", 0.8), {"tokens": 4_000, "messages": 9}], strategy=lambda messages: messages[-4:])
    load_snapshot(path, session_id="copy", keep_last=3)
    ChatCtx(policy={"context_window": 8_000, "hard_ratio": 0.8, "reply_reserve_tokens": None, "strategy": "truncate"})


def wrong(path: Path, ctx: AgentContext) -> None:
    AgentContext(context_window=8_000, hard_rati=0.8)  # type: ignore[call-arg]
    AgentContext(context_window=8_000, hard_ratio="most")  # type: ignore[arg-type]
    AgentContext(context_window=8_000, memory=("fact",))  # type: ignore[arg-type]
    AgentContext(context_window=8_000, max_sessions="all")  # type: ignore[arg-type]
    AgentContext(context_window="8k")  # type: ignore[arg-type]
    AgentContext(context_window=8_000, session="s")  # type: ignore[call-arg]
    load_snapshot(path, keep_lst=3)  # type: ignore[call-arg]
    ctx.set_policy(keep_last="all")  # type: ignore[arg-type]
    ctx.set_policy(max_tokens=500)  # type: ignore[call-arg]
    ChatCtx(policy={"hard_ration": 0.8})  # type: ignore[typeddict-unknown-key]
    ChatCtx(policy={"hard_ratio": "most"})  # type: ignore[typeddict-item]
