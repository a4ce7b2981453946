"""Sessions as files: lines in providers' shapes, whole sessions, and what is wrong with bad ones."""

from __future__ import annotations

import json
import resource
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from ctxfold import (
    AgentContext,
    AnthropicBackend,
    ConfigError,
    MediaPart,
    MemoryStore,
    Message,
    OpenAIChatBackend,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    Usage,
    assistant,
    tool_result,
    user,
)
from ctxfold.errors import (
    ImportLineError,
    MessageNotFoundError,
    PinBudgetError,
    SessionExistsError,
    StoreCorruptError,
    StoreFormatError,
    StoreUnavailableError,
)
from ctxfold.events import SessionLoaded
from ctxfold.session.context import aload_snapshot, load_snapshot
from tests.support.driven import Driven, context, scripted, tool_round, turns

Make = Callable[..., Driven]

IMAGE = MediaPart("image", '{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}')
RICH = [
    user("go\u2028on", id="q"),
    Message("look", "user", (TextPart("what is this"), IMAGE)),
    Message(
        "calls",
        "assistant",
        (
            ReasoningPart("hm", "sig=="),
            TextPart("I look."),
            ToolCallPart("c1", "look", '{"a": 1}'),
            ToolCallPart("c2", "look", '{"b":  "é"}'),
        ),
        model="claude-sonnet-4-5",
        usage=Usage(10, 5),
        finish_reason="tool_calls",
    ),
    Message("both", "tool", (ToolResultPart("c1", "one", "look"), ToolResultPart("c2", "two", None, True))),
    assistant("done", id="end", reasoning="well"),
]


def rich(ctx: Any) -> None:
    ctx.add([*RICH, *turns(3)])
    ctx.pin("q", "both")
    ctx.add(user("only for the reader", id="note"), visibility="user")


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


@pytest.mark.parametrize("native", [False, True])
def test_a_whole_session_comes_back(make: Make, tmp_path: Path, native: bool) -> None:
    ctx = make(context_window=2_000, system="Be brief.")
    events: list[Any] = []
    rich(ctx)
    ctx.edit.update(0, user("corrected", id="x"))
    ctx.edit.update(0, RICH[0])
    ctx.edit.update(5, user("corrected", id="x"))
    ctx.add(turns(20, start=5))
    ctx.compact(force=True)
    count = ctx.files.export_jsonl(tmp_path / "all.jsonl", native=native)
    assert count == len(read(tmp_path / "all.jsonl"))
    for target in (make(context_window=2_000), make(context_window=2_000, system="Be brief.")):
        target.subscribe(events.append)
        assert target.files.import_jsonl(tmp_path / "all.jsonl") == count
        assert target.view().messages == ctx.view().messages
        assert target.messages() == ctx.messages()
        assert target.usage().reported == ctx.usage().reported
        assert [b.id for b in target.explain().blocks if b.why == "pinned"] == ["q", "both"]
        assert [target.archive.get(m.id) for m in RICH] == RICH
        assert target.search("corrected") == ctx.search("corrected")
        target.undo()
        assert target.archive.get("both") == RICH[3]
    assert sum(isinstance(e, SessionLoaded) for e in events) == 2
    other = ctx.at("other")
    other.files.import_jsonl(tmp_path / "all.jsonl")
    assert other.messages() == ctx.messages()
    with pytest.raises(SessionExistsError, match="records of its own"):
        make(system="Other words.").files.import_jsonl(tmp_path / "all.jsonl")


