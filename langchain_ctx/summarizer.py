"""Lets any LangChain model write summaries, and lends ctxfold's summaries to `SummarizationMiddleware`."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from langchain_core.callbacks import (
    AsyncCallbackManager,
    AsyncCallbackManagerForLLMRun,
    CallbackManager,
    CallbackManagerForLLMRun,
)
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, MessageLikeRepresentation, convert_to_messages
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.runnables import Runnable, RunnableConfig, ensure_config
from langchain_core.runnables.config import var_child_runnable_config

from ctxfold.adapters.model_calls import BorrowedModel
from ctxfold.adapters.summaries import SummaryWriter
from ctxfold.compaction.live_prefix import answers_freely
from ctxfold.compaction.summarize import Summary
from ctxfold.errors import BackendError, ConfigError
from ctxfold.messages import assistant
from ctxfold.protocols import (
    BackendCapabilities,
    ContextBackend,
    Reply,
    Request,
    TokenCounter,
    capabilities_of,
)
from ctxfold.tokens.text import TextCounter
from ctxfold.validation import kind_of
from langchain_ctx.callbacks import listeners
from langchain_ctx.errors import as_backend_error, translated
from langchain_ctx.inner_model import messages_to_send, window_for
from langchain_ctx.message_lists import with_given_prompts
from langchain_ctx.messages import from_langchain, to_langchain
from langchain_ctx.models import may_think, model_name, model_window, named_model

TAGS, RUN_NAME = ["nostream", "ctxfold:summary"], "ctxfold summary"


def _config() -> RunnableConfig:
    """Returns the config of a separate run, which reaches the caller's callbacks but neither LangGraph's stream nor its
    session."""
    return {
        "callbacks": listeners(),
        "tags": TAGS,
        "run_name": RUN_NAME,
        "configurable": {},
    }


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

    def send(self, request: Request) -> Reply:
        with as_backend_error(f"the summariser {self.model}"):
            answer = self._model.invoke(self._messages(request), _config(), **self._arguments(request))
        return self._reply(answer)

    async def asend(self, request: Request) -> Reply:
        with as_backend_error(f"the summariser {self.model}"):
            answer = await self._model.ainvoke(self._messages(request), _config(), **self._arguments(request))
        return self._reply(answer)

    def _messages(self, request: Request) -> list[BaseMessage]:
        return with_given_prompts(window_for(self._model, request), self._given)

    def _arguments(self, request: Request) -> dict[str, Any]:
        return {**self._options, **limits(self._model, request)}

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

    def send(self, request: Request) -> Reply:
        run = self._run(request)
        try:
            reply = self._backend.send(request)
        except BaseException as error:
            run.on_llm_error(error)
            raise
        run.on_llm_end(_result(reply))
        return reply

    async def asend(self, request: Request) -> Reply:
        run = await self._arun(request)
        try:
            reply = await self._backend.asend(request)
        except BaseException as error:
            await run.on_llm_error(error)
            raise
        await run.on_llm_end(_result(reply))
        return reply

    def _run(self, request: Request) -> CallbackManagerForLLMRun:
        manager = CallbackManager.configure(listeners(), inheritable_tags=TAGS)
        return manager.on_chat_model_start({"name": self.model}, [messages_to_send(request.messages)], name=RUN_NAME)[0]

    async def _arun(self, request: Request) -> AsyncCallbackManagerForLLMRun:
        manager = AsyncCallbackManager.configure(listeners(), inheritable_tags=TAGS)
        return (
            await manager.on_chat_model_start({"name": self.model}, [messages_to_send(request.messages)], name=RUN_NAME)
        )[0]


def _result(reply: Reply) -> LLMResult:
    return LLMResult(generations=[[ChatGeneration(message=to_langchain(reply.message))]])


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
