"""What each partner package sends through ctxfold, counted on a strict server: the rows that `make partners` prints."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Protocol

from ctxfold.testing import Scripted, ScriptedCall

QUESTIONS = 2
ROUNDS = 12  # of tools before each answer
WINDOW = 6_000
NOTED = "[A note by the context manager"  # begins what asks for a summary on the live prefix
NOTE = "(no result"  # begins what stands in for a result that never came
ENTRY = "Entry {n} of {what} says that the heron is at weir {n}. " + "Nothing else is to report from there. " * 16


class Server(Protocol):
    """The server of ctxfold.testing, or one of `tests.partners.dialects`."""

    @property
    def requests(self) -> Sequence[Any]: ...


def question(number: int) -> str:
    return f"Question {number} of the day: what do the entries say?"


@dataclass
class Script:
    """Thinks and calls 1 to 3 tools at once, `ROUNDS` times for each question; counts what it is asked."""

    thinks: bool = True
    asked: int = 0
    unpaired: int = 0
    notes: int = 0
    lost: int = 0  # requests without the question that they are for
    number: int = 0  # of the question that is asked
    rounds: Counter[int] = field(default_factory=Counter[int])
    bodies: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])

    def __call__(self, body: Mapping[str, Any]) -> Scripted:
        self.asked += 1
        messages = body["messages"]
        texts = [_text(m) for m in messages]
        self.unpaired += not paired(messages)
        self.notes += any(NOTE in text for text in texts)
        if not body.get("tools") or NOTED in texts[-1]:
            return Scripted("The user asked for entries, and got them.")
        self.bodies.append(body)
        self.lost += not any(
            m["role"] == "user" and question(self.number) in t for m, t in zip(messages, texts, strict=True)
        )
        thought = f"Thought {self.asked} about it." if self.thinks else ""
        done = self.rounds[self.number]
        self.rounds[self.number] += 1
        if done == ROUNDS:
            return Scripted(f"Answer {self.number}.", reasoning=thought)
        names = ("look", "look", "find")[: 1 + done % 3]
        calls = tuple(ScriptedCall(name, json.dumps({"n": 10 * done + i})) for i, name in enumerate(names))
        return Scripted("", reasoning=thought, tool_calls=calls)


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    return "\n".join(str(part.get("text") or "") for part in content or ())


def paired(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Tells whether each call is answered once, right behind it, and nothing else is answered."""
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            answered = message.get("tool_call_id") or waiting[:1]  # Gemini's may be known by their order alone
            if answered not in (*waiting, waiting[:1]) or not answered:
                return False
            waiting.remove(answered if isinstance(answered, str) else answered[0])
        elif waiting:
            return False
        else:
            waiting = [call["id"] for call in message.get("tool_calls") or ()]
    return not waiting


@dataclass(frozen=True)
class Row:
    """One way of using one package: what its server was asked, and what was wrong with it."""

    package: str
    way: str
    requests: int
    refused: int
    notes: int
    unpaired: int
    lost: int
    thoughts: int  # replies that went back with their thought, in all requests of the agent
    replies: int
    failed: str = ""
    sends: bool = True  # the package sends the thoughts of this way back

    @property
    def wrong(self) -> bool:
        lost_thoughts = self.sends and not self.thoughts
        return bool(self.refused or self.notes or self.unpaired or self.lost or self.failed or lost_thoughts)

    def __str__(self) -> str:
        asked = f"{self.requests:8} {self.refused:7} {self.notes:5} {self.unpaired:8} {self.lost:4}"
        back = f"{self.thoughts:6}/{self.replies}"
        return f"{self.package:46} {self.way:21} {asked} {back}{'  ' + self.failed if self.failed else ''}"


HEAD = f"{'package':46} {'way':21} {'requests':>8} {'refused':>7} {'notes':>5} {'unpaired':>8} {'lost':>4} {'reasoning back'}"


def counted(package: str, way: str, server: Server, script: Script, failed: str, *, sends: bool) -> Row:
    sent = [body for r in server.requests if NOTED not in (body := json.dumps(dict(r.body))) and _is_agents(r.body)]
    thoughts = sum(len(set(re.findall(r"Thought \d+ about it", body))) or len(sealed(body)) for body in sent)
    replies = sum(
        m["role"] == "assistant" and bool(_text(m) or m.get("tool_calls"))
        for body in script.bodies
        for m in body["messages"]
    )
    return Row(
        package,
        way,
        len(server.requests),
        len(server.requests) - script.asked,
        script.notes,
        script.unpaired,
        script.lost,
        thoughts,
        replies,
        failed,
        sends,
    )


def sealed(body: str) -> set[str]:
    return set(re.findall(r'"(?:encrypted_content|thoughtSignature|signature)": "([^"]+)"', body))


def _is_agents(body: Mapping[str, Any]) -> bool:
    return bool(body.get("tools") or body.get("toolConfig"))


def report(rows: Sequence[Row]) -> None:
    """Prints the rows; raises where a request was refused, a call was left without its result, or a thought was lost."""
    print(HEAD)
    for row in rows:
        print(row, flush=True)
    wrong = [row for row in rows if row.wrong]
    assert not wrong, f"{len(wrong)} of {len(rows)} ways went wrong"


def name_of(*packages: str) -> str:
    return " + ".join(f"{package} {version(package)}" for package in packages)
