"""`ChatCtx`: a LangChain chat model over any provider with a row, with its context managed when a session is given."""

from __future__ import annotations

import builtins
import os
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

from langchain_core.language_models import LanguageModelInput, ModelProfile
from langchain_core.language_models.base import LangSmithParams
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.messages.block_translators import get_translator
from langchain_core.runnables import Runnable, RunnableConfig, ensure_config
from langchain_core.tools import BaseTool
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, SecretStr, field_serializer, model_validator

from ctxfold.closing import Closing
from ctxfold.connect import message_counter, open_backend
from ctxfold.given import name_or_own, shown_url
from ctxfold.ports import ContextBackend, TokenCounter
from ctxfold.session import AgentContext
from langchain_ctx import asking, structured
from langchain_ctx.answering import AnsweringChatModel
from langchain_ctx.convert import from_langchain
from langchain_ctx.described import model_profile, package_version
from langchain_ctx.keys import called, check_fields, key_or_own
from langchain_ctx.sessions import Sessions
from langchain_ctx.tools import bound_tools, choice, specs

__all__ = ["ChatCtx"]


class ChatCtx(AnsweringChatModel, Closing):
    """A chat model whose conversation may outgrow its window.

    Setup:
        `pip install "ctxfold[langchain]"`; the provider's key in its environment variable or as `api_key`.

    Instantiate:
        ```python
        chat = ChatCtx(model="lookup", base_url="http://127.0.0.1:9000/v1", api_key="x",
                       session="s1", store="sqlite:///chat.db", context_window=8_000)
        ```
        `provider` names a row ("deepseek", "openai", "anthropic", ...), which also says in which wire it is spoken to.
        Without `session` and `store` it is a plain chat model. With `store`, each call may name its session and owner:
        `config={"configurable": {"session_id": "s1", "owner": "ann"}}` (`thread_id` serves too); these beat the fields.
        What a session does with lists, batches, retries, fallbacks and caches stands in docs/langchain-sessions.md.

    Invoke:
        `chat.invoke("hello")`; reasoning is in `additional_kwargs["reasoning_content"]` and in `content_blocks`.

    Stream:
        `for chunk in chat.stream("hello"): ...`; the chunks carry the id under which the reply is stored.

    Async:
        `await chat.ainvoke("hello")`, `async for chunk in chat.astream("hello"): ...`

    Tool calling:
        `chat.bind_tools([tool]).invoke("...").tool_calls`

    Structured output:
        `chat.with_structured_output(Schema, method="json_schema").invoke("...")`

    Token usage:
        `reply.usage_metadata`, with cached and reasoning tokens where the provider tells them.
    """

    model: str = ""
    provider: str = "generic"
    base_url: str | None = None
    api_key: SecretStr | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    timeout: float | None = None
    max_retries: int = 2
    stop: list[str] | None = None
    streaming: bool = False
    thinking: bool | str | None = None
    extra_body: builtins.dict[str, Any] = Field(default_factory=builtins.dict)
    session: str | None = None
    owner: str = "default"
    store: Any = Field(default=None, exclude=True)
    context_window: int | None = None
    summarizer: Any = Field(default=None, exclude=True)
    counter: Any = Field(default=None, exclude=True)
    on_abort: Literal["discard", "keep_partial"] = "discard"
    policy: builtins.dict[str, Any] = Field(default_factory=builtins.dict)
    backend: Any = Field(default=None, exclude=True)

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    _token_counter: TokenCounter | None = PrivateAttr(default=None)

    if not TYPE_CHECKING:

        def __init__(self, **data: Any) -> None:
            check_fields(data)
            super().__init__(**data)
            # not in a validator: pydantic would wrap a ConfigError into an error of its own
            self._connect()

    @field_serializer("base_url")
    def _without_secrets(self, base_url: str | None) -> str | None:
        return shown_url(base_url) if base_url else base_url

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        shown = {"base_url": self._without_secrets(self.base_url)}
        return [(name, shown.get(name or "", value)) for name, value in super().__repr_args__()]

    @model_validator(mode="after")
    def _set_ctxfold_version(self) -> Self:
        self._add_version("ctxfold", package_version())
        return self

    def _connect(self) -> None:
        self._backend = self.backend or open_backend(
            self.provider,
            self.model,
            base_url=self.base_url,
            api_key=self.api_key,
            timeout_s=self.timeout,
            max_retries=self.max_retries,
            thinking=self.thinking,
        )
        if self.backend is None:
            weakref.finalize(self, self._backend.close)  # models are often thrown away without close
        self.model = self.model or self._backend.model
        if self.profile is None:
            self.profile = self._resolve_model_profile()
        profile = getattr(self._backend, "profile", None)
        variable = getattr(profile, "key_env", None)
        if self.api_key is None and variable:
            self.api_key = SecretStr(os.environ.get(variable, ""))
        if self.session is None and self.store is None:
            return
        if "cache" not in self.model_fields_set:
            self.cache = False  # a cached answer would belong to another state of the session
        self._sessions = Sessions(
            store=self.store,
            context_window=self.context_window,
            backend=self._backend,
            summarizer=self.summarizer,
            counter=self.counter,
            max_tokens=self.max_tokens,
            policy=self.policy,
        )
        if self.session is not None:
            try:
                self._sessions.at(*self._named(None, None))
            except BaseException:
                self._sessions.close()
                raise
        if self.store is None:
            self.store = self._sessions.store  # a copy made by configurable_fields goes on with the same memory

    # what it is

    @property
    def _llm_type(self) -> str:
        return "chat-ctx"

    @property
    def _identifying_params(self) -> builtins.dict[str, Any]:
        names = (
            "provider",
            "base_url",
            "temperature",
            "max_tokens",
            "stop",
            "thinking",
            "extra_body",
            "session",
            "owner",
            "output_version",
        )
        # trace metadata: seen by whoever sees the traces
        address = self._without_secrets(self.base_url)
        return {"model": self.model, **{name: getattr(self, name) for name in names}, "base_url": address}

    def _resolve_model_profile(self) -> ModelProfile | None:
        if self._backend is None:  # asked by a validator, before there is one
            return None
        return model_profile(self._backend, context_window=self.context_window, max_tokens=self.max_tokens)

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        told = super()._get_ls_params(stop=stop or self.stop, **kwargs)
        told["ls_provider"] = self._provider_name
        return told

    @property
    def _provider_name(self) -> str:
        """The row's name; another one where LangChain would read replies as that provider's own package writes them."""
        return f"ctx-{self.provider}" if get_translator(self.provider) else self.provider

    @property
    def context_backend(self) -> ContextBackend:
        """The service behind it, without any session."""
        return self._backend  # type: ignore[no-any-return]

    def context(self, session: str | None = None, *, owner: str | None = None) -> AgentContext:
        """A session of this model: window, usage, pins, explain, export; the field's own when none is named."""
        if self._sessions is None:
            raise asking.no_session()
        return self._sessions.at(*self._named(session, owner))

    def get_num_tokens(self, text: str) -> int:
        return self._counter().count_text(text)

    def get_num_tokens_from_messages(self, messages: list[BaseMessage], tools: Sequence[Any] | None = None) -> int:
        """What the messages cost as they are sent: reasoning, tool calls and media are counted, and the tools."""
        counter = self._counter()
        return sum(counter.count(from_langchain(m)) for m in messages) + counter.count_tools(specs(tools))

    def _counter(self) -> TokenCounter:
        if self._token_counter is None:
            self._token_counter = message_counter(self.counter, model=self.model)
        return self._token_counter

    # whose session

    def _named(self, session: object, owner: object) -> tuple[str, str]:
        key = key_or_own(session, owner, self.session, self.owner)
        return key.session, key.owner

    def _addressed(
        self, config: RunnableConfig | None, kwargs: builtins.dict[str, Any], given: object
    ) -> builtins.dict[str, Any]:
        """The call's arguments with its session among them: `_generate` is not given the config."""
        if self._sessions is None or asking.SESSION in kwargs:
            return kwargs
        address = called(ensure_config(config).get("configurable", {}), self.session, self.owner, given)
        return kwargs if address is None else {**kwargs, asking.SESSION: address.told()}

    # tools

    def bind_tools(
        self,
        tools: Sequence[builtins.dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: str | bool | builtins.dict[str, Any] | None = None,
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """The model with tools. `tool_choice`: "any" or "required", "auto", "none", or a tool's name.

        Where a provider cannot be forced while it thinks and `thinking` is not set, a forced call is made without thinking.
        """
        chosen = choice(tool_choice)
        settings = {"tool_choice": chosen} if chosen else {}
        return self.bind(tools=bound_tools(tools, strict=strict), **settings, **kwargs)

    def with_structured_output(
        self,
        schema: builtins.dict[str, Any] | type | None = None,
        *,
        include_raw: bool = False,
        method: structured.Method = "function_calling",
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, builtins.dict[str, Any] | BaseModel]:
        """The model's answers in a schema.

        A provider that cannot force a tool call while it thinks does not think in such a call; with `thinking` set it needs
        method="json_mode".
        """
        settings = structured.call_settings(schema, method, strict=strict)
        return structured.parsed(self.bind(**settings, **kwargs), schema, method, include_raw=include_raw)

    # erasing, closing

    def erase(self, thread: object, *, owner: str | None = None) -> tuple[str, ...]:
        """Erase all that is stored of a thread, its branches and places in graphs included, past recovery; the sessions' names."""
        if self._sessions is None:
            raise asking.no_session()
        return self._sessions.erase(thread, name_or_own("owner", owner, self.owner))

    async def aerase(self, thread: object, *, owner: str | None = None) -> tuple[str, ...]:
        if self._sessions is None:
            raise asking.no_session()
        return await self._sessions.aerase(thread, name_or_own("owner", owner, self.owner))

    def close(self) -> None:
        """Close the connections and the store that this model opened."""
        if self._sessions is not None:
            self._sessions.close()
        if self.backend is None:
            self._backend.close()

    async def aclose(self) -> None:
        if self._sessions is not None:
            await self._sessions.aclose()
        if self.backend is None:
            await self._backend.aclose()
