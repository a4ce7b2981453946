"""What cannot be taken in: a typed error that says what happened, the number and what to do; the session stays as it was."""

from __future__ import annotations

import socket
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ctxfold import (
    AgentContext,
    BackendError,
    ConfigError,
    CtxError,
    MemoryStore,
    Message,
    OpenAIChatBackend,
    SqlStore,
    TextPart,
    assistant,
    tool_result,
    user,
)
from ctxfold.errors import (
    EmptyMessagesError,
    InvalidTextError,
    InvalidToolArgumentsError,
    MessageConflictError,
    MessageIndexError,
    MessageNotFoundError,
    MessageTooLargeError,
    OrphanToolResultError,
    SessionNotFoundError,
    StoreCorruptError,
    StoreFormatError,
    StoreUnavailableError,
    UnknownRoleError,
    WindowTooSmallError,
)
from ctxfold.events import MessagesLeftOut
from ctxfold.history.records import SessionKey
from tests.support.driven import COUNTER, Driven, call, context, scripted, tool_round, turns

Make = Callable[..., Driven]


def refused(ctx: Driven, kind: type[CtxError], match: str, act: Callable[[], Any]) -> None:
    """`act` raises that error, and what was stored and shown is the same afterwards."""
    store = ctx.handle.store
    key = SessionKey(ctx.owner, ctx.session)
    before = (store.head(key), ctx.ctx.view().messages)
    with pytest.raises(kind, match=match):
        act()
    assert (store.head(key), ctx.ctx.view().messages) == before


@pytest.fixture
def ctx(make: Make) -> Driven:
    made = make(scripted("never"), system="Be brief.")
    made.add(turns(2))
    return made


def test_no_messages(ctx: Driven) -> None:
    refused(ctx, EmptyMessagesError, "at least one", lambda: ctx.send([]))
    refused(ctx, EmptyMessagesError, "at least one", lambda: ctx.add([]))
    refused(ctx, EmptyMessagesError, "at least one", lambda: ctx.send_stream([]))


def test_unknown_role(ctx: Driven) -> None:
    odd = Message("m", "narrator", (TextPart("x"),))  # type: ignore[arg-type]
    for act in (lambda: ctx.add(odd), lambda: ctx.send(odd), lambda: ctx.edit.insert(0, odd)):
        refused(ctx, UnknownRoleError, "narrator.*use one of", act)


def test_orphan_tool_results(ctx: Driven) -> None:
    orphan = tool_result("c9", "x", id="t")
    refused(ctx, OrphanToolResultError, "'c9'.*add the assistant message", lambda: ctx.add(orphan))
    refused(ctx, OrphanToolResultError, "'c9'", lambda: ctx.send(orphan))
    refused(ctx, OrphanToolResultError, "whole round", lambda: ctx.edit.insert(0, orphan))
    refused(ctx, OrphanToolResultError, "'c9'", lambda: ctx.edit.set_messages([orphan]))
    unanswered = [assistant("", id="a9", calls=[call("c8")]), user("next", id="u9")]
    refused(ctx, OrphanToolResultError, "1 tool call", lambda: ctx.add(unanswered))
    twice = [
        assistant("", id="a9", calls=[call("c8")]),
        tool_result("c8", "x", id="t1"),
        tool_result("c8", "y", id="t2"),
    ]
    refused(ctx, OrphanToolResultError, "'c8'", lambda: ctx.add(twice))


def test_same_id_with_other_content(ctx: Driven) -> None:
    assert ctx.add(turns(2)).messages == ()
    other = user("something else", id="u0")
    refused(ctx, MessageConflictError, "'u0'.*id of its own", lambda: ctx.add(other))
    refused(ctx, MessageConflictError, "'u0'", lambda: ctx.send(other))
    refused(ctx, MessageConflictError, "'u0'", lambda: ctx.edit.insert(0, other))
    refused(ctx, MessageConflictError, "twice", lambda: ctx.add([user("a", id="n"), user("b", id="n")]))
    refused(ctx, MessageConflictError, "twice", lambda: ctx.edit.set_messages([user("a", id="n"), user("b", id="n")]))


