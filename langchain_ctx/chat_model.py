"""Defines ChatCtx: a LangChain chat model over any provider with a row, with a managed context when a session is given."""

from __future__ import annotations

import builtins
import os
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Never, Self

from langchain_core.language_models import LanguageModelInput, ModelProfile
from langchain_core.language_models.base import LangSmithParams
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    SkipValidation,
    field_serializer,
    model_validator,
)

from ctxfold._lifecycle import lasts, not_pickled
from ctxfold.adapters.calls import Invoke, PieceFlow, PlainCalls, each
from ctxfold.connect import message_counter, named_provider, open_backend
from ctxfold.effects import Flow
from ctxfold.engine.request import Options
from ctxfold.errors import ConfigError
from ctxfold.policy.settings import Policy, meant_by
from ctxfold.protocols import ContextBackend, Reply, TokenCounter, Wire
from ctxfold.stream import Fold
from ctxfold.validation import as_dict, kind_of, shown_url, whole_number
from langchain_ctx.chat_calls import (
    ChunkWriter,
    ModelCall,
    SessionChatModel,
    call_options,
    may_force,
    plain_request,
    reply_id,
)
from langchain_ctx.errors import translated
from langchain_ctx.messages import from_langchain, to_langchain
from langchain_ctx.models import model_profile
from langchain_ctx.session_routing import WINDOW, check_fields
from langchain_ctx.sessions import ContextSettings, Sessions
from langchain_ctx.summarizer import ReportedSummarizer
from langchain_ctx.tools import (
    Method,
    bound_tools,
    call_settings,
    choice,
    parsed,
    provider_label,
    specs,
    unless_no_call,
    with_answer_format,
)


@cache
def package_version() -> str:
    """Returns the version that is installed, which is read from a file."""
    try:
        return version("ctxfold")
    except PackageNotFoundError:  # run from its sources
        return "unknown"


def _made_again(model: type[ChatCtx], fields: dict[str, Any]) -> ChatCtx:
    return model(**fields)


