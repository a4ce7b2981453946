"""A service that accepts a thought only behind the very messages that it was made behind, as the newest models of Claude do."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.history import RunnableWithMessageHistory
from langchain_core.tools import tool
from langchain_deepseek import ChatDeepSeek
from langchain_google_genai import ChatGoogleGenerativeAI
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, LLMMetadata, TextBlock, ThinkingBlock
from llama_index.core.llms.mock import MockLLM
from llama_index.core.tools import FunctionTool
from pydantic import PrivateAttr

from ctxfold import AgentContext, BackendError, Request, ScriptedBackend, assistant, user
from ctxfold.adapters.calls import PlainCalls, call
from ctxfold.protocols import BackendCapabilities
from ctxfold.testing import ErrorReply, ModelServer, Scripted, ScriptedCall
from ctxfold.testing.script import Reply, api_error
from langchain_ctx import ChatCtx, ContextMiddleware, ContextNode, CtxChatMessageHistory
from langchain_ctx import with_context as chat_with_context
from langchain_ctx.backend import LangChainBackend
from llamaindex_ctx import CtxLLM, CtxMemory, with_context
from llamaindex_ctx.backend import LlamaIndexBackend
from tests.langchain.faces import closed
from tests.llamaindex.served_llm import WAYS, ask

MODEL = "claude-opus-5-5"
FOUND = "It hangs there on a hook, behind the ladder. " * 40


class BoundThoughts:
    """Thinks before each reply and refuses a thought behind other messages; `rounds` tool rounds come before each answer."""

    def __init__(self, *, rounds: int = 0, always: bool = False) -> None:
        self.refused = 0
        self._rounds = rounds
        self.always = always
        self.only_thinks = False
        self._made: dict[str, str] = {}

    def forget(self) -> None:
        """Knows none of its thoughts any more, as after a change of the key."""
        self._made = dict.fromkeys(self._made, "")

    def __call__(self, body: Mapping[str, Any]) -> Reply:
        messages = body["messages"]
        for index, message in enumerate(messages):
            thought = message.get("reasoning_content")
            if self.always or (thought and self._made.get(thought) != json.dumps(messages[:index], sort_keys=True)):
                self.refused += 1
                return bound_error(index)
        thought = f"thought {len(self._made)}"
        self._made[thought] = json.dumps(messages, sort_keys=True)
        if self._rounds and len(self._made) % (self._rounds + 1):
            return Scripted(reasoning=thought, tool_calls=(ScriptedCall("find", '{"key": 1}'),))
        return Scripted("" if self.only_thinks else f"Answer {len(self._made)}.", reasoning=thought)


def bound_error(index: int) -> ErrorReply:
    return api_error(400, f"messages.{index}.content.0: `thinking` block is bound to a different conversation")


def serving(script: BoundThoughts, window: int = 64_000) -> ModelServer:
    return ModelServer(script=script, context_window=window, strict="anthropic", reasoning=True)


def thoughts(server: ModelServer) -> list[int]:
    """How many thoughts each request had."""
    return [str(request.body["messages"]).count("'type': 'thinking'") for request in server.requests]


@pytest.mark.parametrize("way", WAYS)
async def test_a_list_of_llamaindex_without_its_beginning_is_sent_without_thoughts(way: str) -> None:
    script = BoundThoughts()
    with serving(script) as server:
        llm = CtxLLM(model=MODEL, provider="anthropic", base_url=server.base_url, api_key="x", max_tokens=4_000)
        history: list[ChatMessage] = []
        for number in range(4):
            history.append(ChatMessage(f"question {number}"))
            history.append((await ask(llm, way, history))[-1].message)
        assert (thoughts(server), script.refused) == ([0, 1, 2, 3], 0)
        history = [*history[2:], ChatMessage("and now?")]
        server.clear_requests()
        (*_, response) = await ask(llm, way, history)
        assert response.message.content == "Answer 5."
        history += [response.message, ChatMessage("and then?")]
        assert (await ask(llm, way, history))[-1].message.content == "Answer 6."
        # refused, sent without, and the next request has the new thought alone
        assert (thoughts(server), script.refused) == ([3, 0, 1], 1)
        await llm.aclose()
        llm.close()


@pytest.mark.parametrize("way", WAYS)
async def test_a_refusal_holds_for_the_list_that_was_refused(way: str) -> None:
    """Two agents may share an LLM: one of them sends the conversation from its beginning, and its thoughts are accepted."""
    script = BoundThoughts()
    with serving(script) as server:
        llm = CtxLLM(model=MODEL, provider="anthropic", base_url=server.base_url, api_key="x", max_tokens=4_000)
        history: list[ChatMessage] = []
        for number in range(3):
            history.append(ChatMessage(f"question {number}"))
            history.append((await ask(llm, way, history))[-1].message)
        server.clear_requests()
        question = ChatMessage("and now?")
        await ask(llm, way, [*history[2:], question])
        await ask(llm, way, [*history, question])
        await ask(llm, way, [*history[2:], ChatMessage("and then?")])
        assert (thoughts(server), script.refused) == ([2, 0, 3, 0], 1)
        await llm.aclose()
        llm.close()


class NeedsNoThoughts(ScriptedBackend):
    capabilities = BackendCapabilities(reasoning_optional=True)


def refused_once(second: Request) -> list[tuple[int, int]]:
    """Returns what requests leave out: one that is refused, the same once more, and a second one."""
    backend = NeedsNoThoughts([BackendError("refused", kind="reasoning_replay"), "Yes.", "Yes."])
    calls = PlainCalls(backend)
    call(calls.answer(Request(LIST[:3])))
    call(calls.answer(second))
    return [(request.refused_before, request.unbound_before) for request in backend.requests]


LIST = [
    user("a", id="1"),
    assistant("b", id="2", reasoning="hm"),
    user("c", id="3"),
    assistant("d", id="4", reasoning="hm"),
    user("e", id="5"),
]


def test_what_a_request_leaves_out_itself_stays_out() -> None:
    assert refused_once(Request(LIST, refused_before=4, unbound_before=5)) == [(0, 0), (2, 2), (4, 5)]


def test_what_refuses_whatever_stands_before_is_asked_once() -> None:
    """As after a change of the key: the thought is refused in another list too."""
    assert refused_once(Request(LIST[1:])) == [(0, 0), (2, 2), (1, 1)]


async def answer(model: ChatCtx, way: str, messages: list[BaseMessage]) -> AIMessage:
    match way:
        case "chat":
            return model.invoke(messages)
        case "achat":
            return await model.ainvoke(messages)
        case "stream_chat":
            chunks = list(model.stream(messages))
        case _:
            chunks = [chunk async for chunk in model.astream(messages)]
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    return whole


@pytest.mark.parametrize("way", WAYS)
async def test_a_list_of_langchain_without_its_beginning_is_sent_without_thoughts(way: str) -> None:
    script = BoundThoughts()
    with serving(script) as server:
        model = ChatCtx(model=MODEL, provider="anthropic", base_url=server.base_url, api_key="x", max_tokens=4_000)  # type: ignore[arg-type]
        history: list[BaseMessage] = []
        for number in range(4):
            history.append(HumanMessage(f"question {number}"))
            history.append(await answer(model, way, history))
        assert (thoughts(server), script.refused) == ([0, 1, 2, 3], 0)
        history = [*history[2:], HumanMessage("and now?")]
        server.clear_requests()
        reply = await answer(model, way, history)
        assert reply.text == "Answer 5."
        assert (await answer(model, way, [*history, reply, HumanMessage("and then?")])).text == "Answer 6."
        assert (thoughts(server), script.refused) == ([3, 0, 1], 1)
        await model.aclose()
        model.close()


@pytest.mark.parametrize("way", WAYS)
async def test_a_second_refusal_is_the_callers_to_see(way: str) -> None:
    script = BoundThoughts(always=True)
    with serving(script) as server:
        llm = CtxLLM(model=MODEL, provider="anthropic", base_url=server.base_url, api_key="x", max_tokens=4_000)
        thinking = ChatMessage(role="assistant", content="Yes.", additional_kwargs={"reasoning_content": "hm"})
        with pytest.raises(BackendError, match="bound to a different conversation"):
            await ask(llm, way, [ChatMessage("one"), thinking, ChatMessage("two")])
        with pytest.raises(BackendError, match="bound to a different conversation"):
            await ask(llm, way, [ChatMessage("no thoughts")])
        assert script.refused == 3, "a list without thoughts is not sent twice"
        await llm.aclose()
        llm.close()


@pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning:inspect")
@pytest.mark.parametrize("session_id", [None, "s"])
async def test_an_agent_goes_on_after_compactions(session_id: str | None) -> None:
    """In a session passages stay where they are, and thoughts from before a compaction out. A run does not know of the memory's."""

    def find(key: int) -> str:
        """Looks for a key."""
        return f"Key {key} is in shed {len(server.requests)}. {FOUND}"

    script = BoundThoughts(rounds=5)
    with serving(script, window=9_000) as server:
        llm = CtxLLM(
            model=MODEL,
            provider="anthropic",
            base_url=server.base_url,
            api_key="x",
            context_window=9_000,
            max_tokens=2_500,
            thinking=True,
        )
        chat = with_context(llm, session_id=session_id)
        with CtxMemory.from_defaults("m", context_window=9_000, llm=llm) as memory:
            for number in range(10):
                agent = FunctionAgent(llm=chat, tools=[FunctionTool.from_defaults(find)])
                reply = await agent.run(f"Where is key {number} of the old house?", memory=memory)
                assert "Answer" in str(reply)
        assert (script.refused == 0) if session_id else (0 < script.refused <= 12)
        await chat.aclose()
        chat.close()
        await llm.aclose()
        llm.close()