def test_tool_arguments_that_are_no_text(ctx: Driven) -> None:
    bad = assistant("", id="m", calls=[call("c", {"a": 1})])  # type: ignore[arg-type]
    refused(ctx, InvalidToolArgumentsError, "a dict", lambda: ctx.add(bad))


@pytest.mark.parametrize("stream", [False, True])
def test_a_malformed_call_is_answered_like_any_other(make: Make, stream: bool) -> None:
    """Step 7, item A3: the reply that was paid for arrives, the caller answers its call, and the conversation goes on."""
    bad = assistant("", id="m", calls=[call("c", '{"a":1,"b":')])
    backend = scripted(bad, assistant("Once more, then.", id="n"), assistant("Noted.", id="o"))
    ctx = make(backend)
    (ctx.send_stream if stream else ctx.send)("hi")
    ctx.send(tool_result("c", "The arguments are no JSON.", id="r", is_error=True))
    ctx.send("And now?")
    asked = backend.requests[-1].messages
    assert [c.arguments for m in asked for c in m.tool_calls] == ['{"a":1,"b":']
    assert [m.role for m in asked] == ["user", "assistant", "tool", "assistant", "user"]


def test_orphans_are_left_out_where_they_may_be(make: Make) -> None:
    """Step 7, item A3: a list that somebody else keeps is no reason to stop; the event names what was left out."""
    ctx = make()
    events: list[object] = []
    ctx.subscribe(events.append)
    calls = [call("a", '{"x": 1}'), call("b", "{")]
    told = [
        tool_result("zz", "orphan", id="t0"),
        user("one", id="u1"),
        assistant("Both.", id="a1", calls=calls),
        tool_result("a", "found", id="t1"),
        tool_result("a", "found again", id="t2"),
        user("two", id="u2"),
        assistant("", id="a2", calls=[call("c", '{"x": 1}')]),
        user("three", id="u3"),
        assistant("", id="a4", calls=[call("d", "{")]),
        user("four", id="u4"),
        assistant("Let me see.", id="a5", calls=[call("e", "{")]),
        user("five", id="u5"),
        assistant("Done.", id="a3"),
    ]
    refused(ctx, OrphanToolResultError, "'zz'", lambda: ctx.add(told))
    ctx.add(told, skip_orphans=True)
    kept = ctx.messages()
    assert [m.id for m in kept] == ["u1", "a1", "t1", "u2", "u3", "u4", "a5", "u5", "a3"]
    assert [c.id for m in kept for c in m.tool_calls] == ["a"], (
        "malformed calls that nobody answered are left out alone"
    )
    assert [e.ids for e in events if isinstance(e, MessagesLeftOut)] == [("t0", "t2", "a2", "a4")]
    ctx.add(told, skip_orphans=True)
    assert ctx.messages() == kept, "the list is known, whatever was left out of it"
    ctx.add(told[:1], skip_orphans=True)
    assert [(m.role, m.text) for m in ctx.messages()[len(kept) :]] == [("user", "Result of a tool call:\norphan")]


@pytest.mark.parametrize("answer", [[], [assistant("Very well.", id="a2")]])
def test_results_of_a_round_that_the_list_went_on_from_are_left_out(make: Make, answer: list[Message]) -> None:
    """Without the other result no service takes the round; a list that has both later brings it back."""
    ctx = make()
    events: list[object] = []
    ctx.subscribe(events.append)
    ctx.add([user("both", id="u1"), assistant("", id="a1", calls=[call("a"), call("b")])])
    first, second = tool_result("a", "found", id="t1"), tool_result("b", "found too", id="t2")
    later = [user("never mind", id="u2"), *answer]
    ctx.add([first, *later], skip_orphans=True)
    assert [e.ids for e in events if isinstance(e, MessagesLeftOut)] == [("t1",)]
    assert [m.id for m in ctx.messages()] == ["u1", "a1", *(m.id for m in later)]
    ctx.add([first, second, assistant("both found", id="a3")], skip_orphans=True)
    assert [m.id for m in ctx.messages()][-4:] == ["a1", "t1", "t2", "a3"]


