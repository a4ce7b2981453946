"""Classifies failures of providers and of other libraries' clients as BackendError, by the rules of a profile."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, cast

from ctxfold.backends.profile import ErrorRule, Profile, common_rules, load_profile
from ctxfold.errors import BackendError
from ctxfold.lru import lazy_pattern
from ctxfold.validation import as_dict, as_dicts

MAX_MESSAGE_CHARS = 2000
MATCHED_CHARS = 8 * MAX_MESSAGE_CHARS  # length of a provider's text that rules are matched against
_MARKUP = lazy_pattern(r"<[a-zA-Z!/][^<>]*>")  # no "<" inside, so that unclosed tags are not scanned again and again


@dataclass(frozen=True, slots=True)
class _ErrorFields:
    """The fields of an error object; rules match all of `codes` and `types`. `status` is an HTTP status that it repeats."""

    message: str = ""
    code: str | None = None
    codes: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    detail: str = ""
    status: int | None = None
    retry_after_s: float | None = None


def error_body(payload: object) -> Mapping[str, Any] | None:
    """Returns the error object of a payload, in any of the known shapes; None when the payload is not an error."""
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
    """Returns the typed error of an error object; `status` is None for one that came with HTTP 200."""
    fields = _read(error)
    rule, match = _first_rule(profile, fields, status)
    kind = rule.kind if rule is not None else "server"
    groups = match.groupdict() if match is not None else {}
    translated = plain_failure(
        profile,
        kind,
        fields.message or "no message",
        status=status,
        code=fields.code,
        retry_after_s=fields.retry_after_s if retry_after_s is None else retry_after_s,
        hide=hide,
    )
    if kind == "context_overflow":
        requested = _number(groups.get("requested")) or _number(error.get("n_prompt_tokens"))
        reply = _number(groups.get("reply"))
        translated.requested_tokens = requested + reply if requested is not None and reply is not None else requested
        translated.limit_tokens = _number(groups.get("limit")) or _number(error.get("n_ctx"))
        # what the service has named "completion" it has counted in `requested`
        translated.reply_tokens = reply or _number(groups.get("completion"))
    return translated


def http_failure(
    profile: Profile,
    status: int,
    body: bytes,
    *,
    name: str | None = None,
    retry_after_s: float | None = None,
    hide: Callable[[str], str] = str,
) -> BackendError:
    """Returns the typed error of an unsuccessful response, whatever its content type says; `name` is its code if it has none."""
    if status < 400:
        return plain_failure(
            profile, "protocol", "a redirect or another status without a reply", status=status, hide=hide
        )
    try:
        payload: object = json.loads(body)
    except (ValueError, RecursionError):  # HTML of a proxy, or plain text
        text = body[:MAX_MESSAGE_CHARS].decode("utf-8", "replace").strip()
        payload = None if _MARKUP.search(text) else {"message": text}
    error = error_body(payload) or as_dict(payload)
    if not error and not isinstance(payload, dict):
        error = {"message": f"a body of {len(body)} bytes that is not JSON"}
    if name and not error.get("code"):
        error = {**error, "code": name}
    return failure(profile, error, status=status, retry_after_s=retry_after_s, hide=hide)


def plain_failure(
    profile: Profile,
    kind: str,
    what: str,
    *,
    status: int | None = None,
    code: str | None = None,
    retry_after_s: float | None = None,
    hide: Callable[[str], str] = str,
) -> BackendError:
    """Returns a BackendError of a known kind, with provider, status and advice in its message; `hide` removes secrets."""
    text = _MARKUP.sub("", what[:MATCHED_CHARS])[:MAX_MESSAGE_CHARS].rstrip(" .")
    http = f"HTTP {status}, " if status is not None else ""
    advice = common_rules().advice.get(kind)
    if kind == "auth" and profile.key_env:
        advice = f"check the API key (api_key= or {profile.key_env})"
    return BackendError(
        hide(f"{profile.name} ({http}{kind}): {text}" + (f": {advice}" if advice else "")),
        kind=kind,
        retryable=kind in common_rules().retryable,
        status=status,
        code=code,
        retry_after_s=retry_after_s,
    )


def _read(error: Mapping[str, Any]) -> _ErrorFields:
    message: object = error.get("message")
    if message is None:
        message = error.get("Message") or error.get("detail") or ""
    code = error.get("code")
    kind = error.get("type")
    inner = as_dict(error.get("metadata"))
    finer = inner.get("error_type")
    code_text = None if code is None or code == "" else str(code)
    status = int(code_text) if code_text is not None and re.fullmatch(r"[45]\d\d", code_text) else None
    named = error.get("status")
    if status is not None and isinstance(named, str) and named:
        code_text = named  # Google repeats the HTTP status as the code, and names the error here
    # those of a Google error: reasons and the ids of exhausted quotas, for the rules to match, and a delay
    details = as_dicts(error.get("details"))
    named_ids = ((d.get("reason"), *(v.get("quotaId") for v in as_dicts(d.get("violations")))) for d in details)
    delays = [re.fullmatch(r"(\d{1,6}(?:\.\d{1,9})?)s", str(d.get("retryDelay"))) for d in details]
    return _ErrorFields(
        message=message if isinstance(message, str) else json.dumps(message, ensure_ascii=False),
        code=code_text,
        codes=tuple(str(c) for c in (code_text, finer) if c),
        types=tuple(str(t) for t in (kind, finer) if t),
        detail=str(inner.get("raw") or " ".join(str(name) for names in named_ids for name in names if name)),
        status=status,
        retry_after_s=next((float(delay[1]) for delay in reversed(delays) if delay is not None), None),
    )


def _first_rule(
    profile: Profile, fields: _ErrorFields, status: int | None
) -> tuple[ErrorRule | None, re.Match[str] | None]:
    text = f"{fields.message[:MATCHED_CHARS]} {fields.detail[:MATCHED_CHARS]}".rstrip()
    if status is None:
        status = fields.status  # in a stream only the code carries the status
    for rule in (*profile.errors, *common_rules().error_rules):
        if (rule.code or rule.type) and not (set(rule.code) & set(fields.codes) or set(rule.type) & set(fields.types)):
            continue
        ranges = [(entry, entry) if isinstance(entry, int) else entry for entry in rule.status]
        if ranges and not (status is not None and any(first <= status <= last for first, last in ranges)):
            continue
        if rule.message is None:
            return rule, None
        match = re.search(rule.message, text, re.IGNORECASE | re.DOTALL)
        if match is not None:
            return rule, match
    return None, None


def _number(value: object) -> int | None:
    if isinstance(value, bool) or value is None:
        return None
    try:
        return int(str(value).replace(",", ""))
    except ValueError:
        return None


def foreign_failure(error: Exception, name: str, *, kind: str | None = None) -> BackendError:
    """Translates an exception of another library's client; a BackendError, also as its cause, is returned unchanged.

    Status, body and headers are read from the exception if it has them; `kind` applies when they do not classify the error.
    """
    for candidate in (error, error.__cause__):
        if isinstance(candidate, BackendError):
            return candidate
    profile = load_profile("generic").model_copy(update={"name": name})
    status: object = getattr(error, "status_code", None)
    if isinstance(status, int) and status >= 400:
        body: object = getattr(error, "body", None)
        fields = cast("Mapping[str, Any]", body) if isinstance(body, Mapping) else {"message": str(error)}
        sent = json.dumps(fields if "error" in fields else {"error": dict(fields)}, default=str).encode()
        classified = http_failure(profile, status, sent, retry_after_s=retry_after_s(_headers(error), time.time()))
        if kind is None or classified.kind not in ("server", "rejected"):
            return classified
        return _plain(profile, kind, error, status)
    classified = failure(profile, {"message": str(error)})
    # boto3 and Google's clients have no status where others have it
    if classified.kind in ("context_overflow", "reasoning_replay"):
        return classified
    names = {c.__name__ for c in type(error).__mro__}
    known = (known for name, known in common_rules().client_errors.items() if name in names)
    return _plain(profile, kind or next(known, "server"), error, None)


def _plain(profile: Profile, kind: str, error: Exception, status: int | None) -> BackendError:
    return plain_failure(profile, kind, f"{type(error).__name__}: {error}", status=status)


def _headers(error: Exception) -> Mapping[str, str]:
    headers: object = getattr(getattr(error, "response", None), "headers", None)
    if not isinstance(headers, Mapping):
        return {}
    return {str(k).lower(): str(v) for k, v in cast("Mapping[object, object]", headers).items()}


def retry_after_s(headers: Mapping[str, str], now_s: float) -> float | None:
    """Returns the seconds of `retry-after-ms` or else `Retry-After` (seconds or a date); header names in lower case."""
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            value = float(headers[name]) * scale
        except (KeyError, ValueError):
            continue
        if 0 <= value < float("inf"):
            return value
    try:
        return max(0.0, parsedate_to_datetime(headers["retry-after"]).timestamp() - now_s)
    except (KeyError, ValueError):
        return None
