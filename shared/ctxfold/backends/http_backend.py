"""What every backend over HTTP shares: key, deadlines, retries, sync and async calls and streams.

A wire (chat completions, another provider's own) adds how a request is written and how an answer is read.
"""

from __future__ import annotations

import base64
import json
import os
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from pydantic import SecretStr

from ctxfold.backends.counting import counter_for
from ctxfold.backends.exchange import (
    AsyncChannel,
    Call,
    Channel,
    Open,
    Parser,
    adrive,
    counted_tokens,
    drive,
    open_answer,
    whole_reply,
)
from ctxfold.backends.http_stream import AsyncHttpStream, HttpStream
from ctxfold.backends.native_jsonl import from_line, to_line
from ctxfold.backends.profile import Profile, load_profile
from ctxfold.backends.retry import Retry
from ctxfold.budget import MessageCounter
from ctxfold.closing import Closing
from ctxfold.errors import ConfigError, InvalidTextError
from ctxfold.given import is_a, json_problem, shown_url
from ctxfold.messages import Message, TextPart, ToolSpec
from ctxfold.ports import Chunk, Ids, Reply, Request, UuidIds
from ctxfold.stream import Fold

if TYPE_CHECKING:
    import httpx

    from ctxfold.backends.http import Clients

__all__ = ["HttpBackend"]

