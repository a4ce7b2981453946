"""Defines the base of HTTP backends: key, deadlines, retries, and sync and async calls and streams.

A subclass for each wire writes requests and parses replies."""

from __future__ import annotations

import base64
import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, cast
from urllib.parse import SplitResult, quote, unquote, urlsplit, urlunsplit

from pydantic import SecretStr

from ctxfold._lifecycle import AsyncClosing, SyncClosing
from ctxfold.backends.base import BackendDefaults
from ctxfold.backends.profile import Profile, counter_for, load_profile
from ctxfold.backends.response_parser import AnswerParser
from ctxfold.backends.transport import (
    AsyncChannel,
    Channel,
    HttpCall,
    Open,
    OpenAnswer,
    Retry,
    adrive,
    counted_tokens,
    drive,
    open_answer,
    whole_reply,
)
from ctxfold.errors import ConfigError, InvalidTextError
from ctxfold.lru import lazy_pattern
from ctxfold.messages import Message, ProviderSummary, ToolSpec
from ctxfold.protocols import (
    AsyncChunkStream,
    BackendCapabilities,
    Chunk,
    ChunkStream,
    Ids,
    Reply,
    Request,
    UuidIds,
)
from ctxfold.tokens.text import TextCounter
from ctxfold.validation import is_a, json_problem, shown_url

if TYPE_CHECKING:
    import httpx

    from ctxfold.backends.http import Clients


class HttpStream(SyncClosing):
    """Iterates over the chunks of a reply. Its end or an error closes the stream; `close` ends the connection at once."""

    def __init__(self, answer: OpenAnswer, channel: Channel) -> None:
        self._answer: OpenAnswer | None = answer
        self._channel = channel

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Chunk:
        if self._answer is None:
            raise StopIteration
        try:
            if (chunk := self._answer.arrived()) is not None:
                return chunk
            if self._answer.flowing:  # most of a stream is plain reads, without the overhead of a flow
                self._answer.take_in(self._channel.perform(self._answer.next_read))
            chunk = self._answer.arrived() or drive(self._answer.next(), self._channel)
            if chunk is None:
                raise StopIteration
            return chunk
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._answer = None
        self._channel.close()


class AsyncHttpStream(AsyncClosing):
    """The async form of HttpStream; cancelling a read closes the connection."""

    def __init__(self, answer: OpenAnswer, channel: AsyncChannel) -> None:
        self._answer: OpenAnswer | None = answer
        self._channel = channel

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        if self._answer is None:
            raise StopAsyncIteration
        try:
            if (chunk := self._answer.arrived()) is not None:
                return chunk
            if self._answer.flowing:
                self._answer.take_in(await self._channel.perform(self._answer.next_read))
            chunk = self._answer.arrived() or await adrive(self._answer.next(), self._channel)
            if chunk is None:
                raise StopAsyncIteration
            return chunk
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        self._answer = None
        await self._channel.aclose()


if TYPE_CHECKING:
    _sync: ChunkStream = cast("HttpStream", ...)
    _async: AsyncChunkStream = cast("AsyncHttpStream", ...)


