"""Step 7, item B22: what a service may send, what of ours may leave, and how long and how much is waited for."""

from __future__ import annotations

import base64
import gzip
import json
import logging
import pickle
import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from ctxfold import BackendError, ConfigError, OpenAIChatBackend, Reply, Request, open_backend, user
from ctxfold.backends.profile import load_profile
from ctxfold.protocols import Chunk
from ctxfold.testing import ModelServer
from langchain_ctx import ChatCtx
from llamaindex_ctx import CtxLLM
from tests.wire.anthropic_wire import end
from tests.wire.anthropic_wire import make as anthropic
from tests.wire.raw_server import DONE, HANG_S, Play, RawServer, event, reply
from tests.wire.test_connection import OK, QUICK, REQUEST, Caller, failing, make

MODES = ["sync", "async"]
PASSWORD = "pw-of-ann-1977"
KEY = "sk-very-secret-77"


@pytest.fixture(params=MODES)
def caller(request: pytest.FixtureRequest) -> Caller:
    return Caller(request.param)


def whole(frame: bytes, **settings: Any) -> Reply:
    with RawServer(Play([frame])) as server, make(server, **settings) as backend:
        return backend.send(REQUEST)


def streamed(*frames: bytes, **settings: Any) -> Reply:
    with RawServer(Play([*frames, DONE])) as server, make(server, **settings) as backend:
        return backend.send(REQUEST)


# what chat completions say


@pytest.mark.parametrize(
    "legacy",
    [{"name": "", "arguments": ""}, {"name": None, "arguments": None}, {"name": "", "arguments": "{}"}, {}, None],
)
def test_an_empty_legacy_function_call_beside_content_is_no_call(legacy: Any) -> None:
    """Step 7, item B22: the answer failed with "tool call 1 of 1 came without a name"."""
    for answer in (
        whole(reply("hello", function_call=legacy)),
        streamed(event("hel", function_call=legacy), event("lo", function_call=legacy), event(finish="stop")),
    ):
        assert (answer.message.text, answer.message.tool_calls) == ("hello", ())


def test_an_empty_tool_call_beside_content_is_no_call() -> None:
    """Step 7, item B22: the same in the newer field."""
    blank = [{"index": 0, "id": "", "type": "function", "function": {"name": "", "arguments": ""}}]
    answer = streamed(event("hello", tool_calls=blank), event(finish="stop"))
    assert (answer.message.text, answer.message.tool_calls) == ("hello", ())
    blank[0]["function"] = {"name": None, "arguments": None}
    assert whole(reply("hello", tool_calls=blank)).message.tool_calls == ()


def test_a_legacy_call_is_one_call_whether_or_not_the_newer_field_repeats_it() -> None:
    """Step 7, item B22: a server that fills both fields made two calls out of one."""
    legacy = {"name": "ls", "arguments": '{"d": 1}'}
    newer = [{"index": 0, "id": "c1", "type": "function", "function": legacy}]
    pieces = [
        event(function_call={"name": "ls", "arguments": ""}),
        event(function_call={"arguments": '{"d":'}),
        event(function_call={"name": "", "arguments": " 1}"}),
        event(finish="function_call"),
    ]
    for answer in (
        whole(reply("", "tool_calls", function_call=legacy, tool_calls=newer)),
        streamed(event(tool_calls=newer), event(function_call=legacy), event(finish="tool_calls")),
        whole(reply("", "function_call", function_call=legacy)),
        streamed(*pieces),
    ):
        assert [(c.name, json.loads(c.arguments)) for c in answer.message.tool_calls] == [("ls", {"d": 1})]


