"""What `import ctxfold` offers, and what it costs."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib import import_module
from types import FunctionType, ModuleType

import pytest

import ctxfold
from ctxfold import AgentContext, errors, events
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


def test_every_method_that_waits_has_an_async_twin() -> None:
    methods = {name for name, _ in inspect.getmembers(AgentContext, inspect.isfunction) if not name.startswith("_")}
    twins = {name for name in methods if f"a{name}" in methods}
    assert {
        "send",
        "send_stream",
        "add",
        "set_messages",
        "revise",
        "update",
        "insert",
        "remove",
        "pop",
        "retain",
        "clear",
    } <= twins
    assert {"erase", "erase_older_than", "erase_session", "erase_owner", "forks"} <= twins
    assert {
        "export_jsonl",
        "import_jsonl",
        "save_snapshot",
        "set_goal",
        "set_subgoal",
        "goal",
        "summarize_tools",
        "apply_tool_summaries",
    } <= twins
    assert {"pin", "unpin", "compact", "undo", "window", "view", "get", "close", "ask", "stream"} <= twins


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
