"""Measures recall of what tools returned, and of what an agent called them with, in tau-bench runs.

Eight runs of different tasks are one session. A question is made of each record and of most calls, and asked after all of them,
through the public API with the defaults; a token is four characters. It counts as answered when one message of the request, or
one recalled line, holds all values of the answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from ctxfold import AgentContext, Message, ToolCallPart, user
from tests.benchmarks.data import flat, tau
from tests.benchmarks.recall_quality import COUNTER, WINDOWS, Asked, Conversation, filled, ranked
from tests.benchmarks.sheets import Cell, Sheet

__all__ = ["answered", "sessions", "table"]

RUNS = 8  # in one session
HALVES = {"tuned on": slice(0, 24), "not tuned on": slice(24, 48)}  # of the runs with different tasks
Question = tuple[str, tuple[str, ...]]  # and what its answer must hold


@cache
def sessions(half: str) -> tuple[tuple[Message, ...], ...]:
    """Returns the messages of each session; of the runs with the same first message, only the first one."""
    runs = list({run.messages[0].text: run.messages for run in reversed(tau())}.values())[::-1][HALVES[half]]
    told = [runs[at : at + RUNS] for at in range(0, len(runs), RUNS)]
    return tuple(tuple(m for run in each for m in run if m.text != "###STOP###") for each in told)


def questions(messages: Sequence[Message]) -> dict[str, tuple[str, ...]]:
    """Returns the questions, each with what its answer must hold; of two about the same, the first."""
    found: dict[str, tuple[str, ...]] = {}
    for message in messages:
        outputs = (each for result in message.tool_results for each in _records(result.content))
        calls = (each for call in message.tool_calls for each in _of_call(call))
        for question, answer in (*outputs, *calls):
            found.setdefault(question, answer)
    return found


def _records(output: str) -> Iterator[Question]:
    try:
        record: Any = json.loads(output)
    except ValueError:
        return
    if isinstance(record, list):
        record = record[0] if record else None
    match record:
        case {"email": str(email), "name": name, "address": address}:
            full_name = f"{name['first_name']} {name['last_name']}"
            yield f"What is the email address of {full_name}?", (email,)
            yield f"In which city does {full_name} live and what is the zip code?", (address["city"], address["zip"])
        case {"reservation_id": str(code), "flights": [_, *_] as flights}:
            flight_numbers = [flight["flight_number"] for flight in flights]
            yield (
                f"What is the cabin class of reservation {code} and which flights does it have?",
                (code, record["cabin"], *flight_numbers),
            )
            yield (
                f"Who are the passengers of reservation {code}?",
                (code, *(p["last_name"] for p in record["passengers"])),
            )
            yield f"When does reservation {code} fly?", (code, *(flight["date"] for flight in flights))
        case {"flight_number": str(number), "prices": {"economy": price}}:
            yield (
                f"What does economy on flight {number} from {record['origin']} to {record['destination']} cost?",
                (number, str(price)),
            )
        case _:
            return


def _of_call(call: ToolCallPart) -> Iterator[Question]:
    match call.name, call.parsed():
        case "book_reservation", {
            "user_id": who,
            "origin": origin,
            "destination": destination,
            "payment_methods": ways,
        }:
            paid = tuple(way["payment_id"] for way in ways)
            yield f"Which payment methods were used for the booking of {who} from {origin} to {destination}?", paid
        case "update_reservation_flights", {"reservation_id": code, "flights": flights}:
            yield f"Which flights was reservation {code} changed to?", (code, *(f["flight_number"] for f in flights))
        case "cancel_reservation", {"reservation_id": code}:
            yield f"Which tool call cancelled reservation {code}?", ("cancel_reservation", code)
        case "send_certificate", {"user_id": who, "amount": amount}:
            yield f"How large was the certificate sent to {who}?", ("certificate", str(amount))
        case "calculate", {"expression": expression}:
            numbers = [word for word in expression.split() if word[:1].isdigit()]
            if len(numbers) > 1:
                yield f"What did we calculate with {numbers[0]} and {numbers[-1]}?", (expression,)
        case _:
            return


def answered(messages: Sequence[Message], window: int) -> list[tuple[Cell, ...]]:
    """Returns for each question whether ctxfold, BM25, and BM25 with neighbours show its answer, and the recalled tokens."""
    said = tuple((m.role, flat(m)) for m in messages)
    rows: list[tuple[Cell, ...]] = []
    with AgentContext(None, context_window=window, counter=COUNTER) as context:
        context.add(messages)
        for number, (question, answer) in enumerate(questions(messages).items()):
            asked = Asked(question, "", (), len(said))
            conversation = Conversation(said, (), (asked,))
            context.add(user(question, id=f"q{number}"))
            request = context.window(recall=True)
            context.edit.pop()
            budget = window - window // 5 - COUNTER.count(question)
            shown = [flat(m) for m in request.messages[:-1]] + request.recalled.split("\n")
            peers = [filled(conversation, ranked(conversation, asked, neighbours=n), budget) for n in (False, True)]
            rows.append((*(_holds(lines, answer) for lines in (shown, *peers)), COUNTER.count(request.recalled)))
    return rows


def _holds(texts: Sequence[str], answer: Sequence[str]) -> bool:
    return any(all(value in text for value in answer) for text in texts)


def table(*, quick: bool = False) -> Sheet:
    """Returns the share of the questions whose answer is in the request, by half and window."""
    rows: list[tuple[Cell, ...]] = []
    for half in ["not tuned on"] if quick else HALVES:
        told = sessions(half)[: 1 if quick else None]
        for window in WINDOWS[:1] if quick else WINDOWS:
            found = [row for messages in told for row in answered(messages, window)]
            ours, plain, near, tokens = (sum(map(float, column)) / len(found) for column in zip(*found, strict=True))
            rows.append((half, f"{window:,}", len(found), f"{ours:.3f}", f"{plain:.3f}", f"{near:.3f}", round(tokens)))
    return Sheet(
        "Records and calls of agents in the request: tau-bench runs",
        ("runs", "window", "questions", "ctxfold", "BM25", "BM25 with neighbours", "recalled tokens a question"),
        tuple(rows),
        "Answered: one message or recalled line holds all values of the answer. BM25 has the whole prompt for whole messages.",
    )
