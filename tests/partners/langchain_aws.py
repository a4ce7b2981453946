"""ChatBedrockConverse, thinking."""

from __future__ import annotations

from typing import Any

from langchain_aws import ChatBedrockConverse

from ctxfold.testing import ModelServer
from tests.partners.langchain_agents import run
from tests.partners.matrix import Script, name_of, report


def serve(script: Script) -> ModelServer:
    return ModelServer(script=script, strict="anthropic")


def model(server: Any) -> ChatBedrockConverse:
    told: dict[str, Any] = {
        "model": "anthropic.claude-sonnet-4-5-v1:0",
        "region_name": "us-east-1",
        "max_tokens": 1_500,
    }
    keys: dict[str, Any] = {"aws_access_key_id": "k", "aws_secret_access_key": "s"}
    thinks = {"thinking": {"type": "enabled", "budget_tokens": 1_024}}
    where = server.base_url.removesuffix("/v1")
    return ChatBedrockConverse(**told, **keys, endpoint_url=where, additional_model_request_fields=thinks)


def main() -> None:
    report(run(name_of("langchain-aws", "botocore"), serve, model))
