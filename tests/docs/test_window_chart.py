"""The picture of the README is what its script draws, and says what a session holds."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

from llama_index.core.llms import ChatMessage
from llama_index.core.memory import Memory

from ctxfold import Message, ToolResultPart
from ctxfold.tokens.text import RatioCounter
from examples import window_chart
from examples.demo.story import load_story


def test_the_stored_picture_is_what_the_script_draws(tmp_path: Path) -> None:
    drawn = tmp_path / "window.svg"
    assert window_chart.main([str(drawn)]) == 0
    assert drawn.read_text(encoding="utf-8") == window_chart.CHART.read_text(encoding="utf-8"), (
        "python -m examples.window_chart draws it again"
    )
    title, description = list(ET.parse(drawn).getroot())[:2]
    assert title.tag.endswith("title")
    assert "no longer fits" in str(description.text)


def test_the_window_stays_below_its_limit_and_holds_the_facts_that_are_asked_for() -> None:
    measured = window_chart.measure(load_story())
    assert len(measured.zones) == len(measured.whole) == 60
    assert max(sum(zones) for zones in measured.zones) <= measured.context_window
    assert measured.whole[measured.first_refused - 1] > measured.context_window
    assert measured.whole[measured.first_refused - 2] <= measured.context_window
    assert measured.found_facts >= 20 > 5 >= measured.trimmed_facts


async def test_llamaindex_memory_holds_the_newest_of_these_facts_only() -> None:
    """The row of docs/comparison.md: the same turns in LlamaIndex's own memory, with the same budget and no memory blocks."""
    story = load_story()
    memory = Memory.from_defaults(token_limit=2_400, tokenizer_fn=lambda text: [0] * RatioCounter().count(text))
    for number, turn in enumerate(story.turns[: window_chart.TURNS]):
        told = window_chart.turn_messages(turn, number)
        await memory.aput_messages(
            [ChatMessage(role="user" if m.role == "user" else "assistant", content=words(m)) for m in told]
        )
    questions = [q for q in story.questions if q.turn < window_chart.TURNS]
    held = 0
    for question in questions:
        shown = await memory.aget(input=question.question)
        held += question.is_right("\n".join(str(m.content) for m in shown))
    assert len(questions) == 22
    assert held == 1


def words(message: Message) -> str:
    return message.text or "\n".join(part.content for part in message.parts if isinstance(part, ToolResultPart))
