"""One call of `ChatCtx`: LangChain's arguments as a request, or as a question to a session."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from langchain_core.messages import LC_ID_PREFIX, BaseMessage

from ctxfold.errors import ConfigError, EmptyMessagesError
from ctxfold.exchange import Options, Question
from ctxfold.messages import Message
from ctxfold.ports import ContextBackend, Reply, Request
from ctxfold.stream import Fold, StreamPiece
from langchain_ctx.convert import from_langchain, given_ids
from langchain_ctx.keys import Address
from langchain_ctx.tools import choice, specs

if TYPE_CHECKING:
    from langchain_ctx.chat import ChatCtx

__all__ = ["SESSION", "Call", "no_session", "plain_astream", "plain_stream"]

SESSION = "ctxfold_session"
_NOT_SENT = frozenset(
    {SESSION, "extra_body", "ls_structured_output_format", "run_manager", "stream", "structured_output_format"}
)
_OPTIONS = frozenset(
    {"max_completion_tokens", "max_tokens", "model", "stop", "temperature", "thinking", "tool_choice", "tools"}
)


def no_session() -> ConfigError:
    return ConfigError("this ChatCtx keeps no sessions: give it session=... or store=..., and context_window=...")


@dataclass(frozen=True, slots=True)
class Call:
    """The messages of one call, their ids as they came, and what was asked of the model."""

    messages: tuple[Message, ...]
    given: frozenset[str]
    options: Options
    session: Address | None
    reply_id: str

    @classmethod
    def of(
        cls,
        chat: ChatCtx,
        messages: Sequence[BaseMessage],
        stop: Sequence[str] | None,
        kwargs: Mapping[str, Any],
        *,
        run: uuid.UUID | None = None,
    ) -> Call:
        """`run` is LangChain's id of this run: from it comes the id that LangChain gives to an event stream's message."""
        if not messages:
            raise EmptyMessagesError("no message to send: give at least one")
        named = kwargs.get(SESSION)
        return cls(
            messages=tuple(from_langchain(m) for m in messages),
            given=given_ids(messages),
            options=_options(chat, stop, kwargs),
            session=None if named is None else Address.of(named),
            reply_id=uuid.uuid4().hex if run is None else f"{LC_ID_PREFIX}-{run}",
        )

    def request(self) -> Request:
        """The list as it is, for a plain chat model."""
        told = self.options
        return Request(
            messages=self.messages,
            tools=told.tools,
            tool_choice=told.tool_choice,
            max_tokens=told.max_tokens,
            temperature=told.temperature,
            stop=told.stop,
            thinking=told.thinking,
            model=told.model,
            extra=told.extra,
        )

    def question(self) -> Question:
        """For a session: leading system messages are its prompts; of the rest, what it does not have is new."""
        if self.session is None:
            raise no_session()
        lead = next((i for i, m in enumerate(self.messages) if m.role != "system"), len(self.messages))
        rest = tuple(m for m in self.messages[lead:] if m.kind == "message")  # summaries are the session's own
        if not rest:
            raise EmptyMessagesError("a session needs more than system messages: add the user's message")
        prompts = tuple(m.text for m in self.messages[:lead]) or None
        return Question(self.session.key, rest, self.options, prompts, given_ids=self.given, reply_id=self.reply_id)


def _options(chat: ChatCtx, stop: Sequence[str] | None, kwargs: Mapping[str, Any]) -> Options:
    """What one call asks for; an argument of the call beats the model's field."""
    forced = choice(kwargs.get("tool_choice"))
    limit = kwargs.get("max_tokens", kwargs.get("max_completion_tokens"))
    ends = stop or kwargs.get("stop") or chat.stop or ()
    body = {name: v for name, v in kwargs.items() if name not in _NOT_SENT | _OPTIONS and v is not None}
    return Options(
        max_tokens=chat.max_tokens if limit is None else limit,
        temperature=kwargs.get("temperature", chat.temperature),
        stop=(ends,) if isinstance(ends, str) else tuple(ends),
        tools=specs(kwargs.get("tools")),
        tool_choice=forced,
        thinking=_thinking(chat, kwargs.get("thinking", chat.thinking), forced),
        model=kwargs.get("model") or chat.model,
        on_abort=chat.on_abort,
        extra={**chat.extra_body, **body, **(kwargs.get("extra_body") or {})},
    )


def _thinking(chat: ChatCtx, asked: bool | str | None, forced: str | None) -> bool | str | None:
    """As asked; what was left open gives way to a forced tool call where the provider cannot do both."""
    row = getattr(chat.context_backend, "profile", None)
    if asked is not None or forced in (None, "auto", "none") or row is None or chat.backend is not None:
        return asked
    exclusive = row.request.forced_tool_choice == "not_while_thinking" and row.thinking.default_on
    return False if exclusive and row.thinking.off is not None else None


def plain_stream(
    backend: ContextBackend, call: Call, done: Callable[[Reply], None]
) -> Generator[StreamPiece, None, None]:
    """Events of an answer that no session keeps."""
    fold = Fold(call.reply_id, call.options.model)
    stream = backend.open_stream(call.request())
    try:
        for chunk in stream:
            yield from fold.feed(chunk)
    finally:
        stream.close()
    done(fold.close())


async def plain_astream(
    backend: ContextBackend, call: Call, done: Callable[[Reply], None]
) -> AsyncGenerator[StreamPiece, None]:
    fold = Fold(call.reply_id, call.options.model)
    async with aclosing(await backend.aopen_stream(call.request())) as stream:
        async for chunk in stream:
            for event in fold.feed(chunk):
                yield event
    done(fold.close())
