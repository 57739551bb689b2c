"""Metadata that needs the address of the repository, which is in `[tool.hatch.metadata.hooks.custom]` only."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_PAGES = {"Changelog": "CHANGELOG.md", "Documentation": "README.md"}
_PICTURE = re.compile(r"!\[([^\]]*)\]\(([^)\s]+)\)")
_RELATIVE = re.compile(r"\]\((?![a-z]+:|#)([^)\s]+)\)")


class RepositoryHook(MetadataHookInterface):
    """Set the project's URLs, and the README with links that work without its repository.

    Links point to the files of this version. Pictures become links, since a page without them is not broken.
    """

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the fields `urls` and `readme`."""
        repository = self.config["repository"].rstrip("/")
        files = f"{repository}/blob/v{metadata['version']}"
        urls = {"Repository": repository, "Issues": f"{repository}/issues"}
        metadata["urls"] = urls | {name: f"{files}/{page}" for name, page in _PAGES.items()}
        text = _PICTURE.sub(r"[Picture: \1](\2)", Path(self.root, "README.md").read_text(encoding="utf-8"))
        text = _RELATIVE.sub(rf"]({files}/\1)", text)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
