"""Marks for a provider's prompt cache: where the part ends that the next requests repeat. Pure but for the blocks it marks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from ctxfold.backends.profile import CacheRules
from ctxfold.messages import Message

__all__ = ["mark_stable"]

Block = dict[str, Any]
_UNMARKABLE = frozenset({"thinking", "redacted_thinking"})


def mark_stable(
    rules: CacheRules,
    messages: Sequence[Message],
    blocks: Sequence[list[Block]],
    *,
    tools: list[Block],
    stable_messages: int | None,
    taken: int = 0,
) -> None:
    """Marks the newest stable message, the head (system prompts, or else tools), and the head of the epoch.

    `blocks` are those of each message. Marks that stand already stay and count, as do `taken` others, against the row's
    maximum; when room is short the newest message comes first, then the head.
    """
    name = rules.mark_field
    if name is None:
        return
    order = [*tools, *(block for of in blocks for block in of)]
    room = rules.max_marks - taken - sum(_marks(block, name) for block in order)
    count = len(messages) if stable_messages is None else stable_messages
    head = _leading(messages, lambda m: m.role == "system")
    epoch = _leading(messages, lambda m: m.role == "system" or m.kind != "message")
    wanted = (
        _last(of for of in blocks[:count]),
        _last(blocks[:head]) or (tools[-1] if tools else None),
        _last(blocks[head:epoch]),
    )
    chosen: list[Block] = []
    for block in wanted:
        if block is not None and name not in block and all(block is not other for other in chosen):
            chosen.append(block)
    for block in chosen[: max(room, 0)]:
        block[name] = _mark(rules, order, block)


def _leading(messages: Sequence[Message], holds: Callable[[Message], bool]) -> int:
    return next((i for i, message in enumerate(messages) if not holds(message)), len(messages))


def _last(blocks: Iterable[list[Block]]) -> Block | None:
    """The last block that may carry a mark."""
    for of in reversed(list(blocks)):
        for block in reversed(of):
            if block.get("type") not in _UNMARKABLE:
                return block
    return None


def _marks(block: Mapping[str, Any], name: str) -> int:
    inner: object = block.get("content")
    nested = cast("list[object]", inner) if isinstance(inner, list) else []
    return (name in block) + sum(_marks(cast("Block", b), name) for b in nested if isinstance(b, dict))


def _mark(rules: CacheRules, order: Sequence[Block], block: Block) -> dict[str, Any]:
    """The row's mark, with the lifetime of a longer-lived one further on: the service wants the longer ones first."""
    after = next(i for i, other in enumerate(order) if other is block) + 1
    lifetimes = [_lifetime(other, rules.mark_field or "") for other in order[after:]]
    longest = "1h" if "1h" in lifetimes else None
    return dict(rules.mark) if longest is None else {**rules.mark, "ttl": longest}


def _lifetime(block: Mapping[str, Any], name: str) -> str | None:
    mark: object = block.get(name)
    return cast("dict[str, Any]", mark).get("ttl") if isinstance(mark, dict) else None
