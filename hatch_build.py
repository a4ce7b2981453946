"""Completes the metadata when a distribution is built: the addresses of the repository, and a README whose links lead there.

A page on a package index has no files beside it, so a relative link leads nowhere. `CTXFOLD_REPOSITORY` has the address of the
repository (`https://github.com/OWNER/NAME`); `.github/workflows/publish.yml` sets it. Without it links become plain text.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Final

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK: Final = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)\s]+)\)")


class MetadataHook(MetadataHookInterface):
    """Called by hatchling, which finds it by the name of this file."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Adds `readme` and `urls`. A build from a source distribution takes both from its PKG-INFO instead."""
        root = Path(self.root)
        repository = os.environ.get("CTXFOLD_REPOSITORY", "").rstrip("/")
        readme = (root / "README.md").read_text(encoding="utf-8")
        tag = f"v{metadata['version']}"
        text = LINK.sub(lambda match: _led(match, repository, tag), readme)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        if repository:
            metadata["urls"] = {
                "Source": repository,
                "Documentation": f"{repository}/blob/{tag}/docs/index.md",
                "Changelog": f"{repository}/blob/{tag}/CHANGELOG.md",
                "Issues": f"{repository}/issues",
            }


def _led(match: re.Match[str], repository: str, tag: str) -> str:
    picture, words, target = match.groups()
    if not repository:
        return f"*{words}*" if picture else words
    return f"{picture}[{words}]({repository}/{'raw' if picture else 'blob'}/{tag}/{target})"