def test_lone_surrogates(ctx: Driven) -> None:
    refused(ctx, InvalidTextError, "U\\+D800.*character 1", lambda: ctx.send("a\ud800"))
    refused(ctx, InvalidTextError, "lone surrogate", lambda: ctx.add(user("\udc00", id="s")))
    with pytest.raises(InvalidTextError, match="lone surrogate"):
        context(system="\ud800")
    with pytest.raises(ConfigError, match="lone surrogate"):
        context(session_id="\ud800")


def test_a_message_that_can_never_fit(ctx: Driven) -> None:
    refused(ctx, MessageTooLargeError, "10 MB|tokens.*shorten it", lambda: ctx.send("word " * 2_000_000))
    refused(ctx, MessageTooLargeError, "raise context_window", lambda: ctx.send("word " * 2_000))
    refused(ctx, MessageTooLargeError, "raise context_window", lambda: ctx.send_stream("word " * 2_000))


def test_a_stored_message_that_does_not_fit_is_named_at_the_next_read(ctx: Driven) -> None:
    ctx.add(user("word " * 2_000, id="big"))
    refused(ctx, MessageTooLargeError, "'big'", ctx.window)


@pytest.mark.parametrize("window", [0, -5])
def test_windows_without_tokens(window: int) -> None:
    with pytest.raises(ConfigError, match=f"context_window is {window}"):
        context(context_window=window)


def test_a_window_too_small_for_prompt_and_reserve() -> None:
    with MemoryStore() as store:
        with pytest.raises(WindowTooSmallError, match="shorten the prompt or raise context_window"):
            context(store=store, context_window=100, system="word " * 200)
        with pytest.raises(WindowTooSmallError, match="lower reply_reserve_tokens"):
            context(store=store, context_window=100, reply_reserve_tokens=100)
        assert store.sessions("default") == ()
    with pytest.raises(ConfigError, match="give context_window"):
        AgentContext()


def test_sessions_that_do_not_exist(make: Make, tmp_path: Path) -> None:
    with MemoryStore() as store:
        with pytest.raises(SessionNotFoundError, match=r"'nobody'.*check the name"):
            make(store=store, session_id="nobody", create=False)
        other = Driven(make(store=store).ctx.at("nobody", create=False), None)
        for read in (other.window, other.explain, lambda: other.files.export_jsonl(tmp_path / "x"), other.usage):
            with pytest.raises(SessionNotFoundError):
                read()
        assert store.sessions("default") == ("default",)
    assert list(tmp_path.iterdir()) == []


def test_places_that_do_not_exist(ctx: Driven) -> None:
    refused(ctx, MessageIndexError, "index 9.*4 messages", lambda: ctx.edit.update(9, user("x", id="x")))
    refused(ctx, MessageIndexError, "index 9", lambda: ctx.edit.remove(9))
    refused(ctx, MessageIndexError, "index -1", lambda: ctx.edit.insert(-1, user("x", id="x")))
    refused(ctx, MessageNotFoundError, "'nope'", lambda: ctx.pin("nope"))
    refused(ctx, MessageNotFoundError, "'nope'", lambda: ctx.archive.get("nope"))
    ctx.edit.clear()
    refused(ctx, MessageIndexError, "empty", ctx.edit.pop)
    refused(ctx, ConfigError, "zone is 'half'", lambda: ctx.files.export_jsonl("x", zone="half"))


