"""What a provider says when it fails, told apart by rules and turned into one typed error."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from ctxfold.backends.profile import ErrorRule, Profile, common_rules
from ctxfold.errors import BackendError

__all__ = ["error_body", "failure", "http_failure", "plain_failure"]

MAX_MESSAGE_CHARS = 2000
MATCHED_CHARS = 8 * MAX_MESSAGE_CHARS  # of what a provider says, by the rules
_ADVICE: Mapping[str, str] = {
    "auth": "check the API key: api_key=, or the provider's environment variable",
    "connect": "is the server running, and are provider and base_url right?",
    "connection": "try again, and check base_url if it stays",
    "content_filter": "change the content",
    "context_overflow": "send less, or set context_window to what the model allows",
    "empty_response": "try again",
    "overloaded": "try again later",
    "protocol": "check base_url and provider",
    "quota": "the account is empty, waiting does not help",
    "rate_limit": "wait, or send fewer requests",
    "reasoning_replay": "the profile row must send reasoning back (reasoning_out)",
    "rejected": "correct the request",
    "server": "try again later",
    "stream_truncated": "try again",
    "timeout": "raise the timeout, or try again",
    "unavailable": "try again later",
}
_MARKUP = re.compile(r"<[a-zA-Z!/][^<>]*>")  # no "<" inside, so that unclosed tags are not scanned again and again


@dataclass(frozen=True, slots=True)
class _Said:
    """An error object read field by field; `codes` and `types` are all that rules may match."""

    message: str = ""
    code: str | None = None
    codes: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    detail: str = ""
    limit: int | None = None
    requested: int | None = None


def error_body(payload: object) -> Mapping[str, Any] | None:
    """The error object inside a payload of any of the shapes in use; None when the payload is no error."""
    while isinstance(payload, list) and payload:
        payload = cast("list[object]", payload)[0]
    if not isinstance(payload, dict):
        return None
    body = cast("dict[str, Any]", payload)
    error = body.get("error")
    if isinstance(error, dict) and error:
        return cast("dict[str, Any]", error)
    if isinstance(error, str) and error:
        return {**body, "message": body.get("message") or error}
    if "choices" in body:
        return None
    if "message" in body and (error or "code" in body or "type" in body or body.get("object") == "error"):
        return body
    if body.get("detail") and "object" not in body:
        return {"message": body["detail"]}
    return None


def failure(
    profile: Profile,
    error: Mapping[str, Any],
    *,
    status: int | None = None,
    retry_after_s: float | None = None,
    hide: Callable[[str], str] = str,
) -> BackendError:
    """The typed error for an error object; `status` is None for one that came with HTTP 200."""
    said = _read(error)
    rule, match = _first_rule(profile, said, status)
    kind = rule.kind if rule is not None else "server"
    groups = match.groupdict() if match is not None else {}
    overflow = kind == "context_overflow"
    return plain_failure(
        profile,
        kind,
        said.message or "no message",
        status=status,
        code=said.code,
        limit_tokens=(_number(groups.get("limit")) or said.limit) if overflow else None,
        requested_tokens=(_number(groups.get("requested")) or said.requested) if overflow else None,
        retry_after_s=retry_after_s,
        hide=hide,
    )


def http_failure(
    profile: Profile,
    status: int,
    body: bytes,
    *,
    retry_after_s: float | None = None,
    hide: Callable[[str], str] = str,
) -> BackendError:
    """The typed error for a response whose status is no success, whatever its content type says."""
    if status < 400:
        return plain_failure(
            profile, "protocol", "a redirect or another status that is no answer", status=status, hide=hide
        )
    error: Mapping[str, Any] | None = None
    try:
        payload: object = json.loads(body)
        error = error_body(payload)
        if error is None and isinstance(payload, dict):
            error = cast("dict[str, Any]", payload)
    except (ValueError, RecursionError):  # HTML of a proxy, or plain text
        text = body[:MAX_MESSAGE_CHARS].decode("utf-8", "replace").strip()
        if not _MARKUP.search(text):
            error = {"message": text}
    if error is None:
        error = {"message": f"a body of {len(body)} bytes that is not JSON"}
    return failure(profile, error, status=status, retry_after_s=retry_after_s, hide=hide)


def plain_failure(
    profile: Profile,
    kind: str,
    what: str,
    *,
    status: int | None = None,
    code: str | None = None,
    limit_tokens: int | None = None,
    requested_tokens: int | None = None,
    retry_after_s: float | None = None,
    hide: Callable[[str], str] = str,
) -> BackendError:
    """A BackendError of a known kind, its message with provider, status and advice; `hide` takes secrets out."""
    text = _MARKUP.sub("", what[:MATCHED_CHARS])[:MAX_MESSAGE_CHARS].rstrip(" .")
    http = f"HTTP {status}, " if status is not None else ""
    advice = _ADVICE.get(kind)
    if kind == "auth" and profile.key_env:
        advice = f"check the API key (api_key= or {profile.key_env})"
    return BackendError(
        hide(f"{profile.name} ({http}{kind}): {text}" + (f": {advice}" if advice else "")),
        kind=kind,
        retryable=kind in common_rules().retryable,
        status=status,
        code=code,
        limit_tokens=limit_tokens,
        requested_tokens=requested_tokens,
        retry_after_s=retry_after_s,
    )


def _read(error: Mapping[str, Any]) -> _Said:
    message: object = error.get("message")
    if message is None:
        message = error.get("detail") or ""
    code = error.get("code")
    kind = error.get("type")
    metadata: object = error.get("metadata")
    inner = cast("dict[str, Any]", metadata) if isinstance(metadata, dict) else {}
    finer = inner.get("error_type")
    code_text = None if code is None or code == "" else str(code)
    return _Said(
        message=message if isinstance(message, str) else json.dumps(message, ensure_ascii=False),
        code=code_text,
        codes=tuple(str(c) for c in (code_text, finer) if c),
        types=tuple(str(t) for t in (kind, finer) if t),
        detail=str(inner.get("raw") or ""),
        limit=_number(error.get("n_ctx")),
        requested=_number(error.get("n_prompt_tokens")),
    )


def _first_rule(profile: Profile, said: _Said, status: int | None) -> tuple[ErrorRule | None, re.Match[str] | None]:
    text = f"{said.message[:MATCHED_CHARS]} {said.detail[:MATCHED_CHARS]}".rstrip()
    if status is None and said.code is not None and re.fullmatch(r"[45]\d\d", said.code):
        status = int(said.code)  # in a stream the code is all that tells the status
    for rule in (*profile.errors, *common_rules().error_rules):
        if (rule.code or rule.type) and not (set(rule.code) & set(said.codes) or set(rule.type) & set(said.types)):
            continue
        if rule.status and not any(_covers(entry, status) for entry in rule.status):
            continue
        if rule.message is None:
            return rule, None
        match = re.search(rule.message, text, re.IGNORECASE | re.DOTALL)
        if match is not None:
            return rule, match
    return None, None


def _covers(entry: int | tuple[int, int], status: int | None) -> bool:
    if status is None:
        return False
    return entry == status if isinstance(entry, int) else entry[0] <= status <= entry[1]


def _number(value: object) -> int | None:
    if isinstance(value, bool) or value is None:
        return None
    try:
        return int(str(value).replace(",", ""))
    except ValueError:
        return None
