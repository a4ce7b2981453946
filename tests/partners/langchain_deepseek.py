"""ChatDeepSeek, thinking."""

from __future__ import annotations

from typing import Any

from langchain_deepseek import ChatDeepSeek

from ctxfold.testing import ModelServer
from tests.partners.langchain_agents import run
from tests.partners.matrix import Script, name_of, report


def serve(script: Script) -> ModelServer:
    return ModelServer(script=script, strict="deepseek")


def model(server: Any) -> ChatDeepSeek:
    told: dict[str, Any] = {"model": "deepseek-reasoner", "api_key": "k", "max_retries": 0}
    return ChatDeepSeek(**told, api_base=server.base_url)


def main() -> None:
    report(run(name_of("langchain-deepseek", "openai"), serve, model))
