"""Implements the backend for Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ctxfold.backends.anthropic.parse import MessagesParser
from ctxfold.backends.anthropic.request import compacts, project, request_body, tool_body
from ctxfold.backends.http_backend import HttpBackend
from ctxfold.backends.profile import Profile, block_lines, counter_for
from ctxfold.messages import Message
from ctxfold.protocols import ContextBackend, Reply, Request
from ctxfold.validation import as_dict, as_dicts, as_text

BETA = "anthropic-beta"
COMPACT, SUMMARIZE = "compact_20260112", "summarize"

_COUNTED = frozenset({"messages", "model", "system", "thinking", "tool_choice", "tools"})


class AnthropicBackend(HttpBackend):
    """A model service with the Messages API; the profile holds how each model thinks and what is sent back."""

    wire = "anthropic_messages"
    _parser_class = MessagesParser
    default_provider = "anthropic"

    def to_request_messages(
        self, messages: Sequence[Message], *, model: str | None = None, unbound_before: int = 0
    ) -> list[dict[str, Any]]:
        """Returns the messages in the form of requests, without system prompts, which have a field of their own."""
        name = model or self.model
        return project(self._profile_for(name), messages, model=name, unbound_before=unbound_before).rows

    def _canonical_lines(self, profile: Profile, request: Request, *, model: str) -> bytes:
        projected = project(profile, request.messages, model=model, unbound_before=request.unbound_before)
        rows = ((row["role"], row["content"]) for row in projected.rows)
        return block_lines(map(tool_body, request.tools), projected.system, rows)

    def _count_body(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in body.items() if name in _COUNTED}

    def _summary_blocks(self, reply: Reply) -> tuple[list[dict[str, Any]], int]:
        """Returns the compaction block of a reply; none where the service has not compacted, or failed to."""
        blocks = [block for block in as_dicts(as_dict(reply.raw).get("content")) if compacts(block)]
        counter = counter_for(self.profile)
        return blocks, sum(counter.count(as_text(block["content"])) for block in blocks)

    def _body(self, profile: Profile, request: Request, *, model: str, stream: bool) -> dict[str, Any]:
        return request_body(profile, request, model=model, stream=stream)

    def _headers_for(self, profile: Profile, body: Mapping[str, Any], headers: Mapping[str, str]) -> Mapping[str, str]:
        """Returns the header that names the beta features of the edits of `context_management`, and of compaction blocks."""
        kinds = [as_text(edit.get("type")) for edit in as_dicts(as_dict(body.get("context_management")).get("edits"))]
        kinds.append(as_text(as_dict(body.get("compaction")).get("type")))
        blocks = (block for row in body["messages"] for block in row["content"] if block.get("type") == "compaction")
        kinds += [SUMMARIZE if "signature" in block else COMPACT for block in blocks]  # known under the same names
        known = [name for name in headers.get(BETA, "").split(",") if name]
        needed = [profile.betas[kind] for kind in kinds if kind in profile.betas]
        return {BETA: ",".join(dict.fromkeys([*known, *needed]))} if needed else {}


if TYPE_CHECKING:
    _: ContextBackend = AnthropicBackend(model="m")
