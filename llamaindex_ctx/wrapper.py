"""Defines `with_context`, which manages the context of any LlamaIndex LLM in an existing engine or agent."""

from __future__ import annotations

import hashlib
import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Self, Unpack, cast

from llama_index.core.agent.utils import messages_to_xml_format
from llama_index.core.agent.workflow.prompts import DEFAULT_EARLY_STOPPING_PROMPT
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
    TextBlock,
    ToolCallBlock,
)
from llama_index.core.chat_engine.types import AgentChatResponse
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import LLM, ToolSelection
from llama_index.core.tools.types import BaseTool
from llama_index_instrumentation.dispatcher import active_instrument_tags
from pydantic import Field, PrivateAttr, SerializeAsAny

from ctxfold import Section
from ctxfold._lifecycle import Closing
from ctxfold.adapters.calls import Invoke, PieceFlow, acall, aemit, call, each, emit, original_error, received
from ctxfold.adapters.sessions import EngineSettings, SessionPool
from ctxfold.adapters.tool_rounds import answered
from ctxfold.connect import OF_EVERY_SESSION, message_counter, session_rules
from ctxfold.effects import Flow
from ctxfold.engine.engine import Engine
from ctxfold.engine.turn import TurnInput
from ctxfold.errors import ConfigError, EmptyMessagesError
from ctxfold.history.diff import PROMPT_ID
from ctxfold.history.records import Calibrated, SessionKey
from ctxfold.lru import LruCache
from ctxfold.messages import Message, assistant, content_key
from ctxfold.policy.settings import check_settings
from ctxfold.protocols import Embedder, Reply, Store, TokenCounter, UuidIds
from ctxfold.sections.section import check_sections
from ctxfold.session.context import AgentContext
from ctxfold.tokens.text import TextCounter
from ctxfold.validation import check_name, name_or_own, unpacked
from llamaindex_ctx.backend import (
    ONE_CALL,
    PARSED,
    REPLIES,
    CallersBackend,
    CallersSummarizer,
    LlmCall,
)
from llamaindex_ctx.instrumentation import tell
from llamaindex_ctx.memory_settings import source_of
from llamaindex_ctx.messages import chat_messages, from_chat_messages, with_distinct_ids
from llamaindex_ctx.metadata import ID_KEY, NEWEST_KEY, mark
from llamaindex_ctx.reasoning import check_reasoning, returning
from llamaindex_ctx.retrieval import as_embedder
from llamaindex_ctx.summarizer import LlmSummarizer, check_llm, known_window, reply_limit
from llamaindex_ctx.tools import is_output_class

# fields of the LLM that LlamaIndex reads where a prompt is filled or structured output asked for
_COPIED_FIELDS = (
    "callback_manager",
    "system_prompt",
    "messages_to_prompt",
    "completion_to_prompt",
    "output_parser",
    "pydantic_program_mode",
    "query_wrapper_prompt",
)
MAX_RUNS = 256  # the newest runs, which later lists may continue
_RUN_TAG = "llamaindex.run_id"  # on whatever happens in a workflow's run; older releases do without
# how an agent with an output class asks for its output
_TRANSCRIPT = [b.text for b in messages_to_xml_format([])[0].blocks if isinstance(b, TextBlock)]
_STOP_BEGINS, _STOP_ENDS = DEFAULT_EARLY_STOPPING_PROMPT.split("{max_iterations}")


@dataclass(frozen=True, slots=True)
class Run:
    """Holds the session of a run, the messages to store in it first as history, and the new ones to send.

    `learnt` is what earlier runs have learnt about the counts and limits of models; a new session has to be told.
    """

    context: AgentContext
    earlier: tuple[Message, ...]
    fresh: tuple[Message, ...]
    learnt: tuple[Calibrated, ...] = ()

    def prepare(self, asked_ids: tuple[str, ...], engine: Engine) -> Flow[None]:
        """Tells the session what earlier runs have learnt, and the question that it keeps while it stores the history."""
        session = yield from engine.open(SessionKey(self.context.owner, self.context.session))
        session.asked_ids = asked_ids
        yield from session.append([session.draft(body) for body in self.learnt])


