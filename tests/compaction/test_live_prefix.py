"""Summaries on the live prefix: what is sent, when it is sent, and what follows when the model does something else."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ctxfold import (
    AgentContext,
    BackendError,
    HistoryCompacted,
    Message,
    OpenAIChatBackend,
    Prices,
    Reply,
    Request,
    ScriptedBackend,
    ToolCallPart,
    ToolSpec,
    Usage,
    assistant,
    tool_result,
    user,
)
from ctxfold.backends.anthropic import request_body
from ctxfold.backends.profile import load_profile
from ctxfold.testing import ModelServer, Scripted, ScriptedCall
from ctxfold.tokens.text import MessageCounter
from tests.support.driven import COUNTER, Driven, context, text_of
from tests.support.summaries import asks_on_live_prefix, asks_with_transcript

Make = Callable[..., Driven]
TOOLS = (ToolSpec("look", "Looks a thing up.", {"type": "object", "properties": {}}),)
SUMMARY = "The user told the codes of rooms, and the assistant noted each: Room 0 has the code 4000."
WINDOW = 2_000
COUNTED = MessageCounter(COUNTER)


def said(number: int) -> str:
    return f"Room {number} has the code {4_000 + number * 37}. " + "It stands in the hall. " * 12


def watched(ctx: Driven) -> list[HistoryCompacted]:
    events: list[HistoryCompacted] = []
    ctx.subscribe(lambda e: events.append(e) if isinstance(e, HistoryCompacted) else None)
    return events


def is_live(request: Request) -> bool:
    return request.live_prefix


def answering(summary: Any = SUMMARY, cached: float | None = None, reasoning: str = "") -> ScriptedBackend:
    """A backend that notes what it is told, and answers requests for summaries with `summary`.

    With `cached` it reports its usage, and that share of the input as read from its cache.
    """

    def reply(request: Request) -> Any:
        if request.live_prefix or request.messages[-1].id == "summary-source":
            asked = summary(request) if callable(summary) else summary
            return asked if isinstance(asked, BackendError | Message) else assistant(asked, id=f"s{id(request)}")
        tokens = COUNTED.count_all(request.messages)
        usage = None if cached is None else Usage(tokens, 10, cache_read_tokens=int(cached * tokens))
        message = assistant("Noted.", id=f"a-{request.messages[-1].id}", reasoning=reasoning or None)
        return Reply(replace(message, usage=usage), usage, "stop")

    return ScriptedBackend([reply] * 300)


def talked(ctx: Driven, turns: int = 30, **options: Any) -> None:
    for number in range(turns):
        ctx.send(said(number), **options)


def test_the_summary_is_asked_behind_the_very_messages_that_were_sent(make: Make) -> None:
    backend = answering()
    ctx = make(backend, context_window=WINDOW, system="Keep the codes.")
    events = watched(ctx)
    talked(ctx, tools=TOOLS, temperature=0.5, thinking=False)
    index, live = next((i, r) for i, r in enumerate(backend.requests) if is_live(r))
    last = backend.requests[index - 1]
    reply, note = live.messages[len(last.messages) :]
    assert [m.text for m in live.messages[: len(last.messages)]] == [m.text for m in last.messages]
    assert (reply.role, reply.text, note.role) == ("assistant", "Noted.", "user")
    same = (
        "tools",
        "tool_choice",
        "temperature",
        "thinking",
        "model",
        "cache_key",
        "stable_messages",
        "unbound_before",
        "refused_before",
    )
    assert {n: getattr(live, n) for n in same} == {n: getattr(last, n) for n in same}
    assert events[0].fallback_level == "model"
    assert events[0].problems == ()
    assert "the assistant noted each: Room 0 has the code 4000." in text_of(ctx.view().messages)


def test_the_span_ends_where_its_first_remaining_message_begins(make: Make) -> None:
    backend = answering()
    ctx = make(backend, context_window=WINDOW)
    events = watched(ctx)
    talked(ctx)
    note = next(r.messages[-1].text for r in backend.requests if is_live(r))
    first_kept = next(m for m in ctx.messages() if m.id not in events[0].covered)
    assert f"up to but without the message of the {first_kept.role} that begins with " in note
    assert json.dumps(first_kept.text[:20])[1:-1] in note
    assert said(0) not in note  # its end is named, nothing of it is copied


def test_the_provider_cache_serves_all_but_the_end() -> None:
    """At the server: the whole of the last request is read from the cache; the facts of the span and no others are kept."""
    with (
        ModelServer(context_window=WINDOW) as server,
        OpenAIChatBackend(provider="generic", model="lookup", base_url=server.base_url) as backend,
        backend_context(backend, recall_ratio=0) as ctx,
    ):
        events = watched(Driven(ctx, None))
        for number in range(30):
            ctx.send(said(number), tools=TOOLS)
        usage = ctx.usage()
        assert events
        assert {e.fallback_level for e in events} == {"model"}
        assert usage.summary_calls == len(events) == sum(asks_on_live_prefix(r.body) for r in server.requests)
        assert usage.summaries.cache_read_tokens > 0.7 * usage.summaries.input_tokens
        assert all(e.live_prefix for e in events)
        assert sum((e.summary_usage for e in events), Usage()) == usage.summaries
        assert not any(asks_with_transcript(r.body) for r in server.requests)


def backend_context(backend: Any, **settings: Any) -> AgentContext:
    return context(backend, **{"context_window": WINDOW, **settings})


CALLS = assistant("", id="c", calls=[ToolCallPart("c1", "look", "{}")])


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (CALLS, "called look instead"),
        ("", "no text"),
        ("I'm sorry, but I can't help with that.", "words are in its source"),
        (BackendError("down", kind="server"), "down"),
    ],
)
def test_another_answer_leads_to_a_transcript(make: Make, answer: Any, problem: str) -> None:
    backend = answering(lambda request: answer if request.live_prefix else SUMMARY)
    ctx = make(backend, context_window=WINDOW)
    events = watched(ctx)
    talked(ctx, tools=TOOLS)
    assert events[0].fallback_level == "model"
    assert events[0].problems[0].startswith("live prefix: ")
    assert problem in events[0].problems[0]
    assert "the assistant noted each: Room 0 has the code 4000." in text_of(ctx.view().messages)
    assert not any(m.tool_calls for m in ctx.messages()), "the call of a summary never becomes part of the conversation"


def test_a_model_that_writes_no_summary_so_is_not_asked_so_for_ever(make: Make) -> None:
    backend = answering(lambda request: CALLS if request.live_prefix else SUMMARY)
    ctx = make(backend, context_window=WINDOW, recall_ratio=0)
    events = watched(ctx)
    talked(ctx, 60)
    assert len(events) > 3
    assert sum(map(is_live, backend.requests)) == 2


def test_r5_a_model_that_has_written_summaries_so_is_asked_so_again_after_two_failures(make: Make) -> None:
    """R5: two odd answers in a row, and every later summary of a session cost several times as much."""
    asked: list[int] = []

    def summary(request: Request) -> str:
        asked.append(1)
        return "Noted." if request.live_prefix and len(asked) in (4, 6) else SUMMARY

    backend = answering(summary)
    ctx = make(backend, context_window=WINDOW, recall_ratio=0)
    talked(ctx, 150)
    kinds = [is_live(r) for r in backend.requests if is_live(r) or r.messages[-1].id == "summary-source"]
    assert len(kinds) > 9
    assert kinds[:7] == [True, True, True, True, False, True, False]
    assert all(kinds[7:])


def test_another_summariser_gets_a_transcript(make: Make) -> None:
    backend, writer = answering(), answering()
    ctx = make(backend, context_window=WINDOW, summarizer=writer)
    talked(ctx)
    assert not any(map(is_live, (*backend.requests, *writer.requests)))
    assert writer.requests


@pytest.mark.parametrize(
    "options",
    [
        {"tool_choice": "look", "tools": TOOLS},
        {"tool_choice": "required", "tools": TOOLS},
        {"extra": {"response_format": {"type": "json_object"}}},
        {"extra": {"guided_json": {}}},
        {"model": "another"},
    ],
    ids=str,
)
def test_a_request_whose_answer_has_another_form_is_not_repeated(make: Make, options: Any) -> None:
    backend = answering()
    ctx = make(backend, context_window=WINDOW)
    events = watched(ctx)
    talked(ctx, **options)
    assert events[0].fallback_level == "model"
    assert not any(map(is_live, backend.requests))


def test_a_provider_that_reports_no_cached_tokens_gets_a_transcript(make: Make) -> None:
    backend, cached = answering(cached=0.0), answering(cached=0.9)
    for each in (backend, cached):
        talked(make(each, context_window=4_000), 60)
    assert any(r.messages[-1].id == "summary-source" for r in backend.requests)
    assert not any(map(is_live, backend.requests))
    assert any(map(is_live, cached.requests))


def test_prices_decide_whether_the_cache_pays(make: Make) -> None:
    dear = answering()
    talked(make(dear, context_window=WINDOW, prices=Prices.relative(read=1)))
    assert not any(map(is_live, dear.requests))


def test_what_was_added_and_never_sent_goes_as_a_transcript(make: Make) -> None:
    backend = answering()
    ctx = make(backend, context_window=WINDOW)
    ctx.send("Hello.")
    for number in range(20):
        ctx.add([user(said(number), id=f"u{number}"), assistant("Noted.", id=f"r{number}")])
    assert any(r.messages[-1].id == "summary-source" for r in backend.requests)
    assert not any(map(is_live, backend.requests))


def test_erased_text_is_never_sent_again(make: Make) -> None:
    backend = answering()
    ctx = make(backend, context_window=8_000)
    talked(ctx, 12)
    first = ctx.messages()[0]
    ctx.erasure.erase(first.id)
    before = len(backend.requests)
    ctx.compact(force=True)
    assert len(backend.requests) > before
    assert all(said(0) not in m.text for r in backend.requests[before:] for m in r.messages)
    assert not any(map(is_live, backend.requests[before:]))


def test_passages_and_scratch_of_the_last_request_are_left_out(make: Make) -> None:
    """They stand behind what the next request repeats, and are no part of the span."""
    backend = answering()
    ctx = make(backend, context_window=WINDOW)
    talked(ctx, 40, scratch="It is five o'clock.")
    live = [r for r in backend.requests if is_live(r)]
    assert live
    assert not any("five o'clock" in m.text or m.id in ("scratch", "passages") for r in live for m in r.messages)


@pytest.mark.parametrize("strict", ["openai", "deepseek", "moonshot", "alternating"])
def test_strict_services_accept_the_request(strict: Any) -> None:
    """No orphan call, roles in turn, and the reasoning that a service wants back with its tool calls."""

    def play(body: Any) -> Any:
        last = body["messages"][-1]
        if last["role"] == "tool":
            return Scripted("Noted.", reasoning="It is written down.")
        if asks_on_live_prefix(body) or asks_with_transcript(body):
            return Scripted(SUMMARY, reasoning="A summary is asked for.")
        return Scripted(tool_calls=(ScriptedCall("look"),), reasoning="It has to be looked up.")

    provider = {"alternating": "llamacpp"}.get(strict, strict)
    with (
        ModelServer(model="m", script=play, strict=strict) as server,
        OpenAIChatBackend(provider=provider, model="m", base_url=server.base_url, api_key="x") as backend,
        backend_context(backend, alternating_roles=strict == "alternating") as ctx,
    ):
        events = watched(Driven(ctx, None))
        for number in range(20):
            (call,) = ctx.send(said(number), tools=TOOLS).message.tool_calls
            ctx.send([tool_result(call.id, f"Wall {number}.")], tools=TOOLS)
        assert events
        assert [e.problems for e in events] == [()] * len(events)
        live = [r.body for r in server.requests if asks_on_live_prefix(r.body)]
        assert len(live) == len(events)
        if strict != "openai":
            assert all(m.get("reasoning_content") for m in live[0]["messages"] if m.get("tool_calls"))
        assert all(b["tools"] and "tool_choice" not in b for b in live)


def test_a_round_under_way_is_summarised_on_what_was_sent(make: Make) -> None:
    """A request that has to fit: the new tool output, which nobody has sent yet, is no part of the summary's request."""
    step = iter(range(100))

    def play(request: Request) -> Any:
        if request.live_prefix:
            return SUMMARY
        number = next(step)
        return assistant("", id=f"a{number}", calls=[ToolCallPart(f"c{number}", "look", f'{{"n": {number}}}')])

    backend = ScriptedBackend([play] * 100)
    ctx = make(backend, context_window=4_000, strategy="summarize")
    events = watched(ctx)
    reply = ctx.send("Look everything up.", tools=TOOLS)
    for number in range(12):
        reply = ctx.send([tool_result(reply.message.tool_calls[0].id, said(number) * 4)], tools=TOOLS)
    live = [r for r in backend.requests if is_live(r)]
    assert live
    for request in live:
        calls = [c.id for m in request.messages for c in m.tool_calls]
        results = [r.call_id for m in request.messages for r in m.tool_results]
        assert calls == results
        assert "above from (and with) " in request.messages[-1].text
    assert all(e.problems == () for e in events)


