"""Defines `with_context`, which manages the context of any LangChain chat model in an existing chain."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, Self, Unpack, cast, overload

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.language_models.base import LangSmithParams
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import (
    Runnable,
    RunnableBinding,
    RunnableConfig,
    RunnableParallel,
    RunnableSequence,
    ensure_config,
)
from langchain_core.runnables.configurable import DynamicRunnable
from langchain_core.tools import BaseTool
from pydantic import BaseModel, ConfigDict, Field

from ctxfold._lifecycle import Closing, not_pickled
from ctxfold.adapters.model_calls import ModelStream, aeach_within, each_within, original_error
from ctxfold.compaction.live_prefix import answers_freely
from ctxfold.engine.request import Options, check_call, limit_among
from ctxfold.errors import ConfigError
from ctxfold.protocols import Reply, Request, Store, TokenCounter
from ctxfold.tokens.text import TextCounter
from ctxfold.validation import is_a, kind_of
from langchain_ctx.active_model import (
    Caller,
    CallersModel,
    CallersSummarizer,
    calling,
    check_sends_window,
    keeps_sessions,
)
from langchain_ctx.chat_calls import SESSION, WINDOW, no_session, reply_id, turn_input_of, with_window
from langchain_ctx.conversation import Conversation
from langchain_ctx.errors import as_backend_error, translated
from langchain_ctx.inner_model import Pieces, inner_stream
from langchain_ctx.message_lists import leading_count, with_given_prompts
from langchain_ctx.messages import from_langchain
from langchain_ctx.models import chosen_model, is_configurable, model_name, model_window, unknown_window
from langchain_ctx.reasoning import check_model, returning
from langchain_ctx.session_routing import Address, AddressedChatModel, address_of_call, check_fields
from langchain_ctx.sessions import ContextSettings, HoldsSessions, KeepsSessions, PoolOf, Sessions
from langchain_ctx.summarizer import ChatModelSummarizer
from langchain_ctx.tools import counted, is_free

if TYPE_CHECKING:
    from langchain.chat_models.base import (
        _ConfigurableModel,  # pyright: ignore[reportPrivateUsage] - what init_chat_model returns
    )


def options_of(kwargs: Mapping[str, Any]) -> Options:
    """Returns what the engine has to know of a call's arguments: what takes room, and how much there is."""
    check_call(kwargs)
    return Options(
        tools=counted(kwargs.get("tools")),
        max_tokens=limit_among(kwargs),
        context_window=kwargs.get(WINDOW),
    )


def reply_of(result: ChatResult) -> Reply:
    answer = result.generations[0].message
    message = from_langchain(answer if answer.id else answer.model_copy(update={"id": reply_id()}))
    return Reply(message, message.usage, message.finish_reason, result)


def result_of(reply: Reply) -> ChatResult:
    """Returns the model's own result, with its message under the id that the session stores."""
    result: ChatResult = reply.raw
    first = result.generations[0]
    message = first.message.model_copy(update={"id": reply.message.id})
    named = ChatGeneration(message=message, generation_info=first.generation_info)
    return ChatResult(generations=[named, *result.generations[1:]], llm_output=result.llm_output)


@overload
def with_context(
    model: BaseChatModel,
    *,
    session_id: str | None = None,
    store: str | Store | None = None,
    context_window: int | None = None,
    owner: str = "default",
    summarizer: Any = None,
    counter: TokenCounter | TextCounter | None = None,
    **settings: Unpack[ContextSettings],
) -> ContextChatModel: ...


@overload
def with_context(
    model: _ConfigurableModel,
    *,
    session_id: str | None = None,
    store: str | Store | None = None,
    context_window: int | None = None,
    owner: str = "default",
    summarizer: Any = None,
    counter: TokenCounter | TextCounter | None = None,
    **settings: Unpack[ContextSettings],
) -> ConfigurableContextModel: ...


