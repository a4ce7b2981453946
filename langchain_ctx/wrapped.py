"""`with_context`: any LangChain chat model in an existing chain, with its context managed."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, closing
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.language_models.base import LangSmithParams
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.runnables import (
    Runnable,
    RunnableBinding,
    RunnableConfig,
    RunnableParallel,
    RunnableSequence,
    ensure_config,
)
from langchain_core.tools import BaseTool
from pydantic import BaseModel, ConfigDict, Field

from ctxfold.closing import Closing
from ctxfold.errors import ConfigError
from ctxfold.given import name_or_own
from ctxfold.ports import Reply, Request, Store, TokenCounter
from ctxfold.session import AgentContext
from ctxfold.tokens import TextCounter
from langchain_ctx.addressed import AddressedChatModel
from langchain_ctx.asking import SESSION, no_session
from langchain_ctx.calling import (
    Caller,
    CallersModel,
    CallersSummarizer,
    calling,
    failing_as_it_did,
    keeps_sessions,
    model_name,
)
from langchain_ctx.conversing import Conversation
from langchain_ctx.errors import as_backend_error, translated
from langchain_ctx.foreign import asked
from langchain_ctx.keys import Address, called, check_fields, key_or_own
from langchain_ctx.reasoning import check_reasoning, returning
from langchain_ctx.sessions import Sessions
from langchain_ctx.streaming import InnerStream, Pieces
from langchain_ctx.wrapped_call import aeach, each, new_id, question_of, reply_of, result_of

__all__ = ["ContextChatModel", "with_context"]


def with_context(
    model: BaseChatModel,
    *,
    session: str | None = None,
    store: str | Store | None = None,
    context_window: int | None = None,
    owner: str = "default",
    summarizer: Any = None,
    counter: TokenCounter | TextCounter | None = None,
    max_tokens: int | None = None,
    **policy: object,
) -> ContextChatModel:
    """The model with its conversation kept in a session, and its reasoning sent back.

    It takes the model's place in a chain or agent: tools, structured output, profile, callbacks, streaming, cache and rate
    limiter are the model's. Each call may name its session: `config={"configurable": {"session_id": "s1", "owner": "ann"}}`
    (`thread_id` serves too), which beats `session`; a call without any is passed on as it is. `context_window` None takes the
    profile's. ConfigError for a thinking model whose reasoning cannot be sent back.
    """
    check_fields({"session": session, "owner": owner})
    check_reasoning(model)
    if keeps_sessions(model):
        raise ConfigError(f"this {type(model).__name__} keeps sessions of its own: use it as it is, or leave those out")
    known: Any = (model.profile or {}).get("max_input_tokens")
    writer = CallersSummarizer()
    writer.seen(model)
    return ContextChatModel(
        inner=returning(model),
        session=session,
        owner=owner,
        sessions=Sessions(
            store=store,
            context_window=known if context_window is None else context_window,
            backend=CallersModel(),
            summarizer=writer if summarizer is None else summarizer,
            counter=counter,
            max_tokens=max_tokens,
            policy=policy,
        ),
        cache=False,  # the model's own is asked with the window; one by the chain's messages would answer for another state
        profile=model.profile,
        output_version=model.output_version,
        disable_streaming=model.disable_streaming,
        callbacks=model.callbacks,
        tags=model.tags,
        metadata=model.metadata,
    )


class ContextChatModel(AddressedChatModel, Closing):
    """What `with_context` gives; `inner` is the model that answers."""

    inner: BaseChatModel
    session: str | None = None
    owner: str = "default"
    sessions: Sessions | None = Field(default=None, exclude=True, repr=False)

    model_config = ConfigDict(arbitrary_types_allowed=True)

    if not TYPE_CHECKING:

        def __init__(self, **data: Any) -> None:
            check_fields(data)
            super().__init__(**data)

    def context(self, session: str | None = None, *, owner: str | None = None) -> AgentContext:
        """A session of this model: window, usage, pins, explain, export; the field's own when none is named."""
        if self.sessions is None:
            raise no_session()
        key = key_or_own(session, owner, self.session, self.owner)
        return self.sessions.at(key.session, key.owner)

    # what it is

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
        """As the model binds them."""
        chosen = {} if tool_choice is None else {"tool_choice": tool_choice}
        return cast(
            "Runnable[LanguageModelInput, AIMessage]", self._in_place(self.inner.bind_tools(tools, **chosen, **kwargs))
        )

    def with_structured_output(
        self, schema: builtins.dict[str, Any] | type, *, include_raw: bool = False, **kwargs: Any
    ) -> Runnable[LanguageModelInput, builtins.dict[str, Any] | BaseModel]:
        """As the model does it."""
        chain = self.inner.with_structured_output(schema, include_raw=include_raw, **kwargs)
        return cast("Runnable[LanguageModelInput, builtins.dict[str, Any] | BaseModel]", self._in_place(chain))

    def _in_place(self, chain: Any) -> Any:
        """What the model made of itself, made of this one."""
        known: Any = chain  # the patterns below would lose its type
        match chain:
            case RunnableBinding():
                return known.model_copy(update={"bound": self._in_place(known.bound)})
            case RunnableSequence():
                return RunnableSequence[Any, Any](*(self._in_place(step) for step in known.steps))
            case RunnableParallel():
                return RunnableParallel[Any]({name: self._in_place(step) for name, step in known.steps__.items()})
            case BaseChatModel() if known is self.inner:
                return self
            case BaseChatModel():  # a copy for another address or with other settings
                return self.model_copy(update={"inner": known})
            case _:
                return known

    # whose session

    def _addressed(
        self, config: RunnableConfig | None, kwargs: builtins.dict[str, Any], given: object
    ) -> builtins.dict[str, Any]:
        if SESSION in kwargs:
            return kwargs
        address = called(ensure_config(config).get("configurable", {}), self.session, self.owner, given)
        return kwargs if address is None else {**kwargs, SESSION: address.told()}

    def _parted(
        self, messages: Sequence[BaseMessage], kwargs: builtins.dict[str, Any]
    ) -> tuple[Address | None, builtins.dict[str, Any]]:
        """The call's session, and the arguments for the model."""
        kwargs = self._addressed(None, kwargs, messages)
        named = kwargs.get(SESSION)
        rest = {name: value for name, value in kwargs.items() if name != SESSION}
        return (None if named is None else Address.of(named)), rest

    # answering

    def _generate_with_cache(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        """What the base does here, the model does with the window: caching, limiting, streaming to listeners."""
        return self._generate(messages, stop=stop, run_manager=run_manager, **kwargs)

    async def _agenerate_with_cache(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return await self._agenerate(messages, stop=stop, run_manager=run_manager, **kwargs)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        address, rest = self._parted(messages, kwargs)
        inner: Any = self.inner

        def send(window: Request) -> Reply:
            with as_backend_error(model_name(inner)):
                return reply_of(generate(asked(window.messages)))

        # with the model's cache and rate limiter; its tokens are told to this call's listeners
        generate = partial(inner._generate_with_cache, stop=stop, run_manager=run_manager, **rest)
        if address is None or self.sessions is None:
            return cast("ChatResult", generate(messages))
        with translated(), failing_as_it_did(), calling(Caller(inner, send=send)):
            return result_of(
                Conversation(self.sessions, address, question_of(address.key, messages, rest, new_id())).ask()
            )

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        address, rest = self._parted(messages, kwargs)
        inner: Any = self.inner

        async def asend(window: Request) -> Reply:
            with as_backend_error(model_name(inner)):
                return reply_of(await generate(asked(window.messages)))

        generate = partial(inner._agenerate_with_cache, stop=stop, run_manager=run_manager, **rest)
        if address is None or self.sessions is None:
            return cast("ChatResult", await generate(messages))
        with translated(), failing_as_it_did(), calling(Caller(inner, asend=asend)):
            question = question_of(address.key, messages, rest, new_id())
            return result_of(await Conversation(self.sessions, address, question).aask())

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
        address, rest = self._parted(messages, kwargs)
        inner: Any = self.inner
        pieces = Pieces(new_id(run_manager))

        def open_stream(window: Request) -> InnerStream:
            if inner.rate_limiter:
                inner.rate_limiter.acquire(blocking=True)
            source = inner._stream(asked(window.messages), stop=stop, **rest)
            return InnerStream(source, model_name(inner), pieces, inner.output_version).begin()

        if address is None or self.sessions is None:
            yield from inner._stream(messages, stop=stop, **rest)
            return
        question = question_of(address.key, messages, rest, pieces.reply_id)
        caller = Caller(inner, open_stream=open_stream)
        with translated(), failing_as_it_did():
            events = Conversation(self.sessions, address, question).stream()
            with closing(events), closing(each(events, caller)) as seen:
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
        address, rest = self._parted(messages, kwargs)
        inner: Any = self.inner
        pieces = Pieces(new_id(run_manager))

        async def aopen_stream(window: Request) -> InnerStream:
            if inner.rate_limiter:
                await inner.rate_limiter.aacquire(blocking=True)
            source = inner._astream(asked(window.messages), stop=stop, **rest)
            return await InnerStream(source, model_name(inner), pieces, inner.output_version).abegin()

        if address is None or self.sessions is None:
            async for piece in inner._astream(messages, stop=stop, **rest):
                yield piece
            return
        question = question_of(address.key, messages, rest, pieces.reply_id)
        caller = Caller(inner, aopen_stream=aopen_stream)
        with translated(), failing_as_it_did():
            events = Conversation(self.sessions, address, question).astream()
            async with aclosing(events), aclosing(aeach(events, caller)) as seen:
                async for _ in seen:
                    for piece in pieces.take():
                        yield piece
            for piece in pieces.take():
                yield piece

    def erase(self, thread: object, *, owner: str | None = None) -> tuple[str, ...]:
        """Erase all that is stored of a thread, its branches and places in graphs included, past recovery; the sessions' names."""
        if self.sessions is None:
            raise no_session()
        return self.sessions.erase(thread, name_or_own("owner", owner, self.owner))

    async def aerase(self, thread: object, *, owner: str | None = None) -> tuple[str, ...]:
        if self.sessions is None:
            raise no_session()
        return await self.sessions.aerase(thread, name_or_own("owner", owner, self.owner))

    def close(self) -> None:
        """Close the store that was opened for this model; the model itself belongs to whoever made it."""
        if self.sessions is not None:
            self.sessions.close()

    async def aclose(self) -> None:
        if self.sessions is not None:
            await self.sessions.aclose()
