"""Finds chat models that are named by a string or chosen per call, and reads and makes the profiles of models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from langchain_core.language_models import BaseChatModel, ModelProfile
from langchain_core.runnables import Runnable, RunnableConfig, ensure_config

from ctxfold.errors import ConfigError, MissingExtraError
from ctxfold.lru import lazy_pattern

_OWN_KEYS = frozenset({"context_window", "owner", "session_id", "thread_id"})
_GRAPH_KEYS = ("__pregel_", "checkpoint_")
# the settings of models in several packages that turn thinking on or off
_THINKING = ("reasoning", "reasoning_effort", "thinking_level", "thinking_budget")
# whose models answer in a schema
_SCHEMA_WIRES = frozenset({"anthropic_messages", "bedrock_converse"})
_NO_SETTING = object()
_DATE = lazy_pattern(r"[-@](?:\d{4}|\d{8}|\d{4}-\d{2}-\d{2})")


def model_name(model: object) -> str:
    """Returns the model's own name, under whichever field its class has it, else the name of its class."""
    names = (getattr(model, field, None) for field in ("model", "model_name"))
    return next((name for name in names if isinstance(name, str) and name), type(model).__name__)


def is_same_model(name: str, other: str) -> bool:
    """Tells whether two names are of one model: a service may report a name with its date."""
    shorter, longer = sorted((name, other), key=len)
    return longer.startswith(shorter) and (longer == shorter or _DATE.fullmatch(longer, len(shorter)) is not None)


def may_think(model: object) -> bool:
    """Tells whether a model thinks before it answers: by its settings, or by its profile where these leave it open.

    A model with a setting `thinking`, such as Claude's, does so only where that is set.
    """
    if (own := getattr(model, "thinking", _NO_SETTING)) is not _NO_SETTING:
        return _is_on(own)
    chosen = [value for name in _THINKING if (value := getattr(model, name, None)) is not None]
    profile: object = getattr(model, "profile", None)
    if chosen or not isinstance(profile, Mapping):
        return any(map(_is_on, chosen))
    return cast("Mapping[str, object]", profile).get("reasoning_output") is True


def _is_on(setting: object) -> bool:
    if isinstance(setting, Mapping):
        values = cast("Mapping[str, object]", setting)
        return values.get("type") != "disabled" and values.get("effort") != "none"
    return setting not in (None, False, 0, "none")


def model_window(model: object) -> int | None:
    """Returns `max_input_tokens` of the model's profile; None where the model has no profile or the profile lacks it."""
    profile: object = getattr(model, "profile", None)
    if not isinstance(profile, Mapping):
        return None
    tokens = cast("Mapping[str, object]", profile).get("max_input_tokens")
    return tokens if isinstance(tokens, int) and tokens > 0 else None


def unknown_window(model: object) -> ConfigError:
    """Returns the error for a model whose window nobody states."""
    return ConfigError(
        f"the context window of this {type(model).__name__} is not known, as its profile has no max_input_tokens: "
        "give context_window=... in tokens"
    )


def named_model(name: str, *, setting: str) -> BaseChatModel:
    """Returns the chat model that LangChain's `init_chat_model` makes of a name such as "openai:gpt-5-mini".

    MissingExtraError, which names `setting`, where LangChain or the provider's package is not installed; ConfigError for a name
    that `init_chat_model` does not know. What the provider's own class raises, such as for a missing key, is not changed.
    """
    try:
        from langchain.chat_models import init_chat_model
    except ImportError as error:
        raise MissingExtraError(
            f'{setting}={name!r} is made by LangChain\'s init_chat_model: pip install "ctxfold[langchain]"'
        ) from error
    try:
        return init_chat_model(name)
    except ImportError as error:
        raise MissingExtraError(f"{setting}={name!r} needs the package of its provider: {error}") from error
    except ValueError as error:
        raise ConfigError(f"{setting}={name!r} is not the name of a usable model: {error}") from error


def is_configurable(model: object) -> bool:
    """Returns True for what `init_chat_model(configurable_fields=...)` returns: its model is chosen by the config of a call."""
    # by name, as LangChain's class is private
    return type(model).__name__ == "_ConfigurableModel"


def chosen_model(model: Any, config: RunnableConfig | None) -> Runnable[Any, Any]:
    """Returns the model that this call's config chooses, with the tools or the schema that were bound to the configurable one.

    Names of sessions are not passed on as settings of the model, unless its fields name them.
    """
    fields: object = getattr(model, "_configurable_fields", "any")
    declared = frozenset(cast("list[str]", fields)) if isinstance(fields, list) else frozenset[str]()
    configurable = {
        name: value
        for name, value in ensure_config(config).get("configurable", {}).items()
        if name in declared or not (name in _OWN_KEYS or name.startswith(_GRAPH_KEYS))
    }
    chosen: Runnable[Any, Any] = model._model({"configurable": configurable})
    return chosen


def model_profile(backend: Any, *, context_window: int | None, max_tokens: int | None) -> ModelProfile:
    """Returns the provider's profile as a LangChain profile; values that neither it nor the user sets are left out.

    `context_window` and `max_tokens` are the user's values, which take precedence.
    """
    row = getattr(backend, "profile", None)
    profile: dict[str, Any] = {
        "name": backend.model,
        "text_inputs": True,
        "text_outputs": True,
        "max_input_tokens": context_window or backend.context_window,
        "max_output_tokens": max_tokens or getattr(row, "max_output", None),
    }
    if row is not None:
        thinking, rules = row.thinking, row.request
        profile |= {
            "tool_calling": True,
            "tool_call_streaming": True,
            "tool_choice": rules.forced_tool_choice is not False,
            "temperature": "temperature" not in rules.refuses,
            "mid_conversation_system_messages": not rules.system_leads,
            # of models that cannot be forced to call a tool: an agent has the provider enforce its schema then
            "structured_output": (rules.forced_tool_choice is False and row.wire in _SCHEMA_WIRES) or None,
            "reasoning_output": True if thinking.default_on or thinking.on else None,
            "reasoning_effort_levels": list(thinking.effort) or None,
        }
    known = ModelProfile.__annotations__  # an older LangChain knows fewer
    return cast("ModelProfile", {name: value for name, value in profile.items() if value is not None and name in known})
