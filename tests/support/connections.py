"""Finds the async connections that a test leaves open.

LangChain's packages cache their HTTP clients. Once the cache is full, a connection that nobody closed is collected in a later test,
and its ResourceWarning fails that one.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

import httpx

__all__ = ["open_connections", "watch_async_clients"]

_clients: WeakSet[httpx.AsyncClient] = WeakSet()


def watch_async_clients() -> None:
    """Notes every `httpx.AsyncClient` that is made from now on."""
    made = httpx.AsyncClient.__init__

    def noted(self: httpx.AsyncClient, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        _clients.add(self)

    httpx.AsyncClient.__init__ = noted  # type: ignore[method-assign]


def open_connections() -> list[str]:
    """The connections of clients that were not closed; each client is reported once."""
    found: list[str] = []
    for client in [one for one in _clients if not one.is_closed]:
        fields: dict[str, Any] = vars(client)
        transports: list[Any] = [fields["_transport"], *fields["_mounts"].values()]
        pools = [one._pool for one in transports if hasattr(one, "_pool")]
        left = [str(connection) for pool in pools for connection in pool.connections]
        if left:
            _clients.discard(client)
            found += left
    return found
