"""ChatOpenAI on chat completions and on Responses, with openai 2."""

from __future__ import annotations

from functools import partial
from typing import Any

from langchain_openai import ChatOpenAI

from ctxfold.testing import ModelServer
from tests.partners.langchain_agents import run
from tests.partners.matrix import Script, name_of, report


def serve(script: Script) -> ModelServer:
    return ModelServer(script=script, strict="openai")


def model(server: Any, **settings: Any) -> ChatOpenAI:
    told: dict[str, Any] = {"model": "gpt-5-mini", "base_url": server.base_url, "api_key": "k", "max_retries": 0}
    return ChatOpenAI(**told, **settings)


def main() -> None:
    both = name_of("langchain-openai", "openai")
    thinks = {
        "reasoning": {"effort": "low", "summary": "auto"},
        "include": ["reasoning.encrypted_content"],
        "store": False,
    }
    rows = run(both, serve, partial(model, stream_usage=True))
    report([*rows, *run(f"{both} Responses", serve, partial(model, use_responses_api=True, **thinks))])
