"""The files of the page, read once when the console is made: nobody asks the disk by a path."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from types import MappingProxyType
from typing import Final

from coordinator.console.http_messages import HttpAnswer

DIRECTORY: Final = Path(__file__).parent / "page"
INDEX: Final = "index.html"
_TYPES: Final[Mapping[str, str]] = MappingProxyType(
    {
        ".html": "text/html; charset=utf-8",
        ".css": "text/css; charset=utf-8",
        ".js": "text/javascript; charset=utf-8",
        ".svg": "image/svg+xml",
    }
)
# Without what a user may read, and the same for all who run this build.
_CACHING: Final = MappingProxyType({"Cache-Control": "no-cache"})


def page_files() -> Mapping[str, HttpAnswer]:
    """Return the answer to each path of a file; `/` is the page. Raises OSError."""
    answers = {f"/{path.name}": _answer(path) for path in DIRECTORY.iterdir() if _is_known(path)}
    return MappingProxyType({**answers, "/": answers[f"/{INDEX}"]})


def _is_known(path: Path) -> bool:
    return path.suffix in _TYPES


def _answer(path: Path) -> HttpAnswer:
    return HttpAnswer(HTTPStatus.OK, _TYPES[path.suffix], path.read_bytes(), _CACHING)
