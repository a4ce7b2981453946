"""LlamaIndex's Ollama, thinking."""

from __future__ import annotations

from typing import Any

from llama_index.llms.ollama import Ollama

from tests.partners.dialects import DialectServer
from tests.partners.llama_index_agents import run
from tests.partners.matrix import Script, name_of, report


def serve(script: Script) -> DialectServer:
    return DialectServer("ollama", script)


def model(server: Any) -> Ollama:
    return Ollama(model="qwen3:8b", base_url=server.url, thinking=True, context_window=32_000)


def main() -> None:
    report(run(name_of("llama-index-llms-ollama", "ollama"), serve, model))
