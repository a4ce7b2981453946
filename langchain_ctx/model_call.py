"""One model call of an agent, in the engine's terms: what is asked, what the model is shown, what it answered."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from langchain.agents.middleware.types import ExtendedModelResponse, ModelRequest, ModelResponse
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, SystemMessage

from ctxfold.errors import CtxError
from ctxfold.exchange import Options, Question
from ctxfold.follow import Line
from ctxfold.messages import Message, ToolSpec
from ctxfold.ports import Reply, Request
from langchain_ctx.convert import from_langchain
from langchain_ctx.foreign import asked
from langchain_ctx.listing import Listing, newest, parted
from langchain_ctx.tools import counted

__all__ = ["Answered", "ModelCall", "conversation", "lasting", "model_call", "response_of", "told"]

Answered: TypeAlias = "ModelResponse[Any] | ExtendedModelResponse[Any] | AIMessage"


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One model call of an agent: the newest part of its conversation, and what of the request is not in it.

    `settled` is what the session should have had before this call: older turns, up to the newest final answer. `whole` says
    that nothing but the list tells where the session is to go on.
    """

    request: ModelRequest[Any]
    model: BaseChatModel
    line: Line
    prompt: str | None
    leading: tuple[str, ...]
    settled: tuple[Message, ...]
    messages: tuple[Message, ...]
    whole: bool

    def question(self) -> Question:
        limit = self.request.model_settings.get("max_tokens")
        options = Options(tools=_tools(self.request), max_tokens=limit if isinstance(limit, int) else None)
        prompts = (*(() if self.prompt is None else (self.prompt,)), *self.leading)
        given = frozenset(m.id for m in self.messages)
        return Question(self.line.key, self.messages, options, prompts or None, given_ids=given, whole=self.whole)

    def metadata(self, window: Request, listed: int) -> dict[str, Any]:
        """What a trace says of this call: the session, and how many of the agent's messages the model is shown."""
        shown = sum(m.kind == "message" and m.role != "system" for m in window.messages)
        return {"ctxfold_session": self.line.key.session, "ctxfold_shown": shown, "ctxfold_listed": listed}

    def within(self, window: Request) -> ModelRequest[Any]:
        """The agent's request with the window in place of its messages; its own system message stays as it is."""
        messages = asked(window.messages)
        if self.prompt is not None:
            at = next(
                (i for i, m in enumerate(messages) if isinstance(m, SystemMessage) and m.text == self.prompt), None
            )
            messages = messages if at is None else [*messages[:at], *messages[at + 1 :]]
        return self.request.override(model=self.model, messages=cast("list[Any]", messages))


def conversation(request: ModelRequest[Any]) -> list[BaseMessage]:
    """The agent's messages without the system messages that lead them, each with an id.

    Only what other middleware adds to one request has none.
    """
    messages = cast("list[BaseMessage]", request.messages[_lead(request) :])
    return [m if m.id else m.model_copy(update={"id": uuid.uuid4().hex}) for m in messages]


def lasting(request: ModelRequest[Any], answer: ModelResponse[Any]) -> Listing | None:
    """What the agent's list will have of this call, where other middleware has added to the request; else None."""
    messages = cast("list[BaseMessage]", request.messages[_lead(request) :])
    kept = [m for m in messages if m.id]
    return None if len(kept) == len(messages) else Listing([*kept, *answer.result])


def _lead(request: ModelRequest[Any]) -> int:
    """How many system messages the agent's list begins with."""
    return next((i for i, m in enumerate(request.messages) if m.type != "system"), len(request.messages))


def model_call(
    request: ModelRequest[Any], model: BaseChatModel, messages: Sequence[BaseMessage], line: Line, *, whole: bool
) -> ModelCall:
    known = newest([m.id for m in messages], line.known)
    settled, said = parted([from_langchain(m) for m in messages[max(known, 0) :]], line, goes_on=known >= 0)
    prompt = None if request.system_message is None else request.system_message.text
    return ModelCall(
        request=request,
        model=model,
        line=line,
        prompt=prompt or None,
        leading=tuple(m.text for m in request.messages[: _lead(request)]),
        settled=settled,
        messages=said,
        whole=whole,
    )


def _tools(request: ModelRequest[Any]) -> tuple[ToolSpec, ...]:
    """What the tools cost; tools that run at the provider cost their description, structured answers their schema."""
    answers = getattr(request.response_format, "schema_specs", ())
    return (*counted(request.tools), *(ToolSpec(a.name, a.description, a.json_schema) for a in answers))


def told(response: Answered) -> Reply:
    """What the agent's response says, with ids for all of its messages."""
    answer = _response(response)
    first = answer.result[0] if answer.result else None
    if not isinstance(first, AIMessage):
        raise CtxError(
            "the agent's model call brought no AIMessage: check the middleware that stands inside ContextMiddleware"
        )
    for one in answer.result:
        one.id = one.id or uuid.uuid4().hex
    message = from_langchain(first)
    return Reply(message, message.usage, message.finish_reason, answer)


def response_of(reply: Reply) -> ModelResponse[Any]:
    """The agent's own response; its message has the id under which the session keeps it."""
    answer = cast("ModelResponse[Any]", reply.raw)
    answer.result[0].id = reply.message.id
    return answer


def _response(response: Answered) -> ModelResponse[Any]:
    match response:
        case AIMessage():
            return ModelResponse([response])
        case ExtendedModelResponse():
            return response.model_response
        case _:
            return response
