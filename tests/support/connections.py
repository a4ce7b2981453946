"""Closes, or finds, the connections that a test leaves open.

Clients of models keep their connections for the next request. One that nobody closed is collected in a later test, and its
ResourceWarning fails that one.
"""

from __future__ import annotations

import asyncio
import inspect
import socket
from typing import Any
from weakref import WeakKeyDictionary, ref

from ctxfold.backends import http

__all__ = ["close_others", "left_connections", "watch_connections"]

_connections: WeakKeyDictionary[asyncio.BaseTransport, asyncio.AbstractEventLoop] = WeakKeyDictionary()
_others: list[ref[socket.socket]] = []


def watch_connections() -> None:
    """Notes every connection that is opened from now on, whichever client asks for it."""
    connect, connect_async = socket.create_connection, asyncio.BaseEventLoop.create_connection

    def noted(*args: Any, **settings: Any) -> socket.socket:
        connection = connect(*args, **settings)
        if not _is_ours():
            _others.append(ref(connection))
        return connection

    async def noted_async(self: asyncio.BaseEventLoop, *args: Any, **settings: Any) -> Any:
        transport, protocol = await connect_async(self, *args, **settings)
        _connections[transport] = self
        return transport, protocol

    socket.create_connection = noted
    asyncio.BaseEventLoop.create_connection = noted_async  # type: ignore[method-assign]


def _is_ours() -> bool:
    """Tells whether a client of ctxfold opens the connection that is being opened, rather than one of another package."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename != http.__file__:
        frame = frame.f_back
    return frame is not None


def close_others() -> None:
    """Closes the connections of other packages' synchronous clients, which nobody closes; a client that goes on opens a new one."""
    while _others:
        if (connection := _others.pop()()) is not None:
            connection.close()


def left_connections() -> list[str]:
    """The connections that are open although their event loop is closed; each is reported once."""
    left: list[str] = []
    for transport, loop in list(_connections.items()):
        if loop.is_closed():
            del _connections[transport]
            if (one := transport.get_extra_info("socket")) is not None and one.fileno() != -1:
                left.append(repr(one))
    return left
