"""Implements the backend for OpenAI's Responses API."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ctxfold.backends.http_backend import HttpBackend
from ctxfold.backends.openai_responses.items import Item
from ctxfold.backends.openai_responses.parse import ResponsesParser
from ctxfold.backends.openai_responses.request import project, request_body, tool_body
from ctxfold.backends.profile import Profile, counter_for, json_lines
from ctxfold.backends.transport import Parser
from ctxfold.messages import Message
from ctxfold.protocols import ContextBackend, Reply, Request
from ctxfold.tokens.counter import MESSAGE_OVERHEAD_TOKENS
from ctxfold.validation import as_dict, as_dicts, as_text


class OpenAIResponsesBackend(HttpBackend):
    """A model service with the Responses API, used without its server-side memory: each request carries the whole conversation.

    Requests say `store: false` and ask for encrypted reasoning. Each item of a reply is kept in its place and is sent back
    unchanged to the model that made it. Another model gets texts, calls and results, without reasoning, ids and hosted tools'
    items. The API has no stop sequences: `stop` is not sent. `extra` may set other fields of the body, and in `tools` the
    hosted tools. With `previous_response_id` or `conversation` in `extra`, only the messages after the last reply are sent,
    because the service has the others.
    """

    wire = "openai_responses"
    _parser_class = ResponsesParser
    default_provider = "openai"

    def to_request_messages(
        self, messages: Sequence[Message], *, model: str | None = None, refused_before: int = 0
    ) -> list[dict[str, Any]]:
        """Returns the messages as input items, without leading system prompts where those are sent as instructions."""
        name = model or self.model
        return project(self._profile_for(name), messages, model=name, refused_before=refused_before).items

    def _canonical_lines(self, profile: Profile, request: Request, *, model: str) -> bytes:
        projected = project(profile, request.messages, model=model, refused_before=request.refused_before, joined=False)
        lines: list[Any] = [tool_body(tool) for tool in request.tools]
        lines += [{"role": "system", "content": projected.instructions}] if projected.instructions else []
        return json_lines([*lines, *projected.items])

    def _summary_blocks(self, reply: Reply) -> tuple[list[dict[str, Any]], int]:
        """Returns the output of a compaction, which keeps user messages as they were, and ends with the compaction item."""
        items = as_dicts(as_dict(reply.raw).get("output"))
        if not items or items[-1].get("type") != "compaction" or not items[-1].get("encrypted_content"):
            return [], 0
        sealed = reply.usage.output_tokens if reply.usage else len(items[-1]["encrypted_content"]) // 4
        counter = counter_for(self.profile)
        text_tokens = sum(MESSAGE_OVERHEAD_TOKENS + counter.count(_item_text(item)) for item in items[:-1])
        return items, sealed + text_tokens

    def _body(self, profile: Profile, request: Request, *, model: str, stream: bool) -> dict[str, Any]:
        return request_body(profile, request, model=model, stream=stream)

    def _parser(self, profile: Profile, request: Request) -> Parser:
        return ResponsesParser(profile, limit=request.max_tokens, hide=self._hide)


def _item_text(item: Item) -> str:
    """Returns the text of a message, and of other items their JSON."""
    parts = as_dicts(item.get("content"))
    plain = parts and all("text" in part for part in parts)
    return "".join(as_text(part["text"]) for part in parts) if plain else json.dumps(item, ensure_ascii=False)


if TYPE_CHECKING:
    _: ContextBackend = OpenAIResponsesBackend(model="m")
