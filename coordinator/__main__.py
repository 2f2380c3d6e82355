"""The coordinator process: `python -m coordinator --help`."""

from __future__ import annotations

import sys

from coordinator.app.main import main

if __name__ == "__main__":
    sys.exit(main())
