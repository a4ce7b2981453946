"""Defines CtxLLM: a LlamaIndex LLM over any provider with a row, which keeps reasoning and tool calls whole."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Self, TypeVar, cast

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    ChatResponseAsyncGen,
    ChatResponseGen,
    CompletionResponse,
    CompletionResponseAsyncGen,
    CompletionResponseGen,
    LLMMetadata,
    MessageRole,
)
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback  # pyright: ignore[reportUnknownVariableType]
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection
from llama_index.core.tools.types import BaseTool
from pydantic import Field, PrivateAttr, SecretStr, SkipValidation, field_serializer

from ctxfold import BackendError, ContextBackend, Message, Request
from ctxfold.adapters.calls import PieceFlow, PlainCalls, acall, aemit, call, each, emit
from ctxfold.adapters.tool_rounds import answered, paired
from ctxfold.connect import check_fits, message_counter, named_provider, open_backend
from ctxfold.effects import Call, Flow
from ctxfold.engine.request import Options, check_call
from ctxfold.errors import ConfigError, ContextOverflowError, MessageError
from ctxfold.messages import ToolCallPart
from ctxfold.policy.settings import check_settings
from ctxfold.protocols import UuidIds, Wire
from ctxfold.validation import as_dicts, is_a, kind_of, shown_url
from llamaindex_ctx.media import names_files, with_files
from llamaindex_ctx.messages import chat_messages, from_chat_message
from llamaindex_ctx.metadata import REPLY_KEY
from llamaindex_ctx.replies import CumulativeReply, chat_response, noted, tool_selections
from llamaindex_ctx.summarizer import UnknownWindow
from llamaindex_ctx.tools import tool_choice_of, tool_row, tool_spec

# switches of LlamaIndex itself, no parameters of a model
_NOT_SENT = frozenset({"allow_parallel_tool_calls", "formatted", "tool_required", "verbose"})

_CALL_FIELDS = frozenset({"id", "type", "function", "index"})


def write_request(messages: Sequence[ChatMessage], options: Mapping[str, Any], *, extra: Mapping[str, Any]) -> Request:
    """Returns the request for these messages; an option without its own field goes into the body, unless it is None."""
    rest = {name: value for name, value in options.items() if value is not None and name not in _NOT_SENT}
    stop: str | Sequence[str] = rest.pop("stop", ())
    body = rest.pop("extra_body", {})
    return Request(
        tuple(_sent(messages)),
        tools=tuple(tool_spec(tool) for tool in rest.pop("tools", ())),
        tool_choice=tool_choice_of(rest.pop("tool_choice", None)),
        max_tokens=rest.pop("max_tokens", None),
        temperature=rest.pop("temperature", None),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        thinking=rest.pop("thinking", None),
        model=rest.pop("model", None),
        extra={**extra, **rest, **body},
    )


def _sent(messages: Sequence[ChatMessage]) -> list[Message]:
    """Returns the messages with a result for every call, as strict providers require, and with the contents of files."""
    new_id = UuidIds().new
    converted = [_with_extras(from_chat_message(with_files(message), new_id()), message) for message in messages]
    return answered(paired(converted, new_id), new_id)


def _with_extras(message: Message, source: ChatMessage) -> Message:
    """Returns the message with the data that a provider sent with each call and wants back, such as a signature."""
    rows: object = None
    if message.tool_calls and REPLY_KEY not in source.additional_kwargs:
        rows = source.additional_kwargs.get("tool_calls")
    extras: dict[str, str] = {}
    for fields in as_dicts(rows):
        extra = {name: value for name, value in fields.items() if name not in _CALL_FIELDS}
        if extra:
            extras[str(fields.get("id"))] = json.dumps(extra)
    if not extras:
        return message
    parts = (replace(p, extra=extras.get(p.id, p.extra)) if isinstance(p, ToolCallPart) else p for p in message.parts)
    return replace(message, parts=tuple(parts))


_F = TypeVar("_F", bound=Callable[..., Any])


def _chat_events(function: _F) -> _F:
    return cast("_F", llm_chat_callback()(function))


def _completion_events(function: _F) -> _F:
    return cast("_F", llm_completion_callback()(function))


class CtxLLM(FunctionCallingLLM):
    """An LLM over ctxfold's backends, for every provider that ctxfold has a profile of.

    `provider` is the name of a provider; `model="deepseek:deepseek-chat"` does the same without `provider`. `wire` selects a
    wire format where the provider speaks more than one: "openai_chat", "openai_responses", "anthropic_messages", "gemini" or
    "bedrock_converse". `thinking` is True, False or an effort, `additional_kwargs` are options for every call, and `extra_body`
    goes into every request body unchanged. Raises BackendError for failures of the service, and ContextOverflowError when the
    request does not fit.

    No repr, dict, JSON or pickle contains the key, or a password or key in `base_url`: pass them again, or the key in the
    provider's environment variable.
    """

    model: str = Field(description="The model's name.")
    provider: str = Field(default="generic", description="Name of a provider's row, or the path of a file with one.")
    wire: Annotated[Wire | None, SkipValidation] = Field(
        default=None, description="The wire format to speak; the row's own when unset."
    )
    base_url: str | None = Field(default=None, description="Where the service is; the row's address when unset.")
    api_key: SecretStr | None = Field(default=None, exclude=True, repr=False)
    temperature: float | None = Field(default=None)
    max_tokens: int | None = Field(default=None, gt=0, description="Most tokens of a reply.")
    timeout: float | None = Field(
        default=None, description="Seconds until the first event, or a whole unstreamed reply."
    )
    max_retries: int = Field(default=2, ge=0)
    thinking: bool | str | None = Field(default=None)
    context_window: int | None = Field(
        default=None,
        gt=0,
        description="In tokens; the row's when unset. Where both are, asking for it is a ConfigError.",
    )
    additional_kwargs: dict[str, Any] = Field(default_factory=dict)
    extra_body: dict[str, Any] = Field(default_factory=dict)

    _calls: PlainCalls | None = PrivateAttr(default=None)
    _told_window: int | None = PrivateAttr(default=None)

    def __init__(  # noqa: PLR0913  one keyword per independent setting
        self,
        model: str = "",
        *,
        provider: str | None = None,
        wire: Wire | None = None,
        base_url: str | None = None,
        api_key: str | SecretStr | None = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
        timeout: float | None = None,
        max_retries: int = 2,
        thinking: bool | str | None = None,
        context_window: int | None = None,
        additional_kwargs: Mapping[str, Any] | None = None,
        extra_body: Mapping[str, Any] | None = None,
        backend: ContextBackend | None = None,
        **kwargs: Any,
    ) -> None:
        provider, model = named_provider(model, provider)
        settings: dict[str, Any] = {
            "model": model,
            "provider": provider,
            "wire": wire,
            "base_url": base_url,
            "api_key": SecretStr(api_key) if isinstance(api_key, str) else api_key,
            "temperature": temperature,
            "max_tokens": max_tokens,
            "timeout": timeout,
            "max_retries": max_retries,
            "thinking": thinking,
            "context_window": context_window,
            "additional_kwargs": dict(additional_kwargs or {}),
            "extra_body": dict(extra_body or {}),
        }
        check_settings(kwargs, type(self).model_fields, tuple(settings), fields=())
        if not model or not is_a(model, str):
            raise ConfigError(
                f"model is {kind_of(model) if model else 'missing'}: give its name, such as 'openai:gpt-5-mini'; "
                "with_context(llm) keeps the context of another LLM"
            )
        super().__init__(**settings, **kwargs)
        self._calls = PlainCalls(backend if backend is not None else self._new_backend())

    @field_serializer("base_url")
    def _without_secrets(self, base_url: str | None) -> str | None:
        return shown_url(base_url) if base_url else base_url

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        shown = {"base_url": self._without_secrets(self.base_url)}
        return [(name, shown.get(name or "", value)) for name, value in super().__repr_args__()]

    @classmethod
    def class_name(cls) -> str:
        return "CtxLLM"

    @property
    def backend(self) -> ContextBackend:
        """Returns the backend that answers. Copies share it; an unpickled LLM creates a new one."""
        return self._plain_calls().backend

    def _plain_calls(self) -> PlainCalls:
        if self._calls is None:
            self._calls = PlainCalls(self._new_backend())
        return self._calls

    def _new_backend(self) -> ContextBackend:
        return open_backend(
            self.provider,
            self.model,
            wire=self.wire,
            base_url=self.base_url,
            api_key=self.api_key,
            timeout_s=self.timeout,
            max_retries=self.max_retries,
        )

    @property
    def metadata(self) -> LLMMetadata:
        window = self.context_window or self.backend.context_window
        if self._told_window is not None:
            window = min(window or self._told_window, self._told_window)
        kind = LLMMetadata if window else UnknownWindow
        return kind(
            context_window=window or 0,
            num_output=self.max_tokens or -1,
            is_chat_model=True,
            is_function_calling_model=True,
            model_name=self.model,
            system_role=MessageRole.SYSTEM,
        )

    def close(self) -> None:
        """Closes the connections; a later call opens new ones."""
        if self._calls is not None:
            self._calls.backend.close()

    async def aclose(self) -> None:
        """The async form of `close`."""
        if self._calls is not None:
            await self._calls.backend.aclose()

    @_chat_events
    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """Returns the whole answer. Options are those of the constructor, `tools`, `tool_choice` and `stop`; others go into the
        body.

        With `context_window`, a request that is larger raises ContextOverflowError before it is sent.
        """
        return call(self._answer(messages, kwargs))

    @_chat_events
    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        return await acall(self._answer(messages, kwargs))

    @_chat_events
    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        """Yields cumulative responses; the last one is complete and has the usage. The request is sent on the first `next`."""
        return emit(self._pieces(messages, kwargs))

    @_chat_events
    async def astream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseAsyncGen:
        return aemit(self._pieces(messages, kwargs))

    @_completion_events
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """Returns the answer to a prompt, which is sent as one user message."""
        return _completion(call(self._answer(_as_messages(prompt), kwargs)))

    @_completion_events
    async def acomplete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return _completion(await acall(self._answer(_as_messages(prompt), kwargs)))

    @_completion_events
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:
        return (_completion(response) for response in emit(self._pieces(_as_messages(prompt), kwargs)))

    @_completion_events
    async def astream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseAsyncGen:
        return (_completion(response) async for response in aemit(self._pieces(_as_messages(prompt), kwargs)))

    def _prepare_chat_with_tools(
        self,
        tools: Sequence[BaseTool],
        user_msg: str | ChatMessage | None = None,
        chat_history: list[ChatMessage] | None = None,
        verbose: bool = False,
        allow_parallel_tool_calls: bool = False,
        tool_required: bool = False,
        tool_choice: str | Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Arguments for `chat`. Where the row cannot force a call, `tool_required` leaves the choice to the model.

        Without `allow_parallel_tool_calls` only the first call of a reply is kept.
        """
        history = list(chat_history or ())
        if user_msg is not None:
            user_message = (
                ChatMessage(role=MessageRole.USER, content=user_msg) if isinstance(user_msg, str) else user_msg
            )
            history.append(user_message)
        if tool_choice is None and tool_required and tools and self._can_force(kwargs):
            tool_choice = "required"
        return {
            "messages": history,
            "tools": [*map(tool_row, tools)],
            "tool_choice": tool_choice,
            "allow_parallel_tool_calls": allow_parallel_tool_calls,
            **kwargs,
        }

    def get_tool_calls_from_response(
        self, response: ChatResponse, error_on_no_tool_call: bool = True, **kwargs: Any
    ) -> list[ToolSelection]:
        """Returns the tool calls of a whole or streamed response; incomplete arguments are parsed as far as they go.

        Malformed arguments of a finished call raise InvalidToolArgumentsError. With `error_on_no_tool_call=False`, as agents
        call it, they become one argument `INVALID_JSON`, so that the tool refuses the call and the model reads why.
        """
        calls = tool_selections(response, malformed_ok=not error_on_no_tool_call)
        if not calls and error_on_no_tool_call:
            raise MessageError(
                f"the reply of {self.model!r} has 0 tool calls where at least 1 is needed: "
                "ask for the tool more clearly, or force it with tool_choice"
            )
        return calls

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        # a backend is safe to share and cannot be copied
        known = {} if memo is None else memo
        fields = {name: deepcopy(getattr(self, name), known) for name in ("additional_kwargs", "extra_body")}
        return self.model_copy(update=fields)

    def __getstate__(self) -> dict[Any, Any]:
        bare = self.model_copy(update={"api_key": None, "base_url": self._without_secrets(self.base_url)})
        bare._calls = None
        return super(CtxLLM, bare).__getstate__()

    def _can_force(self, options: Mapping[str, Any]) -> bool:
        """Returns True if the provider lets a request force a tool call, given the request's thinking."""
        profile = getattr(self.backend, "profile", None)
        if profile is None:
            return True
        forces: bool = profile.can_force(options.get("thinking", self.additional_kwargs.get("thinking", self.thinking)))
        return forces

    def _request(self, messages: Sequence[ChatMessage], options: Mapping[str, Any]) -> Request:
        check_call(options)
        defaults = {
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "thinking": self.thinking,
            **self.additional_kwargs,
        }
        chosen: dict[str, Any] = {**defaults, **options}
        window = Options(context_window=chosen.pop("context_window", None)).context_window
        request = write_request(chat_messages(messages), chosen, extra=self.extra_body)
        if window is not None:
            check_fits(request, window, message_counter(None, model=request.model or self.model, backend=self.backend))
        return request

    def _answer(self, messages: Sequence[ChatMessage], options: Mapping[str, Any]) -> Flow[ChatResponse]:
        request = yield from self._written(messages, options)
        with self._overflow_typed():
            reply = yield from self._plain_calls().answer(request)
        return chat_response(reply, one_call=_one_call(options))

    def _pieces(self, messages: Sequence[ChatMessage], options: Mapping[str, Any]) -> PieceFlow[ChatResponse]:
        request = yield from self._written(messages, options)
        answer = CumulativeReply(UuidIds().new(), request.model or self.backend.model, one_call=_one_call(options))
        with self._overflow_typed():
            yield from each(
                (yield from self._plain_calls().stream(request)), lambda chunk: filter(None, [answer.feed(chunk)])
            )
        yield answer.close()

    def _written(self, messages: Sequence[ChatMessage], options: Mapping[str, Any]) -> Flow[Request]:
        """Returns the request, which an event loop has made in a thread where files have to be read."""
        if any(map(names_files, chat_messages(messages))):
            return (yield from Call(partial(self._request, messages, options)))
        return self._request(messages, options)

    @contextmanager
    def _overflow_typed(self) -> Generator[None]:
        """Raises ContextOverflowError for an overflow, and remembers the limit that the service reported."""
        try:
            yield
        except BackendError as error:
            if error.kind != "context_overflow":
                raise
            self._told_window = error.limit_tokens or self._told_window
            raise ContextOverflowError(
                f"{error}; shorten the messages, or keep them in a CtxMemory whose window leaves room for the reply"
            ) from error


def _as_messages(prompt: str) -> list[ChatMessage]:
    return [ChatMessage(role=MessageRole.USER, content=prompt)]


def _one_call(options: Mapping[str, Any]) -> bool:
    return options.get("allow_parallel_tool_calls") is False


def _completion(response: ChatResponse) -> CompletionResponse:
    return CompletionResponse(
        text=response.message.content or "",
        delta=response.delta,
        raw=response.raw,
        additional_kwargs=dict(noted(response)),
    )
