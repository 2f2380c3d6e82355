"""The flag of the scrubber."""

from __future__ import annotations

import argparse
from typing import Final

SCRUB_INTERVAL_MS: Final = 7 * 24 * 60 * 60 * 1_000
# So that a pass is no longer than its slices.
SCRUB_INTERVAL_MS_MIN: Final = 1_000


def add_scrub_argument(parser: argparse.ArgumentParser) -> None:
    """Add the flag."""
    parser.add_argument(
        "--scrub-interval-ms",
        type=int,
        default=SCRUB_INTERVAL_MS,
        help="time in which the journal, the superblock and all copies of snapshot files are read"
        " from the disk once, and mended; 0 never reads them",
    )


def scrub_interval_of(options: argparse.Namespace) -> int:
    """Return the interval in milliseconds, 0 for never. Raises ValueError."""
    interval_ms: int = options.scrub_interval_ms
    if interval_ms and interval_ms < SCRUB_INTERVAL_MS_MIN:
        raise ValueError(
            f"--scrub-interval-ms is {interval_ms}: give at least {SCRUB_INTERVAL_MS_MIN}, or 0 for"
            " never"
        )
    return interval_ms