@pytest.mark.parametrize(
    "row", ["generic", "generic_think_tags", "generic_think_tags_prefilled", "generic_no_finish_reason"]
)
def test_a_generic_service_gets_its_reasoning_details_back(row: str) -> None:
    """Step 7, item B22: the row dropped them, and the provider behind it refuses or thinks anew."""
    details = [{"type": "reasoning.encrypted", "data": "AAAA", "id": "r1", "format": "x", "index": 0}]
    opened = "</think>" if row.endswith("prefilled") else ""
    frames = [event(reasoning="why", reasoning_details=details), event(f"{opened}so", finish="stop")]
    with RawServer(Play([*frames, DONE])) as server, make(server, provider=row) as backend:
        message = backend.send(REQUEST).message
        rows = backend.to_request_messages([user("hi", id="u"), message])
        assert rows[1]["reasoning_details"] == details
        assert rows[1]["content"] == "so"
        assert "reasoning_details" not in backend.to_request_messages([message], model="another")[0]
        plain = backend.to_request_messages([Reply(message.without_reasoning()).message])[0]
        assert plain == {"role": "assistant", "content": "so"}


def test_an_unknown_finish_reason_is_the_code_of_the_error_it_causes() -> None:
    """Step 7, item B22: an empty answer that ended for an unknown reason passed as a reply, and `code` never said why."""
    for frames in ([reply("", "tokens_exhausted")], [event(""), event(finish="tokens_exhausted"), DONE]):
        with RawServer(Play(frames)) as server, make(server) as backend:
            error = failing(lambda backend=backend: backend.send(REQUEST))  # type: ignore[misc]
        assert (error.kind, error.code) == ("empty_response", "tokens_exhausted")
    for reason, kind in (("insufficient_system_resource", "overloaded"), ("abort", "server")):
        with RawServer(Play([reply("half", reason)])) as server, make(server) as backend:
            error = failing(lambda backend=backend: backend.send(REQUEST))  # type: ignore[misc]
        assert (error.kind, error.code) == (kind, reason)
    answer = whole(reply("said", "tokens_exhausted"))
    assert (answer.finish_reason, answer.message.finish_reason) == ("tokens_exhausted", "tokens_exhausted")


@pytest.mark.parametrize("stream", [False, True])
def test_anthropic_tells_how_many_tokens_were_thought(stream: bool) -> None:
    """Step 7, item B22: the count stands in output_tokens_details, and was always 0."""
    usage = {"input_tokens": 3, "output_tokens": 90, "output_tokens_details": {"thinking_tokens": 77}}
    text = {"type": "text", "text": "so"}
    if stream:
        begun = {"type": "message_start", "message": {"model": "m", "usage": {"input_tokens": 3, "output_tokens": 1}}}
        opened = {"type": "content_block_start", "index": 0, "content_block": text}
        events = [begun, opened, *end("end_turn", **usage)]  # type: ignore[arg-type]
        frames = [f"event: {e['type']}\ndata: {json.dumps(e)}\n\n".encode() for e in events]
    else:
        message = {"type": "message", "model": "m", "content": [text], "stop_reason": "end_turn", "usage": usage}
        frames = [json.dumps(message).encode()]
    with RawServer(Play(frames)) as server, anthropic(base_url=server.base_url) as backend:
        found = backend.send(REQUEST).usage
    assert found is not None
    assert (found.output_tokens, found.reasoning_tokens) == (90, 77)


# how long the head may take


def dribbled(answer: bytes) -> Play:
    """A head that comes byte by byte for half a minute, and then an answer that would do."""
    length = f"HTTP/1.1 200 OK\r\ncontent-length: {len(answer)}\r\nx-slow: ".encode()
    return Play([length, *[b"x"] * 600, b"\r\n\r\n" + answer], head=False, pause_s=0.05)


def test_a_head_that_dribbles_is_a_timeout(caller: Caller) -> None:
    """Step 7, item B22: each byte began the limit anew in sync code, so that 2 s became as long as the server liked."""
    for call in (caller.send, caller.stream):
        with RawServer(dribbled(reply())) as server:
            backend = make(server, timeout_s=0.4, max_retries=0, retry=None)
            assert failing(lambda call=call, b=backend: call(b)).kind == "timeout"  # type: ignore[misc]
            assert server.gone.wait(HANG_S / 3), "the connection is cut, not left to a thread"


def test_a_head_that_dribbles_on_a_used_connection_is_a_timeout() -> None:
    """Step 7, item B22: the socket of a connection that is used again is known too."""
    with RawServer(OK, dribbled(reply())) as server:
        with make(server, timeout_s=0.4, max_retries=0, retry=None) as backend:
            assert backend.send(REQUEST).message.text == "ok"
            assert failing(lambda: backend.send(REQUEST)).kind == "timeout"
        assert server.connections == 1
        assert server.gone.wait(HANG_S / 3), "cut at the deadline, not read to its end"