class RunKey(NamedTuple):
    """Names the owner of tool rounds: a session (None without one), and a workflow run ("" outside of one)."""

    owner: str
    session: str | None
    run: str

    @classmethod
    def here(cls, owner: str, session: str | None) -> RunKey:
        return cls(owner, session, str(active_instrument_tags.get().get(_RUN_TAG) or ""))


@dataclass(frozen=True, slots=True)
class _Rounds:
    """Counts the runs under way that have asked a question; holds the newest list, and the ids in it, if there is only one."""

    runs: int
    listed: tuple[Message, ...] = ()
    caller_ids: frozenset[str] = frozenset()


class RunSessions(SessionPool):
    """Opens named sessions over one engine and one store, and runs, each in a memory of its own. Safe across threads and tasks.

    A run is recognised by its text: the list of a call begins with the list of an earlier call and its answer. It is continued
    once; a second list with the same beginning, such as another branch, starts from its own messages.
    """

    def __init__(self, *, store: str | Store | None, settings: Mapping[str, Any]) -> None:
        super().__init__(source_of(store, None).store if isinstance(store, str) else store, settings, subscriber=tell)
        self._runs: list[tuple[str, AgentContext]] = []  # by what they were given and answered, in order of keeping
        self._questions: LruCache[RunKey, Message] = LruCache(MAX_RUNS)  # of workflows' runs
        self._rounds: LruCache[tuple[RunKey, str], _Rounds] = LruCache(MAX_RUNS)  # by the words up to the question
        self._learnt: dict[str, Calibrated] = {}  # by model, in the newest run that has asked it
        self._runs_lock = threading.Lock()

    def question_of(self, run_key: RunKey, messages: Sequence[Message]) -> tuple[str, ...]:
        """Returns the ids under which the question of a workflow's run may be stored, () outside of one.

        Agents that call in plain text answer it with user messages, so it is the newest one in the first list of the run only. They
        write their rounds anew each time, so that each list may make a session with other ids.
        """
        asked = [m for m in messages if m.role == "user"]
        if not run_key.run or not asked:
            return ()
        question = self._questions.get_or_make(run_key, lambda: asked[-1])
        return (question.id, *(m.id for m in asked if m.text == question.text))

    def rounds_of(
        self, run_key: RunKey, messages: Sequence[Message]
    ) -> tuple[tuple[Message, ...], frozenset[str]] | None:
        """Returns a question with its tool rounds and their ids, for an agent that sends the question alone.

        One that has to stop early asks for an answer from "the information gathered so far" with what its memory has, which is
        nothing of this run. None where it may be another run that found them.
        """
        if not _stops_early(messages):
            return None
        rounds = self._rounds.get((run_key, _digest(messages[:-1])))
        return (rounds.listed, rounds.caller_ids) if rounds is not None and rounds.listed else None

    def keep_rounds(
        self, run_key: RunKey, messages: Sequence[Message], caller_ids: frozenset[str], answer: Message
    ) -> None:
        """Stores the tool rounds of a question so far; removes them when the answer has no calls, which ends the run."""
        question_end = max((i for i, m in enumerate(messages) if m.role == "user"), default=-1) + 1
        if not question_end:
            return
        key = run_key, _digest(messages[:question_end])
        over = not answer.tool_calls or _stops_early(messages)
        with self._runs_lock:
            rounds = self._rounds.pop(key) or _Rounds(0)
            if question_end == len(messages):
                updated = _after_question(rounds, run_key, over=over)
            elif over:
                updated = _Rounds(rounds.runs - 1)
            else:
                updated = _after_round(rounds, run_key, _Rounds(1, tuple(messages), caller_ids))
            if updated.runs > 0:
                self._rounds.put(key, updated)

    def take_run(self, messages: Sequence[Message]) -> Run:
        """Returns the run that these messages continue, or a new one, and the messages that it does not have."""
        answered = max((i for i, m in enumerate(messages) if m.role == "assistant"), default=-1) + 1
        key = _digest(messages[:answered])
        with self._runs_lock:
            newest_first = range(len(self._runs) - 1, -1, -1) if answered < len(messages) else ()
            position = next((i for i in newest_first if self._runs[i][0] == key), None)
            context = None if position is None else self._runs.pop(position)[1]
            learnt = tuple(self._learnt.values())
        if context is None:
            question_start = max((i for i, m in enumerate(messages) if m.role == "user"), default=0)
            earlier, fresh = tuple(messages[:question_start]), tuple(messages[question_start:])
            # nobody can read back from a run, and a memory beside it has numbers of its own
            return Run(self.open(session_id="run", references=False), earlier, fresh, learnt)
        return Run(context, (), tuple(messages[answered:]))

    def keep_run(self, context: AgentContext, messages: Sequence[Message], answer: Message) -> None:
        """Keeps the run for the list that follows this answer, and what it has learnt; closes the oldest of too many runs."""
        key = _digest([*messages, answer])
        learnt = context.handle.run_flow(partial(_learnt_in, SessionKey(context.owner, context.session)))
        with self._runs_lock:
            self._learnt |= learnt
            self._runs.append((key, context))
            dropped = self._runs[:-MAX_RUNS]
            del self._runs[:-MAX_RUNS]
        for _, old in dropped:
            old.close(wait=False)

    def close(self) -> None:
        """Ends the background work of runs too: nobody can continue them."""
        for context in self._taken_runs():
            context.close(wait=False)
        super().close()

    async def aclose(self) -> None:
        for context in self._taken_runs():
            await context.aclose(wait=False)
        await super().aclose()

    def _taken_runs(self) -> list[AgentContext]:
        """Returns the runs that are kept, and keeps them no longer."""
        with self._runs_lock:
            runs, self._runs = self._runs, []
        return [context for _, context in runs]


