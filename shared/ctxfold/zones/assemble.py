"""A request from the zones: the window, and one message at its end that is never stored."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ctxfold.budget import Policy
from ctxfold.effects import LookedUp
from ctxfold.errors import BudgetError, ContextOverflowError, MessageTooLargeError
from ctxfold.flow import Flow
from ctxfold.history.view import View
from ctxfold.journal import Journal
from ctxfold.messages import Message, Role, TextPart, is_final
from ctxfold.ports import Ports
from ctxfold.zones.recall import Passage, recall, render
from ctxfold.zones.semantic import near_passages

__all__ = [
    "Scratch",
    "first_unstable",
    "newest_question",
    "overflow",
    "place_scratch",
    "recalled",
    "remember",
    "remembered",
    "scratch_message",
    "too_large",
]

_log = logging.getLogger("ctxfold")

SCRATCH_ID = "scratch"
PASSAGES_ID = "passages"
REMEMBERED_QUESTIONS = 64
RECALL_ROUNDS = 8  # of tools; passages stand at the end, so they are new to the cache in every later request


@dataclass(frozen=True, slots=True)
class Scratch:
    """Text for this request only, and the role in which it travels."""

    text: str
    role: Role = "system"


def newest_question(view: View) -> Message | None:
    """The newest user message that has no final answer yet; None when the view ends with a reply."""
    last = view.last()
    return None if last is not None and is_final(last.message) else newest_user(view)


def newest_user(view: View) -> Message | None:
    """The newest user message of the view."""
    for entries in (view.turn, view.live):
        for index in range(len(entries) - 1, -1, -1):
            message = entries[index].message
            if message.role == "user" and message.kind == "message":
                return message
    return None


def recalled(journal: Journal, view: View, ports: Ports, *, question: Message | None, room_tokens: int) -> Flow[str]:
    """Passages of compacted messages for the question, within the policy's share and the room left.

    The same all turn long, and none once the question has been followed by eight rounds of tools: what a long run needs then, it
    has said or can look up.
    """
    rules = journal.rules()
    share = min(int(rules.recall_ratio * rules.budget_tokens), room_tokens)
    if question is None or share <= 0 or not (journal.state.compactions or journal.state.excerpts):
        return ""
    if _rounds_after(question, view) >= RECALL_ROUNDS:
        return ""
    known = remembered(journal, question.id, question)
    if known is not None and ports.counter.count_text(known) <= share:
        return known
    visible = frozenset(e.seq for e in view if not e.shown_seq) | journal.state.taken_out.keys()
    looking = recall(
        journal.key,
        question.text,
        budget_tokens=share,
        visible=visible,
        counter=ports.counter,
        near=(yield from _near(journal, question.text, ports, visible)),
        readings=journal.readings,
    )
    found = yield from LookedUp(looking)
    return remember(journal, question.id, question, render(found))


def _near(journal: Journal, query: str, ports: Ports, visible: frozenset[int]) -> Flow[tuple[Passage, ...]]:
    """What is near by meaning; words alone have to do when the embedder fails."""
    try:
        return (yield from near_passages(journal, query, ports, visible=visible))
    except Exception as error:  # noqa: BLE001 - somebody else's embedder: reported, and the turn goes on
        _log.warning("recall goes by words alone, the embedder failed: %r", error)
        return ()


def remembered(journal: Journal, key: str, question: Message) -> str | None:
    """What was found for the question under that key; None when nothing was looked for yet."""
    known = journal.scratch.get(key)
    return known[1] if known is not None and known[0] == question.text else None


def remember(journal: Journal, key: str, question: Message, text: str) -> str:
    """The text, kept for the further requests of the turn."""
    journal.scratch[key] = (question.text, text)
    if len(journal.scratch) > REMEMBERED_QUESTIONS:
        journal.scratch.popitem(last=False)
    return text


def _rounds_after(question: Message, view: View) -> int:
    """Tool rounds that have followed the question, as far as they matter; 0 where another one is newer or it is not stored."""
    rounds = 0
    for entries in (view.turn, view.live):
        for index in range(len(entries) - 1, -1, -1):
            message = entries[index].message
            if message.role == "user" and message.kind == "message":
                return rounds if message.id == question.id else 0
            rounds += bool(message.tool_calls)
            if rounds == RECALL_ROUNDS:
                return rounds
    return rounds


def scratch_message(scratch: Scratch) -> Message:
    return Message(SCRATCH_ID, scratch.role, (TextPart(scratch.text),), kind="section")


def place_scratch(messages: list[Message], scratch: Scratch, passages: str = "") -> list[Message]:
    """The messages with the scratch at the very end, and the passages that were recalled for the newest question before it.

    They are one message, except in the user role where the question stands last: the passages then stand before the question.
    Behind it, they would be what the model answers to; the scratch is the caller's own words, and they chose the last place.
    """
    if passages and scratch.role == "user" and messages and messages[-1].role == "user":
        before = replace(scratch_message(replace(scratch, text=passages)), id=PASSAGES_ID)
        return place_scratch([*messages[:-1], before, messages[-1]], scratch)
    text = "\n\n".join(t for t in (passages, scratch.text) if t)
    return [*messages, scratch_message(replace(scratch, text=text))] if text else messages


def first_unstable(messages: Sequence[Message]) -> int:
    """The place of the first message that is this request's alone; the number of messages when there is none."""
    return next((i for i, m in enumerate(messages) if m.id in (SCRATCH_ID, PASSAGES_ID)), len(messages))


def too_large(view: View, extra: int, rules: Policy) -> MessageTooLargeError | None:
    """The error for a newest user message that does not fit even alone, None when it fits."""
    question = newest_user(view)
    newest = next((e for e in view if question is not None and e.id == question.id), None)
    alone = sum(e.tokens for e in view.system) + extra + (newest.tokens if newest else 0)
    if newest is None or alone <= rules.budget_tokens:
        return None
    return MessageTooLargeError(
        f"the newest user message {newest.id!r} has {newest.tokens} tokens; with system prompt and tools it takes {alone} "
        f"of {rules.budget_tokens} that the window of {rules.context_window} has for the prompt: shorten it, or raise "
        "context_window"
    )


def overflow(view: View, extra: int, rules: Policy, reason: str) -> BudgetError:
    """Why a view cannot be made to fit: the newest user message alone is too large, or everything together."""
    return too_large(view, extra, rules) or ContextOverflowError(
        f"the request needs {view.tokens + extra + rules.reply_reserve_tokens} tokens, the window is "
        f"{rules.context_window} ({reason}): raise context_window, unpin messages or call compact()"
    )
