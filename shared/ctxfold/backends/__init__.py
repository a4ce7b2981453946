"""Model services: backends, provider rows, and what the wire needs; loaded on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ctxfold.backends.anthropic.backend import AnthropicBackend
    from ctxfold.backends.chaos import ChaosBackend
    from ctxfold.backends.converse.backend import BedrockBackend
    from ctxfold.backends.gemini.backend import GeminiBackend
    from ctxfold.backends.openai_chat.backend import OpenAIChatBackend
    from ctxfold.backends.openai_responses.backend import OpenAIResponsesBackend
    from ctxfold.backends.profile import Profile, counter_for, load_profile, provider_names
    from ctxfold.backends.scripted import ScriptedBackend
    from ctxfold.backends.transport import Retry

__all__ = [
    "AnthropicBackend",
    "BedrockBackend",
    "ChaosBackend",
    "GeminiBackend",
    "OpenAIChatBackend",
    "OpenAIResponsesBackend",
    "Profile",
    "Retry",
    "ScriptedBackend",
    "counter_for",
    "load_profile",
    "provider_names",
]

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


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
