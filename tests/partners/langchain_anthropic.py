"""ChatAnthropic, thinking."""

from __future__ import annotations

from typing import Any

from langchain_anthropic import ChatAnthropic

from ctxfold.testing import ModelServer
from tests.partners.langchain_agents import run
from tests.partners.matrix import Script, name_of, report


def serve(script: Script) -> ModelServer:
    return ModelServer(script=script, strict="anthropic")


def model(server: Any) -> ChatAnthropic:
    told: dict[str, Any] = {"model": "claude-sonnet-4-5", "api_key": "k", "max_tokens": 1_500, "max_retries": 0}
    thinks = {"type": "enabled", "budget_tokens": 1_024}
    return ChatAnthropic(**told, base_url=server.base_url.removesuffix("/v1"), thinking=thinks)


def main() -> None:
    report(run(name_of("langchain-anthropic", "anthropic"), serve, model))
