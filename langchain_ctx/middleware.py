"""`ContextMiddleware`: an agent of `create_agent` whose conversation may outgrow its model's window."""

from __future__ import annotations

import json
import uuid
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from langchain.agents.middleware.types import AgentMiddleware, ExtendedModelResponse, ModelRequest, ModelResponse
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, SystemMessage
from langchain_core.runnables import ensure_config

from ctxfold.errors import ConfigError, CtxError
from ctxfold.exchange import Options, Question
from ctxfold.history.records import SessionKey
from ctxfold.history.view import View
from ctxfold.messages import Message, ToolSpec
from ctxfold.ports import Reply, Request, Store, TokenCounter
from ctxfold.session import AgentContext
from ctxfold.tokens import TextCounter
from langchain_ctx.calling import Caller, CallersModel, CallersSummarizer, calling, failing_as_it_did, keeps_sessions
from langchain_ctx.convert import from_langchain
from langchain_ctx.errors import as_backend_error, translated
from langchain_ctx.foreign import asked
from langchain_ctx.history import session_key
from langchain_ctx.reasoning import returning
from langchain_ctx.sessions import Sessions
from langchain_ctx.tools import specs

__all__ = ["ContextMiddleware"]

LOOK_BACK = 64
Answered: TypeAlias = "ModelResponse[Any] | ExtendedModelResponse[Any] | AIMessage"


@dataclass(frozen=True, slots=True)
class _Asked:
    """One model call of an agent: the newest part of its conversation, and what of the request is not in it.

    `settled` is what the session should have had before this call: older turns, up to the newest final answer.
    """

    request: ModelRequest[Any]
    model: BaseChatModel
    key: SessionKey
    prompt: str | None
    leading: tuple[str, ...]
    settled: tuple[Message, ...]
    messages: tuple[Message, ...]
    given: frozenset[str]

    def question(self) -> Question:
        limit = self.request.model_settings.get("max_tokens")
        options = Options(tools=_tools(self.request), max_tokens=limit if isinstance(limit, int) else None)
        prompts = (*(() if self.prompt is None else (self.prompt,)), *self.leading)
        return Question(self.key, self.messages, options, prompts or None, given_ids=self.given)

    def within(self, window: Request) -> ModelRequest[Any]:
        """The agent's request with the window in place of its messages; its own system message stays as it is."""
        messages = asked(window.messages)
        if self.prompt is not None:
            at = next(
                (i for i, m in enumerate(messages) if isinstance(m, SystemMessage) and m.text == self.prompt), None
            )
            messages = messages if at is None else [*messages[:at], *messages[at + 1 :]]
        return self.request.override(model=self.model, messages=cast("list[Any]", messages))


class ContextMiddleware(AgentMiddleware[Any, Any, Any]):
    """Gives the model a window that fits; the agent's own messages stay as they are, and whole.

    ```python
    agent = create_agent(model, tools, middleware=[ContextMiddleware(context_window=64_000)], checkpointer=saver)
    ```
    Each model call is shown system prompt, summaries, recalled passages and the newest messages, always with whole tool
    rounds; tool outputs too large for the window are shown as excerpts with a reference. What was asked last is what the next
    request begins with, until a compaction. Reasoning is sent back, also for models that lose it (`with_reasoning`).

    Args:
        context_window: tokens in and out together.
        store: `sqlite:///file.db`, `postgresql+psycopg://...`, a Store, or None for memory.
        session: the session's name; None takes the run's `thread_id` (a sub-agent's with its place in the graph), and without one
            the conversation's first message.
        owner: whose session it is; `configurable["owner"]` beats it.
        summarizer: a chat model or a backend that writes summaries; None is the model of the call.
        counter: a token counter; None is tiktoken's for the model.
        max_tokens: reply reserve in tokens; None keeps a fifth of the window free.
        policy: further fields of `ctxfold.Policy`, such as `hard_ratio=0.8`.

    One middleware serves many threads and tasks. `close` closes a store that was given as a URL.
    """

    def __init__(
        self,
        *,
        context_window: int,
        store: str | Store | None = None,
        session: str | None = None,
        owner: str = "default",
        summarizer: Any = None,
        counter: TokenCounter | TextCounter | None = None,
        max_tokens: int | None = None,
        **policy: object,
    ) -> None:
        super().__init__()
        self.tools = []
        self._session = session
        self._owner = owner
        self._writer = CallersSummarizer()
        self._sessions = Sessions(
            store=store,
            context_window=context_window,
            backend=CallersModel(),
            summarizer=self._writer if summarizer is None else summarizer,
            counter=counter,
            max_tokens=max_tokens,
            policy=policy,
        )

    def context(self, session: str, *, owner: str | None = None) -> AgentContext:
        """A session of this middleware: window, usage, pins, explain, export. `session` is the thread's id."""
        key = session_key(session, owner or self._owner)
        return self._sessions.at(key.session, key.owner)

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> Any:
        messages = _conversation(request)
        if not messages:
            return handler(request)
        key, model = self._key(messages), self._model(request)

        def send(window: Request) -> Reply:
            with as_backend_error(type(model).__name__):
                return _reply(handler(call.within(window)))

        with translated(), failing_as_it_did(), calling(Caller(model, send=send)):
            context = self._sessions.at(key.session, key.owner)
            view = context.view()
            last = None if self._session else _gone_back_to(view, messages)
            while last is not None and view.live[-1].id != last:
                context.pop()
                view = context.view()
            call = _asked(request, model, key, messages, _newest(view))
            if call.settled:
                context.add(call.settled)
            reply = context.ask(call.question())
            rest = _rest(reply)
            if rest:
                context.add(rest)
        return _answer(reply)

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> Any:
        messages = _conversation(request)
        if not messages:
            return await handler(request)
        key, model = self._key(messages), self._model(request)

        async def asend(window: Request) -> Reply:
            with as_backend_error(type(model).__name__):
                return _reply(await handler(call.within(window)))

        with translated(), failing_as_it_did(), calling(Caller(model, asend=asend)):
            context = await self._sessions.aat(key.session, key.owner)
            view = await context.aview()
            last = None if self._session else _gone_back_to(view, messages)
            while last is not None and view.live[-1].id != last:
                await context.apop()
                view = await context.aview()
            call = _asked(request, model, key, messages, _newest(view))
            if call.settled:
                await context.aadd(call.settled)
            reply = await context.aask(call.question())
            rest = _rest(reply)
            if rest:
                await context.aadd(rest)
        return _answer(reply)

    def _model(self, request: ModelRequest[Any]) -> BaseChatModel:
        model = request.model
        if keeps_sessions(model):
            raise ConfigError(
                f"the agent's {type(model).__name__} keeps sessions of its own: leave out its session and store, "
                "or leave out ContextMiddleware"
            )
        self._writer.seen(model)
        return returning(model)

    def _key(self, messages: Sequence[BaseMessage]) -> SessionKey:
        told = ensure_config().get("configurable", {})
        session = self._session or told.get("thread_id")
        if session is None:
            session = f"run-{messages[0].id}"
        # a sub-agent runs on its caller's thread: what names it is its place, less the node that is running
        place = str(told.get("checkpoint_ns") or "").rpartition("|")[0]
        return session_key(f"{session}/{place}" if place else session, told.get("owner", self._owner))

    def close(self) -> None:
        """Close the store, if this middleware opened it."""
        self._sessions.close()

    async def aclose(self) -> None:
        await self._sessions.aclose()


