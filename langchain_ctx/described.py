"""What a model can do, in LangChain's words."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any, cast

from langchain_core.language_models import ModelProfile

__all__ = ["model_profile", "package_version"]


def model_profile(backend: Any, *, context_window: int | None, max_tokens: int | None) -> ModelProfile:
    """The provider's row as a LangChain profile; what neither the row nor the user knows is left out.

    `context_window` and `max_tokens` are the user's, which win.
    """
    row = getattr(backend, "profile", None)
    told: dict[str, Any] = {
        "name": backend.model,
        "text_inputs": True,
        "text_outputs": True,
        "max_input_tokens": context_window or backend.context_window,
        "max_output_tokens": max_tokens or getattr(row, "max_output", None),
    }
    if row is not None:
        thinking, rules = row.thinking, row.request
        told |= {
            "tool_calling": True,
            "tool_call_streaming": True,
            "tool_choice": rules.forced_tool_choice is not False,
            "temperature": "temperature" not in rules.refuses,
            "mid_conversation_system_messages": not rules.system_leads,
            "reasoning_output": True if thinking.default_on or thinking.on else None,
            "reasoning_effort_levels": list(thinking.effort) or None,
        }
    known = ModelProfile.__annotations__  # an older LangChain knows fewer
    return cast("ModelProfile", {name: value for name, value in told.items() if value is not None and name in known})


def package_version() -> str:
    try:
        return version("ctxfold")
    except PackageNotFoundError:  # run from its sources
        return "unknown"
