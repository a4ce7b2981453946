"""Schedules retries for sync and async calls, without I/O."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from ctxfold.errors import BackendError, ConfigError

__all__ = ["Retry", "retry_after_s"]


@dataclass(frozen=True, slots=True)
class Retry:
    """Exponential backoff with jitter in the upper half of each delay.

    A delay that the service asks for takes precedence, up to `max_retry_after_s`; beyond that its error is raised at once.
    """

    max_retries: int = 2
    first_delay_s: float = 0.5
    max_delay_s: float = 8.0
    max_retry_after_s: float = 60.0
    jitter: Callable[[], float] = random.random
    sleep: Callable[[float], None] = time.sleep
    asleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    def __post_init__(self) -> None:
        if self.max_retries < 0:
            raise ConfigError(f"max_retries is {self.max_retries}: use 0 or more")

    def delay_s(self, attempt: int, error: BackendError) -> float | None:
        """Returns the seconds to wait after failed attempt number `attempt` (from 0); None when the error is final."""
        if not error.retryable or attempt >= self.max_retries:
            return None
        if error.retry_after_s is not None:
            return error.retry_after_s if error.retry_after_s <= self.max_retry_after_s else None
        backoff = min(self.first_delay_s * 2.0**attempt, self.max_delay_s)
        return backoff * (0.5 + self.jitter() / 2)


def retry_after_s(headers: Mapping[str, str], now_s: float) -> float | None:
    """Returns the seconds of `retry-after-ms` or else `Retry-After` (seconds or a date); header names in lower case."""
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            value = float(headers[name]) * scale
        except (KeyError, ValueError):
            continue
        if 0 <= value < float("inf"):
            return value
    try:
        return max(0.0, parsedate_to_datetime(headers["retry-after"]).timestamp() - now_s)
    except (KeyError, ValueError):
        return None
