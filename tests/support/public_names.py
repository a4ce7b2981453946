"""The public names of the three packages: their fronts, and what docs/reference.md lists by module."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any, Final

from tests.support.pages import page, section

__all__ = ["API", "by_module", "public_names"]

API: Final = section(page("reference.md"), "## Every public name")


def by_module(package: str) -> list[tuple[str, str]]:
    """Module and name, for each name of a package that its front does not have."""
    listed = re.findall(rf"^\| `({package}\.[\w.]+)` \| ([^|]*) \|", API, flags=re.MULTILINE)
    return [(module, name) for module, names in listed for name in re.findall(r"`(\w+)`", names)]


def public_names(package: str) -> dict[str, Any]:
    """All public names of a package, with what they name."""
    front = import_module(package)
    names = {name: getattr(front, name) for name in front.__all__}
    return names | {name: getattr(import_module(module), name) for module, name in by_module(package)}
