"""Fresh processes on copies of a stopped cluster's directory, and the state they come to."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from testkit.load.observation import digests, reader, root_password
from testkit.load.oracle import Check, Digests, Violation
from viewstamp.cluster import LocalCluster
from viewstamp.format.prepare import checksum_of

# Of the processes that ran there; locks are not copied either.
NOT_COPIED: Final = ("run", "log", "LOCK", "SUPERVISOR")
# All that a replay from scratch may see: the whole log, and who the replica is.
JOURNAL: Final = "journal"
SUPERBLOCK: Final = "superblock"
IDENTITY: Final = (SUPERBLOCK, "cluster.key", "root_password")
FIRST_SEGMENT: Final = "segment-0000000000000001.log"

# Of a superblock (coordinator/journal/superblock.py): its copies, and in each of them where the
# checksum, what it covers and the generation to restart from lie.
COPY_BYTES: Final = 4096
CHECKED_FROM: Final = 32
GENERATION: Final = struct.Struct("<Q")
GENERATION_OFFSET: Final = 112


# The message of the coordinator that says what it goes on from
# (coordinator/replica/data_directory.py).
OPENED: Final = "directory opened"
# After the last snapshot come its decision, the ends of sessions, and a coordinator's own entries.
REPLAY_OPS_MAX: Final = 32


@dataclass(frozen=True, slots=True)
class Start:
    """The start of a coordinator: a generation (0 for none), and the entries replayed after it."""

    generation: int
    journal_first_op: int
    replay_ops: int


class IncompleteLog(Exception):  # noqa: N818 - reads as the sentence it is
    """The log does not go back to its first entry; the message says what is there."""


async def restored_digests(data_directory: Path, copy: Path) -> Digests:
    """Return the digests that fresh processes reach from the newest snapshot and the journal.

    Raises ClusterFailed, OSError.
    """
    shutil.copytree(data_directory, copy, ignore=shutil.ignore_patterns(*NOT_COPIED))
    return await _digests_of(copy)


def starts_of(data_directory: Path) -> list[Start]:
    """Return what each start of a coordinator went on from, as its log says, oldest first."""
    log = data_directory / "log" / "coordinator.log"
    lines = log.read_text(encoding="utf-8").splitlines()
    events = [json.loads(line) for line in lines if line.startswith("{")]
    told = [event["fields"] for event in events if event.get("message") == OPENED]
    return [Start(one["generation"], one["journal_first_op"], one["replay_ops"]) for one in told]


def check_starts(starts: Sequence[Start], restored: Sequence[Start]) -> list[Violation]:
    """Return where restarts told more of the log again than what followed a snapshot.

    `starts` are those of the cluster that was killed, `restored` that of its copy. From the first
    one that went on from a snapshot, all do.
    """
    evidence = []
    first = next((index for index, one in enumerate(starts) if one.generation), len(starts))
    for number, start in enumerate(starts[first:], first + 1):
        if not start.generation:
            evidence.append(f"start {number} of the coordinator went on from no snapshot")
    if not restored:
        evidence.append("the restored coordinator did not say what it went on from")
    for start in restored:
        if not start.generation or start.replay_ops > REPLAY_OPS_MAX:
            evidence.append(
                f"after the last snapshot the restored coordinator went on from generation"
                f" {start.generation} and told {start.replay_ops} entries again"
            )
    return [Violation(Check.RESTORED, line) for line in evidence]


async def replayed_digests(data_directory: Path, archive: Path, copy: Path) -> Digests:
    """Return the digests that fresh processes reach from the whole log alone, from op 1 on.

    `archive` has the segments that snapshots made superfluous. Raises IncompleteLog, ClusterFailed,
    OSError.
    """
    copy_from_scratch(data_directory, archive, copy)
    return await _digests_of(copy)


def copy_from_scratch(data_directory: Path, archive: Path, copy: Path) -> None:
    """Copy the log, dropped segments included, to a replica that knows of no snapshot."""
    journal = copy / JOURNAL
    journal.mkdir(parents=True, mode=0o700)
    for name in IDENTITY:
        shutil.copy2(data_directory / name, copy / name)
    superblock = (data_directory / SUPERBLOCK).read_bytes()
    (copy / SUPERBLOCK).write_bytes(b"".join(_without_generation(superblock)))
    for directory in (archive, data_directory / JOURNAL):
        for segment in sorted(directory.glob("segment-*.log")):
            if (journal / segment.name).exists():
                raise IncompleteLog(f"{segment} is in the archive and in the journal")
            shutil.copy2(segment, journal / segment.name)
    if not (journal / FIRST_SEGMENT).exists():
        raise IncompleteLog(f"{FIRST_SEGMENT} is neither in {archive} nor in the journal")


def _without_generation(superblock: bytes) -> Iterable[bytes]:
    """Yield the copies of a superblock as they were before the first snapshot."""
    for start in range(0, len(superblock), COPY_BYTES):
        copy = bytearray(superblock[start : start + COPY_BYTES])
        GENERATION.pack_into(copy, GENERATION_OFFSET, 0)
        checksum = checksum_of(bytes(copy[CHECKED_FROM:]))
        copy[: len(checksum)] = checksum
        yield bytes(copy)


async def _digests_of(directory: Path) -> Digests:
    async with (
        LocalCluster(directory, "127.0.0.1:0") as cluster,
        reader(cluster.address, root_password(cluster)) as client,
    ):
        return await digests(client)