def test_corrupt_and_foreign_stores(tmp_path: Path) -> None:
    (tmp_path / "broken.db").write_bytes(b"this is no database at all" * 50)
    with pytest.raises(StoreCorruptError):
        context(store=f"sqlite:///{tmp_path / 'broken.db'}")
    with pytest.raises(ConfigError, match="use sqlite"):
        context(store="mongodb://x")
    with pytest.raises(ConfigError, match=r"no folder.*create it"):
        context(store=f"sqlite:///{tmp_path / 'no' / 'such' / 'folder' / 'a.db'}")


def test_a_newer_format(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    with context(store=f"sqlite:///{path}") as ctx:
        ctx.add(turns(1))
    raw = sqlite3.connect(path)
    with raw:
        raw.execute("update ctxfold_meta set value = '99' where key like '%format%' or key like '%version%'")
    raw.close()
    with pytest.raises(StoreFormatError, match="99"):
        context(store=f"sqlite:///{path}")


def test_a_closed_store(make: Make) -> None:
    with SqlStore("sqlite://") as store:
        ctx = make(store=store)
    with pytest.raises(StoreUnavailableError):
        ctx.add(turns(1))


def test_an_unreachable_server(make: Make) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    backend = OpenAIChatBackend(
        provider="generic", model="m", base_url=f"http://127.0.0.1:{port}/v1", api_key="x", max_retries=0
    )
    ctx = make(backend)
    for ask in (lambda: ctx.send("hi"), lambda: ctx.send_stream("hi")):
        with pytest.raises(BackendError, match=str(port)) as caught:
            ask()
        assert caught.value.kind == "connect"
    assert ctx.view().messages == ()
    backend.close()


def test_a_server_that_talks_garbage(make: Make) -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        for _ in range(2):
            peer, _ = listener.accept()
            with peer:
                peer.recv(65_536)
                peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nConnection: close\r\n\r\n\x00garbage!")

    thread = threading.Thread(target=serve)
    thread.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    backend = OpenAIChatBackend(provider="generic", model="m", base_url=url, api_key="x", max_retries=0)
    ctx = make(backend)
    for ask in (lambda: ctx.send("hi"), lambda: ctx.send_stream("hi")):
        with pytest.raises(BackendError) as caught:
            ask()
        assert caught.value.kind in {"protocol", "empty_response", "stream_truncated"}
    thread.join()
    listener.close()
    assert ctx.view().messages == ()
    backend.close()


def test_without_a_backend(make: Make) -> None:
    ctx = make(counter=COUNTER)
    with pytest.raises(ConfigError, match="backend="):
        ctx.send("hi")
    assert ctx.view().messages == ()


@pytest.mark.parametrize("output", ["[" * 1_500, '{"a":' * 950 + "1" + "}" * 950, '[{"n": ' + "9" * 5_000 + "}]"])
def test_no_tool_output_keeps_a_conversation_from_being_compacted(make: Make, output: str) -> None:
    summaries = scripted(*["short"] * 9)
    ctx = make(scripted(*["ok"] * 9), context_window=8_000, strategy="summarize", summarizer=summaries)
    ctx.add([user("q", id="u"), *tool_round("t", output), assistant("done", id="z")])
    ctx.add([user("more", id="m"), assistant("yes " * 40, id="n"), *turns(4)])
    ctx.compact(force=True)
    assert "t-r0" not in [m.id for m in ctx.view().messages]
    assert ctx.archive.get("t-r0").text == output
    assert ctx.send("hello").message.text == "ok"


def test_an_older_message_that_does_not_fit_gives_way(make: Make) -> None:
    """Only the newest question has to stay whole."""
    backend = scripted("yes")
    ctx = make(backend, summarizer=scripted(*["a long story"] * 4))
    ctx.send([user("word " * 2_000, id="long"), user("Do you agree?", id="short")])
    sent = backend.requests[0].messages
    assert "long" not in [m.id for m in sent]
    assert sent[-1].text == "Do you agree?"
