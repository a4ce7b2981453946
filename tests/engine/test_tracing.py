"""Spans around requests and compactions, kept by an in-memory exporter."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from langchain_deepseek import ChatDeepSeek
from langchain_google_genai import ChatGoogleGenerativeAI
from langchain_openai import ChatOpenAI
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from ctxfold import (
    AgentContext,
    BackendError,
    Reply,
    Section,
    SqlStore,
    ToolSpec,
    Usage,
    assistant,
    open_backend,
    tool_result,
    user,
)
from ctxfold.errors import MessageNotFoundError
from ctxfold.testing import ModelServer
from langchain_ctx import with_context
from tests.support.driven import Driven, call, scripted, turns
from tests.support.postgres_schema import fresh_schema
from tests.support.spans import collected_spans


@pytest.fixture
def spans() -> Iterator[Callable[[], list[Any]]]:
    exporter = collected_spans()
    yield lambda: list(exporter.get_finished_spans())
    exporter.clear()


USAGE = Usage(12, 3, 4)
MARK = "Zanzibar-4711"


def test_a_request_has_a_span_with_its_usage(make: Callable[..., Driven], spans: Any) -> None:
    reply = Reply(assistant("hi", id="a1"), USAGE, "stop")
    make(scripted(reply)).send("secret words", max_tokens=50, temperature=0.5)
    (one,) = spans()
    assert (one.name, one.kind) == ("chat scripted", trace.SpanKind.CLIENT)
    assert dict(one.attributes) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "scripted",
        "gen_ai.request.max_tokens": 50,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 12,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.usage.cache_read.input_tokens": 4,
    }
    assert "secret" not in one.to_json()


@pytest.mark.parametrize("stop_after", [None, 1])
def test_a_streams_span_ends_with_the_stream(make: Callable[..., Driven], spans: Any, stop_after: int | None) -> None:
    reply = Reply(assistant("good morning to you all", id="a1"), USAGE, "stop")
    make(scripted(reply)).send_stream("hello", stop_after=stop_after)
    (one,) = spans()
    assert one.end_time is not None
    assert one.attributes.get("gen_ai.usage.input_tokens") == (12 if stop_after is None else None)


@pytest.mark.parametrize("how", ["send", "send_stream"])
def test_a_span_is_named_after_the_model_that_was_asked(how: str, spans: Any) -> None:
    """A request may name another model than its backend."""
    with ModelServer(model="lookup") as server:
        backend = open_backend("generic", "lookup", base_url=server.base_url)
        ctx = AgentContext(backend, context_window=8_000)
        answer = getattr(ctx, how)("hello", model="other")
        assert answer if how == "send" else list(answer)
        ctx.close()
        backend.close()
    (one,) = spans()
    assert one.name == "chat other"
    assert one.attributes["gen_ai.request.model"] == "other"
    assert one.attributes["gen_ai.response.model"] == "other"


def test_an_error_is_told_by_its_kind_alone(make: Callable[..., Driven], spans: Any) -> None:
    errors = [BackendError("secret words", kind="server") for _ in range(2)]
    ctx = make(scripted(*errors))
    for ask in (ctx.send, ctx.send_stream):
        with pytest.raises(BackendError):
            ask("hello")
    assert [s.attributes["error.type"] for s in spans()] == ["server", "server"]
    assert not any("secret" in s.to_json() for s in spans())


def test_a_compaction_has_a_span_and_its_summary_call_is_inside(make: Callable[..., Driven], spans: Any) -> None:
    ctx = make(scripted("So far: fillers."), summary_timeout_s=None)
    ctx.add(turns(14))
    outcome = ctx.compact(force=True)
    compact = next(s for s in spans() if s.name == "compact")
    inner = next(s for s in spans() if s.name == "summarize scripted")
    assert (compact.kind, inner.kind) == (trace.SpanKind.INTERNAL, trace.SpanKind.CLIENT)
    assert inner.parent.span_id == compact.context.span_id
    assert compact.attributes["ctxfold.tokens_after"] < compact.attributes["ctxfold.tokens_before"]
    assert compact.attributes["ctxfold.fallback_level"] == outcome.event.fallback_level


def everything(make: Callable[..., Driven]) -> None:
    """A session that says the mark in every place that could be told to somebody, and whose parts fail with it."""

    def failing(_: Any) -> Any:
        raise ValueError(f"cannot take {MARK}")

    replies = [
        Reply(assistant(f"calling for {MARK}", id="c", calls=[call("k", f'{{"q": "{MARK}"}}')]), USAGE, "tool_calls"),
        Reply(assistant(f"found {MARK}", id="d"), USAGE, "stop"),
        BackendError(f"refused: {MARK}", kind="content_filter"),
    ]
    ctx = make(
        scripted(*replies),
        summarizer=scripted(f"So far: {MARK}.", ValueError(MARK)),
        system=f"You are {MARK}.",
        session_id=f"session of {MARK}",
        sections=[Section("documents", failing), Section("code", lambda _: [f"code of {MARK}"])],
        context_window=4_000,
        summary_timeout_s=None,
    )
    ctx.subscribe(failing)
    ctx.send(f"look for {MARK}", tools=(ToolSpec("look", f"finds {MARK}"),))
    ctx.send(tool_result("k", f"{MARK} " * 20, id="r"))
    with pytest.raises(BackendError):
        ctx.send(f"and {MARK}?")
    ctx.add(turns(14))
    ctx.compact(force=True)
    ctx.search(MARK)
    ctx.erasure.erase("c")
    with pytest.raises(MessageNotFoundError):
        ctx.archive.get(f"no {MARK}")


def test_no_text_of_a_conversation_is_told(
    make: Callable[..., Driven], spans: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    everything(make)
    assert {s.name.split()[0] for s in spans()} == {"chat", "summarize", "compact"}
    assert not [s.name for s in spans() if MARK in s.to_json()]
    assert "a subscriber raised ValueError on Appended" in caplog.text
    assert MARK not in caplog.text


def test_why_a_subscriber_failed_is_told_to_who_asks_for_it(
    make: Callable[..., Driven], spans: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "ctxfold")
    everything(make)
    assert f"ValueError: cannot take {MARK}" in caplog.text
    assert not [s.name for s in spans() if MARK in s.to_json()]


_reader = InMemoryMetricReader()


@pytest.fixture
def counted() -> Callable[[], dict[tuple[str, ...], Any]]:
    """What was counted since the test began, by the metric's name and the values of its attributes."""
    if not isinstance(metrics.get_meter_provider(), MeterProvider):
        metrics.set_meter_provider(MeterProvider(metric_readers=[_reader]))  # can be set once per process

    def read() -> dict[tuple[str, ...], Any]:
        data = _reader.get_metrics_data()
        scopes = [scope for resource in data.resource_metrics for scope in resource.scope_metrics] if data else []
        return {
            (metric.name, *map(str, (point.attributes or {}).values())): getattr(
                point, "value", getattr(point, "count", None)
            )
            for metric in scopes[0].metrics
            for point in metric.data.data_points
        }

    before = read() if _reader.get_metrics_data() else {}

    def since() -> dict[tuple[str, ...], Any]:
        now = {name: value - before.get(name, 0) for name, value in read().items()}
        return {name: value for name, value in now.items() if value}

    return since


