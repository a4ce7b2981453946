"""No module may hide a public name of its package: importing it sets the package's attribute to the module."""

from __future__ import annotations

import pkgutil
from typing import Any

import pytest

import ctxfold
import langchain_ctx
import llamaindex_ctx


@pytest.mark.parametrize("package", [ctxfold, langchain_ctx, llamaindex_ctx])
def test_no_module_has_the_name_of_a_public_function(package: Any) -> None:
    modules = {module.name for module in pkgutil.iter_modules(package.__path__)}
    assert len(modules) > 10
    assert modules.isdisjoint(package.__all__)
