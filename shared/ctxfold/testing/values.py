"""JSON values of unknown shape, read without surprises."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast


def as_mapping(value: Any) -> Mapping[str, Any]:
    """The value if it is an object, else an empty one."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def as_list(value: Any) -> list[Any]:
    """The value if it is an array, else an empty one."""
    return list(cast("Any", value)) if isinstance(value, (list, tuple)) else []


def calls_of(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """A message's tool calls; what is no object among them is an empty one."""
    return [as_mapping(call) for call in as_list(message.get("tool_calls"))]