def test_anthropic_finds_its_cache_marks_where_they_were(make: Make) -> None:
    backend = answering()
    ctx = make(backend, context_window=WINDOW, system="Keep the codes.")
    talked(ctx, tools=TOOLS)
    index, live = next((i, r) for i, r in enumerate(backend.requests) if is_live(r))
    profile = load_profile("anthropic")
    before, asked = (request_body(profile, r, model="m", stream=False) for r in (backend.requests[index - 1], live))
    same = ("system", "tools", "tool_choice", "thinking")
    assert {n: before.get(n) for n in same} == {n: asked.get(n) for n in same}
    blocks = [[b for row in body["messages"] for b in row["content"]] for body in (before, asked)]
    assert blocks[1][: len(blocks[0])] == blocks[0]
    assert any("cache_control" in b for b in blocks[0])
    assert not any("cache_control" in b for b in blocks[1][len(blocks[0]) :])


def test_a_thinking_model_is_not_cut_short(make: Make) -> None:
    """Its thoughts count as output, and turning them off would lose the cached prefix."""
    thinking = answering(reasoning="Let me see.")
    talked(make(thinking, context_window=WINDOW), thinking=True)
    assert next((r.max_tokens, r.thinking) for r in thinking.requests if is_live(r)) == (None, True)
    plain = answering()
    talked(make(plain, context_window=WINDOW))
    assert all(r.max_tokens for r in plain.requests if is_live(r))
