"""The faces for LlamaIndex: `CtxMemory`, `CtxLLM`, `with_context` with a session, and an agent on both."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage, ImageBlock, TextBlock, ToolCallBlock
from llama_index.core.tools import FunctionTool
from llama_index.llms.deepseek import DeepSeek
from llama_index.llms.openai_like import OpenAILike

from ctxfold import MemoryStore, system
from llamaindex_ctx import CtxLLM, CtxMemory, with_context
from tests.golden.service import BASE_URL
from tests.golden.setting import PROVIDERS, Setting
from tests.golden.story import PICTURE, SYSTEM, TOOL_NAMES, Act, Call, Turn
from tests.golden.trace import shown

CONTEXT_ACTS = ("compact", "note", "pin", "undo")
LIST_ACTS = ("edit", "remove", "rewind")


def own_llm(setting: Setting) -> CtxLLM:
    """Our LLM in its provider's row."""
    return CtxLLM(model=PROVIDERS[setting.provider], backend=setting.backend())


def llm_of(setting: Setting) -> Any:
    """An LLM on the session's service: another package's, or ours."""
    told: dict[str, Any] = {
        "model": "deepseek-chat",
        "api_base": BASE_URL,
        "api_key": "x",
        "max_retries": 0,
        "http_client": setting.service.client,
        "async_http_client": setting.service.async_client,
    }
    match setting.rng.choice(("like", "deepseek", "ours", "ours")):
        case "like":
            return OpenAILike(**told, is_chat_model=True, is_function_calling_model=True, context_window=64_000)
        case "deepseek":
            return DeepSeek(**told)
        case _:
            return own_llm(setting)


class Tools:
    """Two tools that give the results of the conversation's calls, which each name a page of their own."""

    def __init__(self) -> None:
        self._results: dict[int, str] = {}
        self.all = [
            # on the loop: results of threads would come in any order
            FunctionTool.from_defaults(
                self._look, async_fn=self._alook, name=name, description=f"{name.capitalize()} something."
            )
            for name in TOOL_NAMES
        ]

    def _look(self, about: str, page: int) -> str:
        return self._results[page]

    async def _alook(self, about: str, page: int) -> str:
        return self._results[page]

    def know(self, turn: Turn) -> None:
        self._results |= {c.arguments["page"]: c.result for said in turn.rounds for c in said.calls}


def asked(turn: Turn) -> ChatMessage:
    if not turn.picture:
        return ChatMessage(role="user", content=turn.question)
    image = ImageBlock(image=base64.b64decode(PICTURE), image_mimetype="image/png")
    return ChatMessage(role="user", blocks=[TextBlock(text=turn.question), image])


def results(calls: Sequence[Call]) -> list[ChatMessage]:
    return [
        ChatMessage(role="tool", content=c.result, additional_kwargs={"tool_call_id": c.id, "name": c.name})
        for c in calls
    ]


def listed(messages: Sequence[ChatMessage]) -> list[Any]:
    return [[m.role.value, [b.model_dump(mode="json") for b in m.blocks], _kwargs(m)] for m in messages]


def _kwargs(message: ChatMessage) -> dict[str, Any]:
    """Returns what stands beside a message, without what a provider wants back, which was noted only later."""
    kwargs: dict[str, Any] = message.additional_kwargs
    # without entries, JSON shows no marks either
    return {name: value for name, value in kwargs.items() if name != "ctxfold_reply"} if kwargs else {}


def calls_something(message: ChatMessage) -> bool:
    return any(isinstance(b, ToolCallBlock) for b in message.blocks) or bool(
        message.additional_kwargs.get("tool_calls")
    )


class Caller:
    """Asks an LLM in the way that the session has drawn."""

    def __init__(self, setting: Setting) -> None:
        self._set = setting
        self.tools = Tools()

    def ask(self, llm: Any, messages: Sequence[ChatMessage]) -> ChatMessage:
        given: dict[str, Any] = {"chat_history": [*messages], "allow_parallel_tool_calls": True}
        if not self._set.streams:
            answer = self._set.call(llm, "chat_with_tools", self.tools.all, **given)
        else:
            answer = self._set.read(llm, "stream_chat_with_tools", self.tools.all, **given)[-1]
        self._set.trace.see("reply", listed([answer.message]))
        return answer.message  # type: ignore[no-any-return]


class MemorySession:
    """A memory, read before each request and written as a chat engine does it, round by round."""

    def __init__(self, setting: Setting) -> None:
        self._set = setting
        self._caller = Caller(setting)
        self._llm = llm_of(setting)
        rules = {**setting.fixed(), **setting.rules()}
        summarizer = None if setting.rng.random() < 0.3 else self._llm
        self._memory = CtxMemory.from_defaults("golden", store=MemoryStore(), llm=summarizer, **rules)
        setting.resources.callback(self._memory.close)
        setting.trace.step("prompt")
        self._memory.put(ChatMessage(role="system", content=SYSTEM))

    def run(self) -> None:
        for number, step in enumerate(self._set.steps((*CONTEXT_ACTS, "reset", "set"))):
            self._set.trace.step(f"{number} {step.name if isinstance(step, Act) else 'turn'}")
            self._set.attempt(lambda step=step: self._step(step))  # type: ignore[misc]
            self._set.trace.see("all", listed(self._set.call(self._memory, "get_all")))
            self._set.trace.see("window", shown(self._set.call(self._memory.context, "view").messages))

    def _step(self, step: Turn | Act) -> None:
        if isinstance(step, Turn):
            self._turn(step)
        elif step.name == "reset":
            self._set.call(self._memory, "reset")
            self._set.call(self._memory, "put", ChatMessage(role="system", content=SYSTEM))
        elif step.name == "set":
            messages = self._set.call(self._memory, "get_all")
            self._set.call(self._memory, "set", rewritten(messages, step, "edit" if step.pick < 0.5 else "rewind"))
        else:
            act_on(self._set, self._memory.context, step)

    def _turn(self, turn: Turn) -> None:
        self._set.service.replies.extend(turn.replies)
        new = [asked(turn)]
        for said in turn.replies:
            self._set.call(self._memory, "put_messages", new)
            window = self._set.call(self._memory, "get")
            self._set.trace.see("got", listed(window))
            answer = self._caller.ask(self._llm, window)
            new = [answer, *results(said.calls)]
            if not calls_something(answer):
                break
        self._set.call(self._memory, "put_messages", new)


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


