"""`CtxMemoryBlock`: a `CtxMemory` as a block of LlamaIndex's own `Memory`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.memory.memory import BaseMemoryBlock
from pydantic import Field, PrivateAttr, SerializerFunctionWrapHandler, model_serializer

from ctxfold.adapters.tool_rounds import unanswered
from ctxfold.engine.fit import Window
from ctxfold.errors import BudgetError, ConfigError
from ctxfold.history.prompt_safety import strip_control_chars
from ctxfold.lru import LruCache
from ctxfold.messages import MediaPart, Message, result_as_text
from ctxfold.validation import check_name, is_a, kind_of, name_path
from llamaindex_ctx.memory import CtxMemory
from llamaindex_ctx.messages import from_chat_messages

STAMP = "session_id"  # where `Memory` notes whose messages it hands over
HANDLES = 256  # of sessions, at least: they hold no messages
CUT = "[earlier lines are left out here]"


class CtxMemoryBlock(BaseMemoryBlock[str]):
    """A memory block that stores what `Memory` flushes in a `CtxMemory`, and whose text is the window of that memory.

    The text holds a summary of older flushed messages, the newest flushed messages, and passages relevant to the question,
    within the `token_limit` of the `CtxMemory`. No flushed message is lost. Each session of the `Memory` has its own session
    here, "<session of the CtxMemory>/<session of the Memory>", where a "/" in the latter is written "%2F" and a "%" is written
    "%25": see `session`.

        archive = CtxMemory.from_defaults("archive", store="sqlite:///chat.db", token_limit=3_000, llm=llm) memory =
        Memory.from_defaults("ann", token_limit=30_000, memory_blocks=[CtxMemoryBlock(archive)])
    """

    name: str = Field(default="EarlierConversation", description="The name of the memory block.")
    priority: int = Field(default=1, description="0 is never truncated; the block keeps to its own limit anyway.")

    _memory: CtxMemory = PrivateAttr()
    _sessions: LruCache[str, CtxMemory] = PrivateAttr()

    def __init__(self, memory: CtxMemory | dict[str, Any], **fields: Any) -> None:
        if isinstance(memory, dict):
            memory = CtxMemory.from_dict(memory)
        if not is_a(memory, CtxMemory):
            raise ConfigError(f"the memory of a CtxMemoryBlock is {kind_of(memory)}: give CtxMemory.from_defaults(...)")
        super().__init__(**fields)
        self._memory = memory
        self._sessions = LruCache(max(HANDLES, memory.context.handle.engine.max_sessions))

    @model_serializer(mode="wrap")
    def custom_model_dump(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Returns a dict that names the memory as its own dict does; `model_validate` restores the block from it."""
        return {**handler(self), "memory": self._memory.to_dict()}

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self).model_validate, (self.model_dump(),))

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        # the memory and its sessions are shared: they cannot be copied
        return self.model_copy()

    def session(self, session_id: str | None = None) -> CtxMemory:
        """Returns the memory for a session of the `Memory`; without an argument, the `CtxMemory` that was passed."""
        if session_id is None:
            return self._memory
        # without a "/": memory "a/b" has other sessions than "a"
        inner = name_path(check_name("session id", session_id))
        name = f"{self._memory.session_id}/{inner}"
        return self._sessions.get_or_make(name, lambda: self._memory.at(name))

    async def _aget(
        self, messages: list[ChatMessage] | None = None, session_id: str | None = None, **block_kwargs: Any
    ) -> str:
        memory = self.session(session_id)
        question = next((m.content for m in reversed(messages or []) if m.role.value == "user"), None)
        try:
            return _rendered(await memory.context.awindow(recall=memory.recall, question=question))
        except BudgetError:
            # a single message may be larger than the block's own limit: it is archived whole, and shown in part
            text = _rendered(Window(await memory.context.aview()))
            return self._end_of(text, memory.context.handle.engine.rules.budget_tokens) or ""

    async def _aput(self, messages: list[ChatMessage]) -> None:
        if not messages:
            return
        stamp = messages[0].additional_kwargs.get(STAMP)
        context = self.session(stamp).context
        waiting = unanswered([e.message for e in (await context.aview()).turn])
        # a flush may begin in the middle of a round whose calls it never handed over
        fresh = from_chat_messages(map(_without_stamp, messages), context.handle.new_id, waiting, stray=result_as_text)
        await context.aadd(fresh)

    async def atruncate(self, content: str, tokens_to_truncate: int) -> str | None:
        """Returns the end of the text, shorter by that many tokens: recalled passages, and the newest messages."""
        tokens = self._memory.context.handle.counter.count_text(content)
        return self._end_of(content, tokens - tokens_to_truncate)

    def _end_of(self, text: str, tokens: int) -> str | None:
        count = self._memory.context.handle.counter.count_text
        room = tokens - count(CUT) - 1
        newest_lines: list[str] = []
        for line in reversed(text.splitlines()):
            size = count(line) + 1
            if size > room:
                newest_lines += [] if newest_lines or room <= 0 else [_end_of_line(line, room, count)]
                break
            room -= size
            newest_lines.append(line)
        return "\n".join([CUT, *reversed(newest_lines)]) if newest_lines else None


def _end_of_line(line: str, tokens: int, count: Callable[[str], int]) -> str:
    while (size := count(line)) > tokens:
        line = line[-(len(line) * tokens // size) or len(line) :]
    return line


def _without_stamp(message: ChatMessage) -> ChatMessage:
    kwargs = {k: v for k, v in message.additional_kwargs.items() if k != STAMP}
    return message.model_copy(update={"additional_kwargs": kwargs})


def _rendered(window: Window) -> str:
    lines = [m.text if m.kind == "summary" else _line(m) for m in window.messages]
    return "\n".join([*lines, window.recalled] if window.recalled else lines)


def _line(message: Message) -> str:
    calls = (f"calls {c.name} with {c.arguments}" for c in message.tool_calls)
    media = (f"[{p.kind}]" for p in message.parts if isinstance(p, MediaPart))
    return f"{message.role}: {strip_control_chars(' '.join(t for t in (message.text, *calls, *media) if t))}"
