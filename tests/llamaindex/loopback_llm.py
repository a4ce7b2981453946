"""A small LLM for tests: LlamaIndex's function-calling interface over ctxfold's backend and the loopback server."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    ChatResponseAsyncGen,
    ChatResponseGen,
    CompletionResponse,
    CompletionResponseAsyncGen,
    CompletionResponseGen,
    LLMMetadata,
    ToolCallBlock,
)
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection
from llama_index.core.tools import BaseTool
from pydantic import PrivateAttr

from ctxfold import OpenAIChatBackend, Request, ToolSpec
from ctxfold.stream import Content, ContentFirst, Fold
from ctxfold.testing import ModelServer
from llamaindex_ctx.convert import from_chat_messages, to_chat_message

Made: TypeAlias = "Callable[..., LoopbackLLM]"


class LoopbackLLM(FunctionCallingLLM):
    """Sends what it is given, all of it, and keeps the requests; tools are called as the server says."""

    window: int = 8_000
    _backend: OpenAIChatBackend = PrivateAttr()
    _sent: list[list[ChatMessage]] = PrivateAttr(default_factory=list)

    def __init__(self, server: ModelServer, **fields: Any) -> None:
        super().__init__(**fields)
        self._backend = OpenAIChatBackend(
            provider="generic", model=server.model, base_url=server.base_url, api_key="test-key"
        )

    @property
    def sent(self) -> list[list[ChatMessage]]:
        return self._sent

    @classmethod
    def class_name(cls) -> str:
        return "LoopbackLLM"

    async def aclose(self) -> None:
        self._backend.close()
        await self._backend.aclose()

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(
            context_window=self.window, is_chat_model=True, is_function_calling_model=True, model_name="lookup"
        )

    def _request(self, messages: Sequence[ChatMessage], kwargs: dict[str, Any]) -> Request:
        self._sent.append(list(messages))
        tools = tuple(kwargs.get("tools") or ())
        return Request(from_chat_messages(messages), tools=tools, max_tokens=200)

    @llm_chat_callback()
    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        return ChatResponse(message=_shown(self._backend.send(self._request(messages, kwargs)).message))

    @llm_chat_callback()
    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        return ChatResponse(message=_shown((await self._backend.asend(self._request(messages, kwargs))).message))

    @llm_chat_callback()
    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        request = self._request(messages, kwargs)

        def chunks() -> ChatResponseGen:
            fold = Fold("reply")
            for chunk in self._backend.open_stream(request):
                for event in fold.feed(chunk):
                    delta = event.text if isinstance(event, Content | ContentFirst) else ""
                    yield ChatResponse(message=_partial(fold), delta=delta)
            yield ChatResponse(message=_shown(fold.close().message), delta="")

        return chunks()

    @llm_chat_callback()
    async def astream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseAsyncGen:
        request = self._request(messages, kwargs)

        async def chunks() -> ChatResponseAsyncGen:
            fold = Fold("reply")
            async for chunk in await self._backend.aopen_stream(request):
                for event in fold.feed(chunk):
                    delta = event.text if isinstance(event, Content | ContentFirst) else ""
                    yield ChatResponse(message=_partial(fold), delta=delta)
            yield ChatResponse(message=_shown(fold.close().message), delta="")

        return chunks()

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return CompletionResponse(text=self.chat([ChatMessage(content=prompt)]).message.content or "")

    @llm_completion_callback()
    async def acomplete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return CompletionResponse(text=(await self.achat([ChatMessage(content=prompt)])).message.content or "")

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:
        def chunks() -> CompletionResponseGen:
            for response in self.stream_chat([ChatMessage(content=prompt)]):
                yield CompletionResponse(text=response.message.content or "", delta=response.delta)

        return chunks()

    @llm_completion_callback()
    async def astream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseAsyncGen:
        async def chunks() -> CompletionResponseAsyncGen:
            async for response in await self.astream_chat([ChatMessage(content=prompt)]):
                yield CompletionResponse(text=response.message.content or "", delta=response.delta)

        return chunks()

    def _prepare_chat_with_tools(
        self,
        tools: Sequence[BaseTool],
        user_msg: str | ChatMessage | None = None,
        chat_history: list[ChatMessage] | None = None,
        verbose: bool = False,
        allow_parallel_tool_calls: bool = False,
        tool_required: bool = False,
        **kwargs: Any,
    ) -> dict[str, Any]:
        messages = list(chat_history or [])
        if user_msg is not None:
            messages.append(ChatMessage(content=user_msg) if isinstance(user_msg, str) else user_msg)
        return {"messages": messages, "tools": [_spec(tool) for tool in tools]}

    def get_tool_calls_from_response(
        self, response: ChatResponse, error_on_no_tool_call: bool = True, **kwargs: Any
    ) -> list[ToolSelection]:
        return [
            ToolSelection(tool_id=b.tool_call_id or "", tool_name=b.tool_name, tool_kwargs=_kwargs(b))
            for b in response.message.blocks
            if isinstance(b, ToolCallBlock)
        ]


def _kwargs(block: ToolCallBlock) -> dict[str, Any]:
    return json.loads(block.tool_kwargs) if isinstance(block.tool_kwargs, str) else block.tool_kwargs


def _spec(tool: BaseTool) -> ToolSpec:
    metadata = tool.metadata
    return ToolSpec(metadata.get_name(), metadata.description, metadata.get_parameters_dict())


def _shown(message: Any) -> ChatMessage:
    shown = to_chat_message(message)
    del shown.additional_kwargs["ctxfold_id"]
    return shown


def _partial(fold: Fold) -> ChatMessage:
    message = fold.partial()
    return ChatMessage(role="assistant", content="") if message is None else _shown(message)
