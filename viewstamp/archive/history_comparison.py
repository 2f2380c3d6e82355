"""Whether an archive holds the log of this replica, asked before a hole is passed over.

Entries that follow each other prove by their checksums that they go on from the archive. What lies
behind a hole proves nothing, and neither does a snapshot. So before one of them is shipped, entries
that the replica knows to be committed are compared with those that the archive has of these ops.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from viewstamp.archive.archive_errors import OtherHistory, PieceDamaged, PieceMissing
from viewstamp.archive.archive_objects import ArchiveObjects
from viewstamp.archive.archive_reading import pieces_from
from viewstamp.archive.committed_chain import CommittedHead
from viewstamp.format.archive_manifest import ArchiveManifest

_log = logging.getLogger(__name__)

NEXT_STEP: Final = (
    "was a disk or the archive put back to an earlier state? Ship to a new place, and keep the old"
    " one until you know"
)


def check_same_history(
    objects: ArchiveObjects,
    manifest: ArchiveManifest,
    found_at_end: frozenset[bytes],
    committed: Iterable[CommittedHead],
    told: CommittedHead | None,
) -> None:
    """Raise OtherHistory if the archive has another log, or surely goes further than this one.

    `found_at_end` are the checksums that the journal has at the last op of the archive, discarded
    ones among them. `committed` are entries of any op that the replica knows to be committed, and
    `told` is the newest of them. Raises ArchiveError.
    """
    if not manifest.parts:
        return
    end = CommittedHead(manifest.last_op, manifest.parts[-1].last_checksum)
    if end.checksum in found_at_end:
        return
    if found_at_end:
        here = ", ".join(sorted(checksum.hex() for checksum in found_at_end))
        raise _other(objects, end.op, here, end.checksum)
    is_compared = False
    for head in committed:
        archived = checksum_at(objects, manifest, head.op)
        is_compared = is_compared or archived is not None
        if archived is not None and archived != head.checksum:
            raise _other(objects, head.op, head.checksum.hex(), archived)
    if not is_compared and told is not None and told.op < end.op:
        raise OtherHistory(
            f"{objects.store.place} holds entries up to {end.op}, and this replica's log is"
            f" committed to {told.op} only, which the archive does not have to compare",
            NEXT_STEP,
        )


def checksum_at(objects: ArchiveObjects, manifest: ArchiveManifest, op: int) -> bytes | None:
    """Return the checksum of an archived entry, None if the archive does not have it.

    Raises ArchiveError, but not for what is lost or damaged: other entries may be compared.
    """
    for snapshot in manifest.snapshots:
        if snapshot.cut_op == op:
            return snapshot.cut_checksum
    try:
        part = next(pieces_from(objects, manifest.parts, op), None)
        if part is None or part.first_op > op:
            return None
        if part.last_op == op:
            return part.last_checksum
        entries = objects.piece(part).entries
    except (PieceMissing, PieceDamaged) as error:
        _log.warning("entry %d is not compared with the archive: %s", op, error.message)
        return None
    return next(entry.checksum for entry in entries if entry.op == op)


def _other(objects: ArchiveObjects, op: int, here: str, archived: bytes) -> OtherHistory:
    return OtherHistory(
        f"entry {op} is {here} here and {archived.hex()} in the archive: {objects.store.place}"
        " holds a log that this replica does not have",
        NEXT_STEP,
    )
