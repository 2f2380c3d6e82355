"""The command line: `viewstamp --help`."""

from __future__ import annotations

import sys
from typing import Final

EXIT_INTERRUPTED: Final = 130


def main() -> None:
    """Run the command line and exit with its code."""
    try:
        from viewstamp.cli.app import app

        app(prog_name="viewstamp")
    except KeyboardInterrupt:  # while modules were loaded
        sys.exit(EXIT_INTERRUPTED)


__all__ = ["main"]
