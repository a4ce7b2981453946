"""Checks arguments of public calls and raises ConfigError with the accepted values."""

from __future__ import annotations

import inspect
import json
import math
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from inspect import Parameter
from operator import index
from types import FrameType
from typing import Any, TypeVar, cast

from ctxfold.errors import ConfigError, CtxWarning
from ctxfold.lru import lazy_pattern

K = TypeVar("K", bound=tuple[str, str])
T = TypeVar("T")
# objects and lists within each other; readers of services stop at 64 to 512, Python's at its own stack
MAX_JSON_DEPTH = 200
FRAME_DEPTH = 10  # of a request around a part of it
_NOT_THE_CALLER = ("ctxfold", "langchain_ctx", "langchain_core", "llamaindex_ctx")
_BRACKETS = lazy_pattern(r'"(?:[^"\\]++|\\.)*+"|[\[\]{}]', re.DOTALL)
_SURROGATE = lazy_pattern(r"\\u[dD][89a-fA-F]")
_SECRET_QUERY = lazy_pattern(
    r"((?:^|[?&;])(?=[^=&;]*(?:key|token|secret|sig|pass|pwd|auth|cred))[^=&;]++)=[^&;#]*", re.IGNORECASE
)


def kind_of(value: object) -> str:
    """Returns the type of a value in words. The value itself is left out, because it may be a key or a password."""
    if value is None:
        return "None"
    name = value.__name__ if isinstance(value, type) else type(value).__name__
    article = "an" if name[:1].lower() in "aeiou" else "a"
    return f"the class {name}" if isinstance(value, type) else f"{article} {name}"


def is_a(value: object, kinds: type | tuple[type, ...]) -> bool:
    """Returns `isinstance`, for values whose annotation already promises the type: callers may not run a type checker."""
    return isinstance(value, kinds)


def check_has(what: str, value: object, methods: tuple[str, ...], advice: str) -> None:
    """Raises ConfigError unless the value is an instance with at least one of the methods; a test double may have only one."""
    if isinstance(value, type) or not any(callable(getattr(value, name, None)) for name in methods):
        raise ConfigError(f"{what} is {kind_of(value)}: {advice}")


def all_of(what: str, values: Iterable[T], kind: type, advice: str) -> tuple[T, ...]:
    """Returns the values as a tuple; raises ConfigError for anything but a list of values of that type."""
    # a pydantic object can be iterated over too, by its fields
    if not is_a(values, (Collection, Iterator)) or is_a(values, str):
        raise ConfigError(f"{what} is {kind_of(values)}: give a list; {advice}")
    checked = tuple(values)
    wrong = [value for value in checked if not is_a(value, kind)]
    if wrong:
        raise ConfigError(f"{what} hold {kind_of(wrong[0])}: {advice}")
    return checked


def check_text(what: str, value: object) -> None:
    if not isinstance(value, str):
        raise ConfigError(f"{what} is {kind_of(value)}: give it as text")


def check_name(what: str, name: object) -> str:
    """Returns the name of an owner or a session; raises ConfigError unless it is a string that is not empty."""
    check_text(f"the {what}", name)
    if not name:
        raise ConfigError(f"the {what} is empty, and all unnamed callers would share it: give each a name")
    return cast("str", name)


def name_path(*names: str) -> str:
    """Returns the names joined with `/`. A `/` or `%` within a name is percent-encoded, so that different names never collide."""
    return "/".join(name.replace("%", "%25").replace("/", "%2F") for name in names)


def name_or_own(what: str, name: object, own: str) -> str:
    """Returns `own` for None only: an empty name or a number is a mistake and must not reach the data of `own`."""
    return own if name is None else check_name(what, name)


def named(key: K) -> K:
    """Returns the key (owner, session) of a session to be made; raises ConfigError when one of the names is empty."""
    check_name("owner name", key[0])
    check_name("session name", key[1])
    return key


def check_depth(text: str, most: int = MAX_JSON_DEPTH) -> None:
    """Raises RecursionError for JSON text in which more than `most` objects and lists lie within each other."""
    if text.count("{") + text.count("[") <= most:
        return
    depth = 0
    for match in _BRACKETS.finditer(text):
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(match[0], 0)
        if depth > most:
            raise RecursionError


def read_json(text: str) -> Any:
    """Returns the value of JSON text as Python reads it; raises ValueError, or RecursionError where it is nested too deeply."""
    check_depth(text)
    return json.loads(text)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"JSON has no number {text[:40]}")
    return number


_read_strictly = json.JSONDecoder(parse_constant=_finite, parse_float=_finite).decode


