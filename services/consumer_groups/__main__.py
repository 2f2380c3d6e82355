"""Starts the consumer groups service: `python -m services.consumer_groups --listen unix:PATH`."""

from __future__ import annotations

import sys

from services.consumer_groups.domain import DOMAIN
from services.runtime.process import run

if __name__ == "__main__":
    sys.exit(run("consumer_groups", lambda options: DOMAIN))
