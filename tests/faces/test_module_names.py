"""No module may hide a public name of its package: importing it sets the package's attribute to the module."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import importlib, pkgutil, types
package = importlib.import_module({name!r})
for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
    importlib.import_module(module.name)
print([name for name in package.__all__ if isinstance(getattr(package, name), types.ModuleType)])
"""


@pytest.mark.parametrize("name", ["ctxfold", "langchain_ctx", "llamaindex_ctx"])
def test_no_module_has_the_name_of_a_public_function(name: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(name=name)], capture_output=True, text=True, check=True, timeout=120
    )
    assert ran.stdout.strip() == "[]"
