"""Makes user and assistant take turns in a conversation, as the templates of many open models demand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ctxfold.messages import Message, Opaque, Part, ReasoningPart, TextPart, assistant, user

NOBODY_ASKED = "(The assistant speaks first.)"  # a conversation has to begin with the user's turn
NOT_ANSWERED = "(The assistant has not answered yet.)"  # the user speaks right after a tool's result
_GAP = "\n\n"


def alternating(messages: Iterable[Message]) -> list[Message]:
    """Returns the messages with neighbours of one role joined, so that user and assistant alternate after the system messages.

    Later system messages become the user's. Calls and their results stay as they are, and do not count as turns. A user's turn
    is put before an assistant that speaks first, an assistant's between a tool's result and the user.
    A conversation that goes on keeps the text that it had, so that a server's prefix cache serves it.
    """
    result: list[Message] = []
    for message in messages:
        last = result[-1] if result else None
        leading = last is None or last.role == "system"
        turn = message.with_role("user") if message.role == "system" and not leading else message
        if last is not None and turn.role == last.role and turn.role in ("user", "assistant"):
            result[-1] = _joined(last, turn)
            continue
        if leading and turn.role == "assistant":
            result.append(user(NOBODY_ASKED, id=f"{turn.id}:asked"))
        elif last is not None and last.role == "tool" and turn.role == "user":
            result.append(assistant(NOT_ANSWERED, id=f"{turn.id}:unanswered"))
        result.append(turn)
    return result


def later_system_as_users(messages: Sequence[Message]) -> Sequence[Message]:
    """Returns the messages with system messages behind the head as the user's: some services take them at the head alone."""
    head = next((i for i, message in enumerate(messages) if message.role != "system"), len(messages))
    if not any(message.role == "system" for message in messages[head:]):
        return messages
    return [m.with_role("user") if m.role == "system" and i > head else m for i, m in enumerate(messages)]


def _joined(first: Message, second: Message) -> Message:
    """Returns one message with the content of both; a framework's own data is left out, as it describes only one of them."""
    gap: list[Part] = []
    if first.reasoning and second.reasoning:
        gap.append(ReasoningPart(_GAP))
    if first.text and second.text:
        gap.append(TextPart(_GAP))
    parts = tuple(part for part in (*first.parts, *gap, *second.parts) if not isinstance(part, Opaque))
    name = first.name if first.name == second.name else None
    return replace(second, id=first.id, parts=parts, name=name, kind=first.kind)