HIDDEN = "**********"
MIN_SECRET_CHARS = 6
CREDENTIALS = frozenset({"api-key", "authorization", "x-api-key", "x-goog-api-key"})
_COUNTED = frozenset(
    {"messages", "model", "system", "thinking", "tool_choice", "tools"}
)  # what a counting endpoint takes
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class HttpBackend(ABC, Closing):
    """A model service over HTTP; safe across threads, tasks and event loops.

    Usable as `with` or `async with`; after `close` the next call opens new connections. `timeout_s` bounds the wait for the first
    event, or for a whole reply that is not streamed; `idle_timeout_s` each pause afterwards. Both default to the row's.

    `base_url` may carry a query, which every request then has (Azure's `?api-version=`), and `user:password@`, which is sent as
    an Authorization header. `headers` replace headers of the row with the same name, in any case. A credential among them
    (`authorization`, `x-api-key`, `api-key`, `x-goog-api-key`) stands in for the key of the environment; an explicit `api_key`
    is sent beside it under the row's own header. Redirects are never followed: they could carry the key to another host.
    With an `http_client` of your own, the head of a response on a connection that is used again has `timeout_s` for each read.
    """

    wire: str
    default_provider = "generic"

    def __init__(  # noqa: PLR0913  one keyword per independent setting
        self,
        *,
        model: str,
        provider: str | None = None,
        base_url: str | None = None,
        api_key: str | SecretStr | None = None,
        timeout_s: float | None = None,
        idle_timeout_s: float | None = None,
        connect_timeout_s: float = 10.0,
        max_retries: int = 2,
        retry: Retry | None = None,
        http_client: httpx.Client | None = None,
        async_http_client: httpx.AsyncClient | None = None,
        headers: Mapping[str, str] | None = None,
        thinking: bool | str | None = None,
        profile: Profile | Mapping[str, Any] | str | Path | None = None,
        ids: Ids | None = None,
    ) -> None:
        if not model:
            raise ConfigError("model is empty: name the model to use")
        self._row = load_profile((provider or self.default_provider) if profile is None else profile)
        if self._row.wire != self.wire:
            raise ConfigError(
                f"provider {self._row.name!r} speaks {self._row.wire}, {type(self).__name__} speaks {self.wire}: "
                "use the backend for that wire"
            )
        self._model = model
        self._profiles = {model: self._row.for_model(model)}
        self._url, login = _url(self._row, base_url)
        own = _headers(headers)
        self._headers = {**login, **own}
        stands_in = CREDENTIALS & own.keys() or login.keys() & {name.lower() for name in self._row.headers}
        self._key = _key(self._row, api_key, required=not stands_in)
        self._timeout_s = _positive("timeout_s", timeout_s, self._row.first_event_timeout)
        self._idle_timeout_s = _positive("idle_timeout_s", idle_timeout_s, self._row.idle_timeout)
        self._connect_timeout_s = _positive("connect_timeout_s", connect_timeout_s, 10.0)
        self._retry = retry if retry is not None else Retry(max_retries)
        self._given = http_client, async_http_client
        self._thinking = thinking
        self._ids = ids if ids is not None else UuidIds()
        self._clients: Clients | None = None
        self._lock = threading.Lock()

    @abstractmethod
    def request_body(self, request: Request, *, stream: bool) -> dict[str, Any]:
        """The body that is sent for a request."""

    @abstractmethod
    def _parser(self, profile: Profile, request: Request) -> Parser:
        """A fresh parser for one answer."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(provider={self._row.name!r}, model={self._model!r})"

    @property
    def model(self) -> str:
        return self._model

    @property
    def profile(self) -> Profile:
        """The provider's row as it holds for this model."""
        return self._profiles[self._model]

    @property
    def context_window(self) -> int | None:
        return self.profile.context_window

    @property
    def scratch_role(self) -> str:
        return "user" if self.profile.request.system_leads else "system"

    @property
    def binds_reasoning(self) -> bool:
        """Whether the provider binds a reply's reasoning to everything that stood before it."""
        return self.profile.reasoning_out.prefix_bound

    @property
    def reasoning_expires(self) -> bool:
        """Whether reasoning goes back only within its round, so that the next user turn leaves it out."""
        return self.profile.reasoning_out.keep == "current_round"

    @property
    def truncates_silently(self) -> bool:
        """Whether the server cuts a prompt that does not fit, and says nothing."""
        return self.profile.silent_truncation

    def sparing(self, request: Request) -> Request:
        """A request for a short answer without thinking, as the model can do it.

        One that always thinks is asked to do so as little as it can, and given the room: what it thinks counts as its answer.
        """
        profile = self._profile_for(request.model)
        rules, off = profile.thinking, profile.thinking.off
        if request.thinking is not False or not (rules.default_on if off is None else off in rules.effort.values()):
            return request
        return replace(request, thinking=next(iter(rules.effort), None) if off is None else False, max_tokens=None)

    def send(self, request: Request) -> Reply:
        """The whole answer to a request."""
        channel = self._channel(request)
        reply = drive(whole_reply(self._call(request, stream=False)), channel)
        channel.close()
        return reply

    async def asend(self, request: Request) -> Reply:
        channel = self._achannel(request)
        reply = await adrive(whole_reply(self._call(request, stream=False)), channel)
        await channel.aclose()
        return reply

    def open_stream(self, request: Request) -> HttpStream:
        """A stream whose first event has arrived; errors before it are raised here."""
        channel = self._channel(request)
        return HttpStream(drive(open_answer(self._call(request, stream=True)), channel), channel)

    async def aopen_stream(self, request: Request) -> AsyncHttpStream:
        channel = self._achannel(request)
        return AsyncHttpStream(await adrive(open_answer(self._call(request, stream=True)), channel), channel)

    def merge_chunks(self, chunks: Iterable[Chunk]) -> Message | None:
        """Returns the message that all chunks of one answer make; None where they hold nothing."""
        fold = Fold(self._ids.new(), self._model)
        for chunk in chunks:
            fold.feed(chunk)
        message = fold.close().message
        return message if message.parts else None

    def extract_messages(self, responses: Iterable[Reply | Chunk]) -> list[Message]:
        """Returns the messages of whole replies, or the one message of all chunks of an answer."""
        given = list(responses)
        replies = [one.message for one in given if isinstance(one, Reply)]
        merged = self.merge_chunks(one for one in given if isinstance(one, Chunk))
        return replies if merged is None else [*replies, merged]

    def to_system_message(self, message: Message) -> Message:
        """Returns the message's text as a system message of the same id."""
        return Message(message.id, "system", (TextPart(message.text),), kind=message.kind)

    def estimate_tokens(self, messages: Sequence[Message], *, tools: Sequence[ToolSpec] = ()) -> int:
        """Returns what the messages and tools would cost as input.

        The row of Anthropic has an endpoint that counts: it is asked, which is one request over the network, and may raise
        BackendError. Elsewhere the row's own counter estimates. The engine's turns never wait for this.
        """
        call = self._count_call(messages, tools)
        if call is None:
            return self._estimated(messages, tools)
        channel = self._channel(Request(messages))
        try:
            return drive(counted_tokens(call), channel)
        finally:
            channel.close()

    async def aestimate_tokens(self, messages: Sequence[Message], *, tools: Sequence[ToolSpec] = ()) -> int:
        call = self._count_call(messages, tools)
        if call is None:
            return self._estimated(messages, tools)
        channel = self._achannel(Request(messages))
        try:
            return await adrive(counted_tokens(call), channel)
        finally:
            await channel.aclose()

    def _count_call(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Call | None:
        """The request to the endpoint that counts whole requests; None where the row has none."""
        rules = self.profile.tokens
        if rules.kind != "endpoint" or rules.name is None or self.wire != "anthropic_messages":
            return None
        request = Request(messages, tools=tuple(tools))
        call = self._call(request, stream=False)
        body = {name: value for name, value in self.request_body(request, stream=False).items() if name in _COUNTED}
        parts = urlsplit(call.open.url)
        url = urlunsplit(parts._replace(path=parts.path.removesuffix(self._row.path) + rules.name))
        return replace(call, open=replace(call.open, url=url, body=_encoded(body)))

    def _estimated(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> int:
        counter = MessageCounter(counter_for(self.profile))
        return counter.count_all(messages) + counter.count_tools(tools)

    def message_to_jsonl(self, message: Message) -> str:
        """The message as one line of JSON in this provider's own shape; `message_from_jsonl` gives the same message back."""
        return to_line(message, self.wire)

    def message_from_jsonl(self, line: str) -> Message:
        """The message of a line in this provider's shape, or in that of another wire where the line says so."""
        return from_line(line, self.wire, self._ids.new)

    def close(self) -> None:
        if self._clients is not None:
            self._clients.close()

    async def aclose(self) -> None:
        if self._clients is not None:
            await self._clients.aclose()

    def _profile_for(self, model: str | None) -> Profile:
        name = model or self._model
        if name not in self._profiles:
            self._profiles[name] = self._row.for_model(name)
        return self._profiles[name]

    def _resolved(self, request: Request) -> Request:
        """The request with this backend's model and thinking where it leaves them open."""
        thinking = self._thinking if request.thinking is None else request.thinking
        return replace(request, model=request.model or self._model, thinking=thinking)

    def _hide(self, text: str) -> str:
        for secret in _secrets(self._key, self._headers):
            text = text.replace(secret, HIDDEN)
        return text

    def _call(self, request: Request, *, stream: bool) -> Call:
        resolved = self._resolved(request)
        profile = self._profile_for(resolved.model)
        headers = {
            "accept": "text/event-stream" if stream else "application/json",
            "content-type": "application/json",
            "accept-encoding": "identity",  # a compressing proxy would hold chunks back
            **_lowered(_key_headers(self._row, self._key)),
            **{name: value.get_secret_value() for name, value in self._headers.items()},
        }
        body = _encoded(self.request_body(request, stream=stream))
        return Call(
            profile,
            Open(self._url.get_secret_value(), headers, body, self._timeout_s),
            lambda: self._parser(profile, resolved),
            self._idle_timeout_s,
            self._retry,
            self._hide,
            self._ids.new(),
            resolved.model or self._model,
        )

    def _channel(self, request: Request) -> Channel:
        from ctxfold.backends.http import HttpChannel

        return HttpChannel(self._http(), self._profile_for(request.model), self._retry)

    def _achannel(self, request: Request) -> AsyncChannel:
        from ctxfold.backends.http import AsyncHttpChannel

        return AsyncHttpChannel(self._http(), self._profile_for(request.model), self._retry)

    def _http(self) -> Clients:
        with self._lock:
            if self._clients is None:
                from ctxfold.backends.http import Clients

                self._clients = Clients(*self._given, connect_timeout_s=self._connect_timeout_s)
            return self._clients


def _url(row: Profile, base_url: str | None) -> tuple[SecretStr, dict[str, SecretStr]]:
    """The address of requests, and the header that stands for a user and password in it.

    The address is kept as a secret too, as its query may hold a key.
    """
    base = base_url or row.base_url
    try:
        parts = urlsplit(base)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        parts, valid = SplitResult("", "", "", "", ""), False
    if not valid:
        raise ConfigError(
            f"base_url {shown_url(base)!r} is no http(s) address: give one such as http://localhost:8000/v1"
        )
    path = parts.path.rstrip("/")
    if not path.endswith(row.path):
        # given with or without the version that the row's path begins with
        path = path.removesuffix(row.path.rpartition("/")[0]) + row.path
    login, _, host = parts.netloc.rpartition("@")
    url = SecretStr(urlunsplit((parts.scheme, host, path, parts.query, "")))
    return url, {"authorization": SecretStr(_basic(login))} if login else {}


def _basic(login: str) -> str:
    user, _, password = login.partition(":")
    return f"Basic {base64.b64encode(f'{unquote(user)}:{unquote(password)}'.encode()).decode()}"


def _lowered(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def _headers(headers: Mapping[str, str] | None) -> dict[str, SecretStr]:
    """The caller's headers, checked, names in lower case; values are kept as secrets, because any of them may be one."""
    found: dict[str, SecretStr] = {}
    for name, value in (headers or {}).items():
        if not is_a(name, str) or not _HEADER_NAME.fullmatch(name):
            raise ConfigError(f"headers has the name {name!r}: an HTTP header name has letters, digits and '-'")
        if not is_a(value, str) or not (value.isascii() and value.isprintable()):
            raise ConfigError(f"header {name!r} has a value that cannot be sent: give text in printable ASCII")
        found[name.lower()] = SecretStr(value)
    return found


def _secrets(key: SecretStr | None, headers: Mapping[str, SecretStr]) -> list[str]:
    """Texts that no message may show: the key, and the caller's credentials with and without their scheme, the longest first."""
    found = [] if key is None else [key.get_secret_value()]
    for name in {*CREDENTIALS, "proxy-authorization"} & headers.keys():
        value = headers[name].get_secret_value()
        found += [value, value.partition(" ")[2].strip()]
    # a stand-in such as "x" is no secret, and hiding it would garble the text
    return sorted((text for text in found if len(text) >= MIN_SECRET_CHARS), key=len, reverse=True)


def _key(row: Profile, given: str | SecretStr | None, *, required: bool) -> SecretStr | None:
    text = given.get_secret_value() if isinstance(given, SecretStr) else given
    if text is None and row.key_env is not None and required:
        text = os.environ.get(row.key_env)
        if not text:
            raise ConfigError(f"provider {row.name!r} needs an API key: set {row.key_env} or pass api_key=")
    if text is None or not text.strip():
        return None
    text = text.strip()  # a key read from a file often brings its newline
    if not (text.isascii() and text.isprintable()):
        raise ConfigError("the API key holds characters that no HTTP header may hold: copy it again")
    return SecretStr(text)


def _key_headers(row: Profile, key: SecretStr | None) -> dict[str, str]:
    """The row's headers with the key in place; one that needs a key is left out when there is none."""
    secret = key.get_secret_value() if key is not None else None
    return {
        name: value.replace("{key}", secret or "")
        for name, value in row.headers.items()
        if secret is not None or "{key}" not in value
    }


def _positive(name: str, value: float | None, default: float) -> float:
    if value is None:
        return default
    if not value > 0:
        raise ConfigError(f"{name} is {value}: use a number of seconds above 0")
    return value


def _encoded(body: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except UnicodeEncodeError as error:
        raise InvalidTextError(
            f"the request holds a lone surrogate at character {error.start}: decode the text properly or replace it"
        ) from None
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"the request cannot be written as JSON ({json_problem(error)}): use JSON values in tools and extra"
        ) from error
