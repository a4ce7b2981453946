"""Holds the deprecated names and keywords of the package; release 2.0 drops them."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from ctxfold.errors import ConfigError

RELEASE = "2.0"

# public names: the old one and the one that replaces it
NAMES: Mapping[str, str] = {"Case": "CompactionInput", "Hold": "Skip"}

# keywords of constructors: the old one and the one that replaces it
KEYWORDS: Mapping[str, str] = {"max_tokens": "reply_reserve_tokens", "session": "session_id"}

F = TypeVar("F", bound=Callable[..., Any])


def current_name(name: str) -> str | None:
    """Returns the name that replaces a deprecated public name, with a DeprecationWarning; None for any other name.

    For the `__getattr__` of the package: the warning points at the line that uses the old name.
    """
    current = NAMES.get(name)
    if current is not None:
        warnings.warn(
            f"ctxfold.{name} is now ctxfold.{current}; the old name will be removed in release {RELEASE}",
            DeprecationWarning,
            stacklevel=3,
        )
    return current


def warn_renamed(old: str, new: str, *, stacklevel: int = 3) -> None:
    """Warns, at the caller of the function that calls this one, that it uses an old attribute or value."""
    warnings.warn(
        f"{old} is now {new}; the old one will be removed in release {RELEASE}",
        DeprecationWarning,
        stacklevel=stacklevel,
    )


def renamed_keywords(keywords: Mapping[str, str]) -> Callable[[F], F]:
    """Makes a function take old keywords under their new names, with a DeprecationWarning.

    Type checkers see only the new keywords. ConfigError when a call gives the old keyword and the new one.
    """

    def decorated(function: F) -> F:
        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            for old in keywords.keys() & kwargs.keys():
                new = keywords[old]
                if new in kwargs:
                    raise ConfigError(f"{old} and {new} are the same setting: give {new} alone")
                warnings.warn(
                    f"the keyword {old} is now {new}; the old one will be removed in release {RELEASE}",
                    DeprecationWarning,
                    stacklevel=2,
                )
                kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        return cast("F", called)

    return decorated
