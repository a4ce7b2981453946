"""Draws what a context window holds over 60 turns, with ctxfold and without: `python -m examples.window_chart`.

The turns are the first 60 of the demo's conversation, stored in a real session without a model, so the chart needs no key and
no network and is the same on every machine. Then the demo's questions about these turns are asked, and the script counts for how
many of them the answer is in the window.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ctxfold import AgentContext, Message, ToolCallPart, assistant, system, tool_result, user
from ctxfold.engine.fit import Window
from ctxfold.tokens.text import MessageCounter, RatioCounter
from examples.demo.story import Question, Story, Turn, load_story

__all__ = ["Measured", "draw", "main", "measure"]

TURNS: Final = 60
CONTEXT_WINDOW: Final = 3_000
CHART: Final = Path(__file__).resolve().parents[1] / "docs" / "images" / "window.svg"

WIDTH, HEIGHT = 480, 440  # narrow, so that the labels are still read where a telephone scales the picture down
LEFT, RIGHT, TOP, BOTTOM = 66, 468, 92, 346
COLOURS: Final = {
    "system prompt": "#5b6770",
    "summary": "#c77d0a",
    "messages": "#1f77b4",
    "recalled passages": "#2a9d5c",
}
LABELLED: Final = 'aria-labelledby="t d"'
REFUSED: Final = "#b3261e"
FONT: Final = 'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif" font-size="16"'


@dataclass(frozen=True, slots=True)
class Measured:
    """Tokens of the request of each turn: `zones` with ctxfold, `whole` of the whole list, and how many facts are in the windows.

    `trimmed_facts` counts the same for the newest messages that fill the same budget.
    """

    context_window: int
    zones: tuple[tuple[int, ...], ...]
    whole: tuple[int, ...]
    facts: int
    found_facts: int
    trimmed_facts: int

    @property
    def first_refused(self) -> int:
        """Returns the first turn, counted from 1, whose whole list is larger than the window."""
        return next(i for i, tokens in enumerate(self.whole, 1) if tokens > self.context_window)


def measure(story: Story) -> Measured:
    """Tells the turns to a session, and asks the questions about them."""
    counter = MessageCounter(RatioCounter())
    prompt = counter.count(system(story.system, id="system"))
    told: list[Message] = []
    zones: list[tuple[int, ...]] = []
    whole: list[int] = []
    with AgentContext(context_window=CONTEXT_WINDOW, counter=RatioCounter(), system=story.system) as context:
        for number, turn in enumerate(story.turns[:TURNS]):
            question, *answer = turn_messages(turn, number)
            context.add(question)
            zones.append(_zones(context.window(recall=True), counter))
            whole.append(prompt + sum(map(counter.count, (*told, question))))
            context.add(answer)
            told += [question, *answer]
        questions = [q for q in story.questions if q.turn < TURNS]
        found = sum(_holds(_shown(context, q), q) for q in questions)
    tail = _newest(told, counter, CONTEXT_WINDOW * 8 // 10 - prompt)
    trimmed = sum(_holds(tail, q) for q in questions)
    return Measured(CONTEXT_WINDOW, tuple(zones), tuple(whole), len(questions), found, trimmed)


def turn_messages(turn: Turn, number: int) -> list[Message]:
    """Returns the turn's messages: the question, each round of tool calls with its results, and the answer."""
    messages = [user(turn.user, id=f"u{number}")]
    for place, step in enumerate(turn.rounds):
        calls = [ToolCallPart(c.id, c.name, json.dumps(c.arguments, ensure_ascii=False)) for c in step.calls]
        messages.append(assistant("", id=f"c{number}.{place}", calls=calls))
        for call, output in zip(step.calls, step.results, strict=True):
            messages.append(tool_result(call.id, output, id=f"r{call.id}", name=call.name))
    return [*messages, assistant(turn.answer, id=f"a{number}")]


