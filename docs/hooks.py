"""Hooks of the documentation site: links to files outside docs/ go to the repository."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

REPOSITORY = "https://github.com/fedcircuits/fedcircuits/blob/main/"
LINK = re.compile(r"(\]\()((?:\.\./)+[^)\s#]+)")


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Returns the page with links that leave docs/ as addresses of the repository."""
    docs = Path(config.docs_dir).resolve()
    here = (docs / page.file.src_uri).parent

    def outside(found: re.Match[str]) -> str:
        target = (here / found[2]).resolve()
        if docs in target.parents:
            return found[0]
        return found[1] + REPOSITORY + str(target.relative_to(docs.parent))

    return LINK.sub(outside, markdown)
