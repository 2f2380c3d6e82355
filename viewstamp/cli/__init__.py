"""The command line: `viewstamp --help`."""

from __future__ import annotations


def main() -> None:
    """Run the command line and exit with its code."""
    from viewstamp.cli.app import app

    app(prog_name="viewstamp")


__all__ = ["main"]
