"""ChatGroq, which drops the reasoning of its model."""

from __future__ import annotations

from typing import Any

from langchain_groq import ChatGroq

from tests.partners.dialects import DialectServer
from tests.partners.langchain_agents import run
from tests.partners.matrix import Script, name_of, report


def serve(script: Script) -> DialectServer:
    return DialectServer("groq", script)


# by the profile of a model that thinks `with_context` refuses it at once, with the remedy
def model(server: Any) -> ChatGroq:
    told: dict[str, Any] = {
        "model": "qwen/qwen3-32b",
        "api_key": "k",
        "profile": {"max_input_tokens": 100_000},
        "max_retries": 0,
        "reasoning_format": "parsed",
    }
    return ChatGroq(**told, base_url=server.url)


def main() -> None:
    report(run(name_of("langchain-groq", "groq"), serve, model, thoughts_back=()))