def test_lines_are_in_the_shape_of_each_models_provider(tmp_path: Path) -> None:
    """A session that began on one provider and went on with another."""
    with (
        AnthropicBackend(model="claude-sonnet-4-5", api_key="x") as backend,
        AgentContext(backend, context_window=4_000) as ctx,
    ):
        ctx.add([user("go", id="q"), RICH[2], RICH[3], assistant("fine", id="e")])
        later = Message("o", "assistant", (TextPart("hi"),), model="gpt-5-mini")
        ctx.add([user("and you", id="u"), later, user("thanks", id="t"), assistant("ok", id="z")])
        ctx.files.export_jsonl(tmp_path / "n.jsonl", zone="incremental", native=True)
        rows = read(tmp_path / "n.jsonl")
        assert [r["ctxfold"]["wire"][:6] for r in rows] == ["anthro"] * 2 + ["openai"] * 4 + ["anthro"] * 2
        assert [b["type"] for b in rows[1]["content"]] == ["thinking", "text", "tool_use", "tool_use"]
        assert rows[4]["content"] == "and you"
        messages = ctx.messages()
    with (
        OpenAIChatBackend(provider="openai", model="gpt-5", api_key="x") as backend,
        AgentContext(backend, context_window=4_000) as ctx,
    ):
        ctx.files.import_jsonl(tmp_path / "n.jsonl")
        assert ctx.messages() == messages


@pytest.mark.parametrize("had", [0, 1, 2, 3])
def test_lines_complete_the_turn_that_has_a_part_of_them(make: Make, tmp_path: Path, had: int) -> None:
    """Notes for the user stand within a round, and belong to no turn."""
    note = replace(user("a remark", id="n"), visibility="user")
    asked, found = tool_round("t")
    messages = [user("look", id="q"), asked, note, found, assistant("done", id="d"), *turns(1)]
    backend = OpenAIChatBackend(model="m", api_key="k")
    path = tmp_path / "lines.jsonl"
    path.write_text("\n".join(map(backend.message_to_jsonl, messages)))
    ctx = make(backend)
    if had:
        ctx.add(messages[:had])
    assert ctx.files.import_jsonl(path) == len(messages) - had
    assert ctx.view().turn == ()
    assert [m.id for m in ctx.view().messages] == ["q", "t-a", "t-r0", "d", "u0", "a0"]
    assert {m.id for m in ctx.messages(audience="user")} >= {"q", "n", "d"}


def test_zones(make: Make, tmp_path: Path) -> None:
    ctx = make(context_window=2_000, system="Be brief.")
    ctx.add(turns(20))
    ctx.compact(force=True)
    ctx.pin("u19")
    path = tmp_path / "z.jsonl"
    zones = {
        zone: ctx.files.export_jsonl(path, zone=zone) for zone in ("immutable", "compressed", "incremental", "window")
    }
    assert zones["immutable"] == zones["compressed"] == 1
    assert zones["window"] == sum(zones.values()) - zones["window"]
    target = make(context_window=2_000)
    assert target.files.import_jsonl(path) == zones["window"]
    assert target.files.import_jsonl(path) == 0, "what is known is kept once"
    assert [m.text for m in target.view().messages] == [m.text for m in ctx.view().messages]
    assert [b.id for b in target.explain().blocks if b.why == "pinned"] == ["u19"]
    with pytest.raises(ConfigError, match="zone is 'half'"):
        ctx.files.export_jsonl(path, zone="half")


def test_a_file_that_cannot_be_put_in_its_place_leaves_nothing_behind(make: Make, tmp_path: Path) -> None:
    ctx = make()
    ctx.add(turns(1))
    folder = tmp_path / "taken"
    folder.mkdir()
    for write in (ctx.files.export_jsonl, ctx.files.save_snapshot):
        with pytest.raises(ConfigError, match="no regular file"):
            write(folder)
    assert [*tmp_path.iterdir()] == [folder]


def test_a_file_that_could_be_written_in_part_only_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "all.jsonl"
    path.write_text("what was there before")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with context() as ctx:
        ctx.add(turns(40))
        for write in (ctx.files.export_jsonl, ctx.files.save_snapshot):
            resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, hard))
            try:
                with pytest.raises(StoreUnavailableError, match="check the free space"):
                    write(path)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [*tmp_path.iterdir()] == [path]
    assert path.read_text() == "what was there before"


