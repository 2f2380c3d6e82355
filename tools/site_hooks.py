"""Hooks of mkdocs: pages from other folders of the repository, and the API reference.

The pages at the root of the repository belong to the site, too. Their links are written for readers
of the repository, so each becomes a link of the site; a link to a file that is no page becomes
plain text. A broken link stays as it is, and `mkdocs build --strict` fails because of it.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any, Final

from mkdocs.structure.files import File, Files

from tools import api_reference, generate

ROOT: Final = Path(__file__).resolve().parent.parent
# File of the repository, and its address among the pages.
ROOT_PAGES: Final = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "reporting.md",
    "STYLE.md": "style.md",
    "benchmarks/README.md": "benchmarks.md",
}
REFERENCE: Final = "reference"
# Directories that links of the repository may name, and the page for each.
DIRECTORY_PAGES: Final = {"protos": "reference/index.md", "docs/adr": "adr/README.md"}
LINK: Final = re.compile(r"(?<!\\)\[(?P<text>[^\]]+)\]\((?P<target>[^)\s]+)\)")
SITE_TO_REPOSITORY: Final = {page: name for name, page in ROOT_PAGES.items()}


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of the root and the API reference to those below `docs`."""
    for name, page in ROOT_PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text()))
    for name, text in api_reference.pages(generate.descriptor_set(ROOT / "protos")).items():
        files.append(File.generated(config, f"{REFERENCE}/{name}", content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn the links of a page into links of the site."""
    address: str = page.file.src_uri
    if address.startswith(f"{REFERENCE}/"):
        return markdown
    return LINK.sub(lambda link: site_link(address, link), markdown)


def site_link(page: str, link: re.Match[str]) -> str:
    """Return the site's form of a link of the repository."""
    target, hash_sign, anchor = link["target"].partition("#")
    if not target or "://" in target:
        return link[0]
    name = posixpath.normpath(posixpath.join(_repository_directory(page), target))
    address = ROOT_PAGES.get(name) or DIRECTORY_PAGES.get(name) or _address_below_docs(name)
    if address is not None:
        relative = posixpath.relpath(address, posixpath.dirname(page) or ".")
        return f"[{link['text']}]({relative}{hash_sign}{anchor})"
    return link["text"] if (ROOT / name).exists() else link[0]


def _repository_directory(page: str) -> str:
    """Return the directory of the repository in which the source of a page stands."""
    source = SITE_TO_REPOSITORY.get(page, f"docs/{page}")
    return posixpath.dirname(source)


def _address_below_docs(name: str) -> str | None:
    """Return the address of a file below `docs`, or None for any other file."""
    return name.removeprefix("docs/") if name.startswith("docs/") else None
