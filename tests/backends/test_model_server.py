"""The model server, driven over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from ctxfold import ConfigError
from ctxfold.testing import ErrorReply, ModelServer, PrefixStats, RawReply, Scripted, ScriptedCall
from ctxfold.testing.http import loopback_socket
from tests.backends.chat_client import (
    Json,
    assistant,
    call,
    deltas,
    error,
    events,
    post,
    result,
    say,
    tool,
    user,
)
from tests.timing import wait_for


@pytest.fixture
def lookup() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


class TestTransport:
    def test_json_reply_carries_usage_and_the_request_is_recorded_without_its_key(self) -> None:
        reply = Scripted("hello", reasoning="hm", tool_calls=(ScriptedCall("look", '{"a":1}', id="c1"),))
        with ModelServer(script=[reply]) as server:
            body = post(server, [user("hi")]).json()
            [request] = server.requests
        assert body["object"] == "chat.completion"
        [choice] = body["choices"]
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"] == {
            "role": "assistant",
            "content": "hello",
            "reasoning_content": "hm",
            "tool_calls": [call("c1", arguments='{"a":1}')],
        }
        usage = body["usage"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] > 0
        assert usage["completion_tokens_details"]["reasoning_tokens"] > 0
        assert (request.path, request.headers["authorization"]) == ("/v1/chat/completions", "[redacted]")
        assert request.body["messages"] == [user("hi")]
        assert json.loads(request.body_bytes) == request.body == json.loads(json.dumps(request.body))

    @pytest.mark.parametrize("include_usage", [True, False])
    def test_sse_says_the_same_as_json(self, include_usage: bool) -> None:
        reply = Scripted("one two three 四五六。", reasoning="so it is", tool_calls=(ScriptedCall("f", '{"a": 1}'),))
        options = {"stream_options": {"include_usage": True}} if include_usage else {}
        with ModelServer(script=[reply]) as server:
            response = post(server, [user("hi")], stream=True, **options)
        assert response.headers["content-type"].startswith("text/event-stream")
        chunks = events(response.text)
        assert deltas(chunks, "content") == reply.content
        assert deltas(chunks, "reasoning_content") == reply.reasoning
        heads = [
            part for chunk in chunks if chunk["choices"] for part in chunk["choices"][0]["delta"].get("tool_calls", ())
        ]
        assert heads[0]["function"]["name"] == "f"
        assert "".join(part["function"]["arguments"] for part in heads) == '{"a": 1}'
        finishes = [chunk["choices"][0]["finish_reason"] for chunk in chunks if chunk["choices"]]
        assert finishes[-1] == "tool_calls"
        assert set(finishes[:-1]) == {None}
        assert [chunk["usage"]["prompt_tokens"] > 0 for chunk in chunks if chunk.get("usage")] == [True] * include_usage
        assert (chunks[-1]["choices"] == []) is include_usage

    def test_number_of_pieces_finish_reason_and_usage_as_scripted(self) -> None:
        reply = Scripted("abcdefghij", chunks=5, finish_reason="length", usage={"prompt_tokens": 7})
        with ModelServer(script=[reply, reply]) as server:
            chunks = events(post(server, [user("x")], stream=True, stream_options={"include_usage": True}).text)
            plain = post(server, [user("x")]).json()
        assert [c["choices"][0]["delta"].get("content") for c in chunks[1:6]] == [
            "ab",
            "cd",
            "ef",
            "gh",
            "ij",
        ]
        assert chunks[-2]["choices"][0]["finish_reason"] == plain["choices"][0]["finish_reason"] == "length"
        assert chunks[-1]["usage"] == plain["usage"] == {"prompt_tokens": 7}

    def test_an_exhausted_script_and_a_failing_function_answer_500(self) -> None:
        with ModelServer(script=[]) as server:
            response = post(server, [user("hi")])
            assert (response.status_code, response.json()["error"]["code"]) == (500, "script_exhausted")

        def fail(body: Any) -> Scripted:
            raise LookupError("no reply for this")

        with ModelServer(script=fail) as server:
            response = post(server, [user("hi")])
            assert response.status_code == 500
            assert response.json()["error"]["message"] == "LookupError: no reply for this"

    def test_a_function_may_be_the_script(self) -> None:
        with ModelServer(script=lambda body: Scripted(body["messages"][-1]["content"].upper())) as server:
            assert say(server, [user("hi")])["content"] == "HI"

    def test_error_replies_as_given(self) -> None:
        given = ErrorReply(429, {"error": {"message": "slow down"}}, {"retry-after": "2"})
        with ModelServer(script=[given, ErrorReply(529, "<html>")]) as server:
            first, second = post(server, [user("hi")]), post(server, [user("hi")])
        assert (first.status_code, first.headers["retry-after"], first.json()) == (429, "2", given.body)
        assert (second.status_code, second.text) == (529, "<html>")

    def test_raw_frames_end_cleanly_reset_or_hang(self) -> None:
        frames = (b"data: 1\n\n", b"data: \xff2\n\n")
        script = [
            RawReply(frames=frames),
            RawReply(frames=frames, then="abort"),
            RawReply(frames=frames, then="hang"),
        ]
        with ModelServer(script=script) as server, httpx.Client(timeout=60) as client:
            url, body = f"{server.base_url}/chat/completions", {"messages": [user("hi")]}
            assert client.post(url, json=body).content == b"".join(frames)
            seen = b""
            with (
                pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)),
                client.stream("POST", url, json=body) as reply,
            ):
                for piece in reply.iter_raw():
                    seen += piece
            assert seen == b"".join(frames)
            assert server.cancelled == 0
            with pytest.raises(httpx.ReadTimeout):
                client.post(url, json=body, timeout=httpx.Timeout(60, read=0.3))
            wait_for(lambda: server.cancelled == 1)

    def test_a_raw_reply_may_bring_its_own_length(self) -> None:
        reply = RawReply(400, {"Content-Type": "application/octet-stream", "Content-Length": "2"}, (b"{", b"}"))
        with ModelServer(script=[reply]) as server:
            response = post(server, [user("hi")])
        assert (response.status_code, response.content) == (400, b"{}")

    def test_one_connection_carries_many_requests_also_chunked_ones(self, lookup: ModelServer) -> None:
        body = json.dumps({"messages": [user("Hello.")]}).encode()
        with httpx.Client(timeout=60) as client:
            ports = set[Any]()
            for content in (body, iter([body[:10], body[10:]]), body):
                with client.stream("POST", f"{lookup.base_url}/chat/completions", content=content) as response:
                    assert response.read()
                    ports.add(response.extensions["network_stream"].get_extra_info("client_addr"))
        assert len(ports) == 1
        assert [request.body_bytes for request in lookup.requests] == [body] * 3

    def test_other_routes(self, lookup: ModelServer) -> None:
        root = lookup.base_url.removesuffix("/v1")
        assert [row["id"] for row in httpx.get(f"{root}/v1/models").json()["data"]] == ["lookup"]
        assert len(httpx.post(f"{root}/tokenize", json={"content": "one two three"}).json()["tokens"]) == 3
        assert httpx.post(f"{root}/tokenize", json=[]).status_code == 400
        assert httpx.get(f"{root}/v1/chat/completions").status_code == 404
        assert httpx.post(f"{root}/chat/completions", json={"messages": [user("x")]}).status_code == 200
        assert httpx.post(f"{root}/v1/chat/completions", content=b"{nonsense").status_code == 400
        assert httpx.post(f"{root}/v1/chat/completions", json={"messages": "x"}).status_code == 400

    @pytest.mark.parametrize(
        "raw", [b"nonsense\r\n\r\n", b"POST / HTTP/1.1\r\ncontent-length: x\r\n\r\n", b"GET / HTT"]
    )
    async def test_bytes_that_are_no_http_get_400(self, lookup: ModelServer, raw: bytes) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(lookup.base_url).port)
        writer.write(raw)
        writer.write_eof()
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
        writer.close()
        await writer.wait_closed()

    async def test_many_streams_at_once(self) -> None:
        reply = Scripted("word " * 40, delay_s=0.2)
        async with ModelServer(script=lambda body: reply) as server:
            limits = httpx.Limits(max_connections=None)
            async with httpx.AsyncClient(limits=limits, timeout=60) as client:
                body = {"messages": [user("hi")], "stream": True}
                replies = await asyncio.gather(
                    *(client.post(f"{server.base_url}/chat/completions", json=body) for _ in range(200))
                )
            assert all(deltas(events(one.text), "content") == reply.content for one in replies)
            assert (len(server.requests), server.cancelled) == (200, 0)

    async def test_a_client_that_leaves_is_counted_and_frees_the_server(self) -> None:
        slow = Scripted("word " * 400, chunk_delay_s=600)
        async with ModelServer(script=[slow, Scripted("next")]) as server, httpx.AsyncClient(timeout=60) as client:
            url = f"{server.base_url}/chat/completions"
            async with client.stream("POST", url, json={"messages": [user("hi")], "stream": True}) as response:
                await anext(response.aiter_bytes())
            await asyncio.to_thread(wait_for, lambda: server.cancelled == 1)
            again = await client.post(url, json={"messages": [user("hi")]})
            assert again.json()["choices"][0]["message"]["content"] == "next"

    @pytest.mark.parametrize("stream", [False, True])
    async def test_a_held_reply_waits_for_its_event_alone(self, stream: bool) -> None:
        held = threading.Event()
        script = [Scripted("late", held=held), Scripted("soon"), Scripted("never", held=threading.Event())]
        async with ModelServer(script=script) as server, httpx.AsyncClient(timeout=60) as client:
            url, body = f"{server.base_url}/chat/completions", {"messages": [user("hi")], "stream": stream}
            late = asyncio.create_task(client.post(url, json=body))
            await asyncio.to_thread(wait_for, lambda: len(server.requests) == 1)
            assert "soon" in (await client.post(url, json=body)).text
            assert not late.done()
            held.set()
            assert "late" in (await late).text
            left = asyncio.create_task(client.post(url, json=body))
            await asyncio.to_thread(wait_for, lambda: len(server.requests) == 3)
            left.cancel()
            await asyncio.to_thread(wait_for, lambda: server.cancelled == 1)

    async def test_closing_does_not_wait_for_a_held_reply(self) -> None:
        async with httpx.AsyncClient(timeout=60) as client:
            async with ModelServer(script=[Scripted("never", held=threading.Event())]) as server:
                url = f"{server.base_url}/chat/completions"
                asked = asyncio.create_task(client.post(url, json={"messages": [user("hi")]}))
                await asyncio.to_thread(wait_for, lambda: server.requests)
            with pytest.raises(httpx.TransportError):
                await asked

    def test_closing_leaves_no_thread_also_with_a_hanging_client(self) -> None:
        before = set(threading.enumerate())
        server = ModelServer(script=[RawReply(then="hang")]).start()
        url = f"{server.base_url}/chat/completions"
        with httpx.Client(timeout=60) as client, client.stream("POST", url, json={"messages": []}):
            server.close()
            server.close()
        assert not any(t.name == "ctxfold-model-server" for t in set(threading.enumerate()) - before)
        with pytest.raises(httpx.ConnectError):
            httpx.get(url)
        with pytest.raises(ConfigError, match="not running"):
            _ = server.base_url

    def test_wrong_settings_are_refused(self) -> None:
        with pytest.raises(ConfigError, match="'gpt' is not built in"):
            ModelServer(model="gpt")
        with pytest.raises(ConfigError, match="context_window is 0"):
            ModelServer(context_window=0)
        with pytest.raises(ConfigError, match="strict is 'x'"):
            ModelServer(strict="x")  # type: ignore[arg-type]
        with ModelServer() as server, pytest.raises(ConfigError, match="already running"):
            server.start()


class TestWindowAndPrefix:
    @pytest.mark.parametrize("strict", [None, "deepseek"])
    def test_overflow_reads_as_the_provider_words_it(self, strict: Any) -> None:
        with ModelServer(context_window=100, strict=strict) as server:
            assert say(server, [user("word " * 50)], max_tokens=20)
            found = error(server, [user("word " * 90)], max_tokens=20)
            refused = len(server.requests)
        assert found["code"] == ("invalid_request_error" if strict else "context_length_exceeded")
        assert found["message"] == (
            "This model's maximum context length is 100 tokens. However, you requested "
            "115 tokens (95 in the messages, 20 in the completion). "
            "Please reduce the length of the messages or completion."
        )
        assert refused == 2

    def test_prompt_tokens_count_names_arguments_tools_and_reasoning(self, lookup: ModelServer) -> None:
        def prompt(messages: list[Json], **more: Any) -> int:
            return int(post(lookup, messages, **more).json()["usage"]["prompt_tokens"])

        calls = [call("c", arguments='{"city": "Oslo"}')]
        plain = prompt([user("hi"), assistant("yes")])
        assert plain < prompt([user("hi"), assistant("yes", reasoning_content="because")])
        assert plain < prompt([user("hi"), assistant("yes", tool_calls=calls)])
        assert plain < prompt([user("hi"), assistant("yes")], tools=[tool("look")])
        assert plain < prompt([user("hi"), assistant("yes", name="bob")])
        assert prompt([{"role": "user", "content": [{"type": "text", "text": "hi"}]}]) == prompt([user("hi")])

    def test_cached_tokens_are_those_of_the_longest_beginning_seen(self, lookup: ModelServer) -> None:
        def usage(messages: list[Json], **more: Any) -> tuple[int, int]:
            found = post(lookup, messages, **more).json()["usage"]
            return found["prompt_tokens"], found["prompt_tokens_details"]["cached_tokens"]

        opening = [
            user("My dog is called Rex."),
            assistant("Noted.", tool_calls=[call("c", arguments='{"a":1,"b":2}')]),
        ]
        respelled = [opening[0], assistant("Noted.", tool_calls=[call("c", arguments='{"b": 2, "a": 1}')])]
        first = usage(opening)
        second = usage([*respelled, user("Hi.")])
        third = usage([user("Another start."), *opening])
        fourth = usage(opening, model="other")
        fifth = usage(opening, tools=[tool("look")])
        assert [first[1], second[1], third[1], fourth[1], fifth[1]] == [0, first[0], 0, 0, 0]
        total = sum(one[0] for one in (first, second, third, fourth, fifth))
        assert lookup.prefix_stats() == PrefixStats(5, total, first[0])
        assert 0 < lookup.prefix_stats().reuse < 1


class TestStrict:
    @pytest.mark.parametrize(
        ("messages", "part"),
        [
            ([], "empty array"),
            ([{"role": "robot", "content": "x"}], "'robot' at messages[0]"),
            ([user("x"), result("c1")], "messages[1] with role 'tool'"),
            ([user("x"), assistant("", tool_calls=[call("c1")])], "messages[1] has no response for c1"),
            (
                [assistant("", tool_calls=[call("c1"), call("c2")]), result("c1"), user("x")],
                "no response for c2",
            ),
            (
                [assistant("", tool_calls=[call("c1")]), result("c1"), result("c1")],
                "messages[2] with role 'tool'",
            ),
            ([assistant("", tool_calls=[call("c1")]), user("x"), result("c1")], "no response for c1"),
            ([assistant("", tool_calls=[call("c1", arguments=1)]), result("c1")], "messages[0].tool_calls"),
        ],
    )
    def test_what_every_strict_row_refuses(self, messages: list[Json], part: str) -> None:
        with ModelServer(strict="openai") as server:
            assert part in error(server, messages)["message"]
        if messages:
            with ModelServer() as server:
                assert post(server, messages).status_code == 200

    def test_malformed_arguments_are_refused_where_the_service_reads_them(self) -> None:
        """Step 7, item A3: OpenAI takes back the text that its model wrote."""
        messages = [user("x"), assistant("", tool_calls=[call("c1", arguments="{")]), result("c1")]
        with ModelServer(strict="openai") as server:
            assert post(server, messages).status_code == 200
        with ModelServer(strict="deepseek") as server:
            assert "a JSON object" in error(server, messages)["message"]

    def test_parallel_calls_answered_in_any_order_pass(self) -> None:
        messages = [
            user("x"),
            assistant("", tool_calls=[call("c1"), call("c2")]),
            result("c2"),
            result("c1"),
            user("y"),
        ]
        with ModelServer(strict="openai") as server:
            assert say(server, messages)["content"] == "Noted."

    def test_deepseek_wants_reasoning_on_every_assistant_message(self) -> None:
        with ModelServer(strict="deepseek") as server:
            bare = [user("x"), assistant("y"), user("z")]
            expected = "The `reasoning_content` in the thinking mode must be passed back to the API."
            assert error(server, bare)["message"] == expected
            assert say(server, bare, thinking={"type": "disabled"}) == {
                "role": "assistant",
                "content": "Noted.",
            }
            assert say(server, [user("x"), assistant("y", reasoning_content=""), user("z")])["reasoning_content"]
            choice = {"type": "function", "function": {"name": "look"}}
            forced = error(server, [user("x")], tools=[tool("look")], tool_choice=choice)
            assert forced["message"] == "Thinking mode does not support this tool_choice."

    def test_moonshot_wants_the_reasoning_of_calls_unmodified(self) -> None:
        with ModelServer(strict="moonshot") as server:
            asked = user('call look with {"a": 1}')
            reply = say(server, [asked], tools=[tool("look")])
            [made] = reply["tool_calls"]
            tail = [result(made["id"]), user("z")]
            assert say(server, [asked, reply, *tail])
            missing = error(server, [asked, {**reply, "reasoning_content": ""}, *tail])["message"]
            assert missing == (
                "thinking is enabled but reasoning_content is missing in assistant tool call message at index 1"
            )
            assert "modified" in error(server, [asked, {**reply, "reasoning_content": "other"}, *tail])["message"]
            foreign = assistant("", tool_calls=[call("elsewhere")], reasoning_content=" ")
            assert say(server, [asked, foreign, result("elsewhere"), assistant("plain"), user("z")])


def test_a_port_is_not_given_twice() -> None:
    """Clients that are cached by address, closed ones among them, would be taken for those of the next server."""

    class Given(set[int]):
        asked: list[int]

        def __contains__(self, port: object) -> bool:
            self.asked.append(int(str(port)))
            return len(self.asked) <= 3

    given = Given()
    given.asked = []
    with loopback_socket(given) as bound:
        port = bound.getsockname()[1]
    assert len(set(given.asked)) == 4
    assert (given.asked[-1], list(given)) == (port, [port])


def test_connections_that_are_accepted_while_it_stops_are_closed() -> None:
    """A socket that stayed open would fail whichever test runs when it is collected."""
    for _ in range(20):
        with ModelServer(model="lookup") as server, contextlib.ExitStack() as clients:
            for _ in range(8):
                clients.enter_context(socket.create_connection(("127.0.0.1", httpx.URL(server.base_url).port or 0)))
            server.close()
    gc.collect()


_LOOP_OF_WINDOWS = """
import asyncio, warnings
import httpx
from ctxfold.testing import ModelServer

warnings.simplefilter("ignore", DeprecationWarning)

class Loop(asyncio.SelectorEventLoop):
    def add_reader(self, *arguments):  # as the ProactorEventLoop, which Windows takes by default
        raise NotImplementedError

class Policy(asyncio.DefaultEventLoopPolicy):
    _loop_factory = Loop

    def new_event_loop(self):
        return Loop()

asyncio.set_event_loop_policy(Policy())
with ModelServer() as server:
    print(httpx.get(f"{server.base_url}/models", trust_env=False).status_code)
"""


def test_it_runs_where_the_default_loop_cannot_watch_sockets() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", _LOOP_OF_WINDOWS], capture_output=True, text=True, env=environment, check=False
    )
    assert (done.stdout, done.stderr) == ("200\n", "")
