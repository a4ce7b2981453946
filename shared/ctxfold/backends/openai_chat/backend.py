"""Implements the backend for servers that speak OpenAI-compatible chat completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ctxfold.backends.http_backend import HttpBackend
from ctxfold.backends.openai_chat.parse import ChatParser
from ctxfold.backends.openai_chat.request import canonical_lines, project, request_body
from ctxfold.backends.profile import Profile
from ctxfold.backends.transport import Parser
from ctxfold.messages import Message
from ctxfold.protocols import ContextBackend, Request


class OpenAIChatBackend(HttpBackend):
    """A model service with the chat completions API; the profile holds the properties of its provider."""

    wire = "openai_chat"

    def to_request_messages(self, messages: Sequence[Message], *, model: str | None = None) -> list[dict[str, Any]]:
        """Returns the messages in the form of requests, with reasoning only where the profile asks for it."""
        return project(self._profile_for(model), messages, model=model or self.model)

    def _canonical_lines(self, profile: Profile, request: Request, *, model: str) -> bytes:
        # not joined: a message that joins the one before it would seem to change it
        rows = project(profile, request.messages, model=model, joined=False)
        return canonical_lines(request.tools, rows)

    def _body(self, profile: Profile, request: Request, *, model: str, stream: bool) -> dict[str, Any]:
        return request_body(profile, request, model=model, stream=stream)

    def _parser(self, profile: Profile, request: Request) -> Parser:
        return ChatParser(profile, thinking=request.thinking is not False, hide=self._hide)


if TYPE_CHECKING:
    _: ContextBackend = OpenAIChatBackend(model="m")