def with_context(
    model: BaseChatModel | _ConfigurableModel,
    *,
    session_id: str | None = None,
    store: str | Store | None = None,
    context_window: int | None = None,
    owner: str = "default",
    summarizer: Any = None,
    counter: TokenCounter | TextCounter | None = None,
    **settings: Unpack[ContextSettings],
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
    writer = CallersSummarizer(None if summarizer is model else summarizer)
    if isinstance(model, BaseChatModel) or not configurable:
        _check(model)
        writer.seen(cast("BaseChatModel", model))
        if context_window is None and settings.get("policy") is None:
            context_window = model_window(model)
            if context_window is None:
                raise unknown_window(model)
    sessions = Sessions(
        store=store,
        context_window=context_window,
        backend=CallersModel(),
        summarizer=writer,
        counter=counter,
        of_model=configurable,
        settings=settings,
    )
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


class ContextChatModel(AddressedChatModel, KeepsSessions, Closing):
    """The model that `with_context` returns; `inner` is the model that answers."""

    inner: BaseChatModel
    session: str | None = None
    owner: str = "default"
    sessions: Sessions | None = Field(default=None, exclude=True, repr=False)

    model_config = ConfigDict(arbitrary_types_allowed=True)

    if not TYPE_CHECKING:

        def __init__(self, **data: Any) -> None:
            check_fields(data)
            super().__init__(**data)

    def _pool(self) -> PoolOf:
        if self.sessions is None:
            raise no_session()
        return PoolOf(self.sessions, self.session, self.owner)

    # what it is

    def __repr__(self) -> str:
        inner = f"{type(self.inner).__name__}({model_name(self.inner)!r})"
        where = f"session_id={self.session!r}, owner={self.owner!r}" if self.sessions is None else self._pool().shown
        return f"ContextChatModel({inner}, {where})"

    __str__ = __repr__

    def __deepcopy__(self, memo: builtins.dict[int, Any] | None = None) -> Self:
        """Returns a copy over the same sessions and the same inner model, whose connections cannot be copied."""
        return self.model_copy()

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

    # whose session

    def _with_session(
        self, config: RunnableConfig | None, kwargs: builtins.dict[str, Any], prompt: object
    ) -> builtins.dict[str, Any]:
        if SESSION in kwargs:
            return kwargs
        config = ensure_config(config)
        configurable = config.get("configurable", {})
        if self.sessions is None:
            return kwargs
        address = address_of_call(config, self.sessions.names(self.session, self.owner), prompt, kwargs)
        if address is None:
            self.sessions.expect_name(configurable)
            return kwargs
        return {**with_window(configurable, kwargs), SESSION: address.as_argument()}

    def _split_arguments(
        self, messages: Sequence[BaseMessage], kwargs: builtins.dict[str, Any]
    ) -> tuple[Address | None, Options, builtins.dict[str, Any]]:
        """Returns the call's session, what its engine has to know, and the arguments for the model."""
        kwargs = self._with_session(None, kwargs, messages)
        named = kwargs.get(SESSION)
        if named is None:
            return None, Options(), kwargs
        rest = {name: value for name, value in kwargs.items() if name not in (SESSION, WINDOW)}
        options = options_of(kwargs)
        if options.context_window is None and self.sessions is not None:
            options = replace(options, context_window=self.sessions.window_of(self.inner))
        return Address.of(named), options, rest

    def _converter(
        self, sessions: Sessions, address: Address, messages: Sequence[BaseMessage]
    ) -> Callable[[Request], list[BaseMessage]]:
        """Returns what makes the model's messages of a window; the list's own system messages stay as they were given."""
        given = messages[: leading_count(messages)]
        return lambda window: with_given_prompts(sessions.windows.window_for(address.key, self.inner, window), given)

    def _caller(
        self, messages: Sequence[BaseMessage], options: Options, rest: builtins.dict[str, Any], **ways: Any
    ) -> Caller:
        """Returns how this call asks the model; a summary on the live prefix gets the same arguments."""
        summaries = ChatModelSummarizer(self.inner, rest, messages[: leading_count(messages)])
        return Caller(
            self.inner,
            repeat=summaries.send,
            arepeat=summaries.asend,
            repeats=lambda request: (
                is_free(rest.get("tool_choice"))
                and answers_freely(rest.keys() - {"tool_choice"})
                and request.tools == options.tools
            ),
            **ways,
        )

    # answering

    def _generate_with_cache(self, *args: Any, **kwargs: Any) -> ChatResult:
        """Skips what LangChain's base class does here: the inner model caches, limits and streams to listeners itself."""
        return self._generate(*args, **kwargs)

    async def _agenerate_with_cache(self, *args: Any, **kwargs: Any) -> ChatResult:
        return await self._agenerate(*args, **kwargs)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        address, options, rest = self._split_arguments(messages, kwargs)
        inner: Any = self.inner
        name = model_name(inner)

        # with the model's cache and rate limiter; its tokens are told to this call's listeners
        generate = partial(inner._generate_with_cache, stop=stop, run_manager=run_manager, **rest)
        if address is None or self.sessions is None:
            return cast("ChatResult", generate(messages))
        convert = self._converter(self.sessions, address, messages)

        def send(window: Request) -> Reply:
            with as_backend_error(name):
                return reply_of(generate(convert(window)))

        with translated(), original_error(), calling(self._caller(messages, options, rest, send=send)):
            turn_input = turn_input_of(address.key, messages, options, reply_id())
            return result_of(Conversation(self.sessions, address, turn_input).ask())

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        address, options, rest = self._split_arguments(messages, kwargs)
        inner: Any = self.inner
        name = model_name(inner)

        generate = partial(inner._agenerate_with_cache, stop=stop, run_manager=run_manager, **rest)
        if address is None or self.sessions is None:
            return cast("ChatResult", await generate(messages))
        convert = self._converter(self.sessions, address, messages)

        async def asend(window: Request) -> Reply:
            with as_backend_error(name):
                return reply_of(await generate(convert(window)))

        with translated(), original_error(), calling(self._caller(messages, options, rest, asend=asend)):
            turn_input = turn_input_of(address.key, messages, options, reply_id())
            return result_of(await Conversation(self.sessions, address, turn_input).aask())

    def _should_stream(self, *, async_api: bool, run_manager: Any = None, **kwargs: Any) -> bool:
        inner: Any = self.inner
        answers = inner._should_stream(async_api=async_api, run_manager=run_manager, **{**kwargs, "stream": True})
        return bool(answers) and super()._should_stream(async_api=async_api, run_manager=run_manager, **kwargs)

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        address, options, rest = self._split_arguments(messages, kwargs)
        inner: Any = self.inner
        name = model_name(inner)
        pieces = Pieces(reply_id(run_manager))
        if address is None or self.sessions is None:
            yield from inner._stream(messages, stop=stop, **rest)
            return
        convert = self._converter(self.sessions, address, messages)

        def open_stream(window: Request) -> ModelStream[ChatGenerationChunk]:
            if inner.rate_limiter:
                inner.rate_limiter.acquire(blocking=True)
            source = inner._stream(convert(window), stop=stop, **rest)
            return inner_stream(source, name, pieces, inner.output_version).begin()

        turn_input = turn_input_of(address.key, messages, options, pieces.reply_id)
        caller = self._caller(messages, options, rest, open_stream=open_stream)
        with translated(), original_error():
            events = Conversation(self.sessions, address, turn_input).stream()
            with closing(each_within(events, partial(calling, caller))) as seen:
                for _ in seen:
                    yield from pieces.take()
            yield from pieces.take()

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        address, options, rest = self._split_arguments(messages, kwargs)
        inner: Any = self.inner
        name = model_name(inner)
        pieces = Pieces(reply_id(run_manager))
        if address is None or self.sessions is None:
            async for piece in inner._astream(messages, stop=stop, **rest):
                yield piece
            return
        convert = self._converter(self.sessions, address, messages)

        async def aopen_stream(window: Request) -> ModelStream[ChatGenerationChunk]:
            if inner.rate_limiter:
                await inner.rate_limiter.aacquire(blocking=True)
            source = inner._astream(convert(window), stop=stop, **rest)
            return await inner_stream(source, name, pieces, inner.output_version).abegin()

        turn_input = turn_input_of(address.key, messages, options, pieces.reply_id)
        caller = self._caller(messages, options, rest, aopen_stream=aopen_stream)
        with translated(), original_error():
            events = Conversation(self.sessions, address, turn_input).astream()
            async with aclosing(aeach_within(events, partial(calling, caller))) as seen:
                async for _ in seen:
                    for piece in pieces.take():
                        yield piece
            for piece in pieces.take():
                yield piece

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
