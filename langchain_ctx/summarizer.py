"""Lets any LangChain model write summaries, and lends ctxfold's summaries to `SummarizationMiddleware`."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from langchain_core.callbacks import (
    AsyncCallbackManager,
    BaseCallbackHandler,
    BaseCallbackManager,
    CallbackManager,
    Callbacks,
)
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, MessageLikeRepresentation, convert_to_messages
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.runnables import Runnable, RunnableConfig, ensure_config
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.tracers._streaming import _StreamingCallbackHandler
from langchain_core.tracers.context import _configure_hooks  # pyright: ignore[reportPrivateUsage]

from ctxfold.adapters.calls import BorrowedModel, Invoke, forms
from ctxfold.adapters.summaries import SummaryWriter
from ctxfold.compaction.live_prefix import answers_freely
from ctxfold.compaction.summarize import Summary
from ctxfold.effects import Flow
from ctxfold.errors import BackendError, ConfigError
from ctxfold.messages import assistant
from ctxfold.protocols import BackendCapabilities, ContextBackend, Reply, Request, TokenCounter, capabilities_of
from ctxfold.tokens.text import TextCounter
from ctxfold.validation import kind_of
from langchain_ctx.errors import as_backend_error, translated
from langchain_ctx.inner_model import messages_to_send, window_for
from langchain_ctx.message_lists import with_given_prompts
from langchain_ctx.messages import from_langchain, reply_of, to_langchain
from langchain_ctx.models import may_think, model_name, model_window, named_model

TAGS, RUN_NAME = ["nostream", "ctxfold:summary"], "ctxfold summary"


_CALLBACKS: ContextVar[Any] = ContextVar("ctxfold_callbacks", default=None)


@contextmanager
def listening(config: RunnableConfig | None) -> Generator[None, None, None]:
    """Summaries that are written within the block report to the callbacks of this call."""
    token = _CALLBACKS.set(ensure_config(config).get("callbacks"))
    try:
        yield
    finally:
        _CALLBACKS.reset(token)


def listeners() -> Callbacks:
    """Returns callbacks that hear of a summary's run, within the run that needs it, with its usage and none of its tokens.

    What streams events or messages to a user hears nothing: a summary is no part of the answer.
    """
    current: Any = _CALLBACKS.get() or ensure_config().get("callbacks") or []
    handlers = current.inheritable_handlers if isinstance(current, BaseCallbackManager) else current
    quiet = [_without_tokens(h) for h in handlers if not isinstance(h, _StreamingCallbackHandler)]
    if not isinstance(current, BaseCallbackManager):
        return quiet
    manager = current.copy()
    manager.set_handlers(quiet)
    return manager


def _without_tokens(handler: BaseCallbackHandler) -> BaseCallbackHandler:
    """Returns the handler itself where it takes no tokens, or where LangChain adds it to each run that lacks this very object."""
    takes_none = type(handler).on_llm_new_token is BaseCallbackHandler.on_llm_new_token
    added = any(variable.get() is handler for variable, *_ in _configure_hooks)
    return handler if takes_none or added else _WithoutTokens(handler)


class _WithoutTokens(BaseCallbackHandler):
    """Wraps a callback handler so that it receives no tokens. It has the handler's class, by which tracers are told apart."""

    def __init__(self, handler: BaseCallbackHandler) -> None:
        self._handler = handler

    def __getattribute__(self, name: str) -> Any:
        if name in ("_handler", "on_llm_new_token"):
            return super().__getattribute__(name)
        return getattr(super().__getattribute__("_handler"), name)

    def on_llm_new_token(self, *args: Any, **kwargs: Any) -> None:
        """Does nothing: tokens of a summary are not reported."""


def _config() -> RunnableConfig:
    """Returns the config of a separate run, which reaches the caller's callbacks but neither LangGraph's stream nor its
    session."""
    return {"callbacks": listeners(), "tags": TAGS, "run_name": RUN_NAME, "configurable": {}}


