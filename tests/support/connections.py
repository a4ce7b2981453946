"""Finds the async connections that a test leaves open.

Clients of models cache their connections. One that nobody closed is collected in a later test, and its ResourceWarning fails
that one.
"""

from __future__ import annotations

import asyncio
from typing import Any
from weakref import WeakKeyDictionary

__all__ = ["left_connections", "watch_connections"]

_connections: WeakKeyDictionary[asyncio.BaseTransport, asyncio.AbstractEventLoop] = WeakKeyDictionary()


def watch_connections() -> None:
    """Notes every connection that an event loop opens from now on, whichever client asks for it."""
    connect = asyncio.BaseEventLoop.create_connection

    async def noted(self: asyncio.BaseEventLoop, *args: Any, **settings: Any) -> Any:
        transport, protocol = await connect(self, *args, **settings)
        _connections[transport] = self
        return transport, protocol

    asyncio.BaseEventLoop.create_connection = noted  # type: ignore[method-assign]


def left_connections() -> list[str]:
    """The connections that are open although their event loop is closed; each is reported once."""
    left: list[str] = []
    for transport, loop in list(_connections.items()):
        if loop.is_closed():
            del _connections[transport]
            if (one := transport.get_extra_info("socket")) is not None and one.fileno() != -1:
                left.append(repr(one))
    return left
