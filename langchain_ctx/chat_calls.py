"""Turns a call of a chat model into the input of a session or a plain request, and its stream into chunks of LangChain."""

from __future__ import annotations

import builtins
import uuid
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias, assert_never

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import LC_ID_PREFIX, AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.runnables import RunnableConfig, ensure_config

from ctxfold._lifecycle import Closing
from ctxfold.adapters.calls import PieceFlow, acall, aemit, call, each, emit
from ctxfold.connect import check_fits
from ctxfold.effects import Flow
from ctxfold.engine.request import Options, check_call
from ctxfold.engine.turn import TurnInput
from ctxfold.errors import ConfigError, EmptyMessagesError
from ctxfold.messages import Message, Part, ReasoningPart, TextPart
from ctxfold.protocols import Request, TokenCounter, ToolCallDelta
from ctxfold.stream import Content, ContentFirst, StreamPiece, Thinking, ToolCalls
from ctxfold.validation import warn_caller
from langchain_ctx.conversation import Conversation
from langchain_ctx.message_lists import leading_count, name_refusals, prompt_text
from langchain_ctx.messages import all_from_langchain, given_ids, reasoning_kwargs, reply_notes, usage_metadata
from langchain_ctx.session_routing import WINDOW, Address, address_of_call
from langchain_ctx.sessions import KeepsSessions, PoolOf, Sessions
from langchain_ctx.summarizer import listening
from langchain_ctx.tools import choice, refusal_block, specs, with_answer_format

SESSION = "ctxfold_session"
Listed: TypeAlias = list[BaseMessage]
_NOT_SENT = frozenset(
    {SESSION, "extra_body", "ls_structured_output_format", "run_manager", "stream", "structured_output_format"}
)
_OPTIONS = frozenset(
    {"max_completion_tokens", "max_tokens", "model", "stop", "temperature", "thinking", "tool_choice", "tools", WINDOW}
)


