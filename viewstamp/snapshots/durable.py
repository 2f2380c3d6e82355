"""Durable files: once these functions return, the files survive a power failure."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO, Any, Final

TEMPORARY_SUFFIX: Final = ".tmp"


def temporary_of(path: Path) -> Path:
    """Return the name under which a file is written: it begins with a dot, so Spark ignores it."""
    return path.with_name(f".{path.name}{TEMPORARY_SUFFIX}")


def publish(file: IO[Any], path: Path) -> None:
    """Give a file its own name in place of the temporary one. Its directory must be synced next."""
    file.flush()
    os.fsync(file.fileno())
    temporary_of(path).replace(path)


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Write a small file durably. A crash leaves all of it or nothing."""
    with temporary_of(path).open("w") as file:
        file.write(text)
        publish(file, path)
    sync_directory(path.parent)
