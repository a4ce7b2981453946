"""`ModelServer`: a chat service on loopback in the wire formats of several providers, with models that need no network."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import hashlib
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self, get_args

import ctxfold.testing.http as http
import ctxfold.testing.model as model
from ctxfold._lifecycle import Closing
from ctxfold.errors import ConfigError
from ctxfold.lru import LruCache
from ctxfold.testing.script import Body, ErrorReply, RawReply, Reply, Script, Scripted, ScriptPlayer, api_error
from ctxfold.testing.served import ApiRequest, ChatCompletions, Completion, ServedWire, Strict, thinks
from ctxfold.testing.served_anthropic import COUNT_PATH, Messages
from ctxfold.testing.served_converse import Converse
from ctxfold.testing.served_gemini import GenerateContent
from ctxfold.testing.served_responses import Responses
from ctxfold.testing.usage import Meter, PrefixCache, PrefixStats, Prompt, TextCounter
from ctxfold.validation import MAX_JSON_DEPTH, json_object, strict_json

SERVED: tuple[ServedWire, ...] = (ChatCompletions(), Messages(), Converse(), GenerateContent(), Responses())
_BACKLOG = 4096
_REMEMBERED_CALLS = 65_536
_PATIENCE_S = 30.0
_MANY_TOKENS = 10**9  # a request to count has no max_tokens, which one for a reply needs
_GLANCE_S = 0.005
_CREDENTIALS = frozenset(
    {"api-key", "authorization", "proxy-authorization", "x-amz-security-token", "x-api-key", "x-goog-api-key"}
)


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """A chat request as it arrived; header names are in lower case, the key is withheld."""

    path: str
    headers: Mapping[str, str]
    body: Mapping[str, Any]
    body_bytes: bytes


class ModelServer(Closing):
    """A model server on 127.0.0.1, in a thread of its own, from `start` or `with` to `close` or the end of the block.

    `model="lookup"` answers from the messages of each request alone; `script=` plays a list, or asks a function of the request's
    body in the form of chat completions, whatever wire format it came in. `requests` keeps each request, with its `body` as it
    came. `strict` adds what that provider refuses, or, with "alternating", a template that wants user and assistant to take turns;
    `context_window` is in tokens. Attributes may be read from any thread. The server writes summaries of its own where a wire has
    them, unless `compacts` is set to False: then it refuses such requests.
    """

    def __init__(
        self,
        *,
        model: str = "lookup",
        script: Script | None = None,
        context_window: int | None = None,
        strict: Strict | None = None,
        reasoning: bool = False,
        counter: TextCounter | None = None,
    ) -> None:
        if script is None and model != "lookup":
            raise ConfigError(f"model {model!r} is not built in: use model='lookup' or pass script=[...]")
        if context_window is not None and context_window <= 0:
            raise ConfigError(f"context_window is {context_window}: give a positive number, or None")
        if strict not in (None, *get_args(Strict)):
            raise ConfigError(f"strict is {strict!r}: use None, {', '.join(repr(name) for name in get_args(Strict))}")
        self.model = model
        self.context_window = context_window
        self.strict: Strict | None = strict
        self.cancelled = 0
        self.compacts = True
        self._player = None if script is None else ScriptPlayer(script)
        self._reasoning = reasoning
        self._counter = counter
        self._requests: list[RecordedRequest] = []
        self._asked = 0
        self._cache = PrefixCache()
        self._produced: LruCache[str, str] = LruCache(_REMEMBERED_CALLS)
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._port = 0

    @property
    def base_url(self) -> str:
        """`http://127.0.0.1:PORT/v1`; only while the server runs."""
        if self._thread is None:
            raise ConfigError("the model server is not running: use it as `with ModelServer(...) as server:`")
        return f"http://127.0.0.1:{self._port}/v1"

    @property
    def requests(self) -> list[RecordedRequest]:
        """All chat requests so far, refused ones too, in order of arrival."""
        return list(self._requests)

    def clear_requests(self) -> None:
        """Forgets the requests so far; the script goes on where it is, and the prefix cache keeps what it has."""
        self._requests.clear()

    def prefix_stats(self) -> PrefixStats:
        """Returns the prompt tokens of all accepted requests, and how many of them a prefix cache would have served."""
        return self._cache.stats

    def start(self) -> Self:
        """Returns once the port accepts connections."""
        if self._thread is not None:
            raise ConfigError("the model server is already running: start a second ModelServer instead")
        ready: concurrent.futures.Future[int] = concurrent.futures.Future()
        thread = threading.Thread(target=self._run, args=(ready,), name="ctxfold-model-server", daemon=True)
        thread.start()
        try:
            self._port = ready.result(_PATIENCE_S)
        except BaseException:
            thread.join(_PATIENCE_S)
            raise
        self._thread = thread
        return self

    def close(self) -> None:
        """Ends all connections and the thread; closing twice does nothing."""
        thread, self._thread = self._thread, None
        if thread is None or self._loop is None or self._stopping is None:
            return
        self._loop.call_soon_threadsafe(self._stopping.set)
        thread.join(_PATIENCE_S)
        if thread.is_alive():
            raise TimeoutError(f"the model server's thread still runs after {_PATIENCE_S:.0f} s")

    async def aclose(self) -> None:
        """Does the same as `close`, without blocking the caller's loop."""
        await asyncio.to_thread(self.close)

    def __enter__(self) -> Self:
        return self if self._thread is not None else self.start()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.__enter__)

    def _run(self, ready: concurrent.futures.Future[int]) -> None:
        try:
            # the default loop of Windows cannot watch a listening socket
            with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
                runner.run(self._serve(ready))
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error)

    async def _serve(self, ready: concurrent.futures.Future[int]) -> None:
        loop = self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        if self._counter is None:
            from ctxfold.tokens.text import text_counter

            self._counter = text_counter(encoding="o200k_base", allow_download=False)
        self._meter = Meter(self._counter)

        with http.loopback_socket() as listener:
            listener.listen(_BACKLOG)
            listener.setblocking(False)
            loop.add_reader(listener, self._accept, listener)
            ready.set_result(listener.getsockname()[1])
            await self._stopping.wait()
            loop.remove_reader(listener)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, listener: socket.socket) -> None:
        """Starts a task for a new connection; asyncio's own server leaks those that it accepts while it is closed."""
        try:
            connection, _ = listener.accept()
        except OSError:  # the peer is gone already, or the process has no descriptor left for the moment
            return
        connection.setblocking(False)
        task = asyncio.get_running_loop().create_task(self._connection(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: connection.close())  # also when it was cancelled before its first step

    async def _connection(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        reader = http.WatchedReader(limit=http.HEAD_LIMIT, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        transport, _ = await loop.connect_accepted_socket(lambda: protocol, connection)
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        try:
            while await self._exchange(reader, writer):
                pass
        except ConnectionError:
            pass  # the peer reset the connection between two requests; during one it is counted
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _exchange(self, reader: http.WatchedReader, writer: asyncio.StreamWriter) -> bool:
        """Answers one request; whether the connection may carry another."""
        try:
            request = await http.read_request(reader, writer)
        except http.BadRequestError as error:
            refused = api_error(error.status, str(error)).encoded()
            writer.write(http.plain(error.status, refused, {"connection": "close"}))
            return False
        if request is None:
            return False
        answering = asyncio.create_task(self._answer(request, writer))
        leaving = asyncio.create_task(reader.gone.wait())
        try:
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                with contextlib.suppress(ConnectionError):
                    return answering.result() and request.keep_alive
            self.cancelled += 1
            return False
        finally:
            answering.cancel()
            leaving.cancel()
            await asyncio.gather(answering, leaving, return_exceptions=True)

    async def _answer(self, request: http.HttpRequest, writer: asyncio.StreamWriter) -> bool:
        """Writes the response to its end; False when the connection must close."""
        path = request.path.removeprefix("/v1")
        wire = next((wire for wire in SERVED if request.method == "POST" and wire.serves(path)), None)
        if wire is not None:
            return await self._chat(wire, request, writer)
        if request.method == "GET" and path == "/models":
            row = {"id": self.model, "object": "model", "created": 0, "owned_by": "ctxfold"}
            reply = ErrorReply(200, {"object": "list", "data": [row]})
        elif request.method == "POST" and path == "/tokenize":
            reply = self._tokenize(request)
        elif request.method == "POST" and path.endswith(COUNT_PATH):
            reply = self._count(request)
        else:
            message = f"Unknown request URL: {request.method} {request.path}."
            reply = api_error(404, message, code="unknown_url")
        return await self._send(reply, writer)

    def _tokenize(self, request: http.HttpRequest) -> ErrorReply:
        body = json_object(request.body)
        content = None if body is None else body.get("content")
        if not isinstance(content, str):
            return api_error(400, "'content' must be a string.", param="content")
        # only how many there are means something: counters need not know ids
        return ErrorReply(200, {"tokens": list(range(self._meter.text(content)))})

    def _count(self, request: http.HttpRequest) -> ErrorReply:
        """Returns the input tokens of a request to Anthropic's Messages API."""
        body, wire = json_object(request.body), Messages()
        if body is None:
            return wire.error(api_error(400, "The request body is not a JSON object."))
        api_request = ApiRequest(request.path, request.headers, {**body, "max_tokens": _MANY_TOKENS})
        refused = wire.refusal(api_request, self.strict, self._produced)
        if refused is not None:
            return wire.error(refused)
        return ErrorReply(200, {"input_tokens": self._meter.prompt(wire.chat_body(api_request)).total})

    async def _chat(self, wire: ServedWire, request: http.HttpRequest, writer: asyncio.StreamWriter) -> bool:
        body = json_object(request.body, lambda text: strict_json(text, MAX_JSON_DEPTH))
        headers = {name: "[redacted]" if name in _CREDENTIALS else value for name, value in request.headers.items()}
        # a copy: who reads the request cannot change what is being answered
        self._requests.append(RecordedRequest(request.path, headers, dict(body or {}), request.body))
        self._asked += 1
        if body is None:
            return await self._send(wire.error(api_error(400, "The request body is not a JSON object.")), writer)
        api_request = ApiRequest(request.path, request.headers, body)
        try:
            refused = None if self.compacts else wire.without_compaction(api_request)
            refused = refused or wire.refusal(api_request, self.strict, self._produced)
            chat = wire.chat_body(api_request) if refused is None else {}
            reply, prompt = self._reply(wire, api_request, chat) if refused is None else (refused, Prompt("", (), ()))
        except Exception as error:  # noqa: BLE001  # what this server cannot digest is the client's to see
            return await self._send(wire.error(api_error(500, f"{type(error).__name__}: {error}")), writer)
        match reply:
            case ErrorReply():
                return await self._send(wire.error(reply), writer)
            case RawReply():
                return await self._play(reply, writer)
            case Scripted():
                completion = self._compacted(
                    wire, api_request, await self._completion(reply, prompt, chat), prompt, chat
                )
                if chat.get("stream"):
                    return await self._stream(wire, completion, api_request, writer)
                writer.write(http.plain(200, wire.whole(completion)))
                await writer.drain()
                return True

    def _compacted(
        self, wire: ServedWire, api_request: ApiRequest, completion: Completion, prompt: Prompt, chat: Body
    ) -> Completion:
        """Returns the reply with the server's own summary, where the request asks for one."""
        mode = wire.compaction(api_request, prompt.total)
        if mode is None:
            return completion
        summary = model.own_summary(chat, count=self._meter.text)
        spent = prompt.total, self._meter.text(summary)
        user_texts = tuple(
            str(one.get("content") or "") for one in model.messages_of(chat) if one.get("role") == "user"
        )
        return replace(completion, summary=summary, alone=mode == "alone", summary_tokens=spent, user_texts=user_texts)

    def _reply(self, wire: ServedWire, api_request: ApiRequest, body: Body) -> tuple[Reply, Prompt]:
        """Returns the model's reply, or the error that a request gets which does not fit."""
        prompt = self._meter.prompt(body, wire.cache_blocks(api_request))
        reply_tokens = int(body.get("max_tokens") or body.get("max_completion_tokens") or 0)
        window = self.context_window
        if window is not None and prompt.total + reply_tokens > window:
            message = wire.overflow(window, prompt.total, reply_tokens)
            code = "invalid_request_error" if self.strict == "deepseek" else "context_length_exceeded"
            return api_error(400, message, param="messages", code=code), prompt
        if wire.compaction(api_request, prompt.total) == "alone":
            return Scripted(""), prompt
        played = None if self._player is None else self._player.reply(body)
        if played is not None:
            return played, prompt
        room = None if window is None else window - prompt.total
        thinking = thinks(body, self.strict, reasoning=self._reasoning)
        return model.reply(body, count=self._meter.text, room=room, thinking=thinking), prompt

    async def _completion(self, reply: Scripted, prompt: Prompt, body: Body) -> Completion:
        """Returns the reply with its ids and usage, once its delay is over."""
        cached, written = self._cache.add(prompt)
        # the same request at the same place gets the same id, and no two requests share one
        seed = f"{self._asked}:".encode() + (prompt.prefixes[-1] if prompt.prefixes else b"")
        completion = Completion(
            reply,
            id=f"chatcmpl-{hashlib.sha256(seed).hexdigest()[:24]}",
            created=int(time.time()),
            model=str(body.get("model") or self.model),
            usage=reply.usage if reply.usage is not None else self._usage(reply, prompt, cached, written),
        )
        for call in completion.calls() if reply.reasoning else ():
            self._produced.put(call["id"], reply.reasoning)
        if reply.delay_s:
            await asyncio.sleep(reply.delay_s)
        while reply.held is not None and not reply.held.is_set():  # noqa: ASYNC110  # another thread sets it
            await asyncio.sleep(_GLANCE_S)
        return completion

    async def _stream(
        self, wire: ServedWire, completion: Completion, api_request: ApiRequest, writer: asyncio.StreamWriter
    ) -> bool:
        headers = {"content-type": wire.stream_type, "cache-control": "no-cache"}
        writer.write(http.head(200, {**headers, "transfer-encoding": "chunked"}))
        *events, done = wire.frames(completion, api_request)
        for event in events:
            writer.write(http.chunk(event))
            await writer.drain()
            await asyncio.sleep(completion.reply.chunk_delay_s)
        # one write: a client that leaves after [DONE] has had the whole reply
        writer.write(http.chunk(done) + http.LAST_CHUNK)
        await writer.drain()
        return True

    def _usage(self, reply: Scripted, prompt: Prompt, cached: int, written: int) -> dict[str, Any]:
        reasoning = self._meter.text(reply.reasoning)
        calls = sum(self._meter.text(text) for call in reply.tool_calls for text in (call.name, call.arguments))
        completion = reasoning + calls + self._meter.text(reply.content)
        return {
            "prompt_tokens": prompt.total,
            "completion_tokens": completion,
            "total_tokens": prompt.total + completion,
            "prompt_tokens_details": {"cached_tokens": cached} | ({"cache_write_tokens": written} if written else {}),
            "completion_tokens_details": {"reasoning_tokens": reasoning},
        }

    async def _send(self, reply: ErrorReply, writer: asyncio.StreamWriter) -> bool:
        writer.write(http.plain(reply.status, reply.encoded(), reply.headers))
        await writer.drain()
        return True

    async def _play(self, reply: RawReply, writer: asyncio.StreamWriter) -> bool:
        framed = {"content-length", "transfer-encoding"}.isdisjoint(name.lower() for name in reply.headers)
        extra = {"transfer-encoding": "chunked"} if framed else {}
        writer.write(http.head(reply.status, {**reply.headers, **extra}))
        for frame in reply.frames:
            await writer.drain()
            await asyncio.sleep(0)  # let the loop send this frame before the next
            writer.write(http.chunk(frame) if framed else frame)
        match reply.then:
            case "eof":
                writer.write(http.LAST_CHUNK if framed else b"")
                await writer.drain()
                return framed
            case "abort":
                await http.reset(writer)
                return False
            case "hang":
                await writer.drain()
                await asyncio.Event().wait()  # until the client leaves or the server closes
                return False
