"""ChatOllama, thinking."""

from __future__ import annotations

from typing import Any

from langchain_ollama import ChatOllama

from tests.partners.dialects import DialectServer
from tests.partners.langchain_agents import run
from tests.partners.matrix import Script, name_of, report


def serve(script: Script) -> DialectServer:
    return DialectServer("ollama", script)


def model(server: Any) -> ChatOllama:
    return ChatOllama(model="qwen3:8b", base_url=server.url, reasoning=True)


def main() -> None:
    report(run(name_of("langchain-ollama", "ollama"), serve, model))
