"""LlamaIndex's OpenAI on chat completions, and its OpenAIResponses."""

from __future__ import annotations

from typing import Any

from llama_index.llms.openai import OpenAI, OpenAIResponses

from ctxfold.testing import ModelServer
from tests.partners.llama_index_agents import run
from tests.partners.matrix import Script, name_of, report


def serve(script: Script) -> ModelServer:
    return ModelServer(script=script, strict="openai")


def told(server: Any) -> dict[str, Any]:
    return {"model": "gpt-5-mini", "api_base": server.base_url, "api_key": "k", "max_retries": 0}


def main() -> None:
    both = name_of("llama-index-llms-openai", "openai")
    thinks: dict[str, Any] = {
        "reasoning_options": {"effort": "low", "summary": "auto"},
        "include": ["reasoning.encrypted_content"],
        "store": False,
    }
    # the package sends no reasoning on chat completions, and on Responses none where the service stores nothing
    rows = run(both, serve, lambda server: OpenAI(**told(server)), thoughts_back=("wrapper", "both"))
    responses = run(
        f"{both} Responses", serve, lambda server: OpenAIResponses(**told(server), **thinks), thoughts_back=()
    )
    report([*rows, *responses])
