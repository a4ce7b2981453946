"""Any LangChain chat model as the engine's backend: `AgentContext(LangChainBackend(model), ...)`."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import Runnable, RunnableConfig

from ctxfold.adapters.calls import BorrowedModel, Invoke
from ctxfold.effects import Flow
from ctxfold.errors import ConfigError
from ctxfold.protocols import BackendCapabilities, ContextBackend, Reply, Request
from langchain_ctx.errors import as_backend_error
from langchain_ctx.inner_model import ForeignChunks, offered, window_for
from langchain_ctx.messages import reply_of
from langchain_ctx.models import may_think, model_name, model_window
from langchain_ctx.reasoning import capabilities, check_model

# nothing of a call reaches the callbacks or the stream of a run around it; summaries are such calls too
_ALONE: RunnableConfig = {"callbacks": [], "tags": ["nostream"], "run_name": "ctxfold", "configurable": {}}


class LangChainBackend(BorrowedModel):
    """A backend over a LangChain chat model: text, tools, and reasoning where the model returns it.

    `max_tokens`, `temperature`, `thinking` and `model` are passed on where the model has a field of that name, `extra` as
    `extra_body` where it has that. `config` is passed with every call; the default keeps calls out of the callbacks and the
    stream of a surrounding run. The window is `context_window`, or the value in the model's profile. `close` does not close the
    model.
    """

    def __init__(
        self, model: BaseChatModel, *, context_window: int | None = None, config: RunnableConfig | None = None
    ) -> None:
        check_model("LangChainBackend", model)
        if getattr(model, "session", None) is not None:
            raise ConfigError(
                "this model keeps a session of its own: give LangChainBackend one without session, or use its context_backend"
            )
        self._model = model
        self._config = _ALONE if config is None else config
        self._window = context_window

    @property
    def model(self) -> str:
        return model_name(self._model)

    @property
    def context_window(self) -> int | None:
        return self._window or model_window(self._model)

    @property
    def capabilities(self) -> BackendCapabilities:
        return replace(capabilities(self._model), sparing=self._sparing)

    def _sparing(self, request: Request) -> Request:
        """Returns the request without `max_tokens` where the model thinks, because its thinking counts as output."""
        return replace(request, max_tokens=None) if may_think(self._model) else request

    def answer(self, request: Request) -> Flow[Reply]:
        model, messages, options = self._call(request)
        with self.translated():
            answer = yield from Invoke(model.invoke, model.ainvoke, messages, self._config.copy(), **options)
        return reply_of(answer, answer)

    def stream(self, request: Request) -> Flow[Any]:
        model, messages, options = self._call(request)
        source = yield from Invoke(model.stream, model.astream, messages, self._config.copy(), **options)
        return (yield from self.read_stream(source, ForeignChunks()))

    def translated(self) -> AbstractContextManager[None]:
        return as_backend_error(self.model)

    def _call(
        self, request: Request
    ) -> tuple[Runnable[LanguageModelInput, AIMessage], list[BaseMessage], dict[str, Any]]:
        return offered(self._model, request), window_for(self._model, request), self._options(request)

    def _options(self, request: Request) -> dict[str, Any]:
        fields = type(self._model).model_fields
        names = {*fields, *(f.alias for f in fields.values() if f.alias)}
        settings: dict[str, Any] = {
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
            "thinking": request.thinking if getattr(self._model, "context_backend", None) is not None else None,
            "model": request.model if request.model != self.model else None,
        }
        options = {name: value for name, value in settings.items() if value is not None and name in names}
        if request.stop:
            options["stop"] = list(request.stop)
        if request.extra:
            options |= {"extra_body": dict(request.extra)} if "extra_body" in names else dict(request.extra)
        return options


if TYPE_CHECKING:
    from langchain_core.language_models import FakeListChatModel

    _: ContextBackend = LangChainBackend(FakeListChatModel(responses=[]))
