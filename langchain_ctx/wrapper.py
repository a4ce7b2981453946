"""Defines `with_context`, which manages the context of any LangChain chat model in an existing chain."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Unpack, cast, overload

from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.language_models.base import LangSmithParams
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable, RunnableBinding, RunnableConfig, RunnableParallel, RunnableSequence
from langchain_core.runnables.configurable import DynamicRunnable
from langchain_core.tools import BaseTool
from pydantic import BaseModel, ConfigDict, Field

from ctxfold._lifecycle import not_pickled
from ctxfold.adapters.calls import Invoke, ModelStream, PieceFlow, each, original_error
from ctxfold.compaction.live_prefix import answers_freely
from ctxfold.effects import Flow
from ctxfold.engine.request import Options, check_call, limit_among
from ctxfold.errors import ConfigError
from ctxfold.protocols import Reply, Request
from ctxfold.validation import is_a, kind_of, unpacked
from langchain_ctx.active_call import (
    Caller,
    CallersModel,
    CallersSummarizer,
    calling,
    check_sends_window,
    keeps_sessions,
)
from langchain_ctx.chat_calls import SESSION, ModelCall, SessionChatModel, no_session, reply_id
from langchain_ctx.errors import as_backend_error, translated
from langchain_ctx.inner_model import Pieces, inner_stream
from langchain_ctx.message_lists import leading_count, with_given_prompts
from langchain_ctx.messages import reply_of
from langchain_ctx.models import (
    check_model,
    chosen_model,
    is_configurable,
    model_name,
    model_window,
    returning,
    unknown_window,
)
from langchain_ctx.session_routing import WINDOW, check_fields
from langchain_ctx.sessions import HoldsSessions, KeepsSessions, PoolSettings, Sessions
from langchain_ctx.summarizer import ChatModelSummarizer
from langchain_ctx.tools import counted, is_free

if TYPE_CHECKING:
    from langchain.chat_models.base import (
        _ConfigurableModel,  # pyright: ignore[reportPrivateUsage] - what init_chat_model returns
    )


def result_of(reply: Reply) -> ChatResult:
    """Returns the model's own result, with its message under the id that the session stores."""
    result: ChatResult = reply.raw
    first = result.generations[0]
    message = first.message.model_copy(update={"id": reply.message.id})
    named = ChatGeneration(message=message, generation_info=first.generation_info)
    return ChatResult(generations=[named, *result.generations[1:]], llm_output=result.llm_output)


@overload
def with_context(
    model: BaseChatModel, *, session_id: str | None = None, owner: str = "default", **settings: Unpack[PoolSettings]
) -> ContextChatModel: ...


@overload
def with_context(
    model: _ConfigurableModel,
    *,
    session_id: str | None = None,
    owner: str = "default",
    **settings: Unpack[PoolSettings],
) -> ConfigurableContextModel: ...


@unpacked
def with_context(
    model: BaseChatModel | _ConfigurableModel,
    *,
    session_id: str | None = None,
    owner: str = "default",
    **settings: Unpack[PoolSettings],
) -> ContextChatModel | ConfigurableContextModel:
    """Returns the model with its conversation kept in a session, and its reasoning sent back.

    It takes the model's place in a chain or agent: tools, structured output, profile, callbacks, streaming, cache and rate
    limiter are the model's. Each call may name its session: `config={"configurable": {"session_id": "s1", "owner": "ann"}}` (or
    `thread_id`), which takes precedence over `session_id`. In a graph's run, where a client may have written the config,
    `session_id` comes first, then the thread, and an owner is read from the config only under the key `owner_key`. A call
    without a session is passed on unchanged, with a warning where there is a store and no call has named a session yet.
    `context_window` None takes the `max_input_tokens` of the model's profile, unless `policy` sets the window. Raises ConfigError
    for a thinking model whose reasoning cannot be sent back.

    For `init_chat_model(configurable_fields=...)`, the config of each call selects the model; without `context_window`, each
    request fits the window of the selected model. `summarizer` is a chat model, its name for `init_chat_model`
    ("openai:gpt-5-mini"), or a backend; None is the model of the call.
    """
    check_fields({"session": session_id, "owner": owner})
    configurable = is_configurable(model)
    summarizer = settings.get("summarizer")
    writer = CallersSummarizer(None if summarizer is model else summarizer)
    if isinstance(model, BaseChatModel) or not configurable:
        _check(model)
        writer.seen(cast("BaseChatModel", model))
        if settings.get("context_window") is None and settings.get("policy") is None:
            settings["context_window"] = model_window(model)
            if settings["context_window"] is None:
                raise unknown_window(model)
    sessions = Sessions({**settings, "summarizer": writer}, backend=CallersModel(), of_model=configurable)
    if configurable:
        return ConfigurableContextModel(model, sessions=sessions, writer=writer, session=session_id, owner=owner)
    return _in_sessions(cast("BaseChatModel", model), sessions, session_id, owner)


