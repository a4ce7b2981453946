"""Model services: backends, provider rows, and what the wire needs; loaded on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ctxfold.backends.anthropic.backend import AnthropicBackend as AnthropicBackend
    from ctxfold.backends.chaos import ChaosBackend as ChaosBackend
    from ctxfold.backends.converse.backend import BedrockBackend as BedrockBackend
    from ctxfold.backends.gemini.backend import GeminiBackend as GeminiBackend
    from ctxfold.backends.openai_chat.backend import OpenAIChatBackend as OpenAIChatBackend
    from ctxfold.backends.openai_responses.backend import OpenAIResponsesBackend as OpenAIResponsesBackend
    from ctxfold.backends.profile import Profile as Profile
    from ctxfold.backends.profile import counter_for as counter_for
    from ctxfold.backends.profile import load_profile as load_profile
    from ctxfold.backends.profile import provider_names as provider_names
    from ctxfold.backends.scripted import ScriptedBackend as ScriptedBackend
    from ctxfold.backends.transport import Retry as Retry

_HOMES = {
    "AnthropicBackend": "anthropic.backend",
    "BedrockBackend": "converse.backend",
    "ChaosBackend": "chaos",
    "GeminiBackend": "gemini.backend",
    "OpenAIChatBackend": "openai_chat.backend",
    "OpenAIResponsesBackend": "openai_responses.backend",
    "Profile": "profile",
    "Retry": "transport",
    "ScriptedBackend": "scripted",
    "counter_for": "profile",
    "load_profile": "profile",
    "provider_names": "profile",
}

__all__ = list(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll] - it takes the names of the imports above


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
