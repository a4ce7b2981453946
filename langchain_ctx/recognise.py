"""Which of the messages handed to a history are new.

Chains hand over an input and an output; agents put the whole conversation in the output. What the handle has shown before is
recognised by id, or, without ids, as a whole leading list.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from langchain_core.messages import BaseMessage

from ctxfold.messages import Message, content_key
from langchain_ctx.convert import from_langchain, given_ids

__all__ = ["incoming"]


def incoming(
    messages: Sequence[BaseMessage], shown: Sequence[Message] | None, *, new_id: Callable[[], str]
) -> list[Message]:
    """The messages that may be new, for the engine. Ids given once stay; messages without one get a new one.

    `shown` is what the handle was last read as, None when it was not. Summaries among it never come back as conversation.
    """
    given = given_ids(messages)
    rest = [from_langchain(m, new_id=new_id) for m in messages]
    known = {m.id: content_key(m) for m in shown or ()}
    rest = rest[_echoed(rest, given, known, unread=shown is None) :]
    rest = rest[_copied(rest, given, shown or ()) :]
    new = (m for m in rest if not (m.id in given and known.get(m.id) == content_key(m)))
    # a summary that came from elsewhere is an ordinary message here
    return [m if m.kind == "message" else replace(m, kind="message") for m in new]


def _echoed(messages: Sequence[Message], given: frozenset[str], known: Mapping[str, str], *, unread: bool) -> int:
    """How many leading messages come once more: the input, which an agent hands back in its output.

    There it follows the messages that were shown; in a first turn it follows itself, with ids, or on a handle read as empty.
    """
    keys = [content_key(m) for m in messages]
    places = [i for i, m in enumerate(messages) if m.id in given and m.id in known]
    if places:
        count, after = places[0], places[-1] + 1
        return count if count and keys[:count] == keys[after : after + count] else 0
    if known:
        return 0
    for count in range(1, (len(messages) + 1) // 2):
        named = messages[0].id not in given and messages[count].id in given
        if keys[:count] == keys[count : 2 * count] and (named or not unread):
            return count
    return 0


def _copied(messages: Sequence[Message], given: frozenset[str], shown: Sequence[Message]) -> int:
    """How many leading messages are a copy, ids stripped, of all that was shown; one alone may have been said again."""
    count = len(shown)
    if count < 2 or len(messages) <= count or any(m.id in given for m in messages[:count]):
        return 0
    same = all(content_key(a) == content_key(b) for a, b in zip(messages, shown, strict=False))
    return count if same else 0
