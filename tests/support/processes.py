"""Starts processes that have imported the engine and the calling test module already: a server imports them once and forks."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from typing import Any

__all__ = ["CONTEXT", "import_once", "start"]

CONTEXT: ForkServerContext = multiprocessing.get_context("forkserver")
_IMPORTED: list[str] = ["ctxfold", "psycopg", "sqlalchemy.dialects.postgresql", "sqlalchemy.dialects.sqlite"]


def import_once(module: str) -> None:
    """Has the server import the module; to be called when the module is imported, with its `__name__`."""
    _IMPORTED.append(module)
    CONTEXT.set_forkserver_preload(_IMPORTED)


def start(target: Callable[..., None], *arguments: Any) -> BaseProcess:
    """Starts a function of a module that was given to `import_once`."""
    process = CONTEXT.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process
