"""The keyword arguments of `send`, typed once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypedDict

from ctxfold.messages import ToolSpec

__all__ = ["RequestOptions"]


class RequestOptions(TypedDict, total=False):
    """See `ctxfold.exchange.Options`."""

    max_tokens: int | None
    temperature: float | None
    stop: tuple[str, ...]
    tools: tuple[ToolSpec, ...]
    tool_choice: str | None
    thinking: bool | str | None
    model: str | None
    scratch: str | None
    recall: bool
    auto_compact: bool | None
    on_abort: Literal["discard", "keep_partial"]
    extra: Mapping[str, Any]