def chat_anthropic(server: ModelServer) -> BaseChatModel:
    url = server.base_url.removesuffix("/v1")
    return ChatAnthropic(
        model=MODEL, base_url=url, api_key="k", max_retries=0, max_tokens=2_500, thinking={"type": "adaptive"}
    )


def chat_ctx(server: ModelServer) -> BaseChatModel:
    settings: dict[str, Any] = {"base_url": server.base_url, "api_key": "k", "max_tokens": 2_500, "max_retries": 0}
    return ChatCtx(model=MODEL, provider="anthropic", thinking=True, **settings)


MODELS = pytest.mark.parametrize("of", [chat_anthropic, chat_ctx])
FACES = pytest.mark.parametrize("face", ["middleware", "with_context"])


class Agent:
    """An agent of LangChain with one tool, whose context `face` manages."""

    def __init__(self, face: str, model: BaseChatModel, *, window: int = 9_000) -> None:
        @tool
        def find(key: int) -> str:
            """Looks for a key."""
            return f"Key {key} is in a shed. {FOUND}"

        settings: dict[str, Any] = {"context_window": window, "reply_reserve_tokens": 2_500}
        middleware = [ContextMiddleware(**settings)] if face == "middleware" else []
        self._models = [model, *middleware]
        if face == "with_context":
            self._models = [model := chat_with_context(model, **settings)]
        self._agent = create_agent(model, [find], middleware=middleware, checkpointer=InMemorySaver())

    async def ask(self, call: str, question: str) -> str:
        given, config = {"messages": [HumanMessage(question)]}, {"configurable": {"thread_id": "t"}}
        agent: Any = self._agent
        match call:
            case "invoke":
                state = agent.invoke(given, config)
            case "ainvoke":
                state = await agent.ainvoke(given, config)
            case "stream":
                modes = ["values", "messages"]
                state = [s for mode, s in agent.stream(given, config, stream_mode=modes) if mode == "values"][-1]
            case _:
                modes = ["values", "messages"]
                parts = [part async for part in agent.astream(given, config, stream_mode=modes)]
                state = [s for mode, s in parts if mode == "values"][-1]
        return str(state["messages"][-1].text)

    async def aclose(self) -> None:
        for one in self._models:
            await closed(one)


