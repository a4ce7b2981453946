"""Questions about the conversation: through a LlamaIndex memory on the same session, and over a plainly trimmed window."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from langchain_core.messages import (
    BaseMessage,
    SystemMessage,
    trim_messages,  # pyright: ignore[reportUnknownVariableType] - untyped upstream
)
from llama_index.core.chat_engine import SimpleChatEngine

from examples.demo.application import Settings
from examples.demo.story import Question
from langchain_ctx import ChatCtx
from llamaindex_ctx import CtxLLM, CtxMemory

__all__ = ["Score", "ask_memory", "ask_trimmed"]


@dataclass(frozen=True, slots=True)
class Score:
    """Counts right answers: to all questions, to those about compacted history, to those about pinned facts."""

    asked: int
    right: int
    compacted_asked: int
    compacted_right: int
    pinned_asked: int
    pinned_right: int
    wrong: tuple[tuple[str, str], ...]


def ask_memory(
    settings: Settings, questions: Sequence[Question], compacted: Callable[[Question], bool], tick: Callable[[], None]
) -> Score:
    """Asks each question through a chat engine over the session's memory."""
    llm = CtxLLM(
        model=settings.model,
        provider=settings.provider,
        base_url=settings.base_url,
        api_key=settings.api_key,
        context_window=settings.context_window,
    )
    memory = CtxMemory.from_defaults(
        session_id=settings.session, store=settings.store, context_window=settings.context_window, llm=llm
    )
    engine = SimpleChatEngine.from_defaults(llm=llm, memory=memory)
    answers: list[str] = []
    for question in questions:
        answers.append(engine.chat(question.question).response)  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
        tick()
    return _score(questions, answers, compacted)


def ask_trimmed(
    settings: Settings,
    messages: Sequence[BaseMessage],
    system: str,
    questions: Sequence[Question],
    compacted: Callable[[Question], bool],
) -> Score:
    """Asks the same questions over what `trim_messages` leaves in the same window, as a chain without ctxfold would."""
    plain = ChatCtx(
        model=settings.model,
        provider=settings.provider,
        base_url=settings.base_url,
        api_key=settings.secret(),
        context_window=settings.context_window,
    )
    kept = trim_messages(
        [SystemMessage(system), *messages],
        max_tokens=int(settings.context_window * 0.8),
        token_counter=plain.get_num_tokens_from_messages,
        strategy="last",
        start_on="human",
        include_system=True,
    )
    answers = [str(plain.invoke([*kept, ("human", q.question)]).text) for q in questions]
    return _score(questions, answers, compacted)


def _score(questions: Sequence[Question], answers: Sequence[str], compacted: Callable[[Question], bool]) -> Score:
    marked = [(q, answer, q.is_right(answer)) for q, answer in zip(questions, answers, strict=True)]
    old = [right for q, _, right in marked if compacted(q)]
    pinned = [right for q, _, right in marked if q.pinned]
    return Score(
        asked=len(marked),
        right=sum(right for _, _, right in marked),
        compacted_asked=len(old),
        compacted_right=sum(old),
        pinned_asked=len(pinned),
        pinned_right=sum(pinned),
        wrong=tuple((q.question, answer) for q, answer, right in marked if not right),
    )
