"""`SummaryWriter`: a checked summary of messages that no session keeps."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ctxfold import BackendError, ConfigError, Message, Request, ScriptedBackend, Usage, assistant, system, user
from ctxfold.adapters.summaries import SummaryWriter, acompact_messages, compact_messages
from ctxfold.compaction.transcript import (
    DEFAULT_SUMMARY_PROMPT,
)
from ctxfold.errors import EmptyMessagesError, MessageNotFoundError, NotEnoughHistoryError, SummarizationFailedError
from ctxfold.history.cuts import check_sequence
from ctxfold.tokens.text import RatioCounter
from tests.support.driven import Driven, scripted, tool_round, turns

Make = Callable[..., Driven]

CODES = [f"The code of locker {n} is {n}{n}-{n * 37}." for n in range(1, 9)]


def talk(count: int = 8) -> list[Message]:
    found: list[Message] = []
    for number, code in enumerate(CODES[:count]):
        found.append(user(f"{code} " + "We also spoke about the weather for a while. " * 10, id=f"u{number}"))
        found.append(assistant("Noted.", id=f"a{number}"))
    return found


def shown(request: Request) -> str:
    return "\n".join(m.text for m in request.messages)


async def write(writer: SummaryWriter, how: str, messages: list[Message]) -> str:
    return (writer.write(messages) if how == "sync" else await writer.awrite(messages)).text


@pytest.mark.parametrize("how", ["sync", "async"])
async def test_the_models_words_and_what_they_leave_out(how: str) -> None:
    """Every literal of the source is in the summary: the model's, or the ledger's."""
    backend = ScriptedBackend(["They spoke of lockers."], context_window=8_000)
    text = await write(SummaryWriter(backend), how, talk())
    assert "They spoke of lockers." in text
    assert all(f"{n}{n}-{n * 37}" in text for n in range(1, 9))
    assert "#" not in text  # no session, no references
    assert all(code in shown(backend.requests[0]) for code in CODES)


def test_markup_of_the_transcript_that_a_model_copies_is_left_out() -> None:
    tags = '<transcript>\n<part number="1">\n<message role="user">'
    copied = f'{tags}\nThey spoke of lockers.\n</message>\nThe tag <message role="x"> was named.'
    backend = ScriptedBackend([copied], context_window=8_000)
    text = SummaryWriter(backend).write(talk()).text
    assert "They spoke of lockers.\nThe tag" in text
    assert "number=" not in text
    assert "role=" not in text.replace('‹message role="x"> was named', "")


def test_elements_of_the_same_name_stay_in_a_summary() -> None:
    backend = ScriptedBackend(['They send this:\n<message to="bob@example.org">\nHello.'], context_window=8_000)
    assert (
        'message to="bob@example.org">'
        in SummaryWriter(backend).write([*talk(), user("To bob@example.org.", id="x")]).text
    )


def test_an_earlier_summary_is_carried_over() -> None:
    backend = ScriptedBackend(["Old and new."], context_window=8_000)
    earlier = replace(user("Earlier they chose the colour teal-14.", id="s"), kind="summary")
    text = SummaryWriter(backend).write([earlier, *talk()]).text
    assert "<previous_summary>\nEarlier they chose the colour teal-14." in shown(backend.requests[0])
    assert "teal-14" in text


def test_a_long_source_is_read_in_pieces() -> None:
    backend = ScriptedBackend(["A part of it."] * 20, context_window=1_200)
    summary = SummaryWriter(backend, summary_tokens=200).write(talk())
    assert summary.calls == len(backend.requests) > 1
    read = "\n".join(map(shown, backend.requests))
    assert all(code in read for code in CODES)


def test_a_model_that_fails_or_is_not_there() -> None:
    failing = SummaryWriter(ScriptedBackend([BackendError("down", kind="server")], context_window=8_000))
    summary = failing.write(talk())
    assert summary.fallback_level == "extractive"
    assert "down" in summary.problems[0]
    alone = SummaryWriter(context_window=8_000).write(talk())
    assert alone.text == summary.text
    assert (alone.problems, alone.usage) == ((), Usage())


def test_what_is_too_short_stands_for_itself() -> None:
    summary = SummaryWriter(context_window=8_000).write([user("hi", id="1"), assistant("hello", id="2")])
    assert summary.fallback_level == "verbatim"
    assert "hi" in summary.text
    assert "hello" in summary.text


def test_what_cannot_be_summarised_is_told() -> None:
    blob = user("x" * 4_000, id="1")
    with pytest.raises(SummarizationFailedError, match=r"1 messages \(\d+ tokens\) .* within 64 tokens"):
        SummaryWriter(context_window=8_000, summary_tokens=64, counter=RatioCounter()).write([blob])


def test_its_own_instructions() -> None:
    backend = ScriptedBackend(["Short."], context_window=8_000)
    SummaryWriter(backend, prompt='Answer as {"json": true}, {words} words.').write(talk())
    assert re.fullmatch(r'Answer as \{"json": true\}, \d+ words\.', backend.requests[0].messages[0].text)


def test_bad_settings_and_nothing_to_do() -> None:
    with pytest.raises(ConfigError, match="context_window"):
        SummaryWriter()
    with pytest.raises(EmptyMessagesError):
        SummaryWriter(context_window=8_000).write([])


@pytest.fixture(params=["sync", "async"])
def compacted(request: pytest.FixtureRequest) -> Any:
    """`compact_messages`, called one way or the other."""

    def call(*args: Any, **kwargs: Any) -> tuple[Message, ...]:
        if request.param == "sync":
            return compact_messages(*args, **kwargs)
        return asyncio.run(acompact_messages(*args, **kwargs))

    return call


LISTED = [
    system("Be kind.", id="s"),
    *turns(20, words=40),
    user("go", id="g"),
    *tool_round("t", calls=2),
    assistant("ok", id="z"),
]


@pytest.mark.parametrize(
    ("strategy", "kept"), [("summarize", []), ("truncate", []), ("tiered", []), ("sliding_window", ["u3"])]
)
def test_a_list_is_compacted_without_a_session(compacted: Any, strategy: str, kept: list[str]) -> None:
    """Step 7, D1: a standalone `compact(messages, pinned, preserve_n_last)` for a strategy."""
    before = list(LISTED)
    found = compacted(LISTED, pinned=("a3",), preserve_n_last=2, strategy=strategy, counter=RatioCounter())
    assert before == LISTED
    summaries = [m for m in found if m.kind == "summary"]
    assert len(summaries) == (strategy != "sliding_window")
    rest = [m for m in found if m.kind == "message"]
    assert [m.id for m in rest] == ["s", *kept, "a3", "g", "t-a", "t-r0", "t-r1", "z"]
    assert all(m in LISTED for m in rest), "word for word"
    assert all("#" not in m.text for m in found), "no session, no references"
    check_sequence(rest[1:])


def test_the_newest_messages_and_the_model_s_summary(compacted: Any) -> None:
    backend = scripted("They asked question 0 to question 17, word by word, and each answer was a reply.")
    found = compacted(turns(20), preserve_n_last=5, summarizer=backend, counter=RatioCounter())
    assert [m.id for m in found[1:]] == [m.id for m in turns(20)][-5:]
    assert "They asked question 0 to question 17, word by word, and each answer was a reply." in found[0].text
    assert len(backend.requests) == 1


def test_a_strategy_of_one_s_own_compacts_a_list(compacted: Any) -> None:
    class Newest:
        def should_summarize(self, history: list[Message]) -> bool:
            return len(history) > 3

        def summarize(self, history: list[Message]) -> list[Message]:
            return history[-3:]

    assert [m.id for m in compacted(turns(4), strategy=Newest(), counter=RatioCounter())] == ["a2", "u3", "a3"]


def test_a_list_that_cannot_be_compacted(compacted: Any) -> None:
    with pytest.raises(NotEnoughHistoryError):
        compacted(turns(2), preserve_n_last=4, counter=RatioCounter())
    with pytest.raises(MessageNotFoundError):
        compacted(turns(20), pinned=("nobody",), counter=RatioCounter())
    for number in (0, -1, "4"):
        with pytest.raises(ConfigError, match="preserve_n_last is"):
            compacted(turns(20), preserve_n_last=number, counter=RatioCounter())
    with pytest.raises(ConfigError, match="there is no strategy 'short'"):
        compacted(turns(20), strategy="short", counter=RatioCounter())


def test_r9_a_strict_session_has_no_summary_that_no_model_wrote(make: Make) -> None:
    """Without `strict_summaries` verbatim sentences stand in for the model's summary; with it the failure is told."""
    down = scripted(*[BackendError("down", kind="server")] * 9)
    ctx = make(summarizer=down, strict_summaries=True)
    ctx.add(turns(20))
    before = ctx.view().messages
    with pytest.raises(SummarizationFailedError, match="no model wrote a summary: model: down"):
        ctx.compact()
    assert ctx.view().messages == before
    ctx.set_policy(strict_summaries=False)
    assert ctx.compact().event.fallback_level == "extractive"


def test_r11_the_built_in_prompt_can_be_extended(make: Make) -> None:
    asked = scripted("A summary of what was said.")
    ctx = make(summarizer=asked, summary_prompt=f"{DEFAULT_SUMMARY_PROMPT} Name the ticket first.")
    ctx.add(turns(20))
    prompt = asked.requests[0].messages[0].text
    assert prompt.startswith("Summarise the conversation in the transcript")
    assert prompt.endswith("words. Name the ticket first.")
    assert "{words}" not in prompt


@pytest.mark.parametrize("name", ["store", "session_id", "owner", "auto_compact", "keep_last"])
def test_a_list_is_compacted_with_its_own_settings_alone(name: str) -> None:
    """With a store and a name it went into a session, behind what another user had said there."""
    settings: Any = {name: "chat"}
    with pytest.raises(ConfigError, match=f"compact_messages has no setting '{name}': there are preserve_n_last, "):
        compact_messages([user("q", id="u"), assistant("a", id="a")], **settings)
