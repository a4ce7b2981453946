"""How `ChatCtx` answers: LangChain's four inner methods, over a session or straight over the backend."""

from __future__ import annotations

import builtins
import uuid
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from contextlib import aclosing, closing
from typing import TYPE_CHECKING, Any, cast

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from pydantic import PrivateAttr

from ctxfold.ports import Reply
from ctxfold.stream import StreamPiece
from langchain_ctx import asking
from langchain_ctx.addressed import AddressedChatModel
from langchain_ctx.chunks import ChunkWriter
from langchain_ctx.conversing import Conversation
from langchain_ctx.convert import to_langchain
from langchain_ctx.errors import translated
from langchain_ctx.sessions import Sessions

if TYPE_CHECKING:
    from langchain_ctx.chat import ChatCtx

__all__ = ["AnsweringChatModel"]


class AnsweringChatModel(AddressedChatModel):
    """A chat model whose answers come from a backend, and are kept where the call names a session."""

    _backend: Any = PrivateAttr(default=None)
    _sessions: Sessions | None = PrivateAttr(default=None)

    @property
    @abstractmethod
    def _provider_name(self) -> str:
        """What replies name as their provider."""

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        call = self._call(messages, stop, kwargs)
        with translated():
            if call.session is None:
                return self._result(self._backend.send(call.request()))
            return self._result(self._conversation(call).ask())

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        call = self._call(messages, stop, kwargs)
        with translated():
            if call.session is None:
                return self._result(await self._backend.asend(call.request()))
            return self._result(await self._conversation(call).aask())

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        call = self._call(messages, stop, kwargs, run_manager)
        writer, whole = self._writer(call), list[Reply]()
        with translated():
            events: Generator[StreamPiece, None, None]
            if call.session is None:
                events = asking.plain_stream(self._backend, call, whole.append)
            else:
                events = self._conversation(call).stream(whole.append)
            with closing(events):
                for event in events:
                    yield writer.event(event)
        yield writer.last(whole[0].message)

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        call = self._call(messages, stop, kwargs, run_manager)
        writer, whole = self._writer(call), list[Reply]()
        with translated():
            events: AsyncGenerator[StreamPiece, None]
            if call.session is None:
                events = asking.plain_astream(self._backend, call, whole.append)
            else:
                events = self._conversation(call).astream(whole.append)
            async with aclosing(events):
                async for event in events:
                    yield writer.event(event)
        yield writer.last(whole[0].message)

    def _call(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None,
        kwargs: builtins.dict[str, Any],
        run: CallbackManagerForLLMRun | AsyncCallbackManagerForLLMRun | None = None,
    ) -> asking.Call:
        """An event stream is given its run: LangChain names its message after that."""
        run_id: uuid.UUID | None = None if run is None else run.run_id
        return asking.Call.of(
            cast("ChatCtx", self), messages, stop, self._addressed(None, kwargs, messages), run=run_id
        )

    def _conversation(self, call: asking.Call) -> Conversation:
        if self._sessions is None or call.session is None:
            raise asking.no_session()
        return Conversation(self._sessions, call.session, call.question())

    def _writer(self, call: asking.Call) -> ChunkWriter:
        return ChunkWriter(call.reply_id, self._provider_name, blocks=self.output_version == "v1")

    def _result(self, reply: Reply) -> ChatResult:
        message = to_langchain(reply.message)
        message.response_metadata["model_provider"] = self._provider_name
        return ChatResult(generations=[ChatGeneration(message=message)])