@pytest.mark.parametrize("call", ["ainvoke", "stream"])
@FACES
@MODELS
async def test_an_agent_of_langchain_goes_on_after_compactions(of: Any, face: str, call: str) -> None:
    """Thoughts that have lost their beginning stay out, and passages stay in: the service refuses nothing."""
    script = BoundThoughts(rounds=5)
    with serving(script, window=9_000) as server:
        agent = Agent(face, of(server))
        for number in range(6):
            assert "Answer" in await agent.ask(call, f"Where is key {number} of the old house?")
        assert script.refused == 0
        shown = thoughts(server)
        assert 0 in shown[12:], "a compaction took the thoughts"
        assert max(shown[shown.index(0, 12) :]) >= 5, "those made after it are sent"
        await agent.aclose()


@pytest.mark.parametrize("call", ["invoke", "astream"])
@FACES
@MODELS
async def test_thoughts_that_the_service_refused_stay_out_of_later_requests(of: Any, face: str, call: str) -> None:
    script = BoundThoughts(rounds=1)
    with serving(script) as server:
        agent = Agent(face, of(server), window=64_000)
        for number in range(3):
            await agent.ask(call, f"question {number}")
        assert (thoughts(server), script.refused) == ([0, 1, 2, 3, 4, 5], 0)
        script.forget()
        server.clear_requests()
        for number in range(2):
            assert "Answer" in await agent.ask(call, f"again {number}")
        # refused, sent without, and from then on the new ones alone
        assert (thoughts(server), script.refused) == ([6, 0, 1, 2, 3], 1)
        await agent.aclose()


