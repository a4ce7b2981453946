"""Any conversation leaves the same window, whether it is asked request by request, or stored by turns or message by message."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import given, reject, settings
from hypothesis import strategies as st

from ctxfold import (
    AgentContext,
    ContextOverflowError,
    Message,
    ScriptedBackend,
    ToolCallPart,
    assistant,
    tool_result,
    user,
)
from ctxfold.tokens.text import RatioCounter

SUMMARY = "They talked, and looked some things up."
sizes = st.sampled_from([3, 40, 160, 600, 2_500])


@dataclass(frozen=True, slots=True)
class Turn:
    """Characters of the question, of the results of each round's calls, and of the answer."""

    question: int
    rounds: tuple[tuple[int, ...], ...]
    answer: int

    def messages(self, number: int) -> list[Message]:
        made = [user(words(f"question {number}", self.question), id=f"u{number}")]
        for place, results in enumerate(self.rounds):
            names = [f"{number}.{place}.{i}" for i in range(len(results))]
            calls = [ToolCallPart(f"c{name}", "look", f'{{"at": "{name}"}}') for name in names]
            made.append(assistant("", id=f"a{number}.{place}", calls=calls))
            found = zip(names, results, strict=True)
            made += [tool_result(f"c{name}", words(f"found {name}", size), id=f"r{name}") for name, size in found]
        return [*made, assistant(words(f"answer {number}", self.answer), id=f"z{number}")]


def words(text: str, size: int) -> str:
    return f"{text} " + " ".join(f"word{i % 7}" for i in range(size // 6))


turns = st.builds(
    Turn, sizes, st.lists(st.lists(sizes, min_size=1, max_size=3).map(tuple), max_size=4).map(tuple), sizes
)


def asked(context: AgentContext, talk: list[list[Message]]) -> None:
    for messages in talk:
        pending: list[Message] = []
        for message in messages:
            if message.role == "assistant":
                assert context.send(pending).message.id == message.id
                pending = []
            else:
                pending.append(message)


def by_turns(context: AgentContext, talk: list[list[Message]]) -> None:
    for messages in talk:
        context.add(messages)


def one_by_one(context: AgentContext, talk: list[list[Message]]) -> None:
    for messages in talk:
        for message in messages:
            context.add(message)


def question_first(context: AgentContext, talk: list[list[Message]]) -> None:
    for messages in talk:
        context.add(messages[0])
        context.add(messages[1:])


def window(way: Callable[[AgentContext, list[list[Message]]], None], told: list[Turn], size: int) -> list[object]:
    talk = [turn.messages(number) for number, turn in enumerate(told)]
    replies = [m for messages in talk for m in messages if m.role == "assistant"]
    with AgentContext(
        ScriptedBackend(replies, context_window=size),
        summarizer=ScriptedBackend([SUMMARY] * 500),
        context_window=size,
        counter=RatioCounter(),
    ) as context:
        way(context, talk)
        shown = [(m.role, m.kind, m.text, m.tool_calls, m.tool_results) for m in context.view().messages]
        return [context.usage().compactions, context.view().tokens, *shown]


@settings(max_examples=max(20, settings.default.max_examples // 3))  # each plays four sessions
@given(told=st.lists(turns, min_size=3, max_size=9), size=st.sampled_from([1_500, 2_500, 4_000]))
def test_any_conversation(told: list[Turn], size: int) -> None:
    try:
        expected = window(asked, told, size)
    except ContextOverflowError:
        reject()  # a question and the newest results that leave no room even for a summary: seldom
    assert window(by_turns, told, size) == expected
    assert window(one_by_one, told, size) == expected
    assert window(question_first, told, size) == expected
