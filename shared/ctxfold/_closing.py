"""A mixin that gives an object with `close` and `aclose` the `with` and `async with` statements."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

__all__ = ["Closing"]


class Closing:
    """A context manager over the class's own `close` and `aclose`."""

    if TYPE_CHECKING:

        def close(self) -> None: ...

        async def aclose(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