@MODELS
async def test_a_second_refusal_of_an_agents_request_is_the_callers_to_see(of: Any) -> None:
    script = BoundThoughts(rounds=1)
    with serving(script) as server:
        agent = Agent("middleware", of(server), window=64_000)
        await agent.ask("invoke", "question")
        script.always = True
        with pytest.raises(Exception, match="bound to a different conversation"):
            await agent.ask("invoke", "again")
        assert script.refused == (2 if of is chat_anthropic else 3), "a ChatCtx has tried it without thoughts itself"
        await agent.aclose()


@MODELS
async def test_a_backend_over_a_model_of_langchain_goes_on_after_compactions(of: Any) -> None:
    script = BoundThoughts()
    with serving(script, window=9_000) as server:
        model = of(server)
        with AgentContext(LangChainBackend(model), context_window=9_000, reply_reserve_tokens=2_500) as context:
            for number in range(24):
                assert "Answer" in context.send(f"Where is key {number}? {FOUND}").message.text
        assert script.refused == 0
        assert 0 in thoughts(server)[2:]
        await closed(model)


class RefusesOnce:
    """Calls a tool and answers in turns; refuses one request in the words of its service."""

    def __init__(self, message: str, code: str) -> None:
        self.error: ErrorReply | None = None
        self._error = api_error(400, message, code=code)
        self._answered = 0

    def refuse(self) -> None:
        self.error = self._error

    def __call__(self, body: Mapping[str, Any]) -> Reply:
        error, self.error = self.error, None
        if error is not None:
            return error
        self._answered += 1
        thought = f"thought {self._answered}"
        if self._answered % 2:
            return Scripted(reasoning=thought, tool_calls=(ScriptedCall("find", '{"key": 1}'),))
        return Scripted(f"Answer {self._answered}.", reasoning=thought)


def responses(url: str, **settings: Any) -> BaseChatModel:
    reasoning = {"summary": "auto"}
    return ChatOpenAI(model="gpt-5", base_url=url, api_key="k", max_retries=0, reasoning=reasoning, **settings)  # type: ignore[arg-type]