def test_a_head_that_dribbles_to_an_injected_client_is_a_timeout() -> None:
    """Step 7, item B22: with a client of the caller's own, on a new connection."""
    with RawServer(dribbled(reply())) as server, httpx.Client() as client:
        backend = make(server, timeout_s=0.4, max_retries=0, retry=None, http_client=client)
        assert failing(lambda: backend.send(REQUEST)).kind == "timeout"


# whose credentials, and where to


@pytest.mark.parametrize("name", ["authorization", "Authorization", "AUTHORIZATION"])
def test_a_callers_header_goes_out_in_place_of_ours(caller: Caller, name: str) -> None:
    """Step 7, item B22: both went out, and the service took one of them."""
    with RawServer(OK) as server:
        caller.send(make(server, api_key=KEY, headers={name: "Bearer mine", "Content-Type": "application/x"}))
        heads = server.raw_heads[0].lower()
    assert heads.count(b"authorization:") == heads.count(b"content-type:") == 1
    assert server.headers[0]["authorization"] == "Bearer mine"
    assert server.headers[0]["content-type"] == "application/x"


def test_a_callers_credential_stands_in_for_the_key_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Step 7, item B22: the environment's key went to the caller's gateway too, or was asked for in vain."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with RawServer(OK) as server:
        with make(server, provider="openai", headers={"API-Key": "azure-key-1"}) as backend:
            backend.send(REQUEST)
        own = {"headers": {"api-key": "azure-key-1"}, "api_key": "own-key-1"}
        with make(server, provider="openai", **own) as backend:
            backend.send(REQUEST)
    assert "authorization" not in server.headers[0]
    assert server.headers[1]["authorization"] == "Bearer own-key-1"
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    done = {"type": "message", "content": [{"type": "text", "text": "a"}], "stop_reason": "end_turn"}
    with RawServer(Play([json.dumps(done).encode()])) as server:
        settings = {"base_url": server.base_url, "headers": {"X-API-Key": "gateway-key"}}
        with open_backend("anthropic", "m", **settings) as backend:
            backend.send(REQUEST)
    assert server.headers[0]["x-api-key"] == "gateway-key"
    assert server.raw_heads[0].lower().count(b"x-api-key:") == 1


@pytest.mark.parametrize("headers", [{"x y": "a"}, {"x": "a\nb"}, {"x": "ä"}, {"x": 3}, {3: "x"}, {"x": None}])
def test_a_header_that_cannot_be_sent_is_told_at_once(headers: Any) -> None:
    """Step 7, item B22: it failed at the first call, as a lost connection."""
    with pytest.raises(ConfigError, match="header"):
        OpenAIChatBackend(model="m", headers=headers)


def test_a_base_url_may_have_a_query(caller: Caller) -> None:
    """Step 7, item B22: the path was put behind Azure's api-version."""
    for given, path in (
        ("/openai/deployments/d?api-version=2026-10", "/openai/deployments/d/chat/completions?api-version=2026-10"),
        ("/v1/?a=1&b=2#frag", "/v1/chat/completions?a=1&b=2"),
        ("/v1/chat/completions/?a=1", "/v1/chat/completions?a=1"),
        ("?a=/v1", "/chat/completions?a=/v1"),
    ):
        with RawServer(OK) as server:
            caller.send(make(server, base_url=server.base_url.removesuffix("/v1") + given))
            assert server.paths == [path]


@pytest.mark.parametrize("given", ["", "/v1", "/v1/", "/v1/messages"])
def test_a_base_url_may_end_with_the_version_of_the_path(given: str) -> None:
    said = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "text", "text": "x"}],
        "stop_reason": "end_turn",
    }
    with RawServer(Play([json.dumps(said).encode()])) as server:
        address = server.base_url.removesuffix("/v1") + given
        with open_backend("anthropic", "m", base_url=address, api_key="k") as backend:
            assert backend.send(Request((user("hi", id="u"),), max_tokens=9)).message.text == "x"
        assert server.paths == ["/v1/messages"]


