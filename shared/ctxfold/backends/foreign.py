"""Failures of other libraries' model clients, told apart by the same rules as our own wire's."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, cast

from ctxfold.backends.failures import http_failure, plain_failure
from ctxfold.backends.profile import Profile, load_profile
from ctxfold.backends.retry import retry_after_s
from ctxfold.errors import BackendError

__all__ = ["foreign_failure"]

# class names that the clients in use share (openai, anthropic, httpx, requests, Python itself)
_BY_NAME: tuple[tuple[str, str], ...] = (
    ("APITimeoutError", "timeout"),
    ("TimeoutException", "timeout"),
    ("TimeoutError", "timeout"),
    ("Timeout", "timeout"),
    ("APIConnectionError", "connect"),
    ("ConnectError", "connect"),
    ("ConnectionError", "connect"),
    ("NetworkError", "connection"),
    ("RemoteProtocolError", "connection"),
)


def foreign_failure(error: Exception, name: str, *, kind: str | None = None) -> BackendError:
    """The typed error for what a foreign client raised; one of ours, or the one behind it, is returned as it is.

    Status, body and headers are read where the exception carries them; `kind` is what its class says where they tell nothing.
    """
    for known in (error, error.__cause__):
        if isinstance(known, BackendError):
            return known
    profile = load_profile("generic").model_copy(update={"name": name})
    status: object = getattr(error, "status_code", None)
    if isinstance(status, int) and status >= 400:
        found = http_failure(profile, status, _body(error), retry_after_s=retry_after_s(_headers(error), time.time()))
        if kind is None or found.kind not in ("server", "rejected"):
            return found
        return _plain(profile, kind, error, status)
    names = {c.__name__ for c in type(error).__mro__}
    return _plain(profile, kind or next((k for n, k in _BY_NAME if n in names), "server"), error, None)


def _plain(profile: Profile, kind: str, error: Exception, status: int | None) -> BackendError:
    return plain_failure(profile, kind, f"{type(error).__name__}: {error}", status=status)


def _body(error: Exception) -> bytes:
    """The error object as the service sent it; clients unwrap it, so its message is taken from the exception else."""
    body: object = getattr(error, "body", None)
    fields = cast("Mapping[str, Any]", body) if isinstance(body, Mapping) else {"message": str(error)}
    return json.dumps(fields if "error" in fields else {"error": dict(fields)}, default=str).encode()


def _headers(error: Exception) -> Mapping[str, str]:
    found: object = getattr(getattr(error, "response", None), "headers", None)
    if not isinstance(found, Mapping):
        return {}
    return {str(k).lower(): str(v) for k, v in cast("Mapping[object, object]", found).items()}