def gemini(url: str) -> BaseChatModel:
    address = url.removesuffix("/v1")
    return ChatGoogleGenerativeAI(
        model="gemini-3-pro-preview", base_url=address, google_api_key="k", max_retries=1, include_thoughts=True
    )


@FACES
@pytest.mark.parametrize(
    ("strict", "of", "error"),
    [
        ("openai", responses, ("The encrypted content could not be verified.", "invalid_encrypted_content")),
        (
            "openai",
            lambda url: responses(url, output_version="v1"),
            ("The encrypted content could not be verified.", "invalid_encrypted_content"),
        ),
        (
            "openai",
            lambda url: responses(url, output_version="v0", use_responses_api=True),
            ("The encrypted content could not be verified.", "invalid_encrypted_content"),
        ),
        ("gemini", gemini, ("Corrupted thought signature.", "INVALID_ARGUMENT")),
    ],
    ids=["responses", "responses v1", "responses v0", "gemini"],
)
async def test_what_another_service_refused_stays_out(strict: Any, of: Any, error: tuple[str, str], face: str) -> None:
    """An answer goes back without its reasoning, its signatures, and the ids that demand the reasoning."""
    script = RefusesOnce(*error)
    with ModelServer(script=script, strict=strict, reasoning=True) as server:
        agent = Agent(face, of(server.base_url), window=64_000)
        for number in range(2):
            await agent.ask("invoke", f"question {number}")
        script.refuse()
        server.clear_requests()
        assert await agent.ask("invoke", "again") == "Answer 6."
        assert await agent.ask("invoke", "and again") == "Answer 8."
        bodies = [json.dumps(request.body) for request in server.requests]
        assert [body.count('"thought ') for body in bodies] == [4, 0, 1, 2, 3]
        marks = [body.count('ignature"') + body.count('"rs_') for body in bodies]
        assert (marks[0] > 0, marks[1]) == (True, 0)
        await agent.aclose()


async def test_a_sealed_thought_in_langchains_own_blocks_is_left_out_when_it_is_refused() -> None:
    """In version v1 it has no type of its own: a block that carries Anthropic's stands for it."""
    refusals = [bound_error(1)]
    sealed = {"type": "non_standard", "value": {"type": "redacted_thinking", "data": "SEALED"}}
    answer = AIMessage([sealed, {"type": "text", "text": "Under the stairs."}], id="a")
    answer.response_metadata = {"output_version": "v1", "model_provider": "anthropic", "model_name": MODEL}
    with ModelServer(script=lambda _: refusals.pop() if refusals else Scripted("Done."), reasoning=True) as server:
        model = ChatAnthropic(
            model=MODEL, base_url=server.base_url.removesuffix("/v1"), api_key="k", max_retries=0, output_version="v1"
        )
        with chat_with_context(model, session_id="s", context_window=64_000) as chat:
            chat.invoke([HumanMessage("Where?", id="q"), answer, HumanMessage("And now?", id="r")])
        bodies = [json.dumps(request.body) for request in server.requests]
        assert [("SEALED" in body, "Under the stairs." in body) for body in bodies] == [(True, True), (False, True)]
        await closed(model)


async def test_what_deepseek_misses_is_not_left_out() -> None:
    """It says that reasoning must be passed back: the same request without any would be refused again."""
    script = RefusesOnce("The `reasoning_content` in the thinking mode must be passed back to the API.", "invalid")
    with ModelServer(script=script, strict="deepseek") as server:
        model = ChatDeepSeek(model="deepseek-reasoner", api_base=server.base_url, api_key="k", max_retries=0)  # type: ignore[arg-type]
        agent = Agent("middleware", model, window=64_000)
        await agent.ask("invoke", "question")
        script.refuse()
        server.clear_requests()
        with pytest.raises(Exception, match="must be passed back"):
            await agent.ask("invoke", "again")
        assert len(server.requests) == 1
        assert await agent.ask("invoke", "again") == "Answer 4."
        assert str(server.requests[1].body).count("'thought ") == 2
        await agent.aclose()


