"""A conversation of 200,000 tokens and 100 requests to the model, for the size of what an engine writes down about it."""

from __future__ import annotations

import json
import threading
from typing import Any

from ctxfold import AgentContext
from ctxfold.testing import Scripted, ScriptedCall
from ctxfold.tokens.text import text_counter
from tests.support.summaries import asks_on_live_prefix

__all__ = ["QUESTIONS", "REQUESTS", "WINDOW", "Reader", "read_log", "tokens_of"]

WINDOW, TURNS, REQUESTS_A_TURN = 32_000, 10, 10
REQUESTS = TURNS * REQUESTS_A_TURN
QUESTIONS = [f"What do the logs of night {number} say? Please look at all of them. " * 4 for number in range(TURNS)]


def read_log(hour: int) -> str:
    """As the example's tool, for engines that do not run the example."""
    lines = [
        f"{hour:02}:{minute:02} pump {minute % 7} reports {hour * minute} litres, "
        f"inlet {minute % 5 + 1} bar, outlet {hour % 4 + 2} bar"
        for minute in range(60)
    ]
    return "\n".join(lines)


class Reader:
    """A model that reads two logs in each of nine replies, and answers with the tenth; `requests` counts them."""

    def __init__(self) -> None:
        self.requests = 0
        self._lock = threading.Lock()

    def __call__(self, body: Any) -> Scripted:
        if asks_on_live_prefix(body) or not body.get("tools"):
            return Scripted("The logs were read.")
        with self._lock:
            number, self.requests = self.requests, self.requests + 1
        if number % REQUESTS_A_TURN == REQUESTS_A_TURN - 1:
            return Scripted(f"The pumps of night {number // REQUESTS_A_TURN} ran. " * 60)
        hours = (2 * number % 24, (2 * number + 1) % 24)
        return Scripted(tool_calls=tuple(ScriptedCall("read_log", json.dumps({"hour": hour})) for hour in hours))


def tokens_of(store_url: str, session: str) -> int:
    """The tokens of a whole stored conversation."""
    counter = text_counter("gpt-4o")
    with AgentContext(store=store_url, session_id=session, context_window=WINDOW, create=False) as ctx:
        return sum(counter.count(m.text) for m in ctx.messages())
