"""R13: every reader says of the window what the newest request held, as the provider counted it, in every process.

Recalled passages and history tools are in it, and what is used and what is left are the budget.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from typer.testing import CliRunner

from ctxfold import AgentContext, HistoryCompacted, ToolSpec, open_backend
from ctxfold.cli.app import app
from ctxfold.events import WindowGauge
from ctxfold.testing import ModelServer
from langchain_ctx import ContextMiddleware

WINDOW = 4_000
NAME = "talk"
TOOLS = tuple(
    ToolSpec(name, "Looks something up in the harbour's books. " * 6, {"type": "object", "properties": {}})
    for name in ("berths", "tides", "ships")
)
FILLER = "and then we talked for a while about one thing and another, as people do on a long afternoon " * 3


def questions() -> list[str]:
    facts = [f"The locker of visit {n} opens with ticket code LOC{n}. {FILLER}" for n in range(30)]
    return [*facts, *(f"Which ticket code opens the locker of visit {n}?" for n in range(6))]


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


def readings(ctx: AgentContext) -> list[tuple[int, int]]:
    """What each reader says is used, and is left of the budget."""
    gauge, told, usage, page = (
        ctx.explain().gauge,
        ctx.explain(),
        ctx.usage(),
        ctx.archive.inspect().to_dict()["window"],
    )
    assert sum(told.zones.values()) == told.used_tokens
    assert f"{told.used_tokens} of {told.budget_tokens} tokens used" in str(told)
    assert f"{told.budget_tokens - told.used_tokens:,} tokens left" in str(told)
    return [
        (gauge.used_tokens, gauge.room_tokens),
        (told.used_tokens, told.budget_tokens - told.used_tokens),
        (usage.window_tokens, usage.budget_tokens - usage.window_tokens),
        (page["used_tokens"], page["budget_tokens"] - page["used_tokens"]),
    ]


def of_the_command(store: str) -> list[tuple[int, int]]:
    """What the commands say."""

    def run(*arguments: str) -> str:
        done = CliRunner().invoke(app, [*arguments, "--store", store])
        assert done.exit_code == 0, done.output
        return done.stdout

    window, listed = json.loads(run("window", NAME, "--json")), json.loads(run("sessions", "--json"))[0]
    said = [(window["used_tokens"], window["budget_tokens"]), (listed["tokens"], listed["budget"])]
    watched = run("watch", NAME, "--once")
    assert f"{window['used_tokens']:,} of {window['budget_tokens']:,} tokens used" in watched
    assert all(f"{tokens:,}" in watched for tokens in window["zones"].values())
    return [(used, budget - used) for used, budget in said]


def asked_by_the_engine(store: str, server: ModelServer) -> Iterator[AgentContext]:
    with (
        open_backend("generic", "lookup", base_url=server.base_url, api_key="k") as backend,
        AgentContext(backend, session_id=NAME, store=store, context_window=WINDOW) as ctx,
    ):
        for question in questions():
            ctx.send(question, tools=TOOLS)
            yield ctx


def asked_by_an_agent(store: str, server: ModelServer) -> Iterator[AgentContext]:
    model = ChatOpenAI(model="lookup", base_url=server.base_url, api_key="k", stream_usage=True)  # type: ignore[arg-type]
    with ContextMiddleware(store=store, context_window=WINDOW, session_id=NAME) as middleware:
        agent: Any = create_agent(model, [tides], middleware=[middleware])
        messages: list[Any] = []
        for question in questions():
            messages = agent.invoke({"messages": [*messages, {"role": "user", "content": question}]})["messages"]
            yield middleware.context(NAME)


def tides(place: str) -> str:
    """Returns the tides of a place, from the harbour's books."""
    return f"The tides of {place} are mild."


@pytest.mark.parametrize("face", [asked_by_the_engine, asked_by_an_agent])
def test_all_readers_say_what_the_newest_request_held(
    face: Callable[[str, ModelServer], Iterator[AgentContext]], server: ModelServer, tmp_path: Path
) -> None:
    store = f"sqlite:///{tmp_path / 'chat.db'}"
    recalled = compared = 0
    events: list[Any] = []
    for number, ctx in enumerate(face(store, server)):
        if number == 0:
            ctx.subscribe(events.append)
        [used, *others] = readings(ctx)
        assert used[0] + used[1] == ctx.explain().gauge.budget_tokens == WINDOW * 4 // 5
        assert set(others) == {used}
        told = ctx.explain()
        assert told.zones["tools"] > 0
        recalled += bool(told.zones["recalled"])
        reply = ctx.messages()[-1]
        assert reply.usage is not None
        newest = next((e for e in reversed(events) if isinstance(e, WindowGauge | HistoryCompacted)), None)
        if isinstance(newest, WindowGauge):  # else a compaction has followed the request
            compared += 1
            assert abs(used[0] - reply.usage.input_tokens) <= 0.02 * reply.usage.input_tokens
        with AgentContext(session_id=NAME, store=store, context_window=WINDOW) as elsewhere:
            assert set(readings(elsewhere)) == {used}
            assert elsewhere.explain().zones == told.zones
            assert elsewhere.explain().gauge == ctx.explain().gauge, "with as much left until the next compaction"
            assert (
                elsewhere.archive.inspect().turns[-1].recalled_tokens == ctx.archive.inspect().turns[-1].recalled_tokens
            )
    assert set(of_the_command(store)) == {used}
    assert compared >= 25
    assert recalled >= 3