def test_a_password_in_the_base_url_is_sent_and_never_shown(caller: Caller, caplog: pytest.LogCaptureFixture) -> None:
    """Step 7, item B22: it stood in reprs, errors and trace metadata."""
    caplog.set_level(logging.DEBUG)
    login = base64.b64encode(f"ann:{PASSWORD}/x".encode()).decode()
    said = json.dumps({"error": {"message": f"no entry with Basic {login}"}}).encode()
    with RawServer(OK, Play([said], status=401)) as server:
        address = server.base_url.replace("//", f"//ann:{PASSWORD}%2Fx@") + "?sig=signed-secret-1&v=2"
        backend = make(server, base_url=address)
        caller.send(backend)
        assert server.headers[0]["authorization"] == f"Basic {login}"
        assert server.paths == ["/v1/chat/completions?sig=signed-secret-1&v=2"]
        error = failing(lambda: caller.send(backend))
    shown = f"{error!r} {backend!r} {vars(backend)}"
    assert "no entry" in shown
    logged = caplog.text
    chat = ChatCtx(model="m", base_url=address, context_window=9000)
    llm = CtxLLM(model="m", base_url=address, context_window=9000)
    shown += f"{chat!r} {chat} {chat.asdict()} {chat.model_dump()} {llm!r} {llm} {llm.to_json()} {pickle.dumps(llm)!r}"
    shown += repr(load_profile({"name": "own", "base_url": address}))
    assert "v=2" in shown
    for secret in (PASSWORD, login, "signed-secret"):
        assert secret not in shown
    assert PASSWORD not in logged
    assert login not in logged
    assert chat.model_copy().base_url == address
    with pytest.raises(ConfigError) as caught:
        OpenAIChatBackend(model="m", base_url=f"ftp://ann:{PASSWORD}@host/v1")
    assert PASSWORD not in str(caught.value)


def test_a_callers_credentials_are_taken_out_of_errors(caller: Caller) -> None:
    """Step 7, item B22: only `api_key` was, not what the caller's own header carried."""
    said = json.dumps({"error": {"message": "bad token tok-of-ann-42 (Bearer tok-of-ann-42)"}}).encode()
    with RawServer(Play([said], status=401)) as server:
        backend = make(server, headers={"Authorization": "Bearer tok-of-ann-42"})
        error = failing(lambda: caller.send(backend))
    assert "bad token" in str(error)
    assert "tok-of-ann-42" not in f"{error!r} {backend!r} {vars(backend)}"


def test_the_model_server_records_no_credential() -> None:
    """Step 7, item B22: it withheld `authorization` only."""
    names = ("authorization", "x-api-key", "api-key", "x-goog-api-key", "proxy-authorization")
    with ModelServer() as server:
        with open_backend("generic", "m", base_url=server.base_url, headers=dict.fromkeys(names, KEY)) as backend:
            backend.send(REQUEST)
        (recorded,) = server.requests
    assert {recorded.headers[name] for name in names} == {"[redacted]"}


async def test_a_redirect_is_not_followed_with_the_key() -> None:
    """Step 7, item B22: an injected client that follows redirects elsewhere carried the key to another host."""
    for status in (301, 302, 307, 308):
        with RawServer(OK) as other:
            moved = Play([], status=status, headers={"location": f"{other.base_url}/chat/completions"})
            with RawServer(moved) as server, httpx.Client(follow_redirects=True) as client:
                async with httpx.AsyncClient(follow_redirects=True) as async_client:
                    backend = make(server, api_key=KEY, http_client=client, async_http_client=async_client)
                    assert failing(lambda b=backend: b.send(REQUEST)).kind == "protocol"  # type: ignore[misc]
                    assert failing(lambda b=backend: b.open_stream(REQUEST)).kind == "protocol"  # type: ignore[misc]
                    with pytest.raises(BackendError):
                        await backend.asend(REQUEST)
                    with pytest.raises(BackendError):
                        await backend.aopen_stream(REQUEST)
            assert other.bodies == []


# how much a few bytes may stand for