def test_a_large_import_is_compacted_at_once(make: Make, tmp_path: Path) -> None:
    with context(context_window=20_000) as source:
        source.add(turns(40))
        source.files.export_jsonl(tmp_path / "w.jsonl", zone="window")
    ctx = make(context_window=2_000, background=False)
    ctx.files.import_jsonl(tmp_path / "w.jsonl")
    assert ctx.usage().compactions == 1
    assert ctx.view().tokens < ctx.policy.budget_tokens


def test_what_was_undone_is_undone_in_the_copy(tmp_path: Path) -> None:
    """A long log has snapshots, which are made anew: a session is opened from the newest one."""
    path, store = tmp_path / "all.jsonl", f"sqlite:///{tmp_path}/copy.db"
    rules: dict[str, Any] = {"context_window": 200_000, "auto_compact": False}
    with context(**rules) as ctx:
        ctx.add(turns(2))
        ctx.edit.remove("u0")
        ctx.undo()
        for start in range(2, 522, 20):
            ctx.add(turns(20, start=start))
        ctx.files.export_jsonl(path)
        messages = ctx.view().messages
        assert [m.id for m in messages[:2]] == ["u0", "a0"]
    assert "snapshot_taken" in path.read_text(encoding="utf-8")
    with context(store=store, **rules) as copy:
        copy.files.import_jsonl(path)
    with context(store=store, **rules) as copy:
        assert copy.view().messages == messages


def test_lines_of_others(make: Make, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    rows = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "hello", "ctxfold": {"id": "a", "pinned": True}},
        {"role": "user", "content": "big?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "line of output. " * 900},
        {"role": "assistant", "content": "large"},
    ]
    path.write_text("\ufeff" + "\r\n".join(map(json.dumps, rows)) + "\n\n", encoding="utf-8")
    ctx = make(context_window=2_000)
    ctx.add(turns(1))
    assert ctx.files.import_jsonl(path) == 6
    assert [m.text for m in ctx.messages()][2:5] == ["hi", "hello", "big?"]
    assert [b.id for b in ctx.explain().blocks if b.why == "pinned"] == ["a"]
    assert ctx.search("output")[0].role == "tool"
    assert ctx.view().tokens < 1_000


BAD = [
    ("not json", "not JSON"),
    ("[1]", "not a JSON object"),
    ('{"role": "robot", "content": "x"}', "robot"),
    ('{"role": "tool", "tool_call_id": "nope", "content": "x"}', "not open"),
    ('{"role": "user", "content": "other", "ctxfold": {"id": "u0"}}', "other content"),
    ('{"role": "user", "content": "other", "ctxfold": {"id": "first"}}', "earlier line"),
    ('{"role": "user", "content": "x", "ctxfold": {"visibility": "nobody"}}', "nobody"),
    (
        '{"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]}',
        "without results",
    ),
    ('{"role": "user", "content": "\\ud800"}', "surrogate"),
    ('{"role": "user", "content": "x", "ctxfold": {"log": {"seq": 1}}}', "body"),
]


@pytest.mark.parametrize(("line", "problem"), BAD)
def test_a_bad_line_is_named_and_nothing_changes(make: Make, tmp_path: Path, line: str, problem: str) -> None:
    path = tmp_path / "bad.jsonl"
    first = '{"role": "user", "content": "fine", "ctxfold": {"id": "first"}}'
    path.write_text(f"{first}\n\n{line}\n", encoding="utf-8")
    ctx = make()
    ctx.add(turns(1))
    before = ctx.messages()
    with pytest.raises(ImportLineError, match=f"(?s)line 3: .*{problem}.*nothing was imported") as caught:
        ctx.files.import_jsonl(path)
    assert caught.value.line == 3
    assert ctx.messages() == before


