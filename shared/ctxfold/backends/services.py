"""Defines the backends of the five wires over HTTP, and the signatures that requests to AWS need."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from pydantic import SecretStr

import ctxfold.backends.anthropic as anthropic
import ctxfold.backends.converse as converse
import ctxfold.backends.gemini as gemini
import ctxfold.backends.openai_chat as openai_chat
import ctxfold.backends.openai_responses as openai_responses
from ctxfold.backends.converse_parse import ConverseParser
from ctxfold.backends.http_backend import HttpBackend
from ctxfold.backends.openai_responses_items import Item
from ctxfold.backends.openai_responses_parse import ResponsesParser
from ctxfold.backends.profile import Profile, counter_for, load_profile
from ctxfold.backends.response_parser import AnswerParser
from ctxfold.backends.transport import Open
from ctxfold.errors import BackendError, ConfigError
from ctxfold.messages import Message
from ctxfold.protocols import ContextBackend, Ids, Reply, Request, Wire
from ctxfold.tokens.text import MESSAGE_OVERHEAD_TOKENS
from ctxfold.validation import as_dict, as_dicts, as_text, unpacked

if TYPE_CHECKING:
    import httpx

    from ctxfold.backends.transport import Retry


class OpenAIChatBackend(HttpBackend):
    """A model service with the chat completions API; the profile holds the properties of its provider."""

    wire = "openai_chat"
    _format = openai_chat

    def to_request_messages(self, messages: Sequence[Message], *, model: str | None = None) -> list[dict[str, Any]]:
        """Returns the messages in the form of requests, with reasoning only where the profile asks for it."""
        return openai_chat.project(self._profile_for(model), messages, model=model or self.model)

    def _parser(self, profile: Profile, request: Request) -> AnswerParser:
        return openai_chat.ChatParser(profile, thinking=request.thinking is not False, hide=self._hide)


class OpenAIResponsesBackend(HttpBackend):
    """A model service with the Responses API, used without its server-side memory: each request carries the whole conversation.

    Requests say `store: false` and ask for encrypted reasoning. Each item of a reply is kept in its place and is sent back
    unchanged to the model that made it. Another model gets texts, calls and results, without reasoning, ids and hosted tools'
    items. The API has no stop sequences: `stop` is not sent. `extra` may set other fields of the body, and in `tools` the
    hosted tools. With `previous_response_id` or `conversation` in `extra`, only the messages after the last reply are sent,
    because the service has the others.
    """

    wire = "openai_responses"
    _format = openai_responses
    default_provider = "openai"

    def to_request_messages(
        self, messages: Sequence[Message], *, model: str | None = None, refused_before: int = 0
    ) -> list[dict[str, Any]]:
        """Returns the messages as input items, without leading system prompts where those are sent as instructions."""
        name, profile = model or self.model, self._profile_for(model)
        return openai_responses.project(profile, messages, model=name, refused_before=refused_before).items

    def _summary_blocks(self, reply: Reply) -> tuple[list[dict[str, Any]], int]:
        """Returns the output of a compaction, which keeps user messages as they were, and ends with the compaction item."""
        items = as_dicts(as_dict(reply.raw).get("output"))
        if not items or items[-1].get("type") != "compaction" or not items[-1].get("encrypted_content"):
            return [], 0
        sealed = reply.usage.output_tokens if reply.usage else len(items[-1]["encrypted_content"]) // 4
        counter = counter_for(self.profile)
        text_tokens = sum(MESSAGE_OVERHEAD_TOKENS + counter.count(_item_text(item)) for item in items[:-1])
        return items, sealed + text_tokens

    def _parser(self, profile: Profile, request: Request) -> AnswerParser:
        return ResponsesParser(profile, limit=request.max_tokens, hide=self._hide)


def _item_text(item: Item) -> str:
    """Returns the text of a message, and of other items their JSON."""
    parts = as_dicts(item.get("content"))
    plain = parts and all("text" in part for part in parts)
    return "".join(as_text(part["text"]) for part in parts) if plain else json.dumps(item, ensure_ascii=False)


class AnthropicBackend(HttpBackend):
    """A model service with the Messages API; the profile holds how each model thinks and what is sent back."""

    wire = "anthropic_messages"
    _format = anthropic
    _parser_class = anthropic.MessagesParser
    _counted = frozenset({"messages", "model", "system", "thinking", "tool_choice", "tools"})
    default_provider = "anthropic"

    def to_request_messages(
        self, messages: Sequence[Message], *, model: str | None = None, unbound_before: int = 0
    ) -> list[dict[str, Any]]:
        """Returns the messages in the form of requests, without system prompts, which have a field of their own."""
        name, profile = model or self.model, self._profile_for(model)
        return anthropic.project(profile, messages, model=name, unbound_before=unbound_before).rows

    def _summary_blocks(self, reply: Reply) -> tuple[list[dict[str, Any]], int]:
        """Returns the compaction block of a reply; none where the service has not compacted, or failed to."""
        blocks = [block for block in as_dicts(as_dict(reply.raw).get("content")) if anthropic.compacts(block)]
        counter = counter_for(self.profile)
        return blocks, sum(counter.count(as_text(block["content"])) for block in blocks)

    def _headers_for(self, profile: Profile, body: Mapping[str, Any], headers: Mapping[str, str]) -> Mapping[str, str]:
        """Returns the header that names the beta features of the edits of `context_management`, and of compaction blocks."""
        kinds = [as_text(edit.get("type")) for edit in as_dicts(as_dict(body.get("context_management")).get("edits"))]
        kinds.append(as_text(as_dict(body.get("compaction")).get("type")))
        blocks = (block for row in body["messages"] for block in row["content"] if block.get("type") == "compaction")
        kinds += [SUMMARIZE if "signature" in block else COMPACT for block in blocks]  # known under the same names
        known = [name for name in headers.get(BETA, "").split(",") if name]
        needed = [profile.betas[kind] for kind in kinds if kind in profile.betas]
        return {BETA: ",".join(dict.fromkeys([*known, *needed]))} if needed else {}


BETA = "anthropic-beta"
COMPACT, SUMMARIZE = "compact_20260112", "summarize"


class GeminiBackend(HttpBackend):
    """A model service with generateContent: the Gemini API, or Vertex AI with project and location in `base_url`.

    Thoughts, their signatures and the parts of Google's own tools go back to the model that made them, in the same place.
    """

    wire = "gemini"
    _format = gemini
    _parser_class = gemini.GeminiParser
    _counted = frozenset({"contents", "systemInstruction", "tools"})
    default_provider = "gemini"

    def to_request_messages(
        self, messages: Sequence[Message], *, model: str | None = None, refused_before: int = 0
    ) -> list[dict[str, Any]]:
        """Returns the messages as contents, without the leading system prompts, which have a field of their own."""
        name, profile = model or self.model, self._profile_for(model)
        return gemini.project(profile, messages, model=name, refused_before=refused_before).contents


class _Settings(TypedDict, total=False):
    """The settings that all HTTP backends share and that nothing here looks at."""

    timeout_s: float | None
    idle_timeout_s: float | None
    connect_timeout_s: float
    max_retries: int
    retry: Retry | None
    http_client: httpx.Client | None
    async_http_client: httpx.AsyncClient | None
    thinking: bool | str | None
    ids: Ids | None


class BedrockBackend(HttpBackend):
    """Models on Amazon Bedrock by the Converse API.

    With an API key (`api_key`, AWS_BEARER_TOKEN_BEDROCK, or an `authorization` header) requests carry it as a bearer token.
    Without one, botocore signs them with the credentials that it finds; that needs the extra `bedrock`. `region` defaults to
    AWS_REGION, then AWS_DEFAULT_REGION. `model` is the id of a model or an inference profile, or its ARN.
    `extra` may set other fields of the body, and in `tools` the service's own tools, such as `{"systemTool": {"name": ...}}`.
    """

    wire = "bedrock_converse"
    _format = converse
    _parser_class = ConverseParser
    default_provider = "bedrock"
    stream_type = "application/vnd.amazon.eventstream"

    @unpacked
    def __init__(
        self,
        *,
        model: str,
        region: str | None = None,
        provider: str | None = None,
        base_url: str | None = None,
        api_key: str | SecretStr | None = None,
        headers: Mapping[str, str] | None = None,
        profile: Profile | Mapping[str, Any] | str | Path | None = None,
        **settings: Unpack[_Settings],
    ) -> None:
        row = load_profile((provider or self.default_provider) if profile is None else profile).for_wire(self.wire)
        region = region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or None
        if region and not re.fullmatch(r"[a-z0-9-]+", region):
            raise ConfigError(f"region {region[:40]!r} is not the name of an AWS region: {_SET_REGION}")
        has_key = api_key is not None or bool(row.key_env and os.environ.get(row.key_env))
        has_key = has_key or "authorization" in map(str.lower, headers or {})
        if region is None and not has_key:
            raise ConfigError(f"requests to Bedrock without an API key are signed for a region: {_SET_REGION}")
        self._signer = None if has_key else Signer(region or "")
        if "{region}" in row.base_url and not base_url:
            if region is None:
                raise ConfigError(f"the region of Bedrock is not known: {_SET_REGION}, or give base_url")
            base_url = row.base_url.replace("{region}", region)
        super().__init__(
            model=model,
            base_url=base_url or row.base_url,
            api_key=api_key,
            headers=headers,
            # a request that is signed has no key
            profile=row if self._signer is None else row.model_copy(update={"key_env": None}),
            **settings,
        )
        self._sign = self._signer

    def to_request_messages(
        self, messages: Sequence[Message], *, model: str | None = None, unbound_before: int = 0
    ) -> list[dict[str, Any]]:
        """Returns the messages in the form of requests, without system prompts, which have a field of their own."""
        name, profile = model or self.model, self._profile_for(model)
        return converse.project(profile, messages, model=name, unbound_before=unbound_before).rows

    def _hide(self, text: str) -> str:
        hidden = super()._hide(text)
        return hidden if self._signer is None else self._signer.hide(hidden)


_SET_REGION = "give region='us-east-1' or another one, or set AWS_REGION"


SERVICE = "bedrock"  # and not the host's bedrock-runtime
_SIGNED = "AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders={names}, Signature={signature}"


def _botocore(module: str) -> Any:
    """Imports a module of botocore, which has no types."""
    return import_module(f"botocore.{module}")


def _now() -> datetime:
    return datetime.now(UTC)


class Signer:
    """Makes the headers that authorise a request by Signature Version 4, with the credentials that botocore finds.

    Those are, in this order: environment variables, shared files with their profiles and sign-ons, and the roles of a container
    or machine. They are looked up with the first request, and refreshed when they expire.
    """

    def __init__(self, region: str, *, now: Callable[[], datetime] = _now) -> None:
        if find_spec("botocore") is None:
            raise ConfigError(
                "requests to Bedrock without an API key are signed by botocore, which is not installed: "
                "pip install 'ctxfold[bedrock]', or set AWS_BEARER_TOKEN_BEDROCK"
            )
        self._region = region
        self._now = now
        self._credentials: Any = None

    def __repr__(self) -> str:
        return f"Signer(region={self._region!r})"

    def __call__(self, request: Open) -> Mapping[str, str]:
        """Returns the headers of one attempt; raises ConfigError without credentials, BackendError("auth") for unusable ones."""
        auth_module, request_module = _botocore("auth"), _botocore("awsrequest")
        credentials = self._frozen()
        headers = {"content-type": request.headers["content-type"]}
        headers["x-amz-date"] = stamp = self._now().strftime("%Y%m%dT%H%M%SZ")
        if credentials.token:
            headers["x-amz-security-token"] = credentials.token
        signed = request_module.AWSRequest("POST", request.url, headers=headers, data=request.body)
        signed.context["timestamp"] = stamp
        auth = auth_module.SigV4Auth(credentials, SERVICE, self._region)
        text = auth.string_to_sign(signed, auth.canonical_request(signed))
        names = auth.signed_headers(auth.headers_to_sign(signed))
        headers["authorization"] = _SIGNED.format(
            scope=auth.scope(signed), names=names, signature=auth.signature(text, signed)
        )
        return headers

    def hide(self, text: str) -> str:
        """Returns the text without the credentials."""
        known = self._credentials
        for secret in () if known is None else (known.secret_key, known.token, known.access_key):
            text = text.replace(secret, "**********") if secret else text
        return text

    def _frozen(self) -> Any:
        try:
            if self._credentials is None:
                self._credentials = _botocore("session").get_session().get_credentials()
            credentials = self._credentials
            if credentials is not None:
                return credentials.get_frozen_credentials()
        except _botocore("exceptions").BotoCoreError as error:
            raise BackendError(
                f"the AWS credentials cannot be used ({type(error).__name__}): sign on again, or set AWS_BEARER_TOKEN_BEDROCK",
                kind="auth",
            ) from error
        raise ConfigError(
            "no AWS credentials were found: set AWS_BEARER_TOKEN_BEDROCK, pass api_key=, or configure them as for the AWS CLI"
        )


BACKENDS: Mapping[Wire, type[HttpBackend]] = {
    "anthropic_messages": AnthropicBackend,
    "bedrock_converse": BedrockBackend,
    "gemini": GeminiBackend,
    "openai_chat": OpenAIChatBackend,
    "openai_responses": OpenAIResponsesBackend,
}

if TYPE_CHECKING:
    _backends: Sequence[type[ContextBackend]] = tuple(BACKENDS.values())
