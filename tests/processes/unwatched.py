"""A streams service of an older build, which does not keep changes."""

from __future__ import annotations

import sys
from dataclasses import replace

from services.runtime.process import run
from services.streams.domain import DOMAIN

if __name__ == "__main__":
    sys.exit(run("streams", lambda options: replace(DOMAIN, watched=())))