def _policy_fields(model: type[ChatCtx], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields `policy` and `context_window`, with the window that `policy` names as the model's own.

    Raises ConfigError for two different windows, and for a key of `policy` that is a field of the model and no setting.
    """
    if fields.get("policy") is None:
        return {"policy": {}} if "policy" in fields else {}
    policy = fields["policy"]
    settings: dict[str, Any] = {"policy": policy} if isinstance(policy, Policy) else dict(as_dict(policy))
    if isinstance(settings.get("policy"), Mapping) or not isinstance(policy, Policy | Mapping):
        raise ConfigError("policy is no set of settings: give policy={'hard_ratio': 0.8, ...}, or a ctxfold.Policy")
    window, field = settings.pop(WINDOW, None), fields.get(WINDOW)
    no_settings = model.model_fields.keys() - ContextSettings.__optional_keys__
    if wrong := next((name for name in settings if name in no_settings), None):
        raise ConfigError(
            f"{wrong} is a field of ChatCtx and no setting of policy: give {wrong}=... beside policy={{...}}"
        )
    if window is not None and field is not None and window != field:
        raise ConfigError(
            f"context_window is {field!r}, and policy={{'context_window': {window!r}}} names another window: give one of them"
        )
    return {"policy": settings, WINDOW: field if window is None else window}


class _Policy(ContextSettings, total=False):
    context_window: int | None


class ChatCtx(SessionChatModel):
    """A chat model whose conversation may outgrow its window.

    Setup:
        `pip install "ctxfold[langchain]"`; the provider's key in its environment variable or as `api_key`.

    Instantiate:
        ```python
        chat = ChatCtx(model="lookup", base_url="http://127.0.0.1:9000/v1", api_key="x",
                       session_id="s1", store="sqlite:///chat.db", context_window=8_000)
        ```
        `provider` is the name of a provider ("deepseek", "openai", "anthropic", ...); `model="deepseek:deepseek-chat"` does the
        same without `provider`. Its profile sets the wire format, and `wire` selects another one that the provider speaks:
        "openai_chat", "openai_responses", "anthropic_messages", "gemini" or "bedrock_converse". `session` is another name for
        `session_id`, and `policy` is a dict of the settings that the other classes take as keywords. `extra_body` holds further
        parameters of the provider: `extra_body={"top_p": 0.9}`.

        Without `session_id` and `store` it is a plain chat model. With `store`, each call may name its session and owner:
        `config={"configurable": {"session_id": "s1", "owner": "ann"}}` (or `thread_id`); these take precedence over the fields.
        In a graph's run the fields come first, then the thread, and an owner is read under `owner_key` alone.
        `chat.invoke(..., context_window=4_000)`, or that name in `configurable`, sets the window of a single request. How a
        session treats lists, batches, retries, fallbacks and caches is described in docs/langchain.md.

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
        `reply.usage_metadata`, with cached and reasoning tokens where the provider reports them.
    """

    _passes_window: ClassVar[bool] = True

    model: str = ""
    provider: str = "generic"
    # `open_backend` checks it, with an error that names the provider's
    wire: Annotated[Wire | None, SkipValidation] = None
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
    owner_key: str | None = None
    store: Any = Field(default=None, exclude=True)
    context_window: int | None = None
    summarizer: Any = Field(default=None, exclude=True)
    counter: Any = Field(default=None, exclude=True)
    on_abort: Literal["discard", "keep_partial"] = "discard"
    sections: Any = Field(default=(), exclude=True)
    embedder: Any = Field(default=None, exclude=True)
    backend: Any = Field(default=None, exclude=True)

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    _backend: Any = PrivateAttr(default=None)
    _calls: PlainCalls = PrivateAttr()
    _sessions: Sessions | None = PrivateAttr(default=None)
    _token_counter: TokenCounter | None = PrivateAttr(default=None)
    _derived: frozenset[str] = PrivateAttr(default=frozenset())

    if TYPE_CHECKING:
        session_id: str | None = None
        policy: _Policy = _Policy()
    else:
        # pydantic takes no TypedDict of Python 3.11
        policy: builtins.dict[str, Any] = Field(default_factory=builtins.dict)

        def __init__(self, *args: Never, **data: Any) -> None:
            if args:
                raise ConfigError(
                    f"ChatCtx was given {kind_of(args[0])} without a keyword: give model='openai:gpt-5-mini', for example; "
                    "with_context(model) keeps the context of another chat model"
                )
            if "session_id" in data:
                if data.get("session") is not None:
                    raise ConfigError("session and session_id are the same setting: give session_id alone")
                data["session"] = data.pop("session_id")
            check_fields(data)
            data |= _policy_fields(type(self), data)
            if "provider" not in data and "model" in data:
                data["provider"], data["model"] = named_provider(data["model"])
            super().__init__(**data)
            # not in a validator: pydantic would wrap a ConfigError into an error of its own
            self._connect()

        @property
        def session_id(self) -> str | None:
            """Returns `session`, under the name that the other classes use."""
            return self.session

    @field_serializer("base_url")
    def _without_secrets(self, base_url: str | None) -> str | None:
        return shown_url(base_url) if base_url else base_url

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        yield from (("model", self.model), ("provider", self.provider))
        if self.wire is not None:
            yield "wire", self.wire
        yield "base_url", self._without_secrets(self.base_url)
        if self._sessions is not None:
            yield from (("session", self.session), ("owner", self.owner), ("store", self._sessions.store))
        yield "context_window", self.context_window if self._sessions is None else self._sessions.context_window

    def __reduce__(self) -> tuple[Any, ...]:
        """Lets a model be pickled whose store is the URL of a file or a server; an `api_key` that was given goes with it."""
        if self._sessions is not None and not (isinstance(self.store, str) and lasts(self.store)):
            raise not_pickled(
                self, "its sessions are in the memory of this process or behind an object, and not at a URL"
            )
        settings = {name: getattr(self, name) for name in self.model_fields_set - self._derived}
        return _made_again, (type(self), settings)

    @model_validator(mode="before")
    @classmethod
    def _name_unknown_field(cls, fields: Any) -> Any:
        """Says where a keyword belongs that is no field, in pydantic's own error."""
        unknown = next((name for name in fields if name not in cls.model_fields), None)
        if unknown is None:
            return fields
        near = get_close_matches(str(unknown), [*cls.model_fields], n=1, cutoff=0.75)
        if unknown in ContextSettings.__optional_keys__:
            advice = f"give policy={{{unknown!r}: ...}}"
        elif (meant := meant_by(unknown, cls.model_fields)) is not None:
            advice = meant if " " in meant else f"ctxfold calls it {meant}"
        elif near:
            advice = f"did you mean {near[0]}?"
        else:
            advice = f"a parameter of the provider goes into extra_body={{{unknown!r}: ...}}"
        raise ValueError(f"ChatCtx has no field {unknown!r}: {advice}")

    @model_validator(mode="after")
    def _set_ctxfold_version(self) -> Self:
        self._add_version("ctxfold", package_version())
        return self

    def _connect(self) -> None:
        Options(max_tokens=self.max_tokens)  # a mistake is an error now, and not at the first call
        if self.context_window is not None:
            whole_number("context_window", self.context_window, "give the model's window in tokens, 1 or more")
        self._backend = self.backend or open_backend(
            self.provider,
            self.model,
            wire=self.wire,
            base_url=self.base_url,
            api_key=self.api_key,
            timeout_s=self.timeout,
            max_retries=self.max_retries,
            thinking=self.thinking,
        )
        self._calls = PlainCalls(self._backend)
        if self.backend is None:
            weakref.finalize(self, self._backend.close)  # models are often thrown away without close
        self.model = self.model or self._backend.model
        if self.profile is None:
            self.profile = self._resolve_model_profile()
            self._derived |= {"profile"}
        profile = getattr(self._backend, "profile", None)
        variable = getattr(profile, "key_env", None)
        if self.api_key is None and variable:
            self.api_key = SecretStr(os.environ.get(variable, ""))
            self._derived |= {"api_key"}
        extras = {name: value for name in ("sections", "embedder", "owner_key") if (value := getattr(self, name))}
        plain = self.session is None and self.store is None
        if plain and not (self.policy or extras):
            return
        sessions = Sessions(
            {
                "store": self.store,
                "context_window": self.context_window,
                "summarizer": ReportedSummarizer(self._backend, answers=True)
                if self.summarizer is None
                else self.summarizer,
                "counter": self.counter,
                **self.policy,
                **extras,
            },
            backend=self._backend,
            max_tokens=None if plain else self.max_tokens,
            of_model=plain,
        )
        if plain:
            return  # the settings were checked
        self._sessions = sessions
        if "cache" not in self.model_fields_set:
            self.cache = False  # a cached answer would belong to another state of the session
        if self.session is not None:
            try:
                self.context()
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
            "wire",
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
        params = super()._get_ls_params(stop=stop or self.stop, **kwargs)
        params["ls_provider"] = self._provider_name
        return params

    @property
    def _provider_name(self) -> str:
        return provider_label(self.provider)

    @property
    def context_backend(self) -> ContextBackend:
        """Returns the backend of this model, which has no session."""
        return self._backend  # type: ignore[no-any-return]

    def get_num_tokens(self, text: str) -> int:
        return self._counter().count_text(text)

    def get_num_tokens_from_messages(self, messages: list[BaseMessage], tools: Sequence[Any] | None = None) -> int:
        """Counts the tokens of the messages as they are sent, including reasoning, tool calls, media and the tools."""
        counter = self._counter()
        return sum(counter.count(from_langchain(m)) for m in messages) + counter.count_tools(specs(tools))

    def _counter(self) -> TokenCounter:
        if self._token_counter is None:
            self._token_counter = message_counter(self.counter, model=self.model)
        return self._token_counter

    # answering

    def _own_sessions(self) -> Sessions | None:
        return self._sessions

    def _answer(self, call: ModelCall) -> Flow[ChatResult]:
        options = self._options(call.stop, call.kwargs)
        with translated():
            if call.address is None:
                reply = yield from self._calls.answer(plain_request(call.messages, options, self._counter))
            else:
                conversation = self._conversation(call, options, reply_id())
                reply = yield from Invoke(conversation.ask, conversation.aask)
        message = to_langchain(reply.message)
        message.response_metadata["model_provider"] = self._provider_name
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _pieces(self, call: ModelCall) -> PieceFlow[ChatGenerationChunk]:
        options, own_id = self._options(call.stop, call.kwargs), reply_id(call.run_manager)
        writer, whole = ChunkWriter(own_id, self._provider_name, blocks=self.output_version == "v1"), list[Reply]()
        with translated():
            if call.address is None:
                fold = Fold(own_id, options.model)
                chunks = yield from self._calls.stream(plain_request(call.messages, options, self._counter))
                yield from each(chunks, lambda chunk: map(writer.event, fold.feed(chunk)))
                whole.append(fold.close())
            else:
                conversation = self._conversation(call, options, own_id)
                events = yield from Invoke(conversation.stream, conversation.astream, whole.append)
                yield from each(events, lambda event: (writer.event(event),))
        yield writer.last(whole[0].message)

    # what a call asks for

    def _options(self, stop: list[str] | None, kwargs: builtins.dict[str, Any]) -> Options:
        defaults = Options(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            stop=tuple(self.stop or ()),
            thinking=self.thinking,
            model=self.model,
            on_abort=self.on_abort,
            extra=self.extra_body,
        )
        row = getattr(self._backend, "profile", None) if self.backend is None else None
        return call_options(defaults, row, stop, kwargs)

    # tools

    def bind_tools(
        self,
        tools: Sequence[builtins.dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: str | bool | builtins.dict[str, Any] | None = None,
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Returns the model with tools. `tool_choice` is "any" or "required", "auto", "none", or a tool's name.

        Some providers cannot be forced to call a tool while they think; then a forced call is made without thinking, unless
        `thinking` is set. Where a call cannot be forced, "any" leaves the choice to the model, with a CtxWarning, and a tool's
        name raises ConfigError.
        """
        chosen = choice(tool_choice)
        settings = {"tool_choice": chosen} if chosen else {}
        return self.bind(tools=bound_tools(tools, strict=strict), **settings, **kwargs)

    def with_structured_output(
        self,
        schema: builtins.dict[str, Any] | type | None = None,
        *,
        include_raw: bool = False,
        method: Method = "function_calling",
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, builtins.dict[str, Any] | BaseModel]:
        """Returns a chain whose answers follow a schema.

        A provider that cannot force a tool call while it thinks does not think in such a call. Where no call can be forced at all,
        as with `thinking` set and with some models, a reply without one raises LangChain's OutputParserException: there,
        method="json_schema" is the better choice.

        Raises ConfigError for a schema that the wire does not take. A call raises LangChain's ModelRefusalError when
        the model refuses to answer (OutputParserException before langchain-core 1.7.5).
        """
        settings = call_settings(schema, method, strict=strict)
        row = getattr(self._backend, "profile", None)
        if method == "function_calling" and not may_force(row, kwargs.get("thinking", self.thinking)):
            del settings["tool_choice"]
            model = self.bind(**settings, **kwargs) | unless_no_call()
            return parsed(model, schema, method, include_raw=include_raw)
        if row is not None and method == "json_schema":
            # a schema that the service cannot take is refused at once; `strict` has closed its objects
            with_answer_format(row.wire, call_settings(schema, method, strict=None))
        return parsed(self.bind(**settings, **kwargs), schema, method, include_raw=include_raw)

    # closing

    def close(self) -> None:
        """Closes the connections and the store that this model opened."""
        if self._sessions is not None:
            self._sessions.close()
        if self.backend is None:
            self._backend.close()

    async def aclose(self) -> None:
        if self._sessions is not None:
            await self._sessions.aclose()
        if self.backend is None:
            await self._backend.aclose()