class ChatModelSummarizer(BorrowedModel):
    """Asks a LangChain chat model.

    The callbacks of the surrounding call receive the summary as a separate run, tagged "ctxfold:summary", with its usage. Its
    tokens reach no callback and no stream.

    `max_tokens` is passed on where the model has a field of that name and does not think; `options` are passed with every call, and
    system messages with the text of a `given` one are sent as that was given.
    """

    capabilities = BackendCapabilities()

    def __init__(
        self, model: Runnable[Any, Any], options: Mapping[str, Any] | None = None, given: Sequence[BaseMessage] = ()
    ) -> None:
        self._model = model
        self._given = given
        self._options = dict(options or {})
        self.context_window = model_window(model)

    @property
    def model(self) -> str:
        return model_name(self._model)

    def answer(self, request: Request) -> Flow[Reply]:
        arguments = {**self._options, **limits(self._model, request)}
        with as_backend_error(f"the summariser {self.model}"):
            messages = with_given_prompts(window_for(self._model, request), self._given)
            answer = yield from Invoke(self._model.invoke, self._model.ainvoke, messages, _config(), **arguments)
        if isinstance(answer, AIMessage):
            return reply_of(answer, answer)
        if isinstance(answer, str):
            return Reply(assistant(answer, id=uuid.uuid4().hex), raw=answer)
        raise BackendError(
            f"the summariser {self.model} gave a {type(answer).__name__}: give a model whose answer is an AIMessage or a string",
            kind="protocol",
        )


class ReportedSummarizer(BorrowedModel):
    """Asks a backend of ctxfold's own, and reports each call as a run of LangChain's, with its usage.

    So a usage callback counts the summaries of `ChatCtx`, as it counts those of every other model. `answers` says that the backend
    is the one that answers in the session: then it may be asked on the live prefix.
    """

    def __init__(self, backend: ContextBackend, *, answers: bool = False) -> None:
        self._backend = backend
        self._answers = answers

    @property
    def model(self) -> str:
        return self._backend.model

    @property
    def context_window(self) -> int | None:
        return self._backend.context_window

    @property
    def capabilities(self) -> BackendCapabilities:
        return replace(capabilities_of(self._backend), continues=self._continues if self._answers else None)

    def _continues(self, request: Request) -> bool:
        return request.model in (None, self._backend.model) and answers_freely(request.extra)

    def answer(self, request: Request) -> Flow[Reply]:
        managers: Any = CallbackManager.configure, AsyncCallbackManager.configure
        manager = yield from Invoke(*managers, listeners(), inheritable_tags=TAGS)
        start, messages = manager.on_chat_model_start, messages_to_send(request.messages)
        (run,) = yield from Invoke(start, start, {"name": self.model}, [messages], name=RUN_NAME)
        try:
            reply: Reply = yield from Invoke(*forms(self._backend, "send"), request)
        except BaseException as error:
            yield from Invoke(run.on_llm_error, run.on_llm_error, error)
            raise
        result = LLMResult(generations=[[ChatGeneration(message=to_langchain(reply.message))]])
        yield from Invoke(run.on_llm_end, run.on_llm_end, result)
        return reply


def limits(model: object, request: Request) -> dict[str, Any]:
    """Returns the request's limit as an argument of the model's, where it has a field of that name and does not think.

    Thinking counts as output: a short summary's limit would leave no word for the summary, or be refused.
    """
    takes_limit = isinstance(model, BaseChatModel) and "max_tokens" in type(model).model_fields and not may_think(model)
    return {"max_tokens": request.max_tokens} if takes_limit and request.max_tokens is not None else {}


@contextmanager
def asking_for_summary() -> Generator[None, None, None]:
    """Runs that begin within the block are a summary's: the caller's callbacks hear of them, no stream of the caller's does."""
    around = ensure_config()
    own: RunnableConfig = {**around, **_config(), "configurable": around.get("configurable", {})}
    own["tags"] = [*around.get("tags", ()), *own.get("tags", ())]
    token = var_child_runnable_config.set(own)
    try:
        yield
    finally:
        var_child_runnable_config.reset(token)


