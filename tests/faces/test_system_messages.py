"""L1: a system message that is not at the head is a message. It may be compacted, the newest stays, and a repeat is shown once."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count, pairwise
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langgraph.checkpoint.memory import InMemorySaver
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike
from pydantic import Field

from ctxfold import AgentContext, Message, ScriptedBackend, assistant, system, user
from ctxfold.errors import StrategyError
from ctxfold.testing import ModelServer, Scripted
from langchain_ctx import ContextMiddleware, ContextNode, with_context
from llamaindex_ctx import CtxMemory
from llamaindex_ctx import with_context as wrapped_llm
from tests.support.driven import COUNTER, context

pytestmark = [pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning")]

TURNS, WINDOW = 120, 4_000
RULES = "Rules: " + "be polite and keep to the policy of the house. " * 40  # some 400 tokens
Shown = list[tuple[str, str]]  # role and text of each message of a request
PROMPTS: dict[str, Callable[[int], str]] = {
    "another each day": lambda turn: f"Today is day {turn}. {RULES}",
    "the same": lambda _: RULES,
    "one of two": lambda turn: f"Mode {turn % 2}. {RULES}",
}


class Recorder(GenericFakeChatModel):
    """Answers everything, and records what it is sent."""

    seen: list[Any] = Field(default_factory=list)

    def _generate(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        self.seen.append([(m.type, m.text) for m in messages])
        return super()._generate(messages, *args, **kwargs)


def recorder() -> Recorder:
    return Recorder(messages=(AIMessage(f"noted {n}") for n in count()), seen=[])


def question(turn: int) -> str:
    return f"question {turn} about gate {turn * 3}"


def is_asked(text: str) -> bool:
    return text.rpartition("\n")[2].startswith("question")


def by_engine(prompt: Callable[[int], str]) -> list[Shown]:
    backend = ScriptedBackend([f"noted {n}" for n in range(3 * TURNS)])
    with AgentContext(backend, context_window=WINDOW, counter=COUNTER) as ctx:
        for turn in range(TURNS):
            ctx.add(system(prompt(turn), id=f"s{turn}"))
            ctx.send(question(turn))
    return [[(m.role, m.text) for m in r.messages] for r in backend.requests]


def by_wrapper(prompt: Callable[[int], str]) -> list[Shown]:
    model, said = recorder(), list[Any]()
    with with_context(model, session_id="s", context_window=WINDOW) as chat:
        for turn in range(TURNS):
            said += [SystemMessage(prompt(turn)), HumanMessage(question(turn))]
            said.append(chat.invoke(said))
    return model.seen


def by_middleware(prompt: Callable[[int], str]) -> list[Shown]:
    model = recorder()
    with ContextMiddleware(context_window=WINDOW) as middleware:
        agent: Any = create_agent(model, [], middleware=[middleware], checkpointer=InMemorySaver())
        for turn in range(TURNS):
            messages = [SystemMessage(prompt(turn)), HumanMessage(question(turn))]
            agent.invoke({"messages": messages}, {"configurable": {"thread_id": "t"}})
    return model.seen


def by_node(prompt: Callable[[int], str]) -> list[Shown]:
    seen, said = list[Shown](), list[Any]()
    with ContextNode(context_window=WINDOW, session_id="s") as node:
        for turn in range(TURNS):
            said += [
                SystemMessage(prompt(turn), id=f"s{turn}"),
                HumanMessage(question(turn), id=f"u{turn}"),
            ]
            seen.append([(m.type, m.text) for m in node.invoke({"messages": said})["llm_input_messages"]])
            said.append(AIMessage(f"noted {turn}", id=f"a{turn}"))
    return seen


def by_memory(prompt: Callable[[int], str]) -> list[Shown]:
    seen = list[Shown]()
    with CtxMemory.from_defaults("s", token_limit=WINDOW) as memory:
        for turn in range(TURNS):
            memory.put(ChatMessage(role="system", content=prompt(turn)))
            memory.put(ChatMessage(role="user", content=question(turn)))
            seen.append([(m.role.value, m.content or "") for m in memory.get()])
            memory.put(ChatMessage(role="assistant", content=f"noted {turn}"))
    return seen


FACES = [by_engine, by_wrapper, by_middleware, by_node, by_memory]


@pytest.mark.parametrize("face", FACES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("kind", PROMPTS)
def test_l1_a_conversation_with_system_messages_in_each_turn_goes_on(
    face: Callable[[Callable[[int], str]], list[Shown]], kind: str
) -> None:
    prompt = PROMPTS[kind]
    seen = [s for s in face(prompt) if any(is_asked(text) for _, text in s[-2:])]  # without those for summaries
    assert len(seen) == TURNS
    for turn, shown in enumerate(seen):
        texts = [text for role, text in shown if role == "system" and RULES in text]
        assert texts[-1] == prompt(turn), "the newest stays"
        assert all(one != other for one, other in pairwise(texts)), "a repeat is shown once"
        assert any(text.endswith(question(turn)) for _, text in shown)
        if turn:
            assert any(text.endswith(question(turn - 1)) for _, text in shown), "and the turn before it"
    if kind == "the same":  # what is left out costs nothing
        assert sum(role in ("human", "user") for role, _ in seen[-1]) > TURNS // 2


@pytest.mark.parametrize("face", FACES, ids=lambda f: f.__name__)
def test_l1_the_head_and_the_newest_fill_most_of_the_window(
    face: Callable[[Callable[[int], str]], list[Shown]],
) -> None:
    """A turn went on as long as three of them fitted: the one before the asking turn stayed too."""
    seen = [s for s in face(lambda turn: f"Day {turn}. " + 3 * RULES) if any(is_asked(text) for _, text in s[-2:])]
    assert len(seen) == TURNS
    assert all(any(text.startswith(f"Day {turn}.") for _, text in shown) for turn, shown in enumerate(seen))


@pytest.mark.parametrize("face", ["wrapper", "node", "middleware"])
def test_l1_a_list_of_system_messages_and_answers_is_asked(face: str) -> None:
    """Each turn hands in one instruction, from the first one on, as the plain models take it."""
    model, said = recorder(), list[Any]()
    settings: Any = {"context_window": WINDOW, "store": "memory://"}
    with (
        with_context(model, session_id="s", **settings) as chat,
        ContextNode(session_id="s", **settings) as node,
        ContextMiddleware(**settings) as middleware,
    ):
        agent: Any = create_agent(model, [], middleware=[middleware])
        for turn in range(40):
            said.append(SystemMessage(RULES + question(turn)))
            asked = len(model.seen)
            match face:
                case "wrapper":
                    said.append(chat.invoke(said))
                case "node":
                    said.append(model.invoke(node.invoke(said)))
                case _:
                    found = agent.invoke({"messages": said}, {"configurable": {"thread_id": "t"}})
                    said.append(found["messages"][-1])
            assert any(text.endswith(question(turn)) for shown in model.seen[asked:] for _, text in shown)


def test_l1_a_list_of_system_messages_is_asked_of_a_wrapped_llm() -> None:
    said = list[ChatMessage]()
    with ModelServer(script=lambda _: Scripted("noted"), context_window=WINDOW) as server:
        stock = OpenAILike(model="m", api_base=server.base_url, api_key="x", context_window=WINDOW, is_chat_model=True)
        with wrapped_llm(stock) as llm:
            for turn in range(40):
                said.append(ChatMessage(role="system", content=RULES + question(turn)))
                asked = len(server.requests)
                said.append(llm.chat(said).message)
                assert question(turn) in str([r.body for r in server.requests[asked:]])


def test_l1_a_summarizer_may_drop_older_system_messages_and_not_the_newest() -> None:
    said = [m for n in range(9) for m in (system(f"rule {n}", id=f"s{n}"), user(f"u{n} " * 60, id=f"u{n}"), _answer(n))]

    class Without:
        name = "without"

        def __init__(self, *ids: str) -> None:
            self.ids = ids

        def should_summarize(self, history: list[Message]) -> bool:
            return len(history) > 20

        def summarize(self, history: list[Message]) -> list[Message]:
            return [m for m in history if m.id not in self.ids]

    with context(strategy=Without("s3", "u3", "a3"), context_window=4_000) as ctx:
        ctx.add(said)
        assert "s3" not in [m.id for m in ctx.view().messages]
        assert [m.id for m in ctx.messages()] == [m.id for m in said]
    with context(strategy=Without("s8", "a3"), context_window=4_000) as ctx, pytest.raises(StrategyError, match="'s8'"):
        ctx.add(said)
        ctx.compact(force=True)


def _answer(number: int) -> Message:
    return assistant(f"a{number} " * 60, id=f"a{number}")
