"""LangChain's own standard tests for chat models."""

from __future__ import annotations

from langchain_core.language_models import BaseChatModel
from langchain_tests.unit_tests import ChatModelUnitTests

from langchain_ctx import ChatCtx


class TestChatCtxStandard(ChatModelUnitTests):
    """Without a network: settings, tools, tracing params, environment."""

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatCtx

    @property
    def chat_model_params(self) -> dict[str, object]:
        return {"model": "lookup", "base_url": "http://127.0.0.1:9/v1", "api_key": "x"}

    @property
    def init_from_env_params(self) -> tuple[dict[str, str], dict[str, object], dict[str, object]]:
        return ({"OPENAI_API_KEY": "secret"}, {"model": "gpt-x", "provider": "openai"}, {"api_key": "secret"})

    @property
    def supports_json_mode(self) -> bool:
        return True
