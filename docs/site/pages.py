"""What the site does to pages: the README and its neighbours become pages, and links to code become its path.

Pages are written to be read in the repository, where a link to a test leads to the test. The site has no such files.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent.parent
BESIDE = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    """Pages that lie beside the documentation in the repository."""
    from mkdocs.structure.files import File  # here, so that the tests can read this file without mkdocs

    for source, page in BESIDE.items():
        content = (REPOSITORY / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=resolved(content, "")))
    for notebook in sorted((REPOSITORY / "notebooks").glob("*.ipynb")):
        files.append(File(f"notebooks/{notebook.name}", str(REPOSITORY), config.site_dir, config.use_directory_urls))
    return files


on_files.mkdocs_priority = 100  # type: ignore[attr-defined]  # before the plugin that renders notebooks


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    own = page.file.src_uri.endswith(".md") and page.file.src_uri not in BESIDE.values()
    return resolved(markdown, "docs") if own else markdown


def resolved(markdown: str, folder: str) -> str:
    """Links of a page in this folder of the repository, as they are on the site."""

    def link(found: re.Match[str]) -> str:
        image, text, target, anchor = found[1], found[2], found[3], found[4] or ""
        path = posixpath.normpath(posixpath.join(folder, target))
        if path in BESIDE:
            return f"[{text}]({BESIDE[path]}{anchor})"
        if path.startswith("notebooks/"):
            return f"[{text}]({path})"
        if path.startswith("docs/"):
            return f"{image}[{text}]({path.removeprefix('docs/')}{anchor})"
        return text if text.strip("`") == posixpath.basename(path) else f"{text} (`{path}`)"

    return LINK.sub(link, markdown)