def in_node(server: ModelServer) -> tuple[Callable[[str], str], list[int]]:
    """Returns what asks a chain with a `ContextNode`; it keeps the list itself."""
    chain = ContextNode(session_id="s", context_window=9_000, reply_reserve_tokens=2_500) | chat_anthropic(server)
    messages: list[BaseMessage] = []

    def ask(question: str) -> str:
        messages.append(HumanMessage(question))
        messages.append(chain.invoke(messages))
        return str(messages[-1].text)

    return ask, [0]


def in_history(server: ModelServer) -> tuple[Callable[[str], str], list[int]]:
    history = CtxChatMessageHistory("s", context_window=9_000, reply_reserve_tokens=2_500)
    prompt = ChatPromptTemplate.from_messages([MessagesPlaceholder("history"), ("human", "{text}")])
    chain = RunnableWithMessageHistory(
        prompt | chat_anthropic(server),
        lambda _: history,
        input_messages_key="text",
        history_messages_key="history",
    )
    config: RunnableConfig = {"configurable": {"session_id": "s"}}
    return lambda text: str(chain.invoke({"text": text}, config).text), [*range(13)]


@pytest.mark.parametrize("asking", [in_node, in_history])
def test_what_does_not_know_its_model_leaves_out_thoughts_of_models_that_bind_them(asking: Any) -> None:
    """A history shows thoughts until it has compacted; a node's passages stand before one question only."""
    script = BoundThoughts()
    with serving(script, window=9_000) as server:
        ask, first = asking(server)
        for number in range(24):
            assert ask(f"Where is key {number}? {FOUND}") == f"Answer {number + 1}."
        assert script.refused == 0
        shown = thoughts(server)
        assert shown[: len(first)] == first
        assert set(shown[len(first) :]) == {0}


def test_a_node_sends_the_thoughts_of_the_round_and_those_of_other_models() -> None:
    """Older models of Claude take thoughts back whatever stands before them, and refuse a round without its thought."""
    node = ContextNode(session_id="s", context_window=9_000)
    call: Any = {"name": "find", "args": {}, "id": "c"}

    def thinks(model: str, text: str, **fields: Any) -> AIMessage:
        block: dict[Any, Any] = {"type": "thinking", "thinking": "hm", "signature": "S"}
        return AIMessage([block, {"type": "text", "text": text}], response_metadata={"model_name": model}, **fields)

    asked = [HumanMessage("one"), thinks(MODEL, "1"), HumanMessage("two"), thinks("claude-opus-4-8", "2")]
    in_round = [HumanMessage("three"), thinks(MODEL, "3", tool_calls=[call]), ToolMessage("r", tool_call_id="c")]
    shown = [str(message.content).count("signature") for message in node.invoke([*asked, *in_round])]
    assert shown == [0, 0, 0, 1, 0, 1, 0]


async def test_an_answer_of_thoughts_alone_is_left_out_with_them() -> None:
    """The service refuses messages without content."""
    script = BoundThoughts()
    with serving(script) as server:
        model = chat_anthropic(server)
        script.only_thinks = True
        chat = chat_with_context(model, session_id="s", context_window=64_000)
        reply = chat.invoke([HumanMessage("one", id="1")])
        script.only_thinks = False
        script.forget()
        server.clear_requests()
        assert chat.invoke([HumanMessage("one", id="1"), reply, HumanMessage("two", id="2")]).text == "Answer 2."
        roles = [[message["role"] for message in request.body["messages"]] for request in server.requests]
        assert roles == [["user", "assistant", "user"], ["user"]]
        await closed(chat)


def ctx_llm(server: ModelServer) -> CtxLLM:
    return CtxLLM(
        model=MODEL,
        provider="anthropic",
        base_url=server.base_url,
        api_key="x",
        context_window=9_000,
        max_tokens=2_500,
        thinking=True,
    )


