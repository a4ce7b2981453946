"""The recall scenario of maf-cachebench without a model, run in its own environment: prints a row per strategy as JSON.

Each strategy of the Microsoft Agent Framework that needs no model, and a session of ctxfold with its defaults, plays the same
scripted conversation. Counted are estimated tokens, those in the unbroken prefix of whole messages, and the planted facts in the
request of the question that asks for them.
"""

from __future__ import annotations

import asyncio
import json
import sys
import warnings
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ctxfold import AgentContext, Message, assistant, system, tool_result, user
from ctxfold.messages import ToolCallPart

WINDOW, OUTPUT_TOKENS = 32_000, 2_048
CACHED = 0.1  # price of a token in the prefix
SALTS = ("one", "two", "three")
NEEDS_MODEL = ("summar", "record")  # strategies whose names have these ask a model

Project = Callable[[Sequence[Any]], Awaitable[list[str]]]  # new messages to the texts of the request


class Estimate:
    id = "estimate"

    def __init__(self, tokenizer: Any) -> None:
        self.count: Callable[[str], int] = tokenizer.count_tokens


def ours(message: Any, number: int) -> Message:
    part = message.contents[0]
    match part.type:
        case "function_call":
            return assistant("", id=f"m{number}", calls=(ToolCallPart(part.call_id, part.name, part.arguments),))
        case "function_result":
            return tool_result(part.call_id, str(part.result), id=f"m{number}")
        case _:
            make = {"system": system, "user": user, "assistant": assistant}[str(message.role)]
            return make(part.text, id=f"m{number}")


def session(tokenizer: Any) -> Project:
    context = AgentContext(context_window=WINDOW, reply_reserve_tokens=OUTPUT_TOKENS, counter=Estimate(tokenizer))
    told = 0

    async def project(new: Sequence[Any]) -> list[str]:
        nonlocal told
        for message in new:
            await context.aadd(ours(message, told))
            told += 1
        window = await context.awindow(recall=True)
        texts = [json.dumps([m.role, m.text, [(c.name, c.arguments) for c in m.tool_calls]]) for m in window.messages]
        return [*texts[:-1], window.recalled, texts[-1]] if window.recalled else texts

    return project


def strategy(name: str, tokenizer: Any) -> Project:
    from agent_framework import apply_compaction  # type: ignore[import-not-found]
    from maf_cachebench import StrategyOptions, build_strategy, serialize_message  # type: ignore[import-not-found]

    options = StrategyOptions(tokenizer=tokenizer, max_context_window_tokens=WINDOW, max_output_tokens=OUTPUT_TOKENS)
    built, history = build_strategy(name, options), list[Any]()

    async def project(new: Sequence[Any]) -> list[str]:
        history.extend(new)
        return [serialize_message(m) for m in await apply_compaction(history, strategy=built, tokenizer=tokenizer)]

    return project


async def played(project: Project, salt: str, tokenizer: Any) -> dict[str, float]:
    from maf_cachebench import build_recall_scenario, common_message_prefix  # type: ignore[import-not-found]

    scenario = build_recall_scenario(salt=salt, subset_questions=True)
    turns, asks = scenario.transcript.turns, scenario.answer_turn_count
    new, before = [scenario.transcript.system], list[str]()
    sent = reused = largest = facts = 0
    for index, turn in enumerate(turns):
        request = await project([*new, *turn.request])
        sizes = [tokenizer.count_tokens(text) for text in request]
        sent, largest = sent + sum(sizes), max(largest, sum(sizes))
        reused += sum(sizes[: common_message_prefix(before, request)])
        new, before = list(turn.reply), request
        closing = index - (len(turns) - asks)
        if closing >= 0:
            scope = scenario.answer_scopes[closing]
            facts += sum(f.appears_in("\n".join(request)) for f in scenario.facts if f.scope == scope)
    return {"facts": facts, "of": len(scenario.facts), "sent": sent, "reused": reused, "largest": largest}


async def rows(salts: Sequence[str]) -> list[dict[str, Any]]:
    from maf_cachebench import build_tokenizer, strategy_names

    tokenizer = build_tokenizer("estimator")
    names = ["ctxfold", *(n for n in strategy_names() if not any(part in n for part in NEEDS_MODEL))]
    found: list[dict[str, Any]] = []
    for name in names:
        projects = [session(tokenizer) if name == "ctxfold" else strategy(name, tokenizer) for _ in salts]
        runs = [await played(p, salt, tokenizer) for p, salt in zip(projects, salts, strict=True)]
        total = {key: sum(run[key] for run in runs) for key in runs[0]}
        cost = (total["sent"] - total["reused"] * (1 - CACHED)) / len(salts)
        largest = max(run["largest"] for run in runs)
        found.append({"name": name, **total, "cost": cost, "largest": largest, "fits": largest <= WINDOW})
    return found


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps(asyncio.run(rows(SALTS[:1] if "--quick" in sys.argv else SALTS))))
