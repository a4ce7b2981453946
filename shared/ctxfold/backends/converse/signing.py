"""Signs requests to AWS with botocore; the only module that imports it, and only once a request is to be signed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from ctxfold.backends.transport import Open
from ctxfold.errors import BackendError, ConfigError

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
