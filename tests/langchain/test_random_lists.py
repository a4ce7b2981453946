"""Random lists for 60 turns in a window of 4,000 tokens: each goes on, and calls and results are paired in each request."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_openai import ChatOpenAI

from ctxfold.testing import ModelServer, Scripted
from langchain_ctx import ChatCtx, ContextNode, with_context
from tests.langchain.faces import closed, model_settings
from tests.langchain.running import T

WINDOW, TURNS = 4_000, 60


def more(rng: random.Random, turn: int) -> list[BaseMessage]:
    """What comes before the question of a turn."""
    call = {"name": "look", "args": {"key": turn}, "id": f"c{turn}"}
    match rng.randrange(8):
        case 0:
            return [SystemMessage(f"It is {turn} o'clock. " + "Be kind. " * rng.randrange(60))]
        case 1:
            return [
                AIMessage("", tool_calls=[call]),
                ToolMessage("found. " * rng.randrange(200), tool_call_id=call["id"]),
            ]
        case 2:
            return [AIMessage("Let me look.", tool_calls=[call])]  # never answered
        case 3:
            return [ChatMessage("Be brief.", role="developer"), FunctionMessage(content="2", name="add")]
        case 4:
            return [
                AIMessage(
                    "", invalid_tool_calls=[{**call, "args": "{", "error": "no JSON", "type": "invalid_tool_call"}]
                )
            ]
        case _:
            return []


def changed(rng: random.Random, said: list[BaseMessage], *, changes: bool) -> list[BaseMessage]:
    """The list as its caller hands it in: as it is, trimmed, rewritten, or from an earlier point on."""
    match rng.randrange(12):
        case 0 if changes:
            return said[rng.randrange(len(said)) // 2 :]
        case 1 if changes:
            return [m.model_copy(update={"content": f"{m.text} (edited)"}) if rng.random() < 0.1 else m for m in said]
        case 2 if changes:
            return said[: max(1, len(said) - rng.randrange(6))]
        case _:
            return said


def paired(body: Any) -> bool:
    calls = Counter(c["id"] for m in body["messages"] for c in m.get("tool_calls") or ())
    return calls == Counter(m["tool_call_id"] for m in body["messages"] if m["role"] == "tool")


@pytest.mark.parametrize("face", ["with_context", "ChatCtx", "ContextNode"])
@pytest.mark.parametrize("ids", ["none", "all 0", "some"])
@pytest.mark.parametrize("seed", range(1))
async def test_l1_l2_l3_l7_a_list_of_any_kind_goes_on(face: str, ids: str, seed: int) -> None:
    rng = random.Random(f"{face} {ids} {seed}")
    with ModelServer(
        model="m", script=lambda _: Scripted("Fine. " + "A story. " * 30), context_window=WINDOW
    ) as server:
        model, given = ChatOpenAI(**model_settings(server.base_url)), None
        settings: dict[str, Any] = {"context_window": WINDOW}
        if face == "ContextNode":
            given = ContextNode(**settings)
            app: Any = given | model
        elif face == "with_context":
            app = given = with_context(model, **settings)
        else:
            app = given = ChatCtx(provider="openai", **model_settings(server.base_url), **settings, store="memory://")
        said: list[BaseMessage] = []
        for turn in range(TURNS):
            said = changed(rng, said, changes=ids == "none") if said else said
            said = [*said, *more(rng, turn), HumanMessage(rng.choice(["Go on.", f"Question {turn}?", "Well. " * 40]))]
            chosen = {"none": [None], "all 0": ["0"], "some": [None, "0", f"{turn}"]}[ids]
            said = [m if m.id else m.model_copy(update={"id": rng.choice(chosen)}) for m in said]
            asked = len(server.requests)
            answer = app.invoke(said, T)
            sent = [r.body for r in server.requests[asked:]]
            assert all(map(paired, sent))
            assert any(said[-1].text.strip() in str(body["messages"]) for body in sent)
            said.append(answer.model_copy(update={"id": rng.choice(chosen)}) if ids != "some" else answer)
        await closed(given)
        await closed(model)
