"""Files that are there after a power failure once these functions return."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO, Any, Final

TEMPORARY_SUFFIX: Final = ".tmp"


def temporary_of(path: Path) -> Path:
    """Return the name under which a file is written: begins with a dot, which Spark passes over."""
    return path.with_name(f".{path.name}{TEMPORARY_SUFFIX}")


def publish(file: IO[Any], path: Path) -> None:
    """Give a file that was written under its temporary name its own. Its directory follows."""
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
