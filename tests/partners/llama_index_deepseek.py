"""LlamaIndex's DeepSeek, thinking."""

from __future__ import annotations

from typing import Any

from llama_index.llms.deepseek import DeepSeek

from ctxfold.testing import ModelServer
from tests.partners.llama_index_agents import run
from tests.partners.matrix import Script, name_of, report


def serve(script: Script) -> ModelServer:
    return ModelServer(script=script, strict="deepseek")


def model(server: Any) -> DeepSeek:
    return DeepSeek(model="deepseek-chat", api_base=server.base_url, api_key="k", max_retries=0)


def main() -> None:
    # the package drops reasoning, which DeepSeek demands: without the wrapper every second request is refused
    report(run(name_of("llama-index-llms-deepseek", "openai"), serve, model, ways=("wrapper", "both")))
