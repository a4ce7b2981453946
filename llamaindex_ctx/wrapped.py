"""`with_context`: any LlamaIndex LLM in an existing engine or agent, with its context managed."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self, cast

from llama_index.core.base.embeddings.base import BaseEmbedding
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
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import LLM, ToolSelection
from pydantic import Field, PrivateAttr, SerializeAsAny

from ctxfold import Section
from ctxfold.closing import Closing
from ctxfold.connect import message_counter, session_rules
from ctxfold.errors import ConfigError, EmptyMessagesError
from ctxfold.exchange import Question
from ctxfold.given import check_name, name_or_own
from ctxfold.history.records import SessionKey
from ctxfold.messages import Message
from ctxfold.ports import Reply, Store, TokenCounter
from ctxfold.session import AgentContext
from ctxfold.tokens import TextCounter
from ctxfold.vectors import Embedder
from llamaindex_ctx.calling import ONE_CALL, Call, CallersBackend, failing_as_it_did
from llamaindex_ctx.convert import from_chat_messages
from llamaindex_ctx.embedding import as_embedder
from llamaindex_ctx.marks import ID_KEY, mark
from llamaindex_ctx.passing import chat_messages
from llamaindex_ctx.reasoning import check_reasoning, returning
from llamaindex_ctx.runs import Run, Sessions, Whose
from llamaindex_ctx.sections import listed_sections
from llamaindex_ctx.summarizer import LlmSummarizer, check_llm, known_window

if TYPE_CHECKING:
    from llama_index.core.tools.types import BaseTool

__all__ = ["ContextLLM", "with_context"]

_NO_RULES = ("prices", "strategy")  # what an AgentContext takes beside the fields of a policy


def with_context(  # noqa: PLR0913 - one keyword per independent setting
    llm: LLM,
    *,
    session: str | None = None,
    store: str | Store | None = None,
    context_window: int | None = None,
    owner: str = "default",
    summarizer: LLM | None = None,
    counter: TokenCounter | TextCounter | None = None,
    max_tokens: int | None = None,
    sections: Sequence[Section] = (),
    embedder: BaseEmbedding | Embedder | None = None,
    **policy: Any,
) -> ContextLLM:
    """The LLM with every request made to fit, and its reasoning sent back.

    It takes the LLM's place in an engine, agent or workflow. Without `session` it keeps an agent's run within the window, tool
    rounds included, and leaves the conversation to the memory; with one, the LLM keeps the conversation too, and `at` gives the
    same LLM for another session. `context_window` None takes the LLM's; `sections` stand beside the conversation, and with an
    `embedder` recall goes by meaning too; `policy` holds fields of `Policy`, and `strategy` and `prices`.
    ConfigError for a thinking LLM whose reasoning cannot be sent back.
    """
    _check_names(session, owner)
    check_llm("the LLM of with_context", llm)
    if summarizer is not None:
        check_llm("summarizer", summarizer)
    check_reasoning(llm)
    if isinstance(llm, ContextLLM):
        raise ConfigError("this LLM keeps its context already: use it as it is, or wrap the LLM inside")
    window = known_window(llm) if context_window is None else context_window
    helped = returning(llm)
    told: object = getattr(llm, "max_tokens", None)
    reserve = policy.pop("reply_reserve_tokens", told if max_tokens is None and isinstance(told, int) else max_tokens)
    rules = {name: value for name, value in policy.items() if name not in _NO_RULES}
    # checked at once, not at the first call
    checked: dict[str, Any] = {name: policy.get(name) for name in _NO_RULES}
    session_rules(window, None, reply_reserve_tokens=reserve, counter=counter, **checked, **rules)
    settings = {
        "backend": CallersBackend(helped, context_window=window),
        "context_window": window,
        "summarizer": LlmSummarizer(helped if summarizer is None else summarizer),
        "counter": message_counter(counter, model=llm.metadata.model_name),
        "max_tokens": reserve,
        "sections": listed_sections(sections),
        "embedder": as_embedder(embedder),
        **policy,
    }
    return ContextLLM(
        inner=helped,
        window=window,
        session=session,
        owner=owner,
        sessions=Sessions(store=store, settings=settings),
        callback_manager=llm.callback_manager,
    )


def _check_names(session: object, owner: object) -> None:
    if session is not None:
        check_name("session name", session)
    check_name("owner name", owner)


@dataclass(frozen=True, slots=True)
class _Asked:
    """One call on its way: where it is asked, what, and how it is told apart from others."""

    context: AgentContext
    question: Question
    call: Call
    said: _Said


class ContextLLM(FunctionCallingLLM, Closing):
    """What `with_context` gives; `inner` is the LLM that answers."""

    inner: SerializeAsAny[LLM]
    window: int = Field(description="Tokens in and out together.")
    session: str | None = None
    owner: str = "default"

    _sessions: Sessions | None = PrivateAttr(default=None)

    def __init__(self, *, sessions: Sessions | None = None, **fields: Any) -> None:
        _check_names(fields.get("session"), fields.get("owner", "default"))
        super().__init__(**fields)
        self._sessions = sessions

    @classmethod
    def class_name(cls) -> str:
        return "ContextLLM"

    @property
    def metadata(self) -> LLMMetadata:
        fields: dict[str, Any] = {**self.inner.metadata.model_dump(), "context_window": self.window}
        return LLMMetadata(**fields)

    def at(self, session: str, *, owner: str | None = None) -> Self:
        """The same LLM for another session; engine, store and connections are shared."""
        key = SessionKey(name_or_own("owner name", owner, self.owner), check_name("session name", session))
        return self.model_copy(update={"session": key.session, "owner": key.owner})

    def context(self, session: str | None = None, *, owner: str | None = None) -> AgentContext:
        """A session of this LLM: window, usage, pins, explain, export; its own when none is named."""
        name = self.session if session is None else session
        if name is None:
            raise ConfigError("this LLM was given no session: name one, or give with_context(llm, session=...)")
        return self._kept().at(check_name("session name", name), name_or_own("owner name", owner, self.owner))

    def close(self) -> None:
        """Close the store that was opened for this LLM; the LLM itself belongs to whoever made it."""
        if self._sessions is not None:
            self._sessions.close()

    async def aclose(self) -> None:
        if self._sessions is not None:
            await self._sessions.aclose()

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        # connections and stores are shared: they cannot be copied
        return self.model_copy()

    def _kept(self) -> Sessions:
        if self._sessions is None:
            raise ConfigError(
                "this LLM came out of a pickle or dict, without its sessions: make it with with_context(...)"
            )
        return self._sessions

    # answering: the inner LLM tells LlamaIndex of its requests, with the window that was sent

    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """The whole answer, to the newest message with as much before it as fits."""
        asked = self._asked(messages, kwargs)
        with failing_as_it_did():
            return self._answered(asked, asked.context.ask(asked.question))

    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        asked = await self._aasked(messages, kwargs)
        with failing_as_it_did():
            return self._answered(asked, await asked.context.aask(asked.question))

    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        """The LLM's own responses; the request is sent on the first `next`."""
        asked = self._asked(messages, kwargs)
        replies: list[Reply] = []
        with failing_as_it_did():
            events: Any = asked.context.stream(asked.question, replies.append)
            with closing(events):
                for _ in cast("Iterator[Any]", events):
                    yield from asked.call.take()
            yield from asked.call.take()
        self._went(asked, replies[0])

    async def astream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseAsyncGen:
        return self._astream(messages, kwargs)

    async def _astream(self, messages: Sequence[ChatMessage], kwargs: dict[str, Any]) -> ChatResponseAsyncGen:
        asked = await self._aasked(messages, kwargs)
        replies: list[Reply] = []
        with failing_as_it_did():
            events: Any = asked.context.astream(asked.question, replies.append)
            async with aclosing(events):
                async for _ in cast("AsyncIterator[Any]", events):
                    for response in asked.call.take():
                        yield response
            for response in asked.call.take():
                yield response
        self._went(asked, replies[0])

    def _asked(self, messages: Sequence[ChatMessage], kwargs: dict[str, Any]) -> _Asked:
        call, said = Call.of(kwargs), self._said(messages)
        if self.session is not None:
            return said.in_session(self._kept().at(self.session, self.owner), call)
        run = self._kept().take_run(said.listed)
        if run.earlier:
            run.context.add(run.earlier)
        return said.in_run(run, call)

    async def _aasked(self, messages: Sequence[ChatMessage], kwargs: dict[str, Any]) -> _Asked:
        call, said = Call.of(kwargs), self._said(messages)
        if self.session is not None:
            return said.in_session(await self._kept().aat(self.session, self.owner), call)
        run = self._kept().take_run(said.listed)
        if run.earlier:
            await run.context.aadd(run.earlier)
        return said.in_run(run, call)

    def _said(self, messages: Sequence[ChatMessage]) -> _Said:
        return _Said.of(messages, Whose.here(self.owner, self.session)).with_rounds(self._kept())

    def _answered(self, asked: _Asked, reply: Reply) -> ChatResponse:
        self._went(asked, reply)
        (response,) = asked.call.take()
        mark(response.message, **{ID_KEY: reply.message.id})
        return response

    def _went(self, asked: _Asked, reply: Reply) -> None:
        said = asked.said
        self._kept().keep_rounds(said.whose, said.listed, said.given, reply.message)
        if self.session is None:
            self._kept().keep_run(asked.context, said.listed, reply.message)

    # what belongs to the inner LLM

    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """As the LLM does it: a prompt alone is no conversation."""
        return self.inner.complete(prompt, formatted=formatted, **kwargs)

    async def acomplete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return await self.inner.acomplete(prompt, formatted=formatted, **kwargs)

    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:
        return self.inner.stream_complete(prompt, formatted=formatted, **kwargs)

    async def astream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseAsyncGen:
        return await self.inner.astream_complete(prompt, formatted=formatted, **kwargs)

    def _prepare_chat_with_tools(
        self,
        tools: Sequence[BaseTool],
        user_msg: str | ChatMessage | None = None,
        chat_history: list[ChatMessage] | None = None,
        verbose: bool = False,
        allow_parallel_tool_calls: bool = False,
        tool_required: bool = False,
        **kwargs: Any,
    ) -> dict[str, Any]:
        given: Any = self._calling()
        prepared: dict[str, Any] = given._prepare_chat_with_tools_compat(
            tools,
            user_msg=user_msg,
            chat_history=chat_history,
            verbose=verbose,
            allow_parallel_tool_calls=allow_parallel_tool_calls,
            tool_required=tool_required,
            **kwargs,
        )
        return {**prepared, ONE_CALL: not allow_parallel_tool_calls}

    def get_tool_calls_from_response(
        self, response: ChatResponse, error_on_no_tool_call: bool = True, **kwargs: Any
    ) -> list[ToolSelection]:
        return self._calling().get_tool_calls_from_response(response, error_on_no_tool_call, **kwargs)

    def _calling(self) -> FunctionCallingLLM:
        if isinstance(self.inner, FunctionCallingLLM):
            return self.inner
        raise ConfigError(f"{type(self.inner).__name__} calls no functions: leave tools out, or use another LLM")


