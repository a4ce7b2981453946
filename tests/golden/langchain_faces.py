"""The faces for LangChain: `with_context` in a chain, `ChatCtx`, `ContextNode`, `ContextMiddleware` and a chat history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
    message_chunk_to_message,
)
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool, StructuredTool
from langchain_deepseek import ChatDeepSeek
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver

from ctxfold import MemoryStore, system
from langchain_ctx import ChatCtx, ContextMiddleware, ContextNode, CtxChatMessageHistory, with_context
from tests.golden.service import BASE_URL, SUMMARY
from tests.golden.setting import Setting
from tests.golden.story import PICTURE, SYSTEM, TOOL_NAMES, Act, Call, Turn
from tests.golden.trace import shown

CONTEXT_ACTS = ("compact", "note", "pin", "undo")
LIST_ACTS = (*CONTEXT_ACTS, "again", "edit", "remove", "rewind")
THREAD: Any = {"configurable": {"thread_id": "golden"}, "recursion_limit": 100}


def model_of(setting: Setting) -> Any:
    """A chat model on the session's service: another package's, or ours without a session, in its provider's row."""
    clients: dict[str, Any] = {
        "http_client": setting.service.client,
        "http_async_client": setting.service.async_client,
        "max_retries": 0,
        "api_key": "x",
    }
    match setting.rng.choice(("openai", "deepseek", "ours", "ours")):
        case "openai":
            return ChatOpenAI(model="gpt-4.1", base_url=BASE_URL, **clients)
        case "deepseek":
            return ChatDeepSeek(model="deepseek-reasoner", api_base=BASE_URL, **clients)
        case _:
            return ChatCtx(backend=setting.backend())


def rules_of(setting: Setting) -> dict[str, Any]:
    rules = {**setting.fixed(), **setting.rules()}
    if setting.rng.random() < 0.4:
        rules["summarizer"] = FakeListChatModel(responses=[SUMMARY])
    return rules


class Tools:
    """Two tools that give the results of the conversation's calls, which each name a page of their own."""

    def __init__(self) -> None:
        self._results: dict[int, str] = {}
        self.all: list[BaseTool] = [
            StructuredTool.from_function(self._look, name=name, description=f"{name.capitalize()} something.")
            for name in TOOL_NAMES
        ]

    def _look(self, about: str, page: int) -> str:
        return self._results[page]

    def know(self, turn: Turn) -> None:
        self._results |= {c.arguments["page"]: c.result for said in turn.rounds for c in said.calls}


def human(turn: Turn, id: str) -> HumanMessage:
    if not turn.picture:
        return HumanMessage(turn.question, id=id)
    url = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PICTURE}"}}
    return HumanMessage([{"type": "text", "text": turn.question}, url], id=id)


def results(calls: Sequence[Call]) -> list[ToolMessage]:
    return [ToolMessage(c.result, tool_call_id=c.id, name=c.name, id=f"result-{c.id}") for c in calls]


def listed(messages: Sequence[BaseMessage]) -> list[Any]:
    return [
        [m.type, m.id, m.content, getattr(m, "tool_calls", []), getattr(m, "usage_metadata", None), m.additional_kwargs]
        for m in messages
    ]


def act_on(setting: Setting, context: Any, act: Act) -> None:
    """What is done to the session itself, whatever face it has."""
    match act.name:
        case "pin":
            setting.call(context, "pin", act.choose(setting.call(context, "messages")).id)
        case "note":
            setting.call(context, "add", system(act.text))
        case "compact":
            setting.call(context, "compact", force=True)
        case name:
            setting.call(context, name)