def _learnt_in(key: SessionKey, engine: Engine) -> Flow[Mapping[str, Calibrated]]:
    """Returns, by model, what a session has learnt about the model's counts and its limit."""
    session = yield from engine.open(key, reread=False)
    return dict(session.state.calibrations)


def _stops_early(messages: Sequence[Message]) -> bool:
    """Returns True for a list that ends with the prompt of `early_stopping_method="generate"`, at an agent's last iteration."""
    text = messages[-1].text if messages and messages[-1].role == "system" else ""
    return text.startswith(_STOP_BEGINS) and text.endswith(_STOP_ENDS)


def _is_transcript(messages: Sequence[ChatMessage]) -> bool:
    """Returns True for the whole conversation as one text, which an agent sends for the output of its `output_cls`.

    A session that stored it would have each message twice, and show the agent twice as much in each run.
    """
    texts = [block.text for block in messages[-1].blocks if isinstance(block, TextBlock)] if messages else []
    return bool(texts) and texts[0] == _TRANSCRIPT[0] and texts[-1].startswith(_TRANSCRIPT[-1])


def _after_question(rounds: _Rounds, run_key: RunKey, *, over: bool) -> _Rounds:
    """Returns the number of runs under way, without tool rounds, after a question was asked, perhaps again.

    In a session, and in a workflow's run, the newest is the only one. Elsewhere a run that was abandoned cannot be told from one
    that continues.
    """
    if over:
        return _Rounds(rounds.runs)
    known = run_key.run or run_key.session is not None
    return _Rounds(1 if known else rounds.runs + 1)


def _after_round(rounds: _Rounds, run_key: RunKey, newest: _Rounds) -> _Rounds:
    """Returns the newest list, unless it may belong to another run than the one kept or the one that follows."""
    begins = newest.listed[: len(rounds.listed)]
    runs = max(rounds.runs, 1)
    if not run_key.run and _digest(begins) != _digest(rounds.listed):
        runs += 1
    return newest if runs == 1 else _Rounds(runs)


def _digest(messages: Sequence[Message]) -> str:
    seen = hashlib.sha256()
    for message in messages:
        seen.update(content_key(message).encode())
    return seen.hexdigest()


