"""Implements the backend for OpenAI's Responses API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ctxfold.backends.http_backend import HttpBackend
from ctxfold.backends.openai_responses.parse import ResponsesParser
from ctxfold.backends.openai_responses.request import canonical_lines, project, request_body
from ctxfold.backends.profile import Profile
from ctxfold.backends.transport import Parser
from ctxfold.messages import Message
from ctxfold.protocols import ContextBackend, Request

__all__ = ["OpenAIResponsesBackend"]


class OpenAIResponsesBackend(HttpBackend):
    """A model service with the Responses API, used without its memory: each request carries the conversation.

    Requests say `store: false` and ask for encrypted reasoning. Each item of a reply is kept in its place and goes back as it came
    to the model that made it. Another model gets texts, calls and results, without reasoning, ids and hosted tools' items.
    The API has no stop sequences: `stop` is not sent. `extra` may set other fields of the body, and in `tools` the hosted tools.
    With `previous_response_id` or `conversation` in `extra`, only the messages after the last reply are sent, because the service
    has the others.
    """

    wire = "openai_responses"
    default_provider = "openai"

    def to_request_messages(
        self, messages: Sequence[Message], *, model: str | None = None, refused_before: int = 0
    ) -> list[dict[str, Any]]:
        """Returns the messages as input items, without leading system prompts where those are sent as instructions."""
        name = model or self.model
        return project(self._profile_for(name), messages, model=name, refused_before=refused_before).items

    def request_body(self, request: Request, *, stream: bool) -> dict[str, Any]:
        """Returns the JSON body of a request; raises ConfigError when the profile does not support it."""
        resolved = self._resolved(request)
        name = resolved.model or self.model
        return request_body(self._profile_for(name), resolved, model=name, stream=stream)

    def canonical_bytes(self, request: Request) -> bytes:
        """Returns tools, instructions and items, one JSON object a line: a request extends another when these bytes do."""
        name = request.model or self.model
        return canonical_lines(self._profile_for(name), request, model=name)

    def _parser(self, profile: Profile, request: Request) -> Parser:
        return ResponsesParser(profile, hide=self._hide)


if TYPE_CHECKING:
    _: ContextBackend = OpenAIResponsesBackend(model="m")
