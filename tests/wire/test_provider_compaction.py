"""Summaries that a service writes on its own side: over many turns, a restart, undo and erasure, and when the service is gone."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ctxfold import (
    AgentContext,
    BackendError,
    ConfigError,
    HistoryCompacted,
    Message,
    Request,
    ToolSpec,
    Usage,
    assistant,
    open_backend,
    user,
)
from ctxfold.backends.http_backend import HttpBackend
from ctxfold.messages import ProviderSummary, ReasoningPart
from ctxfold.protocols import Wire
from ctxfold.testing import ErrorReply, ModelServer, RecordedRequest, Scripted
from ctxfold.testing.served import Strict
from tests.wire.raw_server import Play, RawServer


@dataclass(frozen=True)
class Service:
    """A service that compacts: how it is asked, and how much its replies say, so that a window fills about every 12 turns.

    `jars` is the number of their sentences, and `beside` makes each of them longer.
    """

    provider: str
    model: str
    wire: Wire
    strict: Strict
    window: int
    jars: int
    beside: int = 0

    def backend(self, server: ModelServer, model: str | None = None) -> HttpBackend:
        name, url = model or self.model, server.base_url
        return open_backend(self.provider, name, wire=self.wire, base_url=url, api_key="k", max_retries=0)

    def rows(self, request: RecordedRequest) -> list[Any]:
        return request.body["input"] if self.provider == "openai" else request.body["messages"]

    def compacts(self, request: RecordedRequest) -> bool:
        return "compact" in request.path or "context_management" in request.body


OPENAI = Service("openai", "gpt-5.5", "openai_responses", "openai", 6_000, 32)
ANTHROPIC = Service("anthropic", "claude-opus-4-8", "anthropic_messages", "anthropic", 120_000, 90, 11)
SERVICES = pytest.mark.parametrize("service", [OPENAI, ANTHROPIC], ids=["openai", "anthropic"])


@dataclass
class Clerk:
    """A model that says at length what stands on the shelf that it is asked about."""

    jars: int
    beside: int = 0
    answers: int = 0
    error: ErrorReply | None = None
    seen: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])

    def __call__(self, body: Mapping[str, Any]) -> Scripted | ErrorReply | None:
        if "ummar" in str(body["messages"][-1]["content"]):
            return None  # a summary is asked for
        self.answers += 1
        self.seen.append(body)
        n = self.answers
        return Scripted(
            f"Answer {n}. "
            + " ".join(
                f"On shelf {n}-{i} stand {7 * i + n} jars{', one beside the other' * self.beside}."
                for i in range(self.jars)
            ),
            chunks=8,  # long replies in a few words each would be most of what these tests cost
        )


def opened(service: Service, backend: HttpBackend, path: Path, events: list[Any], **settings: Any) -> AgentContext:
    context = AgentContext(
        backend,
        session_id="s",
        store=f"sqlite:///{path / 'chat.db'}",
        context_window=service.window,
        strategy="provider",
        system="Be brief.",
        **settings,
    )
    context.subscribe(lambda event: events.append(event) if isinstance(event, HistoryCompacted) else None)
    return context


def own_summary(context: AgentContext) -> ProviderSummary | None:
    return next((kept for e in context.view().compressed if (kept := ProviderSummary.of(e.message))), None)


async def ask(context: AgentContext, text: str, way: str) -> str:
    if way == "sync":
        return context.send(text).message.text
    return [event async for event in context.asend_stream(text)][-1].reply.message.text


async def turns(context: AgentContext, numbers: range, way: str = "sync") -> None:
    for number in numbers:
        assert (await ask(context, f"Question {number}: what stands there?", way)).startswith("Answer")


@pytest.mark.parametrize(
    ("service", "way"),
    [(OPENAI, "sync"), (OPENAI, "streamed async"), (ANTHROPIC, "streamed async")],
    ids=["openai-sync", "openai-streamed", "anthropic-streamed"],
)
async def test_forty_turns_over_three_summaries_then_the_service_is_gone(
    service: Service, way: str, tmp_path: Path
) -> None:
    """Each next request begins with the newest block, also after a restart; then our own ladder goes on from the archive."""
    events: list[HistoryCompacted] = []
    clerk = Clerk(service.jars, service.beside)
    with ModelServer(script=clerk, strict=service.strict) as server:
        for numbers in (range(20), range(20, 40)):  # a restart between them
            async with service.backend(server) as backend, opened(service, backend, tmp_path, events) as context:
                await turns(context, numbers, way)
                if numbers.stop == 40:
                    used, explained, kept = context.usage(), str(context.explain()), own_summary(context)
                    first = context.search("Question 0")
                    archived = [m.text for m in context.messages()]
        requests = server.requests
        assert [(e.strategy, e.fallback_level) for e in events] == [("provider", "provider")] * len(events)
        assert len(events) >= 3
        assert len(requests) == clerk.answers + len(events), "none was refused and sent again"
        assert sum(service.compacts(r) for r in requests) == len(events)
        assert kept is not None
        assert (kept.provider, kept.model, kept.wire) == (service.provider, service.model, service.wire)
        # what the summaries took is in the session's sums
        assert used.summary_calls == len(events)
        assert used.summaries == sum((e.summary_usage for e in events), Usage())
        assert used.summaries.input_tokens > 10_000
        assert f"{service.provider} wrote a summary of its own" in explained
        assert sum(text.startswith("Question") for text in archived) == 40
        assert first, "the archive has the originals"
        check_beginnings(service, requests)

        server.compacts = False
        before = len(server.requests)
        async with service.backend(server) as backend, opened(service, backend, tmp_path, events) as context:
            known = len(events)
            for number in range(40, 60):
                await turns(context, range(number, number + 1), way)
                if len(events) > known:
                    break
            await turns(context, range(70, 71), way)
            assert own_summary(context) is None
            texts = context.view().messages
        fallen = events[known]
    assert fallen.strategy == "summarize"
    assert fallen.fallback_level == "model"
    assert any(p.startswith("provider: ") for p in fallen.problems)
    assert "provider: " in fallen.reason
    assert any(service.compacts(r) for r in server.requests[before:]), "it was asked"
    row = service.rows(server.requests[-1])[0]
    assert row["role"] == "user"
    assert "Summary of prior conversation" in json.dumps(row)
    assert texts[1].kind == "summary"


def check_beginnings(service: Service, requests: list[RecordedRequest]) -> None:
    """After a compaction, the next requests begin with all of its block, and have nothing of what it stands for."""
    blocks = 0
    for request, following in pairwise(requests):
        rows = service.rows(following)
        if service.compacts(request):
            blocks += 1
        if not blocks:
            continue
        if service.provider == "openai":
            kinds = [row.get("type") for row in rows]
            place = kinds.index("compaction")
            assert kinds.count("compaction") == 1
            assert all(row["role"] == "user" for row in rows[:place]), "the service keeps these itself"
            assert following.body["instructions"] == "Be brief."
        else:
            assert rows[0]["role"] == "assistant"
            assert rows[0]["content"][0]["type"] == "compaction"
            assert sum(b["type"] == "compaction" for row in rows for b in row["content"]) == 1
            assert following.headers["anthropic-beta"] == "compact-2026-01-12"
        said = json.dumps([row for row in rows[1:] if row.get("role") == "assistant"])
        assert "Answer 1." not in said
    assert blocks >= 3


@pytest.fixture
def compacted(tmp_path: Path) -> Any:
    """A session with one block, and its server."""
    events: list[HistoryCompacted] = []
    with ModelServer(script=Clerk(OPENAI.jars), strict="openai") as server:
        with OPENAI.backend(server) as backend, opened(OPENAI, backend, tmp_path, events) as context:
            number = 0
            while not events:
                context.send(f"Question {number}: what stands there?")
                number += 1
        yield server, tmp_path, events


def test_another_model_and_another_wire_read_our_own_summary(compacted: Any) -> None:
    """The block goes to nobody but its author, and is back for it."""
    server, path, events = compacted
    with OPENAI.backend(server) as backend, opened(OPENAI, backend, path, events) as context:
        context.send("One.", model="gpt-5.6")
        context.send("Two.")
    chat = open_backend("generic", "llama", base_url=server.base_url, api_key="k", max_retries=0)
    with chat, opened(OPENAI, chat, path, events) as context:
        context.send("Three.")
    azure = open_backend("azure", OPENAI.model, wire="openai_responses", base_url=server.base_url, api_key="k")
    with azure, opened(OPENAI, azure, path, events) as context:
        context.send("Four.")
    other, own, three, four = (r.body for r in server.requests[-4:])
    for rows in (other["input"], three["messages"][1:], four["input"]):
        assert rows[0]["role"] == "user"
        assert "Summary of prior conversation" in json.dumps(rows[0])
        assert '"compaction"' not in json.dumps(rows)
    assert "compaction" in [row.get("type") for row in own["input"]]
    assert len(events) == 1


def test_a_block_that_the_service_refuses_gives_way_to_our_own_summary(compacted: Any) -> None:
    """The service has forgotten how to read it: the request goes once more, with our text."""
    _, path, events = compacted
    refused = {"message": "The encrypted content gAAA... could not be verified.", "code": "invalid_encrypted_content"}

    def forgetful(body: Mapping[str, Any]) -> ErrorReply | Scripted:
        sealed = any("jars" in str(m["content"]) and m["role"] == "assistant" for m in body["messages"][:20])
        begins_anew = "Summary of prior" in str(body["messages"][1]["content"])
        return Scripted("Answer.") if begins_anew or not sealed else ErrorReply(400, {"error": refused})

    with ModelServer(script=forgetful) as other:
        with OPENAI.backend(other) as backend, opened(OPENAI, backend, path, events) as context:
            assert context.send("Still there?").message.text == "Answer."
            assert context.send("And now?").message.text == "Answer."
        first, again, third = other.requests
    assert "compaction" in [row.get("type") for row in first.body["input"]]
    for request in (again, third):
        assert "Summary of prior conversation" in json.dumps(request.body["input"][0])


def test_undo_brings_back_what_the_block_stood_for(compacted: Any) -> None:
    server, path, events = compacted
    with OPENAI.backend(server) as backend, opened(OPENAI, backend, path, events) as context:
        assert own_summary(context) is not None
        context.undo()
        assert own_summary(context) is None
        assert [m.text for m in context.view().messages][1] == "Question 0: what stands there?"


def test_an_erased_message_leaves_no_block_that_holds_it(compacted: Any) -> None:
    """Nobody can take a message out of a block: it goes, and our own summary is written anew."""
    server, path, events = compacted
    with OPENAI.backend(server) as backend, opened(OPENAI, backend, path, events) as context:
        kept = own_summary(context)
        assert kept is not None
        sealed = kept.blocks[-1]["encrypted_content"]
        assert sealed in stored_text(path)
        context.erasure.erase("#3")
        assert own_summary(context) is None
        assert sealed not in stored_text(path)
        context.send("What is left?")
    rows = server.requests[-1].body["input"]
    assert "Summary of prior conversation" in json.dumps(rows[0])
    assert "Question 0" not in json.dumps(rows[0]) or "compaction" not in [row.get("type") for row in rows]


def stored_text(path: Path) -> str:
    with closing(sqlite3.connect(path / "chat.db")) as connection:
        return "\n".join(connection.iterdump())


@pytest.mark.parametrize(
    ("provider", "wire", "why"),
    [
        ("generic", None, "this service writes no summaries of its own"),
        ("gemini", "gemini", "this service writes no summaries of its own"),
        ("anthropic", None, "it summarises conversations from 50000 tokens on"),
    ],
)
def test_where_there_is_no_such_summary_the_ladder_writes_it(
    provider: str, wire: Wire | None, why: str, tmp_path: Path
) -> None:
    events: list[HistoryCompacted] = []
    with ModelServer(script=Clerk(32)) as server:
        url = server.base_url
        backend = open_backend(provider, "m", wire=wire, base_url=url, api_key="k", max_retries=0)
        with backend, opened(OPENAI, backend, tmp_path, events) as context:
            for number in range(24):
                context.send(f"Question {number}: what stands there?")
    assert events
    assert {(e.strategy, e.fallback_level) for e in events} == {("summarize", "model")}
    assert all(e.problems[0].startswith(f"provider: {why}") for e in events)


def test_the_service_is_not_asked_beyond_the_limit_of_calls(tmp_path: Path) -> None:
    events: list[HistoryCompacted] = []
    with (
        ModelServer(model=OPENAI.model, script=Clerk(OPENAI.jars), strict="openai") as server,
        OPENAI.backend(server) as backend,
        opened(OPENAI, backend, tmp_path, events, max_summary_calls=1) as context,
    ):
        for number in range(36):
            context.send(f"Question {number}: what stands there?")
        assert sum(map(OPENAI.compacts, server.requests)) == 1
    assert [e.fallback_level for e in events] == ["provider", *["extractive"] * (len(events) - 1)]
    assert len(events) > 1
    assert "max_summary_calls is 1" in events[-1].problems[0]


@pytest.mark.parametrize(
    "answer",
    [
        {"object": "response.compaction", "output": []},
        {"object": "response.compaction", "output": [{"type": "compaction", "id": "c"}]},
    ],
)
def test_an_answer_without_a_summary_is_no_summary(answer: dict[str, Any], tmp_path: Path) -> None:
    with (
        RawServer(Play([json.dumps(answer).encode()])) as server,
        open_backend("openai", "gpt-5.5", wire="openai_responses", base_url=server.base_url, api_key="k") as backend,
    ):
        assert backend.send(Request((user("hi", id="u"),), compact=True)).summary is None


def test_a_service_without_summaries_of_its_own_is_not_asked() -> None:
    with (
        open_backend("generic", "m", base_url="http://127.0.0.1:9", api_key="k") as backend,
        pytest.raises(ConfigError, match="writes no summaries of its own"),
    ):
        backend.send(Request((user("hi", id="u"),), compact=True))


def body_of(service: Service, messages: tuple[Message, ...], **fields: Any) -> dict[str, Any]:
    with open_backend(service.provider, service.model, wire=service.wire, api_key="k") as backend:
        return backend.request_body(Request(messages, **fields), stream=False)


def test_what_is_asked_for() -> None:
    """OpenAI's endpoint takes the conversation alone; Anthropic's edit pauses, so that no answer is paid for."""
    talk = (user("hi", id="u"), assistant("ho", id="a"))
    tools = (ToolSpec("look"),)
    assert body_of(OPENAI, talk, tools=tools, compact=True).keys() == {"model", "input"}
    body = body_of(ANTHROPIC, talk, tools=tools, compact=True)
    (edit,) = body["context_management"]["edits"]
    assert edit["type"] == "compact_20260112"
    assert edit["trigger"] == {"type": "input_tokens", "value": 50_000}
    assert edit["pause_after_compaction"] is True
    assert body["messages"][-1]["role"] == "user", "a conversation that ends with a reply would be continued"
    assert body["tools"], "the cached prefix begins with them"


@SERVICES
def test_the_strict_server_refuses_malformed_blocks(service: Service) -> None:
    """So that the sessions above show something."""
    wrong: list[dict[str, Any]]
    if service is OPENAI:
        wrong = [{"type": "compaction", "id": "c"}, {"type": "compaction", "id": "c", "encrypted_content": "QUJD"}]
    else:
        wrong = [{"type": "compaction", "content": 7}, {"type": "compaction", "content": "So far.", "extra": 1}]
    with ModelServer(script=[], strict=service.strict) as server, service.backend(server) as backend:
        for block in wrong:
            provided = ProviderSummary(service.wire, service.provider, service.model, (block,), 3)
            summary = Message("x", "user", (*user("Ours.", id="x").parts, provided.part()), kind="summary")
            with pytest.raises(BackendError) as caught:
                backend.send(Request((summary, user("hi", id="u"))))
            assert caught.value.kind in ("rejected", "reasoning_replay")


# within an ordinary reply


def test_a_block_within_a_reply_stands_for_what_was_before_until_that_is_erased(tmp_path: Path) -> None:
    """It goes back to its author at the head of the request; another model gets the messages; an erasure removes it."""
    extra = {"context_management": [{"type": "compaction", "compact_threshold": 1_000}]}
    with (
        ModelServer(script=Clerk(40), strict="openai") as server,
        OPENAI.backend(server) as backend,
        opened(replace(OPENAI, window=60_000), backend, tmp_path, []) as context,
    ):
        for number in range(6):
            context.send(f"Question {number}?", extra=extra)
        sealed = [row for row in server.requests[-1].body["input"] if row.get("type") == "compaction"]
        assert len(sealed) == 1
        assert server.requests[-1].body["input"][0] == sealed[0]
        context.send("Another?", model="gpt-4.1")
        assert len(server.requests[-1].body["input"]) == 13
        assert sealed[0]["encrypted_content"] in stored_text(tmp_path)
        context.erasure.erase("#3")
        assert sealed[0]["encrypted_content"] not in stored_text(tmp_path)
        assert "encrypted_content" not in stored_text(tmp_path), "each of them quoted the first answer"
        context.send("And now?")
        assert "compaction" not in [row.get("type") for row in server.requests[-1].body["input"]]


@pytest.mark.parametrize("way", ["sync", "streamed async"])
async def test_what_a_summary_within_a_reply_took_is_in_the_sessions_sums(way: str, tmp_path: Path) -> None:
    edit = {"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 50_000}}
    extra = {"context_management": {"edits": [edit]}}
    with ModelServer(script=Clerk(2_200), strict="anthropic") as server, ANTHROPIC.backend(server) as backend:
        with opened(replace(ANTHROPIC, window=900_000), backend, tmp_path, []) as context:
            for number in range(4):
                if way == "sync":
                    context.send(f"Question {number}?", extra=extra)
                else:
                    assert [event async for event in context.asend_stream(f"Question {number}?", extra=extra)]
            used = context.usage()
        with opened(replace(ANTHROPIC, window=900_000), backend, tmp_path, []) as context:
            assert context.usage().summaries == used.summaries, "it is stored"
        first = server.requests[-1].body["messages"][0]
    assert first["content"][0]["type"] == "compaction"
    assert used.summaries.input_tokens > 50_000
    assert used.compactions == used.summary_calls == 0, "no summary of ours"


def test_a_streamed_reply_ends_with_the_summary_beside_it() -> None:
    """The model server failed after the head of the response."""
    long = user("Which jar stands on the shelf? " * 400, id="u")
    threshold = {"context_management": [{"type": "compaction", "compact_threshold": 1_000}]}
    with ModelServer(script=[Scripted("The blue one.")]) as server, closing(OPENAI.backend(server)) as backend:
        message = backend.merge_chunks(backend.open_stream(Request((long,), extra=threshold)))
    assert message is not None
    assert message.text == "The blue one."
    assert isinstance(message.parts[-1], ReasoningPart)
    assert '"compaction"' in (message.parts[-1].details or "")
