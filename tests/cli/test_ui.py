"""`ctxfold ui` as a browser and as a stranger see it: the installed command as a process, over SQLite and PostgreSQL."""

from __future__ import annotations

import json
import re
import signal
import struct
import subprocess
import sys
import threading
import time
import zlib
from base64 import b64encode
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest

from ctxfold import SqlStore, assistant, user
from ctxfold.history.records import SessionKey
from ctxfold.messages import MediaPart, Message, TextPart
from ctxfold.protocols import ToolSpec
from tests.io.test_inspector import ATTACK, Reader
from tests.stores.valkey_server import free_port, server
from tests.support.driven import context, scripted, tool_round, turns

COMMAND = str(Path(sys.executable).parent / "ctxfold")
TABS = ("window", "diff", "messages", "summaries", "changes", "prompt")
HOSTILE = (
    ATTACK,
    '"><svg onload=alert(1)>',
    "'><a href=javascript:alert(1)>x</a>",
    "</main></div></body><iframe src=//evil.example>",
    "<!--",
    "]]>",
    "&#60;script&#62;alert(1)&#60;/script&#62;",
    "\u202e<b>\x00\x1b[31m",
    "#1<i>#2",
    "</textarea></select></style>",
)


@dataclass
class Site:
    """A running server: its client has the cookie; `base` and `token` are what the command printed."""

    base: str
    token: str
    client: httpx.Client
    process: subprocess.Popen[str]

    def page(self, path: str = "/session", **given: Any) -> httpx.Response:
        return self.client.get(f"{path}?{urlencode({'owner': 'default', **given})}")

    def text(self, path: str = "/session", **given: Any) -> str:
        answer = self.page(path, **given)
        assert answer.status_code == 200, (path, given, answer.text)
        assert len(answer.content) <= 150_000
        return answer.text

    def post(self, path: str, **form: Any) -> httpx.Response:
        fields = {"owner": "default", "token": self.token, **form}
        return self.client.post(path, data=fields, headers={"origin": self.base})

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100


