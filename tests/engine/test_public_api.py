"""What `import ctxfold` offers, and what it costs."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib import import_module
from types import FunctionType, ModuleType

import pytest

import ctxfold
from ctxfold import AgentContext, ContextService, errors, events
from ctxfold.session.handle import SessionPart
from ctxfold.session.parts import SessionHandle
from tests.support.public_names import by_module, public_names


def test_every_public_name_is_there() -> None:
    for name in ctxfold.__all__:
        assert getattr(ctxfold, name) is not None
    assert sorted(ctxfold.__all__) == dir(ctxfold)
    with pytest.raises(AttributeError, match="no_such_name"):
        ctxfold.no_such_name  # noqa: B018


def public_classes(module: ModuleType) -> dict[str, type[object]]:
    classes = inspect.getmembers(module, inspect.isclass)
    return {name: kind for name, kind in classes if kind.__module__ == module.__name__ and not name.startswith("_")}


def test_every_error_event_and_message_constructor_is_exported() -> None:
    public = public_names("ctxfold")
    assert public_classes(errors).keys() <= public.keys()
    assert public_classes(events).keys() - {"Subscribers"} <= public.keys()
    assert {"Event", "Rewriter", "Subscriber"} <= public.keys()
    assert {"assistant", "system", "tool_result", "user"} <= set(ctxfold.__all__)


@pytest.mark.parametrize("package", ["ctxfold", "langchain_ctx", "llamaindex_ctx"])
def test_every_public_name_has_one_place(package: str) -> None:
    front, elsewhere = set(import_module(package).__all__), by_module(package)
    assert len({name for _, name in elsewhere}) == len(elsewhere)
    assert not front & {name for _, name in elsewhere}
    for module, name in elsewhere:
        found = getattr(import_module(module), name)
        if isinstance(found, type | FunctionType):
            assert found.__module__ == module


NO_TWIN = {"at", "usage", "subscribe", "on_compaction", "messages", "with_id", "new_id", "edit", "open", "edit_anew"}
NO_TWIN |= {"waiting_turns", "own_turn", "compacted_in_turn"}  # flows, and what packages over ctxfold call


@pytest.mark.parametrize("kind", [AgentContext, *SessionPart.__subclasses__(), SessionHandle, ContextService])
def test_every_method_that_waits_has_an_async_twin(kind: type[object]) -> None:
    methods = {name for name, _ in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")}
    alone = {name for name in methods if f"a{name}" not in methods and not (name[0] == "a" and name[1:] in methods)}
    assert alone <= NO_TWIN - ({"messages"} if kind is AgentContext else set())
    assert len(methods) - len(alone) >= 4


def test_every_error_is_in_the_tree() -> None:
    for name, kind in public_classes(errors).items():
        assert issubclass(kind, errors.CtxError | errors.CtxWarning)
        assert kind.__doc__
        assert f"{name}" in (errors.__doc__ or "")


def test_import_loads_nothing_heavy() -> None:
    heavy = "{'sqlalchemy', 'httpx', 'tiktoken', 'pydantic', 'langchain_core', 'llama_index', 'hypothesis'}"
    code = f"import sys, ctxfold; print(sorted({heavy} & set(sys.modules)))"
    paths = ":".join(p for p in sys.path if p)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": paths}, check=True
    )
    assert done.stdout.strip() == "[]"
