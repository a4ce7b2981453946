"""LlamaIndex's MistralAI."""

from __future__ import annotations

from typing import Any

from llama_index.llms.mistralai import MistralAI

from tests.partners.dialects import DialectServer
from tests.partners.llama_index_agents import run
from tests.partners.matrix import Script, name_of, report


def serve(script: Script) -> DialectServer:
    return DialectServer("mistral", script)


def model(server: Any) -> MistralAI:
    told: dict[str, Any] = {"model": "magistral-medium-latest", "api_key": "k", "max_retries": 0}
    return MistralAI(**told, endpoint=server.url)


def main() -> None:
    report(run(name_of("llama-index-llms-mistralai", "mistralai"), serve, model, thoughts_back=()))