def test_a_log_with_a_hole_or_a_changed_round(make: Make, tmp_path: Path) -> None:
    ctx = make()
    ctx.add([*turns(2), user("go", id="g"), *tool_round("t"), assistant("ok", id="z")])
    path = tmp_path / "log.jsonl"
    ctx.files.export_jsonl(path)
    lines = path.read_text(encoding="utf-8").splitlines()
    target = make()
    for change, line, problem in (
        (lines[:2] + lines[3:], 3, "a line is missing"),
        ([*lines[:2], '{"role": "user", "content": "x"}', *lines[2:]], 3, "no place"),
        ([*lines[:6], lines[6].replace('"tool_call_id": "t-c0"', '"tool_call_id": "x"'), *lines[7:]], 7, "not open"),
        ([x.replace('"seq": 3, "id": "m:a0"', '"seq": 3, "id": "m:u0"') for x in lines], 2, "appears twice"),
    ):
        path.write_text("\n".join(change), encoding="utf-8")
        with pytest.raises(ImportLineError, match=problem) as caught:
            target.files.import_jsonl(path)
        assert caught.value.line == line
        assert target.messages() == ()
    path.write_text("\n".join(x.replace("question 0", "[redacted]") for x in lines), encoding="utf-8")
    target.files.import_jsonl(path)
    assert target.archive.get("u0").text.startswith("[redacted]")


def test_pins_of_a_file_have_their_budget_too(make: Make, tmp_path: Path) -> None:
    path = tmp_path / "pins.jsonl"
    path.write_text(
        json.dumps({"role": "user", "content": "word " * 900, "ctxfold": {"pinned": True}}), encoding="utf-8"
    )
    ctx = make()
    with pytest.raises(PinBudgetError, match="nothing was imported"):
        ctx.files.import_jsonl(path)
    assert ctx.messages() == ()


# snapshots


