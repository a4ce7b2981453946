"""Any LangChain model as the one that writes summaries."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import Runnable, RunnableConfig

from ctxfold.errors import BackendError, ConfigError
from ctxfold.given import kind_of
from ctxfold.messages import assistant
from ctxfold.ports import AsyncChunkStream, Chunk, ChunkStream, ContextBackend, Reply, Request
from langchain_ctx.convert import from_langchain, to_langchain
from langchain_ctx.errors import backend_error
from langchain_ctx.listening import listeners

__all__ = ["ChatModelSummarizer", "as_summarizer"]


def _config() -> RunnableConfig:
    """A run of its own, which the caller's callbacks hear of; LangGraph's message stream and the caller's session do not."""
    return {
        "callbacks": [*listeners()],
        "tags": ["nostream", "ctxfold:summary"],
        "run_name": "ctxfold summary",
        "configurable": {},
    }


class ChatModelSummarizer:
    """Asks a LangChain chat model.

    The callbacks of the call that needs the summary hear of it as a run of its own, tagged "ctxfold:summary", with its usage; its
    tokens reach no callback and no stream.

    `max_tokens` is passed on where the model has a field of that name.
    """

    scratch_role = "user"

    def __init__(self, model: Runnable[Any, Any]) -> None:
        self._model = model
        profile = cast("Mapping[str, Any]", getattr(model, "profile", None) or {})
        self.context_window: int | None = profile.get("max_input_tokens")
        self._takes_limit = isinstance(model, BaseChatModel) and "max_tokens" in type(model).model_fields

    @property
    def model(self) -> str:
        for name in ("model", "model_name"):
            found = getattr(self._model, name, None)
            if isinstance(found, str) and found:
                return found
        return type(self._model).__name__

    def send(self, request: Request) -> Reply:
        try:
            answer = self._model.invoke(_asked(request), _config(), **self._limits(request))
        except Exception as error:
            raise backend_error(error, f"the summariser {self.model}") from error
        return self._reply(answer)

    async def asend(self, request: Request) -> Reply:
        try:
            answer = await self._model.ainvoke(_asked(request), _config(), **self._limits(request))
        except Exception as error:
            raise backend_error(error, f"the summariser {self.model}") from error
        return self._reply(answer)

    def open_stream(self, request: Request) -> ChunkStream:
        return _Whole(_chunk(self.send(request)))

    async def aopen_stream(self, request: Request) -> AsyncChunkStream:
        return _Whole(_chunk(await self.asend(request)))

    def close(self) -> None:
        """The model belongs to whoever made it."""

    async def aclose(self) -> None:
        """The model belongs to whoever made it."""

    def _limits(self, request: Request) -> dict[str, Any]:
        return {"max_tokens": request.max_tokens} if self._takes_limit and request.max_tokens is not None else {}

    def _reply(self, answer: object) -> Reply:
        if isinstance(answer, AIMessage):
            message = from_langchain(answer)
            return Reply(message, message.usage, message.finish_reason, answer)
        if isinstance(answer, str):
            return Reply(assistant(answer, id=uuid.uuid4().hex), raw=answer)
        raise BackendError(
            f"the summariser {self.model} gave a {type(answer).__name__}: give a model whose answer is an AIMessage or a string",
            kind="protocol",
        )


def _asked(request: Request) -> list[BaseMessage]:
    return [to_langchain(m) for m in request.messages]


def _chunk(reply: Reply) -> Chunk:
    return Chunk(content=reply.message.text, usage=reply.usage, finish_reason=reply.finish_reason, raw=reply.raw)


class _Whole:
    """A stream of one chunk."""

    def __init__(self, chunk: Chunk) -> None:
        self._chunk = chunk

    def __iter__(self) -> Iterator[Chunk]:
        yield self._chunk

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        yield self._chunk

    def close(self) -> None:
        """Nothing is held."""

    async def aclose(self) -> None:
        """Nothing is held."""


def as_summarizer(summarizer: Any) -> ContextBackend | None:
    """A backend from what a user gives: a LangChain model, a backend, or None."""
    if summarizer is None:
        return None
    own = None if isinstance(summarizer, type) else getattr(summarizer, "context_backend", None)
    if own is not None:  # a ChatCtx: its backend, so that no summary ends up in a session of its own
        return own  # type: ignore[no-any-return]
    if isinstance(summarizer, Runnable):
        return ChatModelSummarizer(cast("Runnable[object, object]", summarizer))
    if hasattr(summarizer, "asend") and not isinstance(summarizer, type):
        return summarizer  # type: ignore[no-any-return]
    raise ConfigError(
        f"summarizer is {kind_of(summarizer)}: give a LangChain chat model or a ctxfold backend such as OpenAIChatBackend"
    )


if TYPE_CHECKING:
    _: type[ContextBackend] = ChatModelSummarizer
