"""ChatXAI, reasoning."""

from __future__ import annotations

from typing import Any

from langchain_xai import ChatXAI

from ctxfold.testing import ModelServer
from tests.partners.langchain_agents import run
from tests.partners.matrix import Script, name_of, report


def serve(script: Script) -> ModelServer:
    return ModelServer(script=script, strict="openai")


def model(server: Any) -> ChatXAI:
    told: dict[str, Any] = {"model": "grok-4", "api_key": "k", "max_retries": 0}
    return ChatXAI(**told, base_url=server.base_url)


def main() -> None:
    report(run(name_of("langchain-xai", "openai"), serve, model))
