"""The files that the rules look at, read once."""

from __future__ import annotations

import ast
import functools
import gc
import subprocess
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[2]
GENERATED = PurePosixPath("viewstamp/api")


@dataclass(frozen=True, slots=True)
class TextFile:
    """A file of the repository: its path from the root, and its text."""

    path: PurePosixPath
    text: str


@dataclass(frozen=True, slots=True)
class PythonFile:
    """A hand-written Python file: its path from the root, its text and its syntax tree."""

    path: PurePosixPath
    text: str
    tree: ast.Module

    def within(self, folder: str) -> bool:
        """Return whether the file lies in the folder named."""
        return self.path.is_relative_to(folder)


def python_file(path: str, text: str) -> PythonFile:
    """Return a file as the rules see it, with this path and text."""
    return PythonFile(PurePosixPath(path), text, ast.parse(text))


@functools.cache
def text_files() -> tuple[TextFile, ...]:
    """Return all files that git tracks or would track, except those that are not UTF-8 text."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = []
    for name in sorted(set(filter(None, listing.split("\0")))):
        text = _text(ROOT / name)
        if text is not None:
            files.append(TextFile(PurePosixPath(name), text))
    return tuple(files)


@functools.cache
def python_files() -> tuple[PythonFile, ...]:
    """Return the hand-written Python files among the text files."""
    # The garbage collector would search a million lasting nodes, for six times as long as the
    # parser needs.
    gc.disable()
    try:
        return tuple(
            python_file(str(file.path), file.text)
            for file in text_files()
            if file.path.suffix == ".py" and not file.path.is_relative_to(GENERATED)
        )
    finally:
        gc.freeze()
        gc.enable()


def _text(path: Path) -> str | None:
    """Return the file's text, or None if it is gone from the disk or is binary."""
    try:
        return path.read_bytes().decode("utf-8")
    except (FileNotFoundError, IsADirectoryError, UnicodeDecodeError):
        return None
