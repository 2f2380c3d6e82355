"""Which of a journal's records form the log: one entry for each op, and which ops are uncertain."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

from coordinator.journal.findings import JournalFinding, VerifiedRecord
from coordinator.journal.recovery import Evidence


def live_entries(
    kept: Sequence[VerifiedRecord], evidence: Evidence, lost: Sequence[JournalFinding]
) -> dict[int, VerifiedRecord]:
    """Return the entry that counts for each op, ascending: the highest sequence, less cut ones.

    An entry does not count if a newer one of its op is among the `lost`.
    """
    newest: dict[int, VerifiedRecord] = {}
    for entry in sorted(kept, key=lambda entry: entry.frame.sequence):
        if entry.header is not None:
            newest[entry.header.op] = entry
    hidden = {finding.op: finding.last_sequence for finding in lost if finding.op is not None}
    return {
        op: newest[op]
        for op in sorted(newest)
        if not evidence.removed(op, newest[op].frame.sequence)
        and newest[op].frame.sequence > hidden.get(op, 0)
    }


def in_doubt(live: Mapping[int, VerifiedRecord], lost: Sequence[JournalFinding]) -> list[int]:
    """Return the ops whose entry a lost record of unknown op may have replaced, descending.

    An entry is safe if it was written after the last such record, if it is the parent of a safe
    entry, or if an entry that continues its chain says that it was committed.
    """
    last_lost = max((finding.last_sequence for finding in lost if finding.op is None), default=0)
    doubtful = []
    committed_op, parent = 0, b""
    for op in sorted(live, reverse=True):
        entry = live[op]
        assert entry.header is not None
        later = live.get(op + 1)
        if later is None or later.header is None or later.header.parent != entry.header.checksum:
            committed_op = 0
        is_parent = later is not None and entry.header.checksum == parent
        safe = entry.frame.sequence > last_lost or is_parent or op <= committed_op
        if not safe:
            doubtful.append(op)
        committed_op = max(committed_op, entry.header.commit)
        parent = entry.header.parent if safe else b""
    return doubtful


def unconnected(
    live: Mapping[int, VerifiedRecord], base_op: int, checksum: bytes | None
) -> list[int]:
    """Return the ops up to the base that the hash chain does not connect with it.

    A snapshot covers them, so this replica does not miss them. But lost records may have replaced
    these entries, and peers also ask for entries before a cut.
    """
    following = live.get(base_op + 1)
    expected = checksum
    if expected is None and following is not None and following.header is not None:
        expected = following.header.parent
    if expected is None:
        return []
    op = base_op
    while (entry := live.get(op)) is not None and entry.header is not None:
        if entry.header.checksum != expected:
            break
        expected = entry.header.parent
        op -= 1
    return [held for held in live if held <= op]


def chain_breaks(live: Mapping[int, VerifiedRecord]) -> tuple[int, ...]:
    """Return the ops whose predecessor is held but is not their parent."""
    broken = []
    for op, entry in live.items():
        before = live.get(op - 1)
        if before is None or before.header is None or entry.header is None:
            continue
        if entry.header.parent != before.header.checksum:
            broken.append(op)
    return tuple(broken)


def holes(live: Container[int], known: Iterable[int], first_op: int) -> tuple[int, ...]:
    """Return the ops from `first_op` up to the highest `known` one that are not held."""
    return tuple(op for op in range(first_op, max(known, default=0) + 1) if op not in live)
