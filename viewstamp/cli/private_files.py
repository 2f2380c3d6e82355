"""Files of the command line that only their user may read, in $XDG_CONFIG_HOME/viewstamp."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

DIRECTORY_MODE: Final = 0o700


def private_path(name: str) -> Path:
    """Return the path of a file in $XDG_CONFIG_HOME/viewstamp (~/.config if that is not set)."""
    base = os.environ.get("XDG_CONFIG_HOME")
    root = Path(base) if base else Path.home() / ".config"
    return root / "viewstamp" / name


def write_private(path: Path, value: Any) -> None:
    """Replace a file by JSON that only its owner may read. Raises OSError."""
    path.parent.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    # Imported late: most commands only read.
    import tempfile

    # mkstemp creates the file with mode 0600, and the rename never shows half of it.
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-")
    try:
        with open(descriptor, "w") as file:
            json.dump(value, file, indent=2)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