class ListSession:
    """A caller that keeps its own list and hands it over; how it is asked is the face's."""

    def __init__(self, setting: Setting) -> None:
        self._set = setting
        self._told: list[BaseMessage] = []
        self._tools = Tools()
        self._made = 0
        self._whole = setting.rng.random() < 0.6

    def context(self) -> Any:
        raise NotImplementedError

    def ask(self, new: Sequence[BaseMessage]) -> BaseMessage:
        """The answer to the list, of which `new` is what the model has not seen."""
        raise NotImplementedError

    def run(self, acts: Sequence[str]) -> None:
        for number, step in enumerate(self._set.steps(acts)):
            self._set.trace.step(f"{number} {step.name if isinstance(step, Act) else 'turn'}")
            self._set.attempt(lambda step=step: self._step(step))  # type: ignore[misc]
            self._set.trace.see("window", shown(self._set.call(self.context(), "view").messages))

    def _step(self, step: Turn | Act) -> None:
        if isinstance(step, Turn):
            self._turn(step)
        elif step.name in CONTEXT_ACTS:
            act_on(self._set, self.context(), step)
        else:
            self._rewrite(step)

    def _turn(self, turn: Turn) -> None:
        self._tools.know(turn)
        self._made += 1
        before = len(self._told)
        self._set.service.replies.extend(turn.replies)
        new: list[BaseMessage] = [human(turn, f"asked-{self._made}")]
        try:
            for said in turn.replies:
                self._told += new
                answer = self.ask(new)
                self._told.append(answer)
                self._set.trace.see("reply", listed([answer]))
                if not getattr(answer, "tool_calls", None):
                    break
                new = [*results(said.calls)]
        except BaseException:
            del self._told[before:]
            raise

    def _rewrite(self, act: Act) -> None:
        asked = [n for n, m in enumerate(self._told) if m.type == "human"]
        if not asked:
            return
        place = act.choose(asked)
        match act.name:
            case "edit":
                self._told[place] = HumanMessage(act.text, id=self._told[place].id)
            case "remove":
                end = next((n for n in asked if n > place), len(self._told))
                del self._told[place:end]
            case "rewind":
                del self._told[place:]
            case _:
                del self._told[place + 1 :]
                self._told.append(self.ask(self._told[-1:]))

    def answered(self, model: Runnable[Any, Any], given: Any, config: Any) -> BaseMessage:
        """The model's answer, whole or from its stream."""
        if not self._set.streams:
            return self._set.call(model, "invoke", given, config)  # type: ignore[no-any-return]
        chunks = self._set.read(model, "stream", given, config)
        whole = chunks[0]
        for chunk in chunks[1:]:
            whole += chunk
        assert isinstance(whole, AIMessageChunk)
        return message_chunk_to_message(whole)


class ChainSession(ListSession):
    """A prompt and the wrapped model, in a chain."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.chat: Any = self._chat(MemoryStore())
        setting.resources.callback(self.chat.close)
        prompt = ChatPromptTemplate.from_messages([("system", SYSTEM), ("placeholder", "{messages}")])
        self._chain = prompt | self.chat.bind_tools(self._tools.all)

    def _chat(self, store: Any) -> Any:
        setting = self._set
        return with_context(model_of(setting), session_id="golden", store=store, **rules_of(setting))

    def context(self) -> Any:
        return self.chat.context("golden")

    def ask(self, new: Sequence[BaseMessage]) -> BaseMessage:
        return self.answered(self._chain, {"messages": [*self._told] if self._whole else [*new]}, None)


class ChatSession(ChainSession):
    """Our own chat model with a session."""

    def _chat(self, store: Any) -> Any:
        rules = rules_of(self._set)
        given = {name: rules.pop(name) for name in ("context_window", "counter", "summarizer") if name in rules}
        return ChatCtx(backend=self._set.backend(), session="golden", store=store, policy=rules, **given)


class NodeSession(ListSession):
    """A node in front of a model that keeps nothing."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._node = ContextNode(store=MemoryStore(), tools=self._tools.all, **rules_of(setting))
        setting.resources.callback(self._node.close)
        self._model: Any = model_of(setting).bind_tools(self._tools.all)

    def context(self) -> Any:
        return self._node.context("golden")

    def ask(self, new: Sequence[BaseMessage]) -> BaseMessage:
        fitted = self._set.call(self._node, "invoke", [SystemMessage(SYSTEM, id="system"), *self._told], THREAD)
        self._set.trace.see("fitted", listed(fitted))
        return self.answered(self._model, fitted, None)


