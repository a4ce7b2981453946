"""Mixins for objects that hold connections or open sessions: how they are closed, copied and pickled."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self


class SyncClosing:
    """A context manager over the class's own `close`."""

    if TYPE_CHECKING:

        def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncClosing:
    """An async context manager over the class's own `aclose`."""

    if TYPE_CHECKING:

        async def aclose(self) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class Closing(SyncClosing, AsyncClosing):
    """A context manager of both kinds."""


class SharesSessions:
    """Makes `copy.copy` and `copy.deepcopy` return an object over the same sessions and the same store.

    The store is closed for all of them when one of them is closed.
    """

    def __copy__(self) -> Self:
        copied = object.__new__(type(self))
        copied.__dict__.update(vars(self))
        return copied

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self.__copy__()

    def __reduce__(self) -> NoReturn:
        raise not_pickled(self)


def lasts(store: str) -> bool:
    """Returns True for the URL of a store that another process can open: a file or a server, and no memory."""
    return not (store.startswith("memory:") or ":memory:" in store or store.partition("//")[2] in ("", "/"))


def not_pickled(instance: object, why: str = "it holds open sessions and a store's connections") -> TypeError:
    """Returns the error for an object that cannot be pickled."""
    return TypeError(
        f"{type(instance).__name__} cannot be pickled, as {why}: construct it again where it is needed, over the same store"
    )
