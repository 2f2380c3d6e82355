"""What is done about damage, as a table: pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final


class DamagedPart(Enum):
    """What was found damaged; the value is its label in the metrics."""

    SUPERBLOCK = "superblock"  # one of the copies
    SEGMENT_HEADER = "segment_header"
    SEGMENT_FILE = "segment_file"  # all of it: gone, or not to be opened
    RECORD = "record"  # of the log behind the cut of the snapshot
    COVERED_RECORD = "covered_record"  # of the log up to that cut
    COPY = "copy"  # of a snapshot file, while another one is intact
    FILE = "file"  # of snapshots, in all copies


class Remedy(Enum):
    """Who mends it."""

    REWRITE = "rewrite"  # what it must be is in memory
    FROM_COPY = "from_copy"
    CORE = "core"  # rewrites it from memory, or asks the other replicas
    PEERS = "peers"  # the other replicas have the file, if it is not in memory
    PEOPLE = "people"  # an alarm says what to do


# By what is damaged, and whether this replica is alone.
REMEDIES: Final[Mapping[tuple[DamagedPart, bool], Remedy]] = MappingProxyType(
    {
        (DamagedPart.SUPERBLOCK, True): Remedy.REWRITE,
        (DamagedPart.SUPERBLOCK, False): Remedy.REWRITE,
        (DamagedPart.SEGMENT_HEADER, True): Remedy.REWRITE,
        (DamagedPart.SEGMENT_HEADER, False): Remedy.REWRITE,
        # The journal has it open, and reads on; nobody else can.
        (DamagedPart.SEGMENT_FILE, True): Remedy.PEOPLE,
        (DamagedPart.SEGMENT_FILE, False): Remedy.PEOPLE,
        # What a lone replica has applied it can only save in a snapshot.
        (DamagedPart.RECORD, True): Remedy.PEOPLE,
        (DamagedPart.RECORD, False): Remedy.CORE,
        # Nothing is lost, and peers that have dropped it would send a snapshot in its place.
        (DamagedPart.COVERED_RECORD, True): Remedy.PEOPLE,
        (DamagedPart.COVERED_RECORD, False): Remedy.PEOPLE,
        (DamagedPart.COPY, True): Remedy.FROM_COPY,
        (DamagedPart.COPY, False): Remedy.FROM_COPY,
        (DamagedPart.FILE, True): Remedy.PEOPLE,
        (DamagedPart.FILE, False): Remedy.PEERS,
    }
)


def part_of_record(op: int, cut_op: int) -> DamagedPart:
    """Return what a damaged record is part of; a snapshot covers all up to `cut_op`."""
    return DamagedPart.COVERED_RECORD if op <= cut_op else DamagedPart.RECORD