HIDDEN = "**********"
NO_ADDRESS = "http://localhost"  # in the rows for any service: hardly any model listens at port 80 of this machine
MIN_SECRET_CHARS = 6
CREDENTIALS = frozenset({"api-key", "authorization", "x-api-key", "x-goog-api-key"})
_HEADER_NAME = lazy_pattern(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class WireFormat(Protocol):
    """The module of a wire, which writes its requests."""

    def request_body(self, profile: Profile, request: Request, *, model: str, stream: bool) -> dict[str, Any]:
        """Returns the JSON body of a request whose settings are complete; some wires send the same for a stream."""
        ...

    def canonical_bytes(self, profile: Profile, request: Request, *, model: str) -> bytes:
        """Returns tools, then the conversation as it is sent, one JSON object a line, keys sorted."""
        ...


class HttpBackend(BackendDefaults):
    """A model service over HTTP; safe across threads, tasks and event loops.

    Use it with `with` or `async with`; after `close` the next call opens new connections. `timeout_s` limits the wait for the
    first event, or for a whole reply that is not streamed, `idle_timeout_s` each pause afterwards. Both default to the profile's.

    `base_url` may contain a query, which every request then carries (Azure's `?api-version=`), and `user:password@`, which is
    sent as an Authorization header. `headers` replace headers of the profile with the same name, in any case. A credential among
    them (`authorization`, `x-api-key`, `api-key`, `x-goog-api-key`) replaces the key of the environment; an explicit `api_key` is
    sent in addition, under the profile's own header. Redirects are not followed, because they could send the key to another host.
    With your own `http_client`, `timeout_s` limits each read of a response's head when a connection is reused.
    """

    _format: WireFormat
    _parser_class: type[AnswerParser]
    _counted: frozenset[str] = frozenset()  # fields of a body that the counting endpoint takes
    default_provider = "generic"
    stream_type = "text/event-stream"

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
        self._row = load_profile((provider or self.default_provider) if profile is None else profile).for_wire(
            self.wire
        )
        self._model = model
        self._profiles = {model: self._row.for_model(model)}
        self._url, login = _url(self._row.path, base_url or self._row.base_url)
        self._stream_url, _ = _url(self._row.stream_path or self._row.path, base_url or self._row.base_url)
        self._has_address = bool(base_url or http_client or async_http_client) or self._row.base_url != NO_ADDRESS
        extra_headers = _headers(headers)
        self._headers = {**login, **extra_headers}
        has_credential = CREDENTIALS & extra_headers.keys() or login.keys() & {n.lower() for n in self._row.headers}
        self._key = _key(self._row, api_key, required=not has_credential)
        self._timeout_s = _positive("timeout_s", timeout_s, self._row.first_event_timeout)
        self._idle_timeout_s = _positive("idle_timeout_s", idle_timeout_s, self._row.idle_timeout)
        self._connect_timeout_s = _positive("connect_timeout_s", connect_timeout_s, 10.0)
        self._retry = retry if retry is not None else Retry(max_retries)
        self._injected = http_client, async_http_client
        self._thinking = thinking
        self._ids = ids if ids is not None else UuidIds()
        self._sign: Callable[[Open], Mapping[str, str]] | None = None
        self._clients: Clients | None = None
        self._lock = threading.Lock()

    def _parser(self, profile: Profile, request: Request) -> AnswerParser:
        """Returns a new parser for one reply."""
        return self._parser_class(profile, hide=self._hide)

    def request_body(self, request: Request, *, stream: bool) -> dict[str, Any]:
        """Returns the JSON body of a request; raises ConfigError when the profile does not support it."""
        resolved = self._resolved(request)
        name = resolved.model or self.model
        return self._format.request_body(self._profile_for(name), resolved, model=name, stream=stream)

    def canonical_bytes(self, request: Request) -> bytes:
        """Returns tools, then the conversation as it is sent, one JSON object a line, keys sorted.

        A request extends another when these bytes do.
        """
        name = request.model or self.model
        return self._format.canonical_bytes(self._profile_for(name), request, model=name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(provider={self._row.name!r}, model={self._model!r})"

    @property
    def model(self) -> str:
        return self._model

    @property
    def profile(self) -> Profile:
        """Returns the provider's profile for this model."""
        return self._profiles[self._model]

    @property
    def context_window(self) -> int | None:
        return self.profile.context_window

    @property
    def scratch_role(self) -> str:
        return "user" if self.profile.request.system_leads else "system"

    @property
    def capabilities(self) -> BackendCapabilities:
        """Returns the abilities of the service by the provider's profile for this model."""
        return self._capabilities_for(self._model)

    def _capabilities_for(self, model: str) -> BackendCapabilities:
        row = self._profile_for(model)
        return BackendCapabilities(
            binds_reasoning=row.reasoning_out.prefix_bound,
            reasoning_optional=row.reasoning_out.optional,
            reasoning_expires=row.reasoning_out.keep == "current_round",
            truncates_silently=row.silent_truncation,
            compacts_from=None if row.compaction is None else row.compaction.min_tokens,
            provider=row.name,
            sparing=self.sparing,
            of_model=self._capabilities_for,
        )

    def sparing(self, request: Request) -> Request:
        """Returns the request for a short reply without thinking in the form that the model supports.

        A model that always thinks gets its lowest effort and no `max_tokens`, because its thinking counts as output.
        """
        profile = self._profile_for(request.model)
        rules, off = profile.thinking, profile.thinking.off
        if request.thinking is not False or not (rules.default_on if off is None else off in rules.effort.values()):
            return request
        return replace(request, thinking=next(iter(rules.effort), None) if off is None else False, max_tokens=None)

    def send(self, request: Request) -> Reply:
        """Returns the whole reply to a request."""
        channel = self._channel(request)
        reply = drive(whole_reply(self._call(request, stream=False)), channel)
        channel.close()
        return self._with_summary(request, reply)

    async def asend(self, request: Request) -> Reply:
        channel = self._achannel(request)
        reply = await adrive(whole_reply(self._call(request, stream=False)), channel)
        await channel.aclose()
        return self._with_summary(request, reply)

    def open_stream(self, request: Request) -> HttpStream:
        """Returns a stream whose first event has arrived; errors before it are raised here."""
        channel = self._channel(request)
        return HttpStream(drive(open_answer(self._call(request, stream=True)), channel), channel)

    async def aopen_stream(self, request: Request) -> AsyncHttpStream:
        channel = self._achannel(request)
        return AsyncHttpStream(await adrive(open_answer(self._call(request, stream=True)), channel), channel)

    def estimate_tokens(self, messages: Sequence[Message], *, tools: Sequence[ToolSpec] = ()) -> int:
        """Returns the input tokens of the messages and tools.

        On Anthropic and Gemini this asks the counting endpoint, which is one request over the network and may raise BackendError.
        Elsewhere the profile's counter estimates. The engine's turns never wait for this.
        """
        call = self._count_call(messages, tools)
        if call is None:
            return super().estimate_tokens(messages, tools=tools)
        channel = self._channel(Request(messages))
        tokens = drive(counted_tokens(call), channel)
        channel.close()
        return tokens

    async def aestimate_tokens(self, messages: Sequence[Message], *, tools: Sequence[ToolSpec] = ()) -> int:
        call = self._count_call(messages, tools)
        if call is None:
            return super().estimate_tokens(messages, tools=tools)
        channel = self._achannel(Request(messages))
        tokens = await adrive(counted_tokens(call), channel)
        await channel.aclose()
        return tokens

    def _count_call(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> HttpCall | None:
        """Returns the call to the endpoint that counts a request; None when the profile has none."""
        rules = self.profile.tokens
        if rules.kind != "endpoint" or rules.name is None or not self._counted:
            return None
        request = Request(messages, tools=tuple(tools))
        body = self.request_body(request, stream=False)
        body = {name: value for name, value in body.items() if name in self._counted}
        if rules.field is not None:
            body = {rules.field: {"model": f"models/{self._model}", **body}}
        call = self._call(request, stream=False)
        return replace(call, open=replace(call.open, url=self._endpoint_url(rules.name), body=_encoded(body)))

    def _endpoint_url(self, path: str) -> str:
        """Returns the URL of another endpoint of the service."""
        parts = urlsplit(self._url.get_secret_value())
        url = urlunsplit(parts._replace(path=parts.path.removesuffix(self._row.path) + path))
        return _for_model(url, self._model)

    def _with_summary(self, request: Request, reply: Reply) -> Reply:
        """Returns the reply with the summary that the service wrote, where the request asked for one."""
        if not request.compact:
            return reply
        blocks, tokens = self._summary_blocks(reply)
        model = request.model or self._model
        summary = ProviderSummary(self.wire, self._row.name, model, tuple(blocks), tokens) if blocks else None
        return replace(reply, summary=summary)

    def _summary_blocks(self, reply: Reply) -> tuple[list[dict[str, Any]], int]:
        """Returns the blocks of the service's own summary in a reply, as they came, and their size in tokens."""
        return [], 0

    def _text_counter(self) -> TextCounter:
        return counter_for(self.profile)

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
        """Returns the request with this backend's model and thinking where it sets none."""
        thinking = self._thinking if request.thinking is None else request.thinking
        return replace(request, model=request.model or self._model, thinking=thinking)

    def _hide(self, text: str) -> str:
        for secret in _secrets(self._key, self._headers):
            text = text.replace(secret, HIDDEN)
        return text

    def _call(self, request: Request, *, stream: bool) -> HttpCall:
        resolved = self._resolved(request)
        profile = self._profile_for(resolved.model)
        rules = profile.compaction if resolved.compact else None
        if resolved.compact and rules is None:
            raise ConfigError(
                f"provider {profile.name!r} writes no summaries of its own on the wire {self.wire} with {resolved.model}: "
                "leave out compact, or use strategy='tiered'"
            )
        headers = {
            "accept": self.stream_type if stream else "application/json",
            "content-type": "application/json",
            "accept-encoding": "identity",  # a compressing proxy would hold chunks back
            **_key_headers(self._row, self._key),
            **{name: value.get_secret_value() for name, value in self._headers.items()},
        }
        fields = self.request_body(request, stream=stream)
        headers |= self._headers_for(profile, fields, headers)
        body = _encoded(fields)
        if not self._has_address:
            raise ConfigError(
                f"provider {self._row.name!r} has no address, for the model {self._model!r}: give base_url=..., or "
                "provider='openai' or another one"
            )
        return HttpCall(
            profile,
            Open(
                # a model in the path is one segment, whatever characters its name has
                _for_model(
                    (self._stream_url if stream else self._url).get_secret_value(), resolved.model or self._model
                )
                if rules is None or rules.path is None
                else self._endpoint_url(rules.path),
                headers,
                body,
                self._timeout_s,
                self._sign,
            ),
            lambda: self._parser(profile, resolved),
            self._idle_timeout_s,
            self._retry,
            self._hide,
            self._ids.new(),
            resolved.model or self._model,
            self.classified,
        )

    def _headers_for(self, profile: Profile, body: Mapping[str, Any], headers: Mapping[str, str]) -> Mapping[str, str]:
        """Returns the headers that the fields of a body need beside `headers`."""
        return {}

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

                self._clients = Clients(*self._injected, connect_timeout_s=self._connect_timeout_s)
            return self._clients


def _for_model(url: str, model: str) -> str:
    return url.replace("{model}", quote(model, safe=""))


def _url(row_path: str, base: str) -> tuple[SecretStr, dict[str, SecretStr]]:
    """Returns the URL of requests, and the Authorization header of a user and password in it.

    The URL is a secret too, because its query may hold a key. A query of the row's path goes before that of the base.
    """
    row_path, _, row_query = row_path.partition("?")
    try:
        parts = urlsplit(base)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        parts, valid = SplitResult("", "", "", "", ""), False
    if not valid:
        raise ConfigError(
            f"base_url {shown_url(base)!r} is not an http(s) URL: give one such as http://localhost:8000/v1"
        )
    path = parts.path.rstrip("/")
    if not path.endswith(row_path):
        # base_url may end with the version with which the profile's path begins
        path = path.removesuffix(row_path.rpartition("/")[0]) + row_path
    query = "&".join(part for part in (row_query, parts.query) if part)
    login, _, host = parts.netloc.rpartition("@")
    url = SecretStr(urlunsplit((parts.scheme, host, path, query, "")))
    user, _, password = login.partition(":")
    basic = base64.b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode()
    return url, {"authorization": SecretStr(f"Basic {basic}")} if login else {}


def _headers(headers: Mapping[str, str] | None) -> dict[str, SecretStr]:
    """Returns the checked headers, names in lower case; all values are secrets, because each may be a credential."""
    checked: dict[str, SecretStr] = {}
    for name, value in (headers or {}).items():
        if not is_a(name, str) or not _HEADER_NAME.fullmatch(name):
            raise ConfigError(f"headers has the name {name!r}: an HTTP header name has letters, digits and '-'")
        if not is_a(value, str) or not (value.isascii() and value.isprintable()):
            raise ConfigError(f"header {name!r} has a value that cannot be sent: give text in printable ASCII")
        checked[name.lower()] = SecretStr(value)
    return checked


def _secrets(key: SecretStr | None, headers: Mapping[str, SecretStr]) -> list[str]:
    """Returns the texts to hide: the key, and the caller's credentials with and without their scheme, the longest first."""
    secrets = [] if key is None else [key.get_secret_value()]
    for name in {*CREDENTIALS, "proxy-authorization"} & headers.keys():
        value = headers[name].get_secret_value()
        secrets += [value, value.partition(" ")[2].strip()]
    # a placeholder such as "x" is not a secret, and hiding it would garble the text
    return sorted((text for text in secrets if len(text) >= MIN_SECRET_CHARS), key=len, reverse=True)


def _key(row: Profile, api_key: str | SecretStr | None, *, required: bool) -> SecretStr | None:
    text = api_key.get_secret_value() if isinstance(api_key, SecretStr) else api_key
    if text is None and row.key_env is not None and required:
        text = os.environ.get(row.key_env)
        if not text:
            raise ConfigError(f"provider {row.name!r} needs an API key: set {row.key_env} or pass api_key=")
    if text is None or not text.strip():
        return None
    text = text.strip()  # a key read from a file often brings its newline
    if not (text.isascii() and text.isprintable()):
        raise ConfigError("the API key has characters that an HTTP header cannot carry: copy it again")
    return SecretStr(text)


def _key_headers(row: Profile, key: SecretStr | None) -> dict[str, str]:
    """Returns the profile's headers with the key inserted, names in lower case; without a key, those that need one are left out."""
    secret = key.get_secret_value() if key is not None else None
    return {
        name.lower(): value.replace("{key}", secret or "")
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
