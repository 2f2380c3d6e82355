"""Runs the command line: `python -m viewstamp.cli`."""

from __future__ import annotations

from viewstamp.cli import main

if __name__ == "__main__":
    main()
