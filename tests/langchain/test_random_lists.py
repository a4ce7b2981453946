"""Random lists for 200 turns in a window of 4,000 tokens, in every face: each turn is asked, paired and kept in the log."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import pytest
from langchain.agents import create_agent
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver

from ctxfold import MemoryStore
from ctxfold.testing import ModelServer, Scripted
from langchain_ctx import ChatCtx, ContextMiddleware, ContextNode, CtxChatMessageHistory, with_context
from tests.langchain.faces import closed, model_settings
from tests.langchain.running import T
from tests.support.open_sessions import stored_texts

WINDOW, TURNS = 4_000, 200
SEEDS = int(os.environ.get("CTXFOLD_LISTS", "1"))
Given: TypeAlias = list[BaseMessage]
Ask: TypeAlias = Callable[[Given], Given]  # the list as the caller has it after the turn


class Lists:
    """Makes the list of each turn from that of the turn before."""

    def __init__(self, seed: str, *, named_questions: bool) -> None:
        self.chance = random.Random(seed)
        self.named_questions = named_questions  # LangGraph puts a message in the place of an older one with its id
        self.turn = 0

    def text(self, what: str, words: int) -> str:
        return f"{what} of turn {self.turn}. " + "Be kind. " * self.chance.randrange(words)

    def next(self, said: Given) -> tuple[Given, Given]:
        """Returns what is kept of the list, and what is new."""
        self.turn += 1
        ids = self.chance.choice([[None], [None], ["0"], [None, "0", f"{self.turn}"]])
        new = [m.model_copy(update={"id": self.chance.choice(ids)}) for m in self.more()]
        question = HumanMessage(self.text("Question", 60), id=self.chance.choice(ids) if self.named_questions else None)
        return self.changed(said), [*new, question]

    def changed(self, said: Given) -> Given:
        """The list as its caller hands it in: as it is, trimmed, rewritten, or from an earlier point on."""
        chance = self.chance
        match chance.randrange(12) if said else None:
            case 0:
                return said[chance.randrange(len(said)) // 2 :]
            case 1:
                return [self.edited(m) if chance.random() < 0.1 else m for m in said]
            case 2:
                return said[: max(1, len(said) - chance.randrange(6))]
            case 3:
                return [m for m in said if chance.random() > 0.05]
            case _:
                return said

    def edited(self, message: BaseMessage) -> BaseMessage:
        return message.model_copy(update={"content": f"{message.text} (edited in turn {self.turn})"})

    def more(self) -> Given:
        """What comes before the question of a turn."""
        call = {"name": "look", "args": {"key": self.turn}, "id": self.chance.choice([f"c{self.turn}", "c"])}
        malformed = {**call, "args": "{", "error": "no JSON", "type": "invalid_tool_call"}
        looking = AIMessage(self.text("Looking", 3), tool_calls=[call])
        found = ToolMessage(self.text("Found", 200), tool_call_id=call["id"])
        between = self.chance.choice([HumanMessage(self.text("Wait", 3)), SystemMessage(self.text("Rule", 3))])
        match self.chance.randrange(12):
            case 0:
                return [SystemMessage(self.text("Time", 60))]
            case 1:
                return [looking, found]
            case 2:
                return [looking]  # never answered
            case 3:
                return [
                    ChatMessage(self.text("Developer", 3), role="developer"),
                    FunctionMessage(content=self.text("Sum", 3), name="add"),
                ]
            case 4:
                return [AIMessage("", invalid_tool_calls=[malformed])]
            case 5:
                return [HumanMessage(""), AIMessage("")]
            case 6:
                return [looking, between, found]
            case 7:
                return [ToolMessage(self.text("Stray", 3), tool_call_id=f"unknown{self.turn}")]
            case _:
                return []


def paired(body: Any) -> bool:
    calls = Counter(c["id"] for m in body["messages"] for c in m.get("tool_calls") or ())
    return calls == Counter(m["tool_call_id"] for m in body["messages"] if m["role"] == "tool")


class Faces:
    """The ways of asking a model with a list."""

    def __init__(self, server: ModelServer) -> None:
        self.model = ChatOpenAI(**model_settings(server.base_url))
        self.store = MemoryStore()
        self.settings: dict[str, Any] = {"context_window": WINDOW, "store": self.store}
        self.open: list[Any] = [self.model]

    def opened(self, made: Any) -> Any:
        self.open.append(made)
        return made

    def with_context(self) -> Ask:
        return _whole(self.opened(with_context(self.model, **self.settings)))

    def chat_ctx(self) -> Ask:
        given = model_settings(self.model.openai_api_base or "")
        return _whole(self.opened(ChatCtx(provider="openai", **given, **self.settings)))

    def node(self) -> Ask:
        return _whole(self.opened(ContextNode(**self.settings)) | self.model)

    def middleware(self) -> Ask:
        """An agent that is given whole lists."""
        middleware = self.opened(ContextMiddleware(**self.settings, history_tools=False))
        agent: Any = create_agent(self.model, [], middleware=[middleware])
        return lambda given: agent.invoke({"messages": given}, T)["messages"]

    def thread(self) -> Ask:
        """An agent with a checkpointer, whose state is made to be the list."""
        middleware = self.opened(ContextMiddleware(**self.settings, history_tools=False))
        agent: Any = create_agent(self.model, [], middleware=[middleware], checkpointer=InMemorySaver())
        before = Given()

        def ask(given: Given) -> Given:
            same = given[: len(before)] == before
            new = given[len(before) :] if same else [RemoveMessage("__remove_all__"), *given]
            before[:] = agent.invoke({"messages": new}, T)["messages"]
            return [*before]

        return ask

    def history(self) -> Ask:
        """A history to which everything is added that the list has after the last answer."""
        history = self.opened(CtxChatMessageHistory("t", **self.settings))

        def ask(given: Given) -> Given:
            new = given[next((i for i in range(len(given), 0, -1) if given[i - 1].response_metadata), 0) :]
            for part in [new] if len(given) % 2 else [[m] for m in new]:
                history.add_messages(part)
            answer = self.model.invoke(history.messages)
            history.add_messages([answer])
            return [*given, answer]

        return ask


def _whole(app: Any) -> Ask:
    return lambda given: [*given, app.invoke(given, T)]


def whole_texts(messages: Sequence[BaseMessage]) -> set[str]:
    """All texts but those of calls without all of their results, and of results without their call: an event names these."""
    texts, calls = set[str](), dict[str, str]()
    for message in messages:
        if isinstance(message, ToolMessage):
            if call := calls.pop(message.tool_call_id, ""):
                texts |= {call, message.text}
            continue
        if isinstance(message, AIMessage):
            calls = {c["id"] or "": message.text for c in message.tool_calls}
        texts |= set() if isinstance(message, AIMessage) and message.tool_calls else {message.text}
    return texts


@pytest.mark.parametrize("face", ["with_context", "chat_ctx", "node", "middleware", "thread", "history"])
@pytest.mark.parametrize("seed", range(SEEDS))
async def test_l1_l2_l3_l7_a_list_of_any_kind_goes_on(face: str, seed: int) -> None:
    lists, said = Lists(f"{face} {seed}", named_questions=face not in ("middleware", "thread")), Given()
    answers = (Scripted(f"Answer {n}. " + "A story. " * 30) for n in range(9 * TURNS))
    with ModelServer(model="m", script=lambda _: next(answers), context_window=WINDOW) as server:
        faces = Faces(server)
        ask = getattr(faces, face)()
        told = set[str]()
        for _ in range(TURNS):
            kept, new = lists.next(said)
            asked = len(server.requests)
            said = ask([*kept, *new])
            sent = [r.body for r in server.requests[asked:]]
            assert all(map(paired, sent))
            assert any(new[-1].text.strip() in str(body["messages"]) for body in sent)
            # LangGraph puts one message in the place of another with its id; a node sees no answers
            newest = said[-len(new) - 1 : None if face != "node" else -1]
            told |= whole_texts(said) & {m.text for m in newest} & {m.text for m in (*new, said[-1])}
            told |= (
                {m.text for m in new} if face == "history" else set()
            )  # it stores calls and results without each other
        kept = stored_texts(faces.store)
        assert [text for text in told if text not in kept] == []
        for one in faces.open:
            await closed(one)