def draw(measured: Measured) -> str:
    """Returns the chart as SVG: stacked areas for the window, a line for the whole list, and the limit."""
    top = max(measured.whole)
    high = (top // 1_000 + 1) * 1_000

    def x(turn: int) -> float:
        return round(LEFT + (RIGHT - LEFT) * (turn - 1) / (len(measured.whole) - 1), 1)

    def y(tokens: int) -> float:
        return round(BOTTOM - (BOTTOM - TOP) * tokens / high, 1)

    body = [_grid(high, y), _turn_labels(x)]
    floor = [0] * len(measured.zones)
    for place, (name, colour) in enumerate(COLOURS.items()):
        upper = [low + zone[place] for low, zone in zip(floor, measured.zones, strict=True)]
        up = " ".join(f"{x(i)},{y(v)}" for i, v in enumerate(upper, 1))
        down = " ".join(f"{x(i)},{y(v)}" for i, v in reversed(list(enumerate(floor, 1))))
        body.append(f'<polygon points="{up} {down}" fill="{colour}"><title>{name}</title></polygon>')
        floor = upper
    line = " ".join(f"{x(i)},{y(v)}" for i, v in enumerate(measured.whole, 1))
    limit, first = y(measured.context_window), measured.first_refused
    body += [
        f'<polyline points="{line}" fill="none" stroke="{REFUSED}" stroke-width="2.5"/>',
        f'<line x1="{LEFT}" y1="{limit}" x2="{RIGHT}" y2="{limit}" stroke="#222" stroke-width="1.5" stroke-dasharray="6 4"/>',
        _text(
            RIGHT - 6,
            limit - 7,
            f"window: {measured.context_window:,} tokens",
            anchor="end",
            weight="600",
        ),
        f'<circle cx="{x(first)}" cy="{y(measured.whole[first - 1])}" r="5" fill="{REFUSED}"/>',
        _text(
            x(first) + 36,
            y(measured.whole[first - 1]) - 44,
            f"turn {first}: no longer fits",
            anchor="end",
            fill=REFUSED,
        ),
        _text(
            x(52) - 12, y(measured.whole[51]) - 10, "without: the whole list", anchor="end", fill=REFUSED, weight="600"
        ),
        _legend(),
    ]
    return "\n".join([*_head(measured), *body, "</svg>", ""])


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the chart to the path that is given, or to docs/images/window.svg, and prints the figures."""
    paths = list(sys.argv[1:] if arguments is None else arguments)
    path = Path(paths[0]) if paths else CHART
    measured = measure(load_story())
    path.write_text(draw(measured), encoding="utf-8")
    largest = max(sum(zones) for zones in measured.zones)
    print(
        f"{path.name}: {len(measured.whole)} turns, largest window {largest:,}, whole list {measured.whole[-1]:,} tokens"
    )
    print(f"facts in the window that asks for them: {measured.found_facts} of {measured.facts}; ", end="")
    print(f"among the newest messages: {measured.trimmed_facts}")
    return 0


def _zones(window: Window, counter: MessageCounter) -> tuple[int, ...]:
    prompt = sum(counter.count(m) for m in window.messages if m.role == "system" and m.kind == "message")
    summary = sum(counter.count(m) for m in window.messages if m.kind == "summary")
    recalled = counter.count(system(window.recalled, id="recalled")) if window.recalled else 0
    return prompt, summary, sum(map(counter.count, window.messages)) - prompt - summary, recalled


def _shown(context: AgentContext, question: Question) -> list[str]:
    window = context.window(recall=True, question=question.question)
    return [*(_words(m) for m in window.messages), window.recalled]


def _newest(messages: Sequence[Message], counter: MessageCounter, budget_tokens: int) -> list[str]:
    kept: list[str] = []
    for message in reversed(messages):
        budget_tokens -= counter.count(message)
        if budget_tokens < 0:
            break
        kept.append(_words(message))
    return kept


def _words(message: Message) -> str:
    """Returns the text of a message, tool outputs included."""
    return "\n".join(str(getattr(part, "text", "") or getattr(part, "content", "")) for part in message.parts)


def _holds(texts: Sequence[str], question: Question) -> bool:
    return question.is_right("\n".join(texts))


def _head(measured: Measured) -> list[str]:
    last = measured.whole[-1]
    about = (
        f"Tokens in the request of each of {len(measured.whole)} turns. With ctxfold the window stays below "
        f"{measured.context_window:,} tokens; the whole list grows to {last:,} and no longer fits from turn "
        f"{measured.first_refused} on."
    )
    title = f"Tokens in each request, over {len(measured.whole)} turns"
    facts = (
        f"{measured.facts} facts asked for later: {measured.found_facts} with ctxfold, {measured.trimmed_facts} without"
    )
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="480" role="img" {LABELLED} {FONT}>',
        f'<title id="t">A context window over {len(measured.whole)} turns</title><desc id="d">{about}</desc>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#ffffff"/>',
        _text(16, 30, title, weight="600", size=20),
        _text(16, 56, facts, size=15),
    ]


def _grid(high: int, y: Callable[[int], float]) -> str:
    lines: list[str] = []
    for tokens in range(0, high + 1, 1_000 if high <= 8_000 else 2_000):
        lines.append(f'<line x1="{LEFT}" y1="{y(tokens)}" x2="{RIGHT}" y2="{y(tokens)}" stroke="#d9dde1"/>')
        lines.append(_text(LEFT - 8, y(tokens) + 5, f"{tokens:,}", anchor="end", fill="#444"))
    return "\n".join(lines)


def _turn_labels(x: Callable[[int], float]) -> str:
    return "\n".join(
        _text(x(turn), BOTTOM + 20, f"turn {turn}" if turn == 1 else str(turn), anchor="middle", fill="#444")
        for turn in (1, 20, 40, 60)
    )


def _legend() -> str:
    parts = [_text(16, HEIGHT - 44, "ctxfold:", weight="600")]
    for row, column, (name, colour) in zip((0, 0, 1, 1), (0, 1, 0, 1), COLOURS.items(), strict=True):
        x, y = 96 + 180 * column, HEIGHT - 44 + 26 * row
        parts.append(f'<rect x="{x}" y="{y - 12}" width="14" height="14" fill="{colour}"/>')
        parts.append(_text(x + 20, y, name))
    return "\n".join(parts)


def _text(
    x: float, y: float, words: str, *, anchor: str = "start", fill: str = "#222", weight: str = "400", size: int = 16
) -> str:
    style = f'text-anchor="{anchor}" fill="{fill}" font-weight="{weight}" font-size="{size}"'
    return f'<text x="{x:g}" y="{y:g}" {style}>{words}</text>'


if __name__ == "__main__":
    sys.exit(main())
