"""Lets pages link to files of the repository outside docs/: each file that is linked to becomes part of the site.

So a link such as ``../results/demo/table.md`` works in the repository and on the site, and no copy can be out of date.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

LINK = re.compile(r"(?<=\]\()(?P<target>\.\./[^)#\s]+)")
FOLDER = "files"


def _outside(page: str, target: str) -> str | None:
    """The path of a link's target in the repository; None if it lies in docs/."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
    return path.removeprefix("../") if path.startswith("../") else None


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the files that pages link to."""
    root = Path(config.docs_dir).parent
    for page in list(files.documentation_pages()):
        for link in LINK.finditer(page.content_string):
            path = _outside(page.src_uri, link["target"])
            if path is None or not (root / path).is_file() or f"{FOLDER}/{path}" in files.src_uris:
                continue
            source, place = str(root / path), f"{FOLDER}/{path}"
            files.append(File.generated(config, place, abs_src_path=source, inclusion=InclusionLevel.NOT_IN_NAV))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point the links to where the files are on the site; a link to nothing stays and fails the build."""
    here = page.file.src_uri

    def moved(link: re.Match[str]) -> str:
        path = _outside(here, link["target"])
        place = f"{FOLDER}/{path}"
        if path is None or place not in files.src_uris:
            return link["target"]
        return posixpath.relpath(place, posixpath.dirname(here) or ".")

    return LINK.sub(moved, markdown)
