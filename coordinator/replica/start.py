"""What the core is told of a disk: a journal and a snapshot's cut, brought together.

A single replica's journal reaches the cut and continues from it, or the start is refused. A member
that was too far behind may have been given a snapshot by its peers. Then the superblock names a
generation whose cut the journal does not reach, or holds as another entry that was never committed.
Such a journal is forgotten (`Journal.restart_at`) and continues behind the cut. A crash in between
leaves it as it was, and the next start repeats this.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from coordinator import vsr
from coordinator.journal.interface import ReplicaJournal
from coordinator.vsr.log import LOG_TAIL_PREPARES
from viewstamp.limits import BOOT_NONCE_BYTES, PIPELINE_PREPARES_MAX


class WrongDirectoryError(Exception):
    """The data directory is another replica's, or of another cluster."""


@dataclass(frozen=True, slots=True)
class SnapshotCut:
    """The entry at which the snapshot to restart from was cut."""

    generation: int
    op: int
    checksum: bytes


def join(
    journal: ReplicaJournal,
    cut: SnapshotCut,
    *,
    single: bool,
    choose: Callable[[SnapshotCut], None] = lambda _: None,
) -> None:
    """Let the journal continue behind the cut, if it does not yet.

    `choose` makes durable that the replica restarts from this snapshot: after all that can refuse
    it, and before the log restarts there. Raises WrongDirectoryError if the journal's committed
    entries contradict the snapshot, NoSpace, JournalFailed, and what `choose` raises.
    """
    restarts = not continues(journal, cut)
    if restarts and (single or is_committed(journal, cut.op)):
        raise WrongDirectoryError(
            f"snapshot {cut.generation} was cut at op {cut.op} {cut.checksum.hex()}, but the"
            " journal goes on from another entry there: they are of different histories; bring"
            " back both from one backup"
        )
    choose(cut)
    if restarts:
        journal.restart_at(cut.op, cut.checksum)


def continues(journal: ReplicaJournal, cut: SnapshotCut) -> bool:
    """Return whether the journal reaches the cut, or continues behind it, with the same entry."""
    found = journal.header(cut.op)
    if found is not None:
        return found.checksum == cut.checksum
    following = journal.header(cut.op + 1)
    if following is not None:
        return following.parent == cut.checksum
    head = journal.head
    # Without entries at the cut it holds only older ones, or none, or newer ones past a hole.
    return journal.restart_op >= cut.op or (head is not None and head.op > cut.op)


def is_committed(journal: ReplicaJournal, op: int) -> bool:
    """Return whether an entry that continues the journal at `op` says that `op` is committed."""
    later = op + 1
    while (header := journal.header(later)) is not None:
        if header.commit >= op:
            return True
        later += 1
    return False


def start_event(
    known: vsr.CoreState | None, journal: ReplicaJournal, cut: SnapshotCut | None
) -> vsr.Start:
    """Return the first event of the core, with a new boot nonce.

    Nothing is left out in silence: ops missing above the cut are listed as faulty.
    """
    base_op = 0 if cut is None else cut.op
    headers = suffix(journal, base_op)
    return vsr.Start(
        known,
        headers,
        os.urandom(BOOT_NONCE_BYTES),
        base_op,
        journal.missing_ops,
        journal.head_uncertain,
        tuple(sorted(missing_checksums(journal).items())),
        changes=changes_in(journal, headers),
        disk_id=journal.public_id,
    )


def changes_in(
    journal: ReplicaJournal, headers: tuple[vsr.PrepareHeader, ...]
) -> tuple[vsr.Prepare, ...]:
    """Return those of these entries that end an epoch, with their bodies."""
    read = (journal.read(header.op) for header in headers if header.ends_epoch)
    return tuple(change for change in read if change is not None)


def missing_checksums(journal: ReplicaJournal) -> dict[int, bytes]:
    """Return the checksums by op of missing entries: the next entry names one, or its own frame."""
    following = ((op, journal.header(op + 1)) for op in journal.missing_ops)
    named = {op: header.parent for op, header in following if header is not None}
    return {**journal.missing_checksums, **named}


def suffix(journal: ReplicaJournal, base_op: int) -> tuple[vsr.PrepareHeader, ...]:
    """Return the headers of the last entries held, oldest first: as many as the core keeps.

    Faulty entries are left out: the entry after one names its checksum, by which a peer gives it
    without knowing that it is committed. Below the snapshot a pipeline before the head suffices,
    and nothing below a gap there matters.
    """
    head_op = 0 if journal.head is None else journal.head.op
    least_op = min(base_op, head_op - PIPELINE_PREPARES_MAX - 1)
    headers: list[vsr.PrepareHeader] = []
    for op in range(head_op, max(0, least_op, head_op - LOG_TAIL_PREPARES), -1):
        header = journal.header(op)
        if header is not None:
            headers.append(header)
        elif op <= base_op:
            break
    return tuple(reversed(headers))
