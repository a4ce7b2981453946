"""The keyword arguments of `send`, typed once, and looked at before they are taken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Literal, TypedDict, get_args

from ctxfold.errors import ConfigError
from ctxfold.exchange import OnAbort, Options
from ctxfold.given import is_a, kind_of, whole_number
from ctxfold.messages import ToolSpec

__all__ = ["RequestOptions", "options_from"]


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
    context_window: int | None
    on_abort: Literal["discard", "keep_partial"]
    extra: Mapping[str, Any]


def options_from(given: Mapping[str, Any]) -> Options:
    """The options of one call, by name; ConfigError for one that is not known or cannot be meant. One stop text may stand alone."""
    known = [f.name for f in fields(Options)]
    if unknown := sorted(given.keys() - set(known)):
        raise ConfigError(
            f"there is no option {unknown[0]!r}: use {', '.join(known)}; other fields of a body go into extra"
        )
    chosen: dict[str, Any] = dict(given)
    if isinstance(chosen.get("stop"), str):
        chosen["stop"] = (chosen["stop"],)
    if chosen.get("context_window") is not None:
        advice = "give this request's window in tokens, 1 or more, or None for the session's own"
        chosen["context_window"] = whole_number("context_window", chosen["context_window"], advice)
    options = Options(**chosen)
    if options.on_abort not in get_args(OnAbort):
        raise ConfigError(f"on_abort is {options.on_abort!r}: use one of {', '.join(get_args(OnAbort))}")
    wrong = [tool for tool in options.tools if not is_a(tool, ToolSpec)]
    if wrong:
        raise ConfigError(f"a tool is {kind_of(wrong[0])}: give ctxfold.ToolSpec(name, description, parameters)")
    return options
