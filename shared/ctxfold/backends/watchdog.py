"""Deadlines for blocking calls: one thread that shuts sockets down when their time is up.

HTTP clients bound each read, and fix that bound when they begin a body. A response's head has one deadline for all its reads,
and a stream needs a long one before its first event and a short one afterwards.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from dataclasses import dataclass

__all__ = ["Guard", "Watchdog"]

LINGER_S = 1.0


@dataclass(eq=False, slots=True)
class Guard:
    """One connection under watch, from before it has a socket; `expired` once its deadline cut it off."""

    sock: socket.socket | None
    deadline_s: float = 0.0
    expired: bool = False

    def watch(self, sock: socket.socket | None) -> None:
        """The connection's socket is now this one; it is cut off at once where the deadline has passed."""
        self.sock = sock
        if self.expired:
            _shut(sock)


class Watchdog:
    """Safe across threads. Its daemon thread starts with the first deadline and ends when none was set for a while."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._guards: set[Guard] = set()
        self._thread: threading.Thread | None = None
        self._wakes_at_s = float("inf")

    def arm(self, guard: Guard, timeout_s: float) -> None:
        """From now on the socket has this many seconds, until `disarm`."""
        guard.deadline_s = time.monotonic() + timeout_s
        with self._lock:  # the plain lock: this runs for every read of a stream
            self._guards.add(guard)
            if self._thread is None:
                self._wakes_at_s = guard.deadline_s
                self._thread = threading.Thread(target=self._watch, name="ctxfold-deadlines", daemon=True)
                self._thread.start()
            elif guard.deadline_s < self._wakes_at_s:
                self._changed.notify()

    def disarm(self, guard: Guard) -> None:
        with self._lock:
            self._guards.discard(guard)

    def _watch(self) -> None:
        with self._changed:
            quiet_since_s = time.monotonic()
            while True:
                now_s = time.monotonic()
                for guard in [g for g in self._guards if g.deadline_s <= now_s]:
                    self._guards.discard(guard)
                    _cut(guard)
                if self._guards:
                    quiet_since_s = now_s
                elif now_s - quiet_since_s >= LINGER_S:
                    self._thread = None
                    return
                self._wakes_at_s = min((g.deadline_s for g in self._guards), default=now_s + LINGER_S)
                self._changed.wait(max(self._wakes_at_s - time.monotonic(), 0.0))


def _cut(guard: Guard) -> None:
    guard.expired = True  # before the socket is read: `watch` sets it and then looks at this
    _shut(guard.sock)


def _shut(sock: socket.socket | None) -> None:
    if sock is not None:
        with contextlib.suppress(OSError):  # closed meanwhile
            # the plain socket's method: that of a TLS socket would drop its state under the reader
            socket.socket.shutdown(sock, socket.SHUT_RDWR)
