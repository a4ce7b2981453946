"""Whatever is asked of a memory or a chat store, asked sync and async."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

NAMES = {"add_message": "async_add_message"}


class Driver:
    """Calls the sync method or its async twin."""

    def __init__(self, is_async: bool) -> None:
        self.is_async = is_async

    async def __call__(self, asked: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        if not self.is_async:
            return getattr(asked, name)(*args, **kwargs)
        method: Callable[..., Awaitable[Any]] = getattr(asked, NAMES.get(name, f"a{name}"))
        return await method(*args, **kwargs)
