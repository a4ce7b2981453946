"""`SummaryWriter`: a checked summary of messages that no session keeps."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from ctxfold import Message, RatioCounter, ScriptedBackend, SummaryWriter
from ctxfold.errors import BackendError, ConfigError, EmptyMessagesError, SummarizationFailedError
from ctxfold.messages import Usage, assistant, user
from ctxfold.ports import Request

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
    assert summary.rung == "extractive"
    assert "down" in summary.problems[0]
    alone = SummaryWriter(context_window=8_000).write(talk())
    assert alone.text == summary.text
    assert (alone.problems, alone.usage) == ((), Usage())


def test_what_is_too_short_stands_for_itself() -> None:
    summary = SummaryWriter(context_window=8_000).write([user("hi", id="1"), assistant("hello", id="2")])
    assert summary.rung == "verbatim"
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
