"""Whose session a call is for: read from LangChain's config, which `_generate` and `_stream` are not given."""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from typing import TYPE_CHECKING, Any, cast

from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.runnables import RunnableConfig

from langchain_ctx.listening import aeach_listening, each_listening, listening

__all__ = ["AddressedChatModel"]


class AddressedChatModel(BaseChatModel, ABC):
    """A chat model all of whose entrances pass the config's session on, as an argument of the call."""

    @abstractmethod
    def _addressed(
        self, config: RunnableConfig | None, kwargs: builtins.dict[str, Any], given: object
    ) -> builtins.dict[str, Any]:
        """The call's arguments with its session among them; `given` is what it is asked."""

    def invoke(
        self,
        input: LanguageModelInput,
        config: RunnableConfig | None = None,
        *,
        stop: list[str] | None = None,
        **kwargs: Any,
    ) -> AIMessage:
        with listening(config):
            return super().invoke(input, config, stop=stop, **self._addressed(config, kwargs, input))

    async def ainvoke(
        self,
        input: LanguageModelInput,
        config: RunnableConfig | None = None,
        *,
        stop: list[str] | None = None,
        **kwargs: Any,
    ) -> AIMessage:
        with listening(config):
            return await super().ainvoke(input, config, stop=stop, **self._addressed(config, kwargs, input))

    def stream(
        self,
        input: LanguageModelInput,
        config: RunnableConfig | None = None,
        *,
        stop: list[str] | None = None,
        **kwargs: Any,
    ) -> Iterator[AIMessageChunk]:
        pieces = super().stream(input, config, stop=stop, **self._addressed(config, kwargs, input))
        return each_listening(cast("Generator[AIMessageChunk, None, None]", pieces), config)

    def astream(
        self,
        input: LanguageModelInput,
        config: RunnableConfig | None = None,
        *,
        stop: list[str] | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[AIMessageChunk]:
        pieces = super().astream(input, config, stop=stop, **self._addressed(config, kwargs, input))
        return aeach_listening(cast("AsyncGenerator[AIMessageChunk, None]", pieces), config)

    if not TYPE_CHECKING:  # the base has overloads by version, which hold here too

        def stream_events(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
            """Events of one call; version="v3" gives a ChatModelStream, whose message has the id that a session stores."""
            return super().stream_events(input, config, **self._addressed_events(config, kwargs, input))

        def astream_events(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
            return super().astream_events(input, config, **self._addressed_events(config, kwargs, input))

    def _addressed_events(
        self, config: RunnableConfig | None, kwargs: builtins.dict[str, Any], given: object
    ) -> builtins.dict[str, Any]:
        """Versions 1 and 2 come through `stream`, which sees to it; version 3 goes past it."""
        return self._addressed(config, kwargs, given) if kwargs.get("version") == "v3" else kwargs
