"""Implements the backend for Amazon Bedrock's Converse and ConverseStream."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from pydantic import SecretStr

from ctxfold.backends.converse.parse import ConverseParser
from ctxfold.backends.converse.request import project, request_body, tool_body
from ctxfold.backends.http_backend import HttpBackend
from ctxfold.backends.profile import Profile, block_lines, load_profile
from ctxfold.errors import ConfigError
from ctxfold.messages import Message
from ctxfold.protocols import ContextBackend, Ids, Request

if TYPE_CHECKING:
    import httpx

    from ctxfold.backends.converse.signing import Signer
    from ctxfold.backends.transport import Retry


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
    _parser_class = ConverseParser
    default_provider = "bedrock"
    stream_type = "application/vnd.amazon.eventstream"

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
        region = _checked(region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"))
        has_key = api_key is not None or bool(row.key_env and os.environ.get(row.key_env))
        self._signer = None if has_key or "authorization" in map(str.lower, headers or {}) else _signer(region)
        super().__init__(
            model=model,
            base_url=base_url or _regional(row, region),
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
        name = model or self.model
        return project(self._profile_for(name), messages, model=name, unbound_before=unbound_before).rows

    def _canonical_lines(self, profile: Profile, request: Request, *, model: str) -> bytes:
        projected = project(profile, request.messages, model=model, unbound_before=request.unbound_before)
        rows = ((row["role"], row["content"]) for row in projected.rows)
        return block_lines(map(tool_body, request.tools), projected.system, rows)

    def _body(self, profile: Profile, request: Request, *, model: str, stream: bool) -> dict[str, Any]:
        return request_body(profile, request, model=model)

    def _hide(self, text: str) -> str:
        hidden = super()._hide(text)
        return hidden if self._signer is None else self._signer.hide(hidden)


def _checked(region: str | None) -> str | None:
    if region and not re.fullmatch(r"[a-z0-9-]+", region):
        raise ConfigError(f"region {region[:40]!r} is not the name of an AWS region: {_SET_REGION}")
    return region or None


def _signer(region: str | None) -> Signer:
    from ctxfold.backends.converse.signing import Signer

    if region is None:
        raise ConfigError(f"requests to Bedrock without an API key are signed for a region: {_SET_REGION}")
    return Signer(region)


def _regional(row: Profile, region: str | None) -> str:
    if "{region}" not in row.base_url:
        return row.base_url
    if region is None:
        raise ConfigError(f"the region of Bedrock is not known: {_SET_REGION}, or give base_url")
    return row.base_url.replace("{region}", region)


_SET_REGION = "give region='us-east-1' or another one, or set AWS_REGION"

if TYPE_CHECKING:
    _: ContextBackend = BedrockBackend(model="m")