def as_summarizer(summarizer: Any, setting: str = "summarizer") -> ContextBackend | None:
    """Returns a backend for what a user gives: a LangChain model, its name for `init_chat_model`, a backend, or None."""
    if summarizer is None:
        return None
    if isinstance(summarizer, str):
        return ChatModelSummarizer(named_model(summarizer, setting=setting))
    own = None if isinstance(summarizer, type) else getattr(summarizer, "context_backend", None)
    if own is not None:  # a ChatCtx: its backend, so that no summary ends up in a session of its own
        return ReportedSummarizer(own)
    if isinstance(summarizer, Runnable):
        return ChatModelSummarizer(cast("Runnable[object, object]", summarizer))
    if hasattr(summarizer, "asend") and not isinstance(summarizer, type):
        return summarizer  # type: ignore[no-any-return]
    raise ConfigError(
        f"summarizer is {kind_of(summarizer)}: give a LangChain chat model, its name such as 'openai:gpt-5-mini', "
        "or a ctxfold backend such as OpenAIChatBackend"
    )


if TYPE_CHECKING:
    _: type[ContextBackend] = ChatModelSummarizer


_LEAD = "Here is a summary of the conversation to date:"  # how that middleware begins the message with its summary


class ContextSummarizer(Runnable[Sequence[MessageLikeRepresentation], str]):
    """A runnable that returns the text of a summary of messages: written by a model, checked, and completed by verbatim lines.

    ```python
    SummarizationMiddleware(
        model,
        trigger=("tokens", 50_000),
        token_counter=token_counter(model),
        summarizer=ContextSummarizer(model),
        trim_tokens_to_summarize=None,  # otherwise only the last 4,000 tokens are summarised, and the rest is lost
    )
    ```
    An earlier summary in the list is recognised and continued. When the model fails or invents facts, an extractive summary is
    used instead, and the agent's turn continues. Long lists are summarised in pieces that fit the model's window.

    Args:
        model: the writer: a chat model, its name for `init_chat_model`, or a backend; None writes extractive summaries.
        context_window: the window of that model, in tokens; None takes the value in its profile.
        summary_tokens: upper limit of a summary; one is never longer than half of its source.
        prompt: instructions in place of the built-in ones; {words} becomes the limit, other braces are text.
        on_summary: a function that is called with every `Summary`: its writer, the facts that it kept, and problems.
    """

    def __init__(
        self,
        model: Any = None,
        *,
        context_window: int | None = None,
        summary_tokens: int = 2_048,
        counter: TokenCounter | TextCounter | None = None,
        prompt: str | None = None,
        on_summary: Callable[[Summary], object] | None = None,
    ) -> None:
        self._writer = SummaryWriter(
            as_summarizer(model, "model"),
            context_window=context_window,
            summary_tokens=summary_tokens,
            counter=counter,
            prompt=prompt,
        )
        self._on_summary = on_summary

    def invoke(
        self, input: Sequence[MessageLikeRepresentation], config: RunnableConfig | None = None, **kwargs: Any
    ) -> str:
        return self._call_with_config(self._summarize, input, config)

    async def ainvoke(
        self, input: Sequence[MessageLikeRepresentation], config: RunnableConfig | None = None, **kwargs: Any
    ) -> str:
        return await self._acall_with_config(self._asummarize, input, config)

    def _summarize(self, messages: Sequence[MessageLikeRepresentation]) -> str:
        with translated():
            return self._report(self._writer.write([_message(m) for m in convert_to_messages(messages)]))

    async def _asummarize(self, messages: Sequence[MessageLikeRepresentation]) -> str:
        with translated():
            return self._report(await self._writer.awrite([_message(m) for m in convert_to_messages(messages)]))

    def _report(self, summary: Summary) -> str:
        if self._on_summary is not None:
            self._on_summary(summary)
        return summary.text


def _message(message: BaseMessage) -> Any:
    converted = from_langchain(message)
    if isinstance(message, HumanMessage) and message.additional_kwargs.get("lc_source") == "summarization":
        text = HumanMessage(message.text.removeprefix(_LEAD).strip(), id=converted.id)
        return replace(from_langchain(text), kind="summary")
    return converted
