"""LlamaIndex's BedrockConverse, thinking."""

from __future__ import annotations

from typing import Any

from llama_index.llms.bedrock_converse import BedrockConverse

from ctxfold.testing import ModelServer
from tests.partners.llama_index_agents import run
from tests.partners.matrix import Script, name_of, report


def serve(script: Script) -> ModelServer:
    return ModelServer(script=script, strict="anthropic")


def model(server: Any) -> BedrockConverse:
    told: dict[str, Any] = {
        "model": "anthropic.claude-sonnet-4-5-20250929-v1:0",
        "region_name": "us-east-1",
        "max_tokens": 1_500,
    }
    keys: dict[str, Any] = {"aws_access_key_id": "k", "aws_secret_access_key": "s", "max_retries": 1}
    where = server.base_url.removesuffix("/v1")
    return BedrockConverse(**told, **keys, endpoint_url=where, thinking={"type": "enabled", "budget_tokens": 1_024})


def main() -> None:
    report(run(name_of("llama-index-llms-bedrock-converse"), serve, model))