@dataclass(frozen=True, slots=True)
class _Said:
    """One call's list: leading system prompts, the conversation, and what a memory injected for this request alone."""

    whose: Whose
    prompts: tuple[str, ...] | None
    listed: tuple[Message, ...]
    injected: str
    given: frozenset[str]

    @classmethod
    def of(cls, messages: Sequence[ChatMessage], whose: Whose) -> _Said:
        messages = chat_messages(messages)
        given = frozenset(str(m.additional_kwargs[ID_KEY]) for m in messages if m.additional_kwargs.get(ID_KEY))
        for message in messages:
            if message.role == MessageRole.TOOL and ID_KEY not in message.additional_kwargs:
                # an agent hands the same object to its memory later: a CtxMemory over this session then knows it
                mark(message, **{ID_KEY: uuid.uuid4().hex})
        taken = from_chat_messages(messages)
        lead = next((i for i, m in enumerate(taken) if m.role != "system"), len(taken))
        rest = taken[lead:]
        # a memory's summary is an ordinary message here
        listed = tuple(m if m.kind == "message" else replace(m, kind="message") for m in rest if m.kind != "section")
        if not listed:
            raise EmptyMessagesError("no message to send besides system messages: give the user's")
        injected = "\n\n".join(m.text for m in rest if m.kind == "section")
        # once each: an agent's prompt comes again from a memory over the same session
        prompts = tuple(dict.fromkeys(m.text for m in taken[:lead]))
        return cls(whose, prompts or None, listed, injected, given)

    def with_rounds(self, kept: Sessions) -> _Said:
        """With the tool rounds of the run, where an agent that stops early leaves them out."""
        found = kept.rounds_of(self.whose, self.listed)
        if found is None:
            return self
        messages, given = found
        return replace(self, listed=(*messages, self.listed[-1]), given=self.given | given)

    def in_session(self, context: AgentContext, call: Call) -> _Asked:
        """Of the list, what the session does not have is new."""
        key = SessionKey(context.owner, context.session)
        options = call.options(self.injected)
        question = Question(key, self.listed, options, self.prompts, given_ids=self.given, reply_id=call.reply_id)
        return _Asked(context, question, call, self)

    def in_run(self, run: Run, call: Call) -> _Asked:
        key = SessionKey(run.context.owner, run.context.session)
        question = Question(key, run.fresh, call.options(self.injected), self.prompts, reply_id=call.reply_id)
        return _Asked(run.context, question, call, self)