@contextmanager
def served(store: str, *options: str) -> Generator[Site, None, None]:
    with subprocess.Popen([COMMAND, "ui", "--store", store, *options], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            told = re.fullmatch(r"open (http://127\.0\.0\.1:\d+)/\?token=(\S+)\n", process.stdout.readline())
            assert told is not None
            with httpx.Client(base_url=told[1], follow_redirects=True, timeout=60) as client:
                site = Site(told[1], told[2], client, process)
                assert client.get(f"/?token={site.token}").status_code == 200
                yield site
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0


def lived(store: str, name: str = "trip", *, questions: int = 6) -> None:
    """A session with prompts, compactions, recalled passages, a pin, an undone edit, tool rounds and a picture."""
    asks, result = tool_round("t", "found 12 boxes")
    backend = scripted(asks, "A box it is.", *[f"Code {n}, as you said." for n in range(99)])
    given = {"context_window": 2_000, "soft_ratio": 0.9, "system": "Be brief."}
    with context(backend, store=store, session_id=name, summarizer=scripted(*["They plan."] * 99), **given) as ctx:
        for n in range(20):
            ctx.add(turns(1, start=n, words=60))
        ctx.send("look into it", tools=[ToolSpec("look")])
        ctx.send(result, tools=[ToolSpec("look")])
        for n in range(questions):
            ctx.send(f"what was question {n} about, and answer {n}?")
        ctx.add([picture(), assistant("A fine picture.", id="fine")])
        ctx.pin("picture")


def picture(mime: str = "image/png") -> Message:
    head = struct.pack(">IIBBBBB", 64, 48, 8, 2, 0, 0, 0)
    pixels = zlib.compress((b"\0" + b"\x20\x60\xc0" * 64) * 48)
    chunks = ((b"IHDR", head), (b"IDAT", pixels), (b"IEND", b""))
    png = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    block = {"type": "image_url", "image_url": {"url": f"data:{mime};base64,{b64encode(png).decode()}"}}
    return Message("picture", "user", (TextPart("my photo"), MediaPart("image", json.dumps(block), mime)))


@pytest.fixture(scope="module")
def lived_store(tmp_path_factory: pytest.TempPathFactory) -> str:
    store = f"sqlite:///{tmp_path_factory.mktemp('ui')}/chat.db"
    lived(store)
    with context(store=store, session_id="other", owner="mallory") as other:
        other.add([user("mine alone", id="e"), assistant("yes", id="f")])
    return store


@pytest.fixture(scope="module")
def site(lived_store: str) -> Iterator[Site]:
    with served(lived_store) as running:
        yield running


# who may come in


def test_only_who_has_the_token(site: Site) -> None:
    for path in ("/", "/session?owner=default&session=trip", "/events?owner=default&session=trip", "/nothing"):
        for given in ({}, {"token": "x"}, {"token": ""}, {"token": site.token[:-1]}, {"token": "é"}):
            refused = httpx.get(f"{site.base}{path}", params=given)
            assert (refused.status_code, refused.text) == (403, "forbidden")
    name = f"ctxfold-{site.base.rpartition(':')[2]}"
    for value in ("", "x", site.token[:-1]):
        assert httpx.get(site.base, cookies={name: value}).status_code == 403
    assert httpx.get(site.base, cookies={name: site.token}).status_code == 200
    first = httpx.get(f"{site.base}/session?owner=default&token={site.token}&session=trip")
    assert (first.status_code, first.headers["location"]) == (303, "/session?owner=default&session=trip")
    assert re.fullmatch(rf"{name}={site.token}; HttpOnly; Path=/; SameSite=lax", first.headers["set-cookie"])
    assert httpx.get(f"{site.base}//evil.example/?token={site.token}").headers["location"] == "/evil.example/"


def test_a_name_that_was_bound_anew_is_refused(site: Site) -> None:
    port = site.base.rpartition(":")[2]
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", f"127.0.0.1.evil.example:{port}", "localhost:1"):
        refused = site.client.get("/", headers={"host": host})
        assert (refused.status_code, refused.text) == (403, "forbidden")
    assert site.client.get("/", headers={"host": f"localhost:{port}"}).status_code == 200


def test_it_listens_on_loopback_alone(site: Site) -> None:
    port = int(site.base.rpartition(":")[2])
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    assert {line[1] for line in lines if line[1].endswith(f":{port:04X}") and line[3] == "0A"} == {
        f"0100007F:{port:04X}"
    }


def test_changes_come_from_its_own_pages_alone(site: Site) -> None:
    form = {"owner": "default", "session": "trip", "ref": "picture", "verb": "pin", "token": site.token}
    for origin in (
        {},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": site.base.replace("http:", "https:")},
    ):
        assert site.client.post("/pin", data=form, headers=origin).status_code == 403
    assert site.post("/pin", **{**form, "token": "x"}).status_code == 403
    assert site.post("/undo", session="trip", token="").status_code == 403
    assert site.page("/undo", session="trip").status_code == 405
    assert site.client.post("/session", headers={"origin": site.base}).status_code == 405
    assert site.post("/pin", **form, filler="x" * 20_000).status_code == 413


def test_every_answer_forbids_what_it_does_not_need(site: Site) -> None:
    for path in ("/", "/session?owner=default&session=trip", "/prompt?owner=default&session=trip", "/nothing"):
        headers = site.client.get(path).headers
        policy = dict(part.partition(" ")[::2] for part in headers["content-security-policy"].split("; "))
        assert policy["default-src"] == policy["base-uri"] == policy["frame-ancestors"] == "'none'"
        assert policy["connect-src"] == policy["img-src"] == policy["form-action"] == "'self'"
        assert re.fullmatch(r"'sha256-[\w+/=]+'", policy["script-src"])
        assert (headers["x-content-type-options"], headers["cache-control"]) == ("nosniff", "no-store")


def test_one_owner_alone(lived_store: str) -> None:
    with served(lived_store, "--owner", "mallory") as site:
        index = site.client.get("/").text
        assert "other" in index
        assert "trip" not in index
        for path in ("/session", "/message", "/image", "/prompt"):
            assert site.page(path, session="trip", ref="#1", page=1).status_code == 404
        assert site.post("/undo", session="trip").status_code == 404
        assert "trip" not in site.page("/", q="question", tab="search").text
        assert "mine alone" in site.client.get("/?tab=search&q=alone").text


def test_what_is_not_there(site: Site) -> None:
    for given in ({"session": "none"}, {"session": ""}, {"session": "trip", "ref": "#999"}):
        answer = site.page("/message", **given)
        assert answer.status_code == (404 if given["session"] else 400)
        assert "check" in answer.text or "empty" in answer.text
    assert site.page("/image", session="trip", ref="#1", page=1).status_code == 404


def test_numbers_that_are_none(site: Site) -> None:
    for value in ("9" * 5_000, "99999999999", "-1", "0", "1.9", "\u0663", "x", "\0"):
        for tab in TABS:
            assert site.page(session="trip", tab=tab, turn=value, page=value, against=value).status_code == 200
        assert site.page("/image", session="trip", ref="picture", page=value).status_code == 404
        assert site.page("/message", session="trip", ref=f"#{value}").status_code < 500


# what it shows


def test_sessions_with_size_and_cost(site: Site) -> None:
    index = site.client.get("/").text
    assert index.index("Owner default") < index.index("Owner mallory")
    assert re.search(r"trip</a></b> [\d,]+ of 1,600 tokens .* [1-9]\d* turns, [1-9]\d* compactions, changed 20", index)
    assert "spent" in index


def test_many_owners_are_links(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/chat.db"
    for n in range(7):
        with context(store=store, session_id=f"of {n}", owner=f"owner {n}") as ctx:
            ctx.add([user("hello", id="h"), assistant("yes", id="y")])
    with served(store) as site:
        index = site.client.get("/").text
        assert "7 owners" in index
        assert "of 3" not in index
        assert "of 3</a>" in site.client.get("/?owner=owner+3").text


def test_every_request_as_it_was_sent(site: Site, lived_store: str) -> None:
    with context(store=lived_store, session_id="trip", create=False) as ctx:
        rows = ctx.archive.inspect().turns
        windows = {f"{r.turn}.{n}": ctx.archive.window_at(s) for r in rows for n, s in enumerate(r.requests, 1)}
    assert len(windows) == 8
    for turn, window in windows.items():
        shown = site.text(session="trip", turn=turn)
        assert f"{window.used_tokens:,} of {window.budget_tokens:,} tokens</span>: {window.held}" in shown
        assert f"{window.gauge.room_tokens:,} left" in shown
        rows = [b.reference for b in window.blocks if b.zone != "summary"]
        assert re.findall(r'<div class="r ">.*?>(#\d+)</a>', shown) == [
            *rows,
            *sorted(window.recalled, key=lambda r: int(r[1:])),
        ]
        recalled = re.search(r"Recalled for this request from (.*?)</p>", shown)
        assert re.findall(r">(#\d+)<", recalled[1] if recalled else "") == list(window.recalled)
        assert site.page("/prompt", session="trip", turn=turn).text.startswith("[system #1")
    assert any(w.recalled for w in windows.values())
    assert any(w.zones["tools"] for w in windows.values())
    assert "request 1 of 2" in site.text(session="trip", turn=next(t for t in windows if t.endswith(".2"))[:-1] + "1")


def test_the_difference_of_two_windows(site: Site, lived_store: str) -> None:
    with context(store=lived_store, session_id="trip", create=False) as ctx:
        rows = [r for r in ctx.archive.inspect().turns if r.requests]
        first, last = (ctx.archive.window_at(r.requests[-1]) for r in (rows[0], rows[-1]))
    shown = site.text(session="trip", tab="diff", turn=rows[-1].turn, against=rows[0].turn)
    came = [b.reference for b in last.blocks if b.id not in {o.id for o in first.blocks} and b.zone != "summary"]
    assert re.findall(r'<div class="r came">.*?>(#\d+)</a>', shown) == came != []
    left = [b.reference for b in first.blocks if b.id not in {o.id for o in last.blocks} and b.zone != "summary"]
    assert re.findall(r'<div class="r left">.*?>(#\d+)</a>', shown) == left != []
    assert f">{last.used_tokens - first.used_tokens:+,}</td>" in shown
    gave_way = [reference for reference in left if reference in last.gave_way]
    assert shown.count("tokens, gave way to recalled passages") == len(gave_way) > 0
    assert "same messages" in site.text(session="trip", tab="diff", turn=rows[0].turn, against=rows[0].turn)


def test_why_it_knew_that(site: Site, lived_store: str) -> None:
    """From an answer to the request, to the passage, to the message, its summaries and where it was said."""
    with context(store=lived_store, session_id="trip", create=False) as ctx:
        turn = next(row.turn for row in reversed(ctx.archive.inspect().turns) if row.recalled)
    recalled = re.search(r"Recalled for this request from (.*?)</p>", site.text(session="trip", turn=turn))
    assert recalled is not None
    reference = re.findall(r">(#\d+)<", recalled[1])[0]
    message = site.text("/message", session="trip", ref=reference)
    assert "<b>compacted</b>: summarised in" in message
    assert "Summaries that contain it" in message
    assert "Passages of it were in requests of the turns" in message
    assert "question" in message
    assert "<b>visible</b>: pinned" in site.text("/message", session="trip", ref="picture")


def test_search(site: Site) -> None:
    found = site.text(session="trip", tab="search", q="boxes")
    assert re.search(r"<p>[12] found for <b>boxes</b>", found)
    assert "found 12 boxes" in found
    everywhere = site.page("/", tab="search", q="question 3", owner="default").text
    assert "session trip" in everywhere
    assert "<p>0 found" in site.page("/", tab="search", q="mine alone", owner="default").text


def test_rows_speak_and_are_filtered(site: Site) -> None:
    everything = site.text(session="trip", tab="messages")
    assert "-&gt; look({})" in everything
    assert "<b>look</b> found 12 boxes" in everything
    assert "[image, 64x48, png, 1 kB]" in everything
    assert "<p></p>" not in everything
    assert re.search(r"(\d+) of \1 messages", everything)
    tools = site.text(session="trip", tab="messages", tool="look")
    assert len(re.findall('<div class="r', tools)) == 2
    assert len(re.findall('<div class="r', site.text(session="trip", tab="messages", tool="look", role="tool"))) == 1
    assert len(re.findall('<div class="r', site.text(session="trip", tab="messages", turn=2))) == 2
    assert len(re.findall('<div class="r', site.text(session="trip", zone="summary"))) == 1


def test_pictures_are_served_and_nothing_that_runs(lived_store: str, site: Site, tmp_path: Path) -> None:
    source = re.search(r'<img [^>]*src="([^"]+)"', site.text(session="trip", tab="messages"))
    assert source is not None
    image = site.client.get(source[1].replace("&amp;", "&"))
    assert (image.headers["content-type"], image.content[:4]) == ("image/png", b"\x89PNG")
    store = f"sqlite:///{tmp_path}/svg.db"
    with context(store=store, session_id="svg") as ctx:
        ctx.add([picture("image/svg+xml"), assistant("no", id="n")])
    with served(store) as other:
        assert other.page("/image", session="svg", ref="picture", page=1).status_code == 404


def test_compactions_with_what_they_freed_and_what_was_missed(site: Site) -> None:
    changes = site.text(session="trip", tab="changes")
    assert re.search(r"<b>compaction</b>.*&rarr; [\d,]+ tokens, [\d,]+ freed; [12] calls? of the summariser", changes)
    assert "Recalled since: <a" in changes
    for turn in ("", 3):  # those of the window now, whatever turn was looked at before
        pairs = site.text(session="trip", tab="summaries", turn=turn)
        assert "They plan." in pairs
        assert re.search(r"stands for <a [^>]+>[1-9]\d* messages</a>", pairs)


def test_hostile_texts_stay_texts(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/hostile.db"
    for name in ("<img src=x onerror=alert(1)>", "a&b=c#d?e/../f", "\"'"):
        with context(
            scripted(*[*HOSTILE, "end"]), store=store, session_id=name, owner="<b>'\"&", context_window=4_000
        ) as ctx:
            for text in (hostile.replace("\0", "") for hostile in HOSTILE):  # a NUL is refused in an id
                asks, result = tool_round(f"{text}-tool", text)
                ctx.add(
                    [user(text, id=f"{text}-id"), asks, result, assistant(text, id=f"{text}-reply", reasoning=text)]
                )
            ctx.compact(force=True)
            ctx.send(HOSTILE[0])
    with served(store) as site:
        paths = [f"/?{urlencode({'owner': HOSTILE[1]})}", "/"]
        for name in ("<img src=x onerror=alert(1)>", "a&b=c#d?e/../f", "\"'"):
            where = {"owner": "<b>'\"&", "session": name}
            tabs = [{"tab": tab} for tab in TABS] + [
                {"tab": "search", "q": "script"},
                {"q": HOSTILE[0], "role": HOSTILE[1], "turn": "'>"},
            ]
            paths += [f"/session?{urlencode(where | given)}" for given in tabs]
            paths += [f"/message?{urlencode(where | {'ref': ref})}" for ref in ("#1", f"{HOSTILE[0]}-reply", "<s>")]
        for path in paths:
            answer = site.client.get(path)
            assert answer.status_code in (200, 404), (path, answer.text)
            found = Reader(answer.text).found
            assert [tag for tag, _ in found if tag in ("script", "iframe", "object", "embed", "base", "link")] == [
                "script"
            ]
            assert not [a for _, attributes in found for a in attributes if a.startswith("on")]
            for tag, attributes in found:
                for name in ("href", "src", "action"):
                    assert re.match(r"/(?!/)", attributes.get(name) or "/"), (tag, attributes)


# pins and undoes


def test_pin_and_undo(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/chat.db"
    lived(store)
    with served(store) as site, context(store=store, session_id="trip", create=False) as ctx:
        told = site.post("/pin", session="trip", ref="fine", verb="pin")
        assert (told.status_code, "<b>visible</b>: pinned" in told.text, "Unpin it" in told.text) == (200, True, True)
        assert ctx.archive.explain("fine").why == "pinned"
        assert "Pin it" in site.post("/pin", session="trip", ref="fine", verb="unpin").text
        assert ctx.archive.explain("fine").why != "pinned"
        ctx.edit.remove("fine")
        assert 'class="m undone"' in site.post("/undo", session="trip").text
        assert ctx.archive.explain("fine").where == "visible"
        refused = site.post("/pin", session="trip", ref="#2", verb="pin")
        assert (refused.status_code, "not in the live conversation" in refused.text) == (404, True)


# live


def test_another_process_s_write_is_told_within_a_second(shared_url: str) -> None:
    lived(shared_url, questions=1)
    with served(shared_url) as site, context(store=shared_url, session_id="trip", context_window=2_000) as ctx:
        taken = [told_after(site, partial(ctx.add, user(f"word {n} from elsewhere", id=f"word{n}"))) for n in range(3)]
        assert min(taken) < 1  # the least counts, as others use the machine too
        assert "word 2 from elsewhere" in site.text(session="trip", tab="messages")


def told_after(site: Site, write: Callable[[], Any]) -> float:
    """The seconds from a write to the event that tells it, on the feed of a page that was loaded before."""
    feed = re.search(r'data-feed="([^"]+)"', site.text(session="trip"))
    assert feed is not None
    told: list[float] = []

    def listen() -> None:
        with site.client.stream("GET", feed[1].replace("&amp;", "&")) as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            open_.set()
            told.extend(
                time.monotonic() for line in islice((x for x in stream.iter_lines() if x.startswith("data: ")), 1)
            )

    open_ = threading.Event()
    listener = threading.Thread(target=listen)
    listener.start()
    assert open_.wait(60)
    time.sleep(0.5)
    assert not told, "nothing was written yet"
    write()
    wrote = time.monotonic()
    listener.join(60)
    return told[0] - wrote


def test_the_newest_request_of_a_running_agent(tmp_path: Path) -> None:
    store, tools = f"sqlite:///{tmp_path}/chat.db", [ToolSpec("look")]
    asks, result = tool_round("t", "found 12 boxes")
    with context(scripted(asks, "A box."), store=store, session_id="agent") as ctx:
        ctx.send("look into it", tools=tools)
        with served(store) as site:
            shown = site.text(session="agent")
            assert "turn 1 of 1, open" in shown
            assert re.search(r"Answered by .*-&gt; look\(\{\}\)", shown)
            ctx.send(result, tools=tools)
            shown = site.text(session="agent")
            assert "turn 1 of 1, request 2 of 2" in shown
            assert re.search(r"Answered by .*A box\.", shown)


def test_a_change_between_page_and_feed_is_told(site: Site) -> None:
    for given in ({"session": "trip"}, {}):
        with site.client.stream(
            "GET", f"/events?{urlencode({'owner': 'default', 'seen': 'before', **given})}"
        ) as stream:
            assert next(stream.iter_lines()).startswith("data: ")


def test_ctrl_c_ends_it_also_with_a_page_open(lived_store: str) -> None:
    with served(lived_store) as site, site.client.stream("GET", "/events?owner=default&session=trip&seen=x") as stream:
        lines = stream.iter_lines()  # kept: without it the answer is closed
        assert next(lines)
        site.process.send_signal(signal.SIGINT)
        began = time.monotonic()
        assert site.process.wait(10) == 0
        assert time.monotonic() - began < 3


# small and fast


@pytest.fixture(scope="module")
def large_store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """1,000 messages in 500 turns with a request each."""
    store = f"sqlite:///{tmp_path_factory.mktemp('large')}/chat.db"
    replies = [f"Reply {n} about pumps and valves. " * 8 for n in range(999)]
    with context(scripted(*replies), store=store, session_id="large", context_window=64_000) as ctx:
        for n in range(500):
            ctx.send(f"Question {n}: what about valve {n} in building {n % 7}? " * 4)
    return store


def test_pages_of_a_thousand_messages_are_small(large_store: str) -> None:
    """`text` checks the size of each; what they cost the server is in the benchmark `pages`."""
    with served(large_store) as site:
        asked = [{"tab": tab} for tab in TABS]
        for given in [*asked, {"turn": 250}, {"tab": "messages", "page": 1}, {"tab": "search", "q": "valve 77"}]:
            assert "large" in site.text(session="large", **given), given


# the command


def test_it_says_what_to_install(large_store: str) -> None:
    for missing in ("starlette", "uvicorn"):
        code = f"import sys; sys.modules['{missing}'] = None; from ctxfold.cli import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", code, "ui", "--store", large_store], capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 2
        assert done.stderr == 'error: the page needs two more packages: pip install "ctxfold[ui]"\n'


def test_other_commands_do_not_wait_for_it() -> None:
    code = "import sys, ctxfold.cli.app; print([m for m in ('starlette', 'uvicorn', 'anyio', 'asyncio') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert "starlette" not in done.stdout
    assert "uvicorn" not in done.stdout


def test_a_port_in_use(site: Site, ctxfold: Callable[..., Any]) -> None:
    told = ctxfold("ui", "--port", site.base.rpartition(":")[2])
    assert told.code == 2
    assert "choose another --port" in told.err


def test_looking_writes_nothing(lived_store: str, site: Site) -> None:
    def logs() -> dict[str, Any]:
        with SqlStore(lived_store) as store:
            keys = [SessionKey(owner, name) for owner in store.owners() for name in store.sessions(owner)]
            return {str(key): store.head(key) for key in keys}

    before = logs()
    for path in ("/", "/prompt", "/session", "/message", "/image"):
        for tab in (*TABS, "search"):
            assert site.page(path, session="trip", tab=tab, ref="picture", page=1, q="question").status_code == 200
    assert logs() == before


def test_what_a_long_list_leaves_out_is_said(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/chat.db"
    with context(store=store, session_id="long", context_window=4_000) as ctx:
        ctx.add(turns(1_100, words=1))
    with served(store) as site:
        shown = site.text(session="long", tab="messages")
        assert "Not listed: the oldest 200." in shown
        assert "2,000 of 2,000 messages" in shown
        assert "page 20 of 20" in shown
        assert ">#2<" not in shown
        assert "question 0 word" in site.text("/message", session="long", ref="#1")


def test_a_store_on_valkey_is_shown_with_all_owners(tmp_path: Path) -> None:
    port = free_port()
    with server(tmp_path, port):
        store = f"valkey://127.0.0.1:{port}/0"
        lived(store)
        with served(store) as site:
            assert "trip" in site.text("/")
            page = site.text("/session", session="trip")
            assert "Recalled" in page or "recalled" in page
        for command in (["sessions"], ["search", "--all", "question"], ["window", "trip"], ["doctor"]):
            done = subprocess.run([COMMAND, *command, "--store", store], capture_output=True, text=True, timeout=60)
            assert (done.returncode, done.stderr) == (0, ""), command
