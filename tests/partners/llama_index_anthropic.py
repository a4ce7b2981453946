"""LlamaIndex's Anthropic, thinking."""

from __future__ import annotations

from typing import Any

from llama_index.llms.anthropic import Anthropic

from ctxfold.testing import ModelServer
from tests.partners.llama_index_agents import run
from tests.partners.matrix import Script, name_of, report


def serve(script: Script) -> ModelServer:
    return ModelServer(script=script, strict="anthropic")


def model(server: Any) -> Anthropic:
    told: dict[str, Any] = {"model": "claude-sonnet-4-5", "api_key": "k", "max_tokens": 1_500, "max_retries": 0}
    thinks: dict[str, Any] = {"type": "enabled", "budget_tokens": 1_024}
    return Anthropic(**told, base_url=server.base_url.removesuffix("/v1"), thinking_dict=thinks, temperature=1)


def main() -> None:
    report(run(name_of("llama-index-llms-anthropic", "anthropic"), serve, model))
