"""ChatGoogleGenerativeAI, thinking."""

from __future__ import annotations

from typing import Any

from langchain_google_genai import ChatGoogleGenerativeAI

from ctxfold.testing import ModelServer
from tests.partners.langchain_agents import run
from tests.partners.matrix import Script, name_of, report


def serve(script: Script) -> ModelServer:
    return ModelServer(script=script, strict="gemini")


def model(server: Any) -> ChatGoogleGenerativeAI:
    told: dict[str, Any] = {"model": "gemini-3-pro-preview", "google_api_key": "k", "max_retries": 1}
    return ChatGoogleGenerativeAI(**told, base_url=server.base_url.removesuffix("/v1"), include_thoughts=True)


def main() -> None:
    report(run(name_of("langchain-google-genai", "google-genai"), serve, model))