def _lead(request: ModelRequest[Any]) -> int:
    """How many system messages the agent's list begins with."""
    return next((i for i, m in enumerate(request.messages) if m.type != "system"), len(request.messages))


def _conversation(request: ModelRequest[Any]) -> list[BaseMessage]:
    return cast("list[BaseMessage]", list(request.messages[_lead(request) :]))


def _newest(view: View) -> frozenset[str]:
    """Ids of the session's newest messages; what stands before them in the agent's list is known."""
    live = view.live
    return frozenset(live[i].id for i in range(max(0, len(live) - LOOK_BACK), len(live)))


def _gone_back_to(view: View, conversation: Sequence[BaseMessage]) -> str | None:
    """The message with which an earlier checkpoint ended, if the agent went on from there; what followed it is left behind."""
    if conversation[-1].type != "human":
        return None
    live, given = view.live, {m.id for m in conversation}
    answered = False
    for index in range(len(live) - 1, max(-1, len(live) - 1 - LOOK_BACK), -1):
        if live[index].id in given:
            return live[index].id if answered else None
        # what was only added to the session, such as a note, is not followed by an answer
        answered = answered or live[index].message.role == "assistant"
    return None


def _asked(
    request: ModelRequest[Any],
    model: BaseChatModel,
    key: SessionKey,
    conversation: Sequence[BaseMessage],
    newest: Collection[str],
) -> _Asked:
    known = next((i for i in range(len(conversation) - 1, -1, -1) if conversation[i].id in newest), -1)
    tail = conversation[max(known, 0) :]
    messages = tuple(m for m in map(from_langchain, tail) if m.kind == "message")  # summaries are the session's own
    ends = next((i for i in range(len(messages) - 1, -1, -1) if _final(messages[i])), -1)
    settled = messages[1 if known >= 0 else 0 : ends + 1]
    prompt = None if request.system_message is None else request.system_message.text
    return _Asked(
        request=request,
        model=model,
        key=key,
        prompt=prompt or None,
        leading=tuple(m.text for m in request.messages[: _lead(request)]),
        settled=settled if ends < len(messages) - 1 else (),
        messages=messages,
        given=frozenset(m.id for m in tail if m.id),
    )


def _final(message: Message) -> bool:
    return message.role == "assistant" and not message.tool_calls


def _tools(request: ModelRequest[Any]) -> tuple[ToolSpec, ...]:
    """What the tools cost; tools that run at the provider cost their description, structured answers their schema."""
    found: list[ToolSpec] = []
    for tool in request.tools:
        try:
            found += specs([tool])
        except ConfigError:
            found.append(ToolSpec("provider", json.dumps(tool, default=str), {}))
    for spec in getattr(request.response_format, "schema_specs", ()):
        found.append(ToolSpec(spec.name, spec.description, spec.json_schema))
    return tuple(found)


def _reply(response: Answered) -> Reply:
    results = _results(response)
    answer = next((m for m in results if isinstance(m, AIMessage)), None)
    if answer is None:
        raise CtxError(
            "the agent's model call brought no AIMessage: check the middleware that stands inside ContextMiddleware"
        )
    for message in results:
        message.id = message.id or uuid.uuid4().hex
    told = from_langchain(answer)
    return Reply(told, told.usage, told.finish_reason, response)


def _results(response: Answered) -> Sequence[BaseMessage]:
    match response:
        case AIMessage():
            return [response]
        case ExtendedModelResponse():
            return response.model_response.result
        case _:
            return response.result


def _rest(reply: Reply) -> list[Message]:
    """What came with the answer: the result of a structured answer's call."""
    results = _results(reply.raw)
    at = next(i for i, m in enumerate(results) if isinstance(m, AIMessage))
    return [from_langchain(m) for m in results[at + 1 :]]


def _answer(reply: Reply) -> Any:
    """The agent's own response; its message has the id under which the session keeps it."""
    for message in _results(reply.raw):
        if isinstance(message, AIMessage):
            message.id = reply.message.id
            break
    return reply.raw