def with_window(configurable: Mapping[str, Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Returns a call's arguments with the window that its config sets; the call's own argument takes precedence."""
    window = configurable.get(WINDOW)
    return kwargs if window is None or kwargs.get(WINDOW) is not None else {**kwargs, WINDOW: window}


def no_session() -> ConfigError:
    return ConfigError("this ChatCtx keeps no sessions: give it session=... or store=..., and context_window=...")


def reply_id(run: CallbackManagerForLLMRun | AsyncCallbackManagerForLLMRun | None = None) -> str:
    """Returns the id of a reply; LangChain derives the id of an event stream's message from its run."""
    return uuid.uuid4().hex if run is None else f"{LC_ID_PREFIX}-{run.run_id}"


@dataclass(frozen=True, slots=True)
class ModelCall:
    """The arguments of one call of a chat model, and the session that it names."""

    messages: Sequence[BaseMessage]
    stop: list[str] | None
    run_manager: Any
    kwargs: dict[str, Any]
    address: Address | None


def check_list(messages: Sequence[BaseMessage]) -> None:
    """Raises EmptyMessagesError for no message, and names the error results of malformed calls."""
    if not messages:
        raise EmptyMessagesError("no message to send: give at least one")
    name_refusals(messages)


def plain_request(messages: Sequence[BaseMessage], options: Options, counter: Callable[[], TokenCounter]) -> Request:
    """Returns the list as it is, for a plain chat model; ContextOverflowError where it exceeds the window asked for."""
    check_list(messages)
    request = options.request(tuple(all_from_langchain(messages)))
    if options.context_window is not None:
        check_fits(request, options.context_window, counter())
    return request


def call_options(defaults: Options, row: Any, stop: Sequence[str] | None, kwargs: Mapping[str, Any]) -> Options:
    """Returns what one call asks for: an argument of the call beats the model's field in `defaults`.

    `row` is the provider's profile, None for a backend that the caller made.
    """
    check_call(kwargs)
    forced = choice(kwargs.get("tool_choice"))
    thinking = _thinking(row, kwargs.get("thinking", defaults.thinking), forced)
    if forced == "required" and row is not None and not row.can_force(thinking):
        warn_caller(
            f"tool_choice='any' leaves it to the model whether it calls a tool: provider {row.name!r} cannot force this model, or "
            "not while it thinks; use thinking=False where that is why, or method='json_schema' for structured output"
        )
        forced = "auto"
    limit = kwargs.get("max_tokens", kwargs.get("max_completion_tokens"))
    ends = stop or kwargs.get("stop") or defaults.stop
    body = {name: v for name, v in kwargs.items() if name not in _NOT_SENT | _OPTIONS and v is not None}
    if row is not None and "response_format" in body:
        body = with_answer_format(row.wire, body)
    return replace(
        defaults,
        max_tokens=defaults.max_tokens if limit is None else limit,
        temperature=kwargs.get("temperature", defaults.temperature),
        stop=(ends,) if isinstance(ends, str) else tuple(ends),
        tools=specs(kwargs.get("tools")),
        tool_choice=forced,
        thinking=thinking,
        model=kwargs.get("model") or defaults.model,
        context_window=kwargs.get(WINDOW),
        extra={**defaults.extra, **body, **(kwargs.get("extra_body") or {})},
    )


def may_force(row: Any, thinking: bool | str | None) -> bool:
    """Tells whether a call may force a tool, where it goes without thinking if `thinking` leaves that open."""
    return row is None or bool(row.can_force(_thinking(row, thinking, "required")))


def _thinking(row: Any, setting: bool | str | None, forced: str | None) -> bool | str | None:
    """Returns the `thinking` setting; an unset one becomes False for a forced tool call where the provider cannot do both."""
    if setting is not None or forced in (None, "auto", "none") or row is None:
        return setting
    exclusive = row.request.forced_tool_choice == "not_while_thinking" and row.thinking.default_on
    return False if exclusive and row.thinking.off is not None else None


class SessionChatModel(BaseChatModel, KeepsSessions, Closing):
    """A chat model with sessions. All its entrances pass the config's session on as an argument of the call, and each kind of call
    is written once, for sync and async."""

    if TYPE_CHECKING:
        session: str | None
        owner: str

    _passes_window: ClassVar[bool]  # with a call that no session serves

    @abstractmethod
    def _own_sessions(self) -> Sessions | None:
        """Returns the sessions of this model; None where it keeps none."""

    @abstractmethod
    def _answer(self, call: ModelCall) -> Flow[ChatResult]: ...

    @abstractmethod
    def _pieces(self, call: ModelCall) -> PieceFlow[ChatGenerationChunk]: ...

    def _pool(self) -> PoolOf:
        sessions = self._own_sessions()
        if sessions is None:
            raise no_session()
        return PoolOf(sessions, self.session, self.owner)

    def __deepcopy__(self, memo: builtins.dict[int, Any] | None = None) -> Self:
        """Returns a copy over the same connections and sessions."""
        return self.model_copy()

    def _with_session(
        self, config: RunnableConfig | None, kwargs: builtins.dict[str, Any], prompt: object
    ) -> builtins.dict[str, Any]:
        """Returns the call's arguments with its session and window, because `_generate` does not receive the config.

        `prompt` is the input of the call.
        """
        if SESSION in kwargs:
            return kwargs
        config, sessions = ensure_config(config), self._own_sessions()
        configurable = config.get("configurable", {})
        windowed = with_window(configurable, kwargs)
        if sessions is not None:
            address = address_of_call(config, sessions.names(self.session, self.owner), prompt, kwargs)
            if address is not None:
                return {**windowed, SESSION: address.as_argument()}
            sessions.expect_name(configurable)
        return windowed if self._passes_window else kwargs

    def _call(self, messages: Listed, stop: Any, run_manager: Any, kwargs: builtins.dict[str, Any]) -> ModelCall:
        kwargs = self._with_session(None, kwargs, messages)
        named = kwargs.get(SESSION)
        return ModelCall(messages, stop, run_manager, kwargs, None if named is None else Address.of(named))

    def _conversation(self, call: ModelCall, options: Options, reply_id: str) -> Conversation:
        """Returns the call in its session: leading system messages are its prompts, and messages that it does not have are new."""
        sessions, address, messages = self._own_sessions(), call.address, call.messages
        if sessions is None or address is None:
            raise no_session()
        check_list(messages)
        lead = leading_count(messages)
        # summaries are the session's own
        rest = tuple(m for m in all_from_langchain(messages[lead:]) if m.kind == "message")
        prompts = tuple(map(prompt_text, messages[:lead])) or None
        given = given_ids(messages)
        return Conversation(
            sessions, address, TurnInput(address.key, rest, options, prompts, given_ids=given, reply_id=reply_id)
        )

    def _generate(self, messages: Listed, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        return call(self._answer(self._call(messages, stop, run_manager, kwargs)))

    async def _agenerate(
        self, messages: Listed, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        return await acall(self._answer(self._call(messages, stop, run_manager, kwargs)))

    def _stream(
        self, messages: Listed, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> Iterator[ChatGenerationChunk]:
        return emit(self._pieces(self._call(messages, stop, run_manager, kwargs)))

    def _astream(
        self, messages: Listed, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        return aemit(self._pieces(self._call(messages, stop, run_manager, kwargs)))

    def invoke(self, input: LanguageModelInput, config: RunnableConfig | None = None, **kwargs: Any) -> AIMessage:
        with listening(config):
            return super().invoke(input, config, **self._with_session(config, kwargs, input))

    async def ainvoke(
        self, input: LanguageModelInput, config: RunnableConfig | None = None, **kwargs: Any
    ) -> AIMessage:
        with listening(config):
            return await super().ainvoke(input, config, **self._with_session(config, kwargs, input))

    def stream(
        self, input: LanguageModelInput, config: RunnableConfig | None = None, **kwargs: Any
    ) -> Iterator[AIMessageChunk]:
        pieces = super().stream(input, config, **self._with_session(config, kwargs, input))
        return emit(each(pieces, block=partial(listening, config)))

    def astream(
        self, input: LanguageModelInput, config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[AIMessageChunk]:
        pieces = super().astream(input, config, **self._with_session(config, kwargs, input))
        return aemit(each(pieces, block=partial(listening, config)))

    if not TYPE_CHECKING:  # the base has overloads by version, which hold here too

        def stream_events(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
            """Events of one call; version="v3" gives a ChatModelStream, whose message has the id that a session stores."""
            return super().stream_events(input, config, **self._with_session_for_events(config, kwargs, input))

        def astream_events(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
            return super().astream_events(input, config, **self._with_session_for_events(config, kwargs, input))

    def _with_session_for_events(
        self, config: RunnableConfig | None, kwargs: builtins.dict[str, Any], prompt: object
    ) -> builtins.dict[str, Any]:
        """Versions 1 and 2 come through `stream`, which sees to it; version 3 goes past it."""
        return self._with_session(config, kwargs, prompt) if kwargs.get("version") == "v3" else kwargs


class ChunkWriter:
    """Writes one reply's chunks, all with its id; usage, model and finish reason stand on the last one only.

    With `blocks` (output_version "v1") content is a list of standard blocks, and every segment has an index of its own: reasoning
    and a tool call that shared index 0 would be merged into one.
    """

    def __init__(self, message_id: str, provider: str, *, blocks: bool) -> None:
        self._id = message_id
        self._provider = provider
        self._blocks = blocks
        self._segment = ""
        self._segments = 0
        self._ids: list[str] = []  # of the reply's calls so far, "" for one that has none yet
        self._names: list[str] = []

    def event(self, event: StreamPiece) -> ChatGenerationChunk:
        match event:
            case Thinking(text=text):
                block = {"type": "reasoning", "reasoning": text, "index": self._index("reasoning")}
                return self._chunk([block] if self._blocks else "", additional_kwargs={"reasoning_content": text})
            case ContentFirst(text=text) | Content(text=text):
                if self._blocks:
                    return self._chunk([{"type": "text", "text": text, "index": self._index("text")}])
                return self._chunk(text)
            case ToolCalls(calls=calls, numbers=numbers):
                return self._tool_calls([(n, self._news(n, delta)) for n, delta in zip(numbers, calls, strict=True)])
            case _:
                assert_never(event)

    def last(self, message: Message) -> ChatGenerationChunk:
        """Returns the chunk that ends the stream, with what is known only then; completes missing ids of calls."""
        extra = reasoning_kwargs(message)
        extra.pop("reasoning_content", None)
        shown: list[Part] = [ReasoningPart(message.reasoning)] if self._blocks and message.reasoning else []
        notes = reply_notes(message, [*shown, TextPart(message.text)])
        if notes:
            extra["ctxfold"] = notes
        refusal = message.opaque("refusal")
        if refusal is not None:
            extra["refusal"] = refusal
        metadata = {"model_name": message.model, "finish_reason": message.finish_reason}
        late = [
            (index, ToolCallDelta(id=call.id))
            for index, (call, known_id) in enumerate(zip(message.tool_calls, self._ids, strict=False))
            if not known_id
        ]
        chunk = self._tool_calls(late)
        chunk.message.additional_kwargs = extra
        chunk.message.response_metadata |= {name: value for name, value in metadata.items() if value is not None}
        assert isinstance(chunk.message, AIMessageChunk)
        if self._blocks and (block := refusal_block(chunk.message)) is not None:
            chunk.message.content = [*chunk.message.content, {**block, "index": self._index("refusal")}]
        chunk.message.chunk_position = "last"
        if message.usage is not None:
            chunk.message.usage_metadata = UsageMetadata(**usage_metadata(message.usage))  # type: ignore[typeddict-item]
        return chunk

    def _news(self, number: int, delta: ToolCallDelta) -> ToolCallDelta:
        """Returns the delta with its id and its name only where its call had none before."""
        if number == len(self._ids):
            self._ids.append("")
            self._names.append("")
        new_id = None if self._ids[number] else delta.id or None
        new_name = None if self._names[number] else delta.name or None
        self._ids[number] = self._ids[number] or new_id or ""
        self._names[number] = self._names[number] or new_name or ""
        return ToolCallDelta(id=new_id, name=new_name, arguments=delta.arguments)

    def _tool_calls(self, placed: list[tuple[int, ToolCallDelta]]) -> ChatGenerationChunk:
        pieces = [tool_call_chunk(name=d.name, args=d.arguments, id=d.id, index=i) for i, d in placed]
        if not self._blocks:
            return self._chunk("", tool_call_chunks=pieces)
        if pieces:
            self._segment = "tool_calls"
        blocks: list[Any] = [
            {"type": "tool_call_chunk", "name": d.name, "args": d.arguments, "id": d.id, "index": f"lc_tc_{i}"}
            for i, d in placed
        ]
        return self._chunk(blocks, tool_call_chunks=pieces)

    def _index(self, kind: str) -> str:
        if self._segment != kind:
            self._segment = kind
            self._segments += 1
        return f"lc_{kind}_{self._segments}"

    def _chunk(self, content: str | list[Any], **fields: Any) -> ChatGenerationChunk:
        metadata = {"model_provider": self._provider}
        if self._blocks:
            metadata["output_version"] = "v1"
        message = AIMessageChunk(content=content, id=self._id, response_metadata=metadata, **fields)
        return ChatGenerationChunk(message=message)