class AgentSession:
    """`create_agent` with the middleware and a checkpointer; its state is edited and taken up from earlier checkpoints."""

    def __init__(self, setting: Setting) -> None:
        self._set = setting
        self._tools = Tools()
        self._middleware = ContextMiddleware(
            store=MemoryStore(), history_tools=setting.rng.random() < 0.4, **rules_of(setting)
        )
        setting.resources.callback(self._middleware.close)
        self._agent: Any = create_agent(
            model_of(setting),
            self._tools.all,
            system_prompt=SYSTEM,
            middleware=[self._middleware],
            checkpointer=InMemorySaver(),
        )
        self._config, self._made = THREAD, 0

    def run(self) -> None:
        for number, step in enumerate(self._set.steps((*CONTEXT_ACTS, "back", "edit", "remove"))):
            self._set.trace.step(f"{number} {step.name if isinstance(step, Act) else 'turn'}")
            self._set.attempt(lambda step=step: self._step(step))  # type: ignore[misc]
            state = self._agent.get_state(THREAD)
            self._set.trace.see("state", listed(state.values.get("messages", [])))
            self._set.trace.see("window", shown(self._set.call(self._context(state), "view").messages))

    def _context(self, state: Any) -> Any:
        return self._middleware.context(state if state.values else "golden")

    def _step(self, step: Turn | Act) -> None:
        if isinstance(step, Turn):
            self._turn(step)
        elif step.name in CONTEXT_ACTS:
            act_on(self._set, self._context(self._agent.get_state(THREAD)), step)
        else:
            self._rewrite(step)

    def _turn(self, turn: Turn) -> None:
        self._tools.know(turn)
        self._made += 1
        self._set.service.replies.extend(turn.replies)
        given = {"messages": [human(turn, f"asked-{self._made}")]}
        config, self._config = self._config, THREAD
        if self._set.streams:
            self._set.read(self._agent, "stream", given, config, stream_mode=["values", "messages"])
        else:
            self._set.call(self._agent, "invoke", given, config)

    def _rewrite(self, act: Act) -> None:
        state = self._agent.get_state(THREAD)
        asked = [m for m in state.values.get("messages", []) if m.type == "human"]
        if not asked:
            return
        chosen = act.choose(asked)
        match act.name:
            case "edit":
                self._agent.update_state(THREAD, {"messages": [HumanMessage(act.text, id=chosen.id)]})
            case "remove":
                self._agent.update_state(THREAD, {"messages": [RemoveMessage(id=chosen.id)]})
            case _:
                ended = [s.config for s in self._agent.get_state_history(THREAD) if not s.next]
                self._config = act.choose(ended)


class HistorySession:
    """A chat history, read before each question and written after each answer, as `RunnableWithMessageHistory` does."""

    def __init__(self, setting: Setting) -> None:
        self._set = setting
        self._model = model_of(setting).bind_tools(Tools().all)
        self._factory = CtxChatMessageHistory.factory(store=MemoryStore(), overhead_tokens=80, **rules_of(setting))
        setting.resources.callback(self._factory.close)
        self._made = 0

    def run(self) -> None:
        for number, step in enumerate(self._set.steps((*CONTEXT_ACTS, "clear"))):
            self._set.trace.step(f"{number} {step.name if isinstance(step, Act) else 'turn'}")
            self._set.attempt(lambda step=step: self._step(step))  # type: ignore[misc]
            self._set.attempt(lambda: self._set.trace.see("history", listed(self._read(self._factory("golden")))))
            self._set.trace.see("window", shown(self._set.call(self._factory("golden").context, "view").messages))

    def _read(self, handle: CtxChatMessageHistory) -> list[BaseMessage]:
        return self._set.loop.run_until_complete(handle.aget_messages()) if self._set.is_async else handle.messages

    def _step(self, step: Turn | Act) -> None:
        handle = self._factory("golden")
        if isinstance(step, Turn):
            self._turn(step, handle)
        elif step.name == "clear":
            self._set.call(handle, "clear")
        else:
            act_on(self._set, handle.context, step)

    def _turn(self, turn: Turn, handle: CtxChatMessageHistory) -> None:
        self._made += 1
        self._set.service.replies.extend(turn.replies)
        before = [SystemMessage(SYSTEM), *self._read(handle)]
        new: list[BaseMessage] = [human(turn, f"asked-{self._made}")]
        for said in turn.replies:
            answer: AIMessage = self._set.call(self._model, "invoke", [*before, *new])
            new += [answer, *results(said.calls)]
            if not answer.tool_calls:
                break
        self._set.call(handle, "add_messages", new)


def run_chain(setting: Setting) -> None:
    ChainSession(setting).run(LIST_ACTS)


def run_chat(setting: Setting) -> None:
    ChatSession(setting).run(LIST_ACTS)


def run_node(setting: Setting) -> None:
    NodeSession(setting).run(LIST_ACTS)


def run_agent(setting: Setting) -> None:
    AgentSession(setting).run()


def run_history(setting: Setting) -> None:
    HistorySession(setting).run()
