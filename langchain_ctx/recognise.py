"""Which of the messages handed to a history are new.

Chains hand over an input and an output; agents put the whole conversation in the output. What the handle has shown before is
recognised by id, or, without ids, as a whole leading list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from langchain_core.messages import BaseMessage

from ctxfold.messages import Message, content_key
from langchain_ctx.convert import from_langchain, given_ids

__all__ = ["incoming"]


def incoming(messages: Sequence[BaseMessage], shown: Sequence[Message], *, new_id: Callable[[], str]) -> list[Message]:
    """The messages that may be new, for the engine. Ids given once stay; messages without one get a new one.

    Summaries and other injected messages that the handle has shown never come back as conversation.
    """
    given = given_ids(messages)
    converted = [from_langchain(m, new_id=new_id) for m in messages]
    known = {m.id: content_key(m) for m in shown}
    rest = _without_echo(converted, given)
    rest = _after_shown(rest, shown, given)
    new = (m for m in rest if not (m.id in given and known.get(m.id) == content_key(m)))
    # a summary that came from elsewhere is an ordinary message here
    return [m if m.kind == "message" else replace(m, kind="message") for m in new]


def _without_echo(messages: list[Message], given: frozenset[str]) -> list[Message]:
    """Without a leading input that follows once more with ids: an agent gave its input ids and handed it back."""
    count = next((i for i, m in enumerate(messages) if m.id in given), 0)
    if not count:
        return messages
    keys = [content_key(m) for m in messages]
    later = range(count, len(messages) - count + 1)
    if any(keys[:count] == keys[i : i + count] and messages[i].id in given for i in later):
        return messages[count:]
    return messages


def _after_shown(messages: list[Message], shown: Sequence[Message], given: frozenset[str]) -> list[Message]:
    """Without a leading copy, ids stripped, of all that was shown. One message alone proves nothing: it may be said again."""
    count = len(shown)
    if count < 2 or len(messages) <= count or any(m.id in given for m in messages[:count]):
        return messages
    same = all(content_key(a) == content_key(b) for a, b in zip(messages, shown, strict=False))
    return messages[count:] if same else messages
