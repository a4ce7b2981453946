"""Implements the backend for Google's generateContent, at the Gemini API and at Vertex AI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ctxfold.backends.gemini.parse import GeminiParser
from ctxfold.backends.gemini.request import project, request_body, tool_body
from ctxfold.backends.http_backend import HttpBackend
from ctxfold.backends.profile import Profile, block_lines
from ctxfold.messages import Message
from ctxfold.protocols import ContextBackend, Request

_COUNTED = frozenset({"contents", "systemInstruction", "tools"})


class GeminiBackend(HttpBackend):
    """A model service with generateContent: the Gemini API, or Vertex AI with project and location in `base_url`.

    Thoughts, their signatures and the parts of Google's own tools go back to the model that made them, in the same place.
    """

    wire = "gemini"
    _parser_class = GeminiParser
    default_provider = "gemini"

    def to_request_messages(
        self, messages: Sequence[Message], *, model: str | None = None, refused_before: int = 0
    ) -> list[dict[str, Any]]:
        """Returns the messages as contents, without the leading system prompts, which have a field of their own."""
        name = model or self.model
        return project(self._profile_for(name), messages, model=name, refused_before=refused_before).contents

    def _canonical_lines(self, profile: Profile, request: Request, *, model: str) -> bytes:
        projected = project(profile, request.messages, model=model, refused_before=request.refused_before)
        rows = ((row["role"], row["parts"]) for row in projected.contents)
        return block_lines(map(tool_body, request.tools), projected.system, rows)

    def _count_body(self, body: Mapping[str, Any]) -> dict[str, Any]:
        counted = {name: value for name, value in body.items() if name in _COUNTED}
        field = self.profile.tokens.field
        return counted if field is None else {field: {"model": f"models/{self.model}", **counted}}

    def _body(self, profile: Profile, request: Request, *, model: str, stream: bool) -> dict[str, Any]:
        return request_body(profile, request, model=model)


if TYPE_CHECKING:
    _: ContextBackend = GeminiBackend(model="m")
