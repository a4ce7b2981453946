"""What a user hands in, looked at before it is taken: a wrong thing is told at once, with what to give in its place."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from operator import index
from typing import TypeVar, cast

from ctxfold.errors import ConfigError

__all__ = [
    "all_of",
    "check_has",
    "check_name",
    "check_text",
    "is_a",
    "json_problem",
    "kind_of",
    "name_or_own",
    "name_path",
    "named",
    "shown_url",
    "whole_number",
]

K = TypeVar("K", bound=tuple[str, str])
T = TypeVar("T")
_SECRET_QUERY = re.compile(
    r"((?:^|[?&;])(?=[^=&;]*(?:key|token|secret|sig|pass|pwd|auth|cred))[^=&;]++)=[^&;#]*", re.IGNORECASE
)


def kind_of(given: object) -> str:
    """What it is, in words, without what it says: that may be a key or a password."""
    if given is None:
        return "None"
    name = given.__name__ if isinstance(given, type) else type(given).__name__
    article = "an" if name[:1].lower() in "aeiou" else "a"
    return f"the class {name}" if isinstance(given, type) else f"{article} {name}"


def is_a(given: object, kinds: type | tuple[type, ...]) -> bool:
    """Whether it is what its annotation says: a caller's own type checker may never have looked."""
    return isinstance(given, kinds)


def check_has(what: str, given: object, methods: tuple[str, ...], advice: str) -> None:
    """ConfigError unless it is an object, no class, with one of these methods at least: tests give parts of a thing."""
    if isinstance(given, type) or not any(callable(getattr(given, name, None)) for name in methods):
        raise ConfigError(f"{what} is {kind_of(given)}: {advice}")


def all_of(what: str, given: Iterable[T], kind: type, advice: str) -> tuple[T, ...]:
    """What is in the list, once it is one and all in it are of that kind; ConfigError otherwise."""
    # a pydantic object can be iterated over too, by its fields
    if not is_a(given, (Collection, Iterator)) or is_a(given, str):
        raise ConfigError(f"{what} is {kind_of(given)}: give a list; {advice}")
    found = tuple(given)
    wrong = [one for one in found if not is_a(one, kind)]
    if wrong:
        raise ConfigError(f"{what} hold {kind_of(wrong[0])}: {advice}")
    return found


def check_text(what: str, given: object) -> None:
    if not isinstance(given, str):
        raise ConfigError(f"{what} is {kind_of(given)}: give it as text")


def check_name(what: str, name: object) -> str:
    """Returns the name of an owner or a session; ConfigError unless it is a string that is not empty."""
    check_text(f"the {what}", name)
    if not name:
        raise ConfigError(f"the {what} is empty, and whoever has no name would share it: give one to each")
    return cast("str", name)


def name_path(*names: str) -> str:
    """Returns the names joined with `/`. A `/` or `%` within a name is percent-encoded: other names never give the same path."""
    return "/".join(name.replace("%", "%25").replace("/", "%2F") for name in names)


def name_or_own(what: str, name: object, own: str) -> str:
    """Returns `own` for None alone: an empty name or a number is a mistake, and must not reach what belongs to `own`."""
    return own if name is None else check_name(what, name)


def named(key: K) -> K:
    """The key of a session that is to be made, owner and name; ConfigError for an empty one."""
    check_name("owner name", key[0])
    check_name("session name", key[1])
    return key


def json_problem(error: Exception) -> str:
    """Returns why JSON text could not be read or written, in words for an error message."""
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)


def whole_number(what: str, given: object, advice: str) -> int:
    """The number, of 1 or more; ConfigError for anything else, a number in quotation marks included."""
    try:
        number = int(given) if isinstance(given, float) and given.is_integer() else index(given)  # type: ignore[arg-type]
    except TypeError:
        number = 0
    if number < 1 or isinstance(given, bool):
        raise ConfigError(f"{what} is {repr(given)[:80]}: {advice}")
    return number


def shown_url(url: str) -> str:
    """The address without the secrets in it: no user and password, no values of query fields that name a credential."""
    start, end = url.find("//"), url.rfind("@")
    plain = url[: start + 2] + url[end + 1 :] if 0 <= start < end else url
    address, mark, query = plain.partition("?")
    return address + mark + _SECRET_QUERY.sub(r"\1=", query)