@unpacked
def with_context(
    llm: LLM,
    *,
    session_id: str | None = None,
    store: str | Store | None = None,
    context_window: int | None = None,
    owner: str = "default",
    summarizer: LLM | None = None,
    counter: TokenCounter | TextCounter | None = None,
    sections: Sequence[Section] = (),
    embedder: BaseEmbedding | Embedder | None = None,
    **settings: Unpack[EngineSettings],
) -> ContextLLM:
    """Returns the LLM with every request made to fit, and with the reasoning of its answers sent back.

    It replaces the LLM in an engine, agent or workflow. Without `session_id` it keeps an agent's run within the window, tool
    rounds included, and leaves the conversation to the memory. With `session_id` the LLM stores the conversation too, and `at`
    returns the same LLM for another session.

    Args:
        llm: the LLM that answers. Raises ConfigError for a thinking LLM whose reasoning cannot be sent back.
        session_id: the name of the session; None leaves the conversation to the memory.
        store: `sqlite:///file.db`, `postgresql+psycopg://...`, a registered name, a Store, or None for memory.
        context_window: in tokens, for input and output together; None takes that of `policy`, or the LLM's.
        owner: the user or tenant to whom the sessions belong.
        summarizer: the LLM that writes summaries; None takes `llm`.
        counter: counts tokens; None takes the tiktoken table of the LLM's model.
        sections: `ctxfold.Section`s, which are added to each request.
        embedder: computes embeddings, so that recall finds passages by meaning too.
        settings: fields of `ctxfold.Policy`, or a complete `policy`; `reply_reserve_tokens` (by default the LLM's
            `max_tokens`), `strategy` and `prices`.
    """
    _check_names(session_id, owner)
    check_settings(settings, EngineSettings.__annotations__, ("llm", *OF_EVERY_SESSION))
    check_llm("the LLM of with_context", llm)
    if summarizer is not None:
        check_llm("summarizer", summarizer)
    check_reasoning(llm)
    if isinstance(llm, ContextLLM):
        raise ConfigError("this LLM keeps its context already: use it as it is, or wrap the LLM inside")
    if settings.get("policy") is None:
        context_window = known_window(llm) if context_window is None else context_window
        reserve = reply_limit(llm)
        if settings.get("reply_reserve_tokens") is None and reserve is not None:
            settings["reply_reserve_tokens"] = reserve
    # checked at once, not at the first call
    window = session_rules(context_window, None, counter=counter, **settings).context_window
    replaying = returning(llm)
    other = None if summarizer is llm else summarizer
    pool: dict[str, Any] = {
        "backend": CallersBackend(replaying, context_window=window),
        "context_window": window,
        "summarizer": CallersSummarizer(replaying) if other is None else LlmSummarizer(other),
        "counter": message_counter(counter, model=llm.metadata.model_name),
        "sections": check_sections(sections),
        "embedder": as_embedder(embedder),
        **settings,
    }
    return ContextLLM(
        inner=replaying,
        window=window,
        session_id=session_id,
        owner=owner,
        sessions=RunSessions(store=store, settings=pool),
        **{name: getattr(llm, name) for name in _COPIED_FIELDS},
    )


def _check_names(session_id: object, owner: object) -> None:
    if session_id is not None:
        check_name("session name", session_id)
    check_name("owner name", owner)


@dataclass(frozen=True, slots=True)
class _SessionCall:
    """A call under way: its session, its question and its arguments."""

    context: AgentContext
    turn_input: TurnInput
    call: LlmCall
    incoming: _IncomingMessages

    def receive(self, reply: Reply) -> Flow[None]:
        """Stores results for calls that a program reads, so that their turn closes and the question stays in the session."""
        if self.call.parsed and (results := received(reply, self.context.handle.new_id)):
            yield from Invoke(self.context.add, self.context.aadd, results)


