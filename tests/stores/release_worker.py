"""A process of one release, for `test_two_releases.py`: obeys a line of JSON at a time, and answers what a user sees.

It is run by its path, with the packages of either release, and imports nothing of the tests.
"""

from __future__ import annotations

import json
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import ctxfold
from ctxfold import AgentContext, Message, ToolCallPart, assistant, tool_result, user
from ctxfold.errors import CtxWarning, NotEnoughHistoryError
from ctxfold.history.records import SessionKey
from ctxfold.tokens.text import RatioCounter

OWNER = "ann: {1}"
SESSIONS = ("talk", "talk/copy")
QUESTIONS = ("What is the key of the mill number 7?", "Which tower is number 3?")
PLACES = ("harbour", "mill", "school", "tower", "bridge")


class Letters:
    """Embeds a text as how often it has each of some letters."""

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        return [[text.count(letter) + 0.5 for letter in "aeioubdt"] for text in texts]

    async def aembed(self, texts: Sequence[str]) -> list[list[float]]:
        return self.embed(texts)


def opened(url: str, session: str = SESSIONS[0]) -> AgentContext:
    return AgentContext(
        session_id=session,
        owner=OWNER,
        store=url,
        context_window=2_000,
        counter=RatioCounter(),
        embedder=Letters(),
        memory="facts",
        create=session == SESSIONS[0],
    )


def talk(ctx: AgentContext, first: int, count: int) -> None:
    for start in range(first, first + count, 4):
        ctx.add([message for number in range(start, min(start + 4, first + count)) for message in asked(number)])


def asked(number: int) -> list[Message]:
    place = PLACES[number % 5]
    call = ToolCallPart(f"c{number}", "look", json.dumps({"place": place}))
    doors = f"The {place} has {number} doors. " + f"Door {number} is grey. " * (number % 30 == 9) * 70
    return [
        user(f"The key of the {place} number {number} is {number * 7_919 % 9_973}.", id=f"u{number}"),
        assistant("", id=f"l{number}", calls=[call]),
        tool_result(f"c{number}", doors, id=f"r{number}"),
        assistant(f"I have noted the {place} {number}, ünd 数 {number}.", id=f"a{number}"),
    ]


# what is done to a store


def write(ctx: AgentContext, first: int) -> None:
    """Adds, pins, compacts, edits and remembers."""
    talk(ctx, first, 30)
    ctx.pin(f"a{first + 28}")
    with suppress(NotEnoughHistoryError):  # where adding has just done so
        ctx.compact(force=True)
    ctx.edit.update(f"a{first + 29}", assistant(f"The last of {first} was wrong.", id=f"a{first + 29}"))
    ctx.edit.set_goal(f"count the doors from {first}")
    ctx.memory.add("facts", f"The tower of {first} is blue.", key="tower", sources=[f"u{first + 1}"])
    ctx.memory.add("facts", f"The mill of {first} is red.", key=f"mill {first}")
    ctx.window(recall=True, question=QUESTIONS[0])  # embeds what was compacted


def fork(ctx: AgentContext) -> None:
    with ctx.fork(SESSIONS[1]) as copy:
        copy.add([user("In the copy alone.", id="only")])


def erase(ctx: AgentContext, first: int) -> None:
    ctx.erasure.erase(f"u{first + 1}", f"r{first + 8}", f"u{first + 29}")
    forgotten = next(item for item in ctx.memory.list() if item.key == f"mill {first}")
    ctx.memory.forget(forgotten.id)


def compact(ctx: AgentContext, first: int) -> None:
    talk(ctx, first, 8)
    ctx.compact(force=True)


def undo(ctx: AgentContext) -> None:
    ctx.undo()


def look(_: AgentContext) -> None:
    """Does nothing: what others have written is read when it is asked for."""


def erase_session(ctx: AgentContext) -> None:
    ctx.at(SESSIONS[1]).erasure.erase_session()


def erase_owner(ctx: AgentContext) -> None:
    ctx.erasure.erase_owner()


# what a user sees


def seen(url: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with opened(url) as ctx:
        store: Any = ctx.handle.store
        found["sessions"] = list(store.sessions(OWNER))
        found["forks"] = list(ctx.archive.forks())
        found["everywhere"] = [
            (hit.session, hit.reference, hit.excerpt) for hit in ctx.archive.search_owner(QUESTIONS[0])
        ]
        found["memory"] = sorted(
            (item.kind, item.key, item.text, list(item.sources)) for item in ctx.memory.list(everything=True)
        )
    for session in found["sessions"]:
        with opened(url, session) as ctx:
            found[session] = of_session(ctx)
    return found


def of_session(ctx: AgentContext) -> dict[str, Any]:
    key = SessionKey(ctx.owner, ctx.session)
    store: Any = ctx.handle.store
    shown: dict[str, Any] = {
        "messages": [(m.id, m.role, m.text, [c.arguments for c in m.tool_calls]) for m in ctx.messages()],
        "window": [(m.role, m.text) for m in ctx.window().messages],
        "zones": [(block.zone, block.why) for block in ctx.explain().blocks],
        "goal": ctx.edit.goal().goal,
    }
    for question in QUESTIONS:
        window = ctx.window(recall=True, question=question)
        shown[question] = {
            "recalled": window.recalled,
            "window": [m.text for m in window.messages],
            "hits": [(hit.message_id, hit.reference, hit.excerpt) for hit in ctx.search(question, limit=20)],
        }
    for name in store.embedders(key):
        shown[f"vectors of {name}"] = {seq: data.hex() for seq, data in sorted(store.vectors(key, name).items())}
    return shown


DEEDS: dict[str, Callable[..., None]] = {
    each.__name__: each for each in (write, look, fork, erase, compact, undo, erase_session, erase_owner)
}


def obey(held: dict[str, AgentContext], deed: str, url: str, *arguments: Any) -> Any:
    """Returns what is asked for; of a session that is held open, what it shows after the deed."""
    if deed == "seen":
        return seen(url)
    if deed == "hold":
        held[url] = opened(url)
    elif deed == "let go":
        held.pop(url).close()
    elif url in held:
        DEEDS[deed](held[url], *arguments)
        return of_session(held[url])
    else:
        with opened(url) as ctx:
            DEEDS[deed](ctx, *arguments)
    return None


def main() -> None:
    warnings.simplefilter("error")
    warnings.simplefilter("ignore", CtxWarning)  # a release may say that it does not know all: see decision 0010
    held: dict[str, AgentContext] = {}
    print(json.dumps(ctxfold.__file__), flush=True)
    for line in sys.stdin:
        try:
            answer: Any = obey(held, *json.loads(line))
        except Exception:
            answer = {"failed": traceback.format_exc()}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
