"""The backend for Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ctxfold.backends.anthropic_blocks import project
from ctxfold.backends.anthropic_parse import MessagesParser
from ctxfold.backends.anthropic_request import canonical_lines, request_body
from ctxfold.backends.exchange import Parser
from ctxfold.backends.http_backend import HttpBackend
from ctxfold.backends.profile import Profile
from ctxfold.messages import Message
from ctxfold.ports import ContextBackend, Request

__all__ = ["AnthropicBackend"]


class AnthropicBackend(HttpBackend):
    """A model service behind the Messages API; which model thinks how, and what goes back, stands in the profile row."""

    wire = "anthropic_messages"
    default_provider = "anthropic"

    def to_request_messages(
        self, messages: Sequence[Message], *, model: str | None = None, unbound_before: int = 0
    ) -> list[dict[str, Any]]:
        """The messages as they travel, without the system prompts, which stand beside them."""
        name = model or self.model
        return project(self._profile_for(name), messages, model=name, unbound_before=unbound_before).rows

    def request_body(self, request: Request, *, stream: bool) -> dict[str, Any]:
        """The body that is sent for a request; ConfigError where the row cannot do what is asked."""
        resolved = self._resolved(request)
        name = resolved.model or self.model
        return request_body(self._profile_for(name), resolved, model=name, stream=stream)

    def canonical_bytes(self, request: Request) -> bytes:
        """Tools, system and blocks, one JSON object a line: a request extends another when these bytes do."""
        name = request.model or self.model
        return canonical_lines(
            self._profile_for(name), request.tools, request.messages, model=name, unbound_before=request.unbound_before
        )

    def _parser(self, profile: Profile, request: Request) -> Parser:
        return MessagesParser(profile, hide=self._hide)


if TYPE_CHECKING:
    _: ContextBackend = AnthropicBackend(model="m")