class ContextLLM(FunctionCallingLLM, Closing):
    """An LLM that manages its context, returned by `with_context`; `inner` is the LLM that answers."""

    inner: SerializeAsAny[LLM]
    window: int = Field(description="Tokens in and out together.")
    session_id: str | None = None
    owner: str = "default"

    _sessions: RunSessions | None = PrivateAttr(default=None)

    def __init__(self, *, sessions: RunSessions | None = None, **fields: Any) -> None:
        _check_names(fields.get("session_id"), fields.get("owner", "default"))
        super().__init__(**fields)
        self._sessions = sessions

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "callback_manager":
            # Settings and engines give an LLM theirs, and the inner one reports the requests
            self.inner.callback_manager = value

    @classmethod
    def class_name(cls) -> str:
        return "ContextLLM"

    @classmethod
    def from_dict(cls, data: dict[str, Any], **kwargs: Any) -> Self:
        """Raises ConfigError: no dict has the sessions, the store, and the keys of the LLM inside."""
        raise ConfigError(
            "a ContextLLM is not made from a dict, which has neither its sessions nor their store: make the LLM inside again and "
            "give it to with_context(llm, session_id=..., store=...)"
        )

    @property
    def metadata(self) -> LLMMetadata:
        fields: dict[str, Any] = {**self.inner.metadata.model_dump(), "context_window": self.window}
        return LLMMetadata(**fields)

    def at(self, session_id: str, *, owner: str | None = None) -> Self:
        """Returns the same LLM for another session, with the same engine, store and connections."""
        owner = name_or_own("owner name", owner, self.owner)
        return self.model_copy(update={"session_id": check_name("session name", session_id), "owner": owner})

    def context(self, session_id: str | None = None, *, owner: str | None = None) -> AgentContext:
        """Returns a session of this LLM, by default its own: window, usage, pins, explain, export."""
        name = self.session_id if session_id is None else session_id
        if name is None:
            raise ConfigError("this LLM has no session: name one, or give with_context(llm, session_id=...)")
        return self._pool().at(check_name("session name", name), name_or_own("owner name", owner, self.owner))

    def close(self) -> None:
        """Closes the store that was opened for this LLM; the inner LLM belongs to its creator."""
        if self._sessions is not None:
            self._sessions.close()

    async def aclose(self) -> None:
        if self._sessions is not None:
            await self._sessions.aclose()

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        # connections and stores are shared: they cannot be copied
        return self.model_copy()

    def _pool(self) -> RunSessions:
        if self._sessions is None:
            raise ConfigError(
                "this LLM was restored from a pickle or dict, without its sessions: create it with with_context(...)"
            )
        return self._sessions

    # answering: the inner LLM tells LlamaIndex of its requests, with the window that was sent

    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """Returns the whole answer to the newest message, which is sent with as many earlier messages as fit."""
        return call(self._answer(messages, kwargs))

    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        return await acall(self._answer(messages, kwargs))

    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        """Yields the inner LLM's responses; the request is sent on the first `next`."""
        return emit(self._pieces(messages, kwargs))

    async def astream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseAsyncGen:
        return aemit(self._pieces(messages, kwargs))

    def _answer(self, messages: Sequence[ChatMessage], kwargs: dict[str, Any]) -> Flow[ChatResponse]:
        begun = yield from self._begin(messages, kwargs)
        with original_error():
            reply = yield from Invoke(begun.context.handle.complete, begun.context.handle.acomplete, begun.turn_input)
            yield from begun.receive(reply)
        self._note_reply(begun, reply)
        (response,) = begun.call.take()
        return response

    def _pieces(self, messages: Sequence[ChatMessage], kwargs: dict[str, Any]) -> PieceFlow[ChatResponse]:
        begun = yield from self._begin(messages, kwargs)
        replies: list[Reply] = []
        with original_error():
            events = yield from Invoke(
                begun.context.handle.stream, begun.context.handle.astream, begun.turn_input, replies.append
            )
            yield from each(events, lambda _: begun.call.take())
            yield from begun.receive(replies[0])
            yield from begun.call.take()
        self._note_reply(begun, replies[0])

    def _begin(self, messages: Sequence[ChatMessage], kwargs: dict[str, Any]) -> Flow[_SessionCall]:
        arguments, incoming, pool = LlmCall.of(kwargs), self._incoming(messages), self._pool()
        if (session_id := incoming.run_key.session) is not None:
            context: AgentContext = yield from Invoke(pool.at, pool.aat, session_id, self.owner)
            return incoming.in_session(context, arguments)
        run = pool.take_run(incoming.listed)
        context = run.context
        if run.earlier or run.learnt:
            yield from Invoke(
                context.handle.run_flow, context.handle.arun_flow, partial(run.prepare, incoming.asked_ids)
            )
        if run.earlier:
            yield from Invoke(context.add, context.aadd, run.earlier)
        return incoming.in_run(run, arguments)

    def _incoming(self, messages: Sequence[ChatMessage]) -> _IncomingMessages:
        messages = chat_messages(messages)
        session_id = None if _is_transcript(messages) else self.session_id
        incoming = _IncomingMessages.of(messages, RunKey.here(self.owner, session_id))
        asked_ids = self._pool().question_of(incoming.run_key, incoming.listed)
        return replace(incoming, asked_ids=asked_ids).with_rounds(self._pool())

    def _note_reply(self, begun: _SessionCall, reply: Reply) -> None:
        incoming = begun.incoming
        self._pool().keep_rounds(incoming.run_key, incoming.listed, incoming.caller_ids, reply.message)
        if not begun.call.parsed:  # the result of a parsed call is "Received."
            begun.call.replies.append(reply.message)
        if incoming.run_key.session is None:
            self._pool().keep_run(begun.context, incoming.listed, reply.message)

    def predict_and_call(self, *args: Any, **kwargs: Any) -> AgentChatResponse:
        """Returns the outputs of the tools that the LLM calls. A session stores them as results, and the response as its answer."""
        return call(self._predicted(super().predict_and_call, None, args, kwargs))

    async def apredict_and_call(self, *args: Any, **kwargs: Any) -> AgentChatResponse:
        return await acall(self._predicted(None, super().apredict_and_call, args, kwargs))

    def _predicted(self, predict: Any, apredict: Any, args: Any, kwargs: dict[str, Any]) -> Flow[AgentChatResponse]:
        if self.session_id is None:
            return cast("AgentChatResponse", (yield from Invoke(predict, apredict, *args, **kwargs)))
        replies: list[Message] = []
        response: AgentChatResponse | None = None
        try:
            response = yield from Invoke(predict, apredict, *args, **{**kwargs, REPLIES: replies})
        finally:
            if results := _results(replies, response):
                context = self.context()
                yield from Invoke(context.add, context.aadd, results)
        return cast("AgentChatResponse", response)

    # what belongs to the inner LLM

    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """Returns the inner LLM's completion. A prompt alone is no conversation, so no context is added."""
        return self.inner.complete(prompt, formatted=formatted, **kwargs)

    async def acomplete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return await self.inner.acomplete(prompt, formatted=formatted, **kwargs)

    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:
        return self.inner.stream_complete(prompt, formatted=formatted, **kwargs)

    async def astream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseAsyncGen:
        return await self.inner.astream_complete(prompt, formatted=formatted, **kwargs)

    # LlamaIndex hands on `tool_required` only to a method with a parameter of that name
    def _prepare_chat_with_tools(
        self, tools: Sequence[BaseTool], *args: Any, tool_required: bool = False, **kwargs: Any
    ) -> dict[str, Any]:
        replies = kwargs.pop(REPLIES, [])
        inner: Any = self._calling()
        prepared: dict[str, Any] = inner._prepare_chat_with_tools_compat(
            tools, *args, tool_required=tool_required, **kwargs
        )
        one_call = not kwargs.get("allow_parallel_tool_calls")
        return {**prepared, ONE_CALL: one_call, PARSED: any(map(is_output_class, tools)), REPLIES: replies}

    def get_tool_calls_from_response(
        self, response: ChatResponse, error_on_no_tool_call: bool = True, **kwargs: Any
    ) -> list[ToolSelection]:
        selections = self._calling().get_tool_calls_from_response(response, error_on_no_tool_call, **kwargs)
        blocks = [block for block in response.message.blocks if isinstance(block, ToolCallBlock)]
        if [s.tool_name for s in selections] != [b.tool_name for b in blocks]:
            return selections
        # an integration may take the tool's name for the id, also of parallel calls, whose results return in any order
        return [
            s.model_copy(update={"tool_id": b.tool_call_id or s.tool_id})
            for s, b in zip(selections, blocks, strict=True)
        ]

    def _calling(self) -> FunctionCallingLLM:
        if isinstance(self.inner, FunctionCallingLLM):
            return self.inner
        raise ConfigError(
            f"{type(self.inner).__name__} does not support function calls: leave tools out, or use another LLM"
        )