def rewritten(messages: Sequence[ChatMessage], act: Act, how: str) -> list[ChatMessage]:
    """The list with a question changed, with its turn taken out, or cut off before it."""
    places = [n for n, m in enumerate(messages) if m.role.value == "user"]
    if not places:
        return [*messages]
    place = act.choose(places)
    end = next((n for n in places if n > place), len(messages))
    match how:
        case "edit":
            return [*messages[:place], ChatMessage(role="user", content=act.text), *messages[place + 1 :]]
        case "remove":
            return [*messages[:place], *messages[end:]]
        case _:
            return [*messages[:place]]


class ListSession:
    """A caller with a list of its own and an LLM: one that keeps nothing, or one with a session."""

    def __init__(self, setting: Setting, llm: Any, *, keeps: bool) -> None:
        self._set = setting
        self._llm, self._keeps = llm, keeps
        self._caller = Caller(setting)
        self._told = [ChatMessage(role="system", content=SYSTEM)]

    def run(self, acts: Sequence[str]) -> None:
        for number, step in enumerate(self._set.steps(acts)):
            self._set.trace.step(f"{number} {step.name if isinstance(step, Act) else 'turn'}")
            self._set.attempt(lambda step=step: self._step(step))  # type: ignore[misc]
            if self._keeps:
                self._set.trace.see("window", shown(self._set.call(self._llm.context(), "view").messages))

    def _step(self, step: Turn | Act) -> None:
        if isinstance(step, Turn):
            self._turn(step)
        elif step.name in CONTEXT_ACTS:
            act_on(self._set, self._llm.context(), step)
        else:
            self._told = rewritten(self._told, step, step.name)

    def _turn(self, turn: Turn) -> None:
        self._set.service.replies.extend(turn.replies)
        before = [*self._told]
        self._told.append(asked(turn))
        try:
            for said in turn.replies:
                answer = self._caller.ask(self._llm, self._told)
                self._told += [answer, *results(said.calls)]
                if not calls_something(answer):
                    break
        except BaseException:
            self._told = before
            raise


class AgentSession:
    """A `FunctionAgent` whose LLM keeps its runs in the window and whose memory keeps the conversation."""

    def __init__(self, setting: Setting) -> None:
        self._set = setting
        self._tools = Tools()
        rules = {**setting.fixed(), **setting.rules()}
        inner, store = llm_of(setting), MemoryStore()
        kept = {"session_id": "golden"} if setting.rng.random() < 0.4 else {}
        self._llm = with_context(inner, store=store, **kept, **rules)
        self._memory = CtxMemory.from_defaults("golden", store=store, llm=inner, **rules)
        setting.resources.callback(self._memory.close)
        setting.resources.callback(self._llm.close)
        self._agent = FunctionAgent(
            llm=self._llm, tools=[*self._tools.all], system_prompt=SYSTEM, streaming=setting.streams
        )

    def run(self) -> None:
        for number, step in enumerate(self._set.steps(CONTEXT_ACTS, pictures=False)):
            self._set.trace.step(f"{number} {step.name if isinstance(step, Act) else 'turn'}")
            self._set.attempt(lambda step=step: self._step(step))  # type: ignore[misc]
            self._set.trace.see("all", listed(self._memory.get_all()))
            self._set.trace.see("window", shown(self._memory.context.view().messages))

    def _step(self, step: Turn | Act) -> None:
        if isinstance(step, Act):
            act_on(self._set, self._memory.context, step)
            return
        self._tools.know(step)
        self._set.service.replies.extend(step.replies)
        answer = self._set.loop.run_until_complete(self._ran(step))
        self._set.trace.see("answer", str(answer))

    async def _ran(self, turn: Turn) -> Any:
        return await self._agent.run(turn.question, memory=self._memory)


def run_memory(setting: Setting) -> None:
    MemorySession(setting).run()


def run_llm(setting: Setting) -> None:
    ListSession(setting, own_llm(setting), keeps=False).run(LIST_ACTS)


def run_wrapped(setting: Setting) -> None:
    rules = {**setting.fixed(), **setting.rules()}
    llm = with_context(llm_of(setting), session_id="golden", store=MemoryStore(), **rules)
    setting.resources.callback(llm.close)
    ListSession(setting, llm, keeps=True).run((*LIST_ACTS, *CONTEXT_ACTS))


def run_agent(setting: Setting) -> None:
    AgentSession(setting).run()