@pytest.mark.parametrize("face", ["with_context", "backend"])
def test_a_session_over_an_llm_of_llamaindex_is_refused_nothing(face: str) -> None:
    script = BoundThoughts()
    with serving(script, window=9_000) as server:
        llm = ctx_llm(server)
        chat = with_context(llm, session_id="s")
        with AgentContext(LlamaIndexBackend(llm), context_window=9_000, reply_reserve_tokens=2_500) as context:
            for number in range(20):
                question = f"Where is key {number}? {FOUND}"
                if face == "backend":
                    context.send(question)
                else:
                    chat.chat([ChatMessage(question)])
        assert script.refused == 0
        assert 0 in thoughts(server)[2:]
        chat.close()
        llm.close()


class Anthropic(MockLLM):
    """Stands in for the LLM of LlamaIndex's package for Anthropic, which sends thinking blocks back as they are."""

    __module__ = "llama_index.llms.anthropic.base"
    _made: dict[str, str] = PrivateAttr(default_factory=dict[str, str])

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(model_name=MODEL, context_window=9_000, num_output=2_500, is_chat_model=True)

    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        sent = [[message.role.value, str(message.blocks)] for message in messages]
        for index, message in enumerate(messages):
            for block in message.blocks:
                if isinstance(block, ThinkingBlock) and self._made[str(block.content)] != str(sent[:index]):
                    raise ValueError("`thinking` block is bound to a different conversation")
        thought = f"thought {len(self._made)}"
        self._made[thought] = str(sent)
        thinking = ThinkingBlock(content=thought, additional_information={"signature": "S"})
        answer = TextBlock(text=f"Answer {len(self._made)}.")
        return ChatResponse(message=ChatMessage(role="assistant", blocks=[thinking, answer]))


def test_an_llm_of_anthropics_package_goes_on_after_compactions() -> None:
    chat = with_context(Anthropic(), session_id="s")
    for number in range(24):
        assert "Answer" in str(chat.chat([ChatMessage(f"Where is key {number}? {FOUND}")]).message.content)
    chat.close()


@pytest.mark.parametrize(("thinking", "stays"), [(None, False), ({"type": "adaptive"}, True)], ids=["not", "thinks"])
def test_a_model_that_does_not_think_is_shown_all_that_recall_finds(thinking: Any, stays: bool) -> None:
    """Where nothing is bound, passages stand before their own question alone. Of this model no row says that it thinks unasked."""
    with ModelServer(script=lambda _: Scripted("Noted."), context_window=4_000, strict="anthropic") as server:
        url = server.base_url.removesuffix("/v1")
        model = ChatAnthropic(
            model="claude-new", base_url=url, api_key="k", max_retries=0, max_tokens=1_000, thinking=thinking
        )
        chat = chat_with_context(model, session_id="s", context_window=4_000)
        chat.invoke("The gate code is 7731.")
        for number in range(20):
            chat.invoke(f"Note {number}: the heron stands at weir {number}. {FOUND}")
        chat.invoke("What is the gate code?")
        chat.invoke("Thanks.")
        asked, after = (str(request.body["messages"]) for request in server.requests[-2:])
        assert "7731" in asked
        assert ("7731" in after.partition("What is the gate code?")[0].rpartition("weir 19")[2]) == stays
        chat.close()


async def test_a_model_that_thinks_although_nobody_says_so_goes_on() -> None:
    """As a model may that is newer than the rows: its refusals tell that thoughts have to stay out."""
    script = BoundThoughts(rounds=2)
    with serving(script, window=9_000) as server:
        url = server.base_url.removesuffix("/v1")
        model = ChatAnthropic(model="claude-new", base_url=url, api_key="k", max_retries=0, max_tokens=2_500)
        agent = Agent("middleware", model)
        for number in range(10):
            assert "Answer" in await agent.ask("invoke", f"Where is key {number} of the old house?")
        assert 0 < script.refused <= 10
        await agent.aclose()
