"""Large arguments of tool calls: they give way at epoch heads, and nothing of them is lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from ctxfold import (
    AgentContext,
    HistoryCompacted,
    Message,
    ReasoningPart,
    ScriptedBackend,
    ToolCallPart,
    assistant,
    tool_result,
    user,
)
from ctxfold.adapters.history_tools import history_tools
from ctxfold.compaction.tool_outputs import with_short_arguments
from ctxfold.messages import Opaque
from ctxfold.protocols import BackendCapabilities
from tests.benchmarks.excerpts import writes
from tests.support.driven import Driven, context, scripted

Make = Callable[..., Driven]
FILE = "\n".join(f"def function_{n}():\n    return {n * 31}\n" for n in range(300))


def written(number: int, content: str = FILE, **more: Any) -> ToolCallPart:
    arguments = json.dumps({"path": f"src/m{number}.py", "content": content, "mode": 420, "dry_run": False, **more})
    return ToolCallPart(f"c{number}", "write_file", arguments)


def agent(
    count: int, *, reasoning: ReasoningPart | None = None, **settings: Any
) -> tuple[AgentContext, ScriptedBackend]:
    """A session in which an agent has written some files in one turn, and its backend."""
    parts = [(reasoning,) if reasoning is not None else () for _ in range(count)]
    rounds = [Message(f"a{n}", "assistant", (*parts[n], written(n))) for n in range(count)]
    backend = scripted(*rounds, "All done.", **settings.pop("backend", {}))
    ctx = context(backend, context_window=settings.pop("context_window", 8_000), summarizer=scripted(), **settings)
    ctx.send(user("Write the files.", id="u"))
    return ctx, backend


def sent(backend: ScriptedBackend, message_id: str) -> str:
    """The arguments of a call in the newest request."""
    message = next(m for m in backend.requests[-1].messages if m.id == message_id)
    return message.tool_calls[0].arguments


def answer(ctx: AgentContext, count: int, start: int = 0) -> None:
    for n in range(start, count):
        ctx.send(tool_result(f"c{n}", f"ok, src/m{n}.py was written", id=f"r{n}"))


@pytest.mark.parametrize("in_one_turn", [True, False])
def test_runs_of_writes_send_less_and_summarise_nothing(in_one_turn: bool) -> None:
    """Before arguments gave way this run sent 559,000 and 1,109,000 characters, and asked for 6 and 8 summaries."""
    found = writes(12, 20_000, in_one_turn=in_one_turn)
    assert (found.summaries, found.lost) == (0, 0)
    assert found.chars <= 0.6 * (559_057 if in_one_turn else 1_108_526)


def test_older_arguments_are_excerpts_with_the_same_fields_and_types() -> None:
    ctx, backend = agent(6)
    answer(ctx, 6)
    first = json.loads(sent(backend, "a0"))
    assert {k: type(v) for k, v in first.items()} == {"path": str, "content": str, "mode": int, "dry_run": bool}
    assert (first["path"], first["mode"], first["dry_run"]) == ("src/m0.py", 420, False)
    assert first["content"].startswith("def function_0():")
    assert f"of {len(FILE)} characters left out here, the tool was given all; archived whole as #2]" in first["content"]
    assert json.loads(sent(backend, "a5"))["content"] == FILE, "the newest call stays whole"


def test_nothing_of_them_is_lost() -> None:
    ctx, _ = agent(6)
    answer(ctx, 6)
    assert ctx.archive.get("#2").tool_calls == (written(0),)
    read = next(t for t in history_tools(ctx) if t.name == "read_message")
    text, offset = "", 0
    while True:
        head, _, page = read.call(reference="#2", offset=offset).partition(":\n")
        text += page
        if "go on with offset" not in head:
            break
        offset = int(head.rpartition(" ")[2])
    assert json.loads(text.removeprefix("calls write_file(").removesuffix(")"))["content"] == FILE
    assert "#2" in [h.reference for h in ctx.search("function_299", limit=10)]
    assert ctx.archive.explain("a0").where == "excerpt"
    assert "arguments of a call" in ctx.archive.explain("a0").why
    assert [ctx.archive.get(f"a{n}").tool_calls for n in range(6)] == [(written(n),) for n in range(6)]


def test_between_two_epochs_each_request_begins_like_the_one_before() -> None:
    ctx, backend = agent(8)
    epochs: list[HistoryCompacted] = []
    ctx.subscribe(lambda e: epochs.append(e) if isinstance(e, HistoryCompacted) else None)
    answer(ctx, 8)
    breaks = sum(b.messages[: len(a.messages)] != a.messages for a, b in pairwise(backend.requests))
    assert 0 < breaks <= len(epochs)
    assert {e.strategy for e in epochs} == {"clear_tools"}
    assert "arguments of earlier calls take" in epochs[0].reason
    assert dict(ctx.usage().prefix.breaks).keys() <= {"compaction"}


def test_undo_restore_fork_and_files_know_of_it(tmp_path: Any) -> None:
    ctx, _ = agent(6, store=f"sqlite:///{tmp_path}/a.db")
    answer(ctx, 6)
    shortened = [e.id for e in ctx.view() if e.shown_seq and e.message.tool_calls]
    assert "a0" in shortened
    ctx.set_policy(context_window=64_000)
    ctx.restore("a0")
    assert next(m for m in ctx.view().messages if m.id == "a0").tool_calls == (written(0),)
    with ctx.fork("other") as fork:
        assert fork.archive.get("a1").tool_calls == (written(1),)
        assert any(e.id == "a1" and e.shown_seq for e in fork.view())
    ctx.files.export_jsonl(tmp_path / "all.jsonl")
    with context(context_window=64_000, session_id="copy") as copy:
        copy.files.import_jsonl(tmp_path / "all.jsonl")
        assert copy.archive.get("a1").tool_calls == (written(1),)
    while ctx.view().epoch and any(e.shown_seq for e in ctx.view()):
        ctx.undo()
    assert all(
        m.tool_calls[0].arguments == written(int(m.id[1:])).arguments for m in ctx.view().messages if m.tool_calls
    )


def test_an_erased_call_leaves_nothing_of_its_arguments(tmp_path: Any) -> None:
    ctx, _ = agent(6, store=f"sqlite:///{tmp_path}/a.db")
    answer(ctx, 6)
    ctx.erasure.erase("a0")
    ctx.close()
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"src/m0.py" not in stored
    assert b"src/m1.py" in stored


def test_pinned_calls_stay_whole() -> None:
    backend = scripted(*(x for n in range(4) for x in (assistant("", id=f"a{n}", calls=[written(n)]), "Written.")))
    ctx = context(backend, context_window=16_000, summarizer=scripted(), pin_ratio=0.5)
    for n in range(4):
        ctx.send(f"Write file {n}.")
        ctx.send(tool_result(f"c{n}", "ok", id=f"r{n}"))
        if n == 0:
            ctx.pin("a0")
    assert sent(backend, "a0") == written(0).arguments
    assert sent(backend, "a1") != written(1).arguments


@pytest.mark.parametrize("strategy", ["summarize", "truncate"])
def test_a_strategy_without_pruning_leaves_them(strategy: str) -> None:
    ctx, backend = agent(4, context_window=16_000, strategy=strategy)
    answer(ctx, 4)
    assert sent(backend, "a0") == written(0).arguments


def test_signed_calls_of_the_turn_under_way_stay_whole() -> None:
    """A service may check a call against the reasoning, or the signature, that it sent with it."""
    ctx, backend = agent(3, context_window=16_000, reasoning=ReasoningPart("I write.", signature="sig"))
    answer(ctx, 3)
    assert all(sent(backend, f"a{n}") == written(n).arguments for n in range(3))
    plain, plain_backend = agent(3, context_window=16_000)
    answer(plain, 3)
    assert sent(plain_backend, "a0") != written(0).arguments, "without a signature they give way in the same run"


def test_bound_reasoning_keeps_its_prefix_within_a_turn() -> None:
    """Where a service accepts reasoning only behind the very same prefix, arguments wait until a request has to fit."""

    class Bound(ScriptedBackend):
        capabilities = BackendCapabilities(binds_reasoning=True)

    rounds = [Message(f"a{n}", "assistant", (ReasoningPart("I write."), written(n))) for n in range(4)]
    backend = Bound([*rounds, "All done.", "Gladly."])
    ctx = context(backend, context_window=16_000, summarizer=scripted())
    ctx.send(user("Write the files.", id="u"))
    answer(ctx, 4)
    assert sent(backend, "a0") == written(0).arguments
    ctx.send("Thank you.")
    assert sent(backend, "a0") != written(0).arguments, "at the next turn the break costs no reasoning that is needed"


def test_what_a_framework_keeps_beside_is_shortened_too() -> None:
    call = written(0)
    beside = {
        "kwargs": {"tool_calls": [{"id": "c0", "function": {"name": "write_file", "arguments": call.arguments}}]},
        "content": [["x", {"type": "tool_use", "id": "c0", "name": "write_file", "input": json.loads(call.arguments)}]],
    }
    message = Message("a", "assistant", (call, Opaque("langchain", json.dumps(beside))))
    short = with_short_arguments(message, reference="#2")
    arguments = short.tool_calls[0].arguments
    assert short.opaque("langchain") == {
        "kwargs": {"tool_calls": [{"id": "c0", "function": {"name": "write_file", "arguments": arguments}}]},
        "content": [["x", {"type": "tool_use", "id": "c0", "name": "write_file", "input": json.loads(arguments)}]],
    }
    assert "function_150" not in repr(short)


def test_nested_values_lists_of_texts_and_malformed_calls() -> None:
    edits = [{"old": "a" * 900, "new": "b", "line": n} for n in range(3)]
    call = ToolCallPart(
        "c", "edit", json.dumps({"edits": edits, "tags": [f"tag {n} " * 9 for n in range(40)], "rows": [*range(900)]})
    )
    short = with_short_arguments(Message("a", "assistant", (call,)), reference="#2").tool_calls[0].parsed()
    assert short is not None
    assert [(set(e), e["new"], e["line"]) for e in short["edits"]] == [
        ({"old", "new", "line"}, "b", n) for n in range(3)
    ]
    assert all("archived whole as #2" in e["old"] for e in short["edits"])
    assert len(short["tags"]) == 5
    assert short["tags"][-1] == "tag 39 " * 9
    assert "36 of 40 items left out here" in short["tags"][3]
    assert short["rows"] == [*range(900)], "there is no place for a note among numbers"
    malformed = Message("a", "assistant", (ToolCallPart("c", "edit", '{"text": "' + "x" * 2_000),))
    assert with_short_arguments(malformed, reference="#2") is malformed
    small = assistant("", id="a", calls=[written(0, "short")])
    assert with_short_arguments(small, reference="#2") is small
