"""Lays a class over a framework's model, so that the model sends reasoning back with the answers it belongs to."""

from __future__ import annotations

from functools import lru_cache
from types import new_class
from typing import Any, Literal, TypeAlias, TypeVar, cast

from ctxfold.errors import ConfigError

__all__ = ["Replay", "no_replay", "replaying"]

M = TypeVar("M")
Replay: TypeAlias = Literal["sends", "helped", "unknown"]


def replaying(model: M, mixin: type) -> M:
    """Returns a copy of a pydantic model whose class inherits from the mixin first; it shares the model's connections."""
    original: Any = model
    copy = original.model_copy()
    object.__setattr__(copy, "__class__", _replaying_class(mixin, original.__class__))
    return cast("M", copy)


@lru_cache(maxsize=64)
def _replaying_class(mixin: type, cls: type) -> type:
    def body(namespace: dict[str, Any]) -> None:
        namespace |= {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}

    return new_class(cls.__name__, (mixin, cls), exec_body=body)


def no_replay(model: str, own: str, others: str) -> ConfigError:
    """Returns the error for a class of model that cannot send reasoning back, with what to use in its place."""
    return ConfigError(
        f"{model} gives no way to send reasoning back, and a thinking service with tools refuses a conversation without it: "
        f"use {own} in place of {model}, or {others}"
    )
