"""Starts the streams service: `python -m services.streams --listen unix:PATH`."""

from __future__ import annotations

import sys

from services.runtime.process import run
from services.streams.domain import DOMAIN


def main() -> int:
    """Run the service until it is told to stop; return the exit code of the process."""
    return run("streams", lambda options: DOMAIN)


if __name__ == "__main__":
    sys.exit(main())
