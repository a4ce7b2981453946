"""LlamaIndex's GoogleGenAI, thinking."""

from __future__ import annotations

from typing import Any

from google.genai import types
from llama_index.llms.google_genai import GoogleGenAI

from ctxfold.testing import ModelServer
from tests.partners.llama_index_agents import run
from tests.partners.matrix import Script, name_of, report


def serve(script: Script) -> ModelServer:
    return ModelServer(script=script, strict="gemini")


def model(server: Any) -> GoogleGenAI:
    where = types.HttpOptions(base_url=server.base_url.removesuffix("/v1"))
    thinks = types.GenerateContentConfig(thinking_config=types.ThinkingConfig(include_thoughts=True), temperature=1)
    told: dict[str, Any] = {
        "model": "gemini-3-pro-preview",
        "api_key": "k",
        "context_window": 1_000_000,
        "max_retries": 1,
        "max_tokens": 1_500,
    }
    return GoogleGenAI(**told, http_options=where, generation_config=thinks)


def main() -> None:
    # without the wrapper the strict server refuses the signatures that the package sends with parallel calls
    report(run(name_of("llama-index-llms-google-genai", "google-genai"), serve, model, ways=("wrapper", "both")))
