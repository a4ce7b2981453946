"""How long to wait before the next try."""

from __future__ import annotations

from datetime import UTC, datetime

from ctxfold import BackendError
from ctxfold.backends.errors import retry_after_s
from ctxfold.backends.transport import Retry


def test_retry_after() -> None:
    now = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC).timestamp()
    assert retry_after_s({"retry-after-ms": "1500", "retry-after": "2"}, now) == 1.5
    assert retry_after_s({"retry-after": "2.5"}, now) == 2.5
    assert retry_after_s({"retry-after": "Sat, 21 Nov 2026 12:00:30 GMT"}, now) == 30.0
    assert retry_after_s({"retry-after": "Sat, 21 Nov 2026 11:00:00 GMT"}, now) == 0.0
    for odd in ({"retry-after": "soon"}, {}, {"retry-after": "-1"}, {"retry-after": "nan"}):
        assert retry_after_s(odd, now) is None


def test_backoff_grows_within_its_bounds() -> None:
    retry = Retry(9, first_delay_s=1, max_delay_s=5, jitter=lambda: 1.0)
    busy = BackendError("x", kind="server", retryable=True)
    assert [retry.delay_s(n, busy) for n in range(4)] == [1, 2, 4, 5]
    assert Retry(9, first_delay_s=1, jitter=lambda: 0.0).delay_s(0, busy) == 0.5
    assert retry.delay_s(9, busy) is None
    assert retry.delay_s(0, BackendError("x", kind="auth")) is None
