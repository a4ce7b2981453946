"""ChatMistralAI, which drops the thinking of its model."""

from __future__ import annotations

from typing import Any

from langchain_mistralai import ChatMistralAI

from tests.partners.dialects import DialectServer
from tests.partners.langchain_agents import run
from tests.partners.matrix import Script, name_of, report


def serve(script: Script) -> DialectServer:
    return DialectServer("mistral", script)


# by the profile of a model that thinks `with_context` refuses it at once, with the remedy
def model(server: Any) -> ChatMistralAI:
    told: dict[str, Any] = {
        "model": "magistral-medium-latest",
        "api_key": "k",
        "profile": {"max_input_tokens": 100_000},
        "max_retries": 1,
    }
    return ChatMistralAI(**told, endpoint=f"{server.url}/v1")


def main() -> None:
    report(run(name_of("langchain-mistralai"), serve, model, thoughts_back=()))