def _check(model: object) -> None:
    """Raises ConfigError for what is no chat model, and for one whose context cannot be managed."""
    if is_a(model, DynamicRunnable):
        raise ConfigError(
            f"the model of with_context is {kind_of(model)}: give the chat model itself or, for what each call's config sets, "
            "init_chat_model(..., configurable_fields=...)"
        )
    check_model("with_context", model)
    chat = cast("BaseChatModel", model)
    check_sends_window(chat)
    if keeps_sessions(chat):
        raise ConfigError(f"this {type(chat).__name__} keeps sessions of its own: use it as it is, or leave those out")


def _in_sessions(model: BaseChatModel, sessions: Sessions, session: str | None, owner: str) -> ContextChatModel:
    return ContextChatModel(
        inner=returning(model),
        session=session,
        owner=owner,
        sessions=sessions,
        cache=False,  # the model's own is asked with the window; one by the chain's messages would answer for another state
        profile=model.profile,
        output_version=model.output_version,
        disable_streaming=model.disable_streaming,
        callbacks=model.callbacks,
        tags=model.tags,
        metadata=model.metadata,
    )


class ContextChatModel(SessionChatModel):
    """The model that `with_context` returns; `inner` is the model that answers."""

    _passes_window: ClassVar[bool] = False

    inner: BaseChatModel
    session: str | None = None
    owner: str = "default"
    sessions: Sessions | None = Field(default=None, exclude=True, repr=False)

    model_config = ConfigDict(arbitrary_types_allowed=True)

    if not TYPE_CHECKING:

        def __init__(self, **data: Any) -> None:
            check_fields(data)
            super().__init__(**data)

    def _own_sessions(self) -> Sessions | None:
        return self.sessions

    # what it is

    def __repr__(self) -> str:
        inner = f"{type(self.inner).__name__}({model_name(self.inner)!r})"
        where = f"session_id={self.session!r}, owner={self.owner!r}" if self.sessions is None else self._pool().shown
        return f"ContextChatModel({inner}, {where})"

    __str__ = __repr__

    def __reduce__(self) -> NoReturn:
        raise not_pickled(self)

    @property
    def _llm_type(self) -> str:
        return f"ctx-{self.inner._llm_type}"

    @property
    def _identifying_params(self) -> builtins.dict[str, Any]:
        inner: Any = self.inner
        return {**inner._identifying_params, "session": self.session, "owner": self.owner}

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        inner: Any = self.inner
        return cast("LangSmithParams", inner._get_ls_params(stop=stop, **kwargs))

    def get_num_tokens(self, text: str) -> int:
        return self.inner.get_num_tokens(text)

    def get_num_tokens_from_messages(self, messages: list[BaseMessage], tools: Sequence[Any] | None = None) -> int:
        return self.inner.get_num_tokens_from_messages(messages, tools)

    def bind_tools(
        self,
        tools: Sequence[builtins.dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: str | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Binds tools in the same way as the inner model."""
        chosen = {} if tool_choice is None else {"tool_choice": tool_choice}
        return cast(
            "Runnable[LanguageModelInput, AIMessage]", self._in_place(self.inner.bind_tools(tools, **chosen, **kwargs))
        )

    def with_structured_output(
        self, schema: builtins.dict[str, Any] | type, *, include_raw: bool = False, **kwargs: Any
    ) -> Runnable[LanguageModelInput, builtins.dict[str, Any] | BaseModel]:
        """Returns the chain that the inner model's own method makes, with this model in it."""
        chain = self.inner.with_structured_output(schema, include_raw=include_raw, **kwargs)
        return cast("Runnable[LanguageModelInput, builtins.dict[str, Any] | BaseModel]", self._in_place(chain))

    def _in_place(self, chain: Any) -> Any:
        """Returns the chain that the inner model made, with this model in place of the inner one."""
        # another than the inner one is a copy of it for another address or with other settings
        return _placed(chain, lambda model: self if model is self.inner else self.model_copy(update={"inner": model}))

    # answering

    def _split_arguments(self, call: ModelCall) -> tuple[Options, builtins.dict[str, Any]]:
        """Returns what the engine of the call's session has to know, and the arguments for the model."""
        kwargs = call.kwargs
        check_call(kwargs)
        window = kwargs.get(WINDOW)
        if window is None and self.sessions is not None:
            window = self.sessions.window_of(self.inner)
        options = Options(tools=counted(kwargs.get("tools")), max_tokens=limit_among(kwargs), context_window=window)
        return options, {name: value for name, value in call.kwargs.items() if name not in (SESSION, WINDOW)}

    def _caller(self, call: ModelCall, options: Options, rest: builtins.dict[str, Any], **ways: Any) -> Caller:
        """Returns how this call asks the model; a summary on the live prefix gets the same arguments."""
        summaries = ChatModelSummarizer(self.inner, rest, call.messages[: leading_count(call.messages)])
        return Caller(
            self.inner,
            repeat=summaries.answer,
            repeats=lambda request: (
                is_free(rest.get("tool_choice"))
                and answers_freely(rest.keys() - {"tool_choice"})
                and request.tools == options.tools
            ),
            **ways,
        )

    def _window(self, call: ModelCall, window: Request) -> list[BaseMessage]:
        """Returns the model's messages of a window; the list's own system messages stay as they were given."""
        if self.sessions is None or call.address is None:
            raise no_session()
        messages = self.sessions.windows.window_for(call.address.key, self.inner, window)
        return with_given_prompts(messages, call.messages[: leading_count(call.messages)])

    def _generate_with_cache(self, *args: Any, **kwargs: Any) -> ChatResult:
        """Skips what LangChain's base class does here: the inner model caches, limits and streams to listeners itself."""
        return self._generate(*args, **kwargs)

    async def _agenerate_with_cache(self, *args: Any, **kwargs: Any) -> ChatResult:
        return await self._agenerate(*args, **kwargs)

    def _answer(self, call: ModelCall) -> Flow[ChatResult]:
        inner: Any = self.inner
        # with the model's cache and rate limiter; its tokens are told to this call's listeners
        generate = partial(
            Invoke,
            inner._generate_with_cache,
            inner._agenerate_with_cache,
            stop=call.stop,
            run_manager=call.run_manager,
        )
        if call.address is None:
            return cast("ChatResult", (yield from generate(call.messages, **call.kwargs)))
        options, rest = self._split_arguments(call)

        def answer(window: Request) -> Flow[Reply]:
            with as_backend_error(model_name(inner)):
                result: ChatResult = yield from generate(self._window(call, window), **rest)
                message = result.generations[0].message
                return reply_of(message if message.id else message.model_copy(update={"id": reply_id()}), result)

        with translated(), original_error(), calling(self._caller(call, options, rest, answer=answer)):
            conversation = self._conversation(call, options, reply_id())
            return result_of((yield from Invoke(conversation.ask, conversation.aask)))

    def _should_stream(self, *, async_api: bool, run_manager: Any = None, **kwargs: Any) -> bool:
        inner: Any = self.inner
        answers = inner._should_stream(async_api=async_api, run_manager=run_manager, **{**kwargs, "stream": True})
        return bool(answers) and super()._should_stream(async_api=async_api, run_manager=run_manager, **kwargs)

    def _pieces(self, call: ModelCall) -> PieceFlow[ChatGenerationChunk]:
        inner: Any = self.inner
        stream = partial(Invoke, inner._stream, inner._astream, stop=call.stop)
        if call.address is None:
            yield from each((yield from stream(call.messages, **call.kwargs)))
            return
        options, rest = self._split_arguments(call)
        pieces = Pieces(reply_id(call.run_manager))

        def begin(window: Request) -> Flow[ModelStream[ChatGenerationChunk]]:
            if (limiter := inner.rate_limiter) is not None:
                yield from Invoke(limiter.acquire, limiter.aacquire, blocking=True)
            source = yield from stream(self._window(call, window), **rest)
            return (yield from inner_stream(source, model_name(inner), pieces, inner.output_version))

        conversation = self._conversation(call, options, pieces.reply_id)
        caller = self._caller(call, options, rest, stream=begin)
        with translated(), original_error():
            events = yield from Invoke(conversation.stream, conversation.astream)
            yield from each(events, lambda _: pieces.take(), partial(calling, caller))
            yield from pieces.take()

    def close(self) -> None:
        """Closes the store that was opened for this model; the inner model belongs to its creator."""
        if self.sessions is not None:
            self.sessions.close()

    async def aclose(self) -> None:
        if self.sessions is not None:
            await self.sessions.aclose()


class ConfigurableContextModel(Runnable[LanguageModelInput, Any], HoldsSessions, KeepsSessions):
    """The result of `with_context` for a model that the config of each call selects; the selected models share the sessions."""

    def __init__(
        self,
        configurable: Runnable[LanguageModelInput, Any],
        *,
        sessions: Sessions,
        writer: CallersSummarizer,
        session: str | None,
        owner: str,
    ) -> None:
        self._configurable = configurable
        self._sessions = sessions
        self._writer = writer
        self._session = session
        self._owner = owner

    def chosen(self, config: RunnableConfig | None = None) -> Runnable[LanguageModelInput, Any]:
        """Returns the model that this config selects, with its context managed and with all bound arguments."""
        return cast(
            "Runnable[LanguageModelInput, Any]", _placed(chosen_model(self._configurable, config), self._managed)
        )

    def _managed(self, model: BaseChatModel) -> ContextChatModel:
        _check(model)
        self._writer.seen(model)
        return _in_sessions(model, self._sessions, self._session, self._owner)

    def invoke(self, input: LanguageModelInput, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return self.chosen(config).invoke(input, config, **kwargs)

    async def ainvoke(self, input: LanguageModelInput, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return await self.chosen(config).ainvoke(input, config, **kwargs)

    def stream(self, input: LanguageModelInput, config: RunnableConfig | None = None, **kwargs: Any) -> Iterator[Any]:
        return self.chosen(config).stream(input, config, **kwargs)

    def astream(
        self, input: LanguageModelInput, config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[Any]:
        return self.chosen(config).astream(input, config, **kwargs)

    def bind_tools(
        self, tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool], **kwargs: Any
    ) -> ConfigurableContextModel:
        """Binds tools to the model that a call selects."""
        return self._with(cast("Any", self._configurable).bind_tools(tools, **kwargs))

    def with_structured_output(self, schema: dict[str, Any] | type, **kwargs: Any) -> ConfigurableContextModel:
        """Returns the chain that the selected model's own method makes, with its context managed."""
        return self._with(cast("Any", self._configurable).with_structured_output(schema, **kwargs))

    def _with(self, configurable: Runnable[LanguageModelInput, Any]) -> ConfigurableContextModel:
        return ConfigurableContextModel(
            configurable, sessions=self._sessions, writer=self._writer, session=self._session, owner=self._owner
        )


def _placed(chain: Any, of: Callable[[BaseChatModel], BaseChatModel]) -> Any:
    """Returns the chain that a model's methods made, with another model in place of each."""
    known: Any = chain  # the patterns below would lose its type
    match chain:
        case RunnableBinding():
            return known.model_copy(update={"bound": _placed(known.bound, of)})
        case RunnableSequence():
            return RunnableSequence[Any, Any](*(_placed(step, of) for step in known.steps))
        case RunnableParallel():
            return RunnableParallel[Any]({name: _placed(step, of) for name, step in known.steps__.items()})
        case BaseChatModel():
            return of(known)
        case _:
            return known