def test_turns_and_reported_tokens_are_counted(make: Callable[..., Driven], counted: Any) -> None:
    replies = [Reply(assistant(f"hi {n}", id=f"a{n}"), Usage(12, 3, 4, 0, 2), "stop") for n in range(2)]
    ctx = make(scripted(*replies))
    ctx.send("one")
    ctx.send("two")
    assert counted() == {
        ("ctxfold.messages",): 4,
        ("ctxfold.turns", "completed"): 2,
        ("ctxfold.window.fill",): 2,
        ("ctxfold.sessions.opened", "False"): 1,
        ("ctxfold.sessions.opened", "True"): 2,
    }, "a scripted reply reports its usage beside the message"


def test_tokens_of_a_service_are_counted_by_kind(counted: Any) -> None:
    with (
        ModelServer(model="lookup") as server,
        open_backend("generic", "lookup", base_url=server.base_url) as backend,
        AgentContext(backend, session_id="s", context_window=2_000) as ctx,
    ):
        usage = ctx.send("One.").usage
        assert usage is not None
    found = counted()
    assert found["ctxfold.tokens", "chat", "lookup", "input"] == usage.input_tokens
    assert found["ctxfold.tokens", "chat", "lookup", "output"] == usage.output_tokens


def test_compactions_and_what_they_free_are_counted(make: Callable[..., Driven], counted: Any) -> None:
    ctx = make(scripted(), context_window=4_000, strategy="truncate")
    ctx.add(turns(40, words=30))
    before = counted()
    outcome = ctx.compact(force=True)
    found = {name: value - before.get(name, 0) for name, value in counted().items()}
    assert found["ctxfold.compactions", "truncate", outcome.event.fallback_level] == 1
    assert found["ctxfold.compactions.freed",] == outcome.event.tokens_before - outcome.event.tokens_after


