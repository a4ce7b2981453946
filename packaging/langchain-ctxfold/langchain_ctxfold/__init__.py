"""Exports the names of `langchain_ctx` under the name that LangChain's conventions give an integration.

The names load on first use, as they do there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import langchain_ctx

if TYPE_CHECKING:
    from langchain_ctx import *  # noqa: F403

__all__: list[str] = []
__all__ += langchain_ctx.__all__  # the form that type checkers read


def __getattr__(name: str) -> Any:
    if name not in langchain_ctx.__all__:
        raise AttributeError(f"module 'langchain_ctxfold' has no attribute {name!r}")
    return getattr(langchain_ctx, name)


def __dir__() -> list[str]:
    return sorted(langchain_ctx.__all__)
