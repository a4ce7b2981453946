"""A plain LangChain application: a prompt, a model with tools, a loop. Its three lines for ctxfold are marked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, ToolMessage
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import Runnable
from pydantic import SecretStr

from langchain_ctx import ChatCtx

__all__ = ["Application", "Settings", "Tool"]

Tool = Callable[[str, str], str]  # call id, name of the tool -> its output


@dataclass(frozen=True, slots=True)
class Settings:
    """Names the model, its address, its window and the session."""

    provider: str
    model: str
    base_url: str
    api_key: str | None
    context_window: int
    store: str
    session: str

    def secret(self) -> SecretStr | None:
        return SecretStr(self.api_key) if self.api_key is not None else None


@dataclass(slots=True)
class Streamed:
    """Characters that came as reasoning and as text, while a reply was streamed."""

    reasoning: int = 0
    text: int = 0


@dataclass(slots=True)
class Application:
    """Keeps all messages and hands the whole list to its chain, as chat applications do."""

    model: ChatCtx
    chain: Runnable[dict[str, Any], BaseMessage]
    messages: list[BaseMessage] = field(default_factory=list[BaseMessage])
    streamed: Streamed = field(default_factory=Streamed)

    @classmethod
    def make(cls, settings: Settings, system: str, tools: Sequence[dict[str, Any]]) -> Application:
        model = ChatCtx(
            model=settings.model,
            provider=settings.provider,
            base_url=settings.base_url,
            api_key=settings.secret(),
            session=settings.session,  # one
            store=settings.store,  # two
            context_window=settings.context_window,  # three
        )
        prompt = ChatPromptTemplate.from_messages([("system", "{system}"), MessagesPlaceholder("messages")])
        chain = prompt.partial(system=system) | model.bind_tools(list(tools))
        return cls(model, chain)

    def turn(self, text: str, tool: Tool) -> str:
        """Runs one user turn with its tool rounds; returns the final answer."""
        self.messages.append(HumanMessage(text))
        while True:
            reply = self._stream()
            self.messages.append(reply)
            if not reply.tool_calls:
                return str(reply.text)
            for call in reply.tool_calls:
                output = tool(call["id"] or "", call["name"])
                self.messages.append(ToolMessage(output, tool_call_id=call["id"] or "", name=call["name"]))

    def _stream(self) -> AIMessage:
        whole: AIMessageChunk | None = None
        for chunk in self.chain.stream({"messages": self.messages}):
            if not isinstance(chunk, AIMessageChunk):
                raise TypeError(f"the model streamed {type(chunk).__name__} instead of AIMessageChunk")
            self.streamed.reasoning += len(chunk.additional_kwargs.get("reasoning_content") or "")
            self.streamed.text += len(str(chunk.text))
            whole = chunk if whole is None else whole + chunk
        if whole is None:
            raise RuntimeError("the model streamed nothing")
        return AIMessage(
            content=whole.content,
            additional_kwargs=whole.additional_kwargs,
            response_metadata=whole.response_metadata,
            tool_calls=whole.tool_calls,
            usage_metadata=whole.usage_metadata,
            id=whole.id,
        )
