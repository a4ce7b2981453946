"""LangChain's own standard tests for chat models, without a network and against the loopback server.

What does not run, and why:

| test | where | reason |
|---|---|---|
| `ChatModelUnitTests.test_serdes` | everywhere | lc-serialisation: it is for LangChain's own classes |
| `ChatModelIntegrationTests.test_stream_time` | everywhere | needs a recorded cassette |
| `test_json_mode`, `test_anthropic_inputs` | Messages, Converse | they have no such mode; they refuse another signer's signature |
| `test_audio_inputs` | Messages | it has no blocks for sound |

The tests of images, audio and PDF files fetch public files; here they are handed files made on the spot.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Literal
from urllib.parse import urlsplit

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_tests.integration_tests import ChatModelIntegrationTests
from langchain_tests.integration_tests import chat_models as upstream
from langchain_tests.unit_tests import ChatModelUnitTests

from ctxfold.testing import ModelServer
from langchain_ctx import ChatCtx
from tests.langchain.media import write_media
from tests.langchain.standard_model import StandardModel
from tests.support.wires import WIRES, ServedProvider


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


class TestChatCtxStandardMessages(TestChatCtxStandard):
    """The same with Anthropic as the provider."""

    @property
    def chat_model_params(self) -> dict[str, object]:
        return {"model": "claude-sonnet-4-5", "provider": "anthropic", "api_key": "x"}

    @property
    def init_from_env_params(self) -> tuple[dict[str, str], dict[str, object], dict[str, object]]:
        return ({"ANTHROPIC_API_KEY": "secret"}, {"model": "m", "provider": "anthropic"}, {"api_key": "secret"})


class LocalFiles:
    """Stands where the upstream module has httpx: every address is one of the files made here, by its suffix."""

    def __init__(self, files: dict[str, Path]) -> None:
        self._files = files
        self.asked: list[str] = []

    def get(self, url: str, **_: Any) -> SimpleNamespace:
        self.asked.append(url)
        return SimpleNamespace(content=self._files[Path(urlsplit(url).path).suffix].read_bytes())


@pytest.mark.filterwarnings("ignore:.*_stream_v3.*:langchain_core._api.LangChainBetaWarning")
class OnLoopback(ChatModelIntegrationTests):
    """Everything that a chat model is expected to do, with a server that has it all."""

    server: ClassVar[ModelServer]
    settings: ClassVar[dict[str, Any]] = {}
    thinking: ClassVar[bool] = False
    strict: ClassVar[Any] = "openai"
    wire: ClassVar[ServedProvider | None] = None

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _served(cls) -> Iterator[None]:
        model = StandardModel(thinking=cls.thinking)
        strict = cls.wire.strict if cls.wire else cls.strict
        with ModelServer(model="m", script=model, strict=strict, reasoning=cls.thinking) as server:
            cls.server = server
            yield

    @pytest.fixture(autouse=True)
    def _local_files(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalFiles:
        files = LocalFiles(write_media(tmp_path))
        monkeypatch.setattr(upstream, "httpx", files)
        monkeypatch.setenv("LANGCHAIN_TESTS_USER_AGENT", "none: no request leaves this machine")
        return files

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatCtx

    @property
    def chat_model_params(self) -> dict[str, Any]:
        if self.wire is not None:
            return self.wire.settings(self.server)
        return {"model": "m", "base_url": self.server.base_url, "api_key": "x", **self.settings}

    @property
    def model_override_value(self) -> str:
        return "another-model"

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def supports_image_inputs(self) -> bool:
        return True

    @property
    def supports_image_urls(self) -> bool:
        return True

    @property
    def supports_image_tool_message(self) -> bool:
        return True

    @property
    def supports_pdf_inputs(self) -> bool:
        return True

    @property
    def supports_pdf_tool_message(self) -> bool:
        return True

    @property
    def supports_audio_inputs(self) -> bool:
        return True

    @property
    def supports_anthropic_inputs(self) -> bool:
        return True

    @property
    def supported_usage_metadata_details(self) -> dict[Literal["invoke", "stream"], list[Any]]:
        details = ["cache_read_input", *(["reasoning_output"] if self.thinking else [])]
        return {"invoke": details, "stream": details}

    def _ask(self, *texts: str, stream: bool) -> AIMessage:
        """The last answer of a session, in which some services cache what is marked."""
        with ChatCtx(**self.chat_model_params, context_window=9_000, session="s") as chat:
            for text in texts:
                pieces = [chat.invoke(text)] if not stream else list(chat.stream(text))
            return sum(pieces[1:], start=pieces[0])

    def invoke_with_reasoning_output(self, *, stream: bool = False) -> AIMessage:
        return self._ask("Which of these two numbers is larger, 9.9 or 9.11?", stream=stream)

    def invoke_with_cache_read_input(self, *, stream: bool = False) -> AIMessage:
        return self._ask("The same beginning.", "And more.", stream=stream)


class TestWithoutReasoning(OnLoopback):
    """A model that does not think, on a service as strict as OpenAI's."""


class TestWithReasoning(OnLoopback):
    """A model that thinks before every answer and call, forced calls too."""

    thinking = True


class TestDeepSeekThinking(OnLoopback):
    """A service that wants all reasoning back and forces no call while it thinks."""

    thinking = True
    strict = "deepseek"
    settings: ClassVar[dict[str, Any]] = {"provider": "deepseek"}


class TestDeepSeekNotThinking(OnLoopback):
    """The same service with thinking switched off."""

    strict = "deepseek"
    settings: ClassVar[dict[str, Any]] = {"provider": "deepseek", "thinking": False}


class TestResponses(OnLoopback):
    """OpenAI's Responses API, with reasoning that goes back encrypted."""

    thinking = True
    wire = WIRES["openai_responses"]


class TestMessages(OnLoopback):
    """Anthropic's Messages, with signed thinking."""

    thinking = True
    wire = WIRES["anthropic_messages"]

    @property
    def supports_json_mode(self) -> bool:
        return False

    @property
    def supports_audio_inputs(self) -> bool:
        return False

    @property
    def supports_anthropic_inputs(self) -> bool:
        return False


class TestGemini(OnLoopback):
    """Google's generateContent, with signatures."""

    thinking = True
    wire = WIRES["gemini"]


class TestConverse(OnLoopback):
    """Amazon Bedrock's Converse, with signed reasoning."""

    thinking = True
    wire = WIRES["bedrock_converse"]

    @property
    def supports_json_mode(self) -> bool:
        return False

    @property
    def supports_anthropic_inputs(self) -> bool:
        return False

    @property
    def supported_usage_metadata_details(self) -> dict[Literal["invoke", "stream"], list[Any]]:
        return {"invoke": ["cache_read_input"], "stream": ["cache_read_input"]}


@pytest.mark.parametrize("wire", ["anthropic_messages", "bedrock_converse"])
def test_anthropic_inputs_where_signatures_are_not_checked(
    wire: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The upstream test brings a signature of Anthropic's own, which no strict server here can verify."""
    monkeypatch.setattr(upstream, "httpx", LocalFiles(write_media(tmp_path)))
    with ModelServer(model="m", script=StandardModel(thinking=True), reasoning=True) as server:
        with ChatCtx(**WIRES[wire].settings(server)) as chat:
            OnLoopback().test_anthropic_inputs(chat)
        assert len(server.requests) == 2