def strict_json(text: str, most: int = MAX_JSON_DEPTH - FRAME_DEPTH) -> Any:
    """Returns the value of JSON text that every service reads; raises ValueError or RecursionError for any other text.

    At most `most` objects and lists may lie within each other: by default, so many that a request around them can be read too.

    Python's own reader also takes NaN, numbers beyond the range of floats, lone surrogates and any depth.
    """
    check_depth(text, most)
    value: object = _read_strictly(text)
    if _SURROGATE.search(text):
        json.dumps(value, ensure_ascii=False).encode()
    return value


def strict_text(value: object) -> str:
    """Returns what a service sent as JSON text that every service reads.

    A number that JSON does not have becomes null. Half of a surrogate pair becomes U+FFFD.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError:
        text = json.dumps(json.loads(json.dumps(value), parse_constant=lambda _: None), ensure_ascii=False)
    return repaired(text)


def repaired(text: str) -> str:
    """Returns the text with the halves of a surrogate pair joined that were sent apart, and U+FFFD for a half without its other."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def json_object(text: str | bytes, read: Callable[[str], Any] = read_json) -> dict[str, Any] | None:
    """Returns the object that JSON text holds; None for any other value and for text that is no JSON."""
    try:
        value: object = read(text if isinstance(text, str) else text.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def as_text(value: object) -> str:
    """Returns the value if it is text, else ""."""
    return value if isinstance(value, str) else ""


def as_dict(value: object) -> Mapping[str, Any]:
    """Returns the value if it is an object, else an empty object."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def as_list(value: object) -> list[object]:
    """Returns the value if it is a list, else an empty list."""
    return cast("list[object]", value) if isinstance(value, list) else []


def as_dicts(value: object) -> list[dict[str, Any]]:
    """Returns the objects in a list; an empty list for anything else."""
    return [cast("dict[str, Any]", item) for item in as_list(value) if isinstance(item, dict)]


def json_problem(error: Exception) -> str:
    """Returns the reason why JSON text could not be read or written, for an error message."""
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)


def whole_number(what: str, value: object, advice: str) -> int:
    """Returns a whole number of 1 or more; raises ConfigError for anything else, a number as a string included."""
    try:
        number = int(value) if isinstance(value, float) and value.is_integer() else index(value)  # type: ignore[arg-type]
    except TypeError:
        number = 0
    if number < 1 or isinstance(value, bool):
        raise ConfigError(f"{what} is {repr(value)[:80]}: {advice}")
    return number


def moment(what: str, value: object, now_s: float) -> float:
    """Returns a datetime, or how long ago as a timedelta, in Unix time; raises ConfigError for anything else."""
    if isinstance(value, timedelta):
        if value < timedelta(0):
            raise ConfigError(
                f"{what} {value} lies in the future: give how long ago a message was stored, such as timedelta(days=30)"
            )
        return now_s - value.total_seconds()
    if not isinstance(value, datetime):
        raise ConfigError(f"{what} is {kind_of(value)}: give timedelta(days=30), or a datetime with a time zone")
    if value.tzinfo is None:
        raise ConfigError(f"{what} {value.isoformat()} has no time zone: give datetime(..., tzinfo=...)")
    return value.timestamp()


def shown_url(url: str) -> str:
    """Returns a URL without secrets: no user and password, and no values of query fields that name a credential."""
    start, end = url.find("//"), url.rfind("@")
    plain = url[: start + 2] + url[end + 1 :] if 0 <= start < end else url
    address, mark, query = plain.partition("?")
    return address + mark + _SECRET_QUERY.sub(r"\1=", query)


def warn_caller(message: str) -> None:
    """Warns at the line outside the packages and LangChain's core that led here, however many calls lie between."""
    level = 1
    frame: FrameType | None = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _NOT_THE_CALLER:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, CtxWarning, stacklevel=level)


def unpacked(function: T) -> T:
    """Gives a function with `**settings: Unpack[...]` a signature that names each of them, for `help` and completion.

    One that is not given is shown as `Ellipsis`. Other functions are returned as they are.
    """
    called: Any = function
    if kinds := [hint[7:-1] for hint in called.__annotations__.values() if hint.startswith("Unpack[")]:
        hints, signature = called.__globals__[kinds[0]].__annotations__, inspect.signature(called)
        *others, rest = signature.parameters.values()
        shown = [Parameter(n, rest.KEYWORD_ONLY, default=..., annotation=h.__forward_arg__) for n, h in hints.items()]
        called.__signature__ = signature.replace(parameters=[*others, *shown])
    return function
