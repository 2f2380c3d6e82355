"""The settings of the journal, from the coordinator's flags."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coordinator.journal.journal import SEGMENT_BYTES
from coordinator.journal.ring_journal import RING_BYTES
from coordinator.replica.journal_opening import RING, SEGMENTS
from coordinator.replica.space import MARGIN_RECORDS, RECORD_BYTES_MAX
from viewstamp.format.record import SECTOR_BYTES
from viewstamp.limits import MIB, RETAIN_FOR_BACKUP_MS

# A few of the largest records must fit between one look for free space and the next.
SEGMENT_BYTES_MIN: Final = 4 * MIB
assert SECTOR_BYTES + MARGIN_RECORDS * RECORD_BYTES_MAX <= SEGMENT_BYTES_MIN
# A reserve, a margin and the entries between a cut and the end of its snapshot have to fit.
RING_BYTES_MIN: Final = 16 * MIB
# A start reads all of it, and has its slots in memory.
RING_BYTES_MAX: Final = 1024 * MIB


@dataclass(frozen=True, slots=True)
class JournalSettings:
    """What the journal is like. `ring_bytes` is 0 for one in segments.

    A ring retains nothing for other replicas, so its `retain_ms` is 0.
    """

    segment_bytes: int
    archive: Path | None
    retain_ms: int
    ring_bytes: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    add = parser.add_argument
    add(
        "--journal",
        choices=(SEGMENTS, RING),
        default=SEGMENTS,
        help="segments, which are made and dropped as the log grows, or one ring of a fixed size;"
        " fixed when the data directory is made, and the same for all replicas",
    )
    add(
        "--journal-ring-bytes",
        type=int,
        help=f"size of a side of the ring, whose file has two: a multiple of {SECTOR_BYTES},"
        f" {RING_BYTES_MIN} to {RING_BYTES_MAX}; fixed as --journal is; default: {RING_BYTES}",
    )
    add(
        "--journal-segment-bytes",
        type=int,
        default=SEGMENT_BYTES,
        help=f"size of a segment: a multiple of {SECTOR_BYTES}, at least {SEGMENT_BYTES_MIN}",
    )
    add(
        "--journal-archive",
        type=Path,
        help="directory that keeps dropped journal segments, on the file system of the data"
        " directory; made if its parent exists",
    )
    add(
        "--journal-retain-ms",
        type=int,
        default=RETAIN_FOR_BACKUP_MS,
        help="keep log that a snapshot covers for replicas heard from within this time; a replica"
        " that needs dropped log gets a snapshot",
    )


def settings_of(options: argparse.Namespace) -> JournalSettings:
    """Return what the flags say. Raises ValueError."""
    ring_bytes = _ring_bytes(options)
    if ring_bytes:
        _check_ring_alone(options)
    return JournalSettings(
        segment_bytes=_segment_bytes(options.journal_segment_bytes),
        archive=options.journal_archive,
        retain_ms=0 if ring_bytes else _retain_ms(options.journal_retain_ms),
        ring_bytes=ring_bytes,
    )


def _check_ring_alone(options: argparse.Namespace) -> None:
    """Raise ValueError for what takes dropped segments, of which a ring has none."""
    for flag, given in (
        ("--journal-archive", options.journal_archive),
        ("--archive-to", options.archive_to),
    ):
        if given is not None:
            raise ValueError(
                f"{flag} keeps segments of the journal, and a ring has none: give --journal"
                f" {SEGMENTS}, or leave {flag} out"
            )


def _ring_bytes(options: argparse.Namespace) -> int:
    size = options.journal_ring_bytes
    if options.journal != RING:
        if size is not None:
            raise ValueError(f"--journal-ring-bytes is {size}: it needs --journal {RING}")
        return 0
    if size is None:
        return RING_BYTES
    if not RING_BYTES_MIN <= size <= RING_BYTES_MAX or size % SECTOR_BYTES:
        raise ValueError(
            f"--journal-ring-bytes is {size}: it must be a multiple of {SECTOR_BYTES}, at least"
            f" {RING_BYTES_MIN} and at most {RING_BYTES_MAX}"
        )
    return int(size)


def _retain_ms(retain_ms: int) -> int:
    if retain_ms < 0:
        raise ValueError(f"--journal-retain-ms is {retain_ms}: give 0 or more")
    return retain_ms


def _segment_bytes(size: int) -> int:
    if size < SEGMENT_BYTES_MIN or size % SECTOR_BYTES:
        raise ValueError(
            f"--journal-segment-bytes is {size}: it must be a multiple of {SECTOR_BYTES} and at"
            f" least {SEGMENT_BYTES_MIN}"
        )
    return size
