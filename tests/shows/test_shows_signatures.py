"""`help`, `inspect.signature` and the completion of notebooks show every keyword of a public callable."""

from __future__ import annotations

import inspect
import pydoc
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.public_names import public_names

PACKAGES = ("ctxfold", "langchain_ctx", "llamaindex_ctx")


def members(package: str) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Every public function, constructor and method of a package that is written in it."""
    for name, value in public_names(package).items():
        own = [(name, value)]
        if inspect.isclass(value):
            shown = [m for m in dir(value) if m == "__init__" or not m.startswith("_")]
            own = [(f"{name}.{m}", inspect.getattr_static(value, m)) for m in shown]
        for label, member in own:
            function = getattr(member, "__func__", member)
            if inspect.isfunction(function) and function.__module__.split(".")[0] in PACKAGES:
                yield label, function


def unpacked_settings(function: Callable[..., Any]) -> dict[str, Any]:
    """The fields of the TypedDict that a function takes its keywords by."""
    hints = [hint for hint in function.__annotations__.values() if str(hint).startswith("Unpack[")]
    module = sys.modules[function.__module__]
    found: dict[str, Any] = {}
    for hint in hints:
        found |= getattr(module, hint.removeprefix("Unpack[").removesuffix("]")).__annotations__
    return found


TAKING = [
    pytest.param(function, settings, id=f"{package}.{label}")
    for package in PACKAGES
    for label, function in members(package)
    if (settings := unpacked_settings(function))
]


@pytest.mark.parametrize(("function", "settings"), TAKING)
def test_each_setting_is_named(function: Callable[..., Any], settings: dict[str, Any]) -> None:
    parameters = inspect.signature(function).parameters
    assert not [p for p in parameters.values() if p.kind is p.VAR_KEYWORD]
    assert {n: p.annotation for n, p in parameters.items() if n in settings} == {
        name: hint.__forward_arg__ for name, hint in settings.items()
    }
    assert {(parameters[n].kind, parameters[n].default) for n in settings} == {(inspect.Parameter.KEYWORD_ONLY, ...)}


def test_the_constructors_of_all_packages_are_among_them() -> None:
    found = {str(case.id) for case in TAKING}
    assert found >= {
        "ctxfold.AgentContext.__init__",
        "ctxfold.AgentContext.set_policy",
        "ctxfold.AgentContext.asend",
        "ctxfold.AgentContext.asend_stream",
        "ctxfold.BedrockBackend.__init__",
        "ctxfold.load_snapshot",
        "ctxfold.acompact_messages",
        "langchain_ctx.with_context",
        "langchain_ctx.ContextMiddleware.__init__",
        "langchain_ctx.ContextNode.__init__",
        "langchain_ctx.CtxChatMessageHistory.__init__",
        "langchain_ctx.CtxChatMessageHistory.factory",
        "llamaindex_ctx.with_context",
        "llamaindex_ctx.CtxMemory.__init__",
        "llamaindex_ctx.CtxMemory.from_defaults",
    }


@pytest.mark.parametrize(
    ("package", "name"),
    [
        ("langchain_ctx", "ContextMiddleware"),
        ("langchain_ctx", "with_context"),
        ("llamaindex_ctx", "CtxMemory"),
        ("ctxfold", "AgentContext"),
    ],
)
def test_help_and_the_signature_of_a_class_show_the_store(package: str, name: str) -> None:
    value = public_names(package)[name]
    assert "store" in inspect.signature(value).parameters
    text = pydoc.plain(pydoc.render_doc(value))
    assert "store: 'str | Store | None'" in text
    assert "settings: 'Unpack" not in text.replace("**", "")