def test_a_snapshot_is_the_session(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    with context(scripted(*["fine"] * 3), context_window=2_000, system="Be brief.", hard_ratio=0.8) as ctx:
        rich(ctx)
        ctx.add(turns(20, start=5))
        ctx.compact(force=True)
        ctx.set_policy(auto_compact=False)
        ctx.files.save_snapshot(path)
        assert [p.name for p in tmp_path.iterdir()] == ["s.json"]
        loaded = load_snapshot(path, counter=ctx.handle.counter, store=MemoryStore())
        with loaded:
            assert loaded.view().messages == ctx.view().messages
            assert (loaded.session, loaded.policy) == (ctx.session, ctx.policy)
            assert not loaded.policy.auto_compact
            assert loaded.policy.hard_ratio == 0.8
            loaded.undo()
            assert loaded.archive.get("both") == RICH[3]
        with load_snapshot(path, session_id="new", context_window=9_000, counter=ctx.handle.counter) as wide:
            assert wide.policy.context_window == 9_000
    store = MemoryStore()
    with context(store=store) as other:
        other.add("already here")
        with pytest.raises(SessionExistsError):
            load_snapshot(path, store=store)
        assert [m.text for m in other.messages()] == ["already here"]


def test_what_is_no_snapshot(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    with context() as ctx:
        ctx.add(turns(3))
        ctx.files.save_snapshot(path)
    good = path.read_text(encoding="utf-8")
    told = json.loads(good)
    for text, kind, problem in (
        (good[:-20], StoreCorruptError, "not JSON"),
        ("[]", StoreFormatError, "no session"),
        (json.dumps({**told, "version": 2}), StoreFormatError, "version 2"),
        (good.replace("question 1", "question 7"), StoreCorruptError, "digest"),
        (json.dumps({**told, "records": None}), StoreCorruptError, "d"),
        (json.dumps({k: v for k, v in told.items() if k != "digest"}), StoreCorruptError, "damaged"),
    ):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(kind, match=problem):
            load_snapshot(path)
    with pytest.raises(FileNotFoundError):
        load_snapshot(tmp_path / "none.json")


# the whole way


@dataclass(frozen=True)
class Long:
    """A session of a hundred compactions in a closed database: what was said, by id, and the number of each message."""

    database: Path
    said: dict[str, Message]
    numbers: dict[str, str]


@pytest.fixture(scope="module")
def long_session(tmp_path_factory: pytest.TempPathFactory) -> Long:
    database = tmp_path_factory.mktemp("long") / "long.db"
    said: dict[str, Message] = {}
    with context(store=f"sqlite:///{database}", context_window=1_200) as ctx:
        for i in range(1, 102):
            ask, reply = turns(1, start=i, words=6)
            call = assistant("", id=f"t{i}", calls=[ToolCallPart(f"c{i}", "look", f'{{"n":  {i}}}')])
            result = tool_result(f"c{i}", f"output {i}\t\u00e9\n" * 3, id=f"r{i}")
            added = [ask, call, result, reply, *turns(1, start=1_000 + i, words=6)]
            ctx.add(added)
            said |= {m.id: m for m in added}
            if i > 1 and ctx.usage().compactions < i - 1:
                ctx.compact(force=True)
        assert ctx.usage().compactions >= 100
        numbers = {m.id: ctx.archive.explain(m.id).reference for m in said.values()}
    return Long(database, said, numbers)


@pytest.mark.parametrize("how", ["jsonl", "snapshot"])
def test_a_hundred_compactions_a_restart_an_export_and_an_import(tmp_path: Path, long_session: Long, how: str) -> None:
    """Everything that was ever said is read back byte for byte, by id and by number, in every copy; undo works in each."""
    said, numbers = long_session.said, long_session.numbers
    url = f"sqlite:///{shutil.copy(long_session.database, tmp_path)}"
    with context(store=url, context_window=1_200) as again:
        if how == "jsonl":
            again.files.export_jsonl(tmp_path / "x", native=True)
            copy = again.at("copy")
            copy.files.import_jsonl(tmp_path / "x")
        else:
            again.files.save_snapshot(tmp_path / "x")
            copy = load_snapshot(tmp_path / "x", counter=again.handle.counter)
        for ctx in (again, copy, again.fork("fork")):
            assert all(ctx.archive.get(name) == m == ctx.archive.get(numbers[name]) for name, m in said.items())
            old = [f"u{i}" for i in (3, 50)]
            assert ctx.archive.explain("u3").where == "compacted"
            summaries = ctx.archive.explain("u3").summaries
            assert len(summaries) > 50
            assert summaries[-1] in [e.id for e in ctx.view().compressed]
            assert ctx.restore(*old, "r7") == (said["u3"], said["t7"], said["r7"], said["u50"])
            shown = ctx.view().messages
            ctx.undo()
            ctx.undo()
            assert summaries[-1] not in [m.id for m in ctx.view().messages]
            for message in ctx.view().messages:
                assert message.kind != "message" or message == said[message.id]
            assert len(shown) > 4
            with pytest.raises(MessageNotFoundError):
                ctx.archive.get("#99999")
        copy.close()


async def test_files_without_blocking_the_loop(tmp_path: Path) -> None:
    with context(context_window=2_000) as ctx:
        await ctx.aadd(turns(12))
        await ctx.apin("u1")
        await ctx.acompact(force=True)
        count = await ctx.files.aexport_jsonl(tmp_path / "all.jsonl")
        assert count == len((tmp_path / "all.jsonl").read_text().splitlines()) == 24
        await ctx.files.asave_snapshot(tmp_path / "whole.json")
        loaded = await aload_snapshot(tmp_path / "whole.json", session_id="again")
        assert loaded.session == "again"
        assert (await loaded.awindow()).messages == (await ctx.awindow()).messages
        assert (await loaded.archive.aget("u3")).text == (await ctx.archive.aget("u3")).text
        await loaded.aclose()
        with pytest.raises(StoreCorruptError):
            await aload_snapshot(tmp_path / "all.jsonl")
