"""One call of a model that `with_context` wraps: what its session is asked, and how the model's own answer is handed on."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator, Mapping, Sequence
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.messages import LC_ID_PREFIX, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from ctxfold.errors import EmptyMessagesError
from ctxfold.exchange import Options, Question
from ctxfold.history.records import SessionKey
from ctxfold.ports import Reply
from langchain_ctx.calling import Caller, calling
from langchain_ctx.convert import from_langchain, given_ids
from langchain_ctx.tools import counted

__all__ = ["aeach", "each", "new_id", "question_of", "reply_of", "result_of"]


def each(events: Iterator[Any], caller: Caller) -> Generator[Any, None, None]:
    """The events; the caller is in place only while one is made, and not while it is handed on."""
    while True:
        with calling(caller):
            event = next(events, None)
        if event is None:
            return
        yield event


async def aeach(events: AsyncIterator[Any], caller: Caller) -> AsyncGenerator[Any, None]:
    while True:
        with calling(caller):
            event = await anext(events, None)
        if event is None:
            return
        yield event


def new_id(run: CallbackManagerForLLMRun | AsyncCallbackManagerForLLMRun | None = None) -> str:
    """An event stream is given its run: LangChain names its message after that."""
    return uuid.uuid4().hex if run is None else f"{LC_ID_PREFIX}-{run.run_id}"


def question_of(key: SessionKey, messages: Sequence[BaseMessage], kwargs: Mapping[str, Any], reply_id: str) -> Question:
    """Leading system messages are the session's prompts; of the rest, what it does not have is new."""
    if not messages:
        raise EmptyMessagesError("no message to send: give at least one")
    lead = next((i for i, m in enumerate(messages) if m.type != "system"), len(messages))
    rest = tuple(
        m for m in map(from_langchain, messages[lead:]) if m.kind == "message"
    )  # summaries are the session's own
    if not rest:
        raise EmptyMessagesError("a session needs more than system messages: add the user's message")
    limit = kwargs.get("max_tokens")
    options = Options(tools=counted(kwargs.get("tools")), max_tokens=limit if isinstance(limit, int) else None)
    prompts = tuple(m.text for m in messages[:lead]) or None
    return Question(key, rest, options, prompts, given_ids=given_ids(messages), reply_id=reply_id)


def reply_of(result: ChatResult) -> Reply:
    answer = result.generations[0].message
    told = from_langchain(answer if answer.id else answer.model_copy(update={"id": new_id()}))
    return Reply(told, told.usage, told.finish_reason, result)


def result_of(reply: Reply) -> ChatResult:
    """The model's own result, its message under the id that the session keeps it by."""
    result: ChatResult = reply.raw
    first = result.generations[0]
    message = first.message.model_copy(update={"id": reply.message.id})
    named = ChatGeneration(message=message, generation_info=first.generation_info)
    return ChatResult(generations=[named, *result.generations[1:]], llm_output=result.llm_output)