def deflated(data: bytes, wbits: int) -> bytes:
    packer = zlib.compressobj(wbits=wbits)
    return packer.compress(data) + packer.flush()


def swelling(line: bytes, times: int) -> bytes:
    """The line so many times, as joined gzip files inside gzip: a few kilobytes for more than 300 MB."""
    return gzip.compress(gzip.compress(line) * times)


PACKED: list[tuple[str, Callable[[bytes], bytes]]] = [
    ("gzip", gzip.compress),
    ("x-gzip", gzip.compress),
    ("deflate", lambda data: deflated(data, zlib.MAX_WBITS)),
    ("deflate", lambda data: deflated(data, -zlib.MAX_WBITS)),
    ("gzip, gzip", lambda data: gzip.compress(gzip.compress(data))),
    ("deflate, gzip", lambda data: gzip.compress(deflated(data, zlib.MAX_WBITS))),
    ("identity", bytes),
    ("gzip", lambda data: gzip.compress(data[:20]) + gzip.compress(data[20:]) + b"\0\0"),
]


@pytest.mark.parametrize(("coding", "pack"), PACKED, ids=[f"{n}-{c}" for n, (c, _) in enumerate(PACKED)])
def test_compressed_answers_are_read(caller: Caller, coding: str, pack: Callable[[bytes], bytes]) -> None:
    """Step 7, item B22: nobody asked for compression, but some proxies compress all the same."""
    body = event("hel") + event("lo " * 50_000) + event(finish="stop") + DONE
    packed = pack(body)
    frames = [packed[:7], packed[7:100], packed[100:]]
    with RawServer(Play(frames, headers={"content-encoding": coding})) as server:
        chunks: list[Chunk] = caller.stream(make(server))
        assert "".join(chunk.content for chunk in chunks) == "hel" + "lo " * 50_000
        assert caller.send(make(server)).message.text == "hel" + "lo " * 50_000


@pytest.mark.parametrize("prefix", [b"", b"data: "], ids=["whole", "stream"])
def test_a_body_that_swells_is_refused(caller: Caller, prefix: bytes) -> None:
    """Step 7, item B22: 1,278 bytes of gzip in gzip took 1.3 GB."""
    bodies = [("gzip, gzip", swelling(bytes(1024**2), 320)), ("deflate", deflated(bytes(96 * 1024**2), zlib.MAX_WBITS))]
    if prefix:  # comments: no event of theirs is ever too long
        bodies = [("gzip, gzip", swelling(b": wait" * 4000 + b"\n\n", 14_000))]
    for coding, body in bodies:
        with RawServer(Play([body], headers={"content-encoding": coding})) as server:
            backend = make(server)
            tracemalloc.start()
            try:
                error = failing(lambda b=backend: caller.stream(b))  # type: ignore[misc]
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
        assert (error.kind, error.retryable) == ("protocol", False)
        assert peak < 200 * 1024**2


@pytest.mark.parametrize("status", [200, 500])
def test_a_coding_that_nobody_asked_for_is_named(caller: Caller, status: int) -> None:
    """Step 7, item B22: br and zstd were undone without a limit where a package for them happened to be installed."""
    for coding in ("br", "zstd", "gzip, zstd", "compress"):
        with RawServer(Play([b"\x28\xb5\x2f\xfd0000"], status=status, headers={"content-encoding": coding})) as server:
            error = failing(lambda server=server: caller.send(make(server, max_retries=0, retry=None)))  # type: ignore[misc]
        if status == 200:
            assert error.kind == "protocol"
            assert coding.rpartition(" ")[2] in str(error)
        else:  # the status is worth more than how its body came
            assert (error.kind, error.status) == ("server", 500)


def test_broken_compression_is_a_protocol_error(caller: Caller) -> None:
    """Step 7, item B22: bytes that are no gzip, and a gzip body that breaks off."""
    for body, kind in ((b"not compressed", "protocol"), (gzip.compress(reply())[:-12], "stream_truncated")):
        with RawServer(Play([body], headers={"content-encoding": "gzip"})) as server:
            error = failing(lambda server=server: caller.send(make(server, retry=QUICK)))  # type: ignore[misc]
        assert error.kind == kind
