"""Turns one call of a chat model into the input of a session, or into a plain request."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.messages import LC_ID_PREFIX, BaseMessage

from ctxfold.adapters.refused_reasoning import PlainCalls
from ctxfold.connect import check_fits
from ctxfold.engine.request import Options, check_call
from ctxfold.engine.turn import TurnInput
from ctxfold.errors import ConfigError, EmptyMessagesError
from ctxfold.history.records import SessionKey
from ctxfold.protocols import Reply, Request, TokenCounter
from ctxfold.stream import Fold, StreamPiece
from ctxfold.validation import warn_caller
from langchain_ctx.message_lists import leading_count, name_refusals, prompt_text
from langchain_ctx.messages import all_from_langchain, given_ids
from langchain_ctx.session_routing import Address
from langchain_ctx.tools import choice, specs, with_answer_format

SESSION = "ctxfold_session"
WINDOW = "context_window"
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


def turn_input_of(key: SessionKey, messages: Sequence[BaseMessage], options: Options, reply_id: str) -> TurnInput:
    """Returns the input of a session: leading system messages are its prompts, and messages that it does not have are new."""
    if not messages:
        raise EmptyMessagesError("no message to send: give at least one")
    name_refusals(messages)
    lead = leading_count(messages)
    # summaries are the session's own
    rest = tuple(m for m in all_from_langchain(messages[lead:]) if m.kind == "message")
    prompts = tuple(map(prompt_text, messages[:lead])) or None
    return TurnInput(key, rest, options, prompts, given_ids=given_ids(messages), reply_id=reply_id)


@dataclass(frozen=True, slots=True)
class ChatCall:
    """The messages of one call, the options for the model, and the session that the call names."""

    messages: Sequence[BaseMessage]
    options: Options
    session: Address | None
    reply_id: str

    def request(self, counter: Callable[[], TokenCounter]) -> Request:
        """Returns the list as it is, for a plain chat model; ContextOverflowError where it exceeds the window asked for."""
        if not self.messages:
            raise EmptyMessagesError("no message to send: give at least one")
        name_refusals(self.messages)
        options = self.options
        request = Request(
            messages=tuple(all_from_langchain(self.messages)),
            tools=options.tools,
            tool_choice=options.tool_choice,
            max_tokens=options.max_tokens,
            temperature=options.temperature,
            stop=options.stop,
            thinking=options.thinking,
            model=options.model,
            extra=options.extra,
        )
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


def plain_stream(
    calls: PlainCalls, request: Request, call: ChatCall, done: Callable[[Reply], None]
) -> Generator[StreamPiece, None, None]:
    """Yields the events of an answer that no session keeps; `done` gets the whole reply."""
    fold = Fold(call.reply_id, call.options.model)
    stream = calls.open_stream(request)
    try:
        for chunk in stream:
            yield from fold.feed(chunk)
    finally:
        stream.close()
    done(fold.close())


async def plain_astream(
    calls: PlainCalls, request: Request, call: ChatCall, done: Callable[[Reply], None]
) -> AsyncGenerator[StreamPiece, None]:
    fold = Fold(call.reply_id, call.options.model)
    async with aclosing(await calls.aopen_stream(request)) as stream:
        async for chunk in stream:
            for event in fold.feed(chunk):
                yield event
    done(fold.close())