def _results(replies: Sequence[Message], response: AgentChatResponse | None) -> list[Message]:
    """Returns what follows the calls of the newest reply: their outputs in order, a note where there is none, and the answer.

    The answer repeats the outputs, as that of an agent with a tool that returns directly: callers keep it in lists of their own.
    """
    calls = replies[-1].tool_calls if replies else ()
    if not calls:
        return []
    outputs = () if response is None else response.sources
    outputs_as_messages = [
        ChatMessage(role=MessageRole.TOOL, blocks=output.blocks, additional_kwargs={"tool_call_id": call.id})
        for call, output in zip(calls, outputs, strict=False)
    ]
    results = answered([replies[-1], *from_chat_messages(outputs_as_messages)], UuidIds().new)[1:]
    answer = response.response if response is not None else ""
    return [*results, assistant(answer, id=UuidIds().new())] if answer else results


@dataclass(frozen=True, slots=True)
class _IncomingMessages:
    """The messages of a call: leading system prompts, the conversation, and text that a memory added to this request."""

    run_key: RunKey
    prompts: tuple[str, ...] | None
    listed: tuple[Message, ...]
    injected: str
    caller_ids: frozenset[str]
    from_window: bool
    asked_ids: tuple[str, ...] = ()  # of the question of the run

    @classmethod
    def of(cls, messages: Sequence[ChatMessage], run_key: RunKey) -> _IncomingMessages:
        caller_ids = frozenset(str(m.additional_kwargs[ID_KEY]) for m in messages if m.additional_kwargs.get(ID_KEY))
        for message in messages:
            if message.role == MessageRole.TOOL and ID_KEY not in message.additional_kwargs:
                # an agent hands the same object to its memory later: a CtxMemory over this session then knows it
                mark(message, **{ID_KEY: uuid.uuid4().hex})
        new_id = UuidIds().new
        converted = answered(with_distinct_ids(from_chat_messages(messages), new_id), new_id)
        # in a list of system messages alone, the last one asks
        lead = next((i for i, m in enumerate(converted) if m.role != "system"), max(0, len(converted) - 1))
        rest = converted[lead:]
        listed = tuple(m for m in rest if m.kind != "section")
        if run_key.session is not None:
            # the session has summaries of its own: one of a memory is an ordinary message there
            listed = tuple(replace(m, kind="message") for m in listed)
        if not listed:
            raise EmptyMessagesError("no message to send: give at least one")
        injected = "\n\n".join(m.text for m in rest if m.kind == "section")
        prompts = converted[:lead]
        if any(m.id not in caller_ids for m in prompts):
            # those of earlier calls, which a memory over the same session shows, give way to the caller's own
            prompts = [m for m in prompts if not m.id.startswith(PROMPT_ID)]
        texts = tuple(dict.fromkeys(m.text for m in prompts))
        from_window = NEWEST_KEY in messages[-1].additional_kwargs
        return cls(run_key, texts or None, listed, injected, caller_ids, from_window)

    def with_rounds(self, sessions: RunSessions) -> _IncomingMessages:
        """Returns the messages with the tool rounds of the run, which an agent that stops early leaves out."""
        rounds = sessions.rounds_of(self.run_key, self.listed)
        if rounds is None:
            return self
        messages, caller_ids = rounds
        return replace(self, listed=(*messages, self.listed[-1]), caller_ids=self.caller_ids | caller_ids)

    def in_session(self, context: AgentContext, call: LlmCall) -> _SessionCall:
        """Returns the call of a session, in which the messages of the list that the session does not have are new.

        An order to stop is for this request only: stored, it would be obeyed in later runs too. A workflow's run that asks what
        another request asks too, with what it has read from the session or with results, is not asking anew: both answers stay.
        """
        key = SessionKey(context.owner, context.session)
        listed, order = self.listed, ""
        if len(listed) > 1 and _stops_early(listed):
            listed, order = listed[:-1], listed[-1].text
        turn_input = TurnInput(
            key,
            listed,
            call.options(self.injected, order),
            self.prompts,
            given_ids=self.caller_ids,
            reply_id=call.reply_id,
            from_window=self.from_window,
            asked_ids=self.asked_ids,
            keeps_answers=bool(self.run_key.run) and (self.from_window or self.listed[-1].role == "tool"),
        )
        return _SessionCall(context, turn_input, call, self)

    def in_run(self, run: Run, call: LlmCall) -> _SessionCall:
        key = SessionKey(run.context.owner, run.context.session)
        prompts = self.prompts or ()  # the list is all that there is: it has none, whatever an earlier one had
        options = call.options(self.injected)
        turn_input = TurnInput(key, run.fresh, options, prompts, reply_id=call.reply_id, asked_ids=self.asked_ids)
        return _SessionCall(run.context, turn_input, call, self)
