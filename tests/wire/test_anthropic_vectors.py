"""What the Messages API sends for compaction and context editing on its own side, citations and server tools: read, sent back."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from ctxfold import AgentContext, Message, Reply, Request, TextPart, Usage, assistant, open_backend, user
from ctxfold.backends.anthropic import MessagesParser
from ctxfold.backends.http_backend import HttpBackend
from ctxfold.stream import Fold
from tests.wire.anthropic_wire import parsed
from tests.wire.raw_server import Play, RawServer
from tests.wire.vector_runs import (
    ASKED,
    KEY,
    MODEL,
    check,
    check_echo,
    check_reply,
    cuts,
    frames,
    next_rows,
    play,
    run_async,
    run_sync,
    vectors,
)

ALL = vectors("vectors_anthropic.jsonl")
CITATION = {
    "type": "web_search_result_location",
    "url": "https://x.test",
    "encrypted_index": "E1",
    "cited_text": "plums",
}
SEARCH = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "plums"}}
FOUND = {
    "type": "web_search_tool_result",
    "tool_use_id": "srvtoolu_1",
    "content": [{"type": "web_search_result", "url": "https://x.test", "encrypted_content": "C1"}],
}
CONTENT: list[dict[str, Any]] = [
    {"type": "text", "text": "I look."},
    SEARCH,
    FOUND,
    {"type": "text", "text": "There are "},
    {"type": "text", "text": "five", "citations": [CITATION]},
    {"type": "text", "text": " plums."},
    {"type": "tool_use", "id": "toolu_1", "name": "now", "input": {}, "caller": {"type": "direct"}},
    {"type": "text", "text": "Wait."},
]


def backend(server: RawServer, **settings: Any) -> HttpBackend:
    return open_backend("anthropic", MODEL, base_url=server.base_url, api_key=KEY, max_retries=0, **settings)


def edited(vector: dict[str, Any]) -> Request:
    """The request that the vector answers, with the edits of the context that it expects."""
    wanted = vector["request_expectation"].get("must_contain", {"context_management": {"edits": [CLEAR]}})
    return Request(ASKED.messages, tools=ASKED.tools, max_tokens=2000, thinking=False, extra=wanted)


CLEAR = {"type": "clear_tool_uses_20250919"}


@pytest.mark.parametrize("vector", ALL, ids=lambda v: v["name"])
def test_vector(vector: dict[str, Any]) -> None:
    plays = [play(vector, pieces) for pieces in ([*frames(vector)], *cuts(b"".join(frames(vector))))]
    with RawServer(*plays) as server, backend(server) as service:
        for _ in plays:
            check(vector, run_sync(service, edited(vector)), service)
            check(vector, asyncio.run(run_async(service, edited(vector))), service)
        for name, value in vector["request_expectation"].get("must_contain", {}).items():
            assert server.bodies[0][name] == value
        for name, value in vector["request_expectation"]["headers_contain"].items():
            assert server.headers[0][name] == value


@pytest.mark.parametrize("vector", ALL, ids=lambda v: v["name"])
async def test_what_the_service_did_to_the_context_is_in_the_reply(vector: dict[str, Any]) -> None:
    expected = vector["expected"]
    with RawServer(play(vector)) as server:
        async with backend(server) as service:
            reply = await service.asend(edited(vector))
            check_reply(vector, reply)
            restored = service.message_from_jsonl(service.message_to_jsonl(reply.message))
            assert restored == reply.message
            check_echo(vector, restored, service)
    billed = expected.get("billed")
    assert reply.billed == (None if billed is None else Usage(**billed))
    assert [dict(edit) for edit in reply.applied_edits] == expected.get("applied_edits", [])


def test_beta_features_are_named_beside_the_callers_own() -> None:
    compact = {"type": "compact_20260112"}
    with RawServer(play(ALL[0])) as server, backend(server, headers={"Anthropic-Beta": "mine-1"}) as service:
        for edits in ([], [{"type": "unknown"}], [compact, CLEAR, CLEAR]):
            service.send(Request(ASKED.messages, extra={"context_management": {"edits": edits}}))
    sent = [headers["anthropic-beta"] for headers in server.headers]
    assert sent == ["mine-1", "mine-1", "mine-1,compact-2026-01-12,context-management-2025-06-27"]


def test_a_compaction_that_pauses_or_failed() -> None:
    for summary in ("They counted.", None):
        block = {"type": "compaction", "content": summary}
        body = {"type": "message", "model": MODEL, "content": [block], "stop_reason": "compaction"}
        with RawServer(Play([json.dumps(body).encode()])) as server, backend(server) as service:
            reply = service.send(ASKED)
            assert (reply.finish_reason, reply.message.text) == ("pause", "")
            # what stands before a summary is not sent any more; a compaction that failed stands for nothing
            place = 1 if summary is None else 0
            assert next_rows(service, reply.message)[place] == {"role": "assistant", "content": [block]}


def whole() -> Reply:
    body = {"type": "message", "model": MODEL, "content": CONTENT, "stop_reason": "tool_use"}
    parser, fold = MessagesParser(open_backend("anthropic", MODEL, api_key=KEY).profile), Fold("a1", MODEL)
    for chunk in (*parser.feed(json.dumps(body).encode()), *parser.close()):
        fold.feed(chunk)
    return fold.close()


def streamed() -> Reply:
    events: list[dict[str, Any]] = [{"type": "message_start", "message": {"model": MODEL}}]
    for index, block in enumerate(CONTENT):
        start, deltas = dict(block), []
        if block["type"] == "text":
            start["text"], start["citations"] = "", None
            deltas = [{"type": "citations_delta", "citation": one} for one in block.get("citations", [])]
            deltas += [{"type": "text_delta", "text": letter} for letter in block["text"]]
        elif "input" in block:
            start["input"] = {}
            deltas = [{"type": "input_json_delta", "partial_json": json.dumps(block["input"])}]
        events.append({"type": "content_block_start", "index": index, "content_block": start})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    events += [{"type": "message_delta", "delta": {"stop_reason": "tool_use"}}, {"type": "message_stop"}]
    chunks, parser = parsed(*events)
    assert parser.error is None
    fold = Fold("a1", MODEL)
    for chunk in chunks:
        fold.feed(chunk)
    return fold.close()


@pytest.mark.parametrize("reply", [whole(), streamed()], ids=["whole", "streamed"])
def test_citations_and_server_tools_go_back_as_they_came(reply: Reply) -> None:
    service = open_backend("anthropic", MODEL, api_key=KEY)
    assert reply.message.text == "I look.There are five plums.Wait."
    assert [call.id for call in reply.message.tool_calls] == ["toolu_1"]
    for message in (reply.message, service.message_from_jsonl(service.message_to_jsonl(reply.message))):
        assert next_rows(service, message)[1] == {"role": "assistant", "content": CONTENT}
    assert json.loads(service.message_to_jsonl(reply.message))["content"] == CONTENT


def test_another_model_gets_the_text_and_the_calls_alone() -> None:
    rows = open_backend("anthropic", "claude-opus-5-5", api_key=KEY).request_body(
        Request((user("q", id="u"), whole().message)), stream=True
    )["messages"]
    assert [list(block) for block in rows[1]["content"]] == [
        *[["type", "text"]] * 4,
        ["type", "id", "name", "input"],
        ["type", "text"],
    ]


def test_fields_of_another_wire_are_left_out() -> None:
    said = Message("a", "assistant", (TextPart("x", '{"thoughtSignature": "s"}'),))
    rows = next_rows(open_backend("anthropic", MODEL, api_key=KEY), said)
    assert rows[1]["content"] == [{"type": "text", "text": "x"}]
    assert assistant("x", id="a").parts == (TextPart("x"),)


def test_usage_after_clearing_teaches_nothing_about_our_counts() -> None:
    """The service reports what it had left of a prompt that was much longer."""
    said = {"type": "message", "model": MODEL, "content": [{"type": "text", "text": "Ok."}], "stop_reason": "end_turn"}
    budgets: list[int] = []
    for extra in ({"context_management": {"edits": [CLEAR]}}, {}):
        reply = json.dumps({**said, "usage": {"input_tokens": 400, "output_tokens": 2}}).encode()
        with (
            RawServer(Play([reply])) as server,
            backend(server) as service,
            AgentContext(service, session_id="s", store="memory://", context_window=100_000) as context,
        ):
            before = context.explain().gauge.compacts_at_tokens or 0
            for number in range(4):
                context.send(f"{number} " + "many words " * (0 if number else 400), extra=extra)
            budgets.append((context.explain().gauge.compacts_at_tokens or 0) - before)
    assert budgets[0] == 0 != budgets[1]