def test_store_calls_that_are_tried_again_are_counted(postgres_url: str, counted: Any) -> None:
    with fresh_schema(postgres_url) as url, SqlStore(url + "&application_name=ctxfold_metrics") as store:
        ctx = AgentContext(store=store, session_id="s", context_window=2_000)
        ctx.add([user("One.", id="u1")])
        assert ("ctxfold.store.retries", "postgresql") not in counted()
        with psycopg.connect(postgres_url.replace("+psycopg", "")) as other:
            own = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'ctxfold_metrics'"
            other.execute(own)
        ctx.add([assistant("Noted.", id="a1")])
        assert counted()["ctxfold.store.retries", "postgresql"] >= 1


def test_a_write_to_sqlite_waits_for_another_one_and_is_not_tried_again(tmp_path: Path, counted: Any) -> None:
    """A transaction that began as a reader would fail as soon as the other one has written."""
    path = tmp_path / "chat.db"
    with AgentContext(store=f"sqlite:///{path}", session_id="s", context_window=2_000) as ctx:
        ctx.add([user("One.", id="u1")])
        before = counted().get(("ctxfold.store.retries", "sqlite"), 0)
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            other.execute("UPDATE ctxfold_sessions SET head = head")
            thread = threading.Thread(target=ctx.add, args=([user("Two.", id="u2")],))
            thread.start()
            time.sleep(0.3)  # it waits for the lock by now
            other.execute("COMMIT")
            thread.join()
        assert [m.id for m in ctx.messages()] == ["u1", "u2"]
        assert counted().get(("ctxfold.store.retries", "sqlite"), 0) == before


def test_leases_are_counted_as_taken_or_held_by_another(tmp_path: Path, counted: Any) -> None:
    with (
        ModelServer(model="lookup") as server,
        open_backend("generic", "lookup", base_url=server.base_url) as backend,
        SqlStore(f"sqlite:///{tmp_path / 'chat.db'}") as store,
    ):
        ctx = AgentContext(backend, summarizer=backend, store=store, session_id="s", context_window=4_000)
        ctx.add(turns(60, words=20))
        before = counted().get(("ctxfold.leases", "True"), 0)
        ctx.compact(force=True)
        assert counted()["ctxfold.leases", "True"] > before


@pytest.mark.parametrize(
    ("provider", "wire", "name"),
    [
        ("openai", "openai_responses", "openai"),
        ("bedrock", None, "aws.bedrock"),
        ("gemini", "gemini", "gcp.gemini"),
        ("deepseek", None, "deepseek"),
    ],
)
def test_spans_name_the_provider(provider: str, wire: Any, name: str, spans: Any) -> None:
    with ModelServer() as server:
        url = server.base_url.removesuffix("/v1") if provider == "bedrock" else server.base_url
        with (
            open_backend(provider, "m", wire=wire, base_url=url, api_key="k") as backend,
            AgentContext(backend, store="memory://", context_window=9_000) as context,
        ):
            context.send("hi")
            list(context.send_stream("hi"))
    assert [one.attributes["gen_ai.provider.name"] for one in spans()] == [name, name]


@pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning")
@pytest.mark.parametrize(
    ("kind", "name"), [("openai", "openai"), ("google_genai", "gcp.gemini"), ("deepseek", "deepseek")]
)
def test_p2_spans_name_the_provider_of_a_langchain_model(kind: str, name: str, spans: Any) -> None:
    """P2: they had none."""
    with ModelServer() as server:
        told: dict[str, Any] = {"model": "m", "api_key": "k", "max_retries": 0}
        if kind == "google_genai":
            model: Any = ChatGoogleGenerativeAI(**told, base_url=server.base_url.removesuffix("/v1"))
        elif kind == "deepseek":
            model = ChatDeepSeek(**told, api_base=server.base_url)
        else:
            model = ChatOpenAI(**told, base_url=server.base_url)
        with with_context(model, session_id="s", store="memory://", context_window=9_000) as chat:
            chat.invoke("hi")
            list(chat.stream("hi"))
    assert [one.attributes["gen_ai.provider.name"] for one in spans()] == [name, name]
