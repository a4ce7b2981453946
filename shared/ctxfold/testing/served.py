"""Defines the wire formats that `ModelServer` speaks; the server itself works on requests in the form of chat completions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import ctxfold.testing.render as render
from ctxfold.lru import LruCache
from ctxfold.testing.script import Body, ErrorReply, as_mapping
from ctxfold.testing.strict import Strict, refusal
from ctxfold.testing.usage import MarkedBlocks


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """A request as it arrived. `body` has the wire's own form, `path` is without its query."""

    path: str
    headers: Mapping[str, str]
    body: Body


class ServedWire(ABC):
    """A wire format: which requests are its own, what they say as a chat completion, and how replies are written."""

    stream_type = render.EVENT_STREAM

    @abstractmethod
    def serves(self, path: str) -> bool:
        """Returns True for the path of a request in this format."""

    @abstractmethod
    def chat_body(self, api_request: ApiRequest) -> dict[str, Any]:
        """Returns the request as the body of a chat completion.

        It has `model`, `messages`, `tools`, `max_tokens` and `stream` where the request says so, so that scripts, the lookup
        model, token counts and the prefix cache read every format alike.
        """

    def cache_blocks(self, api_request: ApiRequest) -> Sequence[MarkedBlocks] | None:
        """Returns the tools, the system prompt and each message as blocks without their cache marks, and which block has one.

        None is for a service that caches without marks.
        """
        return None

    @abstractmethod
    def refusal(
        self, api_request: ApiRequest, strict: Strict | None, produced: LruCache[str, str]
    ) -> ErrorReply | None:
        """Returns the error that the request earns; `produced` maps the ids of calls to the reasoning they were sent with."""

    def compaction(self, api_request: ApiRequest, prompt_tokens: int) -> Literal["alone", "beside"] | None:
        """Returns whether the request gets the server's own summary of its messages, in place of a reply or beside it."""
        return None

    def without_compaction(self, api_request: ApiRequest) -> ErrorReply | None:
        """Returns the error of a server that does not compact, for a request that asks for it."""
        return None

    @abstractmethod
    def whole(self, completion: render.Completion) -> bytes:
        """Returns the body of a reply that is not streamed."""

    @abstractmethod
    def frames(self, completion: render.Completion, api_request: ApiRequest) -> Iterator[bytes]:
        """Yields the frames of a streamed reply; the last one goes out together with the end of the body."""

    def error(self, error: ErrorReply) -> ErrorReply:
        """Returns an error in the format's own shape."""
        return error


class ChatCompletions(ServedWire):
    """OpenAI's chat completions."""

    def serves(self, path: str) -> bool:
        return path.endswith("/chat/completions")

    def chat_body(self, api_request: ApiRequest) -> dict[str, Any]:
        return dict(api_request.body)

    def refusal(
        self, api_request: ApiRequest, strict: Strict | None, produced: LruCache[str, str]
    ) -> ErrorReply | None:
        return refusal(api_request.body, strict, produced)

    def whole(self, completion: render.Completion) -> bytes:
        return render.as_json(completion)

    def frames(self, completion: render.Completion, api_request: ApiRequest) -> Iterator[bytes]:
        usage = bool(as_mapping(api_request.body.get("stream_options")).get("include_usage"))
        return render.as_events(completion, include_usage=usage)
